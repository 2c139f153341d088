"""Framed messages over a socket: a JSON object, raw byte blobs, and file descriptors. Never pickle.

Frame: 8 bytes length of the header, header (JSON: {"m": message, "b": [blob lengths], "f": file descriptors}), then the
descriptors in batches, each beside one byte, then the blobs. Descriptors that nobody asked for are refused unread.

A fork server is asked for a worker by `SpawnRequest`, and a worker says what confines it by `Enforced`.
"""

import contextlib
import functools
import json
import math
import operator
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from kerneltune.tools.sandbox.bubblewrap import Jail
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.schema.codec import MOST_VALUES, Json, decode, encode, parsed

_HEAD = struct.Struct("<Q")
_BATCH = 64  # descriptors beside one byte; the kernel takes 253 at most
_LOOK_S = 0.5  # a stop costs a time limit no more than this
MAX_HEADER_BYTES = 256 << 20  # from a process of ours: all that it was sent by two others


class WireError(ConnectionError):
    """The other side sent something that is not a frame, or more than is taken; the message says what it was."""


class WireClosed(WireError):
    """The other side closed."""


@dataclass(frozen=True)
class WireMessage:
    """A JSON object, and the blobs and file descriptors that belong to it; the receiver closes the descriptors.
    `waited_s`: how long it was waited for under a time limit, without the time for which the receiver was stopped."""

    body: dict[str, Json]
    blobs: list[bytes] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    waited_s: float = field(default=0.0, compare=False)

    def close(self) -> None:
        """Close the descriptors; once."""
        _close(self.fds)


@dataclass(frozen=True)
class ResourceLimits:
    """Resource limits. `memory_bytes` is address space on top of what the process maps already."""

    memory_bytes: int | None
    file_bytes: int
    cpu_s: int | None
    open_files: int


@dataclass(frozen=True)
class Enforced:
    """What took effect; `notes` says why something did not."""

    profile: Profile
    landlock_abi: int = 0
    seccomp: bool = False
    network_namespace: bool = False
    user_namespace: bool = False
    capabilities_dropped: bool = False
    signals_scoped: bool = False
    memory_limited: bool = False
    pid_namespace: bool = False
    mount_namespace: bool = False
    bubblewrap: bool = False
    bubblewrap_version: str = ""
    notes: tuple[str, ...] = ()

    @property
    def confined(self) -> bool:
        """Files, network and processes are all contained. Landlock before version 3 does not stop truncation."""
        return self.seccomp and (self.landlock_abi >= 3 or self.bubblewrap)


@dataclass(frozen=True)
class SpawnRequest:
    """What the supervisor asks of a fork server; the file descriptors travel beside it: socket, log, then extras.

    Of a fork server that shall live in a jail, the last `namespaces` of the extras are that jail's.
    """

    worker: int
    target: str  # "package.module:function", called with a Channel
    profile: Profile
    limits: ResourceLimits
    scratch: str | None
    preload: tuple[str, ...] = ()
    jail: Jail | None = None
    namespaces: int = 0
    rules: tuple[tuple[str, int], ...] = ()  # further paths, and what they may be used for (`linux.Access`)


def send(sock: socket.socket, body: dict[str, Json], blobs: list[Any] | None = None, fds: Sequence[int] = ()) -> None:
    """Send one frame; blobs are anything with the buffer protocol. Raises OSError when the other side is gone."""
    views = [memoryview(b).cast("B") for b in blobs or []]
    header = json.dumps({"m": body, "b": [v.nbytes for v in views], "f": len(fds)}).encode()
    sock.sendall(_HEAD.pack(len(header)) + header)
    for at in range(0, len(fds), _BATCH):
        socket.send_fds(sock, [b"f"], list(fds[at : at + _BATCH]))
    for view in views:
        sock.sendall(view)


class Endpoint(Protocol):
    """A worker's end of its line to the supervisor."""

    def receive(self) -> WireMessage: ...

    def send(self, body: dict[str, Json], blobs: list[Any] | None = None, fds: Sequence[int] = ()) -> None: ...


def serve(
    channel: Endpoint,
    handlers: Mapping[type[Any], Callable[..., Any]],
    afterwards: Callable[[Any], None] = lambda _: None,
) -> NoReturn:
    """Answer requests by their type until the other side closes, which ends the worker. A handler takes a request,
    its blobs and the descriptors that came along, if any did, and returns the answer, (answer, blobs) or (answer,
    blobs, descriptors). `afterwards` is called with each request that was answered."""
    requests: Any = functools.reduce(operator.or_, handlers)
    while True:
        message = channel.receive()
        request = decode(requests, message.body)
        answer = handlers[type(request)](request, message.blobs, *([message.fds] if message.fds else []))
        reply, blobs, *fds = answer if isinstance(answer, tuple) else (answer, [])
        message.close()
        channel.send(encode(reply), list(blobs), *fds)
        afterwards(request)


