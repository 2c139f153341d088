"""The fold: the same events give the same state, and an earlier state never changes."""

import subprocess
import sys
from dataclasses import replace
from functools import reduce

import pytest

from kerneltune.agent.attempt import Limits, StopReason
from kerneltune.agent.events import (
    Event,
    Judged,
    LimitsChanged,
    ModelBusy,
    Note,
    Proposed,
    RunPaused,
    RunResumed,
    RunSuspended,
    Said,
    Stage,
    StageStarted,
    Verified,
    Warned,
)
from kerneltune.agent.record.trajectory import trajectory
from kerneltune.agent.report.data import RunData
from kerneltune.agent.view.output import result
from kerneltune.agent.view.plain import summary_text
from kerneltune.agent.view.state import ViewState, fold, throttling
from kerneltune.tools.schema.verdict import Status, Verdict
from tests.agent.view.scripts import CPU_RUN, ENDED, GPU_RUN, NOW, START, attempt, started


def folded(events: list[Event]) -> ViewState:
    return reduce(fold, events, ViewState())


def test_fold_is_pure() -> None:
    states = [ViewState()]
    for event in CPU_RUN:
        before = repr(states[-1])
        states.append(fold(states[-1], event))
        assert repr(states[-2]) == before
    assert states[-1] == folded(CPU_RUN)


def test_the_state_names_best_counts_and_current_attempt() -> None:
    state = folded(GPU_RUN)
    assert state.best is not None
    assert state.best.number == 3
    assert state.current is not None
    assert (state.current.number, state.stage_of(state.current)) == (7, "tracing")
    assert state.by_status == {"correct": 3, "wrong": 1, "rejected": 1, "compile_failed": 1}
    assert (state.finished, state.accepted) == (6, 3)
    assert state.gpu_reading is not None
    assert (state.gpu_reading.sm_clock_mhz, throttling(state.gpu_reading)) == (1980, "power cap")


def test_the_judge_s_time_has_the_run_s_own_looks_and_no_later_verification_as_the_report_s_has() -> None:
    before = folded(GPU_RUN)
    assert before.best is not None
    ids, verdict = ("r-7f3a", before.best.attempt_id), before.best.judged
    looks = [
        Verified(*ids, "confirm", verdict, 8.0, True, "why", None, {}, {}, before.best.rank_key, at=NOW),
        Verified(*ids, "unfinished", Verdict(Status.UNCHECKED, "no memory"), 0.5, False, "why", None, {}, {}, at=NOW),
        Verified(*ids, "verify", verdict, 16.0, True, "why", None, {}, {}, at=NOW),
    ]
    events = [*GPU_RUN, *looks]
    assert folded(events).judge_s == pytest.approx(before.judge_s + 8.5)
    assert RunData(trajectory(events), events).judge_s == pytest.approx(folded(events).judge_s)


def test_budgets_follow_the_limits_that_were_given() -> None:
    used = {b.name: (b.used, b.limit) for b in folded(CPU_RUN).budgets(NOW)}
    assert used == {"attempts": (6, 24), "time": (72.0, 600.0), "patience": (3, 8)}
    unlimited = replace(started(None), limits={"max_attempts": 24, "max_time_s": None})
    assert [b.name for b in fold(ViewState(), unlimited).budgets(NOW)] == ["attempts"]


def test_progress_of_a_judged_attempt_does_not_reopen_it() -> None:
    state = fold(folded(CPU_RUN), StageStarted("r-7f3a", "r-7f3a/3", Stage.CHECKING, at=NOW))
    row = state.row("r-7f3a/3")
    assert row is not None
    assert state.stage_of(row) == ""
    assert row.verdict is not None


def test_streamed_words_give_way_to_the_full_message() -> None:
    state = folded(CPU_RUN)
    assert state.streaming == "Or split the row over"
    state = fold(state, Said("r-7f3a", "assistant", "Or split the row over two blocks.", at=NOW))
    assert (state.streaming, state.log[-1].text) == ("", "Or split the row over two blocks.")


def test_a_resumed_run_goes_on_counting_without_the_pause() -> None:
    killed = folded(CPU_RUN)
    resumed = fold(killed, RunResumed("r-7f3a", 6, at=START + 10_000))
    assert resumed.elapsed_s(START + 10_005) == (killed.last_at - START) + 5
    assert resumed.stage_of(resumed.attempts[-1]) == "unfinished"
    assert resumed.finished == 6


def test_the_time_that_is_shown_begins_with_the_command_not_with_the_run() -> None:
    waiting = folded([Note("", "starting", "softmax", at=START - 7)])
    assert waiting.elapsed_s(START - 4) == 3.0
    running = fold(waiting, started(None))
    assert (running.elapsed_s(START + 5), running.process_s(START + 5)) == (12.0, 5.0)  # a limit of time counts these 5
    assert fold(running, replace(ENDED, elapsed_s=20.0)).elapsed_s(NOW) == 27.0
    watched = folded([started(None), replace(ENDED, elapsed_s=20.0)])  # later, from the record
    assert watched.elapsed_s(NOW) == 20.0
    first = Note("", "starting", "going on", at=START + 900)
    resumed = folded([first, started(None), ENDED, RunResumed("r-7f3a", 1, at=START + 904)])
    assert resumed.elapsed_s(START + 905) == ENDED.elapsed_s + 4 + 1


