"""Python candidates around PTX: from a Triton candidate's plans, each kernel as the PTX that Triton made, or around a
text that came without host code. Pure."""

import ast
import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kerneltune.tools.languages.ptx.checks import followed_params
from kerneltune.tools.languages.ptx.ir import Address, Function, Module, Register, Variable, parse
from kerneltune.tools.languages.ptx.loader import entry_of
from kerneltune.tools.languages.ptx.readable import readable
from kerneltune.tools.schema.codec import Json, decode, literal, syntax_tree
from kerneltune.tools.schema.plan import (
    Aten,
    Kernel,
    Launch,
    LaunchArg,
    Plan,
    ScalarArg,
    Storage,
    TensorArg,
    TensorRef,
    base_name,
    tensor_refs,
)
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec, reached, row_major, tensors_of

# ---
# The host code: what a launch plan does, said in Python for the shapes of one case.

_FLOATS = {"f64": ("fp64",), "b64": ("fp64",), "f32": ("fp32",), "b32": ("fp32",), "f16": ("fp16",), "b16": ("fp16",)}
Launched = Callable[[Kernel], tuple[str, tuple[str, ...], int]]


class CannotSay(Exception):
    """A plan that no PTX candidate of this form can follow; the words say what stands in the way."""


@dataclass(frozen=True)
class ForwardSignature:
    """How forward is called: an expression for each input, its signature, and the arguments that pass them on."""

    inputs: tuple[str, ...]
    signature: str
    passed: str
    by_place: bool = False


def forward_of(source: str, model: str, count: int) -> ForwardSignature:
    """How the forward of a class is called with `count` inputs; by place where its arguments are not plain ones. Raises
    CannotSay for a source without that class."""
    try:
        tree = syntax_tree(source)
    except SyntaxError as error:
        raise CannotSay(f"the source is no Python: {error}") from error
    models = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == model]
    found = [f for m in models[-1:] for f in m.body if isinstance(f, ast.FunctionDef) and f.name == "forward"]
    if not models:
        raise CannotSay(f"the source defines no class {model}")
    arguments = found[-1].args if found else ast.arguments([], [], None, [], [], None, [])
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][1:]
    odd = arguments.vararg or arguments.kwonlyargs or arguments.kwarg or arguments.posonlyargs or not found
    if odd or arguments.defaults or len(names) != count:
        return ForwardSignature(tuple(f"inputs[{i}]" for i in range(count)), "self, *inputs", "*inputs", by_place=True)
    return ForwardSignature(tuple(names), ", ".join(["self", *names]), ", ".join(names))


def condition(case: CaseSpec, forward: ForwardSignature, states: Sequence[str]) -> str:
    """Whether a call is that case: its inputs, what the module was made with, the parameters that are used."""
    terms = [f"len(inputs) == {len(case.inputs)}"] if forward.by_place else []
    for name, tree in zip(forward.inputs, case.inputs, strict=True):
        terms += _terms(name, tree)
    if case.init_args:
        terms.append(f"self._made_with == {tuple_of([_literal(a) for a in case.init_args])}")
    for key in states:
        terms.append(_is(_state(key), case.state[key]))
    if len(" and ".join(terms)) <= 100:
        return " and ".join(terms)
    return "(\n    " + "\n    and ".join(terms) + "\n)"


def _terms(name: str, tree: Json) -> Iterator[str]:
    if isinstance(tree, dict) and "$tensor" in tree:
        yield _is(name, _spec(tree["$tensor"]))
    elif isinstance(tree, dict) and "$tuple" in tree:
        yield from _items(name, "tuple", tree["$tuple"])
    elif isinstance(tree, list):
        yield from _items(name, "list", tree)
    elif isinstance(tree, dict):
        inner = tree.get("$dict", tree)
        if any(str(key).startswith("$") for key in inner):
            raise CannotSay(f"an input that is no tensor, number, list or dict: {str(tree)[:80]}")
        yield f"isinstance({name}, dict) and list({name}) == {list(inner)!r}"
        for key, item in inner.items():
            yield from _terms(f"{name}[{key!r}]", item)
    elif tree is None or isinstance(tree, bool):
        yield f"{name} is {tree!r}"
    else:
        yield f"{name} == {_literal(tree)}"


