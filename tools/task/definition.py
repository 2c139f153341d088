"""Kernel definitions of SOL-ExecBench and FlashInfer-Bench (definition.json and workloads) as task files.

A definition names axes, inputs and a reference in PyTorch; each workload gives the axes values. The largest workload
becomes the timed case, some others further cases. What cannot be said soundly is refused with the reason: inputs that
lie in files of their own (values with a structure that random ones would lack), and dtypes that torch has no numbers
of. The text is made of the JSON alone, so the same definition is the same task, byte for byte; nothing of it is run.
"""

import ast
import hashlib
import keyword
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerneltune.tools.schema.codec import (
    DecodeError,
    Json,
    decode,
    expression_tree,
    one_line,
    parsed,
    read_file,
    syntax_tree,
)
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.load import task_name
from kerneltune.tools.task.write import FLOATS, TAKEN

FILE_NAME = "definition.json"
_MOST_BYTES = 1 << 20
_MOST_WORKLOADS = 1_000
_MOST_CASES = 4  # beside the timed one; each is verified with every attempt
_SMALL = 1_000_000  # elements; the interpreter takes a case of two million, outputs included
_MOST_ELEMENTS = 1 << 34
# of all expressions, with the axes put in: each may name the one before twice; 1,000 in a chain are too deep for Python
_MOST_PARTS = 200
_INTEGERS = {"int64": 1024, "int32": 1024, "int16": 1024, "int8": 127, "bool": 2}  # random ones are below
_AXIS, _SCALAR = "axis_", "scalar_"  # before names that the reference may use for something else


@dataclass(frozen=True)
class KernelAxis:
    """A dimension: a constant, one that workloads give, or an expression of others."""

    type: str
    value: int | None = None
    expression: str | None = None


@dataclass(frozen=True)
class KernelInput:
    """An input. `shape`: names of axes, None for a number of Python's own."""

    dtype: str
    shape: tuple[str | int, ...] | None = None


@dataclass(frozen=True)
class KernelDefinition:
    """What of a definition makes a task."""

    name: str
    axes: Mapping[str, KernelAxis]
    inputs: Mapping[str, KernelInput]
    reference: str
    description: str | None = None
    custom_inputs_entrypoint: str | None = None


@dataclass(frozen=True)
class KernelWorkload:
    """Values of the axes, and where each input comes from."""

    axes: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)


def workloads_beside(path: Path) -> Path | None:
    """The file with the workloads of the definition at `path`: beside definition.json, or in the folder `workloads` at
    the place that the definition has in `definitions`. None where there is none: then it is no definition."""
    if path.name == FILE_NAME:
        places = [path.with_name("workload.jsonl"), path.with_name("workloads.jsonl")]
    else:
        parts = list(path.parts)
        if "definitions" not in parts:
            return None
        at = len(parts) - 1 - parts[::-1].index("definitions")
        places = [Path(*parts[:at], "workloads", *parts[at + 1 :]).with_suffix(".jsonl")]
    return next((place for place in places if place.is_file()), None)


