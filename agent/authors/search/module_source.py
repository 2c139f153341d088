"""Takes from a task file what a candidate's constructor needs: `Model` without its forward, and what that refers to.

Copying the constructor keeps names and shapes of all parameters, random draws included, whatever it does.
"""

import ast
from collections.abc import Iterator

from kerneltune.agent.authors.search.sketch import CannotLower


def model_parts(source: str) -> tuple[list[str], ast.ClassDef, ast.arguments]:
    """Needed top-level statements of the task, `ModelNew` without methods that compute, and forward's parameters."""
    tree = ast.parse(source)
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    if model is None:
        raise CannotLower("the task file has no `class Model` of its own")
    forward = _method(with_inherited(tree, model), "forward")
    if forward is None:
        raise CannotLower("Model inherits its forward from a class of another file")
    stripped = _Constructor().visit(ast.parse(ast.unparse(model)).body[0])
    _keep_called(stripped)
    definitions = _definitions(tree)
    needed = _reachable(stripped, definitions)
    texts = [ast.unparse(_without_forward(s)) for s in tree.body if s is not model and _defines(s) & needed]
    return texts, stripped, forward.args


def _method(model: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def with_inherited(tree: ast.Module, model: ast.ClassDef) -> ast.ClassDef:
    """The class as if all that it inherits from classes of the file stood in it, to be read: a constructor that does no
    more than hand its arguments on, and convert what was made, gives way to the one that it calls."""
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    seen = {model.name}
    while len(model.bases) == 1 and (name := ast.unparse(model.bases[0])) in classes.keys() - seen:
        seen.add(name)
        base, own = classes[name], _method(model, "__init__")
        kept = [n for n in model.body if n is not own or not _hands_on(own, _method(base, "__init__"))]
        stated = {n.name for n in kept if isinstance(n, ast.FunctionDef)}
        inherited = [n for n in base.body if not isinstance(n, ast.FunctionDef) or n.name not in stated]
        model = ast.ClassDef(model.name, base.bases, base.keywords, [*inherited, *kept], base.decorator_list)
    return model


def _hands_on(own: ast.FunctionDef, theirs: ast.FunctionDef | None) -> bool:
    """Whether a constructor gives its arguments to the inherited one, in their order and under their names."""
    if theirs is None or not own.body or not isinstance(own.body[0], ast.Expr):
        return False
    names, call = [a.arg for a in own.args.args[1:]], own.body[0].value
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "super().__init__":
        return False
    given = [ast.unparse(v) for v in (*call.args, *(k.value for k in call.keywords if k.arg == ast.unparse(k.value)))]
    converts = all(ast.unparse(statement).startswith("self.to(") for statement in own.body[1:])
    return converts and names == given == [a.arg for a in theirs.args.args[1 : 1 + len(names)]]


class _Constructor(ast.NodeTransformer):
    """Model -> ModelNew, also inside `super(Model, self)`."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name("ModelNew", node.ctx) if node.id == "Model" else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.name = "ModelNew" if node.name == "Model" else node.name
        return node


def _keep_called(model: ast.ClassDef) -> None:
    """Drop the docstring and every method that the constructor does not lead to."""
    methods = {n.name: n for n in model.body if isinstance(n, ast.FunctionDef)}
    wanted, todo = set(), [m for m in methods if m == "__init__"]
    while todo:
        name = todo.pop()
        wanted.add(name)
        used = {n.attr for n in ast.walk(methods[name]) if isinstance(n, ast.Attribute)}
        todo += [m for m in methods if m in used and m not in wanted and m != "forward"]
    docstring = model.body[0] if ast.get_docstring(model) is not None else None
    unwanted = [n for n in model.body if isinstance(n, ast.FunctionDef) and n.name not in wanted]
    model.body = [n for n in model.body if n is not docstring and n not in unwanted]


def _without_forward(node: ast.stmt) -> ast.stmt:
    """A submodule's class only holds parameters in a candidate."""
    if isinstance(node, ast.ClassDef) and _method(node, "__init__"):
        copy = ast.parse(ast.unparse(node)).body[0]
        assert isinstance(copy, ast.ClassDef)
        _keep_called(copy)
        return copy
    return node


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return set()


def _definitions(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    found: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _defines(node):
            found.setdefault(name, []).append(node)
    return found


def _reachable(start: ast.AST, definitions: dict[str, list[ast.stmt]]) -> set[str]:
    seen: set[str] = set()
    todo = list(loads(start))
    while todo:
        name = todo.pop()
        if name in seen or name not in definitions:
            continue
        seen.add(name)
        for node in definitions[name]:
            todo += loads(_without_forward(node))
    return seen


def loads(node: ast.AST) -> Iterator[str]:
    """The names that are read in it, each as often as it is."""
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def with_forward(kernels: str, source: str, call: str) -> str:
    """A candidate: `kernels` as they are, then the task's constructor with a forward that returns `call`."""
    statements, model, parameters = model_parts(source)
    for argument in parameters.args:
        argument.annotation = None  # names in it need not be among what is copied
    arguments = ast.unparse(parameters)
    model.body = [n for n in model.body if not isinstance(n, ast.FunctionDef) or n.name != "forward"]
    model.body.append(ast.parse(f"def forward({arguments}):\n    return {call}").body[0])
    imports = [s for s in statements if s.startswith(("import ", "from "))]
    rest = [s for s in statements if s not in imports]
    head, _, body = kernels.partition("\nimport triton.language as tl\n")
    top = [f"{head}\nimport triton.language as tl", *(i for i in imports if i not in kernels)]
    return "\n\n\n".join(["\n".join(top), body.strip(), *rest, ast.unparse(ast.fix_missing_locations(model))]) + "\n"
