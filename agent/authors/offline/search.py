"""Where to go next: pure choices over sketches, their launch parameters and what has been measured so far.

First what earlier runs found, then each sketch as it is, then the points from which most is expected. Equal arguments
give equal moves, on the same machine (numpy's sums may differ in the last bit on another).
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from agent.attempt import Attempt, Earlier
from agent.authors.offline.earlier import OF_OTHER_SHAPES, Remembered
from agent.authors.offline.model import Expected, Floats, Levels, as_levels, expected, improvement, likely_fine
from agent.authors.offline.put_off import Judge
from agent.authors.offline.sketch import Sketch
from agent.authors.offline.space import Level, Space, Tried, tried

MOST_POINTS = 256  # of a space that is compared as a whole; spaces of experts have up to 3,840
DRAWN = 96  # beside those that differ from the best in one parameter
JUMP_EVERY = 12  # turns, of which one compares points from anywhere in a large space
AWAY = 0.2  # log time above a sketch's best that its points are expected to be, before anything is known
WORTH = 3.0  # as many points as that guess counts
FLAT = 0.2  # log time above the best beyond which differences count less and less
FAR = 0.4  # log time by which a sketch is beaten as it is, so that no further launch parameters are likely to help
UNTRIED = 0.3  # log time above the best that is expected of a sketch of which nothing is known
SHARED_LIMIT_BYTES = 227 << 10
_TOP = 2  # points of a sketch around which others are compared


@dataclass(frozen=True)
class Move:
    """A sketch at some parameters, derived from an attempt (or from nothing: a default or a jump). `steps`: the
    parameters in which it differs from the parent, and whether each grows; `why`: what the model or the record says."""

    sketch: Sketch
    params: dict[str, int]
    parent: Attempt | None = None
    steps: tuple[tuple[str, bool], ...] = ()
    why: str = ""
    origin: str | None = None  # the attempt of an earlier run that it is


@dataclass(frozen=True)
class View:
    """All that the next move depends on. `under_way`: points that were proposed and have no verdict yet; `turn` counts
    proposals so far."""

    sketches: Sequence[Sketch]
    history: Sequence[Attempt]
    under_way: Sequence[tuple[str, Mapping[str, int]]] = ()
    earlier: Remembered = field(default_factory=Remembered)
    limit_bytes: int = SHARED_LIMIT_BYTES
    seed: int = 0
    turn: int = 0


@dataclass
class Found:
    """Moves in the order in which to try them, and how many points were put off, by reason."""

    moves: Iterator[Move]
    put_off: Counter[str] = field(default_factory=Counter)


def search(view: View) -> Found:
    """The moves of a view. They may repeat what was tried at the start, and never do afterwards."""
    put_off: Counter[str] = Counter()
    return Found(_moves(view, put_off), put_off)


def _moves(view: View, put_off: Counter[str]) -> Iterator[Move]:
    known = {sketch.name: sketch for sketch in view.sketches}
    points = tried(view.history, known)
    yield from (_again(e, known, "the best of an earlier run here") for e in view.earlier.best)
    yield from (Move(s, s.params) for s in view.sketches if not view.earlier.knows(s.name, s.params))
    yield from _from_other_shapes(view.earlier.elsewhere, known, points)
    yield from _starts(view.sketches, points)
    every = [*points, *view.earlier.points]
    best = min((p.value for p in every if p.value is not None), default=0.0)
    rated = [r for s in view.sketches if s.space and (r := _rate(Space(s), every, best, view)) is not None]
    yield from _promising(rated, points, put_off)


def _again(one: Earlier, known: Mapping[str, Sketch], why: str) -> Move:
    return Move(known[one.sketch], dict(one.params), why=f"{why}, {one.attempt_id}", origin=one.attempt_id)


def _from_other_shapes(
    found: Sequence[Earlier], known: Mapping[str, Sketch], points: Sequence[Tried]
) -> Iterator[Move]:
    """Of the sketches that are fastest as they are, what was best elsewhere."""
    base = _as_they_are(known, points)
    ranked = sorted(found, key=lambda e: base.get(e.sketch, math.inf))
    for one in ranked[:OF_OTHER_SHAPES]:
        yield Move(known[one.sketch], dict(one.params), why=f"the best on {one.task} in {one.attempt_id}")


def _starts(sketches: Sequence[Sketch], points: Sequence[Tried]) -> Iterator[Move]:
    """What torch.compile would time, too, of Inductor's kernels as it writes them, the first of the sketches; nothing
    where another sketch is far ahead as it is."""
    base = _as_they_are({sketch.name: sketch for sketch in sketches}, points)
    for sketch in sketches[:1]:
        if base.get(sketch.name, 0.0) <= min(base.values(), default=0.0) + FAR:
            yield from (Move(sketch, dict(start), why="Inductor would time it") for start in sketch.starts)


def _as_they_are(known: Mapping[str, Sketch], points: Sequence[Tried]) -> dict[str, float]:
    """The values of sketches at their defaults."""
    return {p.sketch: p.value for p in reversed(points) if p.value is not None and p.params == known[p.sketch].params}


@dataclass(frozen=True)
class _Rated:
    """The open points of a sketch. `gain`: by how much each is expected to beat the best, in log time."""

    space: Space
    levels: list[Level]
    found: Expected
    gain: list[float]
    late: list[str]  # why each comes last, "" where it does not


def _rate(space: Space, every: Sequence[Tried], best: float, view: View) -> _Rated | None:
    name = space.sketch.name
    mine = [p for p in every if p.sketch == name]
    pending = [space.level(params) for sketch, params in view.under_way if sketch == name]
    closed = {space.level(p.params) for p in mine if p.attempt is not None or p.value is None} | set(pending)
    levels = _open_points(space, mine, closed, view)
    if not levels:
        return None
    found = _expected(space, [p for p in mine if p.value is not None], pending, levels, best)
    fine = as_levels([space.level(p.params) for p in mine if p.value is not None], len(space.names))
    failed = as_levels([space.level(p.params) for p in mine if p.value is None], len(space.names))
    asked = as_levels(levels, len(space.names))
    gain = improvement(found, best) * likely_fine(fine, failed, asked)
    judge = Judge.of(space, mine, view.limit_bytes)
    return _Rated(space, levels, found, gain.tolist(), judge.why(levels))


def _open_points(space: Space, mine: Sequence[Tried], closed: set[Level], view: View) -> list[Level]:
    """Those to compare, in an order of chance: all of a small space; of a large one what differs from the best in one
    or two parameters, and in one turn of `JUMP_EVERY` points from anywhere."""
    rng = random.Random(f"{view.seed}/{view.turn}/{space.sketch.name}")
    if space.size <= MOST_POINTS:
        levels = space.points(MOST_POINTS, rng)
    elif view.turn % JUMP_EVERY == JUMP_EVERY - 1:
        levels = space.points(DRAWN, rng)
    else:
        top = sorted((p for p in mine if p.value is not None), key=lambda p: p.value or 0.0)[:_TOP]
        centres = [space.level(p.params) for p in top] or [space.default]
        near = [at for centre in centres for at in space.changed(centre)]
        levels = [*near, *(rng.choice(list(space.changed(rng.choice(near)))) for _ in range(DRAWN))]
    rng.shuffle(levels)
    return [at for at in dict.fromkeys(levels) if at not in closed]


def _expected(
    space: Space, valued: Sequence[Tried], pending: Sequence[Level], asked: Sequence[Level], best: float
) -> Expected:
    """The model of one sketch. Points under way count as if what is expected of them had come true, so that the next
    proposal goes elsewhere."""
    width = len(space.names) + 1
    rows = [space.level(p.params) for p in valued]
    raw = _flattened(np.array([p.value for p in valued], dtype=float), best)
    noises = np.array([p.noise for p in valued], dtype=float)
    if not rows:  # the untried default stands for the sketch, and tells little
        rows, raw, noises = [space.default], np.array([best + UNTRIED]), np.ones(1)
    middle = (float(raw.sum()) + WORTH * (float(raw.min()) + AWAY)) / (len(raw) + WORTH)
    values = raw - middle

    def at(levels: Sequence[Level]) -> Levels:
        return as_levels(space.coordinates(levels), width)

    if pending:
        believed = expected(at(rows), values, noises, at(pending)).mean
        rows, values = [*rows, *pending], np.concatenate([values, believed])
        noises = np.concatenate([noises, np.full(len(pending), 0.003)])
    found = expected(at(rows), values, noises, at(asked))
    return Expected(found.mean + middle, found.deviation)


def _flattened(values: Floats, best: float) -> Floats:
    """What is far from the best, less far: how slow slow points are says nothing of the fast ones."""
    found: Floats = best + FLAT * np.log1p(np.maximum(values - best, 0.0) / FLAT)
    return found


def _promising(rated: Sequence[_Rated], points: Sequence[Tried], put_off: Counter[str]) -> Iterator[Move]:
    """Points by what is expected of them, put-off ones last."""
    put_off.update(why for r in rated for why in r.late if why)
    timed = any(p.attempt is not None and p.attempt.verdict.timing is not None for p in points)
    every = [(bool(r.late[i]), -_coarse(r.gain[i]), at, i) for at, r in enumerate(rated) for i in range(len(r.levels))]
    for _, _, at, i in sorted(every):
        yield _move(rated[at], i, points, timed=timed)


def _coarse(gain: float) -> float:
    """To two digits: the model knows no more, chance decides between equals, and no sum's last bit does."""
    return float(f"{gain:.1e}")


