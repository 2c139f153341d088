"""The judge's timing as it is, on a device that is this process: setup, timing runs, tiers and their verdicts."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kerneltune.tools.backends.base import CompiledImage
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.judge.correctness.reference_model import free_cached
from kerneltune.tools.judge.service.tiers import CandidateJudge, QuickCheck
from kerneltune.tools.judge.timing.benchmark_setup import BaselineSettings, BenchmarkSetup
from kerneltune.tools.judge.timing.gpu_use import GpuWatch
from kerneltune.tools.judge.timing.timing_run import TimingRun
from kerneltune.tools.schema.messages import SCREENING, BenchRequest
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.verdict import Cause, Status, Tier, Verdict
from kerneltune.tools.task.load import TaskFile, find_task
from tests.tools.judge.simulated import Device, linked
from tests.tools.judge.test_correctness_run import TASK, Args, drops_the_last_row, plan_for, right

QUICK = replace(SCREENING, preheat_s=0.0, memo_passes=2)
SECRET = bytes(32)


@dataclass
class Bed:
    """A judge of the simulated device, and the plans of a kernel for all cases."""

    device: Device
    judge: CandidateJudge
    plans: tuple[Plan, ...]

    def bench(self, tier: Tier) -> Verdict:
        rules = SCREENING if tier == "screened" else QUICK
        return self.judge.of(BenchRequest(self.plans, (), rules, repeats=1, tier=tier), self.plans[0])


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TaskFile:
    path: Path = tmp_path_factory.mktemp("task") / "task.py"
    path.write_text(TASK)
    return find_task(str(path))


@contextlib.contextmanager
def judging(task: TaskFile, body: Callable[[Device, Args], None], device: Device | None = None) -> Iterator[Bed]:
    device = device or Device({})
    device.kernels[body.__name__] = body
    spec, plans = describe(task), (plan_for("main", 37, body), plan_for("hidden", 21, body))
    with linked(device, device.clock) as link:
        setup = BenchmarkSetup(device, task, spec, BaselineSettings(("eager",)), seed=1)
        judge = CandidateJudge(
            file=task,
            task=spec,
            setup=setup,
            quick_check=QuickCheck(device, link, task, spec, SECRET),
            link=link,
            images={k.sha256: CompiledImage({}, b"") for plan in plans for k in plan.kernels},
            secret=SECRET,
            gpu_watch=GpuWatch(device),
            gpu=device.describe(),
            make_room=free_cached,
        )
        yield Bed(device, judge, plans)
        setup.vacate()
    assert device.allocated == device.freed


@pytest.mark.parametrize("tier", ["screened", "judged", "confirmed"])
def test_a_right_kernel_is_timed_against_the_baseline_on_any_backend(task: TaskFile, tier: Tier) -> None:
    with judging(task, right) as bed:
        verdict = bed.bench(tier)
    assert (verdict.status, verdict.tier) == (Status.CORRECT, tier), verdict.detail
    assert verdict.timing is not None
    slots = bed.judge.setup.slots
    assert verdict.timing.median_us == pytest.approx(bed.device.kernel_us / slots)
    assert [(c.baseline, round(c.speedup, 6)) for c in verdict.comparisons] == [("eager", 2.0)]
    assert verdict.receipt["slots"] == slots


def test_a_kernel_that_is_wrong_while_it_is_timed_has_no_time(task: TaskFile) -> None:
    """Right as long as it is checked, and in the first pass that is timed."""

    def right_at_first(device: Device, args: Args) -> None:
        (drops_the_last_row if device.now_s else right)(device, args)

    with judging(task, right_at_first) as bed:
        verdict = bed.bench("judged")
    assert verdict.status is Status.WRONG
    assert verdict.detail.startswith("a timed run is wrong")
    assert verdict.timing is None


def test_a_variant_is_screened_by_a_few_passes_and_a_plan_compared_with_itself(task: TaskFile) -> None:
    with judging(task, right) as bed:
        judge, slots = bed.judge, bed.judge.setup.slots
        run = TimingRun(judge.setup, judge.link, judge.images, QUICK, SECRET, judge.gpu_watch)
        assert run.screen(bed.plans[0]) == pytest.approx(bed.device.kernel_us / slots)
        assert run.against_itself(bed.plans[0], pairs=2, pair_s=0.01) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("rate", [1.1, 0.9])
def test_a_device_s_clock_that_the_judge_s_does_not_bear_out_is_impossible(task: TaskFile, rate: float) -> None:
    with judging(task, right, Device({}, clock_rate=rate)) as bed:
        verdict = bed.bench("judged")
    assert (verdict.status, verdict.cause) == (Status.IMPOSSIBLE, Cause.CLOCKS), verdict.detail


def test_a_setup_that_gave_its_slots_up_places_them_anew_with_other_contents(task: TaskFile) -> None:
    with judging(task, right) as bed:
        setup = bed.judge.setup
        before, held = setup.inputs.tree(0), bed.device.allocated - bed.device.freed
        assert setup.inputs.holds(0, before)
        contents = setup.inputs.buffer.tensor.clone()
        setup.vacate()
        assert bed.device.allocated == bed.device.freed
        setup.place()
        assert bed.device.allocated - bed.device.freed == held
        assert not bool((setup.inputs.buffer.tensor == contents).all())
        assert bed.bench("judged").status is Status.CORRECT
