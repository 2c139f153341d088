"""Takes from a person's file, by reading it, one function or module and whatever else of the file it needs."""

import ast
import difflib
import re
import symtable
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerneltune.tools.schema.errors import TaskError

Definition = ast.FunctionDef | ast.ClassDef
TAKEN = ("Model", "get_inputs", "get_init_inputs", "CASES", "PRECISION", "INPUTS", "NOTES")  # a task is read by these


@dataclass(frozen=True)
class Parameter:
    """An argument of a function. `kind`: its annotation as written, "" without one; `default`: likewise; `keyword`:
    whether it must be named; `placed`: whether it cannot be."""

    name: str
    kind: str
    default: str
    keyword: bool = False
    placed: bool = False


@dataclass(frozen=True)
class CodeParts:
    """What a task is made from. `imports` and `helpers` are source, in the order of the file; `forward` and `init`
    leave out `self`; `body` is what may tell shapes: the definition, and the classes of the file that it inherits from;
    `words` is the first line of the docstring; `local_imports`: modules that lie beside the file; `names`: those that
    mean something of this code's own, so that no constant of the task may be called so."""

    name: str
    is_module: bool
    imports: tuple[str, ...]
    helpers: tuple[str, ...]
    definition: str
    forward: tuple[Parameter, ...]
    init: tuple[Parameter, ...]
    body: ast.AST
    words: str
    local_imports: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()


def parts_of(source: str, name: str, path: Path) -> CodeParts:
    """The function or class `name` of `source`, whose file is `path`. Raises TaskError naming what is wrong."""
    try:
        tree = ast.parse(source, filename=str(path))
    except SyntaxError as error:
        line = f", line {error.lineno}" if error.lineno else " is not a Python file"
        raise TaskError(f"{path}{line}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{path} is not a Python file: {error}") from error
    found = _definition(tree, name, path)
    table = symtable.symtable(source, str(path), "exec")
    needed = _needed(tree, found, table)
    others = [n for n in needed if not isinstance(n, ast.Import | ast.ImportFrom)]
    used = {name for n in others for name in _used(n, table)}
    imports = [_only(n, used) for n in needed if isinstance(n, ast.Import | ast.ImportFrom)]
    helpers = [n for n in others if n is not found]
    bound = {b for n in (*imports, *helpers) for b in _bound(n)}
    is_module = isinstance(found, ast.ClassDef)
    _require_free(path, name, bound, is_module=is_module)
    lineage = _lineage(found, tree) if isinstance(found, ast.ClassDef) else []
    forward = _parameters(_method(found, "forward", path) if isinstance(found, ast.ClassDef) else found, is_module)
    init = _parameters(_init(lineage), True)
    return CodeParts(
        name=name,
        is_module=is_module,
        imports=tuple(ast.unparse(n) for n in imports),
        helpers=tuple(_text(source, n) for n in helpers),
        definition=_text(source, found),
        forward=forward,
        init=init,
        body=ast.Module([*lineage] or [found], []),
        words=(ast.get_docstring(found) or "").strip().partition("\n")[0].rstrip("."),
        local_imports=tuple(_local(imports, path.parent)),
        names=frozenset({name, *bound, *used, *(p.name for p in (*forward, *init))}),
    )


def _require_free(path: Path, name: str, bound: set[str], *, is_module: bool) -> None:
    """A task is read by the names of its parts, so these cannot be called otherwise."""
    if clash := next((taken for taken in TAKEN if taken in bound), None):
        raise TaskError(f"{path}: {name} needs {clash}, a name that means something else in a task; rename it first")
    if name in TAKEN and not (is_module and name == "Model"):
        raise TaskError(f"{path}: {name} is a name that means something else in a task; rename it first")


def _definition(tree: ast.Module, name: str, path: Path) -> Definition:
    known = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    if name in known:
        return known[name]
    if any(isinstance(n, ast.AsyncFunctionDef) and n.name == name for n in tree.body):
        raise TaskError(f"{path}: {name} is an async function; a task needs one that returns tensors")
    listed = ", ".join(known) or "no function and no class at its top level"
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it has {listed}"
    raise TaskError(f"{path}: no function or class {name!r}; {hint}")


