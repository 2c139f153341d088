"""Which leading dimensions of a reference are batch dimensions is found by running it, not by its shapes."""

from pathlib import Path

import pytest

from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.schema.task import BatchDims
from kerneltune.tools.task.load import read_task

FORWARDS = {
    "rows": ("torch.softmax(x, -1)", BatchDims(1, ("0",), folds=True)),
    "elements": ("x * 2", BatchDims(2, ("0",), folds=True)),
    "rows_of_two_dimensions_only": (
        "torch.softmax(x.view(x.size(0), x.size(1)), 1)",
        BatchDims(1, ("0",), folds=False),
    ),
    "columns": ("torch.softmax(x, 0)", None),
    "sums_before": ("x.cumsum(0)", None),
    "reversed": ("x.flip(0)", None),
    "one_row_for_all": ("x + x[:1]", None),
    "a_sum_of_all": ("x.sum()", None),
    "rows_by_place": ("x * torch.arange(x.size(0))[:, None]", None),
    "two_outputs": ("(x.sum(-1), {'y': x - x.mean(-1, keepdim=True)})", BatchDims(1, ("0",), folds=True)),
    "an_output_without_rows": ("(x.sum(-1), x.sum(0))", None),
}


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("square", [False, True])
def test_they_are_those_along_which_each_element_is_computed_by_itself(name: str, square: bool, tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        f"    def forward(self, x):\n        return {FORWARDS[name][0]}\n"
        f"def get_inputs(): return [torch.randn(6, {6 if square else 8})]\n"
    )
    assert describe(read_task(path)).batch == FORWARDS[name][1]


def test_an_input_that_only_looks_as_if_it_had_rows_is_none_of_theirs(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x, more): return x @ more['weight'] + more['bias']\n"
        "def get_inputs(): return [torch.randn(6, 6), {'weight': torch.randn(6, 6), 'bias': torch.randn(6)}]\n"
    )
    assert describe(read_task(path)).batch == BatchDims(1, ("0",), folds=True)
