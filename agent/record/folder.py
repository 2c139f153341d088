"""What lies of a run beside the database: its folder, the lock of its process, receipts, best.py. Files are whole or
absent.

Is a run that has not ended still run by a process? A lock says so, which the operating system takes from the dead. The
lock is POSIX's: workers that the process forked do not hold it, and asking does not take it, even for a moment. A
process loses it when it closes the file, so the process that holds a run must not ask about it.
"""

import contextlib
import errno
import fcntl
import glob
import json
import os
import platform
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import RunStarted
from kerneltune.tools.schema.codec import Json, counted, one_line, shell_word
from kerneltune.tools.schema.errors import CannotPackage, StoreError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import NOT_TIMED, Tier, Verdict

if TYPE_CHECKING:
    from kerneltune.tools.receipt import ReceiptContext
    from kerneltune.tools.sandbox.wire import Enforced
    from kerneltune.tools.update import Update

RECEIPTS = "receipts"  # the folder in a run's
PROCESS = "process.json"
VERIFY = ".verify-"  # in the name of a verification's receipt, before its number
_FLOCK = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, length, pid
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a folder of a run may have come from elsewhere
_MOST = 4096  # bytes of what is read
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP)
_held: set[Path] = set()  # by this process, to which the system would give its own lock again
_claiming = threading.Lock()
_LONGEST_NAME = 200  # bytes; file systems take 255


@dataclass(frozen=True)
class RunProcess:
    """What is known of the process of a run. `pid` is None unless it runs and has a number here."""

    state: Literal["running", "gone", "unknown"]
    pid: int | None = None


def is_plain(run_id: object) -> bool:
    """Whether a run's id is the name of a folder and no way out of the runs directory: ids come with merged records."""
    return (
        isinstance(run_id, str)
        and run_id.isprintable()
        and Path(run_id).name == run_id != ""
        and not run_id.startswith(".")
        and len(run_id.encode(errors="replace")) <= _LONGEST_NAME
    )


def folder_of(runs_dir: Path, run_id: str) -> Path:
    """A run's folder, which is always in the runs directory; it need not exist."""
    return runs_dir / (run_id if is_plain(run_id) else "strange-id")


def make_private(folder: Path) -> None:
    """Make a run's folder or one in it, and what is missing above, for this user alone: what people and models wrote
    lies there. Raises OSError."""
    if not folder.parent.is_dir():
        make_private(folder.parent)
    folder.mkdir(0o700, exist_ok=True)


@contextlib.contextmanager
def alive(run_folder: Path) -> Iterator[None]:
    """Hold the run for the length of a block. Raises StoreError when it is held already, or the folder may not be
    written; where there are no folders or no locks, nobody will know."""
    folder = run_folder.resolve()
    with _claiming:
        if folder in _held:
            raise StoreError(f"run {run_folder.name} is run by this process already")
        _held.add(folder)
    try:
        with contextlib.ExitStack() as held:
            if (file := _opened(run_folder)) is not None:
                held.callback(os.close, file)
                _take(file, run_folder)
            yield
    finally:
        _held.discard(folder)


def _opened(run_folder: Path) -> int | None:
    path = run_folder / PROCESS
    try:
        make_private(run_folder)
        return os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o600)
    except OSError as error:
        if error.errno in _REFUSED:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from error
        return None


