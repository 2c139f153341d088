"""The judge's line to a runner: requests with a deadline and the judge's own clock around them.

Runners are disposable. Each comes as a socket through the door, a socket on which the supervisor passes descriptors.
A reply counts only when it carries the token of its request, is of the type that the request can have, and was not
there before the request; it holds no blobs and no descriptors, and is small.
"""

import contextlib
import secrets
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kerneltune.tools.backends.runner_messages import Failed, Load, Reply, Request, Setup, fits
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import DecodeError, decode, encode, one_line
from kerneltune.tools.schema.errors import KerneltuneError, WorkerTimeout
from kerneltune.tools.schema.verdict import Cause, Status

START_S = 60.0
MAX_REPLY_BYTES = 1 << 20  # the times of 40,000 passes
MAX_DETAIL = 2000


def now_s() -> float:
    """Seconds of a clock that nothing adjusts."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


class RunnerFailed(Exception):
    """The runner is gone, because of the plan it ran; `status` and the text go into the verdict."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail

    @property
    def cause(self) -> Cause | None:
        """What is known of it: a fault of memory is told apart where guard pages are looked at."""
        return {
            Status.TIMED_OUT: Cause.RUNNING,
            Status.WRONG: Cause.OVERWRITES,
            Status.CRASHED: Cause.RUNNER_DIED,
            Status.UNCHECKED: Cause.MEMORY,
        }.get(self.status)


@dataclass(frozen=True)
class Answered:
    """A reply, and how long the judge's clock ran meanwhile."""

    reply: Reply
    host_us: float


def pass_runner(door: socket.socket, line: socket.socket) -> None:
    """Supervisor's side: hand the judge its end of the line to a fresh runner."""
    socket.send_fds(door, [b"r"], [line.fileno()])


def receive_runner(door: socket.socket, timeout_s: float = START_S) -> socket.socket:
    """Judge's side. Raises WorkerTimeout when none comes, WireError when the supervisor is gone."""
    door.settimeout(timeout_s)
    try:
        data, fds, _, _ = socket.recv_fds(door, 1, 1)
    except TimeoutError as error:
        raise WorkerTimeout(f"no runner came within {timeout_s:g} s") from error
    if not data or not fds:
        raise wire.WireError("the supervisor closed the door")
    return socket.socket(fileno=fds[0])


R = TypeVar("R")


class Runners(Generic[R]):
    """Supervisor's side: the runner at work, and a spare that warms up meanwhile, so that after a fault or an endless
    kernel the judge has a runner again at once.

    `start` forks a runner whose line is the socket that it is given, and returns what `end` kills it by; `end` returns
    when the runner is gone.
    """

    def __init__(self, door: socket.socket, start: Callable[[socket.socket], R], end: Callable[[R], None]) -> None:
        self._door, self._start, self._kill = door, start, end
        self._present: R | None = None
        self._spare: tuple[R, socket.socket] | None = None
        self.started = 0

    def prepare(self) -> None:
        """Start the spare before a runner is asked for."""
        self._spare = self._spare or self._started()

    def need(self) -> None:
        """What NeedRunner asks for: end the present runner, hand the judge the spare, start the next spare; where that
        cannot be started, who needs it is told then."""
        self.end()
        self._present, line = self._taken()
        with line:
            pass_runner(self._door, line)
        with contextlib.suppress(KerneltuneError, OSError):
            self._spare = self._started()

    def _taken(self) -> tuple[R, socket.socket]:
        if self._spare is None:
            return self._started()
        (runner, line), self._spare = self._spare, None
        if _waiting(line) is None:
            return runner, line
        line.close()  # it died while it waited
        self._kill(runner)
        return self._started()

    def _started(self) -> tuple[R, socket.socket]:
        line, theirs = socket.socketpair()
        with theirs:
            try:
                runner = self._start(theirs)
            except BaseException:
                line.close()
                raise
        self.started += 1
        return runner, line

    def end(self) -> None:
        """What EndRunner asks for: kill the runner at work."""
        present, self._present = self._present, None
        if present is not None:
            self._kill(present)

    def close(self) -> None:
        """End both."""
        self.end()
        if self._spare is not None:
            (runner, line), self._spare = self._spare, None
            line.close()
            self._kill(runner)