def _items(name: str, kind: str, items: Sequence[Json]) -> Iterator[str]:
    yield f"isinstance({name}, {kind}) and len({name}) == {len(items)}"
    for i, item in enumerate(items):
        yield from _terms(f"{name}[{i}]", item)


def _spec(data: Json) -> TensorSpec:
    return data if isinstance(data, TensorSpec) else decode(TensorSpec, data)


def _is(name: str, spec: TensorSpec) -> str:
    stride = spec.stride if spec.stride is not None else row_major(spec.shape)
    return f"_is({name}, torch.{spec.dtype}, {tuple_of(spec.shape)}, {tuple_of(stride)})"


def _state(key: str) -> str:
    """A parameter by its key in the state_dict: self.linear.weight."""
    text = "self"
    for part in key.split("."):
        plain = part.isidentifier() and not keyword.iskeyword(part)
        text = f"{text}.{part}" if plain else f"getattr({text}, {part!r})"
    return text


def tuple_of(items: Sequence[object]) -> str:
    """(a, b) as Python writes it."""
    return f"({', '.join(map(str, items))}{',' if len(items) == 1 else ''})"


def _literal(value: Json) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return literal(value)
    if isinstance(value, dict) and "$float" in value:
        return literal(float(value["$float"]))
    if isinstance(value, dict) and set(value) == {"$tuple"}:
        return tuple_of([_literal(v) for v in value["$tuple"]])
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(v) for v in value)}]"
    raise CannotSay(f"a value that has no short Python: {str(value)[:80]}")


