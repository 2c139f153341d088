"""Writes a task file around a person's code: what it needs of the file is taken by reading it, and which shapes, dtypes
and values it may want is guessed by name.

Guesses are marked in the file, and the check that follows runs it: so one may be wrong, but never silently.
"""

import ast
import io
import itertools
import math
import re
import symtable
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kerneltune.tools.schema.codec import Json, did_you_mean, literal, one_line, syntax_tree
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.task import TaskSpec, Way, reached, row_major, tensors_of
from kerneltune.tools.task.load import lineage, method_named, not_python

if TYPE_CHECKING:
    from jinja2 import Template

# ---
# One function or module of a file, and whatever else of the file it needs.

Definition = ast.FunctionDef | ast.ClassDef
# a task is read by these
TAKEN = ("Model", "get_inputs", "get_init_inputs", "CASES", "WEIGHT", "PRECISION", "INPUTS", "NOTES")


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
    mean something of this code's own, so that no constant of the task may be called so; `returns`: what forward is
    annotated to return; `left_out`: statements that may change something of it, and that a task should not run."""

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
    returns: str = ""
    left_out: tuple[str, ...] = ()


def parts_of(source: str, name: str, path: Path) -> CodeParts:
    """The function or class `name` of `source`, whose file is `path`. Raises TaskError naming what is wrong."""
    try:
        tree = syntax_tree(source, str(path))
    except SyntaxError as error:
        raise not_python(path, error) from error
    found = _definition(tree, name, path)
    table = symtable.symtable(source, str(path), "exec")
    needed = _needed(tree, found, table)
    others = [n for n in needed if not isinstance(n, ast.Import | ast.ImportFrom)]
    used = {name for n in others for name in _used(n, table)}
    imports = [_only(n, used) for n in needed if isinstance(n, ast.Import | ast.ImportFrom)]
    helpers = [n for n in others if n is not found]
    behind = [n for n in others[others.index(found) + 1 :] if not isinstance(n, _DEFINED) and name in _loaded(n)]
    bound = {b for n in (*imports, *helpers) for b in _bound(n)}
    lines = re.split(r"\r\n|\r|\n", source)
    is_module = isinstance(found, ast.ClassDef)
    _require_free(path, name, bound, is_module=is_module)
    classes = lineage(tree, name) if isinstance(found, ast.ClassDef) else []
    called = _forward(found, path) if isinstance(found, ast.ClassDef) else found
    forward = _parameters(called, is_module)
    init = _parameters(method_named("__init__", *classes), True)
    return CodeParts(
        name=name,
        is_module=is_module,
        imports=tuple(ast.unparse(n) for n in imports),
        helpers=tuple(_text(lines, n) for n in helpers if n not in behind),
        definition="\n\n\n".join(filter(None, [_text(lines, found), "\n".join(_text(lines, n) for n in behind)])),
        forward=forward,
        init=init,
        body=ast.Module([*classes] or [found], []),
        words=(ast.get_docstring(found) or "").strip().partition("\n")[0].rstrip("."),
        local_imports=tuple(_local(imports, path.parent)),
        names=frozenset({name, *bound, *used, *(p.name for p in (*forward, *init))}),
        returns=ast.unparse(called.returns) if called.returns else "",
        left_out=tuple(one_line(ast.unparse(n), 100) for n in _left_out(tree, needed, found)),
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
    raise TaskError(f"{path}: no function or class {name!r}; {did_you_mean(name, known, f'it has {listed}')}")


def names_in(source: str, path: Path) -> list[str]:
    """What of a file could become a task: its functions, and classes with a forward. Raises TaskError."""
    try:
        tree = syntax_tree(source)
    except SyntaxError as error:
        raise not_python(path, error) from error
    return [
        n.name
        for n in tree.body
        if (isinstance(n, ast.FunctionDef) and not n.name.startswith("_"))
        or (isinstance(n, ast.ClassDef) and method_named("forward", n))
    ]


def _forward(found: ast.ClassDef, path: Path) -> ast.FunctionDef:
    if method := method_named("forward", found):
        return method
    raise TaskError(f"{path}: class {found.name} has no forward of its own; name a function, or a class that has one")


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
    """The statements of the top level that `found` needs, those that change what is needed, and those that these need,
    in their order."""
    binders: dict[str, list[ast.stmt]] = {}
    changers: dict[str, list[ast.stmt]] = {}
    for node in tree.body:
        for name in _bound(node):
            binders.setdefault(name, []).append(node)
        for name in () if isinstance(node, _DEFINED) else _changed(node):
            changers.setdefault(name, []).append(node)
    left: list[ast.stmt] = [found]
    kept: set[ast.stmt] = {found}
    for node in left:  # grows meanwhile
        wanted = [b for name in _used(node, table) for b in binders.pop(name, ())]
        if not isinstance(node, ast.Import | ast.ImportFrom):
            wanted += [b for name in _bound(node) for b in changers.pop(name, ())]
        new = [b for b in dict.fromkeys(wanted) if b not in kept and not _is_main(b)]
        left += new
        kept.update(new)
    return [
        n
        for n in tree.body
        if n in kept or (isinstance(n, ast.ImportFrom) and (n.module == "__future__" or n.names[0].name == "*"))
    ]


_DEFINED = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef


def _root(node: ast.expr) -> list[str]:
    """CFG of `CFG.x[0]`; nothing where that is no name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return [node.id] if isinstance(node, ast.Name) else []


