"""The seam to whoever writes kernels: an author sees the task and the history, and proposes candidates."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tools.codec import Json
from tools.spec import TaskSpec
from tools.verdict import KernelReport, Verdict


@dataclass(frozen=True)
class Proposal:
    """A candidate source and why. `parent_id` is the attempt it was derived from, `params` a search's choices."""

    source: str
    rationale: str
    parent_id: str | None = None
    params: dict[str, Json] = field(default_factory=dict)
    hypothesis: str = ""
    prediction: str = ""


@dataclass(frozen=True)
class Attempt:
    """A finished attempt, as authors and policies see it."""

    attempt_id: str
    number: int
    parent_id: str | None
    proposal: Proposal
    verdict: Verdict
    kernels: tuple[KernelReport, ...]
    rank_key: tuple[float, ...]  # smaller is better; () when not accepted
    plans_sha256: str = ""  # of all cases' plans: `tools.update.Update`; "" when it is of an earlier process


class Author(Protocol):
    """Writes kernels."""

    name: str

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """Up to `width` candidates to try next. An empty list: nothing before more verdicts are known, and nothing ever
        when none is awaited."""
        ...