@dataclass
class Writer:
    """Says one plan in Python. `states`: keys of the parameters that it reads."""

    plan: Plan
    case: CaseSpec
    forward: ForwardSignature
    launched: Launched
    states: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._made: dict[int, tuple[str, TensorRef]] = {}  # storage -> its variable, as it was made
        self._taken = {*self.forward.inputs, "self", "torch"}
        self._outputs = {ref.storage for ref in tensor_refs(self.plan.outputs)}

    def body(self) -> list[str]:
        """Return the lines of the body of forward; the last returns its outputs. Raises CannotSay."""
        self._refuse()
        lines: list[str] = []
        for step in self.plan.run:
            lines.append(self._launch(step) if isinstance(step, Launch) else self._aten(step))
        return [*lines, f"return {self._tree(self.plan.outputs)}"]

    def _refuse(self) -> None:
        if self.plan.prepare:
            raise CannotSay("the candidate prepares something before its first forward, which this form cannot keep")
        for storage in self.plan.storages:
            if storage.origin in ("constant", "prepared"):
                raise CannotSay(f"the candidate holds {storage.origin} data of its own ({storage.nbytes} bytes)")
        if not self.plan.launches:
            raise CannotSay("the plan launches nothing")
        if self.plan.library_ops:
            raise CannotSay(f"library operators compute between the kernels: {', '.join(self.plan.library_ops[:5])}")

    def _aten(self, step: Aten) -> str:
        name, out = base_name(step.op), step.outs[0] if step.outs else None
        if name == "empty_strided" and out is not None:
            return self._allocated(out)
        if name in ("fill_", "copy_", "zero_") and (refs := list(tensor_refs(step.args[0]))):
            target = self._tensor(refs[0])
            if name == "zero_":
                return f"{target}.zero_()"
            others = list(tensor_refs(step.args[1]))
            value = self._tensor(others[0]) if others else _literal(step.args[1])
            return f"{target}.{name}({value})"
        raise CannotSay(f"the operator {step.op} stands between the kernels")

    def _allocated(self, out: TensorRef) -> str:
        name = self._new_name(out)
        self._made[out.storage] = (name, out)
        dtype = f"dtype=torch.{out.dtype}"
        device = f"device={device_of(self.forward.inputs, self.case)}"
        if out.stride == row_major(out.shape):
            return f"{name} = torch.empty({tuple_of(out.shape)}, {dtype}, {device})"
        return f"{name} = torch.empty_strided({tuple_of(out.shape)}, {tuple_of(out.stride)}, {dtype}, {device})"

    def _new_name(self, out: TensorRef) -> str:
        stem = "y" if out.storage in self._outputs else "scratch"
        name, number = stem, 1
        while name in self._taken:
            number += 1
            name = f"{stem}{number}"
        self._taken.add(name)
        return name

    def _launch(self, step: Launch) -> str:
        kernel = self.plan.kernels[step.kernel]
        name, types, shared_bytes = self.launched(kernel)
        arguments = [self._argument(a, t) for a, t in zip(step.args, types, strict=True)]
        if shared_bytes:
            arguments.append(f"shared_bytes={shared_bytes}")
        if step.cooperative:
            arguments.append("cooperative=True")
        if step.pdl:
            arguments.append("pdl=True")
        grid: tuple[int, ...] = step.grid
        while len(grid) > 1 and grid[-1] == 1:
            grid = grid[:-1]
        return f"{name}[{tuple_of(grid)}]({', '.join(arguments)})"

    def _argument(self, argument: LaunchArg, kind: str) -> str:
        if isinstance(argument, TensorArg):
            return self._pointer(argument.tensor)
        if isinstance(argument, ScalarArg):
            return _number(argument, kind)
        raise CannotSay("a tensor descriptor made by host code is passed")

    def _pointer(self, ref: TensorRef) -> str:
        """A tensor that begins where the kernel shall: the whole one where it begins there."""
        name, base = self._base(ref.storage)
        if ref.offset != base.offset or (ref.shape, ref.stride) == (base.shape, base.stride):
            return self._tensor(ref)
        return name

    def _tensor(self, ref: TensorRef) -> str:
        name, base = self._base(ref.storage)
        if (ref.dtype, ref.shape, ref.stride, ref.offset) == (base.dtype, base.shape, base.stride, base.offset):
            return name
        if (ref.shape, ref.stride, ref.offset) == (base.shape, base.stride, base.offset):
            return f"{name}.view(torch.{ref.dtype})"
        if ref.dtype != base.dtype:
            raise CannotSay(f"a tensor is read as {ref.dtype} that was made as {base.dtype}")
        return f"{name}.as_strided({tuple_of(ref.shape)}, {tuple_of(ref.stride)}, {ref.offset})"

    def _base(self, storage_id: int) -> tuple[str, TensorRef]:
        if storage_id not in self._made:
            self._made[storage_id] = self._given(self.plan.storage(storage_id))
        return self._made[storage_id]

    def _given(self, storage: Storage) -> tuple[str, TensorRef]:
        """An input or a parameter. Raises CannotSay for a storage that nobody made."""
        if storage.origin == "state" and storage.name in self.case.state:
            self.states.append(storage.name)
            return _state(storage.name), _ref(storage.id, self.case.state[storage.name])
        for number, (name, tree) in enumerate(zip(self.forward.inputs, self.case.inputs, strict=True)):
            for way, spec in tensors_of(tree):
                if storage.origin == "input" and ".".join(map(str, (number, *way))) == storage.name:
                    return reached(name, way), _ref(storage.id, spec)
        raise CannotSay(f"a tensor that no input, parameter or allocation explains ({storage.origin} {storage.name})")

    def _tree(self, tree: Json) -> str:
        if isinstance(tree, dict) and "$tensor" in tree:
            return self._tensor(next(tensor_refs(tree)))
        if isinstance(tree, dict) and "$tuple" in tree:
            return tuple_of([self._tree(t) for t in tree["$tuple"]])
        if isinstance(tree, dict) and "$dict" in tree:
            return "{" + ", ".join(f"{k!r}: {self._tree(v)}" for k, v in tree["$dict"].items()) + "}"
        if isinstance(tree, list):
            return f"[{', '.join(self._tree(t) for t in tree)}]"
        return _literal(tree)


