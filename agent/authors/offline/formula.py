"""What a task's `forward` computes, as one expression in one spelling: `torch.softmax(x, 1)`, `x.softmax(dim=1)` and
`self.act(x)` with `self.act = nn.Softmax(dim=1)` are all `softmax(x, dim=1)`. Text in, syntax tree out; no torch here.
"""

import ast
from collections.abc import Mapping, Sequence

from agent.authors.offline.module_source import with_inherited
from tools.codec import Json

Constants = Mapping[str, Json]

# names of arguments after the first, so that `f(x, 1)` and `f(x, dim=1)` read alike
_POSITIONAL = {
    **dict.fromkeys(("softmax", "log_softmax", "argmax", "cumsum"), ("dim",)),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), ("dim", "keepdim")),
    "chunk": ("chunks", "dim"),
    "rms_norm": ("normalized_shape", "weight", "eps"),
    "layer_norm": ("normalized_shape", "weight", "bias", "eps"),
    "cross_entropy": ("target",),
    "gelu": ("approximate",),
    "topk": ("k", "dim"),
    "linear": ("weight", "bias"),
    "matmul": ("other",),
    "addmm": ("mat1", "mat2"),
}
_SAME = {"mm": "matmul", "bmm": "matmul"}
_OPERATORS: dict[type[ast.operator], str] = {ast.MatMult: "matmul", ast.Pow: "pow"}
_DEFAULTS = {("sum", "keepdim"): False, ("mean", "keepdim"): False, ("gelu", "approximate"): "none"}
# module -> (function, its keyword arguments by constructor argument, which parameters it holds)
_MODULES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "Softmax": ("softmax", ("dim",), ()),
    "LogSoftmax": ("log_softmax", ("dim",), ()),
    "ReLU": ("relu", (), ()),
    "SiLU": ("silu", (), ()),
    "Linear": ("linear", (), ("weight", "bias")),
}
_WHOLE = {
    f"Conv{kind}{n}d" for kind in ("", "Transpose") for n in (1, 2, 3)
}  # `Conv1d(x, self.layer)`: an expert asks the module itself for stride, padding and the like


def formula(source: str, constants: Constants) -> tuple[ast.expr, list[str]] | None:
    """The value of `Model.forward` and its arguments' names; None where it is more than assignments and a return.

    `constants` gives values to what is not an argument: "self.dim", "LARGEST".
    """
    tree = ast.parse(source)
    model = _model_of(tree)
    methods = {n.name: n for n in model.body if isinstance(n, ast.FunctionDef)} if model else {}
    if "forward" not in methods or not _is_plain(methods["forward"].args):
        return None
    own = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    arguments = [a.arg for a in methods["forward"].args.args][1:]
    value = _Inliner(methods, _modules(model, methods.get("__init__")), constants, own).body(
        methods["forward"], {name: ast.Name(name, ast.Load()) for name in arguments}
    )
    return (value, arguments) if value is not None else None


def _model_of(tree: ast.Module) -> ast.ClassDef | None:
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    return with_inherited(tree, model) if model else None


def _is_plain(arguments: ast.arguments) -> bool:
    """Without `*args`, `**options`, keyword-only arguments or defaults that are more than a literal."""
    more = arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs
    return not more and all(isinstance(d, ast.Constant) for d in arguments.defaults)


def canonical(text: str) -> ast.expr:
    """An expression of a pattern in that spelling."""
    return _Inliner({}, {}, {}, set()).visit(ast.parse(text, mode="eval").body)  # type: ignore[no-any-return]


