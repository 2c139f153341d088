"""A GPU's worker from inside: reads a request a line, a JSON object, does that step, and answers it; "" ends it.

A request says what to "do", and in "log" the file for all that the step prints. Answers hold "exit_code", as of the
command that does the same, "seconds", what else the step told, and "over" where the worker ends now: after Ctrl-C, a
failure of our own, or with the process that asks.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agent.cli_exit import exit_code
from tools.codec import Json

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
