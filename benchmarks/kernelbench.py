"""For how many problems of KernelBench the offline author's first candidates are right, and faster than PyTorch.

    python -m benchmarks.kernelbench --kernelbench DIR --out share.jsonl --gpus 0,1 --deadline 570
    python -m benchmarks.kernelbench --kernelbench DIR --out share.jsonl --gpus 0,1 --again    # what is open
    python -m benchmarks.kernelbench --kernelbench DIR --out full.jsonl --tier judged --gpu-memory-gib 74.5
    python -m benchmarks.kernelbench --out share.jsonl --report                                # only print
    python -m benchmarks.kernelbench --out here.jsonl there.jsonl --report                     # of several machines
    python -m benchmarks.kernelbench --kernelbench benchmarks/aside --out aside.jsonl --tier judged  # 40 of our own

DIR is a checkout of github.com/ScalingIntelligence/KernelBench, of which nothing is part of this repository, or another
folder of levels: `benchmarks/aside` holds 40 problems that nothing is tuned on. Each problem
is a line of JSON in the file, written when it ends, so that the same command goes on where it was, on another machine,
too; of two lines for one problem the later counts. Further files are only read: what they hold is done, too, and the
report says of which build, GPU and day the lines are.

Each GPU has a worker, which judges one problem after the other against eager and torch.compile; beside that it
describes, lowers, traces and compiles the next ones. Candidates are screened, several of a problem; with `--tier
judged` or `confirmed` the fastest is then checked in full and, confirmed, timed again in other processes. Without a GPU
a smaller case that the judge makes of a problem is replayed on the CPU and compared with float64: `checked`, and no
time.
"""

import argparse
import contextlib
import functools
import json
import math
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean, median
from typing import Any, Protocol, TypeVar, get_args

from benchmarks.gpu_fleet import (
    Answer,
    Fleet,
    GpuWorker,
    More,
    Request,
    Step,
    ended_of_itself,
    gpus_of,
    names_of,
    served,
)
from kerneltune.agent.attempt import Proposal, point_of
from kerneltune.agent.authors.search.author import OfflineAuthor, through
from kerneltune.agent.commands.session import LOWER_TIMEOUT_S, Lowering, open_task
from kerneltune.tools.backends import gpu_info, gpu_sampler
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.bench import CPU_JUDGE, EARLY_JUDGE, CpuBench, GpuBench, waiting_judge
from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.workers import Machine, Worker
from kerneltune.tools.schema.codec import Json, decode, encode
from kerneltune.tools.schema.errors import GpuLost, KerneltuneError, TaskError, Unfit
from kerneltune.tools.schema.gpus import DEFAULT_ARCH, arch_number
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import NOT_IN_FULL, Status, Tier, Verdict, versions
from kerneltune.tools.task.load import TaskFile, find_task
from kerneltune.tools.update import Update, UpdateLimits, Updater

Line = dict[str, Any]
LEVELS = ("level1", "level2", "level3", "level4")
STAGES = ("described", "proposed", "traced", "compiled", "checked", "correct")
RIGHT = ("checked", "correct")  # without a GPU; with one
TIERS: tuple[Tier, ...] = get_args(Tier)  # each more thorough than the one before


def name_of(path: Path) -> str:
    """ "level1/19_ReLU": what a problem is called in the lines."""
    return f"{path.parent.name}/{path.stem}"


def problems(folder: Path, only: str = "*", levels: Sequence[str] = LEVELS[:2]) -> list[Path]:
    """The files of these levels, shuffled always alike: what is done by then is a fair sample. `only`: globs between
    commas; what fits the first comes first. `folder`: of the levels, or a checkout with the folder KernelBench."""
    within = folder / "KernelBench" if (folder / "KernelBench").is_dir() else folder
    found = [path for level in levels for path in (within / level).glob("*.py")]
    found.sort(key=lambda p: (p.parent.name, int(p.stem.partition("_")[0])))
    shuffled = random.Random(0).sample(found, len(found))
    fitting = (path for glob in names_of(only) for path in shuffled if fnmatchcase(name_of(path), glob))
    return list(dict.fromkeys(fitting))


def new_line(name: str, cause: str = "") -> Line:
    """Of a problem of which nothing is known yet, but perhaps why not."""
    return {"problem": name, "stage": "", "cause": cause, "attempts": []}


def stored(*outs: Path) -> dict[str, Line]:
    """The last complete line of each problem; a line cut off by a kill is passed over."""
    found: list[Line] = []
    for text in [text for out in outs if out.exists() for text in out.read_text().splitlines()]:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(text))
    return {line["problem"]: line for line in sorted(found, key=lambda line: str(line.get("at", "")))}


