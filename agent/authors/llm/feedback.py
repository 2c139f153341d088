"""What a tool call came to, in words for a model. Nothing of a held-out case gets into them (`author_view`)."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import Reflected
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.prompts import render
from kerneltune.tools.receipt import author_view
from kerneltune.tools.reflect import Roofline
from kerneltune.tools.schema.messages import SassReply
from kerneltune.tools.schema.sass import Sass, changes, made_of
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Timing, Verdict
from kerneltune.tools.update import Update

_AROUND = 2  # lines shown on either side of one that is named
_MOST_EXCERPTS = 2
_MOST_DIFF = 60  # lines
_MOST_HYPOTHESES = 8
_MOST_KERNELS = 6
_MOST_DETAIL = 2_000  # characters of a compiler's message


def update_words(draft: Attempt, task: TaskSpec, twin: int | None, notes: Sequence[str]) -> str:
    """Of an `update` that made an attempt. `twin`: the number of an earlier one that compiles to the same plan."""
    update = draft.update
    assert update is not None
    failure = author_view(update.failure, task) if update.failure else None
    plan = update.main_plan
    return compiled_words(
        draft.number,
        draft.source,
        failure,
        update.kernels,
        plan.library_ops if plan else (),
        traffic_bytes=update.traffic_bytes,
        minimum_bytes=task.main.bytes_moved,
        variants=len(update.plans.get(update.main_case, ())),
        twin=twin,
        notes=(*notes, *update.notes),
        assembled=_assembled(update, task, failure) if failure else "",
    )


def compiled_words(
    number: int,
    source: str,
    failure: Verdict | None,
    kernels: Sequence[KernelReport],
    library_ops: Sequence[str],
    *,
    traffic_bytes: int | None = None,
    minimum_bytes: int = 0,
    variants: int = 0,
    twin: int | None = None,
    notes: Sequence[str] = (),
    assembled: str = "",
) -> str:
    """What an `update` came to. `failure` is an author's view, `assembled` the PTX whose lines it names; what is None
    or 0 is not spoken of."""
    return render(
        "results/update.j2",
        number=number,
        same_as=None,
        failure=failure.status.value if failure else "",
        detail=failure.detail[:_MOST_DETAIL] if failure else "",
        excerpt=_excerpt(source, assembled, failure) if failure else [],
        kernels=[_kernel(k) for k in kernels],
        library_ops=library_ops,
        traffic_bytes=traffic_bytes,
        minimum_bytes=minimum_bytes,
        variants=variants,
        twin=twin,
        notes=notes,
    ).strip()


def same_words(number: int, status: str, notes: Sequence[str]) -> str:
    """Of an `update` whose source is that of an earlier attempt."""
    return render("results/update.j2", same_as=number, same_status=status, notes=notes).strip()


def bench_words(attempt: Attempt, tracker: AttemptTracker, held: Reflected | None, place: Roofline | None) -> str:
    """Of a `bench`. `held`: what became of a prediction about it; `place`: where the attempt lies, if it is right."""
    verdict, leader = author_view(attempt.judged, tracker.task), tracker.best
    return verdict_words(attempt.number, verdict, leader.number if leader else None, held, place.hints if place else ())


def verdict_words(
    number: int, verdict: Verdict, best: int | None, held: Reflected | None, hints: Sequence[str] = ()
) -> str:
    """What a `bench` came to. `verdict` is an author's view; `best`: the number of the best so far."""
    worst = max(verdict.cases, key=lambda c: c.error_ratio, default=None)
    return render(
        "results/bench.j2",
        number=number,
        status=verdict.status.value,
        detail=verdict.detail[:_MOST_DETAIL],
        accepted=verdict.accepted,
        is_best=best == number,
        best=best,
        time=_time(verdict.timing) if verdict.timing else "",
        comparisons=[_comparison(c) for c in sorted(verdict.comparisons, key=lambda c: c.baseline_us)],
        sol=f"{verdict.sol_fraction:.0%}" if verdict.sol_fraction is not None else "",
        coverage=f"{verdict.coverage:.0%}" if verdict.coverage is not None else "",
        worst=_worst(worst) if worst else "",
        held=prediction_words(held) if held else "",
        hints=hints,
    ).strip()


@dataclass(frozen=True)
class Disassembled:
    """What an attempt's kernels came to: the compiler's `reports` and their `sass`; `best_sass` of the best attempt,
    empty where it is this one or was compiled elsewhere."""

    reports: Sequence[KernelReport] = ()
    sass: SassReply = field(default_factory=SassReply)
    best_sass: Sequence[Sass] = ()

    @property
    def lines(self) -> list[str]:
        """A line on what the compiler says of each kernel, and on its instructions."""
        found: list[str] = []
        for number, report in enumerate(self.reports[:_MOST_KERNELS]):
            found.append(_registers(report))
            if number < len(self.sass.kernels):
                found.append(f"  {made_of(self.sass.kernels[number].whole)}")
        if self.reports and self.sass.problem:
            found.append(f"its instructions are not counted: {self.sass.problem}")
        return found

    @property
    def difference(self) -> str:
        """How the best attempt's instructions differ in number; empty where nobody knows."""
        if not (self.best_sass and self.sass.kernels):
            return ""
        return changes(self.sass.kernels, self.best_sass)


