"""A task file as text, from what was taken of a person's code and what was guessed about it."""

import re
from collections.abc import Iterator, Mapping, Sequence

from tools.errors import TaskError
from tools.skeleton.guesses import Guess, Size, guess
from tools.skeleton.parts import Parameter, Parts

LOOK = "LOOK"  # marks what a person should look at
_TORCH = ("import torch", "import torch.nn as nn")
TEMPLATE = '''import torch
import torch.nn.functional as F

def my_op(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """y = gelu(x + bias): put the code that shall be faster here"""
    return F.gelu(x + bias)
'''


def task_source(parts: Parts, origin: str) -> str:
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


def _head(parts: Parts, origin: str) -> str:
    origin = _harmless(origin)
    words = _harmless(parts.words) or f"{parts.name}, of {origin}"
    return (
        f'"""{words}.\n\nA task: what `optimize --task` makes faster. Written by `optimize init` from {origin};\n'
        f'lines with {LOOK} are guesses.\n"""'
    )


def _harmless(text: str) -> str:
    """Fit for a docstring."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())


def _imports(parts: Parts) -> Iterator[str]:
    future = [line for line in parts.imports if line.startswith("from __future__")]
    rest = [line for line in parts.imports if line not in (*_TORCH, *future)]
    yield from (line + "\n" for line in future)
    for line in (*sorted(rest, key=_import_order), *_TORCH):
        note = f"  # {LOOK}: it lies beside your file; copy what is needed from it"
        yield line + note * (line in parts.local_imports)


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


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


def _definitions(parts: Parts) -> Iterator[str]:
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


def _model(parts: Parts, found: Guess) -> str:
    return _model_of_module(parts, found) if parts.is_module else _model_of_function(parts, found)


def _model_of_module(parts: Parts, found: Guess) -> str:
    """The module under the name that a task wants, its parameters in the task's dtype. Raises TaskError for one that
    has this name already and cannot be called as a task calls it."""
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


def _model_of_function(parts: Parts, found: Guess) -> str:
    return f'class Model(nn.Module):\n    """What is timed."""\n\n{_forward(parts.name, parts, found)}'


def _forward(called: str, parts: Parts, found: Guess) -> str:
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


def _get_init_inputs(parts: Parts, found: Guess) -> str:
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
