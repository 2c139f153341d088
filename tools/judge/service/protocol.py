"""Messages between the supervisor and the judge, with and without a GPU. Pure data.

Values never leave the judge except as blobs of inputs; a seed leaves with the result for its inputs, answers never
leave at all. To the GPU session the supervisor sends OpenTask, Warm, Screen, Bench or Resolve and then receives until
the answer comes; NeedRunner and EndRunner may come before it. A runner is handed over through the door:
`pass_runner(door, socket)`.
"""

from dataclasses import dataclass, field
from typing import Literal

from kerneltune.tools.backends.cuda.calibration import Ceilings
from kerneltune.tools.judge.timing.statistics import BASELINE_LIMIT_S, BASELINES, Rules
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import CaseResult, Tier, Verdict


@dataclass(frozen=True)
class Open:
    """Load a task file. The answer is Opened."""

    name: str
    path: str
    kind: Literal["open"] = "open"


@dataclass(frozen=True)
class Opened:
    """The task as seen from outside, or why it cannot be used. `notes`: how far verdicts on it can be trusted."""

    task: TaskSpec | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True)
class NewInputs:
    """Draw inputs for a frozen plan: the seed depends on the plan's hash and the judge's secret."""

    case: str
    battery: str
    plan_sha256: str
    kind: Literal["new_inputs"] = "new_inputs"


@dataclass(frozen=True)
class PreparedInputs:
    """Names of the blobs that follow ("input:0", "state:weight"); None of them when the battery does not apply, or is
    left out because the memory is `short`."""

    names: tuple[str, ...]
    applies: bool = True
    short: bool = False
    kind: Literal["prepared_inputs"] = "prepared_inputs"


@dataclass(frozen=True)
class Compare:
    """Judge outputs: the tree has {"$blob": i, "dtype", "shape"} leaves; the blobs follow."""

    case: str
    battery: str
    plan_sha256: str
    outputs: Json
    kind: Literal["compare"] = "compare"


@dataclass(frozen=True)
class ComparisonReply:
    """The result of a comparison, and the seed that its inputs were drawn from, which is no secret any more."""

    result: CaseResult
    seed: int = 0
    kind: Literal["judgement"] = "judgement"


@dataclass(frozen=True)
class OpenTask:
    """Load a task file for the GPU. The answer is Ready. `ceilings` are what this GPU was measured to reach (None: the
    data sheet); torch.compile keeps its work under `cache_dir` ("": nowhere); a baseline that takes longer than
    `baseline_limit_s` to build is left out."""

    path: str
    task: TaskSpec
    baselines: tuple[str, ...] = BASELINES
    ceilings: Ceilings | None = None
    cache_dir: str = ""
    baseline_limit_s: float = BASELINE_LIMIT_S
    kind: Literal["open_task"] = "open_task"


@dataclass(frozen=True)
class Ready:
    """The GPU as the judge found it, or the user's mistake in one line."""

    gpu: dict[str, Json] = field(default_factory=dict)
    problem: str | None = None
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True)
class Warm:
    """Build and time the baselines of the main case now (they are built anyway at the first Bench). The answer is
    Baselines."""

    kind: Literal["warm"] = "warm"


@dataclass(frozen=True)
class Baselines:
    """Time per forward of each baseline, what this session can tell apart (relative), and measured copy bandwidth."""

    times_us: dict[str, float] = field(default_factory=dict)
    resolution: float = 0.0
    copy_gbps: float = 0.0
    notes: tuple[str, ...] = ()
    problem: str | None = None
    build_s: dict[str, float] = field(default_factory=dict)
    null_launch_us: float = 0.0
    kind: Literal["baselines"] = "baselines"


@dataclass(frozen=True)
class KernelImage:
    """A compiled kernel; its cubin is the blob of the same index."""

    sha256: str
    metadata: dict[str, Json]


@dataclass(frozen=True)
class ScreenVariants:
    """Rank variants of the main case. The answer is Screened."""

    plans: tuple[Plan, ...]
    images: tuple[KernelImage, ...]
    kind: Literal["screen"] = "screen"


@dataclass(frozen=True)
class Screened:
    """Time per forward of each variant in µs; None where it failed, and then why."""

    times_us: tuple[float | None, ...]
    details: tuple[str, ...]
    kind: Literal["screened"] = "screened"


@dataclass(frozen=True)
class BenchRequest:
    """Check the plans (one per case, in the order given), then time the main case's, as `tier` asks. The answer is
    Judged. With `reuse`, plans and cubins that had a verdict of this tier get the same again. A screening times the
    fastest baseline alone, or `all_baselines`."""

    plans: tuple[Plan, ...]
    images: tuple[KernelImage, ...]
    rules: Rules = field(default_factory=Rules)
    repeats: int = 3
    tier: Tier = "judged"
    reuse: bool = False
    all_baselines: bool = False
    kind: Literal["bench"] = "bench"


@dataclass(frozen=True)
class BenchReply:
    """The verdict."""

    verdict: Verdict
    kind: Literal["judged"] = "judged"


@dataclass(frozen=True)
class Resolve:
    """Time a plan of the main case against itself, `pairs` times for `pair_s` seconds each. The answer is Resolved."""

    plan: Plan
    images: tuple[KernelImage, ...]
    pairs: int = 30
    pair_s: float = 0.3
    rules: Rules = field(default_factory=Rules)
    kind: Literal["resolve"] = "resolve"


@dataclass(frozen=True)
class Resolved:
    """Ratios of a plan's time to its own, or why there are none."""

    ratios: tuple[float, ...] = ()
    median_us: float = 0.0
    slots: int = 0
    problem: str | None = None
    kind: Literal["resolved"] = "resolved"


@dataclass(frozen=True)
class NeedRunner:
    """End the present runner, if any, start a fresh one and pass it through the door. Sends no answer."""

    why: str
    kind: Literal["need_runner"] = "need_runner"


@dataclass(frozen=True)
class EndRunner:
    """SIGKILL the present runner now: it hangs, or it is no longer trusted. Sends no answer."""

    why: str
    kind: Literal["end_runner"] = "end_runner"


SupervisorMessage = OpenTask | Warm | ScreenVariants | BenchRequest | Resolve
JudgeMessage = Ready | Baselines | Screened | BenchReply | Resolved | NeedRunner | EndRunner
