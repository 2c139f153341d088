"""Disassembles cubins. Runs where compilers run, confined: a cubin holds what a candidate wrote.

The disassembler is the one that Triton ships. It is of another release than the assembler, and may know fewer
architectures: then that is said in words.
"""

import contextlib
import importlib.util
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kerneltune.tools.languages.ptxas import ptxas
from kerneltune.tools.schema.messages import SassReply, SassRequest
from kerneltune.tools.schema.sass import MOST_PTX, Sass, counted, instructions, sections

DISASSEMBLE_S = 20.0
_OPTIONS = ("-c", "-hex", "-gi", "-gp", "-ndf")
_KERNEL = re.compile(r"^\s*\.section\s+\.text\.([^,\s]+)", re.MULTILINE)
_PTX_SECTION = ".nv_debug_ptx_txt"


class CannotDisassemble(Exception):
    """No disassembler, or one that does not understand the file."""


def disassemble_all(request: SassRequest, cubins: Sequence[bytes], folder: Path) -> SassReply:
    """Every cubin disassembled; or why one cannot be."""
    try:
        _, release = disassembler()
        kernels = tuple(disassemble(cubin, folder) for cubin in cubins)
        return SassReply(kernels, f"ptxas {ptxas(request.arch)[1]}", f"nvdisasm {release}")
    except CannotDisassemble as error:
        return SassReply(problem=str(error))


def disassemble(cubin: bytes, folder: Path) -> Sass:
    """The kernel in a cubin, counted. Raises CannotDisassemble."""
    program, release = disassembler()
    given, told = folder / "kernel.cubin", folder / "kernel.sass"
    given.write_bytes(cubin)
    try:
        with told.open("wb") as out:
            done = subprocess.run(
                [program, *_OPTIONS, str(given)], stdout=out, stderr=subprocess.PIPE, timeout=DISASSEMBLE_S, check=False
            )
        with told.open(errors="replace") as listing:
            beginning = listing.read(1 << 16)
            listing.seek(0)
            code, cut = instructions(listing)
    except subprocess.TimeoutExpired as error:
        raise CannotDisassemble(f"nvdisasm {release} took longer than {DISASSEMBLE_S:g} s") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotDisassemble(f"nvdisasm {release}: {type(error).__name__}: {error}"[:300]) from error
    finally:
        for path in (given, told):
            path.unlink(missing_ok=True)
    if done.returncode or not code:
        raise CannotDisassemble(_refused(release, done.stderr.decode(errors="replace"), given))
    name = _KERNEL.search(beginning)
    return counted(name[1] if name else "?", code, cut, ptx_of(cubin))


def _refused(release: str, said: str, path: Path) -> str:
    """What the disassembler has against a cubin: it may be of an architecture that is newer than it is."""
    words = (
        said.replace(f"file '{path}'", "file")
        .replace(f"File {path}", "this")
        .replace(str(path), "the cubin")
        .split("\n")
    )
    why = next((line.strip() for line in words if "fatal" in line or "error" in line), "it finds no instructions")
    return f"nvdisasm {release}, which comes with Triton, cannot read this cubin: {why[:200]}"


def ptx_of(cubin: bytes) -> str:
    """The PTX that the assembler noted in a cubin, without debug information; empty where it did not. Lines count as
    the disassembler counts them."""
    with contextlib.suppress(ValueError):
        for section in sections(cubin):
            if section.name == _PTX_SECTION:
                text = section.data(cubin).replace(b"\0", b"\n").decode(errors="replace")
                return text.rstrip("\n")[:MOST_PTX] + "\n"
    return ""


@cache
def disassembler() -> tuple[str, str]:
    """The program and its release, "12.8". Raises CannotDisassemble."""
    if importlib.util.find_spec("triton") is None:
        raise CannotDisassemble("Triton, which brings nvdisasm, is not installed")
    from triton import knobs

    try:
        tool = knobs.nvidia.nvdisasm
    except (RuntimeError, OSError) as error:
        raise CannotDisassemble(str(error)[:300]) from error
    return str(tool.path), str(tool.version)
