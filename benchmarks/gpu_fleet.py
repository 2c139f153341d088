"""A worker for each GPU, a thread for each worker, and an end in time: by a deadline, or as by Ctrl-C."""

import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gpu_worker import GpuWorker

GRACE_S = 12.0
_TICK_S = 0.2


class Fleet:
    """Calls `turn` with a worker again and again, for all workers side by side, until it returns False. `deadline`: by
    time.monotonic(), when everything has to be over; `grace_s`: between Ctrl-C and the end by force, which a worker
    needs to store what it has."""

    def __init__(
        self,
        command: Sequence[str],
        gpus: Sequence[str | None],
        logs: Path,
        turn: Callable[[GpuWorker], bool],
        *,
        deadline: float | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._logs, self._turn, self._deadline, self._grace_s = logs, turn, deadline, grace_s
        self._stopping, self._lock, self._over = threading.Event(), threading.Lock(), threading.Semaphore(0)
        self.workers = [GpuWorker(command, gpu, logs, grace_s, self.why_end) for gpu in gpus]
        self._threads = [threading.Thread(target=self._thread, args=(worker,), daemon=True) for worker in self.workers]

    def run(self) -> None:
        """Until nothing is left to do or the fleet was stopped."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for thread in self._threads:
            thread.start()
        for _ in self._threads:  # no join, which Ctrl-C would break: Python 3.11 then takes the thread for ended
            while not self._over.acquire(timeout=_TICK_S):
                pass

    def stop(self) -> None:
        """End what runs, as by Ctrl-C, and start nothing more. A second Ctrl-C ends it at once."""
        self._stopping.set()
        try:
            for thread in self._threads:
                thread.join(2 * self._grace_s + 5.0)
        finally:
            for worker in self.workers:
                worker.kill()

    def left_s(self) -> float:
        """Until everything has to be over; infinite without a deadline."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def why_end(self) -> str:
        """Why what runs has to end now; "" while it need not."""
        if self._stopping.is_set():
            return "ended: interrupted"
        return "ended: the deadline came" if self.left_s() < self._grace_s else ""

    def say(self, text: str) -> None:
        """A line for whoever watches, from any thread."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            print(text, flush=True)

    def _thread(self, worker: GpuWorker) -> None:
        try:
            while not self._stopping.is_set() and self._turn(worker):
                pass
        finally:
            worker.end()
            self._over.release()


def ended_of_itself(run: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Run, and after Ctrl-C or SIGTERM stop in order: False then."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        print("ending what runs; the same command goes on later", file=sys.stderr)
        stop()
        return False
    return True


def gpus_of(text: str) -> list[str | None]:
    """A flag's "0,1" as GPUs with a worker each; without any, one worker on whatever there is."""
    return [*names_of(text)] or [None]


def names_of(text: str) -> list[str]:
    """What stands between commas."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def next_of(tasks: "queue.SimpleQueue[str]") -> str | None:
    """The next of a queue that several threads empty; None when nothing is left."""
    with contextlib.suppress(queue.Empty):
        return tasks.get_nowait()
    return None
