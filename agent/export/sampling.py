"""Which attempts a training set keeps by chance. Pure: the same seed keeps the same attempts, whatever
the order and the number of processes. See docs/rewards.md."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agent.export.formulas import FASTEST, speedup_over
from agent.export.labels import correct
from agent.record.trajectory import AttemptRecord
from tools.errors import UsageError

Doubt = Literal["keep", "drop"]
_DRAWS = 2**64


def draw(seed: int, attempt_id: str) -> float:
    """A number in [0, 1) that belongs to an attempt: a hash, not a state."""
    text = f"{seed}\0{attempt_id}".encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / _DRAWS


@dataclass(frozen=True)
class RejectionSampling:
    """Profiling-based rejection sampling (Dr.Kernel's PRS): a right attempt whose own kernels do little of the work is
    kept with a small probability, so that a policy does not learn to leave the work to the library.

    A right attempt is kept with probability clip((coverage - tau) / s, 0, 1); with s of 0, when its coverage is at
    least tau; always when its speed-up reaches `speedup`. What is not right is always kept: nobody learns a hack from
    a failure. A right attempt of unknown coverage (no GPU) is kept, or dropped with `unknown="drop"`: dropping is
    unfair to a store without a GPU, where it would leave nothing but failures. Raises UsageError for a wrong value.
    """

    tau: float = 0.3
    s: float = 0.1
    speedup: float | None = None
    seed: int = 0
    baseline: str = FASTEST
    unknown: Doubt = "keep"

    def __post_init__(self) -> None:
        for name, value in (("tau", self.tau), ("s", self.s), ("speedup", self.speedup)):
            if value is not None and not 0.0 <= value < math.inf:
                raise UsageError(f"{name}={value} is no threshold; it is a number of at least 0")
        if self.unknown not in ("keep", "drop"):
            raise UsageError(f"unknown={self.unknown} is neither keep nor drop")

    def probability(self, attempt: AttemptRecord) -> float:
        """With what probability it is kept."""
        if not correct(attempt):
            return 1.0
        if self.speedup is not None and (speedup_over(attempt, self.baseline) or 0.0) >= self.speedup:
            return 1.0
        coverage = attempt.coverage
        if coverage is None or not math.isfinite(coverage):
            return float(self.unknown == "keep")
        if self.s == 0.0:
            return float(coverage >= self.tau)
        return min(max((coverage - self.tau) / self.s, 0.0), 1.0)

    def keeps(self, attempt: AttemptRecord) -> bool:
        """Whether it is kept."""
        p = self.probability(attempt)
        return p >= 1.0 or (p > 0.0 and draw(self.seed, attempt.attempt_id) < p)


def rejection_sampling(options: Mapping[str, str | float]) -> RejectionSampling:
    """From options as a command line gives them (tau, s, speedup, seed, baseline, unknown); `none` stands for no
    threshold. Raises UsageError."""
    known = RejectionSampling.__dataclass_fields__
    if other := sorted(options.keys() - known):
        raise UsageError(f"rejection sampling has no option {other[0]!r}; it has {', '.join(known)}")
    values: dict[str, object] = {}
    for name, given in options.items():
        values[name] = str(given) if name in ("baseline", "unknown") else _number(name, str(given))
    return RejectionSampling(**values)  # type: ignore[arg-type]


def _number(name: str, text: str) -> float | int | None:
    if text.lower() == "none" and name in ("s", "speedup"):
        return 0.0 if name == "s" else None
    try:
        return int(text) if name == "seed" else float(text)
    except ValueError:
        kind = "whole number" if name == "seed" else "number"
        raise UsageError(
            f"{name}={text} is no {kind}; its default is {name}={getattr(RejectionSampling(), name)}"
        ) from None
