"""The judge's timing as it is, on a device that is this process: setup, timing runs, tiers and their verdicts."""

import contextlib
import socket
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from kerneltune.tools.backends.base import CompiledImage, DeviceError
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.judge.correctness.reference_model import free_cached
from kerneltune.tools.judge.service.cpu_judge import CpuJudge
from kerneltune.tools.judge.service.session import JudgeSession
from kerneltune.tools.judge.service.tiers import CandidateJudge, QuickCheck
from kerneltune.tools.judge.timing.baselines import Baseline
from kerneltune.tools.judge.timing.benchmark_setup import BaselineSettings, BenchmarkSetup
from kerneltune.tools.judge.timing.build_verdict import TimingResult, too_fast
from kerneltune.tools.judge.timing.gpu_use import GpuWatch
from kerneltune.tools.judge.timing.statistics import RoundSeries, floor_us
from kerneltune.tools.judge.timing.timing_run import TimingRun
from kerneltune.tools.schema.errors import OutOfMemory
from kerneltune.tools.schema.messages import (
    SCREENING,
    BenchRequest,
    KernelImage,
    Open,
    OpenTask,
    ScreenVariants,
    Warm,
)
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.verdict import Cause, NotTimed, Status, Tier, Verdict
from kerneltune.tools.task.load import TaskFile, find_task
from tests.tools.judge.simulated import Device, Pages, SimulatedTimer, linked
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


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> TaskFile:
    path: Path = tmp_path_factory.mktemp("weighted") / "task.py"
    path.write_text(TASK.replace("CASES = [", 'CASES = [{"name": "decode", "N": 64, "weight": 3}, '))
    return find_task(str(path))


@contextlib.contextmanager
def judging(task: TaskFile, body: Callable[[Device, Args], None], device: Device | None = None) -> Iterator[Bed]:
    device = device or Device({})
    device.kernels[body.__name__] = body
    spec = describe(task)
    plans = tuple(plan_for(c.name, c.state["w"].shape[0], body) for c in spec.cases)
    with linked(device, device.clock) as link:
        setups: list[BenchmarkSetup] = []
        for case in spec.weighted:
            settings = BaselineSettings(("eager",))
            setups.append(BenchmarkSetup(device, task, spec.led_by(case), settings, seed=1, beside=setups))
        judge = CandidateJudge(
            file=task,
            task=spec,
            setups=setups,
            quick_check=QuickCheck(device, link, task, spec, SECRET),
            link=link,
            images={k.sha256: CompiledImage({}, b"") for plan in plans for k in plan.kernels},
            secret=SECRET,
            gpu_watch=GpuWatch(device),
            gpu=device.describe(),
            make_room=free_cached,
        )
        yield Bed(device, judge, plans)
        for setup in setups:
            setup.vacate()
    assert device.allocated == device.freed


@pytest.mark.parametrize("tier", ["screened", "judged", "confirmed"])
def test_a_right_kernel_is_timed_against_the_baseline_on_any_backend(task: TaskFile, tier: Tier) -> None:
    with judging(task, right) as bed:
        verdict = bed.bench(tier)
    assert (verdict.status, verdict.tier) == (Status.CORRECT, tier), verdict.detail
    assert verdict.timing is not None
    slots = bed.judge.setups[0].slots
    assert verdict.timing.median_us == pytest.approx(bed.device.kernel_us / slots)
    assert [(c.baseline, round(c.speedup, 6)) for c in verdict.comparisons] == [("eager", 2.0)]
    assert verdict.receipt["slots"] == slots


