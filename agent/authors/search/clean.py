"""Turns what Inductor wrote for a task into one readable candidate file. Text in, text out; imports no torch.

Several lowerings go into one file: the first is the timed case's, the others serve further shapes or dtypes.
"""

import ast
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kerneltune.agent.authors.search.experts import recurrent_layers
from kerneltune.agent.authors.search.model_source import loads, model_parts
from kerneltune.agent.authors.search.neighbours import CannotLower, NoKernel, Sketch
from kerneltune.tools.schema.codec import Json, expression_tree, syntax_tree


@dataclass(frozen=True)
class InductorKernel:
    """Launch configurations (the first is the default) and grid type."""

    configs: list[dict[str, int]]
    grid: str


@dataclass(frozen=True)
class CaseArguments:
    """What a forward is called with in a case: shape and dtype by state_dict key and of each tensor among the inputs,
    and the attributes that differ between cases, as Python text. `strides`: of the inputs that are not row-major, by
    their place among the tensors; `values`: the inputs that are no tensors, as Python text."""

    state: Mapping[str, tuple[tuple[int, ...], str]]
    inputs: Sequence[tuple[tuple[int, ...], str]]
    attributes: Mapping[str, str]
    strides: Mapping[int, Sequence[int]] = field(default_factory=dict)
    values: Sequence[str] = ()


