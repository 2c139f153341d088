"""Which batteries apply to a case."""

from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.schema.task import BATTERIES


def applying(problem: Problem) -> tuple[str, ...]:
    """Those for which a draw says something."""
    return tuple(battery for battery in BATTERIES if problem.draw(0, battery) is not None)
