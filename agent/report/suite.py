"""Many tasks together: fast_p, geometric means with their intervals, a line for each task. Pure.

fast_p is KernelBench's, as `agent.export.rewards.fast_p` has it for one attempt: 1 when right and faster than p times
(strictly), else 0, and nothing where nobody knows. A task without an accepted kernel counts 0; a right kernel that was
never timed counts for p = 0 and is unknown above it, which the curve shows as a band from "none of them" to "all". So
is one that a later verification did not bear out: at every p when it was not right, above 0 when its time moved.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from agent.export.rewards import FASTEST, fast_p, speedup_over
from agent.record.trajectory import AttemptRecord
from agent.report.material import Material
from agent.view.text import plural
from tools.verdict import Status

_RESAMPLES = 4_000
_FEWEST = 5  # tasks of which an interval means something
_FAILED = tuple(s for s in Status if s not in (Status.CHECKED, Status.CORRECT, Status.UNCHECKED))
_JUST_ABOVE = 1e-6  # fast_0 is the share of right ones, timed or not


@dataclass(frozen=True)
class Mean:
    """A geometric mean over `n` tasks and its 95 % interval: a bootstrap over the tasks. None with too few of them."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class FastP:
    """Shares of the tasks that are right and more than p times as fast as one baseline, at every p where one changes.
    `high` counts tasks of which nobody knows as faster, `low` as not."""

    baseline: str
    ps: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Suite:
    """The runs of a suite, each with what counts of it."""

    materials: Sequence[Material]
    baselines: tuple[str, ...]

    @property
    def unit(self) -> str:
        """What is counted: tasks, unless one was run more than once."""
        return "task" if len(self._tasks) == len(self.materials) else "run"

    @property
    def many(self) -> str:
        """How many there are, in words."""
        told = plural(len(self.materials), self.unit)
        return told if self.unit == "task" else f"{told} of {plural(len(self._tasks), 'task')}"

    @property
    def _tasks(self) -> set[tuple[str, str]]:
        return {(m.trajectory.run.task, m.trajectory.run.task_sha256) for m in self.materials}

    @property
    def timed(self) -> list[Material]:
        """Those whose best kernel has a speed-up that nothing speaks against."""
        return [m for m in self.materials if m.best and not m.doubt and speedup_over(m.best) is not None]

    @property
    def untimed(self) -> list[Material]:
        """Those with a right kernel of which no speed-up is known."""
        return [m for m in self.materials if m.best and not m.doubt and speedup_over(m.best) is None]

    @property
    def doubted(self) -> list[Material]:
        """Those whose best kernel a later verification did not bear out."""
        return [m for m in self.materials if m.doubt]

    @property
    def right(self) -> int:
        """How many have a kernel that was found right, and was not found otherwise later."""
        return sum(m.best is not None and m.doubt != "wrong" for m in self.materials)

    @property
    def none(self) -> list[Material]:
        """Those without an accepted kernel."""
        return [m for m in self.materials if m.best is None]


def suite(materials: Sequence[Material]) -> Suite:
    """A suite of these runs."""
    seen = dict.fromkeys(c.baseline for m in materials if m.best for c in m.best.comparisons)
    return Suite(materials, tuple(seen))


def fast_p_curve(of: Suite, baseline: str = FASTEST) -> FastP:
    """fast_p from p = 0 to the end of the axis, which is a round number above the largest speed-up."""
    top = _end(of)
    known = {s for m in of.timed if m.best and (s := speedup_over(m.best, baseline)) is not None and s < top}
    ps = (0.0, _JUST_ABOVE, *sorted(known), top)
    shares = [fast_p_share(of, p, baseline) for p in ps]
    return FastP(baseline, ps, tuple(low for low, _ in shares), tuple(high for _, high in shares))


def _end(of: Suite) -> float:
    """The same for all baselines; at most 20, as few would care to tell 20x from 30x."""
    all_of_them = [s for m in of.timed if m.best for b in of.baselines if (s := speedup_over(m.best, b)) is not None]
    return min(max(2.0, math.ceil(max(all_of_them, default=2.0) * 1.05 * 2) / 2), 20.0)


def fast_p_share(of: Suite, p: float, baseline: str = FASTEST) -> tuple[float, float]:
    """The share of the tasks at one p, if those of which nobody knows are not faster, and if they are."""
    score = partial(fast_p, p=p, baseline=baseline)
    scores = [_score(m, score) for m in of.materials]
    n = len(scores) or 1
    sure, unknown = sum(s for s in scores if s is not None), sum(s is None for s in scores)
    return sure / n, (sure + unknown) / n


def _score(material: Material, score: Callable[[AttemptRecord], float | None]) -> float | None:
    """That of a task's best kernel; without one 0 if its attempts failed, unknown if nothing could run them."""
    if material.best is not None:
        if material.doubt:
            return None if material.doubt == "wrong" else score(replace(material.best, comparisons=()))
        return score(material.best)
    return None if any(a.status is Status.UNCHECKED for a in material.trajectory.attempts) else 0.0


def mean(of: Suite, baseline: str = FASTEST, *, kept: bool = False) -> Mean | None:
    """Over the tasks whose kernel was timed against the baseline. `kept`: a task without an accepted kernel, or with a
    slower one, counts as 1, because PyTorch is kept there. None when there is none."""
    found = [speedup_over(m.best, baseline) for m in of.timed if m.best]
    logs = [math.log(max(s, 1.0) if kept else s) for s in found if s is not None]
    if kept:
        logs += [0.0] * len(of.none)
    return _mean(logs) if logs else None


def _mean(logs: Sequence[float]) -> Mean:
    n = len(logs)
    value = math.exp(sum(logs) / n)
    if n < _FEWEST:
        return Mean(value, None, None, n)
    rng = random.Random(n)  # the same interval for the same numbers
    means = sorted(sum(rng.choices(logs, k=n)) / n for _ in range(_RESAMPLES))
    low, high = means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES)]
    return Mean(value, math.exp(low), math.exp(high), n)


def failed(material: Material) -> int:
    """How many of its attempts failed."""
    return sum(a.status in _FAILED for a in material.trajectory.attempts)