@dataclass(frozen=True)
class LoweringFacts:
    """`state`: shape and dtype of each tensor that the model holds; `inputs`: {"$i": n} for each tensor, Python text
    for all else; `tensors`: shape, dtype of each tensor input, strides where it is not row-major; `symbols`: size
    symbol -> (argument, dimension), arguments being the state's tensors, then the inputs'.

    Attributes that differ between cases: `sizes` has the symbols of those that the code reads at run time, `baked` the
    values, as text, of those that it took for constants; `cases` has all of them in each of the task's cases.
    """

    state: dict[str, tuple[list[int], str]]
    inputs: list[Json]
    tensors: list[tuple[list[int], str, list[int] | None]]
    symbols: dict[str, tuple[int, int]]
    guards: list[str]
    outputs: str
    kernels: dict[str, InductorKernel]
    helpers: dict[str, str]
    operators: list[str] = field(default_factory=list)  # of torch, in the order in which the forward calls them
    sizes: dict[str, str] = field(default_factory=dict)
    baked: dict[str, str] = field(default_factory=dict)
    cases: dict[str, dict[str, str]] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)  # of the state, between cases, in shape or dtype
    allows: list[str] = field(default_factory=list)  # rewrites of `algebra` that the forward allows
    algebraic: list[str] = field(default_factory=list)  # those that were made

    @property
    def own(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and dtype of the state's tensors, then the inputs', as they were lowered."""
        return [*((tuple(s), d) for s, d in self.state.values()), *((tuple(s), d) for s, d, _ in self.tensors)]

    def covers(self, case: CaseArguments) -> bool:
        """Whether these kernels serve a case."""
        given = [*(case.state.get(n, o) for n, o in zip(self.state, self.own, strict=False)), *case.inputs]
        if len(given) != len(self.own) or not all(map(_alike, given, self.own)):
            return False
        leaves = (leaf for tree in self.inputs for _, leaf in _leaves(tree, ""))
        if list(case.values) != [leaf for leaf in leaves if isinstance(leaf, str)]:
            return False
        copied = {tree["$i"] for tree in self.inputs if isinstance(tree, dict) and "$i" in tree}  # see `_contiguous`
        for place, (_, _, stride) in enumerate(self.tensors):
            if case.strides.get(place) != stride and (stride or place not in copied):
                return False
        free = set(self.symbols.values())
        places = ((i, d) for i, (shape, _) in enumerate(self.own) for d in range(len(shape)))
        if any(given[i][0][d] != self.own[i][0][d] for i, d in places if (i, d) not in free):
            return False
        if any(case.attributes.get(path, text) != text for path, text in self.baked.items()):
            return False
        values = {name: given[argument][0][dim] for name, (argument, dim) in self.symbols.items()}
        values |= {symbol: int(case.attributes[path]) for path, symbol in self.sizes.items()}
        return all(_holds(guard, values) for guard in self.guards)


_FUNCTIONS: dict[str, Any] = {"max": max, "min": min, "float": float, "int": int, "abs": abs}
_ARITHMETIC = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd, ast.Not, ast.And, ast.Or),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Pow),
)
_MOST_OF_A_GUARD = 10_000  # characters


def _holds(guard: str, values: Mapping[str, int]) -> bool:
    """Whether a condition on sizes is true. A process that ran the task's code wrote it, so it may be anything: what is
    not arithmetic on these values does not hold."""
    try:
        tree = ast.Expression(expression_tree(guard.strip() if len(guard) <= _MOST_OF_A_GUARD else ""))
        if not all(_is_arithmetic(node, values) for node in ast.walk(tree)):
            return False
        made = compile(tree, "<guard>", "eval")
        return bool(eval(made, {"__builtins__": {}, **_FUNCTIONS}, dict(values)))  # noqa: S307 - arithmetic by now
    except (SyntaxError, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError):
        return False


def _is_arithmetic(node: ast.AST, values: Mapping[str, int]) -> bool:
    match node:
        case ast.Name():
            return node.id in values or node.id in _FUNCTIONS
        case ast.Constant():
            return type(node.value) in (int, float, bool)
        case ast.Call():
            return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
        case ast.BinOp(left=ast.Name() | ast.Constant(), op=ast.Pow(), right=ast.Constant(value=2 | 3 | 4)):
            return True
        case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=0.5)):  # attention's scale
            return True
        case ast.BinOp(op=ast.Pow()):  # would take the supervisor's time and memory
            return False
        case _:
            return isinstance(node, _ARITHMETIC)


def _alike(given: tuple[tuple[int, ...], str], own: tuple[tuple[int, ...], str]) -> bool:
    return len(given[0]) == len(own[0]) and given[1] == own[1]


@dataclass(frozen=True)
class LoweredCode:
    """What Inductor wrote, and what that does not say."""

    text: str
    facts: LoweringFacts

    @cached_property
    def kernels(self) -> dict[str, str]:
        """The module text of each kernel."""
        return kernel_texts(self.text)


def kernel_texts(code: str) -> dict[str, str]:
    """Kernel name -> the module text that Inductor would compile."""
    calls = (n for n in ast.walk(syntax_tree(code)) if isinstance(n, ast.Call))
    found = [c for c in calls if ast.unparse(c.func) == "async_compile.triton"]
    return {ast.literal_eval(c.args[0]): ast.literal_eval(c.args[1]) for c in found}


# ---
# Moves powers of plain numbers out of a kernel: they are the same for every element, and libdevice's is a function of
# its own, which a kernel that we accept may not call. The host computes them in float64, as the kernel would. AST in,
# AST out.


class Hoist(ast.NodeTransformer):
    """Replaces `(1 - libdevice.pow(0.9, ks0)).to(tl.float32)` by a new parameter; `hoisted` has the host's expression
    of each. `sizes`: parameters that are numbers."""

    def __init__(self, sizes: set[str]) -> None:
        self._sizes = sizes
        self.hoisted: dict[str, str] = {}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A conversion to float32 whose operand the host can compute."""
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == "to" and ast.unparse(node.args[0]) == "tl.float32":
            text = self._on_host(function.value)
            if text is not None and "**" in text:
                known = {value: name for name, value in self.hoisted.items()}
                name = known.setdefault(text, f"factor{len(self.hoisted)}")
                self.hoisted[name] = text
                return ast.Name(name, ast.Load())
        return self.generic_visit(node)

    def _on_host(self, node: ast.expr) -> str | None:
        """The expression as the host's Python; None where it is more than arithmetic on numbers."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return repr(node.value)
        if isinstance(node, ast.Name) and node.id in self._sizes:
            return node.id
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._on_host(node.operand)
            return inner and f"(-{inner})"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
            left, right = self._on_host(node.left), self._on_host(node.right)
            sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(node.op)]
            return f"({left} {sign} {right})" if left and right else None
        return self._call_on_host(node) if isinstance(node, ast.Call) else None

    def _call_on_host(self, node: ast.Call) -> str | None:
        name = ast.unparse(node.func)
        if name == "libdevice.pow":
            base, exponent = map(self._on_host, node.args)
            return f"({base} ** {exponent})" if base and exponent else None
        if name == "tl.full" and ast.unparse(node.args[0]) == "[]":
            return self._on_host(node.args[1])
        if name == "tl.cast" and ast.unparse(node.args[1]) == "tl.float64":
            return self._on_host(node.args[0])
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "to"
            and ast.unparse(node.args[0]) == "tl.float64"
        ):
            return self._on_host(node.func.value)
        return None


# ---
# Makes a kernel's body read as a person would have written it; what it computes stays the same. AST in, AST out.

_MOST_JOINED = 92  # of a statement that takes in another's expression
_KEPT_APART = {"load", "store", "sum", "max", "min", "argmax", "argmin", "reduce", "associative_scan", "broadcast_to"}


def tidy(function: ast.FunctionDef, names: Mapping[str, str]) -> None:
    """Rename parameters by `names`, call loaded values after their pointers, and write steps that are used once where
    they are used."""
    _Rename(names).visit(function)
    _Plain(_singles_in_float32(function)).visit(function)
    _put_constants_in_place(function)
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


class _Put(ast.NodeTransformer):
    """Replaces names by expressions; `operands`: only beside an operator, and never both sides."""

    def __init__(self, values: Mapping[str, ast.expr], *, operands: bool = False) -> None:
        self._values, self._operands = values, operands

    def visit_Name(self, node: ast.Name) -> ast.AST:
        fits = isinstance(node.ctx, ast.Load) and not self._operands
        return self._values.get(node.id, node) if fits else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self._operands and not (self._is_value(node.left) and self._is_value(node.right)):
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
    """Write `tl.full([1], 0.5, tl.float32)` beside an operator as 0.5: Triton makes it a float32, too."""
    stores = _stores(function)
    floats: dict[str, ast.expr] = {}
    for name, value in filter(None, (_single(s) for body in _blocks(function) for s in body)):
        number = re.fullmatch(r"tl\.full\(\[[1, ]*\], (\S+), tl\.float32\)", ast.unparse(value))
        if number and stores[name] == 1 and re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", number[1]):
            floats[name] = expression_tree(repr(float(number[1])))
    _Put(floats, operands=True).visit(function)
    _drop_unread_names(function, set(floats))


def _drop_unread_names(function: ast.FunctionDef, names: set[str]) -> None:
    unread = names - set(loads(function))
    for body in _blocks(function):
        body[:] = [s for s in body if not ((found := _single(s)) and found[0] in unread)]


def _put_steps_in_place(function: ast.FunctionDef, body: list[ast.stmt]) -> None:
    stores, reads = _stores(function), Counter(loads(function))
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
    place = next((i for i in range(index + 1, len(body)) if name in loads(body[i])), None)
    if place is None or not isinstance(body[place], ast.Assign | ast.Expr):
        return None
    if any(stores[used] > 1 for used in loads(value)):  # a sum that goes on: not the same further down
        return None
    statement = _Put({name: value}).visit(syntax_tree(ast.unparse(body[place])).body[0])
    return (place, ast.fix_missing_locations(statement)) if len(ast.unparse(statement)) <= _MOST_JOINED else None


def _stays(value: ast.expr) -> bool:
    calls = (_called(n) for n in ast.walk(value) if isinstance(n, ast.Call))
    return any(name in _KEPT_APART or name.startswith("atomic") for name in calls)


def _named_loads(function: ast.FunctionDef) -> dict[str, str]:
    """Values that are loaded once, under their pointer's name without `_ptr`."""
    stores, names = _stores(function), {}
    taken = set(stores) | set(loads(function))
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


# ---
# Makes one of Inductor's Triton kernels self-contained and readable. Text in, text out; no torch.

# libdevice functions with a Triton operator that is as exact as the tolerances need, and that needs no bitcode
_TL = {"abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt"}
# Operators that the interpreter cannot run; written out with those it can.
OWN_MATH = {
    "tanh": """@triton.jit
def tanh(x):
    # a polynomial near zero, where 1 - 2 / (exp(2x) + 1) cancels
    square = x * x
    poly = -5.70498872745e-3 * square + 2.06390887954e-2
    poly = (poly * square - 5.37397155531e-2) * square + 1.33314422036e-1
    small = x + x * square * (poly * square - 3.33332819422e-1)
    large = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, small, tl.where(x < 0, -large, large))
""",
    "log1p": """@triton.jit
def log1p(x):
    # what is lost of x where 1 + x rounds, by the slope of the logarithm
    u = 1.0 + x
    lost = (x - (u - 1.0)) / u
    return tl.log(u) + tl.where((u == 0.0) | (u == float("inf")), 0.0, lost)
""",
    "expm1": """@triton.jit
def expm1(x):
    # the series near zero, where exp(x) - 1 cancels: its next term is 1.1e-8 of the result at 0.5
    series = x * (x * (2.4801588e-5 * x + 1.984127e-4) + 1.3888889e-3) + 8.333334e-3
    series = x * (x * (x * (x * series + 4.1666668e-2) + 1.6666667e-1) + 0.5) + 1.0
    return tl.where(tl.abs(x) < 0.5, x * series, tl.exp(x) - 1.0)
""",
}
_NAMES = {
    "native_layer_norm": "layer_norm", "native_group_norm": "group_norm", "native_batch_norm": "batch_norm",
    "prepare_softmax_online": "softmax", "nll_loss_forward": "nll_loss", "max_pool2d_with_indices": "max_pool2d",
    "low_memory_max_pool_with_offsets": "max_pool",
}  # fmt: skip
_WORDS = 6  # of a kernel's name
ELEMENTWISE, _ROWS, _SUMS, _SCAN = "triton_poi_", "triton_per_", "triton_red_", "triton_spl_"  # how names begin
REDUCTIONS = (_ROWS, _SUMS)
_KINDS = {ELEMENTWISE: "elements", _ROWS: "rows", _SUMS: "sums", _SCAN: "scan"}
_HOW = {
    ELEMENTWISE: "one pass over the elements",
    _ROWS: "each row at once",
    _SUMS: "each row in steps",
    _SCAN: "rows in parts, each of which waits for those before it",
}
_TRITON_CONSTEXPR = ast.Attribute(ast.Name("triton", ast.Load()), "constexpr_function", ast.Load())
_TL_CAST = ast.Attribute(ast.Name("tl", ast.Load()), "cast", ast.Load())
_NOISE = set("to copy view unsafe fused default t transpose permute unsqueeze expand clone".split())


@dataclass(frozen=True)
class CleanKernel:
    """A cleaned kernel: `runtime` names its original positional arguments, `kept` those it still takes; after them come
    those that the host computes from them, as Python."""

    name: str
    text: str
    runtime: tuple[str, ...]
    kept: tuple[str, ...]
    facts: InductorKernel
    defaults: dict[str, int]
    says: str
    computed: tuple[str, ...] = ()

    def parameter(self, key: str) -> str:
        """The module constant that holds a launch parameter."""
        return f"{self.name.removesuffix('_kernel')}_{key}".upper()


@dataclass(frozen=True)
class Role:
    """What a kernel is for: the operators it fuses, in the graph's order, the `stem` of its name where that is known
    better, an `ending` that tells variants apart, and names for its parameters."""

    operators: Sequence[str] = ()
    stem: str = ""
    ending: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


def readable_name(name: str, taken: set[str], role: Role) -> str:
    """`triton_per_fused__softmax_add_0` -> `add_softmax_kernel`."""
    body = re.sub(r"^triton_(?:poi|red|per|tem|spl)_fused_|_\d+$", "", name)
    listed = "_".join(role.operators) or body
    for long, short in _NAMES.items():
        listed = listed.replace(long, short)
    words = list(dict.fromkeys(w for w in listed.split("_") if w and w not in _NOISE))[:_WORDS]
    stem = role.stem or "_".join(words) or "copy"
    stem = f"op_{stem}" if stem[0].isdigit() else stem
    kind = next((f"_{word}" for mark, word in _KINDS.items() if mark in name), "")
    found = f"{stem}{role.ending}"
    if f"{found}_kernel" in taken:  # the same operators in two kernels: sums first, then what uses them
        found = f"{stem}{kind}{role.ending}"
    number, base = 2, found
    while f"{found}_kernel" in taken:
        found, number = f"{base}_{number}", number + 1
    taken.add(f"{found}_kernel")
    return f"{found}_kernel"


def runtime_parameters(text: str, kernel: str) -> tuple[str, ...]:
    """What a kernel of Inductor's takes by position."""
    function = next(n for n in syntax_tree(text).body if isinstance(n, ast.FunctionDef) and n.name == kernel)
    return tuple(p.arg for p in function.args.args if p.annotation is None)


def clean_kernel(original: str, text: str, facts: InductorKernel, taken: set[str], role: Role) -> CleanKernel:
    """The kernel named `original` in Inductor's module text."""
    functions = [n for n in syntax_tree(text).body if isinstance(n, ast.FunctionDef)]
    function = next(f for f in functions if f.name == original)
    parameters = function.args.args
    runtime = runtime_parameters(text, original)
    function.decorator_list = [expression_tree("triton.jit")]
    function.name = readable_name(original, taken, role)
    sizes = {p for p in runtime if "ptr" not in p}
    hoist = Hoist(sizes)
    function = hoist.visit(Rewrite(sizes).visit(function))
    _drop_unread(function)
    read = _reads_of_arguments(function)
    kept = tuple(p for p in runtime if p in read)
    constants = [p for p in parameters if p.annotation is not None]
    passed = [p for p in parameters if p.arg in kept]
    function.args.args = [*passed, *map(ast.arg, hoist.hoisted), *constants]
    wanted = {p.arg for p in constants} | {"num_warps", "num_stages"}
    defaults = {k: v for k, v in facts.configs[0].items() if k in wanted}
    if missing := wanted - set(defaults):
        raise CannotLower(f"kernel {original}: no value for {sorted(missing)}")
    tidy(function, _free(role.names, function))
    combiners = _combiners(functions, function)
    function.body.insert(0, ast.Expr(ast.Constant(_docstring(original, role))))
    whole = "\n\n\n".join([*combiners, ast.unparse(ast.fix_missing_locations(function))])
    says, computed = _docstring(original, role), tuple(hoist.hoisted.values())
    return CleanKernel(function.name, whole, runtime, kept, facts, defaults, says, computed)


def _free(names: Mapping[str, str], function: ast.FunctionDef) -> dict[str, str]:
    """The names that mean nothing else in the function, each once."""
    taken = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} | {a.arg for a in function.args.args}
    found: dict[str, str] = {}
    for old, wanted in names.items():
        new, number = wanted, 2
        while new in taken:
            new, number = f"{wanted.removesuffix('_ptr')}_{number}{'_ptr' * wanted.endswith('_ptr')}", number + 1
        taken.add(new)
        found[old] = new
    return found


