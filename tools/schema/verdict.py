"""What can be said about a candidate: a closed set of statuses, and the evidence each must carry.

A time is established in one of three tiers: `screened` (few input sets, a short measurement: enough to drop most
candidates), `judged` (everything is checked, and timed until the interval is narrow) and `confirmed` (judged again in
several fresh runner processes, which is what a record needs).

Some of the words come out of a jail: `detail`, names of kernels, labels of variants. They are made plain here, where
every one of them passes, so that whatever a verdict says can be stored and shown.
"""

import functools
import hashlib
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from kerneltune.tools.schema.codec import DecodeError, Json, decode, number, plain

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
    CHECKED = "checked"  # right, not timed: no GPU, or `not_timed` says why
    CORRECT = "correct"  # right and timed on a GPU


RIGHT = (Status.CHECKED, Status.CORRECT)


class Cause(StrEnum):
    """Why an attempt is not right, where that is known as a fact. No author is told it."""

    SOURCE = "source"  # rejected: empty, too long, no text, no Python
    NO_MODEL = "no_model"
    SIGNATURE = "signature"
    RETURNS = "returns"  # also wrong: another structure, shape or dtype than the reference's
    READS_VALUE = "reads_value"
    DATA_DEPENDENT_SHAPE = "data_dependent_shape"
    NO_LAUNCH = "no_launch"
    UNUSED_LAUNCHES = "unused_launches"
    CACHED_RESULT = "cached_result"
    UNSTABLE_HOST_CODE = "unstable_host_code"
    OPERATOR = "operator"
    FOREIGN_MEMORY = "foreign_memory"
    TIMES_KERNELS = "times_kernels"
    ASKS_COMPILER = "asks_compiler"
    TOO_MUCH = "too_much"
    FORGED_REPLY = "forged_reply"
    COMPILE_OPTION = "compile_option"
    SHARED_MEMORY = "shared_memory"  # compile_failed
    COMPILER_ERROR = "compiler_error"
    COMPILER_DIED = "compiler_died"
    HOST_EXCEPTION = "host_exception"  # crashed
    TRACER_DIED = "tracer_died"
    RUNNER_DIED = "runner_died"
    OUT_OF_BOUNDS = "out_of_bounds"
    ASSERTION = "assertion"
    TRACING = "tracing"  # timed_out
    COMPILING = "compiling"
    RUNNING = "running"
    NOT_FINITE = "not_finite"  # wrong
    VALUES = "values"
    OVERWRITES = "overwrites"
    RACE = "race"
    SPEED_OF_LIGHT = "speed_of_light"  # impossible
    HIDDEN_TIME = "hidden_time"
    NULL_LAUNCH = "null_launch"
    NO_TIME = "no_time"
    CLOCKS = "clocks"
    MEMOISED = "memoised"
    NO_SMALL_CASE = "no_small_case"  # unchecked
    NEEDS_GPU = "needs_gpu"
    MEMORY = "memory"
    THROTTLED = "throttled"


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

    @property
    def spill_bytes(self) -> int:
        """Stored and loaded, per thread."""
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True)
class LaunchTime:
    """Device time per forward of one launch of several, or of all launches of one kernel where there are many."""

    kernel: str
    launches: int
    us: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", plain(self.kernel, MOST_OF_A_NAME))


COUNTERS, PROBES = "counters", "probes"  # entries of a receipt: what ncu counted, and what was probed
# why a warp that could not issue waited, as the profiler calls it: what it waited for
STALLS = {
    "long_scoreboard": "for global memory",
    "short_scoreboard": "for shared memory or special functions",
    "barrier": "at a barrier",
    "math_pipe_throttle": "for an arithmetic unit",
    "lg_throttle": "for a place in the queue to global memory",
    "mio_throttle": "for a place in the queue to shared memory",
    "wait": "for a fixed latency",
    "not_selected": "for other warps to issue",
    "membar": "at a memory fence",
    "gmma": "for a warp group's matrix product",
}


@dataclass(frozen=True)
class KernelCounters:
    """What one launch of a kernel did. `values` by the names of `counters.METRICS`; `stalls`: warps that waited for
    each reason, on average per instruction issued, by the names of STALLS. What this GPU has no counter for is
    absent."""

    kernel: str
    values: dict[str, float] = field(default_factory=dict)
    stalls: dict[str, float] = field(default_factory=dict)

    @property
    def dram_bytes(self) -> float:
        """What it moved to and from memory."""
        return self.values.get("dram_read_bytes", 0.0) + self.values.get("dram_written_bytes", 0.0)

    @property
    def dram_gbps(self) -> float:
        """The rate of that; 0 where it is not known."""
        time_ns = self.values.get("time_ns", 0.0)
        return self.dram_bytes / time_ns if time_ns > 0 else 0.0


