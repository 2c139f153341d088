"""The report of many runs: the same single file, over tasks instead of attempts."""

import shlex
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from agent.export.rewards import FASTEST, speedup_over
from agent.record.trajectory import Trajectory
from agent.report.claim import claim, interval, tone_of
from agent.report.material import Material, finite, hardest, ranked, timing_of
from agent.report.page import both, moment, render
from agent.report.shown import Shown
from agent.report.suite import Mean, Suite, failed, fast_p_curve, fast_p_share, mean, suite
from agent.report.suite_curve import fast_p_chart, name
from agent.view import text as words

THRESHOLDS = (0.0, 0.8, 1.0, 1.5, 2.0)


class TaskLine(NamedTuple):
    """A row of the table of tasks."""

    task: str
    run_id: str
    gpu: str
    author: str
    status: object
    time: str
    speedups: tuple[str, ...]
    light: str
    coverage: str
    tier: str
    attempts: str
    note: str
    doubted: bool


class MeanLine(NamedTuple):
    """A geometric mean in words."""

    baseline: str
    over_timed: str
    n: int
    kept: str
    n_kept: int


def suite_page(materials: Sequence[Material], shown: Shown, *, version: str, chosen: str) -> str:
    """`chosen`: how these runs were chosen, as a sentence."""
    of = suite(materials)
    curves = [fast_p_curve(of, b) for b in (FASTEST, *of.baselines)] if materials else []
    gpus = sorted({m.trajectory.run.gpu or "no GPU" for m in materials})
    run_ids = [m.trajectory.run.run_id for m in materials]
    values = {
        "title": f"{of.many}: suite report",
        "headline": suite_claim(of),
        "chosen": chosen,
        "gpus": gpus,
        "suite": of,
        "fast_0": f"{fast_p_share(of, 0.0)[0]:.0%}",
        "chart": both(shown, partial(fast_p_chart, curves)) if of.timed else None,
        "thresholds": [(name(c.baseline), _shares(of, c.baseline)) for c in curves],
        "means": [line for b in (FASTEST, *of.baselines) if (line := _mean_line(of, b))],
        "baselines": [name(b) for b in of.baselines],
        "lines": [_task_line(m, of) for m in materials],
        "command": shlex.join(["optimize", "report", *run_ids, "--suite", "-o", "suite.html"]),
        "dates": _dates([m.trajectory for m in materials]),
    }
    return render("suite.html.j2", shown, version, values)


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
        found.append(f"Geometric mean of the speed-up over the fastest baseline: {_words(overall)}.")
    if of.untimed and timed:
        verb = "was" if len(of.untimed) == 1 else "were"
        found.append(f"{words.plural(len(of.untimed), 'right kernel')} {verb} not timed.")
    if of.doubted:
        found.append(f"Verified again, the best kernel of {_tasks(of.doubted)} did not hold; it counts as unknown.")
    if of.none:
        found.append(f"Nothing was accepted for {_tasks(of.none)}; such {of.unit}s count as not faster.")
    return found


def _tasks(materials: Sequence[Material]) -> str:
    return ", ".join(m.trajectory.run.task for m in materials[:6]) + (", …" if len(materials) > 6 else "")


def _words(m: Mean) -> str:
    spread = (
        f" [{m.low:.3f}, {m.high:.3f}]" if m.low is not None and m.high is not None else " (too few for an interval)"
    )
    return f"{m.value:.3f}x{spread}, n = {m.n}"


def _shares(of: Suite, baseline: str) -> list[str]:
    return [_share(fast_p_share(of, p, baseline)) for p in THRESHOLDS]


def _share(low_high: tuple[float, float]) -> str:
    low, high = low_high
    return f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"


def _mean_line(of: Suite, baseline: str) -> MeanLine | None:
    over, kept = mean(of, baseline), mean(of, baseline, kept=True)
    if over is None or kept is None:
        return None
    return MeanLine(name(baseline), _words(over).rpartition(",")[0], over.n, _words(kept).rpartition(",")[0], kept.n)


def _task_line(m: Material, of: Suite) -> TaskLine:
    run, best = m.trajectory.run, None if m.doubt else m.best
    against = {c.baseline: interval(c) for c in ranked(best)} if best else {}
    note = "" if best and speedup_over(best) is not None else claim(m).headline
    return TaskLine(
        run.task,
        run.run_id,
        run.gpu or "no GPU",
        run.author,
        best.status if best else None,
        words.timing(timing) if best and (timing := timing_of(best)) else "",
        tuple(against.get(b, "") for b in of.baselines),
        f"{best.sol_fraction:.0%}" if best and finite(best.sol_fraction) is not None else "",
        f"{best.coverage:.0%}" if best and finite(best.coverage) is not None else "",
        (best.tier or "") if best else "",
        f"{len(m.trajectory.attempts)} ({failed(m)} failed)",
        note,
        m.doubt is not None,
    )


def _dates(runs: Sequence[Trajectory]) -> str:
    moments = sorted(run.run.at for run in runs)
    return f"{moment(moments[0])} to {moment(moments[-1])}" if moments else ""