def _docstring(original: str, role: Role) -> str:
    how = next((words for mark, words in _HOW.items() if mark in original), "")
    what = ", ".join(role.operators) or "copies"
    return f"{what}: {how}." if how else f"{what}."


def _combiners(functions: list[ast.FunctionDef], kernel: ast.FunctionDef) -> list[str]:
    """The functions that a scan or reduction of this kernel combines with, under names of their own in the file."""
    texts = []
    for function in (f for f in functions if f is not kernel):
        own = f"{kernel.name.removesuffix('kernel')}{function.name.removeprefix('_triton_helper_fn_')}"
        for node in ast.walk(kernel):
            if isinstance(node, ast.Name) and node.id == function.name:
                node.id = own
        function.name = own
        function = Rewrite().visit(function)
        texts.append(ast.unparse(ast.fix_missing_locations(function)))
    return texts


class Rewrite(ast.NodeTransformer):
    """Replaces what only Inductor's runtime has by plain Triton. `sizes`: parameters that are numbers."""

    def __init__(self, sizes: set[str] | None = None) -> None:
        self._sizes = sizes or set()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`(ks0 * ks1).to(t)` -> `tl.cast(ks0 * ks1, t)`: a size of 1 is a constant to Triton, and has no `to`."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            names = {n.id for n in ast.walk(node.func.value) if isinstance(n, ast.Name)}
            if names and names <= self._sizes:
                return ast.Call(_TL_CAST, [node.func.value, *node.args], node.keywords)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Drop bounds checks: they cost time, and what they check are the task's own indices."""
        if ast.unparse(node).startswith("tl.device_assert"):
            return None
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """A choice between two spellings of libdevice that have become the same."""
        self.generic_visit(node)
        return node.body if list(map(ast.dump, node.body)) == list(map(ast.dump, node.orelse)) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Inductor imports it from Triton under its bare name."""
        return _TRITON_CONSTEXPR if node.id == "constexpr_function" else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """`triton_helpers.max2` -> `max2`, `libdevice.exp` -> `tl.exp`."""
        self.generic_visit(node)
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner == "triton_helpers" or (owner == "libdevice" and node.attr in OWN_MATH):
            return ast.Name(node.attr, ast.Load())
        if owner in ("libdevice", "tl_math", "math") and node.attr in _TL:
            return ast.Attribute(ast.Name("tl", ast.Load()), node.attr, ast.Load())
        return node


def clean_helper(text: str) -> str:
    """A function of Inductor's runtime, self-contained."""
    return ast.unparse(ast.fix_missing_locations(Rewrite().visit(syntax_tree(text))))


