"""Answers are worked out once, within a bound of memory."""

import pytest
import torch

from kerneltune.tools.judge.correctness.comparison import WholeExpectation
from kerneltune.tools.judge.correctness.float64 import Selection
from kerneltune.tools.judge.correctness.gates import Expected
from kerneltune.tools.judge.timing.benchmark_setup import AnswerCache, bytes_of


def answer(elements: int) -> Expected:
    return Expected(torch.zeros(elements, dtype=torch.float64), torch.zeros(elements), "float32", 1)


class Counter:
    """Makes answers and counts them."""

    def __init__(self, elements: int) -> None:
        self.made, self._elements = 0, elements

    def __call__(self) -> WholeExpectation:
        self.made += 1
        return WholeExpectation(answer(self._elements))


def test_an_answer_is_made_once() -> None:
    answers, make = AnswerCache(1 << 20), Counter(10)
    assert answers.of("a", make) is answers.of("a", make)
    assert make.made == 1


def test_its_size_is_that_of_values_native_outputs_and_noise() -> None:
    values = torch.zeros(10, dtype=torch.float64)
    assert bytes_of(answer(10)) == 120
    assert bytes_of(Expected(values, torch.zeros(10), "float32", 1, values)) == 200
    assert bytes_of(WholeExpectation(answer(10)).for_many().expected) == 200  # and the budgets that are kept


def test_what_an_index_was_chosen_from_counts_too() -> None:
    values, index = torch.zeros(10, 100, dtype=torch.float64), torch.zeros(10, dtype=torch.int64)
    chosen = Selection(values, index, -1, distinct=False, ordered=False, given=True)
    expected = Expected(index, index, "float32", 1, selections={"": chosen}, slack=index, operand_noise=index)
    assert bytes_of(expected) == 8000 + 5 * 80


def test_the_one_used_longest_ago_goes_first() -> None:
    answers, make = AnswerCache(250), Counter(10)
    for name in ("a", "b", "a", "c"):
        answers.of(name, make)
    made = make.made
    answers.of("a", make)
    assert make.made == made
    answers.of("b", make)
    assert make.made == made + 1


def test_an_answer_that_is_too_large_is_made_every_time() -> None:
    answers, make = AnswerCache(100), Counter(1000)
    answers.of("a", make)
    answers.of("a", make)
    assert make.made == 2


@pytest.mark.parametrize(("most_bytes", "kept"), [(800, True), (799, False)])
def test_budgets_are_kept_where_there_is_room_for_those_of_all_contents(most_bytes: int, *, kept: bool) -> None:
    found = AnswerCache(most_bytes).of("a", Counter(10))
    assert isinstance(found, WholeExpectation)
    assert (found.expected.kept is not None) is kept


def test_nothing_is_held_after_forgetting() -> None:
    answers, make = AnswerCache(1 << 20), Counter(10)
    answers.of("a", make)
    answers.forget()
    answers.of("a", make)
    assert make.made == 2
