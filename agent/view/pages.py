"""Whole pages of text: one attempt with everything known of it, its source, and help."""

from collections.abc import Iterator

from agent.view import code
from agent.view import text as words
from agent.view.attempts import verdict_part
from agent.view.cells import DIM, Line, Part, block, line, rule, wrapped
from agent.view.state import AttemptRow, ViewState
from agent.view.ui import Ui, looked_at
from tools.verdict import Verdict

_HELP = (
    ("p", "pause, or go on: what is under way is finished, nothing new begins, the time limit stands still"),
    ("s", "skip what is being traced, compiled or checked: it gets no verdict; a timing on the GPU is finished"),
    ("+", "a quarter more attempts and time than were given; dollars only with --max-cost"),
    ("q", "stop after what is under way; --resume goes on later"),
    ("Ctrl-C", "stop now; nothing finished is lost"),
    ("↑ ↓", "choose an attempt; below the newest: follow the newest again (also: k j, page up and down, home, end)"),
    ("enter", "everything known of the chosen attempt; again, or esc: back"),
    ("o", "its source on the whole screen"),
    ("d", "the difference to its parent in place of the source, or back"),
    ("n b", "on a page: the next attempt, the one before"),
    ("Ctrl-L", "draw the whole screen again"),
    ("?", "this page"),
)


def page(state: ViewState, ui: Ui, width: int, height: int, now: float) -> list[Line]:
    """The page that is chosen, from its scroll position on, with a rule above it."""
    lines = page_lines(state, ui, width, now)
    room = max(1, height - 1)
    start = max(0, min(ui.scroll, len(lines) - room))
    where = f"  lines {start + 1}-{min(len(lines), start + room)} of {len(lines)}" if len(lines) > room else ""
    head = rule(width, (_title(state, ui), "bold"), (f"{where}  esc: back", DIM))
    return block([head, *lines[start : start + room]], width, height)


def page_lines(state: ViewState, ui: Ui, width: int, now: float) -> list[Line]:
    """All lines of the page."""
    row = looked_at(state, ui)
    if ui.page == "help":
        return list(_help(width))
    if row is None:
        return [line(width, (" no attempt yet", DIM))]
    facts = [] if ui.page == "source" else list(_facts(state, row, width, now))
    return [*facts, *_code(state, row, ui, width)]


def _title(state: ViewState, ui: Ui) -> str:
    if ui.page == "help":
        return "keys"
    row = looked_at(state, ui)
    what = "difference of" if ui.diff and row and row.parent_id else "source of" if ui.page == "source" else "attempt"
    return f"{what} #{row.number}" if row else "attempt"


def _help(width: int) -> Iterator[Line]:
    for key, what in _HELP:
        for i, text in enumerate(wrapped(what, max(10, width - 12))):
            yield line(width, " ", (f"{'' if i else key:9}", "bold"), text)


def _code(state: ViewState, row: AttemptRow, ui: Ui, width: int) -> list[Line]:
    if ui.diff and row.parent_id:
        return code.change_lines(code.difference(state, row), width)
    return code.highlighted(code.source_lines(row), width)


def _facts(state: ViewState, row: AttemptRow, width: int, now: float) -> Iterator[Line]:
    yield from _named("tried", row.rationale, width)
    if row.parent_id:
        yield from _named("parent", state.number_of(row.parent_id), width)
    yield line(width, *_name("verdict"), verdict_part(row, now))
    if row.verdict:
        yield from _verdict(row.verdict, width)
    for kernel in row.kernels:
        spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
        yield from _named(
            "kernel",
            f"{kernel.name}: {kernel.registers} registers, spills {words.size(spilled)}, shared "
            f"{words.size(kernel.shared_bytes)}, {kernel.num_warps} warps, {kernel.num_stages} stages, occupancy "
            f"{kernel.occupancy:.0%}",
            width,
        )
    if row.library_ops:
        yield from _named("library", ", ".join(row.library_ops), width)
    if row.hypothesis:
        yield from _named("reflected", f"{row.hypothesis}: {row.outcome}", width)
    yield line(width)


def _verdict(verdict: Verdict, width: int) -> Iterator[Line]:
    yield from _named("", verdict.detail, width)
    if verdict.timing:
        tier = f", {verdict.tier}" if verdict.tier else ""
        timing = verdict.timing
        launches = f"{timing.n_launches} launches in {words.plural(timing.n_blocks, 'block')}{tier}"
        yield from _named("time", f"{words.timing(timing)}, median and 95 % interval; {launches}", width)
    for compared in words.fastest_first(verdict.comparisons):
        told = f"{words.speedup(compared)} vs {compared.baseline}, {words.microseconds(compared.baseline_us)}"
        yield from _named("speed-up", told, width)
    if verdict.sol_fraction is not None:
        yield from _named("light", f"{verdict.sol_fraction:.0%} of the speed of light", width)
    if verdict.coverage is not None:
        yield from _named("coverage", f"{verdict.coverage:.0%} of the GPU time is in its own kernels", width)
    if verdict.cases:
        worst = max(c.error_ratio for c in verdict.cases)
        told = f"{words.plural(len(verdict.cases), 'input set')}; worst error {worst:.2g} of the tolerance"
        yield from _named("checked", told, width)


def _name(name: str) -> tuple[Part, ...]:
    return (" ", (f"{name:10}", "bold"))


def _named(name: str, text: str, width: int) -> Iterator[Line]:
    for i, found in enumerate(wrapped(words.one_line(text), max(10, width - 12)) or [""]):
        yield line(width, *_name("" if i else name), found)
