"""What the next problems need but no GPU, done beside the one that is judged: by threads that each have an Inductor of
their own, and whose work is done in worker processes."""

import contextlib
import queue
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kernelbench_problem import AsItComes, Place, Problem


class Ahead:
    """Prepares what is wanted, in that order, `width` problems at a time. Close it in the end."""

    def __init__(self, place: Place, width: int) -> None:
        self._place = place
        self._queue: queue.SimpleQueue[Problem | None] = queue.SimpleQueue()
        self._known: dict[Path, Problem] = {}
        self._told = threading.Condition()
        self._lowerings = [AsItComes(place.machine) for _ in range(width)]
        self._threads = [threading.Thread(target=self._work, args=(one,), daemon=True) for one in self._lowerings]
        for thread in self._threads:
            thread.start()

    def want(self, paths: Sequence[Path]) -> None:
        """Begin with these, unless that is done; others are not wanted any more."""
        for path in [path for path in self._known if path not in paths]:
            self._known.pop(path).close()
        for path in paths:
            if path not in self._known:
                self._known[path] = Problem(path, self._place)
                self._queue.put(self._known[path])

    def first_ready(self) -> Path:
        """Of those that are wanted: the first that can be judged, or of which is known why not. Waits for one."""
        with self._told:
            self._told.wait_for(lambda: any(problem.ready.is_set() for problem in self._known.values()))
        return next(path for path, problem in self._known.items() if problem.ready.is_set())

    def take(self, path: Path) -> Problem:
        """It, to be closed by the caller; begun now if it was not wanted before."""
        if path not in self._known:
            self.want([*self._known, path])
        return self._known.pop(path)

    def close(self) -> None:
        """Let go of what is not done; the threads end when their workers have."""
        for _ in self._threads:
            self._queue.put(None)
        self.want([])
        for lowering in self._lowerings:
            with contextlib.suppress(OSError):
                lowering.close()

    def _work(self, lowering: AsItComes) -> None:
        while (problem := self._queue.get()) is not None:
            problem.prepare(lowering, self._tell)

    def _tell(self) -> None:
        with self._told:
            self._told.notify_all()
