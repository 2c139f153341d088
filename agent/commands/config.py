"""`optimize config`: every setting, its value, and where it came from."""

from pathlib import Path

from cyclopts import App

from kerneltune.agent.commands import AsJson
from kerneltune.agent.settings import config_files, sourced_settings, unknown_variables

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
    from kerneltune.agent.view.setup import config_json, print_config

    folder = Path.cwd()
    show = config_json if json else print_config
    show(sourced_settings(folder), config_files(folder), unknown_variables())
    return 0
