"""The words of a run: the same for all its requests, bounded, and without a trace of held-out cases."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

import kerneltune
from kerneltune.agent.authors.llm import prompts as texts
from kerneltune.agent.authors.llm.prompts import RunPrompts, Trouble, both_ends
from kerneltune.agent.settings import Language
from kerneltune.tools import languages
from kerneltune.tools.languages.base import language, prompt_of
from kerneltune.tools.receipt import HIDDEN
from kerneltune.tools.schema.gpus import GPUS
from kerneltune.tools.schema.task import Contract, TensorSpec
from kerneltune.tools.schema.verdict import KernelReport, Status, Verdict
from tests.agent.authors.llm.run_parts import (
    REJECTED,
    SECRETS,
    TASK,
    THOUGHTS,
    attempt,
    case,
    checked,
    reflected,
    story,
    timed,
    with_products,
    workbench,
    wrong,
)
from tests.prompts.renderings import ARCHES

_CHARACTERS_PER_TOKEN = 4
MOST_OF_A_HISTORY = 5_500  # tokens, but for the source that it shows
MOST_OF_A_SYSTEM = 5_000  # tokens, with the task
MOST_OF_A_LANGUAGE = {"triton": 650, "ptx": 1_100}  # tokens; what a task does not need is in the texts of `look`


def tokens(text: str) -> float:
    return len(text) / _CHARACTERS_PER_TOKEN


def test_the_system_prompt_of_a_run_is_the_same_to_the_byte_whatever_was_tried() -> None:
    assert RunPrompts(workbench(), "sm_90", "NVIDIA H200").system == (
        RunPrompts(workbench(*story()), "sm_90", "NVIDIA H200", outcomes=lambda: THOUGHTS).system
    )


def test_a_model_reads_what_a_task_promises_of_its_inputs_memory() -> None:
    bench = workbench()
    assert "this contract" not in RunPrompts(bench, "sm_90", None).system
    bench.task = replace(bench.task, contracts=(Contract(0, "x", slack=3),))
    told = RunPrompts(bench, "sm_90", None).system
    assert "Inputs keep this contract in every case: x: 3 elements behind its end may be read (undefined" in told


@pytest.mark.parametrize("language", ["triton", "ptx"])
@pytest.mark.parametrize("arch", [*sorted({f"sm_{g.arch}" for g in GPUS}), "sm_120"])
def test_system_and_task_are_short_on_every_target(arch: str, language: str) -> None:
    names = [None, *(g.name for g in GPUS if f"sm_{g.arch}" == arch)]
    for gpu in names:
        system = RunPrompts(workbench(), arch, gpu, language).system
        assert 1_000 < tokens(system) < MOST_OF_A_SYSTEM
        assert tokens(spoken_in(system)) < MOST_OF_A_LANGUAGE[language]


def spoken_in(system: str) -> str:
    return system.partition("# Language\n\n")[2].partition("\n\n# Task")[0]


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("language", ["ptx", "cuda", "gluon"])
def test_the_example_of_a_language_s_prompt_is_right(language: str) -> None:
    example = re.search(
        r"```python\n(.+?)```", spoken_in(RunPrompts(workbench(), "sm_90", None, language).system), re.DOTALL
    )
    assert example is not None
    assert kerneltune.bench(example[1], "softmax" if language == "gluon" else "row_sum").accepted


def test_a_language_is_known_to_models_and_to_the_command_line_by_its_folder_alone() -> None:
    folders = {path.parent.name for path in Path(languages.__file__).parent.glob("*/language.py")}
    assert folders == set(get_args(Language)) == set(languages.FOLDERS)
    for folder in folders:
        spoken = language(folder)
        system = RunPrompts(workbench(), "sm_90", "NVIDIA H200", folder).system
        assert f"You write {spoken.name} kernels for" in system
        imports = ", ".join(filter(None, ["torch, triton, numpy", spoken.imports]))
        assert f"It imports {imports} and the standard library" in system
        plain = [line for line in prompt_of(folder).splitlines() if line.startswith("- ") and "{" not in line]
        assert len(plain) > 3
        products = "\n".join(RunPrompts(with_products(), arch, None, folder).system for arch in ARCHES)
        assert all(line in products for line in plain)


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'fortran'.*triton, gluon, ptx, cuda"):
        RunPrompts(workbench(), "sm_90", None, "fortran")


def test_numbers_are_those_of_the_gpu_that_times_and_not_of_its_generation() -> None:
    h100 = RunPrompts(workbench(), "sm_90", "NVIDIA H100 PCIe").system
    assert "114 SMs" in h100
    assert "H200" not in h100
    unknown = RunPrompts(workbench(), "sm_90", "NVIDIA H999").system
    assert "NVIDIA H999" in unknown
    assert " SMs," not in unknown
    assert "speed of light of this GPU is not known" in unknown


def test_without_a_gpu_no_time_is_promised_and_the_rank_is_explained() -> None:
    system = RunPrompts(workbench(), "sm_90", None).system
    assert "nothing is timed" in system
    assert "ranked by" in system
    assert "Speed of light" not in system
    assert "CUDA graph with a cold L2" not in system
    assert "nothing is timed" not in RunPrompts(workbench(), "sm_90", "NVIDIA H200").system


def test_the_floor_of_the_timed_case_is_told() -> None:
    system = RunPrompts(workbench(), "sm_90", "NVIDIA H200").system
    assert "moves at least 134 MB" in system  # 2 * 4096 * 4096 * 4 + 4096 * 4 bytes
    assert "28 us at the data sheet's rates, bound by memory; 31.2 us" in system  # at 4,800 and 4,300 GB/s


def test_no_word_of_a_held_out_case_is_in_any_prompt() -> None:
    attempts = story()
    assert any(secret in str(a.verdict) for a in attempts for secret in SECRETS)  # else this shows nothing
    words = RunPrompts(workbench(*attempts), "sm_90", "NVIDIA H200", outcomes=lambda: THOUGHTS)
    said = [words.system, words.opening(tuple(attempts)), words.history()]
    said += [words.crossover(a, b) for a in attempts for b in attempts]
    assert [secret for secret in SECRETS for text in said if secret in text] == []
    assert HIDDEN in words.history()  # that a case was wrong is told


@pytest.mark.parametrize("status", [s for s in Status if s not in (Status.CORRECT, Status.CHECKED)])
def test_a_failure_in_a_held_out_case_stays_anonymous_however_it_ended(status: Status) -> None:
    told = Verdict(status, "case 'zanzibar' with [37, 2053]: 8675309", wrong("zanzibar").cases, receipt={"case": "x"})
    words = RunPrompts(workbench(attempt(1, told)), "sm_90", "NVIDIA H200")
    assert [secret for secret in SECRETS if secret in words.history() + words.opening((attempt(1, told),))] == []


def test_the_history_of_a_thousand_attempts_is_as_long_as_that_of_sixty() -> None:
    assert tokens(_told(60)) > 1_500  # else this shows nothing
    assert tokens(_told(1000)) < MOST_OF_A_HISTORY
    assert tokens(_told(1000)) < 1.1 * tokens(_told(60))


def _told(count: int) -> str:
    """The history of so many wordy attempts, but for the source."""
    long = "word|`{{x}}` " * 400
    kernels = tuple(KernelReport("k" * 200, 255, 99, 99, 9, 232448, 32, 9, 0.5, "f") for _ in range(20))
    ends = [replace(timed(100.0), variant=long[:2000]), Verdict(Status.COMPILE_FAILED, long[:2000]), wrong("zanzibar")]
    source = "# a source that counts apart\n"
    attempts = [replace(attempt(n, ends[n % 3], n - 1, long, source), kernels=kernels) for n in range(1, count + 1)]
    thoughts = [reflected(n, "refuted", 123.456, 1.23456, long) for n in range(1, count + 1)]
    history = RunPrompts(workbench(*attempts), "sm_90", "NVIDIA H200", outcomes=lambda: thoughts).history()
    assert history.count(source) == 1
    return history.replace(source, "")


def test_the_history_lists_the_best_and_the_newest_and_counts_the_others() -> None:
    attempts = [attempt(n, timed(100.0 + n)) for n in range(1, 31)]
    rows = _rows(RunPrompts(workbench(*attempts), "sm_90", "NVIDIA H200").history())
    assert rows == [1, 2, 3, 4, 5, *range(19, 31)]
    assert "… 13 more" in RunPrompts(workbench(*attempts), "sm_90", "NVIDIA H200").history()
    assert "more" not in RunPrompts(workbench(*attempts[:17]), "sm_90", "NVIDIA H200").history().split("The best")[0]


def _rows(history: str) -> list[int]:
    cells = [line.split("|")[1].strip() for line in history.splitlines() if line.startswith("| ")]
    return [int(cell) for cell in cells if cell.isdigit()]


def test_the_rows_are_in_order_of_number_though_verdicts_come_in_any_order() -> None:
    attempts = [attempt(n, timed(100.0 - n)) for n in (3, 1, 2)]
    assert _rows(RunPrompts(workbench(*attempts), "sm_90", "NVIDIA H200").history()) == [1, 2, 3]


def test_the_best_source_is_whole_and_the_latest_failure_says_why() -> None:
    history = RunPrompts(workbench(*story()), "sm_90", "NVIDIA H200").history()
    assert story()[2].source in history  # #3 is the fastest
    assert story()[0].source not in history
    assert "The latest failure:\n\nAttempt #5 (from #3): wrong." in history


MESSAGE = (
    "line 19: at 12:18:\ndef tile_stats(x, w):\n" + "    a = 1\n" * 400 + "            ^\nreduction dimensions differ"
)


def test_a_compiler_s_message_is_told_with_its_place_and_its_end_however_long_it_is() -> None:
    failed = [attempt(1, timed(5.0)), attempt(2, Verdict(Status.COMPILE_FAILED, MESSAGE), 1)]
    history = RunPrompts(workbench(*failed), "sm_90", "NVIDIA H200").history()
    (row,) = [line for line in history.splitlines() if line.startswith("| 2 |")]
    assert row.endswith("| line 19: at 12:18: … reduction dimensions differ |")
    in_full = history.split("The latest failure:")[1]
    assert "def tile_stats" in in_full
    assert "reduction dimensions differ" in in_full
    assert len(in_full) < 1_500
    assert both_ends("short", 10) == "short"
    assert len(both_ends(MESSAGE, 200)) <= 200


def test_while_nothing_is_right_the_newest_source_is_whole() -> None:
    attempts = [attempt(1, REJECTED), attempt(2, wrong(), 1)]
    history = RunPrompts(workbench(*attempts), "sm_90", "NVIDIA H200").history()
    assert attempts[1].source in history
    assert "Nothing is right yet" in history


def test_an_attempt_may_come_from_one_that_this_run_does_not_know() -> None:
    stranger = replace(attempt(1, timed(5.0)), parent_id="another/7")
    assert "from #" not in RunPrompts(workbench(stranger), "sm_90", "NVIDIA H200").history()


def test_without_a_gpu_attempts_are_told_by_rank() -> None:
    history = RunPrompts(workbench(attempt(1, checked())), "sm_90", None).history()
    assert "134 MB effective, spills 16 B, occupancy 0.75, 41 registers" in history
    assert " us" not in history.split("```")[0].replace(" used", "")


def test_predictions_stand_beside_what_was_measured_and_the_share_that_held() -> None:
    words = RunPrompts(workbench(*story()), "sm_90", "NVIDIA H200", outcomes=lambda: THOUGHTS)
    assert "(1 of 2 came true; speed-ups were off by a factor of 1.04, median)" in words.history()
    assert "predicted speed-up 1.3x; measured 1.25x" in words.history()


def test_the_last_word_on_an_attempt_counts() -> None:
    thoughts = [reflected(3, "refuted", None, 1.2), reflected(3, "confirmed", None, 0.5)]
    history = RunPrompts(workbench(*story()), "sm_90", "NVIDIA H200", outcomes=lambda: thoughts).history()
    assert "(1 of 1 came true)" in history
    assert "measured 2x" in history


@pytest.mark.parametrize("odd", [True, "fast", -1, 0, [2], None])
def test_a_prediction_that_is_no_number_is_left_out(odd: object) -> None:
    thoughts = [reflected(3, "open", odd, odd)]  # type: ignore[arg-type]
    history = RunPrompts(workbench(*story()), "sm_90", "NVIDIA H200", outcomes=lambda: thoughts).history()
    assert "predicted speed-up" not in history
    assert "measured" not in history


def test_seeds_and_parents_are_told_in_full() -> None:
    first, second = story()[0], story()[2]
    words = RunPrompts(workbench(*story()), "sm_90", "NVIDIA H200")
    for text in (words.opening((first, second)), words.crossover(first, second)):
        assert first.source in text
        assert second.source in text
        assert "41.5 us, 1.2x torch.compile" in text
    assert "from #1" in words.crossover(first, second)


def test_every_trouble_is_answered_in_its_own_words() -> None:
    troubles: tuple[Trouble, ...] = ("talk", "empty", "cut_off", "refused")
    words = RunPrompts(workbench(), "sm_90", None)
    answers = {words.nudge(trouble) for trouble in troubles}
    assert len(answers) == len(troubles)
    assert all("update" in answer for answer in answers)


def test_trees_of_inputs_are_told_in_short() -> None:
    tensor = {"$tensor": TensorSpec((2, 3), "float32")}
    assert texts.tree({"$tuple": [tensor, True, None]}) == "(float32[2, 3], True, None)"
    assert texts.tree({"$dict": {"mask": tensor}}) == "{mask: float32[2, 3]}"
    assert texts.tree({"$dtype": "bfloat16"}) == "bfloat16"
    assert texts.tree({"$float": "inf"}) == "inf"
    assert texts.tree({"$tensor": {"shape": [2, 3], "dtype": "int64", "stride": [1, 2]}}) == "int64[2, 3] stride [1, 2]"
    assert texts.tree({"$tensor": TensorSpec((2, 3), "int8", (3, 1))}) == "int8[2, 3]"
    assert texts.tree({"$tensor": TensorSpec((), "float32")}) == "float32[]"
    assert len(texts.tree([tensor] * 1000)) <= texts.MOST_OF_A_TREE


def test_many_cases_and_parameters_are_counted_and_not_listed() -> None:
    many = replace(case("deep", 2, 2), state={f"layer{i}": TensorSpec((2,), "float32") for i in range(500)})
    task = replace(TASK, cases=(*TASK.cases, *(replace(many, name=f"deep{i}") for i in range(50))))
    bench = replace(workbench(), task=task)
    system = RunPrompts(bench, "sm_90", "NVIDIA H200").system
    assert "… 44 more" in system  # 52 are visible, 8 are listed
    assert "… 488 more" in system
    assert tokens(system) < MOST_OF_A_SYSTEM
