"""The supervisor's side of the worker processes: start a fork server, spawn workers, talk to them, end them.

`Machine` makes them by role: what each may do and how much of it.

The supervisor itself imports neither torch nor triton. Nothing a worker sends is trusted beyond its declared type.
"""

import contextlib
import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from kerneltune.tools.sandbox import bubblewrap, wire
from kerneltune.tools.sandbox.bubblewrap import NamespaceHolder
from kerneltune.tools.sandbox.linux import Access, lasting_parent
from kerneltune.tools.sandbox.rules import Profile, Rule, beside
from kerneltune.tools.sandbox.scratch import ScratchFolder, remove
from kerneltune.tools.sandbox.wire import Enforced, ResourceLimits, SpawnRequest
from kerneltune.tools.schema.codec import Json, decode, encode, plain
from kerneltune.tools.schema.errors import KerneltuneError, Unconfined, Unfit, WorkerError, WorkerTimeout

_T = TypeVar("_T")
LOG_BYTES = 64 << 10
# Of a reply's JSON, and the commas and brackets in it: 5 GB of objects came of 180 MB of "[],". To read, check and hash
# a plan of so many takes 2 s. Swin Transformer in TorchInductor's kernels has 0.8 MB and 22,000, a constant of 32 MiB
# 45 MB.
MAX_REPLY_BYTES, MAX_REPLY_VALUES = 64 << 20, 3 << 18
START_TIMEOUT_S = 120.0  # a cold disk cache makes `import torch` slow
_PASSED_ENV = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CC")


