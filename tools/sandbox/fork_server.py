"""The warm process that all workers are forked from: it has imported torch and triton and has never touched a GPU.

A fork from here to a working child takes milliseconds where a fresh interpreter takes 3.5-5 s. It holds no secret, no
answer and no clock, so a hostile child inherits nothing worth having. It is single-threaded on purpose: threads do not
survive a fork. A fork server may fork further fork servers (the tracer's, with its stand-ins installed and its compiler
warm), which is why `serve` is itself a worker's entry point.
"""

import contextlib
import gc
import importlib
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kerneltune.tools.sandbox import bubblewrap, linux, wire
from kerneltune.tools.sandbox import rules as sandbox_rules
from kerneltune.tools.sandbox.bubblewrap import Jail
from kerneltune.tools.sandbox.confine import enter
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.sandbox.wire import SpawnRequest
from kerneltune.tools.schema.codec import Json, decode, encode, one_line

MAX_FDS = 16


class Channel:
    """A worker's end of its socket to the supervisor. `jail` is where a fork server lives, and so will its workers;
    `prepared` is what its preload functions returned, which its workers find here."""

    def __init__(
        self,
        sock: socket.socket,
        sockets: list[socket.socket],
        jail: Jail | None = None,
        prepared: tuple[Any, ...] = (),
    ) -> None:
        self._sock = sock
        self.sockets = sockets
        self.jail = jail
        self.prepared = prepared

    def receive(self, timeout_s: float | None = None) -> wire.WireMessage:
        """The next message. Raises wire.WireError when the supervisor is gone, TimeoutError after `timeout_s`."""
        self._sock.settimeout(timeout_s)
        return wire.receive(self._sock, max_fds=1)

    def send(self, body: dict[str, Json], blobs: list[Any] | None = None, fds: Sequence[int] = ()) -> None:
        """Answer."""
        self._sock.settimeout(None)
        wire.send(self._sock, body, blobs, fds)

    @property
    def control(self) -> socket.socket:
        """The raw socket, for a worker that is itself a fork server."""
        return self._sock


def resolve(target: str) -> Callable[..., Any]:
    """The function named "package.module:function"."""
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{target} is not callable")
    return function  # type: ignore[no-any-return]


