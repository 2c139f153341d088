"""`optimize export`: finds the stored runs, places their tasks, makes rows of training data, and writes the folder."""

import contextlib
import json as jsonlib
import shlex
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kerneltune.agent.commands import AsJson, RunsDir, missing_for_export, no_runs, require_record
from kerneltune.agent.export.base import FORMATS, Format, format_of, formats_of, near
from kerneltune.agent.settings import chosen_settings
from kerneltune.agent.view.output import columns, say, standard_page
from kerneltune.tools.schema.codec import Json, plural
from kerneltune.tools.schema.errors import StoreError, Unfit, UsageError
from kerneltune.tools.schema.verdict import versions

if TYPE_CHECKING:
    from kerneltune.agent.export.card import Card
    from kerneltune.agent.export.pipeline import Recipe, WrittenRows
    from kerneltune.agent.export.similarity import Placement
    from kerneltune.agent.record.query import ChosenRun
    from kerneltune.agent.record.store import Store

_FLAGS = {"formats": "format", "tasks": "task", "authors": "author", "rewards": "reward", "form": "as"}
TEST_SHARE, FEWEST_FAMILIES = 0.1, 10  # of fewer families a tenth is none, or the one that was asked for
_EVERY_S = 5.0  # a line of progress where there is no terminal
_SPLIT_RULE = (
    "By family of tasks: tasks that share a name, a file, or a Model up to numbers are one family and lie in one split,"
    " drawn by the family's name and the seed; test {test:.3g}, validation {validation:.3g} of the families"
)
_DEDUPLICATION = (
    "Marked, not removed. `exact_id` is equal for sources that differ in layout, comments and docstrings at most, "
    "`near_id` for those that are like the same earlier source, by a MinHash similarity of 0.8 over 5-grams of tokens,"
    " with their names or without;"
    " `exact_first` and `near_first` mark the first of each."
)
_LEAKED = {"keep": "marked only", "test": "tested on only, with their families", "exclude": "left out"}

command = App(
    name="export",
    help_epilogue=f"""
{textwrap.fill(f"Formats: {', '.join(FORMATS)}.", 78, subsequent_indent="    ", break_on_hyphens=False)}
Each may have options, as in sft-best:per=run,top=3; see docs/formats.md.

Examples:
    optimize export --format sft-chat -o data/chat
    optimize export --format sft-best --where "speedup>=1.2" -o data/best
    optimize export --format rl-turns --reward drkernel:lambda=0.5 -o data/rl
    optimize export --format fim --leak-check KernelBench/ -o data/fim
    optimize export --format kto --where near_first=true --as jsonl -o kto
""",
)


