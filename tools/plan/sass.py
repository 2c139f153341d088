"""Counts what a compiled kernel is made of: its SASS by class of instruction. Runs where compilers run, confined: a
cubin holds what a candidate wrote.

The disassembler is the one that Triton ships.
"""

import hashlib
import importlib.util
import re
import subprocess
from collections import Counter
from pathlib import Path

DISASSEMBLE_S = 20.0
_STATEMENT = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?;)", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)

# class -> beginnings of opcodes; the first class that fits counts
_CLASSES = {
    "tensor core": (
        "HMMA",
        "HGMMA",
        "IMMA",
        "IGMMA",
        "QGMMA",
        "QMMA",
        "BGMMA",
        "DMMA",
        "UTCHMMA",
        "UTCQMMA",
        "UTCIMMA",
    ),
    "bulk copy": ("UTMA", "UBLKCP", "UBLKPF"),
    "async copy": ("LDGSTS",),
    "spill": ("STL", "LDL"),
    "shared load": ("LDSM", "LDS"),
    "shared store": ("STSM", "STS"),
    "atomic": ("ATOM", "RED", "ATOMS", "ATOMG"),
    "shuffle": ("SHFL", "REDUX"),
    "barrier": ("BAR", "WARPSYNC", "SYNCS", "DEPBAR", "WARPGROUP"),
    "special function": ("MUFU",),
    "float": (
        "FFMA",
        "FADD",
        "FMUL",
        "FMNMX",
        "FSET",
        "FSEL",
        "FCHK",
        "HFMA2",
        "HADD2",
        "HMUL2",
        "HMNMX2",
        "DFMA",
        "DADD",
    ),
    "convert": ("F2F", "F2I", "I2F", "I2I", "FRND"),
    "branch": ("BRA", "BRX", "BSSY", "BSYNC", "CALL", "RET"),
}
_GLOBAL = ("LDG", "STG", "LD.", "ST.")
_NOISE = ("NOP",)


class CannotDisassemble(Exception):
    """No disassembler, or one that does not understand the file."""


def census(cubin: bytes, folder: Path) -> dict[str, int]:
    """Instructions by class, most frequent first; global accesses by width ("global load 128"). Raises
    CannotDisassemble."""
    return counts(listing(cubin, folder))


def listing(cubin: bytes, folder: Path) -> str:
    """The machine code as text. Raises CannotDisassemble."""
    path = folder / "census.cubin"
    path.write_bytes(cubin)
    try:
        done = subprocess.run(
            [_disassembler(), "-c", str(path)], capture_output=True, timeout=DISASSEMBLE_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotDisassemble(f"{type(error).__name__}: {error}"[:300]) from error
    finally:
        path.unlink(missing_ok=True)
    return done.stdout.decode(errors="replace")


def digest(sass: str) -> str:
    """sha256 of a listing's instructions: equal for kernels that do the same, whatever their lines are called."""
    return hashlib.sha256("\n".join(m[1] for m in _STATEMENT.finditer(sass)).encode()).hexdigest()


def counts(sass: str) -> dict[str, int]:
    """The same of a listing."""
    found = Counter(_class_of(m[1]) for m in _INSTRUCTION.finditer(sass) if not m[1].startswith(_NOISE))
    return dict(found.most_common())


def _class_of(opcode: str) -> str:
    if opcode.startswith(_GLOBAL):
        width = next((w for w in ("128", "64", "U8", "S8", "U16", "S16") if f".{w}" in opcode), "32")
        return f"global {'load' if opcode.startswith('LD') else 'store'} {width.lstrip('US')}"
    return next((name for name, heads in _CLASSES.items() if opcode.startswith(heads)), "integer and other")


def _disassembler() -> str:
    spec = importlib.util.find_spec("triton")
    path = Path(spec.origin).parent / "backends/nvidia/bin/nvdisasm" if spec and spec.origin else Path("nvdisasm")
    return str(path)
