"""Writes a task file around a person's code, with guesses, all marked, of which shapes, dtypes and values it may want.

The check that follows runs the file: so a guess may be wrong, but never silently."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.module_source import CodeParts, Parameter

# ---
# Guesses by name: which shapes, dtypes and values the arguments of a person's code may want. All are marked in the
# file that comes of them, and the check that follows runs it; so a guess may be wrong, but never silently.


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
    """`values`: expressions for arguments of the code that are no tensors, by name, all of them unsure; `init`: those
    of a module's constructor; `unsure`: names of the constructor's that told nothing; `left_out`: arguments that keep
    their default; `dtype`: the constant that holds the dtype; `renamed`: constants of the task whose usual name the
    code has for itself, with the name that they got."""

    sizes: tuple[Size, ...]
    inputs: tuple[Input, ...]
    values: dict[str, str]
    init: dict[str, str]
    left_out: tuple[Parameter, ...]
    unsure: tuple[str, ...] = ()
    dtype: str = "DTYPE"
    renamed: tuple[tuple[str, str], ...] = ()


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


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    """Return word -> key, of a table of the words for each key."""
    return {word: key for key, words in table.items() for word in words.split()}


_ROLES = _by_word(  # of tensors
    {
        "heads": "q k v query key value queries keys values",
        "vector": "bias b beta gamma g scale shift norm_weight ln_weight ln_bias",
        "matrix": "weight w w1 w2 w3 kernel matrix proj",
        "indices": "idx index indices labels label target targets tokens input_ids ids positions",
        "mask": "mask attn_mask attention_mask key_padding_mask",
    }
)
_ENDINGS = {
    "_ids": "indices",
    "_idx": "indices",
    "_index": "indices",
    "_mask": "mask",
    "_weight": "matrix",
    "_bias": "vector",
}
_LENGTHS = _by_word(  # of constructors' arguments
    {
        "COLS": "dim d_model embed_dim hidden_size hidden width in_features in_dim input_size n_embd normalized_shape"
        " features cols size num_features embedding_dim d input_dim model_dim",
        "OUT": "out_features out_dim output_size hidden_dim intermediate_size ffn_dim d_ff output_dim",
        "CHANNELS": "channels in_channels out_channels num_channels c planes in_planes",
        "HEADS": "heads num_heads n_heads n_head nhead num_attention_heads",
    }
)
_NUMBERS = _by_word(
    {
        "3": "kernel_size",
        "1": "stride padding groups",
        "1e-5": "eps epsilon",
        "0.0": "p dropout",
        "-1": "dim axis",
        "1.0": "scale",
    }
)
_NO_TENSORS = ("eps", "epsilon", "dim", "axis", "p", "dropout")  # whatever no annotation says
_OF_KIND = {"int": "64", "float": "1.0", "bool": "False", "str": '""'}
_IMAGES = ("Conv2d", "conv2d", "BatchNorm2d", "MaxPool2d", "AvgPool2d", "max_pool2d", "avg_pool2d", "InstanceNorm2d")
_SEQUENCES = ("MultiheadAttention", "LSTM", "GRU", "TransformerEncoderLayer", "scaled_dot_product_attention")


def guess(parts: CodeParts) -> Guess:
    """What to feed to a function or a module."""
    init: dict[str, str] = {}
    unsure: list[str] = []
    for parameter in parts.init:
        if not parameter.default:
            init[parameter.name], sure = _init_value(parameter)
            unsure += [] if sure else [parameter.name]
    inputs, left_out, values = [], [], {}
    for parameter in parts.forward:
        if _is_tensor(parameter):
            expression, sure = _tensor(parameter.name, parts, init)
            inputs.append(Input(parameter.name, expression, sure and len(parameter.name) > 1))  # a letter says little
        elif parameter.default:
            left_out.append(parameter)
        else:
            values[parameter.name] = _NUMBERS.get(parameter.name) or _OF_KIND.get(parameter.kind, "1")
    left_out += [p for p in parts.init if p.default]
    used = _names([*init.values(), *(i.expression for i in inputs)])
    return _apart(Guess(_sizes(used), tuple(inputs), values, init, tuple(left_out), tuple(unsure)), parts.names)


def _apart(found: Guess, theirs: Collection[str]) -> Guess:
    """The guess with other names for those of its constants that mean something in the person's code."""
    ours = (found.dtype, *(size.name for size in found.sizes))
    if not (renamed := {name: _free(name, theirs) for name in ours if name in theirs}):
        return found

    def said(text: str) -> str:
        return re.sub(r"\w+", lambda word: renamed.get(word[0], word[0]), text)

    return replace(
        found,
        sizes=tuple(replace(size, name=said(size.name), note=said(size.note)) for size in found.sizes),
        inputs=tuple(replace(i, expression=said(i.expression)) for i in found.inputs),
        init={name: said(value) for name, value in found.init.items()},
        dtype=said(found.dtype),
        renamed=tuple(renamed.items()),
    )