@dataclass(frozen=True)
class ExportRequest:
    """The flags of `optimize export` that decide what is written."""

    formats: Annotated[
        tuple[str, ...],
        Parameter(
            name="--format",
            metavar="FORMAT",
            help="What rows look like; may be given again.",
            negative="",
        ),
    ]
    output: Annotated[Path, Parameter(metavar="DIR", name=["--output", "-o"], help="The folder to write.")]
    form: Annotated[Literal["parquet", "jsonl", "csv"], Parameter(name="--as", help="File type.")] = "parquet"
    tasks: Annotated[
        tuple[str, ...],
        Parameter(
            name="--task",
            metavar="TASK",
            help="Only runs of this task; may be given again.",
            negative="",
        ),
    ] = ()
    authors: Annotated[
        tuple[str, ...],
        Parameter(
            name="--author",
            metavar="NAME",
            help="Only runs by this author, or provider; may be given again.",
            negative="",
        ),
    ] = ()
    where: Annotated[
        tuple[str, ...],
        Parameter(metavar="TEST", help="Only rows that pass this test, such as speedup>=1.2.", negative=""),
    ] = ()
    rewards: Annotated[
        tuple[str, ...],
        Parameter(
            name="--reward",
            metavar="REWARD",
            help="A column for this reward, such as kevin; may be given again.",
            negative="",
        ),
    ] = ()
    rejection_sampling: Annotated[
        str | None,
        Parameter(
            metavar="OPTIONS",
            help="Keep a correct attempt more often if its own kernels do more of the work: tau=0.3,s=0.1.",
        ),
    ] = None
    test: Annotated[
        float | None,
        Parameter(
            metavar="SHARE",
            help=f"Share of the tasks' families that is for testing: {TEST_SHARE}, or 0 where there are fewer than"
            f" {FEWEST_FAMILIES} families.",
        ),
    ] = None
    validation: Annotated[
        float, Parameter(metavar="SHARE", help="Share of the tasks' families that is for validation.")
    ] = 0.0
    seed: Annotated[int, Parameter(metavar="N", help="Seed of the splits.")] = 0
    leak_check: Annotated[
        Path | None, Parameter(metavar="DIR", help="A folder of benchmark problems to compare tasks with.")
    ] = None
    leaked: Annotated[
        Literal["keep", "test", "exclude"], Parameter(help="What to do with tasks that are benchmark problems.")
    ] = "test"
    no_duplicates: Annotated[bool, Parameter(help="Do not look for duplicates.", negative="")] = False
    overwrite: Annotated[bool, Parameter(help="Replace an earlier export.", negative="")] = False

    def facts(self) -> dict[str, Json]:
        """What was asked for, as the manifest tells it; of paths, the last part."""
        shown = {n: value for n, value in vars(self).items() if n not in ("output", "overwrite", "no_duplicates")}
        return {
            name: value.name if isinstance(value, Path) else list(value) if isinstance(value, tuple | list) else value
            for name, value in (shown | {"duplicates": not self.no_duplicates}).items()
        }

    def command(self) -> str:
        """The command line that makes the same rows of the same record; of paths, the last part."""
        return shlex.join(["optimize", "export", *self._flags(), "-o", self.output.name])

    def _flags(self) -> Iterator[str]:
        for field, value in vars(self).items():
            if field in ("output", "overwrite") or value is None or value is False:
                continue
            for one in value if isinstance(value, tuple | list) else (value,):
                yield f"--{_FLAGS.get(field, field.replace('_', '-'))}"
                if one is not True:
                    yield one.name if isinstance(one, Path) else f"{one:g}" if isinstance(one, float) else str(one)