class Worker:
    """One child process. Use as a context manager: leaving it ends the child."""

    def __init__(self, server: "ForkServer", number: int, sock: socket.socket, log_fd: int, name: str) -> None:
        self._fork_server, self.number, self._sock, self.name = server, number, sock, name
        self.pid: int | None = None
        self.exit_status: int | None = None
        self.refused = ""  # why it could not be forked
        self.ended = False  # by us
        self.exited = threading.Event()
        self.spawned = threading.Event()
        self._enforced: Enforced | None = None
        self._log: deque[bytes] = deque(maxlen=64)
        self._drain = threading.Thread(target=self._read_log, args=(log_fd,), daemon=True)
        self._drain.start()

    def call(
        self,
        body: dict[str, Json],
        blobs: list[Any] | None = None,
        *,
        timeout_s: float,
        fds: Sequence[int] = (),
        max_fds: int = 0,
        max_blob_bytes: int = 0,
    ) -> wire.WireMessage:
        """Send a message and wait for one answer. On a timeout the worker is killed and WorkerTimeout raised; a
        worker that dies raises WorkerError with its exit status and the end of its output, one that sends more than
        is taken with what that was."""
        self.send(body, blobs, fds, timeout_s=timeout_s)
        return self.receive(timeout_s=timeout_s, max_fds=max_fds, max_blob_bytes=max_blob_bytes)

    def send(
        self,
        body: dict[str, Json],
        blobs: list[Any] | None = None,
        fds: Sequence[int] = (),
        *,
        timeout_s: float | None = START_TIMEOUT_S,
    ) -> None:
        """Send without waiting for an answer. What a socket does not hold the worker has to read in time, or it is
        killed and WorkerTimeout raised. Raises WorkerError when the worker is gone, and Unfit when its fork server
        is."""
        try:
            self._sock.settimeout(timeout_s)
            wire.send(self._sock, body, blobs, fds)
        except TimeoutError as error:
            self.kill()
            raise WorkerTimeout(f"{self.name}: took no message within {timeout_s:g} s", log=self.log()) from error
        except OSError as error:
            raise self._died() from error

    def receive(self, *, timeout_s: float, max_blob_bytes: int = 0, max_fds: int = 0) -> wire.WireMessage:
        """Wait for one message, once the worker is there; the same failures as `call`, and more blobs or descriptors
        than allowed are one of them. Raises Unconfined for a worker that should be confined."""
        self.enforced(timeout_s=timeout_s)
        return self._receive(timeout_s, max_blob_bytes, max_fds)

    def enforced(self, *, timeout_s: float = START_TIMEOUT_S) -> Enforced:
        """What holds this worker, in its own words from before it ran anything hostile."""
        if self._enforced is None:
            self._enforced = decode(Enforced, self._receive(timeout_s).body["enforced"])
            self._fork_server.insist(self._enforced, self.name)
        return self._enforced

    def _receive(self, timeout_s: float, max_blob_bytes: int = 0, max_fds: int = 0) -> wire.WireMessage:
        try:
            return wire.receive(
                self._sock,
                timeout_s=timeout_s,
                max_header_bytes=MAX_REPLY_BYTES,
                max_values=MAX_REPLY_VALUES,
                max_blob_bytes=max_blob_bytes,
                max_fds=max_fds,
            )
        except TimeoutError as error:
            self.kill()
            raise WorkerTimeout(f"{self.name}: no answer within {timeout_s:g} s", log=self.log()) from error
        except (OSError, MemoryError) as error:
            if isinstance(error, wire.WireError) and not isinstance(error, wire.WireClosed):
                self.kill()
                raise WorkerError(f"{self.name} sent {error}", log=self.log()) from error
            raise self._died() from error

    def _died(self) -> KerneltuneError:
        self.exited.wait(2.0)
        status = self.exit_status
        if self.refused:
            return Unfit(f"no further process can be started here: {self.refused}; is their number limited?")
        if status is None and self._fork_server.gone:  # which alone knows
            return self._fork_server.lost()
        how = "is gone" if status is None else describe_exit(status)
        return WorkerError(f"{self.name} {how}", exit_status=status, log=self.log())

    def log(self) -> str:
        """The end of what the worker printed, at most 64 KiB, made plain."""
        return plain(b"".join(self._log)[-LOG_BYTES:].decode(errors="replace"), None)

    def detach(self) -> socket.socket:
        """Hand the socket to somebody else, who closes it."""
        return self._sock

    def kill(self) -> None:
        """SIGKILL now, and wait until the process is gone (10 s at most)."""
        self.spawned.wait(5.0)
        if self.pid is not None and not self.exited.is_set():
            self.ended = True
            for end in (os.killpg, os.kill):  # it leads its session: ptxas and the like end with it; but not at once
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    end(self.pid, signal.SIGKILL)
            self.exited.wait(10.0)

    def kill_soon(self) -> None:
        """End it, and wait in another thread until its process is gone."""
        threading.Thread(target=self.kill, daemon=True).start()

    def close(self) -> None:
        """End the worker and free its socket."""
        self.kill()
        self._sock.close()
        self._fork_server.forget(self)

    def _read_log(self, fd: int) -> None:
        with open(fd, "rb", buffering=0) as pipe:
            while chunk := pipe.read(4096):
                self._log.append(chunk)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tried_twice(ask: Callable[[Worker], _T], worker: Worker, new: Callable[[], Worker]) -> _T:
    """What a worker answers; or, where a SIGKILL that is not ours ended it, what a new one does. A candidate can end
    its process so, but so does the system when memory runs out, whoever took it. Raises WorkerError and Unfit."""
    try:
        return ask(worker)
    except WorkerError as error:
        if worker.ended or error.exit_status != -signal.SIGKILL:
            raise
    with new() as another:
        return ask(another)


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


