"""What a cubin's machine code is, told without a disassembler, which takes 0.4 s to begin. Pure."""

import hashlib
import struct
from dataclasses import dataclass

from tools.elf import sections
from tools.plan.sass_ir import Control

_INSTRUCTION = struct.Struct("<QQ")  # from Volta to Blackwell
_OPCODE, _NOP = 0xFFF, 0x918
_CONTROL_BIT, _CONTROL = 41, 0x1FFFF  # of the upper half


@dataclass(frozen=True)
class CodeCount:
    """`sha256`: of all instructions with what the assembler decided about their issue, and of their constants;
    `instructions`: without padding; `issue_cycles`: what one warp alone needs at least to issue each once."""

    sha256: str = ""
    instructions: int = 0
    issue_cycles: int = 0


def count_code(cubin: bytes) -> CodeCount:
    """Of all functions of a cubin. Raises ValueError for what is no ELF file of 64 bits."""
    found = sections(cubin)
    texts = [s.data(cubin) for s in found if s.name.startswith(".text.")]
    constants = [s.data(cubin) for s in found if s.name.startswith(".nv.constant")]
    stalls = [
        max(1, Control.of(high >> _CONTROL_BIT & _CONTROL).stall)
        for text in texts
        for low, high in _INSTRUCTION.iter_unpack(text[: len(text) // 16 * 16])
        if low & _OPCODE != _NOP
    ]
    digest = hashlib.sha256(b"".join((*texts, *constants))).hexdigest()
    return CodeCount(digest, len(stalls), sum(stalls))
