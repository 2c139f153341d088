"""How many rows each run of a task may have, when a task may only have so many. Keeps one number for each run."""

from collections.abc import Mapping, Sequence

from tools.errors import UsageError


class Quota:
    """At most `per_run` rows of a run and `per_task` of a task. Runs of a task share alike; what one cannot use goes to
    the others. `count` every run before the first `share`."""

    def __init__(self, per_run: int, per_task: int) -> None:
        if min(per_run, per_task) < 1:
            raise UsageError(f"per_run={per_run}, per_task={per_task}: both must be at least 1")
        self._per_run, self._per_task = per_run, per_task
        self._wanted: dict[str, dict[str, int]] = {}
        self._shares: dict[str, Mapping[str, int]] = {}

    def count(self, task: str, run_id: str, n_rows: int) -> None:
        """A run could have so many rows."""
        if n_rows:
            self._wanted.setdefault(task, {})[run_id] = min(n_rows, self._per_run)
            self._shares.pop(task, None)

    def share(self, task: str, run_id: str, n_rows: int) -> int:
        """How many it may have. A run that was never counted has what one run may have."""
        wanted = self._wanted.get(task, {})
        if run_id not in wanted:
            return min(n_rows, self._per_run, self._per_task)
        if task not in self._shares:
            self._shares[task] = _shared(wanted, self._per_task)
        return self._shares[task][run_id]


def _shared(wanted: Mapping[str, int], total: int) -> Mapping[str, int]:
    """Each gets what it wants or an equal part of what is left, those that want least first."""
    if sum(wanted.values()) <= total:
        return wanted
    given: dict[str, int] = {}
    order: Sequence[str] = sorted(wanted, key=lambda run_id: (wanted[run_id], run_id))
    for i, run_id in enumerate(order):
        given[run_id] = min(wanted[run_id], total // (len(order) - i))
        total -= given[run_id]
    return given
