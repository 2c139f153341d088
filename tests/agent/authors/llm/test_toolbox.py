"""Tool calls on a workbench without workers: what is done, what is said, and what every mistake teaches."""

import contextlib
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kerneltune.agent.attempt import Attempt, Limits, LlmTurn
from kerneltune.agent.authors.llm.author import TOOLS, ToolExecutor
from kerneltune.agent.authors.llm.prompts import RunPrompts
from kerneltune.agent.events import Event, Judged, Proposed, Reflected
from kerneltune.agent.loop import Run, bench_rest, carry_out, optimize
from kerneltune.agent.models.types import ToolCall, ToolResult
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import gpu_for_arch
from kerneltune.tools.schema.messages import Compiled, SassReply
from kerneltune.tools.schema.plan import Kernel, Launch, Plan
from kerneltune.tools.schema.sass import SassInstruction, counted
from kerneltune.tools.schema.task import CaseSpec
from kerneltune.tools.schema.verdict import CaseResult, Comparison, KernelReport, Status, Tier, Timing, Verdict
from kerneltune.tools.update import Artefact, Update
from tests.agent.authors.llm.parts import OneLine, call
from tests.agent.test_loop import TASK, Log

COUNTED: Json = {"kernels": [{"kernel": "k", "values": {"time_ns": 9000.0}, "stalls": {"barrier": 3.0}}]}
LAUNCHES: Json = [{"kernel": "rows", "launches": 1, "us": 6.0}, {"kernel": "finish", "launches": 1, "us": 3.0}]
REPORT = KernelReport("k", 40, 0, 8, 0, 1024, 4, 3, 0.5, "c", 0.1)


@dataclass
class WordUpdater:
    """A source that begins with "broken" fails; one that begins with a number takes so long."""

    meeting: threading.Barrier | None = None
    counted: list[Update] = field(default_factory=list)

    def update(self, source: str, told: object = None) -> Update:
        if self.meeting:
            self.meeting.wait()
        if source.startswith("broken"):
            detail = "line 2: no such name\n" + "the middle\n" * 20 + "the end of it"
            return Update(failure=Verdict(Status.COMPILE_FAILED, detail, lines=(2,)))
        return Update(trace_s=float(source.split()[0]))

    def sass(self, update: Update, variant: str = "") -> SassReply:
        self.counted.append(update)
        return SassReply((counted("k", [SassInstruction(0, "FADD R1, R1, R1")] * int(update.trace_s)),))


class WordBench:
    """The source said how long it takes; nothing is faster than 1 us without being wrong in a held-out case."""

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        us = update.trace_s
        if us < 1:
            cases = (
                CaseResult("main", "own", True, 0.1, 0.0),
                CaseResult("secret", "own", False, 7.0, 1.0, "[3, 131]"),
            )
            return Verdict(Status.WRONG, "a held-out case: [3, 131]", cases, receipt={"case": "secret"})
        compared = (Comparison("eager", 10.0, 10 / us, 9.9 / us, 10.1 / us),)
        receipt: dict[str, Json] = {"launches_us": LAUNCHES, "counters": COUNTED} if us == 9 else {}
        return Verdict(Status.CORRECT, "right", (), Timing(us, us, us, 1, 1), compared, 1.0, 0.5, receipt=receipt)


TASKS = replace(TASK, cases=(*TASK.cases, CaseSpec("secret", (), (), None, held_out=True)))


@dataclass
class Box:
    """The tools of one conversation, with the loop behind them."""

    executor: ToolExecutor
    going: Run
    drafts: dict[str, Attempt] = field(default_factory=dict)

    def run(self, calls: Sequence[ToolCall], turn: int) -> tuple[ToolResult, ...]:
        """A result for every call."""
        work = self.executor.run(calls, turn)
        try:
            wanted = next(work)
            while True:
                wanted = work.send(carry_out(self.going, wanted, self.drafts))
        except StopIteration as end:
            results: tuple[ToolResult, ...] = end.value
            return results

    def finish(self) -> None:
        """What the loop does at the end of a line of work."""
        bench_rest(self.going, self.drafts)