def _take(file: int, run_folder: Path) -> None:
    """Lock it and say who did; that nothing could be written down matters to nobody."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise StoreError(f"run {run_folder.name} is run by another process{_named(run_folder)}") from error
        return
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, 0)
            os.write(file, json.dumps({"host": platform.node(), "pid": os.getpid()}).encode())


def _named(run_folder: Path) -> str:
    pid = process_of(run_folder).pid
    return f", {pid}; follow it with: optimize watch {shell_word(run_folder.name)}" if pid else ""


def process_of(run_folder: Path) -> RunProcess:
    """Whether a process runs the run now. "unknown": it never held a lock here (an older version, another machine)."""
    try:
        file = os.open(run_folder / PROCESS, os.O_RDONLY | _SAFELY)
        try:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                return RunProcess("running", pid if pid > 0 else None)
            return RunProcess("gone" if _host(os.read(file, _MOST)) == platform.node() else "unknown")
        finally:
            os.close(file)
    except (OSError, ValueError):  # ValueError: a NUL in a foreign id
        return RunProcess("unknown")


def _host(text: bytes) -> object:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return told.get("host") if isinstance(told, dict) else None


# Receipts: receipts/NUMBER.json, one for each attempt, that of the verdict that counts -------------------------------


class ReceiptBook:
    """Writes receipts into `folder`/receipts; None only makes them. `enforced`, what holds a worker of each role, is
    asked when one is due: the fork servers are warm by then."""

    def __init__(
        self, folder: Path | None, setting: "ReceiptContext", enforced: Callable[[], "Mapping[str, Enforced]"]
    ) -> None:
        self._folder, self._setting, self._enforced = folder, setting, enforced

    def keep(
        self, attempt_id: str, source: str, update: "Update", verdict: Verdict, asked: Tier | None
    ) -> dict[str, Json]:
        """Make the receipt of the verdict that counts, and write it. Raises StoreError when it cannot be written."""
        made = self.made(attempt_id, source, update, verdict, asked)
        self.write(attempt_id, made)
        return made

    def write(self, attempt_id: str, made: dict[str, Json]) -> None:
        """Write what was made, if there is a folder. Raises StoreError."""
        if self._folder is not None:
            _write(receipt_path(self._folder, attempt_id), made)

    def keep_again(
        self, attempt_id: str, source: str, update: "Update", verdict: Verdict, asked: Tier | None
    ) -> tuple[dict[str, Json], Path]:
        """The same for a later verification, which gets a file of its own: 3.verify-1.json, 3.verify-2.json, …"""
        made = self.made(attempt_id, source, update, verdict, asked)
        path = free_verify_path(receipt_path(self._folder or Path(), attempt_id))
        _write(path, made)
        return made, path

    def made(
        self, attempt_id: str, source: str, update: "Update", verdict: Verdict, asked: Tier | None
    ) -> dict[str, Json]:
        """Make a receipt."""
        from kerneltune.tools.receipt import receipt  # brings numpy; `optimize show` only asks where a receipt lies

        return receipt(
            self._setting,
            self._enforced(),
            attempt_id=attempt_id,
            source=source,
            update=update,
            verdict=verdict,
            asked=asked,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def receipt_path(run_folder: Path, attempt_id: str) -> Path:
    """Where the receipt of an attempt lies."""
    return run_folder / RECEIPTS / f"{attempt_id.rpartition('/')[2]}.json"


def verify_paths(receipt: Path) -> list[Path]:
    """The receipts of later verifications of the attempt that this is the receipt of."""
    return sorted(receipt.parent.glob(f"{glob.escape(receipt.stem)}{VERIFY}*.json"))


def free_verify_path(receipt: Path) -> Path:
    """Where the next one belongs: behind the last."""
    last = max((counted(path.stem.rpartition("-")[2]) or 0 for path in verify_paths(receipt)), default=0)
    return receipt.with_name(f"{receipt.stem}{VERIFY}{last + 1}.json")


def _write(path: Path, made: dict[str, Json]) -> None:
    try:
        make_private(path.parent)
        write_whole(path, (json.dumps(made, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise StoreError(f"the receipt {path} cannot be written: {error.strerror}") from error


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write beside `path`, then put it in its place; nothing is left beside it when that fails. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _SAFELY, mode), "wb") as file:
            file.write(data)
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


# best.py: the best kernel of a run as a file that a person can use ----------------------------------------------------


def write_best(folder: Path, attempt: Attempt, run: RunStarted, task: TaskSpec) -> Path:
    """Write `folder`/best.py atomically and return its path; beside it the same kernel as a file that can be put into a
    model, if it can be. Raises StoreError when they cannot be written."""
    from kerneltune.tools.package.write import file_name  # whoever only asks where something lies needs no syntax trees

    path, beside = folder / "best.py", folder / file_name(task)
    source = attempt.source.removeprefix("\ufeff")  # legal at the start of a file only
    try:
        make_private(folder)
        write_whole(path, (header(attempt, run, task) + source).encode())
        try:
            write_whole(beside, packaged_attempts([(attempt, run, task)]).encode())
        except CannotPackage:
            beside.unlink(missing_ok=True)  # an earlier best
    except OSError as error:
        raise StoreError(f"the best kernel {path} cannot be written: {error.strerror}") from error
    return path


Accepted = tuple[Attempt, RunStarted, TaskSpec]


def packaged_attempts(accepted: Sequence[Accepted], module: str = "", backward: Sequence[Accepted] = ()) -> str:
    """Accepted attempts of one op as one file that can be put into a model, which chooses by shape. `module`: by what
    name it will be imported; `backward`: those of its gradients. Raises CannotPackage."""
    from kerneltune.tools.package.write import VerifiedKernel, packaged

    every = [*accepted, *backward]
    if len(archs := {run.arch for _, run, _ in every}) > 1:
        raise CannotPackage(f"the kernels are for different GPUs ({', '.join(sorted(archs))}); package them apart")
    headers = "".join(header(attempt, run, task, use="") for attempt, run, task in every)
    alike = len({run.gpu for _, run, _ in accepted}) == 1  # times of different GPUs do not compare
    kernels = [VerifiedKernel(task, a.source, _times_us(a, task) if alike else {}) for a, _, task in accepted]
    gradients = [VerifiedKernel(task, a.source) for a, _, task in backward]
    return packaged(kernels, arch=accepted[0][1].arch, header=headers, module=module, backward=gradients)


def _times_us(attempt: Attempt, task: TaskSpec) -> dict[str, float]:
    """The median time of each case that was timed, by its name."""
    if attempt.case_times:
        return {its.case: its.timing.median_us for its in attempt.case_times}
    return {case.name: attempt.timing.median_us for case in task.cases[:1]} if attempt.timing else {}


_USE = "from best import ModelNew; ModelNew takes the constructor and forward arguments of the task's Model."


def header(attempt: Attempt, run: RunStarted, task: TaskSpec, use: str = _USE) -> str:
    """What was proved, where, and how to use it, as comments.

    Models and files chose parts of these texts. The first two lines are fixed, because Python takes an encoding
    ("coding: utf-7") from any comment there.
    """
    verdict, its = attempt.judged, shell_word(attempt.attempt_id)
    lines = [
        f"The {'best accepted kernel' if verdict.timing else 'first choice, not timed,'} of a kerneltune run.",
        "",
        f"{task.name}: attempt {attempt.number} of run {run.run_id} ({attempt.rationale})",
        "",
        f"Verdict: {verdict.status.value}. {verdict.detail}",
        *_measured(verdict),
        *_compiled(attempt),
        f"Where: {run.gpu or 'no GPU (TTIR interpreter)'}; compiled for {run.arch}; "
        + ", ".join(f"{k} {v}" for k, v in run.versions.items() if k in ("torch", "triton", "kerneltune")),
        f"Task: sha256 {run.task_sha256[:16]}, precision {task.precision}",
        f"Receipt: {receipt_path(Path(), attempt.attempt_id)}; repeat it with: optimize verify {its}",
        *(["", f"Use: {use}"] if use else []),
    ]
    return "".join(map(_comment, lines)) + "\n"


def _comment(text: str) -> str:
    """The text as one line of comment, whatever it holds."""
    return f"# {one_line(text)}".rstrip() + "\n"


def _measured(verdict: Verdict) -> list[str]:
    if verdict.timing is None:
        why = "there was no GPU" if verdict.not_timed is None else NOT_TIMED[verdict.not_timed]
        return [f"Not timed: {why}."]
    timing = verdict.timing
    tier = f", {verdict.tier}" if verdict.tier else ""
    lines = [f"Time: median {timing.median_us:.2f} us [{timing.low_us:.2f}, {timing.high_us:.2f}], cold L2{tier}"]
    lines += [
        f"Case {its.case} (weight {its.weight:g}): median {its.timing.median_us:.2f} us"
        + "".join(f", {c.speedup:.3f}x {c.baseline}" for c in its.comparisons)
        for its in verdict.case_times
    ]
    return lines + [
        f"Speed-up over {c.baseline}: {c.speedup:.3f}x [{c.low:.3f}, {c.high:.3f}] ({c.baseline_us:.2f} us)"
        for c in verdict.comparisons
    ]


def _compiled(attempt: Attempt) -> list[str]:
    return [
        f"Kernel {k.name}: {k.registers} registers, {k.spill_bytes} bytes spilled, "
        f"{k.shared_bytes} bytes shared, occupancy {k.occupancy:.2f}"
        for k in attempt.kernels
    ]
