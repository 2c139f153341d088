"""Which of the compiler's labels ptxas heeds. Runs where compilers run.

LLVM writes labels for debuggers ($L__tmp7). Nothing branches there, but ptxas begins a basic block at each, and now and
then orders instructions otherwise without one. Those that matter are found by leaving them out.
"""

import re
import time
from collections.abc import Callable, Sequence

from tools.elf import sections

_LABEL = re.compile(r"^\$L__(?:tmp|func_(?:begin|end))(\d+):$")
LONGEST_S = 20.0
KEPT = "block_"

Code = Callable[[str], bytes]  # the machine code of a text


def with_needed_labels(text: str, code: Code) -> str:
    """The text without those of its debugger's labels that change nothing; the others are called block_N. When that
    takes long, what is left of them stays."""
    lines = text.partition("\t.section")[0].split("\n")
    labels = [i for i, line in enumerate(lines) if _LABEL.match(line)]
    wanted, deadline = code(_without(lines, ())), time.monotonic() + LONGEST_S
    removed: set[int] = set()

    def remove(chunk: Sequence[int]) -> None:
        if not chunk or time.monotonic() > deadline:
            return
        if code(_without(lines, removed | set(chunk))) == wanted:
            removed.update(chunk)
        elif len(chunk) > 1:
            remove(chunk[: len(chunk) // 2])
            remove(chunk[len(chunk) // 2 :])

    remove(labels)
    for i in set(labels) - removed:
        lines[i] = _LABEL.sub(rf"{KEPT}\1:", lines[i])
    return _without(lines, removed)


def _without(lines: Sequence[str], removed: Sequence[int] | set[int] | tuple[()]) -> str:
    return "\n".join(line for i, line in enumerate(lines) if i not in removed)


def code_of(cubin: bytes) -> bytes:
    """What a cubin executes: its .text sections, in order. Raises ValueError for what is no ELF file of 64 bits."""
    return b"".join(section.data(cubin) for section in sections(cubin) if section.name.startswith(".text."))
