"""Which rows pass: filters over their provenance, then chance. The same in both passes and in the statistics."""

from collections.abc import Mapping

from agent.export.base import Row
from agent.export.filters import predicate
from agent.export.lengths import thinking
from agent.export.provenance import Provenance
from agent.export.recipe import Recipe
from agent.record.trajectory import AttemptRecord, Trajectory


class Passing:
    """The rules of a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self._keep, self._sampling = predicate(recipe.where), recipe.sampling
        self.everything = not recipe.where and recipe.sampling is None

    def passes(self, attempt: AttemptRecord | None, row: Mapping[str, object]) -> bool:
        """Whether a row about this attempt (or about none) with these common columns is kept."""
        sampled = self._sampling is None or attempt is None or self._sampling.keeps(attempt)
        return sampled and self._keep(row)


class Facts:
    """The provenance of one run's attempts, each made once however many rows are about it."""

    def __init__(self, provenance: Provenance, trajectory: Trajectory) -> None:
        self._provenance, self._run = provenance, provenance.of_run(trajectory.run)
        self._known: dict[str, Row] = {}
        self._thought = thinking(trajectory)
        self.split = str(self._run["split"])
        self.why = None if trajectory.why is None else provenance.clean(trajectory.why)

    def of(self, attempt: AttemptRecord | None) -> Row:
        """The common columns of a row about this attempt, or about none."""
        if attempt is None:
            return self._run
        known = self._known.get(attempt.attempt_id)
        if known is None:
            known = self._known[attempt.attempt_id] = self._run | self._provenance.of_attempt(attempt, self._thought)
        return known