def reflect_words(
    attempt: Attempt,
    tracker: AttemptTracker,
    compiled: Disassembled,
    predictions: Sequence[Reflected],
    place: Roofline,
) -> str:
    """Of a `reflect`. `compiled`: what the attempt's kernels are made of, and the best attempt's; `predictions`: those
    that were decided, oldest first."""
    leader = tracker.best
    other = leader if leader is not None and leader.attempt_id != attempt.attempt_id else None
    return render(
        "results/reflect.j2",
        number=attempt.number,
        status=attempt.judged.status.value,
        facts=_facts(attempt, tracker.task, place),
        kernels=compiled.lines,
        best=other.number if other else None,
        diff=_diff(attempt.source, other.source) if other else "",
        instructions=compiled.difference if other else "",
        history=[prediction_words(p) for p in predictions[-_MOST_HYPOTHESES:]],
        confirmed=sum(p.outcome == "confirmed" for p in predictions),
        decided=sum(p.outcome != "open" for p in predictions),
    ).strip()


def prediction_words(held: Reflected) -> str:
    """What was predicted of an attempt, and what happened."""
    number = held.attempt_id.rpartition("/")[2]
    wanted, got = (held.evidence.get(name) for name in ("predicted_speedup", "measured_speedup"))
    numbers = f" (predicted {wanted:.2f}x" if isinstance(wanted, int | float) else " ("
    numbers += f"{', ' if len(numbers) > 2 else ''}measured {got:.2f}x)" if isinstance(got, int | float) else ")"
    return f"#{number} {held.outcome}: {held.hypothesis}{numbers if len(numbers) > 3 else ''}"


def _assembled(update: Update, task: TaskSpec, failure: Verdict) -> str:
    """The PTX that a failure is about, templates filled in; "" if none is named. Texts made for held-out shapes never
    show."""
    shown = [case.name for case in task.cases if not case.held_out] if failure.ptx_lines else []
    plans = [plan for name in shown for plan in update.plans.get(name, ())]
    texts = (k.text for plan in plans for k in plan.kernels if k.language == "ptx" and k.name == failure.kernel)
    return next(texts, "")


def _excerpt(source: str, assembled: str, failure: Verdict) -> list[str]:
    """The lines that a failure names, with those around them: of the file, and else of the PTX that was assembled."""
    if (shown := _around(source, failure.lines)) or not assembled:
        return shown
    return _around(assembled, failure.ptx_lines)


def _around(text: str, numbers: Sequence[int]) -> list[str]:
    lines = text.split("\n")
    named = [n for n in dict.fromkeys(numbers) if 1 <= n <= len(lines)][:_MOST_EXCERPTS]
    near = dict.fromkeys(n for at in named for n in range(at - _AROUND, at + _AROUND + 1) if 1 <= n <= len(lines))
    return [f"{'>' if n in named else ' '} {n:4} {lines[n - 1]}" for n in near]


def _kernel(report: KernelReport) -> dict[str, object]:
    return {**vars(report), "spill_bytes": report.spill_store_bytes + report.spill_load_bytes}


def _time(timing: Timing) -> str:
    return f"{timing.median_us:.2f} us [{timing.low_us:.2f}, {timing.high_us:.2f}] on the device, cold L2"


def _comparison(c: Comparison) -> str:
    ratio = "no difference measured" if c.low <= 1.0 <= c.high else f"{c.speedup:.3f}x"
    return f"against {c.baseline} ({c.baseline_us:.2f} us): {ratio} [{c.low:.3f}, {c.high:.3f}]"


def _worst(case: CaseResult) -> str:
    return f"{case.error_ratio:.2g} of the tolerance, case {case.case}, {case.inputs} inputs"


def _facts(attempt: Attempt, task: TaskSpec, place: Roofline) -> list[str]:
    verdict, main = attempt.judged, task.main
    facts = [
        f"the task: {main.bytes_moved:,} bytes, {main.flops:,} flops; a perfect kernel takes {place.floor_us:.2f} us",
        f"bound by {place.bound}: {place.reason}",
    ]
    if place.achieved_gbps is not None and place.achieved_tflops is not None:
        facts.append(f"reached: {place.achieved_gbps / 1e3:.2f} TB/s, {place.achieved_tflops:.1f} TFLOP/s")
    if verdict.sol_fraction is not None:
        facts.append(f"{verdict.sol_fraction:.0%} of the speed of light")
    return [*facts, *place.hints]


def _registers(kernel: KernelReport) -> str:
    spills = kernel.spill_store_bytes + kernel.spill_load_bytes
    return (
        f"{kernel.name}: {kernel.registers} registers, {spills} B spilled, {kernel.shared_bytes} B shared, "
        f"occupancy {kernel.occupancy:.0%}"
    )


def _diff(source: str, best: str) -> str:
    lines = list(difflib.unified_diff(source.split("\n"), best.split("\n"), "this", "best", n=1, lineterm=""))[2:]
    more = [f"… {len(lines) - _MOST_DIFF} more lines"] if len(lines) > _MOST_DIFF else []
    return "\n".join(lines[:_MOST_DIFF] + more)
