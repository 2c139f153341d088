"""A run in time: places, moments, states, and what keys do to a viewer."""

import math
import re
from dataclasses import replace
from functools import reduce
from typing import Any

import pytest

from agent.record.events import Event, Judged, Progress, Replied, RunResumed, Said, Verified
from agent.record.folder import RunProcess
from agent.view.player import Player
from agent.view.replay import Timeline, numbers
from agent.view.replay_bar import bar, replay_frame, silence
from agent.view.replay_film import film_svg
from agent.view.replay_place import target
from agent.view.replay_steps import with_steps
from agent.view.state import ViewState, fold
from tests.agent.view.scripts import ENDED, GPU_RUN, NOW, START, many_attempts, verdict
from tests.agent.view.test_view_render import drawn
from tools.errors import UsageError
from tools.verdict import Status

RUN: list[Event] = [e for e in GPU_RUN if not isinstance(e, Progress) and not (isinstance(e, Said) and not e.final)]
OVER = [*RUN, ENDED]


def timeline(events: list[Event], idle_limit_s: float = 5.0) -> Timeline:
    made = Timeline(idle_limit_s)
    made.extend(events)
    return made


def player(events: list[Event], **facts: object) -> Player:
    made = Player(timeline(events), reading=False)
    for name, value in facts.items():
        setattr(made, name, value)
    made.pass_time(0.0)
    return made


def test_the_state_at_every_place_is_that_of_the_events_before_it_in_any_order_of_asking() -> None:
    events = many_attempts(60)
    line = timeline(events)
    places = [*range(0, len(events) + 1, 7), *range(len(events), -1, -11), 64, 63, 65, 128, 0, len(events)]
    for place in places:
        assert line.state(place) == reduce(fold, events[:place], ViewState()), place


def test_a_jump_folds_few_events_however_long_the_run_is() -> None:
    asked: list[int] = []

    class Counted(list[Event]):
        def __getitem__(self, at: Any) -> Any:
            asked.append(at)
            return super().__getitem__(at)

    line = timeline(many_attempts(400))
    line.state(len(line))
    line.events = Counted(line.events)
    for place in (1500, 3, 1999, 640, 641):
        line.state(place)
    assert len(asked) < 5 * 65


def test_a_long_silence_lasts_no_longer_than_the_limit_and_the_clock_runs_faster_in_it() -> None:
    line = timeline([RUN[0], replace(ENDED, at=START + 100.0)], idle_limit_s=4.0)
    assert line.length_s == 4.0
    assert [line.clock(s) - START for s in (0.0, 1.0, 2.0, 4.0)] == [0.0, 25.0, 50.0, 100.0]
    assert line.shown_after(50.0) == 2.0
    assert timeline([RUN[0], replace(ENDED, at=START + 100.0)], idle_limit_s=math.inf).length_s == 100.0


def test_the_pause_before_a_resume_takes_a_second_even_without_a_limit() -> None:
    later = START + 86_400.0
    resumed = [*OVER, RunResumed("r-7f3a", 6, at=later), replace(ENDED, at=later + 3.0)]
    line = timeline(resumed, idle_limit_s=math.inf)
    assert line.length_s == pytest.approx(72.0 + 1.0 + 3.0)
    assert line.ended


def test_clocks_that_go_back_or_are_no_numbers_never_turn_time_around() -> None:
    odd = [replace(e, at=at) for e, at in zip(OVER[:5], (5.0, 3.0, math.nan, math.inf, 9.0), strict=True)]
    line = timeline(with_steps(odd))
    moments = [line.shown_at(place) for place in range(len(line) + 1)]
    assert moments == sorted(moments)
    assert line.length_s == 4.0


