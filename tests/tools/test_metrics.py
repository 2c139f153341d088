"""What holds an attempt back, by its time and its plan."""

import pytest

from kerneltune.tools.reflect import PlanWork, Roofline, roofline
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import gpu_for_arch
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import KernelReport, Status, Timing, Verdict

H200 = gpu_for_arch("sm_90")
SPILLING = KernelReport("k", 255, 64, 64, 0, 1024, 4, 1, 0.1, "c", 0.1)


def place(
    us: float | None,
    *,
    n_bytes: int = 4_800_000_000,
    flops: int = 0,
    work: PlanWork | None = None,
    receipt: dict[str, Json] | None = None,
) -> Roofline:
    task = TaskSpec("t", "0" * 64, "bfloat16", "", (CaseSpec("main", (), (), None, bytes_moved=n_bytes, flops=flops),))
    timing = None if us is None else Timing(us, us, us, 1, 1)
    verdict = Verdict(Status.CHECKED if us is None else Status.CORRECT, "right", timing=timing, receipt=receipt or {})
    return roofline(task, H200, verdict, (SPILLING,), work or PlanWork())


BOUNDS = [(1_000.0, "memory", 1.0), (1_500.0, "memory", 0.67), (4_000.0, "latency", 0.25)]


@pytest.mark.parametrize(("us", "bound", "share"), BOUNDS)
def test_a_kernel_that_keeps_the_memory_busy_is_bound_by_it_and_a_slow_one_by_latency(
    us: float, bound: str, share: float
) -> None:
    found = place(us)
    assert found.bound == bound
    assert found.bandwidth_share == pytest.approx(share, abs=0.01)


def test_a_kernel_that_keeps_the_tensor_cores_busy_is_bound_by_arithmetic() -> None:
    assert place(1_000.0, n_bytes=1_000_000, flops=800_000_000_000).bound == "compute"


def test_without_a_time_nothing_is_said_of_the_attempt() -> None:
    found = place(None)
    assert (found.achieved_gbps, found.bandwidth_share) == (None, None)
    assert "nothing was timed" in found.reason


def test_hints_name_what_is_wasted_with_its_number() -> None:
    hints = place(1_000.0, work=PlanWork(9_600_000_000, (("k", 64), ("k", 4096)), ("softmax",))).hints
    assert any("2.00x the task's least bytes" in h for h in hints)
    assert any("2 launches a forward" in h for h in hints)
    assert any("64 programs for 132 multiprocessors" in h for h in hints)
    assert any("spills 128 bytes a thread" in h for h in hints)


def test_a_kernel_that_takes_little_of_the_time_gets_no_hint() -> None:
    work = PlanWork(launches=(("k", 64), ("rows", 32)))
    for kernel_us, hinted in ((9.0, False), (20.0, True)):
        launches: list[Json] = [
            {"kernel": "k", "launches": 1, "us": kernel_us},
            {"kernel": "rows", "launches": 1, "us": 91.0},
        ]
        hints = place(1_000.0, work=work, receipt={"launches_us": launches}).hints
        assert any("k spills" in h for h in hints) is hinted
        assert any("64 programs" in h for h in hints) is hinted
        assert any("32 programs" in h for h in hints)
