"""Do hostile candidates change what becomes of honest ones that are judged at the same time? Needs no GPU.

    python -m benchmarks.neighbours                                   two hostile beside twenty honest, 100 rounds
    python -m benchmarks.neighbours --rounds 1 --honest 4             a minute

First the honest kernels are judged alone, then in each round beside hostile ones, which begin anew whenever they are
ended: they take leases and locks on every file that they may read, AIO contexts, processors and memory. The control:
what differs is judged alone again at once, and if it differs then as well, that is the machine's doing, which has other
work, and not the neighbours'. Prints how many honest verdicts differ from those without neighbours, and how long honest
kernels took; a line for each round goes to stderr.
"""

import argparse
import json
import statistics
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from kerneltune.agent.commands.session import Patience, Session, session, workshop
from kerneltune.agent.settings import Settings
from kerneltune.tools.corpus import corpus_root, load_corpus
from kerneltune.tools.evaluator import Candidate, judge_all
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Verdict
from kerneltune.tools.task.load import find_task

HOSTILE = """
import ctypes, fcntl, glob, sys, threading
from torch import nn
libc = ctypes.CDLL(None)
files = [open(p, "rb") for folder in sys.path for p in glob.glob(folder + "/*.py")[:20]]
class ModelNew(nn.Module):
    pass
def leases():
    for file in files:
        libc.fcntl(file.fileno(), 1024, 1)
def locks():
    for file in files:
        libc.flock(file.fileno(), 6)
def aio():
    while libc.syscall(206, 4096, ctypes.byref(ctypes.c_ulong())) == 0:
        pass
def processors():
    for _ in range(64):
        threading.Thread(target=spin, daemon=True).start()
def memory():
    held = []
    try:
        while True:
            held.append(bytearray(b"x" * (16 << 20)))
    except MemoryError:
        spin()
def spin():
    while True:
        pass
"""
ATTACKS = ("leases", "locks", "aio", "processors", "memory")


@dataclass(frozen=True)
class Judged:
    """What became of one honest kernel. `ran`: how many of its programs at the timed shape were run, for which there is
    half a second of processor time."""

    verdict: str
    ran: int
    seconds: float


@dataclass(frozen=True)
class JudgedRound:
    """What became of all honest kernels beside hostile ones, of which `ended` were ended. `control`: of the kernels
    that differ from `alone`, by number, what became of them without neighbours right after it."""

    beside: tuple[Judged, ...]
    control: dict[int, Judged]
    ended: int


@dataclass(frozen=True)
class Compared:
    """Honest kernels, alone and in each round, in the order of the kernels."""

    alone: tuple[Judged, ...]
    rounds: tuple[JudgedRound, ...]

    def differing(self, *, alone_too: bool = False) -> list[str]:
        """Those that differ beside neighbours and not without them, as text; or (`alone_too`) that differ with and
        without."""
        return [
            f"{self.alone[number].verdict} -> {one.beside[number].verdict}"
            for one in self.rounds
            for number, again in one.control.items()
            if (again.verdict != self.alone[number].verdict) == alone_too
        ]


def honest_sources(root: Path, task: Path, count: int) -> list[str]:
    """So many sources for the task; beyond those of the corpus the same again, which are judged again."""
    found = [s for s in load_corpus(root) if s.kind == "honest" and s.task == task and not s.needs_gpu]
    texts = islice(cycle(specimen.path.read_text() for specimen in found), count)
    return [f"{text}\n# {number}\n" for number, text in enumerate(texts)]


def judged(opened: Session, sources: Sequence[str], width: int) -> tuple[Judged, ...]:
    """Judge them as `optimize bench` does."""
    candidates = [Candidate(str(number), source) for number, source in enumerate(sources)]
    found = sorted(judge_all(opened.tools, candidates, width=width), key=lambda one: one.index)
    return tuple(Judged(in_short(one.verdict), ran_of(one.verdict), one.seconds) for one in found)


