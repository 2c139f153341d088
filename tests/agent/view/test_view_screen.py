"""What is written to a terminal for a frame: little, and only what that terminal understands."""

import re
from functools import reduce
from io import BytesIO, StringIO, TextIOWrapper
from itertools import pairwise

from rich.console import Console

from agent.view.render import render
from agent.view.screen import Screen
from agent.view.state import ViewState, fold
from agent.view.ui import Ui
from tests.agent.view.scripts import GPU_RUN, NOW

STATE = reduce(fold, GPU_RUN, ViewState())
COLOUR = re.compile(r"\x1b\[([0-9]+;)*(3[0-8]|9[0-7])(;[0-9]+)*m")


def written(no_color: bool, *frames: Ui) -> list[str]:
    """What each frame adds."""
    page = StringIO()
    screen = Screen(Console(file=page, force_terminal=True, color_system="256", no_color=no_color))
    screen.enter()
    sizes = [len(page.getvalue())]
    for ui in frames:
        screen.draw(render(STATE, 120, 40, NOW, ui))
        sizes.append(len(page.getvalue()))
    return [page.getvalue()[a:b] for a, b in pairwise(sizes)]


def test_only_lines_that_changed_are_written_again() -> None:
    whole, same, noted = written(False, Ui(), Ui(), Ui(note="paused"))
    assert same == ""
    assert "paused" in noted
    assert len(noted) < len(whole) / 20
    assert noted.count("\x1b[40;1H") == 1


def test_without_colour_nothing_is_lost_but_colour() -> None:
    (plain,), (coloured,) = written(True, Ui()), written(False, Ui())
    assert COLOUR.search(coloured)
    assert not COLOUR.search(plain)
    assert re.sub("\x1b\\[[0-9;]*m", "", plain) == re.sub("\x1b\\[[0-9;]*m", "", coloured)


def test_a_terminal_without_utf_8_gets_ascii() -> None:
    raw = BytesIO()
    file = TextIOWrapper(raw, encoding="ascii", errors="strict", write_through=True)
    screen = Screen(Console(file=file, force_terminal=True, color_system=None))
    screen.draw(render(STATE, 100, 30, NOW, Ui(keys=True)))
    text = raw.getvalue().decode("ascii")
    assert "+ correct" in text
    assert "110.0 us" in text


def test_what_was_taken_is_given_back_once() -> None:
    page = StringIO()
    screen = Screen(Console(file=page, force_terminal=True))
    screen.leave()
    assert page.getvalue() == ""
    screen.enter()
    screen.leave()
    screen.leave()
    assert page.getvalue().count("\x1b[?1049h") == page.getvalue().count("\x1b[?1049l") == 1