def test_steps_are_put_where_their_durations_say_and_change_nothing_that_happened() -> None:
    shown = with_steps(OVER)
    assert [e for e in shown if e in OVER] == OVER
    third = [e for e in shown if getattr(e, "attempt_id", "") == "r-7f3a/3"]
    of_third = [(e.kind, getattr(e, "stage", ""), round(e.at - START, 1)) for e in third]
    assert of_third[:5] == [
        ("proposed", "", 30.0), ("progress", "tracing", 30.6), ("progress", "compiling", 30.7),
        ("updated", "", 31.0), ("progress", "timing", 31.5),
    ]  # fmt: skip
    told = [
        ([(a.number, a.verdict, a.kernels) for a in state.attempts], state.best_id, state.log)
        for state in (reduce(fold, shown, ViewState()), reduce(fold, OVER, ViewState()))
    ]
    assert told[0] == told[1]


def test_a_confirmation_is_under_way_for_as_long_as_it_took() -> None:
    judged = verdict(3, Status.CORRECT)
    again = Verified("r-7f3a", "r-7f3a/3", "confirm", judged, 1.5, True, "right again", None, {}, {}, at=NOW + 2)
    stage = next(e for e in with_steps([*RUN, again]) if isinstance(e, Progress) and e.stage == "confirming")
    assert (stage.at, stage.detail) == (NOW + 0.5, "#3")


def test_a_reply_is_written_piece_by_piece_and_then_stands_as_it_did() -> None:
    reply = Replied("r-7f3a", "c", 1, "Next: eight rows.", "The row fits. " * 20, [], "end", "", None, None, "m", 6.0,
                    at=NOW + 6)  # fmt: skip
    shown = with_steps([*RUN, reply])
    asking = next(e for e in shown if isinstance(e, Progress) and e.stage == "asking")
    pieces = [e for e in shown if isinstance(e, Said) and not e.final]
    assert "".join(e.text for e in pieces) == "The row fits. " * 20 + "\n\n" + "Next: eight rows."
    assert asking.at == NOW
    assert NOW <= pieces[0].at < pieces[-1].at < NOW + 6
    assert reduce(fold, shown[:-1], ViewState()).streaming
    assert not reduce(fold, shown, ViewState()).streaming


def test_left_and_right_step_from_verdict_to_verdict() -> None:
    viewer = player(OVER, following=True)
    seen = []
    for key in ("left", "left", "right", "home", "right", "end"):
        viewer.press(key)
        seen.append(viewer.state.finished)
    assert seen == [6, 5, 6, 0, 1, 6]
    assert viewer.at_end


def test_verdicts_of_the_same_moment_are_stepped_through_one_by_one() -> None:
    same = [replace(e, at=START + 50.0) if isinstance(e, Judged) else e for e in RUN]
    viewer = player([*same, replace(ENDED, at=START + 50.0)], following=True)
    seen = []
    for _ in range(7):
        viewer.press("left")
        seen.append(viewer.state.finished)
    assert seen == [6, 5, 4, 3, 2, 1, 0]


def test_playing_goes_at_its_speed_and_stops_at_the_end() -> None:
    viewer = player(OVER, playing=True, speed=10.0)
    viewer.pass_time(1.5)
    assert 15.0 <= viewer.timeline.elapsed_s(viewer.shown_s) < 20.0
    assert viewer.state.finished == 1
    viewer.press("pause")
    viewer.pass_time(60.0)
    assert viewer.state.finished == 1
    viewer.press("pause")
    viewer.pass_time(60.0)
    assert viewer.at_end
    assert not viewer.playing
    assert viewer.state.ended == ENDED


def test_at_speed_max_every_run_is_over_in_300_frames() -> None:
    viewer = player([*many_attempts(1000), ENDED], playing=True, speed=math.inf)
    frames = 0
    while not viewer.at_end:
        viewer.pass_time(0.03)
        frames += 1
    assert 250 < frames <= 300


def test_speeds_have_a_first_and_a_last() -> None:
    viewer = player(OVER)
    for _ in range(30):
        viewer.press("faster")
    assert math.isinf(viewer.speed)
    for _ in range(30):
        viewer.press("slower")
    assert viewer.speed == 0.25


