"""`optimize suite`: many tasks, authors and seeds under one budget, and what they came to."""

import json as jsonlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from kerneltune.agent.commands import Arch, AsLines, RunsDir, Tier, Unsandboxed, Width
from kerneltune.agent.models.providers import OFFLINE
from kerneltune.agent.models.types import Effort
from kerneltune.agent.settings import Environment, Language, Settings, Strategy, chosen_settings, environment
from kerneltune.agent.view.output import Page, columns, facts, heading, short, standard_page
from kerneltune.tools.schema.codec import Json, encode, shell_word
from kerneltune.tools.schema.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kerneltune.agent.attempt import StopReason
    from kerneltune.agent.commands.fleet import Fleet
    from kerneltune.agent.commands.lifecycle import Choice
    from kerneltune.agent.commands.rounds import SuiteRun, SuiteWork
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.report.suite import Suite
    from kerneltune.agent.view.output import ViewChoice
    from kerneltune.agent.view.suite import SuiteState, SuiteView
    from kerneltune.tools.task.folder import FoundTasks, LeftOut

SCHEMA_VERSION = 1
SUITES = "suites"  # the folder, beside the runs', in which a suite in progress is held
TASKS = "tasks"  # the folder, beside the runs', of task files that are made of kernel definitions
_MOST_RUNS = 10_000
_KS = (1, 2, 5, 10, 20, 50, 100)  # of pass@k, as far as there are samples
_MOST_TOLD, _MOST_REASONS = 3, 8  # names of files that were left out, for each reason
_PLAIN_NAME = re.compile(r"\w[\w.+-]{0,79}", re.ASCII)

Paths = Annotated[
    str, Parameter(metavar="PATH", help="builtin, names of built-in tasks, task files, and folders of them.")
]
Name = Annotated[
    str, Parameter(metavar="NAME", help="The suite's name, to find its runs by; made from the paths by default.")
]
BaseUrl = Annotated[str | None, Parameter(metavar="URL", help="The models' server.")]
ModelEffort = Annotated[Effort | None, Parameter(help="How hard models think.")]
LogProbs = Annotated[
    bool | None, Parameter(help="Keep token ids and log-probabilities of chat: models' replies.", negative="")
]
Kernels = Annotated[Language | None, Parameter(help="What the kernels are written in.")]
Dollars = Annotated[float | None, Parameter(metavar="DOLLARS", help="Dollars for the whole suite.")]
Ray = Annotated[
    str,
    Parameter(metavar="ADDRESS", help="Judge on the GPUs of a Ray cluster, side by side: auto, or HOST:PORT."),
]
AsText = Annotated[bool, Parameter(help="Print lines instead of the live screen.", negative="")]

command = App(
    name="suite",
    help_epilogue="""
Examples:
    optimize suite builtin                              every built-in task
    optimize suite softmax rms_norm --max-attempts 40
    optimize suite path/to/KernelBench/level1 --max-time 7200
    optimize suite mine/ --authors offline,anthropic --max-cost 20
    optimize suite builtin --json | tail -1
""",
)


@command.default
def suite(
    *paths: Paths,
    authors: Annotated[
        str | None, Parameter(metavar="A,B", help="Who writes the kernels: what --model takes, one or several.")
    ] = None,
    seeds: Annotated[int, Parameter(metavar="N", help="Runs of each author on each task; 1 by default.")] = 1,
    name: Name = "",
    weights: Annotated[str, Parameter(metavar="TASK=W,…", help="Weight of a task's headroom, 1 by default.")] = "",
    max_attempts: Annotated[int | None, Parameter(metavar="N", help="Attempts for the whole suite.")] = None,
    max_time_s: Annotated[float | None, Parameter(metavar="SECONDS", help="Seconds for the whole suite.")] = None,
    max_cost_usd: Dollars = None,
    patience: Annotated[
        int | None, Parameter(metavar="N", help="A run ends after this many attempts without a new best.")
    ] = None,
    target_sol: Annotated[
        float | None, Parameter(metavar="FRACTION", help="A run ends at this fraction of the speed of light.")
    ] = None,
    base_url: BaseUrl = None,
    effort: ModelEffort = None,
    logprobs: LogProbs = None,
    strategy: Annotated[Strategy | None, Parameter(help="Which conversations a run holds.")] = None,
    language: Kernels = None,
    tier: Tier = None,
    confirm: Annotated[bool | None, Parameter(help="Judge a run's best again, in fresh processes.")] = None,
    width: Width = None,
    arch: Arch = None,
    ray: Ray = "",
    runs_dir: RunsDir = None,
    json: AsLines = False,
    plain: AsText = False,
    allow_unsandboxed: Unsandboxed = None,
) -> int:
    """Optimise many tasks with one budget, spent where there is most to gain.

    Each task, author and seed is a stored run. Repeat the command to continue.

    Exit code 0: something was accepted for every task; 1: for some nothing was; 2: bad input.
    """
    settings = chosen_settings(locals())
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: give at least 1")
    asked = Asked(paths, tuple(author_names(authors, settings, environment())), seeds, name, weights, ray=ray)
    return run_suite(asked, settings, json=json, plain=plain)


