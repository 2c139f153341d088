"""Benchmark setup of one task on one GPU: input buffers in rotating slots, baselines, A/A noise, cached answers."""

import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from kerneltune.tools.backends.base import Backend
from kerneltune.tools.judge.correctness.comparison import ExpectedOutputs, WholeExpectation, compare_in_parts
from kerneltune.tools.judge.correctness.gates import MOST_SAMPLES, Expected
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.correctness.reference_model import free_cached
from kerneltune.tools.judge.correctness.tree import Tree, tensors
from kerneltune.tools.judge.execution.device_buffers import InputBuffers, OutputBuffers, without_data
from kerneltune.tools.judge.execution.guard_pages import tree_bytes
from kerneltune.tools.judge.timing.baselines import (
    Baseline,
    BaselineQueue,
    doubts,
    eager_us,
    within,
)
from kerneltune.tools.judge.timing.build_verdict import RooflineBound, TimingContext, roofline_bound
from kerneltune.tools.judge.timing.gpu_use import GpuUse, GpuWatch
from kerneltune.tools.judge.timing.statistics import Round, passes_for, resolution, slots_for
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.gpus import Ceilings
from kerneltune.tools.schema.messages import BASELINE_LIMIT_S
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import CaseResult, standing_for
from kerneltune.tools.task.load import TaskFile

_FEW = 4  # sets of contents of a case of gigabytes; where the budgets of so many do not fit, an answer is worth more


