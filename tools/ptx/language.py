"""Which language a candidate is written in. Pure."""

import re

_USES_LOADER = re.compile(r"^\s*(?:from tools\.ptx import .*\bPtxKernel\b|import tools\.ptx\b)", re.MULTILINE)


def language_of(source: str) -> str:
    """ "ptx" for a source that imports our loader, else "triton"."""
    return "ptx" if _USES_LOADER.search(source) else "triton"
