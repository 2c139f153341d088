"""An index is right when it names an element that is as good as the reference's; anywhere else it must be exact."""

from pathlib import Path

import pytest
import torch

from kerneltune.tools.judge.correctness.comparison import compare
from kerneltune.tools.judge.correctness.gates import Expected
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.task.load import read_task


def expected_of(folder: Path, forward: str, x: torch.Tensor) -> Expected:
    path = folder / "mine.py"
    path.write_text(
        f"import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        {forward}\n"
        "def get_inputs(): return [torch.randn(3, 5)]\nPRECISION = 'float32'\n"
    )
    return Problem.load(read_task(path)).expect((x,))


TIES = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0], [2.0, 2.0, 1.0, 2.0, 0.0], [5.0, 1.0, 2.0, 3.0, 4.0]])


@pytest.mark.parametrize("forward", [
    "return x.argmax(-1)", "return x.max(-1).indices", "return x.max(-1)[1].to(torch.int32)",
    "return x.argmax(-1, keepdim=True)", "return x.argmax(-1).unsqueeze(0)", "return x.T.argmax(0)",
    "return (-x).argmin(-1)", "return (x * 1.0).argmax(-1)",
])  # fmt: skip
def test_any_of_several_equal_maxima_is_right_and_nothing_else(tmp_path: Path, forward: str) -> None:
    expected = expected_of(tmp_path, forward, TIES)
    for rows, right in (([1, 0, 0], True), ([4, 3, 0], True), ([2, 1, 0], True), ([0, 0, 0], False), ([1, 0, 4], False),
                        ([1, 0, 5], False), ([-1, 0, 0], False)):  # fmt: skip
        got = torch.tensor(rows).to(expected.native.dtype).reshape(expected.native.shape)
        assert compare(expected, got).ok == right, rows


def test_a_maximum_over_everything_may_be_any_of_its_places(tmp_path: Path) -> None:
    expected = expected_of(tmp_path, "return x.argmax()", torch.tensor([[1.0, 7.0], [7.0, 2.0]]))
    assert [compare(expected, torch.tensor(place)).ok for place in range(4)] == [False, True, True, False]


def test_the_values_of_a_top_k_are_in_order_and_no_place_is_named_twice(tmp_path: Path) -> None:
    expected = expected_of(tmp_path, "return x.topk(3, -1).indices", TIES)
    for first, right in (([1, 2, 4], True), ([4, 1, 2], True), ([1, 1, 2], False), ([1, 2, 0], False)):
        assert compare(expected, torch.tensor([first, [3, 0, 1], [0, 4, 3]])).ok == right, first
    assert not compare(expected, torch.tensor([[1, 2, 4], [0, 1, 3], [4, 0, 3]])).ok


def test_an_unordered_top_k_is_a_set(tmp_path: Path) -> None:
    expected = expected_of(tmp_path, "return x.topk(3, -1, sorted=False).indices", TIES)
    assert compare(expected, torch.tensor([[4, 1, 2], [3, 0, 1], [3, 0, 4]])).ok
    result = compare(expected, torch.tensor([[4, 1, 2], [3, 0, 1], [3, 0, 1]]))
    assert not result.ok


def test_a_sort_may_swap_equal_elements_unless_it_is_stable(tmp_path: Path) -> None:
    swapped = torch.tensor([[3, 0, 4, 2, 1], [4, 2, 3, 1, 0], [1, 2, 3, 4, 0]])
    assert compare(expected_of(tmp_path, "return x.sort(-1)[1]", TIES), swapped).ok
    assert not compare(expected_of(tmp_path, "return torch.sort(x, dim=-1, stable=True)[1]", TIES), swapped).ok


def test_what_was_done_to_an_index_afterwards_makes_it_exact_again(tmp_path: Path) -> None:
    for forward in ("return x.argmax(-1) + 1", "y = x.argmax(-1)\n        y += 1\n        return y"):
        expected = expected_of(tmp_path, forward, TIES)
        assert compare(expected, torch.tensor([2, 1, 1])).ok
        assert not compare(expected, torch.tensor([3, 1, 1])).ok


def test_rounding_may_decide_between_computed_values_that_nearly_tie(tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 1.0 + 2e-7, 0.5, 0.9, 0.0]])
    assert compare(expected_of(tmp_path, "return (x * x.new_tensor(0.1)).argmax(-1)", x), torch.tensor([0])).ok
    assert not compare(expected_of(tmp_path, "return (x * x.new_tensor(0.1)).argmax(-1)", x), torch.tensor([3])).ok
    assert not compare(expected_of(tmp_path, "return x.argmax(-1)", x), torch.tensor([0])).ok


def test_values_and_indices_are_judged_each_in_its_own_way(tmp_path: Path) -> None:
    expected = expected_of(tmp_path, "return x.max(-1)", TIES)
    assert compare(expected, (torch.tensor([3.0, 2.0, 5.0]), torch.tensor([4, 3, 0]))).ok
    assert not compare(expected, (torch.tensor([3.0, 2.0, 4.0]), torch.tensor([4, 3, 0]))).ok
