"""Opens the view that was chosen and says the closing words in its manner."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent.controls import Controls
from agent.view.output import ViewChoice

if TYPE_CHECKING:
    from agent.view.live import LiveView
    from agent.view.ndjson import JsonView
    from agent.view.plain import PlainView
    from agent.view.summary import NextCommand

    View = LiveView | PlainView | JsonView


def open_view(choice: ViewChoice, controls: Controls | None = None) -> "View":
    """The screen and the lines go to stderr, where people look, so that stdout is free for data: NDJSON, or the closing
    summary. Only what the view needs is imported, so that the first frame comes at once."""
    if choice.kind == "json":
        from agent.view.ndjson import JsonView

        return JsonView(sys.stdout)
    if choice.kind == "plain":
        from agent.view.plain import PlainView

        return PlainView(sys.stderr, colour=choice.colour)
    from rich.console import Console

    from agent.view.live import LiveView

    console = Console(stderr=True, no_color=not choice.colour)
    return LiveView(console, controls=controls, keys_fd=_keys_fd())


def _keys_fd() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        return None


def close_view(choice: ViewChoice, view: "View", next_commands: "Sequence[NextCommand]") -> None:
    """Print the closing summary to stdout; NDJSON has had its `result` already."""
    from agent.view.summary import summary, summary_text

    if choice.kind == "live" and sys.stdout.isatty():
        from rich.console import Console

        Console(no_color=not choice.colour).print(summary(view.state, next_commands))
    elif choice.kind != "json":
        print(summary_text(view.state, next_commands), end="")
