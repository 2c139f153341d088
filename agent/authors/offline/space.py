"""The points of a search: sketches at some parameters, as levels, and what became of those that were tried."""

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from agent.attempt import Attempt, as_params
from agent.authors.offline.sketch import Sketch

Level = tuple[int, ...]


@dataclass(frozen=True)
class Space:
    """A sketch's parameters in the order of its file; a point is the place of each value among those worth trying."""

    sketch: Sketch

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters that have values to try."""
        return tuple(self.sketch.space)

    @cached_property
    def size(self) -> int:
        """How many points there are."""
        return math.prod(len(values) for values in self.sketch.space.values())

    @cached_property
    def default(self) -> Level:
        """The level of the file as it is."""
        return self.level({})

    def level(self, params: Mapping[str, int]) -> Level:
        """The point of some parameters; what is not named stays at its default, what is not in the space goes to the
        nearest value."""
        return tuple(
            _nearest(self.sketch.space[name], params.get(name, self.sketch.params.get(name, 0))) for name in self.names
        )

    def coordinates(self, levels: Sequence[Level]) -> list[Level]:
        """The points with a place more: how much each thread holds, which decides registers and spills."""
        return [(*at, self._held(at)) for at in levels]

    def _held(self, level: Level) -> int:
        values = self.params(level)
        sizes = sum(math.log2(max(v, 1)) for n, v in values.items() if n in self.names and _is_size(n))
        warps = sum(math.log2(max(v, 1)) for n, v in values.items() if n in self.names and "WARPS" in n)
        return round(sizes - warps)

    def params(self, level: Level) -> dict[str, int]:
        """The parameters of a point."""
        chosen = {name: self.sketch.space[name][at] for name, at in zip(self.names, level, strict=True)}
        return {**self.sketch.params, **chosen}

    def changed(self, level: Level) -> Iterator[Level]:
        """The points that differ in one parameter."""
        for at, name in enumerate(self.names):
            for other in range(len(self.sketch.space[name])):
                if other != level[at]:
                    yield (*level[:at], other, *level[at + 1 :])

    def points(self, most: int, rng: random.Random) -> list[Level]:
        """All points, or so many drawn ones."""
        counts = [len(self.sketch.space[name]) for name in self.names]
        if self.size <= most:
            return list(itertools.product(*map(range, counts)))
        return list(dict.fromkeys(tuple(rng.randrange(count) for count in counts) for _ in range(most)))


def _is_size(name: str) -> bool:
    """Whether a block's results grow with it: not so the depth of a product."""
    return any(word in name for word in ("BLOCK", "TILE", "CHUNK", "TOKENS", "HEADS")) and not name.endswith("_K")


def _nearest(values: Sequence[int], value: int) -> int:
    def distance(at: int) -> float:
        return abs(math.log2(values[at] + 1) - math.log2(max(value, 0) + 1))

    return min(range(len(values)), key=lambda at: (distance(at), at))


@dataclass(frozen=True)
class Tried:
    """A point with what became of it. `value`: smaller is better, a logarithm of a time or a rank; None: it failed.
    `noise`: its standard deviation."""

    sketch: str
    params: Mapping[str, int]
    value: float | None
    noise: float = 0.003
    attempt: Attempt | None = None


def tried(history: Sequence[Attempt], known: Mapping[str, Sketch]) -> list[Tried]:
    """The attempts of our own sketches, in the order of the history. Where nothing is timed, values are ranks."""
    own = [a for a in history if a.proposal.params.get("sketch") in known]
    values = _values(own)
    return [
        Tried(
            str(a.proposal.params["sketch"]),
            {**known[str(a.proposal.params["sketch"])].params, **as_params(a.proposal.params)},
            values.get(a.attempt_id),
            attempt=a,
        )
        for a in own
    ]


def _values(attempts: Iterable[Attempt]) -> dict[str, float]:
    accepted = [a for a in attempts if a.rank_key]
    if all(a.verdict.timing is not None and a.rank_key[0] > 0 for a in accepted):
        return {a.attempt_id: math.log(a.rank_key[0]) for a in accepted}
    order = sorted({a.rank_key for a in accepted})
    places = {key: at / max(len(order) - 1, 1) for at, key in enumerate(order)}
    return {a.attempt_id: places[a.rank_key] for a in accepted}
