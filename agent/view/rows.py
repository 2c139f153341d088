"""The parts of what there is to see: an attempt, something said, a budget."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tools.verdict import KernelReport, Verdict

Who = Literal["author", "judge", "reflection", "warning", "run"]


@dataclass(frozen=True)
class AttemptRow:
    """One attempt. `stage` says what is being done to it until `verdict` is there."""

    attempt_id: str
    number: int
    parent_id: str | None
    source: str
    rationale: str
    stage: str = "proposed"
    kernels: tuple[KernelReport, ...] = ()
    library_ops: tuple[str, ...] = ()
    variants: int = 0
    verdict: Verdict | None = None
    rank_key: tuple[float, ...] = ()  # smaller is better
    hypothesis: str = ""
    outcome: str = ""
    stage_at: float = 0.0  # since when
    judged_at: float = 0.0


def best_ranked(rows: Iterable[AttemptRow]) -> AttemptRow | None:
    """The accepted one with the smallest rank key; the earlier one on a tie."""
    ranked = [row for row in rows if row.rank_key and row.verdict and row.verdict.accepted]
    return min(ranked, key=lambda row: (row.rank_key, row.number), default=None)


@dataclass(frozen=True)
class LogEntry:
    """Something said or decided."""

    at: float
    who: Who
    text: str


@dataclass(frozen=True)
class Budget:
    """How much of one limit is used."""

    name: Literal["attempts", "time", "patience", "cost"]
    used: float
    limit: float

    @property
    def fraction(self) -> float:
        """Used / limit, at most 1."""
        return min(1.0, self.used / self.limit) if self.limit > 0 else 1.0