def names_in(source: str, path: Path) -> list[str]:
    """What of a file could become a task: its functions, and classes with a forward. Raises TaskError."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise TaskError(f"{path} is not a Python file: {error}") from error
    return [
        n.name
        for n in tree.body
        if (isinstance(n, ast.FunctionDef) and not n.name.startswith("_"))
        or (isinstance(n, ast.ClassDef) and _find(n, "forward"))
    ]


def _find(found: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _method(found: ast.ClassDef, name: str, path: Path) -> ast.FunctionDef:
    if method := _find(found, name):
        return method
    raise TaskError(f"{path}: class {found.name} has no forward of its own; name a function, or a class that has one")


def _init(lineage: Sequence[ast.ClassDef]) -> ast.FunctionDef | None:
    return next((init for one in lineage if (init := _find(one, "__init__"))), None)


def _lineage(found: ast.ClassDef, tree: ast.Module) -> list[ast.ClassDef]:
    """The class and those of the same file that it inherits from, in the order in which Python looks into them."""
    known = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    done: list[ast.ClassDef] = []
    seen: set[str] = set()
    waiting = [(found, False)]
    while waiting:
        one, bases_done = waiting.pop()
        if bases_done:
            done.append(one)
        elif one.name not in seen:  # a file may claim that a class inherits from itself
            seen.add(one.name)
            bases = [b.value if isinstance(b, ast.Subscript) else b for b in one.bases]  # Base[T]
            names = [b.id for b in bases if isinstance(b, ast.Name)]
            waiting += [(one, True), *((known[name], False) for name in names if name in known)]  # the last goes first
    return done[::-1]


def _parameters(function: ast.FunctionDef | None, is_method: bool) -> tuple[Parameter, ...]:
    if function is None:
        return ()
    args = function.args
    positional = [*args.posonlyargs, *args.args]
    defaults = ["", *map(ast.unparse, args.defaults)][-len(args.defaults) :] if args.defaults else []
    padded = [""] * (len(positional) - len(defaults)) + defaults
    placed = [*(True for _ in args.posonlyargs), *(False for _ in args.args)]
    found = [_parameter(a, d, placed=p) for a, d, p in zip(positional, padded, placed, strict=True)][int(is_method) :]
    pairs = zip(args.kwonlyargs, args.kw_defaults, strict=True)
    keyword = [_parameter(a, ast.unparse(d) if d else "", keyword=True) for a, d in pairs]
    return (*found, *keyword)


def _parameter(arg: ast.arg, default: str, *, keyword: bool = False, placed: bool = False) -> Parameter:
    kind = ast.unparse(arg.annotation).strip("'\"") if arg.annotation else ""
    return Parameter(arg.arg, kind, default, keyword, placed)


def _needed(tree: ast.Module, found: Definition, table: symtable.SymbolTable) -> list[ast.stmt]:
    """The statements of the top level that `found` needs, and those that they need, in their order."""
    binders: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _bound(node):
            binders.setdefault(name, []).append(node)
    kept: list[ast.stmt] = [found]
    for node in kept:  # grows meanwhile
        for name in _used(node, table):
            kept += [b for b in binders.get(name, ()) if b not in kept and not _is_main(b)]
    kept += [
        n for n in tree.body if isinstance(n, ast.ImportFrom) and (n.module == "__future__" or n.names[0].name == "*")
    ]
    return [n for n in tree.body if n in kept]


def _only(node: ast.Import | ast.ImportFrom, used: set[str]) -> ast.Import | ast.ImportFrom:
    """An import of what is used and nothing else."""
    if isinstance(node, ast.Import):
        return ast.Import([a for a in node.names if (a.asname or a.name.partition(".")[0]) in used])
    kept = [a for a in node.names if a.name == "*" or node.module == "__future__" or (a.asname or a.name) in used]
    return ast.ImportFrom(node.module, kept, node.level)


def _is_main(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":`"""
    return isinstance(node, ast.If) and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))


def _bound(node: ast.stmt) -> Iterator[str]:
    """Names that a statement of the top level gives a meaning."""
    if isinstance(node, ast.Import):
        yield from (a.asname or a.name.partition(".")[0] for a in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (a.asname or a.name for a in node.names)
    elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.If | ast.Try | ast.With):
        yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):  # try: import … except ImportError: …
                yield from _bound(inner)


def _used(node: ast.stmt, table: symtable.SymbolTable) -> set[str]:
    """Names of the top level that a statement needs; those that a function calls its own are not among them."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return _loaded(node)
    found = {name for child in table.get_children() if child.get_name() == node.name for name in _globals(child)}
    outside: list[ast.AST] = [*node.decorator_list]
    if isinstance(node, ast.ClassDef):
        outside += [*node.bases, *node.keywords]
    for inner in ast.walk(node):
        if isinstance(inner, ast.arguments):
            outside += [*inner.defaults, *filter(None, inner.kw_defaults)]
        elif isinstance(inner, ast.arg | ast.AnnAssign) and inner.annotation:
            outside.append(inner.annotation)
        elif isinstance(inner, ast.FunctionDef) and inner.returns:
            outside.append(inner.returns)
    return found.union(*map(_loaded, outside))


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    yield from (s.get_name() for s in table.get_symbols() if s.is_global())
    for child in table.get_children():
        yield from _globals(child)


def _loaded(node: ast.AST) -> set[str]:
    """Names that are read, quoted annotations among them."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    words = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return names.union(*(re.findall(r"[A-Za-z_]\w*", w) for w in words if len(w) < 80))


def _local(imports: Sequence[ast.Import | ast.ImportFrom], folder: Path) -> Iterator[str]:
    """Imports that would not be found from elsewhere: relative ones, and files beside this one."""
    for node in imports:
        if isinstance(node, ast.ImportFrom) and node.level:
            yield ast.unparse(node)
            continue
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        if any(_lies_in(folder, name.partition(".")[0]) for name in names):
            yield ast.unparse(node)


def _lies_in(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def _text(source: str, node: ast.stmt) -> str:
    """The statement as it was written, with its decorators."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return ast.get_source_segment(source, node) or ast.unparse(node)
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    lines = re.split(r"\r\n|\r|\n", source)[first - 1 : node.end_lineno]
    return "\n".join(line.rstrip() for line in lines)