def _ref(storage: int, spec: TensorSpec) -> TensorRef:
    stride = spec.stride if spec.stride is not None else row_major(spec.shape)
    return TensorRef(storage, spec.dtype, tuple(spec.shape), tuple(stride))


def tensors_in(name: str, tree: Json) -> Iterator[tuple[str, TensorSpec]]:
    """Every tensor of an input or output, as Python says it, and what it is."""
    return ((reached(name, way), spec) for way, spec in tensors_of(tree))


def device_of(inputs: Sequence[str], case: CaseSpec) -> str:
    """The device of the first tensor that is passed, or of a parameter."""
    for name, tree in zip(inputs, case.inputs, strict=True):
        for path, _ in tensors_in(name, tree):
            return f"{path}.device"
    return f"{_state(next(iter(case.state)))}.device" if case.state else '"cuda"'


def _number(argument: ScalarArg, kind: str) -> str:
    """A number as the loader takes it for a parameter of that type: floats for floats, else whole numbers."""
    if not argument.type.startswith(("fp", "bf")):
        return str(int(argument.value))
    if argument.type not in _FLOATS.get(kind, ()):
        raise CannotSay(f"a {argument.type} number is passed as .{kind}")
    return _literal(float(argument.value))


# ---
# A whole candidate from plans.

MOST_MORE_BYTES = 40_000  # of Triton's text; it becomes half as long
_ARGUMENT = re.compile(r"%(\w+): [^%]*?(?=, %|$)")
_LOCATION = re.compile(r'loc\("(\w+)"')
_IMPORTS = ("import torch", "from kerneltune import PtxKernel")

_INTRODUCTION = """

# The kernels of the class above as PTX, for the shapes that its forward below names. All other shapes go the way above.
"""
_IS = '''

def _is(x, dtype, shape, stride):
    """Whether x is as the PTX takes it for granted, which counts on addresses that 16 divides too."""
    same = isinstance(x, torch.Tensor) and x.dtype == dtype and tuple(x.shape) == shape and x.stride() == stride
    return same and x.data_ptr() % 16 == 0
'''


def ptx_candidate(
    source: str,
    plans: Mapping[str, Plan],
    ptx: Mapping[str, str],
    *,
    cases: Sequence[CaseSpec],
    shared_bytes: Mapping[str, int] | None = None,
) -> str:
    """One Python file: `source`, then a ModelNew over its ModelNew that launches PTX for exactly the traced shapes.

    `plans`: by case, those that may be told to an author (never held-out ones), the best variant of each; those of a
    task's `cases`, whose inputs tell the shapes apart. `ptx`: Triton's text by Kernel.sha256. `shared_bytes`: dynamic
    shared memory by Kernel.sha256 (Compiled.metadata["shared"]), which PTX does not say; needed for kernels whose text
    declares `.extern .shared`. Other shapes go the Triton way. Raises CannotSay, and PtxError for text that is no PTX.
    """
    known = {case.name: case for case in cases}
    kernels = _Kernels(source, ptx, shared_bytes or {})
    forward = forward_of(source, "ModelNew", max((len(known[name].inputs) for name in plans), default=0))
    branches = [_branch(plans[name], known[name], forward, kernels) for name in plans]
    if not branches:
        raise CannotSay("there is no plan to say in PTX")
    made_with = any(known[name].init_args for name in plans)
    head = [line for line in _IMPORTS if line not in source.splitlines()]
    parts = [source.rstrip(), _INTRODUCTION.rstrip(), *head, *kernels.written, _IS.rstrip(), "", ""]
    return "\n".join([*parts, *_model(forward, branches, made_with=made_with)]) + "\n"


