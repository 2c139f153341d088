"""A task's Model as text: the constructor that a candidate copies, the one expression that its `forward` computes, and
whether an expert is for that. Text in, text and syntax trees out; no torch here.

Copying the constructor keeps names and shapes of all parameters, random draws included, whatever it does.
"""

import ast
import functools
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerneltune.agent.authors.search.neighbours import CannotLower
from kerneltune.tools.schema.codec import Json, decode, encode, expression_tree, syntax_tree
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec
from kerneltune.tools.task.load import class_named, method_named, replaced_by_cases
from kerneltune.tools.task.write import FORWARD, RENAMED, gives_outputs, joined_halves

# ---
# Model without its forward, and what that refers to.


def model_parts(source: str) -> tuple[list[str], ast.ClassDef, ast.arguments]:
    """Needed top-level statements of the task, `ModelNew` without methods that compute, and forward's parameters."""
    tree = syntax_tree(source)
    model = class_named(tree, "Model")
    if model is None:
        raise CannotLower("the task file has no `class Model` of its own")
    forward = method_named("forward", with_inherited(tree, model))
    if forward is None:
        raise CannotLower("Model inherits its forward from a class of another file")
    stripped = _Constructor().visit(syntax_tree(ast.unparse(model)).body[0])
    _keep_called(stripped)
    called = _called_by_constructors(tree)
    needed = _reachable(stripped, _definitions(tree), called) | {"*"}  # that may be anything
    texts = [ast.unparse(_without_forward(s, called)) for s in tree.body if s is not model and _defines(s) & needed]
    return texts, stripped, forward.args


def with_inherited(tree: ast.Module, model: ast.ClassDef) -> ast.ClassDef:
    """The class as if all that it inherits from classes of the file stood in it, to be read: a constructor that does no
    more than hand its arguments on, and convert what was made, gives way to the one that it calls."""
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
    seen = {model.name}
    while len(model.bases) == 1 and (name := ast.unparse(model.bases[0])) in classes.keys() - seen:
        seen.add(name)
        base, own = classes[name], method_named("__init__", model)
        kept = [n for n in model.body if n is not own or not _hands_on(own, method_named("__init__", base))]
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


def _called_by_constructors(tree: ast.Module) -> set[str]:
    """Attributes that constructors and functions of the file read: a method among them may make a parameter's size."""
    classes = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    inits = filter(None, (method_named("__init__", found) for found in classes))
    functions = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name != "get_inputs")
    return {n.attr for part in (*inits, *functions) for n in ast.walk(part) if isinstance(n, ast.Attribute)}


def _keep_called(model: ast.ClassDef, called: Container[str] = ("__init__",)) -> None:
    """Drop the docstring and every method that neither the constructor nor `called` leads to."""
    methods = {n.name: n for n in model.body if isinstance(n, ast.FunctionDef)}
    wanted, todo = set(), [m for m in methods if m == "__init__" or (m in called and m != "forward")]
    while todo:
        name = todo.pop()
        wanted.add(name)
        used = {n.attr for n in ast.walk(methods[name]) if isinstance(n, ast.Attribute)}
        todo += [m for m in methods if m in used and m not in wanted and m != "forward"]
    docstring = model.body[0] if ast.get_docstring(model) is not None else None
    unwanted = [n for n in model.body if isinstance(n, ast.FunctionDef) and n.name not in wanted]
    model.body = [n for n in model.body if n is not docstring and n not in unwanted]


def _without_forward(node: ast.stmt, called: Container[str]) -> ast.stmt:
    """A submodule's class only holds parameters in a candidate, and has what is `called` for them."""
    if isinstance(node, ast.ClassDef) and method_named("__init__", node):
        copy = syntax_tree(ast.unparse(node)).body[0]
        assert isinstance(copy, ast.ClassDef)
        _keep_called(copy, called)
        return copy
    return node


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
        inner = (child for child in ast.walk(node) if isinstance(child, ast.stmt) and child is not node)
        return set().union(*map(_defines, inner))
    return set()


def _definitions(tree: ast.Module) -> dict[str, list[ast.stmt]]:
    found: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _defines(node):
            found.setdefault(name, []).append(node)
    return found


