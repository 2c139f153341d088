"""The parts of the screen, each a pure function of the state and of the room that it gets."""

import textwrap
from collections.abc import Iterator
from functools import lru_cache

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from agent.view import text as words
from agent.view.state import AttemptRow, Budget, LogEntry, ViewState
from agent.view.styles import stage_label, verdict_label
from tools.verdict import Verdict

DETAIL_WIDTH = 100  # from this width on, the attempts table also says what happened
NARROW = 60  # below it, only number, verdict and what was tried
_BAR_CELLS = 24
_LOG_COLOURS = {"author": "", "judge": "", "reflection": "", "warning": "yellow", "run": "dim"}
_MACHINE_FACTS = ("driver", "torch", "triton", "kerneltune")


def header(state: ViewState, width: int, now: float, *, facts: bool = False) -> list[Text]:
    """Task, machine, author, elapsed and budget, as lines no longer than `width`; `facts` adds versions."""
    lines = [_title(state, width, now), *_machine(state, width)]
    if state.budgets(now):
        lines.append(_budget_line(state, width, now))
    if facts and state.started:
        lines.append(_facts(state))
    return lines


def _title(state: ViewState, width: int, now: float) -> Text:
    left = Text("kerneltune", style="bold").append(f"  {words.one_line(state.task or 'starting…')}", style="bold cyan")
    right = Text(words.duration(state.elapsed_s(now)), style="bold")
    author = Text()
    if state.started:
        author = Text(words.one_line(f"author {state.started.author} ({state.started.author_why})"))
    room = width - left.cell_len - right.cell_len - 4
    author.truncate(room if room > len("author ") else 0, overflow="ellipsis")
    gap = max(1, width - left.cell_len - author.cell_len - right.cell_len - 2)
    return Text.assemble(left, " " * gap, author, "  ", right, no_wrap=True)


def _machine(state: ViewState, width: int) -> list[Text]:
    if state.started is None:
        return []
    if state.gpu is None:
        return [Text(line, style="yellow") for line in textwrap.wrap(words.NO_GPU, width)]
    return [Text(words.one_line(f"GPU {state.gpu}"), no_wrap=True)]


def _facts(state: ViewState) -> Text:
    known = {**state.started.machine, **state.started.versions} if state.started else {}
    facts = [f"{name} {known[name]}" for name in _MACHINE_FACTS if isinstance(known.get(name), str)]
    arch = state.started.arch if state.started else ""
    return _quiet("   ".join([f"compiled for {arch}", *facts]))


def _quiet(text: str) -> Text:
    return Text(words.one_line(text), style="dim", no_wrap=True, overflow="ellipsis")


def _budget_line(state: ViewState, width: int, now: float) -> Text:
    budgets = state.budgets(now)
    told = "".join(f"  {b.name} {_amount(b, b.used)}/{_amount(b, b.limit)}" for b in budgets)
    cells = max(0, min(_BAR_CELLS, width - len("budget ") - len(told)))
    used = round(cells * max(b.fraction for b in budgets))
    line = Text("budget ", no_wrap=True).append("━" * used, style="cyan").append("─" * (cells - used), style="dim")
    return line.append(told)


def _amount(budget: Budget, value: float) -> str:
    if budget.name == "cost":
        return words.dollars(value)
    return words.duration(value) if budget.name == "time" else f"{value:.0f}"


def best(state: ViewState) -> Panel:
    """The best attempt and what is known of it: times on a GPU, what the compiler reports without one."""
    row = state.best
    if row is None:
        return Panel(Text("nothing is proved right yet", style="dim"), title="best so far", title_align="left")
    title = Text(f"best so far: #{row.number} {words.one_line(row.rationale)}", no_wrap=True)
    return Panel(Group(*best_lines(row)), title=title, title_align="left", border_style="green")


def best_lines(row: AttemptRow) -> list[Text]:
    """One fact a line, the most important first."""
    verdict = row.verdict
    if verdict is None:
        return []
    line = verdict_label(verdict.status, padded=False)
    if verdict.timing is None:
        return [line.append("   " + compiler_facts(row), style="default")]
    line.append(f"   {words.timing(verdict.timing)}", style="bold default")
    if verdict.sol_fraction is not None:
        line.append(f"   {verdict.sol_fraction:.0%} of speed of light", style="default")
    if verdict.coverage is not None:
        line.append(f"   coverage {verdict.coverage:.0%}", style="default")
    return [line, *_speedups(verdict)]


def _speedups(verdict: Verdict) -> list[Text]:
    compared = words.fastest_first(verdict.comparisons)
    names = max((len(c.baseline) for c in compared), default=0)
    lines = (f"vs {c.baseline:{names}} {words.microseconds(c.baseline_us):>9}   {words.speedup(c)}" for c in compared)
    return [Text(words.clean(line), no_wrap=True, overflow="ellipsis") for line in lines]


def compiler_facts(row: AttemptRow) -> str:
    """Registers, spills, occupancy and shared memory, in words."""
    if not row.kernels:
        return "no kernel compiled"
    return "   ".join(
        (
            f"registers {words.registers(row.kernels)}",
            f"spills {words.size(words.spill_bytes(row.kernels))}",
            f"occupancy {words.occupancy(row.kernels):.0%}",
            f"shared {words.size(words.shared_bytes(row.kernels))}",
        )
    )