def in_short(verdict: Verdict) -> str:
    """Its status and why, and which input sets of which case it is right on."""
    cases = " ".join(f"{case.case}/{case.inputs}{'' if case.ok else '!'}" for case in verdict.cases)
    return f"{verdict.status.value} {verdict.cause or ''} {cases}"


def ran_of(verdict: Verdict) -> int:
    """How many programs of the timed shape were run."""
    covered = verdict.receipt.get("timed_shape")
    return int(covered.get("ran", 0)) if isinstance(covered, dict) else 0


@contextmanager
def neighbours(opened: Session, sources: Sequence[str]) -> Iterator[list[str]]:
    """Keep one candidate of each source under way until the block ends; yields what became of those that ended."""
    over, ended = threading.Event(), []

    def keep(source: str) -> None:
        while not over.is_set():
            failure = opened.tools.updater.update(source).failure
            ended.append(failure.detail if failure else "")

    threads = [threading.Thread(target=keep, args=(source,), daemon=True) for source in sources]
    for thread in threads:
        thread.start()
    try:
        yield ended
    finally:
        over.set()
        for thread in threads:
            while thread.is_alive():
                for worker in opened.machine.living():
                    worker.kill()
                thread.join(0.2)


def compare(
    rounds: int, honest: int, hostile: int, width: int, told: Callable[[JudgedRound], None] = lambda _: None
) -> Compared:
    """Judge honest kernels alone, then beside `hostile` others; those take turns. `told` is called with each round."""
    root = corpus_root()
    if root is None:
        raise UsageError("the corpus (kerneltune/corpus) is not installed")
    task = root / "tasks" / "softmax.py"
    texts = cycle(f"{HOSTILE}{attack}()\nspin()\n" for attack in ATTACKS)
    sources, found = honest_sources(root, task, honest), []
    with workshop(Settings(), lambda _: None) as shop, session(shop, find_task(str(task)), Patience()) as opened:
        alone = judged(opened, sources, width)
        for _ in range(rounds):
            with neighbours(opened, list(islice(texts, hostile))) as over:
                beside = judged(opened, sources, width)
            differ = [number for number, now in enumerate(beside) if now.verdict != alone[number].verdict]
            again = judged(opened, [sources[number] for number in differ], width)
            found.append(JudgedRound(beside, dict(zip(differ, again, strict=True)), len(over)))
            told(found[-1])
    return Compared(alone, tuple(found))


def main() -> int:
    """Print what was found; 1 where a verdict differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--honest", type=int, default=20)
    parser.add_argument("--hostile", type=int, default=2)
    parser.add_argument("--width", type=int, default=2)
    asked = parser.parse_args()
    found = compare(asked.rounds, asked.honest, asked.hostile, asked.width, shown)
    times = [one.seconds for each in found.rounds for one in each.beside]
    differing = found.differing()
    told = {
        "honest_verdicts": len(times),
        "differing": differing,
        "differing_without_neighbours_too": found.differing(alone_too=True),
        "hostile_ended": sum(each.ended for each in found.rounds),
        "median_s_alone": round(statistics.median(one.seconds for one in found.alone), 2),
        "median_s": round(statistics.median(times), 2),
        "longest_s": round(max(times), 2),
        "programs_alone": sum(one.ran for one in found.alone),
        "programs_a_round": [sum(one.ran for one in each.beside) for each in found.rounds],
        "verdicts": sorted({one.verdict for one in found.alone}),
    }
    print(json.dumps(told, indent=2))
    return int(bool(differing))


def shown(each: JudgedRound) -> None:
    """A line of progress."""
    changed = [f"{each.beside[number].verdict} (alone again: {one.verdict})" for number, one in each.control.items()]
    spent = round(sum(one.seconds for one in each.beside))
    print(json.dumps({"judged": len(each.beside), "seconds": spent, "changed": changed}), file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