def _reachable(start: ast.AST, definitions: dict[str, list[ast.stmt]], called: Container[str] = ()) -> set[str]:
    seen: set[str] = set()
    todo = list(loads(start))
    while todo:
        name = todo.pop()
        if name in seen or name not in definitions:
            continue
        seen.add(name)
        for node in definitions[name]:
            todo += loads(_without_forward(node, called))
    return seen


def loads(node: ast.AST) -> Iterator[str]:
    """The names that are read in it, each as often as it is."""
    return (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _all_defined(text: str) -> set[str]:
    return set().union(*map(_defines, syntax_tree(text).body))


_IMPORTS = "import torch\nimport triton\nimport triton.language as tl"
_PTX_IMPORTS = "import torch\nfrom kerneltune import PtxKernel"


def with_forward(about: str, kernels: str, source: str, call: str) -> str:
    """A candidate: its docstring, `kernels` as they are, then the task's constructor with a forward that returns
    `call`; of a step, `GRADIENTS after SAVING`, with a method for each."""
    statements, model, parameters = model_parts(source)
    for argument in parameters.args:
        argument.annotation = None  # names in it need not be among what is copied
    arguments = ast.unparse(parameters)
    model.body = [n for n in model.body if not isinstance(n, ast.FunctionDef) or n.name != "forward"]
    value, _, saving = call.partition(" after ")
    if saving and (gradients := gradients_model(source)):
        names = [a.arg for a in parameters.args][1:]
        count = len(names) - len(gradients.cotangents)
        inputs, given = ", ".join(names[:count]), ", ".join(names[count:])
        model.body += syntax_tree(
            f"def save(self, {inputs}):\n    return {saving}\ndef gradients(self, saved, {given}):\n    return {value}"
        ).body
        lines = joined_halves(inputs, given)
    else:
        lines = [f"return {call}"]
    model.body += syntax_tree("\n    ".join([f"def forward({arguments}):", *lines])).body
    imports = [s for s in statements if s.startswith(("import ", "from "))]
    rest = [s for s in statements if s not in imports]
    if rest and (both := _all_defined(kernels) & _all_defined("\n".join(rest))):
        raise CannotLower(f"the task and the expert have each their own {', '.join(sorted(both))}")
    ours = _PTX_IMPORTS if "PtxKernel(" in kernels else _IMPORTS
    top = "\n".join([f"{about}\n\n{ours}", *(i for i in imports if i not in f"{ours}\n{kernels}")])
    return "\n\n\n".join([top, kernels.strip(), *rest, ast.unparse(ast.fix_missing_locations(model))]) + "\n"


# ---
# What `forward` computes, as one expression in one spelling: `torch.softmax(x, 1)`, `x.softmax(dim=1)` and
# `self.act(x)` with `self.act = nn.Softmax(dim=1)` are all `softmax(x, dim=1)`.

Constants = Mapping[str, Json]

# names of arguments after the first, so that `f(x, 1)` and `f(x, dim=1)` read alike
_POSITIONAL = {
    **dict.fromkeys(("softmax", "log_softmax", "argmax", "cumsum"), ("dim",)),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), ("dim", "keepdim")),
    "chunk": ("chunks", "dim"),
    "rms_norm": ("normalized_shape", "weight", "eps"),
    "layer_norm": ("normalized_shape", "weight", "bias", "eps"),
    "group_norm": ("num_groups", "weight", "bias", "eps"),
    "cross_entropy": ("target",),
    "gelu": ("approximate",),
    "topk": ("k", "dim"),
    "linear": ("weight", "bias"),
    "matmul": ("other",),
    "addmm": ("mat1", "mat2"),
}
_NAMESPACES = ("torch", "F", "nn.functional", "torch.nn.functional", "torch.special")
_SAME = {"mm": "matmul", "bmm": "matmul", "reshape": "view"}
_OPERATORS: dict[type[ast.operator], str] = {ast.MatMult: "matmul", ast.Pow: "pow"}
_DEFAULTS = {
    ("sum", "keepdim"): False,
    ("mean", "keepdim"): False,
    ("gelu", "approximate"): "none",
    ("rms_norm", "eps"): None,
    ("cross_entropy", "reduction"): "mean",
    ("cross_entropy", "ignore_index"): -100,
    ("cross_entropy", "label_smoothing"): 0.0,
}
# module -> (function, its keyword arguments by constructor argument, those that the module has as attributes)
_MODULES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "Softmax": ("softmax", ("dim",), ()),
    "LogSoftmax": ("log_softmax", ("dim",), ()),
    "ReLU": ("relu", (), ()),
    "SiLU": ("silu", (), ()),
    "GELU": ("gelu", ("approximate",), ()),
    "Linear": ("linear", (), ("weight", "bias")),
    "LayerNorm": ("layer_norm", (), ("normalized_shape", "weight", "bias", "eps")),
    "RMSNorm": ("rms_norm", (), ("normalized_shape", "weight", "eps")),
    "GroupNorm": ("group_norm", (), ("num_groups", "weight", "bias", "eps")),
    "CrossEntropyLoss": (
        "cross_entropy",
        ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"),
        (),
    ),
}
_WHOLE = {
    f"{kind}{n}d" for kind in ("Conv", "ConvTranspose", "AvgPool", "MaxPool") for n in (1, 2, 3)
}  # `Conv1d(x, self.layer)`: an expert asks the module itself for stride, padding and the like


