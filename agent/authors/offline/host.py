"""Turns the `call` of Inductor's wrapper into the body of a `forward`. Text in, text out; imports no torch."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agent.authors.offline.kernels import Kernel
from agent.authors.offline.sketch import CannotLower

_DROPPED = ("args.clear(", "assert_size_stride(", "assert_alignment(", "torch.cuda.", "torch._C.", "get_raw_stream(")
_EXTERN = {"mm", "addmm", "bmm", "baddbmm", "convolution", "bias_addmm", "dot", "mv"}
_KNOWN = {"torch", "triton", "self", "view", "max", "min", "float", "int"}


@dataclass(frozen=True)
class Names:
    """How the forward calls things: `arguments` by position of Inductor's call, `symbols` by size symbol."""

    arguments: list[str]
    symbols: Mapping[str, str]
    kernels: Mapping[str, Kernel]
    device: str


def launches(code: str, arguments: list[str]) -> dict[str, list[str]]:
    """What each kernel that is launched just once is given, by position: an argument's text, or that of Inductor."""
    call = _find_call(ast.parse(code))
    given: dict[str, str] = {}
    found: dict[str, list[list[str]]] = {}
    for statement in _statements(call.body):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == "args":
            target = statement.targets[0]
            parameters = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            given = dict(zip(map(ast.unparse, parameters), arguments, strict=True))
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".run"):
                texts = [given.get(text, text) for text in (_base(a) for a in node.args)]
                found.setdefault(ast.unparse(node.func).removesuffix(".run"), []).append(texts)
    return {kernel: texts[0] for kernel, texts in found.items() if len(texts) == 1}


def fused_operators(code: str) -> dict[str, list[str]]:
    """The operators of torch that each kernel stands for, from the comments above the launches."""
    found: dict[str, list[str]] = {}
    operators: list[str] = []
    for line in code.splitlines():
        if comment := re.search(r"# Topologically Sorted .* Original ATen: \[(.*)\]", line):
            operators = [name.rpartition(".")[2] for name in comment[1].split(", ") if name]
        elif launch := re.match(r"\s*(\w+)\.run\(", line):
            found.setdefault(launch[1], [o.strip("_") for o in operators])
    return found


def library_calls(code: str) -> str:
    """What the forward leaves to torch's libraries, in words: `mm, convolution`; "" where it is all views."""
    called = re.findall(r"(?:extern_kernels|torch\.ops\.aten)\.(\w+)[\w.]*\(", code[code.find("def call(") :])
    return ", ".join(dict.fromkeys(called))


def _base(node: ast.expr) -> str:
    """The tensor that a view is of."""
    while isinstance(node, ast.Call) and ast.unparse(node.func) == "reinterpret_tensor":
        node = node.args[0]
    return ast.unparse(node)


def forward_body(code: str, names: Names, outputs: str) -> list[str]:
    """Statements of the forward. Raises CannotLower when something has no plain PyTorch equivalent."""
    call = _find_call(ast.parse(code))
    rewrite = _Host(names)
    lines: list[str] = []
    for statement in _statements(call.body):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == "args":
            rewrite.bind(statement.targets[0])
        elif isinstance(statement, ast.Return):
            values = statement.value.elts if isinstance(statement.value, ast.Tuple) else []
            lines.append(f"return {outputs.format(*(ast.unparse(rewrite.visit(v)) for v in values))}")
        elif not _dropped(statement, names.symbols):
            lines += ast.unparse(ast.fix_missing_locations(rewrite.visit(statement))).splitlines()
    _refuse_unknown(lines, names)
    return lines


def _find_call(tree: ast.Module) -> ast.FunctionDef:
    return next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "call")


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.With):  # device guards
            yield from _statements(statement.body)
        else:
            yield statement


def _dropped(statement: ast.stmt, symbols: Mapping[str, str]) -> bool:
    if isinstance(statement, ast.Delete):
        return True
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        target, value = statement.targets[0].id, ast.unparse(statement.value)
        own_size = target in symbols or target.endswith("_size")
        return own_size or value.startswith(("get_raw_stream(", "copy_if_misaligned("))
    return isinstance(statement, ast.Expr) and ast.unparse(statement).startswith(_DROPPED)


