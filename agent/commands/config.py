"""`optimize config`: every setting, its value, and where it came from."""

import json as jsonlib
from collections.abc import Mapping
from pathlib import Path

from cyclopts import App
from rich.text import Text

from kerneltune.agent.commands import AsJson
from kerneltune.agent.settings import FIELDS, Sourced, sourced_settings, unknown_variables
from kerneltune.agent.view.output import columns, short, standard_page
from kerneltune.tools.schema.codec import one_line

_LEFT_OPEN = {  # what it means that nobody said
    "model": "the first provider whose key is set, else offline",
    "base-url": "the provider's own",
    "arch": "the GPU's, or sm_90 without one",
    "tier": "screen all, judge the promising",
    "width": "2; on a GPU up to 5, by its host's cores",
    "max-attempts": "24; of a search on a GPU, 300 within 120 s",
    "max-time": "no limit",
    "max-cost": "no limit",
    "context-tokens": "150000 where the provider caches prompts, else 30000",
    "patience": "no limit",
    "target-speedup": "no goal",
    "target-sol": "no goal",
}

command = App(
    name="config",
    help_epilogue="""
Examples:
    optimize config
    optimize config --json | python -m json.tool
    export KERNELTUNE_MAX_ATTEMPTS=50

Settings have the names of flags. What counts is the flag, else the variable
KERNELTUNE_<NAME>, else the default.
""",
)


@command.default
def config(*, json: AsJson = False) -> int:
    """Show every setting, its value, and where it came from."""
    known, unknown = sourced_settings(), unknown_variables()
    settings = {name: known[field] for name, field in FIELDS.items()}
    if json:
        told = {
            "type": "config",
            "schema_version": 2,
            "settings": {
                name: {"value": str(s.value) if isinstance(s.value, Path) else s.value, "source": s.source}
                for name, s in settings.items()
            },
            "unknown_variables": list(unknown),
        }
        print(jsonlib.dumps(told, indent=2))
        return 0
    _print(settings, unknown)
    return 0


def _print(settings: Mapping[str, Sourced], unknown: Mapping[str, str]) -> None:
    """Print a line per setting, then variables that set nothing."""
    table = columns("setting", "value", "from", cut=("value", "from"))
    for name, one in settings.items():
        chosen = one.source != "default"
        source = Text(one_line(one.source), style="cyan" if chosen else "dim")
        table.add_row(Text(name, style="bold" if chosen else ""), short(_value(name, one)), source)
    page = standard_page(colour=True)
    page.print(table)
    page.print(*(Text(one_line(f"{name} is no setting; {hint}"), style="yellow") for name, hint in unknown.items()))


def _value(name: str, one: Sourced) -> str:
    if one.value in (None, ""):
        return f"- ({_LEFT_OPEN.get(name, 'not set')})"
    return str(one.value).lower() if isinstance(one.value, bool) else str(one.value)