@dataclass(frozen=True)
class Asked:
    """What a suite is to be. `sample_attempts`: its runs are samples of a model, of so many attempts each; `ray`: the
    address of the cluster that judges."""

    paths: Sequence[str]
    authors: Sequence[str]
    seeds: int = 1
    name: str = ""
    weights: str = ""
    sample_attempts: int | None = None
    ray: str = ""


def author_names(given: str | None, settings: Settings, here: Environment) -> list[str]:
    """The authors that were named, each once; without any that of a run."""
    names = [one.strip() for one in (given or settings.model).split(",")]
    return list(dict.fromkeys(filter(None, names))) or [*here.keys[:1], OFFLINE][:1]


def run_suite(asked: Asked, settings: Settings, *, json: bool, plain: bool) -> int:
    """Run it, shown in the way that fits whoever looks, and print what it came to; returns the exit code."""
    from kerneltune.agent.commands.rounds import fixed
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.output import can_show_screen, choose_view, say
    from kerneltune.agent.view.suite import SuiteRow, SuiteState
    from kerneltune.tools.backends import gpu_info
    from kerneltune.tools.task.folder import find_tasks

    if not asked.paths:
        raise UsageError("which tasks? Give builtin, names of built-in tasks, task files or folders of them")
    here, settings, began = environment(), fixed(settings), time.time()
    # the screen is that of one run at a time
    is_terminal = can_show_screen(sys.stderr) and not asked.ray
    choice = choose_view(here, is_terminal=is_terminal, json=json, plain=plain)
    name, found = suite_name(asked), find_tasks(asked.paths, settings.runs_dir / TASKS)
    for told in left_out_in_words(found.left_out):
        say(f"left out: {told}")
    with ExitStack() as held:
        store = held.enter_context(Store.open(settings.runs_dir))
        held.enter_context(_alone(settings.runs_dir / SUITES / name))
        authors = known_authors(asked, settings, here, store)
        wanted = wanted_runs(asked, found, authors, store)
        fleet = held.enter_context(closing(_fleet(asked.ray, settings))) if asked.ray else None
        gpu = fleet.gpu if fleet else gpu_info()

        def begun(view: "SuiteView") -> "SuiteWork":
            from kerneltune.agent.commands.rounds import SuiteWork
            from kerneltune.agent.commands.session import workshop

            shop = held.enter_context(workshop(settings, view))
            shop = fleet.workshop(shop) if fleet else shop
            return SuiteWork(
                name, wanted, authors, settings, here, shop, store, view, began, asked.sample_attempts, fleet=fleet
            )

        rows = tuple(SuiteRow(run.label, run.author, run.seed) for run in wanted)
        view = _open_view(choice, SuiteState(name, gpu.name if gpu else None, rows, began))
        end = _worked(begun, found, view, json=json)
    if (code := end.why.exit_code if end.why else None) is not None:
        what = "interrupted" if code == 130 else "a model's provider no longer answered"
        say(f"optimize: {what}; all is stored, and the same command goes on: {same_command()}")
        return code
    return int(bool(end.undrawn if asked.sample_attempts else end.unsolved))


