"""Makes a kernel's body read as a person would have written it; what it computes stays the same. AST in, AST out."""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from agent.authors.offline.module_source import loads

WIDTH = 92  # of a statement that takes in another's expression
_KEPT_APART = {"load", "store", "sum", "max", "min", "argmax", "argmin", "reduce", "associative_scan", "broadcast_to"}


def tidy(function: ast.FunctionDef, names: Mapping[str, str]) -> None:
    """Rename parameters by `names`, call loaded values after their pointers, and write steps that are used once where
    they are used."""
    _Rename(names).visit(function)
    _Plain(_singles_in_float32(function)).visit(function)
    _put_constants_in_place(function)
    _put_aliases_in_place(function)
    for body in _blocks(function):
        _put_steps_in_place(function, body)
    _Plain(set()).visit(function)
    _Rename(_named_loads(function)).visit(function)
    ast.fix_missing_locations(function)


class _Rename(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._names.get(node.arg, node.arg)
        return self.generic_visit(node)


class _Plain(ast.NodeTransformer):
    """`tl.load(p, None)` -> `tl.load(p)`, `x[:]` -> `x`, `x.to(t).to(t)` -> `x.to(t)`; `wide`: float32 already."""

    def __init__(self, wide: set[str]) -> None:
        self._wide = wide

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        whole = isinstance(node.slice, ast.Slice) and not (node.slice.lower or node.slice.upper or node.slice.step)
        return node.value if whole else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if (
            _called(node) in ("load", "store")
            and isinstance(node.args[-1], ast.Constant)
            and node.args[-1].value is None
        ):
            node.args.pop()
        inner = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "to" else None
        if isinstance(inner, ast.Name) and inner.id in self._wide and ast.unparse(node.args[0]) == "tl.float32":
            return inner
        twice = isinstance(inner, ast.Call) and _called(inner) in ("to", "full", "cast")
        if twice and isinstance(inner, ast.Call) and ast.dump(inner.args[-1]) == ast.dump(node.args[0]):
            return inner
        return node


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.For | ast.While | ast.If):
            yield child.body
            yield getattr(child, "orelse", [])


