"""A task file as text, from what was taken of a person's code and what was guessed about it."""

import re
from collections.abc import Iterator, Sequence

from tools.errors import TaskError
from tools.skeleton.guesses import Guess, Size, guess
from tools.skeleton.parts import Parts

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
        "\n".join(_constants(found.sizes)),
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


def _constants(sizes: Sequence[Size]) -> Iterator[str]:
    yield "# How exact the answer must be: float32, tf32_ok, float16, bfloat16, float64, float8_e4m3fn, float8_e5m2."
    yield 'PRECISION = "float32"'
    yield 'DTYPE = "float32"  # of the tensors'
    yield f"# {LOOK}: these sizes are what is timed. Put in those that matter to you."
    yield from (f"{size.name} = {size.timed}" + (f"  # {size.note}" if size.note else "") for size in sizes)


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
    return _model_of_module(parts) if parts.is_module else _model_of_function(parts, found)


def _model_of_module(parts: Parts) -> str:
    """The module under the name that a task wants, its parameters in the task's dtype."""
    if parts.name == "Model":
        return parts.definition
    names = [p.name for p in parts.init if not p.default]
    return (
        f'class Model({parts.name}):\n    """What is timed."""\n\n'
        f"    def __init__({', '.join(['self', *names])}) -> None:\n"
        f"        super().__init__({', '.join(names)})\n"
        "        self.to(getattr(torch, DTYPE))"
    )


def _model_of_function(parts: Parts, found: Guess) -> str:
    names = [i.name for i in found.inputs]
    keyword = {p.name for p in parts.forward if p.keyword}
    given = {p.name: p.name if p.name in names else found.values[p.name] for p in parts.forward if not p.default}
    taken = [f"{name}={value}" if name in keyword else value for name, value in given.items()]
    arguments = ", ".join(["self", *(f"{name}: torch.Tensor" for name in names)])
    look = f"  # {LOOK}: {', '.join(found.unsure)}" if found.unsure else ""
    return (
        'class Model(nn.Module):\n    """What is timed."""\n\n'
        f"    def forward({arguments}) -> torch.Tensor:\n"
        f"        return {parts.name}({', '.join(taken)}){look}"
    )


def _get_inputs(found: Guess) -> str:
    lines = ["# Random, with both signs: what is all positive hides errors.", "def get_inputs() -> list[torch.Tensor]:"]
    lines.append("    return [")
    lines += [f"        {i.expression},  # {i.name}" + ("" if i.sure else f"; {LOOK}: its shape") for i in found.inputs]
    return "\n".join([*lines, "    ]"])


def _get_init_inputs(parts: Parts, found: Guess) -> str:
    required = [p.name for p in parts.init if not p.default]
    shown = ", ".join(found.values[name] for name in required)
    look = [name for name in found.unsure if name in required]
    note = f"  # {', '.join(required)}" if required else ""
    note += f"; {LOOK}: {', '.join(look)}" if look else ""
    kept = ", ".join(f"{p.name}={p.default}" for p in found.left_out)
    comment = f"# Left at their defaults: {kept}.\n" if kept else ""
    return f"{comment}def get_init_inputs() -> list[object]:\n    return [{shown}]{note}"


def looks(source: str) -> list[tuple[int, str]]:
    """The lines that a person should look at, with their numbers."""
    mark = re.compile(rf"\b{LOOK}: (.*)")
    return [(n, m[1]) for n, line in enumerate(source.splitlines(), 1) if (m := mark.search(line))]