def _move(rated: _Rated, i: int, points: Sequence[Tried], *, timed: bool) -> Move:
    sketch, params = rated.space.sketch, rated.space.params(rated.levels[i])
    parent = _parent(rated.space, rated.levels[i], points)
    why = _in_words(rated.found, i, len(points)) if timed else ""
    if parent is None or parent.attempt is None:
        return Move(sketch, params, why=why)
    steps = tuple((n, params[n] > parent.params[n]) for n in rated.space.names if params[n] != parent.params[n])
    return Move(sketch, params, parent.attempt, steps, why)


def _parent(space: Space, level: Level, points: Sequence[Tried]) -> Tried | None:
    """The accepted attempt of the sketch that differs least; the faster, then the earlier one of several."""
    own = [p for p in points if p.sketch == space.sketch.name and p.value is not None]

    def far(point: Tried) -> tuple[int, float]:
        other = space.level(point.params)
        return sum(a != b for a, b in zip(level, other, strict=True)), point.value or 0.0

    return min(own, key=far, default=None)


def _in_words(found: Expected, i: int, points: int) -> str:
    mean, spread = float(found.mean[i]), 2 * float(found.deviation[i])
    low, middle, high = (math.exp(v) for v in (mean - spread, mean, mean + spread))
    return f"{middle:.4g} µs [{low:.4g}, {high:.4g}] expected after {points} attempts"
