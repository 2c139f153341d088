"""Which attempts a drawing of the lineage shows, and in what order: as a tree, best line first. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from agent.record.trajectory import AttemptRecord, Trajectory
from agent.report import looks

MOST_SHOWN = 60


@dataclass(frozen=True)
class Node:
    """A row of the tree. `up`: the row of its parent, None for a first attempt; `hidden`: how many of its descendants
    are not drawn, by verdict."""

    attempt: AttemptRecord
    row: int
    depth: int
    up: int | None
    on_best_line: bool
    hidden: Counter[str] = field(default_factory=Counter)


def ancestors(run: Trajectory, attempt: AttemptRecord) -> list[AttemptRecord]:
    """What it was derived from within the run, nearest first; a circle in a damaged record is left where it closes."""
    found, seen = list[AttemptRecord](), {attempt.attempt_id}
    at = run.parent(attempt)
    while at is not None and at.attempt_id not in seen:
        seen.add(at.attempt_id)
        found.append(at)
        at = run.parent(at)
    return found


def family(run: Trajectory, best: AttemptRecord | None, most: int = MOST_SHOWN) -> list[Node]:
    """The rows from the top. Where there are more attempts than can be drawn, those on the way to the best, the right
    ones and the first ones are."""
    line = {a.attempt_id for a in (best, *ancestors(run, best))} if best else set[str]()
    kept = _kept(run, line, most)
    nodes = list(_walk(run, kept, line))
    rows = {node.attempt.attempt_id: node for node in nodes}
    for attempt in run.attempts:
        if attempt.attempt_id not in rows:
            shown = next((rows[a.attempt_id] for a in ancestors(run, attempt) if a.attempt_id in rows), None)
            if shown is not None:
                shown.hidden[looks.name(attempt.status)] += 1
    return nodes


def _kept(run: Trajectory, line: set[str], most: int) -> set[str]:
    if len(run.attempts) <= most:
        return {a.attempt_id for a in run.attempts}
    kept = set(line)
    for attempt in sorted(run.attempts, key=_importance):
        its = [attempt.attempt_id, *(a.attempt_id for a in ancestors(run, attempt))]
        if len(kept | set(its)) <= most:
            kept |= set(its)
    return kept


def _importance(attempt: AttemptRecord) -> tuple[bool, bool, tuple[float, ...], int]:
    return not attempt.accepted, not attempt.rank_key, attempt.rank_key, attempt.number


def _walk(run: Trajectory, kept: set[str], line: set[str]) -> Iterator[Node]:
    children: dict[str | None, list[AttemptRecord]] = defaultdict(list)
    for attempt in run.attempts:
        if attempt.attempt_id in kept:
            above = run.parent(attempt)
            children[above.attempt_id if above and above.attempt_id in kept else None].append(attempt)
    waiting: list[tuple[AttemptRecord, int, int | None]] = [
        (a, 0, None) for a in reversed(_ordered(children[None], line))
    ]
    row, seen = 0, set[str]()
    while waiting:
        attempt, depth, up = waiting.pop()
        if attempt.attempt_id in seen:
            continue
        seen.add(attempt.attempt_id)
        yield Node(attempt, row, depth, up, attempt.attempt_id in line)
        below = _ordered(children[attempt.attempt_id], line)
        waiting += [(child, depth + 1, row) for child in reversed(below)]
        row += 1


def _ordered(siblings: Iterable[AttemptRecord], line: set[str]) -> list[AttemptRecord]:
    """By number, the one on the best line last, so that the line is not torn apart by its siblings' descendants."""
    return sorted(siblings, key=lambda a: (a.attempt_id in line, a.number))
