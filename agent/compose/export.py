"""`optimize export`: finds the runs, places the tasks, makes the rows, and writes the folder."""

import difflib
import importlib.util
import json as jsonlib
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agent.record.store import FILE_NAME, Store
from agent.view.exporting import Exported, ExportProgress, exported_json, print_exported
from tools.codec import Json
from tools.errors import UsageError
from tools.versions import versions

if TYPE_CHECKING:
    from agent.export.card import Export, Notice
    from agent.export.pipeline import Outcome
    from agent.export.provenance import Place
    from agent.export.recipe import Recipe
    from agent.export.sampling import RejectionSampling
    from agent.record.harvest import ChosenRun

_PACKAGES = ("numpy", "orjson", "pyarrow", "rensa")
SPLIT_RULE = (
    "By family of tasks: tasks that share a name, a file, or a Model up to numbers are one family and lie in one split,"
    " drawn by the family's name and the seed"
)


@dataclass(frozen=True)
class Request:
    """The flags of `optimize export`. `formats`, `rewards` and `where` are specs; `leak_check`: a folder of benchmark
    problems; `leaked`: what becomes of tasks that are one of them."""

    formats: Sequence[str]
    output: Path
    form: Literal["parquet", "jsonl"] = "parquet"
    tasks: Sequence[str] = ()
    authors: Sequence[str] = ()
    where: Sequence[str] = ()
    only_providers: str | None = None
    rewards: Sequence[str] = ()
    rejection_sampling: str | None = None
    test: float = 0.1
    validation: float = 0.0
    seed: int = 0
    leak_check: Path | None = None
    leaked: Literal["keep", "test", "exclude"] = "test"
    duplicates: bool = True
    processes: int = 2
    block: int = 20_000
    overwrite: bool = False


def export_runs(asked: Request, runs_dir: Path, *, json: bool) -> int:
    """Write the export: 0 when there are rows, 1 when there are none. Raises UsageError, StoreError, WorkerError."""
    for name in ("processes", "block"):
        if getattr(asked, name) < 1:
            raise UsageError(f"--{name} {getattr(asked, name)}: it is at least 1")
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"exports need {', '.join(missing)}: pip install 'kerneltune[export]'")
    if not (runs_dir / FILE_NAME).is_file():
        raise UsageError(f"no runs are stored in {runs_dir}; make one (optimize --task softmax), or give --runs-dir")
    started = time.perf_counter()
    recipe, runs = _prepared(asked, runs_dir)
    exported = _Exporter(asked, recipe, runs).run(started)
    if json:
        print(jsonlib.dumps(exported_json(exported), allow_nan=False))
    else:
        print_exported(exported)
    return int(exported.rows == 0)


def _prepared(asked: Request, runs_dir: Path) -> tuple["Recipe", list["ChosenRun"]]:
    """Everything that was asked, checked before anything is read at length."""
    from agent.export.filters import only_providers, predicate
    from agent.export.privacy import names_here, names_in
    from agent.export.recipe import Recipe
    from agent.export.reward_specs import rewards_of
    from agent.export.specs import formats_of

    formats = formats_of(asked.formats)
    where = [*asked.where, *(() if asked.only_providers is None else (only_providers(asked.only_providers),))]
    predicate(where, [f"reward_{r.name}" for r in rewards_of(asked.rewards)])
    with Store.open(runs_dir) as store:
        until = store.last_seq()
        runs = _chosen(store, asked, until)
        sources = store.task_sources()
        names = names_here()
        for machine in store.machines():
            names |= names_in(machine)
    places = _placed(asked, {run.task_sha256: sources[run.task_sha256] for run in runs})
    for made_by in formats:
        made_by.placed({sha256: place.split for sha256, place in places.items()})
    recipe = Recipe(
        runs_dir,
        formats,
        asked.form,
        places,
        tuple(asked.rewards),
        tuple(where),
        asked.duplicates,
        _sampling(asked.rejection_sampling),
        names,
        until,
    )
    return recipe, [run for run in runs if run.task_sha256 in places]


def _sampling(spec: str | None) -> "RejectionSampling | None":
    from agent.export.reward_specs import options_of
    from agent.export.sampling import rejection_sampling

    return None if spec is None else rejection_sampling(options_of(spec))


def _chosen(store: Store, asked: Request, until: int) -> list["ChosenRun"]:
    runs = store.choose(asked.tasks or None, asked.authors or None, until)
    if runs:
        return runs
    known = {name for name, _ in store.task_sources().values()}
    if not known:
        raise UsageError(f"{store.path} holds no run yet; make one: optimize --task softmax")
    for name in asked.tasks:
        if name not in known and not any(name == sha256 for sha256 in store.task_sources()):
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are runs of {', '.join(sorted(known)[:10])}"
            raise UsageError(f"no run of task {name!r} is stored; {hint}")
    raise UsageError(f"no stored run is by {' or '.join(asked.authors)}; `optimize runs` lists who wrote")


