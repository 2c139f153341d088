"""A GPU's worker as seen from outside: asked for one step at a time, watched, and ended in time whatever it does."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.codec import Json
from tools.workers import describe_exit

_ROOT = Path(__file__).resolve().parents[1]
_TICK_S = 0.2
_INTERRUPTED = 130


@dataclass(frozen=True)
class Answer:
    """How a step ended. `exit_code`: in the worker's words, else that of its process; `why`: "" where nothing is to be
    said; `more`: what else the worker told."""

    exit_code: int | None
    seconds: float
    why: str = ""
    more: Mapping[str, Json] = field(default_factory=dict)


class GpuWorker:
    """A process that is started when it is needed and none runs. `why_end`: why the step under way has to end now, ""
    while it need not. One thread asks; any may kill."""

    def __init__(
        self, command: Sequence[str], gpu: str | None, logs: Path, grace_s: float, why_end: Callable[[], str]
    ) -> None:
        self.gpu, self.name = gpu, f"gpu{gpu or ''}"
        self._command, self._logs, self._grace_s, self._why_end = command, logs, grace_s, why_end
        self._process: subprocess.Popen[str] | None = None
        self._reading: threading.Thread | None = None
        self._answers: queue.SimpleQueue[dict[str, Json] | None] = queue.SimpleQueue()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def runs(self) -> bool:
        """Whether there is a process to ask."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process. What is left of one before is ended."""
        self.end()
        self._scratch = tempfile.TemporaryDirectory(prefix="gpu-worker-", ignore_cleanup_errors=True)
        with (self._logs / f"{self.name}.worker.txt").open("a") as log:
            self._process = subprocess.Popen(
                [*self._command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1,
                cwd=_ROOT, env=_environment(self.gpu, self._scratch.name), start_new_session=True,
            )  # fmt: skip
        self._answers = queue.SimpleQueue()
        self._reading = threading.Thread(target=_read, args=(self._process, self._answers), daemon=True)
        self._reading.start()

    def ask(self, step: str, log: str, limit_s: float, **asked: Json) -> Answer:
        """One step, and how it ended; what it prints goes into the file `log`. A worker that was told to end, or ended
        of itself, is gone afterwards."""
        path, began_s = self._logs / f"{log}.txt", time.monotonic()
        path.write_text("")
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it is gone, which shows at once
                self._process.stdin.write(json.dumps({"do": step, "log": str(path), **asked}) + "\n")
        answer, told = self._answer(began_s + limit_s, f"ended: it took more than {limit_s:.0f} s")
        code, over, seconds = answer.pop("exit_code", None), answer.pop("over", True), answer.pop("seconds", None)
        if told or over:
            died = self.end(by_force="by force" in told)
            code = died if code is None else code
        seconds = seconds or round(time.monotonic() - began_s, 1)
        return Answer(code, seconds, told or _why(code, path), answer)

    def _answer(self, until_s: float, too_long: str) -> tuple[dict[str, Json], str]:
        """The answer, {} when the process has ended without one; and why the step was ended, "" when it was not."""
        told = ""
        while True:
            with contextlib.suppress(queue.Empty):
                answer = self._answers.get(timeout=_TICK_S) or {}
                of_itself = answer.get("exit_code", _INTERRUPTED) != _INTERRUPTED
                return answer, "" if of_itself else told
            if told and time.monotonic() > until_s:
                return {}, f"{told}, by force"
            if not told and (told := self._why_end() or (too_long if time.monotonic() > until_s else "")):
                until_s = time.monotonic() + self._grace_s
                self._interrupt()

    def _interrupt(self) -> None:
        """As Ctrl-C does, so that it stores what it has."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)

    def end(self, *, by_force: bool = False) -> int | None:
        """End the process, after what it does; by force when that takes too long. Returns its exit status."""
        process, self._process = self._process, None
        if process is None or process.stdin is None or process.stdout is None:
            return None
        with contextlib.suppress(OSError):
            process.stdin.write("\n")
        with contextlib.suppress(OSError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.0 if by_force else self._grace_s)
        _kill(process)
        status = process.wait()
        if self._reading is not None:
            self._reading.join(self._grace_s)
        process.stdout.close()
        if self._scratch is not None:
            self._scratch.cleanup()
        return status

    def kill(self) -> None:
        """End it at once, whatever it does."""
        if (process := self._process) is not None:
            _kill(process)


def _read(process: "subprocess.Popen[str]", answers: "queue.SimpleQueue[dict[str, Json] | None]") -> None:
    """Every line as an answer; None when there will be no more."""
    with contextlib.suppress(OSError, ValueError):
        for line in process.stdout or ():
            answers.put(json.loads(line))
    answers.put(None)


def _environment(gpu: str | None, scratch: str) -> dict[str, str]:
    """This process's, with the GPU, with a folder for what is to be gone with the worker, and with this checkout where
    modules are imported from."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TERM": "dumb", "TMPDIR": scratch}
    return env if gpu is None else env | {"CUDA_VISIBLE_DEVICES": gpu}


def _kill(process: "subprocess.Popen[str]") -> None:
    """With its children, which lead sessions of their own: the GPU has to be free for the next worker."""
    for pid in (*_below(process.pid), process.pid) if process.poll() is None else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _below(pid: int) -> Iterator[int]:
    """The processes that descend from it."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                yield from _below(child)
                yield child


def _why(code: Json, log: Path) -> str:
    """Why a step that ended of itself ended so, in its last words."""
    if code == 0:
        return ""
    lines = log.read_text(errors="replace").strip().splitlines()
    said = lines[-1].strip()[:300] if lines else "it said nothing"
    return f"{said} (the worker {describe_exit(code)})" if isinstance(code, int) and code < 0 else said
