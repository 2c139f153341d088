"""The second pass over one block of runs: rows with their provenance, filtered, cleaned, written and counted."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.export.base import Format, Made
from agent.export.counting import count_run
from agent.export.passing import Facts, Passing
from agent.export.privacy import Scrubber
from agent.export.provenance import Provenance, columns
from agent.export.recipe import Block, Learned, Recipe
from agent.export.reward_specs import rewards_of
from agent.export.shards import Shard, Shards
from agent.export.statistics import Statistics
from agent.record.store import Store
from agent.record.trajectory import Trajectory


@dataclass(frozen=True)
class Baked:
    """What became of a block: its files, what it holds, and how many rows of each format were left out."""

    block: Block
    shards: list[Shard]
    statistics: Statistics
    filtered: dict[str, int]
    providers: set[str]  # whose words the rows hold


class Baker:
    """Makes the rows of blocks. Opens the store; close it."""

    def __init__(self, recipe: Recipe, learned: Learned, folder: Path) -> None:
        self._recipe, self._formats, self._folder = recipe, learned.formats, folder
        rewards = rewards_of(recipe.rewards)
        self._common = columns(rewards)
        duplicate_of = learned.duplicates.of if learned.duplicates else None
        self._scrubber = Scrubber(recipe.secrets)
        self._provenance = Provenance(rewards, recipe.places.__getitem__, duplicate_of, self._scrubber)
        self._passing = Passing(recipe)
        self._store = Store.open(recipe.runs_dir)

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def bake(self, block: Block) -> Baked:
        """Write the files of a block."""
        with Shards(self._folder, block.number, self._recipe.form, self._common) as shards:
            return self._baked(block, shards)

    def _baked(self, block: Block, shards: Shards) -> Baked:
        baked = Baked(block, [], Statistics(), {f.name: 0 for f in self._formats}, set())
        talking = any(f.conversations for f in self._formats) or self._recipe.filters_thinking
        for trajectory in self._store.trajectories(block.runs, conversations=talking, until=self._recipe.until):
            facts = Facts(self._provenance, trajectory)
            for made_by in self._formats:
                self._write(made_by, self._made(made_by, trajectory), facts, shards, baked)
            count_run(baked.statistics, trajectory, facts, self._passing)
        baked.shards.extend(shards.close())
        for shard in baked.shards:
            if not shard.beside:
                baked.statistics.add_rows(shard.format, shard.split, shard.rows, shard.bytes)
        return baked

    def _made(self, made_by: Format, trajectory: Trajectory) -> Iterator[Made]:
        if made_by.events:
            return made_by.rows_of_events(self._store.load_events(trajectory.run.run_id, self._recipe.until))
        return made_by.rows(trajectory)

    def _write(self, made_by: Format, made: Iterator[Made], facts: Facts, shards: Shards, baked: Baked) -> None:
        for one in made:
            common = facts.of(one.attempt)
            if self._passing.passes(one.attempt, common):
                shards.add(made_by, facts.split, common, self._scrubber.row(one.values))
                baked.providers.add(str(common["provider"]))
            else:
                baked.filtered[made_by.name] += 1