def _drop_unread(function: ast.FunctionDef) -> None:
    """Remove assignments to names that nothing reads, until there is none."""
    while True:
        drop = _DropAssignments(set(loads(function)))
        drop.visit(function)
        if not drop.dropped:
            return


class _DropAssignments(ast.NodeTransformer):
    def __init__(self, read: set[str]) -> None:
        self.read, self.dropped = read, False

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return self._keep(node, node.targets[0])

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return self._keep(node, node.target)

    def _keep(self, node: ast.stmt, target: ast.expr) -> ast.AST | None:
        if isinstance(target, ast.Name) and target.id not in self.read:
            self.dropped = True
            return None
        return node


def _reads_of_arguments(function: ast.FunctionDef) -> set[str]:
    """Names read that the body does not set itself (a specialised kernel sets `xnumel` in its first line)."""
    targets = [statement.targets[0] for statement in function.body if isinstance(statement, ast.Assign)]
    set_here = {target.id for target in targets if isinstance(target, ast.Name)}
    return set(loads(function)) - set_here


# ---
# Turns the `call` of Inductor's wrapper into the body of a `forward`. Text in, text out; imports no torch.

_DROPPED = ("args.clear(", "assert_size_stride(", "assert_alignment(", "torch.cuda.", "torch._C.", "get_raw_stream(")
_EXTERN = {"mm", "addmm", "bmm", "baddbmm", "convolution", "bias_addmm", "dot", "mv"}
RECURRENT = "recurrent"  # `inductor`'s operator for recurrent layers, and the expert's function
_KNOWN = {"torch", "triton", "self", "view", "max", "min", "float", "int", RECURRENT}


@dataclass(frozen=True)
class Names:
    """How the forward calls things: `arguments` by position of Inductor's call, `symbols` by size symbol."""

    arguments: list[str]
    symbols: Mapping[str, str]
    kernels: Mapping[str, CleanKernel]
    device: str


def launches(code: str, arguments: list[str]) -> dict[str, list[str]]:
    """What each kernel that is launched just once is given, by position: an argument's text, or that of Inductor."""
    call = _find_call(syntax_tree(code))
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
    call = _find_call(syntax_tree(code))
    rewrite = _HostRewriter(names)
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


class _HostRewriter(ast.NodeTransformer):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.rename: dict[str, ast.expr] = {s: expression_tree(text) for s, text in names.symbols.items()}

    def bind(self, target: ast.expr) -> None:
        parameters = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        for parameter, text in zip(parameters, self.names.arguments, strict=True):
            self.rename[ast.unparse(parameter)] = expression_tree(text)

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
            return expression_tree(self.names.device)
        if function.startswith("extern_kernels."):
            return _library(function.removeprefix("extern_kernels."), node)
        if function.startswith("aten."):
            node.func = expression_tree(f"torch.ops.{function}")
        if function == f"torch.ops.kerneltune.{RECURRENT}.default":
            node.func = expression_tree(RECURRENT)
        return node

    def _launch(self, kernel: CleanKernel, node: ast.Call) -> ast.AST:
        given = dict(zip(kernel.runtime, (ast.unparse(self.visit(a)) for a in node.args), strict=True))
        options = [f"{key}={kernel.parameter(key)}" for key in kernel.defaults]
        computed = [_filled(text, given) for text in kernel.computed]
        arguments = ", ".join([*(given[name] for name in kernel.kept), *computed, *options])
        return expression_tree(f"{kernel.name}[{grid(kernel, given)}]({arguments})")


