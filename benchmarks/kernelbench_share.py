"""For how many problems of KernelBench the offline author's first candidates trace, compile and are right, on a CPU.

    python -m benchmarks.kernelbench_share --kernelbench DIR --out share.jsonl
    python -m benchmarks.kernelbench_share --kernelbench DIR --out share.jsonl --again      # those without `checked`
    python -m benchmarks.kernelbench_share --out share.jsonl --report                       # only print

DIR is a checkout of github.com/ScalingIntelligence/KernelBench; nothing of it is part of this repository. Each problem
is a line of JSON in the file, written when it ends, so that a run goes on where it was; of two lines for one problem
the later counts. Its own sizes are traced and compiled for the target; what is replayed and compared with float64 is
the smaller case that the judge makes of it. No time is measured here: there is no GPU.
"""

import argparse
import contextlib
import json
import random
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.authors.base import Proposal
from agent.authors.offline.author import OfflineAuthor, through
from agent.compose.lowering import Lowering
from tools import machine as machines
from tools.bench import CpuBench
from tools.codec import Json, decode, encode
from tools.errors import KerneltuneError, TaskError
from tools.gpus import DEFAULT_ARCH, arch_number
from tools.judge.protocol import Open, Opened
from tools.machine import Machine
from tools.spec import TaskSpec
from tools.task import find_task
from tools.update import Update, UpdateLimits, Updater
from tools.verdict import Status, Verdict
from tools.workers import Worker

LEVELS = ("level1", "level2")
STAGES = ("described", "proposed", "traced", "compiled", "checked")
OTHER_SETTING = "another setting"
PROPOSALS = 12  # more than any task has sketches, so that the first of each kind is among them


@dataclass(frozen=True)
class Limits:
    """Seconds for one problem with all its attempts, and how many attempts."""

    problem_s: float = 90.0
    attempts: int = 2


class AsItComes(Lowering):
    """Only Inductor's kernels as they come: its other settings are the same kernels launched otherwise."""

    def call(self, body: dict[str, Json], timeout_s: float) -> dict[str, Json]:
        """The same for a request without settings; a refusal for others."""
        return {"error": OTHER_SETTING} if body["overrides"].get("config") else super().call(body, timeout_s)


