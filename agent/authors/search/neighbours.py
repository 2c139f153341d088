"""The neighbour search: candidates with open launch parameters, what earlier runs on the same GPU found at their
points, and where to go next. Pure: equal arguments give equal moves.

First what earlier runs found, then each sketch as it is, then the neighbours of the best points in one parameter, and
now and then a point from anywhere.
"""

import hashlib
import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kerneltune.agent.attempt import Attempt, Earlier, point_of, rank_order
from kerneltune.tools.schema.codec import plural

Params = Mapping[str, int]
BEGIN_WITH = 3  # of the best points of earlier runs on this task
JUMP_EVERY = 5  # turns, of which one begins with a jump: neighbours alone stay on the first hill
OF_OTHER_SHAPES = 3  # points that were best on other tasks
FAR = 1.5  # times as slow as the fastest as it is: no further launch parameters are likely to help
SHARED_LIMIT_BYTES = 227 << 10
TOO_LARGE = "more shared memory than a block has"
SPILLS = "more spills than in a point that was slow"
FAILING = "every point of the kernel so far failed"
_DRAWS = 64
MOST_POINTS = 4096  # of a sketch, at the end: eight kernels together have more points than memory
_SPILLED_BYTES = 64  # per thread: a few spilled registers cost nothing that could be measured
_FAILURES = 2  # of a kernel that never was right, whatever its parameters; too much shared memory does not count
_CLEARLY_SLOWER = 1.1  # times the sketch's best
# With it a block holds more.
_GROWS = ("BLOCK", "TILE", "CHUNK", "STAGES", "TOKENS", "HEADS", "CONV_M", "PLACES")
_SHRINKS = "WARPS"  # with it each thread holds less
_CONSTANT = re.compile(r"(?m)^(\w+) = -?\d+\b")


class CannotLower(Exception):
    """TorchInductor, or our reading of what it wrote, does not cover this task; the message says why."""


class LowersTooLong(CannotLower):
    """TorchInductor did not end within its limit of processor time."""


class NoKernel(CannotLower):
    """TorchInductor left all of the work to libraries."""


@dataclass(frozen=True)
class Sketch:
    """`params` are the defaults and `space` the values worth trying, in order; `starts` are whole points to try
    beside the defaults; `says` explains the idea to a person; `algebraic`: rewrites of the formula that it rests on."""

    name: str
    source: str
    says: str
    params: dict[str, int] = field(default_factory=dict)
    space: dict[str, tuple[int, ...]] = field(default_factory=dict)
    starts: tuple[Params, ...] = ()
    algebraic: tuple[str, ...] = ()

    def render(self, params: Params) -> str:
        """The candidate with these parameters. Raises KeyError for one that the file does not have."""
        counts = dict.fromkeys(params, 0)

        def put(line: re.Match[str]) -> str:
            name = line[1]
            if name not in params:
                return line[0]
            counts[name] += 1
            return f"{name} = {params[name]}"

        # one pass for all: DenseNet-121 has 554 parameters in 412 kB, and one pass for each took 0.9 s
        text = _CONSTANT.sub(put, self.source)
        for name, count in counts.items():
            if count != 1:
                raise KeyError(f"{self.name}: {count} lines '{name} = …' instead of one")
        return text


def fingerprint(source: str) -> str:
    """Equal for sources that differ in comments' and lines' trailing space only."""
    lines = (line.split("  # ")[0].rstrip() for line in source.splitlines())
    kept = [line for line in lines if line and not line.lstrip().startswith("#")]
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


