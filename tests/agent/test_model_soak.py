"""Runs that are hit again and again, by faults of the provider and by SIGKILL, and resumed until they end.

pytest -m slow tests/agent/test_model_soak.py
"""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.events import Judged, Proposed, Replied, RunEnded
from kerneltune.agent.record.store import Store
from tests.agent.models.server import Format, LlmServer
from tests.agent.models.story import Fault, FaultKind
from tests.agent.shell import command, env
from tests.agent.test_model_runs import LINES, NAMES, keys

FAULTS = 200
KINDS: tuple[FaultKind, ...] = (
    "status", "reset", "truncated", "ended", "max_tokens", "empty", "refusal", "unknown_tool", "bad_json",
    "error_event",
)  # fmt: skip
STATUSES = (408, 429, 500, 502, 503, 529, 402)
TASK = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
def get_inputs():
    return [torch.randn(16, 128)]
"""


class Weather:
    """Strikes at about every second request, until it has struck often enough, or is ended."""

    def __init__(self, seed: int) -> None:
        self.random, self.struck, self.most = random.Random(seed), Counter[str](), FAULTS

    def __call__(self, _number: int) -> Fault | None:
        if self.struck.total() >= self.most or self.random.random() < 0.5:
            return None
        kind = self.random.choice(KINDS)
        self.struck[kind] += 1
        return Fault(kind, self.random.choice(STATUSES), retry_after="0")

    def end(self) -> None:
        """Strike no more."""
        self.most = 0


def story(seed: int) -> list[dict[str, Any]]:
    """Attempts without end, each benched in the reply after it, whatever its number came to be."""
    source = LINES[0]["calls"][0]["arguments"]["source"].replace("tl.expo(v)", "tl.exp(v - tl.max(v, 0))")
    lines = []
    for number in range(400):
        text = source.replace("num_warps=2", f"num_warps={1 << number % 4}") + f"# {seed}.{number}\n"
        arguments = {"parent": None, "rationale": f"variant {number}", "source": text, "edits": None}
        lines.append({"text": "next", "calls": [{"name": "update", "arguments": arguments}]})
    return lines


def run_until_it_ends_or_is_killed(arguments: list[str], server: LlmServer, cwd: Path, patience_s: float | None) -> int:
    process = subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=env() | keys(server),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, err = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        _, err = process.communicate()
    assert "Traceback" not in err, err
    return process.returncode


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_after_200_faults_and_many_kills_every_finished_attempt_is_stored_once(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(TASK)
    weather, kills, processes, started = Weather(7), 0, 0, time.monotonic()
    formats: list[Format] = ["anthropic", "openai", "chat"]
    while weather.struck.total() < FAULTS:
        format = formats[processes % 3]
        with LlmServer(story(processes), format, faults=weather) as server:
            more = ["--json", "--runs-dir", "runs", "--max-attempts", "12", "--base-url", server.url]
            arguments = ["--task", "small.py", "--model", NAMES[format], *more]
            for _ in range(12):
                patience_s = weather.random.uniform(2, 7) if weather.random.random() < 0.6 else None
                before = set(_runs(tmp_path))
                status = run_until_it_ends_or_is_killed(arguments, server, tmp_path, patience_s)
                processes += 1
                kills += status == -signal.SIGKILL
                run = next(iter(set(_runs(tmp_path)) - before), None) or arguments[1]
                if _is_over(tmp_path, run):
                    break
                if run != "small.py":
                    arguments = ["--resume", run, *more]
            assert server.refused == []
    found = check_record(tmp_path / "runs")
    told = {"processes": processes, "kills": kills, "faults": dict(weather.struck), **found}
    print(json.dumps(told | {"seconds": round(time.monotonic() - started)}))  # pytest -s shows it
    assert kills > 10


def _runs(folder: Path) -> list[str]:
    if not (folder / "runs").exists():
        return []
    with Store.open(folder / "runs") as store:
        return store.run_ids()


def _is_over(folder: Path, run: str) -> bool:
    with Store.open(folder / "runs") as store:
        ended = [e.why for e in store.load_events(run) if isinstance(e, RunEnded)]
    return bool(ended) and ended[-1] in ("attempts", "author_done", "refused")


def check_record(runs: Path) -> dict[str, int]:
    """Every attempt is proposed and judged at most once, in numbers without gaps, and every reply is there once."""
    attempts = replies = 0
    with Store.open(runs) as store:
        for run in store.run_ids():
            events = store.load_events(run)
            proposed = [e.number for e in events if isinstance(e, Proposed)]
            judged = [e.attempt_id for e in events if isinstance(e, Judged)]
            turns = [(e.conversation, e.turn) for e in events if isinstance(e, Replied)]
            assert proposed == list(range(1, len(proposed) + 1))
            assert len(judged) == len(set(judged))
            assert len(turns) == len(set(turns))
            assert [a.attempt_id for a in store.attempts(run)] == judged
            attempts, replies = attempts + len(judged), replies + len(turns)
        return {"runs": len(store.run_ids()), "attempts": attempts, "replies": replies}
