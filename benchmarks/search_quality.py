"""How many attempts the offline author's search needs, replayed on landscapes without a GPU: simulated, never times.

    python -m benchmarks.search_quality                                  # made-up landscapes over real sketches' spaces
    python -m benchmarks.search_quality --seeds 40 --tasks softmax,matmul_bf16 --width 8
    python -m benchmarks.search_quality --recorded FOLDER                # landscapes that a GPU measured, *.json

The author, the loop, the workbench and the tiers are the product's; only the updater and the bench are replaced, by a
landscape with noise. Told are the attempts until one is within 2 % of the optimum of all points, how far from it the
run's answer is in the end, and the judge's seconds, from what each tier takes on an H200.
"""

import argparse
import itertools
import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent.attempt import Attempt, Limits, Proposal, Tiers, search_tiers
from agent.authors.offline.author import OfflineAuthor
from agent.authors.offline.library import experts
from agent.authors.offline.sketch import CannotLower, Sketch
from agent.loop import Run, optimize
from agent.tracker import AttemptTracker
from benchmarks.landscapes import MadeUp, Point, Recorded
from tools.codec import Json
from tools.judge.reference import describe, expanded
from tools.spec import TaskSpec
from tools.task import find_task
from tools.tooling import Tools
from tools.update import Update
from tools.verdict import KernelReport, Status, Tier, Timing, Verdict

TASKS = (
    "softmax", "rms_norm", "row_sum", "cross_entropy", "swiglu", "group_norm", "matmul_bf16", "skinny_matmul",
    "causal_attention", "transpose",
)  # fmt: skip
JUDGE_S: dict[Tier, float] = {"screened": 0.35, "judged": 3.3, "confirmed": 10.6}  # on an H200, docs/benchmarks.md
NOISE: dict[Tier, float] = {"screened": 0.003, "judged": 0.001, "confirmed": 0.0005}
NEAR = 1.02


class Landscape(Protocol):
    """Where each point leads."""

    task: str

    def point(self, sketch: str, params: Mapping[str, int]) -> Point:
        """Without noise."""
        ...

    def optimum_us(self, spaces: Mapping[str, Sequence[Mapping[str, int]]]) -> float:
        """The fastest of all points."""
        ...


@dataclass
class Watched:
    """The author, and what it meant by each source."""

    author: OfflineAuthor
    name: str = "offline"
    meant: dict[str, dict[str, Json]] = field(default_factory=dict)

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """What the author proposes."""
        found = self.author.propose(task, history, width)
        self.meant |= {p.source: p.params for p in found}
        return found


@dataclass(frozen=True)
class SimulatedUpdate(Update):
    """An update that knows its point instead of plans."""

    point: Point = field(default_factory=lambda: Point(Status.CORRECT))

    @property
    def kernels(self) -> tuple[KernelReport, ...]:
        """As the compiler would report them."""
        p = self.point
        return (KernelReport("k", p.registers, p.spill_bytes, 0, 0, p.shared_bytes, 4, 1, 0.5, ""),)


@dataclass
class Simulator:
    """Updater and bench of a landscape."""

    landscape: Landscape
    author: Watched
    noise: random.Random
    asked: list[Tier] = field(default_factory=list)

    def update(self, source: str, told: object = None) -> Update:
        """What compiling would say."""
        params = self.author.meant[source]
        values = {n: v for n, v in params.items() if isinstance(v, int)}
        point = self.landscape.point(str(params["sketch"]), values)
        failed = point.status is Status.COMPILE_FAILED
        failure = Verdict(point.status, point.detail) if failed else None
        return SimulatedUpdate(failure=failure, point=point)

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """What measuring would say."""
        assert isinstance(update, SimulatedUpdate)
        self.asked.append(tier)
        if update.point.median_us is None:
            return Verdict(update.point.status, "made to fail")
        us = update.point.median_us * math.exp(self.noise.gauss(0, NOISE[tier]))
        width = 2 * NOISE[tier] * us
        return Verdict(Status.CORRECT, "", timing=Timing(us, us - width, us + width, 1, 1), tier=tier)


@dataclass(frozen=True)
class Replayed:
    """One run. `near_at`: the attempt that was the first within 2 % of the optimum, None for none; `excess_at`: by how
    much the best of so many attempts is above it, `excess`: the run's answer; `failed`: the share of attempts that did;
    `judge_s`: of the whole run, with its end."""

    near_at: int | None
    excess_at: dict[int, float]
    excess: float
    failed: float
    judge_s: float


