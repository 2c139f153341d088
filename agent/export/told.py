"""What may be said of a task and of an attempt's failure: what its author was told, and nothing of a held-out case.

The record keeps the task without its held-out cases, and words that name none. This makes sure of both, for records
that come from elsewhere: a case that the task does not show is taken for a held-out one.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path

from agent.record.events import RunStarted
from agent.record.trajectory import AttemptRecord
from tools.receipt import author_view
from tools.spec import CaseSpec, TaskSpec
from tools.task import MAIN, CaseDef, TaskFile, assignments, visible_source
from tools.verdict import Verdict

MOST_OF_AN_ERROR = 2_000  # characters; a tool's answer to a model is cut there too
_UNDECLARED = frozenset({MAIN, "small"})  # cases that a task has without listing them
_CASE = re.compile(r"^(?:while timing: )?case (.+?)(?: \([^()]* inputs\))?: |\(in case '(.*)'\)$", re.MULTILINE)


def told(run: RunStarted, attempt: AttemptRecord) -> str:
    """Why an attempt failed, in the words that its author was told; "" when it was never judged."""
    if attempt.status is None:
        return ""
    hidden = hidden_cases(run.task_source, attempt)
    if not hidden and "case" not in attempt.detail:
        return attempt.detail[:MOST_OF_AN_ERROR]
    cases = tuple(CaseSpec(name, (), (), None, held_out=True) for name in sorted(hidden))
    task = TaskSpec(run.task, run.task_sha256, "", "", cases)
    verdict = Verdict(attempt.status, attempt.detail, attempt.cases, attempt.timing, receipt={})
    return author_view(verdict, task).detail[:MOST_OF_AN_ERROR]


def hidden_cases(source: str, attempt: AttemptRecord) -> frozenset[str]:
    """Names of cases that an attempt was judged on and that the task does not show."""
    shown, hidden = _declared(source)
    named = {case.case for case in attempt.cases}
    if "case " in attempt.detail:
        named.update(a or b for a, b in _CASE.findall(attempt.detail))
    return hidden | (named - shown)


@lru_cache(maxsize=1024)
def visible(source: str) -> str:
    """A task's source without held-out cases. What does not parse and speaks of any is left out whole."""
    if "held_out" not in source:
        return source
    try:
        hidden = _declared(source)[1]
        cases = tuple(CaseDef(name, held_out=True) for name in sorted(hidden))
        return visible_source(TaskFile("", Path(), source, "", cases))
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError, MemoryError):
        return ""


@lru_cache(maxsize=1024)
def constants(source: str) -> dict[str, object]:
    """Top-level literals of a task's source, by name; what is no literal is left out, and all of it if nothing parses.
    Do not change what is returned."""
    try:
        found = dict(assignments(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return {name: value for name, node in found.items() if (value := _literal(node)) is not None}


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _declared(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the cases that a source lists: those that it shows, and those that it marks as held out."""
    listed = constants(source).get("CASES")
    entries = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list | tuple) else []
    hidden = frozenset(str(c.get("name")) for c in entries if c.get("held_out"))
    return frozenset(str(c.get("name")) for c in entries) - hidden | _UNDECLARED, hidden