def test_who_plays_a_run_that_goes_on_follows_it_from_its_present() -> None:
    viewer = player(RUN, playing=True, speed=1000.0)
    viewer.pass_time(1.0)
    assert viewer.live
    viewer.timeline.extend([ENDED])
    viewer.pass_time(0.1)
    assert viewer.state.ended == ENDED
    assert not viewer.live


def test_a_player_waits_for_what_is_still_being_read() -> None:
    viewer = Player(Timeline(), playing=True, speed=math.inf)
    viewer.pass_time(1.0)
    assert viewer.playing
    viewer.timeline.extend(OVER)
    viewer.read_all()
    viewer.pass_time(1.0)
    assert viewer.place > 0


@pytest.mark.parametrize(
    ("text", "finished"),
    [("1", 1), ("#3", 3), ("start", 0), ("end", 6), ("best", 3), ("25s", 2), ("0:55", 5), ("1m5s", 6), ("0h0m45s", 4),
     ("100%", 6), ("0%", 0), ("9999s", 6)],
)  # fmt: skip
def test_a_place_can_be_named_in_many_ways(text: str, finished: int) -> None:
    viewer = player(OVER, target=target(text))
    viewer.read_all()
    assert viewer.state.finished == finished


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "7 s", "1:2:3:4", "%", "²", "1e3s"])
def test_what_is_no_place_is_told_what_would_be(text: str) -> None:
    with pytest.raises(UsageError, match="give an attempt's number"):
        target(text)


def test_an_attempt_without_a_verdict_is_answered_with_those_that_have_one() -> None:
    with pytest.raises(
        UsageError, match=r"--at 7: no such attempt; judged attempts: 1, 2, 3, 4, 5, 6 \(a time .* 7s\)"
    ):
        target("7")(timeline(OVER))
    with pytest.raises(UsageError, match="no attempt of this run has a verdict yet"):
        target("1")(timeline(RUN[:2]))
    with pytest.raises(UsageError, match="no attempt of this run was accepted"):
        target("best")(timeline(RUN[:2]))
    assert numbers(timeline(OVER)) == [1, 2, 3, 4, 5, 6]


BARS = """\
 ● live   1:10 / 1:10   ━━━━━━━━━━━━●   6 of 6 attempts   space pause  ←→ attempt  +- speed  home end  q quit
 ● live   1:10 / 1:10   ━━━━━━━━━━━●   6 of 6 attempts   space ←→ +- home end q
 ● live   1:10 / 1:10   6 of 6 attempts
 ‖ paused (1x)   0:34 / 1:12   ━━━━━●─────   3 of 6 attempts   space pause  ←→ attempt  +- speed  home end  q quit
 ▶ max   0:34 / 1:12   ━━━━━━●───────   3 of 6 attempts   space pause  ←→ attempt  +- speed  home end  q quit
 ■ no event for 2h 00m; its process is not running   1:10 / 1:10   6 of 6 attempts   space ←→ +- home end q
 ● no event for 2h 00m; its process runs   1:10 / 1:10   ━━━━━━━━●   6 of 6 attempts   space ←→ +- home end q
 ● no event for 2h 00m; whether its process runs is not known here   1:10 / 1:10   ━━━━━━━━━━━━●   6 of 6 attempts
 ■ the end   1:12 / 1:12   ━━━━━━━━━●   6 of 6 attempts   space pause  ←→ attempt  +- speed  home end  q quit
 … reading   1:12 / 1:12   ━━━━━━━━━●   6 of 6 attempts   space pause  ←→ attempt  +- speed  home end  q quit
"""