class Deadline:
    """Ends the workers of one problem when its time is up; whoever waits for one of them is told that it died."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self._workers: list[Worker] = []
        self._timer = threading.Timer(seconds, self._kill)
        self._timer.daemon = True

    @property
    def left_s(self) -> float:
        """Seconds that remain; at least a tenth, so that a call with it is a call."""
        return max(0.1, self._end_s - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self._end_s

    def of(self, new: Callable[[], Worker]) -> Callable[[], Worker]:
        """The same factory; what it makes ends with the time."""

        def make() -> Worker:
            worker = new()
            self._workers.append(worker)
            if self.over:
                worker.kill()
            return worker

        return make

    def _kill(self) -> None:
        for worker in self._workers:
            worker.kill()

    def __enter__(self) -> "Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def tried(machine: Machine, lowering: Lowering, path: Path, limits: Limits) -> dict[str, Json]:
    """One problem, from its file to the verdicts of the first candidates, as the line to be stored."""
    started = time.perf_counter()
    line: dict[str, Any] = {"problem": f"{path.parent.name}/{path.stem}", "stage": "", "cause": "", "attempts": []}
    with contextlib.ExitStack() as stack:
        deadline = stack.enter_context(Deadline(limits.problem_s))
        desk = stack.enter_context(deadline.of(lambda: machine.trusted("tools.judge.desk:main"))())
        try:
            task = _described(desk, path, deadline)
            line |= {"stage": "described", "cases": [c.name for c in task.cases if c.runs_on_cpu]}
            line["described_s"] = round(time.perf_counter() - started, 1)
            proposals, line["problems"] = _proposed(lowering, task, deadline)
            line["sketches"] = [p.params["sketch"] for p in proposals]
            line["proposed_s"] = round(time.perf_counter() - started, 1)
            _try(machine, task, desk, deadline, line, _first(proposals, limits.attempts))
        except KerneltuneError as error:
            where = line["stage"] or "reading"
            why = f"more than {limits.problem_s:g} s" if deadline.over else f"{type(error).__name__}: {error}"
            line["cause"] = f"after {where}: {why}"
    line["seconds"] = round(time.perf_counter() - started, 1)
    return line


def _described(desk: Worker, path: Path, deadline: Deadline) -> TaskSpec:
    body = desk.call(encode(Open(path.stem, str(find_task(str(path)).path))), timeout_s=deadline.left_s).body
    opened = decode(Opened, body)
    if opened.task is None:
        raise TaskError(opened.problem or "cannot be used")
    return opened.task


def _proposed(lowering: Lowering, task: TaskSpec, deadline: Deadline) -> tuple[list[Proposal], list[str]]:
    author = OfflineAuthor(through(lambda body: lowering.call(body, deadline.left_s)), arch=arch_number(DEFAULT_ARCH))
    proposals = author.propose(task, [], PROPOSALS)
    return proposals, [problem for problem in author.problems if OTHER_SETTING not in problem]


def _try(
    machine: Machine,
    task: TaskSpec,
    desk: Worker,
    deadline: Deadline,
    line: dict[str, Any],
    proposals: Sequence[Proposal],
) -> None:
    """Judge the proposals up to the first that is right; `line` gets what came of each, and the best stage."""
    if not proposals:
        line["cause"] = (line["problems"] or ["no expert fits, and Inductor adds nothing"])[0]
        return
    line["stage"] = "proposed"
    for proposal in proposals:
        done = _judged(machine, task, desk, deadline, proposal)
        line["attempts"].append(done)
        line["stage"] = max(line["stage"], done["stage"], key=STAGES.index)
        if done["stage"] == "checked":
            return
    line["cause"] = "; ".join(dict.fromkeys(f"{a['status']}: {a['detail']}" for a in line["attempts"]))


def _first(proposals: Sequence[Proposal], count: int) -> list[Proposal]:
    """Inductor's first and the experts' first, then what further sketches begin with."""
    kinds: dict[bool, Proposal] = {}
    sketches: dict[Json, Proposal] = {}
    for proposal in proposals:
        kinds.setdefault(str(proposal.params["sketch"]).startswith("inductor"), proposal)
        sketches.setdefault(proposal.params["sketch"], proposal)
    chosen = list(kinds.values())
    return [*chosen, *(p for p in sketches.values() if p not in chosen)][:count]


def _judged(machine: Machine, task: TaskSpec, desk: Worker, deadline: Deadline, proposal: Proposal) -> dict[str, Json]:
    started = time.perf_counter()
    limits = UpdateLimits(trace_s=deadline.left_s, compile_s=deadline.left_s, max_variants=4)
    updater = Updater(task, DEFAULT_ARCH, deadline.of(machine.tracer), deadline.of(machine.compiler), limits)
    updater.compile_cases = [task.main.name]
    update = updater.update(proposal.source)
    bench = CpuBench(task, desk, deadline.of(machine.interpreter), case_timeout_s=deadline.left_s)
    verdict = update.failure or bench.bench(update)
    return {
        "sketch": proposal.params["sketch"],
        "stage": _stage(update, verdict),
        "status": verdict.status.value,
        "detail": verdict.detail.strip().partition("\n")[0][:400],
        "seconds": [round(s, 1) for s in (update.trace_s, update.compile_s, time.perf_counter() - started)],
        "library": list(dict.fromkeys(update.main_plan.library_ops)) if update.main_plan else [],
        "source": proposal.source,
    }


def _stage(update: Update, verdict: Verdict) -> str:
    if not update.failure:
        return "checked" if verdict.status is Status.CHECKED else "compiled"
    return "traced" if update.plans and verdict.status is not Status.REJECTED else "proposed"


def problems(folder: Path) -> list[Path]:
    """The files of levels 1 and 2, shuffled always alike: what is done by then is a fair sample."""
    found = [path for level in LEVELS for path in (folder / "KernelBench" / level).glob("*.py")]
    found.sort(key=lambda p: (p.parent.name, int(p.stem.partition("_")[0])))
    return random.Random(0).sample(found, len(found))


def stored(out: Path) -> dict[str, dict[str, Any]]:
    """The last complete line of each problem; a line cut off by a kill is passed over."""
    found: dict[str, dict[str, Any]] = {}
    for text in out.read_text().splitlines() if out.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            line = json.loads(text)
            found[line["problem"]] = line
    return found


def run(paths: Iterable[Path], out: Path, limits: Limits) -> None:
    """Try each problem and append its line."""
    with machines.started() as machine, contextlib.closing(AsItComes(machine)) as lowering, out.open("a") as file:
        for path in paths:
            line = tried(machine, lowering, path, limits)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(
                f"{line['stage'] or 'unreadable':10} {line['seconds']:5.1f} s  {line['problem']}  {line['cause'][:110]}"
            )
            sys.stdout.flush()


def report(lines: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The shares and the failures by cause."""
    for level in (*LEVELS, ""):
        own = [line for name, line in lines.items() if name.startswith(level)]
        if own:
            reached = Counter(stage for line in own for stage in STAGES[: STAGES.index(line["stage"] or STAGES[0]) + 1])
            shares = ", ".join(f"{reached[stage]} {stage}" for stage in STAGES[1:])
            yield f"{level or 'both':6} {len(own)} problems: {shares}"
    causes: dict[str, list[str]] = defaultdict(list)
    for name, line in lines.items():
        if line["stage"] != "checked":
            causes[_kind(line["cause"])].append(name)
    for cause, names in sorted(causes.items(), key=lambda item: -len(item[1])):
        yield f"{len(names):4}  {cause}"
        yield "      " + ", ".join(re.sub(r"level(\d)/(\d+)_.*", r"\1/\2", name) for name in names)


def _kind(cause: str) -> str:
    """A cause without the numbers and names that are this problem's own."""
    return re.sub(r"\d[\d.,e+-]*", "#", cause)[:160]


def main() -> int:
    """Try what has not been tried, print the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, metavar="DIR", help="a checkout of KernelBench")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="lines of JSON, one a problem")
    parser.add_argument("--only", metavar="REGEX", default="", help="problems whose level/name it finds")
    parser.add_argument("--seconds", type=float, default=Limits.problem_s, help="for one problem")
    parser.add_argument("--attempts", type=int, default=Limits.attempts)
    parser.add_argument("--again", action="store_true", help="try those again that are not `checked`")
    parser.add_argument("--report", action="store_true", help="try nothing, print what is stored")
    given = parser.parse_args()
    if not given.report:
        if given.kernelbench is None:
            parser.error("--kernelbench DIR is needed")
        done = {n for n, line in stored(given.out).items() if line["stage"] == "checked" or not given.again}
        wanted = [p for p in problems(given.kernelbench) if f"{p.parent.name}/{p.stem}" not in done]
        wanted = [p for p in wanted if re.search(given.only, f"{p.parent.name}/{p.stem}")]
        run(wanted, given.out, Limits(given.seconds, given.attempts))
    print(*report(stored(given.out)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
