"""Whether an expert is for a task: patterns like `relu(addmm(bias, x, w))` against what the task's forward computes."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent.authors.offline.formula import canonical, formula, known_constants
from tools.codec import Json, decode, encode
from tools.spec import CaseSpec, TaskSpec, TensorSpec

Bound = dict[str, ast.expr]


@dataclass(frozen=True)
class Fit:
    """A call of an expert's host function, the formula for which it stands, and the shapes that it needs."""

    call: ast.Call
    pattern: ast.expr
    shapes: Mapping[str, tuple[str, ...]]

    @property
    def holes(self) -> set[str]:
        """Names of the pattern that stand for operands."""
        values = [*self.call.args, *(k.value for k in self.call.keywords)]
        return {n.id for v in values for n in ast.walk(v) if isinstance(n, ast.Name)} | {"_"}


def fits_of(text: str) -> Fit:
    """`call = pattern`, with ` where x: R C, …` behind it; raises SyntaxError."""
    line, _, where = text.partition(" where ")
    call, _, pattern = line.partition(" = ")
    parsed = ast.parse(call, mode="eval").body
    if not isinstance(parsed, ast.Call):
        raise SyntaxError(f"no call: {call}")
    pairs = (part.split(":") for part in where.split(",") if part)
    return Fit(parsed, canonical(pattern), {name.strip(): tuple(dims.split()) for name, dims in pairs})


@dataclass(frozen=True)
class Task:
    """What matching needs of a task."""

    value: ast.expr
    arguments: list[str]
    cases: tuple[CaseSpec, ...]
    precision: str

    @classmethod
    def of(cls, task: TaskSpec) -> "Task | None":
        """None where the forward is no formula. Held-out cases are not looked at."""
        cases = tuple(c for c in task.cases if not c.held_out)
        try:
            found = formula(task.source, known_constants(task.source, [c.init_args for c in cases]))
        except (SyntaxError, ValueError, RecursionError):
            return None
        return cls(*found, cases, task.precision) if found else None

    def call(self, fit: Fit) -> str | None:
        """The call with this task's operands in it, as text; None where the formula or a shape does not fit."""
        for bound in _match(fit.pattern, self.value, fit.holes, {}):
            operands = {name: _written(node, self.arguments) for name, node in bound.items()}
            if all(operands.values()) and all(self._suits(fit, bound, case) for case in self.cases):
                return ast.unparse(
                    _Filled({k: v for k, v in operands.items() if v}, self.precision).visit(_copied(fit))
                )
        return None

    def _suits(self, fit: Fit, bound: Bound, case: CaseSpec) -> bool:
        sizes: dict[str, int] = {}
        for name, dims in fit.shapes.items():
            operand = bound.get(name)
            if operand is None or (dims[:1] == ("plain",) and isinstance(operand, ast.Call)):
                return False
            shape = self._shape(operand, case)
            if shape is None or not _unified(tuple(d for d in dims if d != "plain"), shape, sizes):
                return False
        return True

    def _shape(self, node: ast.expr, case: CaseSpec) -> tuple[int, ...] | None:
        if isinstance(node, ast.Call):
            turned = self._shape(node.args[0], case)
            return turned and (*turned[:-2], *turned[-2:][::-1])
        if isinstance(node, ast.Name) and node.id in self.arguments:
            place = self.arguments.index(node.id)
            return _tensor_shape(encode(case.inputs[place])) if place < len(case.inputs) else None
        spec = case.state.get(ast.unparse(node).removeprefix("self."))
        return spec.shape if spec else None


def _copied(fit: Fit) -> ast.AST:
    return ast.parse(ast.unparse(fit.call), mode="eval").body


def _tensor_shape(value: Json) -> tuple[int, ...] | None:
    if isinstance(value, dict) and "$tensor" in value:
        return decode(TensorSpec, value["$tensor"]).shape
    return None


def _unified(dims: tuple[str, ...], shape: tuple[int, ...], sizes: dict[str, int]) -> bool:
    if dims[:1] == ("...",):
        dims = dims[1:]
        shape = shape[max(0, len(shape) - len(dims)) :]
    return len(dims) == len(shape) and all(_agrees(d, n, sizes) for d, n in zip(dims, shape, strict=True))


def _agrees(dim: str, size: int, sizes: dict[str, int]) -> bool:
    """`dim` is a letter, a number, or a letter with a bound: `M<257`."""
    name, _, bound = dim.partition("<")
    if name.isdigit():
        return int(name) == size
    return sizes.setdefault(name, size) == size and (not bound or size < int(bound))


def _match(pattern: Any, value: Any, holes: set[str], bound: Bound) -> Iterator[Bound]:
    """Every way to read `value` as `pattern`; sums and products in either order."""
    if isinstance(pattern, ast.Name) and pattern.id in holes:
        if pattern.id == "_":
            yield bound
        elif pattern.id not in bound:
            yield {**bound, pattern.id: value}
        elif ast.dump(bound[pattern.id]) == ast.dump(value):
            yield bound
    elif isinstance(pattern, ast.AST) and type(pattern) is type(value):
        own, other = _parts(pattern), _parts(value)
        yield from _match_all(own, other, holes, bound)
        if isinstance(pattern, ast.BinOp) and isinstance(pattern.op, ast.Add | ast.Mult):
            yield from _match_all(own, other[::-1], holes, bound)
    elif isinstance(pattern, list) and isinstance(value, list) and len(pattern) == len(value):
        yield from _match_all(pattern, value, holes, bound)
    elif type(pattern) is type(value) and pattern == value:
        yield bound


def _parts(node: ast.AST) -> list[Any]:
    return [getattr(node, name, None) for name in node._fields if name not in ("ctx", "kind")]


def _match_all(patterns: list[Any], values: list[Any], holes: set[str], bound: Bound) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    for first in _match(patterns[0], values[0], holes, bound):
        yield from _match_all(patterns[1:], values[1:], holes, first)


def _written(node: ast.expr, arguments: list[str]) -> str | None:
    """An operand as Python: an argument, an attribute of self, a number or a transposed operand; None for all else."""
    if isinstance(node, ast.Call):
        turned = isinstance(node.func, ast.Name) and node.func.id == "t" and len(node.args) == 1
        inner = _written(node.args[0], arguments) if turned else None
        return f"{inner}.t()" if inner else None
    if isinstance(node, ast.Constant):
        return repr(node.value)
    text = ast.unparse(node)
    return text if text in arguments or re.fullmatch(r"self(\.\w+)+", text) else None


class _Filled(ast.NodeTransformer):
    def __init__(self, operands: Mapping[str, str], precision: str) -> None:
        self._operands = {**operands, "PRECISION": repr(precision)}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute):  # a function's own name is no operand
            self.generic_visit(node.func)
        node.args = [self.visit(a) for a in node.args]
        node.keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        text = self._operands.get(node.id)
        return ast.parse(text, mode="eval").body if text else node
