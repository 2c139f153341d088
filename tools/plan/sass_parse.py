"""Reads what `nvdisasm -c -hex -gi -gp` prints. Pure; the text comes of a cubin that a candidate had made."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from tools.plan.sass_ir import MOST_INSTRUCTIONS, Instruction

_SECTION = re.compile(r"\.text\.(\S+):$")
_LABEL = re.compile(r"(\.L_\w+|[A-Za-z_$][\w$.]*):$")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,8})\*/\s+([^;]*?)\s*;\s*(?:/\*.*)?$")
_HIGH = re.compile(r"/\* 0x([0-9a-f]{16}) \*/$")
_SCHEDULE = re.compile(r"\s{2,}[&?].*$", re.DOTALL)  # some releases print the control bits as words behind it
_PLACE = re.compile(r'//## File "([^"]*)", line (\d+)(?:.*inlined at "([^"]*)", line (\d+))?')
_PTX = ".nv_debug_ptx_txt"
_CONTROL_BIT = 41  # of the upper 64 bits


def instructions(lines: Iterable[str]) -> tuple[tuple[Instruction, ...], int]:
    """All instructions of a listing in order, without padding, and how many more there are than are kept."""
    found = _read(lines)
    kept = tuple(islice(found, MOST_INSTRUCTIONS))
    return kept, sum(1 for _ in found)


def _read(lines: Iterable[str]) -> Iterator[Instruction]:
    """One behind: the upper half of an encoding stands in the line after its instruction."""
    last: Instruction | None = None
    label, place, ptx_line = "", ("", 0), 0
    for line in lines:
        text = line.strip()
        if last and (high := _HIGH.match(text)):
            last = replace(last, control=int(high[1], 16) >> _CONTROL_BIT & 0x1FFFF)
        elif found := _INSTRUCTION.match(text):
            if last:
                yield last
            words = " ".join(_SCHEDULE.sub("", found[2]).split())
            last = Instruction(int(found[1], 16), words, label, place[1], place[0], ptx_line)
            label = "" if not words.startswith("NOP") else label
            last = last if words and not words.startswith("NOP") else None
        elif where := _PLACE.match(text):
            if where[1] == _PTX:
                ptx_line = int(where[2][:9])
            else:
                place = _base(where[3] or where[1]), int((where[4] or where[2])[:9])
        elif section := _SECTION.match(text):
            label, place, ptx_line = f".text.{section[1]}", ("", 0), 0
        elif (named := _LABEL.match(text)) and not label.startswith(".text."):
            label = named[1]
    if last:
        yield last


def _base(path: str) -> str:
    return path.rpartition("/")[2]
