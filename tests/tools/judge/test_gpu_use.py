"""Whether the GPU was the judge's own: what readings say, and what follows for a verdict."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from kerneltune.agent.attempt import rank_key
from kerneltune.agent.repeat import repeated, unfinished
from kerneltune.tools.judge.service.tiers import Measured, said_alone
from kerneltune.tools.judge.timing.build_verdict import not_timed
from kerneltune.tools.judge.timing.gpu_use import GpuUse, GpuWatch, doubtful, lost_share, stands
from kerneltune.tools.schema.verdict import CaseResult, NotTimed, Status, Timing, Verdict
from kerneltune.tools.update import Update
from tests.tools.judge.simulated import Device

OURS = GpuUse(foreign=0)
HIDDEN = GpuUse(foreign=None)
SHARED = GpuUse(foreign=None, lost=0.5)
UNEVEN = replace(OURS, drift=0.2)
RIGHT = CaseResult("main", "timed", True, 0.1, 1e-6)
ACCUSED = Verdict(Status.IMPOSSIBLE, "34.59 µs cold, but 74.65 µs back to back")
TIMED = Verdict(Status.CORRECT, "right", timing=Timing(10.0, 9.9, 10.1, 12, 480), tier="judged")


def own_time(events: int, noise: float, rng: random.Random) -> list[float]:
    return [30.0 * (1 + rng.uniform(0, noise)) for _ in range(events)]


def with_turns(times_us: Sequence[float], turn_us: float) -> list[float]:
    """The same kernels where another context has every second turn."""
    found, used = [], 0.0
    for us in times_us:
        used += us
        found.append(us)
        if used >= turn_us:
            found[-1] += turn_us
            used = 0.0
    return found


@pytest.mark.parametrize("noise", [0.0, 0.3, 4.0])  # 4: a clock that rises from 345 MHz
def test_short_kernels_on_a_gpu_of_one_s_own_lose_no_time(noise: float) -> None:
    times = sorted(own_time(160, noise, random.Random(1)), reverse=True)
    assert lost_share(times) == 0.0


@pytest.mark.parametrize("turn_us", [1000.0, 2000.0, 3000.0])
def test_contexts_that_take_turns_leave_gaps_between_short_kernels(turn_us: float) -> None:
    assert lost_share(with_turns(own_time(160, 0.05, random.Random(1)), turn_us)) > 0.3


def test_the_worst_of_several_looks_counts() -> None:
    use = OURS.and_then(SHARED).and_then(replace(HIDDEN, idle_percent=3))
    assert use == GpuUse(foreign=0, lost=0.5, idle_percent=3)
    assert not use.quiet


@pytest.mark.parametrize(
    ("status", "during", "found"),
    [
        (Status.IMPOSSIBLE, OURS, True),
        (Status.CORRECT, OURS, False),
        (Status.CORRECT, SHARED, True),
        (Status.WRONG, SHARED, False),  # what is wrong is wrong on a busy GPU, too
        (Status.CRASHED, SHARED, False),
    ],
)
def test_an_accusation_is_always_doubted_and_a_time_where_others_were(
    status: Status, during: GpuUse, found: bool
) -> None:
    assert doubtful(status, during) is found


@pytest.mark.parametrize(
    ("during", "after", "before", "found"),
    [
        (OURS, OURS, None, True),
        (HIDDEN, HIDDEN, None, False),  # NVML hides processes: who was there before is not known
        (HIDDEN, HIDDEN, HIDDEN, True),
        (GpuUse(foreign=1), OURS, None, False),  # an idle notebook may have worked a second ago
        (GpuUse(foreign=1), OURS, OURS, True),
        (SHARED, OURS, OURS, False),
        (OURS, SHARED, OURS, False),
        (OURS, replace(OURS, idle_percent=60), OURS, False),
        (UNEVEN, OURS, OURS, False),
        (replace(OURS, throttled=True), OURS, OURS, False),
    ],
)
def test_an_accusation_needs_an_own_gpu_before_while_and_after(
    during: GpuUse, after: GpuUse, before: GpuUse | None, found: bool
) -> None:
    assert stands(Status.IMPOSSIBLE, during, after, before=before) is found


class Looks:
    """A GPU that is seen as it was written down: a look at a time."""

    def __init__(self, *uses: GpuUse) -> None:
        self._uses, self.slept_s = list(uses), 0.0
        self.watch = GpuWatch(Device({}), sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept_s += seconds

    def look(self) -> GpuUse:
        return self._uses.pop(0) if len(self._uses) > 1 else self._uses[0]


def measuring(*found: tuple[Verdict, GpuUse]) -> Callable[[int], Measured]:
    return lambda number: Measured(*found[min(number, len(found) - 1)], (RIGHT,))


def judged(measure: Callable[[int], Measured], looks: Looks) -> Verdict:
    return said_alone(measure, looks.look, looks.watch, {})


def test_an_attack_on_a_quiet_gpu_is_impossible_at_once() -> None:
    looks = Looks(OURS)
    verdict = judged(measuring((ACCUSED, OURS)), looks)
    assert (verdict.status, verdict.detail, looks.slept_s) == (Status.IMPOSSIBLE, ACCUSED.detail, 0.0)
    assert verdict.receipt["gpu_look"] == OURS.facts()


def test_where_nvml_hides_processes_an_attack_is_impossible_once_it_was_measured_between_two_looks() -> None:
    assert judged(measuring((ACCUSED, HIDDEN)), Looks(HIDDEN)).status is Status.IMPOSSIBLE


def test_an_honest_kernel_beside_a_load_is_right_and_not_timed_and_the_wait_for_it_is_bounded() -> None:
    looks = Looks(SHARED)
    verdict = judged(measuring((ACCUSED, SHARED)), looks)
    assert (verdict.status, verdict.not_timed) == (Status.CHECKED, NotTimed.SHARED)
    assert verdict.detail == "right; not timed: others use this GPU"
    assert 0 < looks.slept_s <= 10
    slept_s = looks.slept_s
    assert judged(measuring((TIMED, SHARED)), looks).not_timed is NotTimed.SHARED
    assert looks.slept_s == slept_s  # who waited in vain does not wait for each of twenty kernels


def test_a_load_that_ends_meanwhile_costs_a_second_measurement_and_nothing_else() -> None:
    looks = Looks(SHARED, OURS)
    assert judged(measuring((ACCUSED, SHARED), (TIMED, OURS)), looks) == TIMED
    assert looks.slept_s > 0


def test_nobody_is_accused_on_a_gpu_that_runs_unevenly_by_itself() -> None:
    verdict = judged(measuring((ACCUSED, UNEVEN)), Looks(OURS))
    assert (verdict.status, verdict.not_timed) == (Status.CHECKED, NotTimed.UNSTEADY)


def test_a_cheat_that_finds_the_gpu_busy_gets_no_time_no_rank_by_time_and_no_tier() -> None:
    """Nothing it does keeps the GPU busy, since it is not at work while the judge looks; somebody else may."""
    verdict = judged(measuring((ACCUSED, SHARED)), Looks(SHARED))
    assert (verdict.timing, verdict.comparisons, verdict.sol_fraction, verdict.tier) == (None, (), None, None)
    places = [rank_key(TIMED, Update()), rank_key(verdict, Update())]
    assert all(worse > better for better, worse in pairwise(places))


def test_a_later_look_that_found_the_gpu_busy_takes_no_time_away() -> None:
    busy = not_timed((RIGHT,), SHARED, SHARED, {})
    assert unfinished(TIMED, busy)
    assert not repeated(TIMED, busy).held
    assert not unfinished(busy, busy)