@pytest.mark.parametrize("tier", ["screened", "judged", "confirmed"])
@pytest.mark.parametrize("memory", [1 << 33, 1 << 16])
def test_every_weighted_case_is_timed_and_the_score_is_the_weighted_time(
    weighted: TaskFile, tier: Tier, memory: int
) -> None:
    """Twice as fast as eager in main, of weight 1, and at 0.8 of its speed in decode, of weight 3; also where the
    memory holds the buffers of one case at a time."""
    with judging(weighted, right, Device({}, case_us={"decode": 3750.0}, memory=memory)) as bed:
        verdict = bed.bench(tier)
        slots = [setup.slots for setup in bed.judge.setups]
        assert sum(setup.placed for setup in bed.judge.setups) == (2 if memory > 1 << 20 else 1)
    assert (verdict.status, verdict.tier) == (Status.CORRECT, tier), verdict.detail
    assert verdict.timing is not None
    us = [1500.0 / slots[0], 3750.0 / slots[1]]
    eager_us = [3000.0 / slots[0], 3000.0 / slots[1]]
    assert verdict.timing.median_us == pytest.approx((us[0] + 3 * us[1]) / 4)
    assert [c.baseline for c in verdict.comparisons] == ["eager"]
    assert verdict.comparisons[0].baseline_us == pytest.approx((eager_us[0] + 3 * eager_us[1]) / 4)
    assert verdict.comparisons[0].speedup == pytest.approx(
        verdict.comparisons[0].baseline_us / verdict.timing.median_us
    )
    assert [(c.case, c.weight) for c in verdict.case_times] == [("main", 1.0), ("decode", 3.0)]
    assert [c.timing.median_us for c in verdict.case_times] == pytest.approx(us)
    assert [c.comparisons[0].speedup for c in verdict.case_times] == pytest.approx([2.0, 0.8])
    assert [c.case for c in verdict.case_times if c.loses_to] == ["decode"]
    assert verdict.detail.endswith("over 2 weighted cases; slower than eager in case decode (0.80x)")
    assert {c.case for c in verdict.cases if c.inputs == "timed"} == {"main", "decode"}


def test_a_kernel_that_is_wrong_while_another_weighted_case_is_timed_has_no_time(weighted: TaskFile) -> None:
    def right_at_first(device: Device, args: Args) -> None:
        (drops_the_last_row if device.now_s and args[0].shape[1] == 64 else right)(device, args)

    with judging(weighted, right_at_first) as bed:
        verdict = bed.bench("judged")
    assert (verdict.status, verdict.case) == (Status.WRONG, "decode")
    assert verdict.detail.startswith("case decode: a timed run is wrong")


def test_a_kernel_that_is_wrong_while_it_is_timed_has_no_time(task: TaskFile) -> None:
    """Right as long as it is checked, and in the first pass that is timed."""

    def right_at_first(device: Device, args: Args) -> None:
        (drops_the_last_row if device.now_s else right)(device, args)

    with judging(task, right_at_first) as bed:
        verdict = bed.bench("judged")
    assert verdict.status is Status.WRONG
    assert verdict.detail.startswith("a timed run is wrong")
    assert verdict.timing is None


@pytest.mark.parametrize("tier", ["screened", "judged"])
def test_a_kernel_whose_time_depends_on_what_inputs_hold_is_not_said_to_remember(tmp_path: Path, tier: Tier) -> None:
    """Twice as fast on inputs with negative numbers, which the task's own have not and other batteries have."""
    path = tmp_path / "task.py"
    path.write_text(TASK.replace("torch.randn(8, N)", "torch.rand(8, N)"))
    shares: deque[float] = deque(maxlen=1)

    def faster_below_zero(device: Device, args: Args) -> None:
        right(device, args)
        shares.append(0.5 if bool((args[0] < 0).any()) else 1.0)
        device.kernel_us = 1500.0 * sum(shares) / len(shares)

    with judging(find_task(str(path)), faster_below_zero) as bed:
        shares = deque(maxlen=bed.judge.setups[0].slots)
        verdict = bed.bench(tier)
    assert verdict.status is Status.CORRECT, verdict.detail


def test_a_variant_is_screened_by_a_few_passes_and_a_plan_compared_with_itself(task: TaskFile) -> None:
    with judging(task, right) as bed:
        judge, slots = bed.judge, bed.judge.setups[0].slots
        run = TimingRun(judge.setups[0], judge.link, judge.images, QUICK, SECRET, judge.gpu_watch)
        assert run.screen(bed.plans[0]) == pytest.approx(bed.device.kernel_us / slots)
        assert run.against_itself(bed.plans[0], pairs=2, pair_s=0.01) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("rate", [1.1, 0.9])
def test_a_device_s_clock_that_the_judge_s_does_not_bear_out_is_impossible(task: TaskFile, rate: float) -> None:
    with judging(task, right, Device({}, clock_rate=rate)) as bed:
        verdict = bed.bench("judged")
    assert (verdict.status, verdict.cause) == (Status.IMPOSSIBLE, Cause.CLOCKS), verdict.detail


def test_nobody_is_accused_on_a_host_whose_clock_disagrees_over_a_baseline_as_well(task: TaskFile) -> None:
    with judging(task, right, Device({}, host_rate=1.04)) as bed:
        verdict = bed.bench("judged")
    assert (verdict.status, verdict.not_timed) == (Status.CHECKED, NotTimed.BUSY_HOST), verdict.detail
    assert verdict.timing is None