def _changed(node: ast.AST) -> Iterator[str]:
    """Names whose values a statement, or one within it, changes in place: `CFG["a"] = 2`, `CFG.update(a=2)`,
    `setattr(O, "k", 3)`, `init.normal_(W)`."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            places = [n for target in targets for n in getattr(target, "elts", [target])]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            places = [target]
        case ast.Expr(value=ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[changed, *_])):
            yield from _root(changed)
            places = []
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=called), args=args)):
            yield from _root(owner)
            yield from _root(args[0]) if args and called.endswith("_") else []
            places = []
        case _:
            places = []
            for inner in ast.iter_child_nodes(node):
                if isinstance(inner, ast.stmt | ast.excepthandler | ast.match_case):
                    yield from _changed(inner)
    for place in places:
        yield from _root(place) if isinstance(place, ast.Attribute | ast.Subscript) else []


_CHANGES = re.compile(r"(set|update|append|extend|insert|setdefault|pop|clear|remove|add|register)(_\w+)?")


def _left_out(tree: ast.Module, kept: Sequence[ast.stmt], found: Definition) -> Iterator[ast.stmt]:
    """Statements of the top level that are not kept and may change something that is: of a module that is imported, by
    a call that is given it or of a function that does, or the definition itself by another value of its name."""
    modules = {name for n in kept if isinstance(n, ast.Import | ast.ImportFrom) for name in _bound(n)}
    own = {name for n in kept for name in _bound(n)} - modules
    values = own - {n.name for n in kept if isinstance(n, _DEFINED)}
    does = {n.name: {*_changed(n), *_declared(n)} for n in tree.body if isinstance(n, ast.FunctionDef)}
    is_kept = {*kept}
    for node in tree.body:
        if node in is_kept or isinstance(node, _DEFINED) or _is_main(node):
            continue
        changed = {*_changed(node)}
        match node:
            case ast.Expr(value=ast.Call(func=ast.Name(id=called)) as call):
                touched = (does.get(called, set()) & own) | (_handed(call) & values if called != "print" else set())
            case ast.Expr(value=ast.Call() as call):
                touched = _handed(call) & values
                changed = changed if _CHANGES.fullmatch(_called(call)) else set()
            case _:
                touched = {*_bound(node)} & {found.name}
        if touched or changed & modules:
            yield node


def _handed(call: ast.Call) -> set[str]:
    return {name for argument in _arguments(call) for name in _root(argument)}


def _declared(function: ast.FunctionDef) -> Iterator[str]:
    """Names that it calls global."""
    yield from (name for n in ast.walk(function) if isinstance(n, ast.Global) for name in n.names)


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
    elif isinstance(node, _DEFINED):
        yield node.name
    elif not isinstance(node, ast.Expr):
        left = [*ast.iter_child_nodes(node)]
        for inner in left:  # grows meanwhile
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                yield inner.id
            elif isinstance(inner, ast.Import | ast.ImportFrom | _DEFINED):  # try: import … except ImportError: def …
                yield from _bound(inner)
            else:
                left += ast.iter_child_nodes(inner)


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


def _text(lines: Sequence[str], node: ast.stmt) -> str:
    """The statement as it was written, with its decorators."""
    if isinstance(node, _DEFINED):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        return "\n".join(line.rstrip() for line in lines[first - 1 : node.end_lineno])
    its = [line.encode() for line in lines[node.lineno - 1 : node.end_lineno]]  # columns count bytes
    its[-1] = its[-1][: node.end_col_offset]
    its[0] = its[0][node.col_offset :]
    return b"\n".join(its).decode()


# ---
# Guesses by name.


@dataclass(frozen=True)
class Size:
    """A constant of the task: what is timed, and what the three small cases put in its place (None: they keep it)."""

    name: str
    timed: int
    ragged: int | None = None
    narrow: int | None = None
    held_out: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Input:
    """A tensor that the code is given: an expression, whether anything in its name told what it is, and what a person
    should look at besides."""

    name: str
    expression: str
    sure: bool = True
    look: str = ""


@dataclass(frozen=True)
class Guess:
    """`values`: expressions for arguments of the code that are no tensors, by name, all of them unsure; `init`: those
    of a module's constructor; `unsure`: names of the constructor's that told nothing; `left_out`: arguments that keep
    their default; `dtype`: the constant that holds the dtype; `renamed`: constants of the task whose usual name the
    code has for itself, with the name that they got; `precision`, `dtype_name`: what PRECISION and that constant say;
    `seen`: further cases, as entries of CASES; `weight`: of the timed one, where those have one; `is_told`: whether the
    sizes are those of calls that somebody made or told of; `left_out_calls`: how many of them no case stands for."""

    sizes: tuple[Size, ...]
    inputs: tuple[Input, ...]
    values: dict[str, str]
    init: dict[str, str]
    left_out: tuple[Parameter, ...]
    unsure: tuple[str, ...] = ()
    dtype: str = "DTYPE"
    renamed: tuple[tuple[str, str], ...] = ()
    precision: str = "float32"
    dtype_name: str = "float32"
    seen: tuple[Mapping[str, Json], ...] = ()
    weight: int | None = None
    is_told: bool = False
    left_out_calls: int = 0


_SIZES = (
    Size("ROWS", 8192, 257, 63, 37),
    Size("COLS", 4096, 1000, 129, 1031),
    Size("OUT", 4096, 500, 65, 257),
    Size("BATCH", 16, 2, 1, 3),
    Size("HEADS", 16, 3, 2, 5, "the small cases keep COLS a multiple of HEADS"),
    Size("SEQUENCE", 1024, 129, 64, 100),
    Size("HEAD_DIM", 64, 64, 32, 64),
    Size("CHANNELS", 64, 17, 8, 13),
    Size("HEIGHT", 56, 19, 8, 23),
    Size("WIDTH", 56, 21, 9, 17),
)
_DIVISIBLE = Size("COLS", 1024, 192, 64, 320)  # of a module that splits its columns into heads


def _by_word(table: Mapping[str, str]) -> dict[str, str]:
    """Return word -> key, of a table of the words for each key."""
    return {word: key for key, words in table.items() for word in words.split()}


# of tensors
_ROLES = _by_word({
    "heads": "q k v query key value queries keys values",
    "vector": "bias b beta gamma g scale shift norm_weight ln_weight ln_bias",
    "matrix": "weight w w1 w2 w3 kernel matrix proj",
    "indices": "idx index indices labels label target targets tokens input_ids ids positions",
    "mask": "mask attn_mask attention_mask key_padding_mask",
    "rotary": "cos sin",
})  # fmt: skip
_ENDINGS = _by_word({"indices": "_ids _idx _index", "mask": "_mask", "matrix": "_weight", "vector": "_bias"})
_OWN_DTYPE = ("indices", "mask")  # roles of tensors that no --dtype changes
# of constructors' arguments
_LENGTHS = _by_word({
    "COLS": "dim d_model embed_dim hidden_size hidden width in_features in_dim input_size n_embd normalized_shape"
    " features cols size num_features embedding_dim d input_dim model_dim",
    "OUT": "out_features out_dim output_size hidden_dim intermediate_size ffn_dim d_ff output_dim",
    "CHANNELS": "channels in_channels out_channels num_channels c planes in_planes",
    "HEADS": "heads num_heads n_heads n_head nhead num_attention_heads",
    "SEQUENCE": "block_size max_seq_len max_len max_length context_length max_position_embeddings n_positions n_ctx",
})  # fmt: skip
_NUMBERS = _by_word({
    "3": "kernel_size", "1": "stride padding groups", "1e-5": "eps epsilon", "0.0": "p dropout", "-1": "dim axis",
    "1.0": "scale",
})  # fmt: skip
_NO_TENSORS = ("eps", "epsilon", "dim", "axis", "p", "dropout")  # whatever no annotation says
_OF_KIND = {"int": "64", "float": "1.0", "bool": "False", "str": '""'}
_IMAGES = ("Conv2d", "conv2d", "BatchNorm2d", "MaxPool2d", "AvgPool2d", "max_pool2d", "avg_pool2d", "InstanceNorm2d")
_LOSSES_OF_NUMBERS = (
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "kl_div", "BCELoss", "BCEWithLogitsLoss", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "KLDivLoss",
)  # fmt: skip
_SEQUENCES = ("MultiheadAttention", "LSTM", "GRU", "TransformerEncoderLayer", "scaled_dot_product_attention")


def guess(parts: CodeParts, calls: Sequence["SeenCall"] = (), made_with: Mapping[str, Json] | None = None) -> Guess:
    """What to feed to a function or a module: as it was called and `made_with`, as far as that is known."""
    if seen := calls or tuple(_read_calls(parts)):
        found = replace(_SeenInputs(parts, seen, made_with or {}).guess(), is_told=bool(calls))
        return _apart(found, parts.names)
    init: dict[str, str] = {}
    unsure: list[str] = []
    for parameter in parts.init:
        if not parameter.default:
            init[parameter.name], sure = _init_value(parameter)
            unsure += [] if sure else [parameter.name]
    inputs, left_out, values = [], [], {}
    for parameter in parts.forward:
        if _is_tensor(parameter):
            expression, sure = _tensor(parameter.name, parts, init)
            inputs.append(Input(parameter.name, expression, sure and len(parameter.name) > 1))  # a letter says little
        elif parameter.default:
            left_out.append(parameter)
        else:
            values[parameter.name] = _NUMBERS.get(parameter.name) or _OF_KIND.get(parameter.kind, "1")
    left_out += [p for p in parts.init if p.default]
    used = _names([*init.values(), *(i.expression for i in inputs)])
    return _apart(Guess(_sizes(used), tuple(inputs), values, init, tuple(left_out), tuple(unsure)), parts.names)


def _apart(found: Guess, theirs: Collection[str]) -> Guess:
    """The guess with other names for those of its constants that mean something in the person's code."""
    ours = (found.dtype, *(size.name for size in found.sizes))
    if not (renamed := {name: _free(name, theirs) for name in ours if name in theirs}):
        return found

    def said(text: str) -> str:
        return re.sub(r"\w+", lambda word: renamed.get(word[0], word[0]), text)

    return replace(
        found,
        sizes=tuple(replace(size, name=said(size.name), note=said(size.note)) for size in found.sizes),
        inputs=tuple(replace(i, expression=said(i.expression)) for i in found.inputs),
        init={name: said(value) for name, value in found.init.items()},
        dtype=said(found.dtype),
        renamed=tuple(renamed.items()),
        seen=tuple({renamed.get(name, name): value for name, value in case.items()} for case in found.seen),
    )


