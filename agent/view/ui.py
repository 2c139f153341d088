"""What a person has chosen to look at, and what each key does to that. Pure: the run's wishes come back as values."""

from dataclasses import dataclass, replace
from typing import Literal

from agent.view.state import AttemptRow, ViewState

Page = Literal["run", "attempt", "source", "help"]
Wish = Literal["pause", "skip", "raise", "stop"]
_WISHES: dict[str, Wish] = {"p": "pause", "s": "skip", "+": "raise", "=": "raise", "q": "stop"}
_STEPS = {"up": -1, "down": 1, "k": -1, "j": 1}
_PAGES = {"pageup": -1, "pagedown": 1, " ": 1}
_BACK = ("esc", "left", "backspace")
_END = 1 << 30


@dataclass(frozen=True)
class Ui:
    """`selected`: an attempt's number, None to follow the newest; `scroll`: the first line of a page; `keys`: whether
    keys are read at all; `note`: what the last key did."""

    selected: int | None = None
    page: Page = "run"
    diff: bool = False
    scroll: int = 0
    note: str = ""
    keys: bool = False


def looked_at(state: ViewState, ui: Ui) -> AttemptRow | None:
    """The attempt whose source is shown: the selected one, else the newest."""
    chosen = next((a for a in state.attempts if a.number == ui.selected), None)
    return chosen or state.current


def press(state: ViewState, ui: Ui, key: str, lines: int = 0, room: int = 1) -> tuple[Ui, Wish | None]:
    """The choice after a key, and what the run is asked for. `lines`: of the page that is shown; `room`: those that
    fit."""
    ui = replace(ui, note="")
    if key in _WISHES:
        return ui, _WISHES[key]
    if key == "?":
        return replace(ui, page="run" if ui.page == "help" else "help", scroll=0), None
    if key == "d":
        return replace(ui, diff=not ui.diff, scroll=0), None
    if ui.page != "run":
        return _read(state, ui, key, lines, room), None
    return _choose(state, ui, key, room), None


def _choose(state: ViewState, ui: Ui, key: str, room: int) -> Ui:
    """On the main page: move through the attempts, open one."""
    if key in ("enter", "o", "right") and looked_at(state, ui):
        return replace(ui, page="source" if key == "o" else "attempt", scroll=0)
    if key in _BACK or key in ("end", "G"):
        return replace(ui, selected=None)
    if key in ("home", "g") and state.attempts:
        return replace(ui, selected=state.attempts[0].number)
    step = _STEPS.get(key) or max(1, room // 2) * _PAGES.get(key, 0)
    return replace(ui, selected=_moved(state, ui, step)) if step and state.attempts else ui


def _moved(state: ViewState, ui: Ui, step: int) -> int | None:
    """The number of the attempt so many rows away; None, to follow, below the newest."""
    rows = state.attempts
    at = next((i for i, a in enumerate(rows) if a.number == ui.selected), len(rows))
    to = at + step
    return None if to >= len(rows) else rows[max(0, to)].number


def _read(state: ViewState, ui: Ui, key: str, lines: int, room: int) -> Ui:
    """On a page of text: scroll, go to the neighbour, go back."""
    if key in _BACK or key == "enter":
        return replace(ui, page="run", scroll=0)
    if key == "o" and ui.page != "help":
        return replace(ui, page="attempt" if ui.page == "source" else "source", scroll=0)
    if key in ("n", "b") and ui.page != "help":
        return replace(ui, selected=_moved(state, _held(state, ui), 1 if key == "n" else -1), scroll=0)
    step = _STEPS.get(key) or max(1, room - 1) * _PAGES.get(key, 0)
    step = step or {"home": -_END, "g": -_END, "end": _END, "G": _END}.get(key, 0)
    return replace(ui, scroll=max(0, min(ui.scroll + step, lines - room)))


def _held(state: ViewState, ui: Ui) -> Ui:
    row = looked_at(state, ui)
    return replace(ui, selected=row.number) if row else ui
