"""Where the bodies of a source's Triton kernels begin and end, so that a model can be asked to fill them in.

Parsing a long file takes milliseconds, and a kernel is a small part of it. So each top-level kernel is parsed alone
where it is plain from the text where it begins, and the whole file where it is not.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_JIT = re.compile(r"^@(?:triton\.)?jit\b", re.MULTILINE)
_INDENTED_JIT = re.compile(r"^[ \t]+@(?:triton\.)?jit\b", re.MULTILINE)
_AFTER = re.compile(r"^[^\s#)]", re.MULTILINE)  # a line that begins something else: not indented, no comment
_LINE_END = re.compile(r"\r\n|\r|\n")
_QUOTES = ('"""', "'''")


@dataclass(frozen=True)
class Body:
    """A kernel's body is source[start:end]: whole lines but for the last line's end, comments on it included. What is
    written on the line of the signature begins there."""

    kernel: str
    start: int
    end: int


def bodies(source: str) -> list[Body]:
    """The bodies of all functions under @triton.jit, in order; none where the source does not parse."""
    if "jit" not in source:
        return []
    found = None if _INDENTED_JIT.search(source) else _alone(source)
    return list(_whole(source, 0)) if found is None else found


def _alone(source: str) -> list[Body] | None:
    """Of top-level kernels, each parsed alone; None where a text is not as plain as that."""
    found: list[Body] = []
    for match in _JIT.finditer(source):
        start = match.start()
        if any(source.count(quotes, 0, start) % 2 for quotes in _QUOTES):
            return None  # perhaps in the middle of a text
        defined = source.find("def ", start)
        end = _AFTER.search(source, source.find("\n", defined) + 1) if defined >= 0 else None
        its = list(_whole(source[start : end.start() if end else len(source)], start))
        if len(its) != 1:
            return None
        found += its
    return found


def _whole(source: str, offset: int) -> Iterator[Body]:
    """Of all kernels in a text that parses by itself and begins at `offset`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    starts = [0, *(m.end() for m in _LINE_END.finditer(source))]
    for node in _kernels(tree):
        start, end = _span(source, starts, node)
        yield Body(node.name, offset + start, offset + end)


def _kernels(tree: ast.AST) -> list[ast.FunctionDef]:
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and any(map(_is_jit, n.decorator_list))]
    return sorted(found, key=lambda node: node.lineno)


def _is_jit(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(name, ast.Attribute):
        return name.attr == "jit" and isinstance(name.value, ast.Name) and name.value.id == "triton"
    return isinstance(name, ast.Name) and name.id == "jit"


def _span(source: str, starts: list[int], node: ast.FunctionDef) -> tuple[int, int]:
    """From the first statement (after a docstring, if anything follows it) to the end of the last one's line."""
    first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node.body[0]
    last = node.body[-1]
    start = _begin(source, starts, first)
    ends = _LINE_END.search(source, starts[(last.end_lineno or last.lineno) - 1])
    return start, ends.start() if ends else len(source)


def _begin(source: str, starts: list[int], first: ast.stmt) -> int:
    """Of its line, unless something else stands before it there."""
    line = starts[first.lineno - 1]
    before = source[line : line + first.col_offset].encode()[: first.col_offset].decode()  # the offset counts bytes
    return line if before.isspace() else line + len(before)
