"""The judge's line to a runner: requests with a deadline and the judge's own clock around them.

Runners are disposable. Each comes as a socket through the door, a socket on which the supervisor passes descriptors.
"""

import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools import wire
from tools.codec import DecodeError, decode, encode
from tools.errors import WorkerTimeout
from tools.judge.clock import now_s
from tools.runner.protocol import Failed, Reply, Request
from tools.verdict import Status

START_S = 60.0


class RunnerFailed(Exception):
    """The runner is gone, because of the plan it ran; `status` and the text go into the verdict."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


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


class RunnerLink:
    """At most one runner at a time; `ask` starts the next one when it is needed."""

    def __init__(self, door: socket.socket, need: Callable[[str], None], end: Callable[[str], None]) -> None:
        self._door, self._need, self._end = door, need, end
        self._line: socket.socket | None = None
        self.started = 0

    def ask(self, request: Request, blobs: Sequence[bytes] = (), *, timeout_s: float) -> Answered:
        """Send a request and wait for its reply. Raises RunnerFailed; then the runner is gone."""
        line = self._line or self._fresh()
        try:
            line.settimeout(timeout_s)
            started = now_s()
            wire.send(line, encode(request), list(blobs))
            message = wire.receive(line, max_blob_bytes=0)
            host_us = (now_s() - started) * 1e6
            reply: Reply = decode(Reply, message.body)  # type: ignore[arg-type]
        except TimeoutError as error:
            self._lost(f"no answer to {request.kind} within {timeout_s:.1f} s", kill=True)
            raise RunnerFailed(Status.TIMED_OUT, f"a kernel ran longer than {timeout_s:.1f} s") from error
        except (OSError, DecodeError) as error:
            self._lost(str(error), kill=True)
            raise RunnerFailed(Status.CRASHED, f"the process that ran the kernels died ({error})") from error
        if isinstance(reply, Failed):
            self._lost(reply.detail, kill=False)
            raise RunnerFailed(Status.REJECTED if reply.refused else Status.CRASHED, reply.detail)
        return Answered(reply, host_us)

    def distrust(self, why: str) -> None:
        """End the present runner."""
        if self._line is not None:
            self._lost(why, kill=True)

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
