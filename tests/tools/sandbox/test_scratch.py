"""Temporary folders end with their process, or with the next one after a kill."""

import os
import signal
import subprocess
import sys
import tempfile
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
    (elsewhere / "owner").touch()
    (tmp_path / "kerneltune-link").symlink_to(elsewhere)
    (tmp_path / "kerneltune-of-an-older-version").mkdir()
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
                ["elsewhere", "kerneltune-link", "kerneltune-of-an-older-version", mine.name]
            )
        assert (elsewhere / "owner").exists()
