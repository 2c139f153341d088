"""What is made of NVML's readings."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kerneltune.tools.backends.base import ClockWatch, GpuLock, GpuSample, window
from kerneltune.tools.backends.cuda.device import NvmlSampler, first_visible, foreign_processes


def sample(clock: int | None, reasons: int | None = 0) -> GpuSample:
    return GpuSample(clock, None, None, None, None, None, reasons)


class Readings(NvmlSampler):
    """A sampler whose GPU says what it is told to."""

    def __init__(self, clocks: list[int], reasons: int = 0) -> None:
        super().__init__()
        self._clocks, self._reasons = clocks, reasons

    def clocks(self) -> GpuSample | None:
        return sample(self._clocks.pop(0) if len(self._clocks) > 1 else self._clocks[0], self._reasons)

    def sample(self) -> GpuSample | None:
        return self.clocks()


def test_children_of_the_same_parent_are_ours_and_others_are_strangers() -> None:
    """As judge and runners are children of one fork server. The parent and process 1 are others; 2^22 has ended."""
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            here = (os.getpid(), 1 << 22)
            assert foreign_processes(here) == 0
            assert foreign_processes((*here, 1)) == 1
            assert foreign_processes((*here, 1, child.pid)) == 2
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("listed", "found"), [(None, None), ((), None), ((1, 2), None), ((1, 2, 3), None), ((1, 2, 3, 4), 1)]
)
def test_of_pids_of_another_namespace_only_more_than_ours_can_be_are_strangers(
    listed: tuple[int, ...] | None, found: int | None
) -> None:
    assert foreign_processes(listed) == found


@pytest.mark.parametrize(
    ("visible", "found"),
    [(None, 0), ("1", 1), ("1,0", 1), ("GPU-bb", 1), ("GPU-cc", None), ("", None), ("-1", None), ("2", None)],
)
def test_nvml_is_asked_about_the_gpu_that_cuda_would_use(visible: str | None, found: int | None) -> None:
    assert first_visible(visible, ["GPU-aa11", "GPU-bb22"]) == found


def test_without_a_gpu_none_is_chosen() -> None:
    assert first_visible(None, []) is None


def test_several_readings_become_the_median_clock_and_any_throttling() -> None:
    found = window([sample(1980), sample(1500), sample(1970, 0x8)])
    assert (found.sm_clock_mhz, found.throttled) == (1970.0, True)


def test_being_idle_or_at_the_power_limit_is_no_throttling() -> None:
    assert not window([sample(1980, 0x1 | 0x4)]).throttled


def test_a_gpu_that_tells_nothing_has_no_clock() -> None:
    assert window([sample(None, None)]).sm_clock_mhz is None
    assert window([]).sm_clock_mhz is None


def test_a_watch_reads_while_others_work() -> None:
    with ClockWatch(Readings([1500, 1980]), period_s=0.001) as watch:
        time.sleep(0.05)
        started = time.monotonic()
        time.sleep(0.05)
        assert watch.since(started).sm_clock_mhz == 1980.0
    assert min(watch.clocks()) == 1500.0
    assert watch.reasons() == 0
    count = len(watch.clocks())
    time.sleep(0.02)
    assert len(watch.clocks()) == count


def test_a_window_without_a_reading_takes_the_last_one() -> None:
    with ClockWatch(Readings([1700]), period_s=10.0) as watch:
        time.sleep(0.05)
        assert watch.since(time.monotonic()).sm_clock_mhz == 1700.0


def test_without_a_gpu_a_watch_sees_nothing() -> None:
    sampler = NvmlSampler()
    if sampler.sample() is not None:
        pytest.skip("there is a GPU")
    with ClockWatch(sampler) as watch:
        time.sleep(0.02)
    assert (watch.clocks(), watch.reasons(), watch.since(0.0).sm_clock_mhz) == ([], None, None)
    assert (sampler.facts(), sampler.foreign_processes(), sampler.clocks()) == ({}, None, None)


def test_a_second_process_waits_for_its_turn_and_is_told_so(tmp_path: Path) -> None:
    waited: list[float] = []
    code = (
        "import sys, pathlib; from kerneltune.tools.backends.base import GpuLock\n"
        "with GpuLock(pathlib.Path(sys.argv[1]), 'GPU-1').held(print): print('mine', flush=True); sys.stdin.read(1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"

        def told(seconds: float) -> None:
            waited.append(seconds)
            other.kill()  # the lock ends with its process, however that ends

        with GpuLock(tmp_path, "GPU-1").held(told):
            assert waited
        with GpuLock(tmp_path, "GPU-2").held(told):  # another GPU is nobody's
            pass


def test_whoever_waits_is_next_even_where_the_other_wants_the_gpu_again_at_once(tmp_path: Path) -> None:
    """Judging takes turns: a search that asks for verdict after verdict would keep another one waiting for ever."""
    order: list[str] = []
    first, second = GpuLock(tmp_path, "GPU-1"), GpuLock(tmp_path, "GPU-1")
    waits = threading.Event()

    def other() -> None:
        with second.held(lambda _: waits.set()):
            order.append("second")

    thread = threading.Thread(target=other)
    with first.held(lambda _: None):
        thread.start()
        assert waits.wait(10.0)
        order.append("first")
    with first.held(lambda _: None):
        order.append("first again")
    thread.join(10.0)
    assert order == ["first", "second", "first again"]
