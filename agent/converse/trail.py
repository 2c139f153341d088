"""What a run has learned so far, small enough to be told again and again whatever the number of attempts. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from agent.authors.base import Attempt
from agent.converse import facts
from agent.policy import best
from agent.record.events import Reflected
from tools.codec import Json
from tools.receipt import author_view
from tools.spec import TaskSpec

MOST_BEST, MOST_NEWEST, MOST_SCORES = 5, 12, 8


def history_values(task: TaskSpec, attempts: Sequence[Attempt], outcomes: Sequence[Reflected]) -> facts.Values:
    """What history.j2 needs: rows of the best and the newest, one source, the latest failure, scored hypotheses."""
    numbers = {a.attempt_id: a.number for a in attempts}
    ordered = sorted(attempts, key=lambda a: a.number)
    shown, leader = _worth_telling(ordered), best(ordered)
    failure = next((a for a in reversed(ordered) if not a.verdict.accepted), None)
    told = leader or (ordered[-1] if ordered else None)
    counts = Counter(a.verdict.status.value for a in ordered)
    return {
        "count": len(ordered),
        "counts": ", ".join(f"{n} {status}" for status, n in counts.most_common()),
        "rows": [_row(task, a, numbers) for a in shown],
        "unlisted": len(ordered) - len(shown),
        "leader": facts.attempt(task, leader, numbers) if leader else None,
        "told": facts.attempt(task, told, numbers) if told else None,
        "failure": facts.attempt(task, failure, numbers) if failure else None,
        **_scores(numbers, outcomes),
    }


def _worth_telling(ordered: Sequence[Attempt]) -> list[Attempt]:
    """The best and the newest, by number."""
    accepted = sorted((a for a in ordered if a.verdict.accepted), key=lambda a: (a.rank_key, a.number))
    chosen = {a.attempt_id for a in [*accepted[:MOST_BEST], *ordered[-MOST_NEWEST:]]}
    return [a for a in ordered if a.attempt_id in chosen]


def _row(task: TaskSpec, made: Attempt, numbers: Mapping[str, int]) -> facts.Values:
    verdict = author_view(made.verdict, task)
    return {
        "number": made.number,
        "parent": numbers.get(made.parent_id or ""),
        "status": verdict.status.value,
        "result": facts.result(made, verdict),
        "tried": made.proposal.rationale,
        "why": "" if verdict.accepted else verdict.detail,
    }


def _scores(numbers: Mapping[str, int], outcomes: Sequence[Reflected]) -> facts.Values:
    """The latest word on each attempt; how many of those that could be scored held."""
    latest = {r.attempt_id: r for r in outcomes if r.attempt_id in numbers}
    held, refuted = (sum(r.outcome == o for r in latest.values()) for o in ("confirmed", "refuted"))
    newest = sorted(latest.values(), key=lambda r: numbers[r.attempt_id])[-MOST_SCORES:]
    return {
        "scores": [_score(numbers, r) for r in newest],
        "held": held,
        "scored": held + refuted,
        "hit_rate": f"{100 * held / (held + refuted):.0f}" if held + refuted else "",
    }


def _score(numbers: Mapping[str, int], reflected: Reflected) -> facts.Values:
    ratio = reflected.evidence.get("time_ratio_to_parent")
    return {
        "number": numbers[reflected.attempt_id],
        "hypothesis": reflected.hypothesis,
        "prediction": reflected.prediction,
        "predicted": _times(reflected.evidence.get("predicted_speedup")),
        "measured": _times(1 / ratio if _positive(ratio) else None),
        "outcome": reflected.outcome,
    }


def _times(speedup: Json) -> str:
    return f"{speedup:.3g}x" if _positive(speedup) else ""


def _positive(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
