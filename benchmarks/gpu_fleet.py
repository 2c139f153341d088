"""A worker for each GPU, a thread for each worker, and an end in time: by a deadline, or as by Ctrl-C."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerneltune.agent.cli import exit_code
from kerneltune.tools.sandbox.workers import describe_exit
from kerneltune.tools.schema.codec import Json

Request = dict[str, Any]
More = dict[str, Json]
Step = Callable[[Request, More], int]  # returns an exit code or raises what a command would; may tell more
_GOES_ON = (0, 1, 2)  # done, the answer is no, bad input: nothing of the worker's is broken


def served(steps_of: Callable[[contextlib.ExitStack], Mapping[str, Step]]) -> int:
    """Answer until there are no more requests: 0; 130 when it was interrupted, 4 after a failure. What the steps push
    on the stack that they are given ends with the worker."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs would not listen
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = 0
    try:
        with os.fdopen(os.dup(1), "w") as answers, contextlib.ExitStack() as held:
            os.dup2(2, 1)  # what somebody prints is no answer
            steps = steps_of(held)
            for asked in _requests():
                answer = _answer(steps, asked)
                print(json.dumps(answer), file=answers, flush=True)
                if answer["over"]:
                    code = int(answer["exit_code"])
                    break
    except KeyboardInterrupt:
        return 130
    return code


def tenths(seconds: float) -> float:
    """As precise as a log needs it."""
    return round(seconds, 1)


def _answer(steps: Mapping[str, Step], asked: Request) -> More:
    began_s = time.monotonic()
    more: More = {}
    with (
        open(asked["log"], "w", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        code = exit_code(lambda: steps[asked["do"]](asked, more))
    return {"exit_code": code, "seconds": tenths(time.monotonic() - began_s), "over": code not in _GOES_ON, **more}


def _requests() -> Iterator[Request]:
    """As they come. The end of the process that asks ends a step, too."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    idle = threading.Event()

    def read() -> None:
        with open(0, "rb", buffering=0, closefd=False) as asked:  # a buffer in use would end this process in a crash
            for line in asked:
                lines.put(line)
                if not line.strip():
                    return
        lines.put(b"")
        if not idle.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=read, name="requests", daemon=True).start()
    while True:
        idle.set()
        line = lines.get()
        if not line.strip():
            return
        idle.clear()
        yield json.loads(line)


def said(event: object) -> None:
    """What the start of a workshop shows, as a line of the log."""
    print(getattr(event, "detail", ""), file=sys.stderr)


_ROOT = Path(__file__).resolve().parents[1]
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


GRACE_S = 12.0
_TICK_S = 0.2


class Fleet:
    """Calls `turn` with a worker again and again, for all workers side by side, until it returns False. `deadline`: by
    time.monotonic(), when everything has to be over; `grace_s`: between Ctrl-C and the end by force, which a worker
    needs to store what it has."""

    def __init__(
        self,
        command: Sequence[str],
        gpus: Sequence[str | None],
        logs: Path,
        turn: Callable[[GpuWorker], bool],
        *,
        deadline: float | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._logs, self._turn, self._deadline, self._grace_s = logs, turn, deadline, grace_s
        self._stopping, self._lock, self._over = threading.Event(), threading.Lock(), threading.Semaphore(0)
        self.workers = [GpuWorker(command, gpu, logs, grace_s, self.why_end) for gpu in gpus]
        self._threads = [threading.Thread(target=self._thread, args=(worker,), daemon=True) for worker in self.workers]

    def run(self) -> None:
        """Until nothing is left to do or the fleet was stopped."""
        self._logs.mkdir(parents=True, exist_ok=True)
        for thread in self._threads:
            thread.start()
        for _ in self._threads:  # no join, which Ctrl-C would break: Python 3.11 then takes the thread for ended
            while not self._over.acquire(timeout=_TICK_S):
                pass

    def stop(self) -> None:
        """End what runs, as by Ctrl-C, and start nothing more. A second Ctrl-C ends it at once."""
        self._stopping.set()
        try:
            for thread in self._threads:
                thread.join(2 * self._grace_s + 5.0)
        finally:
            for worker in self.workers:
                worker.kill()

    def left_s(self) -> float:
        """Until everything has to be over; infinite without a deadline."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def why_end(self) -> str:
        """Why what runs has to end now; "" while it need not."""
        if self._stopping.is_set():
            return "ended: interrupted"
        return "ended: the deadline came" if self.left_s() < self._grace_s else ""

    def say(self, text: str) -> None:
        """A line for whoever watches, from any thread."""
        with self._lock, contextlib.suppress(BrokenPipeError):
            print(text, flush=True)

    def _thread(self, worker: GpuWorker) -> None:
        try:
            while not self._stopping.is_set() and self._turn(worker):
                pass
        finally:
            worker.end()
            self._over.release()


def ended_of_itself(run: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Run, and after Ctrl-C or SIGTERM stop in order: False then."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:
        print("ending what runs; the same command goes on later", file=sys.stderr)
        stop()
        return False
    return True


def gpus_of(text: str) -> list[str | None]:
    """A flag's "0,1" as GPUs with a worker each; without any, one worker on whatever there is."""
    return [*names_of(text)] or [None]


def names_of(text: str) -> list[str]:
    """What stands between commas."""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def next_of(tasks: "queue.SimpleQueue[str]") -> str | None:
    """The next of a queue that several threads empty; None when nothing is left."""
    with contextlib.suppress(queue.Empty):
        return tasks.get_nowait()
    return None
