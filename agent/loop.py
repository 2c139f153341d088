"""One run of an author that proposes and looks at results, but holds no conversation: the page to read first.

    author -> update -> bench -> reflect -> author … -> confirm

The workbench emits events and nothing else; the store, the screen and the exports are folds over them.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from agent.authors.base import Author, Proposal
from agent.controls import Controls
from agent.policy import Limits
from agent.workbench import GivenUp, Workbench


@dataclass
class Run:
    """A run in progress."""

    bench: Workbench
    author: Author
    limits: Limits
    width: int = 1
    controls: Controls = field(default_factory=Controls)

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
    """Drive a run until a limit is reached or the author has nothing left, and confirm its best; returns why it ended.

    KeyboardInterrupt passes through: every finished attempt has been emitted by then.
    """
    why = _attempt_all(run)
    if run.bench.tiers.confirm:
        run.bench.confirm()
    return why


def _attempt_all(run: Run) -> str:
    pool = ThreadPoolExecutor(run.width, thread_name_prefix="update")
    try:
        while not (why := _next_stop(run)):
            proposals = run.author.propose(run.bench.task, run.bench.attempts, _room(run))
            if not proposals:
                return "author_done"
            _round(run, pool, proposals[: _room(run)])
        return why
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C does not wait for what is being compiled


def _next_stop(run: Run) -> str | None:
    """Between two rounds: wait while the run is paused, then ask whether it is over."""
    run.controls.wait()
    return run.why_stop()


def _room(run: Run) -> int:
    return max(1, min(run.width, run.limits_now.max_attempts - len(run.bench.attempts)))


def _round(run: Run, pool: ThreadPoolExecutor, proposals: Sequence[Proposal]) -> None:
    """Update all proposals side by side; bench each as it becomes ready; reflect on it. One given up is left."""
    named = [(proposal, run.bench.propose(proposal)) for proposal in proposals]
    waiting = [pool.submit(run.bench.update, proposal, name) for proposal, name in named]
    for future in as_completed(waiting):
        try:
            attempt = run.bench.bench(future.result())
        except GivenUp:
            continue
        proposal = attempt.proposal
        if proposal.hypothesis:  # without one there is nothing to reflect on
            run.bench.reflect(attempt, proposal.hypothesis, proposal.prediction)