def known_constants(source: str, init_args: Sequence[Sequence[Json]]) -> dict[str, Json]:
    """Values that are equal in all cases: of attributes that `__init__` takes from its arguments or from literals, and
    of the file's constants that no case changes. `init_args` are the constructor's arguments in each case."""
    tree = ast.parse(source)
    found: dict[str, Json] = {}
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        ):
            found[node.targets[0].id] = node.value.value
    changed = {key for case in _cases(tree) for key in case}
    found = {name: value for name, value in found.items() if name not in changed}
    model = _model_of(tree)
    init = (
        next((n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if model
        else None
    )
    if model is None or init is None:
        return found
    once = _set_once(model)
    return {**found, **{key: v for key, v in _attributes(init, init_args).items() if key in once}}


def _set_once(model: ast.ClassDef) -> set[str]:
    """Attributes (`self.dim`) that one statement of the class gives a value, and only one."""
    stores = [n for n in ast.walk(model) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    texts = [ast.unparse(n) for n in stores]
    return {text for text in texts if texts.count(text) == 1}


def _attributes(init: ast.FunctionDef, init_args: Sequence[Sequence[Json]]) -> dict[str, Json]:
    changed = {n.id for n in ast.walk(init) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names = [a.arg for a in init.args.args][1:]
    given = {name: {repr(args[i]): args[i] for args in init_args if i < len(args)} for i, name in enumerate(names)}
    defaults = dict(zip(names[::-1], init.args.defaults[::-1], strict=False))
    found: dict[str, Json] = {}
    for target, value in _assignments(init):
        key = ast.unparse(target)
        if isinstance(value, ast.Name) and value.id in given and value.id not in changed:
            values = list(given[value.id].values())
            default = defaults.get(value.id)
            if len(values) == 1 and isinstance(values[0], bool | int | float | str):
                found[key] = values[0]
            elif not values and isinstance(default, ast.Constant):
                found[key] = default.value
        elif isinstance(value, ast.Constant):
            found[key] = value.value
    return found


def _assignments(init: ast.FunctionDef) -> list[tuple[ast.expr, ast.expr]]:
    found: list[tuple[ast.expr, ast.expr]] = []
    for node in init.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                found += zip(target.elts, node.value.elts, strict=False)
            else:
                found.append((target, node.value))
    return found


def _cases(tree: ast.Module) -> list[dict[str, Json]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASES":
            return list(ast.literal_eval(node.value))
    return []


def _modules(model: ast.ClassDef | None, init: ast.FunctionDef | None) -> dict[str, ast.Call]:
    """NAME -> the call that makes self.NAME, of modules that we know."""
    once = _set_once(model) if model else set()
    return {
        target.attr: value
        for target, value in (_assignments(init) if init else [])
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Call)
        if _last(value.func) in _MODULES or _last(value.func) in _WHOLE
        if ast.unparse(target) in once
    }


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Inliner(ast.NodeTransformer):
    def __init__(
        self, methods: Mapping[str, ast.FunctionDef], modules: Mapping[str, ast.Call], known: Constants, own: set[str]
    ) -> None:
        self._own_names = own  # functions of the file, which may be called like torch's
        self._methods, self._modules, self._known = methods, modules, known
        self._values: dict[str, ast.expr] = {}
        self._depth = 0

    def body(self, function: ast.FunctionDef, values: dict[str, ast.expr]) -> ast.expr | None:
        """What a function of assignments and one return gives for these arguments; None for other functions."""
        outer, self._values = self._values, dict(values)
        self._depth += 1
        try:
            for node in function.body:
                if isinstance(node, ast.Return) and node.value is not None:
                    found: ast.expr = self.visit(_copy(node.value))
                    return found
                if isinstance(node, ast.Assign) and len(node.targets) == 1:
                    if not self._assign(node.targets[0], self.visit(_copy(node.value))):
                        return None
                elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                    return None
            return None
        finally:
            self._values = outer
            self._depth -= 1

    def _assign(self, target: ast.expr, value: ast.expr) -> bool:
        if isinstance(target, ast.Name):
            self._values[target.id] = value
        elif isinstance(target, ast.Tuple) and all(isinstance(t, ast.Name) for t in target.elts):
            whole = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            for i, name in enumerate(t.id for t in target.elts if isinstance(t, ast.Name)):
                self._values[name] = whole[i] if whole else ast.Subscript(value, ast.Constant(i), ast.Load())
        else:
            return False
        return True

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._values:
            return self._values[node.id]
        return ast.Constant(self._known[node.id]) if node.id in self._known else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        known = ast.unparse(node)
        if known in self._known:
            return ast.Constant(self._known[known])
        if node.attr in ("T", "mT") and not ast.unparse(node).startswith("self."):
            return ast.Call(ast.Name("t", ast.Load()), [self.visit(node.value)], [])
        self.generic_visit(node)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return ast.Constant(-node.operand.value)  # type: ignore[operator]
        self.generic_visit(node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        name = _OPERATORS.get(type(node.op))
        return _spelled(name, [node.left, node.right], []) if name else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if any(isinstance(a, ast.Starred) for a in node.args):
            return node
        base = node.func.value if isinstance(node.func, ast.Attribute) else None
        name = _last(node.func)
        if base is None and name in self._own_names:
            return node
        if isinstance(base, ast.Name) and base.id == "self":
            return self._own(name, node)
        args: list[ast.expr] = [self.visit(a) for a in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        namespace = base is None or ast.unparse(base) in (
            "torch",
            "F",
            "nn.functional",
            "torch.nn.functional",
            "torch.special",
        )
        if base is not None and not namespace:
            args.insert(0, self.visit(base))
        return _spelled(name, args, keywords)

    def _own(self, name: str, node: ast.Call) -> ast.expr:
        args: list[ast.expr] = [self.visit(a) for a in node.args]
        if name in self._modules and len(args) == 1:
            return self._module(name, args[0])
        method = self._methods.get(name)
        if method is None or node.keywords or self._depth > 4:
            return node
        names = [a.arg for a in method.args.args][1:]
        value = self.body(method, dict(zip(names, args, strict=False))) if len(names) == len(args) else None
        return node if value is None else value

    def _module(self, name: str, x: ast.expr) -> ast.expr:
        made = self._modules[name]
        if _last(made.func) in _WHOLE:
            layer = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())
            return _spelled(_last(made.func), [x, layer], [])
        function, options, held = _MODULES[_last(made.func)]
        keywords = [ast.keyword(key, self.visit(_copy(v))) for key, v in zip(options, made.args, strict=False)]
        keywords += [ast.keyword(k.arg, self.visit(_copy(k.value))) for k in made.keywords if k.arg in options]
        bare = any(k.arg == "bias" and ast.unparse(k.value) == "False" for k in made.keywords)
        keywords += [ast.keyword(p, _attribute(name, p)) for p in held if not (p == "bias" and bare)]
        return _spelled(function, [x], keywords)


def _attribute(module: str, parameter: str) -> ast.expr:
    return ast.Attribute(ast.Attribute(ast.Name("self", ast.Load()), module, ast.Load()), parameter, ast.Load())


def _spelled(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> ast.Call:
    name = _SAME.get(name, name)
    later = _POSITIONAL.get(name, ())
    named = [ast.keyword(key, value) for key, value in zip(later, args[1:], strict=False)]
    kept = [k for k in (*named, *keywords) if not _is_default(name, k)]
    return ast.Call(
        ast.Name(name, ast.Load()), args[:1] + args[1 + len(later) :], sorted(kept, key=lambda k: k.arg or "")
    )


def _is_default(name: str, keyword: ast.keyword) -> bool:
    default = _DEFAULTS.get((name, keyword.arg or ""), keyword)
    return isinstance(keyword.value, ast.Constant) and keyword.value.value == default


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body
