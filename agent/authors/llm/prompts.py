"""What a model is told of a run: the values of the templates in prompts/, and the texts that they make.

The system prompt, openings and histories of a run (`RunPrompts`), and what a tool call came to (`format_update`,
`format_bench`, `format_reflect`). Short words and rounded numbers; a history is bounded whatever the number of
attempts. Nothing here may tell of a held-out case: cases are those with `held_out` False, verdicts are `author_view`s.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import exp, inf, log
from statistics import median
from typing import Literal, TypeGuard

from kerneltune.agent.attempt import Attempt, Lesson, Remaining, best, rank_order
from kerneltune.agent.authors.search.experts import experts, ptx_experts
from kerneltune.agent.authors.search.neighbours import Sketch
from kerneltune.agent.events import Reflected
from kerneltune.agent.tracker import AttemptTracker, is_scored
from kerneltune.prompts import render, render_text
from kerneltune.tools.corpus import example
from kerneltune.tools.languages import base as languages
from kerneltune.tools.receipt import HIDDEN, author_view
from kerneltune.tools.reflect import Roofline, bottlenecks, facts_of, limits_in_words
from kerneltune.tools.schema.codec import Json, one_line, plain, plural, syntax_tree
from kerneltune.tools.schema.gpus import GPUS, Ceilings, Gpu, gpu_named, rate_tflops, speed_of_light, tree_bytes
from kerneltune.tools.schema.messages import Baselines, SassReply
from kerneltune.tools.schema.sass import (
    KernelFacts,
    Sass,
    by_line,
    excerpt,
    facts_in_words,
    hot_code,
    innermost,
    made_of,
)
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec, contracts_in_words, row_major, tensors_of
from kerneltune.tools.schema.verdict import KernelReport, Verdict, fastest_first, launches_in_words
from kerneltune.tools.update import Update

Trouble = Literal["talk", "empty", "cut_off", "refused"]  # of a reply that calls no tool
Values = dict[str, object]
MOST_CASES = 8  # that a prompt lists
MOST_PARAMETERS = 12  # of one case
MOST_OF_A_TREE = 300  # characters
MOST_OF_A_DETAIL = 1000  # characters of a failure that is told in full
MOST_KERNELS = 4  # of one attempt
_MOST_PLACE, _MOST_REASON = 36, 80  # characters of a failure in a row of a history
PRECISIONS = {
    "float64": "float64: all arithmetic in float64",
    "float32": "float32: products and sums with 24-bit mantissas; plain TF32 or 16-bit operands fail, three "
    "products of TF32 or of scaled float16 pairs pass",
    "tf32_ok": "tf32: products may be TF32 (11 bits), sums are float32",
    "tf32": "tf32: products may be TF32 (11 bits), sums are float32",
    "float16": "float16: operands may be float16 (11 bits), sums are float32",
    "bfloat16": "bfloat16: operands may be bfloat16 (8 bits), sums are float32",
}
MOST_BEST, MOST_NEWEST, MOST_SCORES = 5, 12, 48  # rows of a history
MOST_LESSONS = 10
_PLUMBING = set(  # calls in a Model that are no operation of it
    "init parameter registerbuffer tensor empty zeros ones randn view reshape size t contiguous cat chunk stack "
    "float half bfloat16 to".split()
)
_SAME_OPERATION = dict.fromkeys(("linear", "mm", "bmm", "addmm", "baddbmm", "scaledmm"), "matmul") | {
    "logsoftmax": "softmax"
}


class RunPrompts:
    """`arch`: what is compiled for ("sm_90"); `gpu`: what the driver calls the GPU that times, or None where nothing is
    timed; `outcomes`: what has been reflected in this run so far, oldest first; `lessons` of earlier runs; `ceilings`
    of that GPU, where they were measured; `baselines`: waits for those that are timed first. Raises ValueError for an
    unknown `language`; an unknown GPU or target gets words without numbers."""

    def __init__(
        self,
        tracker: AttemptTracker,
        arch: str,
        gpu: str | None,
        language: str = "triton",
        outcomes: Callable[[], Sequence[Reflected]] = lambda: (),
        lessons: Sequence[Lesson] = (),
        ceilings: Ceilings | None = None,
        baselines: Callable[[], Baselines | None] | None = None,
    ) -> None:
        spoken = languages.language(language)
        self._tracker, self._outcomes, self._timed, self._baselines = tracker, outcomes, gpu is not None, baselines
        self._lessons = [lesson_values(lesson, tracker.task) for lesson in lessons]
        hardware = _hardware(arch, gpu)
        self.topics = {name: topic for name, topic in TOPICS.items() if topic.language == language}
        self.experts = {
            sketch.name: sketch
            for sketch in (*(ptx_experts(tracker.task) if language == "ptx" else ()), *experts(tracker.task))
        }
        known: Values = {
            "arch": arch,
            "timed": self._timed,
            "language": language,
            "hardware": hardware,
            "ceilings": ceilings,
            "contractions": tracker.task.main.flops > 0,
        }
        self._known = known
        self.system = render(
            "system.j2",
            gpu_name=_bare(gpu) if gpu else "a GPU that is not at hand",
            language_name=spoken.name,
            imports=spoken.imports,
            language_prompt=render_text(languages.prompt_of(language), **known),
            task=task_values(tracker.task),
            light=light_values(tracker.task, hardware, ceilings) if hardware and gpu else None,
            experts=list(self.experts),
            topics=list(self.topics),
            **known,
        )

    def opening(self, seeds: tuple[Attempt, ...] = (), rounds: int | None = None) -> str:
        """The first words of a conversation; `seeds` are attempts to start from, `rounds` how many replies with
        verdicts it may have."""
        whole = [self._whole(a) for a in seeds]
        return render("opening.j2", timed=self._timed, seeds=whole, rounds=rounds, lessons=self._lessons)

    def standing(self, remaining: Remaining) -> str:
        """What is left of a run, and what is to be beaten: the best, before there is one the baselines, which are
        waited for."""
        limits: tuple[tuple[float, Callable[[float], str]], ...] = (
            (remaining.attempts, lambda attempts: plural(round(attempts), "attempt")),
            (remaining.time_s, "{:.0f} s".format),
            (remaining.cost_usd, "${:.2f}".format),
        )
        leader = self._tracker.best
        found = self._baselines() if self._baselines and not leader else None
        return render(
            "standing.j2",
            left=[in_words(max(0.0, value)) for value, in_words in limits if value != inf],
            best=leader.number if leader else None,
            result=result_words(leader, leader.judged) if leader else "",
            baselines={name: _us(us) for name, us in found.times_us.items()} if found else {},
            pending=found.pending if found else (),
            timed=self._timed,
        )

    def topic(self, name: str) -> str:
        """How to do what one of `topics` is about, with its example."""
        words = render(f"docs/{name}.j2", **self._known)
        return format_look(words, code=example(self.topics[name].example))

    def history(self) -> str:
        """What has been tried in this run so far, and what came of it. Bounded, but for the best source."""
        attempts = list(self._tracker.attempts)
        known = history_values(self._tracker.task, attempts, self._outcomes())
        return render("history.j2", timed=self._timed, lessons=self._lessons, **known)

    def drafts(self, drafts: Sequence[Attempt]) -> str:
        """What a history adds for attempts that have no verdict yet; "" without any."""
        return render("drafts.j2", drafts=drafts).strip()

    def crossover(self, first: Attempt, second: Attempt, rounds: int | None = None) -> str:
        """The first words of a conversation that shall join two attempts."""
        ours = {"first": self._whole(first), "second": self._whole(second)}
        return render("crossover.j2", timed=self._timed, rounds=rounds, lessons=self._lessons, **ours)

    def nudge(self, trouble: Trouble) -> str:
        """The answer to a reply that called no tool."""
        return render("nudge.j2", trouble=trouble)

    def _whole(self, attempt: Attempt) -> dict[str, object]:
        numbers = {a.attempt_id: a.number for a in list(self._tracker.attempts)}
        return attempt_values(self._tracker.task, attempt, numbers)


def _bare(gpu: str) -> str:
    return gpu if gpu.startswith("NVIDIA ") else f"NVIDIA {gpu}"


def _hardware(arch: str, gpu: str | None) -> Gpu | None:
    """The GPU that times; where there is none, the first known one of the target. None if nothing is known."""
    if gpu is None:
        return next((g for g in GPUS if f"sm_{g.arch}" == arch), None)
    try:
        return gpu_named(gpu)
    except KeyError:
        return None


def task_values(spec: TaskSpec) -> Values:
    """The task without its held-out cases."""
    shown = [case for case in spec.cases if not case.held_out]
    return {
        "name": spec.name,
        "precision": PRECISIONS.get(spec.precision, f"{spec.precision}: no narrower operands, sums are float32"),
        "notes": spec.notes,
        "source": spec.source,
        "contracts": contracts_in_words(spec.contracts),
        "cases": [_case(case) for case in shown[:MOST_CASES]],
        "weighted": len(spec.weighted) > 1,
        "unlisted": max(0, len(shown) - MOST_CASES),
        "bytes": _amount(spec.main.bytes_moved, "B"),
        "flops": _amount(spec.main.flops, "FLOP") if spec.main.flops else "",
        "intensity": _short(spec.main.flops / spec.main.bytes_moved) if spec.main.bytes_moved else "?",
    }


def _case(case: CaseSpec) -> Values:
    state = [f"{name}: {tree(spec)}" for name, spec in case.state.items()]
    more = [f"… {len(state) - MOST_PARAMETERS} more"] if len(state) > MOST_PARAMETERS else []
    return {
        "name": case.name,
        "weight": f"{case.weight:g}" if case.weight else "",
        "inputs": ", ".join(map(tree, case.inputs)),
        "init_args": ", ".join(map(tree, case.init_args)),
        "outputs": tree(case.outputs),
        "state": ", ".join(state[:MOST_PARAMETERS] + more),
    }


def tree(value: Json | TensorSpec) -> str:
    """A tree of tensors in short: "float32[8, 4]", "(int64[3], True)"."""
    words = _tree(value)
    return words if len(words) <= MOST_OF_A_TREE else words[: MOST_OF_A_TREE - 1] + "…"


def _tree(value: Json | TensorSpec) -> str:
    if isinstance(value, Mapping) and "$tensor" in value:
        value = next(spec for _, spec in tensors_of(value))
    if isinstance(value, TensorSpec):
        apart = value.stride is not None and value.stride != row_major(value.shape)
        return f"{value.dtype}{list(value.shape)}" + (f" stride {list(value.stride or ())}" if apart else "")
    if isinstance(value, Mapping) and len(value) == 1 and next(iter(value)).startswith("$"):  # a tuple, a dtype, …
        inner = next(iter(value.values()))
        return inner if isinstance(inner, str) else _tree(inner)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_tree(inner)}" for key, inner in value.items()) + "}"
    return f"({', '.join(map(_tree, value))})" if isinstance(value, list | tuple) else repr(value)


def light_values(spec: TaskSpec, gpu: Gpu, ceilings: Ceilings | None = None) -> Values | None:
    """How fast the timed case could be, by the data sheet and by what was measured: on this GPU, where it was
    calibrated. None when the rates of its precision are not known."""
    try:
        floor = speed_of_light(spec.main, gpu, spec.precision)
    except KeyError:
        return None
    here = ceilings.light_us(spec.main, tree_bytes(spec.main.outputs), spec.precision) if ceilings else None
    measured = floor.measured_us if here is None else here
    return {
        "us": _short(floor.us),
        "bound": floor.bound,
        "measured_us": _short(measured) if measured is not None else "",
        "is_of_here": here is not None,
    }


def relevant(lessons: Sequence[Lesson], spec: TaskSpec, gpu: str | None) -> list[Lesson]:
    """What a model on this task should be told, `MOST_LESSONS` at most, of `lessons` on this GPU with the latest first:
    those of the task itself, then of tasks that share the most operations with it, of these first those with the same
    bottleneck; one that held and one that was refuted by turns. None of tasks that share nothing."""
    hardware, ours = _hardware("", gpu), operations(spec.source)
    ridge = 1e3 * rate_tflops(hardware, spec.precision) / hardware.bandwidth_gbps if hardware else 0.0  # flops a byte
    bound = spec.main.flops > ridge * spec.main.bytes_moved
    ranked: list[tuple[bool, float, bool, Lesson]] = []
    for lesson in {(one.task_sha256, one.idea): one for one in reversed(lessons)}.values():
        theirs, same = operations(lesson.task_source), lesson.task_sha256 == spec.sha256
        shared = len(ours & theirs) / max(1, len(ours | theirs))
        if same or shared:
            ranked.append((not same, -shared, ((lesson.intensity or 0.0) > ridge) != bound, lesson))
    ordered = [lesson for *_, lesson in sorted(reversed(ranked), key=lambda one: one[:3])]
    held, refuted = ([one for one in ordered if one.confirmed is wanted] for wanted in (True, False))
    return [one for pair in zip_longest(held, refuted) for one in pair if one][:MOST_LESSONS]


def operations(source: str) -> frozenset[str]:
    """What a task's Model calls, whatever the spelling: {"matmul", "softmax"}; nothing of a text that is no Python."""
    try:
        body = syntax_tree(source).body
    except SyntaxError:
        return frozenset()
    models = [node for node in body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    nodes = [node for model in models for node in ast.walk(model)]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = {named.attr.lower().replace("_", "") for named in called if isinstance(named, ast.Attribute)} - _PLUMBING
    products = {"matmul" for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)}
    return frozenset({_SAME_OPERATION.get(name, name) for name in names} | products)


