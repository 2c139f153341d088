"""One run of an author that proposes and looks at results, but holds no conversation: the page to read first.

    author -> update -> bench -> reflect -> author … -> conclude

The workbench emits events and nothing else; the store, the screen and the exports are folds over them.
"""

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from agent.authors.base import Author
from agent.controls import Controls
from agent.policy import Limits
from agent.workbench import Draft, GivenUp, Workbench


@dataclass
class _Line:
    """Candidates under way: in the order of their numbers, and those that kept the judge waiting for too long, once.
    Waiting again at each turn for the same one cost 10 s a verdict while it was compiled, 96 s of a search of 120."""

    overtaken_after_s: float
    waiting: list[Future[Draft]] = field(default_factory=list)
    overtaken: list[Future[Draft]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.waiting) + len(self.overtaken)

    def pop(self) -> Future[Draft] | None:
        """Whose turn it is: an overtaken one that is ready by now, else the first. None when that one is overtaken now,
        so that its place is free; where nobody takes it, the first overtaken one to be ready."""
        if not self.waiting or any(late.done() for late in self.overtaken):
            ready = wait(self.overtaken, return_when=FIRST_COMPLETED).done
            return self.overtaken.pop(next(at for at, late in enumerate(self.overtaken) if late in ready))
        first = self.waiting.pop(0)
        if wait([first], self.overtaken_after_s).done:
            return first
        self.overtaken.append(first)
        return None


@dataclass
class Run:
    """A run in progress. `width`: candidates that are under way at a time: compiled, waiting for the judge, judged."""

    bench: Workbench
    author: Author
    limits: Limits
    width: int = 1
    controls: Controls = field(default_factory=Controls)
    overtaken_after_s: float = 10.0  # tracing and compiling take 1.1 s; a minute is a kernel of thousands of steps

    def __post_init__(self) -> None:
        self.started = self.controls.clock_s

    @property
    def limits_now(self) -> Limits:
        """As given, or as raised since."""
        return self.limits.raised(self.controls.raises)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, without pauses."""
        return self.controls.clock_s - self.started

    def why_stop(self) -> str | None:
        """The limit that is reached, "stopped" when a person wants no more, or None."""
        return "stopped" if self.controls.stopping else self.limits_now.why_stop(self.bench.attempts, self.elapsed_s)


def optimize(run: Run) -> str:
    """Drive a run until a limit is reached or the author has nothing left, and conclude it; returns why it ended.

    KeyboardInterrupt passes through: every finished attempt has been emitted by then.
    """
    why = _attempt_all(run)
    run.bench.conclude()
    return why


def _attempt_all(run: Run) -> str:
    """Keep `width` candidates under way, and judge them in the order of their numbers.

    So the judge works while the next ones are compiled, and what is proposed depends on no clock: the n-th proposal
    knows the verdicts of all but the `width - 1` before it, however long each takes. Only a candidate that keeps the
    judge waiting for `overtaken_after_s` leaves the line: another takes its place, and it is judged once it is ready.
    """
    pool = ThreadPoolExecutor(2 * run.width, thread_name_prefix="update")
    line = _Line(run.overtaken_after_s)
    try:
        while True:
            if (why := _next_stop(run)) is None:
                line.waiting += _proposed(run, pool, _room(run, line))
            elif why == "time":
                run.controls.skip()  # what is still being compiled might take minutes
            if not line:
                return why or "author_done"
            if (draft := line.pop()) is not None:
                _judge(run, draft)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for what is being compiled


def _next_stop(run: Run) -> str | None:
    """Between two attempts: wait while the run is paused, then ask whether it is over."""
    run.controls.wait()
    return run.why_stop()


def _room(run: Run, line: "_Line") -> int:
    left = run.limits_now.max_attempts - len(run.bench.attempts) - len(line)
    return min(left, run.width - len(line.waiting), 2 * run.width - len(line))


def _proposed(run: Run, pool: ThreadPoolExecutor, room: int) -> list[Future[Draft]]:
    """What the author wants next, being traced and compiled."""
    proposals = run.author.propose(run.bench.task, run.bench.attempts, room) if room > 0 else []
    named = [(proposal, run.bench.propose(proposal)) for proposal in proposals[:room]]
    return [pool.submit(run.bench.update, proposal, name) for proposal, name in named]


def _judge(run: Run, draft: Future[Draft]) -> None:
    """Bench a candidate and reflect on it. One given up is left."""
    try:
        attempt = run.bench.bench(draft.result())
    except GivenUp:
        return
    proposal = attempt.proposal
    if proposal.hypothesis:  # without one there is nothing to reflect on
        run.bench.reflect(attempt, proposal.hypothesis, proposal.prediction)
    run.bench.settle()