def _waiting(line: socket.socket) -> bytes | None:
    """What lies on the line unread: None when nothing does, b"" when the other side has closed it."""
    poll = select.poll()
    poll.register(line, select.POLLIN)
    if not poll.poll(0):  # a socket with a timeout waits for it even when told not to
        return None
    try:
        return line.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        return b""


class RunnerLink:
    """At most one runner at a time; `ask` starts the next one when it is needed. `clock` is the judge's own, in s."""

    def __init__(
        self,
        door: socket.socket,
        need: Callable[[str], None],
        end: Callable[[str], None],
        clock: Callable[[], float] = now_s,
    ) -> None:
        self._door, self._need, self._end, self.clock = door, need, end, clock
        self._line: socket.socket | None = None
        self.started = 0

    def ask(
        self, request: Request, blobs: Sequence[bytes] = (), *, timeout_s: float, fds: Sequence[int] = ()
    ) -> Answered:
        """Send a request and wait for its reply. Raises RunnerFailed; then the runner is gone."""
        line = self._ready(request)
        try:
            answered = _exchange(line, request, blobs, fds, timeout_s, self.clock)
        except TimeoutError as error:
            self._lost(f"no answer to {request.kind} within {timeout_s:.1f} s", kill=True)
            raise RunnerFailed(Status.TIMED_OUT, f"a kernel ran longer than {timeout_s:.1f} s") from error
        except (OSError, DecodeError, OverflowError) as error:
            self._lost(str(error), kill=True)
            raise RunnerFailed(Status.CRASHED, f"the process that ran the kernels died ({error})") from error
        reply = answered.reply
        if isinstance(reply, Failed):
            self._lost("it failed", kill=False)
            raise RunnerFailed(_status(reply), one_line(reply.detail, MAX_DETAIL))
        return answered

    def distrust(self, why: str) -> None:
        """End the present runner."""
        if self._line is not None:
            self._lost(why, kill=True)

    def _ready(self, request: Request) -> socket.socket:
        """The line; a new plan gets a fresh runner when the last plan's has died since, or says what nobody asked."""
        if self._line is not None and isinstance(request, Load | Setup) and _waiting(self._line) is not None:
            self._lost("the runner ended, or spoke without being asked", kill=True)
        return self._line or self._fresh()

    def _fresh(self) -> socket.socket:
        self._need("a plan is to be run" if not self.started else "the last runner is gone")
        self._line = receive_runner(self._door)
        self.started += 1
        return self._line

    def _lost(self, why: str, *, kill: bool) -> None:
        if kill:
            self._end(why)
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.close()
        self._line = None


def _status(failed: Failed) -> Status:
    if failed.no_memory:
        return Status.UNCHECKED
    return Status.REJECTED if failed.refused else Status.CRASHED


def _exchange(
    line: socket.socket,
    request: Request,
    blobs: Sequence[bytes],
    fds: Sequence[int],
    timeout_s: float,
    clock: Callable[[], float],
) -> Answered:
    """Exchange one request and its reply. Raises OSError and DecodeError; TimeoutError when it takes longer, in
    whatever way."""
    if _waiting(line) not in (None, b""):
        raise wire.WireError("it answered before it was asked")
    token, body = secrets.token_hex(8), encode(request)
    line.settimeout(timeout_s)
    started_s = clock()
    wire.send(line, {"token": token, "request": body}, list(blobs), fds)
    left_s = max(1e-3, timeout_s - (clock() - started_s))
    message = wire.receive(line, max_blob_bytes=0, max_header_bytes=MAX_REPLY_BYTES, timeout_s=left_s)
    host_us = (clock() - started_s) * 1e6
    if message.body.get("token") != token:
        raise wire.WireError("it answered another request")
    reply: Reply = decode(Reply, message.body.get("reply"))  # type: ignore[arg-type]
    if not fits(request, reply):
        raise wire.WireError(f"it answered {reply.kind} to {request.kind}")
    return Answered(reply, host_us)
