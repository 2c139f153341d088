"""Keys: from bytes to names, and what each does to what is shown."""

from datetime import UTC, datetime
from functools import reduce
from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from kerneltune.agent.record.query import RunSummary
from kerneltune.agent.view.live import Decoder, LiveView
from kerneltune.agent.view.render import (
    Library,
    MadePage,
    Tab,
    Ui,
    chosen_attempt,
    press,
    visible_attempts,
    visible_runs,
)
from kerneltune.agent.view.state import ViewState, fold
from tests.agent.view.scripts import GPU_RUN, many_attempts

STATE = reduce(fold, GPU_RUN, ViewState())


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"p+", ["p", "+"]),
        (b"\x1b[A\x1b[B\x1bOA", ["up", "down", "up"]),
        (b"\x1b[5~\x1b[6~\x1b[H", ["pageup", "pagedown", "home"]),
        (b"\x1b", ["esc"]),
        (b"\r\n\x7f\x0c", ["enter", "enter", "backspace", "redraw"]),
        (b"\x1b[1;5Aq", ["q"]),  # Ctrl-up: nobody's key
        (b"\x1b[200~qqq\x1b[A\x1b[201~p", ["p"]),  # a paste presses nothing
        (b"\x1bq\x1bs+", ["+"]),  # Alt-q is not q
        (b"\x1b\x1b", ["esc", "esc"]),
        (b"\x1b[200~qqq", []),  # not even one that is cut off
        ("é✔".encode(), []),
        (b"\x00\x01\x9b\xff", []),
        (b"\x1b[", []),
        (b"", []),
    ],
)
def test_bytes_become_keys(data: bytes, keys: list[str]) -> None:
    assert list(Decoder().decode(data)) == keys


def test_a_paste_that_comes_in_pieces_presses_nothing() -> None:
    pasted = b"\x1b[200~so q and p\x1b[201~+"
    for size in range(1, len(pasted)):
        decoder = Decoder()
        first = 6 + size  # the opening mark comes whole: an escape sequence is waited for
        pieces = [pasted[:first], *(pasted[i : i + size] for i in range(first, len(pasted), size))]
        assert [key for piece in pieces for key in decoder.decode(piece)] == ["+"]
        assert all(decoder.is_whole(piece) for piece in pieces[:1])


def test_a_sequence_that_is_cut_off_is_waited_for_and_a_bare_escape_is_not() -> None:
    whole = Decoder().is_whole
    assert [whole(data) for data in (b"\x1b[20", b"\x1b[", b"\x1bO", b"\x1b", b"q", b"\x1bq", b"\x1b[A")] == [
        False, False, False, True, True, True, True,
    ]  # fmt: skip


PAGE = [Text(f"line {i} of a page") for i in range(100)]
BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUNS = tuple(
    RunSummary(f"20260101-{task}-ab", task, author, "sm_90", "NVIDIA H200", BEGAN, 3, 1, None, None, faster, None)
    for task, author, faster in (("softmax", "offline", 1.1), ("gelu", "anthropic", 1.4), ("rope", "offline", 0.9))
)
LIBRARY = Library(RUNS, ("attempt", "sass", "conversation"))


def pressed(*keys: str, state: ViewState = STATE, ui: Ui | None = None, library: Library = LIBRARY) -> Ui:
    return reduce(lambda ui, key: press(state, ui, key, PAGE, 20, library)[0], keys, ui or Ui())


def test_arrows_choose_an_attempt_and_below_the_newest_they_follow_again() -> None:
    assert pressed("up").selected == 7
    assert pressed("up", "up").selected == 6
    assert pressed("up", "down").selected is None
    assert pressed("home").selected == 1
    assert pressed("home", "up").selected == 1
    assert pressed("up", "up", "esc").selected is None


def test_a_page_of_rows_at_a_time() -> None:
    state = reduce(fold, many_attempts(100), ViewState())
    assert pressed("up", "pageup", state=state).selected == 90


def test_without_attempts_keys_do_nothing() -> None:
    for key in ("up", "down", "enter", "o", "a", "c", "home", "pageup", "d", "left", "n"):
        ui = pressed(key, state=ViewState(), library=Library())
        assert (ui.selected, ui.page) == (None, "run")


def test_enter_opens_the_chosen_attempt_and_closes_it() -> None:
    assert pressed("up", "up", "enter").page == "attempt"
    assert pressed("up", "enter", "enter").page == "run"
    assert pressed("o").page == "source"
    assert pressed("enter", "o").page == "source"
    assert pressed("enter").selected == 7  # what is read does not change when another attempt comes
    assert pressed("?").page == "help"
    assert pressed("?", "?").page == "run"
    assert pressed("o", "?", "esc").page == "source"


def test_the_source_that_is_shown_is_the_chosen_one_s_else_the_newest_s() -> None:
    chosen, newest = chosen_attempt(STATE, Ui(selected=3)), chosen_attempt(STATE, Ui())
    assert chosen is not None
    assert newest is not None
    assert (chosen.number, newest.number) == (3, 7)


