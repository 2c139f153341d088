"""The share of KernelBench's problems: what is counted, what is stored, and one problem from file to verdict."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernelbench_share import Limits, problems, report, run, stored

PROBLEM = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x): return torch.relu(x) * 2
def get_inputs(): return [torch.randn(rows, 32)]
def get_init_inputs(): return []
rows = 16
"""
LINES: list[dict[str, Any]] = [
    {"problem": "level1/1_A", "stage": "proposed", "cause": "wrong: row 3", "attempts": []},
    {"problem": "level1/2_B", "stage": "checked", "cause": "", "attempts": []},
    {"problem": "level2/9_C", "stage": "", "cause": "after reading: TaskError: no", "attempts": []},
    {"problem": "level1/3_D", "stage": "compiled", "cause": "wrong: row 77", "attempts": []},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with two problems."""
    for level, name in (("level1", "19_ReLU"), ("level2", "3_Relu")):
        path = tmp_path / "KernelBench" / level / f"{name}.py"
        path.parent.mkdir(parents=True)
        path.write_text(PROBLEM)
    return tmp_path


def test_the_last_whole_line_of_a_problem_counts(tmp_path: Path) -> None:
    out = tmp_path / "share.jsonl"
    again = {"problem": "level1/1_A", "stage": "checked", "cause": ""}
    out.write_text("\n".join(map(json.dumps, [*LINES, again])) + '\n{"problem": "level1/2_B", "sta')
    found = stored(out)
    assert {name: line["stage"] for name, line in found.items()} == {
        "level1/1_A": "checked", "level1/2_B": "checked", "level2/9_C": "", "level1/3_D": "compiled",
    }  # fmt: skip
    assert stored(tmp_path / "none.jsonl") == {}


def test_the_report_counts_who_reached_what_and_joins_causes_that_differ_in_numbers() -> None:
    text = "\n".join(report({line["problem"]: line for line in LINES}))
    assert "level1 3 problems: 3 proposed, 2 traced, 2 compiled, 1 checked" in text
    assert "both   4 problems: 3 proposed, 2 traced, 2 compiled, 1 checked" in text
    assert "   2  wrong: row #\n      1/1, 1/3" in text
    assert "   1  after reading: TaskError: no\n      2/9" in text


def test_problems_come_in_one_order_always(folder: Path) -> None:
    assert problems(folder) == problems(folder)
    assert {p.stem for p in problems(folder)} == {"19_ReLU", "3_Relu"}


def test_a_problem_goes_from_its_file_to_a_verdict_and_another_is_ended_by_its_time(folder: Path) -> None:
    out = folder / "share.jsonl"
    first, second = problems(folder)
    run([first], out, Limits(problem_s=150.0, attempts=1))
    run([second], out, Limits(problem_s=0.05, attempts=1))
    lines = stored(out)
    done, ended = (lines[f"{path.parent.name}/{path.stem}"] for path in (first, second))
    assert done["stage"] == "checked"
    assert [a["status"] for a in done["attempts"]] == ["checked"]
    assert "class ModelNew" in done["attempts"][0]["source"]
    assert ended["stage"] == ""
    assert "more than 0.05 s" in ended["cause"]
