"""One run of an author that proposes and looks at results, but holds no conversation: the page to read first.

    author -> update -> bench -> reflect -> author … -> confirm

The workbench emits events and nothing else; the store, the screen and the exports are folds over them.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from agent.authors.base import Author, Proposal
from agent.policy import Limits
from agent.workbench import Workbench


@dataclass
class Run:
    """A run in progress."""

    bench: Workbench
    author: Author
    limits: Limits
    width: int = 1
    started: float = field(default_factory=time.monotonic)

    def why_stop(self) -> str | None:
        """The limit that is reached, or None."""
        return self.limits.why_stop(self.bench.attempts, time.monotonic() - self.started)


def optimize(run: Run) -> str:
    """Drive a run until a limit is reached or the author has nothing left, and confirm its best; returns why it ended.

    KeyboardInterrupt passes through: every finished attempt has been emitted by then.
    """
    why = _attempt_all(run)
    if run.bench.tiers.confirm:
        run.bench.confirm()
    return why


def _attempt_all(run: Run) -> str:
    with ThreadPoolExecutor(run.width, thread_name_prefix="update") as pool:
        while not (why := run.why_stop()):
            proposals = run.author.propose(run.bench.task, run.bench.attempts, _room(run))
            if not proposals:
                return "author_done"
            try:
                _round(run, pool, proposals[: _room(run)])
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return why


def _room(run: Run) -> int:
    return max(1, min(run.width, run.limits.max_attempts - len(run.bench.attempts)))


def _round(run: Run, pool: ThreadPoolExecutor, proposals: Sequence[Proposal]) -> None:
    """Update all proposals side by side; bench each as it becomes ready; reflect on it."""
    named = [(proposal, run.bench.propose(proposal)) for proposal in proposals]
    waiting = [pool.submit(run.bench.update, proposal, name) for proposal, name in named]
    for future in as_completed(waiting):
        attempt = run.bench.bench(future.result())
        proposal = attempt.proposal
        if proposal.hypothesis:  # without one there is nothing to reflect on
            run.bench.reflect(attempt, proposal.hypothesis, proposal.prediction)
