"""Points that need not be compiled yet, by what the compiler said at others: too much shared memory, more spills.

Nothing is a verdict here: what is put off comes last, and is tried when nothing else is left.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.attempt import Attempt
from agent.authors.offline.model import Floats, Levels, as_levels
from agent.authors.offline.space import Level, Space, Tried
from tools.verdict import Status

_REFUSED = re.compile(r"needs (\d+) bytes of shared memory")
_GROWS = ("BLOCK", "TILE", "CHUNK", "STAGES", "TOKENS", "HEADS", "RBLOCK", "XBLOCK")  # with it a block holds more
_SHRINKS = ("WARPS",)  # with it each thread holds less
TOO_LARGE = "more shared memory than a block has"
SPILLS = "more spills than in a point that was slow"
FAILING = "every point of the kernel so far failed"
_MARGIN = 1.15  # of the limit: the model of shared memory errs by about so much
_SPILLED_BYTES = 64  # per thread: a few spilled registers cost nothing that could be measured
_FAILURES = 2  # of a kernel that never was right, whatever its parameters; too much shared memory does not count
_CLEARLY_SLOWER = 0.1  # log time above the sketch's best


@dataclass(frozen=True)
class Judge:
    """What a sketch's attempts tell of its other points. `limit`: bytes of shared memory that a block may have;
    `failing`: none of them was right, for reasons that parameters hardly change."""

    space: Space
    weights: tuple[float, ...]  # of the constant and each parameter's logarithm, in the logarithm of shared memory
    too_large: tuple[Level, ...]
    spilled: tuple[Level, ...]
    limit: int
    failing: bool = False

    @classmethod
    def of(cls, space: Space, points: Sequence[Tried], limit: int) -> "Judge":
        """From the points of this sketch that were tried in this run."""
        shared = [(p, size) for p in points if p.attempt and (size := shared_bytes(p.attempt))]
        best = min((p.value for p in points if p.value is not None), default=0.0)
        sound = [p for p in points if p.value is not None]
        failed = [p for p in points if p.attempt and p.value is None and shared_bytes(p.attempt) <= limit]
        slow = [p for p in points if p.attempt and p.value is not None and p.value > best + _CLEARLY_SLOWER]
        return cls(
            space,
            _fitted(space, shared),
            tuple(space.level(p.params) for p, size in shared if size > limit),
            tuple(space.level(p.params) for p in slow if p.attempt and spilled_bytes(p.attempt) > _SPILLED_BYTES),
            limit,
            not sound and len(failed) >= _FAILURES,
        )

    def why(self, levels: Sequence[Level]) -> list[str]:
        """Of each point, why it comes last; "" for one that does not."""
        if self.failing:
            return [FAILING] * len(levels)
        asked = as_levels(levels, len(self.space.names))
        large = self._refused(asked) | (self._shared(levels) > self.limit * _MARGIN)
        spills = self._would_spill(asked)
        words = zip(large.tolist(), spills.tolist(), strict=True)
        return [TOO_LARGE if too_large else SPILLS if spilling else "" for too_large, spilling in words]

    def _shared(self, levels: Sequence[Level]) -> Floats:
        if not self.weights:
            return np.zeros(len(levels))
        logs = np.array([_row(self.space, level) for level in levels]) @ np.array(self.weights)
        found: Floats = 2.0 ** np.minimum(logs, 60.0)
        return found

    def _refused(self, asked: Levels) -> NDArray[np.bool_]:
        """No less of what takes shared memory than a point that was refused, and otherwise equal but for the warps."""
        return self._beyond(asked, self.too_large, lambda name: "" if _is(name, _SHRINKS) else "=")

    def _would_spill(self, asked: Levels) -> NDArray[np.bool_]:
        """No less in each thread than in a point that spilled; what is no size takes few registers."""
        return self._beyond(asked, self.spilled, lambda name: "<" if _is(name, _SHRINKS) else "")

    def _beyond(self, asked: Levels, others: Sequence[Level], rule: Callable[[str], str]) -> NDArray[np.bool_]:
        found = np.zeros(len(asked), dtype=bool)
        for other in others:
            past = np.ones(len(asked), dtype=bool)
            for at, name in enumerate(self.space.names):
                how = ">" if _is(name, _GROWS) else rule(name)
                past &= _COMPARED[how](asked[:, at], other[at])
            found |= past
        return found


_COMPARED: Mapping[str, Callable[[Levels, int], NDArray[np.bool_]]] = {
    ">": lambda mine, theirs: mine >= theirs, "<": lambda mine, theirs: mine <= theirs,
    "=": lambda mine, theirs: mine == theirs, "": lambda mine, theirs: mine == mine,
}  # fmt: skip


def shared_bytes(attempt: Attempt) -> int:
    """What the largest kernel needs a block, also of one that was refused for it; 0 where nobody said."""
    if attempt.verdict.status is Status.COMPILE_FAILED and (found := _REFUSED.search(attempt.verdict.detail)):
        return int(found[1])
    return max((k.shared_bytes for k in attempt.kernels), default=0)


def spilled_bytes(attempt: Attempt) -> int:
    """Of all kernels, per thread."""
    return sum(k.spill_store_bytes + k.spill_load_bytes for k in attempt.kernels)


def _is(name: str, words: Iterable[str]) -> bool:
    return any(word in name for word in words)


def _row(space: Space, level: Level) -> list[float]:
    values: Mapping[str, int] = space.params(level)
    return [1.0, *(math.log2(values[name] + 1) for name in space.names)]


def _fitted(space: Space, shared: Sequence[tuple[Tried, int]]) -> tuple[float, ...]:
    """Shared memory grows as a product of powers of parameters; () before there are more points than powers."""
    if len({space.level(p.params) for p, _ in shared}) <= len(space.names) + 1:
        return ()
    rows = np.array([_row(space, space.level(p.params)) for p, _ in shared])
    logs = np.log2(np.array([float(size) for _, size in shared]))
    centre = rows.mean(0)
    centre[0] = 0.0
    spread = rows - centre
    penalty = np.diag([1e-6, *([0.1] * len(space.names))])  # a parameter that did not vary has no power
    weights = np.linalg.solve(spread.T @ spread + penalty, spread.T @ logs)
    weights[0] -= float(weights @ centre)
    return tuple(float(w) for w in weights)