def lesson_values(lesson: Lesson, spec: TaskSpec) -> Values:
    """A lesson as lessons.j2 tells it. Its words are a model's."""
    return {
        "task": one_line(lesson.task),
        "same": lesson.task_sha256 == spec.sha256,
        "idea": one_line(lesson.idea),
        "hypothesis": one_line(lesson.hypothesis),
        "outcome": "confirmed" if lesson.confirmed else "refuted",
        "measured": _times(lesson.measured),
        "predicted": _times(lesson.predicted),
    }


def attempt_values(spec: TaskSpec, made: Attempt, numbers: Mapping[str, int]) -> Values:
    """An attempt in full, as an author may see it. `numbers`: of the attempts that may be its parent."""
    verdict = author_view(made.judged, spec)
    return {
        "number": made.number,
        "parent": numbers.get(made.parent_id or ""),
        "status": verdict.status.value,
        "accepted": verdict.accepted,
        "tried": made.rationale,
        "source": made.source,
        "result": result_words(made, verdict),
        "detail": "" if verdict.accepted else both_ends(verdict.detail, MOST_OF_A_DETAIL),
        "failed": "" if verdict.accepted else _failed(verdict),
        "sol_percent": f"{100 * verdict.sol_fraction:.0f}" if verdict.sol_fraction is not None else "",
        "coverage_percent": f"{100 * verdict.coverage:.0f}" if verdict.coverage is not None else "",
        "variant": verdict.variant if verdict.variant != "default" else "",
        "compiled": [_kernel(report) for report in made.kernels[:MOST_KERNELS]],
    }


