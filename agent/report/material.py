"""What a report of one run is made of: its trajectory, its course, and the receipt of its best attempt. Pure."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from agent.record.events import Event, RunResumed, Verified, Warned
from agent.record.trajectory import AttemptRecord, Trajectory, ending
from tools.codec import Json
from tools.gpus import Gpu, gpu_named
from tools.verdict import Comparison, Timing

_BASELINES = {
    "eager": "eager PyTorch",
    "compile": "torch.compile",
    "compile-max": "torch.compile max-autotune",
}

_PLAIN = re.compile(r"[a-z][a-z0-9_-]{0,19}")


@dataclass(frozen=True)
class Work:
    """What the timed case has to do at least: `bytes_moved` each input, parameter and output once, `flops` of
    contractions. None where nobody noted it."""

    bytes_moved: float | None = None
    flops: float | None = None
    precision: str | None = None


@dataclass(frozen=True)
class Material:
    """One run. `course`: how it began, was resumed, ended, what it warned of and what was verified. `receipt`: that of
    the best attempt, and why there is none. `other_receipt`: of any attempt, for what holds for the whole run."""

    trajectory: Trajectory
    course: Sequence[Event] = ()
    receipt: Json = None
    receipt_note: str = ""
    other_receipt: Json = None

    @property
    def best(self) -> AttemptRecord | None:
        """The best attempt, if it is an accepted one."""
        best = self.trajectory.best
        return best if best is not None and best.accepted else None

    @cached_property
    def doubt(self) -> Literal["wrong", "moved"] | None:
        """What the latest verification had against the best: it is not right, or it is, and its time did not repeat."""
        if self.best is None or self.best.held is not False:
            return None
        its = [e.verdict for e in self.verified("verify") if e.attempt_id == self.best.attempt_id]
        return "moved" if its and its[-1].accepted else "wrong"

    @cached_property
    def resolution(self) -> float:
        """The largest difference that the same kernel showed to itself, as a share; 0 where nobody noted it."""
        return number(dig(self.receipt, "evidence", "aa_resolution")) or 0.0

    @cached_property
    def warnings(self) -> list[str]:
        """What the run warned of, each once."""
        return list(dict.fromkeys(e.text for e in self.course if isinstance(e, Warned)))

    @cached_property
    def elapsed_s(self) -> float | None:
        """How long the last process worked, without pauses, as the run's ending says."""
        ended = ending(self.course)
        return finite(ended.elapsed_s) if ended else None

    @property
    def resumed(self) -> int:
        """How often it went on in a new process."""
        return sum(isinstance(e, RunResumed) for e in self.course)

    def verified(self, purpose: str) -> list[Verified]:
        """Confirmations ("confirm") or later verifications ("verify")."""
        return [e for e in self.course if isinstance(e, Verified) and e.purpose == purpose]

    @property
    def judge_s(self) -> float:
        """Seconds for which the judge, and with it the GPU, was busy with the run's attempts."""
        benched = sum(finite(a.bench_s) or 0.0 for a in self.trajectory.attempts)
        return benched + sum(finite(e.bench_s) or 0.0 for e in self.verified("confirm"))

    @cached_property
    def timed(self) -> list[AttemptRecord]:
        """The attempts that have a time."""
        return [a for a in self.trajectory.attempts if timing_of(a)]

    @cached_property
    def light_us(self) -> float | None:
        """What a perfect kernel would take, by the best attempt that says so."""
        found = (sol_us(a) for a in [*([self.best] if self.best else []), *self.timed])
        return next((us for us in found if us is not None), None)

    @cached_property
    def work(self) -> Work:
        """From the receipts; without contractions also from what was told a model."""
        for told in (self.receipt, self.other_receipt):
            main = dig(told, "task", "cases", 0)
            bytes_moved, flops = number(dig(main, "bytes_moved")), number(dig(main, "flops"))
            precision = dig(told, "task", "precision")
            if bytes_moved is not None or flops is not None:
                return Work(bytes_moved, flops, precision if isinstance(precision, str) else None)
        seen = (
            number(e.evidence.get("arithmetic_intensity")) for a in self.trajectory.attempts for e in a.expectations
        )
        return Work(None, 0.0 if next(seen, None) == 0.0 else None)

    @cached_property
    def gpu(self) -> Gpu | None:
        """What is known of the GPU's rates."""
        try:
            return gpu_named(self.trajectory.run.gpu or "")
        except KeyError:
            return None

    @property
    def process(self) -> Json:
        """What the receipt's judge noted of its last process: a confirmation has several."""
        processes = dig(self.receipt, "evidence", "processes")
        return processes[-1] if isinstance(processes, list) and processes else dig(self.receipt, "evidence")


def dig(value: Json, *path: str | int) -> Json:
    """What lies at a path of a JSON value; None where something is missing or of another type."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, Mapping) else None
        else:
            value = value[step] if isinstance(value, list) and len(value) > step else None
    return value


def number(value: Json) -> float | None:
    """A finite number; None for anything else."""
    return finite(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def finite(value: float | None) -> float | None:
    """The value, unless it is NaN, infinite, too large or missing."""
    try:
        return float(value) if value is not None and math.isfinite(value) else None
    except OverflowError:  # JSON knows whole numbers of any size
        return None


def sol_us(attempt: AttemptRecord) -> float | None:
    """The speed-of-light time that the attempt was compared with, in microseconds."""
    fraction = finite(attempt.sol_fraction)
    us = attempt.timing.median_us if attempt.timing else 0.0
    return fraction * us if fraction and plausible(us) and plausible(fraction * us) else None


def ranked(attempt: AttemptRecord) -> list[Comparison]:
    """Its comparisons that are numbers, with the baseline that is hardest to beat first."""
    good = [c for c in attempt.comparisons if all(plausible(v) for v in (c.speedup, c.low, c.high, c.baseline_us))]
    return sorted(good, key=lambda c: (c.speedup, c.baseline))


def timing_of(attempt: AttemptRecord) -> Timing | None:
    """Its time, if it is one."""
    timing = attempt.timing
    return timing if timing and all(map(plausible, (timing.median_us, timing.low_us, timing.high_us))) else None


def plausible(value: float) -> bool:
    """Whether it can be a time in microseconds or a speed-up at all: a damaged record may hold anything."""
    return 1e-9 < value < 1e12


def hardest(attempt: AttemptRecord) -> Comparison | None:
    """The comparison with the baseline that was hardest to beat."""
    return next(iter(ranked(attempt)), None)


def baseline_name(key: str) -> str:
    """A baseline as people call it. Ours are a closed set; what is no plain name did not come from us."""
    plain = key if _PLAIN.fullmatch(key) else "an unnamed baseline"
    return _BASELINES.get(key, plain)
