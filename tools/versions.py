"""Versions that a result depends on. Reads package metadata only: imports nothing heavy."""

import platform
from importlib import metadata


def versions() -> dict[str, str]:
    """Version of kerneltune, torch, triton, Python and the platform."""
    found = {name: _version(name) for name in ("kerneltune", "torch", "triton", "numpy")}
    return found | {"python": platform.python_version(), "platform": platform.platform(terse=True)}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