def attempts(state: ViewState, width: int, height: int) -> RenderableType:
    """The newest attempts that fit, newest last; a first line counts those above."""
    room = max(1, height - 1)
    rows = state.attempts[-room:]
    hidden = state.unseen_attempts + len(state.attempts) - len(rows)
    if hidden:
        rows = rows[1:] if len(rows) == room and room > 1 else rows
        hidden = state.unseen_attempts + len(state.attempts) - len(rows)
    table = _attempts_table(state, width)
    for row in rows:
        table.add_row(*_cells(state, row, width), style="bold" if row.attempt_id == state.best_id else "")
    return Group(Text(f"  ⋮ {hidden} earlier", style="dim"), table) if hidden else table


def _attempts_table(state: ViewState, width: int) -> Table:
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim", pad_edge=True)
    table.add_column("#", justify="right", no_wrap=True)
    if width >= NARROW:
        table.add_column("parent", justify="right", no_wrap=True)
    table.add_column("what was tried", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("verdict", no_wrap=True)
    if width >= NARROW:
        for name in ("time", "speed-up") if state.gpu else ("registers", "spills"):
            table.add_column(name, justify="right", no_wrap=True)
    if width >= DETAIL_WIDTH:
        table.add_column("what happened", no_wrap=True, overflow="ellipsis", ratio=1)
    return table


def _cells(state: ViewState, row: AttemptRow, width: int) -> Iterator[RenderableType]:
    yield str(row.number)
    if width >= NARROW:
        yield state.number_of(row.parent_id) if row.parent_id else "-"
    yield Text(words.one_line(row.rationale))
    yield verdict_label(row.verdict.status) if row.verdict else stage_label(row.stage)
    if width >= NARROW:
        yield from _measured(row) if state.gpu else _compiled(row)
    if width >= DETAIL_WIDTH:
        yield Text(words.one_line(row.verdict.detail) if row.verdict else "", style="dim")


def _measured(row: AttemptRow) -> tuple[str, str]:
    verdict = row.verdict
    if verdict is None or verdict.timing is None:
        return "", ""
    hardest = next(iter(words.fastest_first(verdict.comparisons)), None)
    return words.microseconds(verdict.timing.median_us), words.short_speedup(hardest) if hardest else ""


def _compiled(row: AttemptRow) -> tuple[str, str]:
    return (words.registers(row.kernels), words.size(words.spill_bytes(row.kernels))) if row.kernels else ("", "")


def source(state: ViewState, height: int) -> Panel:
    """The newest candidate, from its first kernel on when it is longer than the panel."""
    row = state.current
    if row is None:
        return Panel(Text("no candidate yet", style="dim"), title="source", title_align="left")
    lines = words.clean(row.source).rstrip().split("\n")
    start = first_line(lines, height - 2)
    title = f"source of #{row.number}" + (f", from line {start + 1} of {len(lines)}" if start else "")
    code = _highlight("\n".join(lines[start : start + max(1, height - 2)]))
    return Panel(code, title=title, title_align="left", border_style="dim")


def first_line(lines: list[str], room: int) -> int:
    """Which line to show first: a kernel is worth more than the imports above it."""
    if len(lines) <= room:
        return 0
    kernels = (i for i, line in enumerate(lines) if line.startswith(("@triton", "PTX", "_PTX", ".visible")))
    return min(next(kernels, 0), max(0, len(lines) - room))


@lru_cache(maxsize=4)  # 2 ms for 60 lines, of 21 for a frame of 200x60
def _highlight(code: str) -> Text:
    shown = Syntax("", "python", theme="ansi_dark", background_color="default").highlight(code)
    shown.rstrip()
    shown.no_wrap, shown.overflow = True, "ellipsis"
    return shown


def log(state: ViewState, width: int, height: int) -> Panel:
    """The last lines of what was said and decided; what the author is saying now comes last."""
    lines = _tail(state, max(10, width - 4), max(1, height - 2))
    title = "author is writing…" if state.streaming else "ended" if state.ended else state.stage
    return Panel(Group(*lines), title=Text(words.one_line(title)), title_align="left", border_style="dim")


def _tail(state: ViewState, width: int, room: int) -> list[Text]:
    """From the newest entry backwards until the room is full."""
    lines = [_log_line(line, "italic") for line in _wrapped(state.streaming, width)]
    for entry in reversed(state.log):
        if len(lines) >= room:
            break
        lines = [*_entry(entry, width), *lines]
    return lines[-room:]


def _entry(entry: LogEntry, width: int) -> list[Text]:
    mark = "! " if entry.who == "warning" else ""
    return [_log_line(line, _LOG_COLOURS[entry.who]) for line in _wrapped(mark + entry.text, width)]


def _log_line(line: str, style: str) -> Text:
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")


def _wrapped(text: str, width: int) -> list[str]:
    lines = words.clean(text).strip().split("\n")
    return [part for line in lines for part in textwrap.wrap(line, width)]


def gpu_strip(state: ViewState) -> Text:
    """The last sample of the GPU, on one line."""
    return _quiet(state.gpu_sample)


def footer(state: ViewState, width: int) -> Text:
    """What a person can do now; the counts by verdict where there is room."""
    resume = f": optimize --resume {state.run_id}" if state.run_id else ""
    line = f"{'ended' if state.ended else 'Ctrl-C stops; nothing finished is lost'}{resume}"
    counts = "   " + "  ".join(f"{status} {n}" for status, n in state.by_status.items())
    return _quiet(line + counts if len(line + counts) <= width else line)
