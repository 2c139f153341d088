"""An export is there whole or not at all."""

import errno
import itertools
import json
import os
import signal
import sys
import warnings
from pathlib import Path

import pytest

from kerneltune.agent.export.files import MANIFEST, made_whole
from kerneltune.tools.schema.errors import StoreError, UsageError


def written(target: Path, text: str = "rows", *, overwrite: bool = False) -> None:
    with made_whole(target, overwrite=overwrite) as folder:
        (folder / "data").mkdir()
        (folder / "data" / "train.jsonl").write_text(text)
        (folder / MANIFEST).write_text(json.dumps({"kerneltune_export": 1}))


def broken_off(target: Path, error: BaseException, *, overwrite: bool = False) -> None:
    with made_whole(target, overwrite=overwrite) as folder:
        (folder / "half").write_text("half")
        raise error


def test_what_was_written_aside_takes_its_place_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    written(target)
    assert (target / "data" / "train.jsonl").read_text() == "rows"
    assert [p.name for p in target.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("ours"), OSError(errno.ENOSPC, "No space left")])
def test_a_failure_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "out"
    with pytest.raises((type(error), StoreError)) as raised:
        broken_off(target, error)
    assert list(tmp_path.iterdir()) == []
    assert not isinstance(error, OSError) or str(raised.value) == f"{target}: No space left; nothing was left there"


def test_a_failure_leaves_the_earlier_export_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "out"
    written(target, "old")
    with pytest.raises(RuntimeError):
        broken_off(target, RuntimeError("ours"), overwrite=True)
    assert (target / "data" / "train.jsonl").read_text() == "old"


def test_an_earlier_export_is_replaced_only_on_request(tmp_path: Path) -> None:
    target = tmp_path / "out"
    written(target, "old")
    with pytest.raises(UsageError, match="--overwrite"):
        written(target, "new")
    written(target, "new", overwrite=True)
    assert (target / "data" / "train.jsonl").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def killed_at(step: int, target: Path) -> bool:
    """Replace an export in a child that is killed just before the n-th thing that it renames or removes; whether it
    was."""

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal step
        if event in ("os.rename", "os.remove", "os.rmdir"):
            if step == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            step -= 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork in a process with threads
        pid = os.fork()
    if pid == 0:
        sys.addaudithook(count)
        written(target, "new", overwrite=True)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_whoever_is_killed_while_replacing_an_export_loses_neither_the_old_one_nor_the_new_one(tmp_path: Path) -> None:
    states = []
    for step in itertools.count():
        target = tmp_path / str(step) / "out"
        written(target, "old")
        if not killed_at(step, target):
            break
        was_there = target.exists()
        with pytest.raises(UsageError, match="--overwrite"):
            written(target, "again")  # puts back what is missing
        states.append((was_there, (target / "data" / "train.jsonl").read_text()))
        written(target, "again", overwrite=True)
        assert [p.name for p in target.parent.iterdir()] == ["out"]
    assert states[:2] == [(True, "old"), (False, "old")]
    assert len(states) > 4
    assert set(states[2:]) == {(True, "new")}


def test_what_is_no_export_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    for name in ("thesis", "file"):
        with pytest.raises(UsageError, match="no export of ours"):
            written(tmp_path / name, overwrite=True)
    written(tmp_path / "empty")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"


def test_two_exports_into_one_folder_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(UsageError, match="--overwrite"):
        written_while_another_was(target)
    assert (target / "data" / "train.jsonl").read_text() == "of the other"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def written_while_another_was(target: Path) -> None:
    with made_whole(target, overwrite=False) as folder:
        written(target, "of the other")
        assert list(folder.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Not a directory|File exists"):
        written(tmp_path / "file" / "out")


def test_what_somebody_put_there_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(UsageError, match="no export of ours"):
        interrupted_by_a_thesis(target)
    assert (target / "thesis.txt").read_text() == "years of work"


def interrupted_by_a_thesis(target: Path) -> None:
    with made_whole(target, overwrite=False) as folder:
        (folder / MANIFEST).write_text(json.dumps({"kerneltune_export": 1}))
        target.mkdir()
        (target / "thesis.txt").write_text("years of work")


def test_a_link_is_followed_and_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    written(tmp_path / "link")
    written(tmp_path / "link", "new", overwrite=True)
    assert (tmp_path / "real" / "data" / "train.jsonl").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("place", ["/", "b\udcff"])
def test_a_place_that_cannot_be_one_is_one_line(place: str) -> None:
    with pytest.raises(UsageError, match="-o"):
        written(Path(place))
