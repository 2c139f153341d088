"""What a search may learn from earlier runs on the same GPU: one query over attempts and the verdicts that count."""

import json
from typing import Any, cast

from sqlalchemy import Connection, text

from kerneltune.agent.attempt import Earlier, Origin, point_of
from kerneltune.agent.events import RunStarted
from kerneltune.tools.schema.codec import decode

MOST_RUNS = 40  # of this task first, then the latest: a search of 300 attempts loads 12,000 rows in 0.1 s

# Of each attempt the last verdict counts, as everywhere; a verification by hand, perhaps elsewhere, does not. Only what
# the record held when the run began counts, so that a resumed run sees what it saw then.
_QUERY = text("""
WITH now AS (SELECT coalesce((SELECT seq FROM runs WHERE run_id = :run_id), 9223372036854775807) AS seq),
chosen AS MATERIALIZED (
    SELECT r.* FROM runs AS r, now
    WHERE r.gpu = :gpu AND r.arch = :arch AND r.author = 'offline' AND r.seq < now.seq
    ORDER BY r.task_sha256 = :task_sha256 DESC, r.seq DESC LIMIT :most
)
SELECT a.attempt_id, a.origin, a.source_ref, c.task, c.task_sha256, c.versions, v.status, v.median_us
FROM chosen AS c
CROSS JOIN attempts AS a ON a.run_id = c.run_id
CROSS JOIN verdicts AS v ON v.seq = (
    SELECT max(w.seq) FROM verdicts AS w, now
    WHERE w.attempt_id = a.attempt_id AND w.tool IN ('bench', 'confirm') AND w.seq < now.seq
)
ORDER BY a.seq DESC
""")
_ORIGIN = cast(type[Origin | None], Origin | None)
_FAILED = ("wrong", "crashed", "timed_out", "compile_failed", "rejected", "impossible")


def earlier(connection: Connection, run: RunStarted) -> list[Earlier]:
    """The attempts of earlier runs' searches on the GPU of `run`, the latest first; none where it has no GPU."""
    if run.gpu is None:
        return []
    asked = {"run_id": run.run_id, "gpu": run.gpu, "arch": run.arch, "task_sha256": run.task_sha256}
    found = (_earlier(row, run) for row in connection.execute(_QUERY, asked | {"most": MOST_RUNS}).mappings())
    return [one for one in found if one is not None]


def _earlier(row: Any, run: RunStarted) -> Earlier | None:
    origin: Origin | None = decode(_ORIGIN, json.loads(row["origin"] or "null"))
    point = point_of(origin)
    timed = row["status"] == "correct" and isinstance(row["median_us"], float) and row["median_us"] > 0
    if point is None or not point.sketch or not (timed or row["status"] in _FAILED):
        return None
    return Earlier(
        row["attempt_id"],
        row["task_sha256"] == run.task_sha256,
        json.loads(row["versions"]) == run.versions,
        point.sketch,
        point.params,
        row["source_ref"],
        row["median_us"] if timed else None,
        row["task"],
    )
