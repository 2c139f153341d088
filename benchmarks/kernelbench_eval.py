"""KernelBench's own evaluation on the same candidates, beside ours: verdicts, and attempts a minute.

    python -m benchmarks.kernelbench_eval --kernelbench DIR --sample 8         # on an NVIDIA GPU

DIR is a checkout of github.com/ScalingIntelligence/KernelBench; its src/ and KernelBench/level1/23_Softmax.py are used,
and nothing of it is part of this repository. Its settings are the defaults of its scripts: 5 correctness trials, 100
timing trials, CUDA events, a fresh process for each candidate, one after the other. Its `utils` module imports clients
of language models, which evaluation does not use: where they are not installed, empty modules take their place.

The first candidate is an all-zeros softmax for its problem level1/23; the next ones are wrong in ways that one shape
and one kind of input do not show; the rest are the first of the hundred.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.throughput import HEADER, Candidate, Limits, candidates, measure
from kerneltune.tools.backends import gpu_info
from kerneltune.tools.schema.errors import KerneltuneError
from kerneltune.tools.task.load import find_task

CORRECTNESS_TRIALS, TIMING_TRIALS = 5, 100
TIMEOUT_S = 180.0
_NOT_NEEDED = {
    "dotenv": ["load_dotenv"],
    "openai": ["OpenAI"],
    "litellm": ["completion"],
    "tqdm": ["tqdm"],
    "requests": [],
}
_PRECISION = {"rms_norm": "bf16", "matmul_bias_relu": "bf16"}  # of the tasks' inputs; KernelBench casts to one dtype
_TELLING = (
    ("softmax", "row, 8 warps"),
    ("softmax", "a sum of 99.9 %"),
    ("softmax", "the tail counted as zeros"),
    ("softmax", "half precision inside"),
    ("softmax", "no maximum taken"),
    ("rms_norm", "the mean of a power of two"),
    ("softmax", "stores the whole block"),
    ("matmul_bias_relu", "tile 128x128x64, 8 warps, 4 stages"),
)
_ZEROS = """
@triton.jit
def zeros(y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.zeros((BLOCK,), tl.float32), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        zeros[(triton.cdiv(x.numel(), 4096),)](y, x.numel(), BLOCK=4096)
        return y
"""


@dataclass(frozen=True)
class Told:
    """What KernelBench says of one candidate. `us` are microseconds of the candidate and of the reference, if timed."""

    verdict: str
    wall_s: float
    us: tuple[float, float] | None = None
    detail: str = ""


def sample(folder: Path, count: int) -> list[Candidate]:
    """The all-zeros softmax, the telling ones, then others in the order of the hundred."""
    problem = str(folder / "KernelBench" / "level1" / "23_Softmax.py")
    zeros = Candidate("all zeros", problem, "wrong", HEADER + _ZEROS.strip() + "\n", ("wrong",))
    made = {(c.task, c.name): c for c in candidates()}
    telling = [made[key] for key in _TELLING]
    rest = [c for c in candidates() if c not in telling and c.kind not in ("timeout", "repeated")]
    return [zeros, *telling, *rest][:count]


def evaluated(folder: Path, candidate: Candidate) -> Told:
    """Run KernelBench's evaluation in a process of its own."""
    request = {"task": candidate.task, "source": candidate.source, "folder": str(folder)}
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.kernelbench_eval", "--one"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return Told("timed out", time.perf_counter() - started)
    wall_s = time.perf_counter() - started
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return Told("process died", wall_s, detail=done.stderr.strip().rpartition("\n")[2][:160])
    told = json.loads(lines[-1])
    us = (told["us"], told["reference_us"]) if told["us"] > 0 else None
    return Told(told["verdict"], wall_s, us, told["detail"])


def _evaluate_one() -> None:
    """The child: read a request, say what KernelBench says."""
    request = json.loads(sys.stdin.read())
    module = _imported(Path(request["folder"]))
    task = find_task(request["task"])
    with contextlib.redirect_stdout(io.StringIO()):
        result = module.eval_kernel_against_ref(
            original_model_src=task.path.read_text(),
            custom_model_src=request["source"],
            measure_performance=True,
            num_correct_trials=CORRECTNESS_TRIALS,
            num_perf_trials=TIMING_TRIALS,
            device=sys.modules["torch"].device("cuda:0"),
            backend="triton",
            precision=module.get_torch_dtype_from_string(_PRECISION.get(task.name, "fp32")),
        )
    print(json.dumps(_told(result)))


def _told(result: Any) -> dict[str, Any]:
    if result is None:
        return {"verdict": "no verdict", "us": -1.0, "reference_us": -1.0, "detail": ""}
    verdict = "correct" if result.correctness else "wrong" if result.compiled else "does not compile"
    notes = {k: str(v)[:120] for k, v in result.metadata.items() if k not in ("hardware", "device")}
    milliseconds = {"us": result.runtime, "reference_us": result.ref_runtime}  # its comment says us; its timers give ms
    return {"verdict": verdict, "detail": json.dumps(notes)} | {k: round(1e3 * v, 2) for k, v in milliseconds.items()}


def _imported(folder: Path) -> Any:
    """KernelBench's eval module."""
    for name, members in _NOT_NEEDED.items():
        if importlib.util.find_spec(name) is None:
            stand_in = types.ModuleType(name)
            for member in members:
                setattr(stand_in, member, lambda *_, **__: None)
            sys.modules[name] = stand_in
    sys.path.insert(0, str(folder / "src"))
    return importlib.import_module("kernelbench.eval")


def main() -> int:
    """Evaluate a sample both ways and print them side by side; 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, metavar="DIR", help="a checkout of KernelBench")
    parser.add_argument("--sample", type=int, default=8, help="how many candidates; 10 to 60 s each")
    parser.add_argument("--seconds", type=float, default=420.0, help="start no further candidate after this time")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _evaluate_one()
        return 0
    if given.kernelbench is None:
        parser.error("--kernelbench DIR is needed")
    if gpu_info() is None:
        print("KernelBench's evaluation needs an NVIDIA GPU; there is none here", file=sys.stderr)
        return 2
    folder = given.kernelbench.resolve()
    return _compare(folder, sample(folder, given.sample), given.seconds, given.json)


def _compare(folder: Path, chosen: Sequence[Candidate], seconds: float, path: str | None) -> int:
    theirs: list[Told] = []
    started = time.perf_counter()
    for candidate in chosen:
        if time.perf_counter() - started > seconds:
            break
        theirs.append(evaluated(folder, candidate))
        print(f"KernelBench: {theirs[-1].verdict:16} {theirs[-1].wall_s:6.1f} s  {candidate.name}", flush=True)
    chosen = chosen[: len(theirs)]
    ours = _ours(chosen)
    rows: list[dict[str, Any]] = []
    print(f"\n{'task':18} {'candidate':36} {'made to be':14} {'KernelBench':18} ours")
    for candidate, told in zip(chosen, theirs, strict=True):
        name, said = Path(candidate.task).stem, ours[id(candidate)]
        print(f"{name:18} {candidate.name:36} {candidate.expected[0]:14} {told.verdict:18} {said}")
        rows.append({"task": name, "name": candidate.name, "made": candidate.expected[0], "ours": said})
        rows[-1] |= {"theirs": told.verdict, "wall_s": told.wall_s, "us": told.us, "detail": told.detail}
    spent_s = sum(t.wall_s for t in theirs)
    print(f"\nKernelBench: {len(theirs)} candidates in {spent_s:.1f} s: {60 * len(theirs) / spent_s:.2f} a minute")
    if path:
        Path(path).write_text(json.dumps({"rows": rows, "spent_s": spent_s}, indent=1))
    return 0


def _ours(chosen: Sequence[Candidate]) -> dict[int, str]:
    """Our status of each candidate by id(), task by task; of a task that cannot be judged here, why."""
    said: dict[int, str] = {}
    for task in dict.fromkeys(c.task for c in chosen):
        own = [c for c in chosen if c.task == task]
        try:
            tally = measure(own, width=4, tier="judged", limits=Limits())
        except KerneltuneError as error:
            said |= {id(c): f"not judged: {error}" for c in own}
            continue
        said |= {id(c): judged.verdict.status.value for c, judged in tally.judged}
        rate = tally.summary()["attempts_per_minute"]
        print(f"ours, {Path(task).stem}: {len(own)} judged, {rate} a minute after a warm-up of {tally.warm_up_s:.1f} s")
    return said


if __name__ == "__main__":
    sys.exit(main())
