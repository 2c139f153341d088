"""Assembles PTX with the ptxas that Triton ships. Its complaints name the line and the text that they are about."""

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerneltune.tools.languages.base import FILE
from kerneltune.tools.languages.ptx.ir import PtxError, line_of, parse, without_comments
from kerneltune.tools.languages.ptxas import Resources, ptxas, resources_of
from kerneltune.tools.schema.gpus import arch_number
from kerneltune.tools.schema.sass import sections

# ---
# PTX to a cubin, by the ptxas that Triton ships; what it says of registers, spills and shared memory; its errors with
# the lines that they are about. Runs where compilers run, confined, and on a user's machine.
#
# A cubin is always made here, never left to the driver: PTX that is newer than the driver still runs.

ASSEMBLE_S = 100.0
_MOST_ERRORS = 8
_ERROR = re.compile(r"^ptxas [^\n]*?, line (?P<line>\d+); (?:error|fatal)\s*: (?P<message>.*)$", re.MULTILINE)
_GENERAL = re.compile(r"^ptxas (?:error|fatal)\s*: (?P<message>.*)$", re.MULTILINE)


_RESOURCES = re.compile(
    r"Compiling entry function '(?P<name>[^']+)'(?P<rest>.*?)(?=Compiling entry function|\Z)", re.DOTALL
)


@dataclass(frozen=True)
class Assembled:
    """A cubin and what its entries take, by name."""

    cubin: bytes
    resources: Mapping[str, Resources]


def assemble(text: str, arch: str, folder: Path) -> Assembled:
    """Assemble for "sm_90" and the like; `folder` takes two files. Raises PtxError: a line for each of ptxas's errors,
    with what stands there. ptxas sees no comments: it might find another end of them than `parse` does."""
    source, image = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(without_comments(text))
    options = ["-v", "-lineinfo", f"--gpu-name={_gpu_name(parse(text).target, arch)}", str(source), "-o", str(image)]
    try:
        done = subprocess.run(
            [ptxas(arch)[0], *options],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASSEMBLE_S,
            check=False,
        )
        log = done.stdout + done.stderr
        if done.returncode:
            raise _error(text, log, done.returncode)
        return Assembled(image.read_bytes(), {m["name"]: resources_of(m["rest"]) for m in _RESOURCES.finditer(log)})
    except subprocess.TimeoutExpired as error:
        raise PtxError(1, f"ptxas took longer than {ASSEMBLE_S:g} s") from error
    finally:
        source.unlink(missing_ok=True)
        image.unlink(missing_ok=True)


def _gpu_name(target: str, arch: str) -> str:
    """sm_90a where the text needs what only that architecture has."""
    plain = f"sm_{arch_number(arch)}"
    return target if target in (f"{plain}a", f"{plain}f") else plain


def _error(text: str, log: str, code: int) -> PtxError:
    found = [(int(m["line"]), m["message"].strip()) for m in _ERROR.finditer(log)]
    if not found:
        general = [m["message"] for m in _GENERAL.finditer(log) if "aborted" not in m["message"]]
        message = "; ".join(general[:_MOST_ERRORS]) or f"ended with {code} without a word"
        line = _largest_shared(text) if "shared data" in message else 1
        return PtxError(line, f"ptxas: {message}{_fix(message)}", line_of(text, line))
    messages = [f"{message}{_fix(message)}: {line_of(text, line).strip()[:120]}" for line, message in found]
    rest = [
        f"PTX line {line}: {message}" for (line, _), message in zip(found[1:], messages[1:_MOST_ERRORS], strict=False)
    ]
    more = [f"and {len(found) - _MOST_ERRORS} more"] if len(found) > _MOST_ERRORS else []
    error = PtxError(found[0][0], "\n".join([f"ptxas: {messages[0]}", *rest, *more]))
    error.lines = tuple(line for line, _ in found[:_MOST_ERRORS])
    return error


# What ptxas says, and what to do about it. \1 is what the pattern found.
_FIXES = tuple(
    (re.compile(pattern), fix)
    for pattern, fix in (
        (r"Unsupported \.version .*current version is '([\d.]+)'", r"write .version \1 or less"),
        (r"\.version \S+ does not support \.target", "write .version 8.0"),
        (r"requires PTX ISA \.version ([\d.]+)", r"write .version \1"),
        (r"requires \.target (sm_\d+[af]?)", r"write .target \1"),
        (r"not supported on \.target '(sm_\d+)'", r"write .target \1a if the GPU has it"),
        (
            r"too much shared data",
            "beyond 48 KiB it is dynamic: `.extern .shared .b8 tile[];`, and shared_bytes=",
        ),
        (r"Arguments mismatch", "compare the operands' number and types with the instruction's"),
        (r"Unknown symbol", "declare it: .reg, .shared, or a label"),
    )
)


def _fix(message: str) -> str:
    found = next(((fix, m) for pattern, fix in _FIXES if (m := pattern.search(message))), None)
    return f" ({found[1].expand(found[0])})" if found else ""


def _largest_shared(text: str) -> int:
    """The line of the largest shared variable."""
    module = parse(text)
    held = [v for v in (*module.variables, *(v for f in module.functions for v in f.variables)) if v.space == "shared"]
    return max(held, key=lambda v: v.nbytes).line if held else 1


# ---
# Which of the compiler's labels ptxas heeds. Runs where compilers run.
#
# LLVM writes labels for debuggers ($L__tmp7). Nothing branches there, but ptxas begins a basic block at each, and now
# and then orders instructions otherwise without one. Those that matter are found by leaving them out.

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


# ---
# Lines of PTX as lines of the candidate file that holds it, or that it was compiled from. Pure.

_PLACE = re.compile(r"PTX line (\d{1,7})(?!, candidate)")
_FILE = re.compile(rf'^\s*\.file\s+(\d+)\s+"(?:[^"\n]*/)?{re.escape(FILE)}"', re.MULTILINE)
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*\binlined_at\s+(\d+)\s+(\d+))?")


def candidate_lines(text: str, source: str) -> Mapping[int, int]:
    """The candidate's line for each line of the text that has one: the text stands in the source, once and as it is
    (not one that a template made, or that is spelled with escapes), or its compiler noted where it comes from."""
    bare, lines = text.strip(), text.split("\n")
    at = source.find(bare) if bare else -1
    if at >= 0 and source.find(bare, at + 1) < 0:
        ahead = source.count("\n", 0, at) - text.count("\n", 0, text.index(bare))
        return {line: line + ahead for line in range(1, len(lines) + 1)}
    ours, found = set(_FILE.findall(text)), dict[int, int]()
    now = 0
    for number, line in enumerate(lines if ours else (), 1):
        if place := _LOC.match(line):
            file, its, outer_file, outer = place.groups()
            now = int(its) if file in ours else int(outer) if outer_file in ours else 0
        if now:
            found[number] = now
    return found


def with_candidate_lines(message: str, text: str, source: str) -> str:
    """Return the message with `PTX line 12, candidate line 31` for each `PTX line 12` that comes from the source."""
    known = candidate_lines(text, source)

    def both(place: re.Match[str]) -> str:
        line = known.get(int(place[1]))
        return f"{place[0]}, candidate line {line}" if line else place[0]

    return _PLACE.sub(both, message)
