"""Where each run stands has a table of its own: listing and filtering runs need not count their verdicts."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# As the program made them when this schema was current (agent.record.standings, which may have moved on).
STANDINGS = """
INSERT INTO standings (
    seq, run_id, task, author, judged, accepted, statuses, best_attempt_id, best_us, best_speedup, why, held
)
WITH chosen AS MATERIALIZED (SELECT * FROM runs AS r WHERE TRUE),
counting AS MATERIALIZED (
    SELECT a.run_id, v.status, max(v.seq) AS seq
    FROM chosen AS c CROSS JOIN attempts AS a ON a.run_id = c.run_id
    CROSS JOIN verdicts AS v ON v.attempt_id = a.attempt_id AND v.tool IN ('bench', 'confirm')
    GROUP BY c.seq, a.attempt_id
),
tallies AS (SELECT run_id, status, count(*) AS n FROM counting GROUP BY run_id, status),
counted AS MATERIALIZED (
    SELECT run_id, sum(n) AS judged, sum(n * (status IN ('checked', 'correct'))) AS accepted,
        json_group_object(status, n) AS statuses
    FROM tallies GROUP BY run_id
),
turns AS (
    SELECT c.seq, c.run_id, c.task, c.author, max(e.seq) AS last
    FROM chosen AS c CROSS JOIN events AS e
        ON e.run_id = c.run_id AND e.kind IN ('run_started', 'run_resumed', 'run_ended')
    GROUP BY c.seq
),
named AS (
    SELECT t.*, d.why, CASE WHEN d.seq IS NOT NULL THEN d.best_attempt_id ELSE (
        SELECT v.attempt_id FROM attempts AS a CROSS JOIN verdicts AS v ON v.attempt_id = a.attempt_id
        WHERE a.run_id = t.run_id AND v.tool = 'bench' AND v.best ORDER BY v.seq DESC LIMIT 1
    ) END AS best_attempt_id
    FROM turns AS t LEFT JOIN endings AS d ON d.seq = t.last
),
led AS (
    SELECT n.*, (
        SELECT max(v.seq) FROM verdicts AS v
        WHERE v.attempt_id = n.best_attempt_id AND v.tool IN ('bench', 'confirm')
    ) AS verdict_seq
    FROM named AS n
)
SELECT l.seq, l.run_id, l.task, l.author, coalesce(k.judged, 0), coalesce(k.accepted, 0), coalesce(k.statuses, '{}'),
    v.attempt_id, v.median_us,
    (SELECT CASE WHEN max(typeof(x.speedup) = 'text') THEN 'nan' ELSE min(x.speedup) END
        FROM comparisons AS x WHERE x.seq = v.seq),
    l.why,
    (SELECT w.held FROM verifications AS w WHERE w.attempt_id = v.attempt_id AND w.purpose = 'verify'
        ORDER BY w.seq DESC LIMIT 1)
FROM led AS l LEFT JOIN counted AS k ON k.run_id = l.run_id LEFT JOIN verdicts AS v ON v.seq = l.verdict_seq
"""


def upgrade() -> None:
    """From a schema in which a list of runs was counted from their verdicts."""
    op.create_table(
        "standings",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("judged", sa.Integer(), nullable=False),
        sa.Column("accepted", sa.Integer(), nullable=False),
        sa.Column("statuses", sa.Text(), nullable=False),
        sa.Column("best_attempt_id", sa.Text(), nullable=True),
        sa.Column("best_us", sa.Float(), nullable=True),
        sa.Column("best_speedup", sa.Float(), nullable=True),
        sa.Column("why", sa.Text(), nullable=True),
        sa.Column("held", sa.Boolean(), nullable=True),
        sa.ForeignKeyConstraint(["seq"], ["runs.seq"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("run_id"),
    )
    op.get_bind().exec_driver_sql(STANDINGS)


def downgrade() -> None:
    """Nothing is lost without it, but older programs would not keep it up to date."""
    raise NotImplementedError("restore the backup that was made beside the database")
