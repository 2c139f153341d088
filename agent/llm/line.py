"""Keeps asking through troubles that pass by themselves, and lets go at once when told to.

The SDKs' own retries are off: they sleep for as long as a retry-after says, be it an hour, try again when the quota
is spent, and do nothing about a stream that breaks off in the middle.
"""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from agent.llm.errors import Unavailable

T = TypeVar("T")
LONGEST_WAIT_S = 120.0  # a longer retry-after is the caller's to wait for
LONGEST_BACKOFF_S = 8.0


class Passing(Exception):
    """A trouble that may pass by itself: too busy, broken off, silent."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Again(Exception):
    """The request was changed so that the server may take it now: ask again, without waiting."""


class Line:
    """One way to a provider. Any number of threads may ask through it; `close` ends them all."""

    def __init__(self, provider: str, *, max_retries: int, backoff_s: float) -> None:
        self._provider = provider
        self._max_retries = max_retries
        self._backoff_s = backoff_s
        self._closed = threading.Event()
        self._streams: list[Any] = []  # SDK streams that are being read
        self._lock = threading.Lock()

    def persist(self, once: Callable[[int], T]) -> T:
        """Call `once(attempt)`, attempt from 1, until it returns. Raises what it raises, but for `Passing`, which is
        waited out at most `max_retries` times and then becomes Unavailable."""
        attempt, troubles, began = 0, 0, time.monotonic()
        while True:
            attempt += 1
            try:
                return once(attempt)
            except Again:
                continue
            except Passing as trouble:
                troubles += 1
                self._wait(trouble, troubles, time.monotonic() - began)

    def _wait(self, trouble: Passing, troubles: int, spent_s: float) -> None:
        if self._closed.is_set():
            raise Unavailable(f"{self._provider}: the connection was closed") from None
        wait_s = trouble.retry_after_s
        if troubles > self._max_retries or (wait_s is not None and wait_s > LONGEST_WAIT_S):
            tries = f"{troubles} {'try' if troubles == 1 else 'tries'} in {spent_s:.0f} s"
            later = f"come back in {wait_s:.0f} s" if wait_s else "try again later"
            message = f"{self._provider} is not available: {trouble} ({tries}); {later}"
            raise Unavailable(message, wait_s) from None
        if not wait_s or wait_s < 0:
            longest_s = min(self._backoff_s * 2 ** (troubles - 1), LONGEST_BACKOFF_S)
            wait_s = longest_s * random.uniform(0.75, 1.0)  # so that many conversations do not come back at once
        self._closed.wait(wait_s)

    @contextlib.contextmanager
    def reading(self, stream: Any) -> Iterator[Any]:
        """`stream` while it is read; its connection is closed however that ends, Ctrl-C included."""
        with self._lock:
            self._streams.append(stream)
        try:
            yield stream
        finally:
            with self._lock:
                self._streams.remove(stream)
            stream.close()

    def close(self) -> None:
        """End what other threads wait for: their reads fail at once, and nothing is tried again."""
        self._closed.set()
        with self._lock:
            for stream in self._streams:
                _hang_up(stream)


def _hang_up(stream: Any) -> None:
    """Closing a socket does not wake a thread that reads from it; shutting it down does."""
    network = stream.response.extensions.get("network_stream")
    raw = network.get_extra_info("socket") if network is not None else None
    if isinstance(raw, socket.socket):
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_RDWR)
