"""Which variables a cubin keeps in device memory, read off its symbol table. Pure.

A variable of a module outlives a launch: it is memory that a kernel could hide something in between two runs.
"""

import struct

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")  # from e_type on
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMTAB, _OBJECT = 2, 1
_KEPT = (".nv.global", ".nv.constant3")  # initialised or not, and what the source declared as constant


def variables(cubin: bytes) -> dict[str, int]:
    """Sizes in bytes of the module's variables by name. Raises ValueError when it is no ELF file."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("a cubin is a little-endian 64-bit ELF file")
    try:
        return _variables(cubin)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"a cubin whose tables lead outside of it: {error}") from error


def _variables(cubin: bytes) -> dict[str, int]:
    header = _HEADER.unpack_from(cubin)
    start, size, count, names_at = header[5], header[10], header[11], header[12]
    sections = [_SECTION.unpack_from(cubin, start + i * size) for i in range(count)]
    titles = [_text(cubin, sections[names_at][4] + s[0]) for s in sections]
    kept = {i for i, title in enumerate(titles) if title.startswith(_KEPT)}
    found: dict[str, int] = {}
    for section in sections:
        if section[1] == _SYMTAB:
            texts = sections[section[6]][4]
            for at in range(section[4], section[4] + section[5], _SYMBOL.size):
                name, info, _, where, _, nbytes = _SYMBOL.unpack_from(cubin, at)
                if where in kept and info & 0xF == _OBJECT and nbytes:
                    found[_text(cubin, texts + name)] = nbytes
    return found


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    return data[at : len(data) if end < 0 else end].decode(errors="replace")