def toolbox(
    most: int = 10, updater: WordUpdater | None = None, width: int = 1, rounds: int | None = None
) -> tuple[Box, AttemptTracker, list[Event]]:
    log = Log()
    bench = AttemptTracker("r", TASKS, Evaluator(updater or WordUpdater(), WordBench(), "timing"), log)  # type: ignore[arg-type]
    going = Run(bench, OneLine([]), Limits(most), width)
    return (
        Box(ToolExecutor(bench, "1", gpu_for_arch("sm_90"), RunPrompts(bench, "sm_90", None), rounds), going),
        bench,
        log.events,
    )


def write(source: str | None, **more: Any) -> ToolCall:
    return call("update", **{"parent": None, "rationale": "why", "source": source, "edits": None} | more)


def one(box: Box, wanted: ToolCall) -> ToolResult:
    (result,) = box.run([wanted], 1)
    return result


def test_an_update_is_an_attempt_and_a_bench_its_verdict() -> None:
    box, bench, events = toolbox()
    made = one(box, write("5"))
    assert not made.is_error
    assert made.text.startswith("#1 compiled")
    told = one(box, call("bench", attempt=1)).text
    assert told.startswith("#1 correct, the best so far")
    assert "5.00 us" in told
    assert "against eager (10.00 us): 2.000x" in told
    assert "50% of the speed of light" in told
    proposed = next(e for e in events if isinstance(e, Proposed))
    assert (proposed.source, proposed.origin) == ("5", LlmTurn("1", 1))
    assert [a.number for a in bench.attempts] == [1]


def test_a_failure_is_judged_at_once_and_shows_the_line_that_it_names() -> None:
    box, bench, _ = toolbox()
    told = one(box, write("broken\nthe second line\nthird")).text
    assert told.startswith("#1 compile_failed: line 2: no such name")
    assert ">    2 the second line" in told
    assert bench.attempts[0].status is Status.COMPILE_FAILED
    again = one(box, call("bench", attempt=1)).text
    assert again.splitlines()[:2] == ["(benched before)", "#1 compile_failed: line 2: no such name … the end of it"]
    assert "the middle" in told
    assert "the middle" not in again


def test_edits_change_any_earlier_attempt() -> None:
    box, bench, _ = toolbox()
    box.run([write("5 slow")], 1)
    edit = {"search": "5", "replace": "4"}
    assert one(box, write(None, parent=1, edits=[edit])).text.startswith("#2 compiled")
    box.finish()
    assert [(a.number, a.source, a.parent_id) for a in bench.attempts] == [
        (1, "5 slow", None),
        (2, "4 slow", "r/1"),
    ]


def test_updates_of_one_reply_run_side_by_side() -> None:
    box, _, _ = toolbox(updater=WordUpdater(threading.Barrier(3, timeout=10)), width=3)
    results = box.run([write("5"), write("6"), write("7"), call("bench", attempt=2)], 1)
    assert [r.text[:2] for r in results] == ["#1", "#2", "#3", "#2"]  # in the order of the calls
    assert "6.00 us" in results[3].text


def test_the_same_source_is_no_new_attempt() -> None:
    box, _, events = toolbox()
    box.run([write("5"), call("bench", attempt=1)], 1)
    told = one(box, write("5\n")).text
    assert "that of #1, which is correct; no attempt was used" in told
    assert len([e for e in events if isinstance(e, Proposed)]) == 1


def test_what_is_never_benched_is_judged_in_the_end() -> None:
    box, bench, _ = toolbox()
    box.run([write("5"), write("4")], 1)
    assert bench.attempts == []
    box.finish()
    box.finish()
    assert sorted(a.number for a in bench.attempts) == [1, 2]


def test_a_bench_of_what_was_benched_tells_the_verdict_again() -> None:
    box, _, events = toolbox()
    box.run([write("5"), call("bench", attempt=1)], 1)
    assert one(box, call("bench", attempt=1)).text.startswith("(benched before)\n#1 correct")
    assert len([e for e in events if isinstance(e, Judged)]) == 1


