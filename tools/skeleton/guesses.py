"""Guesses by name: which shapes, dtypes and values the arguments of a person's code may want. All are marked in the
file that comes of them, and the check that follows runs it; so a guess may be wrong, but never silently."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from tools.skeleton.parts import Parameter, Parts


@dataclass(frozen=True)
class Size:
    """A constant of the task: what is timed, and what the three small cases put in its place (None: they keep it)."""

    name: str
    timed: int
    ragged: int | None = None
    narrow: int | None = None
    held_out: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Input:
    """A tensor that the code is given: an expression, and whether anything in its name told what it is."""

    name: str
    expression: str
    sure: bool = True


@dataclass(frozen=True)
class Guess:
    """`values`: expressions for arguments that are no tensors, by name; `left_out`: those that keep their default."""

    sizes: tuple[Size, ...]
    inputs: tuple[Input, ...]
    values: dict[str, str]
    left_out: tuple[Parameter, ...]
    unsure: tuple[str, ...] = ()


_SIZES = {
    size.name: size
    for size in (
        Size("ROWS", 8192, 257, 63, 37),
        Size("COLS", 4096, 1000, 129, 1031),
        Size("OUT", 4096, 500, 65, 257),
        Size("BATCH", 16, 2, 1, 3),
        Size("HEADS", 16, 3, 2, 5, "the small cases keep COLS a multiple of it"),
        Size("SEQUENCE", 1024, 129, 64, 100),
        Size("HEAD_DIM", 64, 64, 32, 64),
        Size("CHANNELS", 64, 17, 8, 13),
        Size("HEIGHT", 56, 19, 8, 23),
        Size("WIDTH", 56, 21, 9, 17),
    )
}
_DIVISIBLE = Size("COLS", 1024, 192, 64, 320)  # of a module that splits its columns into heads
_ORDER = list(_SIZES)
_FLOAT = ".to(getattr(torch, DTYPE))"
_QKV = {"q", "k", "v", "query", "key", "value", "queries", "keys", "values"}
_VECTORS = {"bias", "b", "beta", "gamma", "g", "scale", "shift", "norm_weight", "ln_weight", "ln_bias"}
_MATRICES = {"weight", "w", "w1", "w2", "w3", "kernel", "matrix", "proj"}
_INDICES = {
    "idx",
    "index",
    "indices",
    "labels",
    "label",
    "target",
    "targets",
    "tokens",
    "input_ids",
    "ids",
    "positions",
}
_MASKS = {"mask", "attn_mask", "attention_mask", "key_padding_mask"}
_WIDTHS = {
    *("dim", "d_model", "embed_dim", "hidden_size", "hidden", "width", "in_features", "in_dim", "input_size", "n_embd"),
    *("normalized_shape", "features", "cols", "size", "num_features", "embedding_dim", "d", "input_dim", "model_dim"),
}
_OUTS = {"out_features", "out_dim", "output_size", "hidden_dim", "intermediate_size", "ffn_dim", "d_ff", "output_dim"}
_CHANNELS = {"channels", "in_channels", "out_channels", "num_channels", "c", "planes", "in_planes"}
_HEADS = {"heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads"}
_SCALARS = {
    "kernel_size": "3",
    "stride": "1",
    "padding": "1",
    "groups": "1",
    "eps": "1e-5",
    "epsilon": "1e-5",
    "p": "0.0",
    "dropout": "0.0",
    "dim": "-1",
    "axis": "-1",
    "scale": "1.0",
}
_OF_KIND = {"int": "64", "float": "1.0", "bool": "False", "str": '""'}
_IMAGES = ("Conv2d", "conv2d", "BatchNorm2d", "MaxPool2d", "AvgPool2d", "max_pool2d", "avg_pool2d", "InstanceNorm2d")
_SEQUENCES = ("MultiheadAttention", "LSTM", "GRU", "TransformerEncoderLayer", "scaled_dot_product_attention")


def guess(parts: Parts) -> Guess:
    """What to feed to a function or a module."""
    values: dict[str, str] = {}
    unsure: list[str] = []
    for parameter in parts.init if parts.is_module else ():
        if not parameter.default:
            values[parameter.name], sure = _init_value(parameter)
            unsure += [] if sure else [parameter.name]
    inputs, left_out = [], []
    for parameter in parts.forward:
        if _is_tensor(parameter):
            inputs.append(_input(parameter, parts, values))
        elif parameter.default:
            left_out.append(parameter)
        else:
            values[parameter.name] = _SCALARS.get(parameter.name) or _OF_KIND.get(parameter.kind, "1")
            unsure.append(parameter.name)
    left_out += [p for p in parts.init if p.default]
    used = _names([*values.values(), *(i.expression for i in inputs)])
    return Guess(_sizes(used), tuple(inputs), values, tuple(left_out), tuple(unsure))


def _is_tensor(parameter: Parameter) -> bool:
    """Optional ones are left out: most code works without its mask."""
    return (
        not parameter.default
        and parameter.kind.rpartition(".")[2] not in ("int", "float", "bool", "str")
        and (bool(parameter.kind) or parameter.name not in ("eps", "epsilon", "dim", "axis", "p", "dropout"))
    )


def _init_value(parameter: Parameter) -> tuple[str, bool]:
    """An expression for an argument of a constructor, and whether its name told what it is."""
    name = parameter.name
    tables = ((_WIDTHS, "COLS"), (_OUTS, "OUT"), (_CHANNELS, "CHANNELS"), (_HEADS, "HEADS"))
    for names, size in tables:
        if name in names:
            return size, True
    if name in _SCALARS:
        return _SCALARS[name], True
    return _OF_KIND.get(parameter.kind, "64"), False


def _input(parameter: Parameter, parts: Parts, values: dict[str, str]) -> Input:
    name = parameter.name.lower()
    if name in _INDICES or name.endswith(("_ids", "_idx", "_index")):
        return Input(parameter.name, "torch.randint(0, COLS, (ROWS,))")
    if name in _MASKS or name.endswith("_mask"):
        return Input(parameter.name, "torch.rand(ROWS, COLS) > 0.1")
    if name in _QKV and not parts.is_module:
        return Input(parameter.name, f"torch.randn(BATCH, HEADS, SEQUENCE, HEAD_DIM){_FLOAT}")
    if name in _VECTORS:
        return Input(parameter.name, f"torch.randn(COLS){_FLOAT}")
    if name in _MATRICES or name.endswith("_weight"):
        return Input(parameter.name, f"torch.randn({_weight_shape(parameter.name, parts.body)}){_FLOAT}")
    if _mentions(parts.body, _IMAGES) or "CHANNELS" in values.values():
        return Input(parameter.name, f"torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH){_FLOAT}")
    if "HEADS" in values.values() or _mentions(parts.body, _SEQUENCES):
        return Input(parameter.name, f"torch.randn(BATCH, SEQUENCE, COLS){_FLOAT}")
    return Input(parameter.name, f"torch.randn(ROWS, COLS){_FLOAT}", sure=name in ("x", "input", "inputs", "a"))


def _weight_shape(name: str, body: ast.AST) -> str:
    """OUT x COLS where F.linear takes it, COLS x OUT behind an @, else one value a column."""
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and _called(node) == "linear" and _is_argument(name, node):
            return "OUT, COLS"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and _is_name(name, node.right):
            return "COLS, OUT"
        if isinstance(node, ast.Call) and _called(node) in ("matmul", "mm") and _is_argument(name, node):
            return "COLS, OUT"
    return "COLS"


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def _is_argument(name: str, node: ast.Call) -> bool:
    return any(_is_name(name, argument) for argument in node.args[1:])


def _is_name(name: str, node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _mentions(body: ast.AST, words: Iterable[str]) -> bool:
    known = set(words)
    return any(
        (isinstance(n, ast.Attribute) and n.attr in known) or (isinstance(n, ast.Name) and n.id in known)
        for n in ast.walk(body)
    )


def _names(expressions: Iterable[str]) -> set[str]:
    return {n.id for text in expressions for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


def _sizes(used: set[str]) -> tuple[Size, ...]:
    found = [_SIZES[name] for name in _ORDER if name in used]
    if {"HEADS", "COLS"} <= used:
        found = [_DIVISIBLE if size.name == "COLS" else size for size in found]
    else:
        found = [Size(s.name, s.timed, s.ragged, s.narrow, s.held_out) for s in found]
    return tuple(found)
