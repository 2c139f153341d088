"""A Llama block and a ViT block with packaged kernels in them, against the same blocks compiled.

    python -m benchmarks.blocks --runs-dir DIR [--attempts 8] [--seconds 30] [--profile] llama vit

As a user would: the block is run once while its ops are watched (`kerneltune.capture`); each distinct op gets a run of
the offline author and one of its gradients (`--seconds` are for both together), one packaged file of both kernels, and
`patch`. Then the forward, and a training step (forward, and gradients of inputs and parameters for random gradients of
the outputs): eager and compiled, the original and the patched block, with a warm L2. As CUDA graphs that are replayed,
which is what a job sees that keeps its GPU busy; and as Python calls them, host included. Rounds of A B C D D C B A in
random order, `--block-ms` of calls each after one that is not counted; the speed-up over the compiled original is of
pairs within a round; intervals are of 95 %. Prints tables in Markdown, with the sum of the kernels' times; with
`--profile`, which kernels take it. Without a GPU (or with `--tiny`) the blocks are small; without one the kernels
answer in Triton's interpreter and nothing is timed. Exit code 1 where an op has no kernel, one did not answer, or
answers are further from float64 than the original's.
"""

import argparse
import contextlib
import copy
import gc
import math
import os
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch._C._autograd import DeviceType

import kerneltune
from kerneltune.agent.api import Capture
from kerneltune.tools.backends.cuda.passes import captured
from kerneltune.tools.judge.timing.statistics import (
    CANDIDATE,
    RoundSeries,
    comparisons_over,
    microseconds_over,
    palindrome,
)
from kerneltune.tools.schema.messages import Rules

ARMS = ORIGINAL, COMPILED, PATCHED, BOTH = ("original", "compiled", "patched", "patched, compiled")
MOST_FURTHER = 2.0  # times the original's distance from float64


class AddRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        return nn.functional.rms_norm(h, self.weight.shape, self.weight, self.eps), h


