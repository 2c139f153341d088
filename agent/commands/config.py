"""`optimize config`: every setting, its value, and where it came from."""

import json as jsonlib
from collections.abc import Mapping
from pathlib import Path

from cyclopts import App
from rich.text import Text

from kerneltune.agent.commands import AsJson
from kerneltune.agent.settings import FIELDS, Sourced, config_files, sourced_settings, unknown_variables
from kerneltune.agent.view.output import columns, facts, heading, short, standard_page
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
    echo 'max-attempts = 50' >> kerneltune.toml

Settings have the names of flags. What counts is the flag, else the variable
KERNELTUNE_<NAME>, else kerneltune.toml in this folder or above it up to the
root of the git repository, else your own kerneltune.toml, else the default.
API keys are no settings: they stay in the environment.
""",
)


@command.default
def config(*, json: AsJson = False) -> int:
    """Show every setting, its value, and where it came from."""
    (project, user), unknown = config_files(Path.cwd()), unknown_variables()
    known = sourced_settings(Path.cwd())
    settings = {name: known[field] for name, field in FIELDS.items()}
    if json:
        told = {
            "type": "config",
            "schema_version": 1,
            "settings": {
                name: {"value": str(s.value) if isinstance(s.value, Path) else s.value, "source": s.source}
                for name, s in settings.items()
            },
            "project_file": str(project) if project else None,
            "user_file": str(user),
            "unknown_variables": list(unknown),
        }
        print(jsonlib.dumps(told, indent=2))
        return 0
    _print(settings, project, user, unknown)
    return 0


def _print(settings: Mapping[str, Sourced], project: Path | None, user: Path, unknown: Mapping[str, str]) -> None:
    """Print a line per setting, then the files, then variables that set nothing."""
    table = columns("setting", "value", "from", cut=("value", "from"))
    for name, one in settings.items():
        chosen = one.source != "default"
        source = Text(one_line(one.source), style="cyan" if chosen else "dim")
        table.add_row(Text(name, style="bold" if chosen else ""), short(_value(name, one)), source)
    files = facts()
    files.add_row("project", one_line(str(project or "none: no kerneltune.toml here or above, up to the git root")))
    files.add_row("user", one_line(str(user)) + ("" if user.is_file() else " (not there)"))
    page = standard_page(colour=True)
    page.print(table, heading("files"), files)
    page.print(*(Text(one_line(f"{name} is no setting; {hint}"), style="yellow") for name, hint in unknown.items()))


def _value(name: str, one: Sourced) -> str:
    if one.value in (None, ""):
        return f"- ({_LEFT_OPEN.get(name, 'not set')})"
    return str(one.value).lower() if isinstance(one.value, bool) else str(one.value)