def short(plans: Mapping[str, Plan], ptx: Mapping[str, str]) -> dict[str, Plan]:
    """The first case's plan, those that launch nothing else, and others as long as their texts are short: whoever goes
    on from the candidate reads all of it."""
    chosen: dict[str, Plan] = {}
    kernels: set[str] = set()
    room = MOST_MORE_BYTES
    for name, plan in plans.items():
        new = {k.sha256 for k in plan.kernels} - kernels
        nbytes = sum(len(ptx[sha256].partition("\t.file")[0]) for sha256 in new) if chosen else 0
        if nbytes <= room:
            chosen[name], kernels, room = plan, kernels | new, room - nbytes
    return chosen


def argument_names(kernel: Kernel) -> list[str] | None:
    """What the source calls the arguments that are passed, from Triton's IR; None where that cannot be read."""
    if kernel.language != "ttir":
        return None
    head = re.search(rf"tt\.func public @{re.escape(kernel.name)}\((.*?)\) (?:attributes|\{{)", kernel.text)
    if head is None:
        return None
    names = []
    for argument in _ARGUMENT.finditer(head[1]):
        location = _LOCATION.search(argument[0])
        names.append(location[1] if location else argument[1])
    return names if len(names) == len(kernel.signature) else None


def _branch(plan: Plan, case: CaseSpec, forward: ForwardSignature, kernels: "_Kernels") -> list[str]:
    """The lines of one case: a condition and what it does."""
    writer = Writer(plan, case, forward, kernels.launched)
    body = writer.body()
    return [f"if {condition(case, forward, writer.states)}:", *(f"    {line}" for line in body)]


def _model(forward: ForwardSignature, branches: Sequence[Sequence[str]], *, made_with: bool) -> Iterator[str]:
    yield "class ModelNew(ModelNew):"
    if made_with:
        yield "    def __init__(self, *made_with):"
        yield "        super().__init__(*made_with)"
        yield "        self._made_with = made_with"
        yield ""
    yield f"    def forward({forward.signature}):"
    for branch in branches:
        yield from (f"        {line}" for line in branch)
    yield f"        return super().forward({forward.passed})"


@dataclass
class _Kernels:
    """The PTX texts of a candidate, each written once."""

    source: str
    ptx: Mapping[str, str]
    shared_bytes: Mapping[str, int]
    written: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)  # PTX text -> the name of its kernel

    def launched(self, kernel: Kernel) -> tuple[str, tuple[str, ...], int]:
        """The name of the PtxKernel, the types of its parameters, and the shared memory that it is launched with."""
        text = self.ptx.get(kernel.sha256)
        if text is None:
            raise CannotSay(f"there is no PTX of kernel {kernel.name!r}")
        if kernel.options.get("num_ctas", 1) != 1:
            raise CannotSay(f"kernel {kernel.name!r} runs in clusters (num_ctas {kernel.options['num_ctas']})")
        if kernel.options.get("enable_fp_fusion", True) is not True:
            raise CannotSay(f"kernel {kernel.name!r} must not fuse products and sums (enable_fp_fusion)")
        names = argument_names(kernel) or [f"x{i}" for i in range(len(kernel.signature))]
        plain = readable(text, names=names, source=self.source)
        (entry,) = parse(plain).entries[:1]
        if len(entry.params) > len(kernel.signature):
            raise CannotSay(f"kernel {kernel.name!r} needs memory that Triton sets aside for a launch (scratch)")
        types = tuple(p.type for p in entry.params)
        return self._named(kernel.name, plain), types, self._shared(kernel, plain)

    def _shared(self, kernel: Kernel, text: str) -> int:
        if not any(v.extern and v.space == "shared" for v in parse(text).variables):
            return 0
        if kernel.sha256 not in self.shared_bytes:
            raise CannotSay(f"how much shared memory kernel {kernel.name!r} is launched with is not known")
        return self.shared_bytes[kernel.sha256]

    def _named(self, name: str, text: str) -> str:
        if text not in self._names:
            stem = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or "kernel"
            taken = set(self._names.values())
            called = next(n for n in _numbered(f"{stem}_ptx") if n not in taken and n not in self.source)
            self._names[text] = called
            self.written.append(f'\n{called} = PtxKernel(r"""\n{_quoted(text)}""")')
        return self._names[text]


