"""The replay author: proposes what an earlier run proposed, in its order, to be judged anew."""

from collections.abc import Sequence

from kerneltune.agent.attempt import Attempt, Proposal, point_of
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.schema.task import TaskSpec


class ReplayAuthor:
    """`replayed`: attempts of the earlier run. Those whose source this run has already, as a resumed one may, are not
    proposed again."""

    def __init__(self, tracker: AttemptTracker, name: str, replayed: Sequence[Attempt]) -> None:
        self.name, self._tracker = name, tracker
        done = {attempt.source: attempt.attempt_id for attempt in tracker.attempts}
        self._ids = {a.attempt_id: done[a.source] for a in replayed if a.source in done}
        self._left = sorted((a for a in replayed if a.attempt_id not in self._ids), key=lambda a: a.number)

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """The next ones, with this run's numbers for their parents. The loop numbers them in this order."""
        taken, self._left = self._left[:width], self._left[width:]
        for number, attempt in enumerate(taken, self._tracker.next_number):
            self._ids[attempt.attempt_id] = f"{self._tracker.run_id}/{number}"
        return [self._again(attempt) for attempt in taken]

    def _again(self, made: Attempt) -> Proposal:
        """In words of this run: its parent there, and no conversation, which was the other run's."""
        parent_id, origin = self._ids.get(made.parent_id or ""), point_of(made.origin)
        return Proposal(made.source, made.rationale, parent_id, origin, made.hypothesis, made.prediction)
