"""What a process that lives long remembers: the latest answers to what is asked again and again."""

import threading
from typing import TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Latest(dict[_K, _V]):
    """The latest values that were kept, `most` of them. Any thread may use it."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self._changing = most, threading.Lock()

    def keep(self, key: _K, value: _V) -> _V:
        """Remember one, and return it; the oldest goes."""
        with self._changing:
            self[key] = value
            while len(self) > self._most:
                del self[next(iter(self))]
        return value
