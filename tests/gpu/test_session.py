"""Judge and runner on a GPU, as a supervisor drives them. More, with numbers: `selfcheck_runner.py`."""

from collections.abc import Iterator

import pytest

from tests.gpu import harness
from tests.gpu.selfcheck_runner import Checks, Report
from tools.judge.timing import SCREENING
from tools.verdict import Status, Verdict

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


class Bench:
    """A session on the softmax task."""

    def __init__(self) -> None:
        self.checks = Checks(Report(), quick=True)
        self.checks.compile()
        path = harness.task_file(harness.SOFTMAX_TASK)
        self.supervisor = harness.Supervisor()
        assert self.supervisor.open(path, harness.spec_of(path), ("eager",)).problem is None

    def __call__(self, name: str) -> Verdict:
        return self.checks.bench(self.supervisor, name, SCREENING)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    found.supervisor.close()


def test_a_right_kernel_is_correct_and_timed(bench: Bench) -> None:
    verdict = bench("softmax_rows")
    assert verdict.status is Status.CORRECT, verdict.detail
    assert verdict.timing is not None
    assert verdict.coverage == 1.0


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("softmax_without_last_column", Status.WRONG),
        ("scribbling_softmax", Status.WRONG),
        ("far_out_of_bounds", Status.CRASHED),
        ("endless", Status.TIMED_OUT),
    ],
)
def test_a_bad_kernel_gets_its_verdict_and_the_next_one_is_judged(bench: Bench, name: str, status: Status) -> None:
    assert bench(name).status is status
    assert bench("softmax_rows").status is Status.CORRECT
