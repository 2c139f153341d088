"""The table of attempts: as many columns as the width allows, and always the best and the newest rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agent.view import text as words
from agent.view.cells import DIM, Line, Part, line, marked, width_of
from agent.view.state import LEFT_STAGES, AttemptRow, ViewState
from agent.view.text import LABEL_WIDTH, verdict_style

_GAP = 2  # blanks between columns
_GUTTER = 2
_LEAST_WINDOW = 6  # rows from which on some are worth giving to the best and to gaps
_WIDE = 36  # the least that "what happened" and "what was tried" need to stand side by side
_TRIED = 24  # the least that "what was tried" needs before another column may come
Say = Callable[[ViewState, AttemptRow, float], Part]


@dataclass(frozen=True)
class Column:
    """A column: `width` in cells, 0 for one that takes what is left. `rank`: the lower, the sooner it is shown."""

    name: str
    width: int
    rank: int
    say: Say
    right: bool = True


@dataclass(frozen=True)
class Gap:
    """Rows that are not shown."""

    hidden: int
    word: str


def table(state: ViewState, width: int, height: int, now: float, selected: int | None = None) -> list[Line]:
    """The head and at most `height` - 1 rows."""
    columns = chosen(state, width)
    shown = window(state, max(1, height - 1), selected)
    return [_head(columns, width), *(_line(state, row, columns, width, now, selected) for row in shown)][:height]


def window(state: ViewState, room: int, selected: int | None = None) -> list[AttemptRow | Gap]:
    """The rows that fit: the newest, or those around the selected one, and apart from them the best."""
    rows = state.attempts
    at = next((i for i, a in enumerate(rows) if a.number == selected), len(rows) - 1)
    if room < _LEAST_WINDOW:
        end = max(at + 1, min(room, len(rows)))
        return list(rows[max(0, end - room) : end])
    best = next((i for i, a in enumerate(rows) if a.attempt_id == state.best_id), None)
    size = min(room - 3, len(rows))  # the best and two gaps have room as well
    end = min(len(rows), max(at + 1 + size // 2, size))
    start = max(0, end - size)
    shown = _pieced(state, start, end, best)
    while start > 0 or end < len(rows):  # what the gaps do not need is for rows
        start, end = (start - 1, end) if start > 0 else (start, end + 1)
        more = _pieced(state, start, end, best)
        if len(more) > room:
            break
        shown = more
    return shown


def _pieced(state: ViewState, start: int, end: int, best: int | None) -> list[AttemptRow | Gap]:
    """A stretch of rows, the best on its side of it, and what is left out."""
    rows = state.attempts
    before = [best] if best is not None and best < start else []
    after = [best] if best is not None and best >= end else []
    earlier = start - len(before) + state.unseen_attempts
    later = len(rows) - end - len(after)
    return [
        *(rows[i] for i in before),
        *([Gap(earlier, "earlier")] if earlier else []),
        *rows[start:end],
        *([Gap(later, "later")] if later else []),
        *(rows[i] for i in after),
    ]


def chosen(state: ViewState, width: int) -> list[Column]:
    """The columns that fit, in their order on the screen."""
    columns = _GPU_COLUMNS if state.gpu else _CPU_COLUMNS
    kept = [c for c in columns if c.rank == 0]
    for column in sorted((c for c in columns if c.rank), key=lambda c: c.rank):
        fixed = sum(c.width + _GAP for c in (*kept, column) if c.width) + _GUTTER
        need = _TRIED if column.width else 2 * _WIDE + _GAP
        if width - fixed >= need:
            kept.append(column)
    return [c for c in columns if c in kept]


def _flexible(columns: Sequence[Column], width: int) -> int:
    """What each column without a width gets."""
    fixed = sum(c.width for c in columns) + _GAP * (len(columns) - 1) + _GUTTER + 1
    return max(1, (width - fixed) // sum(c.width == 0 for c in columns))


def _head(columns: Sequence[Column], width: int) -> Line:
    room = _flexible(columns, width)
    cells = (_cell(c, (c.name, DIM), c.width or room) for c in columns)
    return line(width, " " * _GUTTER, *_spaced(cells))


def _line(
    state: ViewState, row: AttemptRow | Gap, columns: Sequence[Column], width: int, now: float, selected: int | None
) -> Line:
    if isinstance(row, Gap):
        return line(width, (f"    ⋮ {row.hidden} {row.word}", DIM))
    room = _flexible(columns, width)
    best = row.attempt_id == state.best_id
    cells = (_cell(c, c.say(state, row, now), c.width or room) for c in columns)
    marks = ("▸" if row.number == selected else " ") + ("★" if best else " ")
    made = line(width, (marks, "green"), *_spaced(cells))
    made = marked(made, "bold") if best else made
    return marked(made, "reverse") if row.number == selected else made


def _spaced(cells: Iterable[list[Part]]) -> list[Part]:
    parts: list[Part] = []
    for cell in cells:
        parts += [*([" " * _GAP] if parts else []), *cell]
    return parts


def _cell(column: Column, part: Part, width: int) -> list[Part]:
    text, name = (part, "") if isinstance(part, str) else part
    size = width_of([text])
    if size > width:
        return [(s.text, name) for s in line(width, text)]
    pad = " " * (width - size)
    return [pad, (text, name)] if column.right else [(text, name), pad]


def _number(_: ViewState, row: AttemptRow, __: float) -> Part:
    return str(row.number)


def _parent(state: ViewState, row: AttemptRow, _: float) -> Part:
    return (words.one_line(state.number_of(row.parent_id)) if row.parent_id else "-", DIM)


def _tried(_: ViewState, row: AttemptRow, __: float) -> Part:
    return words.one_line(row.rationale)


def verdict_part(row: AttemptRow, now: float) -> Part:
    """Symbol, word and colour of a verdict; before there is one what is being done, and for how long."""
    if row.verdict is None:
        working = row.stage not in LEFT_STAGES and row.stage_at and now - row.stage_at >= 1
        since = f" {words.duration(now - row.stage_at)}" if working else ""
        return (f"· {_STAGES.get(row.stage, row.stage)}{since}", DIM)
    shown = verdict_style(row.verdict.status)
    return (f"{shown.symbol} {row.verdict.status.value}", shown.colour)


_STAGES = {"proposed": "waiting", "updated": "compiled"}


def _verdict(_: ViewState, row: AttemptRow, now: float) -> Part:
    return verdict_part(row, now)


def _time(_: ViewState, row: AttemptRow, __: float) -> Part:
    return words.microseconds(row.verdict.timing.median_us) if row.verdict and row.verdict.timing else ""


def _speedup(_: ViewState, row: AttemptRow, __: float) -> Part:
    compared = words.fastest_first(row.verdict.comparisons) if row.verdict else []
    return words.short_speedup(compared[0]) if compared else ""


def _registers(_: ViewState, row: AttemptRow, __: float) -> Part:
    return words.registers(row.kernels)


def _spills(_: ViewState, row: AttemptRow, __: float) -> Part:
    if not row.kernels:
        return ""
    spilled = words.spill_bytes(row.kernels)
    return (words.size(spilled), "yellow" if spilled else "")


def _occupancy(_: ViewState, row: AttemptRow, __: float) -> Part:
    return f"{words.occupancy(row.kernels):.0%}" if row.kernels else ""


def _coverage(_: ViewState, row: AttemptRow, __: float) -> Part:
    return f"{row.verdict.coverage:.0%}" if row.verdict and row.verdict.coverage is not None else ""


def _happened(_: ViewState, row: AttemptRow, __: float) -> Part:
    return (words.one_line(row.verdict.detail) if row.verdict else "", DIM)


_FIRST = (Column("#", 4, 0, _number), Column("parent", 6, 3, _parent))
_TRIED_COLUMN = Column("what was tried", 0, 0, _tried, right=False)
_VERDICT = Column("verdict", LABEL_WIDTH + 2, 0, _verdict, right=False)
_COMPILED = (Column("regs", 5, 4, _registers), Column("spills", 8, 5, _spills))
_HAPPENED = Column("what happened", 0, 7, _happened, right=False)
_GPU_COLUMNS = (
    *_FIRST, _TRIED_COLUMN, _VERDICT, Column("time", 9, 1, _time), Column("speed-up", 8, 2, _speedup), *_COMPILED,
    Column("coverage", 8, 6, _coverage), _HAPPENED,
)  # fmt: skip
_CPU_COLUMNS = (*_FIRST, _TRIED_COLUMN, _VERDICT, *_COMPILED, Column("occupancy", 9, 6, _occupancy), _HAPPENED)
