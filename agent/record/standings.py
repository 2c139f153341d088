"""Where each run stands, kept up to date by whoever adds rows, in the same transaction: a list of a hundred thousand
runs must not count a million verdicts. Whatever is here can be made anew from the other tables, with REFRESH.
"""

import math

from sqlalchemy import Connection

from agent.record.events import Event, Judged, RunEnded, RunResumed, RunStarted, Verified

_MOVES = (RunStarted, RunResumed, RunEnded, Judged, Verified)

# The verdict that counts of an attempt is the last of its tools `bench` and `confirm`. The best attempt is what the
# run's last ending names; of a run that goes on (or was killed), the last one that was the best when it was judged.
REFRESH = """
INSERT OR REPLACE INTO main.standings (
    seq, run_id, task, author, judged, accepted, statuses, best_attempt_id, best_us, best_speedup, why, held
)
WITH chosen AS MATERIALIZED (SELECT * FROM main.runs AS r WHERE {where}),
counting AS MATERIALIZED (
    SELECT a.run_id, v.status, max(v.seq) AS seq
    FROM chosen AS c CROSS JOIN main.attempts AS a ON a.run_id = c.run_id
    CROSS JOIN main.verdicts AS v ON v.attempt_id = a.attempt_id AND v.tool IN ('bench', 'confirm')
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
    FROM chosen AS c CROSS JOIN main.events AS e
        ON e.run_id = c.run_id AND e.kind IN ('run_started', 'run_resumed', 'run_ended')
    GROUP BY c.seq
),
named AS (
    SELECT t.*, d.why, CASE WHEN d.seq IS NOT NULL THEN d.best_attempt_id ELSE (
        SELECT v.attempt_id FROM main.attempts AS a CROSS JOIN main.verdicts AS v ON v.attempt_id = a.attempt_id
        WHERE a.run_id = t.run_id AND v.tool = 'bench' AND v.best ORDER BY v.seq DESC LIMIT 1
    ) END AS best_attempt_id
    FROM turns AS t LEFT JOIN main.endings AS d ON d.seq = t.last
),
led AS (
    SELECT n.*, (
        SELECT max(v.seq) FROM main.verdicts AS v
        WHERE v.attempt_id = n.best_attempt_id AND v.tool IN ('bench', 'confirm')
    ) AS verdict_seq
    FROM named AS n
)
SELECT l.seq, l.run_id, l.task, l.author, coalesce(k.judged, 0), coalesce(k.accepted, 0), coalesce(k.statuses, '{{}}'),
    v.attempt_id, v.median_us,
    (SELECT CASE WHEN max(typeof(x.speedup) = 'text') THEN 'nan' ELSE min(x.speedup) END
        FROM main.comparisons AS x WHERE x.seq = v.seq),
    l.why,
    (SELECT w.held FROM main.verifications AS w WHERE w.attempt_id = v.attempt_id AND w.purpose = 'verify'
        ORDER BY w.seq DESC LIMIT 1)
FROM led AS l LEFT JOIN counted AS k ON k.run_id = l.run_id LEFT JOIN main.verdicts AS v ON v.seq = l.verdict_seq
"""
_ONE = REFRESH.format(where="r.run_id = ?")

# What one more verdict changes in a run that goes on, if it is the attempt's first: nearly every change there is.
_COUNT = """
UPDATE standings SET judged = judged + 1, accepted = accepted + ?,
    statuses = json_set(statuses, ?, coalesce(json_extract(statuses, ?), 0) + 1){best}
WHERE run_id = ? AND why IS NULL
    AND (SELECT count(*) FROM verdicts WHERE attempt_id = ? AND tool IN ('bench', 'confirm')) = 1
"""
_BEST = ", best_attempt_id = ?, best_us = ?, best_speedup = ?, held = NULL"
_COUNT_BEST, _COUNT = _COUNT.format(best=_BEST), _COUNT.format(best="")


def follow(connection: Connection, event: Event) -> None:
    """Bring the standing of an event's run up to date; the event's own rows are stored already."""
    if isinstance(event, Judged) and _counted(connection, event):
        return
    if isinstance(event, _MOVES):
        connection.exec_driver_sql(_ONE, (event.run_id,))


def _counted(connection: Connection, event: Judged) -> bool:
    verdict = event.verdict
    key = f"$.{verdict.status.value}"
    best_us = verdict.timing.median_us if verdict.timing else None
    speedups = [c.speedup for c in verdict.comparisons]
    least = math.nan if any(map(math.isnan, speedups)) else min(speedups, default=None)
    best = (event.attempt_id, _real(best_us), _real(least))
    changes = (int(verdict.accepted), key, key, *(best if event.best else ()))
    done = connection.exec_driver_sql(_COUNT_BEST if event.best else _COUNT, (*changes, event.run_id, event.attempt_id))
    return done.rowcount == 1


def _real(value: float | None) -> float | str | None:
    """As `tables.Real` stores it."""
    return "nan" if value is not None and math.isnan(value) else value
