"""What `optimize config` shows."""

import json
from collections.abc import Mapping
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from agent.settings import Sourced, flag_of
from agent.view import text as words
from agent.view.page import columns, facts, heading, short, standard_page
from tools.codec import Json

SCHEMA_VERSION = 1
Files = tuple[Path | None, Path]  # the project's, if there is one, and where the user's is or would be
_LEFT_OPEN = {  # what it means that nobody said
    "model": "the first provider whose key is set, else offline",
    "base-url": "the provider's own",
    "arch": "the GPU's, or sm_90 without one",
    "tier": "screen all, judge the promising",
    "width": "2; on a GPU up to 5, by its host's cores",
    "max-attempts": "24; of a search on a GPU, 300 within 120 s",
    "max-time": "no limit",
    "max-cost": "no limit",
    "patience": "no limit",
    "target-speedup": "no goal",
    "target-sol": "no goal",
}


def print_config(settings: Mapping[str, Sourced], files: Files, unknown: Mapping[str, str]) -> None:
    """A line a setting, then the files, then variables that set nothing."""
    table = columns("setting", "value", "from", cut=("value", "from"))
    for name, one in settings.items():
        chosen = one.source != "default"
        source = Text(words.one_line(one.source), style="cyan" if chosen else "dim")
        table.add_row(Text(flag_of(name), style="bold" if chosen else ""), short(_value(flag_of(name), one)), source)
    page = standard_page(colour=True)
    page.print(table, heading("files"), _places(files))
    for variable, hint in unknown.items():
        page.print(Text(f"{words.one_line(variable)} is no setting; {hint}", style="yellow"))


def _places(files: Files) -> RenderableType:
    project, user = files
    table = facts()
    none = "none: no kerneltune.toml here or above, up to the git root"
    table.add_row("project", words.one_line(str(project)) if project else none)
    table.add_row("user", words.one_line(str(user)) + ("" if user.is_file() else " (not there)"))
    return table


def _value(name: str, one: Sourced) -> str:
    if one.value in (None, ""):
        return f"- ({_LEFT_OPEN.get(name, 'not set')})"
    return str(one.value).lower() if isinstance(one.value, bool) else str(one.value)


def config_json(settings: Mapping[str, Sourced], files: Files, unknown: Mapping[str, str]) -> None:
    """The same as one object."""
    project, user = files
    values: dict[str, Json] = {
        flag_of(name): {"value": _plain(s.value), "source": s.source} for name, s in settings.items()
    }
    told: dict[str, Json] = {
        "type": "config",
        "schema_version": SCHEMA_VERSION,
        "settings": values,
        "project_file": str(project) if project else None,
        "user_file": str(user),
        "unknown_variables": list(unknown),
    }
    print(json.dumps(told, indent=2))


def _plain(value: object) -> Json:
    return str(value) if isinstance(value, Path) else value
