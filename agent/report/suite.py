"""Many tasks together: fast_p, pass@k, geometric means with their intervals, a line for each task. Pure.

fast_p is KernelBench's, as `agent.export.rewards.fast_p` has it for one attempt: 1 when right and faster than p times
(strictly), else 0, and nothing where nobody knows. A task without an accepted kernel counts 0; a right kernel that was
never timed counts for p = 0 and is unknown above it, where the share lies between "none of them" and "all". So is one
that a later verification did not bear out: at every p when it was not right, above 0 when its time moved.

pass@k is the chance that at least one of k samples is right, estimated without bias from n of them of which c are right
(Chen et al. 2021, arXiv 2107.03374): 1 - C(n - c, k) / C(n, k), averaged over the tasks.
"""

import math
import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.export.rewards import FASTEST, fast_p, speedup_over
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.agent.report.data import RunData, baseline_name, claim, hardest, interval, ranked, tone_of
from kerneltune.agent.report.page import Site, moment, render
from kerneltune.agent.report.text import Sanitizer
from kerneltune.agent.view import text as words
from kerneltune.agent.view.state import Spending
from kerneltune.tools.schema.codec import Json, plural
from kerneltune.tools.schema.verdict import RIGHT, Status

_RESAMPLES = 4_000
_FEWEST = 5  # tasks of which an interval means something
_Z = 1.959964  # of a 95 % interval
_FAILED = tuple(s for s in Status if s not in (*RIGHT, Status.UNCHECKED))


@dataclass(frozen=True)
class Mean:
    """A geometric mean over `n` tasks and its 95 % interval: a bootstrap over the tasks. None with too few of them."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Suite:
    """The runs of a suite, each with what counts of it."""

    materials: Sequence[RunData]
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
    def timed(self) -> list[RunData]:
        """Those whose best kernel has a speed-up that nothing speaks against."""
        return [m for m in self.materials if m.best and not m.doubt and speedup_over(m.best) is not None]

    @property
    def untimed(self) -> list[RunData]:
        """Those with a right kernel of which no speed-up is known."""
        return [m for m in self.materials if m.best and not m.doubt and speedup_over(m.best) is None]

    @property
    def doubted(self) -> list[RunData]:
        """Those whose best kernel a later verification did not bear out."""
        return [m for m in self.materials if m.doubt]

    @property
    def spending(self) -> Spending:
        """What the models of all runs were asked and cost."""
        return sum((m.spending for m in self.materials), Spending())

    @property
    def right(self) -> int:
        """How many have a kernel that was found right, and was not found otherwise later."""
        return sum(m.best is not None and m.doubt != "wrong" for m in self.materials)

    @property
    def none(self) -> list[RunData]:
        """Those without an accepted kernel."""
        return [m for m in self.materials if m.best is None]


def suite(materials: Sequence[RunData]) -> Suite:
    """A suite of these runs."""
    seen = dict.fromkeys(c.baseline for m in materials if m.best for c in m.best.comparisons)
    return Suite(materials, tuple(seen))


def by_author(materials: Sequence[RunData]) -> dict[str, Suite]:
    """A suite for each author, in the order in which they come."""
    names = dict.fromkeys(m.trajectory.run.author for m in materials)
    return {name: suite([m for m in materials if m.trajectory.run.author == name]) for name in names}


def fast_p_share(of: Suite, p: float, baseline: str = FASTEST, *, first: bool = False) -> tuple[float, float]:
    """The share of the tasks at one p, if those of which nobody knows are not faster, and if they are. `first`: by each
    run's first attempt instead of its best."""
    score = partial(fast_p, p=p, baseline=baseline)
    scores = [(_first_score if first else _score)(m, score) for m in of.materials]
    n = len(scores) or 1
    sure, unknown = sum(s for s in scores if s is not None), sum(s is None for s in scores)
    return sure / n, (sure + unknown) / n


def _score(material: RunData, score: Callable[[Attempt], float | None]) -> float | None:
    """That of a task's best kernel; without one 0 if its attempts failed, unknown if nothing could run them."""
    if material.best is not None:
        if material.doubt:
            return None if material.doubt == "wrong" else score(_without_times(material.best))
        return score(material.best)
    return None if any(a.status is Status.UNCHECKED for a in material.trajectory.attempts) else 0.0


