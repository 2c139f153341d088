"""Confinement, and what the machine is said to be; the task of a stored run; the settings of the new commands."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.commands.bench import from_bytes, read_candidates
from kerneltune.agent.commands.session import require_confinement, stored_task, unconfined_warning
from kerneltune.agent.events import RunStarted
from kerneltune.agent.settings import chosen_settings
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.sandbox.wire import Enforced
from kerneltune.tools.schema.errors import TaskError, Unconfined, UsageError
from kerneltune.tools.schema.verdict import evaluator_sha256
from kerneltune.tools.task.load import find_task, visible_source
from tests.agent.record.samples import started

BARE = Enforced(Profile.TRACER, notes=("no Landlock in this kernel",))
HELD = Enforced(Profile.TRACER, landlock_abi=7, seccomp=True)
TASK = "import torch\nclass Model(torch.nn.Module):\n    pass\ndef get_inputs():\n    return []\n"


def test_without_confinement_nothing_runs_unless_that_is_allowed_and_then_loudly() -> None:
    with pytest.raises(Unconfined, match=r"no Landlock in this kernel.*--allow-unsandboxed"):
        require_confinement(BARE, allow=False)
    require_confinement(BARE, allow=True)
    require_confinement(HELD, allow=False)
    warning = unconfined_warning(BARE)
    assert warning is not None
    assert warning.startswith("NOT CONFINED: ")
    assert unconfined_warning(HELD) is None


def run_of(path: Path, source: str, visible: str | None = None) -> RunStarted:
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    facts = {"task_path": str(path)}
    return replace(started(task=path.stem), task_sha256=sha256, task_source=visible or source, machine=facts)


def test_the_file_of_a_stored_task_is_used_while_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(TASK)
    found, differs = stored_task(run_of(path, TASK), None, tmp_path / "scratch")
    assert (found.path, differs) == (path, ())


def test_a_task_that_the_run_kept_whole_needs_no_file(tmp_path: Path) -> None:
    found, differs = stored_task(run_of(tmp_path / "gone" / "mine.py", TASK), None, tmp_path)
    assert (found.name, found.source, differs) == ("mine", TASK, ())


def test_a_changed_task_with_held_out_cases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"has changed or is gone.*--task"):
        stored_task(run_of(tmp_path / "mine.py", TASK + "# held-out cases\n", TASK), None, tmp_path)


def test_a_built_in_that_has_changed_is_taken_from_the_record_and_that_is_said(tmp_path: Path) -> None:
    builtin = find_task("softmax")
    then = builtin.source + "# of an older version\n"
    run = run_of(Path("/opt/old/tools/tasks/softmax.py"), then, visible_source(builtin))
    found, differs = stored_task(run, None, tmp_path)
    assert found.path.parent == tmp_path
    assert len(differs) == 1
    assert "none of its held-out cases" in differs[0]


def test_a_user_s_softmax_is_not_mistaken_for_the_built_in(tmp_path: Path) -> None:
    run = run_of(tmp_path / "softmax.py", TASK + "# held-out cases\n", TASK)
    with pytest.raises(TaskError, match="has changed or is gone"):
        stored_task(run, None, tmp_path)


def test_a_task_given_by_hand_must_be_the_same(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.py"
    path.write_text(TASK)
    run = run_of(tmp_path / "mine.py", TASK)
    assert stored_task(run, str(path), tmp_path)[0].path == path
    with pytest.raises(TaskError, match="is not the task of run"):
        stored_task(run, "softmax", tmp_path)


def test_the_task_of_a_merged_run_is_neither_that_of_its_record_nor_at_the_place_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    run = run_of(path, TASK)
    for _ in range(2):
        with pytest.raises(TaskError, match=r"merge of /b/runs\.db.*--trust-task.*--task") as caught:
            stored_task(run, None, tmp_path / "scratch", merged_from="/b/runs.db")
        assert "\n" not in str(caught.value)
        path.write_text(TASK)  # by whoever sent the record, beside it
    assert stored_task(run, str(path), tmp_path, merged_from="/b/runs.db")[0].path == path


def test_a_built_in_task_of_a_merged_run_needs_no_trust_while_it_is_the_same(tmp_path: Path) -> None:
    builtin = find_task("softmax")
    same = run_of(tmp_path / "softmax.py", builtin.source, visible_source(builtin))
    assert stored_task(same, None, tmp_path, merged_from="/b")[0].path == builtin.path
    other = run_of(Path("/opt/tools/tasks/softmax.py"), builtin.source + "# 1\n", visible_source(builtin) + "import os")
    with pytest.raises(TaskError, match="--trust-task"):
        stored_task(other, None, tmp_path, merged_from="/b")


def test_a_task_whose_name_in_the_record_leads_elsewhere_becomes_no_file(tmp_path: Path) -> None:
    run = replace(run_of(tmp_path / "gone.py", TASK), task=str(tmp_path / "planted"))
    with pytest.raises(TaskError, match="is no name of a file"):
        stored_task(run, None, tmp_path / "scratch")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_gives_its_python_files_once_each_and_in_order(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "sub/c.py", "sub/__pycache__/d.py", ".git/e.py", "__init__.py", "f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    found = read_candidates([str(tmp_path), str(tmp_path / "a.py")])
    assert [Path(c.name).relative_to(tmp_path).as_posix() for c in found] == ["a.py", "b.py", "sub/c.py"]


def test_a_link_that_leads_out_of_a_folder_is_not_followed_and_one_within_is(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (tmp_path / "netrc").write_text("machine x password secret\n")
    (folder / "a.py").write_text("x = 1\n")
    (folder / "b.py").symlink_to("a.py")
    (folder / "c.py").symlink_to(tmp_path / "netrc")
    (tmp_path / "linked").symlink_to(folder)
    for given in (folder, tmp_path / "linked"):
        a, b, c = read_candidates([str(given)])
        assert (a.source, b.source, c.source, a.problem, b.problem) == ("x = 1\n", "x = 1\n", "", "", "")
        assert "leads out of its folder" in c.problem
    (named,) = read_candidates([str(folder / "c.py")])  # a person means it
    assert "secret" in named.source


def test_a_file_that_may_not_be_read_and_stdin_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_candidates([str(tmp_path / "nowhere.py")])
    with pytest.raises(UsageError, match="only once"):
        read_candidates(["-", "-"])


def test_an_endless_file_is_read_no_further_than_the_limit() -> None:
    (found,) = read_candidates(["/dev/zero"])
    assert "more than 1048576 bytes" in found.problem


def test_text_of_other_line_ends_and_a_mark_at_its_start_is_text() -> None:
    assert from_bytes("x", b"\xef\xbb\xbfx = 1\r\n").source == "x = 1\r\n"
    assert "line 2" in from_bytes("x", b"x = 1\n\xff").problem


def test_the_cache_directory_and_the_tier_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("KERNELTUNE_TIER", "screened")
    monkeypatch.setenv("KERNELTUNE_CONFIRM", "false")
    settings = chosen_settings({})
    assert (settings.cache_dir, settings.tier, settings.confirm) == (tmp_path / "cache", "screened", False)
    monkeypatch.setenv("KERNELTUNE_TIER", "fast")
    with pytest.raises(UsageError, match="'fast' is not one of screened, judged, confirmed"):
        chosen_settings({})


def test_the_evaluator_has_a_hash_that_stays() -> None:
    assert evaluator_sha256() == evaluator_sha256()
    assert len(evaluator_sha256()) == 64
