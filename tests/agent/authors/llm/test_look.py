"""The `look` tool, and what every reply is told besides: what is left, and what is to be beaten."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.attempt import Attempt, Proposal, Remaining
from kerneltune.agent.authors.llm.author import LlmConversation, ToolExecutor
from kerneltune.agent.authors.llm.prompts import TOPICS, RunPrompts, format_code, without_locations
from kerneltune.agent.authors.search.neighbours import CannotLower, Sketch
from kerneltune.agent.models.types import ToolResults, User
from kerneltune.tools.corpus import example
from kerneltune.tools.languages.base import language_of
from kerneltune.tools.schema.gpus import GPUS, Ceilings, gpu_for_arch
from kerneltune.tools.schema.messages import Baselines, PtxReply, SassReply
from kerneltune.tools.schema.sass import SassInstruction, by_line, hot_code
from kerneltune.tools.update import Update
from tests.agent.authors.llm.parts import ListModel, call, calling
from tests.agent.authors.llm.run_parts import attempt, checked, timed, workbench
from tests.agent.authors.llm.test_toolbox import KernelUpdater, one, toolbox, write
from tests.corpus.conftest import HONEST

DOCS = Path(__file__).resolve().parents[4] / "prompts" / "docs"
ARCHES = [*sorted({f"sm_{gpu.arch}" for gpu in GPUS}), "sm_120"]
MOST_OF_A_TOPIC = 1_000  # tokens, without its example


def test_what_needs_no_name_is_listed_and_what_is_there_is_shown() -> None:
    box, _, _ = toolbox()
    listed = one(box, call("look", what="docs")).text
    assert "- tma: tensor descriptors" in listed
    assert "ptx_streams" not in listed  # of another language
    shown = one(box, call("look", what="docs", name="persistent")).text
    assert "tl.num_programs(0)" in shown
    assert "class ModelNew(nn.Module)" in shown
    assert "SPECIMEN" not in shown


def test_the_experts_for_a_task_are_named_in_the_system_prompt_and_shown_as_candidates() -> None:
    tracker = workbench()
    source = tracker.task.source.replace("torch.softmax(x, dim=-1) * self.weight", "torch.softmax(x, -1)")
    tracker.task = replace(tracker.task, source=source)
    words = RunPrompts(tracker, "sm_90", None)
    assert "candidates for this task: softmax_row, softmax_online" in words.system
    box, _, _ = toolbox()
    box.executor = ToolExecutor(tracker, "1", gpu_for_arch("sm_90"), words)
    shown = one(box, call("look", what="expert", name="softmax_row")).text
    assert "- worth trying: TILE: 2048, 8192" in shown
    assert "def softmax_row_kernel(" in shown
    assert "class ModelNew(nn.Module)" in shown


def test_a_draft_and_a_benched_attempt_show_their_whole_source_and_no_attempt_is_used() -> None:
    box, bench, events = toolbox()
    long = "5\n" + "# a line\n" * 9_000
    box.run([write(long)], 1)
    before = len(events)
    assert one(box, call("look", what="source", number=1)).text.count("# a line") == 9_000
    assert (len(events), bench.begun) == (before, 1)
    box.run([call("bench", attempt=1)], 1)
    assert "# a line" in one(box, call("look", what="source", number=1)).text


class TextUpdater(KernelUpdater):
    """Knows the TTGIR and the PTX of every kernel but those that take 7 us."""

    def ttgir(self, update: Update, variant: str = "") -> PtxReply:
        if update.trace_s == 7:
            return PtxReply(problem="k: is PTX, which Triton does not see")
        return PtxReply(('#loc = loc("a.py":1:2)\ntt.func @k(%x: i32 loc("x"(#loc))) {\n  tt.return loc(#loc3)\n}',))

    def sass(self, update: Update, variant: str = "") -> SassReply:
        (kernel,) = super().sass(update, variant).kernels
        return SassReply((replace(kernel, ptx=".visible .entry k()\n\n{\n  ret;\n}\n"),))


def test_the_languages_between_source_and_machine_are_shown_without_what_says_nothing() -> None:
    box, _, _ = toolbox(updater=TextUpdater())
    box.run([write("8"), write("7")], 1)
    ttgir = one(box, call("look", what="ttgir", number=1)).text
    assert "tt.func @k(%x: i32) {\n  tt.return\n}" in ttgir
    assert ".visible .entry k()\n{\n  ret;\n}" in one(box, call("look", what="ptx", number=1)).text
    refused = one(box, call("look", what="ttgir", number=2))
    assert (refused.is_error, "which Triton does not see" in refused.text) == (True, True)


def test_an_attempt_of_another_conversation_is_compiled_again() -> None:
    box, bench, _ = toolbox(updater=TextUpdater())
    earlier = Attempt(**vars(Proposal("8", "why")), attempt_id="r/7", number=7, verdict=checked())
    bench.attempts.append(earlier)
    assert "FADD R1, R1, R1" in one(box, call("look", what="sass", number=7)).text


def test_counters_are_shown_where_there_are_some() -> None:
    box, _, _ = toolbox()
    box.run([write("9"), call("bench", attempt=1)], 1)
    shown = one(box, call("look", what="counters", number=1)).text
    assert "- counters: k: 9.0 µs under ncu; warps waiting at an issue: 3.0" in shown
    assert "under ncu" not in one(box, call("reflect", attempt=1, hypothesis="h")).text  # told in one place


def test_what_torch_inductor_writes_is_shown_or_why_it_writes_nothing() -> None:
    box, bench, _ = toolbox()
    prompts = RunPrompts(bench, "sm_90", None)
    sketch = Sketch("inductor", "# 1. softmax_kernel: softmax\n", "its kernels")
    box.executor = ToolExecutor(bench, "1", gpu_for_arch("sm_90"), prompts, inductor=lambda: sketch)
    assert "# 1. softmax_kernel: softmax" in one(box, call("look", what="baseline_code")).text

    def refuse() -> Sketch:
        raise CannotLower("forward draws random numbers")

    box.executor = ToolExecutor(bench, "1", gpu_for_arch("sm_90"), prompts, inductor=refuse)
    assert "forward draws random numbers" in one(box, call("look", what="baseline_code")).text


def code(texts: list[str]) -> list[SassInstruction]:
    """Instructions of lines 1, 2, … of the candidate; those that end in a colon are labels of the next."""
    made, label = [], ""
    for line, text in enumerate(texts, 1):
        if text.endswith(":"):
            label = text[:-1]
            continue
        made.append(SassInstruction(16 * line, text, label, line, "candidate.py", control=4))
        label = ""
    return made


LOOPS = code(
    [
        *["MOV R0, R1"] * 50, ".L_x_0:", "MOV R2, R3", ".L_x_1:", "LDG.E.128 R4, [R2]", "BRA `(.L_x_1)",
        "BRA `(.L_x_0)",
        *["MOV R0, R1"] * 50, "EXIT",
    ]
)  # fmt: skip


def test_of_long_machine_code_the_innermost_loops_are_shown_and_all_of_it_is_counted_by_line() -> None:
    assert [i.text for i in hot_code(LOOPS, 20)] == ["LDG.E.128 R4, [R2]", "BRA `(.L_x_1)"]
    assert hot_code(LOOPS, 500) == LOOPS
    assert list(hot_code(code(["MOV R0, R1"] * 30), 20)) == []  # neither short nor in a loop
    dot = code(["MOV R0, R1", ".L_x_2:", *["FADD R1, R1, R1"] * 9, "HGMMA R4", "BRA `(.L_x_2)", "EXIT"])
    assert len(hot_code(dot, 8)) == 8
    (line, part), *_ = by_line([*LOOPS, replace(LOOPS[50], control=15)])
    assert (line, part.instructions, part.issue_cycles) == (52, 2, 19)


def test_a_long_text_is_cut_to_its_loops_and_bounded_however_long() -> None:
    ptx = "\n".join(
        [*["mov.u32 %r1, 0;"] * 2_000, "$L__BB0_1:", "ld.global.f32 %f1, [%rd1];", "@%p bra $L__BB0_1;", "ret;"]
    )
    shown = format_code(3, "PTX", [("k", ptx)], "ptx")
    assert "$L__BB0_1:\nld.global.f32 %f1, [%rd1];\n@%p bra $L__BB0_1;\n… 2001 more lines" in shown
    assert len(format_code(3, "PTX", [("k" * 9_000, "a\nb" * 90_000)] * 3, "ptx")) < 13_000
    assert without_locations("x loc(" + "(" * 50_000) == "x loc(" + "(" * 50_000


@pytest.mark.parametrize("name", TOPICS)
def test_every_topic_is_short_on_every_target_and_its_example_is_an_honest_candidate(name: str) -> None:
    topic = TOPICS[name]
    for arch in ARCHES:
        words = RunPrompts(workbench(), arch, None, topic.language).topic(name)
        text, _, shown = words.partition("\n\n```")
        assert 100 < len(text) / 4 < MOST_OF_A_TOPIC
        assert "\n\n" not in text
        assert not re.search(r"[{}]%|%[{}]|\{\{|None", text)
    assert example(topic.example).strip() in shown
    assert HONEST[topic.example].says  # judged with the others: tests/corpus/test_honest.py
    assert language_of(HONEST[topic.example].path.read_text()) == topic.language


def test_every_text_of_the_library_is_a_topic() -> None:
    assert {path.stem for path in DOCS.glob("*")} == set(TOPICS)


def test_the_opening_and_every_reply_are_told_what_is_left_and_what_is_to_be_beaten() -> None:
    tracker = workbench()
    found = Baselines({"eager": 280.25}, pending=("compile-max",))
    prompts = RunPrompts(tracker, "sm_90", "NVIDIA H200", baselines=lambda: found)
    executor = ToolExecutor(tracker, "1", gpu_for_arch("sm_90"), prompts, rounds=2)
    model = ListModel([calling(call("look", "a", what="docs"), call("look", "b", what="expert"))])
    talk = LlmConversation(
        tracker, "1", model, executor, prompts, "begin", prompts.history,
        remaining=lambda: Remaining(9, 61.7, 1.234),
    )  # fmt: skip
    list(talk.actions())
    opening, _, told = model.asked[1].messages
    left = (
        "Left: 4 attempts, 62 s, $1.23.\n"
        "To beat: eager 280.2 us (compile-max: still being built, `bench` reports them when ready)."
    )
    assert isinstance(opening, User)
    assert opening.text == f"begin\n\n{left}"
    assert isinstance(told, ToolResults)
    assert [result.text.endswith(left) for result in told.results] == [False, True]


def test_the_best_is_to_be_beaten_once_there_is_one_and_no_time_is_told_where_nothing_is_timed() -> None:
    of_gpu = RunPrompts(workbench(attempt(1, timed(41.5))), "sm_90", "NVIDIA H200")
    assert of_gpu.standing(Remaining(3)) == "Left: 3 attempts.\nTo beat: #1, 41.5 us, 1.2x torch.compile."
    assert of_gpu.standing(Remaining(1)).startswith("Left: 1 attempt.")
    untimed = RunPrompts(workbench(attempt(1, checked())), "sm_90", None).standing(Remaining())
    assert untimed.startswith("First choice, not timed: #1, 134 MB effective")
    assert RunPrompts(workbench(), "sm_90", None).standing(Remaining()) == ""


def test_ceilings_that_were_measured_on_this_gpu_are_told_and_make_the_speed_of_light() -> None:
    here = Ceilings("NVIDIA H200", "u", "d", "t", "2026", 4000.0, 4100.0, 4200.0, {"bfloat16": 780.0}, 1.9)
    system = RunPrompts(workbench(), "sm_90", "NVIDIA H200", ceilings=here).system
    assert "Measured on this one: GB/s copying 4,000, reading 4,100, writing 4,200; an empty launch 1.9 us." in system
    assert "33.6 us at the rates that this one was measured to reach" in system  # 134 MB at 4,000 GB/s
    assert "a copy reaches" not in system