def replay(landscape: Landscape, task: TaskSpec, spaces: Mapping[str, Any], given: argparse.Namespace) -> Replayed:
    """One run of the product's search."""
    author = Watched(OfflineAuthor(_no_inductor, 90, given.seed))
    simulator = Simulator(landscape, author, random.Random(f"{landscape.task}/{given.seed}"))
    tools = Tools(simulator, simulator, "timing")  # type: ignore[arg-type]
    bench = AttemptTracker("r", task, tools, lambda _: None, tiers=tiers())
    optimize(Run(bench, author, Limits(given.attempts), given.width))
    best_us = landscape.optimum_us(spaces)
    true = [_true_us(landscape, a) for a in sorted(bench.attempts, key=lambda a: a.number)]
    near = next((i + 1 for i, us in enumerate(true) if us <= NEAR * best_us), None)
    marks = {n: min(true[:n]) / best_us - 1 for n in (12, 24, 60, 120, 240) if n <= given.attempts}
    answer = _true_us(landscape, bench.best) if bench.best else math.inf
    failed = sum(math.isinf(us) for us in true) / len(true)
    return Replayed(near, marks, answer / best_us - 1, failed, sum(JUDGE_S[t] for t in simulator.asked))


def tiers() -> Tiers:
    """As the product judges a search on a GPU."""
    return search_tiers(gpu=True)


def _no_inductor(source: str, overrides: dict[str, Json], arch: int) -> list[str]:
    raise CannotLower("only experts here")


def _true_us(landscape: Landscape, attempt: Attempt) -> float:
    params = attempt.proposal.params
    values = {n: v for n, v in params.items() if isinstance(v, int)}
    us = landscape.point(str(params["sketch"]), values).median_us
    return math.inf if us is None else us


def spaces_of(sketches: Sequence[Sketch]) -> dict[str, list[dict[str, int]]]:
    """Every point of every sketch."""
    return {
        s.name: [dict(zip(s.space, values, strict=True)) | {} for values in itertools.product(*s.space.values())]
        for s in sketches
    }


def described(name: str) -> TaskSpec:
    """A built-in task as data."""
    return describe(expanded(find_task(name)))


def quantile(values: Sequence[float], share: float) -> float:
    """Of all runs; infinite where fewer came so far."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, math.ceil(share * len(ranked)) - 1)]


def summary(name: str, runs: Sequence[Replayed]) -> dict[str, Json]:
    """The figures of one row."""
    near = [math.inf if r.near_at is None else r.near_at for r in runs]
    row: dict[str, Json] = {
        "landscapes": name, "runs": len(runs), "reached": sum(not math.isinf(n) for n in near) / len(runs),
        "near_median": _finite(quantile(near, 0.5)), "near_p90": _finite(quantile(near, 0.9)),
        "failed": statistics.mean(r.failed for r in runs),
        "answer_excess": statistics.mean(r.excess for r in runs), "judge_s": statistics.mean(r.judge_s for r in runs),
    }  # fmt: skip
    return row | {f"excess_{n}": statistics.mean(r.excess_at[n] for r in runs) for n in runs[0].excess_at}


def _finite(value: float) -> Json:
    return None if math.isinf(value) else int(value)


def shown(row: Mapping[str, Any]) -> str:
    """A row of a Markdown table."""
    marks = " | ".join(f"{v:.1%}" for k, v in row.items() if k.startswith("excess_"))
    never = f"> {row['attempts']}" if "attempts" in row else "never"
    near = [str(row[k] if row[k] is not None else never) for k in ("near_median", "near_p90")]
    return (
        f"| {row['landscapes']} | {row['runs']} | {row['reached']:.0%} | {near[0]} / {near[1]} | {marks} "
        f"| {row['answer_excess']:.2%} | {row['failed']:.0%} | {row['judge_s']:.0f} |"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0, help="the model was fitted by eye to seeds 0 to 7")
    parser.add_argument("--attempts", type=int, default=120)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--recorded", type=Path, help="a folder of measured landscapes instead of made-up ones")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    everything: list[Replayed] = []
    for name, landscapes, task, spaces in chosen(given):
        runs = []
        for seed, landscape in enumerate(landscapes, given.first_seed):
            runs.append(replay(landscape, task, spaces, argparse.Namespace(**{**vars(given), "seed": seed})))
        everything += runs
        print_row(summary(name, runs) | {"attempts": given.attempts}, as_json=given.json)
    print_row(summary("all", everything) | {"attempts": given.attempts}, as_json=given.json)


def print_row(row: dict[str, Json], *, as_json: bool) -> None:
    """One line."""
    print(json.dumps(row) if as_json else shown(row), flush=True)


Chosen = tuple[str, list[Landscape], TaskSpec, dict[str, list[dict[str, int]]]]


def _measured(recorded: Recorded, seeds: int) -> Chosen:
    task = described(recorded.task)
    spaces = spaces_of([s for s in experts(task) if s.name in recorded.sketches])
    return recorded.task, [recorded] * seeds, task, spaces


def chosen(given: argparse.Namespace) -> list[Chosen]:
    """Name, landscapes by seed, the task and its spaces."""
    if given.recorded:
        return [_measured(Recorded(path), given.seeds) for path in sorted(given.recorded.glob("*.json"))]
    found: list[Chosen] = []
    for name in given.tasks.split(","):
        task = described(name)
        sketches = experts(task)
        made: list[Landscape] = [MadeUp(name, sketches, given.first_seed + n) for n in range(given.seeds)]
        found.append((name, made, task, spaces_of(sketches)))
    return found


if __name__ == "__main__":
    main()
