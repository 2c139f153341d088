"""The course that a candidate is timed on: the main case in rotating slots, its baselines, and what this session can
tell apart. Made once per task and session; contents are replaced again and again, addresses stay."""

from collections.abc import Callable

import torch

from tools.errors import TaskError
from tools.judge.arena import Inputs, Outputs
from tools.judge.baselines import Baseline, copy_gbps, quick_us
from tools.judge.compare import Expected, compare
from tools.judge.layout import same_bits, tree_bytes
from tools.judge.reference import Problem
from tools.judge.timing import Round, passes_for, resolution, slots_for
from tools.judge.trial import judged
from tools.runner import passes
from tools.spec import TaskSpec
from tools.task import TaskFile
from tools.verdict import CaseResult

CONTENTS = 8  # different sets of contents among the slots
_AA_ROUNDS = 12
_AA_BLOCK_S = 0.003
TIMED = "timed"  # how a comparison of timed outputs is named among the input batteries


class Track:
    """One main case on this GPU."""

    def __init__(self, file: TaskFile, task: TaskSpec, names: tuple[str, ...], seed: int) -> None:
        self.task, self.notes = task, list[str]()
        self.problem = Problem.load(file, task.main.name, device="cuda")
        drawn = self.problem.draw(seed, "own")
        if drawn is None:
            raise TaskError("the task gives no inputs of its own")
        native = self.problem.native(drawn.inputs)
        self.output_bytes = tree_bytes(native)
        self.eager_us = quick_us(self.problem, drawn.inputs)
        self.l2_bytes = int(torch.cuda.get_device_properties(0).L2_cache_size)
        footprint = tree_bytes(drawn.inputs) + self.output_bytes
        free, _ = torch.cuda.mem_get_info()
        self.slots = min(slots_for(footprint, self.l2_bytes, self.eager_us), max(1, free // 6 // max(1, footprint)))
        self.flush_bytes = passes.flush_bytes()
        self._flush = passes.Flush(self.flush_bytes)
        self._stream: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.inputs = Inputs(drawn, self.slots)
        self.refresh(lambda number: seed + 1 + number)
        self.copy_gbps = copy_gbps()
        self.baselines = [b for name in names if (b := self._baseline(name)) is not None]
        self.times_us = {b.name: self._settled_us(b) for b in self.baselines}
        self.resolution = self._resolution()

    @property
    def best_us(self) -> float:
        """The fastest baseline's time."""
        return min(self.times_us.values(), default=self.eager_us)

    def refresh(self, seed_of: Callable[[int], int]) -> None:
        """New contents for all slots; slots that are CONTENTS apart get the same."""
        for number in range(min(CONTENTS, self.slots)):
            contents = self.problem.inputs(seed_of(number), "own")
            for slot in range(number, self.slots, CONTENTS):
                self.inputs.fill(slot, contents)
        torch.cuda.synchronize()  # other streams, and another process, read them next

    def verify(self, outputs: Outputs, turn: int) -> CaseResult:
        """Every element of every slot. Same contents and same bits as a slot that was right: right too."""
        worst = CaseResult(self.task.main.name, TIMED, True, 0.0, 0.0)
        for number in range(min(CONTENTS, self.slots)):
            expected = self.problem.expect(self.inputs.tree(number, pristine=True))
            for slot in range(number, self.slots, CONTENTS):
                if slot != number and same_bits(outputs.tree(slot), outputs.tree(number)):
                    continue
                result = judged(expected, outputs, slot, turn, case=self.task.main.name, battery=TIMED)
                if not result.ok:
                    return result
                worst = max(worst, result, key=lambda r: r.error_ratio)
        return worst

    def expected(self, slot: int) -> Expected:
        """The answer for one slot."""
        return self.problem.expect(self.inputs.tree(slot, pristine=True))

    def _baseline(self, name: str) -> Baseline | None:
        try:
            baseline = Baseline(name, self.problem, self.inputs, self._stream, self._flush)
            baseline.run_once()
        except Exception as error:  # noqa: BLE001 - whatever torch.compile raises on a person's reference
            why = " ".join(str(error).split())[:300]
            self.notes.append(f"no baseline {name}: {type(error).__name__}: {why}")
            return None
        if self.inputs.harmed():
            self.notes.append(f"no baseline {name}: it writes to its inputs")
            return None
        result = compare(self.expected(0), baseline.outputs[0], case=self.task.main.name)
        if not result.ok:
            self.notes.append(f"no baseline {name}: it is wrong itself: {result.detail[:300]}")
            return None
        if not baseline.graphed:
            self.notes.append(f"{name} cannot be captured in a CUDA graph; its time includes launches")
        return baseline

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
        return resolution(rounds, "first", "second")

    def _aa_round(self, baseline: Baseline, count: int) -> Round:
        times = [sum(baseline.block(count).pass_us) / count for _ in range(4)]
        return Round({"first": (times[0], times[3]), "second": (times[1], times[2])})
