"""Which numbers a register can hold in the launches that are known. Pure."""

from math import gcd

from tools.ptx.ir import Address, Function, Immediate, Instruction, Operand, Register, Symbol
from tools.ptx.rewrites.flow import Flow
from tools.ptx.rewrites.launched import Launched
from tools.ptx.rewrites.loops import counted
from tools.ptx.rewrites.span import UNKNOWN, Span
from tools.ptx.rewrites.truths import truth
from tools.ptx.rewrites.values import evaluate

_AXES = {"x": 0, "y": 1, "z": 2}


class Spans:
    """What is known of a function's registers. `predicates`: of a predicate, True or False where it always is."""

    def __init__(self, entry: Function, flow: Flow, launched: Launched, thread: int | None = None) -> None:
        self._thread = thread  # the one that is asked about, where it is one; CTAs have one dimension then
        self._entry, self._flow, self._launched = entry, flow, launched
        self._params = {param.name: number for number, param in enumerate(entry.params)}
        self._known: dict[str, Span] = {}
        self._truths: dict[str, bool | None] = {}
        self.block = launched.block or _directive_block(entry)

    def of(self, operand: Operand | str) -> Span:
        """The span of a register, a number, a variable's or an access' address."""
        match operand:
            case Immediate(value) if isinstance(value, int):
                return Span(value, value, 0)
            case Symbol(name, offset):
                return Span(offset, offset, 0, name)
            case Address(base, offset):
                return self.of(base).plus(Span(offset, offset, 0)) if base else Span(offset, offset, 0)
            case Register(name):
                return self._register(name)
            case str():
                return self._register(operand)
        return UNKNOWN

    def truth(self, predicate: Operand | str) -> bool | None:
        """Whether a predicate always holds, never does, or None."""
        name = predicate.name if isinstance(predicate, Register) else predicate
        if not isinstance(name, str):
            return None
        if name not in self._truths:
            self._truths[name] = None
            writer = self._flow.only_writer(name)
            self._truths[name] = truth(writer, self.of, self.truth) if writer else None
        return self._truths[name]

    def _register(self, name: str) -> Span:
        if name not in self._known:
            self._known[name] = UNKNOWN  # also what is found on the way around a circle
            self._known[name] = self._special(name) or self._written(name)
        return self._known[name]

    def _special(self, name: str) -> Span | None:
        stem, _, axis = name.partition(".")
        if name == "%laneid":
            return Span(0, 31) if self._thread is None else Span(self._thread % 32, self._thread % 32, 0)
        if axis not in _AXES or stem not in ("%tid", "%ntid", "%ctaid", "%nctaid"):
            return None
        sizes = self.block if stem in ("%tid", "%ntid") else self._launched.grid
        if sizes is None:
            return UNKNOWN
        size = sizes[_AXES[axis]]
        if name == "%tid.x" and self._thread is not None:
            return Span(self._thread, self._thread, 0)
        if stem in ("%tid", "%ctaid"):
            return Span(0, size - 1)
        return Span(size, size, 0) if stem == "%ntid" else Span(1, size)

    def _written(self, name: str) -> Span:
        writer = self._flow.only_writer(name)
        if writer is None:
            return counted(name, self._flow, self.of) or UNKNOWN
        return self._param(writer) if writer.opcode == "ld" else evaluate(writer, self.of, self.truth)

    def _param(self, load: Instruction) -> Span:
        address = load.operands[1]
        if "param" not in load.modifiers or not isinstance(address, Address) or not isinstance(address.base, Symbol):
            return UNKNOWN
        number = self._params.get(address.base.name)
        if number is None or address.offset:
            return UNKNOWN
        if number in self._launched.scalars:
            lo, hi = self._launched.scalars[number]
            return Span(lo, hi, int(lo != hi))
        if self._entry.params[number].type[1:] == "64":
            return Span(0, 0, 0, address.base.name)
        return UNKNOWN

    def aligned(self, span: Span) -> int:
        """Bytes that all addresses of a span are a multiple of."""
        number = self._params.get(span.base)
        if number is None:
            return 1
        return gcd(self._launched.aligned.get(number, 1), span.zeros)

    def param_of(self, span: Span) -> int | None:
        """The number of the parameter that an address is derived from."""
        return self._params.get(span.base)


def _directive_block(entry: Function) -> tuple[int, int, int] | None:
    """The threads of a CTA where the text itself says how many."""
    sizes = entry.directives.get("reqntid")
    if not sizes or len(sizes) > 3:
        return None
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
