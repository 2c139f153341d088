"""How long the sums of a reference are taken to be."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu

from kerneltune.tools.judge.correctness.problem import Lengths

X = torch.randn(4, 512)


def longest(work: Callable[[Tensor], Tensor]) -> int:
    with Lengths() as lengths:
        result = work(X)
    return lengths.longest((X,), result)


@pytest.mark.parametrize(
    "work",
    [
        gelu,
        lambda x: x.to(torch.float64) * 2,
        lambda x: torch.cat([x[:, 256:], x[:, :256]], 1),
        lambda x: x.t().clone(),
    ],
)
def test_operators_that_add_nothing_up_have_sums_of_one_term(work: Callable[[Tensor], Tensor]) -> None:
    assert longest(work) == 1


@pytest.mark.parametrize(
    "work", [lambda x: x.softmax(-1), lambda x: x.sum(), lambda x: x.cumsum(1), lambda x: x @ x.t()]
)
def test_a_reduction_is_as_long_as_the_longest_row_or_longer(work: Callable[[Tensor], Tensor]) -> None:
    assert longest(work) >= 512


def test_an_operator_that_nobody_knows_may_add_something_up() -> None:
    assert longest(lambda x: x.logsumexp(-1)) >= 512


def test_a_softmax_behind_a_contraction_may_be_all_or_nothing() -> None:
    def watched(work: Callable[[Tensor], Tensor]) -> bool:
        with Lengths() as lengths:
            work(X)
        return lengths.saturates

    assert watched(lambda x: (x @ x.t()).softmax(-1))
    assert not watched(lambda x: x.softmax(-1))
    assert not watched(lambda x: torch.relu(x @ x.t()))


def test_a_softmax_is_known_in_one_operator_and_written_out() -> None:
    def watched(work: Callable[[Tensor], Tensor]) -> bool:
        with Lengths() as lengths:
            work(X)
        return lengths.all_or_nothing

    assert watched(lambda x: x.softmax(-1))
    assert watched(lambda x: x.log_softmax(-1))
    assert watched(lambda x: (x - x.amax(-1, keepdim=True)).exp())
    assert not watched(lambda x: x * torch.sigmoid(x))
    assert not watched(lambda x: x.exp())


def test_a_sum_over_everything_reads_the_largest_operand_and_what_adds_nothing_up_reads_none() -> None:
    x = torch.randn(64, 32)
    with Lengths() as lengths:
        results = (x > 0, x.square().sum())
    assert (lengths.longest((x,), results), lengths.read((x,))) == (32, 64 * 32)
    with Lengths() as lengths:
        gelu(x)
    assert lengths.read((x,)) == 0
