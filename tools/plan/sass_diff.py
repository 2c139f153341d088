"""What differs between two disassembled attempts: numbers first, then the hot loop. Pure.

Another allocation of registers, another address or another order inside a basic block is no difference: instructions
are compared without them, as counted sets between the places where order matters.
"""

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from tools.plan.sass_census import class_of
from tools.plan.sass_ir import Instruction, Part, Sass

_RULES = (
    # ptxas moves and adds on whichever unit has room: that is a choice of order, too
    (re.compile(r"\bIMAD\.MOV(?:\.U32)? (\S+), RZ, RZ, "), r"MOV \1, "),
    (re.compile(r"\bHFMA2(?:\.MMA)? (\S+), -RZ, RZ, (?=[-\d])(\S+), (\S+)"), r"MOV \1, {\2, \3}"),
    (re.compile(r"\{0, 0\}"), "RZ"),
    (re.compile(r"\bVIADD (\S+), (\S+), (\S+)"), r"IADD3 \1, \2, \3, RZ"),
    (re.compile(r"\bIMAD\.IADD (\S+), (\S+), 0x1, (\S+)"), r"IADD3 \1, \2, \3, RZ"),
    (re.compile(r"\.reuse\b"), ""),
    (re.compile(r"`\([^)]*\)"), "LABEL"),
    (re.compile(r"\bc\[0x[0-9a-f]+\]\[(?:U?R\d+\s*\+\s*)?(?:0x[0-9a-f]+|U?R\d+)\]"), "c[]"),
    (re.compile(r"(?<=[\w\]])\s*\+\s*-?0x[0-9a-f]+(?=\])"), ""),  # an offset in an address
    (re.compile(r"\b(UR|UP|SB|R|P|B)\d+(?=\b|_)"), r"\1"),
)
_ORDERED = ("BAR", "BRA", "EXIT", "RET", "CALL", "BSSY", "BSYNC", "WARPGROUP", "DEPBAR", "MEMBAR", "SYNCS", "FENCE")
_CONSTANT = re.compile(r"-?\b0x[0-9a-f]+\b")
_RANKS = (
    "tensor",
    "bulk",
    "async",
    "global",
    "generic",
    "spill",
    "matrix",
    "shared",
    "atomic",
    "shuffle",
    "special",
    "float",
)
_MOST_KERNELS = 8
_MOST_PTX_LINES = 8_000  # of two texts that are compared: the time grows with their product
_PTX_NUMBER = re.compile(r"(%[a-z]+|\$L__[A-Za-z_]+)\d+(?:_\d+)?")


def difference(before: Sequence[Sass], after: Sequence[Sass], *, most_lines: int = 200) -> str:
    """What became different from `before` to `after`, kernel by kernel; at most so many lines of each hot loop."""
    pairs, gone, new = _paired(before, after)
    lines = [f"{one.name} is gone" for one in gone] + [f"{one.name} is new: {numbers(one.whole)}" for one in new]
    for old, its in pairs[:_MOST_KERNELS]:
        lines += _of_kernel(old, its, most_lines)
    if len(pairs) > _MOST_KERNELS:
        lines.append(f"… {len(pairs) - _MOST_KERNELS} more kernels")
    return "\n".join(lines)


