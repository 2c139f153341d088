"""What training sets say of a PyTorch reference beside its source: where it is from, its level, its operators."""

import ast
import hashlib
import re
import uuid
from functools import lru_cache
from pathlib import PurePath

from agent.record.events import RunStarted

ENTRY_POINT = "Model"
OURS = "kerneltune"
_LEVEL = re.compile(r"level_?([1-9])")
_ROOTS = ("torch", "nn", "F", "functional")
_NO_OPERATORS = ("Module", "Parameter", "Tensor", "Size", "device", "dtype")


def ships_with_us(run: RunStarted) -> bool:
    """Whether the task of a run is one of the built-in ones."""
    return _folder(run).parts[-2:] == ("tools", "tasks")


def repo_name(run: RunStarted) -> str:
    """Where a reference is from; "" when that is not known. Never a path of the machine."""
    return OURS if ships_with_us(run) else ""


def level(run: RunStarted) -> int | None:
    """Of a KernelBench problem, whose folder is called level1 to level4; else None."""
    found = _LEVEL.fullmatch(_folder(run).name)
    return int(found[1]) if found else None


def _folder(run: RunStarted) -> PurePath:
    return PurePath(str(run.machine.get("task_path") or "")).parent


def stable_uuid(*texts: str) -> str:
    """The same for the same texts, wherever and whenever it is made."""
    digest = hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


@lru_cache(maxsize=1024)
def operators(source: str) -> tuple[str, ...]:
    """The torch operators that class Model calls by name ("torch.softmax", "nn.Linear"), in order of first use."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    model = next((n for n in body if isinstance(n, ast.ClassDef) and n.name == ENTRY_POINT), None)
    calls = [n.func for n in ast.walk(model) if isinstance(n, ast.Call)] if model else []
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return tuple(dict.fromkeys(name for name in map(_dotted, calls) if _is_operator(name)))


def _is_operator(name: str) -> bool:
    parts = name.split(".")
    return len(parts) > 1 and parts[0] in _ROOTS and parts[-1] not in _NO_OPERATORS


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
