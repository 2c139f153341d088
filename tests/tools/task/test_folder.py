"""Tasks in folders: found in the order of people, and nothing of a hostile folder hangs, leaks or grows."""

import json
import os
from pathlib import Path

import pytest

from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task import folder
from kerneltune.tools.task.folder import BOUND, DEEP, NO_TASK, OUTSIDE, TWICE, find_tasks

WRITTEN = Path("nothing is written here")
TASK = """# {}
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1


def get_inputs():
    return [torch.ones(4)]
"""


def write(path: Path, about: object = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TASK.format(about or path))
    return path


def names(*words: object) -> list[str]:
    return [task.name for task in find_tasks([str(word) for word in words], WRITTEN).tasks]


def reasons(*words: object) -> dict[str, str]:
    return {Path(one.path).name: one.why for one in find_tasks([str(word) for word in words], WRITTEN).left_out}


def test_builtin_names_files_and_folders_may_be_mixed(tmp_path: Path) -> None:
    one = write(tmp_path / "one.py")
    write(tmp_path / "more" / "two.py")
    assert names("softmax", one, tmp_path / "more") == ["softmax", "one", "two"]
    assert len(names("builtin")) == 39


def test_a_folder_is_read_with_those_below_it_as_people_count(tmp_path: Path) -> None:
    for name in ("level1/10_Matmul.py", "level1/2_Softmax.py", "level2/1_Conv.py", "level1/9²_odd.py"):
        write(tmp_path / name)
    assert names(tmp_path) == ["2_Softmax", "9²_odd", "10_Matmul", "1_Conv"]


def test_the_same_file_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "same")
    write(tmp_path / "b.py", "same")
    assert names(tmp_path) == ["a"]
    assert reasons(tmp_path) == {"b.py": TWICE}


def test_what_is_no_task_is_left_out_and_told(tmp_path: Path) -> None:
    write(tmp_path / "good.py")
    (tmp_path / "helper.py").write_text("def get(): ...\n")
    (tmp_path / "broken.py").write_text("class Model get_inputs")
    (tmp_path / "long.py").write_bytes(b"# Model get_inputs" * 100_000)
    write(tmp_path / ".git" / "hidden.py")
    write(tmp_path / "__pycache__" / "cached.py")
    assert names(tmp_path) == ["good"]
    told = reasons(tmp_path)
    assert told.pop("helper.py") == NO_TASK
    assert told.pop("broken.py").startswith("line 1:")
    assert told.pop("long.py").startswith("cannot be read: it has more than")
    assert told == {}


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere" / "secret.py")
    mine = write(tmp_path / "mine" / "good.py").parent
    (mine / "out.py").symlink_to(elsewhere)
    (mine / "device.py").symlink_to("/dev/zero")
    (mine / "loop.py").symlink_to("loop.py")
    (mine / "folder").symlink_to(elsewhere.parent)
    (mine / "up").symlink_to(tmp_path)
    (mine / "within.py").symlink_to("good.py")
    os.mkfifo(mine / "pipe.py")
    assert names(mine) == ["good"]
    told = reasons(mine)
    assert (told["out.py"], told["device.py"], told["good.py"], told["pipe.py"]) == (OUTSIDE, OUTSIDE, TWICE, NO_TASK)
    assert "secret.py" not in told


def test_a_deep_folder_and_a_number_of_400_digits_leave_the_others_alone(tmp_path: Path) -> None:
    write(tmp_path / "good.py")
    tmp_path.joinpath("tasks", *["d"] * 40).mkdir(parents=True)
    big = {"x": {"shape": ["n"], "dtype": "float32"}, "s": {"shape": None, "dtype": "float32"}}
    reference = "def run(x, s): return x"
    (tmp_path / "definition.json").write_text(
        json.dumps({"name": "big", "axes": {"n": {"type": "var"}}, "inputs": big, "reference": reference})
    )
    given = {"x": {"type": "random"}, "s": {"type": "scalar", "value": 10**400}}
    (tmp_path / "workload.jsonl").write_text(json.dumps({"axes": {"n": 4}, "inputs": given}))
    found = find_tasks([str(tmp_path)], tmp_path / "made")
    assert {task.name for task in found.tasks} == {"big", "good"}
    assert [one.why for one in found.left_out if "/made/" not in one.path] == [DEEP]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_told(tmp_path: Path) -> None:
    write(tmp_path / "good.py")
    write(tmp_path / "closed.py").chmod(0)
    write(tmp_path / "locked" / "in.py").parent.chmod(0)
    try:
        assert names(tmp_path) == ["good"]
        assert reasons(tmp_path) == dict.fromkeys(("closed.py", "locked"), "cannot be read: Permission denied")
    finally:
        (tmp_path / "locked").chmod(0o700)


def test_a_name_with_control_characters_is_one_plain_word(tmp_path: Path) -> None:
    write(tmp_path / "evil\x1b[2J\n\u202e.py", "hostile")
    (name,) = names(tmp_path)
    assert name.isprintable()
    assert "\x1b" not in name


def test_ten_thousand_files_end_at_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10_050):
        (tmp_path / f"{number}.py").touch()
    write(tmp_path / "0.py")
    found = find_tasks([str(tmp_path)], WRITTEN)
    assert [task.name for task in found.tasks] == ["0"]
    assert {one.why for one in found.left_out} == {NO_TASK, BOUND}
    monkeypatch.setattr(folder, "MOST_TASKS", 2)
    found = find_tasks(["builtin"], WRITTEN)
    assert (len(found.tasks), [one.why for one in found.left_out]) == (2, [BOUND])


def test_a_word_that_means_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no task 'sofmax'; did you mean softmax"):
        find_tasks(["sofmax"], WRITTEN)
    (tmp_path / "helper.py").touch()
    with pytest.raises(TaskError, match=r"no \.py file there defines Model and get_inputs"):
        find_tasks([str(tmp_path)], WRITTEN)
