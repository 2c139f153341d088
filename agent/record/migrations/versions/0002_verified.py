"""An attempt may be judged again; a verdict says how thoroughly its time was established.

`verdicts` is made anew, under its own name: SQLite cannot drop the unnamed rule of one verdict per attempt and tool.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COLUMNS = (
    "seq, attempt_id, tool, status, detail, median_us, low_us, high_us, n_blocks, n_launches, coverage, sol_fraction, "
    "variant, receipt_json_ref, bench_s, best, rank_key"
)
TIMING = (
    "(median_us IS NOT NULL) = (status = 'correct') AND (low_us IS NOT NULL) = (status = 'correct') "
    "AND (high_us IS NOT NULL) = (status = 'correct') AND (n_blocks IS NOT NULL) = (status = 'correct') "
    "AND (n_launches IS NOT NULL) = (status = 'correct')"
)


def upgrade() -> None:
    """From a schema in which a finished attempt was never judged again."""
    op.create_table(
        "verdicts_new",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("tool", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("median_us", sa.Float(), nullable=True),
        sa.Column("low_us", sa.Float(), nullable=True),
        sa.Column("high_us", sa.Float(), nullable=True),
        sa.Column("n_blocks", sa.Integer(), nullable=True),
        sa.Column("n_launches", sa.Integer(), nullable=True),
        sa.Column("coverage", sa.Float(), nullable=True),
        sa.Column("sol_fraction", sa.Float(), nullable=True),
        sa.Column("variant", sa.Text(), nullable=False),
        sa.Column("tier", sa.String(), nullable=True),
        sa.Column("receipt_json_ref", sa.String(), nullable=False),
        sa.Column("bench_s", sa.Float(), nullable=True),
        sa.Column("best", sa.Boolean(), nullable=True),
        sa.Column("rank_key", sa.Text(), nullable=True),
        sa.CheckConstraint(TIMING, name="only_correct_has_timing"),
        sa.CheckConstraint("sol_fraction IS NULL OR status = 'correct'", name="only_correct_has_sol_fraction"),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.attempt_id"]),
        sa.ForeignKeyConstraint(["receipt_json_ref"], ["texts.sha256"]),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("seq", "status"),
    )
    op.execute(f"INSERT INTO verdicts_new ({COLUMNS}) SELECT {COLUMNS} FROM verdicts")
    op.drop_table("verdicts")
    op.rename_table("verdicts_new", "verdicts")
    op.create_index("ix_verdicts_attempt_id", "verdicts", ["attempt_id"])
    op.create_table(
        "verifications",
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=True),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("versions", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.attempt_id"]),
        sa.ForeignKeyConstraint(["seq"], ["events.seq"]),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("ix_verifications_attempt_id", "verifications", ["attempt_id"])


def downgrade() -> None:
    """Verdicts that were repeated have no place in the schema before."""
    raise NotImplementedError("restore the backup that was made beside the database")