def _filled(text: str, given: Mapping[str, str]) -> str:
    """An expression in a kernel's parameters, with what it is given for them."""
    tree = expression_tree(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = given[node.id]  # an attribute's text is as good: it is only written down
    return ast.unparse(tree)


def grid(kernel: CleanKernel, given: Mapping[str, str]) -> str:
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


def _empty(node: ast.Call, device: str) -> ast.AST:
    shape, stride, dtype = (ast.unparse(a) for a in node.args)
    where = f"dtype={dtype}, device={device}"
    if _row_major(node.args[0], node.args[1]):
        return expression_tree(f"torch.empty({shape}, {where})")
    return expression_tree(f"torch.empty_strided({shape}, {stride}, {where})")


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
    node.func = expression_tree(f"torch.{name.removeprefix('bias_')}")
    return node


def _refuse_unknown(lines: list[str], names: Names) -> None:
    tree = syntax_tree("\n".join(line for line in lines if not line.startswith("return ")))
    given = {name for text in [*names.arguments, *names.symbols.values()] for name in loads(expression_tree(text))}
    constants = {k.parameter(key) for k in names.kernels.values() for key in k.defaults}
    known = _KNOWN | set(_stores(tree)) | given | constants | {k.name for k in names.kernels.values()}
    if unknown := set(loads(tree)) - known:
        raise CannotLower(f"the wrapper uses {', '.join(sorted(unknown))}, which only Inductor has")


# ---
# Breaks the long lines of generated Python at the commas of their last bracket. Text in, text out.

WIDTH = 110
_ONE_AXIS = re.compile(r"^(\s*\w+_kernel)\[(.+?),\]\(")


def wrapped(source: str) -> str:
    """The same program with lines of at most about WIDTH columns, where a bracket allows it."""
    return "\n".join(_wrapped(_ONE_AXIS.sub(r"\1[(\2,)](", line)) for line in source.split("\n"))


def _wrapped(line: str) -> str:
    text = line.strip()
    if len(line) <= WIDTH or not text.endswith((")", "):")):
        return line
    try:
        statement = syntax_tree(f"{text} pass" if text.endswith(":") else text).body[0]
    except SyntaxError:  # part of a longer statement
        return line
    parts, start = _arguments(statement, text)
    if len(parts) < 2:
        return line
    indent = " " * (len(line) - len(text))
    inside = " " * 4 + indent
    joined = ", ".join(part.replace(" ", "\0") for part in parts) + ","
    body = textwrap.wrap(joined, WIDTH - len(inside), break_long_words=False)
    closing = indent + ("):" if text.endswith(":") else ")")
    return "\n".join([indent + text[:start], *(inside + part.replace("\0", " ") for part in body), closing])


def _arguments(statement: ast.stmt, text: str) -> tuple[list[str], int]:
    """Return the arguments of a call or a definition that is the end of a statement of one line, `text`, and the column
    behind its bracket."""
    if isinstance(statement, ast.FunctionDef):
        return ast.unparse(statement.args).split(", "), len(f"def {statement.name}(")
    call = getattr(statement, "value", None)
    if not isinstance(call, ast.Call):
        return [], 0
    keywords = [f"{keyword.arg}={ast.unparse(keyword.value)}" for keyword in call.keywords if keyword.arg]
    parts = [*map(ast.unparse, call.args), *keywords]
    complete = len(keywords) == len(call.keywords)
    called = text.encode()[: call.func.end_col_offset].decode()  # columns count bytes; brackets around it lie outside
    return (parts if complete else []), text.index("(", len(called)) + 1


# ---
# The candidate file.

_MOST_OF_A_NAME = 40
_MOST_NAMED = 4  # kernels in a sentence
MOST_OF_STATE = 4  # parameters that a forward looks at before it runs; a few tell constructors apart
_LIMITS = {"XBLOCK": 4096, "YBLOCK": 1024, "ZBLOCK": 1024, "R0_BLOCK": 16384}
_HEADER = '''"""{formula}{task}: the kernels that TorchInductor writes, made self-contained{scope}.

{does}

Launch parameters are the constants below.
"""'''
_VIEW = '''def view(tensor, size, stride, offset=0):
    """The same memory with another shape."""
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)'''


@dataclass(frozen=True)
class _Forward:
    """One lowering as a method of `arguments`: when it applies, what it does, and the kernels it launches. `shapes`: of
    what the model holds and is given, as lowered, by its text."""

    name: str
    arguments: list[str]
    when: list[str]
    body: list[str]
    kernels: dict[str, CleanKernel]
    facts: LoweringFacts
    shapes: dict[str, tuple[int, ...]]


def clean(
    task: str, source: str, lowered: Sequence[LoweredCode], name: str = "inductor", products: Sketch | None = None
) -> Sketch:
    """A candidate from one or more lowerings of a task. With `products` the functions of that expert take the places of
    library products. Raises CannotLower if more than Triton and ATen is needed, NoKernel if none is left to write."""
    statements, model, parameters = model_parts(source)
    is_recurrent = any(f".{RECURRENT}.default(" in code.text for code in lowered)
    steps = recurrent_layers() if is_recurrent else None
    functions = [sketch for sketch in (products, steps) if sketch]
    taken = {name for sketch in functions for name in re.findall(r"(?m)^def (\w+)", sketch.source)}
    forwards = [_forward(task, i, code, parameters, taken) for i, code in enumerate(lowered)]
    kernels = [k for f in forwards for k in f.kernels.values()]
    made = [_with_products(forward) if products else set() for forward in forwards]
    if products and not made[0]:
        raise NoKernel("no library product to take the place of")
    if all(uses <= {RECURRENT} for uses in made):
        functions = [steps] if steps else []
    if not forwards[0].kernels and not functions:
        called = library_calls(lowered[0].text)
        why = f"TorchInductor makes only library calls ({called})" if called else "forward makes nothing but views"
        raise NoKernel(f"{why}: there is no kernel to start from")
    scope = "" if any(f.facts.symbols for f in forwards) else "; specialised to the shapes in `forward`"
    parts = [
        _HEADER.format(
            task=task,
            scope=scope,
            does=_does(forwards[0]),
            formula=f"{_formula(forwards[0].facts)}\n\n" if forwards[0].facts.algebraic else "",
        ),
        _imports(statements, kernels, lowered),
        *(s for s in statements if not s.startswith(("import ", "from "))),
    ]
    own = [*(k.text for k in kernels), *(sketch.source for sketch in functions)]
    parts += [_constants(kernels), *_helpers(lowered, own), *own]
    if any("view(" in line for f in forwards for line in f.body):
        parts.append(_VIEW)
    parts.append(_model(model, parameters, forwards))
    main = forwards[0].kernels.values()
    params = {k.parameter(key): value for k in main for key, value in k.defaults.items()}
    space = {k.parameter(key): values for k in main for key, values in _space(k).items()}
    says = _says(forwards[0], made[0], functions)
    if steps:
        params, space = params | steps.params, space | dict(steps.space)
    if products:
        searched = {key: values for key, values in products.space.items() if _use(key) in made[0]}
        params, space = params | {key: products.params[key] for key in searched}, searched | space
    text = wrapped("\n\n\n".join(p.strip("\n") for p in parts if p)) + "\n"
    starts = tuple(_starts(list(main))) if main else ()
    return Sketch(name, text, says, params, space, starts, tuple(lowered[0].facts.algebraic))


PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")  # an expert has `split_mm` for `torch.mm`
_PRODUCTS = re.compile(rf"torch\.({'|'.join(PRODUCTS)})\b")


_USES = ("CONV_", "DIRECT_")  # of parameters: for convolutions by tensor cores, for direct ones; others for products
_FEWEST = 16  # rows, columns or terms of a product for tensor cores
_GIVEN, _SCALES = ("transposed", "groups", "stride"), ("alpha", "beta")
_SIZED = {"torch.empty": 0, "torch.empty_strided": 0, "view": 1}  # which argument the sizes are


def _use(parameter: str) -> str:
    return next((use for use in _USES if parameter.startswith(use)), "")


def _with_products(forward: _Forward) -> set[str]:
    """Calls the expert's functions in the lines of a forward; which parameters these have a use for. What a library
    does better stays a library call. A weight that is multiplied by is named, since what is made of it can be kept."""
    uses, shapes, body = set(), dict(forward.shapes), syntax_tree("\n".join(forward.body)).body
    for statement in body:
        for node in (n for n in ast.walk(statement) if isinstance(n, ast.Call)):
            called = _PRODUCTS.fullmatch(ast.unparse(node.func))
            if called and (use := _use_of(called[1], node, shapes)) is not None:
                uses.add(use)
                _call_expert(called[1], node, is_direct=use == "DIRECT_")
            elif ast.unparse(node.func) == RECURRENT:
                node.keywords.append(ast.keyword("split", expression_tree("True")))
                uses.add(RECURRENT)
        if assigned := _single(statement):
            shapes[assigned[0]] = _shape(assigned[1], shapes)
    forward.body[:] = [line for statement in body for line in ast.unparse(statement).splitlines()]
    return uses


def _use_of(product: str, call: ast.Call, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Which parameters of the expert a library product has a use for; None where it is left to the library. Of sizes
    that are not known, as if there were many."""
    if product == "convolution":
        shape = _shape(call.args[1], shapes)
        given = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg in _GIVEN}
        return _convolution_use(shape, given["transposed"], given["groups"], given["stride"]) if shape else "CONV_"
    sizes = [size for operand in call.args[-2:] for size in _shape(operand, shapes)[-2:]]
    is_scaled = any(k.arg in _SCALES and ast.unparse(k.value) not in ("1", "1.0") for k in call.keywords)
    return None if is_scaled or min(sizes, default=_FEWEST) < _FEWEST else ""


def _convolution_use(weight: tuple[int, ...], transposed: bool, groups: int, stride: tuple[int, ...]) -> str | None:
    """By what is measured (`experts/split_products.py`): depthwise ones with a stride are cuDNN's (5 x 5 takes 1,431
    us, directly 2,857), and what is too little for tensor cores is summed directly (3 channels to 16, 4 x 4 x 4: 4,079
    us, by tensor cores 8,310)."""
    c, each = (weight[0] // groups, weight[1]) if transposed else (weight[1], weight[0] // groups)
    is_strided, taps = max(stride) > 1, math.prod(weight[2:])
    if c == 1 and is_strided and not transposed:
        return None
    is_little = (c <= 16 and c * taps <= 81) or (c < 8 and each <= 16)
    is_direct = c == 1 or is_little or (each <= 8 and not (transposed and is_strided))
    return "DIRECT_" if is_direct else "CONV_"


def _shape(node: ast.expr, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Of a tensor in a forward's text, as far as that says it; () where it does not."""
    if isinstance(node, ast.Call) and (at := _SIZED.get(ast.unparse(node.func))) is not None:
        sizes = node.args[at]
        is_known = isinstance(sizes, ast.Tuple) and all(isinstance(size, ast.Constant) for size in sizes.elts)
        return ast.literal_eval(sizes) if is_known else ()
    return shapes.get(ast.unparse(node).removesuffix(".contiguous()"), ())


def _call_expert(product: str, call: ast.Call, *, is_direct: bool) -> None:
    call.func = expression_tree(f"split_{product}")
    call.keywords = [keyword for keyword in call.keywords if keyword.arg not in _SCALES]
    if is_direct:
        call.keywords.append(ast.keyword("directly", expression_tree("True")))
    if product in ("mm", "addmm") and set(loads(weight := call.args[-1])) <= {"self", "view"}:
        call.keywords.append(ast.keyword("keep", expression_tree(f"(self, {ast.unparse(weight)!r})")))


def _does(forward: _Forward) -> str:
    """The steps of the first forward, in words: what is fused where, and what is left to torch."""
    steps = []
    for line in forward.body:
        if kernel := next((k for k in forward.kernels.values() if line.startswith(f"{k.name}[")), None):
            steps.append(f"{kernel.name}: {kernel.says}")
        elif product := re.search(r"\b(split_\w+)\(", line):
            how = "in float32, directly" if "directly=True" in line else "a product of float32 as three of float16"
            steps.append(f"{product[1]}: {how}")
        elif f" {RECURRENT}(" in line:
            how = "in one launch where they fit, by products of three" if "split=True" in line else "a launch each"
            steps.append(f"{RECURRENT}: the steps of recurrent layers, {how}")
        elif library := re.search(r"\btorch\.((?:ops\.)?(?!empty|float|int|bfloat|uint|bool|as_)[\w.]+)\(", line):
            steps.append(f"torch.{library[1]}: a library call")
    lines = [textwrap.wrap(f"{n}. {step}", 110, subsequent_indent="   ") for n, step in enumerate(steps, 1)]
    return "\n".join(line for wrapped_step in lines for line in wrapped_step)


def _says(forward: _Forward, uses: set[str], functions: Sequence[Sketch]) -> str:
    """The idea, for a person: what was rewritten, what the experts' functions do, and what is left to TorchInductor."""
    phrases = [_formula(forward.facts)] if forward.facts.algebraic else []
    phrases += [sketch.says for sketch in functions if sketch.name != "split_products" or uses != {"DIRECT_"}]
    phrases += ["convolutions of few channels directly"] if "DIRECT_" in uses else []
    names = [kernel.name for kernel in forward.kernels.values()]
    if names:
        scope = "any shape" if forward.facts.symbols else "specialised to the timed shape"
        named = ", ".join([*names[:_MOST_NAMED], *([f"{len(names) - _MOST_NAMED} more"] * (len(names) > _MOST_NAMED))])
        phrases.append(f"{'the rest by ' if functions else ''}TorchInductor's own kernels, {scope}: {named}")
    return "; ".join(phrases)


def _formula(facts: LoweringFacts) -> str:
    return f"algebraic: {', '.join(facts.algebraic)}"


def _forward(task: str, number: int, code: LoweredCode, parameters: ast.arguments, taken: set[str]) -> _Forward:
    facts = code.facts
    given_names = _names(parameters)[1:]
    arguments = [_renamed(name, given_names) for name in given_names]
    leaves = _leaf_texts(arguments, facts.inputs)
    if not leaves:
        raise CannotLower("forward takes no tensor")
    tensors = [*map(_state_text, facts.state), *leaves]
    sizes = {symbol: _state_text(path) for path, symbol in facts.sizes.items()}
    symbols = {s: f"{tensors[i]}.shape[{d}]" for s, (i, d) in facts.symbols.items()} | sizes
    name = f"forward_any_{number}" if facts.symbols else f"forward_case_{number}"
    given = [*tensors, *sizes.values()]
    roles = _roles(task, name if number else "", code, given, symbols)
    kernels = {old: clean_kernel(old, its, facts.kernels[old], taken, roles[old]) for old, its in code.kernels.items()}
    names = Names(given, symbols, kernels, f"{leaves[0]}.device")
    body = [*_contiguous(arguments, leaves, facts), *forward_body(code.text, names, facts.outputs)]
    shapes = {text: shape for text, (shape, _) in zip(tensors, facts.own, strict=True)}
    return _Forward(name, arguments, _condition(facts, parameters), body, kernels, facts, shapes)


def _names(parameters: ast.arguments) -> list[str]:
    """What a forward calls the arguments that have a place, itself first."""
    return [a.arg for a in [*parameters.posonlyargs, *parameters.args]]


# what Inductor's code and ours call things where a forward's arguments are called something, too
_TAKEN = re.compile(r"(buf|arg|primals_|ps|s|u|stream)\d+(_\d+)?|view|split_\w+|\w+_kernel")


def _renamed(name: str, others: Sequence[str]) -> str:
    """How an argument is called beside Inductor's names."""
    if not _TAKEN.fullmatch(name) and name not in _KNOWN:
        return name
    return next(new for count in range(1, len(others) + 2) if (new := name + "_" * count) not in others)


def _roles(
    task: str, forward: str, code: LoweredCode, arguments: list[str], symbols: dict[str, str]
) -> dict[str, Role]:
    """What each kernel does. One that does all the work is called after the task, and parameters are called after what
    they are given. `forward`: the method, unless it is the first."""
    given, fused = launches(code.text, arguments), fused_operators(code.text)
    alone = len(code.kernels) == 1 and "extern_kernels." not in code.text
    stem = re.sub(r"\W+|^\d+_", "", task).strip("_").lower()[:_MOST_OF_A_NAME] if alone else ""
    order = {name: index for index, name in enumerate(code.facts.operators)}
    roles = {}
    for kernel, source in code.kernels.items():
        pairs = zip(runtime_parameters(source, kernel), given.get(kernel, ()), strict=False)
        names = {old: _parameter(old, value, symbols) for old, value in pairs}
        operators = sorted(fused.get(kernel, ()), key=lambda name: order.get(name, len(order)))
        renamed = {old: new for old, new in names.items() if new != old}
        roles[kernel] = Role(operators, stem, forward.removeprefix("forward"), renamed)
    return roles


def _parameter(old: str, given: str, symbols: dict[str, str]) -> str:
    """`in_ptr0` given `self.norm.weight` -> `weight_ptr`, `ks0` given the symbol of `x.shape[1]` -> `x_size1`."""
    text = symbols.get(given, given)
    if size := re.fullmatch(r"([\w.]+)\.shape\[(\d+)\]", text):
        text = f"{size[1]}_size{size[2]}"
    word = text.rpartition(".")[2]
    if not word.isidentifier() or old.endswith("numel"):
        return old
    return f"{word}_ptr" if "ptr" in old else word


def _leaf_texts(arguments: list[str], inputs: list[Json]) -> list[str]:
    """How the forward reaches each tensor: `x`, `pair[0]`, `batch['mask']`."""
    pairs = zip(arguments, inputs, strict=False)
    return [text for name, tree in pairs for text, leaf in _leaves(tree, name) if isinstance(leaf, dict)]


def _leaves(tree: Json, text: str) -> Iterator[tuple[str, Json]]:
    """Each leaf of an input, {"$i": n} or a value as Python text, and how the forward reaches it."""
    if isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _leaves(value, f"{text}[{index}]")
    elif isinstance(tree, dict) and "$i" not in tree:
        for key, value in tree["$dict"].items():
            yield from _leaves(value, f"{text}[{key!r}]")
    else:
        yield text, tree


def _state_text(path: str) -> str:
    text = "self"
    for part in path.split("."):
        if part.isdigit():
            text += f"[{part}]"
        else:  # a ModuleDict's keys may be anything
            text = f"{text}.{part}" if part.isidentifier() else f"getattr({text}, {part!r})"
    return text


def _contiguous(arguments: list[str], leaves: list[str], facts: LoweringFacts) -> list[str]:
    rows = [leaf for leaf, (_, _, stride) in zip(leaves, facts.tensors, strict=True) if stride is None]
    return [f"{leaf} = {leaf}.contiguous()" for leaf in rows if leaf in arguments]


def _condition(facts: LoweringFacts, parameters: ast.arguments) -> list[str]:
    """What has to hold for these kernels: dtypes, sizes, layouts, values and attributes that they were written for."""
    arguments = _names(parameters)[1:]
    leaves = _leaf_texts(arguments, facts.inputs)
    tensors = [*map(_state_text, facts.state), *leaves]
    symbols = {s: f"{tensors[i]}.shape[{d}]" for s, (i, d) in facts.symbols.items()}
    symbols |= {symbol: _state_text(path) for path, symbol in facts.sizes.items()}
    count, free = len(facts.state), set(facts.symbols.values())
    telling = [index for index, path in enumerate(facts.state) if path in facts.differs][:MOST_OF_STATE]
    dtypes: dict[str, list[str]] = {}
    shapes: dict[tuple[int, ...], list[str]] = {}
    tests = []
    for index in [*range(count, len(tensors)), *telling]:
        text, (shape, dtype) = tensors[index], facts.own[index]
        dtypes.setdefault(dtype, []).append(f"{text}.dtype")
        fixed = [d for d in range(len(shape)) if (index, d) not in free]
        if len(fixed) == len(shape):
            shapes.setdefault(shape, []).append(f"{text}.shape")
        else:
            tests += [f"{text}.dim() == {len(shape)}", *(f"{text}.shape[{d}] == {shape[d]}" for d in fixed)]
    alike = [" == ".join([*texts, f"torch.{dtype}"]) for dtype, texts in dtypes.items()]
    alike += [" == ".join([*texts, str(shape)]) for shape, texts in shapes.items()]
    baked = [f"{_state_text(path)} == {text}" for path, text in facts.baked.items()]
    guards = [_substitute(guard, symbols) for guard in facts.guards]
    layouts = _layouts(arguments, leaves, facts)
    return list(dict.fromkeys([*alike, *tests, *baked, *guards, *layouts, *_values(arguments, parameters, facts)]))


def _layouts(arguments: list[str], leaves: list[str], facts: LoweringFacts) -> list[str]:
    """Where tensors have to lie as they were lowered: those that `_contiguous` does not copy."""
    found = []
    for leaf, (_, _, stride) in zip(leaves, facts.tensors, strict=True):
        if stride is not None:
            found.append(f"{leaf}.stride() == {tuple(stride)}")
        elif leaf not in arguments:
            found.append(f"{leaf}.is_contiguous()")
    return found


def _values(arguments: list[str], parameters: ast.arguments, facts: LoweringFacts) -> list[str]:
    """What arguments that are no tensors have to be, those with a default that the lowered call left out, too."""
    pairs = zip(arguments, facts.inputs, strict=False)
    given = {path: leaf for name, tree in pairs for path, leaf in _leaves(tree, name) if isinstance(leaf, str)}
    defaults = dict(zip(arguments[::-1], parameters.defaults[::-1], strict=False))
    unsaid = {name: defaults.get(name) for name in arguments[len(facts.inputs) :]}
    unsaid |= {a.arg: value for a, value in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)}
    given |= {name: ast.unparse(value) for name, value in unsaid.items() if isinstance(value, ast.Constant)}
    return [f"{path} {'is' if text in ('None', 'True', 'False') else '=='} {text}" for path, text in given.items()]


