"""The worker processes of one program run, by role: what each may do and how much of it."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kerneltune.tools.sandbox import bubblewrap
from kerneltune.tools.sandbox.bubblewrap import NamespaceHolder
from kerneltune.tools.sandbox.confine import Enforced, Profile, ResourceLimits
from kerneltune.tools.sandbox.workers import ForkServer, Worker, Workers

_GIB = 1 << 30
TRACER_LIMITS = ResourceLimits(memory_bytes=4 * _GIB, file_bytes=16 << 20, cpu_s=120, open_files=64)
COMPILER_LIMITS = ResourceLimits(memory_bytes=8 * _GIB, file_bytes=256 << 20, cpu_s=600, open_files=256)
REPLAY_LIMITS = ResourceLimits(memory_bytes=12 * _GIB, file_bytes=16 << 20, cpu_s=600, open_files=64)
RUNNER_LIMITS = ResourceLimits(memory_bytes=None, file_bytes=1 << 30, cpu_s=None, open_files=4096)
_IDLE = "kerneltune.tools.sandbox.fork_server:idle"
OUR_LIMITS = ResourceLimits(memory_bytes=None, file_bytes=1 << 40, cpu_s=None, open_files=4096)


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

    def tracer(self) -> Worker:
        """A confined child that will trace one candidate."""
        return self._tracer("kerneltune.tools.trace.tracer:main")

    def compiler(self) -> Worker:
        """A confined child that will compile kernels."""
        return self._compiler("kerneltune.tools.compile.compiler:main")

    def interpreter(self) -> Worker:
        """A confined child that will replay a plan on the CPU."""
        return self._interpreter("kerneltune.tools.replay.interpret:main")

    def runner(self, judge_end: socket.socket) -> Worker:
        """A confined child with the GPU that will replay plans; `judge_end` is its line to the judge, to whom alone it
        talks from then on. So it is asked at once what holds it; raises Unconfined."""
        worker = self._runner("kerneltune.tools.backends.cuda.main:main", [judge_end])
        worker.enforced()
        return worker

    def trusted(self, target: str, extra: Sequence[socket.socket] = ()) -> Worker:
        """A child that runs our own code on the user's task."""
        return self.base.spawn(target, profile=Profile.TRUSTED, limits=OUR_LIMITS, scratch=True, extra=extra)

    def enforced(self) -> dict[str, Enforced]:
        """What holds a worker of each hostile role here: asked of a real child of each, once. Raises Unconfined, unless
        that was allowed. A tenth of a second, and the fork servers' warm-up when they are not warm yet."""
        if not self._enforced:
            roles = {"tracer": self._tracer, "compiler": self._compiler, "interpreter": self._interpreter}
            children = {role: make(_IDLE) for role, make in (roles | {"runner": self._runner}).items()}
            with contextlib.ExitStack() as stack:
                for child in children.values():
                    stack.enter_context(child)
                self._enforced = {role: child.enforced() for role, child in children.items()}
        return self._enforced

    def _tracer(self, target: str) -> Worker:
        return self.tracers.spawn(target, profile=Profile.TRACER, limits=TRACER_LIMITS)

    def _compiler(self, target: str) -> Worker:
        return self.compilers.spawn(target, profile=Profile.COMPILER, limits=COMPILER_LIMITS, scratch=True)

    def _interpreter(self, target: str) -> Worker:
        return self.interpreters.spawn(target, profile=Profile.INTERPRETER, limits=REPLAY_LIMITS)

    def _runner(self, target: str, extra: Sequence[socket.socket] = ()) -> Worker:
        return self.base.spawn(target, profile=Profile.RUNNER, limits=RUNNER_LIMITS, extra=extra, scratch=True)


@contextlib.contextmanager
def started_base() -> Iterator[Machine]:
    """Start without the tracers' and compilers' warm-up, for commands that need only trusted workers."""
    with Workers() as workers:
        yield Machine(workers.base, workers.base, workers.base, workers.base)


@contextlib.contextmanager
def started(*, allow_unconfined: bool = False, bwrap: Path | Literal["find"] | None = "find") -> Iterator[Machine]:
    """Start the worker processes; end them all on the way out. `bwrap` is the program to jail with; None for no jail.
    With `allow_unconfined`, hostile workers run on a machine that cannot confine them."""
    program = bubblewrap.find() if bwrap == "find" else bwrap
    with Workers(allow_unconfined=allow_unconfined) as workers:
        tracing = workers.keeper(Profile.TRACER, program)
        compiling = workers.keeper(Profile.COMPILER, program, writable=True)
        interpreting = workers.keeper(Profile.INTERPRETER, program)
        yield Machine(
            workers.base,
            tracers=workers.base.spawn_fork_server(preload=["kerneltune.tools.trace.tracer:warm"], keeper=tracing),
            compilers=workers.base.spawn_fork_server(
                preload=["kerneltune.tools.compile.compiler:warm"], keeper=compiling
            ),
            interpreters=workers.base.spawn_fork_server(
                preload=["kerneltune.tools.replay.interpret:warm"], keeper=interpreting
            ),
            holders=(tracing, compiling, interpreting),
        )
