"""The best attempt so far: its time with interval, its share of the speed of light, and each baseline."""

from agent.view import text as words
from agent.view.cells import DIM, Line, Part, line, rule
from agent.view.state import AttemptRow, ViewState
from agent.view.summary import compiler_facts
from agent.view.text import verdict_style
from tools.verdict import Comparison, Verdict

_ONE_LINE = 74  # from this width on time, speed of light and coverage fit on one line
RANKED_BY = "ranked by bytes moved, spills, occupancy, registers"


def best_block(state: ViewState, width: int, most: int = 99) -> list[Line]:
    """A rule that names the attempt, and a line for each fact; `most` baselines, the fastest first."""
    row = state.best
    if row is None or row.verdict is None:
        return [rule(width, ("best so far", "bold")), line(width, (" nothing is proved right yet", DIM))]
    head = rule(width, ("best so far ", "bold"), (f"#{row.number} {words.one_line(row.rationale)}", "bold green"))
    return [head, *(line(width, " ", *parts) for parts in _facts(row, row.verdict, width, most, state.gpu))]


def _facts(row: AttemptRow, verdict: Verdict, width: int, most: int, gpu: str | None) -> list[list[Part]]:
    shown = verdict_style(verdict.status)
    label: Part = (f"{shown.symbol} {verdict.status.value}", shown.colour)
    if verdict.timing is None:
        why: list[Part] = [(f"no GPU, so no time: {RANKED_BY}" if gpu is None else "not timed", DIM)]
        return [[label, "   ", compiler_facts(row)], why]
    first: list[Part] = [label, "  ", (words.timing(verdict.timing), "bold")]
    more: list[Part] = []
    if verdict.sol_fraction is not None:
        more += [f"{verdict.sol_fraction:.0%} of speed of light", "  "]
    if verdict.coverage is not None:
        more += [(f"coverage {verdict.coverage:.0%}", DIM)]
    lines = [[*first, "  ", *more]] if width >= _ONE_LINE or not more else [first, more]
    compared = words.fastest_first(verdict.comparisons)[:most]
    names = max((len(c.baseline) for c in compared), default=0) if width >= _ONE_LINE else 0
    return [*lines, *(_against(c, names) for c in compared)]


def _against(compared: Comparison, names: int) -> list[Part]:
    """Green where the whole interval lies above 1, red where it lies below. `names`: cells of the longest name; 0 where
    there is no room for the baseline's time."""
    colour = "green" if compared.low > 1 else "red" if compared.high < 1 else ""
    baseline = f"  vs {words.one_line(compared.baseline):{names or 1}}"
    time = f"  {words.microseconds(compared.baseline_us):>9}" if names else ""
    return [(f"{words.speedup(compared):<19}", colour), (baseline + time, DIM)]