class ForkServer:
    """A handle on one fork server process."""

    def __init__(
        self,
        control: socket.socket,
        scratch_root: Path,
        origin: Worker | None = None,
        *,
        allow_unconfined: bool = False,
    ) -> None:
        self._control, self._root, self._origin = control, scratch_root, origin
        self._allow_unconfined = allow_unconfined
        self._scratches: dict[int, Path] = {}
        self._numbers = itertools.count(1)
        self._workers: dict[int, Worker] = {}
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._children: list[ForkServer] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def wait_ready(self) -> None:
        """Block until the fork server is warm. Raises Unfit when it says what it lacks, WorkerError when it did not
        come up."""
        if not self._ready.wait(START_TIMEOUT_S) or self._ready_failed:
            if self._lacking:
                raise Unfit(f"torch or Triton cannot be loaded: {self._lacking}; is memory short (`ulimit -v`)?")
            log = self._origin.log() if self._origin else ""
            reason = log.strip().rpartition("\n")[2] or "it ended without a word; is memory short (`ulimit -v`)?"
            raise WorkerError(f"the warm worker process did not start: {reason}", log=log)

    _ready_failed = False
    _lacking = ""  # what it says of what it cannot load

    @property
    def ready(self) -> bool:
        """Whether it is warm, or has failed to become so."""
        return self._ready.is_set()

    gone = False  # it has ended: nothing can be forked from it any more

    def lost(self) -> Unfit:
        """What to raise when it is gone."""
        return Unfit(
            "the fork server was killed, by a user or because memory ran out; what was judged is stored: "
            "give the command again, or --resume the run"
        )

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._dispatch(wire.receive(self._control).body)
        self.gone = True
        self._ready_failed = not self._ready.is_set()
        self._ready.set()
        for worker in list(self._workers.values()):
            worker.spawned.set()  # or it never will be: nobody has to wait for it
            worker.exited.set()

    def _dispatch(self, body: dict[str, Json]) -> None:
        if "ready" in body:
            self._ready.set()
        elif "failed" in body:
            self._lacking = str(body["failed"])
        elif worker := self._workers.get(int(body.get("spawned") or body.get("exited") or 0)):
            if "spawned" in body:
                worker.pid = body["pid"]
                worker.spawned.set()
            elif "refused" in body:
                worker.refused = body["refused"]
                worker.spawned.set()
                worker.exited.set()
            else:
                worker.exit_status = body["status"]
                worker.exited.set()

    def spawn(
        self,
        target: str,
        profile: Profile,
        *,
        extra: Sequence[socket.socket] = (),
        preload: Sequence[str] = (),
        keeper: NamespaceHolder | None = None,
        rules: Sequence[Rule] = (),
    ) -> Worker:
        """Fork a worker that runs `target` ("package.module:function") confined by `profile`, with `rules` for further
        paths. A fork server joins the namespaces that `keeper` keeps."""
        self.wait_ready()
        ours, theirs = socket.socketpair()
        log_r, log_w = os.pipe2(os.O_CLOEXEC)
        number = next(self._numbers)
        folder = None if profile in _WITHOUT_SCRATCH else self._scratch(number)
        jail, joins = (keeper.jail(), keeper.namespaces) if keeper else (None, [])
        scratch, limits = str(folder) if folder else None, LIMITS[profile]
        paths = tuple((str(path), int(access)) for path, access in rules)
        request = SpawnRequest(number, target, profile, limits, scratch, tuple(preload), jail, len(joins), paths)
        worker = Worker(self, number, ours, log_r, target.rpartition(":")[0].rpartition(".")[2])
        self._workers[number] = worker
        try:
            with self._lock:
                socket.send_fds(self._control, [b"+"], [theirs.fileno(), log_w, *(s.fileno() for s in extra), *joins])
                wire.send(self._control, encode(request))
        except OSError as error:
            ours.close()
            self.forget(worker)
            raise self.lost() from error
        finally:
            theirs.close()
            os.close(log_w)
        return worker

    def spawn_fork_server(self, *, preload: Sequence[str] = (), keeper: NamespaceHolder | None = None) -> "ForkServer":
        """Fork a further fork server that first calls the `preload` functions (to install stand-ins, warm a
        compiler) and then joins a jail; its workers' scratch folders lie in the one folder that the jail can write."""
        target = "kerneltune.tools.sandbox.fork_server:serve"
        worker = self.spawn(target, Profile.TRUSTED, preload=preload, keeper=keeper)
        root = keeper.writable if keeper and keeper.writable else self._root
        server = ForkServer(worker.detach(), root, worker, allow_unconfined=self._allow_unconfined)
        self._children.append(server)
        return server

    def insist(self, enforced: Enforced, name: str) -> None:
        """Raises Unconfined when a worker for a model's code is not confined, unless that was allowed. A task's code is
        confined as far as the machine can."""
        if enforced.profile in (Profile.TASK, Profile.TRUSTED) or enforced.confined or self._allow_unconfined:
            return
        why = "; ".join(enforced.notes) or "no Landlock, no seccomp"
        raise Unconfined(f"the {name} process is not confined ({why}). `optimize doctor` says what would help")

    def _scratch(self, number: int) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"w{number}-", dir=self._root))
        folder.chmod(0o700)
        self._scratches[number] = folder
        return folder

    def close(self) -> None:
        """Close the control socket: the fork server ends its workers and itself."""
        for child in self._children:
            child.close()
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._listener.join(2.0)
        self._control.close()

    def forget(self, worker: Worker) -> None:
        """Drop a finished worker and what it wrote."""
        self._workers.pop(worker.number, None)
        if folder := self._scratches.pop(worker.number, None):
            remove(folder)


