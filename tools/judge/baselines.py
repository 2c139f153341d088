"""The reference as PyTorch runs it, timed by the same passes as a candidate: eager and compiled. Trusted code."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tools.judge.arena import Inputs
from tools.judge.precise import plain_arithmetic
from tools.judge.problem import LoadedCase
from tools.judge.tree import Tree, tensors
from tools.runner import passes
from tools.runner.protocol import Times

MODES: dict[str, str | None] = {"eager": None, "compile": "default", "compile-max": "max-autotune-no-cudagraphs"}


@contextlib.contextmanager
def declared_arithmetic(problem: LoadedCase) -> Iterator[None]:
    """As the task's reference runs: its declared precision, no gradients."""
    with plain_arithmetic(tf32=problem.precision == "tf32_ok"), torch.no_grad():
        yield


class Baseline:
    """One way to run the reference over all slots. `graphed` is False where it cannot be captured."""

    def __init__(
        self, name: str, problem: LoadedCase, inputs: Inputs, stream: torch.cuda.Stream, flush: passes.Flush
    ) -> None:
        self.name, self._problem, self._stream, self._flush = name, problem, stream, flush
        self._model = _model(name, problem)
        self.bind(inputs)

    def bind(self, inputs: Inputs) -> None:
        """Run on these buffers from now on: new addresses, a new graph, the same compiled code."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._clearing: torch.cuda.CUDAGraph | None = None
        self.outputs: list[Tree] = []
        self._trees = [inputs.tree(slot) for slot in range(inputs.slots)]
        self._start, self._end = inputs.buffer.address, inputs.buffer.address + inputs.buffer.nbytes
        self._work: Callable[[], object] = self._pass
        self._reset: Callable[[], object] = self._clear
        self.graphed = self._build()

    @property
    def slots(self) -> int:
        """How many launches a pass makes."""
        return len(self._trees)

    def _build(self) -> bool:
        with declared_arithmetic(self._problem), torch.cuda.stream(self._stream):
            for _ in range(3):
                self._pass()
            self._stream.synchronize()
            try:
                self._graph = passes.captured(self._pass, self._stream)
                self._clearing = passes.captured(self._clear, self._stream)
            except RuntimeError:  # the reference copies to the host, or something else that no graph can hold
                torch.cuda.synchronize()
                return False
        self._work, self._reset = self._graph.replay, self._clearing.replay
        return True

    def _pass(self) -> None:
        self.outputs = [self._model(*tree) for tree in self._trees]

    def _clear(self) -> None:
        """Leave nothing of the last pass, so that this arm finds the caches as the candidate does."""
        for tensor in tensors(self.outputs):
            if not self._start <= tensor.data_ptr() < self._end:  # a reference may return its input
                tensor.zero_()

    def block(self, count: int) -> Times:
        """A block of cold passes."""
        with declared_arithmetic(self._problem), torch.cuda.stream(self._stream):
            return passes.cold_passes(count, self._work, lambda _: self._reset(), self._flush)

    def run_once(self) -> None:
        """One pass, to look at the outputs."""
        with declared_arithmetic(self._problem), torch.cuda.stream(self._stream):
            self._work()
        self._stream.synchronize()

    def release(self) -> None:
        """Let go of graphs and outputs, before the buffers go."""
        torch.cuda.synchronize()
        self._graph = self._clearing = None
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
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False, mode=mode)
    return compiled


def eager_us(problem: LoadedCase, inputs: Tree) -> float:
    """A rough time of one eager forward, launched one after the other from Python, to size what follows."""
    with declared_arithmetic(problem):
        for _ in range(3):
            problem.model(*inputs)
        times = passes.warm_passes(5, lambda: problem.model(*inputs))
    return times.span_us / 5


def copy_gbps(nbytes: int = 1 << 30) -> float:
    """Bandwidth of a large copy on the device, bytes read plus written; the best of several."""
    source = torch.empty(nbytes, dtype=torch.uint8, device="cuda").fill_(1)
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(passes.warm_passes(4, lambda: target.copy_(source)).span_us / 4 for _ in range(5))
    return 2 * nbytes / best / 1e3


def null_launch_us(count: int = 256) -> float:
    """Time per node of a CUDA graph of empty kernels, timed as everything else is: no launch can be shorter."""
    stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    sleep: Any = torch.cuda._sleep

    def empty() -> None:
        for _ in range(count):
            sleep(0)

    with torch.cuda.stream(stream):
        empty()
        graph = passes.captured(empty, stream)
        times = passes.cold_passes(9, graph.replay, lambda _: None, lambda: sleep(1000))
    return sorted(times.pass_us)[4] / count
