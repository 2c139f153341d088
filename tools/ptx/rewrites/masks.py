"""Masks that the shapes of the launches make always true, or never: they go, with what only they needed. Pure."""

from tools.ptx.ir import Instruction, Register, type_bytes
from tools.ptx.rewrites.base import Rewrite, Work
from tools.ptx.rewrites.written import operand


def _masks(work: Work, value: str) -> None:
    for i in work.instructions:
        if i.guard is not None:
            _guarded(work, i)
        elif i.opcode == "selp" and len(i.operands) == 4:
            _selected(work, i)


def _guarded(work: Work, i: Instruction) -> None:
    guard = i.guard
    held = work.spans.truth(guard.register) if guard else None
    if guard is None or held is None or not work.free(i):
        return
    if held is guard.negated:
        work.replace(i)
    elif i.opcode != "bra":
        work.replace(i, Instruction(i.opcode, i.modifiers, i.operands, i.line))


def _selected(work: Work, i: Instruction) -> None:
    result, yes, no, predicate = i.operands
    held = work.spans.truth(predicate) if isinstance(predicate, Register) else None
    if held is None or not work.free(i):
        return
    bits = 8 * type_bytes(i.modifiers[-1])
    kind = i.modifiers[-1] if i.modifiers[-1].startswith("f") else f"b{bits}"
    work.replace(i, f"mov.{kind} {operand(result)}, {operand(yes if held else no)};")


REWRITES = (
    Rewrite(
        "masks", ("on",), "bits", "masks that these shapes make always true, or never, are left out",
        "the file launches this text for known shapes only, and for these each thread knows what its mask says",
        "fewer predicates and selections", _masks,
    ),
)  # fmt: skip
