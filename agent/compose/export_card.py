"""What an export says of itself: the card and the manifest, free of secrets."""

import time
from pathlib import Path

from agent.compose.export_request import Request
from agent.export.card import Export, Notice
from agent.export.finish import captions, configs, finish, others
from agent.export.pipeline import Outcome
from agent.export.privacy import Scrubber
from agent.export.provenance import SCHEMA_VERSION, columns
from agent.export.recipe import Recipe
from agent.export.reward_specs import rewards_of
from agent.export.terms import source_terms
from tools.codec import Json
from tools.versions import versions

_SPLIT_RULE = (
    "By family of tasks: tasks that share a name, a file, or a Model up to numbers are one family and lie in one split,"
    " drawn by the family's name and the seed; test {test:.3g}, validation {validation:.3g} of the families"
)
_DEDUPLICATION = (
    "Marked, not removed. `exact_id` is equal for sources that differ in layout, comments and docstrings at most, "
    "`near_id` for those of one cluster of MinHash similarity 0.8 over 5-grams of tokens; `exact_first` and"
    " `near_first` mark the first of each."
)
_LEAKED = {"keep": "marked only", "test": "tested on only, with their families", "exclude": "left out"}


def finished(folder: Path, asked: Request, recipe: Recipe, outcome: Outcome) -> Json:
    """Write what lies beside the rows; returns the manifest."""
    clean = Scrubber(recipe.secrets)
    export = Export(
        name=clean.text(f"GPU kernel trajectories: {asked.output.name}"),
        configs=configs(recipe.formats, outcome.shards, asked.form),
        others=others(recipe.formats, outcome.shards, asked.form),
        common=columns(rewards_of(asked.rewards)),
        version=versions()["kerneltune"],
        schema_version=SCHEMA_VERSION,
        command=clean.text(asked.command()),
        made_at=time.time(),
        seed=asked.seed,
        split_rule=_SPLIT_RULE.format(test=asked.test, validation=asked.validation),
        filters=tuple(map(clean.text, _filters(asked, recipe))),
        notices=notices(outcome),
        deduplication=_DEDUPLICATION if asked.duplicates else "Nobody looked for duplicates.",
        leakage=clean.text(_leakage(asked, recipe)),
        figures=captions(),
    )
    return finish(folder, export, outcome.statistics, outcome.shards, clean.value(asked.facts()))


def notices(outcome: Outcome) -> tuple[Notice, ...]:
    """What binds those who use the rows."""
    return tuple(
        Notice(provider, (terms := source_terms(provider)).tag, terms.notice) for provider in sorted(outcome.providers)
    )


def _filters(asked: Request, recipe: Recipe) -> tuple[str, ...]:
    spec = asked.rejection_sampling
    return (*recipe.where, *(() if spec is None else (f"rejection sampling by profile: {spec}",)))


def _leakage(asked: Request, recipe: Recipe) -> str:
    if asked.leak_check is None:
        return "Nobody compared the tasks with a benchmark's problems: give --leak-check."
    leaked = sum(place.leaked is not None for place in recipe.places.values())
    return (
        f"Compared with the problems in {asked.leak_check.name}: {leaked} of the record's {len(recipe.places)} tasks"
        f" are, or nearly are, one of them; such tasks are {_LEAKED[asked.leaked]}."
    )
