"""How baselines are built: within a time, with what was compiled kept, and with a warning where one is absurd.

The reference as PyTorch runs it, timed by the same passes as a candidate: eager and compiled. Trusted code."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch

from kerneltune.tools.backends.base import Backend, Timer
from kerneltune.tools.backends.runner_messages import Times
from kerneltune.tools.judge.correctness.float64 import plain_arithmetic
from kerneltune.tools.judge.correctness.problem import LoadedCase
from kerneltune.tools.judge.correctness.reference_model import blame, settled, state_kept
from kerneltune.tools.judge.correctness.tree import Tree, tensors
from kerneltune.tools.judge.execution.device_buffers import InputBuffers
from kerneltune.tools.schema.messages import BASELINE_LIMIT_S, FIRST_BASELINE_S

B = TypeVar("B")
_ABSURD_OF_LIGHT = 10.0
_ABSURD_OF_COMPILED = 5.0
_LAUNCH_BOUND = 2.0
_SLOW_US = 1e6
_MOST_COMPILED = 64  # forms of one reference: a mode for each weighted case


class TookTooLong(BaseException):
    """A baseline was not built within its time. Not an Exception: the compiler swallows those of a config it tries."""


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Raise TookTooLong in the block after so many seconds (in the main thread; elsewhere there is no limit)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass
class BaselineQueue:
    """Baselines that are still to be built, each slower to build than the one before. One that takes longer than
    `limit_s` is left out with those after it; the first has `first_limit_s`, since no verdict can be given before, and
    says nothing of the others: it runs the reference, they compile it."""

    pending: list[str]
    limit_s: float = BASELINE_LIMIT_S
    first_limit_s: float = FIRST_BASELINE_S
    left_out: list[tuple[tuple[str, ...], float]] = field(default_factory=list)  # with the seconds that the first had
    _tried: bool = False

    def build(
        self, make: Callable[[str, float], B | None], within_s: float = math.inf, most: int | None = None
    ) -> Iterator[tuple[str, B]]:
        """Make the pending ones, or the next `most`, for so many seconds altogether. `make` gets a name and its
        seconds, returns None for what cannot be had, and raises TookTooLong. What was not ready within `within_s` alone
        stays pending."""
        ends_s = time.monotonic() + within_s
        for name in self.pending[:most]:
            whole_s = self.limit_s if self._tried else min(self.limit_s, self.first_limit_s)
            given_s = min(whole_s, ends_s - time.monotonic())
            if given_s <= 0:
                return
            made: B | None = None
            try:
                made = make(name, given_s)
            except TookTooLong:
                if given_s < whole_s:
                    return
                if self._tried:
                    self.left_out.append((tuple(self.pending), given_s))
                    self.pending = []
                    return
                self.left_out.append(((name,), given_s))
            self.pending.remove(name)
            self._tried = True
            if made is not None:
                yield name, made

    def notes(self) -> list[str]:
        """What was left out, for a reader of verdicts."""
        return [f"no baseline {', '.join(n)}: {n[0]} took longer than {s:g} s to build" for n, s in self.left_out]


def keep_compiled(folder: Path) -> str:
    """Let torch.compile keep what it compiled and tuned in that folder, so that the next session on the same GPU and
    versions starts fast. Returns "" or why that cannot be. For this process only, which no candidate's code enters."""
    try:
        for name in ("inductor", "triton"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "inductor" / f".{os.getpid()}").touch()
        (folder / "inductor" / f".{os.getpid()}").unlink()
    except OSError as error:
        return f"torch.compile's results are not kept: {error}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    return ""


def doubts(times_us: dict[str, float], launched_us: float, light_us: float) -> list[str]:
    """What a reader should know before a speed-up over eager impresses him. Times per forward; `launched_us` is eager
    without a graph."""
    eager = times_us.get("eager")
    if eager is None:
        return []
    notes = []
    compiled = min((us for name, us in times_us.items() if name != "eager"), default=None)
    if compiled and eager > _ABSURD_OF_LIGHT * light_us and eager > _ABSURD_OF_COMPILED * compiled:
        notes.append(
            f"the eager reference is unreasonably slow ({eager:.1f} µs: {eager / compiled:.1f} times torch.compile, "
            f"{eager / light_us:.0f} times the speed of light); a speed-up over it says little"
        )
    if launched_us > _LAUNCH_BOUND * eager:
        notes.append(
            f"eager is launch-bound: {launched_us:.1f} µs from Python, {eager:.1f} µs of device time; speed-ups here "
            "are over device time"
        )
    return notes


