"""Whether a run is alive is known from the operating system, of processes that end in any way."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path, PosixPath

import pytest

from kerneltune.agent.record.folder import PROCESS, RunProcess, alive, folder_of, is_plain, process_of
from kerneltune.tools.schema.errors import StoreError
from tests.agent.shell import ROOT, env

HOLD = """
import os, sys, time
from pathlib import Path
from kerneltune.agent.record.folder import alive
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
        assert process_of(tmp_path / "run") == RunProcess("running", process.pid)
        assert process_of(tmp_path / "run") == RunProcess("running", process.pid), "asking takes nothing away"
    finally:
        end(process)
    assert process_of(tmp_path / "run") == RunProcess("gone")


def test_a_worker_that_outlives_the_process_does_not_keep_the_run_alive(tmp_path: Path) -> None:
    process = holder(tmp_path / "run", "fork")
    try:
        process.kill()
        process.wait()
        assert process_of(tmp_path / "run") == RunProcess("gone")
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
        assert json.loads((tmp_path / "run" / PROCESS).read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"host": "another-machine", "pid": 7}', "\udce9"])
def test_of_a_run_that_nobody_held_here_nothing_is_claimed(tmp_path: Path, text: str) -> None:
    assert process_of(tmp_path / "no such run") == RunProcess("unknown")
    (tmp_path / PROCESS).write_bytes(text.encode(errors="surrogateescape"))
    assert process_of(tmp_path) == RunProcess("unknown")


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with alive(tmp_path / "file" / "run"):
        assert process_of(tmp_path / "file" / "run") == RunProcess("unknown")


def child(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Runs as nobody where it can, and writes no file at all."""
    return subprocess.run(
        [sys.executable, "-c", CHILD + code, str(folder)],
        cwd=ROOT,
        env=env(),
        capture_output=True,
        text=True,
        timeout=60,
    )


CHILD = """
import os, resource, signal, sys
from pathlib import Path
from kerneltune.agent.record.folder import alive
folder = Path(sys.argv[1])
"""


def test_a_folder_that_may_not_be_written_is_called_that_and_not_held(tmp_path: Path) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    code = "if os.geteuid() == 0: os.setuid(65534)\nwith alive(folder / 'run'): pass"
    (tmp_path / "locked").mkdir(mode=0o555)
    done = child(code, tmp_path / "locked")
    assert "run/process.json cannot be written: Permission denied" in done.stderr
    assert "another process" not in done.stderr


def test_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with alive(folder): print("held")
"""
    done = child(code, tmp_path / "run")
    assert (done.stdout, done.stderr, done.returncode) == ("held\n", "", 0)


def test_one_process_holds_a_run_once(tmp_path: Path) -> None:
    with alive(tmp_path / "run"), pytest.raises(StoreError, match="by this process already"), alive(tmp_path / "run"):
        pass
    with alive(tmp_path / "run"):
        pass


class _Slow(PosixPath):
    """A folder that takes long to be looked up."""

    def __hash__(self) -> int:
        time.sleep(0.1)
        return super().__hash__()


def test_of_two_threads_that_want_a_run_at_once_one_is_refused(tmp_path: Path) -> None:
    both, came = threading.Barrier(2), list[str]()

    def claim() -> None:
        both.wait()
        try:
            with alive(_Slow(tmp_path)):
                came.append("held")
                both.wait()
        except StoreError:
            came.append("refused")
            both.wait()

    threads = [threading.Thread(target=claim) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(came) == ["held", "refused"]


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / PROCESS).symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match="cannot be written"), alive(tmp_path / "run"):
        pass
    assert process_of(tmp_path / "run") == RunProcess("unknown")
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_pipe_in_the_place_of_the_lock_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / PROCESS)
    assert process_of(tmp_path) == RunProcess("unknown")
    with alive(tmp_path):
        pass


@pytest.mark.parametrize("strange", ["", ".", "..", "../up", "a/b", "/etc", ".git", "a\nb", "a\0b", b"bytes", "a/"])
def test_an_id_that_is_no_name_leads_nowhere(tmp_path: Path, strange: str) -> None:
    assert not is_plain(strange)
    assert folder_of(tmp_path, strange) == tmp_path / "strange-id"


def test_an_id_that_is_a_name_is_the_folder(tmp_path: Path) -> None:
    assert folder_of(tmp_path, "20261121-softmax-1a2b") == tmp_path / "20261121-softmax-1a2b"