def result_words(made: Attempt, verdict: Verdict) -> str:
    """What counts about an accepted attempt: its time and speed-ups, or its rank; else ""."""
    if verdict.timing is not None:
        gains = "".join(f", {c.speedup:.3g}x {c.baseline}" for c in verdict.comparisons)
        return f"{_us(verdict.timing.median_us)} us{gains}"
    if not verdict.accepted or verdict.not_timed is not None:
        return ""
    moved, spills, warps, registers = made.rank_key
    order = f"{_amount(int(moved), 'B')} effective"
    return f"{order}, spills {spills:.0f} B, occupancy {-warps:.2f}, {registers:.0f} registers"


def _failed(verdict: Verdict) -> str:
    """The worst comparison of those that failed."""
    wrong = [case for case in verdict.cases if not case.ok]
    if not wrong:
        return ""
    worst = max(wrong, key=lambda case: case.error_ratio)
    where = "a case with held-out shapes" if worst.case == HIDDEN else f"case {worst.case}, {worst.inputs} inputs"
    size = f"{_short(worst.error_ratio)} tolerances off"
    return f"{len(wrong)} of {len(verdict.cases)} comparisons fail; worst: {where}, {size}"


def _kernel(report: KernelReport) -> Values:
    return {**vars(report), "spill_bytes": report.spill_bytes}