def _free(name: str, theirs: Collection[str]) -> str:
    while name in theirs:
        name = f"TASK_{name}"
    return name


def _is_tensor(parameter: Parameter) -> bool:
    """Optional ones are left out: most code works without its mask."""
    return (
        not parameter.default
        and parameter.kind.rpartition(".")[2] not in ("int", "float", "bool", "str")
        and (bool(parameter.kind) or parameter.name not in _NO_TENSORS)
    )


def _init_value(parameter: Parameter) -> tuple[str, bool]:
    """An expression for an argument of a constructor, and whether its name told what it is."""
    name = parameter.name
    known = _LENGTHS.get(name) or _NUMBERS.get(name)
    return (known, len(name) > 1) if known else (_OF_KIND.get(parameter.kind, "64"), False)


def _tensor(given: str, parts: CodeParts, init: dict[str, str]) -> tuple[str, bool]:
    """Return an expression for a tensor, and whether its name, or the module, told what it is."""
    name, factor = given.lower(), _factor(given, parts.body)
    role = _ROLES.get(name) or next((role for ending, role in _ENDINGS.items() if name.endswith(ending)), "")
    match role:
        case "indices":
            return "torch.randint(0, COLS, (ROWS,))", True
        case "mask":
            return "torch.rand(ROWS, COLS) > 0.1", True
        case "heads" if not parts.is_module:
            return _random("BATCH, HEADS, SEQUENCE, HEAD_DIM"), True
        case "matrix":  # of a chain each takes what the last one gives
            return _random(factor or "COLS"), len(_matrices(parts)) < 2
        case "vector" if not factor:
            return _random(_bias_length(given, parts) if _is_bias(name) else "COLS"), True
    if _mentions(parts.body, _IMAGES) or "CHANNELS" in init.values():
        return _random("BATCH, CHANNELS, HEIGHT, WIDTH"), True
    if "HEADS" in init.values() or _mentions(parts.body, _SEQUENCES):
        return _random("BATCH, SEQUENCE, COLS"), True
    return _random(factor or "ROWS, COLS"), name in ("input", "inputs")


def _random(shape: str) -> str:
    return f"torch.randn({shape}){_FLOAT}"


def _is_bias(name: str) -> bool:
    return name in ("bias", "b") or (name.endswith("_bias") and not name.startswith(("ln_", "norm_")))


def _bias_length(given: str, parts: CodeParts) -> str:
    """Return the length of a bias: of a row of the product it is added to; COLS in a norm or without a product."""
    calls = [n for n in ast.walk(parts.body) if isinstance(n, ast.Call) and _called(n).endswith("norm")]
    if any(_is_name(given, argument) for call in calls for argument in _arguments(call)):
        return "COLS"
    return "OUT" if _matrices(parts) else "COLS"


def _matrices(parts: CodeParts) -> list[str]:
    """Arguments that something is multiplied with, from the right."""
    return [p.name for p in parts.forward if "OUT" in _factor(p.name, parts.body)]


def _factor(name: str, body: ast.AST) -> str:
    """The shape of a matrix that is multiplied: ROWS x COLS on the left, COLS x OUT on the right, and OUT x COLS where
    it is transposed there, as F.linear does. "" for what is in no product."""
    products = list(_products(body))
    if _ROLES.get(name) != "matrix" and any(_is_name(name, left) for left, _, _ in products):
        return "ROWS, COLS"
    for _, right, is_linear in products:
        plain = _untransposed(right)
        if _is_name(name, plain):
            return "OUT, COLS" if is_linear != (plain is not right) else "COLS, OUT"
    return "ROWS, COLS" if any(_is_name(name, left) for left, _, _ in products) else ""