@dataclass(frozen=True)
class Remembered:
    """What earlier runs tell of a task's sketches, checked against their text: a sketch that has changed since is
    another one. `points`: of this task; `best`: where to begin; `elsewhere`: the best of each sketch on other tasks."""

    points: tuple[Earlier, ...] = ()
    best: tuple[Earlier, ...] = ()
    elsewhere: tuple[Earlier, ...] = ()
    runs: int = 0

    @classmethod
    def of(cls, found: Sequence[Earlier], known: Mapping[str, Sketch]) -> "Remembered":
        """What counts of what was found, for these sketches."""
        ours = [e for e in found if e.sketch in known]
        same = [e for e in ours if e.same_task and _is_same(e, known[e.sketch])]
        ranked = sorted((e for e in same if e.median_us), key=lambda e: (e.median_us or 0.0, e.attempt_id))
        right = {(e.sketch, _key_of(e.params)) for e in ranked}  # what was timed once has failed by chance
        failed = [e for e in same if e.median_us is None and e.same_versions]
        failed = [e for e in failed if (e.sketch, _key_of(e.params)) not in right]
        return cls(
            (*ranked, *failed),
            tuple(_distinct(ranked))[:BEGIN_WITH],
            tuple(_distinct(_elsewhere([e for e in ours if not e.same_task], known))),
            len({e.attempt_id.rpartition("/")[0] for e in same}),
        )

    def knows(self, sketch: str, params: Mapping[str, int]) -> bool:
        """Whether an earlier run on this task has tried the point."""
        return any(p.sketch == sketch and dict(p.params) == dict(params) for p in self.points)

    def failed(self, sketch: str, params: Mapping[str, int]) -> bool:
        """Whether the point failed in an earlier run with the same versions, so that it would again."""
        return any(p.median_us is None and p.sketch == sketch and dict(p.params) == dict(params) for p in self.points)

    @property
    def words(self) -> str:
        """What is made of it, for a person; "" where there is nothing."""
        parts = []
        if self.points:
            runs = "an earlier run" if self.runs == 1 else f"{self.runs} earlier runs"
            parts.append(f"begins with {plural(len(self.best), 'best point')} of {runs} of this task on this GPU")
            failed = {(p.sketch, _key_of(p.params)) for p in self.points if p.median_us is None}
            known = plural(len(self.points), "point")
            parts.append(f"{known} known from there, {len(failed)} of them failed and are left")
        if self.elsewhere:
            parts.append(f"{plural(len(self.elsewhere), 'best point')} of other tasks come after the defaults")
        return "; ".join(parts)


