"""The first pass: what cannot be known of one run alone."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from agent.export.base import Format
from agent.export.duplicates import Duplicates, Share
from agent.export.passing import Facts, Passing
from agent.export.privacy import Scrubber
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
    """The formats after each that surveys has seen every run: of what it compares, only what passes."""
    duplicate_of = duplicates.of if duplicates else None
    rewards, scrubber = rewards_of(recipe.rewards), Scrubber(recipe.secrets)
    provenance = Provenance(rewards, recipe.places.__getitem__, duplicate_of, scrubber)
    passing = Passing(recipe)
    for trajectory in _all(recipe, parts):
        facts = Facts(provenance, trajectory)
        kept = trajectory if passing.everything else _kept(trajectory, facts, passing)
        for made_by in recipe.formats:
            if made_by.surveys and (not made_by.about_tasks or passing.passes(None, facts.of(None))):
                made_by.survey(trajectory if made_by.whole_runs else kept)
    return recipe.formats


def _kept(trajectory: Trajectory, facts: Facts, passing: Passing) -> Trajectory:
    return replace(trajectory, attempts=tuple(a for a in trajectory.attempts if passing.passes(a, facts.of(a))))


def _all(recipe: Recipe, parts: Sequence[Block]) -> Iterator[Trajectory]:
    with Store.open(recipe.runs_dir) as store:
        for part in parts:
            yield from store.trajectories(part.runs, conversations=recipe.filters_thinking, until=recipe.until)
