"""Keys: from bytes to names, and what each does to what is shown."""

from functools import reduce

import pytest

from kerneltune.agent.view.live import Decoder
from kerneltune.agent.view.render import Ui, chosen_attempt, press
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


def pressed(*keys: str, state: ViewState = STATE, ui: Ui | None = None) -> Ui:
    return reduce(lambda ui, key: press(state, ui, key, 100, 20)[0], keys, ui or Ui())


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
    for key in ("up", "down", "enter", "o", "home", "pageup", "d", "left"):
        ui = pressed(key, state=ViewState())
        assert (ui.selected, ui.page) == (None, "run")


def test_enter_opens_the_chosen_attempt_and_closes_it() -> None:
    assert pressed("up", "up", "enter").page == "attempt"
    assert pressed("up", "enter", "enter").page == "run"
    assert pressed("o").page == "source"
    assert pressed("enter", "o").page == "source"
    assert pressed("?").page == "help"
    assert pressed("?", "?").page == "run"


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
    for key, wish in {"p": "pause", "s": "skip", "+": "raise", "-": "slower", "q": "stop", " ": "pause"}.items():
        assert press(STATE, Ui(selected=3), key) == (Ui(selected=3), wish)
    assert press(STATE, Ui(), "x") == (Ui(), None)