def _key_of(params: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """A point's parameters as something to look up."""
    return tuple(sorted(params.items()))


def _is_same(one: Earlier, sketch: Sketch) -> bool:
    if set(one.params) != set(sketch.params):
        return False
    return hashlib.sha256(sketch.render(one.params).encode()).hexdigest() == one.source_sha256


def _distinct(ranked: Sequence[Earlier]) -> list[Earlier]:
    found = {(e.sketch, _key_of(e.params)): e for e in reversed(ranked)}
    return [e for e in ranked if found[(e.sketch, _key_of(e.params))] is e]


def _elsewhere(others: Sequence[Earlier], known: Mapping[str, Sketch]) -> list[Earlier]:
    """Of each expert and other task the best point, whose parameters this task's sketch has, too. What Inductor wrote
    for another task is another kernel under the same name."""
    best: dict[tuple[str, str], Earlier] = {}
    for one in others:
        unlike = one.sketch.startswith("inductor") or set(one.params) != set(known[one.sketch].params)
        if one.median_us is None or unlike:
            continue
        key = one.sketch, one.task
        if key not in best or one.median_us < (best[key].median_us or math.inf):
            best[key] = one
    return sorted(best.values(), key=lambda e: (list(known).index(e.sketch), e.attempt_id))


@dataclass(frozen=True)
class Move:
    """A sketch at some parameters, derived from an attempt (or from nothing: a default or a jump). `step`: the one
    parameter in which it differs from the parent, and whether that grows; `why`: what the record says."""

    sketch: Sketch
    params: dict[str, int]
    parent: Attempt | None = None
    step: tuple[str, bool] | None = None
    why: str = ""
    origin: str | None = None  # the attempt of an earlier run that it is


@dataclass(frozen=True)
class View:
    """All that the next move depends on. `turn` counts proposals so far; `climbs_untimed`: whether attempts without a
    time are ordered well enough to try the neighbours of the first."""

    sketches: Sequence[Sketch]
    history: Sequence[Attempt]
    earlier: Remembered = field(default_factory=Remembered)
    limit_bytes: int = SHARED_LIMIT_BYTES
    seed: int = 0
    turn: int = 0
    climbs_untimed: bool = True


def search(view: View, put_off: Callable[[str, str], None] = lambda sketch, why: None) -> Iterator[Move]:
    """Moves in the order in which to try them; they may repeat what was tried. What is likely to be refused or slow
    comes last, and `put_off` hears of which sketch and why."""
    known = {sketch.name: sketch for sketch in view.sketches}
    outcomes = {name: Outcomes.of(sketch, view.history, view.limit_bytes) for name, sketch in known.items()}
    late = []
    for move in _moves(view, known):
        if view.earlier.failed(move.sketch.name, move.params):
            continue
        if why := outcomes[move.sketch.name].why_late(move.params):
            put_off(move.sketch.name, why)
            late.append(move)
        else:
            yield move
    yield from late


def _moves(view: View, known: Mapping[str, Sketch]) -> Iterator[Move]:
    for one in view.earlier.best:
        yield _again(one, known, f"the best of an earlier run here, {one.attempt_id}", one.attempt_id)
    yield from (Move(s, s.params) for s in view.sketches if not view.earlier.knows(s.name, s.params))
    best = [a for a in _ranked(view.history, known) if a.timing is not None or view.climbs_untimed]
    order = list(dict.fromkeys(_sketch_of(a, known).name for a in best))
    fastest_first = sorted(view.earlier.elsewhere, key=lambda e: order.index(e.sketch) if e.sketch in order else 99)
    for one in fastest_first[:OF_OTHER_SHAPES]:
        yield _again(one, known, f"the best on {one.task} in {one.attempt_id}")
    yield from _starts(view, known)
    jump = view.turn % JUMP_EVERY == JUMP_EVERY - 1
    if jump:
        yield from _jumps(view, best, known)
    for attempt in best:
        yield from _neighbours(attempt, known, view)
    if not jump:
        yield from _jumps(view, best, known)
    yield from _all_points(view)


def _again(one: Earlier, known: Mapping[str, Sketch], why: str, origin: str | None = None) -> Move:
    return Move(known[one.sketch], dict(one.params), why=why, origin=origin)


def _ranked(history: Iterable[Attempt], known: Mapping[str, Sketch]) -> list[Attempt]:
    """Our own accepted attempts, best first."""
    own = [a for a in history if a.rank_key and _sketch_name(a) in known]
    return sorted(own, key=rank_order)


def _sketch_name(attempt: Attempt) -> str | None:
    point = point_of(attempt.origin)
    return point.sketch if point else None


def _sketch_of(attempt: Attempt, known: Mapping[str, Sketch]) -> Sketch:
    return known[_sketch_name(attempt) or ""]


def _params(attempt: Attempt) -> Params:
    point = point_of(attempt.origin)
    return point.params if point else {}


def _point_of(attempt: Attempt, sketch: Sketch) -> dict[str, int]:
    return {**sketch.params, **_params(attempt)}


def _starts(view: View, known: Mapping[str, Sketch]) -> Iterator[Move]:
    """What torch.compile would time, too, of Inductor's kernels as it writes them, the first of the sketches that has
    such; nothing where another sketch is far ahead as it is."""
    first = next((sketch for sketch in view.sketches if sketch.starts), None)
    if first is None:
        return
    own = [a for a in view.history if a.timing is not None and _sketch_name(a) in known]
    base = {s.name: a.rank_key[0] for a in own if a.rank_key and _point_of(a, s := _sketch_of(a, known)) == s.params}
    if base.get(first.name, 0.0) <= min(base.values(), default=0.0) * FAR:
        yield from (Move(first, dict(start), why="Inductor would time it") for start in first.starts)


def _neighbours(attempt: Attempt, known: Mapping[str, Sketch], view: View) -> Iterator[Move]:
    """One parameter one value up or down."""
    sketch = _sketch_of(attempt, known)
    params = _point_of(attempt, sketch)
    steps = [(name, up) for name in sketch.space for up in (True, False)]
    random.Random(f"{view.seed}/{attempt.number}").shuffle(steps)
    last = _last_step(attempt, view.history)
    steps.sort(key=lambda step: step != last)  # what helped once is tried again first
    for name, up in steps:
        value = _next_value(sketch.space[name], params[name], up)
        if value is not None:
            yield Move(sketch, {**params, name: value}, attempt, (name, up))


def _last_step(attempt: Attempt, history: Sequence[Attempt]) -> tuple[str, bool] | None:
    """The single parameter in which an attempt differs from its parent, and whether it grew."""
    parent = next((a for a in history if a.attempt_id == attempt.parent_id), None)
    if parent is None:
        return None
    before, after = _params(parent), _params(attempt)
    changed = [name for name in after if name in before and after[name] != before[name]]
    return (changed[0], after[changed[0]] > before[changed[0]]) if len(changed) == 1 else None


def _next_value(values: Sequence[int], value: int, up: bool) -> int | None:
    if up:
        return min((v for v in values if v > value), default=None)
    return max((v for v in values if v < value), default=None)


def _jumps(view: View, best: Sequence[Attempt], known: Mapping[str, Sketch]) -> Iterator[Move]:
    """Points of chance, half of them of the best attempt's sketch."""
    rng = random.Random(f"{view.seed}/jump/{view.turn}")
    open_ones = [s for s in view.sketches if s.space]
    favourite = next((s for a in best if (s := _sketch_of(a, known)).space), None)
    for _ in range(_DRAWS if open_ones else 0):
        sketch = favourite if favourite and rng.random() < 0.5 else rng.choice(open_ones)
        yield Move(sketch, {**sketch.params, **{name: rng.choice(values) for name, values in sketch.space.items()}})


def _all_points(view: View) -> Iterator[Move]:
    """Every point, for when nothing better is left; of sketches with too many, some."""
    for sketch in view.sketches:
        rng, values = random.Random(f"{view.seed}/{sketch.name}"), list(sketch.space.values())
        if math.prod(map(len, values)) <= MOST_POINTS:
            points = list(itertools.product(*values))
            rng.shuffle(points)
        else:
            points = [tuple(map(rng.choice, values)) for _ in range(MOST_POINTS)]
        yield from (Move(sketch, {**sketch.params, **dict(zip(sketch.space, at, strict=True))}) for at in points)


@dataclass(frozen=True)
class Outcomes:
    """What a sketch's attempts tell of its other points: those that a block had no room for, those that spilled and
    were slow, and whether none was right for reasons that parameters hardly change."""

    too_large: Sequence[Params] = ()
    spilled: Sequence[Params] = ()
    failing: bool = False

    @classmethod
    def of(cls, sketch: Sketch, history: Sequence[Attempt], limit_bytes: int) -> "Outcomes":
        """From the attempts of this sketch. `limit_bytes`: shared memory that a block may have."""
        own = [a for a in history if _sketch_name(a) == sketch.name]
        large = [a for a in own if shared_bytes(a) > limit_bytes]
        timed = {a.attempt_id: a.timing.median_us for a in own if a.timing is not None}
        slow_us = min(timed.values(), default=0.0) * _CLEARLY_SLOWER
        slow = [a for a in own if timed.get(a.attempt_id, 0.0) > slow_us and spilled_bytes(a) > _SPILLED_BYTES]
        failed = [a for a in own if not a.rank_key and a not in large]
        return cls(
            [_point_of(a, sketch) for a in large],
            [_point_of(a, sketch) for a in slow],
            len(failed) >= _FAILURES and not any(a.rank_key for a in own),
        )

    def why_late(self, params: Params) -> str:
        """Why a point comes last; "" for one that does not."""
        if self.failing:
            return FAILING
        # no less of what takes shared memory than in a point that was refused, and otherwise equal but for the warps
        if any(_beyond(params, other, otherwise_equal=True) for other in self.too_large):
            return TOO_LARGE
        # no less in each thread than in a point that spilled; what is no size takes few registers
        if any(_beyond(params, other, otherwise_equal=False) for other in self.spilled):
            return SPILLS
        return ""


def _beyond(params: Params, other: Params, *, otherwise_equal: bool) -> bool:
    for name, value in params.items():
        if any(word in name for word in _GROWS):
            held = value >= other[name]
        elif _SHRINKS in name:
            held = otherwise_equal or value <= other[name]
        else:
            held = not otherwise_equal or value == other[name]
        if not held:
            return False
    return True


def shared_bytes(attempt: Attempt) -> int:
    """What the largest kernel needs a block, also of one that was refused for it; 0 where nobody said."""
    if attempt.judged.needed_shared_bytes is not None:
        return attempt.judged.needed_shared_bytes
    return max((k.shared_bytes for k in attempt.kernels), default=0)


def spilled_bytes(attempt: Attempt) -> int:
    """Of all kernels, per thread."""
    return sum(k.spill_bytes for k in attempt.kernels)


# parameter suffix -> hypothesis and prediction when it grows, then when it shrinks
_REASONS = {
    "WARPS": (
        "more warps keep more loads in flight and leave fewer values to each thread",
        "fewer registers; faster if spilling or latency held it back",
        "fewer warps shorten the reduction across warps and leave room for more programs",
        "more registers a thread; faster unless it spills",
    ),
    "STAGES": (
        "a deeper pipeline starts loads earlier",
        "more shared memory; faster if loads were waited for",
        "a shallower pipeline needs less shared memory, so more programs fit",
        "less shared memory, higher occupancy",
    ),
    "BLOCK": (
        "a larger block means fewer steps or programs, with more work in flight in each",
        "more registers; faster if the overhead of a step mattered",
        "a smaller block leaves room for more programs at once",
        "fewer registers, higher occupancy",
    ),
    "TILE": (
        "a larger tile shares a program's start-up among more rows",
        "fewer programs; faster for short rows",
        "a smaller tile makes more programs, which balance better",
        "fewer registers, higher occupancy",
    ),
    "PROGRAMS": (
        "more programs cover more latency",
        "faster if the multiprocessors had idle warps",
        "fewer programs each keep a longer pipeline",
        "faster if starting programs cost more than waiting",
    ),
    "GROUP": (
        "more rows of tiles at once share the columns' operand in the L2 cache",
        "less traffic to memory; faster if the operands exceed the cache",
        "fewer rows of tiles at once share the rows' operand in the L2 cache",
        "faster if the other operand is the larger",
    ),
    "ROWS": (
        "more rows a program keep more loads in flight and share what all rows read",
        "more registers; faster if one row left threads waiting",
        "fewer rows a program make more programs, which balance better",
        "fewer registers, higher occupancy",
    ),
    "HELD": (
        "rows that stay in registers are read once",
        "less traffic; faster unless too few rows fit a multiprocessor",
        "rows that are read twice need few registers, so more programs fit",
        "faster if the second read hits the L2 cache",
    ),
    "PIECES": (
        "a result that is stored in more pieces needs less shared memory beside the operands",
        "room for a deeper pipeline",
        "a result that is stored in fewer pieces waits less often for the store before",
        "fewer instructions after each tile",
    ),
    "ACCESSES": (
        "more 16-byte accesses a thread are under way at once",
        "more registers; faster if too few programs were there to hide latency",
        "fewer accesses a thread make more and shorter programs",
        "fewer registers, higher occupancy",
    ),
    "PER_THREAD": (
        "more values a thread leave fewer warps to meet in each sum",
        "more registers; faster unless it spills",
        "fewer values a thread keep more warps at each row",
        "fewer registers; faster if spilling or latency held it back",
    ),
    "DRAWN": (
        "winners that are drawn one by one need no sort",
        "a fraction of the instructions; faster while winners are few",
        "one sort finds all winners at once",
        "faster if winners are many",
    ),
    "LEAVES_LAST": (
        "what is read is the last to leave the L2 cache, so that writes make room for each other",
        "faster by 0.3-2 % where loads reach registers directly",
        "without hints the cache keeps what was used last",
        "faster if what was kept is never read again and writes wait for room",
    ),
    "SPECIALISED": (
        "warps of their own for the loads leave the others to the products",
        "faster if issuing loads held the products back",
        "without warps for the loads alone, registers and barriers are saved",
        "faster if the pipeline was full anyway",
    ),
    "SPLITS": (
        "more programs a row fill the GPU when rows are few",
        "faster if fewer programs than multiprocessors ran",
        "fewer programs a row mean less to combine",
        "faster if the GPU was already full",
    ),
}


def describe(move: Move) -> tuple[str, str, str]:
    """Rationale, hypothesis and prediction of a move."""
    why = f"; {move.why}" if move.why else ""
    if move.parent is None or move.step is None:
        few = ", ".join(f"{name.lower()} {value}" for name, value in move.params.items() if len(move.params) <= 6)
        return f"{move.sketch.says}{f' ({few})' if few else ''}{why}", "", ""
    name, up = move.step
    reasons = next((reasons for key, reasons in _REASONS.items() if key in name), _REASONS["BLOCK"])
    hypothesis, prediction = reasons[:2] if up else reasons[2:]
    return f"{name} = {move.params[name]} in attempt {move.parent.number}: {hypothesis}{why}", hypothesis, prediction
