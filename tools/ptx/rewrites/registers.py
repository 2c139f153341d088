"""How many registers a thread may have: caps that the text itself sets, by directives of the entry. Pure."""

from tools.ptx.rewrites.base import Rewrite, Work

_DIRECTIVES = ("maxnreg", "minnctapersm")
MOST_REGISTERS_OF_AN_SM = 65536
_GRAIN = 8  # registers are given to threads in steps of so many


def _cap(work: Work, value: str) -> None:
    """`value`: "maxnreg 64" or "minnctapersm 4"; the one excludes the other."""
    if any(name in work.entry.directives for name in _DIRECTIVES) or not _sensible(work, value):
        return
    work.above_body(f".{value}")


def _sensible(work: Work, value: str) -> bool:
    """Whether a launch is possible with it: all threads of the CTAs fit, with 16 registers at least."""
    kind, _, count = value.partition(" ")
    block = work.spans.block
    if block is None or (kind == "minnctapersm" and not {"reqntid", "maxntid"} & set(work.entry.directives)):
        return False
    threads = block[0] * block[1] * block[2]
    if kind == "maxnreg":
        return threads * int(count) <= MOST_REGISTERS_OF_AN_SM
    return threads * int(count) <= 2048 and MOST_REGISTERS_OF_AN_SM // (threads * int(count)) // _GRAIN * _GRAIN >= 16


REWRITES = (
    Rewrite(
        "registers",
        (
            "maxnreg 32", "minnctapersm 4", "maxnreg 40", "minnctapersm 2", "maxnreg 64", "minnctapersm 8",
            "maxnreg 24", "maxnreg 48", "minnctapersm 3", "maxnreg 96", "maxnreg 128", "maxnreg 168", "minnctapersm 1",
        ), "bits", "the compiler is told: .{value}",
        "fewer registers a thread leave room for more threads, which cover more latency; too few spill",
        "other occupancy", _cap,
    ),
)  # fmt: skip
