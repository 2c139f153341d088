"""Composed tasks: reproducible, each a task of its own, and those of one composition never in two splits."""

import json
from itertools import islice
from pathlib import Path

import pytest

from kerneltune.agent.export.similarity import families
from kerneltune.tools.task.compose import Composed, compositions
from kerneltune.tools.task.load import find_task, visible_source
from tests.agent.shell import optimize


@pytest.fixture(scope="module")
def many() -> list[Composed]:
    return list(islice(compositions(0), 2500))


def test_the_same_seed_composes_the_same_tasks_and_another_one_others(many: list[Composed]) -> None:
    assert list(islice(compositions(0), 50)) == many[:50]
    assert {made.name for made in islice(compositions(1), 50)} != {made.name for made in many[:50]}


def test_every_composition_comes_once_before_one_comes_again_with_other_sizes(many: list[Composed]) -> None:
    n_compositions = len({made.composition for made in many})
    assert n_compositions > 1000
    assert len({made.composition for made in many[:n_compositions]}) == n_compositions
    assert len({made.name for made in many}) == len({made.source for made in many}) == len(many)


def test_tasks_of_one_composition_are_one_family_and_most_families_are_one_composition(many: list[Composed]) -> None:
    found = families({str(i): (made.name, made.source) for i, made in enumerate(many)})
    of: dict[str, set[str]] = {}
    for i, made in enumerate(many):
        of.setdefault(made.composition, set()).add(found[str(i)])
    assert all(len(its) == 1 for its in of.values())
    assert len(set(found.values())) > 0.95 * len(of)


def test_a_composed_task_hides_its_held_out_case(many: list[Composed], tmp_path: Path) -> None:
    for made in many[:20]:
        (tmp_path / f"{made.name}.py").write_text(made.source)
        file = find_task(str(tmp_path / f"{made.name}.py"))
        assert [case.name for case in file.cases if case.held_out] == ["unseen"]
        assert "unseen" not in visible_source(file)


def test_what_a_kernel_that_does_nothing_would_pass_is_left_out_and_what_is_there_is_not_checked_again(
    tmp_path: Path,
) -> None:
    def composed(n: int) -> dict[str, object]:
        done = optimize("tasks", "--compose", str(n), "-o", "tasks", "--seed", "5", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told: dict[str, object] = json.loads(done.stdout)
        return told

    assert composed(3) == {
        **{"type": "composed", "schema_version": 1, "folder": "tasks"},
        **{"tasks": 3, "compositions": 3, "left_out": {}},
    }
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "tasks").glob("*.py")}
    assert len(files) == 3
    composed(4)
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "tasks").glob("*.py")}
    assert len(again) == 4
    assert files.items() <= again.items()
    checked = optimize("tasks", f"tasks/{min(files)}", "--check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout


def test_a_composition_that_is_always_zero_is_found_out(tmp_path: Path) -> None:
    relu_minimum = next(made for made in compositions(0) if made.composition == "relu_minimum")
    (tmp_path / "task_x.py").write_text(relu_minimum.source)
    assert optimize("tasks", "task_x.py", "--check", cwd=tmp_path).returncode == 1


@pytest.mark.parametrize(
    "flags", [["--compose", "3"], ["softmax", "--compose", "3", "-o", "x"], ["--compose", "0", "-o", "x"]]
)
def test_a_request_without_a_number_or_a_place_is_one_line(flags: list[str], tmp_path: Path) -> None:
    done = optimize("tasks", *flags, cwd=tmp_path)
    assert (done.returncode, "say how many and where" in done.stderr) == (2, True), done.stderr
