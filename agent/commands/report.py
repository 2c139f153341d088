"""`optimize report`: finds the runs and what lies beside them, makes the page, and writes it whole or not at all."""

import json as jsonlib
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from cyclopts import App, Parameter

from kerneltune.agent.commands import AsJson, RunsDir, no_runs, require_record
from kerneltune.agent.export.privacy import names_known
from kerneltune.agent.record.folder import folder_of, receipt_path, write_whole
from kerneltune.agent.report.data import RunData, claim
from kerneltune.agent.report.page import run_page
from kerneltune.agent.report.text import Sanitizer
from kerneltune.agent.settings import chosen_settings
from kerneltune.agent.view.output import LineWriter, say, status_line
from kerneltune.agent.view.state import Spending
from kerneltune.tools.schema.codec import Json, parsed, read_file, reason
from kerneltune.tools.schema.errors import StoreError, UsageError
from kerneltune.tools.schema.verdict import versions

if TYPE_CHECKING:
    from kerneltune.agent.attempt import Attempt
    from kerneltune.agent.record.query import RunSummary
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.record.trajectory import Trajectory

SCHEMA_VERSION = 1
_STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_NOT_READ = "No receipt of an accepted attempt exists"

command = App(
    name="report",
    help_epilogue="""
Examples:
    optimize report 20260101-120000-softmax-ab12   to runs/RUN/report.html
    optimize report 20260101-12 -o report.html     the start of an id is enough
    optimize report 20260101-12 --open             and show it
    optimize report 20260101-12 -o - > report.html
    optimize report --suite -o suite.html          the best run of each task
    optimize report RUN1 RUN2 RUN3                 just these, as a suite
    optimize report builtin --suite                the runs of `optimize suite builtin`
""",
)


@command.default
def report(
    *runs: Annotated[
        str,
        Parameter(metavar="RUN", help="A stored run, or the start of its id; several make a suite. A suite's name."),
    ],
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"], metavar="FILE", help="The file to write, - for stdout.", allow_leading_hyphen=True
        ),
    ] = None,
    suite: Annotated[
        bool, Parameter(help="One report over many tasks: the runs named, or the best of each task.", negative="")
    ] = False,
    open: Annotated[bool, Parameter(help="Show it in the browser.", negative="")] = False,
    runs_dir: RunsDir = None,
    json: AsJson = False,
) -> int:
    """Write a report for a colleague: one HTML file, readable offline, without scripts.

    It needs runs.db and, for the facts of the measurement, the receipts beside it.
    """
    settings = chosen_settings(locals())
    return write_report(runs, settings.runs_dir, output=output, suite=suite, show=open, json=json)


@dataclass(frozen=True)
class ReportPage:
    """A page, where it belongs unless somebody says otherwise, and what it claims."""

    html: str
    home: Path
    statement: str
    runs: tuple[str, ...]


def write_report(
    runs: Sequence[str],
    runs_dir: Path,
    *,
    output: Path | None = None,
    suite: bool = False,
    show: bool = False,
    json: bool = False,
) -> int:
    """Write the report of a run, or of a suite of them; 0. Raises UsageError and StoreError."""
    from kerneltune.agent.record.store import Store

    started, to_stdout = time.perf_counter(), output is not None and str(output) in _STDOUT
    if not runs and not suite:
        raise UsageError("a report of which run? `optimize runs` lists them; --suite takes the best run of each task")
    if to_stdout and (json or show):
        raise UsageError("-o - writes the page itself to stdout: leave out --json and --open")
    require_record(runs_dir)
    if output is not None and output.is_dir():
        raise UsageError(f"{output} is a folder; name a file in it: -o {output / 'report.html'}")
    with Store.open(runs_dir, to_look=True) as store, status_line("making the report"):
        many = suite or len(runs) > 1
        page = _suite_page(store, runs, linked=output is None) if many else _run_page(store, runs[0])
    data = page.html.encode("utf-8", "replace")
    if to_stdout:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return 0
    path = output or page.home
    _write(path, data)
    if json:
        facts = {"path": str(path), "bytes": len(data), "runs": list(page.runs), "statement": page.statement}
        seconds = round(time.perf_counter() - started, 3)
        print(jsonlib.dumps({"type": "report", "schema_version": SCHEMA_VERSION, **facts, "seconds": seconds}))
    else:
        LineWriter(sys.stdout).write(str(path))
        say(page.statement)
    if show:
        _open_in_browser(path)
    return 0


def _run_page(store: "Store", text: str) -> ReportPage:
    run_id = store.find_run(text.partition("/")[0])
    material = next(materials_of(store, [run_id], conversations=True))
    shown = Sanitizer(names_known(store.machines()))
    html = run_page(material, shown, version=versions()["kerneltune"])
    home = folder_of(store.path.parent, run_id) / "report.html"
    return ReportPage(html, home, shown.line(claim(material).text, 2_000), (run_id,))