MISTAKES = [
    (call("look", what="sass"), "`look` at sass needs a `number`"),
    (call("look", what="ptx", number=7), "there is no attempt 7; the latest are: 1"),
    (call("look", what="ttgir", number=1), "nothing of attempt 1 was compiled"),
    (call("look", what="counters", number=1), "nothing was counted of attempt 1"),
    (call("look", what="docs", name="cuda"), "there is no docs 'cuda'; there are:\n- streams: "),
    (call("look", what="expert", name="x" * 999), "there are:\nnone for this task"),
    (call("look", what="baseline_code"), "TorchInductor has no kernels for this task: it is not at hand"),
    (call("look", what="cubin"), "`what`: input should be 'baseline_code', 'expert'"),
    (call("optimise"), "no such tool; the tools are update, bench, reflect, look"),
    (ToolCall("c", "bench", problem="Expecting value: line 1"), "not a JSON object: Expecting value"),
    (call("bench", attempt="1"), "`attempt`: input should be a valid integer, not str '1'"),
    (call("bench"), "`attempt`: field required"),
    (call("bench", attempt=1, fast=True), "`fast`: no such field; it takes attempt"),
    (call("bench", attempt=9), "there is no attempt 9; the latest are: 1"),
    (call("bench", attempt=int("9" * 3_000) ** 2), "there is no attempt of that number; the latest are: 1"),
    (write("7", parent=-1), "there is no attempt of that number"),
    (write("  "), "`source` is empty"),
    (write("5", edits=[]), "either `source`, the whole file, or `edits`"),
    (write(None), "either `source`, the whole file, or `edits`"),
    (write(None, edits=[{"search": "a", "replace": "b"}]), "`edits` need a `parent`"),
    (write("7", parent=4), "there is no attempt 4"),
    (write("7", parent=1, predicted_speedup=0.0), "`predicted_speedup` 0 is no ratio of two times"),
    (write(None, parent=1, edits=[{"search": "zzz", "replace": "b"}]), "`search` is not in the source"),
    (call("reflect", attempt=1, hypothesis="h"), "not benched yet"),
]


@pytest.mark.parametrize(("wrong", "words"), MISTAKES)
def test_every_mistake_is_a_result_that_says_what_would_work(wrong: ToolCall, words: str) -> None:
    box, _, events = toolbox()
    box.run([write("5")], 1)
    before = len(events)
    result = one(box, wrong)
    assert result.is_error
    assert words in result.text
    assert len(events) == before


def test_a_model_that_leaves_out_what_may_be_null_is_understood() -> None:
    box, _, _ = toolbox()
    assert not one(box, call("update", rationale="r", source="5")).is_error


def test_when_the_budget_is_used_up_an_update_says_so() -> None:
    box, bench, _ = toolbox(most=2)
    results = box.run([write("5"), write("6"), write("7")], 1)
    assert [r.is_error for r in results] == [False, False, True]
    assert "no attempts are left" in results[2].text
    assert bench.next_number == 3


def test_a_conversation_has_its_rounds_which_are_replies_that_verdicts_follow() -> None:
    box, bench, _ = toolbox(rounds=2)
    results = box.run([write(str(us)) for us in range(5, 10)], 1)
    assert [r.is_error for r in results] == [False] * 4 + [True]
    assert "this conversation may make 4 attempts, and has" in results[4].text
    assert (box.executor.is_full, bench.next_number) == (False, 5)
    box.run([call("bench", attempt=1), call("bench", attempt=2)], 2)
    box.run([call("bench", attempt=1), call("reflect", attempt=1, hypothesis="h")], 3)  # nothing new
    assert not box.executor.is_full
    box.run([call("bench", attempt=3)], 4)
    assert box.executor.is_full


def test_a_failure_to_compile_is_a_verdict_too() -> None:
    box, _, _ = toolbox(rounds=1)
    box.run([write("broken")], 1)
    assert box.executor.is_full


@pytest.mark.parametrize("end", [None, KeyError("the provider is gone")])
def test_what_was_compiled_is_judged_whatever_ends_the_work(end: Exception | None) -> None:
    box, bench, _ = toolbox()

    def work() -> Generator[Any, Any, None]:
        yield from box.executor.run([write("5"), write("broken"), write("4")], 1)
        assert [a.number for a in bench.attempts] == [2]
        if end:
            raise end

    box.going.author = OneLine([work()])
    with pytest.raises(KeyError) if end else contextlib.nullcontext():
        optimize(box.going)
    assert [a.number for a in bench.attempts] == [2, 1, 3]


