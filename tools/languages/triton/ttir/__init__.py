"""An interpreter for Triton's TTIR on the CPU.

It checks a recorded kernel launch for correctness on a machine without a GPU, and without running the candidate's
Python: the MLIR text in `asm["ttir"]` is data, so hostile input can at worst raise one of the typed errors below.

    module = parse(text)
    run(module, (rows, 1, 1), [Pointer(x_bytes, 0, "x"), Pointer(y_bytes, 0, "y"), 1024])

`UnsupportedOp` means "not checkable here", never "wrong". Where Triton leaves a value undefined (masked-off lanes of a
load without `other`), the value is NaN or garbage, so that a kernel which depends on it does not pass.
"""
