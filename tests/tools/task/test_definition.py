"""Kernel definitions become task files that say the same, or are refused with the reason."""

import ast
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.commands.tasks import checked_task
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.definition import workloads_beside, written_task
from kerneltune.tools.task.folder import find_tasks
from kerneltune.tools.task.load import TaskFile, read_task

SCALED_ROWS = {
    "name": "scaled_rows_h64",
    "op_type": "norm",
    "description": "Rows times a factor each.",
    "tags": ["status:verified"],
    "axes": {
        "rows": {"type": "var", "description": None},
        "hidden": {"type": "const", "value": 64},
        "twice": {"type": "expr", "expression": "(hidden * 4) // 2"},
    },
    "inputs": {
        "x": {"shape": ["rows", "twice"], "dtype": "float32", "description": None},
        "factor": {"shape": ["rows"], "dtype": "float32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "twice"], "dtype": "float32"}},
    "reference": "import torch\n\n# every row\ndef run(x, factor, eps):\n    return x * (factor + eps)[:, None]\n",
    "constraints": [],
}
RANDOM = {"x": {"type": "random"}, "factor": {"type": "random"}, "eps": {"type": "scalar", "value": 0.5}}
CHOSEN = {
    "name": "chosen_rows",
    "axes": {"rows": {"type": "var"}, "cols": {"type": "var"}, "picked": {"type": "var"}},
    "custom_inputs_entrypoint": "get_inputs",
    "inputs": {
        "table": {"shape": ["rows", "cols"], "dtype": "float32"},
        "index": {"shape": ["picked"], "dtype": "int64"},
    },
    "outputs": {"y": {"shape": ["picked", "cols"], "dtype": "float32"}},
    "reference": (
        "import torch\n\ndef get_inputs(axes, device):\n"
        "    return {'table': torch.randn(axes['rows'], axes['cols'], device=device),\n"
        "            'index': torch.randint(0, axes['rows'], (axes['picked'],), device=device)}\n\n"
        "def run(table, index):\n    return table[index] * 2\n"
    ),
}


def folder(at: Path, definition: Any, *workloads: Any) -> Path:
    """A problem folder of SOL-ExecBench."""
    at.mkdir(parents=True, exist_ok=True)
    (at / "definition.json").write_text(definition if isinstance(definition, str) else json.dumps(definition))
    (at / "workload.jsonl").write_text("".join(json.dumps(one) + "\n" for one in workloads))
    return at


def workload(inputs: Any, **axes: int) -> dict[str, Any]:
    return {"uuid": "u", "axes": axes, "inputs": inputs}


def doubling(many: int) -> dict[str, Any]:
    """Axes of which each is the one before twice: together 2 ** many parts."""
    its = {f"a{n}": {"type": "expr", "expression": f"a{n - 1} + a{n - 1}"} for n in range(1, many)}
    return {**SCALED_ROWS["axes"], "a0": {"type": "const", "value": 1}, **its}  # type: ignore[dict-item]


def made(at: Path, definition: Any, *workloads: Any) -> TaskFile:
    place = folder(at, definition, *workloads) / "definition.json"
    beside = workloads_beside(place)
    assert beside is not None
    return read_task(written_task(place, beside, at / "made"))


def changed(path: str, value: Any) -> dict[str, Any]:
    """The definition with another value at a path of dots."""
    found = copy.deepcopy(SCALED_ROWS)
    *above, last = path.split(".")
    part: Any = found
    for step in above:
        part = part[step]
    part[last] = value
    return found


@pytest.mark.usefixtures("forked_workers")
def test_the_largest_workload_is_timed_and_others_are_cases(tmp_path: Path) -> None:
    other = {**RANDOM, "eps": {"type": "scalar", "value": 0.25}}
    task = made(tmp_path, SCALED_ROWS, workload(RANDOM, rows=3), workload(RANDOM, rows=512), workload(other, rows=32))
    assert task.name == "scaled_rows_h64"
    assert task.notes == "Rows times a factor each."
    assert [(case.name, dict(case.overrides)) for case in task.cases] == [
        ("main", {}),
        ("workload 2", {"axis_rows": 32, "scalar_eps": 0.25}),
        ("workload 3", {"axis_rows": 3}),
    ]
    assert "# every row\ndef run(x, factor, eps):" in task.source
    found = checked_task(task)
    assert found.sound, found.notes
    main, second, third = found.task.cases
    assert [case.inputs[0]["$tensor"]["shape"] for case in (main, second, third)] == [[512, 128], [32, 128], [3, 128]]
    assert main.inputs[2] == 0.5


@pytest.mark.usefixtures("forked_workers")
def test_inputs_of_a_function_of_the_definition_keep_their_structure(tmp_path: Path) -> None:
    sources = {"table": {"type": "custom"}, "index": {"type": "custom"}}
    task = made(tmp_path, CHOSEN, workload(sources, rows=40, cols=16, picked=9))
    assert task.inputs == ((0, "own"), (1, "own"))
    found = checked_task(task)
    assert [tree["$tensor"]["shape"] for tree in found.task.main.inputs] == [[40, 16], [9]]


def test_without_a_small_workload_there_are_no_cases_so_that_the_judge_makes_one(tmp_path: Path) -> None:
    task = made(tmp_path, SCALED_ROWS, workload(RANDOM, rows=100_000), workload(RANDOM, rows=50_000))
    assert [case.name for case in task.cases] == ["main"]
    assert not task.declared


def test_what_a_description_holds_stays_a_text(tmp_path: Path) -> None:
    hostile = 'x\'"""\n\\\nimport os\x1b[2J\u202e' * 3
    task = made(tmp_path, SCALED_ROWS | {"description": hostile, "name": hostile}, workload(RANDOM, rows=4))
    assert task.notes == " ".join(task.notes.split())
    assert task.notes.isprintable()
    assert task.name.isprintable()
    names = [node.name for node in ast.parse(task.source).body if isinstance(node, ast.FunctionDef)]
    assert names == ["run", "get_inputs", "get_init_inputs"]


def test_the_same_definition_is_the_same_file(tmp_path: Path) -> None:
    one = made(tmp_path, SCALED_ROWS, workload(RANDOM, rows=4))
    assert made(tmp_path, SCALED_ROWS, workload(RANDOM, rows=4)) == one
    assert made(tmp_path, SCALED_ROWS, workload(RANDOM, rows=5)).path != one.path


def test_both_layouts_are_found_in_folders(tmp_path: Path) -> None:
    folder(tmp_path / "sol" / "p1", SCALED_ROWS, workload(RANDOM, rows=4))
    (tmp_path / "fib" / "definitions" / "norm").mkdir(parents=True)
    (tmp_path / "fib" / "workloads" / "norm").mkdir(parents=True)
    (tmp_path / "fib" / "definitions" / "norm" / "rows.json").write_text(json.dumps(SCALED_ROWS | {"name": "rows"}))
    trace = {"definition": "rows", "workload": workload(RANDOM, rows=8), "solution": None, "evaluation": None}
    (tmp_path / "fib" / "workloads" / "norm" / "rows.jsonl").write_text(json.dumps(trace) + "\n")
    (tmp_path / "other.json").write_text("{}")
    found = find_tasks([str(tmp_path)], tmp_path / "made")
    assert {task.name for task in found.tasks} == {"rows", "scaled_rows_h64"}
    assert found.left_out == ()


@pytest.mark.parametrize(
    ("definition", "said"),
    [
        ("{", "no definition: "),
        ("[]", "wanted an object"),
        ("[" * 100_000, "no definition"),
        (changed("reference", "def run(x"), "its reference is not Python"),
        (changed("reference", "def go(): ..."), "defines no function run"),
        (changed("reference", "def run(x): return '\ud800'"), "its reference is not Python"),
        (changed("inputs.x.dtype", "float4_e2m1"), "dtype 'float4_e2m1' is none that can be judged"),
        (changed("inputs.x.shape", ["rows", "nowhere"]), "axis 'nowhere' is not defined"),
        (changed("inputs", {"x; import os": {"shape": ["rows"], "dtype": "float32"}}), "is no name in Python"),
        (changed("inputs", {}), "its inputs are none"),
        (changed("axes.twice.expression", "__import__('os').system('id')"), "is no expression of axes"),
        (changed("axes.twice.expression", "twice + 1"), "is not defined, or by itself"),
        (changed("axes.twice.expression", "hidden if rows else 1"), "is no expression of axes"),
        (changed("axes.twice.expression", f"f(0x{'F' * 6000})"), "is no expression of axes"),
        (changed("axes.twice.expression", f"0x{'F' * 6000}"), "is no expression of axes"),
        (changed("axes.twice.expression", "9 ** 9 ** 9"), "no workload gives every input"),
        (changed("axes.twice.expression", "hidden // (rows - 4)"), "no workload gives every input"),
        (changed("axes", doubling(60)), "more than 200 parts"),
        (changed("axes.hidden.value", -1), "no workload gives every input"),
    ],
)
def test_what_cannot_be_said_is_refused_with_the_reason(definition: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=said.replace("(", "\\(")):
        made(tmp_path, definition, workload(RANDOM, rows=4))


@pytest.mark.parametrize(
    "given",
    [
        workload({**RANDOM, "x": {"type": "safetensors", "path": "/etc/passwd", "tensor_key": "x"}}, rows=4),
        workload({**RANDOM, "eps": {"type": "scalar", "value": "0.5"}}, rows=4),
        workload({**RANDOM, "eps": {"type": "random"}}, rows=4),
        workload({**RANDOM, "eps": {"type": "scalar", "value": float("inf")}}, rows=4),
        workload({**RANDOM, "x": {"type": "custom"}}, rows=4),
        workload(RANDOM),
        workload(RANDOM, rows=0),
        workload(RANDOM, rows=1 << 40),
    ],
)
def test_a_workload_that_a_task_cannot_have_is_left_out(given: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no workload gives every input as random, scalar or custom"):
        made(tmp_path, SCALED_ROWS, given)
    task = made(tmp_path, SCALED_ROWS, given, workload(RANDOM, rows=4))
    assert [case.name for case in task.cases] == ["main"]
