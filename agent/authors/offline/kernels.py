"""Makes one of Inductor's Triton kernels self-contained and readable. Text in, text out; no torch."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.authors.offline.hoist import Hoist
from agent.authors.offline.module_source import loads
from agent.authors.offline.sketch import CannotLower
from agent.authors.offline.tidy import tidy
from agent.authors.offline.trailer import KernelFacts

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
    # Kahan: exact where 1 + x rounds
    u = 1.0 + x
    ratio = tl.where(u == 1.0, 1.0, x / tl.where(u == 1.0, 1.0, u - 1.0))
    return tl.where(u == float("inf"), u, tl.where(u == 1.0, x, tl.log(u) * ratio))
""",
    "expm1": """@triton.jit
def expm1(x):
    # Kahan: exact where exp(x) rounds to 1
    u = tl.exp(x)
    near = (u - 1.0) * x / tl.where((u == 1.0) | (u <= 0.0) | (x > 1.0), 1.0, tl.log(u))
    return tl.where(u == 1.0, x, tl.where((tl.abs(x) > 1.0), u - 1.0, near))
""",
}
_NAMES = {
    "native_layer_norm": "layer_norm", "native_group_norm": "group_norm", "native_batch_norm": "batch_norm",
    "prepare_softmax_online": "softmax", "nll_loss_forward": "nll_loss", "max_pool2d_with_indices": "max_pool2d",
    "low_memory_max_pool_with_offsets": "max_pool",
}  # fmt: skip
_WORDS = 6  # of a kernel's name
_KINDS = {"triton_poi_": "elements", "triton_per_": "rows", "triton_red_": "sums", "triton_spl_": "scan"}
_HOW = {
    "triton_poi_": "one pass over the elements",
    "triton_per_": "each row at once",
    "triton_red_": "each row in steps",
    "triton_spl_": "rows in parts, each of which waits for those before it",
}
_TRITON_CONSTEXPR = ast.Attribute(ast.Name("triton", ast.Load()), "constexpr_function", ast.Load())
_TL_CAST = ast.Attribute(ast.Name("tl", ast.Load()), "cast", ast.Load())
_NOISE = set("to copy view unsafe fused default t transpose permute unsqueeze expand clone".split())


@dataclass(frozen=True)
class Kernel:
    """A cleaned kernel: `runtime` names its original positional arguments, `kept` those it still takes; after them come
    those that the host computes from them, as Python."""

    name: str
    text: str
    runtime: tuple[str, ...]
    kept: tuple[str, ...]
    facts: KernelFacts
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
    function = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == kernel)
    return tuple(p.arg for p in function.args.args if p.annotation is None)


def clean_kernel(original: str, text: str, facts: KernelFacts, taken: set[str], role: Role) -> Kernel:
    """The kernel named `original` in Inductor's module text."""
    functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    function = next(f for f in functions if f.name == original)
    parameters = function.args.args
    runtime = runtime_parameters(text, original)
    function.decorator_list = [ast.parse("triton.jit", mode="eval").body]
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
    return Kernel(function.name, whole, runtime, kept, facts, defaults, says, computed)


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
        """No bounds checks: they cost, and what they check are the task's own indices."""
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
    return ast.unparse(ast.fix_missing_locations(Rewrite().visit(ast.parse(text))))


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