def deltas(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """ "+16 global load 128, -64 global load 32"; the largest first; empty where nothing differs."""
    changed = {name: after.get(name, 0) - before.get(name, 0) for name in [*after, *before]}
    told = sorted(((n, name) for name, n in changed.items() if n), key=lambda c: -abs(c[0]))
    return ", ".join(f"{n:+} {name}" for n, name in told)


def numbers(part: Part) -> str:
    """ "70 instructions, 155 issue cycles, 32 B loaded"."""
    cycles = f", {part.issue_cycles} issue cycles" if part.issue_cycles else ""
    loaded = f", {part.loaded_bytes} B loaded" if part.loaded_bytes else ""
    return f"{part.instructions} instruction{'s' * (part.instructions != 1)}{cycles}{loaded}"


def normalised(text: str) -> str:
    """An instruction without the numbers of registers, offsets of addresses, labels and constants' places."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def in_sets(code: Sequence[Instruction]) -> list[str]:
    """The instructions as counted sets, one for each stretch in which an assembler may order them as it likes."""
    lines: list[str] = []
    stretch: list[Instruction] = []
    for i in code:
        if i.label and stretch:
            lines += _counted(stretch)
            stretch = []
        if i.head in _ORDERED:
            lines += [*_counted(stretch), f"     {normalised(i.text)}"]
            stretch = []
        else:
            stretch.append(i)
    return lines + _counted(stretch)


def _counted(stretch: Sequence[Instruction]) -> list[str]:
    counts = Counter(_ranked(normalised(i.text)) for i in stretch)
    return [f"{n:3}x {text}" for (_, _, text), n in sorted(counts.items())]


@lru_cache(maxsize=1 << 14)
def _ranked(text: str) -> tuple[int, str, str]:
    """A normalised instruction so that what matters comes first; integers, which mostly make addresses, without their
    constants."""
    name = class_of(Instruction(0, text))
    if name == "integer and other":
        text = _CONSTANT.sub("#", text)
    return next((n for n, rank in enumerate(_RANKS) if name.startswith(rank)), len(_RANKS)), name, text


def ptx_difference(before: str, after: str, from_name: str, to_name: str) -> str:
    """The lines of PTX that differ by more than numbers of registers and labels, as they are, in the form of a diff;
    empty where none does."""
    old, new = (_ptx_lines(text) for text in (before, after))
    if len(old) + len(new) > _MOST_PTX_LINES:
        return f"# {len(old)} and {len(new)} lines: too many to compare\n"
    keys = [[_PTX_NUMBER.sub(r"\1", line) for line in lines] for lines in (old, new)]
    told: list[str] = []
    for group in difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_grouped_opcodes(3):
        told.append(f"@@ -{group[0][1] + 1} +{group[0][3] + 1} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                told += [f" {line}" for line in new[j1:j2]]
            else:
                told += [*(f"-{line}" for line in old[i1:i2]), *(f"+{line}" for line in new[j1:j2])]
    return "".join(f"{line}\n" for line in [f"--- {from_name}", f"+++ {to_name}", *told]) if told else ""


def _ptx_lines(text: str) -> list[str]:
    """Without comments and debug lines."""
    lines = (line.partition("//")[0].strip() for line in text.split("\n"))
    return [" ".join(line.split()) for line in lines if line and not line.startswith((".loc", ".file"))]


def _paired(before: Sequence[Sass], after: Sequence[Sass]) -> tuple[list[tuple[Sass, Sass]], list[Sass], list[Sass]]:
    """Kernels of one name in order, then those that are left in order; what has none on the other side."""
    left, pairs, rest = list(before), [], []
    for kernel in after:
        old = next((k for k in left if k.name == kernel.name), None)
        if old is None:
            rest.append(kernel)
        else:
            left.remove(old)
            pairs.append((old, kernel))
    pairs += zip(left, rest, strict=False)
    return pairs, left[len(rest) :], rest[len(left) :]


def _of_kernel(old: Sass, new: Sass, most_lines: int) -> Iterator[str]:
    name = new.name if old.name == new.name else f"{old.name} -> {new.name}"
    yield f"{name}: {_change('the kernel', old.whole, new.whole)}"
    yield from _notes("kinds", old.whole.kinds, new.whole.kinds)
    hot, other = new.hot, old.hot
    if (hot is None) != (other is None):
        yield f"  {'no loop any more' if hot is None else 'now with a loop: ' + numbers(hot.part)}"
    if hot is None or other is None:
        yield from _unified(in_sets(old.instructions), in_sets(new.instructions), most_lines)
        return
    yield f"  {_change('hot loop', other.part, hot.part)}"
    yield from _notes("kinds", other.part.kinds, hot.part.kinds)
    if hot.part.cycles_per_byte is not None and other.part.cycles_per_byte is not None:
        yield f"  issue cycles per byte loaded: {other.part.cycles_per_byte:.2f} -> {hot.part.cycles_per_byte:.2f}"
    yield from (f"  no more: {note}" for note in other.part.notes if note not in hot.part.notes)
    yield from (f"  now: {note}" for note in hot.part.notes if note not in other.part.notes)
    yield from _unified(in_sets(old.of(other)), in_sets(new.of(hot)), most_lines)


def _change(what: str, old: Part, new: Part) -> str:
    changed = deltas(old.classes, new.classes) or "the same classes of instructions"
    return f"{what} {numbers(old)} -> {numbers(new)}: {changed}"


def _notes(what: str, old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[str]:
    if changed := deltas(old, new):
        yield f"  {what}: {changed}"


def _unified(old: list[str], new: list[str], most: int) -> Iterator[str]:
    """The lines that differ, with one around them."""
    if old == new:
        yield "  the same instructions but for registers, addresses and order"
        return
    lines = list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]
    yield from lines[:most]
    if len(lines) > most:
        yield f"… {len(lines) - most} more lines"
