"""The timed shape without a GPU: along which axes a reference can be computed in part, and that it is then the same."""

from pathlib import Path

import pytest
import torch

from kerneltune.tools.judge.correctness.problem import Problem, describe
from kerneltune.tools.judge.correctness.sample import TimedSample, Written, _independent_axes
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.load import described, find_task, read_task

AXES = {
    "matmul_bf16": {0: {"input:0": 0}, 1: {"input:1": 1}},
    "skinny_matmul": {0: {"input:0": 0}, 1: {"state:weight": 0}},
    "transpose": {0: {"input:0": 1}, 1: {"input:0": 0}},
    "column_sum": {0: {"input:0": 1}},
    "softmax": {0: {"input:0": 0}},
    "gqa_attention": {1: {"input:0": 1, "input:1": 1, "input:2": 1}},  # causal: no row is one's own
}


@pytest.mark.parametrize("name", AXES)
def test_the_rows_that_follow_from_rows_of_operands_are_found(name: str) -> None:
    task = described(find_task(name))
    assert task is not None
    small = next(case.name for case in task.cases if case.runs_on_cpu)
    (found,) = _independent_axes(Problem.load(find_task(name), small))
    assert found == AXES[name]


def test_a_right_answer_is_right_at_the_timed_shape_and_one_of_another_head_is_not() -> None:
    file = find_task("gqa_attention")
    task = described(file)
    assert task is not None
    sample = TimedSample(file, task.main, "small")
    shape = torch.Size(task.main.outputs["$tensor"]["shape"])
    head = 29
    q, k, v = (t[:, head * t.shape[1] // 32][:, None].float() for t in sample._inputs)
    rows = torch.nn.functional.scaled_dot_product_attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], is_causal=True)
    first = head * shape[2] * shape[3]
    elements = torch.arange(first, first + 64 * shape[3])
    result, compared = sample.compare([shape], [Written(elements, rows.reshape(-1).bfloat16())])
    assert (result.ok, compared) == (True, 64 * shape[3])
    wrong, _ = sample.compare([shape], [Written(elements, rows.flip(-1).reshape(-1).bfloat16())])
    assert not wrong.ok
    assert f"worst at [0, {head}, " in wrong.detail
    assert not sample.compare([torch.Size([3])], [Written(elements[:1] * 0, rows.reshape(-1)[:1])])[0].ok


def test_what_nobody_can_compute_in_part_is_said() -> None:
    file = find_task("gqa_attention")
    task = described(file)
    assert task is not None
    sample = TimedSample(file, task.main, "small")
    nothing = Written(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.bfloat16))
    with pytest.raises(TaskError, match="write none of the rows"):
        sample.compare([torch.Size(task.main.outputs["$tensor"]["shape"])], [nothing])


TWO = """
import torch
ROWS = 64
CASES = [{"name": "small", "ROWS": 5, "cpu": True}]
class Model(torch.nn.Module):
    def forward(self, x): return x * 2, x + 1
def get_inputs(): return [torch.randn(ROWS, 8)]
"""


def test_programs_that_write_nothing_but_a_later_output_are_judged_by_that(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO)
    file = read_task(tmp_path / "two.py")
    sample = TimedSample(file, describe(file).main, "small")
    (x,) = sample._inputs
    nothing = Written(torch.empty(0, dtype=torch.int64), torch.empty(0))
    row = torch.arange(8)
    for off, ok in ((1, True), (2, False)):
        result, compared = sample.compare([x.shape, x.shape], [nothing, Written(row, x[0] + off)])
        assert (result.ok, compared) == (ok, 8)
