"""Opens the view that was chosen and says the closing words in its manner."""

import sys
from collections.abc import Sequence

from rich.console import Console

from agent.view.choose import ViewChoice
from agent.view.live import LiveView
from agent.view.ndjson import JsonView
from agent.view.plain import PlainView
from agent.view.summary import NextCommand, summary, summary_text

View = LiveView | PlainView | JsonView


def open_view(choice: ViewChoice) -> View:
    """NDJSON goes to stdout; the screen and the lines go to where people look, so stdout stays free for data."""
    if choice.kind == "json":
        return JsonView(sys.stdout)
    if choice.kind == "plain":
        return PlainView(sys.stderr, colour=choice.colour)
    return LiveView(Console(no_color=not choice.colour))


def close_view(choice: ViewChoice, view: View, next_commands: Sequence[NextCommand]) -> None:
    """Print the closing summary; NDJSON has had its `result` already."""
    if choice.kind == "live":
        Console(no_color=not choice.colour).print(summary(view.state, next_commands))
    elif choice.kind == "plain":
        print(summary_text(view.state, next_commands), end="")
