"""`optimize report`: finds the runs and what lies beside them, makes the page, and writes it whole or not at all."""

import contextlib
import json as jsonlib
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerneltune.agent.export.privacy import PrivateNames, names_here, names_in
from kerneltune.agent.record.folder import RECEIPTS, folder_of, receipt_path, write_whole
from kerneltune.agent.record.query import Filter, RunSummary
from kerneltune.agent.record.store import FILE_NAME, Store
from kerneltune.agent.record.trajectory import AttemptRecord, Trajectory
from kerneltune.agent.report.data import RunData, claim
from kerneltune.agent.report.page import run_page
from kerneltune.agent.report.suite import suite as suite_of
from kerneltune.agent.report.suite import suite_claim, suite_page
from kerneltune.agent.report.text import Sanitizer
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import StoreError, UsageError
from kerneltune.tools.schema.verdict import versions

SCHEMA_VERSION = 1
_MOST_OF_A_RECEIPT = 50_000_000  # bytes
_STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_NOT_READ = "No receipt of an accepted attempt exists"


@dataclass(frozen=True)
class Wanted:
    """The flags of `optimize report`."""

    runs: Sequence[str]
    output: Path | None = None
    suite: bool = False
    open: bool = False
    json: bool = False

    @property
    def of_many(self) -> bool:
        """Whether it is a suite that is reported."""
        return self.suite or len(self.runs) > 1

    @property
    def to_stdout(self) -> bool:
        """Whether the page itself is the output."""
        return self.output is not None and str(self.output) in _STDOUT


@dataclass(frozen=True)
class Made:
    """A page, where it belongs unless somebody says otherwise, and what it claims."""

    html: str
    home: Path
    statement: str
    runs: tuple[str, ...]


def write_report(wanted: Wanted, runs_dir: Path) -> int:
    """Write the report; 0. Raises UsageError and StoreError."""
    started = time.perf_counter()
    _check(wanted, runs_dir)
    with Store.open(runs_dir) as store:
        made = _suite(store, wanted) if wanted.of_many else _run(store, wanted.runs[0])
    data = made.html.encode("utf-8", "replace")
    if wanted.to_stdout:
        _to_stdout(data)
        return 0
    path = wanted.output or made.home
    _write(path, data)
    told = {"path": str(path), "bytes": len(data), "runs": list(made.runs), "statement": made.statement}
    if wanted.json:
        seconds = round(time.perf_counter() - started, 3)
        print(jsonlib.dumps({"type": "report", "schema_version": SCHEMA_VERSION, **told, "seconds": seconds}))
    else:
        print(path)
        print(made.statement, file=sys.stderr)
    if wanted.open:
        _show(path)
    return 0


def _check(wanted: Wanted, runs_dir: Path) -> None:
    if not wanted.runs and not wanted.suite:
        raise UsageError("a report of which run? `optimize runs` lists them; --suite takes the best run of each task")
    if wanted.to_stdout and (wanted.json or wanted.open):
        raise UsageError("-o - writes the page itself to stdout: leave out --json and --open")
    if not (runs_dir / FILE_NAME).is_file():
        raise UsageError(f"no runs are stored in {runs_dir}; make one (optimize --task softmax), or give --runs-dir")
    if wanted.output is not None and wanted.output.is_dir():
        raise UsageError(f"{wanted.output} is a folder; name a file in it: -o {wanted.output / 'report.html'}")


def _run(store: Store, text: str) -> Made:
    run_id = store.find_run(text.partition("/")[0])
    material = next(_materials(store, [run_id], conversations=True))
    html = run_page(material, Sanitizer(_names(store)), version=versions()["kerneltune"])
    home = folder_of(store.path.parent, run_id) / "report.html"
    return Made(html, home, _plain(store, claim(material).text), (run_id,))


def _suite(store: Store, wanted: Wanted) -> Made:
    run_ids = list(dict.fromkeys(store.find_run(text.partition("/")[0]) for text in wanted.runs))
    chosen = "These are the runs that were named."
    if not run_ids:
        run_ids, tried = _best_of_each_task(store)
        chosen = (
            f"Of {tried} stored runs, the best of each task and GPU was chosen by its measured speed-up; choosing the"
            " best of several favours luck a little."
        )
    materials = sorted(_materials(store, run_ids), key=lambda m: m.trajectory.run.task)
    html = suite_page(materials, Sanitizer(_names(store)), version=versions()["kerneltune"], chosen=chosen)
    statement = " ".join(suite_claim(suite_of(materials)))
    return Made(html, store.path.parent / "suite.html", _plain(store, statement), tuple(run_ids))


