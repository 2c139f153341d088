"""The strongest normal form: the syntax tree, with local variables renamed. About 1 ms for a kernel of 1.2 kB.

It parses what a model wrote, in this process: long sources and long lines are refused beforehand, since the parser's
stack is C's. Dumps differ between versions of Python: compare them within one process, and do not store them.
"""

import ast
import re
import warnings

MOST_CHARACTERS = 200_000
_DEEPEST = 60  # brackets, and operators in a row, that an honest source may nest
_MOST_OF_A_STATEMENT = 20_000  # characters of a physical line
_ROW = re.compile(r"(?:(?:[-+~(\[{]|not\s|lambda\b[^:\n]{0,80}:|await\s)\s*){60}")


def parse(source: str) -> ast.Module | None:
    """The tree of a source, or None for one that is no Python, or too deep or too long to be parsed without danger."""
    if len(source) > MOST_CHARACTERS or _ROW.search(source) or _too_long(source):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in strings
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None


def _too_long(source: str) -> bool:
    return len(source) > _MOST_OF_A_STATEMENT and max(map(len, source.split("\n"))) > _MOST_OF_A_STATEMENT


def tree_form(source: str, *, constants: bool = True) -> str | None:
    """The tree in words, without docstrings, local variables named by their order; None where `parse` says None.

    constants: False writes every number and string alike, for what differs only in shapes and dtypes.
    """
    tree = parse(source)
    if tree is None:
        return None
    try:
        return node_form(tree, constants=constants)
    except RecursionError:
        return None


def node_form(tree: ast.AST, *, constants: bool = True) -> str:
    """The same of a node, which is changed. Raises RecursionError."""
    return ast.dump(_Canonical(constants).visit(tree), annotate_fields=False)


class _Canonical(ast.NodeTransformer):
    def __init__(self, constants: bool) -> None:
        self._constants = constants
        self._names: dict[str, str] | None = None  # of the outermost function that is visited

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outermost = self._names is None
        if outermost:
            self._names = {name: f"${i}" for i, name in enumerate(_locals(node))}
        _drop_words(node)
        self.generic_visit(node)
        if outermost:
            self._names = None
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        _drop_words(node)
        return self.generic_visit(node)

    def visit_Module(self, node: ast.Module) -> ast.AST:
        _drop_words(node)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = (self._names or {}).get(node.id, node.id)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not self._constants and not isinstance(node.value, bool | None):
            node.value = 0
        node.kind = None
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """-1 is a constant, too."""
        if not self._constants and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return self.visit_Constant(node.operand)
        return self.generic_visit(node)


def _drop_words(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> None:
    """Without docstrings, and other statements that do nothing."""
    node.body = [s for s in node.body if not isinstance(s, ast.Pass) and not _is_constant(s)]


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _locals(function: ast.FunctionDef) -> list[str]:
    """Names that are assigned in a function, in order; not its parameters, which callers may name, nor globals."""
    taken: set[str] = set()
    names: dict[str, None] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            taken.add(node.arg)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            taken.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
    return [name for name in names if name not in taken]


def body_form(function: ast.FunctionDef) -> str | None:
    """A function's body in words: parameters and local variables by their order, no constants. The tree is changed.
    None when it is too deep."""
    names = [
        a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs) if a.arg != "self"
    ]
    try:
        _drop_words(function)
        body = ast.Module(function.body, [])
        renamed = {name: f"${i}" for i, name in enumerate(dict.fromkeys((*names, *_locals(function))))}
        return node_form(_Renamed(renamed).visit(body), constants=False)
    except RecursionError:
        return None


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._names.get(node.id, node.id)
        return node
