"""The host code of a PTX candidate: what a launch plan does, said in Python for the shapes of one case. Pure."""

import ast
import keyword
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kerneltune.tools.schema.codec import Json, decode
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
from kerneltune.tools.schema.task import CaseSpec, TensorSpec

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
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
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


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous tensor."""
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


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
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, dict) and "$float" in value:
        return f'float("{value["$float"]}")'
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
            for path, text, spec in _leaves(str(number), name, tree):
                if storage.origin == "input" and path == storage.name:
                    return text, _ref(storage.id, spec)
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


def _leaves(path: str, text: str, tree: Json) -> Iterator[tuple[str, str, TensorSpec]]:
    """Every tensor of an input: its path as plans name it, as Python says it, and what it is."""
    if isinstance(tree, dict) and "$tensor" in tree:
        yield path, text, _spec(tree["$tensor"])
        return
    inner = tree.get("$tuple", tree.get("$dict", tree)) if isinstance(tree, dict) else tree
    items = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list | tuple) else ()
    for key, item in items:
        yield from _leaves(f"{path}.{key}", f"{text}[{key!r}]", item)


def tensors_in(name: str, tree: Json) -> Iterator[tuple[str, TensorSpec]]:
    """Every tensor of an input or output, as Python says it, and what it is."""
    return ((text, spec) for _, text, spec in _leaves("", name, tree))


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