def _suite_page(store: "Store", runs: Sequence[str], *, linked: bool) -> ReportPage:
    """`linked`: to the reports of its runs, which are written beside their kernels; a page that is put elsewhere could
    not find them."""
    from kerneltune.agent.report.suite import suite, suite_claim, suite_page

    named = [store.of_suite(text) or [store.find_run(text.partition("/")[0])] for text in runs]
    run_ids = list(dict.fromkeys(run_id for its in named for run_id in its))
    chosen = "These are the runs named, or the runs of the suite named."
    if not run_ids:
        run_ids, tried = _best_of_each_task(store)
        chosen = (
            f"Of {tried} stored runs, the best of each task and GPU was chosen by its measured speed-up; choosing the"
            " best of several slightly overestimates the speed-up."
        )
    materials = sorted(materials_of(store, run_ids), key=lambda m: m.trajectory.run.task)
    shown = Sanitizer(names_known(store.machines()))
    links = {}
    for run_id in run_ids if linked else ():
        its = _run_page(store, run_id)
        _write(its.home, its.html.encode("utf-8", "replace"))
        links[run_id] = quote(str(its.home.relative_to(store.path.parent)))
    html = suite_page(materials, shown, version=versions()["kerneltune"], chosen=chosen, links=links)
    statement = " ".join(suite_claim(suite(materials)))
    return ReportPage(html, store.path.parent / "suite.html", shown.line(statement, 2_000), tuple(run_ids))


def _best_of_each_task(store: "Store") -> tuple[list[str], int]:
    """The best run of every task on every GPU, and of how many: with a speed-up before without, the faster first."""
    from kerneltune.agent.record.query import Filter

    all_of_them = store.runs(Filter(limit=2**31))
    if not all_of_them:
        raise no_runs(store.path.parent)
    hashes = {chosen.run_id: chosen.task_sha256 for chosen in store.choose()}
    best: dict[tuple[str | None, str | None], RunSummary] = {}
    for run in all_of_them:  # the latest first
        key = (hashes.get(run.run_id), run.gpu)
        if key not in best or _merit(run) > _merit(best[key]):
            best[key] = run
    timed = {task for (task, gpu), run in best.items() if gpu is not None and run.best_speedup is not None}
    kept = [run.run_id for (task, gpu), run in best.items() if gpu is not None or task not in timed]
    return kept, len(all_of_them)


def _merit(run: "RunSummary") -> tuple[bool, bool, float, bool]:
    """More is better; what a verification did not bear out comes last."""
    speedup = run.best_speedup
    return run.verified is not False, speedup is not None, speedup or 0.0, run.best_attempt_id is not None


def materials_of(store: "Store", run_ids: Sequence[str], *, conversations: bool = False) -> Iterator[RunData]:
    """These runs, each with what lies beside the record."""
    wanted = set(run_ids)
    chosen = [run for run in store.choose() if run.run_id in wanted]
    for trajectory in store.trajectories(chosen, conversations=conversations):
        yield _material(store, trajectory)


def _material(store: "Store", trajectory: "Trajectory") -> RunData:
    run_id, best = trajectory.run.run_id, trajectory.best
    folder = folder_of(store.path.parent, run_id)
    course, spending = store.load_course(run_id), Spending(*store.spending(run_id))
    if best is None or not best.accepted:
        return RunData(trajectory, course, None, _NOT_READ, spending)
    receipt, note = _receipt(receipt_path(folder, best.attempt_id), best)
    return RunData(trajectory, course, receipt, note, spending)


def _receipt(path: Path, best: "Attempt") -> tuple[Json, str]:
    try:
        found = _read(path)
    except FileNotFoundError:
        return None, f"The receipt of attempt {best.number} does not lie beside the record"
    except (OSError, ValueError, RecursionError):
        return None, f"The receipt of attempt {best.number} cannot be read"
    if not isinstance(found, dict) or found.get("attempt_id") != best.attempt_id:
        return None, f"The receipt of attempt {best.number} is of another attempt"
    return found, ""


def _read(path: Path) -> Json:
    return parsed(read_file(path).decode())


def _write(path: Path, data: bytes) -> None:
    try:
        if _is_special(path):
            with open(path, "wb") as file:
                file.write(data)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path.resolve(), data, 0o666)  # a link stays a link; a page is made to be shown
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise StoreError(f"the report {path} cannot be written: {reason(error)}; -o names another place") from error


def _is_special(path: Path) -> bool:
    """A pipe or a device: whoever reads it would get nothing from a file put in its place."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _open_in_browser(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.absolute().as_uri()):
        say(f"optimize: no browser could be opened; the report is {path}")
