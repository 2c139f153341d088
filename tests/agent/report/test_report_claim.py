"""The statement at the top of a report says what was proved, and no more."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.events import Event, RunResumed
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import trajectory
from kerneltune.agent.report.data import Claim, RunData, claim, ranked
from kerneltune.agent.report.page import facts, moment, run_page, shows
from kerneltune.tools.schema.codec import number
from kerneltune.tools.schema.verdict import Comparison, NotTimed, Status, Verdict
from tests.agent.report.made import CHECKED, SANITIZER, correct, events, failed, hostile, material, receipt, verified


def of(*course: Verdict, **facts: object) -> Claim:
    made = events([(None, verdict) for verdict in course], **facts)  # type: ignore[arg-type]
    return claim(material(made))


def against(us: float, speedup: float, low: float, high: float) -> Verdict:
    return replace(correct(us), comparisons=(Comparison("compile", us * speedup, speedup, low, high),))


def test_a_faster_kernel_is_claimed_against_each_baseline_with_its_interval() -> None:
    made = events(confirmed=correct(80.0, "confirmed"))
    told = claim(material(made, receipt("x")))
    assert told.tone == "faster"
    assert told.text.startswith("softmax on one NVIDIA H200: 1.25x the speed of torch.compile max-autotune. ")
    assert told.headline.startswith("1.25x")  # the number first
    assert told.sentences == (
        "Attempt 6 takes 80.00 µs (79.92-80.08): the speed-up is 1.250x [1.238, 1.262] against torch.compile"
        " max-autotune, 1.375x [1.361, 1.389] against torch.compile, 3.125x [3.094, 3.156] against eager PyTorch (with"
        " 95 % intervals).",
        "Confirmed: judged again, with new inputs, in 3 fresh processes.",
        "It reaches 50% of the speed of light and 100% of its device time is spent in its own kernels.",
    )


def test_the_receipt_s_statement_stands_among_the_facts() -> None:
    told = receipt("x") | {"statement": "2.000x vs eager; not checked in full: no memory for float64: main (own)"}
    assert ("statement", told["statement"]) in facts(material(events(), told))


def test_what_limits_the_best_kernel_stands_among_the_facts() -> None:
    counters = {"kernels": [{"kernel": "rows", "values": {"dram_percent": 80.0}}]}
    made = events(confirmed=replace(correct(80.0, "confirmed"), receipt={"counters": counters}))
    words = "rows: memory, 80 % of its peak rate: with the same bytes at most 1.25x"
    assert ("bottleneck", words) in facts(material(made, receipt("x")))


def test_what_was_not_confirmed_is_said_not_to_be() -> None:
    assert "Not confirmed in fresh processes: the time is a screened one." in of(correct(80.0, "screened")).text


def test_a_slower_kernel_is_not_sold_as_a_success() -> None:
    told = of(correct(105.0))
    assert (told.tone, told.headline.endswith("the speed of torch.compile max-autotune, not faster")) == (
        "slower",
        True,
    )


@pytest.mark.parametrize(("speedup", "low", "high"), [(1.01, 0.99, 1.03), (0.99, 0.97, 1.0), (1.0, 1.0, 1.0)])
def test_an_interval_that_holds_one_is_no_difference(speedup: float, low: float, high: float) -> None:
    assert of(against(80.0, speedup, low, high)).tone == "even"


def test_a_speed_up_below_the_session_s_resolution_is_no_difference() -> None:
    made = events([(None, against(80.0, 1.0009, 1.0005, 1.0012))])
    assert claim(material(made)).tone == "faster"
    assert claim(material(made, receipt("x"))).tone == "even"  # whose resolution is 0.001


def test_without_a_gpu_nothing_is_said_about_speed() -> None:
    told = of(CHECKED, gpu=None)
    assert told.tone == "untimed"
    assert "there was no GPU, so nothing here says whether it is fast" in told.text
    assert not re.search("µs|x the speed", told.text)


def test_what_a_gpu_judged_and_nobody_timed_was_right_on_the_gpu() -> None:
    told = of(replace(CHECKED, not_timed=NotTimed.SHARED), gpu="NVIDIA H200")
    assert "is right on the GPU, and was not timed: others use this GPU; so nothing here says" in told.text
    assert not re.search("interpreter|ranked by the bytes", told.text)


def test_when_nothing_was_accepted_it_says_so_and_how_attempts_ended() -> None:
    told = of(failed(Status.WRONG, "no"), failed(Status.WRONG, "no"), failed(Status.TIMED_OUT, "slow"))
    assert told.headline == "nothing accepted: none of 3 attempts was correct"
    assert told.sentences[0] == "They ended as: 2 wrong, 1 timed out."


def test_a_run_without_attempts_says_that_nothing_was_tried() -> None:
    assert of().headline == "no attempt was made"


def test_kernels_that_nothing_could_run_prove_nothing() -> None:
    assert of(failed(Status.UNCHECKED, "not checkable")).headline.startswith("nothing verified")


@pytest.mark.parametrize(
    ("why", "words"),
    [(StopReason.INTERRUPTED, "was interrupted"), (None, "has not ended"), (StopReason.MODEL_ERROR, "could not be")],
)
def test_a_run_that_did_not_come_to_its_end_says_so(why: StopReason | None, words: str) -> None:
    assert words in of(correct(80.0), why=why).text


def test_an_ordinary_end_is_not_worth_a_word() -> None:
    assert "run" not in of(correct(80.0), why=StopReason.ATTEMPTS).text


def test_a_verification_that_did_not_hold_stands_at_the_top() -> None:
    made: list[Event] = [e for e in hostile("plain")]
    assert "A later verification did NOT confirm it." in claim(material(made)).text


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_a_speed_up_that_is_no_number_is_not_claimed(bad: float) -> None:
    told = of(against(80.0, bad, bad, bad))
    assert (told.tone, "compared with no baseline" in told.text) == ("untimed", True)


def test_a_best_that_was_not_accepted_is_no_best() -> None:
    run = trajectory(events([(None, correct(80.0))]))
    wrong = replace(run.attempts[0], verdict=Verdict(Status.WRONG, ""))
    assert claim(RunData(replace(run, attempts=(wrong,), best=wrong))).tone == "nothing"


def compared(made: RunData) -> list[Comparison]:
    assert made.best is not None
    return ranked(made.best)


@pytest.mark.parametrize(
    ("again", "headline"),
    [
        (failed(Status.WRONG, "no"), "attempt 6 was wrong when it was verified again"),
        (correct(99.0), "the time of attempt 6 did not repeat when it was verified again"),
    ],
)
def test_what_a_verification_refutes_is_not_called_faster(again: Verdict, headline: str) -> None:
    made = material(verified(events(), again, 6), receipt("x"))
    told = claim(made)
    assert told.tone == "refuted"
    assert told.headline.startswith(headline)
    assert {shows(made, c) for c in compared(made)} == {"did not hold"}
    assert "✗ did not hold" in run_page(made, SANITIZER, version="1")


def test_a_page_does_not_contradict_itself_about_differences_below_the_resolution() -> None:
    made = material(events([(None, against(80.0, 1.0009, 1.0005, 1.0012))]), receipt("x"))
    assert claim(made).tone == "even"
    assert [shows(made, c) for c in compared(made)] == ["no difference measured"]


def test_a_run_that_goes_on_after_its_ending_has_not_ended(tmp_path: Path) -> None:
    made = events(why=StopReason.INTERRUPTED)
    goes_on = [*made, RunResumed(made[0].run_id, 6)]
    material_now = material(goes_on)
    assert material_now.elapsed_s is None
    assert "has not ended" in claim(material_now).text
    assert "interrupted" not in claim(material_now).text
    assert "without pauses" in run_page(material(made), SANITIZER, version="1")
    assert "without pauses" not in run_page(material_now, SANITIZER, version="1")
    with Store.open(tmp_path) as store:
        for event in goes_on:
            store.write(event)
        read = next(iter(store.trajectories()))
    assert (trajectory(goes_on).why, read.why) == (None, None)
    assert read.best is not None
    assert read.best.number == 6


@pytest.mark.parametrize("at", [math.nan, math.inf, 1e18, -1e18])
def test_a_moment_that_cannot_be_is_unknown(at: float) -> None:
    assert moment(at) == "at an unknown time"


def test_a_number_without_bounds_is_no_number() -> None:
    assert number(10**400) is None
    told = receipt("x")
    told["evidence"] = {"aa_resolution": 10**400, "copy_gbps": 10**400}
    assert run_page(material(events(), told), SANITIZER, version="1")
