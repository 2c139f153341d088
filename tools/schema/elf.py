"""The sections of a cubin, which is an ELF file. Pure."""

import struct
from dataclasses import dataclass

_HEADER = struct.Struct("<40xQ10xHHH")  # where the section headers begin; their size and number; which holds the names
_SECTION = struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True)
class Section:
    """One section: what it is called, its ELF type, where its bytes begin and how many they are, the section it links
    to."""

    name: str
    type: int
    offset: int
    nbytes: int
    link: int

    def data(self, cubin: bytes) -> bytes:
        """What it holds, as far as the file goes."""
        return cubin[self.offset : self.offset + self.nbytes]


def sections(cubin: bytes) -> list[Section]:
    """All sections, in order. Raises ValueError for what is no 64-bit ELF file, or one whose tables lead outside."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("a cubin is a little-endian 64-bit ELF file")
    try:
        begin, size, count, names = _HEADER.unpack_from(cubin)
        headers = [_SECTION.unpack_from(cubin, begin + i * size) for i in range(count)]
        return [Section(text_at(cubin, headers[names][4] + h[0]), h[1], h[4], h[5], h[6]) for h in headers]
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"a cubin whose tables lead outside of it: {error}") from error


def text_at(data: bytes, at: int) -> str:
    """The text that ends with a zero byte, or with the data."""
    end = data.find(b"\0", at)
    return data[at : len(data) if end < 0 else end].decode(errors="replace")