def _substitute(text: str, symbols: dict[str, str]) -> str:
    class SymbolTexts(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return expression_tree(symbols[node.id]) if node.id in symbols else node

    tree = SymbolTexts().visit(expression_tree(text))
    alternatives = isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.Or)
    return f"({ast.unparse(tree)})" if alternatives else ast.unparse(tree)  # `and` stands before and after it


def _imports(statements: list[str], kernels: list[CleanKernel], lowered: Sequence[LoweredCode]) -> str:
    own = [s for s in statements if s.startswith(("import ", "from ")) and "__future__" not in s]
    lines = ["import torch", *own, "import triton", "import triton.language as tl"]
    texts = [*(k.text for k in kernels), *(clean_helper(t) for code in lowered for t in code.facts.helpers.values())]
    if any("libdevice." in text for text in texts):
        lines.append("from triton.language.extra import libdevice")
    return "\n".join(dict.fromkeys(lines))


def _constants(kernels: list[CleanKernel]) -> str:
    return "\n".join(f"{k.parameter(key)} = {value}" for k in kernels for key, value in k.defaults.items())


def _helpers(lowered: Sequence[LoweredCode], texts: Sequence[str]) -> list[str]:
    found = {name: clean_helper(text) for code in lowered for name, text in code.facts.helpers.items()}
    used = "\n".join([*found.values(), *texts])
    own = [text.rstrip() for name, text in OWN_MATH.items() if f"{name}(" in used]
    return [*own, *found.values()]