def test_the_bar_says_whether_it_plays_where_it_is_and_what_keys_do() -> None:
    live, third = player(RUN, following=True), target("3")
    paused = player(OVER, target=third)
    paused.read_all()
    playing = player(OVER, target=third)
    playing.read_all()
    playing.playing, playing.speed = True, math.inf
    silent = [player(RUN, following=True, process=RunProcess(state)) for state in ("gone", "running", "unknown")]
    over = player(OVER, following=True)
    reading = player(OVER, following=True, reading=True)
    at = NOW - 2.0
    gone, running, unknown = silent
    widths = ((live, 110), (live, 80), (live, 40), (paused, 115), (playing, 110), (gone, 118), (running, 110),
              (unknown, 115), (over, 110), (reading, 110))  # fmt: skip
    shown = [bar(v, width, at if v not in silent else at + 7200.0) for v, width in widths]
    assert "".join(line.plain.rstrip() + "\n" for line in shown) == BARS


@pytest.mark.parametrize("size", [(20, 4), (40, 11), (80, 12), (80, 24), (200, 60)])
def test_a_frame_fills_the_terminal_exactly_with_the_bar_in_its_last_line(size: tuple[int, int]) -> None:
    width, height = size
    viewer = player(OVER, following=True)
    lines = drawn(replay_frame(viewer, width, height, NOW), width, height).split("\n")[:-1]
    assert len(lines) == height
    assert max(map(len, lines)) <= width
    assert lines[-1] == bar(viewer, width, NOW).plain.rstrip()


def test_a_run_is_silent_only_after_a_while_but_gone_at_once() -> None:
    assert silence(player(RUN, process=RunProcess("running")), NOW + 5.0) == ""
    assert "not running" in silence(player(RUN, process=RunProcess("gone")), NOW + 5.0)
    assert silence(player([]), NOW) == ""


def test_the_clock_of_a_run_that_is_gone_stands_still() -> None:
    gone, alive = (player(RUN, following=True, process=RunProcess(s)) for s in ("gone", "running"))
    assert gone.now(NOW + 500.0) == START + 70.0
    assert alive.now(NOW + 500.0) == NOW + 500.0


def test_a_reading_of_the_gpu_shows_only_in_the_present_and_is_no_part_of_the_record() -> None:
    viewer = player(RUN, following=True, process=RunProcess("running"))
    viewer.overhear(Progress("r-7f3a", "gpu", "NVIDIA H200  41 %", at=NOW))
    assert viewer.state.gpu_sample == "NVIDIA H200  41 %"
    viewer.press("left")
    assert viewer.state.gpu_sample == ""
    assert len(viewer.timeline) == len(RUN)


def test_a_later_page_of_a_run_on_a_gpu_is_timed_too() -> None:
    first, rest = OVER[:1], OVER[1:]
    line = timeline(first)
    stages = {e.stage for e in with_steps(rest, on_gpu=line.on_gpu) if isinstance(e, Progress)}
    assert "timing" in stages
    assert "checking" not in stages


def test_a_film_of_a_run_without_an_end_does_not_call_it_live() -> None:
    made = player(RUN, target=target("end"))
    made.read_all()
    film = film_svg(made, 120, 36, 50.0)
    words = re.sub(r"<[^>]*>", "", film).replace("\u00a0", " ")
    assert "no end is recorded" in words
    assert not re.search(r"● live|paused", words)
    over = player(OVER, target=target("end"))
    over.read_all()
    assert "no end is recorded" not in film_svg(over, 120, 36, 50.0)


@pytest.mark.parametrize("at", [math.nan, math.inf, 1e18, -1e300])
def test_a_clock_that_cannot_be_is_no_clock(at: float) -> None:
    line = timeline([RUN[0], replace(RUN[1], at=at), RUN[2]], math.inf)
    assert line.length_s < 3600
    assert line.last_at == RUN[2].at


def test_what_is_silent_for_a_minute_is_given_up_unless_its_process_runs() -> None:
    made = player(RUN)
    last = made.timeline.last_at
    assert [made.given_up(last + s) for s in (0.0, 59.0, 61.0, -1e6)] == [False, False, True, True]
    made.process = RunProcess("running", 7)
    assert not made.given_up(last + 1e6)