def _stores(function: ast.AST) -> Counter[str]:
    """How often each name is set; a parameter counts as set once."""
    nodes = list(ast.walk(function))
    found = Counter(n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    found.update(n.arg for n in nodes if isinstance(n, ast.arg))
    return found


def _loads(node: ast.AST) -> Counter[str]:
    return Counter(loads(node))


class _Put(ast.NodeTransformer):
    """Names become expressions; `operands`: only beside an operator, and never both sides; `compared`: only there."""

    def __init__(self, values: Mapping[str, ast.expr], *, operands: bool = False, compared: bool = False) -> None:
        self._values, self._operands, self._compared = values, operands, compared

    def visit_Name(self, node: ast.Name) -> ast.AST:
        fits = isinstance(node.ctx, ast.Load) and not self._operands
        return self._values.get(node.id, node) if fits else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        arithmetic = self._operands and not self._compared
        if arithmetic and not (self._is_value(node.left) and self._is_value(node.right)):
            node.left, node.right = self._value(node.left), self._value(node.right)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self._operands and not self._is_value(node.left):
            node.comparators = [self._value(c) for c in node.comparators]
        return node

    def _is_value(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._values

    def _value(self, node: ast.expr) -> ast.expr:
        return self._values[node.id] if isinstance(node, ast.Name) and node.id in self._values else node


def _single(statement: ast.stmt) -> tuple[str, ast.expr] | None:
    """`name = expression`."""
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id, statement.value
    return None


def _singles_in_float32(function: ast.FunctionDef) -> set[str]:
    """Names whose one value ends in `.to(tl.float32)`."""
    stores = _stores(function)
    found = filter(None, (_single(s) for body in _blocks(function) for s in body))
    return {n for n, value in found if stores[n] == 1 and ast.unparse(value).endswith(".to(tl.float32)")}


def _put_constants_in_place(function: ast.FunctionDef) -> None:
    """`tl.full([1], 0.5, tl.float32)` beside an operator is 0.5: Triton makes it a float32, too. Integers only where
    they are compared, for `x + 1` has the width of x."""
    stores = _stores(function)
    floats: dict[str, ast.expr] = {}
    integers: dict[str, ast.expr] = {}
    for name, value in filter(None, (_single(s) for body in _blocks(function) for s in body)):
        number = re.fullmatch(r"tl\.full\(\[[1, ]*\], (\S+), tl\.(float32|int32|int64)\)", ast.unparse(value))
        if number and stores[name] == 1 and re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", number[1]):
            known, kind = (floats, float) if number[2] == "float32" else (integers, int)
            known[name] = ast.parse(repr(kind(float(number[1]))), mode="eval").body
    _Put(floats, operands=True).visit(function)
    _Put(integers, operands=True, compared=True).visit(function)
    _drop_unread(function, {*floats, *integers})


def _put_aliases_in_place(function: ast.FunctionDef) -> None:
    """`a = b`, in a block that sets neither again; `a` is read nowhere but in blocks that set it first."""
    blocks = list(_blocks(function))
    reads = _loads(function)
    for body in blocks:
        stores = _stores(ast.Module(body, []))
        for statement in list(body):
            name, value = _single(statement) or ("", None)
            if not isinstance(value, ast.Name) or stores[name] != 1 or stores[value.id] > 1:
                continue
            setters = [b for b in blocks if any((found := _single(s)) and found[0] == name for s in b)]
            if sum(_loads(ast.Module(b, []))[name] for b in setters) == reads[name]:
                body.remove(statement)
                body[:] = [_Put({name: value}).visit(s) for s in body]
                reads = _loads(function)


def _drop_unread(function: ast.FunctionDef, names: set[str]) -> None:
    unread = names - set(_loads(function))
    for body in _blocks(function):
        body[:] = [s for s in body if not ((found := _single(s)) and found[0] in unread)]


def _put_steps_in_place(function: ast.FunctionDef, body: list[ast.stmt]) -> None:
    stores, reads = _stores(function), _loads(function)
    index = 0
    while index < len(body):
        joined = _joined(body, index, stores, reads)
        if joined is None:
            index += 1
        else:
            place, statement = joined
            body[place] = statement
            del body[index]


def _joined(body: list[ast.stmt], index: int, stores: Counter[str], reads: Counter[str]) -> tuple[int, ast.stmt] | None:
    """The only statement that reads what `body[index]` sets, with the expression in it; None where it stays."""
    name, value = _single(body[index]) or ("", ast.Constant(None))
    if not re.fullmatch(r"tmp\d+", name) or (stores[name], reads[name]) != (1, 1) or _stays(value):
        return None
    place = next((i for i in range(index + 1, len(body)) if _loads(body[i])[name]), None)
    if place is None or not isinstance(body[place], ast.Assign | ast.Expr):
        return None
    if any(stores[used] > 1 for used in _loads(value)):  # a sum that goes on: not the same further down
        return None
    statement = _Put({name: value}).visit(ast.parse(ast.unparse(body[place])).body[0])
    return (place, ast.fix_missing_locations(statement)) if len(ast.unparse(statement)) <= WIDTH else None


def _stays(value: ast.expr) -> bool:
    calls = (_called(n) for n in ast.walk(value) if isinstance(n, ast.Call))
    return any(name in _KEPT_APART or name.startswith("atomic") for name in calls)


def _named_loads(function: ast.FunctionDef) -> dict[str, str]:
    """Values that are loaded once, under their pointer's name without `_ptr`."""
    stores, names = _stores(function), {}
    taken = set(stores) | set(_loads(function))
    for name, value in filter(None, (_single(s) for body in _blocks(function) for s in body)):
        pointer = re.match(r"tl\.load\((\w+)_ptr\b", ast.unparse(value))
        if not pointer or stores[name] != 1 or not re.fullmatch(r"tmp\d+", name):
            continue
        wanted, number = pointer[1], 2
        while wanted in taken:
            wanted, number = f"{pointer[1]}_{number}", number + 1
        names[name] = wanted
        taken.add(wanted)
    return names
