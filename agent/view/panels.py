"""Facts of the best attempt as text, shared by the screen and the closing summary."""

from rich.text import Text

from agent.view import text as words
from agent.view.state import AttemptRow
from agent.view.styles import verdict_label
from tools.verdict import Verdict


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
