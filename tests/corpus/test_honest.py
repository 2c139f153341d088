"""Honest kernels are accepted: every case, every battery, by the real tracer, compiler, interpreter and CPU judge.

Each holds something that a simple check of some evaluator takes for a cheat; `naive_checks.py` counts how many.
"""

from collections.abc import Callable

import pytest

from kerneltune.agent.authors.llm.prompts import TOPICS
from kerneltune.tools.corpus import Twin, outcome
from tests.corpus.conftest import HONEST, Found, spread
from tests.corpus.naive_checks import CHECKS, main, rows

EXAMPLES = [topic.example for topic in TOPICS.values()]  # that models are shown


@pytest.mark.parametrize("name", spread(HONEST.values(), EXAMPLES))
def test_an_honest_kernel_is_accepted(name: str, found_honest: Callable[[str], Found]) -> None:
    specimen, result = HONEST[name], found_honest(name)
    if result.error is not None:
        raise result.error
    assert result.verdict is not None
    told = f"{result.verdict.status.value}: {result.verdict.detail[:600]}"
    assert outcome(specimen, result.verdict, result.plan_sha256, Twin(), on_gpu=False) == "right", told


def test_there_are_enough_of_them_to_mean_something() -> None:
    assert len(HONEST) >= 120  # none refused: the true rate of false alarms is below 3.1 % (Wilson, 95 %)
    assert all(specimen.id for specimen in HONEST.values())


def test_every_naive_check_refuses_some_honest_kernel() -> None:
    assert [row.check.name for row in rows() if not row.refused] == []


@pytest.mark.parametrize(
    ("check", "name"),
    [
        ("`try` or `pass`", "optional_features"),
        ("streams or graphs", "graph_replay"),
        ("a cache", "workspace_by_shape"),
        ("output is not finite", "fully_masked_rows"),
        ("bitwise repeatability", "split_k_atomics"),
    ],
)
def test_a_naive_check_refuses_the_kernel_that_was_written_for_it(check: str, name: str) -> None:
    (row,) = [row for row in rows() if row.check.name.startswith(check)]
    assert name in row.refused
    assert "sequential_sum" not in row.refused


def test_the_table_of_naive_checks_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(CHECKS) + 2
    assert printed[-1].startswith("any of them")