def serve(channel: Channel) -> None:
    """Fork a worker per request until the supervisor closes the socket. Never returns."""
    control = channel.control
    control.settimeout(None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    children: dict[int, int] = {}
    wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_w)
    gc.freeze()  # what this role has loaded as well
    try:
        wire.send(control, {"ready": os.getpid()})
    except ConnectionError:  # the supervisor was killed while we warmed up
        _end(children)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(wake_r, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if wake_r in ready:
                os.read(wake_r, 4096)
            try:
                _reap(children, control)
                alive = control not in ready or _handle(channel, children)
            except (ConnectionError, wire.WireError):  # the supervisor went away in the middle of a word
                alive = False
            if not alive:
                _end(children)


def _handle(channel: Channel, children: dict[int, int]) -> bool:
    control = channel.control
    data, fds, _, _ = socket.recv_fds(control, 1, MAX_FDS)
    if not data:
        return False
    request = decode(SpawnRequest, wire.receive(control).body)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:  # one candidate's threads may be all that a container has, and take its others down too
        pid, told = -1, {"exited": request.worker, "refused": str(error)}
    else:
        told = {"spawned": request.worker, "pid": pid}
    if pid == 0:
        linux.die_with_parent()  # before it warms up, which takes seconds; confinement clears it, and sets it again
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _child(request, fds, channel)
    if pid > 0:
        children[pid] = request.worker
    for fd in fds:
        os.close(fd)
    wire.send(control, told)
    return True


def _child(request: SpawnRequest, fds: list[int], server: Channel) -> None:
    """Become the worker: confine ourselves, say how far that went, then run the target. Never returns."""
    status = 1
    try:
        sock_fd, log_fd, *extra = fds
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        target = resolve(request.target)  # ours; imported before the door closes
        prepared = (*server.prepared, *(resolve(name)() for name in request.preload))
        scratch = Path(request.scratch) if request.scratch else None
        if scratch:
            os.environ.update(TMPDIR=str(scratch), TRITON_CACHE_DIR=str(scratch / "triton"))
            if request.profile is Profile.TASK:
                os.environ.update(HOME=str(scratch), TORCHINDUCTOR_CACHE_DIR=str(scratch / "inductor"))
            tempfile.tempdir = None  # forget the parent's
        keep = [0, 1, 2, sock_fd, *extra]
        enforced = enter(
            request.profile,
            scratch=scratch,
            limits=request.limits,
            keep_fds=keep,
            jail=server.jail,
            rules=[(Path(path), linux.Access(use)) for path, use in request.rules],
        )
        sock = socket.socket(fileno=sock_fd)
        wire.send(sock, {"enforced": encode(enforced)})  # before anything hostile runs: nobody else can say it
        sockets, namespaces = extra[: len(extra) - request.namespaces], extra[len(extra) - request.namespaces :]
        home = _moved_in(request.jail, namespaces)
        target(Channel(sock, [socket.socket(fileno=fd) for fd in sockets], home, prepared))
        status = 0
    except wire.WireError:
        status = 0  # the supervisor went away: nobody is left to tell
    except BaseException:  # noqa: BLE001 - the last line of a forked child: report to the log and leave
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _moved_in(jail: Jail | None, namespaces: list[int]) -> Jail | None:
    """Join the jail's namespaces if there are any; the jail that our forks will be in, or why in none."""
    if not namespaces:
        return jail
    sandbox_rules.libraries()  # remembered: it looks at what the jail hides
    try:
        bubblewrap.join(namespaces)
    except OSError as error:
        jail = Jail(problem=str(error))
    linux.die_with_parent()  # a change of credentials clears it
    for fd in namespaces:
        os.close(fd)
    return jail


def _reap(children: dict[int, int], control: socket.socket) -> None:
    while children:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        _end_group(ended.si_pid)  # while it is not reaped, that number is nobody else's
        pid, status, usage = os.wait4(ended.si_pid, 0)
        worker = children.pop(pid, None)
        if worker is not None:
            code = os.waitstatus_to_exitcode(status)
            wire.send(control, {"exited": worker, "status": code, "max_rss_kb": usage.ru_maxrss})


def _end(children: dict[int, int]) -> None:
    for pid in children:
        _end_group(pid)
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _end_group(pid: int) -> None:
    """End what a worker has started; nothing for one that leads no session yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def idle(channel: Channel) -> None:
    """A worker's target that only waits for its end: how it is confined has been said by then."""
    channel.receive()


def warm() -> None:
    """Import what every worker needs. One thread: an OpenMP pool would not survive the forks.

    Each mode of fake tensors loads torch._dynamo: 1.6 s that the tracer and every CPU judge would spend on their own.
    The schema's dataclasses take 0.06 s, which tracers, compilers, interpreters and judges did, each for itself.
    What is loaded stays, so collections pass it over: a full one in a fork took 0.19 s and copied 84 MB of shared
    pages, and takes 0.006 s. There is none while it is loaded: they found nothing, and took 0.5 of 2.5 s.

    In a fork torch makes its pool of threads anew when it is first asked for, without a lock: autograd's threads, which
    ask side by side, found none there, and aborted one of four lowerings of gradients. So a fork asks as it begins.
    """
    gc.disable()
    import numpy  # noqa: F401
    import torch
    import torch._dynamo  # touches no GPU
    import torch._subclasses.fake_tensor
    import triton.backends.nvidia.compiler
    import triton.compiler  # noqa: F401

    import kerneltune.tools.schema.messages  # noqa: F401

    torch.set_num_threads(1)
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))
    gc.freeze()
    gc.enable()


def main(fd: int, parent: int | None = None) -> None:
    """Entry of the first fork server, started by `tools.sandbox.workers`. `parent`: with whom it ends at once, even
    while it imports or is stopped; without, it ends when it reads that nobody is there."""
    if parent is not None:
        linux.die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    control = socket.socket(fileno=fd)
    try:
        warm()
    except (ImportError, MemoryError, OSError) as error:
        wire.send(control, {"failed": one_line(str(error.__cause__ or error), 300) or "no memory is left"})
        os._exit(1)
    serve(Channel(control, []))
