"""An emulator of PTX on the CPU.

It checks a recorded kernel launch on a machine without a GPU: the text is data, and hostile text can at worst raise
one of the typed errors below. All threads of many blocks run at once, a register being an array with a lane for each
thread.

    run(PtxLaunch(text, "", (rows, 1, 1), (256, 1, 1), (Pointer(x_bytes, 0, "x"), Pointer(y_bytes, 0, "y"), 1024)))

`Unsupported` means "not checkable here", never "wrong". What nothing has written, in registers and in shared or local
memory, is a NaN and an odd huge integer; copies that are not waited for have not happened.
"""
