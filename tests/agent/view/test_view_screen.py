"""What is written to a terminal: only what that terminal understands, and given back once."""

import os
import re
from functools import reduce
from io import StringIO

import pytest
from rich.console import Console

from kerneltune.agent.view.live import TerminalScreen
from kerneltune.agent.view.output import Page, can_show_screen, columns
from kerneltune.agent.view.render import render
from kerneltune.agent.view.state import ViewState, fold
from tests.agent.view.scripts import GPU_RUN, NOW

STATE = reduce(fold, GPU_RUN, ViewState())
COLOUR = re.compile(r"\x1b\[([0-9]+;)*(3[0-8]|9[0-7])(;[0-9]+)*m")
SIZE = (120, 40)


def written(*, no_color: bool) -> str:
    """What one frame writes."""
    page = StringIO()
    screen = TerminalScreen(Console(file=page, force_terminal=True, color_system="256", no_color=no_color))
    screen.enter()
    begun = len(page.getvalue())
    screen.draw(render(STATE, SIZE, NOW), SIZE)
    return page.getvalue()[begun:]


def test_a_frame_fills_the_screen_without_clearing_it_first() -> None:
    text = written(no_color=False)
    assert text.startswith("\x1b[?2026h")  # a terminal that knows it shows the draw at once
    assert text.endswith("\x1b[?2026l")
    assert "\x1b[H" in text
    assert "\x1b[2J" not in text
    assert text.count("\n") == SIZE[1] - 1


def test_without_colour_nothing_is_lost_but_colour() -> None:
    plain, coloured = written(no_color=True), written(no_color=False)
    assert COLOUR.search(coloured)
    assert not COLOUR.search(plain)
    assert re.sub("\x1b\\[[0-9;]*m", "", plain) == re.sub("\x1b\\[[0-9;]*m", "", coloured)


def test_a_terminal_without_utf_8_gets_lines_and_no_screen() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w", encoding="latin-1") as latin, os.fdopen(os.dup(ours), "w", encoding="utf-8") as utf8:
        assert [can_show_screen(stream) for stream in (latin, utf8, StringIO())] == [False, True, False]
    os.close(ours)


def test_what_was_taken_is_given_back_once() -> None:
    page = StringIO()
    screen = TerminalScreen(Console(file=page, force_terminal=True))
    screen.leave()
    assert page.getvalue() == ""
    for times in (1, 2):  # a terminal is taken again after Ctrl-Z
        screen.enter()
        screen.leave()
        screen.leave()
        assert page.getvalue().count("\x1b[?1049h") == page.getvalue().count("\x1b[?1049l") == times


@pytest.mark.parametrize("terminal", [False, True])
def test_words_of_others_are_no_markup_of_a_page(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream, word = StringIO(), "[link=file:///etc/passwd]x[/] [bold]y[/] :rocket:"
    table = columns("task", cut=("task",))
    table.add_row(word)
    Page(stream, terminal, colour=True).print(table, word)
    assert stream.getvalue().count(word) == 2
    assert "\x1b]8" not in stream.getvalue()
