"""Temporary folders end with their process, or with the next one after a kill."""

import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kerneltune.tools.sandbox.scratch import ScratchFolder

HOLDER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from kerneltune.tools.sandbox.scratch import ScratchFolder
folder = ScratchFolder()
(folder.path / "deep").mkdir()
(folder.path / "deep" / "file").write_text("what was left")
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> "subprocess.Popen[str]":
    """A process that holds a folder below tmp_path until it is killed."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else_is(
    tmp_path: Path, holder: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (tmp_path / "kerneltune-scratch-link").symlink_to(elsewhere)
    (tmp_path / "kerneltune-of-another-kind").mkdir()
    with holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        with ScratchFolder() as mine:
            assert (left / "deep" / "file").exists()  # its process lives
            assert oct(mine.stat().st_mode)[-3:] == "700"
        assert not mine.exists()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert left.exists()
        with ScratchFolder() as mine:
            assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
                ["elsewhere", "kerneltune-scratch-link", "kerneltune-of-another-kind", mine.name]
            )
        assert (elsewhere / "file").exists()


def test_what_a_process_left_that_was_killed_at_any_step_is_removed(tmp_path: Path) -> None:
    """After its folder was made and before anything was in it, or while it was being removed: no file in it says whose
    it is."""
    with ScratchFolder(tmp_path) as mine:
        kind = mine.name[:-8]
    (tmp_path / f"{kind}just_made").mkdir()
    (tmp_path / f"{kind}nearly_gone" / "deep").mkdir(parents=True)
    with ScratchFolder(tmp_path) as mine:
        assert list(tmp_path.iterdir()) == [mine]


def test_nobody_s_folder_is_taken_by_others_that_begin_at_the_same_moment(tmp_path: Path) -> None:
    def begin(number: int) -> bool:
        with ScratchFolder(tmp_path) as mine:
            (mine / "file").write_text(str(number))
            return (mine / "file").read_text() == str(number)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(begin, range(1000)))
    assert list(tmp_path.iterdir()) == []


HOSTILE = """
import os, sys
from pathlib import Path
from kerneltune.tools.sandbox.scratch import ScratchFolder
if os.geteuid() == 0:  # for whom modes do not count
    os.chown(sys.argv[1], 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
outside = Path(sys.argv[1], "outside")
outside.mkdir()
outside.chmod(0o500)
with ScratchFolder(Path(sys.argv[1])) as mine:
    (mine / "link").symlink_to(outside)
    (mine / "a" / "b").mkdir(parents=True)
    (mine / "a" / "b" / "file").touch()
    for closed in (mine / "a" / "b", mine / "a"):
        closed.chmod(0)
    os.chdir(mine)
    for _ in range(3000):
        os.mkdir("deep")
        os.chdir("deep")
    os.chdir("/")
print(sorted(os.listdir(sys.argv[1])), oct(outside.stat().st_mode))
"""


def test_folders_without_rights_or_thousands_deep_are_removed_and_no_link_is_followed() -> None:
    with tempfile.TemporaryDirectory() as place:
        told = subprocess.run([sys.executable, "-c", HOSTILE, place], capture_output=True, text=True)
    assert told.stdout.strip() == "['outside'] 0o40500", told.stderr[-2000:]
