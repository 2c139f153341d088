"""The judge tells right from wrong on every built-in task: honest kernels pass all that it feeds them, mistakes do not.

`tests/tools/judge/test_compare.py` has honest kernels for the first ten tasks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.tools.judge.correctness.comparison import compare
from kerneltune.tools.judge.correctness.problem import Problem, describe
from kerneltune.tools.judge.service.admission import operands_that_matter, passing
from kerneltune.tools.schema.task import CORE, batteries_of
from kerneltune.tools.schema.verdict import CaseResult, Tier
from kerneltune.tools.task.load import MAIN, TaskFile, builtin_names, find_task
from kerneltune.tools.tasks import GROUPS
from tests.tools.judge.test_admission import admit
from tests.tools.tasks.honest import HONEST, Kernel
from tests.tools.tasks.wrong import MISTAKES, Mistake

AT_A_HALF = {"quantize_fp8": 1.01}  # the error of what is rounded to float8 reaches half a step, which is the tolerance
# a float8 sum is so imprecise that zeros in an eighth of a row are no more tolerances off; the other is at 9.9 to 10.3,
# as the numbers of the noise come
LEAST = {"matmul_fp8": 4.0, "skinny_matmul": 9.5}


def results(name: str, kernel: Kernel, tier: Tier) -> Iterator[CaseResult]:
    """What a kernel gets in every small case with every battery of a tier."""
    spec = describe(find_task(name))
    here = replace(spec, cases=tuple(c for c in spec.cases if c.runs_on_cpu))
    for case in here.cases:
        problem = Problem.load(find_task(name), case.name)
        for seed, battery in enumerate(batteries_of(here, case.name, tier)):
            if (drawn := problem.draw(seed, battery)) is not None:
                expected = problem.expect(drawn.inputs)
                yield compare(expected, kernel(*drawn.inputs, **drawn.state), case=case.name, battery=battery)


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_passes_every_small_case(name: str) -> None:
    for result in results(name, HONEST[name], "judged"):
        assert result.ok, result
        assert result.error_ratio < AT_A_HALF.get(name, 0.7), result


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_kernel_passes_every_small_case_with_every_battery(name: str) -> None:
    assert [result for result in results(name, HONEST[name], "confirmed") if not result.ok] == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(mistake: Mistake) -> None:
    assert any(not result.ok for result in results(mistake.task, mistake.kernel, "judged"))


def test_every_task_here_has_a_mistake_that_is_found() -> None:
    assert {mistake.task for mistake in MISTAKES} == set(HONEST)


def cheapest(name: str) -> TaskFile:
    """The task with its cheapest visible case alone, beside the one that is timed."""
    task, spec = find_task(name), describe(find_task(name))
    cases = [c for c in spec.cases if c.runs_on_cpu and not c.held_out]
    one = min(cases, key=lambda c: (c.bytes_moved + c.flops, c.name)).name
    return replace(task, cases=tuple(c for c in task.cases if c.name in (MAIN, one)))


@pytest.mark.parametrize("name", HONEST)
def test_null_kernels_fail_the_cheapest_case(name: str) -> None:
    found = admit(cheapest(name))
    assert passing(found) == []
    assert min(r.error_ratio for r in found if r.battery in CORE) > LEAST.get(name, 10.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_null_kernels_fail_every_small_case_and_every_operand_matters(name: str) -> None:
    task = find_task(name)
    found = admit(task)
    assert [r for r in found if r.battery in CORE and not r.refused] == []
    assert passing(found) == []
    for case in (c.name for c in task.cases if c.cpu):
        found_to_matter = operands_that_matter(Problem.load(task, case))
        assert found_to_matter, case
        assert all(found_to_matter.values()), (case, found_to_matter)


def test_the_document_of_tasks_names_every_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()
    assert [name for name in builtin_names() if f"`{name}`" not in text] == []


def test_every_task_is_listed_in_one_group() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == builtin_names()
    assert len(listed) >= 30