CLAIMS = [
    ("8", 1.25, "confirmed: claim (predicted 1.25x, measured 1.25x)"),
    ("8", 1.5, "confirmed: claim (predicted 1.50x, measured 1.25x)"),
    ("8", None, "confirmed: claim (measured 1.25x)"),
    ("9.99", 1.1, "refuted: claim (predicted 1.10x, measured 1.00x)"),  # no change where one was predicted
    ("9.5", 1.2, "open: claim (predicted 1.20x, measured 1.05x)"),  # the right direction, and much less
    ("5", 1.2, "open: claim (predicted 1.20x, measured 2.00x)"),
    ("10.1", 1.0, "confirmed: claim (predicted 1.00x, measured 0.99x)"),  # nothing more to gain: it came true
    ("8", 1.0, "refuted: claim (predicted 1.00x, measured 1.25x)"),
    ("12", 1.2, "refuted: claim (predicted 1.20x, measured 0.83x)"),
    ("12", 0.8, "confirmed: claim (predicted 0.80x, measured 0.83x)"),
    ("broken", 1.2, "refuted: claim (predicted 1.20x)"),
]


@pytest.mark.parametrize(("source", "predicted", "told"), CLAIMS)
def test_a_prediction_is_held_against_its_own_child_by_size_and_direction(
    source: str, predicted: float | None, told: str
) -> None:
    box, bench, events = toolbox()
    box.run([write("10"), call("bench", attempt=1)], 1)
    claim = {"hypothesis": "claim", "predicted_speedup": predicted}
    other, child = write("3", parent=1), write(source, parent=1, **claim)
    results = box.run([other, child, call("bench", attempt=2), call("bench", attempt=3)], 2)
    assert f"#3 {told}" in results[3].text
    assert "claim" not in results[2].text  # which claimed nothing
    (said,) = [e for e in events if isinstance(e, Reflected)]
    assert (said.attempt_id, said.outcome) == ("r/3", told.partition(":")[0])
    assert bench.predictions == [said]


def test_a_repair_that_does_what_was_said_came_true() -> None:
    box, bench, _ = toolbox()
    box.run([write("0.5"), call("bench", attempt=1)], 1)  # wrong
    mend = {"parent": 1, "hypothesis": "the tail is not masked", "predicted_speedup": None}
    told = box.run([write("0.7", **mend), write("8", **mend), call("bench", attempt=2), call("bench", attempt=3)], 2)
    assert "#2 refuted: the tail is not masked" in told[2].text
    assert "#3 confirmed: the tail is not masked" in told[3].text
    assert [p.outcome for p in bench.predictions] == ["refuted", "confirmed"]


def test_a_speed_up_over_what_was_wrong_came_neither_true_nor_false() -> None:
    box, bench, _ = toolbox()
    box.run([write("0.5"), call("bench", attempt=1)], 1)  # wrong, so it has no time
    faster = {"parent": 1, "hypothesis": "it spills", "predicted_speedup": 1.2}
    box.run([write("8", **faster), call("bench", attempt=2)], 2)
    assert bench.predictions == []


def test_a_reflection_says_how_far_predictions_were_off_and_none_of_what_was_never_measured() -> None:
    box, _, _ = toolbox()
    box.run([write("10"), call("bench", attempt=1)], 1)
    told = one(box, call("reflect", attempt=1, hypothesis="two passes")).text
    assert "bound by latency: 0% of the bandwidth" in told
    assert "Predictions" not in told
    for number, (source, speedup) in enumerate([("8", 1.5), ("5", 1.2), ("12", 1.2)], 2):
        claim = {"parent": 1, "hypothesis": "h", "predicted_speedup": speedup}
        box.run([write(source, **claim), call("bench", attempt=number)], number)
    told = one(box, call("reflect", attempt=3, hypothesis="h")).text
    assert "Predictions so far: 1 of 3 came true; speed-ups were off by a factor of 1.44 (median):" in told


