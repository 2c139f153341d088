"""Small tasks made up of common operations: pointwise chains, gates, reductions, softmaxes, norms, scans, products.

Something to train on, where 39 built-in tasks are few: thousands of files in the built-in ones' format, each a
composition of operations with sizes and a storage dtype of its own. A composition is what a task computes, whatever its
sizes are; exports split by it, for two tasks of one composition have one Model. Pure: the same seed composes the same
tasks in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

# An expression over x; each keeps what it is given within what float32 can square and sum.
POINTWISE = {
    "relu": "torch.relu({x})",
    "sigmoid": "torch.sigmoid({x})",
    "tanh": "torch.tanh({x})",
    "silu": "nn.functional.silu({x})",
    "gelu": "nn.functional.gelu({x})",
    "elu": "nn.functional.elu({x})",
    "softplus": "nn.functional.softplus({x})",
    "mish": "nn.functional.mish({x})",
    "hardswish": "nn.functional.hardswish({x})",
    "leaky": "nn.functional.leaky_relu({x}, 0.1)",
    "softsign": "nn.functional.softsign({x})",
    "clamp": "torch.clamp({x}, -2.0, 3.0)",
    "absolute": "torch.abs({x})",
    "root": "torch.sqrt(torch.abs({x}) + 1.0)",
    "logarithm": "torch.log1p(torch.abs({x}))",
    "bell": "1.0 / (1.0 + {x} * {x})",
    "erf": "torch.erf({x})",
    "cosine": "torch.cos({x})",
    "halved": "0.5 * {x} + 0.25",
}
REDUCTIONS = {
    "sum": "torch.sum({x}, dim=-1)",
    "mean": "torch.mean({x}, dim=-1)",
    "maximum": "torch.amax({x}, dim=-1)",
    "minimum": "torch.amin({x}, dim=-1)",
    "logsumexp": "torch.logsumexp({x}, dim=-1)",
    "squares": "torch.sum({x} * {x}, dim=-1)",
    "norm": "torch.sqrt(torch.sum({x} * {x}, dim=-1) + 1e-6)",
    "column_sum": "torch.sum({x}, dim=0)",
    "column_maximum": "torch.amax({x}, dim=0)",
}
ROWWISE = {
    "softmax": "torch.softmax({x}, dim=-1)",
    "log_softmax": "torch.log_softmax({x}, dim=-1)",
    "centred": "{x} - torch.mean({x}, dim=-1, keepdim=True)",
    "unit": "{x} * torch.rsqrt(torch.sum({x} * {x}, dim=-1, keepdim=True) + 1e-6)",
    "rms_norm": "{x} * torch.rsqrt(torch.mean({x} * {x}, dim=-1, keepdim=True) + 1e-6)",
    "layer_norm": "nn.functional.layer_norm({x}, ({x}.shape[-1],))",
}
BINARY = {"plus": "{x} + {y}", "times": "{x} * {y}", "minus": "{x} - {y}", "larger": "torch.maximum({x}, {y})"}
SCANS = {"cumsum": "torch.cumsum({x}, dim=-1)", "cummax": "torch.cummax({x}, dim=-1).values"}
_ROWS, _COLS = (1024, 2048, 4096, 8192, 16384), (512, 1000, 1024, 2048, 4096, 5000, 8192)
_SIDES = (256, 512, 768, 1024)
_MOST_ELEMENTS = 1 << 26
_SMALL_ROWS = ({"ROWS": 33, "COLS": 129}, {"ROWS": 7, "COLS": 1000}, {"ROWS": 13, "COLS": 257})
_SMALL_PRODUCTS = ({"M": 33, "K": 65, "N": 48}, {"M": 16, "K": 40, "N": 129}, {"M": 31, "K": 67, "N": 53})
TEMPLATE = '''"""{words}."""

import torch
import torch.nn as nn

PRECISION = "float32"  # of the arithmetic; storage is DTYPE
DTYPE = "{dtype}"
{sizes}

CASES = [
{cases}
]


class Model(nn.Module):
    """{words}"""

    def forward(self, {arguments}) -> torch.Tensor:
{body}


def get_inputs() -> list[torch.Tensor]:
    dtype = getattr(torch, DTYPE)
    return [{inputs}]


def get_init_inputs() -> list[object]:
    return []
'''


@dataclass(frozen=True)
class Composed:
    """A task. `composition` names what it computes; `name` that with sizes and dtype; `source` is its file."""

    name: str
    composition: str
    source: str


@dataclass(frozen=True)
class _Steps:
    """What is done to x, one step after the other, by name; `inputs`: shapes of the tensors, x first."""

    names: tuple[str, ...]
    lines: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...]

    @property
    def composition(self) -> str:
        return "_".join(self.names)


def compositions(seed: int = 0) -> Iterator[Composed]:
    """Tasks without an end, every composition once before any comes again with other sizes."""
    random = Random(f"compose {seed}")  # noqa: S311 - no secret is drawn
    every = sorted({steps.composition: steps for steps in _all_steps()}.values(), key=lambda steps: steps.composition)
    seen: set[str] = set()
    while True:
        random.shuffle(every)
        for steps in every:
            made = _written(steps, random)
            if made.name not in seen:
                seen.add(made.name)
                yield made


_X, _Y, _BIAS = ("x", "ROWS, COLS"), ("y", "ROWS, COLS"), ("bias", "COLS")
_LEFT, _RIGHT = ("x", "M, K"), ("w", "K, N")


def _all_steps() -> Iterator[_Steps]:
    for one in POINTWISE.items():
        yield _chain(one, inputs=(_X,))
        yield from (_chain(one, two, inputs=(_X,)) for two in POINTWISE.items() if two != one)
        yield from _gates(one)
        yield from _around_rows(one)
        yield from _products(one)
    for row in (ROWWISE | REDUCTIONS | SCANS).items():
        yield _chain(row, inputs=(_X,))
        for joined in BINARY.items():
            yield _chain(joined, row, inputs=(_X, _Y))
            if row[0] in ROWWISE:
                yield _chain(row, joined, inputs=(_X, _Y))


def _gates(one: tuple[str, str]) -> Iterator[_Steps]:
    for name, joined in BINARY.items():
        yield _chain(one, (name, joined), inputs=(_X, _Y))
        yield _chain((f"bias_{name}", joined.replace("{y}", "bias")), one, inputs=(_X, _BIAS))


def _around_rows(one: tuple[str, str]) -> Iterator[_Steps]:
    for row in (REDUCTIONS | ROWWISE | SCANS).items():
        yield _chain(one, row, inputs=(_X,))
    for row in ROWWISE.items():
        yield _chain(row, one, inputs=(_X,))
        yield _chain(("plus", BINARY["plus"]), row, one, inputs=(_X, _Y))


def _products(one: tuple[str, str]) -> Iterator[_Steps]:
    product = ("matmul", "{x} @ w")
    yield _chain(product, one, inputs=(_LEFT, _RIGHT))
    yield _chain(product, ("bias", "{x} + b"), one, inputs=(_LEFT, _RIGHT, ("b", "N")))
    for name in ("sum", "maximum"):
        yield _chain(product, one, (name, REDUCTIONS[name]), inputs=(_LEFT, _RIGHT))


def _chain(*steps: tuple[str, str], inputs: tuple[tuple[str, str], ...]) -> _Steps:
    lines = tuple(f"x = {text.format(x='x', y='y')}" for _, text in steps)
    return _Steps(tuple(name for name, _ in steps), lines, inputs)


def _written(steps: _Steps, random: Random) -> Composed:
    is_product = any("M" in shape for _, shape in steps.inputs)
    dtype = random.choice(("float32", "float32", "bfloat16", "float16"))
    sizes = _product_sizes(random) if is_product else _row_sizes(random)
    small = _SMALL_PRODUCTS if is_product else _SMALL_ROWS
    named = zip(("ragged", "narrow", "unseen"), small, strict=True)
    cases = [
        {"name": name, **its, "cpu": True} | ({"held_out": True} if name == "unseen" else {}) for name, its in named
    ]
    arguments = ", ".join(f"{name}: torch.Tensor" for name, _ in steps.inputs)
    drawn = ", ".join(  # weights such that products are as large as what goes into them
        f"({'K**-0.5 * ' if name == 'w' else ''}torch.randn({shape})).to(dtype)" for name, shape in steps.inputs
    )
    words = " then ".join(name.replace("_", " ") for name in steps.names).capitalize()
    widened = [f"{name} = {name}.float()" for name, _ in steps.inputs]
    lines = ["kept = x.dtype", *widened, *steps.lines, "return x.to(kept)"]
    source = TEMPLATE.format(
        words=words,
        dtype=dtype,
        sizes="\n".join(f"{name} = {size}" for name, size in sizes.items()),
        cases="\n".join(f"    {_literal(case)}," for case in cases),
        arguments=arguments,
        body="\n".join(f"        {line}" for line in lines),
        inputs=drawn,
    )
    name = f"{steps.composition}_{'x'.join(map(str, sizes.values()))}_{dtype}"
    return Composed(name, steps.composition, source)


def _literal(case: dict[str, object]) -> str:
    return "{" + ", ".join(f'"{key}": {_said(value)}' for key, value in case.items()) + "}"


def _said(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _row_sizes(random: Random) -> dict[str, int]:
    rows, cols = random.choice(_ROWS), random.choice(_COLS)
    while rows * cols > _MOST_ELEMENTS:
        rows //= 2
    return {"ROWS": rows, "COLS": cols}


def _product_sizes(random: Random) -> dict[str, int]:
    return {"M": random.choice((1024, 2048, 4096)), "K": random.choice(_SIDES), "N": random.choice(_SIDES)}