def formula(source: str, constants: Constants) -> tuple[ast.expr, list[str]] | None:
    """The value of `Model.forward` and its arguments' names; None where it is more than assignments and a return.

    `constants` gives values to what is not an argument: "self.dim", "LARGEST".
    """
    tree = syntax_tree(source)
    if (own_model := class_named(tree, "Model")) is None:
        return None
    model = with_inherited(tree, own_model)
    methods = {n.name: n for n in model.body if isinstance(n, ast.FunctionDef)}
    if "forward" not in methods or not _is_plain(methods["forward"].args):
        return None
    own = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    arguments = [a.arg for a in methods["forward"].args.args][1:]
    value = _Inliner(methods, _modules(model, own), constants, own).body(
        methods["forward"], {name: ast.Name(name, ast.Load()) for name in arguments}
    )
    return (value, arguments) if value is not None else None


def _is_plain(arguments: ast.arguments) -> bool:
    """Return whether it has no `*args`, `**options`, keyword-only arguments or defaults that are no literals."""
    more = arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs
    return not more and all(isinstance(d, ast.Constant) for d in arguments.defaults)


def canonical(text: str) -> ast.expr:
    """An expression of a pattern in that spelling."""
    return _Inliner({}, {}, {}, {}).visit(expression_tree(text))  # type: ignore[no-any-return]


def known_constants(source: str, init_args: Sequence[Sequence[Json]]) -> dict[str, Json]:
    """Values that are equal in all cases: of attributes that `__init__` takes from its arguments or from literals, of
    these arguments ("__init__.dim"), and of the file's constants that no case changes. `init_args` are the
    constructor's arguments in each case."""
    tree = syntax_tree(source)
    found: dict[str, Json] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found[ast.unparse(node.targets[0])] = node.value.value
    changed = {name for constants in replaced_by_cases(tree).values() for name in constants}
    set_here = [name for node in tree.body for name in _defines(node)]
    found = {name: value for name, value in found.items() if name not in changed and set_here.count(name) == 1}
    own_model = class_named(tree, "Model")
    model = with_inherited(tree, own_model) if own_model else None
    init = method_named("__init__", model)
    if model is None or init is None:
        return found
    once = _set_once(model)
    arguments = _arguments(init, init_args)
    of_arguments = {f"__init__.{name}": value for name, value in arguments.items()}
    return {**found, **of_arguments, **{key: v for key, v in _attributes(init, arguments).items() if key in once}}


