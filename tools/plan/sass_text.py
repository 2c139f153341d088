"""Disassembled kernels in words and as listings, for authors and people. Pure."""

from collections.abc import Iterator, Sequence

from tools.plan.sass_diff import numbers
from tools.plan.sass_ir import Control, Instruction, Part, Sass

LEGEND = """\
// | stands for each loop around an instruction, * for the one that most likely counts. line: of the candidate; ptx: of
// what the assembler was given (--ptx). issue: the scoreboards that it waits for (B0-5), frees when its operands are
// read (R), sets when its result is there (W), and the cycles until this warp's next instruction (S)."""
_CANDIDATE = ("", "candidate.py")
_MARGIN = 3  # loops that are shown around one another


def listing(sass: Sass) -> str:
    """Every instruction with its place, source line and issue control, under a summary."""
    lines = [f"// {line}" for line in summary(sass)]
    depth = [0] * len(sass.instructions)
    for loop in sass.loops:
        for n in loop.members:
            depth[n] += 1
    hot = set(sass.hot.members) if sass.hot else set()
    lines.append("//            line   ptx  addr  issue")
    for n, i in enumerate(sass.instructions):
        if i.label:
            lines.append(f"{i.label}:")
        margin = ("|" * min(depth[n] - (n in hot), _MARGIN) + "*" * (n in hot)).rjust(_MARGIN + 1)
        lines.append(f"{margin} {_place(i):>13} {i.ptx_line or '':>5}  {i.address:04x}  {_issue(i.issue)}  {_code(i)}")
    if sass.cut:
        lines.append(f"… {sass.cut} more instructions")
    return "\n".join(lines) + "\n"


def summary(sass: Sass, *, most_loops: int = 99) -> Iterator[str]:
    """What it is made of, and its loops, a line each."""
    yield f"{sass.name}: {made_of(sass.whole)}"
    for loop in sass.loops[:most_loops]:
        first, last = (sass.instructions[n].address for n in (loop.members[0], loop.members[-1]))
        kind = "hot loop" if loop is sass.hot else "loop that waits" if loop.waits else "loop"
        yield f"{kind} {first:04x}-{last:04x}{_lines(sass.of(loop))}, depth {loop.depth}: {made_of(loop.part)}"
    if not sass.loops:
        yield "no loop"


def _lines(code: Sequence[Instruction]) -> str:
    """The candidate's lines that instructions come of; of PTX that nothing was compiled to, its own."""
    lines = sorted({i.line for i in code if i.line and i.file in _CANDIDATE})
    kind = "lines" if lines else "PTX lines"
    lines = lines or sorted({i.ptx_line for i in code if i.ptx_line})
    return f" ({kind} {lines[0]}-{lines[-1]})" if lines else ""


def made_of(part: Part) -> str:
    """ "70 instructions, 155 issue cycles: 40 float, …"; what is special of them; what may stall."""
    told = ", ".join(f"{n} {name}" for name, n in part.classes.items())
    special = ", ".join(f"{n} {name}" for name, n in part.kinds.items())
    words = f"{numbers(part)}: {told}"
    words += f"; among them {special}" if special else ""
    return "; ".join([words, *part.notes])


def numbered_ptx(text: str) -> str:
    """PTX with the line numbers that a listing gives, for a window; empty lines are left out."""
    lines = enumerate(text.split("\n"), 1)
    return "".join(f"{number:5}  {line}\n" for number, line in lines if line.strip())


def _place(i: Instruction) -> str:
    if not i.line:
        return ""
    return str(i.line) if i.file in _CANDIDATE else f"{i.file[-8:]}:{i.line}"[-13:]


def _code(i: Instruction) -> str:
    guard = f"@{i.predicate}" if i.predicate else ""
    return f"{guard:>5} {i.opcode} {i.operands}".rstrip()


def _issue(control: Control) -> str:
    waits = "".join(str(n) if n in control.waits else "-" for n in range(6))
    reads, writes = ("-" if n is None else str(n) for n in (control.reads, control.writes))
    return f"B{waits}:R{reads}:W{writes}:S{control.stall:02}"