def _plain(store: Store, statement: str) -> str:
    """The statement as a terminal may show it."""
    return Sanitizer(_names(store)).line(statement, 2_000)


def _names(store: Store) -> PrivateNames:
    names = names_here()
    for machine in store.machines():
        names |= names_in(machine)
    return names


def _best_of_each_task(store: Store) -> tuple[list[str], int]:
    """The best run of every task on every GPU, and of how many: with a speed-up before without, the faster first."""
    all_of_them = store.runs(Filter(limit=2**31))
    if not all_of_them:
        raise UsageError(f"{store.path} holds no run yet; make one: optimize --task softmax")
    hashes = {chosen.run_id: chosen.task_sha256 for chosen in store.choose()}
    best: dict[tuple[str | None, str | None], RunSummary] = {}
    for run in all_of_them:  # the latest first
        key = (hashes.get(run.run_id), run.gpu)
        if key not in best or _merit(run) > _merit(best[key]):
            best[key] = run
    timed = {task for (task, gpu), run in best.items() if gpu is not None and run.best_speedup is not None}
    kept = [run.run_id for (task, gpu), run in best.items() if gpu is not None or task not in timed]
    return kept, len(all_of_them)


def _merit(run: RunSummary) -> tuple[bool, bool, float, bool]:
    """More is better; what a verification did not bear out comes last."""
    speedup = run.best_speedup
    return run.verified is not False, speedup is not None, speedup or 0.0, run.best_attempt_id is not None


def _materials(store: Store, run_ids: Sequence[str], *, conversations: bool = False) -> Iterator[RunData]:
    wanted = set(run_ids)
    chosen = [run for run in store.choose() if run.run_id in wanted]
    for trajectory in store.trajectories(chosen, conversations=conversations):
        yield _material(store, trajectory)


def _material(store: Store, trajectory: Trajectory) -> RunData:
    run_id, best = trajectory.run.run_id, trajectory.best
    folder = folder_of(store.path.parent, run_id)
    course = store.load_course(run_id)
    if best is None or not best.accepted:
        return RunData(trajectory, course, None, _NOT_READ, _any_receipt(folder))
    receipt, note = _receipt(receipt_path(folder, best.attempt_id), best)
    return RunData(trajectory, course, receipt, note, None if receipt else _any_receipt(folder))


def _receipt(path: Path, best: AttemptRecord) -> tuple[Json, str]:
    try:
        told = _read(path)
    except FileNotFoundError:
        return None, f"The receipt of attempt {best.number} does not lie beside the record"
    except (OSError, ValueError, RecursionError):
        return None, f"The receipt of attempt {best.number} cannot be read"
    if not isinstance(told, dict) or told.get("attempt_id") != best.attempt_id:
        return None, f"The receipt of attempt {best.number} is of another attempt"
    return told, ""


def _read(path: Path) -> Json:
    if path.stat().st_size > _MOST_OF_A_RECEIPT:
        raise ValueError("too large for a receipt")
    return jsonlib.loads(path.read_text())


def _any_receipt(folder: Path) -> Json:
    for path in sorted((folder / RECEIPTS).glob("*.json"))[:3]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            return _read(path)
    return None


def _write(path: Path, data: bytes) -> None:
    try:
        if _is_special(path):
            with open(path, "wb") as file:
                file.write(data)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path.resolve(), data)  # a link stays a link
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise StoreError(f"the report {path} cannot be written: {getattr(error, 'strerror', error)}") from error


def _is_special(path: Path) -> bool:
    """A pipe or a device: whoever reads it would get nothing from a file put in its place."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _to_stdout(data: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _show(path: Path) -> None:
    import webbrowser

    if not webbrowser.open(path.absolute().as_uri()):
        print(f"optimize: no browser could be opened; the report is {path}", file=sys.stderr)