def _model(model: ast.ClassDef, parameters: ast.arguments, forwards: list[_Forward]) -> str:
    arguments = _names(parameters)
    lines = [ast.unparse(model)] if model.body else [f"class ModelNew({', '.join(map(ast.unparse, model.bases))}):"]
    lines.append(f"\n    def forward({_signature(parameters)}):")
    for forward in forwards:
        lines += [f"        if ({forward.when[0]}", *(f"                and {test}" for test in forward.when[1:])]
        lines[-1] += "):"
        lines.append(f"            return self.{forward.name}({', '.join(arguments[1:])})")
    shapes = ", ".join(f"tuple({leaf}.shape)" for leaf in _leaf_texts(arguments[1:], forwards[0].facts.inputs))
    lines.append(f'        raise NotImplementedError(f"no kernels for inputs of shape {{({shapes},)}} in this dtype")')
    for forward in forwards:
        lines.append(f"\n    def {forward.name}({', '.join([arguments[0], *forward.arguments])}):")
        lines.append(textwrap.indent("\n".join(forward.body), " " * 8))
    return "\n".join(lines)


def _signature(parameters: ast.arguments) -> str:
    copy = syntax_tree(f"def f({ast.unparse(parameters)}): pass").body[0]
    assert isinstance(copy, ast.FunctionDef)
    for argument in [*copy.args.posonlyargs, *copy.args.args, *copy.args.kwonlyargs]:
        argument.annotation = None
    return ast.unparse(copy.args)


