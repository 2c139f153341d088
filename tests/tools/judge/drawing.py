"""Which batteries apply to a case."""

from kerneltune.tools.judge.correctness.batteries import BATTERIES
from kerneltune.tools.judge.correctness.problem import Problem


def applying(problem: Problem) -> tuple[str, ...]:
    """Those for which a draw says something."""
    return tuple(battery for battery in BATTERIES if problem.draw(0, battery) is not None)