class AnswerCache:
    """The latest answers that fit into `most_bytes`; the one used longest ago goes first. Those that are worked out in
    parts are not kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._held_bytes = most_bytes, 0.0
        self._held: OrderedDict[str, tuple[ExpectedOutputs, float]] = OrderedDict()

    def of(self, name: str, make: Callable[[], ExpectedOutputs]) -> ExpectedOutputs:
        """The answer of that name, made if it is not held."""
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name][0]
        expected = make()
        if isinstance(expected, WholeExpectation) and _FEW * bytes_of(expected.for_many().expected) <= self._most_bytes:
            expected = expected.for_many()
        size = bytes_of(expected.expected) if isinstance(expected, WholeExpectation) else math.inf
        if size <= self._most_bytes:
            self._held[name] = (expected, size)
            self._held_bytes += size
            self._shrink()
        return expected

    def forget(self) -> None:
        """Drop all."""
        self._held.clear()
        self._held_bytes = 0.0

    def _shrink(self) -> None:
        while self._held_bytes > self._most_bytes:
            _, (_, size) = self._held.popitem(last=False)
            self._held_bytes -= size


def bytes_of(expected: Expected) -> int:
    """Memory that an answer holds. What an index was chosen from is the most of it: 2 GB for an argmax over words."""
    trees: list[Tree] = [expected.values, expected.native]
    trees += [t for t in (expected.noise, expected.operand_noise, expected.slack) if t is not None]
    trees += [tensor for made in expected.selections.values() for tensor in (made.values, made.index)]
    trees += [] if expected.kept is None else [expected.values]  # their budgets have that size
    return sum(map(tree_bytes, trees))


CONTENTS = 8  # different sets of contents among the slots
_MOST_HELD = 0.25  # of the GPU's memory, by the setups of all weighted cases; plans, answers and float64 need the rest
_SLOW_CONTENTS = 2  # the same where the reference is slow: each takes an answer whenever outputs are verified
_AA_ROUNDS = 30
_AA_GROUP = 5  # rounds, a quarter of the fewest that a timing run has
_AA_BLOCK_S = 0.003
_SPACER_PAGES = 64
_TIMED_SAMPLES = 6  # of a loss of 2,048 tokens over 128,256 words, 32 take 1.9 s, and a confirmation has 30 answers
LARGE_BYTES = 1 << 30  # of inputs and outputs; above, slots and baselines are given up while a plan is checked
_ORDERED = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)
_CHOOSING = (torch.bool, torch.int32, torch.int64)  # of inputs that may say which elements of others count
TIMED = "timed"  # how a comparison of timed outputs is named among the input batteries


@dataclass(frozen=True)
class BaselineSettings:
    """Which baselines to build, how long one may take, and what is known of the GPU."""

    baselines: tuple[str, ...]
    baseline_limit_s: float = BASELINE_LIMIT_S
    ceilings: Ceilings | None = None
    gpu_name: str = ""
    notes: list[str] = field(default_factory=list)


def _values(answer: Tree) -> list[float]:
    """The number that each output consists of; nothing where one has several."""
    found = []
    for tensor in tensors(answer):
        low, high = tensor.aminmax() if tensor.numel() and tensor.dtype in _ORDERED else (math.nan, math.nan)
        found.append(float(low))
        if low != high:
            return []
    return found


class BenchmarkSetup:
    """The task's main case on this GPU: slots of inputs, baselines and their times, A/A noise, answers.

    Of a task with several weighted cases each has a setup, for the task as it is led by that case. Those `beside` it
    give their slots up where all of them would hold too much of the memory."""

    def __init__(
        self,
        backend: Backend,
        file: TaskFile,
        task: TaskSpec,
        plans: BaselineSettings,
        seed: int,
        make_room: Callable[[], None] = free_cached,
        beside: "Sequence[BenchmarkSetup]" = (),
    ) -> None:
        for other in beside:  # nobody knows yet what this one takes
            other.vacate()
        self._beside = beside
        self.backend, self.task, self.notes, self._plans = backend, task, list(plans.notes), plans
        self.answers = AnswerCache(backend.memory_bytes()[0] // 6)
        room = _forgetting(self.answers, make_room)
        self.problem = Problem.load(file, task.main.name, device=backend.device, make_room=room)
        self.contents = _SLOW_CONTENTS if self.problem.slow else CONTENTS
        drawn = self.problem.draw(seed, "own")
        if drawn is None:
            raise TaskError("the task gives no inputs of its own")
        self._drawn = replace(drawn, inputs=without_data(drawn.inputs))
        native = self.problem.native(drawn.inputs)
        self.output_bytes = tree_bytes(native)
        values = _values(native)
        del native
        self.eager_us = eager_us(backend, self.problem, drawn.inputs)
        self.l2_bytes = backend.l2_bytes()
        footprint = tree_bytes(drawn.inputs) + self.output_bytes
        free, _ = backend.memory_bytes()
        wanted = slots_for(footprint, self.l2_bytes, self.eager_us, shared_bytes=tree_bytes(drawn.state))
        self.slots = min(wanted, max(1, free // 6 // max(1, footprint)))
        self.timer = backend.timer()
        self.large = footprint > LARGE_BYTES
        self._contents: list[tuple[int, str]] = []
        self._applies: dict[str, bool] = {}
        self.left_out: list[str] = []  # batteries that the timed case is not given for want of memory
        self.use = GpuUse()  # who used the GPU while this was measured
        self.build_s: dict[str, float] = {}
        self.baselines: list[Baseline] = []
        self.times_us: dict[str, float] = {}
        self._queue = BaselineQueue(list(plans.baselines), plans.baseline_limit_s)
        self.resolution = 0.0
        self.inputs, self.placed = InputBuffers(backend, drawn, self.slots), True
        del drawn
        with self._vacated_on_failure():
            self.refresh(lambda number: seed + 1 + number)
            self.is_constant = bool(values) and values == _values(
                self.problem.native(self.problem.inputs(seed + 1) or ())
            )
            self._measure_gpu()
            self.build(most=1)
        self.touched()

    @property
    def pending(self) -> tuple[str, ...]:
        """Baselines that are still to be built."""
        return tuple(self._queue.pending)

    def build(self, within_s: float = math.inf, most: int | None = None) -> None:
        """Build and time the pending baselines, or the next `most`, for so many seconds altogether."""
        if self._queue.pending:
            self.place()
        for name, baseline in self._queue.build(self._baseline, within_s, most):
            self.baselines.append(baseline)
            self.times_us[name] = self._settled_us(baseline)
            self.resolution = self.resolution or self._resolution()

    def settle(self, watch: GpuWatch) -> None:
        """Measure again what others on the GPU have disturbed, once they are gone."""
        if self.use.quiet or not (use := watch.seen()).quiet:
            return
        self.place()
        self._measure_gpu()
        self.times_us = {b.name: self._settled_us(b) for b in self.baselines}
        self.resolution = self._resolution()
        self.use = use.and_then(watch.seen())

    def _measure_gpu(self) -> None:
        self.copy_gbps = self.backend.copy_gbps()
        self.null_launch_us = self.backend.null_launch_us()
        main = replace(self.task.main, bytes_moved=self.output_bytes, flops=0) if self.is_constant else self.task.main
        self.roofline: RooflineBound = roofline_bound(
            replace(self.task, cases=(main, *self.task.cases[1:])),
            self._plans.gpu_name,
            self._plans.ceilings,
            self.output_bytes,
            self.copy_gbps,
        )
        self.roofline = replace(self.roofline, bytes_moved=self._least_bytes(main.bytes_moved))

    def _least_bytes(self, moved: int) -> int:
        """How many of the bytes that the reference moves every right launch must move; a time for fewer accuses. What
        lengths, a mask or indices leave out need not be read. Parameters are read by all launches of a pass, and may be
        in the L2 from the second on."""
        choosing = [t for t in tensors(self._drawn.inputs) if t.dtype in _CHOOSING]
        if choosing:
            return min(moved, self.output_bytes + tree_bytes(choosing))
        warm = min(tree_bytes(self._drawn.state), self.l2_bytes) * (self.slots - 1) // self.slots
        return max(moved - warm, self.output_bytes)

    @property
    def context(self) -> TimingContext:
        """Facts of this setup that verdicts quote."""
        return TimingContext(
            roofline=self.roofline,
            slots=self.slots,
            l2_bytes=self.l2_bytes,
            flush_bytes=self.timer.flush_bytes,
            resolution=self.resolution,
            eager_us=self.eager_us,
            null_launch_us=self.null_launch_us,
            copy_gbps=self.copy_gbps,
            times_us=dict(self.times_us),
            build_s=dict(self.build_s),
            notes=(
                *self.notes,
                *(["the answer is one number, whatever the inputs: a kernel need not read them"] * self.is_constant),
                *self._queue.notes(),
                *doubts(self.times_us, self.eager_us, self.roofline.us),
            ),
            pending=self.pending,
        )

    @property
    def fastest(self) -> list[Baseline]:
        """The fastest baseline, alone; nothing when there is none."""
        return sorted(self.baselines, key=lambda b: self.times_us[b.name])[:1]

    def refresh(
        self, seed_of: Callable[[int], int], *, contents: int | None = None, batteries: Sequence[str] = ()
    ) -> None:
        """New contents for all slots; slots that are `contents` apart (by default `self.contents`) get the same. The
        last of several contents are from the further `batteries`, one each."""
        self.filled_for = ""
        self._period = min(contents or self.contents, self.slots)
        plain = max(1, self._period - len(batteries))
        self._contents = [
            (seed_of(number), "own" if number < plain else batteries[number - plain]) for number in range(self._period)
        ]
        for number, (seed, battery) in enumerate(self._contents):
            drawn = self.problem.inputs(seed, battery)
            for slot in range(number, self.slots, self._period):
                self.inputs.fill(slot, drawn)
        self.backend.synchronize()  # other streams, and another process, read them next

    def fill_for(self, epoch: str, seed_of: Callable[[int], int], batteries: Sequence[str]) -> None:
        """The contents of a screening epoch, unless they are there."""
        if self.filled_for != epoch:
            self.refresh(seed_of, batteries=self._applicable(batteries))
            self.filled_for = epoch

    def _applicable(self, batteries: Sequence[str]) -> tuple[str, ...]:
        """Choose the batteries that the timed case can be given beside the task's own inputs."""
        for battery in batteries:
            if battery not in self._applies:  # the seed of the parameters: another one would build another model
                self._applies[battery] = battery != "own" and self.problem.draw(self._drawn.seed, battery) is not None
                if battery in self.problem.left_out:
                    self.left_out.append(f"{self.task.main.name}/{battery}")
        return tuple(b for b in batteries if self._applies[b])

    def peak_bytes(self, pages: int | None = None) -> int:
        """The most memory that this process held on the GPU since it was asked last: torch's, the slots, and bytes of
        `pages` beside them (None: a plan's outputs, as while it is timed)."""
        beside = self.output_bytes * self.slots if pages is None else pages
        return self.backend.peak_bytes() + beside + (self.inputs.nbytes if self.placed else 0)

    @property
    def _held_bytes(self) -> int:
        """What slots, their pristine copies, and the outputs of baselines and of a plan take while it is placed."""
        return 2 * (self.inputs.nbytes + self.output_bytes * self.slots)

    def touched(self) -> None:
        """The GPU has just worked."""
        self._worked_s = time.monotonic()

    @property
    def idle_s(self) -> float:
        """How long it has not."""
        return time.monotonic() - self._worked_s

    def verify(self, outputs: OutputBuffers, turn: int, only: list[int] | None = None) -> CaseResult:
        """Every element of every slot (of the slots named by `only`, if given)."""
        worst = CaseResult(self.task.main.name, TIMED, True, 0.0, 0.0)
        seen: list[CaseResult] = []
        for number, (seed, battery) in enumerate(self._contents):
            for slot in range(number, self.slots, self._period):
                if only is not None and slot not in only:
                    continue
                verified = partial(self._verified, outputs=outputs, slot=slot, turn=turn)
                result = outputs.judged(slot, f"{battery}/{seed}", verified)
                if not result.ok:
                    return result
                seen.append(result)
        return standing_for(max(seen, key=lambda r: r.error_ratio, default=worst), seen)

    def _verified(self, found: Tree, outputs: OutputBuffers, slot: int, turn: int) -> CaseResult:
        """Compare one slot; a refusal counts when the answer with all of its noise samples bears it out, and is
        explained with what the outputs held before."""
        compare = partial(compare_in_parts, case=self.task.main.name, battery=TIMED, strictly=True)
        result = compare(self.expected(slot), found)
        if result.ok:
            return result
        expected = self.expected(slot, in_full=True)
        result = compare(expected, found)
        return result if result.ok else compare(expected, found, poison=outputs.poisoned(slot, turn))

    def expected(self, slot: int, *, in_full: bool = False) -> ExpectedOutputs:
        """The answer for one slot; kept while there is room, since contents are verified more than once. What
        `_TIMED_SAMPLES` say of its noise is enough to accept by; `in_full`: from as many as there ever are."""
        seed, battery = self._contents[slot % self._period]
        least, most = (MOST_SAMPLES, MOST_SAMPLES) if in_full else (0, _TIMED_SAMPLES)
        return self.answers.of(
            f"{battery}/{seed}/{most}",
            lambda: self.problem.expectation(
                self.inputs.tree(slot, pristine=True), least_samples=least, most_samples=most
            ),
        )

    def vacate(self) -> None:
        """Give up the slots and what the baselines hold until `place`; what was compiled stays."""
        if self.placed:
            self.placed = False
            self.backend.synchronize()
            for baseline in self.baselines:
                baseline.release()
            self.inputs.close()
        self.answers.forget()
        free_cached()

    def place(self) -> None:
        """Slots with new contents, at other addresses than before (where memory lies is a part of the noise), and
        baselines on them; nothing to do where they are."""
        if self.placed:
            return
        most_bytes = _MOST_HELD * self.backend.memory_bytes()[1]
        if self._held_bytes + sum(other._held_bytes for other in self._beside if other.placed) > most_bytes:
            for other in self._beside:
                if other is not self:
                    other.vacate()
        spacer = torch.empty(
            (1 + secrets.randbelow(_SPACER_PAGES)) << 21, dtype=torch.uint8, device=self.backend.device
        )
        self.inputs, self.placed = InputBuffers(self.backend, self._drawn, self.slots), True
        with self._vacated_on_failure():
            self.refresh(lambda _: secrets.randbits(62))
            self.timer.renew_memory()
            for baseline in self.baselines:
                self._bind(baseline)
        del spacer

    @contextmanager
    def _vacated_on_failure(self) -> Iterator[None]:
        """Give the slots up where the block fails: memory that is short then has their pages back."""
        try:
            yield
        except BaseException:
            self.vacate()
            raise

    def _bind(self, baseline: Baseline) -> None:
        baseline.bind(self.inputs)
        baseline.forget_outputs()
        if not baseline.graphed:  # a capture that failed may have spoilt it
            self.timer.renew_memory()

    def _baseline(self, name: str, limit_s: float) -> Baseline | None:
        """Build one; None where that fails. Raises TookTooLong."""
        started = time.monotonic()
        try:
            with within(limit_s):
                baseline = Baseline(name, self.problem, self.inputs, self.timer)
                baseline.run_once()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever torch.compile raises on a person's reference
            why = " ".join(str(error).split())[:300]
            self.notes.append(f"no baseline {name}: {type(error).__name__}: {why}")
            return None
        self.build_s[name] = round(time.monotonic() - started, 2)
        return baseline if self._sound(baseline) else None

    def _sound(self, baseline: Baseline) -> bool:
        """Whether it leaves its inputs alone and is right, by the gates that a candidate meets."""
        if self.inputs.harmed() or not self._as_filled():
            self.notes.append(f"no baseline {baseline.name}: it writes to its inputs")
            return False
        case = self.task.main.name
        result = compare_in_parts(self.expected(0), baseline.outputs[0], case=case, strictly=True)
        if not result.ok:  # all of a slow reference's noise takes 32 runs of it
            result = compare_in_parts(self.expected(0, in_full=True), baseline.outputs[0], case=case, strictly=True)
        self.notes += [
            note for lacks in result.limitations if (note := f"answers of the timed case: {lacks}") not in self.notes
        ]
        if not result.ok:
            self.notes.append(f"no baseline {baseline.name}: it is wrong itself: {result.sentence[:300]}")
            return False
        baseline.forget_outputs()
        if not baseline.graphed:
            self.timer.renew_memory()
            self.notes.append(f"{baseline.name} cannot be captured in a CUDA graph; its time includes launches")
        return True

    def _as_filled(self) -> bool:
        """Whether the first slot holds what it was filled with; where it does not, all are filled anew."""
        if not self.large or self.inputs.holds(0, self.problem.inputs(*self._contents[0])):
            return True
        contents = list(self._contents)
        self.refresh(lambda number: contents[number][0])
        return False

    def _settled_us(self, baseline: Baseline) -> float:
        """Time per launch once the clocks have risen: the median of the last of several blocks."""
        for _ in range(3):
            times = sorted(baseline.block(5).pass_us)
        return times[len(times) // 2] / self.slots

    def _resolution(self) -> float:
        """What the first baseline differs from itself by, through the same code (the A/A gate)."""
        if not self.baselines:
            return 0.0
        baseline = self.baselines[0]
        count = passes_for(_AA_BLOCK_S, self.times_us[baseline.name] * self.slots)
        rounds = [self._aa_round(baseline, count) for _ in range(_AA_ROUNDS)]
        return resolution(rounds, "first", "second", _AA_GROUP)

    def _aa_round(self, baseline: Baseline, count: int) -> Round:
        times = [sum(baseline.block(count).pass_us) / count for _ in range(4)]
        return Round({"first": (times[0], times[3]), "second": (times[1], times[2])})


def _forgetting(answers: AnswerCache, make_room: Callable[[], None]) -> Callable[[], None]:
    """Room made of the answers, too. Knows no setup: a cycle would keep the buffers of one that is given up."""

    def make() -> None:
        answers.forget()
        make_room()

    return make
