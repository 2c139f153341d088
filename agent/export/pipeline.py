"""An export from beginning to end: one stream of rows from the record into the files of a folder.

Before that stream, the record is gone over once for what no run knows alone, if anything asks for it: sources for
duplicates, and verdicts for formats that survey.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.export.base import ExportRow, Format, Row, sizes
from kerneltune.agent.export.card import Statistics
from kerneltune.agent.export.files import DataFile, DataFiles, FileType
from kerneltune.agent.export.privacy import PrivateNames, Scrubber
from kerneltune.agent.export.provenance import Authors, Provenance, columns, predicate
from kerneltune.agent.export.rewards import RejectionSampling, rewards_of
from kerneltune.agent.export.similarity import Duplicates, Placement, SameRows
from kerneltune.agent.record.query import ChosenRun
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import Trajectory

NO_NAMES = PrivateNames()
Progress = Callable[[str, int], None]  # a stage, and attempts that are done in it


@dataclass(frozen=True)
class Recipe:
    """What is asked of an export. `rewards` and `where` are specs as people write them. `placements`: of each task, by
    the hash of its file. `duplicates`: look for them. `private`: names of people and machines that no text may hold.
    `until`: the last event that is seen, so that both passes see the same record."""

    runs: Sequence[ChosenRun]
    formats: tuple[Format, ...]
    form: FileType
    placements: Mapping[str, Placement]
    rewards: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    duplicates: bool = True
    sampling: RejectionSampling | None = None
    private: PrivateNames = NO_NAMES
    until: int | None = None


@dataclass
class WrittenRows:
    """What was written. `filtered`: rows of each format that were left out; `providers`: whose words the rows hold."""

    files: list[DataFile] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    filtered: dict[str, int] = field(default_factory=dict)
    providers: set[str] = field(default_factory=set)

    def counts(self) -> dict[tuple[str, str], int]:
        """Rows by format and split."""
        return {(f.format, f.split): f.rows for f in self.files if not f.beside}


class Exporter:
    """Makes the rows of a recipe from a store."""

    def __init__(self, recipe: Recipe, store: Store, progress: Progress) -> None:
        self._recipe, self._store, self._progress = recipe, store, progress
        self._rewards = rewards_of(recipe.rewards)
        self._all_runs = {run.run_id: run for run in store.choose(until=recipe.until)}
        self._scrubber = Scrubber(recipe.private, self._all_runs)
        self._authors = Authors(lru_cache(maxsize=16)(self._run))
        rewards = [r.name for r in self._rewards]
        self._where = predicate(recipe.where, rewards, recipe.formats, self._scrubber.text)
        self._duplicates: Duplicates | None = None
        self._same_rows = SameRows()

    def write(self, folder: Path) -> WrittenRows:
        """Write the data files below `folder`. Raises StoreError, OSError."""
        recipe = self._recipe
        if recipe.duplicates:
            self._duplicates = self._all_sources()
        if any(f.surveys for f in recipe.formats):
            self._survey()
        with DataFiles(folder, recipe.form, columns(self._rewards)) as files:
            written = WrittenRows(filtered={f.name: 0 for f in recipe.formats})
            talking = any(f.conversations for f in recipe.formats) or self._filters_thinking()
            cases = any(f.cases for f in recipe.formats)
            for trajectory in self._trajectories("writing", conversations=talking, cases=cases):
                self._write_run(trajectory, files, written)
            written.files = files.finish()
        return written

    def _all_sources(self) -> Duplicates:
        found = Duplicates()
        for done, (attempt_id, source) in enumerate(self._store.sources(self._recipe.runs, self._recipe.until)):
            found.see(attempt_id, source)
            if done % 100 == 99:
                self._progress("looking for duplicates", 100)
        return found

    def _survey(self) -> None:
        """Formats that survey see every run: of what they compare, only what passes."""
        for trajectory in self._trajectories("comparing runs", conversations=self._filters_thinking()):
            facts = self._facts(trajectory)
            kept = replace(trajectory, attempts=tuple(self._kept(trajectory.attempts, facts)))
            for made_by in self._recipe.formats:
                if made_by.surveys and (not made_by.about_tasks or self._passes(None, facts.of(None))):
                    made_by.survey(trajectory if made_by.whole_runs else kept)

    def _filters_thinking(self) -> bool:
        return any("thinking" in spec for spec in self._recipe.where)

    def _trajectories(self, stage: str, *, conversations: bool, cases: bool = False) -> Iterator[Trajectory]:
        for trajectory in self._store.trajectories(
            self._recipe.runs, conversations=conversations, cases=cases, until=self._recipe.until
        ):
            yield trajectory
            self._progress(stage, len(trajectory.attempts))

    def _facts(self, trajectory: Trajectory) -> Provenance:
        duplicate_of = self._duplicates.of if self._duplicates else None
        given = (self._recipe.placements, self._rewards, duplicate_of, self._scrubber, self._authors)
        return Provenance(trajectory, *given)

    def _run(self, run_id: str) -> Trajectory | None:
        """A run that another began with an attempt of, if it is in the record."""
        its = filter(None, (self._all_runs.get(run_id),))
        return next(self._store.trajectories(list(its), until=self._recipe.until), None)

    def _whose(self, made: ExportRow, facts: Provenance) -> list[Row]:
        """The common columns of the attempts whose words a row holds; first of that which it is about."""
        there = self._facts(made.elsewhere) if made.elsewhere else facts
        far = {a.attempt_id for a in made.elsewhere.attempts} if made.elsewhere else set()
        those = (made.attempt, *filter(None, (made.other,)))
        return [(there if a and a.attempt_id in far else facts).of(a) for a in those]

    def _passes(self, attempt: Attempt | None, row: Row) -> bool:
        """Whether a row about this attempt (or about none), of which these common columns are known, is kept."""
        sampling = self._recipe.sampling
        sampled = sampling is None or attempt is None or sampling.keeps(attempt)
        return sampled and self._where(row, None)

    def _kept(self, attempts: Iterable[Attempt], facts: Provenance) -> list[Attempt]:
        return [a for a in attempts if self._passes(a, facts.of(a))]

    def _write_run(self, trajectory: Trajectory, files: DataFiles, written: WrittenRows) -> None:
        facts = self._facts(trajectory)
        for made_by in self._recipe.formats:
            for made in self._made(made_by, trajectory):
                whose = self._whose(made, facts)
                common = facts.with_words_of(whose[0], whose[-1])
                passes = self._passes(made.attempt, common)
                own = made.facts | sizes(made.values) | self._ids(made_by, made) if passes else {}
                if passes and self._where(made.values | own, made_by.name):
                    clean = self._scrubber.row
                    files.add(made_by, facts.split, common, clean(made.values), clean(own))
                    written.providers.update(str(row["provider"]) for row in (common, *whose))
                else:
                    written.filtered[made_by.name] += 1
        kept = self._kept(trajectory.attempts, facts)
        talk_alone = not trajectory.attempts and trajectory.conversations and self._passes(None, facts.of(None))
        if kept or talk_alone:
            written.statistics.add(trajectory, kept, facts)

    def _ids(self, made_by: Format, made: ExportRow) -> Row:
        """Of a row that may say what another says."""
        if not made_by.says or not self._recipe.duplicates:
            return {}
        found, first = self._same_rows.of(made_by.name, [made.values[name] for name in made_by.says])
        return {"row_exact": found, "row_first": first}

    def _made(self, made_by: Format, trajectory: Trajectory) -> Iterator[ExportRow]:
        if made_by.events:
            its = {a.attempt_id: a for a in trajectory.attempts}
            made = made_by.rows_of_events(self._store.load_events(trajectory.run.run_id, self._recipe.until))
            return (replace(row, other=its.get(row.values["attempt_id"] or "")) for row in made)
        return made_by.rows(trajectory)