@dataclass(frozen=True)
class Probes:
    """A forward timed again with one thing changed, in µs. `resident_us`: every large tensor is a few pages that the L2
    holds, over and over; None where that cannot be. `copy_us`: what copying as many bytes takes at the rate that was
    measured, and `copied_bytes` those bytes, each tensor once a step."""

    cold_us: float
    resident_us: float | None
    copy_us: float
    copied_bytes: int


class LimitationKind(StrEnum):
    """Why a check was weaker than this project's own."""

    NOT_FLOAT64 = "not_float64"
    NO_NOISE = "no_noise"
    OWN_DTYPE = "own_dtype"
    MANY_OUTPUTS = "many_outputs"
    NATIVE_MISSES = "native_misses"
    LEFT_OUT = "left_out"
    MANY_OPERATORS = "many_operators"
    SLOW = "slow"
    NO_TIME = "no_time"


LIMITATIONS: Mapping[LimitationKind, str] = {
    LimitationKind.NOT_FLOAT64: "no memory for float64, compared with the reference in its own dtype",
    LimitationKind.NO_NOISE: "no memory to measure the noise, its share of the tolerance follows from the row's size",
    LimitationKind.OWN_DTYPE: "the reference does not run in float64, compared with it in its own dtype",
    LimitationKind.MANY_OUTPUTS: (
        "more outputs than its noise is measured for, the noise's share of the tolerance follows from the row's size"
    ),
    LimitationKind.NATIVE_MISSES: "inputs at which torch's own arithmetic misses the answer as far say nothing",
    LimitationKind.LEFT_OUT: "no memory to draw these inputs, left out",
    LimitationKind.MANY_OPERATORS: (
        "the reference runs more operators than its noise is measured for (5,000), the noise's share of the tolerance "
        "follows from the row's size"
    ),
    LimitationKind.SLOW: (
        "a forward of the reference takes longer than its noise is measured for (0.4 s), the noise's share of the "
        "tolerance follows from the row's size"
    ),
    LimitationKind.NO_TIME: "the reference is too slow for these inputs, left out",
}
_OF_MEMORY = frozenset({LimitationKind.NOT_FLOAT64, LimitationKind.NO_NOISE, LimitationKind.LEFT_OUT})
_OF_TIME = frozenset({LimitationKind.MANY_OPERATORS, LimitationKind.SLOW})


@dataclass(frozen=True)
class Limitation:
    """What one comparison did without. `asked_for`: memory that was not there ("12.00 GiB"), where that is known."""

    kind: LimitationKind
    asked_for: str = ""

    def __str__(self) -> str:
        return LIMITATIONS[self.kind] + (f" (asked for {self.asked_for})" if self.asked_for else "")


