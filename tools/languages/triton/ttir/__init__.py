"""An interpreter for Triton's TTIR on the CPU.

It checks a recorded kernel launch for correctness on a machine without a GPU, and without running the candidate's
Python: the MLIR text in `asm["ttir"]` is data, so hostile input can at worst raise one of the typed errors below.

    module = parse(text)
    run(module, (rows, 1, 1), [Pointer(x_bytes, 0, "x"), Pointer(y_bytes, 0, "y"), 1024])

`UnsupportedOp` means "not checkable here", never "wrong". Where Triton leaves a value undefined (masked-off lanes of a
load without `other`), the value is NaN or garbage, so that a kernel which depends on it does not pass.
"""

from kerneltune.tools.languages.triton.ttir.interpreter import RunStats, run
from kerneltune.tools.languages.triton.ttir.ir import (
    AssertFailed,
    InterpreterError,
    OutOfBounds,
    OutOfTime,
    StepLimit,
    TtirModule,
    TtirSyntaxError,
    UnsupportedOp,
    parse,
)
from kerneltune.tools.languages.triton.ttir.memory import Argument, DescriptorValue, Pointer
from kerneltune.tools.languages.triton.ttir.waiting import may_wait

__all__ = [
    "Argument",
    "AssertFailed",
    "DescriptorValue",
    "InterpreterError",
    "OutOfBounds",
    "OutOfTime",
    "Pointer",
    "RunStats",
    "StepLimit",
    "TtirModule",
    "TtirSyntaxError",
    "UnsupportedOp",
    "may_wait",
    "parse",
    "run",
]
