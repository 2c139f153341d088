"""The worker processes that have a candidate in hand now, so that somebody can end them."""

import threading
from collections.abc import Callable

from kerneltune.tools.sandbox.workers import Worker


class Children:
    """Remembers the workers that its factories made, as long as they live. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[Worker] = []

    def of(self, new: Callable[[], Worker]) -> Callable[[], Worker]:
        """The same factory, with its workers remembered."""

        def make() -> Worker:
            worker = new()
            with self._lock:
                self._made = [*(w for w in self._made if not w.exited.is_set()), worker]
            return worker

        return make

    def now(self) -> tuple[Worker, ...]:
        """Those that live."""
        with self._lock:
            return tuple(w for w in self._made if not w.exited.is_set())
