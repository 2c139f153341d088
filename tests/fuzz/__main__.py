"""Fuzzes the readers of untrusted bytes: `python -m tests.fuzz [--seconds 600] [--jobs 2] [--out FOLDER] [TARGET …]`.

Atheris (libFuzzer) looks for inputs that reach new code; `mutate` changes them so that their shape stays whole. Every
target is a process of its own. Each way to fail is kept once: the input as FOLDER/TARGET/NAME, and beside it, in
NAME.txt, how it failed. Prints a table; ends with 1 where something failed. What is in `saved/` was found so, and the
tests read it again.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tests.fuzz import mutate

if TYPE_CHECKING:
    from tests.fuzz.targets import FuzzTarget

HERE = Path(__file__).parent
LONGEST_S = 10.0  # of processor time for one input; code that is watched for coverage takes several times as long
MOST_GROWTH_KB = 512 << 10  # of memory, by one input
MOST_MEMORY_BYTES = 6 << 30
GRACE_S = 60.0  # to load and to read the seeds
SHARED = Path("/dev/shm")  # files in memory
SLOW = ("ttir", "ptx", "ptx_run", "events", "database", "plan")


class TooLong(BaseException):
    """An input took too long. No `except Exception` stops it."""


class FuzzProcess:
    """One target in a process of its own, until its time is over: counts, and a file for each way to fail."""

    def __init__(self, target: "FuzzTarget", folder: Path, seconds: float, seeds: Sequence[bytes]) -> None:
        self.target, self.folder, self.seeds = target, folder, seeds
        self.until_s, self.loaded_s = time.monotonic() + seconds, time.process_time()
        self.executions, self.longest_s = 0, 0.0
        self.found: dict[str, str] = {}
        self.rng = random.Random(f"{folder} {os.getpid()}")

    def read(self, data: bytes) -> None:
        """Try an input. Ends the process when its time is over."""
        if time.monotonic() > self.until_s:
            self._note()
            os._exit(0)
        before_s, before_kb = time.process_time(), _memory_kb()
        signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
        try:
            self.target.read(data)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except (TooLong, Exception) as error:  # noqa: BLE001 - whatever it is, it is a finding
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self._keep(data, _place(error), traceback.format_exc())
        self.executions += 1
        self.longest_s = max(self.longest_s, time.process_time() - before_s)
        if (grown_kb := _memory_kb() - before_kb) > MOST_GROWTH_KB:
            self._keep(data, "memory", f"{grown_kb >> 10} MiB more than before")
        if self.executions % 64 == 0:
            self._note()

    def changed(self, data: bytes, longest: int, seed: int) -> bytes:
        """Another input, made of one."""
        import atheris

        made: bytes | None = None
        if self.target.shape == "json" and self.rng.random() < 0.9:
            made = mutate.of_json_text(data, self.rng)
        elif self.target.shape == "text" and self.rng.random() < 0.8:
            other = self.rng.choice(self.seeds).decode("utf-8", "replace")
            made = mutate.of_text(data.decode("utf-8", "replace"), self.rng, other).encode("utf-8", "surrogatepass")
        return bytes(made if made is not None else atheris.Mutate(data, longest))[:longest]

    def _keep(self, data: bytes, how: str, words: str) -> None:
        """Keep an input, unless another failed in the same way."""
        if how in self.found:
            return
        name = hashlib.sha256(data).hexdigest()[:12]
        self.found[how] = name
        (self.folder / name).write_bytes(data)
        (self.folder / f"{name}.txt").write_text(f"{how}\n\n{words}", errors="replace")
        self._note()

    def _note(self) -> None:
        """Write down how far it is."""
        cpu_s = time.process_time() - self.loaded_s
        told = {"executions": self.executions, "longest_s": self.longest_s, "found": self.found, "cpu_s": cpu_s}
        (self.folder / "state.json").write_text(json.dumps(told))


def _memory_kb() -> int:
    """The most that this process had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _place(error: BaseException) -> str:
    """The innermost line of ours that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/kerneltune/" in f.filename or "/tools/" in f.filename or "/agent/" in f.filename]
    frame = (ours or list(frames))[-1]
    return f"{type(error).__name__} at {'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"


def _too_long(signum: int, frame: FrameType | None) -> NoReturn:
    raise TooLong


def fuzz(name: str, seconds: float, folder: Path) -> None:
    """Fuzz one target in this process, which does not come back."""
    import atheris

    kind = name.partition(".")[0]
    with atheris.instrument_imports(include=["kerneltune"]):
        from tests.fuzz.targets import TARGETS

        target = TARGETS[kind]
        seeds = [seed for seed in target.seeds() if len(seed) <= target.longest]
        for seed in seeds:  # what is imported late is watched, too
            target.read(seed)
    seeds += [path.read_bytes() for path in sorted((HERE / "saved" / kind).glob("*"))]
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    signal.signal(signal.SIGVTALRM, _too_long)
    process = FuzzProcess(target, folder, seconds, seeds)
    options = [f"-max_len={target.longest}", "-timeout=100", "-rss_limit_mb=0", "-print_final_stats=0", "-verbosity=0"]
    options += [f"-artifact_prefix={folder}/killed-", "-len_control=0", "-reload=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], process.read, custom_mutator=process.changed)
    atheris.Fuzz()


def _started(name: str, seconds: float, out: Path) -> subprocess.Popen[bytes]:
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "tests.fuzz", "--only", name, "--seconds", str(seconds), "--out", str(out)]
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _row(name: str, out: Path, code: int | None, wall_s: float) -> tuple[list[str], list[Path]]:
    """A row of the table, and the inputs that failed."""
    folder = out / name
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except (OSError, ValueError):
        state = {"executions": 0, "longest_s": 0.0, "found": {}, "cpu_s": 0.0}
    failed = [folder / kept for kept in state["found"].values()] + sorted(folder.glob("killed-*"))
    if code != 0 and not failed:
        failed = [folder / "log"]
    rate = state["executions"] / max(1e-9, state["cpu_s"])
    row = [
        name,
        str(state["executions"]),
        f"{rate:.0f}",
        f"{state['cpu_s']:.0f}",
        f"{state['longest_s']:.1f}",
        str(len(failed)),
    ]
    return row, failed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all targets together")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "kerneltune-fuzz")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        fuzz(given.only, given.seconds, given.out / given.only)
        return 0
    from tests.fuzz.targets import TARGETS

    names = list(given.targets or TARGETS)
    while len(names) < given.jobs:  # the slowest ones get a second process, and a third
        names.append(f"{SLOW[len(names) % len(SLOW)]}.{len(names)}")
    share_s = given.seconds * min(given.jobs, len(names)) / len(names)
    with tempfile.TemporaryDirectory(prefix="kerneltune-fuzz-", dir=SHARED if SHARED.is_dir() else None) as scratch:
        os.environ["TMPDIR"] = scratch  # of the processes, which may be killed
        rows, failed = _all(names, share_s, given.jobs, given.out)
    header = ["target", "executions", "per CPU second", "CPU s", "longest s", "failures"]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, *rows]:
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
        )
    for path in failed:
        how = path.with_name(f"{path.name}.txt")
        print(f"{path}: {how.read_text().partition(chr(10))[0] if how.exists() else 'the process ended'}")
    return int(bool(failed))


def _all(names: list[str], share_s: float, jobs: int, out: Path) -> tuple[list[list[str]], list[Path]]:
    """Run targets side by side, `share_s` seconds each."""
    waiting, running, ended = list(names), dict[str, tuple[subprocess.Popen[bytes], float]](), dict[str, Any]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                running[name] = _started(name, share_s, out), time.monotonic()
            for name, (process, began_s) in list(running.items()):
                wall_s = time.monotonic() - began_s
                if process.poll() is None and wall_s > share_s + GRACE_S + 4 * LONGEST_S:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                if process.poll() is not None:
                    del running[name]
                    ended[name] = _row(name, out, process.returncode, wall_s)
            time.sleep(0.2)
    finally:
        for process, _ in running.values():
            os.killpg(process.pid, signal.SIGKILL)
    return [ended[name][0] for name in names], [path for name in names for path in ended[name][1]]


if __name__ == "__main__":
    sys.exit(main())
