"""Times a plan that is right against the baselines: blocks in palindromes, both clocks, every timed output verified."""

import math
import random
import statistics
from dataclasses import dataclass, field, replace
from typing import Any

from tools.codec import Json
from tools.device import GpuSample, Sampler
from tools.gpus import gpu_named
from tools.judge.arena import Outputs
from tools.judge.clock import Agreement, Reading, agreement
from tools.judge.inputs import case_seed
from tools.judge.runner_link import RunnerFailed, RunnerLink
from tools.judge.timing import CANDIDATE, Rules, Series, floor_us, palindrome, passes_for
from tools.judge.track import Track
from tools.judge.trial import FIRST_RUN_S, RUN_S, Images, staged
from tools.plan.schema import Plan, plan_hash
from tools.roofline import speed_of_light
from tools.runner.protocol import Block, Capture, CopyOut, Replays, Shares, Steps, Times
from tools.verdict import CaseResult, Status, Verdict

_BAD_THROTTLE = 0x8 | 0x20 | 0x40 | 0x80  # hardware slowdown, thermal (software, hardware), power brake
_STEADY_PASSES = 5
_WARM_TO_COLD = 0.5  # a cold pass cannot take less than half of a warm one: then time is hidden between the events


@dataclass
class _Evidence:
    """What one race has seen so far."""

    readings: list[Reading] = field(default_factory=list)
    samples: list[GpuSample] = field(default_factory=list)
    results: list[CaseResult] = field(default_factory=list)
    void_rounds: int = 0
    launches: int = 0
    warm_us: float = 0.0
    shares: Shares = field(default_factory=lambda: Shares(0.0, 0.0, 0.0))


