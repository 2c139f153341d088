"""Candidates with their launch parameters left open, and what earlier runs on the same GPU found at their points."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kerneltune.agent.attempt import Earlier

# ---
# A candidate with its launch parameters left open: a complete file whose parameters are `NAME = value` lines.

Params = Mapping[str, int]


class CannotLower(Exception):
    """TorchInductor, or our reading of what it wrote, does not cover this task; the message says why."""


@dataclass(frozen=True)
class Sketch:
    """`params` are the defaults and `space` the values worth trying, in order; `starts` are whole points to try
    beside the defaults; `says` explains the idea to a person."""

    name: str
    source: str
    says: str
    params: dict[str, int] = field(default_factory=dict)
    space: dict[str, tuple[int, ...]] = field(default_factory=dict)
    starts: tuple[Params, ...] = ()

    def render(self, params: Params) -> str:
        """The candidate with these parameters. Raises KeyError for one that the file does not have."""
        text = self.source
        for name, value in params.items():
            text, count = re.subn(rf"(?m)^{name} = -?\d+\b", f"{name} = {value}", text)
            if count != 1:
                raise KeyError(f"{self.name}: {count} lines '{name} = …' instead of one")
        return text


def fingerprint(source: str) -> str:
    """Equal for sources that differ in comments' and lines' trailing space only."""
    lines = (line.split("  # ")[0].rstrip() for line in source.splitlines())
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


# ---
# What earlier runs on the same GPU found, as a search may use it: points to begin with, and points to leave.

BEGIN_WITH = 3  # of the best points of earlier runs on this task


@dataclass(frozen=True)
class Remembered:
    """What earlier runs tell of a task's sketches, checked against their text: a sketch that has changed since is
    another one. `points`: of this task; `best`: where to begin; `elsewhere`: the best of each sketch on other tasks."""

    points: tuple[Earlier, ...] = ()
    best: tuple[Earlier, ...] = ()
    elsewhere: tuple[Earlier, ...] = ()
    runs: int = 0

    @classmethod
    def of(cls, found: Sequence[Earlier], known: Mapping[str, Sketch]) -> "Remembered":
        """What counts of what was found, for these sketches."""
        ours = [e for e in found if e.sketch in known]
        same = [e for e in ours if e.same_task and _is_same(e, known[e.sketch])]
        ranked = sorted((e for e in same if e.median_us), key=lambda e: (e.median_us or 0.0, e.attempt_id))
        failed = [e for e in same if e.median_us is None and e.same_versions]
        return cls(
            (*ranked, *failed),
            tuple(_distinct(ranked))[:BEGIN_WITH],
            tuple(_distinct(_elsewhere([e for e in ours if not e.same_task], known))),
            len({e.attempt_id.rpartition("/")[0] for e in same}),
        )

    def knows(self, sketch: str, params: Mapping[str, int]) -> bool:
        """Whether an earlier run on this task has tried the point."""
        return any(p.sketch == sketch and dict(p.params) == dict(params) for p in self.points)

    def failed(self, sketch: str, params: Mapping[str, int]) -> bool:
        """Whether the point failed in an earlier run with the same versions, so that it would again."""
        return any(p.median_us is None and p.sketch == sketch and dict(p.params) == dict(params) for p in self.points)

    @property
    def words(self) -> str:
        """What is made of it, for a person; "" where there is nothing."""
        parts = []
        if self.points:
            runs = "an earlier run" if self.runs == 1 else f"{self.runs} earlier runs"
            parts.append(f"begins with {_counted(len(self.best), 'best point')} of {runs} of this task on this GPU")
            failed = {(p.sketch, _key_of(p.params)) for p in self.points if p.median_us is None}
            parts.append(f"{len(self.points)} points known from there, {len(failed)} of them failed and are left")
        if self.elsewhere:
            parts.append(f"{_counted(len(self.elsewhere), 'best point')} of other tasks come after the defaults")
        return "; ".join(parts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _key_of(params: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """A point's parameters as something to look up."""
    return tuple(sorted(params.items()))


def _is_same(one: Earlier, sketch: Sketch) -> bool:
    if set(one.params) != set(sketch.params):
        return False
    return hashlib.sha256(sketch.render(one.params).encode()).hexdigest() == one.source_sha256


def _distinct(ranked: Sequence[Earlier]) -> list[Earlier]:
    found = {(e.sketch, _key_of(e.params)): e for e in reversed(ranked)}
    return [e for e in ranked if found[(e.sketch, _key_of(e.params))] is e]


def _elsewhere(others: Sequence[Earlier], known: Mapping[str, Sketch]) -> list[Earlier]:
    """Of each expert and other task the best point, whose parameters this task's sketch has, too. What Inductor wrote
    for another task is another kernel under the same name."""
    best: dict[tuple[str, str], Earlier] = {}
    for one in others:
        unlike = one.sketch.startswith("inductor") or set(one.params) != set(known[one.sketch].params)
        if one.median_us is None or unlike:
            continue
        key = one.sketch, one.task
        if key not in best or one.median_us < (best[key].median_us or math.inf):
            best[key] = one
    return sorted(best.values(), key=lambda e: (list(known).index(e.sketch), e.attempt_id))