def _free(name: str, theirs: Collection[str], before: str = "TASK_") -> str:
    while name in theirs:
        name = f"{before}{name}"
    return name


def _is_tensor(parameter: Parameter) -> bool:
    """Optional ones are left out: most code works without its mask."""
    return (
        not parameter.default
        and parameter.kind.rpartition(".")[2] not in ("int", "float", "bool", "str")
        and (bool(parameter.kind) or parameter.name not in _NO_TENSORS)
    )


def _init_value(parameter: Parameter) -> tuple[str, bool]:
    """An expression for an argument of a constructor, and whether its name told what it is."""
    name = parameter.name
    known = _LENGTHS.get(name) or _NUMBERS.get(name)
    if _is_object(parameter):
        return f"{parameter.kind}()", False
    return (known, len(name) > 1) if known else (_OF_KIND.get(parameter.kind, "64"), False)


def _is_object(parameter: Parameter) -> bool:
    """Whether an argument of a constructor is annotated with a class, such as a configuration: a task's arguments are
    tensors and plain values, so its Model makes the object."""
    return re.fullmatch(r"(?:\w+\.)*[A-Z]\w*", parameter.kind) is not None and parameter.kind not in ("Any", "Tensor")


def _role(given: str, body: ast.AST) -> str:
    """What a tensor is by its name; "" where that does not tell, and of the targets of a loss that takes numbers."""
    name = given.lower()
    if name in ("target", "targets", "label", "labels") and _mentions(body, _LOSSES_OF_NUMBERS):
        return ""
    return _ROLES.get(name) or next((role for ending, role in _ENDINGS.items() if name.endswith(ending)), "")


def _tensor(given: str, parts: CodeParts, init: dict[str, str]) -> tuple[str, bool]:
    """Return an expression for a tensor, and whether its name, or the module, told what it is."""
    role = _role(given, parts.body)
    if role == "indices":
        return "torch.randint(0, COLS, (ROWS,))", True
    if role == "mask":
        return "torch.rand(ROWS, COLS) > 0.1", True
    shape, sure = _shape(given, role, parts, init)
    return f"torch.randn({shape}).to(getattr(torch, DTYPE))", sure


def _shape(given: str, role: str, parts: CodeParts, init: dict[str, str]) -> tuple[str, bool]:
    factor = _factor(given, parts.body)
    match role:
        case "heads" if not parts.is_module:
            return "BATCH, HEADS, SEQUENCE, HEAD_DIM", True
        case "rotary" if any(_role(p.name, parts.body) == "heads" for p in parts.forward):
            return "BATCH, SEQUENCE, HEAD_DIM", False
        case "matrix":  # of a chain each takes what the last one gives
            return factor or "COLS", len(_matrices(parts)) < 2
        case "vector" if not factor:
            return _vector_length(given, parts), True
    if _mentions(parts.body, _IMAGES) or "CHANNELS" in init.values():
        return "BATCH, CHANNELS, HEIGHT, WIDTH", True
    if "HEADS" in init.values() or _mentions(parts.body, _SEQUENCES):
        return "BATCH, SEQUENCE, COLS", True
    return factor or "ROWS, COLS", given.lower() in ("input", "inputs")


def _vector_length(given: str, parts: CodeParts) -> str:
    """Return the length of a bias: of a row of the product it is added to; COLS in a norm or without a product, and of
    other vectors."""
    name = given.lower()
    if name not in ("bias", "b") and (not name.endswith("_bias") or name.startswith(("ln_", "norm_"))):
        return "COLS"
    calls = [n for n in ast.walk(parts.body) if isinstance(n, ast.Call) and _called(n).endswith("norm")]
    if any(_is_name(given, argument) for call in calls for argument in _arguments(call)):
        return "COLS"
    return "OUT" if _matrices(parts) else "COLS"


def _matrices(parts: CodeParts) -> list[str]:
    """Arguments that something is multiplied with, from the right."""
    return [p.name for p in parts.forward if "OUT" in _factor(p.name, parts.body)]


def _factor(name: str, body: ast.AST) -> str:
    """The shape of a matrix that is multiplied: ROWS x COLS on the left, COLS x OUT on the right, and OUT x COLS where
    it is transposed there, as F.linear does. "" for what is in no product."""
    products = list(_products(body))
    if _ROLES.get(name) != "matrix" and any(_is_name(name, left) for left, _, _ in products):
        return "ROWS, COLS"
    for _, right, is_linear in products:
        plain = _untransposed(right)
        if _is_name(name, plain):
            return "OUT, COLS" if is_linear != (plain is not right) else "COLS, OUT"
    return "ROWS, COLS" if any(_is_name(name, left) for left, _, _ in products) else ""


