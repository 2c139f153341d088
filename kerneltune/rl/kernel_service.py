"""The evaluator's service (`optimize serve`) as a trainer talks to it: standard library, nothing of kerneltune. Put this folder
on PYTHONPATH; KERNELTUNE_SERVICE is its place: http://:TOKEN@HOST:PORT, or unix:PATH. What it or the network could not do is a
Fault, which says nothing about a kernel: no reward may be made of it."""

import contextlib
import http.client
import json
import os
import re
import socket
import time
from base64 import b64encode
from typing import Any
from urllib.parse import unquote, urlsplit

LIMITS = {"trace_s": 10, "compile_s": 15, "replay_s": 20}  # seconds for one candidate: what takes longer is timed out
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


class Fault(Exception):
    """The service, its machine or the network failed."""


class _ServiceConnection(http.client.HTTPConnection):
    path = ""  # of a Unix socket

    def connect(self) -> None:
        if not self.path:
            return super().connect()
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        return self.sock.connect(self.path)


def ask(method: str, path: str, body: Any = None, timeout_s: float = 600.0) -> dict[str, Any]:
    """The answer; waits while the service is full. Raises Fault, and ValueError for what makes no sense to it."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            status, told = _once(method, path, body, max(until_s - time.monotonic(), 1.0))
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Fault(f"{method} {path}: {type(error).__name__}: {error}") from error
        if status < 300:
            return told
        if status in (400, 413):  # 404 is a session that the service has no more
            raise ValueError(str(told)[:500])
        if status != 429 or time.monotonic() + 1.0 > until_s:
            raise Fault(f"{method} {path}: status {status}: {str(told)[:500]}")
        time.sleep(1.0)


def _once(method: str, path: str, body: Any, timeout_s: float) -> tuple[int, dict[str, Any]]:
    url = urlsplit(os.environ.get("KERNELTUNE_SERVICE", "unix:runs/service/optimize.sock"))
    connection = _ServiceConnection(url.hostname or "service", url.port, timeout=timeout_s)
    connection.path = url.path if url.scheme == "unix" else ""
    token = b64encode(f":{unquote(url.password or '')}".encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {token}"}
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body, ensure_ascii=False).encode(errors="replace"), headers)  # fmt: skip
        return (answer := connection.getresponse()).status, json.loads(answer.read(64 << 20) or b"{}")


def begin(task: str | None = None, reference_code: str | None = None, **more: Any) -> dict[str, Any]:
    """Begin a rollout: its `path`, and what a model is told at first: `system`, `prompt`, `tools`."""
    what = {"reference_code": reference_code} if reference_code else {"task": task}
    asked = {"client": "trainer", "priority": "batch", "confirm": False, "reward": "fast_0", **more, **what}
    untimed = {"tier": "screened", "baselines": ["eager"]} if asked["reward"] == "fast_0" else {}
    asked["limits"] = {"max_attempts": 8, **LIMITS, **more.get("limits", {})}
    told = ask("POST", "/sessions", untimed | asked)
    return {"path": f"/sessions/{told['session']}", **told}


def call(path: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool. Only `text` may be shown to a policy; `attempt` and its `reward` may tell of held-out cases."""
    return ask("POST", f"{path}/call", {"name": name, "arguments": arguments})


def outcome(path: str) -> dict[str, Any]:
    """`reward`: the best of all attempts, 0 where none was made, None where nobody knows; `turns`. Judges what was not benched."""
    for attempt in (a for a in ask("GET", path)["attempts"] if a["status"] is None):
        call(path, "bench", {"attempt": attempt["number"]})
    told = ask("GET", path)
    return {"reward": told["reward"] if told["turns"] else 0.0, "turns": told["turns"]}


def close(path: str) -> None:
    """End a rollout; one that nobody ends does so by itself when it was not used for some minutes."""
    with contextlib.suppress(Fault, ValueError):
        ask("DELETE", path, timeout_s=60.0)


def reward_of(text: str, task: str | None = None, reference_code: str | None = None, **more: Any) -> float | None:
    """What an answer with a whole file is worth: its first block of code, or all of it. None where nobody knows."""
    with contextlib.suppress(Fault), contextlib.ExitStack() as rollout:
        path, found = begin(task, reference_code, **more)["path"], _FENCED.search(text)
        rollout.callback(close, path)
        call(path, "update", {"rationale": "an answer", "source": found[1] if found else text})
        reward: float | None = outcome(path)["reward"]
        return reward
    return None