def _set_once(model: ast.ClassDef) -> set[str]:
    """Attributes (`self.dim`) that one statement of the class gives a value, and only one."""
    stores = [n for n in ast.walk(model) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    texts = [ast.unparse(n) for n in stores]
    return {text for text in texts if texts.count(text) == 1}


def _arguments(init: ast.FunctionDef, init_args: Sequence[Sequence[Json]]) -> dict[str, Json]:
    """Of the constructor's arguments those that it does not change and that are the same in all cases."""
    changed = {n.id for n in ast.walk(init) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names = [a.arg for a in init.args.args][1:]
    defaults = dict(zip(names[::-1], init.args.defaults[::-1], strict=False))
    given: dict[str, dict[str, Json]] = {name: {} for name in names}
    for args in init_args or [()]:
        for i, (name, values) in enumerate(given.items()):
            value = args[i] if i < len(args) else _literal(defaults.get(name))
            values[repr(value)] = value
    same = {name: next(iter(values.values())) for name, values in given.items() if len(values) == 1}
    plain = {name: value for name, value in same.items() if isinstance(value, bool | int | float | str | None)}
    return {name: value for name, value in plain.items() if name not in changed}


def _attributes(init: ast.FunctionDef, arguments: Mapping[str, Json]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for target, value in _assignments(init):
        key = ast.unparse(target)
        if isinstance(value, ast.Name) and value.id in arguments:
            found[key] = arguments[value.id]
        elif isinstance(value, ast.Constant):
            found[key] = value.value
    return found


def _literal(default: ast.expr | None) -> Json:
    """What an argument is that a case leaves out; a list, which is no constant, where that is more than a number."""
    number = default.operand if isinstance(default, ast.UnaryOp) and isinstance(default.op, ast.USub) else default
    return ast.literal_eval(default) if default and isinstance(number, ast.Constant) else []


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


def _modules(model: ast.ClassDef, own: Container[str]) -> dict[str, ast.Call]:
    """NAME -> the call that makes self.NAME, of torch's modules that we know; `own`: what the file defines."""
    once, init = _set_once(model), method_named("__init__", model)
    return {
        target.attr: value
        for target, value in (_assignments(init) if init else [])
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Call)
        if _last(value.func) in _MODULES or _last(value.func) in _WHOLE
        if not isinstance(value.func, ast.Name) or value.func.id not in own  # a class of the file's computes its own
        if ast.unparse(target) in once
    }


def _writes(node: ast.AST) -> bool:
    """Whether it is a call that writes into its operands: `x.mul_(2)`, `F.relu(x, inplace=True)`."""
    if not isinstance(node, ast.Call):
        return False
    name = _last(node.func)
    return (name.endswith("_") and not name.endswith("__")) or any(k.arg in ("out", "inplace") for k in node.keywords)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class _Inliner(ast.NodeTransformer):
    def __init__(
        self,
        methods: Mapping[str, ast.FunctionDef],
        modules: Mapping[str, ast.Call],
        known: Constants,
        own: Mapping[str, ast.FunctionDef | ast.ClassDef],
    ) -> None:
        self._own_names = own  # what the file defines, which may be called like torch's
        self._methods, self._modules, self._known = methods, modules, known
        self._values: dict[str, ast.expr] = {}
        self._depth = 0

    def body(self, function: ast.FunctionDef, values: dict[str, ast.expr]) -> ast.expr | None:
        """What a function of assignments and one return gives for these arguments; None for other functions."""
        outer, self._values = self._values, dict(values)
        self._depth += 1
        try:
            for node in function.body:
                if any(map(_writes, ast.walk(node))):  # what is read later has another value
                    return None
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
        number = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(node.op, ast.USub) and isinstance(number, int | float):
            return ast.Constant(-number)
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
            return self._inlined(self._own_names[name], node, 0)
        if isinstance(base, ast.Name) and base.id == "self":
            return self._own(name, node)
        args: list[ast.expr] = [self.visit(a) for a in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        if base is not None and ast.unparse(base) not in _NAMESPACES:
            args.insert(0, self.visit(base))
        if name == "einsum" and len(args) == 3 and not keywords and _is_matmul(args[0]):
            return _spelled("matmul", args[1:], [])
        return _spelled(name, args, keywords)

    def _own(self, name: str, node: ast.Call) -> ast.expr:
        if name in self._modules:
            args: list[ast.expr] = [self.visit(a) for a in node.args]
            return self._module(name, args, [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords])
        return self._inlined(self._methods.get(name), node, 1)

    def _inlined(self, function: ast.stmt | None, node: ast.Call, bound: int) -> ast.expr:
        """What a function of the file gives for a call's arguments, of which it has `bound` already; else the call."""
        if not isinstance(function, ast.FunctionDef) or not _is_plain(function.args) or self._depth > 4:
            return node
        names = [a.arg for a in function.args.args][bound:]
        given = dict(zip(names, map(self.visit, node.args), strict=False))
        given |= {k.arg: self.visit(k.value) for k in node.keywords if k.arg}
        values = dict(zip(names[::-1], function.args.defaults[::-1], strict=False)) | given
        fits = len(given) == len(node.args) + len(node.keywords) and values.keys() == set(names)
        value = self.body(function, values) if fits and not function.decorator_list else None
        return node if value is None else value

    def _of_constructor(self) -> dict[str, ast.expr]:
        """What names mean there: its arguments, not the file's constants of the same name, nor forward's arguments."""
        init = self._methods.get("__init__")
        known = {a.arg: f"__init__.{a.arg}" for a in (init.args.args[1:] if init else [])}
        return {
            name: ast.Constant(self._known[key]) if key in self._known else ast.Name(key, ast.Load())
            for name, key in known.items()
        }

    def _module(self, name: str, args: list[ast.expr], named: list[ast.keyword]) -> ast.expr:
        made = self._modules[name]
        if _last(made.func) in _WHOLE:
            return _spelled(_last(made.func), [*args, expression_tree(f"self.{name}")], named)
        function, options, held = _MODULES[_last(made.func)]
        given = [*made.args[1:2], *(k.value for k in made.keywords if k.arg == "eps")]
        if function == "rms_norm" and ast.unparse(given[0] if given else ast.Constant(None)) == "None":
            held = held[:-1]  # the smallest step of the dtype
        outer, self._values = self._values, self._of_constructor()
        keywords = [ast.keyword(key, self.visit(_copy(v))) for key, v in zip(options, made.args, strict=False)]
        keywords += [ast.keyword(k.arg, self.visit(_copy(k.value))) for k in made.keywords if k.arg in options]
        self._values = outer
        bare = any(k.arg == "bias" and ast.unparse(k.value) == "False" for k in made.keywords)
        keywords += [ast.keyword(p, expression_tree(f"self.{name}.{p}")) for p in held if not (p == "bias" and bare)]
        return _spelled(function, args, keywords + named)


def _spelled(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> ast.Call:
    name = _SAME.get(name, name)
    later = _POSITIONAL.get(name, ())
    named = [ast.keyword(key, value) for key, value in zip(later, args[1:], strict=False)]
    kept = [k for k in (*named, *keywords) if not _is_default(name, k)]
    return ast.Call(
        ast.Name(name, ast.Load()), args[:1] + args[1 + len(later) :], sorted(kept, key=lambda k: k.arg or "")
    )


def _is_matmul(equation: ast.expr) -> bool:
    """Whether an einsum is `a @ b`: "bijl,lk->bijk", with any leading dimensions of a, or "bil,blk->bik"."""
    if not isinstance(equation, ast.Constant) or not isinstance(equation.value, str):
        return False
    operands, _, out = equation.value.replace(" ", "").partition("->")
    a, _, b = operands.partition(",")
    letters, shared = a + b[-1:], b[:-2]
    return (
        len(b) >= 2
        and letters.isalpha()
        and len(set(letters)) == len(letters)
        and a.startswith(shared)
        and a.endswith(b[-2])
        and out == a[:-1] + b[-1]
        and (not shared or len(a) == len(b))
    )


def _is_default(name: str, keyword: ast.keyword) -> bool:
    default = _DEFAULTS.get((name, keyword.arg or ""), keyword)
    return isinstance(keyword.value, ast.Constant) and keyword.value.value == default


def _copy(node: ast.expr) -> ast.expr:
    return expression_tree(ast.unparse(node))


@dataclass(frozen=True)
class GradientsModel:
    """The Model of a task that `--backward` or `--step` wrote. `forward`: the file as that of the task whose gradients
    it asks for; `arguments`: of its own forward; `primals`: those of them whose gradients it returns, before the
    parameters'; `cotangents`: those that are gradients of outputs; `step`: whether it returns the outputs first."""

    forward: str
    arguments: list[str]
    primals: list[str]
    cotangents: list[str]
    step: bool


def gradients_model(source: str) -> GradientsModel | None:
    """What a task of gradients says; None for any other task. Raises SyntaxError."""
    tree = syntax_tree(source)
    model = class_named(tree, "Model")
    forward = method_named("forward", model)
    calls = [n for n in ast.walk(forward) if isinstance(n, ast.Call)] if forward else []
    pulled = next((n for n in calls if ast.unparse(n.func) == "torch.func.vjp"), None)
    if model is None or forward is None or pulled is None or f"self.{FORWARD} = Forward(" not in ast.unparse(model):
        return None
    own = {new: old for old, new in RENAMED.items()}
    theirs = ("Model", "get_inputs")
    rest = ast.Module([n for n in tree.body if getattr(n, "name", "") not in theirs], [])
    for node in ast.walk(rest):
        if isinstance(node, ast.Name):
            node.id = own.get(node.id, node.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.name = own.get(node.name, node.name)
    primals = [ast.unparse(a) for a in pulled.args[2:]]
    pull = next(n for n in calls if ast.unparse(n.func) == "_pull")
    cotangents = [ast.unparse(a) for a in getattr(pull.args[0], "elts", ())]
    arguments = [a.arg for a in forward.args.args][1:]
    return GradientsModel(ast.unparse(rest), arguments, primals, cotangents, gives_outputs(forward))


@functools.lru_cache(512)  # of a task and of each built-in one, for each expert that names one
def essence(source: str) -> frozenset[str]:
    """What a task's Model is: its constructor, what its forward computes, and the constants and functions that this
    needs. The same for a copy of the file with other inputs, cases and words. Raises SyntaxError."""
    tree = syntax_tree(source)
    model = class_named(tree, "Model")
    forward = method_named("forward", model)
    if model is None or forward is None:
        return frozenset()
    found = formula(source, {})
    value, arguments = found or (forward, [])
    definitions = _definitions(tree)
    needed = [n for part in (value, *model.bases) for name in _reachable(part, definitions) for n in definitions[name]]
    own = [n for n in model.body if n is not forward and not (n is model.body[0] and ast.get_docstring(model))]
    computed = f"{', '.join(arguments)}: {ast.unparse(value)}"
    said = (ast.unparse(n) for n in (*own, *needed) if not isinstance(n, ast.Import | ast.ImportFrom))
    return frozenset([computed, *said])


class _Within(ast.NodeTransformer):
    """`self.weight` -> `self.forward_model.weight`."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Attribute(node, FORWARD, ast.Load()) if node.id == "self" else node


# ---
# Whether an expert is for a task: patterns like `relu(addmm(bias, x, w))` against what the task's forward computes.

Bound = dict[str, ast.expr]


@dataclass(frozen=True)
class Fit:
    """A call of an expert's host function, the formula for which it stands, and the shapes that it needs. `gradients`:
    the operands whose gradients it returns, in that order; none for one that returns the formula's value. `saving`: of
    a step, the call that comes first, for the outputs and what is `saved` for the gradients."""

    call: ast.Call
    pattern: ast.expr
    shapes: Mapping[str, tuple[str, ...]]
    gradients: tuple[str, ...] = ()
    saving: ast.Call | None = None

    @functools.cached_property
    def holes(self) -> set[str]:
        """Names of the pattern that stand for operands."""
        nodes = [n for call in filter(None, (self.call, self.saving)) for n in ast.walk(call)]
        functions = {id(n.func) for n in nodes if isinstance(n, ast.Call)}
        return {n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in functions} | {"_"}


def fits_of(text: str) -> Fit:
    """`call = pattern`, `x, weight = call of pattern`, or `x, weight = call after saving of pattern`, with
    ` where x: R C, …` behind it; raises SyntaxError."""
    line, _, where = text.partition(" where ")
    call, _, pattern = line.partition(" = ")
    gradients: tuple[str, ...] = ()
    if " of " in pattern:
        gradients = tuple(call.split(", "))
        call, _, pattern = pattern.partition(" of ")
    parsed, *before = (expression_tree(part) for part in call.split(" after "))
    saving = [first for first in before if isinstance(first, ast.Call)]
    if not isinstance(parsed, ast.Call) or saving != before:
        raise SyntaxError(f"no call: {call}")
    pairs = (part.split(":") for part in where.split(",") if part)
    shapes = {name.strip(): tuple(dims.split()) for name, dims in pairs}
    return Fit(parsed, canonical(pattern), shapes, gradients, *saving)


@dataclass(frozen=True)
class TaskFormula:
    """What matching needs of a task. `given`: where its results are gradients of the formula's value, the arguments
    that are gradients already, by the names that experts have for them; `wanted`: the operands of those results;
    `step`: whether the value is a result, too."""

    value: ast.expr
    arguments: list[str]
    cases: tuple[CaseSpec, ...]
    precision: str
    given: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    step: bool = False

    @classmethod
    def of(cls, task: TaskSpec) -> "TaskFormula | None":
        """None where the forward is no formula. Held-out cases are not looked at."""
        cases = tuple(c for c in task.cases if not c.held_out)
        try:
            if model := gradients_model(task.source):
                return cls._of_gradients(task, model, cases)
            found = formula(task.source, known_constants(task.source, [c.init_args for c in cases]))
        except (SyntaxError, ValueError, RecursionError):
            return None
        return cls(*found, cases, task.precision) if found else None

    @classmethod
    def _of_gradients(
        cls, task: TaskSpec, model: "GradientsModel", cases: tuple[CaseSpec, ...]
    ) -> "TaskFormula | None":
        found = formula(model.forward, known_constants(model.forward, [c.init_args for c in cases]))
        if found is None:
            return None
        value, arguments = found
        value = _Within().visit(value)
        given = model.arguments[len(arguments) :]
        names = ["gradient"] if len(given) == 1 else [f"gradient_{place}" for place in range(len(given))]
        buffers = re.findall(r"\bregister_buffer\(['\"](\w+)['\"]", model.forward)
        state = [name for name in cases[0].state if name.removeprefix(f"{FORWARD}.") not in buffers]
        wanted = (*model.primals, *(f"self.{name}" for name in state))
        return cls(value, arguments, cases, task.precision, dict(zip(names, given, strict=True)), wanted, model.step)

    def call(self, fit: Fit) -> str | None:
        """The call with this task's operands in it, as text; None where the formula or a shape does not fit."""
        if bool(fit.gradients) != bool(self.given) or bool(fit.saving) != self.step:
            return None
        given = dict(self.given) | ({"saved": "saved"} if fit.saving else {})
        for bound in _match(fit.pattern, self.value, fit.holes - given.keys(), {}):
            operands = {name: self._operand(node) for name, node in bound.items()} | given
            if fit.gradients and tuple(operands.get(name) for name in fit.gradients) != self.wanted:
                continue
            if all(operands.values()) and all(self._suits(fit, bound, case) for case in self.cases):
                fill = _Filled({k: v for k, v in operands.items() if v}, self.precision)
                called = ast.unparse(fill.visit(_copy(fit.call)))
                if fit.saving:
                    return f"{called} after {ast.unparse(fill.visit(_copy(fit.saving)))}"
                return f"({called},)" if len(fit.gradients) == 1 else called  # a task of gradients returns a tuple
        return None

    def _operand(self, node: ast.expr) -> str | None:
        text = _written(node, self.arguments)
        if text and text.endswith(".t()") and any(len(self._shape(node, case) or ()) > 2 for case in self.cases):
            return text.replace(".t()", ".mT")  # of a batch, which t() refuses
        return text

    def _suits(self, fit: Fit, bound: Bound, case: CaseSpec) -> bool:
        sizes: dict[str, int | tuple[int, ...]] = {}
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


def _tensor_shape(value: Json) -> tuple[int, ...] | None:
    if isinstance(value, dict) and "$tensor" in value:
        return decode(TensorSpec, value["$tensor"]).shape
    return None


def _unified(dims: tuple[str, ...], shape: tuple[int, ...], sizes: dict[str, int | tuple[int, ...]]) -> bool:
    if dims[:1] == ("...",):
        dims = dims[1:]
        leading, shape = shape[: max(0, len(shape) - len(dims))], shape[max(0, len(shape) - len(dims)) :]
        if sizes.setdefault("...", leading) != leading:
            return False
    return len(dims) == len(shape) and all(_agrees(d, n, sizes) for d, n in zip(dims, shape, strict=True))


def _agrees(dim: str, size: int, sizes: dict[str, int | tuple[int, ...]]) -> bool:
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
        return expression_tree(text) if text else node
