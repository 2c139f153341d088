"""A text that is being rewritten, statement by statement, so that everything else in it stays as its author wrote it.

Only a statement that has its lines to itself can be changed; others are read, never touched. Pure.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Literal

from tools.ptx.ir import Function, Instruction, Label
from tools.ptx.lexer import Token, tokens
from tools.ptx.parser import parse
from tools.ptx.rewrites import flow
from tools.ptx.rewrites.flow import Flow
from tools.ptx.rewrites.launched import Launched
from tools.ptx.rewrites.spans import Spans
from tools.ptx.rewrites.written import instruction as written

Keeps = Literal["bits", "values", "tolerance"]


class CannotRewrite(Exception):
    """A text of a form that is not read well enough to change it; the message says which."""


class Work:
    """A text, what is known of it, and the changes so far. Raises CannotRewrite, PtxError."""

    def __init__(self, text: str, launched: Launched) -> None:
        self.text, self.launched = text, launched
        module = parse(text)
        if len(module.entries) != 1 or len(module.functions) != 1:
            raise CannotRewrite(
                f"{len(module.functions)} functions; texts with one entry and nothing else are rewritten"
            )
        self.module, self.entry = module, module.entries[0]
        self.flow = Flow(self.entry)
        if problem := _problem(self.flow, self.entry):
            raise CannotRewrite(problem)
        self.spans = Spans(self.entry, self.flow, launched)
        self._tokens = _by_line(text)
        self._lines = text.split("\n")
        self._begin()

    def _begin(self) -> None:
        self._changes: dict[int, list[str]] = {}
        self._before: dict[int, list[str]] = defaultdict(list)
        self._after: dict[int, list[str]] = defaultdict(list)
        self._fresh: dict[str, list[str]] = defaultdict(list)

    def again(self) -> "Work":
        """The text without changes. Reading it takes 10 ms, which is not done twice."""
        same = copy.copy(self)
        same._begin()
        return same

    def next(self) -> "Work":
        """The text with all changes, for more of them; this one where there are none. Raises as `result` does."""
        return Work(self.result(), self.launched) if self.changed else self

    @property
    def instructions(self) -> list[Instruction]:
        """The entry's, in order."""
        return self.flow.instructions

    def free(self, instruction: Instruction) -> bool:
        """Whether a statement may be changed: it stands alone in its line, knows no inner scopes, and is as yet as it
        was."""
        line = self._tokens.get(instruction.line, [])
        starts = line[:1] and (line[0].text == "@" or line[0].text.partition(".")[0] == instruction.opcode)
        alone = starts and [t.text for t in line].count(";") == 1 and line[-1].text == ";"
        scoped = any("@" in name for name in (*flow.results(instruction), *flow.reads(instruction)))
        return bool(alone) and not scoped and instruction.line not in self._changes

    def all_free(self, instructions: Iterable[Instruction]) -> bool:
        """Whether each of them may be changed."""
        return all(map(self.free, instructions))

    def replace(self, old: Instruction, *new: Instruction | str) -> None:
        """Put other statements in a statement's place; none removes it."""
        self._changes[old.line] = self._indented(old.line, new)

    def before(self, place: Instruction | Label, *new: Instruction | str) -> None:
        """Put statements before another one."""
        self._before[place.line] += self._indented(place.line, new)

    def after(self, place: Instruction, *new: Instruction | str) -> None:
        """Put statements behind another one."""
        self._after[place.line] += self._indented(place.line, new)

    def _indented(self, line: int, statements: Iterable[Instruction | str]) -> list[str]:
        """As far in as the line that stood there."""
        old = self._lines[line - 1]
        indent = old[: len(old) - len(old.lstrip())]
        return [indent + (s if isinstance(s, str) else written(s)) for s in statements]

    def fresh(self, kind: str, name: str) -> str:
        """A new register of a type ("b32", "b64", "pred"), called after what it holds."""
        taken = {*self.entry.registers, *(n for names in self._fresh.values() for n in names)}
        new = next(full for i in count() if (full := f"%{name}_{i}") not in taken)
        self._fresh[kind].append(new)
        return new

    def above_body(self, directive: str) -> None:
        """A directive of the entry. Raises CannotRewrite where the body's brace does not begin its line."""
        if not self._lines[self.opening_line - 1].lstrip().startswith("{"):
            raise CannotRewrite(f"line {self.opening_line}: something stands before the body's brace")
        self._before[self.opening_line].append(directive)

    def below(self, label: Label, statement: str) -> bool:
        """Put a statement behind a label, where that has its line to itself; says whether it has."""
        alone = [t.text for t in self._tokens.get(label.line, [])] == [label.name, ":"]
        if alone:
            self._after[label.line].append(f"    {statement}")
        return alone

    @property
    def changed(self) -> bool:
        """Whether anything was."""
        return bool(self._changes or self._before or self._after)

    def result(self) -> str:
        """The text with all changes; raises PtxError when it is not PTX any more, which is an error of a rewrite."""
        out: list[str] = []
        brace = self.opening_line
        for line, text in enumerate(self._lines, 1):
            out += self._before.get(line, [])
            out += self._changed(line, text) if line in self._changes else [text]
            out += self._after.get(line, [])
            if line == brace:
                out += self._declarations()
        new = "\n".join(out)
        parse(new)
        return new

    @property
    def opening_line(self) -> int:
        """The line of the brace that opens the entry's body."""
        return next(t.line for t in self._all_tokens() if t.line >= self.entry.line and t.text == "{")

    def _all_tokens(self) -> Iterable[Token]:
        return (token for line in sorted(self._tokens) for token in self._tokens[line])

    def _changed(self, line: int, text: str) -> list[str]:
        comment = text[text.index("//") :] if "//" in text and self._changes[line] else ""
        new = list(self._changes[line])
        return [f"{new[0]}  {comment}", *new[1:]] if comment else new

    def _declarations(self) -> list[str]:
        indent = next((line[: len(line) - len(line.lstrip())] for line in self._lines[self.opening_line :] if line), "")
        return [f"{indent}.reg .{kind} {', '.join(names)};" for kind, names in sorted(self._fresh.items())]


@dataclass(frozen=True)
class Rewrite:
    """One way to write a kernel otherwise.

    `values`: what it may be set to, the likeliest first. `keeps`: "bits" (every result is the same), "values" (but
    which NaN, and the sign of a zero, may differ), "tolerance" (rounding differs: the judge decides). `apply`
    changes a Work where its condition holds and nowhere else.
    """

    name: str
    values: tuple[str, ...]
    keeps: Keeps
    says: str  # what it does, to a person; {value} stands for the value
    hypothesis: str
    prediction: str
    apply: Callable[[Work, str], None]


@lru_cache(maxsize=16)  # as many as a file has kernels
def _by_line(text: str) -> dict[int, list[Token]]:
    found: dict[int, list[Token]] = defaultdict(list)
    for token in tokens(text):
        found[token.line].append(token)
    return found


def _problem(found: Flow, entry: Function) -> str:
    for instruction in found.instructions:
        if instruction.opcode in ("call", "brx"):
            return f"line {instruction.line}: {instruction.name} goes where this is not followed"
        for name in (*flow.results(instruction), *flow.reads(instruction)):
            if "." in name and name.partition(".")[0] in entry.registers:
                return f"line {instruction.line}: {name} is part of a vector register"
    return ""