class Rotary(nn.Module):
    """Of queries and keys, [batch, sequence, heads, head_dim]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, sequence: int, head_dim: int) -> None:
        super().__init__()
        frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(sequence).float(), frequencies)[:, None, :]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.rotate(q), self.rotate(k)

    def rotate(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), dim=-1)


class SwiGLU(nn.Module):
    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        return nn.functional.silu(gate) * up


class AddLayerNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        return self.norm(h), h


class BiasGELU(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(x + self.bias)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, rotary: nn.Module | None, *, bias: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.q, self.v, self.o = (nn.Linear(dim, dim, bias=bias) for _ in range(3))
        self.k = nn.Linear(dim, dim, bias=False)  # softmax takes a bias of the keys out again

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.q, self.k, self.v))
        if self.rotary is not None:
            q, k = self.rotary(q, k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        answer = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.rotary is not None)
        return self.o(answer.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class GatedMLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.act, self.down = SwiGLU(), nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x), self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Hands on what is still to be added, so that both sums are part of a normalisation."""

    def __init__(self, norm: Callable[[], nn.Module], attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.before, self.attention, self.between, self.mlp = norm(), attention, norm(), mlp

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        y, h = self.before(x, residual)
        y, h = self.between(self.attention(y), h)
        return self.mlp(y), h


def llama(sequence: int, dim: int, heads: int, hidden: int) -> Block:
    attention = Attention(dim, heads, Rotary(sequence, dim // heads), bias=False)
    return Block(lambda: AddRMSNorm(dim), attention, GatedMLP(dim, hidden))


def vit(sequence: int, dim: int, heads: int, hidden: int) -> Block:
    mlp = nn.Sequential(nn.Linear(dim, hidden, bias=False), BiasGELU(hidden), nn.Linear(hidden, dim))
    return Block(lambda: AddLayerNorm(dim), Attention(dim, heads, None, bias=True), mlp)


OPS: tuple[type[nn.Module], ...] = (AddRMSNorm, Rotary, SwiGLU, AddLayerNorm, BiasGELU)
# of each block its size, and a tiny one: batch, sequence, dim, heads, hidden
BLOCKS = {
    "llama": (llama, (4, 2048, 2048, 16, 5632), (2, 16, 64, 4, 176)),
    "vit": (vit, (128, 197, 1024, 16, 4096), (2, 17, 64, 4, 256)),
}


class Arm(NamedTuple):
    """A block, and how it is called."""

    block: nn.Module
    run: Callable[..., tuple[Tensor, Tensor]]


def packaged(op: type[nn.Module], seen: Capture, given: argparse.Namespace) -> str | None:
    """Optimise an op and its gradients, print how that ended, and return the packaged file's name as a module."""
    results = []
    for part in ("forward", "gradients"):
        began_s = time.perf_counter()
        results.append(
            kerneltune.optimize(
                seen,
                backward=part == "gradients",
                model="offline",
                max_attempts=given.attempts,
                max_time_s=given.seconds / 2,
                confirm=False,
                runs_dir=given.runs_dir,
            )
        )
        best, took_s = results[-1].best, time.perf_counter() - began_s
        told = f"attempt {best.number}, {best.judged.status}" if best else "no kernel"
        timing = f", {best.timing.median_us:.1f} µs" if best and best.timing else ""
        gains = (f"{its.speedup:.3f}x {baseline}" for baseline, its in results[-1].speedups.items())
        print(f"- {op.__name__}, {part}: {', '.join([told + timing, *gains])}; {took_s:.0f} s", flush=True)
    if not all(result.best for result in results):
        return None
    return results[0].package(given.runs_dir / f"{op.__name__.lower()}_kernel.py", backward=results[1]).stem


def step(arm: Arm, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, and gradients of inputs and parameters."""
    outputs = arm.run(*inputs)
    return [*outputs, *torch.autograd.grad(outputs, [*inputs, *arm.block.parameters()], cotangents)]


def distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest of the tensors' errors, each as a root mean square in shares of the wanted tensor's."""
    return max(float((one.double() - other).norm() / other.norm()) for one, other in zip(found, wanted, strict=True))


def agree(arms: dict[str, Arm], inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> bool:
    """Print how far each is from the original in float64, and whether the patched ones are as near as the original."""
    exact = copy.deepcopy(arms[ORIGINAL].block).double()
    doubles = ([t.detach().double().requires_grad_() for t in its] for its in (inputs, cotangents))
    wanted = step(Arm(exact, exact), *doubles)
    off = {name: distance(step(arm, inputs, cotangents), wanted) for name, arm in arms.items()}
    with torch.no_grad():
        alone = {name: distance(arm.run(*inputs), wanted[:2]) for name, arm in arms.items()}
    for what, its in (("outputs without gradients", alone), ("outputs and gradients", off)):
        print(f"- {what}, from float64: " + "; ".join(f"{name} {far:.2g}" for name, far in its.items()), flush=True)
    return all(its[name] <= MOST_FURTHER * its[ORIGINAL] for its in (alone, off) for name in (PATCHED, BOTH))


Runs = dict[str, Callable[[], object]]  # of each arm


def graphed(runs: Runs) -> Runs:
    """The replays of CUDA graphs of those runs that can be captured; prints why others cannot."""
    found: Runs = {}
    for name, run in runs.items():
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
            gc.collect()  # what autograd still holds of earlier calls is bound to their stream
            try:
                found[name] = captured(run, stream).replay
            except RuntimeError as error:
                print(f"- {name}: no CUDA graph: {str(error).splitlines()[0]}", flush=True)
    return found


def timed(runs: Runs, given: argparse.Namespace) -> dict[str, RoundSeries]:
    """Rounds of all runs in palindromes, in microseconds a call: for each the rounds with it as the candidate."""

    def block_us(run: Callable[[], object], count: int) -> float:
        run()  # which the GPU works on while the host gets ahead
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(count):
            run()
        end.record()
        end.synchronize()
        return 1000 * float(start.elapsed_time(end)) / count

    series, rng = {name: RoundSeries(Rules(), (COMPILED,)) for name in runs}, random.Random(0)
    quickest_us = {name: min(block_us(run, 3) for _ in range(3)) for name, run in runs.items()}
    for _ in range(given.rounds):
        blocks: dict[str, list[float]] = {name: [] for name in runs}
        for name in palindrome(list(runs), rng):
            blocks[name].append(block_us(runs[name], math.ceil(1000 * given.block_ms / quickest_us[name])))
        for name, its in series.items():
            its.add(blocks | {CANDIDATE: blocks[name]}, 0.0)
    return series


def cells(series: RoundSeries) -> str:
    """Of a run: the median time and its interval, and how many times as fast as the compiled original it is."""
    its, (gain,) = microseconds_over([series], CANDIDATE), comparisons_over([series])
    speedup = f"{gain.speedup:.3f} ({gain.low:.3f} to {gain.high:.3f})"
    return f"{its.median:.0f} ({its.low:.0f} to {its.high:.0f}) | {speedup}"


def kernels_us(run: Callable[[], object]) -> dict[str, float]:
    """What each kernel takes of a call's time on the GPU, the longest first, by torch.profiler over five calls."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as its:
        for _ in range(5):
            run()
        torch.cuda.synchronize()
    kernels = [e for e in its.key_averages() if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    found = {e.key: e.self_device_time_total / 5 for e in kernels}
    return dict(sorted(found.items(), key=lambda kernel: -kernel[1]))


def print_times(title: str, arms: dict[str, Arm], given: argparse.Namespace, *tensors: Sequence[Tensor]) -> None:
    """Print the table of a block, and with `--profile` what the GPU did in the two compiled ones."""
    inputs, cotangents = tensors

    def forward(arm: Arm) -> Callable[[], object]:
        return lambda: torch.no_grad()(arm.run)(*inputs)

    def training_step(arm: Arm) -> Callable[[], object]:
        return lambda: step(arm, inputs, cotangents)

    lines = [f"| {title}, µs | CUDA graph | compiled / it | host included | compiled / it | sum of kernels |"]
    lines += [f"| --- |{' ---: |' * 5}"]
    for what, of in {"forward": forward, "training step": training_step}.items():
        runs = {name: of(arm) for name, arm in arms.items()}
        graphs = graphed(runs)
        replayed, called = timed(runs | graphs, given), timed(runs, given)
        for name, run in runs.items():
            kernels, graph = kernels_us(run), "" if name in graphs else "not captured: "
            whole_us = sum(kernels.values())
            times = f"{graph}{cells(replayed[name])} | {cells(called[name])}"
            lines.append(f"| {what}, {name} | {times} | {whole_us:.0f} |")
            if given.profile and name in (COMPILED, BOTH):
                print(f"\n| {title}, {what}, {name} | µs | share |\n| --- | ---: | ---: |")
                for kernel, us in list(kernels.items())[:8]:
                    print(f"| `{kernel[:80]}` | {us:.0f} | {us / whole_us:.1%} |", flush=True)
    print("", *lines, sep="\n", flush=True)


def measure(name: str, given: argparse.Namespace) -> bool:
    """Print all of one block. Whether every op has a kernel, all of them answered, and rightly."""
    on_gpu = torch.cuda.is_available()
    made_by, *sizes = BLOCKS[name]
    batch, sequence, dim, heads, hidden = sizes[given.tiny or not on_gpu]
    dtype = torch.bfloat16 if on_gpu else torch.float32  # Triton's interpreter multiplies bfloat16 as whole numbers
    torch.manual_seed(0)
    with torch.device("cuda" if on_gpu else "cpu"):
        block = made_by(sequence, dim, heads, hidden).to(dtype)
        inputs = [torch.randn(batch, sequence, dim).to(dtype).requires_grad_() for _ in range(2)]
        cotangents = [torch.randn_like(x) for x in inputs]
    print(f"\n**{name}**: {batch} x {sequence} tokens, {dim} wide, {heads} heads, MLP {hidden}, {dtype}", flush=True)
    places = {op: [path for path, its in block.named_modules() if type(its) is op] for op in OPS}
    ops = [op for op in OPS if places[op]]
    with contextlib.ExitStack() as watched, torch.no_grad():
        seen = [watched.enter_context(kerneltune.capture(op)) for op in ops]
        block(*inputs)
    files = [packaged(op, its, given) for op, its in zip(ops, seen, strict=True)]
    if not all(files):
        return False
    kernels, patched = [import_module(file) for file in files if file], copy.deepcopy(block)
    for kernel, path in ((kernel, path) for kernel, op in zip(kernels, ops, strict=True) for path in places[op]):
        kernel.patch(patched, path)
    each = [Arm(its, run) for its in (block, patched) for run in (its, torch.compile(its, fullgraph=True))]
    arms = dict(zip(ARMS, each, strict=True))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        right = agree(arms, inputs, cotangents)
    fallen = [str(its.message) for its in heard if "the reference runs" in str(its.message)]  # also when compiled
    counts = [counted for kernel in kernels for counted in kernel.calls(patched).items()]
    print("- calls: " + "; ".join(f"{path} {dict(its)}" for path, its in counts), *fallen, sep="\n- ", flush=True)
    if on_gpu:
        print_times(name, arms, given, inputs, cotangents)
    else:
        print("- no GPU: the kernels ran in Triton's interpreter, nothing was timed", flush=True)
    return right and not fallen and all(its["kernel"] and its["gradients"] for _, its in counts)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="+", choices=BLOCKS, metavar="BLOCK")
    parser.add_argument("--runs-dir", type=Path, required=True)
    parser.add_argument("--attempts", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--block-ms", type=float, default=10.0)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    given.runs_dir.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(given.runs_dir))
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    print(
        f"{gpu}, torch {torch.__version__}, Triton {version('triton')}; {given.rounds} rounds of {given.block_ms:g} ms"
    )
    return 0 if all([measure(name, given) for name in given.blocks]) else 1


if __name__ == "__main__":
    sys.exit(main())
