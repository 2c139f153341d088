"""Ctrl-C in the middle of a compilation: what was at work keeps no verdict, and is tried again."""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from kerneltune.agent.events import Proposed
from kerneltune.agent.record.store import Store
from tests.agent import warm
from tests.agent.shell import SOFTMAX, env, optimize, program

FLAGS = ("--task", SOFTMAX, "--json", "--runs-dir", "runs")


def interrupted(folder: Path, number: int, *flags: str) -> str:
    """A run that is interrupted when its attempt of that number begins; the run's id."""
    arguments = warm.command(*FLAGS, *flags)
    run_id = ""
    with subprocess.Popen(
        arguments, cwd=folder, env=env(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            run_id = event.get("run_id") or run_id
            if event["type"] == "proposed" and event["number"] == number:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
    assert process.returncode == 130
    assert json.loads(rest.splitlines()[-1])["subtype"] == "interrupted"
    return run_id


def kinds(folder: Path, run_id: str) -> list[str]:
    with Store.open(folder / "runs") as store:
        return [event.kind for event in store.load_events(run_id)]


MEANWHILE = """
import os, sys
from dataclasses import replace
from pathlib import Path
from kerneltune.agent.cli import main
from kerneltune.agent.events import Proposed
from kerneltune.agent.record.store import Store

def one_more(event, arguments):
    if event == "fcntl.lockf" and not added:
        added.append(event)
        with Store.open(Path("runs")) as store:
            last = [e for e in store.load_events(sys.argv[2]) if isinstance(e, Proposed)][-1]
            number = last.number + 1
            source = last.source + "# of the other process"
            store.write(replace(last, attempt_id=f"{last.run_id}/{number}", number=number, source=source))

added = []
sys.addaudithook(one_more)  # an audit hook is told of the lock just before it is taken
main()
"""


Stopped = Callable[[str], tuple[Path, str]]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """A folder with an interrupted run of an author, and its id."""

    @cache
    def made(author: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("stopped")
        if author == "scripted":  # an attempt that is over before a busy test reads of it cannot be interrupted
            call = {"name": "update", "arguments": {"rationale": "forever", "source": "while True:\n    pass\n"}}
            story = folder / "story.jsonl"
            story.write_text(json.dumps({"calls": [call]}) + "\n")
            return folder, interrupted(folder, 1, "--model", f"scripted:{story}", "--max-attempts", "4")
        return folder, interrupted(folder, 2, "--model", author, "--max-attempts", "4")

    return made


@pytest.mark.parametrize("author", ["offline", "scripted"])
def test_an_interruption_is_no_verdict(author: str, stopped: Stopped) -> None:
    folder, run_id = stopped(author)
    stored = kinds(folder, run_id)
    assert stored[-1] == "run_ended"  # nothing is said after the end
    assert stored.count("judged") < stored.count("proposed")
    with Store.open(folder / "runs") as store:
        details = [a.detail for a in store.attempts(run_id)]
    assert not [d for d in details if "gone" in d or "killed" in d]


def test_an_interrupted_attempt_is_tried_again(stopped: Stopped, tmp_path: Path) -> None:
    folder, run_id = stopped("offline")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    with Store.open(tmp_path / "runs") as store:
        events = store.load_events(run_id)
        finished = {a.attempt_id for a in store.attempts(run_id)}
    left = {e.attempt_id: e.source for e in events if isinstance(e, Proposed) and e.attempt_id not in finished}
    assert left
    again = optimize("--resume", run_id, "--max-attempts", "3", *FLAGS[2:], cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    with Store.open(tmp_path / "runs") as store:
        judged = {a.attempt_id: a.source for a in store.attempts(run_id)}
    assert left.items() <= judged.items()


def test_what_another_process_stored_until_the_run_was_ours_is_known(stopped: Stopped, tmp_path: Path) -> None:
    folder, run_id = stopped("offline")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    words = program(MEANWHILE, "--resume", run_id, "--max-attempts", "5", *FLAGS[2:])
    again = subprocess.run(words, cwd=tmp_path, env=env(), capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    with Store.open(tmp_path / "runs") as store:
        attempts = store.attempts(run_id)
    assert sorted(a.number for a in attempts) == [1, 2, 3, 4, 5]
    assert sum(a.source.endswith("# of the other process") for a in attempts) == 1
