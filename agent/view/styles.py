"""How each status looks: symbol, colour and padded label, in one table. The meaning is never in the colour alone."""

from dataclasses import dataclass

from rich.text import Text

from tools.verdict import Status


@dataclass(frozen=True)
class VerdictStyle:
    """One row of the table. `symbol` is one cell wide; `ansi` is the colour's SGR code for plain lines."""

    symbol: str
    colour: str
    ansi: int


_TABLE = {
    Status.CORRECT: VerdictStyle("✔", "green", 32),
    Status.CHECKED: VerdictStyle("✓", "cyan", 36),
    Status.UNCHECKED: VerdictStyle("?", "yellow", 33),
    Status.WRONG: VerdictStyle("✗", "red", 31),
    Status.IMPOSSIBLE: VerdictStyle("!", "red", 31),
    Status.CRASHED: VerdictStyle("†", "red", 31),
    Status.TIMED_OUT: VerdictStyle("◔", "yellow", 33),
    Status.COMPILE_FAILED: VerdictStyle("⊗", "magenta", 35),
    Status.REJECTED: VerdictStyle("⊘", "magenta", 35),
}
LABEL_WIDTH = max(len(status.value) for status in Status)


def verdict_style(status: Status) -> VerdictStyle:
    """The row of a status."""
    return _TABLE[status]


def verdict_label(status: Status, *, padded: bool = True) -> Text:
    """Symbol and word, in the status's colour."""
    style = verdict_style(status)
    word = status.value.ljust(LABEL_WIDTH) if padded else status.value
    return Text(f"{style.symbol} {word}", style=style.colour, no_wrap=True)


def stage_label(stage: str) -> Text:
    """What an unfinished attempt is doing."""
    return Text(f"· {stage}", style="dim", no_wrap=True)
