"""The screen and the lines of a suite: what fits, what is said, and that names of files do nothing to a terminal."""

import io
import json
import re
import time
from dataclasses import replace

import pytest
from rich.console import Console

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import Note, Warned
from kerneltune.agent.view.render import Pane
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.agent.view.suite import SuiteJson, SuiteLines, SuiteRow, SuiteScreen, SuiteState, suite_lines
from tests.agent.report.made import CHECKED, correct, events

NOW = 1_000.0
ROWS = tuple(SuiteRow(f"task{number}", "offline", 0) for number in range(1, 61))
STATE = SuiteState("builtin", None, ROWS, NOW - 100.0)
BEST = Attempt("", "", attempt_id="r/7", number=7, verdict=correct(80.0))


def screen(state: SuiteState, run: ViewState | None = None, width: int = 100, height: int = 24) -> list[str]:
    """The lines of one frame as a terminal of that size shows them."""
    page = io.StringIO()
    lines = suite_lines(state, run or ViewState(), (width, height), NOW)
    Console(file=page, width=width, color_system=None).print(Pane(lines))
    return page.getvalue().splitlines()


def test_the_row_under_way_is_among_those_that_fit() -> None:
    for at in (0, 7, 30, 59):
        shown = screen(replace(STATE, at=at))
        assert len(shown) <= 24
        assert [line.split()[1] for line in shown if "▶" in line] == [f"task{at + 1}"]
        assert re.search(r"and (\d+) more", "\n".join(shown))
    assert "more" not in "\n".join(screen(replace(STATE, rows=ROWS[:3])))


def test_a_row_says_what_its_run_came_to() -> None:
    timed = SuiteRow("softmax", "offline", 0, 1, 12, 9, BEST)
    right = SuiteRow("gelu", "offline", 0, 1, 4, 4, replace(BEST, number=2, verdict=CHECKED))
    none = SuiteRow("top_k", "offline", 0, 2, 5, 0, None, "author done")
    shown = "\n".join(screen(replace(STATE, gpu="NVIDIA H200", rows=(timed, right, none))))
    assert re.search(r"softmax +━{10} +9 of +12 right +#7 80.00 µs, 1.25x", shown)
    assert re.search(r"gelu +━{10} +4 of +4 right +#2, not timed", shown)
    assert re.search(r"top_k +━{10} +0 of +5 right +author done +nothing yet", shown)
    assert "3 of 3 runs had a turn" in shown
    assert "NVIDIA H200" in shown


def test_the_end_is_estimated_from_what_this_process_did() -> None:
    halfway = replace(STATE, used_before=0.2, used=0.6)  # 0.4 in 100 s
    assert "60% of the suite, 1m 40s, about 1m 40s left" in screen(halfway)[0]
    assert "left" not in screen(replace(halfway, began=NOW - 5.0))[0]
    assert "left" not in screen(replace(halfway, used=1.0))[0]


def test_the_run_under_way_counts_as_it_goes_on() -> None:
    run = ViewState()
    for event in events(why=None)[:8]:
        run = fold(run, event)
    shown = "\n".join(screen(replace(STATE, rows=ROWS[:2], at=0, step=0.5), run))
    assert re.search(rf"▶ task1 .* {run.accepted} of +{run.finished} right", shown)


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_a_hostile_name_is_one_plain_line(width: int) -> None:
    hostile = "evil\x1b[2J\n\u202etask\x9b2J" * 5
    row = SuiteRow(hostile, f"chat:{hostile}", 3, 1, 1, 1, BEST)
    state = replace(STATE, name=hostile, rows=(row, ROWS[0]), at=0)
    run = fold(ViewState(), Note("", "starting", hostile))
    shown = screen(state, run, width)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e]", "".join(shown))
    assert len(shown) == len(screen(replace(STATE, rows=ROWS[:2], at=0), None, width))
    stream = io.StringIO()
    lines = SuiteLines(stream, state)
    lines.begin(state)
    lines(Warned("r", hostile))
    lines.end(state)
    assert stream.getvalue().count("\n") == 4
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", stream.getvalue())


def test_a_line_when_a_turn_begins_one_when_it_ends_and_each_warning_once() -> None:
    stream, state = io.StringIO(), replace(STATE, rows=(SuiteRow("a", "offline", 1, 1, 3, 2, BEST), *ROWS[:1]), at=0)
    lines = SuiteLines(stream, replace(state, gpu="NVIDIA H200"))
    lines.begin(state)
    for _ in range(2):
        lines(Warned("r", "the clocks are low"))
    lines.end(replace(state, used=0.5, began=time.time()))
    assert stream.getvalue().splitlines() == [
        "suite builtin: 2 runs; NVIDIA H200",
        "… 1/2 a, offline, seed 1 goes on",
        "warning: the clocks are low",
        "a, offline, seed 1: 2 of 3 attempts right, best #7 80.00 µs, 1.25x; 50% of the suite, 0s",
    ]


def test_what_an_earlier_process_stored_is_not_printed_again() -> None:
    stream, made = io.StringIO(), events()
    view = SuiteJson(stream)
    view.begin(STATE)
    for event in (*made[:-1], replace(made[-1], at=time.time() + 1.0)):
        view.of_run(STATE.at)(event)
    view.end(STATE)
    assert [json.loads(line)["type"] for line in stream.getvalue().splitlines()] == ["run_ended", "result"]


def test_the_screen_is_given_back() -> None:
    stream = io.StringIO()
    with SuiteScreen(Console(file=stream, force_terminal=True, width=80, height=20), STATE) as view:
        view.begin(replace(STATE, at=1))
        view(Warned("r", "x"))
        view.end(replace(STATE, at=1))
    text = stream.getvalue()
    assert text.count("\x1b[?1049h") == text.count("\x1b[?1049l") == 1
    assert "task1" in text