def receive(
    sock: socket.socket,
    *,
    max_blob_bytes: int = 1 << 36,
    max_header_bytes: int = MAX_HEADER_BYTES,
    max_values: int = MOST_VALUES,
    max_fds: int = 0,
    timeout_s: float | None = None,
) -> WireMessage:
    """Read one frame. Raises WireClosed at end of stream, WireError on a malformed or too large frame; TimeoutError as
    the socket's own timeout says, or, with `timeout_s`, when the whole frame is not there by then, however it trickles
    in. How many values a header has is counted before they are built: see `parsed`."""
    reader = _MessageReader(sock, timeout_s)
    (length,) = _HEAD.unpack(reader.read(_HEAD.size))
    if length > max_header_bytes:
        raise WireError(f"a header of {length} bytes; the limit is {max_header_bytes}")
    body, sizes, count = _header(reader.read(length), max_values)
    if sum(sizes) > max_blob_bytes:
        raise WireError(f"{sum(sizes)} bytes of blobs; the limit is {max_blob_bytes}")
    if count > max_fds:
        raise WireError(f"{count} file descriptors; the limit is {max_fds}")
    fds: list[int] = []
    try:
        while len(fds) < count:
            fds += reader.descriptors(min(_BATCH, count - len(fds)))
        return WireMessage(body, [bytes(reader.read(n)) for n in sizes], fds, reader.waited_s)
    except BaseException:
        _close(fds)
        raise


def _header(text: bytearray, max_values: int) -> tuple[dict[str, Json], list[int], int]:
    try:  # `send` writes ASCII alone; one wide character makes all of a text take four times as much
        header = parsed(text.decode("ascii"), max_values)
        body, sizes, count = header["m"], header["b"], header.get("f", 0)
        whole = isinstance(sizes, list) and all(type(n) is int and n >= 0 for n in [*sizes, count])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError(f"a malformed frame: {error}") from error
    if not isinstance(body, dict) or not whole:
        raise WireError("a malformed frame")
    return body, sizes, count


class _MessageReader:
    """Reads exact amounts until its time is used up. The time for which the process was stopped (Ctrl-Z) does not use
    it up: the clock is looked at often, and counts no more than a look was meant to take."""

    def __init__(self, sock: socket.socket, timeout_s: float | None) -> None:
        self._sock, self._timeout_s = sock, timeout_s
        self.waited_s = 0.0
        self._seen_s = time.monotonic()

    def _wait(self) -> None:
        fd, poll = self._sock.fileno(), select.poll()
        if self._timeout_s is None or fd < 0:  # reading a closed socket says so itself
            return
        poll.register(fd, select.POLLIN)
        while not poll.poll(self._look_ms(self._timeout_s)):
            if self._look_ms(self._timeout_s) == 0 and not poll.poll(0):
                raise TimeoutError("the message did not arrive in time")
        self._look_ms(self._timeout_s)

    def _look_ms(self, timeout_s: float) -> int:
        """Count the time since the last look; how long the next one may take."""
        seen_s, self._seen_s = self._seen_s, time.monotonic()
        self.waited_s += min(_LOOK_S, self._seen_s - seen_s)
        return math.ceil(max(0.0, min(_LOOK_S, timeout_s - self.waited_s)) * 1000)

    def read(self, length: int) -> bytearray:
        data = bytearray(length)
        view = memoryview(data)
        done = 0
        while done < length:
            self._wait()
            count = self._sock.recv_into(view[done:])
            if count == 0:
                raise WireClosed("the other side closed the connection")
            done += count
        return data

    def descriptors(self, count: int) -> list[int]:
        self._wait()
        data, fds, flags, _ = socket.recv_fds(self._sock, 1, count)
        if not data or len(fds) != count or flags & socket.MSG_CTRUNC:
            _close(fds)
            raise WireError(f"{len(fds)} file descriptors, not {count}")
        for fd in fds:
            os.set_inheritable(fd, False)
        return list(fds)


def _close(fds: list[int]) -> None:
    while fds:
        with contextlib.suppress(OSError):
            os.close(fds.pop())