def _us(number: float) -> str:
    return f"{number:,.1f}" if number >= 100 else f"{number:.3g}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _amount(count: int, unit: str) -> str:
    """A count with a prefix of thousands: "537 MB"."""
    size, prefixes = float(count), ["", "k", "M", "G", "T", "P"]
    while size >= 999.5 and len(prefixes) > 1:
        size, prefixes = size / 1000, prefixes[1:]
    return f"{size:.3g} {prefixes[0]}{unit}".strip()


def history_values(task: TaskSpec, attempts: Sequence[Attempt], outcomes: Sequence[Reflected]) -> Values:
    """What history.j2 needs: rows of the best and the newest, one source, the latest failure, scored hypotheses."""
    numbers = {a.attempt_id: a.number for a in attempts}
    ordered = sorted(attempts, key=lambda a: a.number)
    shown, leader = _worth_telling(ordered), best(ordered)
    failure = next((a for a in reversed(ordered) if not a.accepted), None)
    told = leader or (ordered[-1] if ordered else None)
    counts = Counter(a.judged.status.value for a in ordered)
    return {
        "count": len(ordered),
        "counts": ", ".join(f"{n} {status}" for status, n in counts.most_common()),
        "rows": [_row(task, a, numbers) for a in shown],
        "unlisted": len(ordered) - len(shown),
        "leader": attempt_values(task, leader, numbers) if leader else None,
        "told": attempt_values(task, told, numbers) if told else None,
        "failure": attempt_values(task, failure, numbers) if failure else None,
        **_scores(numbers, outcomes),
    }


