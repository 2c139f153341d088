"""Whether a run is alive is known from the operating system, of processes that end in any way."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.record.alive import FILE_NAME, Process, alive, process_of
from tests.agent.shell import ROOT, env
from tools.errors import StoreError

HOLD = """
import os, sys, time
from pathlib import Path
from agent.record.alive import alive
with alive(Path(sys.argv[1])):
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(60)
    print("held", os.getpid(), flush=True)
    time.sleep(60)
"""


def holder(folder: Path, how: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, str(folder), how]
    process = subprocess.Popen(command, cwd=ROOT, env=env(), stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("held")
    return process


def end(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_run_is_alive_as_long_as_its_process_is(tmp_path: Path) -> None:
    process = holder(tmp_path / "run")
    try:
        assert process_of(tmp_path / "run") == Process("running", process.pid)
        assert process_of(tmp_path / "run") == Process("running", process.pid), "asking takes nothing away"
    finally:
        end(process)
    assert process_of(tmp_path / "run") == Process("gone")


def test_a_worker_that_outlives_the_process_does_not_keep_the_run_alive(tmp_path: Path) -> None:
    process = holder(tmp_path / "run", "fork")
    try:
        process.kill()
        process.wait()
        assert process_of(tmp_path / "run") == Process("gone")
    finally:
        end(process)


def test_a_run_that_is_held_is_not_taken_up_by_another_process(tmp_path: Path) -> None:
    process = holder(tmp_path / "run")
    try:
        with (
            pytest.raises(StoreError, match=rf"another process, {process.pid}; .*optimize watch run"),
            alive(tmp_path / "run"),
        ):
            pass
    finally:
        end(process)
    with alive(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / FILE_NAME).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"host": "another-machine", "pid": 7}', "\udce9"])
def test_of_a_run_that_nobody_held_here_nothing_is_claimed(tmp_path: Path, text: str) -> None:
    assert process_of(tmp_path / "no such run") == Process("unknown")
    (tmp_path / FILE_NAME).write_bytes(text.encode(errors="surrogateescape"))
    assert process_of(tmp_path) == Process("unknown")


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with alive(tmp_path / "file" / "run"):
        assert process_of(tmp_path / "file" / "run") == Process("unknown")