def _first_score(material: RunData, score: Callable[[Attempt], float | None]) -> float | None:
    """That of a run's first attempt; a run that made none has nothing that is right."""
    attempts = material.trajectory.attempts
    if attempts and attempts[0] == material.best:
        return _score(material, score)
    return score(attempts[0]) if attempts else 0.0


def _without_times(attempt: Attempt) -> Attempt:
    return replace(attempt, verdict=replace(attempt.judged, comparisons=()))


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


def failed(material: RunData) -> int:
    """How many of its attempts failed."""
    return sum(a.status in _FAILED for a in material.trajectory.attempts)


def baseline_label(baseline: str) -> str:
    """A baseline in words; the fastest is another one for each task."""
    return "the fastest baseline" if baseline == FASTEST else baseline_name(baseline)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The unbiased estimate of pass@k for a task. Raises ValueError for more samples than there are."""
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples, {right} of them right")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


@dataclass(frozen=True)
class Share:
    """A share and its 95 % interval by Wilson."""

    value: float
    low: float
    high: float


def wilson(share: float, n: int) -> Share:
    """The interval of a share of n trials. A mean of n values between 0 and 1 varies less than such a share does, so
    for that the interval is wide enough, too."""
    z2 = _Z * _Z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return Share(share, max(0.0, centre - half), min(1.0, centre + half))


def mean_pass_at_k(of: Suite, k: int) -> Share | None:
    """pass@k over the tasks of which there are as many samples; a sample is a run, and right when something of it was
    accepted and not refuted. None without such a task."""
    tasks: dict[str, list[bool]] = {}
    for m in of.materials:
        tasks.setdefault(m.trajectory.run.task_sha256, []).append(m.best is not None and m.doubt != "wrong")
    found = [pass_at_k(len(its), sum(its), k) for its in tasks.values() if len(its) >= k]
    return wilson(sum(found) / len(found), len(found)) if found else None


THRESHOLDS = (0.0, 1.0, 1.2, 1.5, 2.0)


def figures(of: Suite) -> dict[str, Json]:
    """What the suite came to, for programs. A share is [low, high], which differ where something is unknown; above
    fast_0 there is none where nothing was timed."""
    known = THRESHOLDS if of.timed else THRESHOLDS[:1]
    spent = of.spending
    found = {baseline: mean(of, baseline) for baseline in (FASTEST, *of.baselines)}
    return {
        "runs": len(of.materials),
        "timed": len(of.timed),
        "attempts": sum(len(m.trajectory.attempts) for m in of.materials),
        "fast_p": {
            by: {f"{p:g}": list(fast_p_share(of, p, first=by == "first")) for p in known} for by in ("first", "best")
        },
        "geometric_means": {
            baseline: {"value": m.value, "low": m.low, "high": m.high, "n": m.n} for baseline, m in found.items() if m
        },
        "replies": spent.replies,
        "cost_usd": spent.usd if spent.replies else 0.0,
        "unpriced_replies": spent.unpriced,
        "judge_s": round(sum(m.judge_s for m in of.materials), 3),
    }


def suite_page(
    materials: Sequence[RunData],
    shown: Sanitizer,
    *,
    version: str,
    chosen: str,
    links: Mapping[str, str] | None = None,
    site: Site | None = None,
) -> str:
    """`chosen`: how these runs were chosen, as a sentence; `links`: where the pages of runs are, by their ids."""
    of = suite(materials)
    over = (FASTEST, *of.baselines)
    gpus = sorted({m.trajectory.run.gpu or "no GPU" for m in materials})
    run_ids = [m.trajectory.run.run_id for m in materials]
    values = {
        "title": f"{of.many}: suite report",
        "headline": suite_claim(of),
        "chosen": chosen,
        "gpus": gpus,
        "suite": of,
        "links": links or {},
        "fast_0": f"{fast_p_share(of, 0.0)[0]:.0%}",
        "columns": [f"fast {p:g}" for p in THRESHOLDS],
        "thresholds": [
            (f"{baseline_label(b)}, {'first attempt' if first else 'best'}", shares_in_words(of, b, first=first))
            for b in over
            for first in (True, False)
        ],
        "authors": by_author(materials),
        "cost": cost_in_words,
        "first_0": lambda its: _share(fast_p_share(its, 0.0, first=True)),
        "best_0": lambda its: _share(fast_p_share(its, 0.0)),
        "first_1": lambda its: _share(fast_p_share(its, 1.0, first=True)),
        "best_1": lambda its: _share(fast_p_share(its, 1.0)),
        "mean": mean,
        "means": [(baseline_label(b), mean(of, b), mean(of, b, kept=True)) for b in over],
        "baselines": [(b, baseline_label(b)) for b in of.baselines],
        "claim": claim,
        "failed": failed,
        "intervals": _intervals,
        "mean_words": mean_in_words,
        "command": shlex.join(["optimize", "report", *run_ids, "--suite", "-o", "suite.html"]),
        "dates": _dates([m.trajectory for m in materials]),
    }
    return render("suite.html.j2", shown, version, values, site)


def suite_claim(of: Suite) -> list[str]:
    """The result in a sentence or two, the most important first."""
    timed = of.timed
    right = f"{of.right} of {of.many} have a kernel that was found right"
    if timed:
        wins = sum(
            c is not None and tone_of(c, m.resolution) == "faster" for m in timed if m.best for c in [hardest(m.best)]
        )
        found = [f"{right}; {wins} beat the fastest baseline beyond the 95 % interval."]
    else:
        found = [f"{right}; none was timed."]
    if (overall := mean(of)) is not None:
        found.append(
            f"Geometric mean of the speed-up over the fastest baseline: {mean_in_words(overall)}, n = {overall.n}."
        )
    if of.untimed and timed:
        verb = "was" if len(of.untimed) == 1 else "were"
        found.append(f"{plural(len(of.untimed), 'right kernel')} {verb} not timed.")
    if of.doubted:
        found.append(f"Verified again, the best kernel of {_tasks(of, of.doubted)} did not hold; it counts as unknown.")
    if of.none:
        found.append(f"Nothing was accepted for {_tasks(of, of.none)}; such {of.unit}s count as not faster.")
    return found


def _tasks(of: Suite, materials: Sequence[RunData]) -> str:
    """Their tasks; with the authors, where those differ."""
    several = len({m.trajectory.run.author for m in of.materials}) > 1
    runs = [m.trajectory.run for m in materials[:6]]
    told = [f"{run.task} by {run.author}" if several else run.task for run in runs]
    return ", ".join(told) + (", …" if len(materials) > 6 else "")


def mean_in_words(m: Mean) -> str:
    known = m.low is not None and m.high is not None
    return f"{m.value:.3f}x" + (f" [{m.low:.3f}, {m.high:.3f}]" if known else " (too few for an interval)")


def cost_in_words(of: Suite) -> str:
    """What the models cost; a price that nobody knows is unknown."""
    spent = of.spending
    if not spent.replies:
        return "none"
    more = f" and {spent.unpriced} of unknown price" if spent.usd is not None and spent.unpriced else ""
    return "unknown" if spent.usd is None else f"{words.dollars(spent.usd)}{more}"


def shares_in_words(of: Suite, baseline: str = FASTEST, *, first: bool = False) -> list[str]:
    """fast_p at each threshold; above 0 "-" where nothing was timed."""
    return [_share(fast_p_share(of, p, baseline, first=first)) if p == 0.0 or of.timed else "-" for p in THRESHOLDS]


def _share(low_high: tuple[float, float]) -> str:
    low, high = low_high
    return f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"


def _intervals(best: Attempt | None) -> dict[str, str]:
    """The speed-ups of a kernel by baseline, in words."""
    return {c.baseline: interval(c) for c in ranked(best)} if best else {}


def _dates(runs: Sequence[Trajectory]) -> str:
    moments = sorted(run.run.at for run in runs)
    return f"{moment(moments[0])} to {moment(moments[-1])}" if moments else ""
