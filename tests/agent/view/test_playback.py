"""A stored run played back: at its pace, at a multiple of it, paused, followed, and as a picture."""

import math
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from threading import Timer

import pytest

from kerneltune.agent.attempt import Controls
from kerneltune.agent.events import Event, RunResumed, RunStarted, is_stored
from kerneltune.agent.record.folder import RunProcess
from kerneltune.agent.view.render import render
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.agent.view.watch import MAX_SPEED, Playback, picture
from tests.agent.view.scripts import ENDED, GPU_RUN, NOW, START

RUN: list[Event] = [e for e in GPU_RUN if is_stored(e)]
OVER: list[Event] = [*RUN, ENDED]
GONE, RUNNING, UNKNOWN = RunProcess("gone"), RunProcess("running"), RunProcess("unknown")


def playback(events: Sequence[Event], process: RunProcess = GONE, page: int = 500, **how: object) -> Playback:
    """Of a record that gives its events in pages."""
    pages = [list(events[i : i + page]) for i in range(0, len(events), page)]
    return Playback(lambda: pages.pop(0) if pages else [], lambda: process, **how)  # type: ignore[arg-type]


def played(made: Playback) -> tuple[list[Event], float]:
    """All events, and the seconds that they took."""
    begun = time.monotonic()
    return list(made.events(lambda: False)), time.monotonic() - begun


@pytest.mark.parametrize("page", [1, 7, 500])
def test_every_event_is_given_once_in_its_order(page: int) -> None:
    made = playback(OVER, page=page)
    assert played(made)[0] == OVER
    assert (made.ended, made.last_at) == (True, ENDED.at)


def test_a_speed_divides_the_time_that_the_run_took() -> None:
    took = played(playback(OVER, speed=60.0))[1]
    assert 64.0 / 60 <= took < 5.0  # of 72: longer silences last 5 s
    assert played(playback(OVER, speed=math.inf))[1] < 1.0


def test_who_plays_a_run_that_goes_on_follows_it_from_its_present() -> None:
    pages: list[list[Event]] = [RUN[:1], [], [replace(ENDED, at=START + 1000.0)]]
    made = Playback(lambda: pages.pop(0) if pages else [], lambda: RUNNING if pages else GONE, speed=1.0)
    events, took = played(made)
    assert len(events) == 2
    assert took < 4.0


def test_a_long_silence_lasts_no_longer_than_the_limit() -> None:
    silent: list[Event] = [RUN[0], replace(ENDED, at=START + 1000.0)]
    assert 0.5 <= played(playback(silent, speed=10.0))[1] < 2.0


def test_the_pause_before_a_resume_takes_a_second() -> None:
    later = START + 86_400.0
    first, again = replace(ENDED, at=START + 0.5), RunResumed("r-7f3a", 6, at=later)
    resumed: list[Event] = [RUN[0], first, again, replace(ENDED, at=later + 0.5)]
    events, took = played(playback(resumed, speed=1.0))
    assert len(events) == len(resumed)
    assert 1.8 <= took < 4.0


@pytest.mark.parametrize("at", [2e11, 3.0])
def test_a_clock_that_cannot_be_or_goes_back_is_no_clock(at: float) -> None:
    made = playback([RUN[0], replace(RUN[1], at=at), RUN[2], ENDED], speed=1000.0)
    assert played(made)[1] < 2.0
    assert made.last_at == ENDED.at


def test_a_pause_holds_the_next_event_and_a_stop_ends_it() -> None:
    controls = Controls()
    made = playback(OVER, speed=1000.0, controls=controls)
    controls.pause()
    timer = Timer(0.5, controls.pause)
    timer.start()
    assert played(made)[1] >= 0.5
    timer.join()
    stopped = playback(OVER, speed=0.01, controls=controls)
    Timer(0.3, controls.stop).start()
    events, took = played(stopped)
    assert len(events) < len(OVER)
    assert took < 3.0


