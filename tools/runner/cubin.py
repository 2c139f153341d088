"""Which variables a cubin keeps in device memory, read off its symbol table. Pure.

A variable of a module outlives a launch: it is memory that a kernel could hide something in between two runs.
"""

import struct

from tools.elf import sections, text_at

_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _OBJECT = 2, 1
_KEPT = (".nv.global", ".nv.constant3")  # initialised or not, and what the source declared as constant


def variables(cubin: bytes) -> dict[str, int]:
    """Sizes in bytes of the module's variables by name. Raises ValueError when it is no ELF file."""
    found = sections(cubin)
    kept = {i for i, section in enumerate(found) if section.name.startswith(_KEPT)}
    sizes: dict[str, int] = {}
    try:
        for section in (s for s in found if s.type == _SYMTAB):
            texts = found[section.link].offset
            for at in range(section.offset, section.offset + section.nbytes, _SYMBOL.size):
                name, info, _, where, _, nbytes = _SYMBOL.unpack_from(cubin, at)
                if where in kept and info & 0xF == _OBJECT and nbytes:
                    sizes[text_at(cubin, texts + name)] = nbytes
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"a cubin whose tables lead outside of it: {error}") from error
    return sizes