def _quoted(text: str) -> str:
    """PTX as it may stand between three quotes: comments quote lines of Python."""
    return text.replace('"""', "'''")


def _numbered(name: str) -> Iterator[str]:
    yield name if not keyword.iskeyword(name) else f"{name}_"
    number = 2
    while True:
        yield f"{name}_{number}"
        number += 1


# ---
# A candidate around a bare text: which argument is what is guessed, and marked LOOK.

LOOK = "# LOOK: "
_ROWS = re.compile(r"^(n_?|num_?)?(rows?|m|batch|b)(_\w+)?$", re.IGNORECASE)
_ALL = re.compile(r"^(n_?|num_?)?(elements?|elems?|numel|total|size)$", re.IGNORECASE)
_DEFAULT_BLOCK = 256


def guessed_candidate(ptx: str, task: TaskSpec, name: str) -> str:
    """A Python file that launches the only entry of a PTX text for a task. `name`: of the file that the text is from.
    Pointers are taken to be the inputs of forward, then the parameters, then what is returned, which those are that the
    kernel stores to; numbers are taken to be sizes. Raises PtxError and PtxLaunchError."""
    module = parse(ptx)
    entry = entry_of(module, None)
    forward = forward_of(task.source, "Model", len(task.main.inputs))
    lines = [
        f'"""{_one_line(name)}, with host code that was guessed from its parameters: see the lines that say LOOK."""',
        "",
        *_imports(task),
        "",
        f'{_called(entry)} = PtxKernel(r"""\n{ptx.strip().replace(chr(34) * 3, "")}\n""")',
        "",
        "",
        f"class ModelNew({'Model' if task.main.state else 'nn.Module'}):",
        f"    def forward({forward.signature}):",
        *(
            f"        {line}"
            for line in _GuessedForward(module, entry, _pointers(entry), task.main, forward.inputs).lines()
        ),
    ]
    return "\n".join(lines) + "\n"


def _imports(task: TaskSpec) -> Iterator[str]:
    yield from ("import torch", "from torch import nn", "", "from kerneltune import PtxKernel")
    if not task.main.state:
        return
    yield from ("", "", "# The task's module, for its parameters.")
    tree = syntax_tree(task.source)
    for node in tree.body:
        is_constant = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        is_needed = isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef) or is_constant
        if is_needed and getattr(node, "name", "") not in ("get_inputs", "get_init_inputs"):
            yield ast.get_source_segment(task.source, node) or ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from ("", "", ast.get_source_segment(task.source, node) or "", "")


def _called(entry: Function) -> str:
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', entry.name).strip('_') or 'kernel'}_ptx"


def _one_line(name: str) -> str:
    return "".join(c if c.isprintable() and c not in '"\\' else "?" for c in name)[:80]


@dataclass(frozen=True)
class _Pointers:
    """Names of the parameters that are addresses; of those that the kernel stores to."""

    all: frozenset[str]
    stored: frozenset[str]


def _pointers(entry: Function) -> _Pointers:
    """Return the pointers, by their declarations and by the addresses that are made of them."""
    origins = followed_params(entry)
    used: set[str] = set()
    stored: set[str] = set()
    for instruction in entry.instructions:
        for at, operand in enumerate(instruction.operands):
            if isinstance(operand, Address) and isinstance(operand.base, Register) and operand.base.name in origins:
                used.add(origins[operand.base.name])
                if instruction.opcode == "atom" or (at == 0 and instruction.opcode in ("st", "red", "cp")):
                    stored.add(origins[operand.base.name])
    wide = {p.name for p in entry.params if p.type in ("u64", "b64", "s64") and (p.ptr or p.name in used)}
    return _Pointers(frozenset(wide), frozenset(stored & wide))