def _products(body: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield the factors of each matrix product: left, right, and whether it is F.linear."""
    for node in ast.walk(body):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield node.left, node.right, False
        elif isinstance(node, ast.Call):
            called, given = _called(node), _arguments(node)
            if called in ("matmul", "mm") and len(given) == 1 and isinstance(node.func, ast.Attribute):  # a.mm(b)
                yield node.func.value, given[0], False
            elif called in ("matmul", "mm", "linear") and len(given) >= 2:
                yield given[0], given[1], called == "linear"
            elif called == "addmm" and len(given) >= 3:
                yield given[1], given[2], False


def _untransposed(node: ast.expr) -> ast.expr:
    """`w` of w.T, w.t() and w.transpose(0, 1)."""
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("t", "transpose"):
        return node.func.value
    return node


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _is_name(name: str, node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _mentions(body: ast.AST, words: Iterable[str]) -> bool:
    known = set(words)
    return any(getattr(n, "attr", getattr(n, "id", "")) in known for n in ast.walk(body))


def _names(expressions: Iterable[str]) -> set[str]:
    return {n.id for text in expressions for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)}


def _sizes(used: set[str]) -> tuple[Size, ...]:
    found = [_SIZES[name] for name in _ORDER if name in used]
    if {"HEADS", "COLS"} <= used:
        found = [_DIVISIBLE if size.name == "COLS" else size for size in found]
    else:
        found = [Size(s.name, s.timed, s.ragged, s.narrow, s.held_out) for s in found]
    return tuple(found)


# ---
# A task file as text, from what was taken of a person's code and what was guessed about it.

LOOK = "LOOK"  # marks what a person should look at
_TORCH = ("import torch", "import torch.nn as nn")
TEMPLATE = '''import torch
import torch.nn.functional as F

def my_op(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """y = gelu(x + bias): put the code that shall be faster here"""
    return F.gelu(x + bias)
'''


def task_source(parts: CodeParts, origin: str) -> str:
    """The file. `origin`: what it was made from, as a person typed it. Raises TaskError for what takes no tensor."""
    found = guess(parts)
    if not found.inputs:
        raise TaskError(f"{parts.name} takes no tensor that must be given, and a task needs one to vary")
    sections = [
        _head(parts, origin),
        "\n".join(_imports(parts)),
        "\n".join(_constants(found)),
        "\n".join(_cases(found.sizes)),
        "\n\n\n".join([*_definitions(parts), _model(parts, found), _get_inputs(found), _get_init_inputs(parts, found)]),
    ]
    return re.sub(r"\n{4,}", "\n\n\n", "\n\n".join(sections)) + "\n"


def _head(parts: CodeParts, origin: str) -> str:
    origin = _harmless(origin)
    words = _harmless(parts.words) or f"{parts.name}, of {origin}"
    return (
        f'"""{words}.\n\nA task: what `optimize --task` makes faster. Written by `optimize init` from {origin};\n'
        f'lines with {LOOK} are guesses.\n"""'
    )