def written_task(path: Path, workloads: Path, folder: Path) -> Path:
    """The task file that a definition is, written below `folder`. Raises TaskError with the reason where it is none
    that can be judged, OSError."""
    try:
        definition = decode(KernelDefinition, _known(parsed(read_file(path, _MOST_BYTES).decode()), KernelDefinition))
        lines = read_file(workloads, 8 * _MOST_BYTES).decode().splitlines()
        if len(lines) > _MOST_WORKLOADS:
            raise TaskError(f"{len(lines)} workloads; the limit is {_MOST_WORKLOADS}")
        told = [parsed(line) for line in lines if line.strip()]
        given = [decode(KernelWorkload, _known(one.get("workload", one), KernelWorkload)) for one in told]
    except (DecodeError, AttributeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise TaskError(f"no definition: {one_line(str(error), 200)}") from error
    made = _Writer(definition)
    usable = [one for one in given if made.is_usable(one)]
    if not usable:
        raise TaskError("no workload gives every input as random, scalar or custom; safetensors files are not read")
    try:
        data = made.text(sorted(usable, key=made.elements, reverse=True)).encode()
    except UnicodeEncodeError as error:
        raise TaskError("it has characters that cannot be encoded as UTF-8") from error
    place = folder / hashlib.sha256(data).hexdigest()[:12] / f"{task_name(definition.name)}.py"
    if not place.is_file() or place.read_bytes() != data:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.write_bytes(data)
    return place


def _known(value: Any, of: type[Any]) -> Any:
    """A JSON object with the fields that are known, all the way down: definitions have others, too."""
    if not isinstance(value, dict):
        raise DecodeError(f"wanted an object, got {value!r:.60}")
    kept = {name: value[name] for name in of.__dataclass_fields__ if name in value}
    for name, part in (("axes", KernelAxis), ("inputs", KernelInput)):
        if of is KernelDefinition and isinstance(kept.get(name), dict):
            kept[name] = {key: _known(one, part) for key, one in kept[name].items()}
    return kept


def _reference(definition: KernelDefinition) -> tuple[str, str]:
    """Its source, in which nothing is called as a part of a task file or one of our constants is, and how its function
    is called."""
    try:
        tree = syntax_tree(definition.reference)
    except SyntaxError as error:
        raise TaskError(f"its reference is not Python: {one_line(str(error), 200)}") from error
    run = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"), None)
    if run is None:
        raise TaskError("its reference defines no function run")
    names = list(definition.inputs)
    by_name = {a.arg for a in (*run.args.args, *run.args.kwonlyargs)} >= set(names)
    call = f"run({', '.join(f'{name}={name}' if by_name else name for name in names)})"
    before = ast.dump(tree)
    renamed = _Renamed().visit(tree)
    return definition.reference.strip() if ast.dump(renamed) == before else ast.unparse(renamed), call


def _renamed(name: str) -> str:
    return f"its_{name}" if name in TAKEN or name.startswith((_AXIS, _SCALAR)) else name


class _Renamed(ast.NodeTransformer):
    """Renames what a task file has names of its own for."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = _renamed(node.id)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = _renamed(node.name)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.name = _renamed(node.name)
        return self.generic_visit(node)


_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: lambda base, power: base**power if 0 <= power < 64 and abs(base) < 1 << 32 else math.inf,
}


class _Writer:
    """Writes the task of one definition. Raises TaskError for what it cannot say."""

    def __init__(self, definition: KernelDefinition) -> None:
        self._definition = definition
        self._reference, self._call = _reference(definition)
        self._custom = definition.custom_inputs_entrypoint
        for name in (*definition.inputs, *definition.axes, *filter(None, [self._custom])):
            if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
                raise TaskError(f"{name!r:.60} is no name in Python")
        if not definition.inputs or {"self", "run", "torch"} & set(definition.inputs):
            raise TaskError("its inputs are none, or called self, run or torch")
        for name, its in definition.inputs.items():
            if its.dtype not in (*FLOATS, *_INTEGERS):
                raise TaskError(f"input {name}: dtype {its.dtype!r:.40} is none that can be judged")
        self._parts = 0
        self._variable = [name for name, axis in definition.axes.items() if axis.type == "var"]
        self._sizes = {name: self._expression(name) for name in definition.axes}

    def _expression(self, name: str, above: tuple[str, ...] = ()) -> ast.expr:
        """The value of an axis: a number, a constant of the file, or an expression of both."""
        axis = self._definition.axes.get(name)
        if axis is None or name in above:
            raise TaskError(f"axis {name!r:.60} is not defined, or by itself")
        if axis.type == "var":
            return ast.Name(f"{_AXIS}{name}")
        if axis.type == "const" and axis.value is not None:
            return ast.Constant(axis.value)
        try:
            found = expression_tree((axis.expression or "").strip())
        except SyntaxError as error:
            raise TaskError(f"axis {name}: {axis.expression!r:.60} is no expression") from error
        return self._checked(found, name, (*above, name))

    def _checked(self, node: ast.expr, name: str, above: tuple[str, ...]) -> ast.expr:
        """An expression of numbers, axes and operators, and of nothing else, with the axes put in."""
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise TaskError(f"axis {name}: the expressions have more than {_MOST_PARTS} parts")
        match node:
            case ast.Constant(value=int(value)) if value <= _MOST_ELEMENTS:
                return node
            case ast.Name(id=other):
                return self._expression(other, above)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                return ast.UnaryOp(node.op, self._checked(node.operand, name, above))
            case ast.BinOp() if type(node.op) in _OPERATORS:
                left, right = (self._checked(side, name, above) for side in (node.left, node.right))
                return ast.BinOp(left, node.op, right)
        # Not what is wrong in it: a hexadecimal number may have more digits than Python writes down.
        raise TaskError(f"axis {name}: {self._definition.axes[name].expression!r:.60} is no expression of axes")

    def _number(self, node: ast.expr, workload: KernelWorkload) -> float:
        """What an expression comes to with the axes of a workload."""
        match node:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name):
                return workload.axes[name.removeprefix(_AXIS)]
            case ast.UnaryOp(op=op, operand=operand):
                return self._number(operand, workload) * (-1 if isinstance(op, ast.USub) else 1)
            case ast.BinOp(left=left, op=op, right=right):
                sides = int(self._number(left, workload)), int(self._number(right, workload))
                return _OPERATORS[type(op)](*sides)
        raise AssertionError(node)

    def _dimensions(self, its: KernelInput) -> list[ast.expr]:
        return [ast.Constant(axis) if isinstance(axis, int) else self._sizes_of(axis) for axis in its.shape or ()]

    def _sizes_of(self, axis: str) -> ast.expr:
        if axis not in self._sizes:
            raise TaskError(f"axis {axis!r:.60} is not defined")
        return self._sizes[axis]

    def elements(self, workload: KernelWorkload) -> float:
        """How many numbers its inputs have; infinite for sizes that cannot be."""
        found = 0.0
        for its in self._definition.inputs.values():
            try:
                sizes = [self._number(node, workload) for node in self._dimensions(its)]
            except (ZeroDivisionError, OverflowError, ValueError):
                return math.inf
            found += math.prod(sizes) if all(0 < size <= _MOST_ELEMENTS for size in sizes) else math.inf
        return found

    def _source(self, workload: KernelWorkload, name: str) -> str:
        return str(workload.inputs.get(name, {}).get("type"))

    def is_usable(self, workload: KernelWorkload) -> bool:
        """Whether it gives all axes, and every input in a way that a task can."""
        sources = {name: self._source(workload, name) for name in self._definition.inputs}
        whole = all(axis in workload.axes for axis in self._variable)
        values = [workload.inputs[name].get("value") for name, source in sources.items() if source == "scalar"]
        numbers = all(isinstance(value, int | float) and abs(value) < math.inf for value in values)
        possible = {"custom"} if self._custom else set()
        said = all(
            source in {*possible, "scalar" if self._definition.inputs[name].shape is None else "random"}
            for name, source in sources.items()
        )
        return whole and numbers and said and self.elements(workload) <= _MOST_ELEMENTS

    def text(self, workloads: Sequence[KernelWorkload]) -> str:
        """The task file: the largest workload is timed. Others of the same kind are cases, where one of them is small
        enough to be interpreted; without one the judge makes the timed case small itself, which a list of cases would
        forbid."""
        timed, *others = workloads
        sources = [self._source(timed, name) for name in self._definition.inputs]
        alike = [w for w in others if [self._source(w, name) for name in self._definition.inputs] == sources]
        cases = [*alike[: _MOST_CASES - 1], *alike[_MOST_CASES - 1 :][-1:]]
        listed = [self._constants(case) for case in cases] if cases and self.elements(cases[-1]) <= _SMALL else []
        return "\n".join(self._lines(timed, listed))

    def _constants(self, workload: KernelWorkload) -> dict[str, Json]:
        axes: dict[str, Json] = {f"{_AXIS}{name}": workload.axes[name] for name in self._variable}
        scalars = [name for name in self._definition.inputs if self._source(workload, name) == "scalar"]
        return axes | {f"{_SCALAR}{name}": workload.inputs[name]["value"] for name in scalars}

    def _lines(self, timed: KernelWorkload, cases: Sequence[Mapping[str, Json]]) -> Iterator[str]:
        definition, names = self._definition, list(self._definition.inputs)
        constants, arguments = self._constants(timed), ", ".join(names)
        yield f"# {one_line(definition.name, 100)}: made of a kernel definition and its workloads; the largest is timed"
        torch = [] if "import torch" in self._reference.splitlines() else ["import torch"]
        yield from (*torch, self._reference, "", "")
        yield f"NOTES = {one_line(definition.description or '', 500)!r}"
        for name, value in constants.items():
            yield f"{name} = {value!r}"
        if cases:
            yield "CASES = ["
            for number, case in enumerate(cases, 2):
                changed = {name: value for name, value in case.items() if value != constants[name]}
                yield f"    { ({'name': f'workload {number}'} | changed)!r},"
            yield "]"
        if "custom" in [self._source(timed, name) for name in names]:
            yield f"INPUTS = {dict.fromkeys(names, 'own')!r}"
        yield from ("", "")
        yield "class Model(torch.nn.Module):"
        yield f"    def forward(self, {arguments}):"
        yield f"        return {self._call}"
        yield from ("", "", "def get_inputs():")
        yield from self._inputs(timed)
        yield from ("", "", "def get_init_inputs():", "    return []", "")

    def _inputs(self, timed: KernelWorkload) -> Iterator[str]:
        """The body of get_inputs."""
        names = self._definition.inputs
        if any(self._source(timed, name) == "custom" for name in names):
            axes = [f"{name!r}: int({ast.unparse(node)})" for name, node in self._sizes.items()]
            scalars = [f"{n!r}: {_SCALAR}{n}" for n in names if self._source(timed, n) == "scalar"]
            entry = _renamed(self._custom or "")
            yield f"    made = {entry}({{{', '.join([*axes, *scalars])}}}, torch.device('cpu'))"
        values = (self._value(name, its, self._source(timed, name)) for name, its in names.items())
        yield "    return ["
        for value in values:
            yield f"        {value},"
        yield "    ]"

    def _value(self, name: str, its: KernelInput, source: str) -> str:
        if source == "scalar":
            return f"{_SCALAR}{name}"
        if source == "custom":
            return f"made[{name!r}]"
        shape = ", ".join(f"int({ast.unparse(node)})" for node in self._dimensions(its))
        shape = f"({shape},)" if shape else "()"
        if its.dtype in FLOATS:
            return f"torch.randn({shape}).to(torch.{its.dtype})"
        return f"torch.randint(0, {_INTEGERS[its.dtype]}, {shape}).to(torch.{its.dtype})"
