"""Times a plan that is right against the baselines: blocks in palindromes, both clocks, every timed output verified."""

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from kerneltune.tools.backends.base import ClockWatch, throttled
from kerneltune.tools.backends.runner_messages import (
    CopyOut,
    Drop,
    GraphCapture,
    Replays,
    Resident,
    Setup,
    Steps,
    TimedBlock,
    Times,
    launch_groups,
)
from kerneltune.tools.judge.correctness.inputs import case_seed
from kerneltune.tools.judge.execution.correctness_run import (
    DROP_S,
    FIRST_RUN_S,
    RUN_S,
    SETUP_S,
    Images,
    close_all,
    images_for,
)
from kerneltune.tools.judge.execution.device_buffers import OutputBuffers
from kerneltune.tools.judge.execution.runner_link import RunnerFailed, RunnerLink
from kerneltune.tools.judge.timing.baselines import Baseline
from kerneltune.tools.judge.timing.benchmark_setup import BenchmarkSetup
from kerneltune.tools.judge.timing.build_verdict import Refuted, TimingResult
from kerneltune.tools.judge.timing.gpu_use import GpuUse, GpuWatch
from kerneltune.tools.judge.timing.statistics import (
    CANDIDATE,
    MemoizationTimes,
    Reading,
    RoundSeries,
    agreement,
    find_memoization,
    least_delayed,
    palindrome,
    passes_for,
)
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import Rules
from kerneltune.tools.schema.plan import EMPTY, Aten, Launch, Plan, base_name, plan_hash
from kerneltune.tools.schema.verdict import CaseResult, Cause, LaunchTime, Probes, Status, Verdict, standing_for

_STEADY_PASSES = 5
_IDLE_S = 0.3  # a GPU that has done nothing for so long is heated up again
_LONGEST_SLOPE_S = 0.006
_MORE_SLOPES = 4  # times that disagreeing clocks are read again