def _harmless(text: str) -> str:
    """Return `text` fit for a docstring."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())


def _imports(parts: CodeParts) -> Iterator[str]:
    future = [line for line in parts.imports if line.startswith("from __future__")]
    rest = [line for line in parts.imports if line not in (*_TORCH, *future)]
    yield from (line + "\n" for line in future)
    for line in (*sorted(rest, key=lambda line: (line.startswith("from"), line)), *_TORCH):
        note = f"  # {LOOK}: it lies beside your file; copy what is needed from it"
        yield line + note * (line in parts.local_imports)


def _constants(found: Guess) -> Iterator[str]:
    if found.renamed:
        theirs, ours = (" and ".join(names) for names in zip(*found.renamed, strict=True))
        yield f"# {LOOK}: your code has a meaning of its own for {theirs}; what the task sets and varies is {ours}."
    yield "# How exact the answer must be: float32, tf32_ok, float16, bfloat16, float64, float8_e4m3fn, float8_e5m2."
    yield 'PRECISION = "float32"'
    yield f'{found.dtype} = "float32"  # of the tensors'
    yield f"# {LOOK}: these sizes are what is timed. Put in those that matter to you."
    yield from (f"{size.name} = {size.timed}" + (f"  # {size.note}" if size.note else "") for size in found.sizes)


def _cases(sizes: Sequence[Size]) -> Iterator[str]:
    yield "# Every kernel must be right on these too; each replaces constants from above. `cpu`: small enough to check"
    yield "# without a GPU. `held_out`: whoever writes kernels does not see it, so a kernel for a few sizes only fails."
    yield "CASES = ["
    yield "    " + _case("ragged", {s.name: s.ragged for s in sizes}) + "  # no powers of two"
    yield "    " + _case("narrow", {s.name: s.narrow for s in sizes}) + "  # less than a block"
    yield "    " + _case("unseen", {s.name: s.held_out for s in sizes}, held_out=True)
    yield "]"


def _case(name: str, sizes: dict[str, int | None], *, held_out: bool = False) -> str:
    flags = {"held_out": True} if held_out else {}
    entries = {"name": name} | {k: v for k, v in sizes.items() if v is not None} | flags | {"cpu": True}
    return "{" + ", ".join(f'"{key}": {_literal(value)}' for key, value in entries.items()) + "},"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _definitions(parts: CodeParts) -> Iterator[str]:
    yield ""
    constants: list[str] = []
    for helper in parts.helpers:
        if helper.startswith(("def ", "class ", "@", "async ")):
            yield from filter(None, ["\n".join(constants)])
            constants = []
            yield helper
        else:
            constants.append(helper)
    yield from filter(None, ["\n".join(constants)])
    if not (parts.is_module and parts.name == "Model"):
        yield parts.definition


def _model(parts: CodeParts, found: Guess) -> str:
    """Return the class Model of the task: a function in a module, or a module under that name with its parameters in
    the task's dtype. Raises TaskError for a module that has this name already and cannot be called as a task calls
    it."""
    if not parts.is_module:
        return f'class Model(nn.Module):\n    """What is timed."""\n\n{_forward(parts.name, parts, found)}'
    required = [p for p in parts.init if not p.default]
    adapted = bool(found.values) or any(p.keyword and not p.default for p in parts.forward)
    if parts.name == "Model":
        if adapted or any(p.keyword for p in required):
            raise TaskError(
                "Model must be given what a task gives to no Model (by name, or no tensor); rename it first"
            )
        return parts.definition
    names = [p.name for p in required]
    given = ", ".join(_given(parts.init, {name: name for name in names}))
    forward = f"\n\n{_forward('super().forward', parts, found)}" if adapted else ""
    return (
        f'class Model({parts.name}):\n    """What is timed."""\n\n'
        f"    def __init__({', '.join(['self', *names])}) -> None:\n"
        f"        super().__init__({given})\n"
        f"        self.to(getattr(torch, {found.dtype})){forward}"
    )


def _forward(called: str, parts: CodeParts, found: Guess) -> str:
    """A forward that takes the tensors, in order, and gives them and the guessed values to `called`."""
    names = [i.name for i in found.inputs]
    arguments = ", ".join(["self", *(f"{name}: torch.Tensor" for name in names)])
    given = ", ".join(_given(parts.forward, {name: name for name in names}, found.values))
    look = f"  # {LOOK}: {', '.join(found.values)}" if found.values else ""
    return f"    def forward({arguments}) -> torch.Tensor:\n        return {called}({given}){look}"


def _given(
    parameters: Sequence[Parameter], same: Mapping[str, str], guessed: Mapping[str, str] | None = None
) -> Iterator[str]:
    """What stands between the brackets of a call. Guessed values are named where they can be, and all that follow."""
    values, named = {**same, **(guessed or {})}, False
    for parameter in parameters:
        if (value := values.get(parameter.name)) is not None:
            named = named or parameter.keyword or (parameter.name not in same and not parameter.placed)
            yield f"{parameter.name}={value}" if named else value


def _get_inputs(found: Guess) -> str:
    lines = ["# Random, with both signs: what is all positive hides errors.", "def get_inputs() -> list[torch.Tensor]:"]
    lines.append("    return [")
    lines += [f"        {i.expression},  # {i.name}" + ("" if i.sure else f"; {LOOK}: its shape") for i in found.inputs]
    return "\n".join([*lines, "    ]"])


def _get_init_inputs(parts: CodeParts, found: Guess) -> str:
    required = [p.name for p in parts.init if not p.default]
    shown = ", ".join(found.init[name] for name in required)
    note = f"  # {', '.join(required)}" if required else ""
    note += f"; {LOOK}: {', '.join(found.unsure)}" if found.unsure else ""
    kept = ", ".join(f"{p.name}={p.default}" for p in found.left_out)
    comment = f"# Left at their defaults: {kept}.\n" if kept else ""
    return f"{comment}def get_init_inputs() -> list[object]:\n    return [{shown}]{note}"


def looks(source: str) -> list[tuple[int, str]]:
    """The lines that a person should look at, with their numbers."""
    mark = re.compile(rf"\b{LOOK}: (.*)")
    return [(n, m[1]) for n, line in enumerate(source.splitlines(), 1) if (m := mark.search(line))]
