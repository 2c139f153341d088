"""Texts as a store holds them, made quickly and never twice alike: kernels, plans, what compilers and models say.

Kernels are those of the built-in library with other names and constants, so that each parses and few are near
duplicates by chance. Everything comes from the `random.Random` that is passed in.
"""

import io
import itertools
import random
import re
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass

from agent.authors.offline.library import experts
from tools.codec import Json
from tools.judge.correctness.problem import describe
from tools.task import find_task

_WORDS = (
    "row rows tile tiles block lane warp span part chunk strip band slab panel wide near far fast slow first last "
    "next left right upper lower inner outer load store read write acc total partial peak top base offs index where "
    "mask valid live used kept held seen done step stage phase pass sweep walk stream queue fence gate hub core edge"
).split()
_FREE = (  # names that a file of the library chooses itself and may be called anything
    "BLOCK COLS NUM_STAGES NUM_WARPS PROGRAMS ROWS SPLITS STAGES TILE block column e end grid height index inside "
    "new_top options part part_top parts row row_top row_total rows_left safe scale stages start top top_ptr tops "
    "total total_ptr totals weight_ptr wide x_ptr y_ptr"
).split()
_SENTENCES = (
    "The kernel is bound by memory, so the least traffic decides: read each element once, write it once.",
    "Registers limit occupancy here: {a} a thread leave room for {b} warps only.",
    "The loads of one iteration can travel while the last one is reduced, if {b} stages fit into shared memory.",
    "With {b} warps each thread holds {a} elements, which no longer spills.",
    "Masks cost little, but an access that is not aligned to 16 bytes halves the width of the loads.",
    "The second read hits the L2 cache, for the same program has just read that row: about {a} KiB a program.",
    "A grid of {a} programs leaves a tail wave of {b} percent.",
    "The reduction across warps goes through shared memory twice; {b} fewer synchronisations are possible.",
    "I keep the accumulator in float32, because {a} terms of bfloat16 lose {b} bits.",
    "Attempt {b} was slower by {a} ns, so the larger block is not worth it.",
)
_IR_LINES = (
    "%{x}_{i} = tt.splat %{y} : !tt.ptr<f32> -> tensor<{n}x!tt.ptr<f32>> loc(#loc{j})",
    "%{x}_{i} = tt.addptr %{y}_{j}, %{z} : tensor<{n}x!tt.ptr<f32>>, tensor<{n}xi32> loc(#loc{j})",
    "%{x}_{i} = tt.load %{y}_{j}, %{z}_{i}, %{x} : tensor<{n}x!tt.ptr<f32>> loc(#loc{i})",
    "%{x}_{i} = arith.subf %{y}_{j}, %{z}_{i} : tensor<{n}xf32> loc(#loc{j})",
    "%{x}_{i} = arith.cmpi slt, %{y}, %{z}_{i} : tensor<{n}xi32> loc(#loc{j})",
    "%{x}_{i} = math.exp %{y}_{j} : tensor<{n}xf32> loc(#loc{i})",
    "%{x}_{i} = arith.extsi %{y} : i32 to i64 loc(#loc{j})",
    "%{x}_{i} = tt.expand_dims %{y}_{j} {{axis = 1 : i32}} : tensor<{n}xf32> -> tensor<{n}x1xf32> loc(#loc{i})",
    "tt.store %{x}_{i}, %{y}_{j}, %{z} : tensor<{n}x!tt.ptr<f32>> loc(#loc{j})",
    "%{x}_{i} = scf.for %{y} = %c0 to %{z} step %c{n} iter_args(%{x} = %cst_{j}) -> (tensor<{n}xf32>) : i32 {{",
)


@dataclass(frozen=True)
class Template:
    """A kernel of the library: `pieces` are texts, and between them, at odd places, names and numbers to be chosen."""

    name: str
    pieces: tuple[str, ...]

    def fill(self, rng: random.Random, tag: str) -> str:
        """The file with other names and constants; `tag` becomes part of the kernels' names."""
        chosen: dict[str, str] = {}
        made = list(self.pieces)
        for at in range(1, len(made), 2):
            old = made[at]
            if old not in chosen:
                chosen[old] = _renamed(old, rng, tag, len(chosen))
            made[at] = chosen[old]
        return "".join(made)


