"""Where the bodies of a source's Triton kernels begin and end, so that a model can be asked to fill them in.

Parsing a file takes milliseconds, which a million rows have not. So the common form is read off the text, where its
lines leave no doubt, and everything else is parsed; both give the same.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

_JIT = re.compile(r"^[ \t]*@(?:triton\.)?jit\b", re.MULTILINE)
# A top-level kernel whose signature holds no brackets, texts or comments.
_PLAIN = re.compile(
    r"^@(?:triton\.)?jit[ \t]*\n(?:@[^\n]*\n)*def[ ]+(\w+)\(([^()#\"'\\]*)\)[ \t]*(?:->[ \w.]*)?:[ \t]*\n", re.MULTILINE
)
_NO_CODE = re.compile(r'(?:[ \t]*(?:#[^\n]*)?\n)*(?:[ \t]+"""[^"\\]*"""[ \t]*\n(?:[ \t]*(?:#[^\n]*)?\n)*)?')
_AFTER = re.compile(r"^[^\s#)]", re.MULTILINE)  # a line that begins something else: not indented, no comment
_LINE_END = re.compile(r"\r\n|\r|\n")
_TEXTS = ('"""', "'''")
_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))


@dataclass(frozen=True)
class Body:
    """A kernel's body is source[start:end]: from its first statement, a docstring left out if anything follows it, to
    the end of the last one's line. A body on the line of its signature begins there."""

    kernel: str
    start: int
    end: int


def bodies(source: str) -> list[Body]:
    """The bodies of all functions under @triton.jit, in order. What does not parse has none that can be relied on."""
    if "jit" not in source:
        return []
    found = read_off(source)
    return parsed(source) if found is None else found


def read_off(source: str) -> list[Body] | None:
    """By the look of the lines; None where that leaves a doubt."""
    if "\r" in source or "\f" in source:
        return None
    plain = list(_PLAIN.finditer(source))
    if len(plain) != len(_JIT.findall(source)):
        return None
    found = [_look(source, match) for match in plain]
    certain = [body for body in found if body is not None]
    return certain if len(certain) == len(found) else None


def _look(source: str, signature: re.Match[str]) -> Body | None:
    if any(source.count(quotes, 0, signature.start()) % 2 for quotes in _TEXTS):
        return None  # perhaps in the middle of a text
    start = skipped.end() if (skipped := _NO_CODE.match(source, signature.end())) else signature.end()
    after = _AFTER.search(source, start)
    text = source[start : after.start() if after else len(source)]
    if not text[:1].isspace() or text.lstrip()[:2].strip("rRbBfFuU")[:1] in ("'", '"', ""):
        return None  # nothing is left, or a text of another kind
    if any(odd in text for odd in (*_TEXTS, "\\\n")) or any(text.count(a) != text.count(b) for a, b in _BRACKETS):
        return None
    lines = text.split("\n")
    while lines and lines[-1].lstrip()[:1] in ("", "#"):
        lines.pop()
    return Body(signature[1], start, start + len("\n".join(lines)))


def parsed(source: str) -> list[Body]:
    """By Python's own parser; none where it refuses."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    starts = [0, *(m.end() for m in _LINE_END.finditer(source))]
    return [Body(node.name, *_span(source, starts, node)) for node in _kernels(tree.body)]


def _kernels(statements: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """However deep: in classes, functions and branches."""
    for node in statements:
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            yield node
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from _kernels(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _kernels(handler.body)


def _is_jit(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(name, ast.Attribute):
        return name.attr == "jit" and isinstance(name.value, ast.Name) and name.value.id == "triton"
    return isinstance(name, ast.Name) and name.id == "jit"


def _span(source: str, starts: list[int], node: ast.FunctionDef) -> tuple[int, int]:
    skipped = int(ast.get_docstring(node) is not None and len(node.body) > 1)
    last = node.body[-1]
    ends = _LINE_END.search(source, starts[(last.end_lineno or last.lineno) - 1])
    return _begin(source, starts, node.body[skipped]), ends.start() if ends else len(source)


def _begin(source: str, starts: list[int], first: ast.stmt) -> int:
    """Of its line, unless something else stands before it there."""
    line = starts[first.lineno - 1]
    before = source[line : line + first.col_offset].encode()[: first.col_offset].decode()  # the offset counts bytes
    return line if before.isspace() else line + len(before)