def _worth_telling(ordered: Sequence[Attempt]) -> list[Attempt]:
    """The best and the newest, by number."""
    accepted = sorted((a for a in ordered if a.accepted), key=rank_order)
    chosen = {a.attempt_id for a in [*accepted[:MOST_BEST], *ordered[-MOST_NEWEST:]]}
    return [a for a in ordered if a.attempt_id in chosen]


def _row(task: TaskSpec, made: Attempt, numbers: Mapping[str, int]) -> Values:
    verdict = author_view(made.judged, task)
    return {
        "number": made.number,
        "parent": numbers.get(made.parent_id or ""),
        "status": verdict.status.value,
        "result": result_words(made, verdict),
        "tried": made.rationale,
        "why": "" if verdict.accepted else _gist(verdict.detail),
    }


def both_ends(text: str, most: int) -> str:
    """A text of at most so many characters: a compiler's message begins with a place and ends with what is wrong."""
    if len(text) <= most:
        return text
    head = most // 3
    return f"{text[:head].rstrip()}\n…\n{text[head - most + 3 :].lstrip()}"


def _gist(detail: str) -> str:
    """A failure in a line: of several lines, the place that the first names and what the last says is wrong."""
    lines = [line.strip() for line in detail.splitlines() if line.strip()]
    if len(lines) < 2 or len(detail) <= _MOST_PLACE + _MOST_REASON:
        return " ".join(lines)
    return f"{lines[0][:_MOST_PLACE]} … {lines[-1][-_MOST_REASON:]}"


def _scores(numbers: Mapping[str, int], outcomes: Sequence[Reflected]) -> Values:
    """What was claimed of each attempt, and how such claims came out."""
    latest = {r.attempt_id: r for r in outcomes if r.attempt_id in numbers}
    newest = sorted(latest.values(), key=lambda r: numbers[r.attempt_id])[-MOST_SCORES:]
    return {"scores": [_score(numbers, r) for r in newest], **calibration(list(latest.values()))}


def _score(numbers: Mapping[str, int], reflected: Reflected) -> Values:
    return {
        "number": numbers[reflected.attempt_id],
        "hypothesis": reflected.hypothesis,
        "prediction": reflected.prediction,
        "predicted": _times(reflected.evidence.get("predicted_speedup")),
        "measured": _times(reflected.evidence.get("measured_speedup")),
        "outcome": reflected.outcome,
    }


