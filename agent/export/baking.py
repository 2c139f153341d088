"""The second pass over one block of runs: rows with their provenance, filtered, cleaned, written and counted."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.export.base import Format, Made, Row
from agent.export.counting import count_run
from agent.export.filters import predicate
from agent.export.lengths import thinking
from agent.export.privacy import Scrubber
from agent.export.provenance import Provenance, columns
from agent.export.recipe import Block, Learned, Recipe
from agent.export.reward_specs import rewards_of
from agent.export.shards import Shard, Shards
from agent.export.statistics import Statistics
from agent.record.store import Store
from agent.record.trajectory import AttemptRecord, Trajectory

Keep = Callable[[Mapping[str, object]], bool]


@dataclass(frozen=True)
class Baked:
    """What became of a block: its files, what it holds, and how many rows of each format the filters left out."""

    block: Block
    shards: list[Shard]
    statistics: Statistics
    filtered: dict[str, int]


class Baker:
    """Makes the rows of blocks. Opens the store; close it."""

    def __init__(self, recipe: Recipe, learned: Learned, folder: Path) -> None:
        self._recipe, self._formats, self._folder = recipe, learned.formats, folder
        rewards = rewards_of(recipe.rewards)
        self._common = columns(rewards)
        duplicate_of = learned.duplicates.of if learned.duplicates else None
        self._provenance = Provenance(rewards, recipe.places.__getitem__, duplicate_of)
        self._keep: Keep = predicate(recipe.where)
        self._scrubber = Scrubber(recipe.secrets)
        self._store = Store.open(recipe.runs_dir)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def bake(self, block: Block) -> Baked:
        """Write the files of a block."""
        shards = Shards(self._folder, block.number, self._recipe.form, self._common)
        baked = Baked(block, [], Statistics(), {f.name: 0 for f in self._formats})
        talking = any(f.conversations for f in self._formats) or self._recipe.filters_thinking
        for trajectory in self._store.trajectories(block.runs, conversations=talking, until=self._recipe.until):
            facts = Facts(self._provenance, trajectory, self._scrubber)
            for made_by in self._formats:
                self._write(made_by, self._made(made_by, trajectory), facts, shards, baked)
            count_run(baked.statistics, trajectory, facts, self._keep)
        baked.shards.extend(shards.close())
        for shard in baked.shards:
            if not shard.beside:
                baked.statistics.add_rows(shard.format, shard.split, shard.rows, shard.bytes)
        return baked

    def _made(self, made_by: Format, trajectory: Trajectory) -> Iterator[Made]:
        if made_by.events:
            return made_by.rows_of_events(self._store.load_events(trajectory.run.run_id))
        return made_by.rows(trajectory)

    def _write(self, made_by: Format, made: Iterator[Made], facts: "Facts", shards: Shards, baked: Baked) -> None:
        for one in made:
            common = facts.of(one.attempt)
            if self._keep(common) and self._sampled(one.attempt):
                shards.add(made_by, facts.split, common, self._scrubber.row(one.values))
            else:
                baked.filtered[made_by.name] += 1

    def _sampled(self, attempt: AttemptRecord | None) -> bool:
        sampling = self._recipe.sampling
        return sampling is None or attempt is None or sampling.keeps(attempt)


class Facts:
    """The provenance of one run's attempts, each made once however many rows are about it. What is about the run has
    names in it, which are cleaned; what is about an attempt is made of numbers, ids and words of closed sets."""

    def __init__(self, provenance: Provenance, trajectory: Trajectory, scrubber: Scrubber) -> None:
        self._provenance, self._run = provenance, scrubber.row(provenance.of_run(trajectory.run))
        self._known: dict[str, Row] = {}
        self.split = str(self._run["split"])
        self.why = None if trajectory.why is None else scrubber.text(trajectory.why)
        self._thought = thinking(trajectory)

    def of(self, attempt: AttemptRecord | None) -> Row:
        """The common columns of a row about this attempt, or about none."""
        if attempt is None:
            return self._run
        known = self._known.get(attempt.attempt_id)
        if known is None:
            known = self._known[attempt.attempt_id] = self._run | self._provenance.of_attempt(attempt, self._thought)
        return known