MODES: dict[str, str | None] = {"eager": None, "compile": "default", "compile-max": "max-autotune-no-cudagraphs"}


@contextlib.contextmanager
def declared_arithmetic(problem: LoadedCase) -> Iterator[None]:
    """Run the block in the task's declared precision, without gradients."""
    with plain_arithmetic(tf32=problem.precision == "tf32_ok"), torch.no_grad():
        yield


class Baseline:
    """One way to run the reference over all slots. `graphed` is False where it cannot be captured."""

    def __init__(self, name: str, problem: LoadedCase, inputs: InputBuffers, timer: Timer) -> None:
        self.name, self._problem, self._timer = name, problem, timer
        self._reference, self._model = problem.model, _model(name, problem)
        self.graphed = False
        self.bind(inputs)

    def bind(self, inputs: InputBuffers) -> None:
        """Run on these buffers from now on: new addresses, a new graph, the same compiled code. What the graph writes
        lies in the timer's memory, where other baselines' graphs write as well. Raises OutOfMemoryError rather than
        being without the graph that it had: its time is known with that."""
        self.outputs: list[Tree] = []
        self._trees = [inputs.tree(slot) for slot in range(inputs.slots)]
        self._start, self._end = inputs.buffer.address, inputs.buffer.address + inputs.buffer.nbytes
        self._work: Callable[[], object] = self._pass
        self._reset: Callable[[], object] = self._clear
        self.graphed = self._build()

    def _build(self) -> bool:
        with declared_arithmetic(self._problem):
            # held, too: a graph that read a recurrent module's state after it was freed ended an H200's CUDA
            self._state = settled(self._reference, lambda: self._timer.run(lambda: self._model(*self._trees[0])))
            self._timer.run(self._pass)
            try:
                self._timer.run(self._pass, may_wait=False)
                self.outputs = []  # those of the graph take their room
                work, clearing = self._timer.captured(self._pass), self._timer.captured(self._clear)
            except RuntimeError as error:  # the reference reads values on the host, or what else no graph can hold
                self.outputs = []
                if self.graphed and isinstance(error, torch.OutOfMemoryError):
                    raise
                return False
        self._work, self._reset = work, clearing
        return True

    def _pass(self) -> None:
        self.outputs = []
        for tree in self._trees:
            self.outputs.append(self._model(*tree))
            self._state.put_back()

    def forget_outputs(self) -> None:
        """Let other baselines' graphs have the memory of the outputs; the graph of this one writes there as before."""
        if self.graphed:
            self.outputs = []

    def _clear(self) -> None:
        """Leave nothing of the last pass, so that this arm finds the caches as the candidate does."""
        for tensor in tensors(self.outputs):
            if not self._start <= tensor.data_ptr() < self._end:  # a reference may return its input
                tensor.zero_()

    def block(self, count: int) -> Times:
        """A block of cold passes."""
        with blame(self._problem.task, "forward()"), declared_arithmetic(self._problem):
            return self._timer.cold_passes(count, self._work, self._reset)

    def run_once(self) -> None:
        """Run one pass, to look at the outputs."""
        with blame(self._problem.task, "forward()"), declared_arithmetic(self._problem):
            self._timer.run(self._work)

    def release(self) -> None:
        """Let go of graphs and outputs, before the buffers go; the device is idle."""
        self._work, self._reset = self._pass, self._clear
        self.outputs, self._trees = [], []


def _model(name: str, problem: LoadedCase) -> Callable[..., Any]:
    if name not in MODES:
        raise KeyError(f"no baseline {name!r}; known: {', '.join(MODES)}")
    mode = MODES[name]
    model: Callable[..., Any] = problem.model
    if mode is None:
        return model
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # no pool of further processes in a forked worker
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = _MOST_COMPILED  # by default 8; beyond it code runs eagerly, in silence
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False, mode=mode)
    return compiled


def eager_us(backend: Backend, problem: LoadedCase, inputs: Tree) -> float:
    """A rough time of one eager forward, launched one after the other from Python, to size what follows. One forward
    of a second or more is enough."""
    kept = state_kept(problem.model)
    with blame(problem.task, "forward()", limit_s=math.inf), declared_arithmetic(problem), kept:
        problem.model(*inputs)
        once_us = backend.warm_passes(1, lambda: problem.model(*inputs)).span_us
        if once_us > _SLOW_US:
            return once_us
        problem.model(*inputs)
        times = backend.warm_passes(5, lambda: problem.model(*inputs))
    return times.span_us / 5
