"""Versions that a result depends on. Reads package metadata only: imports nothing heavy."""

import hashlib
import platform
from importlib import metadata
from pathlib import Path

PROTOCOL_VERSION = "2"  # of everything that a quoted time depends on; receipts of other versions are not comparable


def versions() -> dict[str, str]:
    """Version of kerneltune, torch, triton, Python and the platform."""
    found = {name: _version(name) for name in ("kerneltune", "torch", "triton", "numpy")}
    return found | {"python": platform.python_version(), "platform": platform.platform(terse=True)}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def evaluator_sha256() -> str:
    """The hash of everything that reaches a verdict: the sources of `tools`, without the tasks. Names the protocol as
    it was carried out, whatever its number says."""
    folder = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith("tasks/"):
            digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
