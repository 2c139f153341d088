"""What `optimize doctor` shows."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from agent.view import text as words
from agent.view.page import standard_page
from tools.codec import Json, encode
from tools.doctor import Finding

SCHEMA_VERSION = 1
_SYMBOLS = {True: ("✔", "green"), False: ("✗", "red"), None: ("·", "dim")}


def print_findings(found: Sequence[Finding], calibration: Path | None) -> None:
    """A line a finding; below those that are amiss, what mends them."""
    page = standard_page(colour=True)
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in found:
        symbol, style = _SYMBOLS[finding.ok]
        table.add_row(Text(symbol, style=style), Text(finding.name), Text(words.one_line(finding.value)))
        if finding.remedy:
            table.add_row("", "", Text(f"→ {words.one_line(finding.remedy)}", style="cyan"))
    page.print(table)
    if calibration:
        page.print(Text(f"measured this GPU's ceilings: {words.one_line(str(calibration))}"))
    amiss = sum(f.ok is False for f in found)
    page.print(Text("nothing is amiss" if not amiss else f"{words.plural(amiss, 'thing')} amiss"))


def findings_json(found: Sequence[Finding], calibration: Path | None) -> dict[str, Json]:
    """The one object of --json."""
    return {
        "type": "doctor",
        "schema_version": SCHEMA_VERSION,
        "ok": not any(f.ok is False for f in found),
        "findings": [encode(f) for f in found],
        "calibration_path": str(calibration) if calibration else None,
    }