@dataclass
class _GuessedForward:
    """Writes the body of a guessed forward."""

    module: Module
    entry: Function
    pointers: _Pointers
    case: CaseSpec
    inputs: Sequence[str]

    def lines(self) -> Iterator[str]:
        given = [p for n, t in zip(self.inputs, self.case.inputs, strict=True) for p, _ in tensors_in(n, t)]
        given += [f"self.{key}" for key in self.case.state]
        outputs = self._outputs()
        for name, made in outputs:
            yield f"{name} = {made}"
        passed = self._passed(given, [name for name, _ in outputs])
        yield f"{LOOK}what each parameter of the kernel is given, in its order"
        yield "arguments = ("
        for param, value, why in passed:
            yield f"    {value},  # {param.name}, .{param.type}: {why}"
        yield ")"
        yield f"{LOOK}how many blocks there are; threads of one, bytes of shared memory, where they are said here"
        yield f"{_called(self.entry)}[{self._grid(given)}](*arguments{self._options()})"
        names = [name for name, _ in outputs]
        tree = self.case.outputs
        many = isinstance(tree, list) or (isinstance(tree, dict) and "$tuple" in tree)
        yield f"return {tuple_of(names) if many else ', '.join(names)}"

    def _outputs(self) -> list[tuple[str, str]]:
        specs = [spec for _, spec in tensors_in("", self.case.outputs)]
        shapes = {
            path: spec for n, t in zip(self.inputs, self.case.inputs, strict=True) for path, spec in tensors_in(n, t)
        }
        found = []
        for i, spec in enumerate(specs):
            like = next((p for p, s in shapes.items() if (s.shape, s.dtype) == (spec.shape, spec.dtype)), None)
            name = "y" if len(specs) == 1 else f"y{i}"
            name = f"{name}_out" if name in self.inputs else name
            if like is not None and shapes[like].stride in (None, row_major(spec.shape)):
                found.append((name, f"torch.empty_like({like})"))
            else:
                device = device_of(self.inputs, self.case)
                made = f"torch.empty({tuple_of(spec.shape)}, dtype=torch.{spec.dtype}, device={device})"
                found.append((name, f"{made}  {LOOK}the shape of one case"))
        return found

    def _passed(self, given: Sequence[str], outputs: Sequence[str]) -> Iterator[tuple[Variable, str, str]]:
        reads, writes = list(given), list(outputs)
        for param in self.entry.params:
            if param.name in self.pointers.all:
                first, second = (writes, reads) if param.name in self.pointers.stored else (reads, writes)
                value = first.pop(0) if first else second.pop(0) if second else "None"
                yield param, value, "stored to" if param.name in self.pointers.stored else "read"
            elif param.type.startswith("f"):
                yield param, "1.0", "a guess: nothing says what this number is"
            else:
                yield param, *self._size(param.name, given)

    def _size(self, name: str, given: Sequence[str]) -> tuple[str, str]:
        if not given:
            return "1", "a guess: nothing says what this number is"
        first = given[0]
        if _ALL.match(name) or len(self._shape()) < 2:
            return f"{first}.numel()", "how many elements there are"
        if _ROWS.match(name):
            return f"{first}.shape[0]", "how many rows there are"
        return f"{first}.shape[-1]", "how long a row is"

    def _shape(self) -> tuple[int, ...]:
        return next((spec.shape for tree in self.case.inputs for _, spec in tensors_in("", tree)), ())

    def _threads(self) -> int:
        threads = 1
        for size in self.entry.directives.get("reqntid", (_DEFAULT_BLOCK,)):
            threads *= size
        return threads

    def _grid(self, given: Sequence[str]) -> str:
        sizes = [self._size(p.name, given)[0] for p in self.entry.params if p.name not in self.pointers.all]
        if not given:
            return "(1,)"
        by_rows = any(".shape" in size for size in sizes) or (not sizes and len(self._shape()) > 1)
        return f"({given[0]}.shape[0],)" if by_rows else f"(-(-{given[0]}.numel() // {self._threads()}),)"

    def _options(self) -> str:
        block = "" if "reqntid" in self.entry.directives else f", block={_DEFAULT_BLOCK}"
        dynamic = any(v.extern and v.space == "shared" for v in self.module.variables)
        return f"{block}{', shared_bytes=1024' if dynamic else ''}"