class _Host(ast.NodeTransformer):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.rename: dict[str, ast.expr] = {s: _expression(text) for s, text in names.symbols.items()}

    def bind(self, target: ast.expr) -> None:
        parameters = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        for parameter, text in zip(parameters, self.names.arguments, strict=True):
            self.rename[ast.unparse(parameter)] = _expression(text)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        for old, kernel in self.names.kernels.items():
            if node.id.startswith(old + "_") and node.id.endswith("numel"):
                return ast.Name(kernel.name.removesuffix("kernel") + node.id.removeprefix(old + "_"), node.ctx)
        return self.rename.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = ast.unparse(node.func)
        if function.endswith(".run") and function.removesuffix(".run") in self.names.kernels:
            return self._launch(self.names.kernels[function.removesuffix(".run")], node)
        self.generic_visit(node)
        if function == "empty_strided_cuda":
            return _empty(node, self.names.device)
        if function == "reinterpret_tensor":
            return ast.Call(ast.Name("view", ast.Load()), node.args, [])
        if function == "device":
            return _expression(self.names.device)
        if function.startswith("extern_kernels."):
            return _library(function.removeprefix("extern_kernels."), node)
        if function.startswith("aten."):
            node.func = _expression(f"torch.ops.{function}")
        return node

    def _launch(self, kernel: Kernel, node: ast.Call) -> ast.AST:
        given = dict(zip(kernel.runtime, (ast.unparse(self.visit(a)) for a in node.args), strict=True))
        options = [f"{key}={kernel.parameter(key)}" for key in kernel.defaults]
        computed = [_filled(text, given) for text in kernel.computed]
        arguments = ", ".join([*(given[name] for name in kernel.kept), *computed, *options])
        return _expression(f"{kernel.name}[{grid(kernel, given)}]({arguments})")


def _filled(text: str, given: Mapping[str, str]) -> str:
    """An expression in a kernel's parameters, with what it is given for them."""
    tree = _expression(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = given[node.id]  # an attribute's text is as good: it is only written down
    return ast.unparse(tree)


def grid(kernel: Kernel, given: Mapping[str, str]) -> str:
    """The launch grid as Python text."""

    def blocks(axis: str) -> str:
        constant = kernel.parameter(f"{axis.upper()}BLOCK")
        return f"triton.cdiv({given[f'{axis}numel']}, {constant})" if f"{axis.upper()}BLOCK" in kernel.defaults else "1"

    kind = kernel.facts.grid
    if kind == "Grid1D":
        return f"({blocks('x')},)"
    if kind == "Grid2D":
        return f"({blocks('x')}, {blocks('y')})"
    if kind == "Grid2DWithYZOverflow":
        overflow = f"triton.cdiv({blocks('y')}, 65535)"
        return f"({blocks('x')}, triton.cdiv({blocks('y')}, {overflow}), {overflow})"
    if kind == "Grid3D":
        return f"({blocks('x')}, {blocks('y')}, {blocks('z')})"
    if kind == "SplitScanGrid":
        return f"(triton.cdiv({given['r0_numel']}, {kernel.parameter('R0_BLOCK')}), {given['xnumel']})"
    raise CannotLower(f"kernel {kernel.name} wants a {kind}")


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _empty(node: ast.Call, device: str) -> ast.AST:
    shape, stride, dtype = (ast.unparse(a) for a in node.args)
    where = f"dtype={dtype}, device={device}"
    if _row_major(node.args[0], node.args[1]):
        return _expression(f"torch.empty({shape}, {where})")
    return _expression(f"torch.empty_strided({shape}, {stride}, {where})")


def _row_major(shape: ast.expr, stride: ast.expr) -> bool:
    try:
        sizes, steps = ast.literal_eval(shape), ast.literal_eval(stride)
    except ValueError:  # sizes that are names: a row is as long as its last size says
        texts = [[ast.unparse(e) for e in node.elts] for node in (shape, stride) if isinstance(node, ast.Tuple)]
        return len(texts) == 2 and texts[1] == [*texts[0][1:], "1"][: len(texts[0])] and len(texts[0]) <= 2
    wanted = 1
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        if step != wanted and size != 1:
            return False
        wanted *= size
    return True


def _library(name: str, node: ast.Call) -> ast.AST:
    if name not in _EXTERN:
        raise CannotLower(f"extern_kernels.{name} has no plain PyTorch equivalent here")
    node.func = _expression(f"torch.{name.removeprefix('bias_')}")
    return node


def _refuse_unknown(lines: list[str], names: Names) -> None:
    tree = ast.parse("\n".join(line for line in lines if not line.startswith("return ")))
    loads = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    stores = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    given = {n.id for text in [*names.arguments, *names.symbols.values()] for n in _walk_names(text)}
    constants = {k.parameter(key) for k in names.kernels.values() for key in k.defaults}
    known = _KNOWN | stores | given | constants | {k.name for k in names.kernels.values()}
    if unknown := loads - known:
        raise CannotLower(f"the wrapper uses {', '.join(sorted(unknown))}, which only Inductor has")


def _walk_names(text: str) -> Iterator[ast.Name]:
    return (n for n in ast.walk(_expression(text)) if isinstance(n, ast.Name))
