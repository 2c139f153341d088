"""`optimize export`: finds the runs, places the tasks, makes the rows, and writes the folder."""

import contextlib
import difflib
import importlib.util
import json as jsonlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent.compose.export_request import Request
from agent.record.store import FILE_NAME, WAY_OUT, Store
from agent.view.exporting import Exported, ExportProgress, exported_json, print_exported
from tools.errors import StoreError, Unfit, UsageError

if TYPE_CHECKING:
    from agent.export.provenance import Place
    from agent.export.recipe import Recipe
    from agent.export.sampling import RejectionSampling
    from agent.record.query import ChosenRun

_PACKAGES = ("numpy", "orjson", "pyarrow", "rensa")


def export_runs(asked: Request, runs_dir: Path, *, json: bool) -> int:
    """Write the export: 0 when there are rows, 1 when there are none. Raises UsageError, StoreError, WorkerError."""
    for name in ("processes", "block"):
        if getattr(asked, name) < 1:
            raise UsageError(f"--{name} {getattr(asked, name)}: it is at least 1")
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise Unfit(f"exports need {', '.join(missing)}: pip install 'kerneltune[export]'")
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
    from agent.export.names import names_here, names_in
    from agent.export.recipe import Recipe
    from agent.export.specs import formats_of

    formats, where = formats_of(asked.formats), _where(asked)
    with Store.open(runs_dir) as store:
        until = store.last_seq()
        sources = store.task_sources()
        runs = _chosen(store, asked, until, sources)
        names = names_here()
        for machine in store.machines():
            names |= names_in(machine)
    places = _placed(asked, sources)
    if lost := next((run for run in runs if run.task_sha256 not in sources), None):
        raise StoreError(f"{runs_dir / FILE_NAME}: the task of run {lost.run_id} is missing; {WAY_OUT}")
    for made_by in formats:
        made_by.placed({sha256: place.split for sha256, place in places.items()})
    recipe = Recipe(
        runs_dir,
        formats,
        asked.form,
        places,
        tuple(asked.rewards),
        where,
        asked.duplicates,
        _sampling(asked.rejection_sampling),
        names,
        until,
    )
    return recipe, [run for run in runs if run.task_sha256 in places]


def _where(asked: Request) -> tuple[str, ...]:
    from agent.export.filters import only_providers, predicate
    from agent.export.reward_specs import rewards_of

    where = (*asked.where, *(() if asked.only_providers is None else (only_providers(asked.only_providers),)))
    predicate(where, [f"reward_{r.name}" for r in rewards_of(asked.rewards)])
    if not asked.duplicates and (spec := next((w for w in where if "exact_" in w or "near_" in w), None)):
        raise UsageError(f"--where {spec!r} needs to know the duplicates; leave out --no-duplicates")
    return where


def _sampling(spec: str | None) -> "RejectionSampling | None":
    from agent.export.reward_specs import options_of
    from agent.export.sampling import rejection_sampling

    return None if spec is None else rejection_sampling(options_of(spec))


def _chosen(store: Store, asked: Request, until: int, sources: Mapping[str, tuple[str, str]]) -> list["ChosenRun"]:
    if not sources:
        raise UsageError(f"{store.path} holds no run yet; make one: optimize --task softmax")
    known = {name for name, _ in sources.values()}
    for name in asked.tasks:
        if name not in known and name not in sources:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are runs of {', '.join(sorted(known)[:10])}"
            raise UsageError(f"no run of task {name!r} is stored; {hint}")
    if runs := store.choose(asked.tasks or None, asked.authors or None, until):
        return runs
    of = f" of task {' or '.join(asked.tasks)}" if asked.tasks else ""
    raise UsageError(f"no stored run{of} is by {' or '.join(asked.authors)}; `optimize runs` lists who wrote")


def _placed(asked: Request, sources: Mapping[str, tuple[str, str]]) -> dict[str, "Place"]:
    """Family and split of every task in the record, whether it is exported now or not: what is asked for does not move
    a task to another split. Those that are left out are missing."""
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


class _NothingLeft(Exception):
    """No row passed the filters: the folder is not to be kept."""


class _Exporter:
    """One export."""

    def __init__(self, asked: Request, recipe: "Recipe", runs: Sequence["ChosenRun"]) -> None:
        self._asked, self._recipe, self._runs = asked, recipe, runs

    def run(self, started: float) -> Exported:
        """Make and write everything; where no row passes, nothing is left."""
        from agent.compose.export_card import finished, notices
        from agent.export.folder import made_whole
        from agent.export.pipeline import export
        from agent.export.recipe import blocks

        asked, recipe, manifest = self._asked, self._recipe, None
        parts = blocks(self._runs, asked.block)
        with (
            ExportProgress(sum(part.attempts for part in parts)) as progress,
            contextlib.suppress(_NothingLeft),
            made_whole(asked.output, overwrite=asked.overwrite) as folder,
        ):
            outcome = export(recipe, parts, folder, processes=asked.processes, progress=progress)
            if not outcome.counts():
                raise _NothingLeft
            manifest = finished(folder, asked, recipe, outcome)
        seconds = time.perf_counter() - started
        return Exported(asked.output, outcome.counts(), outcome.filtered, notices(outcome), seconds, manifest)