def _space(kernel: CleanKernel) -> dict[str, tuple[int, ...]]:
    """Powers of two around Inductor's choice, and what else its heuristics would try."""
    space: dict[str, tuple[int, ...]] = {}
    for key, value in kernel.defaults.items():
        offered = {c[key] for c in kernel.facts.configs if key in c}
        if key == "num_stages":
            near = {1, 2, 3, 4} if "R0_BLOCK" in kernel.defaults else {value}  # only loops are pipelined
        elif key == "num_warps":
            near = {w for w in (value // 4, value // 2, value, value * 2, value * 4) if 1 <= w <= 32}
        else:
            limit = _LIMITS.get(key, value)
            near = {b for b in (value // 4, value // 2, value, value * 2, value * 4) if 1 <= b <= limit}
        space[key] = tuple(sorted(near | offered))
    return space


def _starts(kernels: Sequence[CleanKernel]) -> Iterator[dict[str, int]]:
    """What Inductor's heuristics would time beside the first choice: the second one of each kernel, the third, …"""
    for at in range(1, max(len(k.facts.configs) for k in kernels)):
        chosen = [(k, k.facts.configs[min(at, len(k.facts.configs) - 1)]) for k in kernels]
        yield {k.parameter(key): config.get(key, value) for k, config in chosen for key, value in k.defaults.items()}
