"""Public kernels as the evaluator meets them: a task and a candidate each, written from sources that are fetched.

A file of `kernels/` is a task in KernelBench's format with two additions: `PUBLIC`, a literal that names a source, its
files and the definitions wanted of each, and `class ModelNew`, which calls them. Nothing of the sources is kept here.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kerneltune.agent.commands.session import Patience, Workshop, session
from kerneltune.tools.evaluator import Candidate, judge_all
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.task.load import find_task
from tests.corpus.public.inline import InlineError, Inliner, Module

LIGER = "liger-kernel==0.8.2"
TUTORIALS = "triton v3.6.0, python/tutorials"
OPEN = {  # what is not accepted today, and why: a test fails as soon as one of them is
    "liger_cross_entropy": ("rejected", "counts the labels on the host (`.item()`) before it launches"),
    "liger_cross_entropy_mean": ("rejected", "counts the labels on the host"),
    "liger_fused_linear_cross_entropy": ("rejected", "counts the labels on the host"),
    "liger_fused_moe": ("rejected", "reads the number of tiles on the host, for the grid of its next launch"),
    "liger_group_norm_any": ("wrong", "variance in one pass: NaN where the mean is 10,000 deviations"),
    "tutorial_08_grouped_gemm": ("rejected", "writes addresses of tensors into a tensor"),
    "tutorial_08_grouped_gemm_tma": ("rejected", "writes addresses of tensors into a tensor"),
}
FOLDER = Path(__file__).with_name("kernels")
PATIENCE = Patience(trace_s=90.0, compile_s=240.0, replay_s=240.0, baselines=("eager",))
_NOT_OF_THE_TASK = {"PUBLIC", "ModelNew"}


@dataclass(frozen=True)
class Kernel:
    """One public kernel. `wanted`: by source ("liger", "tutorials"), then by file, the names of its definitions."""

    name: str
    path: Path
    wanted: Mapping[str, Mapping[str, list[str]]]


@dataclass(frozen=True)
class Judged:
    """What became of one kernel. `seconds`: tracing, compiling and judging."""

    name: str
    verdict: Verdict
    seconds: float

    @property
    def expected(self) -> bool:
        """Accepted; or as OPEN says; or nothing on this machine can run it, which refuses nobody."""
        if self.name in OPEN:
            return self.verdict.status.value == OPEN[self.name][0]
        return self.verdict.accepted or self.verdict.status is Status.UNCHECKED

    @property
    def worst_ratio(self) -> float | None:
        """The largest error by its tolerance, over all cases and batteries."""
        return max((case.error_ratio for case in self.verdict.cases), default=None)

    def json(self) -> dict[str, Json]:
        """The object of --json."""
        verdict, timing = self.verdict, self.verdict.timing
        eager = next((c for c in verdict.comparisons if c.baseline == "eager"), None)
        return {
            "name": self.name,
            "status": verdict.status.value,
            "detail": verdict.detail,
            "open": OPEN[self.name][1] if self.name in OPEN else None,
            "seconds": round(self.seconds, 1),
            "worst_error_ratio": self.worst_ratio,
            "checks": len(verdict.cases),
            "median_us": timing.median_us if timing else None,
            "speedup_over_eager": eager.speedup if eager else None,
            "coverage": verdict.coverage,
        }


@dataclass(frozen=True)
class Sources:
    """Where the fetched sources lie: the folder that holds `liger_kernel`, and that of the tutorials."""

    liger: Path | None = None
    tutorials: Path | None = None
    packages: Mapping[str, Path] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", {"liger_kernel": self.liger / "liger_kernel"} if self.liger else {})

    def root(self, source: str) -> Path | None:
        """The folder that files of this source are named in; None when it was not given."""
        return self.packages.get("liger_kernel") if source == "liger" else self.tutorials

    def has(self, kernel: Kernel) -> bool:
        """Whether all sources of a kernel were given."""
        return all(self.root(source) for source in kernel.wanted)


def kernels(folder: Path = FOLDER) -> tuple[Kernel, ...]:
    """All of them, by name. Raises InlineError for a file without PUBLIC."""
    return tuple(Kernel(path.stem, path, _public(path)) for path in sorted(folder.glob("*.py")))


def _public(path: Path) -> dict[str, dict[str, list[str]]]:
    for statement in Module(path).statements:
        if "PUBLIC" in statement.binds and isinstance(statement.node, ast.Assign):
            return dict(ast.literal_eval(statement.node.value))
    raise InlineError(f"{path.name} has no PUBLIC")


def task_source(kernel: Kernel) -> str:
    """The task: the file without what is public's."""
    module = Module(kernel.path)
    return Inliner().source([(kernel.path, sorted(module.bound - _NOT_OF_THE_TASK))])


def candidate_source(kernel: Kernel, sources: Sources) -> str:
    """The candidate: the fetched definitions in one file, and our ModelNew. Raises InlineError, OSError."""
    files = [
        (root / file, names)
        for source, wanted in kernel.wanted.items()
        if (root := sources.root(source))
        for file, names in wanted.items()
    ]
    return Inliner(sources.packages).source([*files, (kernel.path, ["ModelNew"])])


def write(kernel: Kernel, sources: Sources, folder: Path) -> tuple[Path, Path]:
    """Write task and candidate into a folder; where they are."""
    task, candidate = folder / f"{kernel.name}_task.py", folder / f"{kernel.name}.py"
    task.write_text(task_source(kernel))
    candidate.write_text(candidate_source(kernel, sources))
    return task, candidate


def judged(shop: Workshop, chosen: Iterable[Kernel], sources: Sources, folder: Path) -> Iterator[Judged]:
    """Judge each as `optimize selftest` judges: one session per task. Raises TaskError for a task of ours."""
    for kernel in chosen:
        task, candidate = write(kernel, sources, folder)
        with session(shop, find_task(str(task)), PATIENCE) as opened:
            for found in judge_all(opened.tools, [Candidate(kernel.name, candidate.read_text())], width=1):
                yield Judged(kernel.name, found.verdict, found.seconds)
