"""The worker processes of one program run, by role: what each may do and how much of it."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.sandbox import Limits, Profile
from tools.workers import Worker, Workers, Zygote

_GIB = 1 << 30
TRACER_LIMITS = Limits(memory_bytes=4 * _GIB, file_bytes=16 << 20, cpu_s=120, open_files=64)
COMPILER_LIMITS = Limits(memory_bytes=8 * _GIB, file_bytes=256 << 20, cpu_s=600, open_files=256)
REPLAY_LIMITS = Limits(memory_bytes=12 * _GIB, file_bytes=16 << 20, cpu_s=600, open_files=64)
RUNNER_LIMITS = Limits(memory_bytes=None, file_bytes=1 << 30, cpu_s=None, open_files=4096)
OUR_LIMITS = Limits(memory_bytes=None, file_bytes=1 << 40, cpu_s=None, open_files=4096)


@dataclass
class Machine:
    """Makes workers. Tracers and compilers are forked from zygotes of their own, which are warm."""

    base: Zygote
    tracers: Zygote
    compilers: Zygote

    def tracer(self) -> Worker:
        """A confined child that will trace one candidate."""
        return self.tracers.spawn("tools.plan.trace:main", profile=Profile.TRACER, limits=TRACER_LIMITS)

    def compiler(self) -> Worker:
        """A confined child that will compile kernels."""
        return self.compilers.spawn(
            "tools.plan.compile:main", profile=Profile.COMPILER, limits=COMPILER_LIMITS, scratch=True
        )

    def interpreter(self) -> Worker:
        """A confined child that will replay a plan on the CPU."""
        return self.base.spawn("tools.plan.interpret:main", profile=Profile.INTERPRETER, limits=REPLAY_LIMITS)

    def runner(self, judge_end: socket.socket) -> Worker:
        """A confined child with the GPU that will replay plans; `judge_end` is its line to the judge."""
        return self.base.spawn(
            "tools.runner.main:main", profile=Profile.RUNNER, limits=RUNNER_LIMITS, extra=[judge_end], scratch=True
        )

    def trusted(self, target: str, extra: Sequence[socket.socket] = ()) -> Worker:
        """A child that runs our own code on the user's task."""
        return self.base.spawn(target, profile=Profile.TRUSTED, limits=OUR_LIMITS, scratch=True, extra=extra)


@contextlib.contextmanager
def started_base() -> Iterator[Machine]:
    """Start without the tracers' and compilers' warm-up, for commands that need only trusted workers."""
    with Workers() as workers:
        yield Machine(workers.base, workers.base, workers.base)


@contextlib.contextmanager
def started() -> Iterator[Machine]:
    """Start the worker processes; end them all on the way out."""
    with Workers() as workers:
        tracers = workers.base.spawn_zygote(preload=["tools.plan.trace:warm"])
        compilers = workers.base.spawn_zygote(preload=["tools.plan.compile:warm"])
        yield Machine(workers.base, tracers, compilers)