@functools.cache
def build() -> str:
    """The version of kerneltune, and where this is a checkout that git knows, its commit."""
    version = versions()["kerneltune"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
        return f"{version} at {subprocess.run(asked, capture_output=True, check=True, text=True).stdout.strip()}"
    return version


class Lines:
    """The file, written to by several threads; a line is there as soon as its problem has ended."""

    def __init__(self, out: Path) -> None:
        self._out, self._lock = out, threading.Lock()
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and (text := out.read_bytes()) and not text.endswith(b"\n"):
            out.write_bytes(text + b"\n")  # the rest of a line that a kill cut off must not spoil the next

    def add(self, line: Line) -> None:
        """Append it, with what judged it and when."""
        line = line | {"build": build(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with self._lock, self._out.open("a") as file:
            file.write(json.dumps(line) + "\n")


NOT_SLOWER = 0.98
_HEAD = ["level", "tried", "candidate", "traces", "compiles"]
_TIMED_HEAD = [
    "beats eager",
    "beats torch.compile",
    f"at least {NOT_SLOWER} of torch.compile",
    "at least the faster baseline",
    "geometric mean",
    "without algebraic",
]
_PARTS = ("prepared", "freed", "waited", "open", "load", "judge", "end", "all")


def line_text(line: Line) -> str:
    """One problem: what came of it, and the seconds of its parts."""
    best = best_of(line)
    over = [f"{c[0]:.3f}x {name}" for name, c in best["over"].items()] if best else []
    seconds = ", ".join(f"{name} {line['seconds'][name]:.1f}" for name in _PARTS if name in line["seconds"])
    words = [line["stage"] or "unreadable", line["problem"], *over, f"{len(line['attempts'])} judged", seconds]
    if peak := peak_gb(line):
        words.append(f"at most {peak:.1f} GB")
    if best and (why := not_in_full(line)):
        words.append(why)
    return "  ".join([*words, line["cause"][:160]]).rstrip()


def report(lines: Mapping[str, Line]) -> Iterator[str]:
    """The shares by level, the failures by cause, and what was measured."""
    if not lines:
        yield "Nothing is stored."
        return
    is_timed = any(best_of(line) for line in lines.values())
    yield from _table(lines, is_timed=is_timed)
    if any(attempt.get("tier") in TIERS[1:] for line in lines.values() for attempt in line["attempts"]):
        yield from _judged_in_full(lines)
    yield from _listed("Algebraic, by rewrite", lines, rewrites_of)
    yield from _listed("Not right, by cause", lines, lambda line: [] if line["stage"] in RIGHT else [line["cause"]])
    if is_timed:
        yield from _listed("Baselines, notes", lines, lambda line: line.get("notes", []))
    yield from ("", *_origins(lines), "", _measured(list(lines.values())))


def _origins(lines: Mapping[str, Line]) -> Iterator[str]:
    """Of which build, GPU and day the lines are."""
    yield _row(["build", "GPU", "day", "tried", "right"])
    yield _row(["---"] * 5)
    tried, right = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for line in lines.values():
        origin: tuple[str, ...] = (
            line.get("build") or "unknown",
            line.get("gpu") or "none",
            line.get("at", "unknown")[:10],
        )
        tried[origin] += 1
        right[origin] += line["stage"] in RIGHT
    for origin, count in sorted(tried.items()):
        yield _row([*origin, str(count), str(right[origin])])


def best_of(line: Line) -> Line | None:
    """The fastest of the candidates that are right and timed; of those judged most thoroughly, where some were."""
    timed = [attempt for attempt in line["attempts"] if attempt.get("us")]
    return min(timed, key=lambda a: (-TIERS.index(a.get("tier", TIERS[0])), float(a["us"][0])), default=None)


def rewrites_of(line: Line) -> list[str]:
    """The rewrites of the formula that the fastest candidate rests on: a fast answer to such a problem is not a fast
    kernel."""
    return list((best_of(line) or _right(line)).get("algebraic", []))


def not_in_full(line: Line) -> str:
    """Why a problem has no candidate that is right, timed, and checked with nothing left out; "" where it has one."""
    best = best_of(line)
    if best is None:
        return str(line["cause"]) or "right, not timed"
    return "; ".join(f"{why}: {', '.join(names)}" for why, names in (best.get(NOT_IN_FULL) or {}).items())


def peak_gb(line: Line) -> float:
    """The most memory of the GPU, in 10^9 bytes, that judging one of its candidates took; 0 where none was judged."""
    return max((float(attempt.get("peak_bytes") or 0) for attempt in line["attempts"]), default=0.0) / 1e9


def _judged_in_full(lines: Mapping[str, Line]) -> Iterator[str]:
    """How many problems were, each of the others with the reason, and the memory that they took."""
    others = {name: why for name, line in lines.items() if (why := not_in_full(line) or _only_screened(line))}
    yield from ("", f"Judged in full: {len(lines) - len(others)} of {len(lines)}. The others:", "")
    yield from (f"- {name}: {why[:400]}" for name, why in sorted(others.items()))
    if peaks := sorted((peak, name) for name, line in lines.items() if (peak := peak_gb(line))):
        tenth = peaks[len(peaks) * 9 // 10][0]
        yield ""
        yield (
            f"Memory of the GPU at most, judge and runner together: median {median(p for p, _ in peaks):.1f} GB, 90 % "
            f"within {tenth:.1f} GB, most {peaks[-1][0]:.1f} GB ({peaks[-1][1]})."
        )


def _only_screened(line: Line) -> str:
    best = best_of(line)
    return "" if best is None or best["tier"] in TIERS[1:] else f"screened alone; {line.get('cut') or 'no time left'}"


def _table(lines: Mapping[str, Line], *, is_timed: bool) -> Iterator[str]:
    head = [*_HEAD, f"`{RIGHT[is_timed]}`", *(_TIMED_HEAD if is_timed else [])]
    yield _row(head)
    yield _row(["---"] * len(head))
    for level in (*LEVELS, ""):
        own = [line for name, line in lines.items() if name.startswith(level)]
        if own:
            yield _row([level or "all", str(len(own)), *_reached(own), *(_compared(own) if is_timed else [])])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _reached(lines: Sequence[Line]) -> list[str]:
    ranks = Counter(STAGES.index(line["stage"] or STAGES[0]) for line in lines)
    return [str(sum(n for rank, n in ranks.items() if rank >= STAGES.index(stage))) for stage in STAGES[1:5]]


def _compared(lines: Sequence[Line]) -> list[str]:
    """How many of those that have the baseline beat it, and, of those that have both, by how much the faster one is."""
    found = [best["over"] for line in lines if (best := best_of(line))]
    plain = [best["over"] for line in lines if (best := best_of(line)) and not rewrites_of(line)]
    eager, compiled = ([over[name] for over in found if name in over] for name in ("eager", "compile"))
    beats = [f"{sum(low > 1 for _, low, _ in arms)} of {len(arms)}" for arms in (eager, compiled)]
    kept = f"{sum(speedup >= NOT_SLOWER for speedup, _, _ in compiled)} of {len(compiled)}"
    both = _over_faster(found)
    ahead = f"{sum(speedup >= 1 for speedup in both)} of {len(both)}"
    return [*beats, kept, ahead, _mean(both), _mean(_over_faster(plain))]


def _over_faster(found: Sequence[Mapping[str, Any]]) -> list[float]:
    """The speed-ups over the faster baseline, of those that have both."""
    return [min(over["eager"][0], over["compile"][0]) for over in found if {"eager", "compile"} <= over.keys()]


def _mean(speedups: Sequence[float]) -> str:
    return f"{math.exp(fmean(map(math.log, speedups))):.3f}x ({len(speedups)})" if speedups else ""


def _listed(title: str, lines: Mapping[str, Line], words_of: Callable[[Line], Sequence[str]]) -> Iterator[str]:
    """Problems by what is said of them, the most frequent first."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name, line in lines.items():
        for words in dict.fromkeys(map(kind_of, words_of(line))):
            kinds[words].append(re.sub(r"level(\d)/(\d+)_.*", r"\1/\2", name))
    if kinds:
        yield from ("", f"{title}:", "")
    for words, names in sorted(kinds.items(), key=lambda item: -len(item[1])):
        yield f"- {len(names)}: {words}: {', '.join(names)}"


def kind_of(cause: str) -> str:
    """A cause without the numbers and names that are this problem's own."""
    return re.sub(r"\d[\d.,e+-]*", "#", " ".join(cause.split()))[:160]


def _measured(lines: Sequence[Line]) -> str:
    """Where, by what, how thoroughly, and what a problem took."""
    attempts = [attempt for line in lines for attempt in line["attempts"]]
    gpus = _unique(line.get("gpu") or "no GPU: checked on small cases, nothing is timed" for line in lines)
    names = ("torch", "triton", "python")
    told = _unique(", ".join(f"{n} {line['versions'][n]}" for n in names) for line in lines if "versions" in line)
    words = [*gpus, *told]
    if tiers := Counter(best["tier"] for line in lines if (best := best_of(line)) and best.get("tier")):
        most = max(len(line["attempts"]) for line in lines)
        counted = ", ".join(f"{count} {tier}" for tier, count in tiers.items())
        words.append(f"the fastest of up to {most} screened: {counted}")
    if memory := _unique(line["memory_gib"] for line in lines if line.get("memory_gib")):
        words.append(f"{'/'.join(f'{gib:g}' for gib in memory)} GiB of the GPU's memory")
    if slots := [int(a["slots"]) for a in attempts if a.get("slots")]:
        words.append(
            f"slots {min(slots)} to {max(slots)}, median {median(slots):g}; {slots.count(1)} timed in one slot"
        )
    library = sum(bool((best_of(line) or _right(line)).get("library")) for line in lines)
    words.append(f"a library does part of the work in {library} of those that are right")
    return "; ".join([*words, f"seconds of a problem, median (most): {_seconds(lines)}"]) + "."


def _right(line: Line) -> Line:
    return next((attempt for attempt in line["attempts"] if attempt["stage"] in RIGHT), {})


def _seconds(lines: Sequence[Line]) -> str:
    told = [line["seconds"] for line in lines if isinstance(line.get("seconds"), dict)]
    parts = [(name, [one[name] for one in told if name in one]) for name in _PARTS]
    return ", ".join(f"{name} {median(found):.1f} ({max(found):.1f})" for name, found in parts if found)


def _unique(words: Any) -> list[str]:
    return sorted(set(words))


OTHER_SETTING = "another setting"
PROPOSALS = 12  # more than any task has sketches, so that the first of each kind is among them
_MOST_VARIANTS = 4
Held = TypeVar("Held")


@dataclass(frozen=True)
class Limits:
    """Of one problem: seconds beside the GPU and on it; how many candidates are screened, and how many at `most`, when
    none of those is right, or none is fast and the GPU has worked on them for less than `share_s`. `tier`: how
    thoroughly the fastest of them is judged. `memory_gib`: of the GPU's; 0 for all of it."""

    prepare_s: float = 120.0
    judge_s: float = 40.0
    attempts: int = 2
    most: int = 6
    share_s: float = 12.0
    tier: Tier = "screened"
    memory_gib: float = 0.0


@dataclass(frozen=True)
class Place:
    """Where problems are judged, within which limits, and by which judge on a GPU."""

    machine: Machine
    limits: Limits
    gpu: GpuInfo | None = None
    judge: str = EARLY_JUDGE

    @property
    def arch(self) -> str:
        """What candidates are compiled for."""
        return f"sm_{self.gpu.arch}" if self.gpu else DEFAULT_ARCH

    def waiting_judge(self, task_file: TaskFile) -> contextlib.AbstractContextManager[GpuBench]:
        """A judge on the GPU, confined to a task as a run's is."""
        return waiting_judge(self.machine, self.judge, task_file=task_file)


class Deadline:
    """Ends the workers of one problem when its time is up; whoever waits for one of them is told that it died."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self._workers: list[Worker] = []
        self._lock = threading.Lock()
        self._ends: list[Callable[[], None]] = []
        self._timer = threading.Timer(seconds, self.now)
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
            with self._lock:
                self._workers = [*(w for w in self._workers if not w.exited.is_set()), worker]
            if self.over:
                worker.kill()
            return worker

        return make

    def kills(self, end: Callable[[], None]) -> None:
        """Call that, too, when the time is up."""
        self._ends.append(end)
        if self.over:
            end()

    def now(self) -> None:
        """The time is up."""
        self._end_s = min(self._end_s, time.monotonic())
        with self._lock:
            living = [worker for worker in self._workers if not worker.exited.is_set()]
        for end in (*(worker.kill for worker in living), *self._ends):
            end()

    def __enter__(self) -> "Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


class AsItComes(Lowering):
    """Only Inductor's kernels as they come: its other settings are the same kernels launched otherwise, but for the one
    with which the author puts its own products in."""

    def call(
        self, body: dict[str, Json], timeout_s: float = LOWER_TIMEOUT_S, task: TaskFile | None = None
    ) -> dict[str, Json]:
        """The same for a request without settings; a refusal for others."""
        other = body["overrides"].get("config", {}).keys() - {"layout_optimization"}
        return {"error": OTHER_SETTING} if other else super().call(body, timeout_s, task)


@dataclass(frozen=True)
class OpenedProblem:
    """A problem's file, and what the judge's desk, which knows its answers, says of it."""

    file: TaskFile
    task: TaskSpec
    desk: Worker


@dataclass(frozen=True)
class Candidate:
    """What was proposed, and what came of it but for a verdict."""

    opened: OpenedProblem
    proposal: Proposal
    update: Update
    algebraic: tuple[str, ...]  # rewrites of the formula that it rests on


_UNDER_WAY = {"": "reading", "described": "TorchInductor lowers it"}  # else candidates are made of it


class Problem:
    """From its file to its first candidates, by `prepare`, in a thread of its own; judged in another one meanwhile.
    Close it in the end, from any thread. `tell`: called when there is something to judge, or it is known why not."""

    def __init__(self, path: Path, place: Place) -> None:
        self.path, self.name, self.line = path, name_of(path), new_line(name_of(path))
        self.waiting: GpuBench | None = None  # a judge that nobody has asked anything yet
        self.ready = threading.Event()
        self._place, self._held, self._lock = place, contextlib.ExitStack(), threading.Lock()
        self._made: queue.SimpleQueue[Candidate | None] = queue.SimpleQueue()
        self._enough, self._deadline = threading.Event(), Deadline(place.limits.prepare_s)

    def prepare(self, lowering: Lowering, tell: Callable[[], None]) -> None:
        """Describe it, have it lowered, trace and compile candidates until there are enough."""
        started_s = time.monotonic()
        limit_s = self._place.limits.prepare_s
        self._deadline = Deadline(limit_s)
        with self._deadline as deadline:
            try:
                for candidate in self._candidates(lowering, deadline):
                    self.line.setdefault("prepared_s", round(time.monotonic() - started_s, 1))
                    self._made.put(candidate)
                    self._is_ready(tell)
            except KerneltuneError as error:
                late = f"more than {limit_s:g} s" if deadline.over else ""
                told = late or f"{type(error).__name__}: {error}"
                self.line["cause"] = f"{_UNDER_WAY.get(self.line['stage'], 'tracing and compiling')}: {told}"
            except Exception as error:  # noqa: BLE001  a fault of ours in one problem must not end the others
                self.line["cause"] = f"internal failure: {type(error).__name__}: {error}"
            finally:
                self.line.setdefault("prepared_s", round(time.monotonic() - started_s, 1))
                self._made.put(None)
                self._is_ready(tell)

    def candidate(self, timeout_s: float) -> Candidate | None:
        """The next one; None when there are no more, or none has come by then."""
        with contextlib.suppress(queue.Empty):
            return self._made.get(timeout=timeout_s)
        return None

    def start_judge(self) -> None:
        """Let a judge import what it needs, and make its context on the GPU, before its turn."""
        with contextlib.suppress(TaskError):
            if self._place.gpu and self.waiting is None and not self.line["cause"]:
                self.waiting = self._hold(self._place.waiting_judge(find_task(str(self.path))))

    def close(self) -> None:
        """No more candidates are wanted; whatever still runs for it ends."""
        self._enough.set()
        self._deadline.now()
        with self._lock:
            self._held.close()

    def _is_ready(self, tell: Callable[[], None]) -> None:
        if not self.ready.is_set():
            self.ready.set()
            tell()

    def _candidates(self, lowering: Lowering, deadline: Deadline) -> Iterator[Candidate]:
        opened = self._described(deadline)
        proposals, problems, rewrites = proposed(lowering, opened, self._place.arch, deadline)
        self.line |= {"problems": problems, "sketches": list(dict.fromkeys(map(_sketch_of, proposals)))}
        if not proposals and deadline.over:
            raise TaskError("it took too long")
        if not proposals:
            self.line["cause"] = (problems or ["no expert fits, and Inductor adds nothing"])[0]
            return
        self.line["stage"] = "proposed"
        for proposal in worth_trying(proposals, self._place.limits.most):
            if self._enough.is_set():
                return
            update = self._updated(opened.task, proposal, deadline)
            if deadline.over and update.failure:  # its workers were killed in the middle
                raise TaskError("it took too long")
            yield Candidate(opened, proposal, update, rewrites[_sketch_of(proposal)])

    def _described(self, deadline: Deadline) -> OpenedProblem:
        desk = self._hold(self._place.machine.task(CPU_JUDGE, [self.path]))
        file = find_task(str(self.path))
        task, *_ = open_task(desk, file, deadline.left_s)
        cases = [case.name for case in task.cases if case.runs_on_cpu or self._place.gpu]
        self.line |= {"stage": "described", "cases": cases}
        return OpenedProblem(file, task, desk)

    def _updated(self, task: TaskSpec, proposal: Proposal, deadline: Deadline) -> Update:
        machine, limits = self._place.machine, UpdateLimits(deadline.left_s, deadline.left_s, _MOST_VARIANTS)
        tracer, compiler = deadline.of(machine.tracer), deadline.of(machine.compiler)
        updater = Updater(task, self._place.arch, tracer, compiler, limits)
        if self._place.gpu is None:
            updater.compile_cases = [task.main.name]  # the small cases are interpreted, not compiled
        return updater.update(proposal.source)

    def _hold(self, manager: contextlib.AbstractContextManager[Held]) -> Held:
        """Until this is closed, or not at all when it has been."""
        with self._lock:
            if self._enough.is_set():
                raise TaskError("nobody wants it any more")
            return self._held.enter_context(manager)


def proposed(
    lowering: Lowering, opened: OpenedProblem, arch: str, deadline: Deadline
) -> tuple[list[Proposal], list[str], dict[str, tuple[str, ...]]]:
    """What the offline author would begin with, why Inductor's kernels are missing where they are, and the rewrites of
    each sketch's formula."""

    def call(body: dict[str, Json]) -> dict[str, Json]:
        if deadline.over:  # else each further lowering would begin in a new process, to be ended at once
            raise TaskError("it took too long")
        return lowering.call(body, deadline.left_s, opened.file)

    author = OfflineAuthor(through(call), arch=arch_number(arch))
    proposals = author.propose(opened.task, [], PROPOSALS)
    rewrites = {sketch.name: sketch.algebraic for sketch in author.sketches(opened.task)}
    return proposals, [problem for problem in author.problems if OTHER_SETTING not in problem], rewrites


def _sketch_of(proposal: Proposal) -> str:
    point = point_of(proposal.origin)
    assert point is not None
    return point.sketch


def worth_trying(proposals: Sequence[Proposal], count: int) -> list[Proposal]:
    """Inductor's first and the experts' first, then what further sketches begin with, then other points of them all."""
    kinds: dict[bool, Proposal] = {}
    sketches: dict[str, Proposal] = {}
    for proposal in proposals:
        kinds.setdefault(_sketch_of(proposal).startswith("inductor"), proposal)
        sketches.setdefault(_sketch_of(proposal), proposal)
    chosen = list(kinds.values())
    chosen += [p for p in sketches.values() if p not in chosen]
    return [*chosen, *(p for p in proposals if p not in chosen)][:count]


BASELINES = ("eager", "compile")
_OPENED_AT_MOST = 2  # judges for one problem: one more when one candidate has ended the first
_LEFT_OVER_BYTES = 2 << 30  # that the GPU may hold of the problem before, whose processes have ended
_FREED_WITHIN_S = 5.0


_OF_BASELINES = {"baselines_us": "baselines_us", "baselines_build_s": "build_s", "notes": "notes"}


class Bench(Protocol):
    """Judges a problem's candidates; `parts`: seconds of what it did beside that; `facts`: what it found."""

    parts: dict[str, float]
    facts: Line

    def bench(self, candidate: Candidate, tier: Tier = "screened") -> Verdict:
        """The verdict on one that compiled."""
        ...


class OnCpu:
    """In the interpreter, on the cases that are small enough. No times."""

    def __init__(self, place: Place, deadline: Deadline) -> None:
        self.parts: dict[str, float] = {}
        self.facts: Line = {}
        self._new, self._deadline = deadline.of(place.machine.interpreter), deadline

    def bench(self, candidate: Candidate, _tier: Tier = "screened") -> Verdict:
        """Replayed and compared with float64."""
        opened = candidate.opened
        self._deadline.kills(opened.desk.kill)
        bench = CpuBench(opened.task, opened.desk, self._new, case_timeout_s=self._deadline.left_s)
        return bench.bench(candidate.update)


class OnGpu:
    """By a judge of its own, which is opened for the first candidate and again when one has ended it."""

    def __init__(self, place: Place, problem: Problem, deadline: Deadline, held: contextlib.ExitStack) -> None:
        self.parts: dict[str, float] = {"open": 0.0}
        self.facts: Line = {}
        self._place, self._waiting, self._deadline, self._held = place, problem.waiting, deadline, held
        self._limit_s, self._opened = place.limits.judge_s / 2, 0  # of one baseline: the rest needs time, too
        self._judge: GpuBench | None = None

    def bench(self, candidate: Candidate, tier: Tier = "screened") -> Verdict:
        """Against both baselines. Raises TaskError when the problem does not fit, GpuLost with the judge."""
        if self._judge is None:
            self._judge = self._open(candidate.opened)
        try:
            verdict = self._judge.bench(candidate.update, tier, all_baselines=True)
        except (GpuLost, TaskError) as error:  # with its judge the process that the problem's own code runs in
            self._judge.kill()
            self._judge.close()  # with the runners, which hold memory of the GPU, too
            self._judge = None
            if self._deadline.over or self._opened >= _OPENED_AT_MOST:
                raise
            return Verdict(Status.CRASHED, str(error))
        receipt = verdict.receipt
        self.facts |= {ours: receipt[name] for name, ours in _OF_BASELINES.items() if name in receipt}
        return verdict

    def _open(self, opened: OpenedProblem) -> GpuBench:
        started_s = time.monotonic()
        self._opened += 1
        judge, self._waiting = self._waiting or self._started(opened.file), None
        self._deadline.kills(judge.kill)
        try:
            limits = self._place.limits
            judge.open(
                opened.file,
                opened.task,
                baselines=BASELINES,
                baseline_limit_s=self._limit_s,
                memory_bytes=int(limits.memory_gib * (1 << 30)),
            )
            self.parts["load"] = _since(started_s)
            found = judge.warm()
        finally:
            self.parts["open"] = round(self.parts["open"] + _since(started_s), 2)
        self.facts = {"baselines_us": dict(found.times_us), "build_s": dict(found.build_s), "notes": list(found.notes)}
        return judge

    def _started(self, task_file: TaskFile) -> GpuBench:
        return self._held.enter_context(self._place.waiting_judge(task_file))


class Judging:
    """Problems on this machine, one after the other."""

    def __init__(self, place: Place) -> None:
        self._place, self._gpu, self.limits = place, place.gpu, place.limits
        self._sampler = gpu_sampler() if place.gpu else None
        self._used_bytes = self._now_used_bytes()

    def line(self, problem: Problem) -> Line:
        """One problem up to its end, whatever that is. Closes it."""
        started_s = time.monotonic()
        used_bytes = self._freed()
        parts: dict[str, float] = {"freed": _since(started_s)}
        with contextlib.closing(problem):
            line = self._judged(problem, parts)
            closing_s = time.monotonic()
        parts["end"] = _since(closing_s)
        parts["all"] = _since(started_s)
        if used_bytes is not None:
            line["used_before_mib"] = used_bytes >> 20
        return line | {"seconds": {"prepared": line.pop("prepared_s", 0.0), **parts}}

    def _judged(self, problem: Problem, parts: dict[str, float]) -> Line:
        started_s = time.monotonic()
        attempts: list[Line] = []
        tried: list[Candidate] = []
        parts["waited"] = 0.0
        more: Line = {"attempts": attempts, "lost": False}
        with contextlib.ExitStack() as held, Deadline(self.limits.judge_s) as deadline:
            bench: Bench = OnCpu(self._place, deadline)
            if self._gpu is not None:
                bench = OnGpu(self._place, problem, deadline, held)
            try:
                while candidate := self._next(problem, attempts, self._busy_s(started_s, bench), deadline, parts):
                    problem.line["stage"] = max(problem.line["stage"], stage_of(candidate.update), key=_rank)
                    attempt = _attempt(candidate, bench)
                    if deadline.over and attempt["stage"] not in RIGHT:  # its workers were killed in the middle
                        more["cause"] = self._late(bench)
                        break
                    attempts.append(attempt)
                    tried.append(candidate)
                    if not self._goes_on(attempts, self._busy_s(started_s, bench)):
                        break
                if self._gpu is not None and self.limits.tier != "screened":
                    self._judge_in_full(tried, attempts, bench)
            except KerneltuneError as error:
                is_lost = isinstance(error, GpuLost) and not deadline.over
                more |= {"cause": self._why(error, bench, deadline), "lost": is_lost}
        parts |= bench.parts
        parts["judge"] = round(_since(started_s) - parts["waited"] - parts.get("open", 0.0), 2)
        return _line(problem, more | bench.facts)

    def _judge_in_full(self, tried: Sequence[Candidate], attempts: list[Line], bench: Bench) -> None:
        """The fastest as thoroughly as the tier says; where it does not hold, the next."""
        for number in sorted((n for n, a in enumerate(attempts) if a["us"]), key=lambda n: float(attempts[n]["us"][0])):
            attempts[number] = _attempt(tried[number], bench, self.limits.tier)
            if attempts[number]["stage"] in RIGHT:
                return

    def _busy_s(self, started_s: float, bench: Bench) -> float:
        """Seconds for which the GPU has been at a problem's candidates. Not those of opening it, of which some begin
        with a process's first imports: how many candidates are tried must not follow from that."""
        return time.monotonic() - started_s - bench.parts.get("open", 0.0)

    def _next(
        self, problem: Problem, attempts: Sequence[Line], busy_s: float, deadline: Deadline, parts: dict[str, float]
    ) -> Candidate | None:
        """The next candidate. When there is one that is right, the GPU waits no longer than for a fair share of it."""
        started_s = time.monotonic()
        is_right = any(a["stage"] in RIGHT for a in attempts)
        share_s = max(0.0, self.limits.share_s - busy_s)
        candidate = problem.candidate(min(share_s, deadline.left_s) if is_right else deadline.left_s)
        parts["waited"] = round(parts["waited"] + _since(started_s), 2)
        return candidate

    def _goes_on(self, attempts: Sequence[Line], seconds: float) -> bool:
        """Whether another candidate is worth its time."""
        right = [a for a in attempts if a["stage"] in RIGHT]
        if right and self._gpu is None:
            return False
        if len(attempts) < self.limits.attempts:
            return True
        fast = any(all(low > 1 for _, low, _ in a["over"].values()) for a in right)
        worth = not right or (not fast and seconds < self.limits.share_s)
        return worth and len(attempts) < self.limits.most

    def _why(self, error: KerneltuneError, bench: Bench, deadline: Deadline) -> str:
        if deadline.over:
            return self._late(bench)
        return str(error) if isinstance(error, TaskError) else f"{self._doing(bench)}: {type(error).__name__}: {error}"

    def _late(self, bench: Bench) -> str:
        return f"{self._doing(bench)}: more than {self.limits.judge_s:g} s"

    def _doing(self, bench: Bench) -> str:
        return "judging" if bench.facts or self._gpu is None else "opening"

    def _now_used_bytes(self) -> int | None:
        sample = self._sampler.sample() if self._sampler else None
        return sample.memory_used_bytes if sample else None

    def _freed(self) -> int | None:
        """What the GPU holds once the problem before has let go of its memory, or did not in time."""
        until_s = time.monotonic() + _FREED_WITHIN_S
        while (used := self._now_used_bytes()) is not None:
            if used <= (self._used_bytes or 0) + _LEFT_OVER_BYTES or time.monotonic() > until_s:
                return used
            time.sleep(0.05)
        return None


_JUDGE_S = ("checks_s", "phases_s", "wall_s")


def _attempt(candidate: Candidate, bench: Bench, tier: Tier = "screened") -> Line:
    started_s, update = time.monotonic(), candidate.update
    verdict = update.failure or bench.bench(candidate, tier)
    times = {c.baseline: [c.speedup, c.low, c.high] for c in verdict.comparisons}
    timing, receipt = verdict.timing, verdict.receipt
    return {
        "sketch": _sketch_of(candidate.proposal),
        "algebraic": list(candidate.algebraic),
        "stage": verdict.status.value if verdict.accepted else stage_of(update),
        "status": verdict.status.value,
        "detail": verdict.detail.strip().partition("\n")[0][:400],
        "seconds": [round(update.trace_s, 1), round(update.compile_s, 1), _since(started_s)],
        "library": list(dict.fromkeys(update.main_plan.library_ops)) if update.main_plan else [],
        "us": [timing.median_us, timing.low_us, timing.high_us] if timing else None,
        "over": times,
        "tier": verdict.tier,
        "cause": verdict.cause,
        "not_timed": verdict.not_timed,
        "pending": list(verdict.pending),
        NOT_IN_FULL: receipt.get(NOT_IN_FULL),
        "input_sets": len(verdict.cases),
        "peak_bytes": receipt.get("peak_memory_bytes"),
        "slots": receipt.get("slots"),
        "judge_s": {name: receipt[name] for name in _JUDGE_S if name in receipt},
        "coverage": verdict.coverage,
        "source": candidate.proposal.source,
    }


def stage_of(update: Update) -> str:
    """How far a candidate has come without a judge."""
    if update.failure is None:
        return "compiled"
    return "traced" if update.plans and update.failure.status is not Status.REJECTED else "proposed"


def _line(problem: Problem, more: Mapping[str, Any]) -> Line:
    """What is known of a problem: as it was prepared, and what was judged."""
    attempts = more["attempts"]
    line = {**problem.line, **more}
    line["stage"] = max([problem.line["stage"], *(a["stage"] for a in attempts)], key=_rank)
    if line["stage"] in RIGHT:
        return line | {"cause": "", "cut": more.get("cause", "")}
    told = "; ".join(dict.fromkeys(f"{a['status']}: {a['detail']}" for a in attempts))
    return line | {"cause": more.get("cause") or told or problem.line["cause"] or "no candidate came in time"}


def _rank(stage: Json) -> int:
    return STAGES.index(stage) if stage in STAGES else -1


def _since(started_s: float) -> float:
    return round(time.monotonic() - started_s, 2)


class Ahead:
    """Prepares what is wanted, in that order, `width` problems at a time. Close it in the end."""

    def __init__(self, place: Place, width: int) -> None:
        self._place = place
        self._queue: queue.SimpleQueue[Problem | None] = queue.SimpleQueue()
        self._known: dict[Path, Problem] = {}
        self._told = threading.Condition()
        self._lowerings = [AsItComes(place.machine) for _ in range(width)]
        self._threads = [threading.Thread(target=self._work, args=(one,), daemon=True) for one in self._lowerings]
        for thread in self._threads:
            thread.start()

    def want(self, paths: Sequence[Path]) -> None:
        """Begin with these, unless that is done; others are not wanted any more."""
        for path in [path for path in self._known if path not in paths]:
            self._known.pop(path).close()
        for path in paths:
            if path not in self._known:
                self._known[path] = Problem(path, self._place)
                self._queue.put(self._known[path])

    def first_ready(self) -> Path:
        """Of those that are wanted: the first that can be judged, or of which is known why not. Waits for one."""
        with self._told:
            self._told.wait_for(lambda: any(problem.ready.is_set() for problem in self._known.values()))
        self._start_next_judge()
        return next(path for path, problem in self._known.items() if problem.ready.is_set())

    def take(self, path: Path) -> Problem:
        """It, to be closed by the caller; begun now if it was not wanted before."""
        if path not in self._known:
            self.want([*self._known, path])
        problem = self._known.pop(path)
        self._start_next_judge()
        return problem

    def _start_next_judge(self) -> None:
        """For one problem only: each that waits holds 618 MiB of the GPU (H200), and with one for each of eight that
        were prepared, every problem found the memory of the one before not freed, and waited 5 s."""
        ready = (problem for problem in self._known.values() if problem.ready.is_set())
        if (following := next(ready, None)) is not None:
            following.start_judge()

    def close(self) -> None:
        """Let go of what is not done; the threads end when their workers have."""
        for _ in self._threads:
            self._queue.put(None)
        self.want([])
        for lowering in self._lowerings:
            with contextlib.suppress(OSError):
                lowering.close()

    def _work(self, lowering: AsItComes) -> None:
        while (problem := self._queue.get()) is not None:
            problem.prepare(lowering, self._tell)

    def _tell(self) -> None:
        with self._told:
            self._told.notify_all()


WORKER = (sys.executable, "-m", "benchmarks.kernelbench", "--worker")
_GRACE_S = 6.0
_LEAST_S = 12.0  # before the deadline's grace, or nothing more is begun
_START_S = 180.0
_OVERTIME_S = 45.0  # that a worker may take beyond its own limits before it is ended
_LOST_IN_A_ROW = 5  # problems by which a GPU has lost its judge: then something is wrong with the GPU
_AHEAD = 2  # problems that are prepared and wait, beside those that are being prepared


@dataclass(frozen=True)
class Plan:
    """What is asked of all problems. `width`: problems that each worker prepares at a time; `deadline`: by
    time.monotonic(), when everything has to be over."""

    out: Path
    limits: Limits = field(default_factory=Limits)
    width: int = 1
    deadline: float | None = None
    command: Sequence[str] = field(kw_only=True)
    grace_s: float = _GRACE_S


class Share:
    """One pass over the problems."""

    def __init__(self, plan: Plan, paths: Sequence[Path], gpus: Sequence[str | None]) -> None:
        self._plan, self._lines, self._lock = plan, Lines(plan.out), threading.Lock()
        self._left, self._windows = deque(paths), defaultdict[str, list[Path]](list)
        self._failed: dict[str, int] = defaultdict(int)  # by worker, in a row
        logs = plan.out.with_suffix(".logs")
        self._fleet = Fleet(plan.command, gpus, logs, self._turn, deadline=plan.deadline, grace_s=plan.grace_s)

    def run(self) -> None:
        """Until no problem is left or the deadline has come."""
        self._fleet.run()

    def stop(self) -> None:
        """End what runs, as by Ctrl-C, and start nothing more."""
        self._fleet.stop()

    def _turn(self, worker: GpuWorker) -> bool:
        """The next problem, if there is one and time for it."""
        window = self._window(worker.name)
        if not window or self._fleet.left_s() < self._plan.grace_s + _LEAST_S:
            return False
        if self._failed[worker.name] >= _LOST_IN_A_ROW:
            self._fleet.say(f"{worker.name}: given up after {_LOST_IN_A_ROW} failures in a row")
            with self._lock:
                self._left.extend(self._windows.pop(worker.name))  # for the others
            return False
        path = self._next(worker, window) if self._started(worker) else None
        if path is None:  # no problem's fault, as far as anybody knows
            self._failed[worker.name] += 1
            return not self._fleet.why_end()
        return self._judged(worker, path) if self._claimed(worker.name, path) else True

    def _window(self, name: str) -> list[Path]:
        """What this worker prepares now. When nothing is left, it takes from another that has more than it needs."""
        with self._lock:
            own = self._windows[name]
            while self._left and len(own) < self._plan.width + _AHEAD:
                own.append(self._left.popleft())
            most = max(self._windows.values(), key=len)
            if not own and len(most) > _AHEAD:
                own.append(most.pop())
            return [*own]

    def _claimed(self, name: str, path: Path) -> bool:
        """Whether it is this worker's to judge: another may have taken it meanwhile."""
        with self._lock:
            is_own = path in self._windows[name]
            self._windows[name] = [other for other in self._windows[name] if other != path]
            return is_own

    def _started(self, worker: GpuWorker) -> bool:
        if worker.runs or self._fleet.why_end():
            return worker.runs
        worker.start()
        asked = {"limits": encode(self._plan.limits), "width": self._plan.width, "needs_gpu": worker.gpu is not None}
        answer = worker.ask("start", f"{worker.name}.start", _START_S, **asked)
        self._fleet.say(f"{worker.name}: started after {answer.seconds:.1f} s {answer.why}".rstrip())
        return answer.exit_code == 0

    def _next(self, worker: GpuWorker, window: Sequence[Path]) -> Path | None:
        limit_s = self._plan.limits.prepare_s + _OVERTIME_S
        answer = worker.ask("ready", f"{worker.name}.ready", limit_s, wanted=[str(path) for path in window])
        if answer.exit_code == 0 and "problem" in answer.more:
            return Path(str(answer.more["problem"]))
        self._fleet.say(f"{worker.name}: nothing was prepared: {answer.why}")
        return None

    def _judged(self, worker: GpuWorker, path: Path) -> bool:
        """Its line, unless it was cut short from outside: then it is tried again another time."""
        limits = self._plan.limits
        limit_s = limits.judge_s + _OVERTIME_S
        answer = worker.ask("judge", f"{worker.name}.judge", limit_s, problem=str(path))
        if "line" not in answer.more and self._fleet.why_end():
            return False
        line = self._line(path, answer)
        self._failed[worker.name] = self._failed[worker.name] + 1 if line.get("lost") else 0
        self._lines.add(line)
        self._fleet.say(f"{worker.name}  {line_text(line)}")
        return True

    def _line(self, path: Path, answer: Answer) -> Line:
        if (line := answer.more.get("line")) is not None:
            return dict(line)
        cause = f"the worker was lost: {answer.why or f'exit code {answer.exit_code}'}"
        return new_line(name_of(path), cause) | {"lost": True, "seconds": {"all": answer.seconds}}


class ShareWorker:
    """What has been started, and the steps."""

    def __init__(self, held: contextlib.ExitStack) -> None:
        self._held = held
        self._gpu: GpuInfo | None = None
        self._ahead: Ahead | None = None
        self._judging: Judging | None = None
        self.steps: Mapping[str, Step] = {"start": self._start, "ready": self._ready, "judge": self._judge}

    def _start(self, asked: Request, _more: More) -> int:
        self._gpu = gpu_info()
        if asked["needs_gpu"] and self._gpu is None:
            raise Unfit(f"there is no GPU {os.environ.get('CUDA_VISIBLE_DEVICES')} to be seen here")
        machine = self._held.enter_context(workers.started())
        place = Place(machine, decode(Limits, asked["limits"]), self._gpu)
        self._ahead = self._held.enter_context(contextlib.closing(Ahead(place, asked["width"])))
        self._judging = Judging(place)
        machine.enforced()  # waits until all zygotes are warm
        return 0

    def _ready(self, asked: Request, more: More) -> int:
        assert self._ahead is not None
        self._ahead.want([Path(path) for path in asked["wanted"]])
        more["problem"] = str(self._ahead.first_ready())
        return 0

    def _judge(self, asked: Request, more: More) -> int:
        assert self._ahead is not None
        assert self._judging is not None
        line = self._judging.line(self._ahead.take(Path(asked["problem"])))
        gib = self._judging.limits.memory_gib if self._gpu else 0.0
        told: Line = {"gpu": self._gpu.name if self._gpu else None, "memory_gib": gib, "versions": versions()}
        more["line"] = line | told
        return 0


def serve() -> int:
    """A worker: answer until there are no more requests."""
    return served(lambda held: ShareWorker(held).steps)


_MOST_WIDTH = 6


def main(argv: Sequence[str] | None = None) -> int:
    """Try what has not been tried, print the shares: 0; 130 after Ctrl-C."""
    if argv is None and sys.argv[1:] == ["--worker"]:
        return serve()
    parser = _parser()
    given = parser.parse_args(argv)
    if not given.report:
        if given.kernelbench is None or not problems(given.kernelbench, levels=given.levels):
            parser.error(
                "--kernelbench DIR is needed: a checkout of KernelBench, or a folder with level1, level2 in it"
            )
        if not _run(given):
            return 130
    print(*report(stored(*given.out)), sep="\n")
    return 0


def _run(given: argparse.Namespace) -> bool:
    """Whether it ended of itself."""
    started = time.monotonic()
    gpus = gpus_of(given.gpus)
    known = stored(*given.out)
    done = {name for name, line in known.items() if not (given.again and is_open(line, given.tier))}
    paths = problems(given.kernelbench.resolve(), given.only, given.levels)
    wanted = [path for path in paths if name_of(path) not in done]
    plan = Plan(
        given.out[0].resolve(),
        Limits(
            given.prepare_seconds,
            given.seconds,
            given.attempts,
            max(given.most, given.attempts),
            tier=given.tier,
            memory_gib=given.gpu_memory_gib,
        ),
        given.width or max(1, min(_MOST_WIDTH, (os.cpu_count() or 2) // len(gpus) - 2)),
        deadline=started + given.deadline if given.deadline else None,
        command=WORKER,
    )
    print(f"{len(wanted)} problems to try, {len(done)} done; {plan.width} at a time prepared for each GPU", flush=True)
    share = Share(plan, wanted, gpus)
    if not ended_of_itself(share.run, share.stop):
        return False
    left = len(wanted) - sum(stored(*given.out).get(name_of(p)) != known.get(name_of(p)) for p in wanted)
    print(f"{time.monotonic() - started:.0f} s; {left} problems are left\n", flush=True)
    return True


def is_open(line: Line, tier: Tier) -> bool:
    """Whether more time might tell more: of a problem without a right answer, and of one that was only screened where
    more is wanted."""
    return line["stage"] not in RIGHT or bool(tier in TIERS[1:] and (not_in_full(line) or _only_screened(line)))


def _levels(text: str) -> list[str]:
    """ "3,4" as the names of folders."""
    levels = [f"level{number}" for number in names_of(text)]
    if unknown := [level for level in levels if level not in LEVELS]:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; known: {', '.join(LEVELS)}")
    return levels


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, metavar="DIR", help="a checkout, or a folder of levels")
    parser.add_argument(
        "--out",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="lines of JSON, one a problem; written: the first",
    )
    parser.add_argument("--report", action="store_true", help="try nothing, print what is stored, in Markdown")
    parser.add_argument("--only", metavar="GLOBS", default="*", help="problems whose level/name fit one: 'level1/1_*'")
    parser.add_argument("--levels", type=_levels, default="1,2", metavar="1,2", help="of 1 to 4; 1,2")
    parser.add_argument("--tier", choices=TIERS, default=TIERS[0], help="of the fastest; screened")
    parser.add_argument("--gpu-memory-gib", type=float, default=0.0, metavar="GIB", help="of the GPU's; else all")
    parser.add_argument("--again", action="store_true", help="try those again that are not right or not in full")
    parser.add_argument("--gpus", default="", metavar="0,1", help="a worker each; else one, on whatever there is")
    parser.add_argument("--deadline", type=float, metavar="S", help="be done with everything after so many seconds")
    parser.add_argument("--seconds", type=float, default=Limits.judge_s, help="of the GPU, for one problem; 40")
    parser.add_argument("--prepare-seconds", type=float, default=Limits.prepare_s, help="beside it; 120")
    parser.add_argument("--attempts", type=int, default=Limits.attempts, help="candidates that are judged; 2")
    parser.add_argument("--most", type=int, default=Limits.most, help="when none of them is right, or none fast; 6")
    parser.add_argument("--width", type=int, metavar="N", help="problems prepared side by side; else by the cores")
    return parser


if __name__ == "__main__":
    sys.exit(main())
