"""Made-up and recorded landscapes: how fast each point of an author's sketches is, or how it fails.

The made-up ones follow a GPU's rules of thumb over the real sketches' spaces: bytes in flight, registers and spills,
shared memory, waves of blocks, and effects of chance of single parameters, of pairs and of points. The coefficients are
drawn by seed, so that no search can be fitted to them. None of their times is a GPU's.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.authors.offline.sketch import Sketch
from tools.verdict import Status

SHARED_LIMIT_BYTES = 227 << 10
SMS = 132
_SIZES = ("BLOCK", "TILE", "CHUNK", "TOKENS", "HEADS")
_FAILING = (Status.WRONG, Status.CRASHED, Status.COMPILE_FAILED)


@dataclass(frozen=True)
class Point:
    """What becomes of a point. `median_us` is None where it fails; bytes as a KernelReport counts them."""

    status: Status
    median_us: float | None = None
    detail: str = ""
    registers: int = 0
    shared_bytes: int = 0
    spill_bytes: int = 0


class MadeUp:
    """One landscape over the spaces of some sketches. Equal seeds give equal landscapes."""

    def __init__(self, task: str, sketches: Sequence[Sketch], seed: int) -> None:
        self.task, self._key = task, f"{task}/{seed}"
        self._sketches = {s.name: s for s in sketches}
        draw = self._random("task")
        self.base_us = math.exp(draw.uniform(math.log(5), math.log(2000)))
        self._effects: dict[tuple[object, ...], float] = {}
        self._known: dict[tuple[object, ...], Point] = {}
        self._failures = draw.uniform(0.0, 0.06)
        self._size = draw.choice((1024, 2048, 4096, 5120, 8192))  # rows and columns of products; length of rows

    def _random(self, *parts: object) -> random.Random:
        return random.Random(f"{self._key}/{parts}")

    def point(self, sketch: str, params: Mapping[str, int]) -> Point:
        """The true outcome at a point, without noise."""
        values = {name: params.get(name, at) for name, at in self._sketches[sketch].params.items()}
        key = sketch, *values.values()
        if key not in self._known:
            self._known[key] = self._point(sketch, values)
        return self._known[key]

    def _point(self, sketch: str, values: Mapping[str, int]) -> Point:
        facts = self._facts(sketch, values)
        if facts.shared_bytes > SHARED_LIMIT_BYTES:
            words = f"needs {facts.shared_bytes} bytes of shared memory per block; sm_90 has {SHARED_LIMIT_BYTES}"
            return Point(Status.COMPILE_FAILED, detail=words, shared_bytes=facts.shared_bytes)
        chance = self._random("fails", sketch, sorted(values.items()))
        if chance.random() < self._failures and values != self._sketches[sketch].params:
            return Point(chance.choice(_FAILING), detail="made to fail", shared_bytes=facts.shared_bytes)
        cost = self._offset(sketch) + facts.cost + self._chance(sketch, values)
        us = self.base_us * math.exp(cost)
        return Point(Status.CORRECT, us, "", facts.registers, facts.shared_bytes, facts.spill_bytes)

    def _offset(self, sketch: str) -> float:
        return self._random("sketch", sketch).gauss(0, 0.25)

    def _facts(self, sketch: str, values: Mapping[str, int]) -> "_Facts":
        draw = self._random("physics", sketch)
        if "BLOCK_M" in values and "BLOCK_N" in values:
            return _tiles(values, self._size, draw)
        return _stream(values, self._size, draw)

    def _chance(self, sketch: str, values: Mapping[str, int]) -> float:
        """Effects of single parameters, of pairs and of the point."""
        names = list(values)
        alone = sum(self._effect(0.02, "one", sketch, n, values[n]) for n in names)
        pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        both = sum(self._effect(0.01, "two", sketch, a, values[a], b, values[b]) for a, b in pairs)
        return alone + both + self._random("point", sketch, sorted(values.items())).gauss(0, 0.005)

    def _effect(self, spread: float, *parts: object) -> float:
        if parts not in self._effects:
            self._effects[parts] = self._random(*parts).gauss(0, spread)
        return self._effects[parts]

    def optimum_us(self, spaces: Mapping[str, Sequence[Mapping[str, int]]]) -> float:
        """The fastest of all points."""
        every = (self.point(name, params) for name, points in spaces.items() for params in points)
        return min(p.median_us for p in every if p.median_us is not None)


@dataclass(frozen=True)
class _Facts:
    cost: float
    registers: int
    shared_bytes: int
    spill_bytes: int


def _of(values: Mapping[str, int], *words: str) -> list[int]:
    return [v for name, v in values.items() if any(w in name for w in words)]


def _occupied(registers: int, shared_bytes: int, warps: int) -> int:
    """Blocks that fit a multiprocessor."""
    by_registers = 65536 // (min(registers, 255) * 32 * warps)
    return max(min(32, 64 // warps, by_registers, (228 << 10) // (shared_bytes + 1024)), 1)


def _stream(values: Mapping[str, int], length: int, draw: random.Random) -> _Facts:
    """Rows or elements that are read once and written once."""
    warps = max(_of(values, "NUM_WARPS") or [4])
    stages = max(_of(values, "NUM_STAGES") or [1])
    elements = math.prod(_of(values, *_SIZES) or [length])
    each = elements / (32 * warps)
    registers = int(20 + draw.uniform(1.0, 2.0) * each * (1 + 0.25 * (stages - 1)))
    spill_bytes = max(0, registers - 255) * 4
    shared = int(4 * elements * (stages - 1)) if stages > 1 else 32 * warps
    blocks = _occupied(registers, shared, warps)
    flight = blocks * warps * 32 * min(each, draw.uniform(16, 48)) * 4 * (1 + 0.4 * (stages - 1))
    reach = 1 - math.exp(-flight / draw.uniform(15e3, 40e3))
    narrow = draw.uniform(0.05, 0.2) * max(0.0, 2 - math.log2(max(each, 1 / 8)))
    meeting = draw.uniform(0.0, 0.03) * math.log2(warps) + draw.uniform(0, 0.02) * abs(math.log2(elements / 4096))
    waves = 0.0
    if programs := _of(values, "PROGRAMS", "SPLITS"):
        over = max(1.0, programs[0] / blocks)
        waves = draw.uniform(0.05, 0.2) * abs(math.log2(programs[0] / draw.choice((1, 2, 4, 8)))) * 0.5
        waves += 0.1 * (math.ceil(over) / over - 1)
    spilled = 0.25 * math.log2(1 + spill_bytes / 32)
    return _Facts(-math.log(reach) + narrow + meeting + waves + spilled, min(registers, 255), shared, spill_bytes)


def _tiles(values: Mapping[str, int], size: int, draw: random.Random) -> _Facts:
    """Tiles of a product, with a pipeline of operands in shared memory."""
    warps = max(_of(values, "NUM_WARPS") or [4])
    stages = max(_of(values, "NUM_STAGES") or [2])
    rows, columns = values["BLOCK_M"], values["BLOCK_N"]
    deep = values.get("BLOCK_K", 64)
    results = rows * columns / (32 * warps)
    registers = int(40 + results * draw.uniform(1.0, 1.2))
    spill_bytes = max(0, registers - 255) * 4
    shared = stages * (rows + columns) * deep * 2
    blocks = _occupied(registers, shared, warps)
    tiles = math.ceil(size / rows) * math.ceil(size / columns)
    waves = tiles / (SMS * blocks)
    tail = math.log(math.ceil(waves) / waves)
    intensity = rows * columns / (rows + columns)
    fed = math.log1p(draw.uniform(20, 60) / intensity)
    hidden = draw.uniform(0.1, 0.6) * math.exp(-(stages - 1) * deep * blocks / draw.uniform(64, 192))
    issue = draw.uniform(0, 0.3) / max(results / 32, 0.5)
    grouped = 0.02 * abs(math.log2(max(values.get("GROUP_M", 8), 1) / draw.choice((4, 8, 16))))
    spilled = 0.4 * math.log2(1 + spill_bytes / 32)
    cost = 0.5 * tail + fed + hidden + issue + grouped + spilled
    return _Facts(cost, min(registers, 255), shared, spill_bytes)


class Recorded:
    """A landscape that was measured: {"task": …, "points": [{"sketch", "params", "status", "median_us"}]}. A point that
    nobody measured counts as the nearest one of its sketch that was."""

    def __init__(self, path: Path) -> None:
        told = json.loads(path.read_text())
        self.task: str = told["task"]
        self._points: dict[str, list[tuple[dict[str, int], Point]]] = {}
        for one in told["points"]:
            us = one.get("median_us")
            point = Point(Status(one["status"]), us, one.get("detail", ""))
            self._points.setdefault(one["sketch"], []).append((one["params"], point))

    @property
    def sketches(self) -> set[str]:
        """Those that were measured."""
        return set(self._points)

    def point(self, sketch: str, params: Mapping[str, int]) -> Point:
        """The nearest that was measured, by powers of two."""

        def far(one: tuple[dict[str, int], Point]) -> float:
            return sum(abs(math.log2(max(v, 0.5)) - math.log2(max(params.get(n, v), 0.5))) for n, v in one[0].items())

        return min(self._points[sketch], key=far)[1]

    def optimum_us(self, spaces: Mapping[str, Sequence[Mapping[str, int]]]) -> float:
        """The fastest that was measured."""
        every = (p.median_us for points in self._points.values() for _, p in points)
        return min(us for us in every if us is not None)