def test_neighbours_are_reached_from_a_page() -> None:
    assert pressed("up", "enter", "b").selected == 6
    assert pressed("home", "enter", "n").selected == 2


def test_a_page_scrolls_between_its_ends() -> None:
    assert pressed("enter", "down", "down", "up").scroll == 1
    assert pressed("enter", "up").scroll == 0
    assert pressed("enter", "end").scroll == 80
    assert pressed("enter", "pagedown").scroll == 19
    assert pressed("enter", "end", "home").scroll == 0
    assert pressed("enter", "end", "d").scroll == 0


def test_wishes_come_back_and_change_nothing_else() -> None:
    wishes = {"p": "pause", "x": "skip", "+": "raise", "-": "slower", "e": "finish", "q": "stop", " ": "pause"}
    for key, wish in wishes.items():
        assert press(STATE, Ui(selected=3), key) == (Ui(selected=3), wish)
    assert press(STATE, Ui(), "z") == (Ui(note="no such key: z; ? lists them"), None)


def test_pages_of_an_attempt_lie_beside_each_other() -> None:
    found = [pressed("up", "enter", *["right"] * n).page for n in range(5)]
    assert found == ["attempt", "source", "diff", "sass", "attempt"]  # nobody talked about this one
    assert pressed("enter", "left").page == "run"
    assert pressed("enter", "tab", "left").page == "attempt"
    assert pressed("home", "enter", "right", "right").page == "sass"  # it has no parent
    assert pressed("home", "enter", "right", "right", library=Library()).page == "attempt"
    assert pressed("home", "a", "a").page == "run"


def numbers(ui: Ui) -> list[int]:
    return [a.number for a in visible_attempts(STATE, ui)]


def test_a_filter_is_obeyed_while_it_is_typed_and_given_up_by_esc() -> None:
    assert numbers(pressed("/", *"wrong")) == [4]
    assert numbers(pressed("/", *"wrongq", "backspace", "enter")) == [4]
    assert pressed("/", *"q").typing == "q"  # no key of the run
    assert numbers(pressed("/", *"#3")) == [3]
    assert numbers(pressed("/", *"bfloat16 kept")) == numbers(pressed("/", *"kept bfloat16")) == [5]
    assert numbers(pressed("/", *"wrong", "esc")) == numbers(Ui())
    assert numbers(pressed("/", *"wrong", "enter", "esc")) == numbers(Ui())
    assert numbers(pressed("/", *"nothing at all", "enter")) == []
    assert pressed("/", *"nothing at all", "enter", "enter", "down", "o").page == "run"
    assert pressed("/", *"wrong", "enter", "enter").selected == 4


def test_attempts_are_sorted_by_what_is_known_of_them() -> None:
    ranked = pressed("s")
    assert numbers(ranked)[:3] == [3, 2, 1]  # the fastest first
    assert pressed("s", "down").selected == 2
    assert pressed("s", "enter").selected == 3
    assert pressed("s", "enter", "n").selected == 2
    assert numbers(pressed(*["s"] * 5)) == numbers(Ui())


def test_a_text_is_found_below_what_is_seen_and_around_the_end() -> None:
    at_7 = pressed("o", "/", *"line 7", "enter")
    assert (at_7.page, at_7.scroll) == ("source", 7)
    again = pressed("/", *"line 7", "enter", ui=at_7)
    assert again.scroll == 70
    assert pressed("/", *"line 6 ", "enter", ui=again).scroll == 6
    assert "not found" in pressed("/", *"kernel", "enter", ui=at_7).note


def test_a_text_is_looked_for_once_the_page_is_made_unless_another_key_comes_first() -> None:
    for between, scroll in ((), 60), (("down",), 0):
        view, asked = LiveView(Console(file=StringIO(), width=80)), list[tuple[str, Tab]]()
        view.state, view.library = STATE, Library(offers=("sass",))
        view.ask = lambda *its: asked.append(its)  # noqa: B023
        for key in ("home", "enter", "a", "/", *"line 60", "enter"):
            view.press(key)
        assert view.ui.note == "the page is being made"
        for key in between:
            view.press(key)
        view.keep(*asked[0], MadePage((Text("\n".join(f"line {i}" for i in range(99))),)))
        assert (view.ui.scroll, view.ui.note) == (scroll, "")


def test_runs_are_chosen_filtered_sorted_opened_and_left() -> None:
    first = Ui(page="runs")
    assert pressed("enter", ui=first).opened == RUNS[0].run_id
    opened = pressed("down", "enter", ui=first)
    assert (opened.page, opened.opened) == ("run", RUNS[1].run_id)
    assert pressed("esc", ui=opened).page == "runs"
    assert pressed("esc", ui=opened, library=Library()).page == "run"
    assert pressed("/", *"offline rope", "enter", "enter", ui=first).opened == RUNS[2].run_id
    assert [r.task for r in visible_runs(LIBRARY, pressed("s", "s", ui=first))] == ["gelu", "softmax", "rope"]
    assert pressed("end", "down", "enter", ui=first).opened == RUNS[2].run_id
    assert pressed("/", *"zzz", "enter", "enter", ui=first).page == "runs"
