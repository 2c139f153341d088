"""`optimize config`."""

from pathlib import Path

from kerneltune.agent.settings import config_files, sourced_settings, unknown_variables
from kerneltune.agent.view.setup import config_json, print_config


def show_config(folder: Path, *, json: bool) -> int:
    """Print the settings that hold in `folder`. Raises UsageError for a bad one."""
    show = config_json if json else print_config
    show(sourced_settings(folder), config_files(folder), unknown_variables())
    return 0
