"""How a task becomes a prompt, and what an author was told: short, stable, and nothing of a held-out case."""

import math
import time

import pytest

from kerneltune.agent.export import instructions
from kerneltune.agent.export.instructions import MOST_OF_AN_ERROR, constants, error_told, visible
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent.export.made_runs import H200, SOFTMAX, TASK, run, source, tried, wrong

HIDDEN = [case.name for case in SOFTMAX.cases if case.held_out]


def test_a_prompt_tells_the_task_its_target_and_its_precision() -> None:
    system, user = instructions.solve(run(gpu=H200).run, "triton")
    assert (system["role"], user["role"]) == ("system", "user")
    assert "class ModelNew(nn.Module)" in system["content"]
    assert f"Target: {H200} (sm_90)" in user["content"]
    assert "float32: products and sums with 24-bit mantissas" in user["content"]
    assert TASK.strip() in user["content"]
    assert len(system["content"]) < 1500


def test_a_prompt_without_a_gpu_or_a_declared_precision_says_so() -> None:
    bare = "class Model: ...\ndef get_inputs(): return []\n"
    user = instructions.solve(run(arch="sm_80", task_source=bare).run, "triton")[-1]["content"]
    assert "Target: any GPU of sm_80. Precision: that of the reference's tensors." in user


def test_held_out_cases_are_in_no_prompt_even_if_the_record_has_them() -> None:
    whole = run(task_source=SOFTMAX.source).run
    assert HIDDEN
    for name in HIDDEN:
        assert name in SOFTMAX.source
        for messages in (instructions.solve(whole, "triton"), instructions.fix(whole, "x", "wrong", "e")):
            assert name not in str(messages)
            assert "2053" not in str(messages)
    assert visible(SOFTMAX.source) == TASK


@pytest.mark.parametrize(
    "text",
    [
        "CASES: list = [{'name': 'secret', 'held_out': True, 'N': 7}]\n",
        "N, CASES = 1, [{'name': 'secret', 'held_out': True}]\n",
    ],
)
def test_held_out_cases_are_found_however_they_are_assigned(text: str) -> None:
    assert "secret" not in visible(text)


def test_a_source_that_speaks_of_held_out_cases_and_does_not_parse_is_left_out() -> None:
    assert visible("held_out = [") == ""
    assert visible("anything [") == "anything ["
    assert constants("anything [") == {}


def test_an_answer_is_the_file_word_for_word_in_a_fence_that_it_does_not_hold() -> None:
    text = source("with ``` and ```` inside")
    (message,) = instructions.answer(text)
    lines = message["content"].split("\n")
    assert lines[0].endswith("python")
    assert "\n".join(lines[1:-1]) == text.strip("\n")
    assert lines[-1] not in text


def test_what_a_row_gets_may_be_changed_without_harm_to_the_next() -> None:
    its = run().run
    instructions.solve(its, "triton")[0]["content"] = "changed"
    assert instructions.solve(its, "triton")[0]["content"] != "changed"


def test_words_of_a_task_are_made_once() -> None:
    its = run().run
    instructions.solve(its, "triton")
    least_s = math.inf  # of three: a collection of garbage may fall into one
    for _ in range(3):
        started = time.thread_time()
        for _ in range(1000):
            instructions.solve(its, "triton")
        least_s = min(least_s, time.thread_time() - started)
    assert least_s < 0.05  # 2 us each here; rendering takes 200


def test_an_error_is_told_as_its_author_was_told_it() -> None:
    its = run(tried(1, wrong("ragged")))
    assert error_told(its.run, its.attempts[0]) == "case ragged (own inputs): 17 elements wrong"


@pytest.mark.parametrize("name", [*HIDDEN, "some new case"])
def test_a_failure_in_a_case_that_the_task_does_not_show_is_told_without_its_name_and_numbers(name: str) -> None:
    its = run(tried(1, wrong(name, detail="17 elements of [37, 2053]")))
    words = error_told(its.run, its.attempts[0])
    assert name not in words
    assert "2053" not in words
    assert words.startswith("a case with held-out shapes is wrong: error 7.5 times the tolerance")


def test_a_hidden_case_is_known_by_its_words_where_results_are_not_kept() -> None:
    its = run(tried(1, Verdict(Status.CRASHED, "case prime (own inputs): illegal access at 2053")))
    assert "prime" not in error_told(its.run, its.attempts[0])
    its = run(tried(1, Verdict(Status.REJECTED, "reads a value (in case 'prime')")))
    assert "prime" not in error_told(its.run, its.attempts[0])
    its = run(tried(1, Verdict(Status.REJECTED, "in this case the host reads a value (in case 'ragged')")))
    assert error_told(its.run, its.attempts[0]) == "in this case the host reads a value (in case 'ragged')"


def test_a_failure_that_the_judge_calls_one_of_a_held_out_case_is_told_without_its_numbers() -> None:
    its = run(tried(1, Verdict(Status.WRONG, "a held-out case: 17 elements wrong; worst at [36, 2052]: expected 0.1")))
    assert error_told(its.run, its.attempts[0]).startswith(
        "a case with held-out shapes is wrong; be right for every size"
    )


def test_a_long_error_is_cut_and_one_that_was_never_judged_is_empty() -> None:
    its = run(tried(1, Verdict(Status.COMPILE_FAILED, "x" * 9000)), tried(2, Status.WRONG)[:1])
    assert len(error_told(its.run, its.attempts[0])) == MOST_OF_AN_ERROR
    assert error_told(its.run, its.attempts[1]) == ""