class KernelUpdater(WordUpdater):
    """Every source compiles to a kernel; it adds as often as its time says, and none that takes 6 us can be read."""

    def update(self, source: str, told: object = None) -> Update:
        kernel = Kernel("k", "ttir", source, ())
        plan = Plan("main", "default", "sm_90", (), (kernel,), (), (), None)
        artefacts = {kernel.sha256: Artefact(Compiled(REPORT, {}), b"")}
        return Update({"main": (plan,)}, artefacts, trace_s=float(source.split()[0]), main_case="main")

    def sass(self, update: Update, variant: str = "") -> SassReply:
        if update.trace_s == 6:
            return SassReply(problem="nvdisasm 1.0 cannot read this cubin")
        return super().sass(update, variant)


def test_a_reflection_says_what_the_compiler_did_and_leaves_code_to_look() -> None:
    box, _, _ = toolbox(updater=KernelUpdater())
    box.run([write("8"), write("6")], 1)
    box.run([call("bench", attempt=1), call("bench", attempt=2)], 1)
    told = one(box, call("reflect", attempt=1, hypothesis="h")).text
    assert "- k: 40 registers, 8 B spilled, 1024 B shared, occupancy 50 %, 4 warps, 3 stages" in told
    assert "FADD" not in told
    assert "FADD R1, R1, R1" in one(box, call("look", what="sass", number=1)).text
    told = one(box, call("reflect", attempt=2, hypothesis="h")).text
    assert "its instructions cannot be read: nvdisasm 1.0 cannot read this cubin" in told
    assert "nvdisasm 1.0" in one(box, call("look", what="sass", number=2)).text


class PreparingUpdater(KernelUpdater):
    """Beside the kernel of every forward there is one that packs weights once."""

    def update(self, source: str, told: object = None) -> Update:
        made = super().update(source, told)
        (plan,), packing = made.plans["main"], Kernel("packing", "ttir", "", ())
        steps = replace(plan, kernels=(packing, *plan.kernels), run=(Launch(1, (1, 1, 1), ()),))
        artefacts = {**made.artefacts, packing.sha256: Artefact(Compiled(replace(REPORT, name="packing"), {}), b"")}
        return replace(made, plans={"main": (steps,)}, artefacts=artefacts)


def test_of_a_kernel_that_prepares_weights_an_update_says_nothing() -> None:
    box, _, _ = toolbox(updater=PreparingUpdater())
    told = one(box, write("8")).text
    assert "k: 40 registers" in told
    assert "packing" not in told


def test_an_update_says_whose_figures_it_shows_where_there_are_several_configurations() -> None:
    class Autotuned(KernelUpdater):
        def update(self, source: str, told: object = None) -> Update:
            made = super().update(source)
            return replace(made, plans={"main": made.plans["main"] * 3})

    box, bench, _ = toolbox(updater=Autotuned())
    assert "`bench` takes the fastest; the figures here are of the first one" in one(box, write("5")).text
    bench.tools = replace(bench.tools, bench_stage="checking")
    assert "without a GPU the first one alone is checked and ranked" in one(box, write("6")).text


def test_a_bench_and_a_reflection_say_where_the_time_of_several_launches_goes() -> None:
    box, _, _ = toolbox()
    box.run([write("9"), write("8")], 1)
    told = [one(box, call("bench", attempt=1)).text, one(box, call("reflect", attempt=1, hypothesis="h")).text]
    assert all("by launch: rows 67 % of the time, 6.0 µs; finish 33 %, 3.0 µs" in text.lower() for text in told)
    assert "launch:" not in one(box, call("bench", attempt=2)).text


def test_nothing_of_a_held_out_case_is_told() -> None:
    box, _, _ = toolbox()
    box.run([write("0.5")], 1)
    results = [one(box, call("bench", attempt=1)), one(box, call("reflect", attempt=1, hypothesis="h"))]
    assert "a case with held-out shapes is wrong" in results[0].text
    for result in results:
        assert "131" not in result.text
        assert "secret" not in result.text


def test_schemas_are_strict_to_the_last_object() -> None:
    def objects(schema: Any) -> Any:
        if isinstance(schema, dict):
            if schema.get("type") == "object":
                yield schema
            for value in schema.values():
                yield from objects(value)
        elif isinstance(schema, list):
            for value in schema:
                yield from objects(value)

    found = [o for tool in TOOLS for o in objects(tool.schema)]
    assert len(found) == 5
    for schema in found:
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