def test_a_resumed_run_that_ends_has_taken_the_time_of_all_its_processes() -> None:
    once = fold(folded(GPU_RUN), replace(ENDED, elapsed_s=100.0))
    resumed = fold(once, RunResumed("r-7f3a", 6, at=START + 10_000))
    twice = fold(resumed, replace(ENDED, elapsed_s=20.0, at=START + 10_020))
    assert twice.elapsed_s(START + 20_000) == 120.0
    assert "ended after 2m 00s" in summary_text(twice)
    assert result(twice, None, now=START + 20_000)["elapsed_s"] == 120.0
    assert fold(twice, RunResumed("r-7f3a", 6, at=START + 20_000)).elapsed_s(START + 20_001) == 121.0


def test_a_resumed_run_shows_the_limits_that_are_in_force() -> None:
    resumed = fold(folded(CPU_RUN), RunResumed("r-7f3a", 6, at=START + 10_000))
    told = fold(resumed, LimitsChanged("r-7f3a", Limits(48)))
    assert [(b.name, b.limit) for b in told.budgets(START + 10_001)] == [("attempts", 48)]


def test_time_for_which_the_process_was_stopped_is_not_shown_as_spent() -> None:
    state = fold(folded(CPU_RUN), RunSuspended("r-7f3a", 30.0, at=NOW))
    assert state.process_s(NOW) == NOW - START - 30
    paused = fold(folded(CPU_RUN), RunPaused("r-7f3a", paused=True, at=NOW - 40))
    assert fold(paused, RunSuspended("r-7f3a", 30.0, at=NOW)).paused_s == 0.0
    assert fold(ViewState(), RunSuspended("", 30.0)).paused_s == 0.0


def test_a_wait_for_a_busy_provider_is_in_the_log_with_its_seconds_and_its_reason() -> None:
    for wait_s, told in ((0.44, "0.4"), (32.4, "32")):
        state = fold(folded(CPU_RUN), ModelBusy("r-7f3a", "1", wait_s, "anthropic: Overloaded", at=NOW))
        assert state.log[-1].text == f"the model is asked again in {told} s: anthropic: Overloaded"
    reason = StopReason.MODEL_ERROR
    ended = fold(fold(state, Warned("r-7f3a", "anthropic is not available")), replace(ENDED, why=reason))
    told_last = result(ended, None, now=NOW)
    assert (told_last["subtype"], told_last["error"]) == ("error", "anthropic is not available")


def test_a_best_that_is_not_confirmed_gives_way_to_the_next_one() -> None:
    state = folded(ranked(GPU_RUN))
    assert state.best is not None
    assert state.best.number == 3
    state = fold(state, verified(3, Status.WRONG))
    assert state.best is not None
    assert state.best.verdict is not None
    assert (state.best.number, state.best.verdict.accepted) == (2, True)
    none = reduce(fold, [verified(1, Status.WRONG), verified(2, Status.WRONG)], state)
    assert none.best is None


def ranked(events: list[Event]) -> list[Event]:
    return [
        replace(e, rank_key=(e.verdict.timing.median_us,)) if isinstance(e, Judged) and e.verdict.timing else e
        for e in events
    ]


def verified(number: int, status: Status) -> Verified:
    return Verified("r-7f3a", f"r-7f3a/{number}", "confirm", Verdict(status, "no"), 1.0, False, "", "H200", {}, {})


def test_a_resumed_run_whose_events_are_not_replayed_still_counts_them() -> None:
    state = folded([RunResumed("r-7f3a", 6, at=START), *attempt(7, "more", 3, Status.WRONG)])
    assert state.finished == 7
    assert state.number_of("r-7f3a/3") == "#3"


def test_an_ended_run_leaves_no_attempt_in_progress() -> None:
    state = fold(folded(CPU_RUN), ENDED)
    assert state.stage_of(state.attempts[-1]) == "unfinished"
    assert state.elapsed_s(NOW + 1000) == ENDED.elapsed_s


def test_events_of_unknown_attempts_are_survived() -> None:
    judged = next(e for e in CPU_RUN if isinstance(e, Judged))
    assert folded([judged]).attempts == ()
    assert folded([judged]).best is None


def test_an_attempt_proposed_again_after_a_resume_is_one_row() -> None:
    again = next(e for e in CPU_RUN if isinstance(e, Proposed) and e.number == 7)
    assert [a.number for a in folded([*CPU_RUN, again]).attempts] == [1, 2, 3, 4, 5, 6, 7]


def test_the_views_do_not_load_torch() -> None:
    code = (
        "import sys; from kerneltune.agent.view import live, output, plain;"
        "print(sorted({'torch', 'triton', 'sqlmodel'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


class Counted(str):
    """An id that counts how often one is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)


def test_an_attempt_is_found_without_a_look_at_all_others() -> None:
    made = [
        [replace(e, attempt_id=Counted(f"r-7f3a/{number}")) for e in attempt(number, "rows", None, Status.WRONG)]  # type: ignore[arg-type]
        for number in range(1, 301)
    ]
    events = [each[step] for step in range(5) for each in made]  # all are under way at once
    assert [a.verdict is not None for a in folded(events).attempts] == [True] * 300
    assert Counted.compared < 10 * len(events)
    backwards = folded([*made[4], *made[2], *made[3], made[2][0]])  # what is proposed again is the latest
    assert [(a.number, a.verdict is not None) for a in backwards.attempts] == [(5, True), (4, True), (3, False)]