def but_warm(setup: BenchmarkSetup) -> int:
    """All bytes but those of w that the launches of a pass find in the L2."""
    return setup.task.main.bytes_moved - 4 * 37 * (setup.slots - 1) // setup.slots


@pytest.mark.parametrize("value", ["x * 2 + self.w", "(x + self.w).clamp(0, 0)"])
def test_the_speed_of_light_of_an_answer_that_is_one_number_has_no_inputs_to_read(tmp_path: Path, value: str) -> None:
    """KernelBench's level2/80: GELU of what is zero by construction. A kernel that wrote it was called impossible."""
    path = tmp_path / "task.py"
    path.write_text(TASK.replace("x * 2 + self.w", value))
    with judging(find_task(str(path)), right) as bed:
        setup = bed.judge.setups[0]
        read = setup.task.main.bytes_moved - setup.output_bytes
        assert read > 0
        assert setup.roofline.bytes_moved == (setup.output_bytes if "clamp" in value else but_warm(setup))
        assert any("need not read" in note for note in setup.context.notes) is ("clamp" in value)


@dataclass
class SlowMemory(Device):
    """A GPU on which a small task's inputs take longer to be read than its kernel runs, and less than a baseline."""

    gbps: float = 0.005

    def copy_gbps(self) -> float:
        return self.gbps


@pytest.mark.parametrize(
    ("chooses", "counts"), [("torch.randint(0, N + 1, (8, 1))", 64), ("torch.rand(8, 1) * N", None)]
)
def test_a_kernel_may_be_faster_than_all_inputs_are_read_where_integers_choose_among_them(
    tmp_path: Path, chooses: str, counts: int | None
) -> None:
    """Sums of rows that end early: what lies behind an end is not read."""
    path = tmp_path / "task.py"
    source = TASK.replace("(self, x)", "(self, x, end)").replace("randn(8, N)]", f"randn(8, N), {chooses}]")
    path.write_text(source.replace("x * 2 + self.w", "((x + self.w) * (torch.arange(N) < end)).sum(-1)"))
    with judging(find_task(str(path)), right, SlowMemory({})) as bed:
        setup = bed.judge.setups[0]
        assert setup.task.main.bytes_moved > 4 * 8 * 37
        assert setup.roofline.bytes_moved == (4 * 8 + counts if counts else but_warm(setup))
        kernel_us = bed.device.kernel_us / setup.slots
        found = too_fast(kernel_us, TimingResult(RoundSeries(QUICK, ("eager",)), ""), setup.context)
        assert (found is None) is (counts is not None)
        assert setup.context.floor_us > 0


def test_a_kernel_may_be_faster_than_parameters_are_read_that_the_l2_holds_between_launches(tmp_path: Path) -> None:
    """A product of few rows: the L2 is emptied once a pass, and each launch of the pass reads the same weights."""
    path = tmp_path / "task.py"
    path.write_text(TASK.replace("torch.randn(8, N)", "torch.randn(1, N)"))
    with judging(find_task(str(path)), right, SlowMemory({}, gbps=0.00324)) as bed:
        setup, case = bed.judge.setups[0], bed.judge.setups[0].task.main
        kernel_us = bed.device.kernel_us / setup.slots
        assert kernel_us < floor_us(case.bytes_moved, setup.output_bytes, setup.l2_bytes, setup.slots, 1.15 * 0.00324)
        assert setup.roofline.bytes_moved == but_warm(setup)
        assert too_fast(kernel_us, TimingResult(RoundSeries(QUICK, ("eager",)), ""), setup.context) is None
        assert setup.context.floor_us > 0.5 * kernel_us


def test_a_setup_that_gave_its_slots_up_holds_no_copies_of_them_either(task: TaskFile) -> None:
    with judging(task, right) as bed:
        setup = bed.judge.setups[0]
        assert setup.inputs._pristine is not None
        copies = [weakref.ref(setup.inputs._pristine), weakref.ref(setup.inputs._pristine_state)]
        setup.vacate()
        assert [copy() for copy in copies] == [None, None]