def _products(body: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """Yield the factors of each matrix product: left, right, and whether it is F.linear."""
    for node in ast.walk(body):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield node.left, node.right, False
        elif isinstance(node, ast.Call):
            called, given = _called(node), _arguments(node)
            if called in ("matmul", "mm") and len(given) == 1 and isinstance(node.func, ast.Attribute):  # a.mm(b)
                yield node.func.value, given[0], False
            elif called in ("matmul", "mm", "linear") and len(given) >= 2:
                yield given[0], given[1], called == "linear"
            elif called == "addmm" and len(given) >= 3:
                yield given[1], given[2], False


def _untransposed(node: ast.expr) -> ast.expr:
    """`w` of w.T, w.t() and w.transpose(0, 1)."""
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("t", "transpose"):
        return node.func.value
    return node


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _is_name(name: str, node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _mentions(body: ast.AST, words: Iterable[str]) -> bool:
    known = set(words)
    return any(getattr(n, "attr", getattr(n, "id", "")) in known for n in ast.walk(body))


def _names(expressions: Iterable[str]) -> set[str]:
    return {n.id for text in expressions for n in ast.walk(syntax_tree(text)) if isinstance(n, ast.Name)}


def _sizes(used: set[str]) -> tuple[Size, ...]:
    found = [size for size in _SIZES if size.name in used]
    if {"HEADS", "COLS"} <= used:
        return tuple(_DIVISIBLE if size.name == "COLS" else size for size in found)
    return tuple(replace(size, note="") for size in found)


# ---
# Calls that were seen, or that the source tells of, as inputs of a task.


@dataclass(frozen=True)
class SeenTensor:
    """A tensor that the code was given. `stride` counts elements, None for row-major; `low` and `high`: the range of
    whole numbers; `mean`, `deviation` and `least`: what others are like; where the values are known."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    stride: tuple[int, ...] | None = None
    low: int = 0
    high: int | None = None
    mean: float = 0.0
    deviation: float = 1.0
    least: float = -math.inf


@dataclass(frozen=True)
class SeenCall:
    """A kind of call: tensors by the names of the parameters, others as they were, and how often it was seen."""

    arguments: Mapping[str, SeenTensor | Json]
    times: int = 1

    @property
    def elements(self) -> int:
        """Of all tensors."""
        return sum(math.prod(its.shape) for its in self.arguments.values() if isinstance(its, SeenTensor))


_DIMENSIONS = {1: ("SIZE",), 2: ("ROWS", "COLS"), 3: ("BATCH", "SEQUENCE", "COLS")}
_IMAGE, _HEADED = ("BATCH", "CHANNELS", "HEIGHT", "WIDTH"), ("BATCH", "HEADS", "SEQUENCE", "HEAD_DIM")
_MEANT = _by_word({
    "BATCH": "b batch bs bsz n batch_size",
    "SEQUENCE": "t s l seq seq_len seqlen sequence length tokens time q_len max_len max_seq_len",
    "COLS": "c d e dim hidden embed features model d_model hidden_size", "HEADS": "h heads nh num_heads",
    "HEAD_DIM": "hd head_dim dh", "CHANNELS": "ch channels", "HEIGHT": "height", "WIDTH": "w width",
    "ROWS": "m rows", "OUT": "o out",
})  # fmt: skip
_USUAL = {size.name: size.timed for size in _SIZES} | {"BATCH": 8, "SEQUENCE": 2048, "COLS": 4096}
# how many equal parts the code takes: `x.chunk(2, -1)`, `d // 2`, `x[..., ::2]`, `x.unflatten(-1, (-1, 2))`, `F.glu(x)`
_PARTS = re.compile(r"(?:\bchunk\((?:\w+, *)?|// *|::|-1, *)(\d+)\b|\bglu\(")
_MOST_PARTS = 8
_SMALL_ELEMENTS = 500_000  # of the inputs of a small case; the interpreter takes two million with all else
FLOATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


_DTYPES = _by_word({
    "bfloat16": "bf16 bfloat16", "float16": "fp16 half float16 f16", "float32": "fp32 float float32 f32",
    "float64": "fp64 double float64 f64", "float8_e4m3fn": "fp8 float8 float8_e4m3fn", "float8_e5m2": "float8_e5m2",
})  # fmt: skip


def told_calls(parts: CodeParts, shapes: Sequence[str], dtype: str | None) -> list[SeenCall]:
    """The call that a person tells of: "x=8,2048,4096" for an argument, "8,2048,4096" for the first one, and the dtype
    of what is no index and no mask; nothing where nothing was told. Raises TaskError."""
    if not shapes and dtype is None:
        return []
    name = _DTYPES.get((dtype or "float32").lower())
    if name is None:
        raise TaskError(f"--dtype {dtype!r:.40} is not one of {', '.join(dict.fromkeys(_DTYPES.values()))}")
    tensors = [p.name for p in parts.forward if p.kind.rpartition(".")[2] not in ("int", "float", "bool", "str")]
    told: dict[str, tuple[int, ...]] = {}
    for text in shapes:
        argument, _, sizes = text.rpartition("=")
        argument = argument.strip() or next(iter(tensors), "")
        if argument not in tensors:
            raise TaskError(f"--shape {text!r:.80}: {parts.name} takes {', '.join(tensors) or 'no tensor'}")
        told[argument] = _sizes_of(text, sizes)
    known = {
        argument: SeenTensor(shape, name)
        for argument, shape in told.items()
        if _role(argument, parts.body) not in _OWN_DTYPE
    }
    first = next(iter(known.values()), SeenTensor((_USUAL["ROWS"], _USUAL["COLS"]), name))
    known |= {a: replace(_alike(a, first, parts), shape=shape) for a, shape in told.items() if a not in known}
    if not known:
        read = next(_read_calls(parts), None)
        tensors = [p.name for p in parts.forward if _is_tensor(p)]
        if not tensors:
            raise TaskError(f"{parts.name} takes no tensor that must be given, and a task needs one to vary")
        first = read.arguments[tensors[0]] if read else SeenTensor((_USUAL["ROWS"], _USUAL["COLS"]))
        known[tensors[0]] = replace(first, dtype=name)
    return [completed(parts, known)]


def _sizes_of(text: str, sizes: str) -> tuple[int, ...]:
    try:
        found = tuple(int(size) for size in re.split(r"[,x]", sizes.strip("()[] ")) if size.strip())
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise TaskError(f"--shape {text!r:.80}: give whole numbers, as in x=8,2048,4096")
    return found


def _read_calls(parts: CodeParts) -> Iterator[SeenCall]:
    """The call that the source tells of: `B, T, C = x.shape`, annotations such as Float[Tensor, "b t c"], and a default
    of the constructor that says how wide the input is."""
    tensors = [p for p in parts.forward if _is_tensor(p)]
    named = {p.name: names for p in tensors if (names := _dimension_names(p, parts))}
    if not tensors or not (named or _width(parts, 2)):
        return
    first = tensors[0].name if tensors[0].name in named or not named else next(iter(named))
    names = named.get(first, ("ROWS", "COLS"))
    meant = [_MEANT.get(name.lower(), name) for name in names]
    longest = _defaults(parts).get("SEQUENCE")
    shape = [longest if longest and name == "SEQUENCE" else _USUAL.get(name, 64) for name in meant]
    shape[-1] = _width(parts, len(shape)) or shape[-1]
    yield completed(parts, {first: SeenTensor(tuple(shape))})


def _width(parts: CodeParts, rank: int) -> int | None:
    """The size of the last dimension that the constructor's defaults ask for: a length, or heads of a length each."""
    defaults = _defaults(parts)
    heads, each = defaults.get("HEADS"), defaults.get("head_dim")
    if each is None or "COLS" in defaults:
        return defaults.get("COLS")
    return each if rank == len(_HEADED) else each * (heads or 1)


def _defaults(parts: CodeParts) -> dict[str, int]:
    """Sizes that the constructor's defaults ask for, by what they mean: the first of each."""
    told = reversed((*parts.init, *_configured(parts)))
    return {_LENGTHS.get(p.name, p.name): int(p.default) for p in told if p.default.isdecimal()}


def _configured(parts: CodeParts) -> Iterator[Parameter]:
    """The fields, with defaults, of the objects that the constructor is given, such as a configuration, where the file
    has their classes."""
    wanted = {p.kind for p in parts.init if not p.default and _is_object(p)}
    for node in (n for helper in parts.helpers for n in syntax_tree(helper).body):
        if isinstance(node, ast.ClassDef) and node.name in wanted:
            yield from (p for p in _parameters(method_named("__init__", node), True) if p.default)
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value:
                    yield Parameter(field.target.id, ast.unparse(field.annotation), ast.unparse(field.value))


def _dimension_names(parameter: Parameter, parts: CodeParts) -> tuple[str, ...]:
    """What the dimensions of an argument are called, where its shape is taken apart or annotated, or the docstring has
    one list of words for dimensions: "[batch, sequence, dim]"."""
    for node in ast.walk(parts.body):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple | ast.List):
            continue
        value = node.value.func if isinstance(node.value, ast.Call) and not node.value.args else node.value
        targets = node.targets[0].elts
        if not isinstance(value, ast.Attribute) or value.attr not in ("shape", "size"):
            continue
        if _is_name(parameter.name, value.value) and not any(isinstance(t, ast.Starred) for t in targets):
            names = [getattr(target, "id", "_") for target in targets]
            return tuple(f"DIM{axis}" if name == "_" else name for axis, name in enumerate(names))
    annotated = re.fullmatch(r"\w+\[(?:\w+\.)?Tensor, ['\"]([\w ]+)['\"]\]", parameter.kind)
    if annotated:
        return tuple(annotated[1].split())
    lists = [text.replace(" ", "").split(",") for text in re.findall(r"[\[(]([\w, ]+)[\])]", parts.words)]
    (told,) = lists if len(lists) == 1 else ([],)
    return tuple(told) if len(told) > 1 and all(word.lower() in _MEANT for word in told) else ()


def completed(parts: CodeParts, known: Mapping[str, SeenTensor]) -> SeenCall:
    """A call with shapes for the tensors that are not known, by their names and by the shape of the first that is."""
    first = next(iter(known.values()))
    tensors = {p.name: known.get(p.name) or _alike(p.name, first, parts) for p in parts.forward if _is_tensor(p)}
    return SeenCall({**tensors, **known})


def _alike(given: str, first: SeenTensor, parts: CodeParts) -> SeenTensor:
    role, factor, width = _role(given, parts.body), _factor(given, parts.body), first.shape[-1]
    if role == "indices":
        return SeenTensor(first.shape[:-1] or first.shape, "int64", high=width)
    if role == "mask":
        return SeenTensor(first.shape, "bool")
    if role == "rotary":  # of each head the same
        return SeenTensor((*first.shape[:1], *first.shape[-2:]) if len(first.shape) > 3 else first.shape, first.dtype)
    if role == "matrix" or "OUT" in factor:
        return SeenTensor((_USUAL["OUT"], width) if factor == "OUT, COLS" else (width, _USUAL["OUT"]), first.dtype)
    if role == "vector":
        return SeenTensor((_USUAL["OUT"] if _vector_length(given, parts) == "OUT" else width,), first.dtype)
    return SeenTensor(first.shape, first.dtype)


class _SeenInputs:
    """The inputs of a task by calls that were seen. Dimensions that were always of one size are one constant."""

    def __init__(self, parts: CodeParts, calls: Sequence[SeenCall], made_with: Mapping[str, Json]) -> None:
        self._parts, self._made_with, self._main = parts, made_with, calls[0].arguments
        self._calls = [call for call in calls if _form(call) == _form(calls[0]) and _lies_alike(call, calls[0])]
        self._left_out_calls = sum(call.times for call in calls) - sum(call.times for call in self._calls)
        self._tensors = {p.name: its for p in parts.forward if isinstance(its := self._main.get(p.name), SeenTensor)}
        self._names: dict[tuple[int, ...], str] = {}  # by the sizes that a dimension had in each call
        self._shapes = {p.name: self._shape(p) for p in parts.forward if p.name in self._tensors}
        self._shares: dict[tuple[int, ...], str] = {}  # likewise, of those that are a share of another: "COLS // 2"
        self._taken_apart: dict[str, int] = {}  # of constants into how many parts
        self._take_apart("\n".join((*parts.helpers, parts.definition)))

    def _shape(self, parameter: Parameter) -> list[str]:
        """The dimensions of a tensor as names of constants; one that is always 1 is a 1."""
        shapes = [call.arguments[parameter.name].shape for call in self._calls]
        rank = len(shapes[0])
        wide = _IMAGE if _mentions(self._parts.body, _IMAGES) else _HEADED
        usual = _DIMENSIONS.get(rank, wide if rank == 4 else tuple(f"DIM{axis}" for axis in range(rank)))
        told = _dimension_names(parameter, self._parts)
        sizes = [tuple(shape[axis] for shape in shapes) for axis in range(rank)]
        pairs = zip(sizes, told if len(told) == rank else usual, strict=True)
        return ["1" if set(its) == {1} else self._name(its, name) for its, name in pairs]

    def _take_apart(self, source: str) -> None:
        """Where the code takes equal parts of something, last dimensions stay multiples of their number, and one that
        is such a part of another is written so."""
        told = {int(number or 2) for number in _PARTS.findall(source)}
        last = {shape[-1] for shape in self._shapes.values() if shape}
        for count in sorted(n for n in told if 1 < n <= _MOST_PARTS):
            for sizes, name in list(self._names.items()):
                if name not in last or any(size % count for size in sizes):
                    continue
                self._taken_apart[name] = math.lcm(count, self._taken_apart.get(name, 1))
                part = tuple(size // count for size in sizes)
                if self._names.get(part) in last:
                    self._shares[part] = f"{name} // {count}"
        for sizes, share in self._shares.items():
            name = self._names.pop(sizes)
            self._shapes = {of: [share if d == name else d for d in shape] for of, shape in self._shapes.items()}

    def _name(self, sizes: tuple[int, ...], wanted: str) -> str:
        if sizes not in self._names:
            taken, wanted = set(self._names.values()), wanted.upper()
            numbered = (f"{wanted}{number}" for number in range(2, 100))
            self._names[sizes] = wanted if wanted not in taken else next(n for n in numbered if n not in taken)
        return self._names[sizes]

    def guess(self) -> Guess:
        """All of it as a task is written."""
        floats = [its.dtype for its in self._tensors.values() if its.dtype in FLOATS]
        dtype = max(dict.fromkeys(floats), key=floats.count, default="float32")
        init, unsure = self._init()
        inputs = [self._input(name, dtype) for name in self._shapes]
        values, left_out = {}, [p for p in self._parts.init if p.name not in init]
        for p in self._parts.forward:
            if (
                p.name in self._main
                and p.name not in self._tensors
                and literal(self._main[p.name]) != _normal(p.default)
            ):
                values[p.name] = literal(self._main[p.name])
            elif p.name not in self._tensors and p.default:
                left_out.append(p)
            elif p.name not in self._tensors:
                values[p.name] = _NUMBERS.get(p.name) or _OF_KIND.get(p.kind, "1")
        cases = tuple(self._cases())
        return Guess(
            self._sizes(_names(init.values())),
            tuple(inputs),
            values,
            init,
            tuple(left_out),
            tuple(unsure),
            precision=dtype,
            dtype_name=dtype,
            seen=cases,
            weight=self._calls[0].times if cases else None,
            left_out_calls=self._left_out_calls,
        )

    def _init(self) -> tuple[dict[str, str], list[str]]:
        """Expressions for the constructor's arguments, sizes of the inputs among them, and those that are guesses."""
        named = (self._names | self._shares).items()
        steady = {sizes[0]: name for sizes, name in named if len(set(sizes)) == 1 and sizes[0] > 1}
        shape = next(filter(None, self._shapes.values()), ["1"])
        meant = {"COLS": shape[-1], "CHANNELS": shape[1] if len(shape) > 2 else shape[-1]}
        init: dict[str, str] = {}
        unsure: list[str] = []
        for p in self._parts.init:
            if p.name in self._made_with:
                value = self._made_with[p.name]
                if literal(value) != _normal(p.default):
                    init[p.name] = steady.get(value, literal(value)) if type(value) is int else literal(value)
            elif not p.default:
                expression, sure = _init_value(p)
                by_name = {_MEANT.get(name.lower(), name): name for name in self._names.values()}
                if not sure and (name := by_name.get(_MEANT.get(p.name, ""))):
                    expression, sure = name, True
                init[p.name] = meant.get(expression, expression)
                unsure += [] if sure else [p.name]
        return init, unsure

    def _input(self, name: str, dtype: str) -> Input:
        """A tensor of that shape and form with random values: what `_extents` tells of is made, and a part of it is
        taken; without that it is contiguous, for a person to look at."""
        its, shape = self._tensors[name], self._shapes[name]
        order, expanded = _memory_order(its)
        stored = self._stored(name)
        if stored is None:
            note = f"its strides were {its.stride}, and are not here"
            return Input(name, self._values(its, shape, dtype), look=note)
        base = ["1" if axis in expanded else shape[axis] for axis in order]
        taken = [f":{size}" if size != whole else ":" for size, whole in zip(base, stored, strict=False)]
        taken += ["0"] * (len(stored) - len(base))
        made = self._values(its, stored, dtype)
        places = ", ".join(str(order.index(axis)) for axis in sorted(order))
        back = "" if order == sorted(order) else f".permute({places})"
        expand = f".expand({', '.join(shape)})" if expanded else ""
        while taken and taken[-1] == ":":
            taken.pop()
        part = f"[{', '.join(taken)}]" if taken else ""
        bracketed = f"({made})" if " > " in made and (part or back or expand) else made
        return Input(name, f"{bracketed}{part}{back}{expand}")

    def _stored(self, name: str) -> list[str] | None:
        """The sizes of what the tensor is a part of, in the order of memory; None where it is a part of no such."""
        order, expanded = _memory_order(self._tensors[name])
        tensors = [its for call in self._calls if isinstance(its := call.arguments[name], SeenTensor)]
        found = [extents for its in tensors if (extents := _extents(its, order, expanded))]
        if len(found) < len(tensors):
            return None
        stored = []
        for position, axis in enumerate(order):
            size = "1" if axis in expanded else self._shapes[name][axis]
            sizes = [1 if axis in expanded else its.shape[axis] for its in tensors]
            stored.append(_wider(size, sizes, [extents[position] for extents in found]))
        told = [size for size in stored if size is not None]
        step = found[0][-1]  # all calls have the same
        return [*told, *([str(step)] if step > 1 else [])] if len(told) == len(stored) else None

    def _values(self, its: SeenTensor, shape: Sequence[str], dtype: str) -> str:
        size = ", ".join(shape) or "()"
        if its.dtype == "bool":
            return f"torch.rand({size}) > 0.5"
        if its.dtype not in FLOATS:
            cast = "" if its.dtype == "int64" else f".to(torch.{its.dtype})"
            sizes = f"({size}{',' * (len(shape) == 1)})" if shape else size
            return f"torch.randint({its.low}, {self._bound_of(its)}, {sizes}){cast}"
        values = _as_seen(f"torch.randn({size})", its)
        return f"{values}.to({'getattr(torch, DTYPE)' if its.dtype == dtype else f'torch.{its.dtype}'})"

    def _bound_of(self, its: SeenTensor) -> str:
        """What whole numbers are below: the least size that holds them and is of their order, as of the rows that they
        choose among."""
        high = 2 if its.high is None else its.high
        sizes = {sizes[0]: name for sizes, name in self._names.items() if high <= sizes[0] < 2 * high}
        return sizes[min(sizes)] if sizes and high > 2 else str(high)

    def _sizes(self, bound: Collection[str]) -> tuple[Size, ...]:
        """The constants. Small cases take other sizes for what varies; for what the constructor is given, too, they
        take the same part of each."""
        kept = {name for sizes, name in self._names.items() if sizes[0] in self._asked_for()}
        free = [name for name in self._names.values() if name not in bound and name not in kept]
        held = {name: sizes[0] for sizes, name in self._names.items() if name in bound and name not in kept}
        # without the upper rungs where a small case is too large for the interpreter: of three inputs of 4,096 columns,
        # which a default of the constructor keeps, 257 rows took 11 s of processor time an attempt to judge
        for ladder in (_LADDER, _LADDER[1:], _LADDER[2:]):
            smaller = {
                name: _smaller(sizes[0], free.index(name), self._taken_apart.get(name, 1), ladder)
                for sizes, name in self._names.items()
                if name in free
            }
            divisor = 1
            while self._elements(smaller, held, divisor) > _SMALL_ELEMENTS and _can_halve(held.values(), divisor):
                divisor *= 2
            if self._elements(smaller, held, divisor) <= 2 * _SMALL_ELEMENTS:
                break
        smaller |= {name: (size // divisor,) * 3 for name, size in held.items()}
        found = [Size(name, sizes[0], *smaller.get(name, ())) for sizes, name in self._names.items()]
        known = {size.name for size in found}
        return (*found, *(size for size in _SIZES if size.name in bound and size.name not in known))

    def _asked_for(self) -> set[int]:
        """Sizes that follow from values of the constructor that stay as they are: those, and heads of a length each."""
        told = [p for p in (*self._parts.init, *_configured(self._parts)) if p.default]
        told = [p for p in told if _LENGTHS.get(p.name) != "SEQUENCE"]  # the most that there may be
        left = [self._made_with.get(p.name, _normal(p.default)) for p in told]
        numbers = [int(value) for value in map(str, left) if value.isdecimal()]
        return {n for n in (*numbers, *(a * b for a, b in itertools.combinations(numbers, 2))) if n > 1}

    def _elements(self, free: Mapping[str, Sequence[int]], held: Mapping[str, int], divisor: int) -> int:
        """Of the inputs of a small case, and about so many of the parameters."""
        sizes = {**{n: s[0] for n, s in free.items()}, **{n: size // divisor for n, size in held.items()}, "1": 1}
        full = {name: its[0] for its, name in self._names.items()}
        widest = sorted(sizes[name] for name in held)[-2:]
        whole = {dim: dim.partition(" // ")[0] for shape in self._shapes.values() for dim in shape}
        shapes = ([sizes.get(whole[dim]) or full[whole[dim]] for dim in shape] for shape in self._shapes.values())
        return sum(map(math.prod, shapes)) + math.prod(widest)

    def _cases(self) -> Iterator[Mapping[str, Json]]:
        """Those of the calls after the first."""
        for number, call in enumerate(self._calls[1:], 1):
            sizes = {name: its[number] for its, name in self._names.items() if its[number] != its[0]}
            yield {"name": f"seen_{number + 1}", **sizes, "weight": call.times}


def _as_seen(normal: str, its: SeenTensor) -> str:
    """Normal numbers made into some of the size and sign that were seen, where those are others."""
    spread, shift = its.deviation, its.mean if abs(its.mean) > 2 * its.deviation else 0.0
    if its.least >= 0 and not shift:
        normal, spread = f"{normal}.abs()", math.hypot(its.mean, its.deviation)
    scaled = f" * {spread:.3g}" if spread and not 0.5 < spread < 2 else ""
    moved = f" {'-' if shift < 0 else '+'} {abs(shift):.3g}" if shift else ""
    made = f"({normal}{scaled}{moved})" if scaled or moved else normal
    return f"{made}.abs()" if its.least >= 0 and shift else made


def _form(call: SeenCall) -> Json:
    """What calls have in common that differ in sizes only."""
    return {
        name: (len(its.shape), its.dtype) if isinstance(its, SeenTensor) else its
        for name, its in call.arguments.items()
    }


def _lies_alike(call: SeenCall, first: SeenCall) -> bool:
    """Whether the tensors lie in memory as those of the first call of that form, which are timed."""
    pairs = [(its, first.arguments[name]) for name, its in call.arguments.items()]
    return all(
        (told := _parts_taken(main, main)) is None or _parts_taken(its, main) == told
        for its, main in pairs
        if isinstance(its, SeenTensor) and isinstance(main, SeenTensor)
    )


def _parts_taken(its: SeenTensor, main: SeenTensor) -> Json:
    """Of which dimensions a tensor is a part, seen in the order of another one."""
    order, expanded = _memory_order(main)
    if (extents := _extents(its, order, expanded)) is None:
        return None
    kept = [1 if axis in expanded else its.shape[axis] for axis in order]
    return [[size < whole for size, whole in zip(kept, extents, strict=False)], extents[-1]]


def _memory_order(its: SeenTensor) -> tuple[list[int], set[int]]:
    """The dimensions from the outermost in memory to the innermost, and those of which all rows are one."""
    steps, inner = list(its.stride or row_major(its.shape)), 1
    expanded = {axis for axis, size in enumerate(its.shape) if size > 1 and steps[axis] == 0}
    for axis in reversed(range(len(steps))):  # where nothing tells, as in a contiguous tensor
        steps[axis] = inner if its.shape[axis] < 2 or axis in expanded else steps[axis]
        inner = steps[axis] * (1 if axis in expanded else max(its.shape[axis], 1))
    return sorted(range(len(steps)), key=lambda axis: (-steps[axis], axis)), expanded


def _extents(its: SeenTensor, order: Sequence[int], expanded: Collection[int]) -> tuple[int, ...] | None:
    """The shape, in that order, of a contiguous tensor that this one is a part of: the first of each dimension, and of
    a last one, which it lacks, one element. None where there is no such."""
    steps = its.stride or row_major(its.shape)
    varied = [axis for axis in order if its.shape[axis] > 1 and axis not in expanded]
    if any(its.shape[axis] > 1 and steps[axis] for axis in expanded) or any(not steps[axis] for axis in varied):
        return None
    extents = {axis: 1 if axis in expanded else its.shape[axis] for axis in order}
    for outer, inner in itertools.pairwise(varied):
        extents[inner], rest = divmod(steps[outer], steps[inner])
        if rest or extents[inner] < its.shape[inner]:
            return None
    return (*(extents[axis] for axis in order), steps[varied[-1]] if varied else 1)


def _wider(size: str, sizes: Sequence[int], widths: Sequence[int]) -> str | None:
    """The width of rows of which a size is used, for the sizes of all cases; None where nothing says it."""
    if list(sizes) == list(widths):
        return size
    if len(set(widths)) == 1 and widths[0] >= 8:  # more than a small case makes of a size below
        return str(widths[0])
    pairs = list(zip(sizes, widths, strict=True))
    if 0 not in sizes and len({width / its for its, width in pairs}) == 1 and widths[0] % sizes[0] == 0:
        return f"{widths[0] // sizes[0]} * {size if size.isidentifier() else f'({size})'}"
    return f"{size} + {widths[0] - sizes[0]}" if len({width - its for its, width in pairs}) == 1 else None


def _normal(expression: str) -> str:
    """A default as `repr` writes its value."""
    try:
        return repr(ast.literal_eval(expression)) if expression else ""
    except (ValueError, SyntaxError):
        return expression


def _can_halve(sizes: Collection[int], divisor: int) -> bool:
    return bool(sizes) and all(size % (2 * divisor) == 0 and size // (2 * divisor) >= 16 for size in sizes)


# none is 1: what compilers make of a size of 1 says nothing about others
_Rung = tuple[int, tuple[int, int, int]]
_LADDER: tuple[_Rung, ...] = ((512, (257, 65, 193)), (64, (33, 17, 37)), (8, (5, 3, 7)), (0, (3, 2, 5)))


def _smaller(size: int, place: int, of: int, ladder: Sequence[_Rung]) -> tuple[int, int, int]:
    """Three small sizes, none of which a kernel for multiples of something can rely on; others at other places. Each is
    odd times `of` where that is more than 1."""
    least, small = next((least, small) for least, small in ladder if size >= least)
    a, b, c = small if least <= 8 else (small[0] + 2 * place, small[1] + 2 * place, small[2] + 2 * place)
    return (a, b, c) if of == 1 else (of * (a // of | 1), of * (b // of | 1), of * (c // of | 1))


# ---
# The file as text: `task.py.j2`, filled in.

LOOK = "LOOK"  # marks what a person should look at
_TORCH = ("import torch", "import torch.nn as nn")
TEMPLATE = '''import torch
import torch.nn.functional as F

def my_op(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """y = gelu(x + bias): put the code that shall be faster here"""
    return F.gelu(x + bias)
'''


def task_source(
    parts: CodeParts, origin: str, calls: Sequence[SeenCall] = (), made_with: Mapping[str, Json] | None = None
) -> str:
    """The file. `origin`: what it was made from, as a person typed it; `calls`: how it is called, the timed one first,
    and what the constructor was given, where that is known. Raises TaskError for what takes no tensor, and for a module
    that is called Model already and cannot be called as a task calls it."""
    found = guess(parts, calls, made_with)
    if not found.inputs:
        raise TaskError(f"{parts.name} takes no tensor that must be given, and a task needs one to vary")
    objects = {p.name: found.init[p.name] for p in parts.init if p.name in found.init and _is_object(p)}
    required = [p for p in parts.init if p.name in found.init and p.name not in objects]
    adapted = bool(found.values) or any(p.keyword and not p.default for p in parts.forward)
    is_model = parts.is_module and parts.name == "Model"
    if is_model and (adapted or objects or any(p.keyword for p in required)):
        raise TaskError(
            "Model takes keyword arguments, or arguments that are not tensors, so the task needs a wrapper: "
            "rename yours first"
        )
    origin = _harmless(origin)
    future = [line for line in parts.imports if line.startswith("from __future__")]
    imports = [line for line in parts.imports if line not in (*_TORCH, *future)]
    names = [i.name for i in found.inputs]
    text = _template().render(
        parts=parts,
        found=found,
        origin=origin,
        words=_harmless(parts.words) or f"{parts.name}, of {origin}",
        future=future,
        imports=[*sorted(imports, key=lambda line: (line.startswith("from"), line)), *_TORCH],
        cases=_cases(found.sizes),
        seen=[_entry(case) for case in found.seen],
        definitions=[*_definitions(parts), *([] if is_model else [parts.definition])],
        is_model=is_model,
        adapted=adapted,
        required=[p.name for p in required],
        objects=list(objects),
        unsure=[name for name in found.unsure if name not in objects],
        given_init=list(_given(parts.init, {p.name: p.name for p in required}, objects)),
        given=list(_given(parts.forward, {name: name for name in names}, found.values)),
    )
    return re.sub(r"\n{4,}", "\n\n\n", text).rstrip("\n") + "\n"


_SMALL = re.compile(r'^    \{"name": "(?:ragged|narrow|unseen)", .*', re.MULTILINE)  # cases as `_entry` writes them


def less_varied(text: str) -> Iterator[str]:
    """Yield a file that was written here with fewer sizes that its small cases vary, for code that fails with others:
    without one of them, the last first, then without the last two, and so on. One always varies."""
    entry = _SMALL.search(text)
    last_first = re.findall(r'"(\w+)": \d', entry[0])[::-1] if entry else []
    for held in [[name] for name in last_first] + [last_first[:count] for count in range(2, len(last_first))]:
        if len(held) < len(last_first):
            yield _held(text, held)


def _held(text: str, names: Sequence[str]) -> str:
    """The file whose small cases leave these constants as they are."""
    for name in names:
        why = f"  # {LOOK}: the same in all cases, since the code failed with other sizes"
        text = re.sub(rf"^({name} = \d+)(?:  # .*)?$", rf"\1{why}", text, count=1, flags=re.MULTILINE)
    return _SMALL.sub(lambda entry: re.sub(rf' "(?:{"|".join(names)})": \d+,', "", entry[0]), text)


def _template(name: str = "task.py.j2") -> "Template":
    from jinja2 import Environment, StrictUndefined  # not before somebody wants a file

    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    made = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701 - it is Python
    return made.from_string(text)


def _harmless(text: str) -> str:
    """Return `text` fit for a docstring."""
    return one_line(text.replace("\\", "/").replace('"', "'"))


def _cases(sizes: Sequence[Size]) -> Iterator[str]:
    """The entries of the three small cases."""
    own: dict[str, tuple[str, dict[str, bool]]] = {
        "ragged": ("ragged", {}),
        "narrow": ("narrow", {}),
        "unseen": ("held_out", {"held_out": True}),
    }
    for name, (attribute, flags) in own.items():
        kept = {size.name: getattr(size, attribute) for size in sizes}
        yield _entry({k: v for k, v in {"name": name, **kept, **flags, "cpu": True}.items() if v is not None})


def _entry(case: Mapping[str, Json]) -> str:
    parts = (f'"{key}": ' + (f'"{value}"' if isinstance(value, str) else repr(value)) for key, value in case.items())
    return "{" + ", ".join(parts) + "},"


def _definitions(parts: CodeParts) -> Iterator[str]:
    """What the code needs, constants that follow each other in one piece."""
    constants: list[str] = []
    for helper in (*parts.helpers, ""):
        if helper and not helper.startswith(("def ", "class ", "@", "async ")):
            constants.append(helper)
            continue
        yield from filter(None, ["\n".join(constants), helper])
        constants = []


def _given(
    parameters: Sequence[Parameter], same: Mapping[str, str], guessed: Mapping[str, str] | None = None
) -> Iterator[str]:
    """What stands between the brackets of a call. Guessed values are named where they can be, and all that follow."""
    values, named = {**same, **(guessed or {})}, False
    for parameter in parameters:
        if (value := values.get(parameter.name)) is not None:
            named = named or parameter.keyword or (parameter.name not in same and not parameter.placed)
            yield f"{parameter.name}={value}" if named else value


# ---
# The task of the gradients of a task.

FORWARD = "forward_model"  # where the gradients' Model has the other one
_HAS_GRADIENT = FLOATS[:4]
RENAMED = {"Model": "Forward", "get_inputs": "forward_inputs"}


def joined_halves(inputs: str, cotangents: str, *, itself: str = "self") -> list[str]:
    """What the forward of a ModelNew for a training step consists of, if a package can run its halves apart."""
    return [
        f"outputs, saved = {itself}.save({inputs})",
        f"return (*outputs, *{itself}.gradients(saved, {cotangents}))",
    ]


def gives_outputs(forward: ast.FunctionDef) -> bool:
    """Whether the forward that `backward_source` wrote is that of a training step, which gives the outputs, too."""
    return any(isinstance(node, ast.Name) and node.id == "_results" for node in ast.walk(forward))


def backward_source(task: TaskSpec, source: str, *, step: bool = False) -> str:
    """The task whose Model gives the gradients of another one's outputs, with respect to its inputs and parameters, for
    gradients with respect to the outputs; the task of a whole `step` gives the outputs, too, before them. `source`: of
    the other one, held-out cases and all. Raises TaskError where nothing has a gradient, and for names that the file
    needs for itself."""
    taken = {token.string for token in _tokens(source) if token.type == tokenize.NAME}
    if clash := next((name for name in RENAMED.values() if name in taken), None):
        raise TaskError(f"{task.name} uses the name {clash}, which its gradients need; rename it first")
    tree = syntax_tree(source)
    forward = method_named("forward", *lineage(tree, "Model"))
    if forward is None or forward.args.vararg or forward.args.kwarg or forward.args.kwonlyargs:
        raise TaskError(
            f"the forward of {task.name} is missing from its file, or has *args, **kwargs or keyword-only arguments, "
            "so no task of its gradients can be made"
        )
    names = [a.arg for a in (*forward.args.posonlyargs, *forward.args.args)][1 : 1 + len(task.main.inputs)]
    primals = [name for name, its in zip(names, task.main.inputs, strict=True) if _float_leaves(its) == [()]]
    if any(way for its in task.main.inputs for way in _float_leaves(its)):
        raise TaskError(f"{task.name} takes tensors in a list or dict, and gradients need them as arguments")
    outputs = [reached("_found", way) for way in _float_leaves(task.main.outputs)]
    if not outputs or not (primals or task.main.state):
        raise TaskError(f"{task.name} has no output or no input with a gradient")
    if step and len(outputs) < len(list(tensors_of(task.main.outputs))):
        raise TaskError(f"{task.name} has outputs without a gradient, which its step would leave out; use --backward")
    word = _free("gradient", names, "output_")
    cotangents = [word] if len(outputs) == 1 else [f"{word}_{number}" for number in range(len(outputs))]
    text = _template("backward.py.j2").render(
        names=names,
        primals=primals,
        outputs=outputs,
        cotangents=cotangents,
        held=FORWARD,
        halves=joined_halves(", ".join(names), ", ".join(cotangents)) if step else [],
        has_init="get_init_inputs" in taken,
        source=with_forward_names(source).strip(),
        words=_harmless(task.name),
    )
    return text.rstrip("\n") + "\n"


def _float_leaves(tree: Json) -> list[Way]:
    """The ways to the tensors that have a gradient."""
    return [way for way, spec in tensors_of(tree) if spec.dtype in _HAS_GRADIENT]


def _tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(source).readline)


def with_forward_names(source: str) -> str:
    """The source with the names of RENAMED, and as it was written otherwise."""
    lines = list(io.StringIO(source))  # as tokens count them
    found = [t for t in _tokens(source) if t.type == tokenize.NAME and t.string in RENAMED]
    for token in reversed(found):
        (row, start), (_, end) = token.start, token.end
        lines[row - 1] = lines[row - 1][:start] + RENAMED[token.string] + lines[row - 1][end:]
    return "".join(lines)


def file_name(name: str) -> str:
    """What the task of a function or class is called unless a person says otherwise: tail_task.py of Tail."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower() + "_task.py"


def looks(source: str) -> list[tuple[int, str]]:
    """The lines that a person should look at, with their numbers."""
    mark = re.compile(rf"\b{LOOK}: (.*)")
    return [(n, m[1]) for n, line in enumerate(source.splitlines(), 1) if (m := mark.search(line))]