class Workers:
    """The root of all worker processes of this program, and their scratch folder."""

    def __init__(self, *, allow_unconfined: bool = False, bytecode: Path | None = None) -> None:
        self._folder = ScratchFolder()
        self._root = self._folder.path
        self._holders: list[NamespaceHolder] = []
        first = bytecode is not None and not bytecode.exists() and (os.cpu_count() or 1) >= _MANY_CORES
        self._compiling = compile_ahead(bytecode) if first and bytecode else None
        ours, theirs = socket.socketpair()
        self._process = start_fresh(theirs, self._root, bytecode)
        theirs.close()
        self.base = ForkServer(ours, self._root, allow_unconfined=allow_unconfined)

    def keeper(self, profile: Profile, program: Path | None, *, writable: bool = False) -> NamespaceHolder:
        """Start the jail of a role with bwrap at `program`; it comes up while the first fork server imports."""
        folder = self._root / f"{profile.value}s" if writable else None
        if folder:
            folder.mkdir(mode=0o700)
        self._holders.append(NamespaceHolder(program, profile, folder))
        return self._holders[-1]

    def machine(self) -> "Machine":
        """The fork servers of all roles, once the first one is warm."""
        tracing, compiling, interpreting = self._holders
        spawn = self.base.spawn_fork_server
        return Machine(
            self.base,
            tracers=spawn(preload=["kerneltune.tools.trace.tracer:warm"], keeper=tracing),
            compilers=spawn(preload=["kerneltune.tools.compile.compiler:warm"], keeper=compiling),
            interpreters=spawn(preload=["kerneltune.tools.replay.interpret:warm"], keeper=interpreting),
            holders=(tracing, compiling, interpreting),
        )

    def close(self) -> None:
        """End every worker and remove the scratch folder."""
        if not self.base.ready:
            self._process.kill()  # it imports, and would notice our end in seconds
        self.base.close()
        for keeper in self._holders:
            keeper.close()
        if self._compiling is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._compiling.pid, signal.SIGKILL)
            self._compiling.wait()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._process.kill()
        self._process.wait()
        self._folder.close()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_fresh(theirs: socket.socket, root: Path, bytecode: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start the first fork server isolated (-I: no PYTHON* variables, no current directory) in a clean environment.
    What it imports is kept as `bytecode` in that folder, if there is one, which no confined worker can write to."""
    code = f"from kerneltune.tools.sandbox.fork_server import main; main({theirs.fileno()}, {lasting_parent()})"
    return subprocess.Popen(
        isolated(code, bytecode),
        pass_fds=[theirs.fileno()],
        env=environment(root),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def isolated(code: str, bytecode: Path | None = None) -> list[str]:
    """The argument vector of an isolated interpreter that runs `code` with this one's path, and keeps bytecode in a
    folder or not at all."""
    path = [p for p in map(os.path.abspath, filter(None, sys.path)) if os.path.exists(p)]
    here = str(Path(__file__).absolute().parents[3])
    kept = ["-B"] if bytecode is None else ["-X", f"pycache_prefix={bytecode}"]
    return [sys.executable, "-I", *kept, "-c", f"import sys; sys.path[:] = {[here, *path]!r}; {code}"]


def environment(root: Path) -> dict[str, str]:
    """What a first fork server with that scratch folder has for an environment."""
    env = {name: os.environ[name] for name in _PASSED_ENV if name in os.environ}
    env |= {"HOME": str(root), "TMPDIR": str(root), "TRITON_CACHE_DIR": str(root / "triton")}
    env |= {"TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"), "TRITON_DEFAULT_FP_FUSION": "1"}
    env["OMP_NUM_THREADS"] = str(os.cpu_count() or 1)
    # numpy's products of tiles, in the interpreter: on two busy cores two threads that spin for each other take 17 ms
    # of processor time for 128 x 64 x 256, one takes 0.06
    env["OPENBLAS_NUM_THREADS"] = "1"
    # A CPU judge's float64 tensors of 8 MB were given back to the system after each operation, and came as new pages:
    # four attempts at a task of 257 x 4096 took 18.7 s of processor time, 5.1 of them the system's; now 15.5 and 2.8.
    env |= {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
    env["OMP_WAIT_POLICY"] = "PASSIVE"  # threads that wait by spinning take turns on a busy machine: ten times slower
    return env


_GIB = 1 << 30
LIMITS = {
    Profile.TRACER: ResourceLimits(memory_bytes=4 * _GIB, file_bytes=16 << 20, cpu_s=120, open_files=64),
    Profile.COMPILER: ResourceLimits(memory_bytes=8 * _GIB, file_bytes=256 << 20, cpu_s=600, open_files=256),
    # address space for inputs and outputs of 7.5 GB each, of which a sample of programs touches some megabytes
    Profile.INTERPRETER: ResourceLimits(memory_bytes=20 * _GIB, file_bytes=16 << 20, cpu_s=600, open_files=64),
    Profile.RUNNER: ResourceLimits(memory_bytes=None, file_bytes=1 << 30, cpu_s=None, open_files=4096),
    Profile.TASK: ResourceLimits(memory_bytes=None, file_bytes=256 * _GIB, cpu_s=None, open_files=4096),
    Profile.TRUSTED: ResourceLimits(memory_bytes=None, file_bytes=1 << 40, cpu_s=None, open_files=4096),
}
_WITHOUT_SCRATCH = (Profile.TRACER, Profile.INTERPRETER)  # they write no files
_IDLE = "kerneltune.tools.sandbox.fork_server:idle"


@dataclass
class Machine:
    """Makes workers. Tracers, compilers and interpreters are forked from fork servers of their own: warm, and in a
    jail of bubblewrap's where there is one."""

    base: ForkServer
    tracers: ForkServer
    compilers: ForkServer
    interpreters: ForkServer
    holders: Sequence[NamespaceHolder] = ()
    _enforced: dict[str, Enforced] = field(default_factory=dict)
    _made: list[Worker] = field(default_factory=list)  # with a candidate
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def apart(self) -> "Machine":
        """The same fork servers for one task: what `living` says is of that task alone."""
        return Machine(self.base, self.tracers, self.compilers, self.interpreters, self.holders, self._enforced)

    @property
    def failure(self) -> Unfit | None:
        """Why it cannot judge any more: one of its fork servers has ended."""
        servers = (self.base, self.tracers, self.compilers, self.interpreters)
        return next((server.lost() for server in servers if server.gone), None)

    def living(self) -> tuple[Worker, ...]:
        """Tracers, compilers and interpreters that have not ended. Any thread may ask, and end them."""
        with self._lock:
            self._made = [worker for worker in self._made if not worker.exited.is_set()]
            return tuple(self._made)

    def tracer(self) -> Worker:
        """A confined child that will trace one candidate."""
        return self._remembered("kerneltune.tools.trace.tracer:main", Profile.TRACER)

    def compiler(self) -> Worker:
        """A confined child that will compile kernels."""
        return self._remembered("kerneltune.tools.compile.compiler:main", Profile.COMPILER)

    def interpreter(self) -> Worker:
        """A confined child that will replay a plan on the CPU."""
        return self._remembered("kerneltune.tools.replay.interpret:main", Profile.INTERPRETER)

    def runner(self, target: str, judge_end: socket.socket) -> Worker:
        """A confined child with the GPU that will replay plans; `judge_end` is its line to the judge, to whom alone it
        talks from then on. So it is asked at once what holds it; raises Unconfined."""
        worker = self._spawn(target, Profile.RUNNER, [judge_end])
        worker.enforced()
        return worker

    def task(
        self,
        target: str,
        files: Iterable[Path] = (),
        writable: Iterable[Path] = (),
        extra: Sequence[socket.socket] = (),
    ) -> Worker:
        """A child that runs the code of tasks, which may read what lies beside these `files` and write to folders."""
        rules = [rule for file in files for rule in beside(file)] + [(folder, Access.WRITE) for folder in writable]
        return self.base.spawn(target, Profile.TASK, extra=extra, rules=rules)

    def trusted(self, target: str, extra: Sequence[socket.socket] = ()) -> Worker:
        """A child that runs our own code and nobody else's."""
        return self._spawn(target, Profile.TRUSTED, extra)

    def enforced(self) -> dict[str, Enforced]:
        """What holds a worker of each hostile role here: asked of a real child of each, once. Raises Unconfined, unless
        that was allowed. A tenth of a second, and the fork servers' warm-up when they are not warm yet."""
        if not self._enforced:
            with contextlib.ExitStack() as stack:
                roles = (role for role in Profile if role not in (Profile.TASK, Profile.TRUSTED))
                children = {role.value: stack.enter_context(self._spawn(_IDLE, role)) for role in roles}
                self._enforced = {role: child.enforced() for role, child in children.items()}
        return self._enforced

    def _remembered(self, target: str, profile: Profile) -> Worker:
        worker = self._spawn(target, profile)
        with self._lock:
            self._made = [*(w for w in self._made if not w.exited.is_set()), worker]
        return worker

    def _spawn(self, target: str, profile: Profile, extra: Sequence[socket.socket] = ()) -> Worker:
        own = {
            Profile.TRACER: self.tracers,
            Profile.COMPILER: self.compilers,
            Profile.INTERPRETER: self.interpreters,
        }
        return own.get(profile, self.base).spawn(target, profile, extra=extra)


@contextlib.contextmanager
def started_base() -> Iterator[Machine]:
    """Start without the tracers' and compilers' warm-up, for commands that need only trusted workers."""
    with Workers() as workers:
        yield Machine(workers.base, workers.base, workers.base, workers.base)


Jail = Path | Literal["find"] | None
_IMPORTED = ("torch", "sympy", "triton", "numpy")
_MANY_CORES = 8  # fewer are busy with the importing itself


@contextlib.contextmanager
def begun(*, allow_unconfined: bool = False, bwrap: Jail = "find", cache_dir: Path | None = None) -> Iterator[Workers]:
    """Start the first fork server and the jails, which takes seconds, and do not wait for them; end all on the way out.
    `bwrap` is the program to jail with; None for no jail. With `allow_unconfined`, hostile workers run on a machine
    that cannot confine them. Where torch has no bytecode, the trusted fork server keeps it in `cache_dir`."""
    program = bubblewrap.find() if bwrap == "find" else bwrap
    bytecode = bytecode_folder(cache_dir) if cache_dir else None
    with Workers(allow_unconfined=allow_unconfined, bytecode=bytecode) as workers:
        for profile in (Profile.TRACER, Profile.COMPILER, Profile.INTERPRETER):
            workers.keeper(profile, program, writable=profile is Profile.COMPILER)
        yield workers


@contextlib.contextmanager
def started(*, allow_unconfined: bool = False, bwrap: Jail = "find") -> Iterator[Machine]:
    """Start the worker processes, as `begun` does; end them all on the way out."""
    with begun(allow_unconfined=allow_unconfined, bwrap=bwrap) as workers:
        yield workers.machine()


def compile_ahead(bytecode: Path, packages: Sequence[str] = _IMPORTED) -> "subprocess.Popen[bytes]":
    """Make bytecode of packages on all cores, beside the process that imports them one module after the other. Leads a
    session, whose end is its end."""
    found = [place for name in packages for place in _folders_of(name)]
    words = [sys.executable, "-P", "-s", "-m", "compileall", "-q", "-j", "0", *found]
    # the workers of compileall are new processes from Python 3.12 on, to which it hands no -X pycache_prefix
    env, null = environment(bytecode) | {"PYTHONPYCACHEPREFIX": str(bytecode)}, subprocess.DEVNULL
    return subprocess.Popen(words, env=env, stdin=null, stdout=null, stderr=null, start_new_session=True)


def _folders_of(package: str) -> Sequence[str]:
    spec = importlib.util.find_spec(package)
    return (spec.submodule_search_locations or ()) if spec else ()


def bytecode_folder(cache_dir: Path) -> Path | None:
    """Where bytecode is kept when torch was installed without any: compiling its sources takes 10 s at every start."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None or Path(importlib.util.cache_from_source(spec.origin)).exists():
        return None
    return cache_dir / "bytecode"
