"""The ways in which PTX can fail to be emulated. Each message names the instruction and its line."""

from tools.ptx.ir import Instruction


class SimError(Exception):
    """Base of everything that the emulator raises on purpose; alone, a launch that does not fit its entry."""


class IllFormed(SimError):
    """Text that makes no sense to the emulator. What an assembler has taken is then not checkable here."""


class Unsupported(SimError):
    """What the emulator has no meaning for: the kernel cannot be checked here, which does not make it wrong."""


class OutOfBounds(SimError):
    """Memory outside all tensors, or outside the shared or local memory that there is."""


class Misaligned(SimError):
    """An address that is no multiple of what the instruction needs; a GPU ends the launch."""


class StepLimit(SimError):
    """Too many executed instructions: very likely a loop that does not end."""


class Deadlock(SimError):
    """Threads that wait for others which never come."""


class Race(SimError):
    """Two warps of a block used the same shared memory, one wrote, and no barrier lies between them; or a block ended
    before a copy had read it."""


class Trap(SimError):
    """The kernel itself said that something is wrong: trap, or a failed assertion."""


def place(ins: Instruction) -> str:
    """An instruction in words."""
    return f"{ins.name}, PTX line {ins.line}"


def unsupported(ins: Instruction, why: str) -> Unsupported:
    """The error for an instruction that is not emulated."""
    return Unsupported(f"{place(ins)}: {why}")
