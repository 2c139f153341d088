"""The ways a recorded kernel can fail to be interpreted, each with its own type."""


class TtirError(Exception):
    """Base of everything the interpreter raises on purpose."""


class TtirSyntaxError(TtirError):
    """The text is not TTIR that we can parse, or an op in it is ill-formed."""


class UnsupportedOp(TtirError):
    """An op or type we have no semantics for: the kernel is not checkable here, which does not make it wrong."""

    def __init__(self, op: str, why: str = "") -> None:
        super().__init__(f"{op}: {why}" if why else op)
        self.op = op


class OutOfBounds(TtirError):
    """The kernel touched memory outside its tensors."""

    def __init__(self, name: str, offset: int, size: int, what: str) -> None:
        super().__init__(f"{what} outside argument {name!r}: byte offset {offset} of {size}")
        self.name = name
        self.offset = offset
        self.size = size


class StepLimit(TtirError):
    """Too many executed ops, or calls nested too deeply: very likely a loop that does not end."""


class AssertFailed(TtirError):
    """A device-side assertion of the kernel did not hold."""