class _Refuted(Exception):
    """The race ends with this verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


class Race:
    """One candidate on one track."""

    def __init__(
        self, track: Track, link: RunnerLink, images: Images, rules: Rules, secret: bytes, gpu: dict[str, Json]
    ) -> None:
        self._track, self._link, self._images, self._rules, self._secret = track, link, images, rules, secret
        self._gpu = gpu
        self._seen = _Evidence()
        self._turn = 0

    def run(self, plan: Plan, checked: tuple[CaseResult, ...] = ()) -> Verdict:
        """The verdict: correct with times, or why not."""
        outputs = Outputs(plan, self._track.slots)
        self._sha256 = plan_hash(plan)
        self._rng = random.Random(case_seed(self._secret, self._sha256, plan.case, "order"))
        try:
            with staged(self._link, plan, self._images, self._track.inputs, outputs, self._track.flush_bytes):
                verdict = self._raced(outputs)
        except RunnerFailed as failure:
            verdict = Verdict(failure.status, f"while timing: {failure.detail}")
        finally:
            outputs.close()
        return replace(verdict, cases=(*checked, *verdict.cases), variant=plan.variant)

    def _raced(self, outputs: Outputs) -> Verdict:
        try:
            self._prepare(outputs)
            series = self._rounds(outputs)
            self._check_clocks()
            return self._verdict(series)
        except _Refuted as refuted:
            return refuted.verdict

    def screen(self, plan: Plan) -> float:
        """Time per launch in µs from a few passes, after a look at one run. Raises RunnerFailed; a wrong result too."""
        outputs = Outputs(plan, self._track.slots)
        self._sha256 = plan_hash(plan)
        try:
            with staged(self._link, plan, self._images, self._track.inputs, outputs, self._track.flush_bytes):
                self._prepare(outputs, preheat=False)
                times = [self._candidate(_STEADY_PASSES) for _ in range(3)]
                return min(times)
        except _Refuted as refuted:
            raise RunnerFailed(refuted.verdict.status, refuted.verdict.detail) from refuted
        finally:
            outputs.close()

    def _ask(self, request: Any, launches: int) -> tuple[Any, float]:
        """Ask for so many launches, with a deadline of 20 times what eager takes and no less than 2 s."""
        least_s = FIRST_RUN_S if isinstance(request, Steps | Capture) else RUN_S
        answered = self._link.ask(request, timeout_s=max(least_s, 20e-6 * launches * self._track.eager_us))
        return answered.reply, answered.host_us

    def _prepare(self, outputs: Outputs, *, preheat: bool = True) -> None:
        """Shares of the steps, the graph, a first verified pass, the number of passes per block."""
        slots = self._track.slots
        if preheat:
            self._seen.shares, _ = self._ask(Steps(_STEADY_PASSES), 3 * _STEADY_PASSES * slots)
        self._ask(Capture(), 2 * slots)
        self._ask(Block(1, self._next_turn(1)), slots)
        self._verify(outputs)
        times, _ = self._ask(Block(2, self._next_turn(2)), 2 * slots)
        self._passes = passes_for(self._rules.block_s, min(times.pass_us))
        if preheat:
            self._preheat()
            self._measure_slope(min(times.pass_us))

    def _next_turn(self, count: int) -> int:
        """Poison goes on where the last block stopped; the value for a block of `count` passes."""
        start = self._turn
        self._turn += count
        return start

    def _verify(self, outputs: Outputs) -> None:
        """All slots as the last pass left them, and the inputs. Raises _Refuted."""
        self._ask(CopyOut(), self._track.slots)
        harmed = self._track.inputs.harmed()
        if harmed:
            raise _Refuted(Verdict(Status.WRONG, f"the candidate overwrites its {harmed} while it is timed"))
        result = self._track.verify(outputs, max(0, self._turn - 1))
        self._seen.results.append(result)
        if not result.ok:
            detail = f"a timed run is wrong: {result.detail}"
            raise _Refuted(Verdict(Status.WRONG, detail, cases=(result,)))

    def _preheat(self) -> None:
        """The arms themselves, until the clocks have settled."""
        done_us = 0.0
        while done_us < self._rules.preheat_s * 1e6:
            times, _ = self._ask(Block(self._passes, self._next_turn(self._passes)), self._passes * self._track.slots)
            done_us += times.span_us
            for baseline in self._track.baselines:
                done_us += baseline.block(self._baseline_passes(baseline.name)).span_us

    def _baseline_passes(self, name: str) -> int:
        return passes_for(self._rules.block_s, self._track.times_us[name] * self._track.slots)

    def _measure_slope(self, pass_us: float) -> None:
        """Blocks of one and of four lengths with nothing but the candidate in them: the cleanest slope."""
        count = passes_for(max(self._rules.block_s, 0.006), pass_us)
        warm_us: list[float] = []
        for passes in (count, 4 * count, count, 4 * count):
            launches = passes * self._track.slots
            times, host_us = self._ask(Replays(passes), launches)
            self._seen.readings.append(Reading(times.span_us, host_us, launches))
            warm_us.append(times.span_us / launches)
        self._seen.warm_us = min(warm_us)

    def _rounds(self, outputs: Outputs) -> Series:
        names = tuple(b.name for b in self._track.baselines)
        series = Series(self._rules, names)
        unverified = False
        with Sampler(self._gpu.get("uuid")) as sampler:
            while not series.enough and self._seen.void_rounds <= max(4, len(series.rounds) // 4):
                self._one_round(series, sampler)
                unverified = len(series.rounds) % self._rules.rounds_per_group != 0
                if not unverified:
                    self._turn_over(outputs)
        if unverified:  # after a turn-over the outputs belong to the contents before it
            self._verify(outputs)
        if not series.rounds:
            raise _Refuted(Verdict(Status.CRASHED, "the GPU throttles; nothing could be measured"))
        return series

    def _turn_over(self, outputs: Outputs) -> None:
        """Verify what was timed, then replace the contents."""
        self._verify(outputs)
        label = f"timing{len(self._seen.results)}"
        case = self._track.task.main.name
        self._track.refresh(lambda k: case_seed(self._secret, self._sha256, case, f"{label}.{k}"))

    def _one_round(self, series: Series, sampler: Sampler) -> None:
        by_name = {b.name: b for b in self._track.baselines}
        blocks: dict[str, list[float]] = {CANDIDATE: [], **{name: [] for name in by_name}}
        measured_us = 0.0
        for arm in palindrome(list(blocks), self._rng):
            if arm == CANDIDATE:
                per_launch = self._candidate(self._rng.randint(self._passes, 2 * self._passes - (self._passes == 1)))
                measured_us += per_launch * self._passes * self._track.slots
            else:
                times = by_name[arm].block(self._baseline_passes(arm))
                per_launch = _per_launch(times, self._track.slots)
                measured_us += sum(times.pass_us)
            blocks[arm].append(per_launch)
        sample = sampler.sample()
        if sample is not None:
            self._seen.samples.append(sample)
        if sample is not None and (sample.throttle_reasons or 0) & _BAD_THROTTLE:
            self._seen.void_rounds += 1
        else:
            series.add(blocks, measured_us * 1e-6)

    def _candidate(self, passes: int) -> float:
        """One block of the candidate: µs per launch; both clocks are noted."""
        launches = passes * self._track.slots
        times, host_us = self._ask(Block(passes, self._next_turn(passes)), launches)
        self._seen.readings.append(Reading(times.span_us, host_us, launches))
        self._seen.launches += launches
        return _per_launch(times, self._track.slots)

    def _check_clocks(self) -> None:
        """Raises _Refuted when the host's clock does not bear the device's out. A first disagreement is measured again:
        something else may have run on the host."""
        found = agreement(self._seen.readings)
        if not found.ok:
            self._seen.readings.clear()
            self._measure_slope(self._seen.warm_us * self._track.slots)
            found = agreement(self._seen.readings)
        self._clocks: Agreement = found
        if not found.ok:
            raise _Refuted(Verdict(Status.IMPOSSIBLE, f"clocks disagree: {found.detail}"))

    def _verdict(self, series: Series) -> Verdict:
        timing = series.timing(max(1, self._seen.launches // max(1, 2 * len(series.rounds))))
        floor = self._floor_us()
        if timing.median_us < self._rules.floor_tolerance * floor:
            return self._impossible(f"{timing.median_us:.2f} µs is below the speed of light of {floor:.2f} µs")
        if timing.median_us < _WARM_TO_COLD * self._seen.warm_us:
            return self._impossible(f"{timing.median_us:.2f} µs cold, but {self._seen.warm_us:.2f} µs back to back")
        comparisons = series.comparisons()
        return Verdict(
            Status.CORRECT,
            self._sentence(series),
            cases=tuple(self._seen.results[-1:]),
            timing=timing,
            comparisons=comparisons,
            coverage=self._coverage(),
            sol_fraction=self._light_us() / timing.median_us,
            receipt=self._receipt(series, floor),
        )

    def _impossible(self, detail: str) -> Verdict:
        return Verdict(Status.IMPOSSIBLE, detail, receipt={"warm_us": self._seen.warm_us})

    def _sentence(self, series: Series) -> str:
        found = series.comparisons()
        if not found:
            return "right; there is no baseline to compare with"
        best = found[0]
        if abs(math.log(best.speedup)) <= max(self._track.resolution, series.ratio(best.baseline).half_width):
            return f"right; no difference from {best.baseline} measured"
        return f"right; {best.speedup:.3f} times the speed of {best.baseline}"

    def _floor_us(self) -> float:
        """Below this a time is impossible; 0 when the reference itself is faster, so that not every byte must move."""
        case = self._track.task.main
        fastest = max(self._track.copy_gbps, self._data_sheet_gbps())
        floor = floor_us(case.bytes_moved, self._track.output_bytes, self._track.l2_bytes, self._track.slots, fastest)
        return floor if self._track.best_us >= floor else 0.0

    def _data_sheet_gbps(self) -> float:
        try:
            return gpu_named(str(self._gpu.get("name"))).bandwidth_gbps
        except KeyError:
            return 1.15 * self._track.copy_gbps  # a pure read may be that much faster than a copy

    def _light_us(self) -> float:
        """The speed of light for this case by the data sheet: a pure read is faster than a measured copy, so a floor
        from the copy would let a kernel be faster than light. For an unknown GPU 15 % above the copy."""
        case, task = self._track.task.main, self._track.task
        try:
            return speed_of_light(case, gpu_named(str(self._gpu.get("name"))), task.precision).us
        except KeyError:
            return case.bytes_moved / (self._data_sheet_gbps() * 1e3)

    def _coverage(self) -> float:
        shares = self._seen.shares
        whole = shares.own_us + shares.library_us + shares.glue_us
        return shares.own_us / whole if whole else 0.0

    def _receipt(self, series: Series, floor: float) -> dict[str, Json]:
        seen, track = self._seen, self._track
        clocks = [s.sm_clock_mhz for s in seen.samples if s.sm_clock_mhz is not None]
        return {
            "protocol": "cold passes over rotating slots, palindromes, CUDA graphs",
            "plan": self._sha256,
            "gpu": self._gpu,
            "slots": track.slots,
            "passes_per_block": self._passes,
            "flush_bytes": track.flush_bytes,
            "rounds": len(series.rounds),
            "void_rounds": seen.void_rounds,
            "measured_s": round(series.measured_s, 4),
            "aa_resolution": track.resolution,
            "host_slope": self._clocks.slope,
            "warm_us": seen.warm_us,
            "floor_us": floor,
            "copy_gbps": track.copy_gbps,
            "verified_groups": len(seen.results),
            "own_us": seen.shares.own_us,
            "library_us": seen.shares.library_us,
            "glue_us": seen.shares.glue_us,
            "sm_clock_mhz": [min(clocks), statistics.median(clocks), max(clocks)] if clocks else None,
            "throttle_reasons": _union(seen.samples),
            "notes": list(track.notes),
        }


def _per_launch(times: Times, slots: int) -> float:
    """Median of the passes, per launch."""
    return statistics.median(times.pass_us) / slots


def _union(samples: list[GpuSample]) -> int | None:
    told = [s.throttle_reasons for s in samples if s.throttle_reasons is not None]
    bits = 0
    for reasons in told:
        bits |= reasons
    return bits if told else None