def _times(speedup: Json) -> str:
    return f"{speedup:.3g}x" if _positive(speedup) else ""


def _positive(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


# ---
# What a tool call came to.

_AROUND = 2  # lines shown on either side of one that is named
_MOST_EXCERPTS = 2
_MOST_HYPOTHESES = 8
_MOST_REPORTS = 6
_MOST_BOTTLENECKS = 3
_MOST_DETAIL = 2_000  # characters of a compiler's message


def format_update(draft: Attempt, task: TaskSpec, twin: int | None, notes: Sequence[str], *, timed: bool = True) -> str:
    """Of an `update` that made an attempt. `twin`: the number of an earlier one that compiles to the same plan."""
    update = draft.update
    assert update is not None
    plan = update.main_plan
    failure = author_view(update.failure, task) if update.failure else None
    compiled = facts_of(update, plan)
    return render(
        "results/update.j2",
        number=draft.number,
        same_as=None,
        failure=failure.status.value if failure else "",
        detail=both_ends(failure.detail, _MOST_DETAIL) if failure else "",
        excerpt=_excerpt(draft.source, update, task, failure) if failure else [],
        kernels=[facts_in_words(facts) for facts in compiled if _is_run(facts, compiled)],
        library_ops=plan.library_ops if plan else (),
        traffic_bytes=update.traffic_bytes,
        minimum_bytes=task.main.bytes_moved,
        variants=len(update.plans.get(update.main_case, ())),
        timed=timed,
        twin=twin,
        notes=(*notes, *update.notes),
    )


def format_same(number: int, status: str, notes: Sequence[str]) -> str:
    """Of an `update` whose source is that of an earlier attempt."""
    return render("results/update.j2", same_as=number, same_status=status, notes=notes)


def format_bench(attempt: Attempt, tracker: AttemptTracker, outcome: Reflected | None, place: Roofline | None) -> str:
    """Of a `bench`. `outcome` of a prediction about it; `place`: where the attempt lies, if it is right."""
    verdict, leader = author_view(attempt.judged, tracker.task), tracker.best
    return render(
        "results/bench.j2",
        number=attempt.number,
        verdict=verdict,
        status=verdict.status.value,
        detail=_gist(verdict.detail) if attempt.tool == "update" else both_ends(verdict.detail, _MOST_DETAIL),
        best=leader.number if leader else None,
        comparisons=fastest_first(verdict.comparisons),
        worst=max(verdict.cases, key=lambda c: c.error_ratio, default=None),
        prediction=_prediction(outcome) if outcome else "",
        launches=launches_in_words(attempt.judged.receipt),
        hints=place.hints if place else (),
    )


def format_reflect(
    attempt: Attempt,
    tracker: AttemptTracker,
    facts: Sequence[KernelFacts],
    sass: SassReply,
    predictions: Sequence[Reflected],
    place: Roofline,
) -> str:
    """Of a `reflect`: what the compiler did (`facts`, and `sass` of the same kernels), what limits the attempt, and
    `predictions` that were decided, oldest first."""
    return render(
        "results/reflect.j2",
        number=attempt.number,
        verdict=attempt.verdict,
        main=tracker.task.main,
        place=place,
        kernels=[facts_in_words(*its) for its in zip_longest(facts, sass.kernels) if its[0] and _is_run(its[0], facts)][
            :_MOST_REPORTS
        ],
        uncounted=sass.problem,
        evidence=limits_in_words(attempt.judged, _MOST_BOTTLENECKS),
        limited=bool(bottlenecks(attempt.judged)),
        history=[_prediction(p) for p in predictions[-_MOST_HYPOTHESES:]],
        **calibration(predictions),
    )


def _is_run(facts: KernelFacts, among: Sequence[KernelFacts]) -> bool:
    """Whether a forward launches a kernel; one that only prepares weights takes no time and says nothing."""
    return facts.programs > 0 or not any(other.programs for other in among)


def calibration(predictions: Sequence[Reflected]) -> Values:
    """How predictions came out. `off`: the median factor between predicted and measured speed-ups; "" without any."""
    pairs = [(p.evidence.get("predicted_speedup"), p.evidence.get("measured_speedup")) for p in predictions]
    errors = [abs(log(said / came)) for said, came in pairs if _positive(said) and _positive(came)]
    return {
        "held": sum(p.outcome == "confirmed" for p in predictions),
        "scored": sum(map(is_scored, predictions)),
        "off": f"{exp(median(errors)):.2f}" if errors else "",
    }


def _prediction(of: Reflected) -> str:
    """What was predicted of an attempt, and what happened."""
    facts = (("predicted", of.evidence.get("predicted_speedup")), ("measured", of.evidence.get("measured_speedup")))
    numbers = ", ".join(f"{word} {value:.2f}x" for word, value in facts if isinstance(value, int | float))
    return f"#{of.attempt_id.rpartition('/')[2]} {of.outcome}: {of.hypothesis}{f' ({numbers})' if numbers else ''}"


def _excerpt(source: str, update: Update, task: TaskSpec, failure: Verdict) -> list[str]:
    """The lines that a failure names, with those around them: of the file, else of the PTX that was assembled."""
    return _around(source, failure.lines) or _around(_assembled(update, task, failure), failure.ptx_lines)


def _assembled(update: Update, task: TaskSpec, failure: Verdict) -> str:
    """The PTX that a failure is about, templates filled in; "" if none is named. Texts made for held-out shapes never
    show."""
    shown = [case.name for case in task.cases if not case.held_out] if failure.ptx_lines else []
    kernels = (k for name in shown for plan in update.plans.get(name, ()) for k in plan.kernels)
    return next((k.text for k in kernels if k.language == "ptx" and k.name == failure.kernel), "")


def _around(text: str, numbers: Sequence[int]) -> list[str]:
    lines = text.split("\n")
    named = [n for n in dict.fromkeys(numbers) if text and 1 <= n <= len(lines)][:_MOST_EXCERPTS]
    near = dict.fromkeys(n for at in named for n in range(at - _AROUND, at + _AROUND + 1) if 1 <= n <= len(lines))
    return [f"{'>' if n in named else ' '} {n:4} {lines[n - 1]}" for n in near]


# ---
# What `look` shows.


@dataclass(frozen=True)
class Topic:
    """A text of prompts/docs about writing kernels in a `language`; `example`: an honest candidate of the corpus."""

    about: str
    example: str
    language: str = "triton"


TOPICS: dict[str, Topic] = {
    "streams": Topic("cache policies, access widths, bytes in flight of memory-bound kernels", "cache_modifiers"),
    "online_softmax": Topic("running maxima and sums, attention in one pass", "online_attention"),
    "persistent": Topic("a fixed grid that walks over the work", "persistent_rows"),
    "split_k": Topic("sums shared by programs where tiles are few", "split_k_in_a_workspace"),
    "dot": Topic("shapes, precisions and stages of tl.dot; order of tiles", "three_times_tf32"),
    "tma": Topic("tensor descriptors", "matmul_by_tensor_maps"),
    "warp_specialization": Topic("warps that load for warps that compute", "warp_specialised_matmul"),
    "inline_ptx": Topic("instructions that Triton has no word for", "assembly_that_packs_pairs"),
    "ptx_launches": Topic(
        "templates, kernels for one shape, shared memory and clusters of a launch", "ptx_template_of_configs", "ptx"
    ),
    "ptx_streams": Topic("L2 policies, bulk copies, bytes in flight", "ptx_cache_hints", "ptx"),
    "ptx_matrices": Topic("mma, ldmatrix and wgmma, fed by asynchronous copies", "ptx_tensor_core_tile", "ptx"),
    "ptx_tma": Topic("tensor maps, rings, float32 products by halves with wgmma", "ptx_split_product", "ptx"),
    "ptx_attention": Topic("attention with tensor maps, a softmax under its products", "ptx_attention", "ptx"),
    "gluon_layouts": Topic(
        "where elements lie, and what reductions and conversions cost", "gluon_softmax_in_registers", "gluon"
    ),
    "gluon_products": Topic("tensor maps, barriers, matrix instructions", "gluon_persistent_matmul", "gluon"),
    "gluon_attention": Topic("two products and a softmax in one pass", "gluon_attention", "gluon"),
    "gluon_split": Topic("float32 products by halves", "gluon_split_product", "gluon"),
    "cuda_launches": Topic(
        "configs, kernels for one shape, shared memory and options of a launch", "cuda_made_for_a_shape", "cuda"
    ),
    "cuda_streams": Topic("L2 policies, widths of accesses, bytes in flight", "cuda_softmax_in_registers", "cuda"),
    "cuda_matrices": Topic("mma and ldmatrix, fed by asynchronous copies", "cuda_tensor_core_tiles", "cuda"),
}
_MOST_CODE = 12_000  # characters of compiled code; sources are whole
_MOST_INSTRUCTIONS, _MOST_LINES, _MOST_LOOPS, _MOST_NAME = 120, 10, 500, 80
_LOCATIONS = re.compile(r"^#loc.*\n?| loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", re.MULTILINE)  # of MLIR
_LABEL, _BRANCH = re.compile(r"\s*([\w$]+):"), re.compile(r"\bbra(?:\.uni)?\s+([\w$]+)")  # of PTX


def format_look(words: str, lines: Sequence[str] = (), code: str = "", language: str = "python") -> str:
    """Of a `look`: what it is, facts about it, and its code."""
    return render("results/look.j2", words=words, lines=lines, text=code, language=language)


def format_expert(sketch: Sketch) -> str:
    """An expert's kernels as a candidate for the task, with what its search would try."""
    tried = [f"{name}: {', '.join(map(str, values))}" for name, values in sketch.space.items()]
    return format_look(
        f"{sketch.name}: {sketch.says}", [f"worth trying: {'; '.join(tried)}"] if tried else [], sketch.source
    )


def format_baseline(sketch: Sketch) -> str:
    """TorchInductor's kernels, whose first comment lists what is launched and what is left to a library."""
    return format_look("What TorchInductor writes for the timed case alone:", code=sketch.source)


def format_code(number: int, what: str, kernels: Sequence[tuple[str, str]], language: str) -> str:
    """What each of an attempt's kernels came to in one of the compiler's languages, by name; bounded in all."""
    most = _MOST_CODE // max(1, len(kernels))
    parts = [f"// {plain(name, _MOST_NAME)}\n{_shortened(text, most)}" for name, text in kernels]
    return format_look(f"#{number}, {what}:", code="\n".join(parts), language=language)


def format_sass(number: int, facts: Sequence[KernelFacts], kernels: Sequence[Sass]) -> str:
    """What source lines came to, and the instructions that matter."""
    lines = []
    for its, sass in zip(facts, kernels, strict=True):
        counts = by_line(sass.instructions)[:_MOST_LINES]
        lines += [facts_in_words(its, sass), *(f"line {line}: {made_of(part)}" for line, part in counts)]
    code = [excerpt(hot_code(sass.instructions, _MOST_INSTRUCTIONS)) for sass in kernels]
    words = f"#{number}, machine code; by line of the source, cycles until the next, scoreboards waited for (B):"
    return format_look(words, lines, "\n".join(filter(None, code))[:_MOST_CODE], "text")


def without_locations(ttgir: str) -> str:
    """TTGIR without the places in the source that each operation came from."""
    return _LOCATIONS.sub("", ttgir)


def _shortened(text: str, most: int) -> str:
    """A text without empty lines; of one that is too long its innermost loops, else its beginning."""
    lines = [line for line in text.split("\n") if line.strip()]
    shown = lines if sum(map(len, lines)) <= most else _inner_loops(lines) or lines
    kept = "\n".join(shown)[:most]
    left = len(lines) - kept.count("\n") - 1
    return f"{kept}\n… {left} more lines" if left > 0 else kept


def _inner_loops(lines: Sequence[str]) -> list[str]:
    """Of PTX, the lines of its innermost loops: from a label to a branch back to it."""
    labels = {found[1]: n for n, line in enumerate(lines) if (found := _LABEL.match(line))}
    branches = ((labels.get(found[1], n), n) for n, line in enumerate(lines) if (found := _BRANCH.search(line)))
    spans = [(first, last + 1) for first, last in branches if first < last][:_MOST_LOOPS]
    return [line for begin, end in innermost(spans) for line in lines[begin:end]]
