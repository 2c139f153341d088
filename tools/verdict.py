"""What can be said about a candidate: a closed set of statuses, and the evidence each must carry.

A time is established in one of three tiers: `screened` (few input sets, a short measurement: enough to drop most
candidates), `judged` (everything is checked, and timed until the interval is narrow) and `confirmed` (judged again in
several fresh runner processes, which is what a record needs).

Some of the words come out of a jail: `detail`, names of kernels, labels of variants. They are made plain here, where
every one of them passes, so that whatever a verdict says can be stored and shown.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from tools.codec import Json
from tools.words import plain

MOST_OF_A_NAME = 200
Tier = Literal["screened", "judged", "confirmed"]


class Status(StrEnum):
    """How an attempt ended."""

    REJECTED = "rejected"  # the tracer or a static check refused it
    COMPILE_FAILED = "compile_failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    WRONG = "wrong"
    IMPOSSIBLE = "impossible"  # faster than light, or clocks disagree
    UNCHECKED = "unchecked"  # compiled, but nothing on this machine can run it
    CHECKED = "checked"  # right, not timed: no GPU
    CORRECT = "correct"  # right and timed on a GPU


@dataclass(frozen=True)
class KernelReport:
    """What the compiler says of one kernel. Bytes are per thread for stack and spills, per block for shared."""

    name: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    num_warps: int
    num_stages: int
    occupancy: float  # resident warps / maximum, limited by registers, shared memory and block size
    cubin_sha256: str
    compile_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", plain(self.name, MOST_OF_A_NAME))


@dataclass(frozen=True)
class CaseResult:
    """One comparison with the float64 reference. `error_ratio` is the worst error / budget (> 1 fails)."""

    case: str
    inputs: str  # which battery: "own", "zero_mean", …
    ok: bool
    error_ratio: float
    max_abs_error: float
    detail: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", plain(self.detail))


@dataclass(frozen=True)
class Timing:
    """Device time of one forward with cold L2: median and 95 % interval over blocks, in microseconds."""

    median_us: float
    low_us: float
    high_us: float
    n_blocks: int
    n_launches: int


@dataclass(frozen=True)
class Comparison:
    """Paired comparison with one baseline: speed-up = baseline / candidate, with its 95 % interval."""

    baseline: str
    baseline_us: float
    speedup: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """The judgement of one attempt. No timing on anything but `correct`; no sentinels."""

    status: Status
    detail: str
    cases: tuple[CaseResult, ...] = ()
    timing: Timing | None = None
    comparisons: tuple[Comparison, ...] = ()
    coverage: float | None = None  # share of GPU time in the candidate's own kernels (GPU only)
    sol_fraction: float | None = None  # speed-of-light time / measured time (GPU only)
    variant: str = ""
    tier: Tier | None = None  # how thoroughly a time was established; None without a time
    receipt: dict[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", plain(self.detail))
        object.__setattr__(self, "variant", plain(self.variant))
        if (self.timing is not None) != (self.status is Status.CORRECT):
            raise ValueError(f"timing belongs to 'correct' and nothing else, not to {self.status.value!r}")
        if self.timing is None and (self.comparisons or self.sol_fraction is not None):
            raise ValueError(f"speed-ups need a timing; {self.status.value!r} has none")

    @property
    def accepted(self) -> bool:
        """Right as far as this machine can tell."""
        return self.status in (Status.CHECKED, Status.CORRECT)
