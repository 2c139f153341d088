"""Expert kernels for built-in tasks, as complete candidate files. They are read as text, never imported."""

import re
from dataclasses import dataclass
from pathlib import Path

from agent.authors.offline.sketch import Sketch

_POWERS = tuple(2**n for n in range(21))


@dataclass(frozen=True)
class _Entry:
    """A file of this folder, its idea in words, and the values worth trying for each of its parameters."""

    file: str
    says: str
    space: dict[str, tuple[int, ...]]


def _between(low: int, high: int) -> tuple[int, ...]:
    return tuple(p for p in _POWERS if low <= p <= high)


_WARPS = _between(1, 32)
_LIBRARY = {
    "softmax": (
        _Entry("softmax_row", "single pass: a whole row in registers, read once", {"NUM_WARPS": _WARPS}),
        _Entry(
            "softmax_persistent",
            "persistent: a fixed grid walks over the rows, so the next row is loaded while this one is reduced",
            {"PROGRAMS": (132, 264, 528, 1056, 2112), "NUM_WARPS": _WARPS, "NUM_STAGES": (1, 2, 3, 4)},
        ),
        _Entry(
            "softmax_online",
            "online: running maximum and sum over blocks of columns, then a second read that hits the L2 cache",
            {"BLOCK": _between(256, 16384), "NUM_WARPS": _WARPS, "NUM_STAGES": (1, 2, 3, 4)},
        ),
        _Entry(
            "softmax_short_rows",
            "several rows a program: short rows alone would leave most of a warp idle",
            {"TILE": _between(256, 16384), "NUM_WARPS": _WARPS},
        ),
        _Entry(
            "softmax_split_row",
            "split rows: several programs share one row, for matrices with fewer rows than the GPU has multiprocessors",
            {"SPLITS": (2, 4, 8, 16, 32, 64), "BLOCK": _between(512, 8192), "NUM_WARPS": _WARPS},
        ),
    ),
    "row_sum": (
        _Entry(
            "row_sum",
            "one program a row: partial sums per lane, reduced once at the end",
            {"BLOCK": _between(256, 16384), "NUM_WARPS": _WARPS, "NUM_STAGES": (1, 2, 3, 4)},
        ),
    ),
    "rms_norm": (_Entry("rms_norm", "single pass: a whole row in registers, read once", {"NUM_WARPS": _WARPS}),),
}


def experts(task: str) -> list[Sketch]:
    """The expert candidates for a built-in task, best guess first; none for other tasks."""
    return [_sketch(entry) for entry in _LIBRARY.get(task, ())]


def _sketch(entry: _Entry) -> Sketch:
    text = (Path(__file__).parent / f"{entry.file}.py").read_text()
    text = text[text.index('"""') :]  # without the lines for mypy and ruff: Triton kernels are not typed Python
    found = {name: re.search(rf"(?m)^{name} = (\d+)", text) for name in entry.space}
    defaults = {name: int(match[1]) for name, match in found.items() if match}
    return Sketch(entry.file, text, entry.says, defaults, dict(entry.space))
