"""Was the GPU the judge's own? What can be seen of others on it, and what may be said of a candidate then.

Contexts on one GPU take turns of a millisecond or more, so whoever shares it finds gaps between short kernels that were
enqueued together. That needs nothing from NVML, which in a container may hide processes. All of it is looked at while
no kernel of a candidate's runs: a candidate cannot make a GPU look busy.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from kerneltune.tools.backends.base import Backend
from kerneltune.tools.judge.timing.statistics import CLOCK_RELATIVE
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.verdict import NotTimed, Status

_GAP_US = 400.0  # beyond a usual kernel's time: a shorter one may be a clock that rises
_MOST_LOST = 0.02
_MOST_IDLE_PERCENT = 5  # utilisation while nothing of ours runs
_MOST_DRIFT = 0.05  # between the two blocks of the same baseline in a round
_MOST_LATE = CLOCK_RELATIVE / 2  # half of what a candidate's clocks may differ by
_LEADS = 4
_LOOK_S, _LOOK_EVERY_S = 1.2, 0.2  # NVML's utilisation is over up to a second
_WAITS_S = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class GpuUse:
    """Who used the GPU over some time. `foreign`: the most foreign compute processes that were seen (None: NVML does
    not tell). `lost`: the largest share of a probe's time that went to others. `idle_percent`: utilisation while
    nothing of ours ran (None: not looked at). `drift`: by how much a baseline differed from itself, in logarithms.
    `late`: by what share host and device clock differed over a baseline, whose clock cannot lie; looked at where a
    candidate's clocks disagree."""

    foreign: int | None = None
    lost: float = 0.0
    idle_percent: int | None = None
    drift: float = 0.0
    throttled: bool = False
    late: float = 0.0

    @property
    def quiet(self) -> bool:
        """Whether nobody else worked on it, as far as was seen. A foreign process that only sits there is no harm."""
        return self.lost <= _MOST_LOST and (self.idle_percent or 0) <= _MOST_IDLE_PERCENT

    @property
    def steady(self) -> bool:
        """Whether it ran evenly itself, on a host that is no later than its clock allows."""
        return self.drift <= _MOST_DRIFT and not self.throttled and self.prompt

    @property
    def prompt(self) -> bool:
        """Whether the host was in time to look at its clock. Beside three other runs on 64 cores it was not: a kernel
        that is right and had been timed twice came out 4 % off on the host's clock, four readings in a row."""
        return self.late <= _MOST_LATE

    def and_then(self, later: "GpuUse") -> "GpuUse":
        """Both stretches as one: the worst of each."""
        told = [n for n in (self.foreign, later.foreign) if n is not None]
        idle = [n for n in (self.idle_percent, later.idle_percent) if n is not None]
        return GpuUse(
            max(told, default=None),
            max(self.lost, later.lost),
            max(idle, default=None),
            max(self.drift, later.drift),
            self.throttled or later.throttled,
            max(self.late, later.late),
        )

    def facts(self) -> dict[str, Json]:
        """For the receipt."""
        return {
            "foreign_processes": self.foreign,
            "lost_share": round(self.lost, 4),
            "idle_utilisation_percent": self.idle_percent,
            "drift": round(self.drift, 4),
            "throttled": self.throttled,
            "late": round(self.late, 4),
        }


def lost_share(times_us: Sequence[float]) -> float:
    """The share of the time of equal short kernels, one right after the other, that went to somebody else."""
    usual = median(times_us)
    return sum(t - usual for t in times_us if t > usual + _GAP_US) / sum(times_us)


def doubtful(status: Status, during: GpuUse) -> bool:
    """Whether the GPU has to be looked at before this is said: an accusation always, a time if others were there."""
    return status is Status.IMPOSSIBLE or (status is Status.CORRECT and not during.quiet)


def stands(status: Status, during: GpuUse, after: GpuUse, *, before: GpuUse | None = None) -> bool:
    """Whether a doubtful measurement may be believed after a look at the idle GPU. An accusation needs a GPU that was
    the judge's own before, while and after it was measured; `before` may be missing only where NVML names all
    processes, and none is foreign."""
    if not (during.quiet and after.quiet):
        return False
    if status is not Status.IMPOSSIBLE:
        return True
    known_before = before.quiet if before is not None else during.foreign == 0
    return known_before and during.steady


def why_not_timed(during: GpuUse, after: GpuUse) -> NotTimed:
    """Why a right candidate goes without a time when its tries are used up."""
    if not (during.quiet and after.quiet):
        return NotTimed.SHARED
    return NotTimed.UNSTEADY if during.prompt else NotTimed.BUSY_HOST


class GpuWatch:
    """Looks at the GPU for one session, and waits for it; how long altogether is bounded, and once it was in vain
    there is no more waiting until the GPU was seen quiet."""

    def __init__(self, backend: Backend, uuid: str | None = None, sleep: Callable[[float], None] = time.sleep) -> None:
        """Of the GPU of that UUID; of the first without one."""
        self._backend, self.sampler, self._sleep = backend, backend.sampler(uuid), sleep
        self._waits_s = list(_WAITS_S)

    def seen(self) -> GpuUse:
        """A probe of some 10 ms while a candidate is at hand, but not at work. What stands out is looked at again: a
        runner that has just been started makes its context."""
        lost = self._probe()
        if lost > _MOST_LOST:
            lost = min(lost, self._probe())
        return GpuUse(self.sampler.foreign_processes(), lost)

    def looked(self) -> GpuUse:
        """A look of a second. Nothing of ours may be at work, and no candidate's process alive."""
        self._backend.synchronize()
        idle: list[int] = []
        ends_s = time.monotonic() + _LOOK_S
        while time.monotonic() < ends_s:
            time.sleep(_LOOK_EVERY_S)
            sample = self.sampler.sample()
            if sample is not None and sample.utilisation_percent is not None:
                idle.append(sample.utilisation_percent)
        use = self.seen().and_then(GpuUse(idle_percent=min(idle, default=None)))
        if use.quiet:
            self._waits_s = list(_WAITS_S)
        return use

    def wait(self) -> bool:
        """Wait for others to finish; False when there was enough waiting."""
        if not self._waits_s:
            return False
        self._sleep(self._waits_s.pop(0))
        return True

    def _probe(self) -> float:
        """The share of time lost among short kernels that were all enqueued before the first of them began: where the
        host was too late for that, it is tried again with a longer lead."""
        share = 0.0
        for lead in range(_LEADS):
            times_us, in_time = self._backend.short_kernels(lead)
            share = lost_share(times_us)
            if in_time or share <= _MOST_LOST:
                break
        return share