def test_a_setup_that_gave_its_slots_up_places_them_anew_with_other_contents(task: TaskFile) -> None:
    with judging(task, right) as bed:
        setup = bed.judge.setups[0]
        before, held = setup.inputs.tree(0), bed.device.allocated - bed.device.freed
        assert setup.inputs.holds(0, before)
        contents = setup.inputs.buffer.tensor.clone()
        setup.vacate()
        assert bed.device.allocated == bed.device.freed
        setup.place()
        assert bed.device.allocated - bed.device.freed == held
        assert not bool((setup.inputs.buffer.tensor == contents).all())
        assert bed.bench("judged").status is Status.CORRECT


@dataclass
class Full(Device):
    """A GPU whose memory is full when it is asked for a second room, for what a copy is timed with, or for a graph."""

    full_for: str = ""  # parameters, copies, graphs

    def allocate(self, nbytes: int) -> Pages:
        if self.full_for == "parameters" and self.allocated > self.freed:
            raise DeviceError("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY: out of memory")
        return super().allocate(nbytes)

    def timer(self) -> SimulatedTimer:
        return Graphs(self)

    def copy_gbps(self) -> float:
        if self.full_for == "copies":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB")
        return super().copy_gbps()


@pytest.mark.parametrize("short", ["parameters", "contents", "copies"])
def test_slots_that_want_memory_while_they_are_made_leave_none_of_their_pages_behind(
    tmp_path: Path, short: str
) -> None:
    path, full = tmp_path / "task.py", tmp_path / "full"
    raises = f"if pathlib.Path({str(full)!r}).exists(): raise torch.OutOfMemoryError('CUDA out of memory')"
    path.write_text(TASK.replace("    return [", f"    import pathlib\n    {raises}\n    return ["))
    device = Full({})
    with judging(find_task(str(path)), right, device) as bed:
        setup = bed.judge.setups[0]
        setup.vacate()
        device.full_for = short
        if short == "contents":
            full.touch()
        another = partial(BenchmarkSetup, device, bed.judge.file, bed.judge.task, BaselineSettings(()), seed=1)
        for _ in range(2):
            with pytest.raises((DeviceError, torch.OutOfMemoryError, OutOfMemory)):
                (another if short == "copies" else setup.place)()
            assert (device.allocated - device.freed, setup.placed) == (0, False)
        device.full_for = ""
        full.unlink(missing_ok=True)
        assert bed.bench("judged").status is Status.CORRECT


class Told:
    """Where a session tells its supervisor of runners, who sees to them without being asked."""

    def send(self, body: object) -> None:
        pass


@contextlib.contextmanager
def in_session(
    task: TaskFile, body: Callable[[Device, Args], None], device: Device
) -> Iterator[tuple[JudgeSession, Callable[[Any], Any], tuple[Plan, ...], tuple[KernelImage, ...]]]:
    """A session that has opened the task, how to ask it, and a kernel's plans and images for all cases."""
    device.kernels[body.__name__] = body
    spec = describe(task)
    plans = tuple(plan_for(c.name, c.state["w"].shape[0], body) for c in spec.cases)
    images = tuple(KernelImage(k.sha256, {}) for plan in plans for k in plan.kernels)
    with linked(device, device.clock) as link, socket.socket() as door:
        session = JudgeSession(device, Told(), door)
        session._link = link  # on the device's clock
        handlers, blobs = session.handlers(), [b""] * len(images)

        def answer(request: Any) -> Any:
            return handlers[type(request)](request, blobs)

        assert answer(OpenTask(str(task.path), spec, ("eager",))).problem is None
        yield session, answer, plans, images
        for setup in session._setups():
            setup.vacate()


