"""Workers without the seconds that torch and Triton take to load: a process that has loaded them forks a first fork
server for each program run. That one is ended, jailed and spoken to as one that an interpreter of its own became.

The processes of `pytest -n` share one: the first of them starts it, and says where in its environment (`share`)."""

import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import NoReturn, TypeVar

from kerneltune.tools.sandbox import wire, workers
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import Json

T = TypeVar("T")
_MADV_COLLAPSE = 25
_PRIVATE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\s*(?:\[heap\])?")  # and anonymous
SHARED = "SHARED_FORK_SERVER"  # the variable that says where one listens
_LOADED = (
    *(f"torch._inductor.{name}" for name in ("compile_fx", "choices", "tiling_utils", "bounds")),  # 1 s a run
    "triton.experimental.gluon.nvidia.hopper",  # from here on what roles load before they are confined: 0.1 s a role
    "kerneltune.tools.languages.triton.language",
    "kerneltune.tools.languages.ptx.language",
    "kerneltune.tools.languages.ptx.sim.launch",
    "numpy.ma",
    "kerneltune.tools.trace.tracer",
    "kerneltune.tools.compile.compiler",
    "kerneltune.tools.replay.interpret",
    "kerneltune.tools.judge.service.cpu_judge",
    "kerneltune.agent.authors.search.inductor",
)
_TASK = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return []
"""


class RemoteForkServer:
    """A first fork server that is another process's child."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended; its exit status is nobody's concern. Raises subprocess.TimeoutExpired."""
        if self._fd >= 0 and not select.select([self._fd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("fork server", timeout or 0)
        self._close()
        return 0

    def kill(self) -> None:
        """End it if it lives."""
        if self._fd >= 0:
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def use(path: str) -> None:
    """From now on this process's first fork servers come from the shared process that listens there."""

    def start(theirs: socket.socket, root: Path, bytecode: Path | None = None) -> RemoteForkServer:
        del bytecode  # the shared process has imported all
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.connect(path)
            wire.send(line, {"environment": workers.environment(root), "folder": os.getcwd()}, fds=[theirs.fileno()])
            return RemoteForkServer(wire.receive(line, timeout_s=workers.START_TIMEOUT_S).body["pid"])

    vars(workers)["start_fresh"] = start


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """As long as this lasts, this process's first fork servers come from the shared process."""
    before = workers.start_fresh
    use(address())
    try:
        yield
    finally:
        vars(workers)["start_fresh"] = before


@contextlib.contextmanager
def forked(start: AbstractContextManager[T]) -> Iterator[T]:
    """`start`, which starts workers when it is entered; they are forked from the shared process."""
    with contextlib.ExitStack() as stack:
        with in_use():
            entered = stack.enter_context(start)
        yield entered


def started() -> AbstractContextManager[Machine]:
    """Start a machine as usual, its workers forked from the shared process."""
    return forked(workers.started())


def benchmark(module: str) -> tuple[str, ...]:
    """The command of a benchmark's worker, as `python -m module --worker`, whose own workers come from the shared
    process."""
    shared = f"from tests import shared_fork_server; shared_fork_server.use({address()!r})"
    return (sys.executable, "-c", f"import sys; {shared}; from {module} import main; sys.exit(main())", "--worker")


def answer(target: str, body: dict[str, Json], *, timeout_s: float) -> dict[str, Json]:
    """What `target` ("package.module:function", called with a fork server's Channel) answers in a process of its
    own; torch and Triton are loaded there. Raises WorkerError with the end of what it printed when it fails."""
    with forked(workers.started_base()) as machine, machine.trusted(target) as worker:
        return worker.call(body, timeout_s=timeout_s).body


def share() -> None:
    """Start one for the processes that this one will start."""
    os.environ[SHARED] = address()


@cache
def address() -> str:
    """Where the shared one listens: this process's own, which ends with it, or the one that its parent has started."""
    if SHARED in os.environ:
        return os.environ[SHARED]

    def start(listening: int, folder: Path) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            workers.isolated(f"from tests.shared_fork_server import serve; serve({listening}, {os.getpid()})"),
            env=workers.environment(folder),
            pass_fds=[listening],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    return served("fork-", socket.SOCK_STREAM, start)


def served(prefix: str, kind: socket.SocketKind, start: Callable[[int, Path], "subprocess.Popen[bytes]"]) -> str:
    """Where a process listens that ends with this one. `start` gets the listening descriptor and a scratch folder."""
    folder = tempfile.TemporaryDirectory(prefix=prefix)
    path = str(Path(folder.name) / "socket")
    with socket.socket(socket.AF_UNIX, kind) as listening:
        listening.bind(path)
        listening.listen(64)
        process = start(listening.fileno(), Path(folder.name))

    def end() -> None:
        process.terminate()
        process.wait()
        folder.cleanup()

    atexit.register(end)
    return path


def gather_pages() -> None:
    """Move this process's private memory into huge pages, so that a fork copies a table of a few hundred entries: with
    torch and Triton loaded (260 MB) fork and end of a child that does nothing took 25 ms of processor time and take 6.
    It takes 0.4 s, which a hundred commands of the tests share; a command of its own lost 0.7 s by it. Before Linux
    6.1, and where no huge page is free, nothing changes."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if found := _PRIVATE.fullmatch(line):
            start, end = int(found[1], 16), int(found[2], 16)
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)


def serve(listening: int, parent: int) -> NoReturn:
    """With the first call, load what all workers need; fork a fork server per call."""
    from kerneltune.tools.sandbox import fork_server
    from kerneltune.tools.sandbox.linux import die_with_parent

    die_with_parent(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=listening) as server:
        select.select([server], [], [])
        fork_server.warm()
        gc.disable()
        for name in _LOADED:
            importlib.import_module(name)
        # Inductor's first lowering takes 0.3 s of processor time, those after it 0.05 s
        importlib.import_module("tqdm").tqdm.monitor_interval = 0  # a thread, which a fork would not have
        importlib.import_module("kerneltune.agent.authors.search.inductor").lower(_TASK, {}, 90)
        gc.freeze()  # what is shared with the fork servers stays so
        gc.enable()
        gather_pages()
        while True:
            line, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _become_a_fork_server(line)
            line.close()
            reap()


def reap() -> None:
    """Forget the children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _become_a_fork_server(line: socket.socket) -> NoReturn:
    from kerneltune.tools.sandbox import fork_server

    status = 1
    try:
        asked = wire.receive(line, max_fds=1)
        os.setsid()
        os.chdir(asked.body["folder"])
        os.environ.clear()
        os.environ.update(asked.body["environment"])
        tempfile.tempdir = None
        wire.send(line, {"pid": os.getpid()})
        line.close()
        fork_server.serve(fork_server.Channel(socket.socket(fileno=asked.fds[0]), []))
        status = 0
    finally:
        os._exit(status)