@dataclass(frozen=True)
class CaseResult:
    """One comparison with the float64 reference. `error_ratio` is the worst error / budget (> 1 fails)."""

    case: str
    inputs: str  # which battery: "own", "zero_mean", …
    ok: bool
    error_ratio: float
    max_abs_error: float
    detail: str = ""
    limitations: tuple[Limitation, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", plain(self.detail))

    @property
    def sentence(self) -> str:
        """What was found, then what the comparison did without."""
        return "; ".join(filter(None, (self.detail, *map(str, self.limitations))))

    @property
    def cause(self) -> Cause:
        """What a comparison that failed found."""
        return Cause.NOT_FINITE if math.isnan(self.max_abs_error) else Cause.VALUES

    @property
    def name(self) -> str:
        """The comparison as "case/battery"."""
        return f"{self.case}/{self.inputs}"


def standing_for(result: CaseResult, others: Iterable[CaseResult]) -> CaseResult:
    """The result with the limitations of all the others that it stands for."""
    known = {limitation.kind for limitation in result.limitations}
    found = {limitation.kind for other in others for limitation in other.limitations}
    more = tuple(Limitation(kind) for kind in LimitationKind if kind in found - known)
    return replace(result, limitations=(*result.limitations, *more)) if more else result


class NotTimed(StrEnum):
    """Why a right candidate has no time although there is a GPU."""

    SHARED = "shared"
    UNSTEADY = "unsteady"
    BUSY_HOST = "busy_host"


NOT_TIMED: Mapping[NotTimed, str] = {
    NotTimed.SHARED: "others use this GPU",
    NotTimed.UNSTEADY: "this GPU runs too unevenly to tell a time from a mistake",
    NotTimed.BUSY_HOST: "this host is too busy to check the GPU's clock by its own",
}


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


def fastest_first(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """Sort comparisons by their baselines, the one that is hardest to beat first."""
    return sorted(comparisons, key=lambda c: (c.baseline_us, c.baseline))


MOST_LOST = 0.02  # of a weighted case's speed, against its fastest baseline; above, it is said


@dataclass(frozen=True)
class CaseTime:
    """How one of several weighted cases was timed: per forward, and against each baseline, the fastest first."""

    case: str
    weight: float
    timing: Timing
    comparisons: tuple[Comparison, ...] = ()
    sol_fraction: float | None = None

    @property
    def loses_to(self) -> Comparison | None:
        """Its comparison with its fastest baseline where it is more than 2 % slower; else None."""
        fastest = next(iter(fastest_first(self.comparisons)), None)
        return fastest if fastest and fastest.speedup < 1 - MOST_LOST else None


def losses_in_words(case_times: Iterable[CaseTime]) -> str:
    """ "slower than compile in case decode (0.91x); …": the weighted cases that lose over 2 %; "" where none does."""
    lost = [(c.case, found) for c in case_times if (found := c.loses_to)]
    return "; ".join(f"slower than {its.baseline} in case {case} ({its.speedup:.2f}x)" for case, its in lost)


@dataclass(frozen=True)
class Verdict:
    """The judgement of one attempt. No timing on anything but `correct`; no sentinels.

    Of a failure: the `case` (it may be a held-out one: see `tools.receipt.author_view`) and the `kernel` that it is
    about, `lines` of the candidate's source and `ptx_lines` of the kernel's PTX, the `needed_shared_bytes` of a kernel
    that no block of the target has room for; the `cause` where one is known. `left_out`: input sets as "case/battery"
    that found no memory, or of a case with a slow reference no time. `not_timed`: why there is no time on a GPU.
    `pending`: baselines that were not ready when it was timed. Where several cases have a weight, `case_times` holds
    each, and timing, comparisons, coverage and fraction of the speed of light are weighted means over them.
    """

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
    case: str = ""
    kernel: str = ""
    lines: tuple[int, ...] = ()
    ptx_lines: tuple[int, ...] = ()
    needed_shared_bytes: int | None = None
    left_out: tuple[str, ...] = ()
    cause: Cause | None = None
    not_timed: NotTimed | None = None
    pending: tuple[str, ...] = ()
    case_times: tuple[CaseTime, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", plain(self.detail))
        object.__setattr__(self, "variant", plain(self.variant))
        object.__setattr__(self, "kernel", plain(self.kernel, MOST_OF_A_NAME))
        if (self.timing is not None) != (self.status is Status.CORRECT):
            raise ValueError(f"timing belongs to 'correct' and nothing else, not to {self.status.value!r}")
        if self.timing is None and (self.comparisons or self.case_times or self.sol_fraction is not None):
            raise ValueError(f"speed-ups need a timing; {self.status.value!r} has none")
        if self.not_timed is not None and self.status is not Status.CHECKED:
            raise ValueError(f"what was not timed is 'checked', not {self.status.value!r}")

    @property
    def accepted(self) -> bool:
        """Right as far as this machine can tell."""
        return self.status in RIGHT

    @property
    def limitations(self) -> dict[LimitationKind, list[str]]:
        """The comparisons, as "case/battery", that each kind of limitation holds for."""
        found: dict[LimitationKind, list[str]] = {}
        for kind in LimitationKind:
            names = [c.name for c in self.cases if any(limitation.kind is kind for limitation in c.limitations)]
            if names := list(dict.fromkeys([*names, *(n for n in self.left_out if self._why_left_out(n) is kind)])):
                found[kind] = names
        return found

    def _why_left_out(self, name: str) -> LimitationKind:
        slow = {c.case for c in self.cases if any(lacks.kind in _OF_TIME for lacks in c.limitations)}
        return LimitationKind.NO_TIME if name.rpartition("/")[0] in slow else LimitationKind.LEFT_OUT

    @property
    def lacked_memory(self) -> bool:
        """Whether more memory another time might make the check a full one."""
        return not _OF_MEMORY.isdisjoint(self.limitations)


def task_failed(why: str) -> Verdict:
    """The verdict on a candidate while the task's own code fails, on inputs that it was not described with."""
    return Verdict(Status.UNCHECKED, f"compiled; the task's own code failed: {why}")


NOT_IN_FULL = "not_in_full"  # the entry of a receipt's evidence that lists the limitations


def concluded(verdict: Verdict, receipt: Mapping[str, Json]) -> Verdict:
    """A verdict at the end of its judging, with these facts in its receipt; limitations are said behind the claim of
    one that accepts, and listed in the receipt of any."""
    found = limitations_by_sentence(verdict)
    if not found:
        return replace(verdict, receipt=dict(receipt))
    words = f"; not checked in full: {limitations_in_words(found)}" if verdict.accepted else ""
    return replace(verdict, detail=verdict.detail + words, receipt={**receipt, NOT_IN_FULL: found})


def limitations_by_sentence(verdict: Verdict) -> dict[str, list[str]]:
    """The comparisons, as "case/battery", by what they did without, in words."""
    return {LIMITATIONS[kind]: names for kind, names in verdict.limitations.items()}


def limitations_in_words(found: Mapping[str, Iterable[str]]) -> str:
    """One clause of comparisons by limitation: "words: main (own, tiny); …"."""
    return "; ".join(f"{words}: {_by_case(names)}" for words, names in found.items())


def _by_case(names: Iterable[str]) -> str:
    cases: dict[str, list[str]] = {}
    for name in names:
        case, _, battery = name.rpartition("/")
        cases.setdefault(case, []).append(battery)
    return ", ".join(f"{case} ({', '.join(batteries)})" for case, batteries in cases.items())


def of_a_process(receipt: Mapping[str, Json]) -> Mapping[str, Json]:
    """The facts of a timing. A confirmation tells of each of its processes; the last stands for them."""
    processes = receipt.get("processes")
    last = processes[-1] if isinstance(processes, list) and processes else None
    return last if isinstance(last, Mapping) else receipt


def launch_times(receipt: Mapping[str, Json]) -> tuple[LaunchTime, ...]:
    """What a receipt says of each launch of a forward that has several; nothing of any other."""
    try:
        return decode(tuple[LaunchTime, ...], of_a_process(receipt).get("launches_us", []))
    except DecodeError:
        return ()


def launch_shares(receipt: Mapping[str, Json]) -> dict[str, float]:
    """Each kernel's share of the time of all launches, library calls and copies; empty where there is none."""
    times, whole_us = launch_times(receipt), _whole_us(receipt)
    return {t.kernel: sum(o.us for o in times if o.kernel == t.kernel) / whole_us for t in times if whole_us}


def _whole_us(receipt: Mapping[str, Json]) -> float:
    others = (number(of_a_process(receipt).get(name)) for name in ("library_us", "glue_us"))
    return sum(t.us for t in launch_times(receipt)) + sum(filter(None, others))


BEYOND_LIGHT = 1.05  # of the speed of light: clocks and rounding explain less


def light_in_words(fraction: float) -> str:
    """ "84% of the speed of light". Its flops are those of all products of the reference, also where a mask of its own
    makes them void, since nobody knows its values before it runs: a right kernel may do with fewer, and is faster."""
    beyond = ", as it does with fewer products than the reference (those behind a mask, say)"
    return f"{fraction:.0%} of the speed of light{beyond if fraction > BEYOND_LIGHT else ''}"


def launches_in_words(receipt: Mapping[str, Json]) -> str:
    """ "rows 62 % of the time, 81.2 µs; finish 38 %, 49.8 µs"; "" where nobody timed them apart."""
    times, whole_us = launch_times(receipt), _whole_us(receipt)
    if not whole_us:
        return ""
    parts = [
        f"{t.kernel[:_MOST_OF_A_LAUNCH]}{f' ({t.launches} launches)' if t.launches > 1 else ''} "
        f"{100 * t.us / whole_us:.0f} %{'' if number else ' of the time'}, {t.us:.1f} µs"
        for number, t in enumerate(times)
    ]
    others = 1.0 - sum(t.us for t in times) / whole_us
    return "; ".join([*parts, *([f"library calls and copies {100 * others:.0f} %"] if others >= 0.005 else [])])


_MOST_OF_A_LAUNCH = 40  # characters of a kernel's name
PROTOCOL_VERSION = "2"  # of everything that a quoted time depends on; receipts of other versions are not comparable


def versions() -> dict[str, str]:
    """Version of kerneltune, torch, triton, Python and the platform."""
    found = {name: version_of(name) or "not installed" for name in ("kerneltune", "torch", "triton", "numpy")}
    return found | {"python": platform.python_version(), "platform": platform.platform(terse=True)}


@functools.cache  # a service is asked for its health again and again, and reads no file for it
def version_of(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    from importlib import metadata  # 30 ms, which a command that only shows has no use for

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def evaluator_sha256() -> str:
    """The hash of everything that reaches a verdict: the sources of `tools`, without the tasks. Names the protocol as
    it was carried out, whatever its number says."""
    folder = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith("tasks/"):
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
