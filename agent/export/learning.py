"""The first pass: what cannot be known of one run alone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from agent.export.base import Format
from agent.export.duplicates import Duplicates, Share
from agent.export.filters import predicate
from agent.export.lengths import thinking
from agent.export.provenance import Provenance
from agent.export.recipe import Block, Recipe
from agent.export.reward_specs import rewards_of
from agent.record.store import Store
from agent.record.trajectory import Trajectory


def signatures(recipe: Recipe, part: Block) -> Share:
    """What is needed of one block to find out which attempts say the same."""
    found = Duplicates()
    with Store.open(recipe.runs_dir) as store:
        for attempt_id, source in store.sources(part.runs, recipe.until):
            found.see(attempt_id, source)
    return found.share()


def joined(shares: Iterable[Share]) -> Duplicates:
    """The duplicates over all blocks, whose shares come in order: the first of several is the one that came first."""
    found = Duplicates()
    for share in shares:
        found.absorb(share)
    found.settle()
    return found


def survey(recipe: Recipe, parts: Sequence[Block], duplicates: Duplicates | None) -> tuple[Format, ...]:
    """The formats after each that surveys has seen every run: of what it compares, only what passes the filters."""
    provenance = Provenance(
        rewards_of(recipe.rewards), recipe.places.__getitem__, duplicates.of if duplicates else None
    )
    keep = predicate(recipe.where)

    def kept(trajectory: Trajectory) -> Trajectory:
        run = provenance.of_run(trajectory.run)
        thought = thinking(trajectory)
        attempts = tuple(a for a in trajectory.attempts if keep(run | provenance.of_attempt(a, thought)))
        return replace(trajectory, attempts=attempts)

    for trajectory in _all(recipe, parts):
        filtered = kept(trajectory) if recipe.where else trajectory
        for made_by in recipe.formats:
            if made_by.surveys:
                made_by.survey(trajectory if made_by.whole_runs else filtered)
    return recipe.formats


def _all(recipe: Recipe, parts: Sequence[Block]) -> Iterator[Trajectory]:
    with Store.open(recipe.runs_dir) as store:
        for part in parts:
            yield from store.trajectories(part.runs, conversations=recipe.filters_thinking, until=recipe.until)