@command.default
def export(
    *,
    request: Annotated[ExportRequest, Parameter(name="*")],
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Write stored runs as training data.

    Rows come with their verdicts, rewards and provenance, and a dataset card.

    Exit code 0: rows were written; 1: none passed the filters; 2: bad input.
    """
    settings = chosen_settings(locals())
    if missing := missing_for_export():
        raise Unfit(f"exports need {', '.join(missing)}: pip install 'kerneltune[export]'")
    from kerneltune.agent.export.card import notices
    from kerneltune.agent.record.store import Store

    require_record(settings.runs_dir)
    started = time.perf_counter()
    with Store.open(settings.runs_dir, to_look=True) as store:
        recipe = _recipe(request, store)
        written, manifest = _written(request, recipe, store)
    notes = list(_notes(request, recipe, written))
    seconds, rows = time.perf_counter() - started, sum(written.counts().values())
    if json:
        counts = _counts_json(written)
        told = {"type": "export", "schema_version": 1, "output": str(request.output), "rows": counts}
        told |= {"filtered": written.filtered, "notes": notes, "seconds": round(seconds, 3), "manifest": manifest}
        print(jsonlib.dumps(told, allow_nan=False))
    elif not rows:
        left = sum(written.filtered.values())
        made = "; ".join(f"{one.name}: {one.about}" for one in recipe.formats)
        why = f"the filters left out all of {plural(left, 'row')}" if left else f"these runs make no rows of {made}"
        print(f"nothing was written: {why}", *(f"note: {note}" for note in notes), sep="\n")
    else:
        page = standard_page(colour=True)
        page.print(_counts_table(written), "")
        what = f"{plural(rows, 'row')} in {seconds:.1f} s; README.md says what is in it"
        page.print(f"{request.output}: {what}")
        page.print(*(f"note: {note}" for note in notes))
        page.print(*(f"{provider}: {notice}" for provider, _, notice in notices(written.providers)))
    return int(rows == 0)


def _counts_json(written: "WrittenRows") -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for (name, split), count in written.counts().items():
        counts[name][split] = count
    return counts


def _counts_table(written: "WrittenRows") -> Table:
    """Rows by format and split, and rows of each format that the filters left out."""
    counts = written.counts()
    splits = sorted({split for _, split in counts})
    table = columns("format", *splits, "filtered out", right=(*splits, "filtered out"))
    for name in dict.fromkeys(name for name, _ in counts):
        cells = (f"{counts.get((name, split), 0):,}" for split in splits)
        table.add_row(name, *cells, f"{written.filtered.get(name, 0):,}")
    return table


def _recipe(asked: ExportRequest, store: "Store") -> "Recipe":
    """Everything that was asked, checked before anything is read at length."""
    from kerneltune.agent.export.files import fits_csv
    from kerneltune.agent.export.pipeline import Recipe
    from kerneltune.agent.export.privacy import names_known
    from kerneltune.agent.export.rewards import rejection_sampling
    from kerneltune.agent.record.store import WAY_OUT

    formats = formats_of(asked.formats)
    if asked.form == "csv" and (other := next((f.name for f in formats if not fits_csv(f)), None)):
        fitting = [name for name in FORMATS if fits_csv(format_of(name))]
        raise UsageError(f"--as csv has a prompt and a completion, {other} has more; it is for {', '.join(fitting)}")
    _check_where(asked, formats)
    sampling = None if asked.rejection_sampling is None else rejection_sampling(asked.rejection_sampling)
    until, sources = store.last_seq(), store.task_sources()
    runs = _chosen(store, asked, until, sources)
    placements = _placements(asked, sources)
    if lost := next((run for run in runs if run.task_sha256 not in sources), None):
        raise StoreError(f"{store.path}: the task of run {lost.run_id} is missing; {WAY_OUT}")
    for made_by in formats:
        made_by.set_splits({sha256: str(place.split) for sha256, place in placements.items()})
    return Recipe(
        [run for run in runs if placements[run.task_sha256].split is not None],
        formats,
        asked.form,
        placements,
        tuple(asked.rewards),
        asked.where,
        not asked.no_duplicates,
        sampling,
        names_known(store.machines(), store.path.parent),
        until,
    )


def _check_where(asked: ExportRequest, formats: Sequence[Format]) -> None:
    """Raises UsageError for a condition that makes no sense."""
    from kerneltune.agent.export.provenance import predicate
    from kerneltune.agent.export.rewards import rewards_of

    predicate(asked.where, [r.name for r in rewards_of(asked.rewards)], formats)
    if asked.no_duplicates and (spec := next((w for w in asked.where if "exact_" in w or "near_" in w), None)):
        raise UsageError(f"--where {spec!r} needs to know the duplicates; leave out --no-duplicates")


def _chosen(
    store: "Store", asked: ExportRequest, until: int, sources: Mapping[str, tuple[str, str]]
) -> "Sequence[ChosenRun]":
    if not sources:
        raise no_runs(store.path.parent)
    known = {name for name, _ in sources.values()}
    for name in asked.tasks:
        if name not in known and name not in sources:
            raise UsageError(f"no run of task {name!r} is stored; {near(name, sorted(known)[:1000])}")
    if runs := store.choose(asked.tasks or None, asked.authors or None, until):
        return runs
    of = f" of task {' or '.join(asked.tasks)}" if asked.tasks else ""
    raise UsageError(f"no stored run{of} is by {' or '.join(asked.authors)}; `optimize runs` lists who wrote")


def _placements(asked: ExportRequest, sources: Mapping[str, tuple[str, str]]) -> "dict[str, Placement]":
    """Family and split of every task in the record, whether it is exported now or not: what is asked for does not move
    a task to another split."""
    from kerneltune.agent.export.similarity import Benchmark, Fractions, load_problems, placements

    leaks: dict[str, str] = {}
    if asked.leak_check is not None:
        benchmark = Benchmark(load_problems(asked.leak_check))
        leaks = {sha256: found for sha256, (_, source) in sources.items() if (found := benchmark.of(source))}
    test = TEST_SHARE if asked.test is None else asked.test
    places = placements(sources, Fractions(asked.validation, test), asked.seed, leaked=leaks, leaked_to=asked.leaked)
    if asked.test is None and len({place.family for place in places.values()}) < FEWEST_FAMILIES:
        return placements(sources, Fractions(asked.validation, 0.0), asked.seed, leaked=leaks, leaked_to=asked.leaked)
    return places


def _few_families(asked: ExportRequest, recipe: "Recipe") -> int | None:
    """How many families the record has, where they are too few to hold some out; None where some are."""
    n_families = len({place.family for place in recipe.placements.values()})
    return n_families if asked.test is None and n_families < FEWEST_FAMILIES else None


def _notes(asked: ExportRequest, recipe: "Recipe", written: "WrittenRows") -> Iterator[str]:
    """What a person should know before training on the rows; where there are none, what the formats say of that."""
    counts = written.counts()
    n_families = _few_families(asked, recipe)
    if counts and n_families is not None:
        families = "1 family" if n_families == 1 else f"{n_families} families"
        yield f"all tasks are in train, for {families} are too few to hold some out; --test SHARE does so"
    for name in dict.fromkeys(name for name, _ in counts):
        if not counts.get((name, "train")):
            yield f"no row of {name} is in train; with --test 0 all are"
    for made_by in recipe.formats:
        yield from made_by.notes()


@contextlib.contextmanager
def _progress(attempts: int) -> Iterator[Callable[[str, int], None]]:
    """Show how many attempts are done in a stage: a bar on a terminal, else a line now and then."""
    console, done, shown_at = Console(stderr=True), Counter[str](), time.monotonic()
    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def tell(stage: str, more: int) -> None:
        nonlocal shown_at
        done[stage] += more
        if console.is_terminal:
            bar.update(task, description=stage, completed=done[stage])
        elif time.monotonic() - shown_at > _EVERY_S:
            shown_at = time.monotonic()
            say(f"… {stage}: {done[stage]:,} of {attempts:,} attempts")

    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("exporting", total=attempts)
        yield tell


class _NothingLeft(Exception):
    """No row passed the filters: the folder is not to be kept."""


def _written(asked: ExportRequest, recipe: "Recipe", store: "Store") -> "tuple[WrittenRows, Json]":
    """Make and write everything; where no row passes, nothing is left, and the manifest is None."""
    from kerneltune.agent.export.card import write_beside
    from kerneltune.agent.export.files import made_whole
    from kerneltune.agent.export.pipeline import Exporter, WrittenRows

    written, manifest = WrittenRows(), None
    with (
        _progress(sum(run.attempts for run in recipe.runs)) as progress,
        contextlib.suppress(_NothingLeft),
        made_whole(asked.output, overwrite=asked.overwrite) as folder,
    ):
        written = Exporter(recipe, store, progress).write(folder)
        if not written.counts():
            raise _NothingLeft
        card, clean_facts = _card(asked, recipe, written)
        manifest = write_beside(folder, card, written.statistics, clean_facts)
    return written, manifest


def _card(asked: ExportRequest, recipe: "Recipe", written: "WrittenRows") -> "tuple[Card, Json]":
    """What an export says of itself, free of secrets, and what was asked for."""
    from kerneltune.agent.export.card import Card
    from kerneltune.agent.export.privacy import Scrubber
    from kerneltune.agent.export.provenance import columns as provenance_columns
    from kerneltune.agent.export.rewards import rewards_of

    clean = Scrubber(recipe.private)
    sampled = () if asked.rejection_sampling is None else (f"rejection sampling: {asked.rejection_sampling}",)
    made = Card(
        name=clean.text(f"GPU kernel trajectories: {asked.output.name}"),
        formats=recipe.formats,
        files=written.files,
        providers=sorted(written.providers),
        common=provenance_columns(rewards_of(asked.rewards)),
        version=versions()["kerneltune"],
        command=clean.text(asked.command()),
        made_at=time.time(),
        seed=asked.seed,
        split_rule=_split_rule(asked, recipe),
        deduplication="Duplicates were not looked for." if asked.no_duplicates else _DEDUPLICATION,
        leakage=clean.text(_leakage(asked, recipe)),
        filters=tuple(clean.text(f) for f in (*recipe.where, *sampled)),
    )
    return made, clean.value(asked.facts())


def _split_rule(asked: ExportRequest, recipe: "Recipe") -> str:
    few = _few_families(asked, recipe) is not None
    test = 0.0 if few else TEST_SHARE if asked.test is None else asked.test
    told = _SPLIT_RULE.format(test=test, validation=asked.validation)
    return f"{told}. There are fewer than {FEWEST_FAMILIES} families, so that none is held out." if few else f"{told}."


def _leakage(asked: ExportRequest, recipe: "Recipe") -> str:
    if asked.leak_check is None:
        return "The tasks were not compared with a benchmark's problems: give --leak-check."
    leaked, n_tasks = sum(p.leaked is not None for p in recipe.placements.values()), len(recipe.placements)
    return (
        f"Compared with the problems in {asked.leak_check.name}: {leaked} of the record's {n_tasks} tasks are, or"
        f" nearly are, one of them; such tasks are {_LEAKED[asked.leaked]}."
    )