def test_a_task_file_that_was_edited_since_a_run_began_is_not_judged_as_the_new_code(tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    task = find_task(str(path))
    spec = describe(task)
    path.write_text(TASK.replace("x * 2", "x * 3"))
    with socket.socket() as door:
        on_gpu: Any = JudgeSession(Device({}), Told(), door).handlers()[OpenTask](OpenTask(str(path), spec), [])
    for answer in (CpuJudge().open(Open(task.name, str(path), task.sha256)), on_gpu):
        assert f"{path} was edited while a run on it went on" in str(answer.problem)
        assert "begin a new run" in str(answer.problem)


def test_a_session_times_each_weighted_case_on_a_setup_of_its_own(weighted: TaskFile) -> None:
    device = Device({}, case_us={"decode": 3750.0})
    with in_session(weighted, right, device) as (session, answer, plans, images):
        slots = [setup.slots for setup in session._setups()]
        us = [1500.0 / slots[0], 3750.0 / slots[1]]
        warm = answer(Warm(all=True))
        assert warm.times_us == pytest.approx({"eager": (3000.0 / slots[0] + 3 * 3000.0 / slots[1]) / 4})
        screened = answer(ScreenVariants(plans[:2], images))
        assert screened.times_us == pytest.approx(us)
        verdict = answer(BenchRequest(plans, images, SCREENING, repeats=1, tier="screened")).verdict
        assert verdict.timing is not None, verdict.detail
        assert verdict.timing.median_us == pytest.approx((us[0] + 3 * us[1]) / 4)
        session._make_room()
        assert not any(setup.placed for setup in session._setups())
        again = BenchRequest(plans, images, SCREENING, repeats=1, tier="screened", reuse=False)
        assert answer(again).verdict.case_times == verdict.case_times


class Graphs(SimulatedTimer):
    """A timer whose next graph finds no memory where the device is full for graphs."""

    def __init__(self, device: Full) -> None:
        super().__init__(device)
        self._full = device

    def captured(self, work: Callable[[], object]) -> Callable[[], object]:
        if self._full.full_for == "graphs":
            self._full.full_for = ""
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().captured(work)


def test_a_baseline_that_had_a_graph_and_finds_no_memory_for_it_is_not_timed_with_launches(task: TaskFile) -> None:
    device = Full({})
    with in_session(task, right, device) as (session, answer, plans, images):
        answer(Warm(all=True))
        assert [b.graphed for setup in session._setups() for b in setup.baselines] == [True]
        session._setups()[0].vacate()
        device.full_for = "graphs"
        verdict = answer(BenchRequest(plans, images, QUICK, repeats=1, tier="judged")).verdict
        assert (verdict.status, device.full_for) == (Status.CORRECT, ""), verdict.detail
        assert [b.graphed for setup in session._setups() for b in setup.baselines] == [True]


@pytest.mark.parametrize("moment", ["checked", "timed"])
@pytest.mark.parametrize(("shortages", "status"), [(1, Status.CORRECT), (2, Status.UNCHECKED)])
def test_a_runner_that_finds_no_memory_is_tried_again_once_the_judge_has_made_room(
    task: TaskFile, moment: str, shortages: int, status: Status
) -> None:
    device, short = Device({}), [True] * shortages

    def in_memory(device: Device, args: Args) -> None:
        if short and bool(device.now_s) is (moment == "timed"):
            short.pop()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        right(device, args)

    with in_session(task, in_memory, device) as (_, answer, plans, images):
        answer(Warm(all=True))
        verdict = answer(BenchRequest(plans, images, QUICK, repeats=1, tier="judged")).verdict
        assert not short
        assert verdict.status is status, verdict.detail
        assert verdict.cause is (None if status is Status.CORRECT else Cause.MEMORY)


STATEFUL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.table = torch.zeros(4), None

    def forward(self, x):
        if self.table is None:
            self.table = torch.ones(4)
        self.hidden = torch.tanh(x + self.hidden) * self.table
        return self.hidden

def get_inputs():
    return [torch.rand(4)]
"""


def test_a_graph_of_a_module_that_replaces_its_state_reads_what_the_constructor_made_and_what_it_reads_stays(
    tmp_path: Path,
) -> None:
    path = tmp_path / "task.py"
    path.write_text(STATEFUL)
    read: list[weakref.ref[torch.Tensor]] = []

    class Capturing(SimulatedTimer):
        def captured(self, work: Callable[[], object]) -> Callable[[], object]:
            read.extend(weakref.ref(tensor) for tensor in (module.hidden, module.table))
            return super().captured(work)

    device = Device({})
    setup = BenchmarkSetup(device, (file := find_task(str(path))), describe(file), BaselineSettings(()), seed=1)
    module: Any = setup.problem.model
    made = module.hidden
    baseline = Baseline("eager", setup.problem, setup.inputs, Capturing(device))
    table = module.table
    baseline.run_once()
    assert (module.hidden is made, module.table is table) == (True, True)
    assert [name for _, name in baseline._state.places or ()] == ["hidden"]  # all that a pass looks at
    assert all(torch.equal(out, torch.tanh(*tree)) for out, tree in zip(baseline.outputs, baseline._trees, strict=True))
    module.hidden = module.table = made = table = None
    assert [tensor() is not None for tensor in read] == [True] * len(read)
    setup.vacate()
