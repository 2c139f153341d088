"""An export is there whole or not at all."""

import errno
import json
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