def _placed(asked: Request, sources: Mapping[str, tuple[str, str]]) -> dict[str, "Place"]:
    """Family and split of every task; those that are left out are missing."""
    from agent.export.leakage import Benchmark, load
    from agent.export.provenance import Place
    from agent.export.splits import Fractions, Task, assign

    leaks: dict[str, str] = {}
    if asked.leak_check is not None:
        benchmark = Benchmark(load(asked.leak_check))
        found = {sha256: benchmark.of(source) for sha256, (_, source) in sources.items()}
        leaks = {sha256: leak.problem for sha256, leak in found.items() if leak is not None}
    tasks = [Task(name, sha256, source) for sha256, (name, source) in sources.items()]
    fractions = Fractions(asked.validation, asked.test)
    members = assign(tasks, fractions, asked.seed, leaked=leaks, leaked_to=asked.leaked)
    return {
        sha256: Place(member.family, member.split, leaks.get(sha256))
        for sha256, member in members.items()
        if member.split is not None
    }


class _Exporter:
    """One export."""

    def __init__(self, asked: Request, recipe: "Recipe", runs: Sequence["ChosenRun"]) -> None:
        self._asked, self._recipe, self._runs = asked, recipe, runs

    def run(self, started: float) -> Exported:
        """Make and write everything; where no row passes, nothing is left."""
        from agent.export.folder import made_whole
        from agent.export.pipeline import export
        from agent.export.recipe import blocks

        parts = blocks(self._runs, self._asked.block)
        with ExportProgress(sum(part.attempts for part in parts)) as progress:
            try:
                with made_whole(self._asked.output, overwrite=self._asked.overwrite) as folder:
                    outcome = export(self._recipe, parts, folder, processes=self._asked.processes, progress=progress)
                    rows = sum(shard.rows for shard in outcome.shards if not shard.beside)
                    if not rows:
                        raise _NothingLeft
                    manifest = self._finish(folder, outcome)
            except _NothingLeft:
                manifest = None
        seconds = time.perf_counter() - started
        return Exported(
            self._asked.output, outcome.counts(), outcome.filtered, self._notices(outcome), seconds, manifest
        )

    def _finish(self, folder: Path, outcome: "Outcome") -> Json:
        from agent.export.finish import finish

        facts = {name: _plain(value) for name, value in vars(self._asked).items() if name not in _OURS}
        return finish(folder, self._card(outcome), outcome.statistics, outcome.shards, facts)

    def _card(self, outcome: "Outcome") -> "Export":
        from agent.export.card import Export
        from agent.export.finish import captions, configs, others
        from agent.export.provenance import SCHEMA_VERSION, columns
        from agent.export.reward_specs import rewards_of

        asked, formats = self._asked, self._recipe.formats
        return Export(
            name=f"GPU kernel trajectories: {asked.output.name}",
            configs=configs(formats, outcome.shards, asked.form),
            others=others(formats, outcome.shards, asked.form),
            common=columns(rewards_of(asked.rewards)),
            version=versions()["kerneltune"],
            schema_version=SCHEMA_VERSION,
            command=_command(asked),
            made_at=time.time(),
            seed=asked.seed,
            split_rule=f"{SPLIT_RULE}; test {asked.test:.0%}, validation {asked.validation:.0%} of the families",
            filters=self._filters(),
            notices=self._notices(outcome),
            deduplication=_DEDUPLICATION if asked.duplicates else "Nobody looked for duplicates.",
            leakage=self._leakage(),
            figures=captions(),
        )

    def _filters(self) -> tuple[str, ...]:
        spec = self._asked.rejection_sampling
        return (*self._recipe.where, *(() if spec is None else (f"rejection sampling by profile: {spec}",)))

    def _leakage(self) -> str:
        if self._asked.leak_check is None:
            return "Nobody compared the tasks with a benchmark's problems: give --leak-check."
        leaked = sum(place.leaked is not None for place in self._recipe.places.values())
        what = {"keep": "marked only", "test": "tested on only, with their families", "exclude": "left out"}
        return (
            f"Compared with the problems in {self._asked.leak_check.name}: {leaked} of {len(self._recipe.places)} tasks"
            f" here are, or nearly are, one of them; such tasks are {what[self._asked.leaked]}."
        )

    def _notices(self, outcome: "Outcome") -> tuple["Notice", ...]:
        from agent.export.card import Notice
        from agent.export.terms import source_terms

        providers = sorted({str(key[0]) for key in outcome.statistics.table("writers")})
        return tuple(Notice(p, (terms := source_terms(p)).tag, terms.notice) for p in providers)


class _NothingLeft(Exception):
    """No row passed the filters: the folder is not to be kept."""


_OURS = ("output", "processes", "block", "overwrite")
_DEDUPLICATION = (
    "Marked, not removed. `exact_id` is equal for sources that differ in layout, comments and docstrings at most, "
    "`near_id` for those of one cluster of MinHash similarity 0.8 over 5-grams of tokens; `exact_first` and"
    " `near_first` mark the first of each."
)


def _plain(value: object) -> Json:
    if isinstance(value, Path):
        return value.name
    return list(value) if isinstance(value, tuple | list) else value


def _command(asked: Request) -> str:
    """The command line without paths of this machine."""
    parts = ["optimize", "export"]
    for flag, values in (
        ("--format", asked.formats),
        ("--task", asked.tasks),
        ("--author", asked.authors),
        ("--where", asked.where),
        ("--reward", asked.rewards),
    ):
        parts += [part for value in values for part in (flag, value)]
    if asked.rejection_sampling is not None:
        parts += ["--rejection-sampling", asked.rejection_sampling]
    parts += ["-o", asked.output.name, "--seed", str(asked.seed), "--test", str(asked.test)]
    return shlex.join(parts)