def templates() -> list[Template]:
    """One for each file of the library."""
    tasks = [describe(find_task(name)) for name in ("softmax", "row_sum", "rms_norm")]
    sketches = [sketch for task in tasks for sketch in experts(task)]
    return [Template(sketch.name, _pieces(sketch.source)) for sketch in sketches]


def _pieces(source: str) -> tuple[str, ...]:
    """Cut before and after everything that may be changed."""
    lines = source.splitlines(keepends=True)
    starts = list(itertools.accumulate(map(len, lines), initial=0))
    pieces, at, before = [], 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if _is_free(token, before):
            begin, end = (starts[row - 1] + column for row, column in (token.start, token.end))
            quotes = token.type == tokenize.STRING
            pieces += [source[at : begin + quotes], source[begin + quotes : end - quotes]]
            at = end - quotes
        before = token.string
    return (*pieces, source[at:])


def _is_free(token: tokenize.TokenInfo, before: str) -> bool:
    if token.type == tokenize.NUMBER:  # the value of a launch parameter
        return before == "=" and token.line[:1].isupper()
    name = token.string.strip('"')
    return token.type in (tokenize.NAME, tokenize.STRING) and before != "." and (name in _FREE or _is_kernel(name))


def _is_kernel(name: str) -> bool:
    return name.isidentifier() and name.endswith("_kernel")


def _renamed(old: str, rng: random.Random, tag: str, unique: int) -> str:
    if old.isdigit():
        return str(1 << rng.randrange(15))
    if _is_kernel(old):
        return f"{old.removesuffix('_kernel')}_{tag}_{unique}_kernel"
    word = f"{rng.choice(_WORDS)}_{rng.choice(_WORDS)}{unique}"
    return word.upper() if old.isupper() else word


def near_duplicate(source: str, rng: random.Random) -> str:
    """The source with one launch parameter changed, as a search does it."""
    value = rng.randrange(2, 1 << 14)
    return re.sub(r"(?m)^([A-Z]\w*) = \d+", lambda m: f"{m[1]} = {value}", source, count=1)


def sentences(rng: random.Random, count: int) -> str:
    """What a model says, or thinks."""
    picked = (rng.choice(_SENTENCES) for _ in range(count))
    return " ".join(
        s.replace("{a}", str(rng.randrange(16, 5000))).replace("{b}", str(rng.randrange(2, 33))) for s in picked
    )


def plan(rng: random.Random, kernels: Sequence[str], arch: str) -> Json:
    """A launch plan of the size of a real one: 5 kB for one kernel, of which zlib leaves a third."""
    storages = [
        {"id": i, "nbytes": 4 << rng.randrange(30), "origin": o, "data": None}
        for i, o in enumerate(("input", "scratch"))
    ]
    made = [{"name": name, "language": "ttir", "text": _ir(rng, name)} for name in kernels]
    grid = {"grid": [rng.randrange(1, 1 << 16), 1, 1], "args": ["$0", "$1", rng.randrange(1, 1 << 14)], "num_warps": 8}
    launches = [{"kernel": name, **grid} for name in kernels]
    return {
        "case": "main",
        "variant": "default",
        "arch": arch,
        "storages": storages,
        "kernels": made,
        "launches": launches,
    }


def _ir(rng: random.Random, name: str) -> str:
    text = "\n".join(rng.choices(_IR_BLOCKS, k=34))
    for slot in ("{x}", "{y}", "{z}"):
        text = text.replace(slot, rng.choice(_WORDS))
    body = text.replace("{n}", str(64 << rng.randrange(9)))
    return (
        f"module {{\n  tt.func public @{name}(%x_ptr: !tt.ptr<f32> {{tt.divisibility = 16 : i32}}) {{\n{body}\n}}}}\n"
    )


def _ir_block(rng: random.Random) -> str:
    lines = (rng.choice(_IR_LINES).replace("{i}", str(rng.randrange(99))) for _ in range(2))
    return "\n".join("    " + line.replace("{j}", str(rng.randrange(99))) for line in lines)


_IR_BLOCKS = tuple(_ir_block(random.Random(i)) for i in range(2000))
