"""What is made of NVML's readings."""

import time

import pytest

from kerneltune.tools.backends.cuda.device import GpuSample, Sampler, Watch, first_visible, foreign_processes, window


def sample(clock: int | None, reasons: int | None = 0) -> GpuSample:
    return GpuSample(clock, None, None, None, None, None, reasons)


class Readings(Sampler):
    """A sampler whose GPU says what it is told to."""

    def __init__(self, clocks: list[int], reasons: int = 0) -> None:
        super().__init__()
        self._clocks, self._reasons = clocks, reasons

    def clocks(self) -> GpuSample | None:
        return sample(self._clocks.pop(0) if len(self._clocks) > 1 else self._clocks[0], self._reasons)

    def sample(self) -> GpuSample | None:
        return self.clocks()


@pytest.mark.parametrize(
    ("listed", "expected", "found"), [(None, 2, 0), ((), 2, 0), ((1, 2), 2, 0), ((1, 2, 3), 2, 1), ((9,), 2, 0)]
)
def test_more_processes_than_ours_are_strangers(listed: tuple[int, ...] | None, expected: int, found: int) -> None:
    assert foreign_processes(listed, expected) == found


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
    with Watch(Readings([1500, 1980]), period_s=0.001) as watch:
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
    with Watch(Readings([1700]), period_s=10.0) as watch:
        time.sleep(0.05)
        assert watch.since(time.monotonic()).sm_clock_mhz == 1700.0


def test_without_a_gpu_a_watch_sees_nothing() -> None:
    sampler = Sampler()
    if sampler.sample() is not None:
        pytest.skip("there is a GPU")
    with Watch(sampler) as watch:
        time.sleep(0.02)
    assert (watch.clocks(), watch.reasons(), watch.since(0.0).sm_clock_mhz) == ([], None, None)
    assert (sampler.facts(), sampler.processes(), sampler.clocks()) == ({}, None, None)
