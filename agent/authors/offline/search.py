"""Where to go next: pure choices over sketches, their launch parameters and what has been measured so far."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.authors.base import Attempt
from agent.authors.offline.sketch import Sketch, as_params

RESTART_EVERY = 5  # one proposal in five is a jump: neighbours alone stay on the first hill
_DRAWS = 64


@dataclass(frozen=True)
class Move:
    """A sketch at some parameters, derived from an attempt (or from nothing: a default or a jump)."""

    sketch: Sketch
    params: dict[str, int]
    parent: Attempt | None = None
    changed: str | None = None  # the parameter that a neighbour changes
    up: bool = True


def moves(sketches: Sequence[Sketch], history: Sequence[Attempt], *, seed: int, turn: int) -> Iterator[Move]:
    """Moves in the order in which to try them; may repeat what was tried. `turn` counts proposals so far."""
    yield from (Move(sketch, sketch.params) for sketch in sketches)
    known = {sketch.name: sketch for sketch in sketches}
    best = ranked(history, known)
    jump = turn % RESTART_EVERY == RESTART_EVERY - 1
    if jump:
        yield from _jumps(sketches, best, known, random.Random(f"{seed}/jump/{turn}"))
    for attempt in best:
        yield from _neighbours(attempt, known, history, random.Random(f"{seed}/{attempt.number}"))
    if not jump:
        yield from _jumps(sketches, best, known, random.Random(f"{seed}/last/{turn}"))


def ranked(history: Iterable[Attempt], known: Mapping[str, Sketch]) -> list[Attempt]:
    """Our own accepted attempts, best first."""
    own = [a for a in history if a.rank_key and a.proposal.params.get("sketch") in known]
    return sorted(own, key=lambda a: (a.rank_key, a.number))


def _neighbours(
    attempt: Attempt, known: Mapping[str, Sketch], history: Sequence[Attempt], rng: random.Random
) -> Iterator[Move]:
    sketch = known[str(attempt.proposal.params["sketch"])]
    params = {**sketch.params, **as_params(attempt.proposal.params)}
    steps = [(name, up) for name in sketch.space for up in (True, False)]
    rng.shuffle(steps)
    last = _last_step(attempt, history)
    steps.sort(key=lambda step: step != last)  # what helped once is tried again first
    for name, up in steps:
        value = _next_value(sketch.space[name], params[name], up)
        if value is not None:
            yield Move(sketch, {**params, name: value}, attempt, name, up)


def _last_step(attempt: Attempt, history: Sequence[Attempt]) -> tuple[str, bool] | None:
    """The single parameter in which an attempt differs from its parent, and whether it grew."""
    parent = next((a for a in history if a.attempt_id == attempt.parent_id), None)
    if parent is None:
        return None
    before, after = as_params(parent.proposal.params), as_params(attempt.proposal.params)
    changed = [name for name in after if name in before and after[name] != before[name]]
    return (changed[0], after[changed[0]] > before[changed[0]]) if len(changed) == 1 else None


def _next_value(values: Sequence[int], value: int, up: bool) -> int | None:
    if up:
        return min((v for v in values if v > value), default=None)
    return max((v for v in values if v < value), default=None)


def _jumps(
    sketches: Sequence[Sketch], best: Sequence[Attempt], known: Mapping[str, Sketch], rng: random.Random
) -> Iterator[Move]:
    """Random points, half of them of the best attempt's sketch."""
    open_ones = [s for s in sketches if s.space]
    if not open_ones:
        return
    favourite = known[str(best[0].proposal.params["sketch"])] if best else open_ones[0]
    for _ in range(_DRAWS):
        sketch = favourite if favourite.space and rng.random() < 0.5 else rng.choice(open_ones)
        yield Move(sketch, {name: rng.choice(values) for name, values in sketch.space.items()})