def _worked(
    begun: "Callable[[SuiteView], SuiteWork]", found: "FoundTasks", view: "SuiteView", *, json: bool
) -> "SuiteEnd":
    """Let the suite go on to its end, and print what it came to, also when it is cut short. Raises what cut it short,
    but KeyboardInterrupt only where nothing had begun."""
    from kerneltune.agent.attempt import StopReason

    end: SuiteEnd | None = None
    try:
        with view:
            end = SuiteEnd(begun(view), found)
            end.why = end.work.run()
    except BaseException as error:
        if end is not None:
            end.why = StopReason.INTERRUPTED if isinstance(error, KeyboardInterrupt) else StopReason.FAILED
        if end is None or not isinstance(error, KeyboardInterrupt):
            raise
    finally:
        if end is not None:
            print_end(end, json=json)
    return end


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a suite for the length of a block: two processes would make each run twice. Raises UsageError."""
    from kerneltune.agent.record.folder import alive, process_of

    if (process := process_of(folder)).state == "running":
        who = f"process {process.pid}" if process.pid else "another process"
        raise UsageError(f"suite {folder.name} is under way in {who}; wait for it, or give --name for another one")
    with alive(folder):
        yield


def same_command() -> str:
    """The command that was typed."""
    return " ".join(["optimize", *map(shell_word, sys.argv[1:])])


def suite_name(asked: Asked) -> str:
    """The name of a suite, as given or made of its paths. Raises UsageError for one that is no plain word."""
    if asked.name:
        if not _PLAIN_NAME.fullmatch(asked.name):
            raise UsageError(f"--name {asked.name!r}: give up to 80 letters, digits, . _ + and -")
        return asked.name
    words = [Path(os.path.expanduser(word)).absolute().stem for word in asked.paths]
    kind = [f"eval{asked.sample_attempts}"] if asked.sample_attempts else []
    made = re.sub(r"[^\w.+-]+", "_", "-".join([*kind, *words]), flags=re.ASCII)
    return made[:60].strip("-.+") or "suite"


def left_out_in_words(left_out: "Sequence[LeftOut]") -> list[str]:
    """What was left out, a line for each reason, bounded whatever a folder holds."""
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.why, []).append("/".join(Path(one.path).parts[-2:]))
    told = [
        f"{', '.join(names[:_MOST_TOLD])}{f' and {len(names) - _MOST_TOLD} more' * (len(names) > _MOST_TOLD)}: {why}"
        for why, names in by_reason.items()
    ]
    more = len(told) - _MOST_REASONS
    return [*told[:_MOST_REASONS], f"and files for {more} other reasons"] if more > 0 else told


def known_authors(asked: Asked, settings: Settings, here: Environment, store: "Store") -> "dict[str, Choice]":
    """Each author as it calls itself, asked once, so that a wrong name or key shows before anything is stored. Two
    names of one author are one."""
    from kerneltune.agent.commands.lifecycle import named, require_price
    from kerneltune.agent.commands.rounds import settings_of

    found: dict[str, Choice] = {}
    for one in asked.authors:
        with closing(named(one, "", settings_of(one, asked.authors, settings), here)) as author:
            require_price(author, settings)
            if author.replayed:
                store.find_run(author.replayed)
            if author.name not in {other.name for other in found.values()}:
                found[one] = author
    return found


def wanted_runs(
    asked: Asked, found: "FoundTasks", authors: "Mapping[str, Choice]", store: "Store"
) -> "tuple[SuiteRun, ...]":
    """Every run of the suite: task by task, each author and seed on it; a replay on its own task alone. Raises
    UsageError."""
    from kerneltune.agent.commands.rounds import SuiteRun

    names = [task.name for task in found.tasks]
    labels = [
        task.name if names.count(task.name) == 1 else f"{task.path.parent.name}/{task.name}" for task in found.tasks
    ]
    weights = parsed_weights(asked.weights, {*labels, *names})
    tasks_of = {
        name: store.load_run(store.find_run(author.replayed)).task_sha256
        for name, author in authors.items()
        if author.replayed
    }
    wanted = tuple(
        SuiteRun(task, label, name, seed, weights.get(label, weights.get(task.name, 1.0)))
        for task, label in zip(found.tasks, labels, strict=True)
        for name in authors
        if tasks_of.get(name, task.sha256) == task.sha256
        for seed in range(asked.seeds)
    )
    for name in tasks_of:
        if not any(run.author == name for run in wanted):
            raise UsageError(f"--authors {name}: the task of that run is not among these tasks")
    if len(wanted) > _MOST_RUNS:
        raise UsageError(f"{len(wanted):,} runs are more than the {_MOST_RUNS:,} of a suite; give fewer tasks or seeds")
    return wanted


def parsed_weights(text: str, known: set[str]) -> dict[str, float]:
    """Weights by task. Raises UsageError naming what is wrong."""
    found: dict[str, float] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        task, _, value = part.rpartition("=")
        if task not in known:
            raise UsageError(f"--weights {part!r}: no task {task!r} here; give TASK=WEIGHT, as in softmax=2")
        try:
            found[task] = float(value)
        except ValueError:
            found[task] = 0.0
        if not 0.0 < found[task] < float("inf"):
            raise UsageError(f"--weights {part!r}: {value!r} is not a number above 0")
    return found


def _open_view(choice: "ViewChoice", suite: "SuiteState") -> "SuiteView":
    from kerneltune.agent.view.output import PlainConsole
    from kerneltune.agent.view.suite import SuiteJson, SuiteLines, SuiteScreen

    if choice.kind == "json":
        return SuiteJson(sys.stdout)
    if choice.kind == "plain":
        return SuiteLines(sys.stderr, suite)
    return SuiteScreen(PlainConsole(stderr=True, no_color=not choice.colour), suite)


def _fleet(address: str, settings: Settings) -> "Fleet":
    """The judges of a cluster, which are told of as they begin, are left out and are lost."""
    from kerneltune.agent.commands.fleet import Fleet
    from kerneltune.agent.view.output import say

    say(f"joining the Ray cluster {address}, and measuring its GPUs")
    return Fleet.start(address, settings, say)


# What it came to ------------------------------------------------------------------------------------------------------


@dataclass
class SuiteEnd:
    """A suite that is over, or as far as it has come. `why`: what cut it short."""

    work: "SuiteWork"
    found: "FoundTasks"
    why: "StopReason | None" = None

    @property
    def unsolved(self) -> list[str]:
        """The tasks for which no run has anything accepted."""
        pairs = list(zip(self.work.wanted, self.work.progress, strict=True))
        solved = {run.task.sha256 for run, its in pairs if its.accepted}
        return list(dict.fromkeys(run.label for run, _ in pairs if run.task.sha256 not in solved))

    @property
    def undrawn(self) -> int:
        """How many samples were not drawn to their end."""
        return sum(its.shares == 0 and its.over is None for its in self.work.progress)

    def authors(self) -> "dict[str, Suite]":
        """The stored runs of each author."""
        from kerneltune.agent.commands.report import materials_of
        from kerneltune.agent.report.suite import by_author

        run_ids = [its.run_id for its in self.work.progress if its.run_id]
        return by_author(list(materials_of(self.work.store, run_ids)))


def print_end(end: SuiteEnd, *, json: bool) -> None:
    """Print what the suite came to: one object, or tables and what to type next."""
    if json:
        print(jsonlib.dumps(_result(end), allow_nan=False), flush=True)
        return
    page, authors = standard_page(colour=True), end.authors()
    if not authors:
        return
    _print_runs(page, end)
    _print_shares(page, authors)
    if end.work.sample_attempts:
        _print_samples(page, authors, end.work)
    report = f"optimize report {shell_word(end.work.name)} --suite"
    rows = ((report, "everything as one HTML file"), ("optimize show RUN", "one of its runs"))
    page.print(heading("next"), facts(rows))


def _result(end: SuiteEnd) -> dict[str, Json]:
    """The last object of --json."""
    work, failed = end.work, end.why is not None
    subtype = "success" if not failed else "interrupted" if end.why == "interrupted" else "error"
    return {
        "type": "suite",
        "schema_version": SCHEMA_VERSION,
        "subtype": subtype,
        "is_error": subtype == "error",
        "why": end.why,
        "suite": work.name,
        "gpu": work.shop.place.gpu,
        "runs": list(_runs_json(work)),
        "authors": {name: _author_json(its, work) for name, its in end.authors().items()},
        "unsolved": end.unsolved,
        "not_opened": {
            run.label: work.problems[run.task.sha256] for run in work.wanted if run.task.sha256 in work.problems
        },
        "left_out": [encode(one) for one in end.found.left_out],
        "elapsed_s": round(time.time() - work.began, 3),
    }


def _runs_json(work: "SuiteWork") -> Iterator[dict[str, Json]]:
    for run, its in zip(work.wanted, work.progress, strict=True):
        best = its.best
        yield {
            "task": run.label,
            "author": run.author,
            "seed": run.seed,
            "run_id": its.run_id,
            "shares": its.shares,
            "attempts": its.attempts,
            "accepted": its.accepted,
            "best_attempt_id": best.attempt_id if best else None,
            "best_us": best.timing.median_us if best and best.timing else None,
            "best_speedup": best.speedup if best else None,
            "cost_usd": its.cost_usd,
        }


def _author_json(its: "Suite", work: "SuiteWork") -> dict[str, Json]:
    from kerneltune.agent.report.suite import figures, mean_pass_at_k

    passed = {str(k): mean_pass_at_k(its, k) for k in _ks(work)}
    return figures(its) | ({"pass_at_k": {k: encode(share) for k, share in passed.items()}} if passed else {})


def _ks(work: "SuiteWork") -> list[int]:
    """The k of pass@k that are told: of samples alone."""
    samples = max((run.seed for run in work.wanted), default=0) + 1
    return sorted({k for k in (*_KS, samples) if k <= samples}) if work.sample_attempts else []


def _print_runs(page: Page, end: SuiteEnd) -> None:
    from kerneltune.agent.view.suite import author_label, best_of_row

    seeds = any(run.seed for run in end.work.wanted)
    table = columns(
        "task", "author", *(["seed"] if seeds else []), "attempts", "right", "best", "run",
        right=("seed", "attempts", "right"), cut=("task", "author"),
    )  # fmt: skip
    for run, its in zip(end.work.wanted, end.work.progress, strict=True):
        best = best_of_row(its.best) if its.run_id else "not begun"
        best = "left out" if run.task.sha256 in end.work.problems else best
        seed = [str(run.seed)] if seeds else []
        numbers = (str(its.attempts), str(its.accepted))
        table.add_row(short(run.label), short(author_label(run.author)), *seed, *numbers, best, its.run_id or "-")
    page.print(table)
    begun = sum(its.run_id is not None for its in end.work.progress)
    if left := len(end.work.wanted) - begun:
        page.print(f"{left} of {len(end.work.wanted)} runs were not begun; the shares below are of the others")


def _print_shares(page: Page, authors: "Mapping[str, Suite]") -> None:
    """fast_p where something was timed; else the share of right ones, and that it is no more than that."""
    from kerneltune.agent.report.suite import (
        THRESHOLDS,
        baseline_label,
        cost_in_words,
        mean,
        mean_in_words,
        shares_in_words,
    )
    from kerneltune.agent.view.suite import author_label

    timed = any(its.timed for its in authors.values())
    named = [f"fast_{p:g}" for p in THRESHOLDS] if timed else ["correct"]
    table = columns("author", "by", *named, "runs", "cost", right=(*named, "runs", "cost"), cut=("author",))
    for name, its in authors.items():
        for first in (True, False):
            shares = shares_in_words(its, first=first)[: len(named)]
            rest = ("", "") if first else (str(len(its.materials)), cost_in_words(its))
            table.add_row(short(author_label(name)), "first attempt" if first else "best", *shares, *rest)
    title = "share of the runs that are right and faster than p times the fastest baseline"
    page.print(heading(title if timed else "share of the runs with a right kernel; nothing was timed"), table)
    if not timed:
        return
    means = columns("author", "over", "geometric mean", "n", right=("n",), cut=("author",))
    for name, its in authors.items():
        for baseline in ("fastest", *its.baselines):
            if (found := mean(its, baseline)) is not None:
                means.add_row(short(author_label(name)), baseline_label(baseline), mean_in_words(found), str(found.n))
    page.print(heading("speed-ups of the timed kernels"), means)


def _print_samples(page: Page, authors: "Mapping[str, Suite]", work: "SuiteWork") -> None:
    from kerneltune.agent.report.suite import mean_pass_at_k
    from kerneltune.agent.view.suite import author_label

    table = columns("model", "k", "pass@k", "95 % interval", right=("k", "pass@k"), cut=("model",))
    for name, its in authors.items():
        for k in _ks(work):
            if (share := mean_pass_at_k(its, k)) is not None:
                table.add_row(
                    short(author_label(name)), str(k), f"{share.value:.1%}", f"[{share.low:.1%}, {share.high:.1%}]"
                )
    page.print(heading("right kernels: at least one of k samples"), table)
