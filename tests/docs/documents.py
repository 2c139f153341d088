"""The documents of this repository as a reader follows them: files to save, commands to type, output to expect.

Marks are HTML comments on the line before a fenced block, so that a reader never sees them:

    <!-- needs: gpu -->        not run here, only parsed; the reasons are those of `REASONS`
    <!-- exits: 1 -->          the exit code of the block's commands, where it is not 0; `any` is 0 or 1
    <!-- order: any -->        the lines that are shown come in any order, among others
    <!-- file: op.py -->       the block is a file that the reader saves under this name
    <!-- continues: a.md -->   at the top: this document is read in the folder that the other one left behind
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REASONS = {
    "gpu": "an NVIDIA GPU; run under -m gpu",
    "key": "an API key, and money",
    "network": "a package index or somebody's server",
    "minutes": "more time than a test has",
    "checkout": "it changes the checkout it is typed in",
    "elsewhere": "another machine's files",
}
SHELLS = ("console", "bash", "sh")
_FENCE = re.compile(r"^(\s*)(```+)(\S*)\s*$")
_MARK = re.compile(r"^\s*<!-- (\w+): (.+?) -->\s*$")
_MARKS = {"needs", "exits", "order", "file", "continues"}


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` counts from 1 and is that of its first line of text."""

    language: str
    text: str
    line: int
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> str:
        """Why it cannot be run everywhere; "" if it can."""
        return self.marks.get("needs", "")

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """What each of its commands may exit with: 0, what is said, or where machines differ ("any") 0 or 1."""
        said = self.marks.get("exits", "0")
        return (0, 1) if said == "any" else (int(said),)

    @property
    def in_order(self) -> bool:
        """Whether lines come in the order in which they are shown."""
        return self.marks.get("order") != "any"


@dataclass(frozen=True)
class Command:
    """A line to type, and what the document says will be seen: None where it says nothing."""

    text: str
    expected: str | None
    line: int


@dataclass(frozen=True)
class Document:
    """A document with its blocks in order. `continues` names another one, or is ""."""

    name: str
    text: str
    blocks: tuple[Block, ...]
    continues: str

    @property
    def prose(self) -> str:
        """The text without fenced blocks."""
        lines = self.text.splitlines()
        for block in self.blocks:
            first = block.line - 1
            lines[first : first + len(block.text.splitlines())] = [""] * len(block.text.splitlines())
        return "\n".join(lines)


def documents() -> dict[str, Document]:
    """README, CONTRIBUTING and docs/*.md by their path from the root."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    return {name: read(name, path.read_text()) for path in paths for name in [str(path.relative_to(ROOT))]}


def read(name: str, text: str) -> Document:
    """A document from its text. Raises ValueError for a mark or a reason that nobody knows, and for an open fence."""
    blocks: list[Block] = []
    marks: dict[str, str] = {}
    continues = ""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if mark := _MARK.match(line):
            _check(name, number, mark[1], mark[2])
            if mark[1] == "continues":
                continues = mark[2]
            else:
                marks[mark[1]] = mark[2]
        elif fence := _FENCE.match(line):
            blocks.append(Block(fence[3], _body(lines, fence, f"{name}:{number}"), number + 1, marks))
            marks = {}
        elif line.strip():
            marks = {}
    return Document(name, text, tuple(blocks), continues)


def _check(name: str, number: int, mark: str, value: str) -> None:
    if mark not in _MARKS:
        raise ValueError(f"{name}:{number}: unknown mark {mark!r}; known: {', '.join(sorted(_MARKS))}")
    if mark == "needs" and value not in REASONS:
        raise ValueError(f"{name}:{number}: unknown reason {value!r}; known: {', '.join(REASONS)}")


def _body(lines: "enumerate[str]", fence: "re.Match[str]", where: str) -> str:
    body: list[str] = []
    for _, line in lines:
        if line.strip() == fence[2]:
            return "\n".join(body)
        body.append(line.removeprefix(fence[1]))
    raise ValueError(f"{where}: this fence is never closed")


def commands(block: Block) -> list[Command]:
    """What there is to type: after `$ ` in a console block, every line in another one. A line may go on after `\\`."""
    found: list[Command] = []
    seen: list[str] = []
    pending = ""
    for number, line in enumerate(block.text.splitlines(), block.line):
        typed = line.removeprefix("$ ") if line.startswith("$ ") else line
        if pending or line.startswith("$ ") or block.language != "console":
            pending += typed
            if pending.endswith("\\"):
                pending = pending[:-1]
            elif pending.strip():
                found.append(Command(pending, None, number))
                pending, seen = "", []
        else:
            seen.append(line)
            found[-1] = Command(found[-1].text, "\n".join(seen), found[-1].line)
    return found