def test_keys_change_the_speed_between_its_ends_and_go_to_the_end() -> None:
    made = playback(OVER, speed=1.0)
    state = ViewState()
    made.grant("raise", state)
    assert (made.speed, made.status()) == (2.0, "▶ 2x")
    for _ in range(30):
        made.grant("raise", state)
    assert made.speed == MAX_SPEED
    for _ in range(30):
        made.grant("slower", state)
    assert made.speed == 1 / 16
    made.grant("finish", state)
    assert made.status() == "▶ max"
    assert ("e", "to the end") in made.keys(state)
    made.grant("pause", state)
    assert made.status() == "‖ paused"
    made.grant("pause", state)
    assert played(made)[1] < 2.0
    assert made.status() == "■ the end"
    assert ("e", "to the end") not in made.keys(state)


def test_who_can_press_keys_stays_at_a_run_that_was_over_and_nobody_else_does() -> None:
    made = playback(OVER)
    Timer(1.5, made.controls.stop).start()
    begun = time.monotonic()
    assert list(made.events(lambda: False, hears_keys=True)) == OVER
    assert time.monotonic() - begun >= 1.4
    assert list(playback(OVER, speed=math.inf).events(lambda: False, hears_keys=True)) == OVER  # ends by itself


def test_a_run_is_silent_only_after_a_while_but_gone_at_once() -> None:
    def silence(process: RunProcess, after_s: float) -> str:
        made = playback(RUN)
        made.process, made.last_at = process, NOW
        return made.silence(NOW + after_s)

    assert silence(RUNNING, 5.0) == silence(UNKNOWN, 5.0) == ""
    assert silence(GONE, 5.0) == "no event for 5s; its process is not running"
    assert silence(RUNNING, 7200.0) == "no event for 2h 00m; its process runs"
    assert silence(UNKNOWN, 7200.0) == "no event for 2h 00m; whether its process runs is not known here"
    assert playback(RUN, RUNNING).silence(NOW) == ""


def test_what_is_silent_for_a_minute_is_given_up_unless_its_process_runs() -> None:
    made = playback(RUN)
    made.last_at = NOW
    assert [made.given_up(NOW + s) for s in (0.0, 59.0, 61.0, -1e6)] == [False, False, True, True]
    made.process = RUNNING
    assert not made.given_up(NOW + 1e6)
    made.process = GONE
    assert made.given_up(NOW)


def test_the_clock_of_a_run_that_is_gone_or_over_stands_still() -> None:
    state = ViewState()
    for events, process in ((RUN, GONE), (OVER, GONE)):
        made = playback(events, process)
        played(made)
        assert made.now(state) == events[-1].at
    alive = playback(RUN, RUNNING)
    Timer(1.0, alive.controls.stop).start()
    played(alive)
    assert alive.now(state) == pytest.approx(max(time.time(), RUN[-1].at), abs=5.0)


def texts(svg: str) -> str:
    return re.sub(r"<[^>]*>", " ", svg).replace("\u00a0", " ").replace("&#160;", " ")


def drawn(events: Sequence[Event], size: tuple[int, int] = (100, 30)) -> str:
    state = reduce(fold, events, ViewState())
    return picture(render(state, size, state.last_at), state)


def test_a_picture_is_whole_loads_nothing_and_is_the_same_every_time() -> None:
    svg = drawn(OVER)
    assert ET.fromstring(svg).get("viewBox")
    shown = texts(svg)
    for text in ("kerneltune · softmax · NVIDIA H200", "single-pass rows, 8 warps", "110.0 µs", "ended: attempts"):
        assert text in shown
    assert not re.search(r"https?:(?!//www\.w3\.org)|@font-face|url\((?!#)|<script", svg)
    assert svg == drawn(OVER)
    assert "kerneltune" in texts(drawn([]))


def test_characters_that_no_xml_may_hold_and_escapes_do_not_break_a_picture() -> None:
    task = "\x1b[2J<b>&\ud800\uffff"
    hostile = [replace(e, task=task) if isinstance(e, RunStarted) else e for e in OVER]
    svg = drawn(hostile)
    assert ET.fromstring(svg) is not None
    assert svg.encode()
    assert not re.search("[\x00-\x08\x1b\ud800\uffff]", svg)
