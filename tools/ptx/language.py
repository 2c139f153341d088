"""Which language a candidate is written in. Pure."""

import ast
import re

_USES_LOADER = re.compile(r"^\s*(?:from tools\.ptx import .*\bPtxKernel\b|import tools\.ptx\b)", re.MULTILINE)


def language_of(source: str) -> str:
    """ "ptx" for a source that imports our loader, else "triton"."""
    return "ptx" if _USES_LOADER.search(source) else "triton"


def ptx_texts(source: str) -> list[str]:
    """The texts that a candidate gives to PtxKernel as literals, in order; a template as it is written."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    first = [c.args[0] for c in calls if c.args and getattr(c.func, "id", getattr(c.func, "attr", "")) == "PtxKernel"]
    found = [node for node in first if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [str(node.value) for node in sorted(found, key=lambda node: node.lineno)]