class TimingRun:
    """Times one candidate on one benchmark setup, in one runner process."""

    def __init__(
        self,
        setup: BenchmarkSetup,
        link: RunnerLink,
        images: Images,
        rules: Rules,
        secret: bytes,
        gpu_watch: GpuWatch,
        baselines: Sequence[Baseline] | None = None,
        refill: Callable[[], None] | None = None,
    ) -> None:
        """Without `baselines`, against all of the setup's. `refill` brings the contents that several candidates share;
        without it, all contents follow from the plan's hash."""
        self._setup, self._link, self._images, self._rules, self._secret = setup, link, images, rules, secret
        self._gpu_watch, self._refill = gpu_watch, refill
        self.use = GpuUse()  # who used the GPU while `run` measured, whatever came of it
        self._arms = list(setup.baselines if baselines is None else baselines)
        self._turn = 0
        self._probe_drift = self._late = 0.0

    @property
    def cases(self) -> tuple[CaseResult, ...]:
        """How the timed outputs compared, as one result; nothing before the first was."""
        results = self._timed.results
        return (standing_for(results[-1], results),) if results else ()

    def run(self, plan: Plan, label: str = "timing") -> TimingResult:
        """Measure all. Raises Refuted with the verdict when the plan is not right, or its time not credible, and
        RunnerFailed. `label` tells apart the seeds of several runs of one plan."""
        timed = self._start(plan, label)
        if self._refill is None:
            self._refresh("first")
        else:
            self._refill()
        with self._outputs(plan) as outputs:
            started_s = time.monotonic()
            with ClockWatch(self._gpu_watch.sampler) as watch, self._staged(plan, outputs):
                timed.phases_s["setup"] = time.monotonic() - started_s
                try:
                    self._measured(plan, outputs, watch)
                finally:  # a refusal must show, too, that the GPU was the judge's own
                    self._look_around(watch)
        return timed

    def _look_around(self, watch: ClockWatch | None = None) -> None:
        """See who else uses the GPU, between two requests to the runner; at the end with what `watch` has seen."""
        self.use = self.use.and_then(self._gpu_watch.seen())
        if watch is not None:
            drift = self._timed.series.drift or self._probe_drift
            self.use = self.use.and_then(GpuUse(drift=drift, throttled=throttled(watch.reasons()), late=self._late))
            self._timed.foreign_processes = self.use.foreign or 0
            self._timed.gpu_use = self.use.facts()

    def _start(self, plan: Plan, label: str) -> TimingResult:
        self._label = label
        names = tuple(b.name for b in self._arms)
        launches = [s for s in plan.run if isinstance(s, Launch) and 0 not in s.grid]
        overlapping = any(s.pdl for s in launches) or self._pdl(plan)
        self._timed = TimingResult(
            RoundSeries(self._rules, names), plan_hash(plan), plan.variant, nodes=max(1, len(launches))
        )
        self._timed.overlapping, self._timed.idle_s = overlapping, self._setup.idle_s
        self._rng = random.Random(case_seed(self._secret, self._timed.sha256, plan.case, f"{label}.order"))
        return self._timed

    def _pdl(self, plan: Plan) -> bool:
        return any(self._images[k.sha256].metadata.get("launch_pdl") for k in plan.kernels if k.sha256 in self._images)

    def _measured(self, plan: Plan, outputs: OutputBuffers, watch: ClockWatch) -> None:
        timed = self._timed
        with self._phase("steps"):
            self._time_steps(plan)
        with self._phase("prepare"):
            self._capture(outputs)
            self._look_around()
        with self._phase("preheat"):
            self._preheat()
        with self._phase("slope"):
            self._measure_slope(self._rules.slope_s)
        with self._phase("memory_probe"):
            self._probe(outputs)
        with self._phase("rounds"):
            self._rounds(outputs, watch)
        timed.sm_clocks_mhz, timed.samples, timed.throttle_reasons = watch.clocks(), watch.slow, watch.reasons()
        self._check_clocks()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._timed.phases_s[name] = self._timed.phases_s.get(name, 0.0) + time.monotonic() - started

    def screen(self, plan: Plan) -> float:
        """Time per launch in µs from a few passes, after a look at one run. Raises RunnerFailed; a wrong result too."""
        self._start(plan, "variants")
        try:
            with self._outputs(plan) as outputs, self._staged(plan, outputs):
                self._capture(outputs)
                return min(self._candidate(_STEADY_PASSES) for _ in range(3))
        except Refuted as refuted:
            raise RunnerFailed(refuted.verdict.status, refuted.verdict.detail) from refuted

    def probed(self, plan: Plan) -> Probes:
        """Time the plan as it is and with its tensors in the L2, beside a copy of its bytes. Raises RunnerFailed, and
        Refuted."""
        self._start(plan, "probes")
        with self._outputs(plan) as outputs, self._staged(plan, outputs):
            self._capture(outputs)
            cold_us = median(self._candidate(_STEADY_PASSES) for _ in range(3))
            times, _ = self._ask(Resident(_STEADY_PASSES), (1 + _STEADY_PASSES) * self._setup.slots)
        copied_bytes = plan.traffic_bytes
        resident_us = _per_launch(times, self._setup.slots) if times.pass_us else None
        return Probes(cold_us, resident_us, copied_bytes / self._setup.copy_gbps / 1e3, copied_bytes)

    @contextmanager
    def _outputs(self, plan: Plan) -> Iterator[OutputBuffers]:
        """Room for the plan's outputs, for the length of a block."""
        outputs = OutputBuffers(self._setup.backend, plan, self._setup.slots)
        try:
            yield outputs
        finally:
            outputs.close()
            self._setup.touched()

    @contextmanager
    def _staged(self, plan: Plan, outputs: OutputBuffers) -> Iterator[None]:
        """The plan loaded in the runner, for the length of a block; a runner that failed has nothing left to drop."""
        setup, inputs, images = self._setup, self._setup.inputs, images_for(plan, self._images)
        fds: list[int] = []
        try:
            shared, state = inputs.shared(fds)
            request = Setup(
                plan=plan,
                metadata=tuple(dict(i.metadata) for i in images),
                inputs=shared,
                state=state,
                outputs=outputs.shared(fds),
                slots=inputs.slots,
                contents=setup.contents,
                input_regions=inputs.regions,
                inputs_stride=inputs.stride,
                state_regions=inputs.state_regions,
                outputs_stride=outputs.stride,
                flush_bytes=setup.timer.flush_bytes,
            )
            setup.backend.synchronize()  # what was written to the buffers must be there before another process reads it
            self._link.ask(request, [i.cubin for i in images], timeout_s=SETUP_S, fds=fds)
        finally:
            close_all(fds)
        try:
            yield
        except RunnerFailed:
            raise
        except BaseException:
            self._link.distrust("the judge gave up on this plan")
            raise
        self._link.ask(Drop(), timeout_s=DROP_S)

    def against_itself(self, plan: Plan, pairs: int, pair_s: float) -> tuple[float, ...]:
        """Time ratios of the candidate to itself, as if it were two arms, `pair_s` seconds of device time each. Raises
        RunnerFailed and Refuted."""
        self._start(plan, "itself")
        with self._outputs(plan) as outputs, self._staged(plan, outputs):
            self._capture(outputs)
            self._arms = []
            self._preheat()
            return tuple(self._pair(pair_s) for _ in range(pairs))

    def _pair(self, pair_s: float) -> float:
        series, passes, done = RoundSeries(self._rules, ("again",)), self._timed.passes, 0
        while done * self.pass_us * 1e-6 < pair_s:
            counts = [self._rng.randint(passes, 2 * passes - (passes == 1)) for _ in range(4)]
            done += sum(counts)
            times = [self._candidate(count) for count in counts]
            series.add({CANDIDATE: (times[0], times[3]), "again": (times[1], times[2])}, 0.0)
        return math.exp(median(r.log_ratio("again") for r in series.rounds))

    def _ask(self, request: Any, launches: int) -> tuple[Any, float]:
        """Ask for so many launches, with a deadline of 20 times what eager takes and no less than 2 s."""
        least_s = FIRST_RUN_S if isinstance(request, Steps | GraphCapture) else RUN_S
        answered = self._link.ask(request, timeout_s=max(least_s, 20e-6 * launches * self._setup.eager_us))
        return answered.reply, answered.host_us

    def _time_steps(self, plan: Plan) -> None:
        """Shares of the steps, where there are others than kernels or several launches."""
        groups = launch_groups(plan)
        if groups or any(isinstance(step, Aten) and base_name(step.op) not in EMPTY for step in plan.run):
            request = Steps(_STEADY_PASSES, len(groups))
            self._timed.shares, _ = self._ask(request, 4 * _STEADY_PASSES * self._setup.slots)
            named = zip(groups, self._timed.shares.launches_us, strict=True)
            self._timed.launch_times = tuple(LaunchTime(name, len(its), us) for (name, its), us in named)

    def _capture(self, outputs: OutputBuffers) -> None:
        """The graph, a first verified pass, the number of passes per block."""
        slots = self._setup.slots
        self._ask(GraphCapture(), 2 * slots)
        self._ask(TimedBlock(1, self._next_turn(1)), slots)
        self._verify(outputs)
        times, _ = self._ask(TimedBlock(2, self._next_turn(2)), 2 * slots)
        self.pass_us = min(times.pass_us)
        self._timed.passes = passes_for(self._rules.block_s, self.pass_us)

    def _next_turn(self, count: int) -> int:
        """Poison goes on where the last block stopped; the value for a block of `count` passes."""
        start = self._turn
        self._turn += count
        return start

    def _verify(self, outputs: OutputBuffers, only: list[int] | None = None) -> None:
        """The slots as the last pass left them, and the inputs. Raises Refuted."""
        self._ask(CopyOut(), self._setup.slots)
        harmed = self._setup.inputs.harmed()
        if harmed:
            raise Refuted(
                Verdict(
                    Status.WRONG, f"the candidate overwrites its {harmed} while it is timed", cause=Cause.OVERWRITES
                )
            )
        result = self._setup.verify(outputs, max(0, self._turn - 1), only)
        self._timed.results.append(result)
        if not result.ok:
            detail = f"a timed run is wrong: {result.sentence}"
            raise Refuted(Verdict(Status.WRONG, detail, cases=(result,), cause=result.cause))

    def _preheat(self) -> None:
        """The arms themselves, until the clocks have settled."""
        rules, done_us = self._rules, 0.0
        wanted_s = rules.preheat_s if self._timed.idle_s > _IDLE_S else rules.warm_preheat_s
        while done_us < wanted_s * 1e6:
            passes = self._timed.passes
            times, _ = self._ask(TimedBlock(passes, self._next_turn(passes)), passes * self._setup.slots)
            done_us += times.span_us
            for baseline in self._arms:
                done_us += baseline.block(self._baseline_passes(baseline.name)).span_us

    def _baseline_passes(self, name: str) -> int:
        return passes_for(self._rules.block_s, self._setup.times_us[name] * self._setup.slots)

    def _measure_slope(self, short_s: float) -> None:
        """Blocks of one and of four lengths with nothing but the candidate in them: the cleanest slope."""
        readings = self._of_two_lengths(
            passes_for(short_s, self.pass_us),
            lambda passes: self._ask(Replays(passes), passes * self._setup.slots),
        )
        self._timed.readings += readings
        self._timed.warm_us = min(r.device_us / r.launches for r in readings)

    def _of_two_lengths(self, count: int, block: Callable[[int], tuple[Times, float]]) -> list[Reading]:
        """Both clocks over blocks of `count` passes and of four times as many, each twice. `block` gives the device's
        times of so many passes, and the host's in µs."""
        readings: list[Reading] = []
        for passes in (count, 4 * count, count, 4 * count):
            times, host_us = block(passes)
            readings.append(Reading(times.span_us, host_us, passes * self._setup.slots))
        return readings

    def _probe(self, outputs: OutputBuffers) -> None:
        """Is the candidate faster on what it has seen? A finding is measured a second time before it counts."""
        if not self._rules.memo_passes:
            return
        for attempt in range(2):
            candidate, baseline = self._probed(f"probe{attempt}")
            self._probe_drift = baseline.drift if baseline else 0.0
            self._timed.memory = find_memoization(candidate, baseline)
            if not self._timed.memory.remembers:
                break
        if self._refill is None:  # else only times that are quoted are worth the answers
            some = self._rng.sample(range(self._setup.slots), min(self._setup.contents, self._setup.slots))
            self._verify(outputs, some)
        self._seen("start")
        if self._timed.memory is not None and self._timed.memory.remembers:
            receipt: dict[str, Json] = {"memory_probe": self._timed.memory.facts()}
            detail = self._timed.memory.detail
            raise Refuted(Verdict(Status.IMPOSSIBLE, detail, receipt=receipt, cause=Cause.MEMOISED))

    def _probed(self, name: str) -> tuple[MemoizationTimes, MemoizationTimes | None]:
        """Single passes of the candidate and of a baseline: the contents of `repeated` ones were there before and
        repeat among the slots, those of `fresh` ones are all different and new. Both kinds are written right before,
        and are the task's own: other inputs may take an honest kernel another time."""
        times: dict[tuple[str, bool], list[float]] = {}
        for turn in range(self._rules.memo_passes):
            for fresh in self._rng.sample((False, True), 2):
                if fresh:
                    self._refresh(f"{name}.{turn}", contents=self._setup.slots)
                else:
                    self._refresh(f"{name}.again")
                    self._pass_us()  # so that these contents were seen, and the block after it repeats them
                    self._refresh(f"{name}.again")
                # writing left the multiprocessors idle, for longer where contents are new; without a pass before the
                # one that is timed, an honest product of 4 ms took 8 % longer on those
                for baseline in self._arms[:1]:
                    baseline.block(1)
                times.setdefault((CANDIDATE, fresh), []).append(self._pass_us())
                for baseline in self._arms[:1]:
                    times.setdefault(("", fresh), []).append(_per_launch(baseline.block(1), self._setup.slots))
        probes = [MemoizationTimes(tuple(times[arm, True]), tuple(times[arm, False])) for arm, fresh in times if fresh]
        return probes[0], probes[1] if len(probes) > 1 else None

    def _seen(self, name: str) -> None:
        """Contents that repeat among the slots, written anew."""
        if self._refill is None:
            self._refresh(name)
        else:
            self._setup.filled_for = ""
            self._refill()

    def _refresh(self, name: str, contents: int | None = None) -> None:
        """New contents from secret seeds, which the receipt reveals."""
        case, label = self._setup.task.main.name, f"{self._label}.{name}"
        drawn: list[int] = []

        def seed_of(number: int) -> int:
            drawn.append(case_seed(self._secret, self._timed.sha256, case, f"{label}.{number}"))
            return drawn[-1]

        self._setup.refresh(seed_of, contents=contents)
        self._timed.seeds[label] = " ".join(f"{seed:x}" for seed in drawn)

    def _rounds(self, outputs: OutputBuffers, watch: ClockWatch) -> None:
        series, unverified, group = self._timed.series, False, self._rules.group(self._timed.phases_s["prepare"])
        while not series.enough:
            self._one_round(watch)
            unverified = len(series.rounds) % group != 0
            if not unverified:
                self._verify(outputs)
                if not series.enough:
                    self._refresh(f"group{len(self._timed.results)}")
        if unverified:
            self._verify(outputs)
        if series.unfit:
            why = f"{series.discarded} of {len(series.rounds)} rounds had a throttled GPU"
            detail = f"right, but this GPU is not fit to time it: {why}"
            raise Refuted(Verdict(Status.UNCHECKED, detail, cause=Cause.THROTTLED))

    def _one_round(self, watch: ClockWatch) -> None:
        by_name = {b.name: b for b in self._arms}
        blocks: dict[str, list[float]] = {CANDIDATE: [], **{name: [] for name in by_name}}
        measured_us, started_s = 0.0, time.monotonic()
        for arm in palindrome(list(blocks), self._rng):
            if arm == CANDIDATE:
                passes = self._timed.passes
                passes = self._rng.randint(passes, 2 * passes - (passes == 1))
                per_launch = self._candidate(passes)
                measured_us += per_launch * passes * self._setup.slots
            else:
                times = by_name[arm].block(self._baseline_passes(arm))
                per_launch = _per_launch(times, self._setup.slots)
                measured_us += sum(times.pass_us)
            blocks[arm].append(per_launch)
        seen = watch.since(started_s)
        self._timed.series.add(blocks, measured_us * 1e-6, sm_clock_mhz=seen.sm_clock_mhz, throttled=seen.throttled)

    def _candidate(self, passes: int) -> float:
        """Time one block of the candidate: µs per launch; both clocks are noted."""
        launches = passes * self._setup.slots
        times, host_us = self._ask(TimedBlock(passes, self._next_turn(passes)), launches)
        self._timed.readings.append(Reading(times.span_us, host_us, launches))
        self._timed.launches += launches
        return _per_launch(times, self._setup.slots)

    def _pass_us(self) -> float:
        """A block of one pass, which counts for nothing but what it is compared with."""
        times, _ = self._ask(TimedBlock(1, self._next_turn(1)), self._setup.slots)
        return _per_launch(times, self._setup.slots)

    def _check_clocks(self) -> None:
        """Raises Refuted when the host's clock does not bear the device's out. A disagreement is measured again: what
        else runs on the host can delay an answer, and a lying clock lies each time. A baseline says whether it did."""
        found = agreement(self._timed.readings)
        if not found.ok:
            self._timed.readings.clear()
        for _ in range(_MORE_SLOPES):
            if found.ok:
                break
            self._measure_slope(_LONGEST_SLOPE_S)
            found = agreement(least_delayed(self._timed.readings))
        self._timed.clocks = found
        if not found.ok:
            self._late = self._late_by()
            raise Refuted(Verdict(Status.IMPOSSIBLE, f"clocks disagree: {found.detail}", cause=Cause.CLOCKS))

    def _late_by(self) -> float:
        """By what share the two clocks differ over the first baseline; 0 without one."""
        if not self._arms:
            return 0.0
        baseline = self._arms[0]

        def block(passes: int) -> tuple[Times, float]:
            started_s = self._link.clock()
            times = baseline.block(passes)
            return times, (self._link.clock() - started_s) * 1e6

        count = passes_for(_LONGEST_SLOPE_S, self._setup.times_us[baseline.name] * self._setup.slots)
        readings = [reading for _ in range(_MORE_SLOPES // 2) for reading in self._of_two_lengths(count, block)]
        return abs(agreement(least_delayed(readings)).slope - 1)


def _per_launch(times: Times, slots: int) -> float:
    """Median of the passes, per launch."""
    return median(times.pass_us) / slots
