"""How a verified kernel stands in for its reference. This text ends every packaged file, after its facts; nothing here
imports it.

The kernel runs for what was verified; whatever else comes goes to the reference, with one warning for each reason.
"""

import ast
import builtins
import contextlib
import copy
import fnmatch
import functools
import inspect
import itertools
import linecache
import operator
import os
import sys
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Spec(NamedTuple):
    """A tensor that was verified. A size of None is a batch dimension, within `lead` of its entry; `stride` counts
    elements, and is None for row-major. The kernel may read `slack` elements of its storage behind its last one; its
    address is a multiple of `alignment` bytes."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    stride: tuple[int, ...] | None = None
    slack: int = 0
    alignment: int = 16


class Entry(NamedTuple):
    """Cases that were verified and differ in their batch dimensions alone. `constants`: what the smallest of them
    replaces in its reference; `lead`: the smallest and the largest size of each batch dimension; `alters`: whether
    those constants reach more of the reference than its inputs; `kernel`: which one answers; `backward`: the inputs are
    those of a forward and the gradients of its outputs, and what comes out are the gradients of its floating inputs and
    of its parameters."""

    cases: str
    constants: dict[str, Any]
    init: list[Any]
    state: dict[str, Spec]
    inputs: list[Any]
    outputs: Any
    lead: tuple[tuple[int, int], ...] = ()
    alters: bool = False
    kernel: int = 0
    backward: bool = False


class PackagedKernel(NamedTuple):
    """A kernel, and the task that it was verified for. `folds`: whether the reference gives the same for more leading
    dimensions than were verified; `keeps`: whether the host code may keep something between calls; `launched`: kernels
    whose launches torch.compile can see; `saves`: of a kernel of a training step, the outputs that its ModelNew gives
    before the gradients. It has a method for each half: `save` and `gradients`."""

    folds: bool
    keeps: bool
    launched: tuple[str, ...]
    source: str
    reference: str
    saves: int = 0


class Given(NamedTuple):
    """A value that was verified for a parameter, and that must be given."""

    value: Any


INPUT = object()  # among parameters: a tensor, or a tree of them; a plain value is a default that was left as it is

# facts: the writer puts those of one kernel in the place of these
NAME = OP = "op"
ARCH = "sm_90"
PARAMETERS: dict[str, Any] = {}  # of the forward that the kernel stands in for
CALLED, CALLED_WITH = "", PARAMETERS  # the function of the reference that Model.forward calls and nothing else; its own
TOLERANCE = 0.0  # of `python FILE`: an error, as a share of the value and the root mean square of its output
VERIFIED: list[Entry] = []
KERNELS: list[PackagedKernel] = []
# end of facts

_HELD = "forward_model."  # before the names of a forward's state in the task of its gradients
_HAS_GRADIENT = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # dtypes that such a task asks for

_ATTRIBUTE = f"_packaged_{OP}"  # of a patched module
_NO_BACKWARD = (
    f"{NAME} has no verified backward: call it under torch.no_grad(), or package a kernel of `optimize --backward`"
)

# The two sources, each a module of its own: a name of one means nothing in the other ----------------------------------


def _module(name: str, source: str, constants: Mapping[str, Any] | None = None) -> Any:
    """Run a source, with other values for some of its constants. Tracebacks and Triton find its text."""
    file = f"{__file__}:{name}"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = types.ModuleType(f"{__name__}.{name}")
    sys.modules[module.__name__] = module  # where dataclasses look
    if "PackagedPtx" in globals():
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": _imported}
    tree = ast.parse(source, file)
    tree.body = [new for node in tree.body for new in (node, *_again(node, constants or {}))]
    exec(compile(ast.fix_missing_locations(tree), file, "exec"), vars(module))  # noqa: S102 - the text of this file
    return module


def _imported(name: str, *rest: Any) -> Any:
    """As `import` does, but that PTX is launched by what is in this file."""
    if name.partition(".")[0] in ("kerneltune", "tools"):
        return types.SimpleNamespace(PtxKernel=globals()["PackagedPtx"])
    return __import__(name, *rest)


def _again(node: ast.stmt, constants: Mapping[str, Any]) -> list[ast.stmt]:
    """What a statement gives values to, with those that count: in `M = N = 4` they share one."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return []
    stored = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return [ast.parse(f"{name} = {constants[name]!r}").body[0] for name in stored if name in constants]


def _new_kernel(number: int) -> Any:
    return _module(f"kernel{number or ''}", KERNELS[number].source)


@functools.cache
def _reference(number: int) -> Any:
    """The reference with the constants of an entry; that of -1 is the first, with its own."""
    constants, kernel = (VERIFIED[number].constants, VERIFIED[number].kernel) if number >= 0 else (None, 0)
    return _module(f"reference{number + 1 or ''}", KERNELS[kernel].reference, constants)


@contextlib.contextmanager
def _own_random(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Leave no trace in the caller's random numbers. Asks no GPU that is not meant: left to itself, fork_rng starts all
    of them, and a process that forks afterwards has none."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            if devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
        yield


def _made(made_by: Callable[..., nn.Module], arguments: Sequence[Any], device: Any) -> nn.Module:
    """A module on a device, made without a trace in the caller's random numbers."""
    with _own_random(torch.device(device)), torch.device(device):
        return made_by(*copy.deepcopy(arguments)).to(device).eval().requires_grad_(requires_grad=False)


def _paired(own: Mapping[str, Tensor], wanted: Mapping[str, Spec]) -> dict[str, str]:
    """A state's keys in the reference, and where a module has them: under the same name, else in order of equal
    shapes."""
    paired = {key: key for key, spec in wanted.items() if key in own and tuple(own[key].shape) == spec.shape}
    rest = [name for name in own if name not in paired]
    for key, spec in wanted.items():
        alike = [name for name in rest if tuple(own[name].shape) == spec.shape]
        if key not in paired and alike:
            paired[key] = alike[0]
            rest.remove(alike[0])
    return {key: paired[key] for key in wanted if key in paired}


# Trees of tensors, and whether they are what was verified -------------------------------------------------------------


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, list | tuple | dict) and not isinstance(tree, Spec):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)
    else:
        yield tree


def _specs(tree: Any) -> list[Spec]:
    return [leaf for leaf in _leaves(tree) if isinstance(leaf, Spec)]


def _tensors(tree: Any) -> list[Tensor]:
    return [tree] if type(tree) is Tensor else [leaf for leaf in _leaves(tree) if isinstance(leaf, Tensor)]


def _in_order(tree: Any, value: Any) -> list[Tensor]:
    """The tensors of a value in the order of a tree, whose keys it may have in another one."""
    if isinstance(tree, dict) and isinstance(value, dict) and value.keys() == tree.keys():
        return [tensor for key, part in tree.items() for tensor in _in_order(part, value[key])]
    is_row = isinstance(tree, list | tuple) and not isinstance(tree, Spec) and isinstance(value, list | tuple)
    if is_row and len(value) == len(tree):
        return [tensor for part, its in zip(tree, value, strict=True) for tensor in _in_order(part, its)]
    return _tensors(value)


def _form(tree: Any) -> Any:
    """A tree without its tensors: types, keys and other values."""
    if isinstance(tree, dict):
        return type(tree).__name__, {key: _form(part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree).__name__, [_form(part) for part in tree]
    return Tensor if isinstance(tree, Tensor) else tree


def _first(tensors: Sequence[Tensor], state: Sequence[Tensor]) -> Tensor:
    """One that is on the device of all; an op may read parameters alone."""
    return (tensors or state)[0]


def _kinds(tree: Any) -> Any:
    """The types in a tree, where they are more than tuples, lists and dicts: a named tuple, what torch.max returns."""
    if isinstance(tree, Tensor) or not isinstance(tree, list | tuple | dict):
        return None
    parts = {key: _kinds(part) for key, part in (tree.items() if isinstance(tree, dict) else enumerate(tree))}
    return None if type(tree) in (list, tuple, dict) and not any(parts.values()) else (type(tree), parts)


def _of_kinds(tree: Any, kinds: Any) -> Any:
    """The tree with those types, which it may have already."""
    if kinds is None or type(tree) is kinds[0] not in (list, tuple, dict):
        return tree
    kind, parts = kinds
    if isinstance(tree, dict):
        return kind({key: _of_kinds(part, parts[key]) for key, part in tree.items()})
    row = [_of_kinds(part, parts[at]) for at, part in enumerate(tree)]
    return kind(*row) if hasattr(kind, "_fields") else kind(row)


def _filled(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """The tree with the next tensors in the place of its specs."""
    if isinstance(tree, Spec):
        return next(tensors)
    if isinstance(tree, dict):
        return {key: _filled(part, tensors) for key, part in tree.items()}
    return type(tree)([_filled(part, tensors) for part in tree]) if isinstance(tree, list | tuple) else tree


def _filler(tree: Any) -> Callable[[Sequence[Tensor]], Any]:
    """What puts tensors in the place of a tree's specs, without a walk where it is but a row of them."""
    if type(tree) in (list, tuple) and all(isinstance(part, Spec) for part in tree):
        return type(tree)
    return (lambda tensors: tensors[0]) if isinstance(tree, Spec) else lambda tensors: _filled(tree, iter(tensors))


# the tensors of each entry, in order, and its trees: looked up at each call
_INPUTS = [_specs(entry.inputs) for entry in VERIFIED]
_OUTPUTS = [_specs(entry.outputs) for entry in VERIFIED]
_FILL_INPUTS = [_filler(entry.inputs) for entry in VERIFIED]
_FILL_OUTPUTS = [_filler(entry.outputs) for entry in VERIFIED]
_WITHOUT_GRADIENT = {n for n, specs in enumerate(_OUTPUTS) if any(s.dtype not in _HAS_GRADIENT for s in specs)}
_COUNTED = ["gradients" if entry.backward else "kernel" for entry in VERIFIED]


def _without_data(its: "Entry") -> list[Tensor]:
    """The smallest inputs of an entry, on the meta device."""
    shapes = [[its.lead[i][0] if n is None else n for i, n in enumerate(s.shape)] for s in _specs(its.inputs)]
    return [
        torch.empty(shape, dtype=s.dtype, device="meta") for shape, s in zip(shapes, _specs(its.inputs), strict=True)
    ]


def _fits(spec: Any, value: Any, lead: Sequence[tuple[int, int]], extra: int) -> bool:
    """Whether a value is as was verified, when `extra` leading dimensions of it are folded into one."""
    if isinstance(spec, Spec):
        return isinstance(value, Tensor) and _tensor_fits(spec, value, lead, extra if None in spec.shape else 0)
    if isinstance(spec, dict):
        alike = isinstance(value, dict) and value.keys() == spec.keys()
        return alike and all([_fits(part, value[key], lead, extra) for key, part in spec.items()])
    if isinstance(spec, list | tuple):
        alike = isinstance(value, list | tuple) and len(value) == len(spec)
        return alike and all([_fits(part, its, lead, extra) for part, its in zip(spec, value, strict=True)])
    return type(value) is type(spec) and bool(value == spec)


def _tensor_fits(spec: Spec, value: Tensor, lead: Sequence[tuple[int, int]], extra: int) -> bool:
    if not torch.compiler.is_compiling() and not _is_laid_out(value):
        return False
    if value.dtype != spec.dtype or value.dim() != len(spec.shape) + extra:
        return False
    if not (value.is_contiguous() if spec.stride is None else value.stride() == spec.stride):
        return False
    shape = value.flatten(0, extra).shape if extra else value.shape
    for axis, wanted in enumerate(spec.shape):
        low, high = lead[axis] if wanted is None else (wanted, wanted)
        if not low <= shape[axis] <= high:
            return False
    return True


def _is_laid_out(tensor: Tensor) -> bool:
    """Whether the elements lie in memory, each where the strides say and as it is."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_neg() or tensor.is_conj())


def _extent(tensor: Tensor) -> int:
    """Elements from the first to the last, as they lie in memory."""
    return 1 + sum([(n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)]) if tensor.numel() else 0


def _broken(tensor: Tensor, spec: Spec) -> str:
    """What a tensor's memory lacks that the kernel relies on: "alignment", "slack" or ""."""
    if tensor.data_ptr() % spec.alignment:
        return "alignment"
    if spec.slack and tensor.numel():
        end = tensor.storage_offset() + _extent(tensor) + spec.slack
        return "slack" if tensor.untyped_storage().nbytes() < end * tensor.element_size() else ""
    return ""


def _kept_promise(tensor: Tensor, spec: Spec) -> Tensor:
    """A copy in memory that has what the kernel relies on."""
    laid = tensor if spec.stride is None else torch.empty_strided(tensor.shape, spec.stride, device="meta")
    more = max(spec.alignment, 16) // tensor.element_size() or 1
    flat = tensor.new_empty(_extent(laid) + spec.slack + more)
    flat.view(torch.uint8).fill_(0xFF)  # NaN
    first = -flat.data_ptr() % max(spec.alignment, 16) // tensor.element_size()
    stride = tensor.contiguous().stride() if spec.stride is None else spec.stride
    return flat.as_strided(tensor.shape, stride, first).copy_(tensor)


def _extra(entry: Entry, value: Any) -> int:
    """Leading dimensions more than were verified, which can be folded."""
    pairs = zip(_specs(entry.inputs), _in_order(entry.inputs, value), strict=False)
    found = [t.dim() - len(s.shape) for s, t in pairs if None in s.shape] if KERNELS[entry.kernel].folds else ()
    return max(found[0], 0) if found else 0


# The kernel, with the parameters of one module ------------------------------------------------------------------------


def _holds_more(model: nn.Module, paths: Mapping[str, str]) -> bool:
    """Whether a ModelNew has more than the state that it is given: what its constructor computed or packed, or another
    name for a part of it."""
    own, usual = model.state_dict(), vars(nn.Module()).keys()
    if set(own) != set(paths.values()) or any(name not in own for name, _ in model.named_buffers()):
        return True
    others = (value for part in model.modules() for name, value in vars(part).items() if name not in usual)
    return any(isinstance(leaf, Tensor) for value in others for leaf in _leaves(value))


@functools.cache
def _reads_its_state(number: int, device: torch.device) -> bool:
    """Whether the kernel of an entry computes with the parameters that it is given, and not with what its constructor
    made of others. Tried where it holds more than they are, with some that no constructor has seen."""
    entry = VERIFIED[number]
    if not entry.state:
        return True
    model = _made(_reference(number).Model, entry.init, device)
    with _own_random(device, 2), torch.no_grad():
        held = [_held(model, key) for key in entry.state]
        state = [t * (0.5 + torch.rand_like(t)) if t.dtype in _HAS_GRADIENT else t for t in held]
        bound = _Bound(entry, state, device)
        if not bound.holds_more:
            return True
        bound.give(state)
        drawn = _drawn(number, device)
        inputs = _FILL_INPUTS[number](_tensors(drawn))
        bound.forward(*inputs)  # which may choose among configs
        found = _answers(bound.forward(*inputs), number)
        wanted = torch.func.functional_call(model, dict(zip(entry.state, state, strict=True)), tuple(drawn))
    _drawn.cache_clear()
    return _off(found, _in_order(entry.outputs, wanted), TOLERANCE) <= 1


class _Bound:
    """A ModelNew whose parameters are a module's. `seen`: the versions of those that host code may have kept something
    of; None where it keeps nothing. `given`: those that it reads. `begins_otherwise`: whether its first call may leave
    other memory than the next one, as it chooses among configs or keeps something."""

    def __init__(self, entry: Entry, state: Sequence[Tensor], device: torch.device) -> None:
        keeps = KERNELS[entry.kernel].keeps
        module = _new_kernel(entry.kernel) if keeps else _kernels[entry.kernel]
        model = _made(module.ModelNew, entry.init, device)
        paths = _paired(dict(model.state_dict(keep_vars=True)), entry.state)
        self.forward, self.seen = _on(device, _forward_of(model, entry)), _versions(state) if keeps else None
        if KERNELS[entry.kernel].saves:
            halves: Any = model
            self.save, self.gradients = _on(device, halves.save), _on(device, halves.gradients)
        self.given: Sequence[Tensor] = ()
        self.holds_more = _holds_more(model, paths)
        self.begins_otherwise = _chooses(KERNELS[entry.kernel]) or keeps or self.holds_more
        self._slots = [_slot(model, paths[key]) if key in paths else ({}, "", {}) for key in entry.state]
        if keeps:
            self._slots = [(held, leaf, {}) for held, leaf, _ in self._slots]
        else:  # an attribute that is found without Module.__getattr__ costs a tenth; nothing replaces them
            for part in model.modules():
                vars(part).update({**part._modules, **part._buffers, **part._parameters})

    def give(self, state: Sequence[Tensor]) -> None:
        """Let the kernel read these."""
        for (held, leaf, also), tensor in zip(self._slots, state, strict=True):
            held[leaf] = also[leaf] = tensor
        self.given = state


def _chooses(kernel: PackagedKernel) -> bool:
    return any(word in kernel.source for word in ("autotune", "configs"))


def _forward_of(model: Any, entry: Entry) -> Callable[..., Any]:
    """What a ModelNew computes; of a training step the gradients alone."""
    saves = KERNELS[entry.kernel].saves
    return (lambda *inputs: model.forward(*inputs)[saves:]) if saves else model.forward


def _on(device: torch.device, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that launches on the GPU of its tensors: a kernel goes to the current one, unlike torch's operators."""
    if device.type != "cuda" or torch.cuda.device_count() == 1:
        return forward

    def there(*args: Any) -> Any:
        if torch.cuda.current_device() == device.index:
            return forward(*args)
        with torch.cuda.device(device):
            return forward(*args)

    return there


def _slot(model: nn.Module, path: str) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Where a module holds a tensor, under what name, and its other attributes."""
    above, _, leaf = path.rpartition(".")
    owner = model.get_submodule(above)
    return (owner._parameters if leaf in owner._parameters else owner._buffers), leaf, vars(owner)


def _versions(state: Sequence[Tensor]) -> list[tuple[int, int, int]]:
    return [(id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in state]


class _Place:
    """A module whose forward is replaced. `paths`: the reference's names for its state, and the module's; `entries`:
    those whose reference was shown to be this module's; `original`: a forward that only this instance has;
    `eval_only`: whether the module does something else in training; `kinds`: the types of what it returns."""

    def __init__(
        self,
        paths: Mapping[str, str],
        entries: Sequence[int],
        original: Callable[..., Any] | None = None,
        parameters: Mapping[str, Any] = PARAMETERS,
        *,
        eval_only: bool = False,
        kinds: Any = None,
    ) -> None:
        self.paths, self.original, self.eval_only, self.kinds = paths, original, eval_only, kinds
        self.entries = tuple(number for number in entries if not VERIFIED[number].backward)
        # with the names of what a kernel for gradients has them for: not of buffers
        self.backwards = {number: _parameters_of(number) for number in entries if VERIFIED[number].backward}
        for number in entries:
            _firsts(number)  # before something traces this place
        self.parameters, self.given = parameters, [name for name, value in parameters.items() if value is INPUT]
        # the tensors come first, and nothing else must be given
        self.is_plain = list(parameters)[: len(self.given)] == self.given and not any(
            isinstance(its, Given) for its in parameters.values()
        )
        self.calls: Counter[str] = Counter()
        self.known: dict[int, list[_Known]] = {}  # by the elements of the first tensor
        self.state: tuple[Tensor, ...] = ()  # of the last call, and where the module has it: name, tensor and address
        self.held: list[tuple[dict[str, Any], str, Tensor, int]] = []
        self.bound: dict[tuple[int, torch.device], _Bound] = {}
        # what has run: entry, device and shapes; and entries whose host code keeps what it returns, for its next call
        self.tried: set[tuple[Any, ...]] = set()
        self.holding: set[int] = set()
        self.number = next(_numbers)
        _places[self.number] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Place":
        entries = (*self.entries, *self.backwards)
        original = copy.deepcopy(self.original, memo)  # a method of the module that is copied
        return _Place(self.paths, entries, original, self.parameters, eval_only=self.eval_only, kinds=self.kinds)

    def remember(self, args: tuple[Tensor, ...], known: "_Known") -> None:
        """Know the next call like this one."""
        if len(self.known) >= 1000:
            self.known.clear()
        device, is_direct = args[0].device, known.backward is None
        like = _Likeness(*args, *self.state, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        its = known._replace(
            is_like=like.check,
            grad=torch.is_grad_enabled(),
            autocast=torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None,
            bound=self.bound[known.number, device] if is_direct and known.number in known.plain else None,
        )
        self.known[args[0].numel()] = [*self.known.get(args[0].numel(), [])[-15:], its]

    def run(self, number: int, tensors: Sequence[Tensor], state: Sequence[Tensor]) -> Any:
        """What the kernel of an entry returns."""
        device = _first(tensors, state).device
        bound = self.bound_to(number, device, state)
        inputs = _FILL_INPUTS[number](tensors)
        found = bound.forward(*inputs)
        if not bound.begins_otherwise:
            return found
        like = (number, device, *[t.shape for t in tensors])
        if like in self.tried or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
            return found
        # once more: host code that chose among configs has run each of them on the memory of the first answer
        first, found = found, bound.forward(*inputs)
        if len(self.tried) >= 1000:
            self.tried.clear()
        self.tried.add(like)
        if not {t.untyped_storage()._cdata for t in _tensors(first)}.isdisjoint(
            [t.untyped_storage()._cdata for t in _tensors(found)]
        ):
            self.holding.add(number)
        return found

    def bound_to(self, number: int, device: torch.device, state: Sequence[Tensor]) -> _Bound:
        """The kernel of an entry with that state."""
        bound = self.bound.get((number, device))
        if bound is None or (bound.seen is not None and bound.seen != _versions(state)):
            bound = self.bound[number, device] = _Bound(VERIFIED[number], state, device)
        if bound.given is not state:
            bound.give(state)
        return bound

    def save(
        self, known: "_Known", tensors: Sequence[Tensor], state: Sequence[Tensor]
    ) -> tuple[list[Tensor], Sequence[Tensor]]:
        """The first half of a training step: the outputs, and what its second half wants of it."""
        assert known.backward is not None
        self.calls["kernel"] += 1
        bound = self.bound_to(known.backward, _first(tensors, state).device, state)
        outputs, saved = bound.save(*_FILL_INPUTS[known.number](tensors))
        pairs = zip(outputs, _OUTPUTS[known.number], strict=True)
        return _apart([_laid_out(*pair) for pair in pairs], (*tensors, *state)), saved

    def gradients(
        self, number: int, saved: Sequence[Tensor], gradients: Sequence[Tensor], state: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """The second half."""
        self.calls["gradients"] += 1
        bound = self.bound_to(number, _first(gradients, state).device, state)
        found = _answers(bound.gradients(tuple(saved), *gradients), number)
        return _apart(_distinct(found, number), (*saved, *gradients, *state))

    def answer(
        self, number: int, tensors: Sequence[Tensor], state: Sequence[Tensor], plain: set[int]
    ) -> Sequence[Tensor]:
        """The kernel's answers, counted, in the order of the entry's outputs. They are nobody else's memory, so what is
        one tensor is one answer. `plain`: entries whose kernel was seen to return just that for tensors like these; as
        host code that keeps nothing depends on no values, it will again."""
        self.calls[_COUNTED[number]] += 1
        found = self.run(number, tensors, state)
        row = (found,) if type(found) is Tensor else found
        if number in plain:
            return _distinct(row, number)
        distinct = _distinct(_answers(found, number), number)
        answers = _apart(distinct, (*tensors, *state, *(distinct if number in self.holding else ())))
        is_row = isinstance(row, list | tuple) and len(row) == len(_OUTPUTS[number])
        if (
            is_row
            and self.bound[number, _first(tensors, state).device].seen is None
            and all(map(operator.is_, _distinct(row, number), answers))
        ):
            plain.add(number)
        return answers


def _apart(answers: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """The answers, none in the memory of another or of the others."""
    taken, found = {t.untyped_storage().data_ptr() for t in others}, []
    for answer in answers:
        found.append(answer.clone() if answer.untyped_storage().data_ptr() in taken else answer)
        taken.add(found[-1].untyped_storage().data_ptr())
    return found


def _is_in_halves(number: int) -> bool:
    """Whether the kernel of an entry for gradients can be run in halves: what chooses among configs or keeps something
    is run as a whole, twice at first."""
    its = KERNELS[VERIFIED[number].kernel]
    return its.saves > 0 and not its.keeps and not _chooses(its)


_numbers = itertools.count()
# a compiled graph has the number alone; whoever drops a model has its parameters freed
_places: weakref.WeakValueDictionary[int, _Place] = weakref.WeakValueDictionary()


def _place_at(number: int) -> _Place:
    """The place of that number; for a graph that outlived its module or is of another process, one of no module."""
    return _places.get(number) or _elsewhere()


@functools.cache
def _elsewhere() -> _Place:
    return _Place({}, range(len(VERIFIED)))


_kernels = [_new_kernel(number) for number in range(len(KERNELS))]


def _answers(found: Any, number: int) -> list[Tensor]:
    """The tensors of an answer, each with the strides that the reference's has."""
    tensors = _in_order(VERIFIED[number].outputs, found)
    return [_laid_out(t, spec) for t, spec in zip(tensors, _OUTPUTS[number], strict=True)]


def _laid_out(tensor: Tensor, spec: Spec) -> Tensor:
    if spec.stride is None:
        return tensor.contiguous()
    if tensor.stride() == spec.stride:
        return tensor
    return tensor.new_empty_strided(tensor.shape, spec.stride).copy_(tensor)


# The operator, which is what compilers see of it ----------------------------------------------------------------------


def _opaque(tensors: list[Tensor], state: list[Tensor], entry: int, place: int) -> list[Tensor]:
    """The kernel, for one entry of VERIFIED. Autograd and compiled code may give it tensors that begin anywhere, with
    nothing behind them."""
    if not _reads_its_state(entry, _first(tensors, state).device):
        raise RuntimeError(f"{NAME}: {_REASONS['constructor']}")
    given = _kept_promises(tensors, _INPUTS[entry])
    held = _kept_promises(state, [*VERIFIED[entry].state.values()])
    return [*_place_at(place).answer(entry, given, held, set())]


def _kept_promises(tensors: list[Tensor], specs: Sequence[Spec]) -> list[Tensor]:
    if not _has_contract and not any([t.data_ptr() % 16 for t in tensors]):
        return tensors
    return [_kept_promise(t, spec) if _broken(t, spec) else t for t, spec in zip(tensors, specs, strict=True)]


def _sized_outputs(tensors: Sequence[Tensor], entry: int) -> list[tuple[Spec, list[int]]]:
    """The outputs of an entry for such inputs, with their shapes."""
    lead = next((t.shape for t, s in zip(tensors, _INPUTS[entry], strict=True) if None in s.shape), ())
    return [(s, [lead[axis] if n is None else n for axis, n in enumerate(s.shape)]) for s in _OUTPUTS[entry]]


def _shapes(tensors: list[Tensor], state: list[Tensor], entry: int, place: int) -> list[Tensor]:
    """The outputs without their data."""
    made, like = [], _first(tensors, state)
    for spec, shape in _distinct(_sized_outputs(tensors, entry), entry):
        if spec.stride is None:
            made.append(like.new_empty(shape, dtype=spec.dtype))
        else:
            made.append(like.new_empty_strided(shape, spec.stride, dtype=spec.dtype))
    return made


def _in_sight(tensors: list[Tensor], state: list[Tensor], entry: int, place: int) -> list[Tensor]:
    """The kernel, for a compiler that looks into its host code. What that traces is not counted as a call."""
    if not _is_foreign(_first(tensors, state)):
        _place_at(place).calls[_COUNTED[entry]] += 1
    its, (model, paths) = VERIFIED[entry], _seen[entry]
    given = {paths[key]: tensor for key, tensor in zip(its.state, state, strict=True) if key in paths}
    found = torch.func.functional_call(model, given, tuple(_filled(its.inputs, iter(tensors))))
    found = found[KERNELS[its.kernel].saves :] if KERNELS[its.kernel].saves else found
    return [*_distinct(_answers(found, entry), entry)]


class _InSight:
    """A Triton kernel whose launches are seen where something looks at them."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return torch.library.wrap_triton(self._kernel)[grid]


class _Launches:
    """In the place of a Triton kernel: launches nothing, and keeps in `amiss` what a compiled graph makes something
    else of. Numbers that Inductor would give it as float64, where a launch gives float32; it does so with Python's
    floats. And tensors that share elements: of those that may be written each gets a copy there, the last one stays."""

    def __init__(self, kernel: Any, amiss: list[Any]) -> None:
        self._kernel, self._amiss = kernel, amiss

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *args: Any, **named: Any) -> None:
        function = self._kernel
        while not hasattr(function, "params"):  # an Autotuner has it within
            function = function.fn
        values = dict(zip((p.name for p in function.params), args, strict=False)) | named
        fixed = {p.name for p in function.params if p.is_constexpr}
        self._amiss += [value for name, value in values.items() if type(value) is float and name not in fixed]
        tensors = [value for value in values.values() if isinstance(value, Tensor)]
        self._amiss += [pair for pair in itertools.combinations(tensors, 2) if not _are_apart(*pair)]


def _are_apart(one: Tensor, other: Tensor) -> bool:
    """Whether surely no element is in both: storages of their own, or other columns of the same rows, as halves of a
    tensor have."""
    if one.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return True
    if (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return False
    away = abs(int(one.storage_offset()) - int(other.storage_offset()))
    for row in (*filter(None, one.stride()), sys.maxsize):
        width = 1 + sum((n - 1) * s for n, s in zip(one.shape, one.stride(), strict=True) if s < row)
        if not any(s % row for s in one.stride() if s >= row) and width <= away % row <= row - width:
            return True
    return False


@contextlib.contextmanager
def _some_device() -> Iterator[None]:
    """Let host code ask for the number of a GPU's multiprocessors; whoever asks more is not traced."""
    module: Any = torch.cuda
    known, module.get_device_properties = module.get_device_properties, _properties
    try:
        yield
    finally:
        module.get_device_properties = known


def _properties(device: Any = None) -> Any:
    return types.SimpleNamespace(multi_processor_count=1)


def _traceable(numbers: Sequence[int]) -> dict[int, tuple[nn.Module, dict[str, str]]]:
    """For each of these entries a ModelNew without data whose launches can be seen, and its names for the state;
    nothing if one of them has more than that, returns memory of something else, or would be another kernel in a
    compiled graph."""
    if _has_contract:  # what a compiler allocates need not keep it
        return {}
    modules = {VERIFIED[number].kernel: _new_kernel(VERIFIED[number].kernel) for number in numbers}
    found, kernels, amiss = {}, [], list[Any]()
    for number, module in modules.items():
        for name in KERNELS[number].launched:
            if type(kernel := getattr(module, name)).__name__ not in ("JITFunction", "Autotuner"):  # TRITON_INTERPRET=1
                return {}
            kernels.append((module, name, kernel))
            setattr(module, name, _Launches(kernel, amiss))
    for number in numbers if all(KERNELS[number].launched for number in modules) else ():
        entry = VERIFIED[number]
        try:
            model, given = _made(modules[entry.kernel].ModelNew, entry.init, "meta"), _without_data(entry)
            with torch.no_grad(), _some_device():
                once = _forward_of(model, entry)(*_filled(entry.inputs, iter(given)))
                answers = _distinct(_answers(once, number), number)
        except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError):  # it reads values, or asks a GPU
            return {}
        own = dict(model.state_dict(keep_vars=True))
        if _holds_more(model, paths := _paired(own, entry.state)):
            return {}
        memory = [t.untyped_storage()._cdata for t in (*given, *own.values(), *answers)]
        if len(set(memory)) < len(memory):
            return {}
        found[number] = (model, paths)
    for module, name, kernel in kernels:
        setattr(module, name, _InSight(kernel))
    return {} if amiss else found


def _refuse(context: Any, *gradients: Any) -> None:
    raise RuntimeError(_NO_BACKWARD)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep for the backward what the forward was given."""
    tensors, state, ctx.entry, ctx.place = inputs
    ctx.count = len(tensors)
    _save(ctx, (*tensors, *state))


def _gradients(ctx: Any, gradients: Sequence[Tensor | None]) -> tuple[Any, ...]:
    """Of the tensors and of the state, by the kernel that was verified for it."""
    saved, place = _saved(ctx), _place_at(ctx.place)
    tensors, state = _as_verified(saved[: ctx.count], saved[ctx.count :], ctx.entry)
    number = _backward_of(place, ctx.entry, tensors, state)
    assert number is not None  # the forward has asked
    pairs = zip(gradients, _sized_outputs(tensors, ctx.entry), strict=True)
    all_given = [_first(tensors, state).new_zeros(shape, dtype=s.dtype) if g is None else g for g, (s, shape) in pairs]
    answers = _backward([*tensors, *_asked(all_given, ctx.entry)], [*state], number, place.number)
    found = [None if at is None else answers[at] for at in _answers_for(ctx.entry, number)]
    return found[: ctx.count], found[ctx.count :], None, None


def _save(ctx: Any, tensors: Sequence[Tensor]) -> None:
    ctx.shapes = [(t.shape, t.dtype, t.device) for t in tensors]
    ctx.save_for_backward(*tensors)


def _saved(ctx: Any) -> Sequence[Tensor]:
    """What a forward was given, unless a hook gives back other tensors, of which the kernel would read too much."""
    saved: Sequence[Tensor] = ctx.saved_tensors
    for t, was in zip(saved, ctx.shapes, strict=True):
        if (t.shape, t.dtype, t.device) != was:
            raise RuntimeError(
                f"{NAME}: a hook for saved tensors gave {t.dtype}{[*t.shape]} back for {was[1]}{[*was[0]]}"
            )
    return saved


def _as_verified(tensors: Sequence[Tensor], state: Sequence[Tensor], number: int) -> tuple[list[Tensor], list[Tensor]]:
    """Both with the strides that an entry has for them: a hook for saved tensors may give back other ones."""
    held = zip(state, VERIFIED[number].state.values(), strict=True)
    return [_laid_out(*pair) for pair in zip(tensors, _INPUTS[number], strict=True)], [
        _laid_out(*pair) for pair in held
    ]


def _asked(gradients: Sequence[Tensor], entry: int) -> list[Tensor]:
    """Those gradients of an entry's outputs that the task of its gradients takes."""
    specs = _OUTPUTS[entry]
    return [g.contiguous() for g, spec in zip(gradients, specs, strict=True) if spec.dtype in _HAS_GRADIENT]


@functools.cache
def _answers_for(entry: int, number: int) -> list[int | None]:
    """Which of the distinct answers of an entry for gradients is that of each of the tensors, and of the state, of a
    call of `entry`."""
    found = iter([_distinct_of(number).index(first) for first in _firsts(number)])
    of_tensors = [next(found) if spec.dtype in _HAS_GRADIENT else None for spec in _INPUTS[entry]]
    by_name = {name: next(found) for name in _parameters_of(number)}
    return [*of_tensors, *[by_name.get(key) for key in VERIFIED[number].state]]


_hooks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", bool)  # None where there is no hook


class _Eager(torch.autograd.Function):
    """What the operator does, where nothing else of torch must see it: without torch.library's layers, which take
    longer than many a kernel."""

    @staticmethod
    def forward(ctx: Any, place: _Place, known: "_Known", *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.place, ctx.known, ctx.shapes, count = place, known, (), len(known.batched)
        if _hooks(True) is not None:
            _save(ctx, tensors)
            answers = known.answers(place, tensors[:count])
        elif known.saves:
            answers, saved = place.save(known, tensors[:count], tensors[count:])
            ctx.save_for_backward(*tensors, *saved)  # the first ones for a compiler, which sees no halves
        else:  # what is saved comes back as it is; to ask anew takes 9 us of a training step
            ctx.save_for_backward(*tensors)
            answers = known.answers(place, tensors[:count])
        if known.number in _WITHOUT_GRADIENT:
            ctx.mark_non_differentiable(*[t for t in answers if t.dtype not in _HAS_GRADIENT])
        return tuple(answers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        # once_differentiable takes 8 us, and says nothing where no graph is asked for
        return (_once_differentiable if torch.is_grad_enabled() else _eager_gradients)(ctx, *gradients)


def _eager_gradients(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
    place, known = ctx.place, ctx.known
    saved = _saved(ctx) if ctx.shapes else ctx.saved_tensors
    count, number = len(known.batched), known.backward
    end, extra = count + len(VERIFIED[known.number].state), len(known.lead) - 1
    tensors, state = saved[:count], saved[count:end]
    if known.lead:
        tensors = [t.flatten(0, extra) if its else t for t, its in zip(tensors, known.batched, strict=True)]
        gradients = tuple([g.flatten(0, extra) for g in gradients])
    if ctx.shapes:
        tensors, state = _as_verified(tensors, state, known.number)
    asked = _asked(gradients, known.number)
    given = [*tensors, *asked]
    if torch.compiler.is_compiling() or _is_watched():
        answers = _backward(given, [*state], number, place.number)
    elif known.saves and not ctx.shapes:  # else a hook saw what was given, and nothing more was saved
        answers = place.gradients(number, saved[end:], _kept_promises(asked, _INPUTS[number][count:]), state)
    else:
        answers = place.answer(number, _kept_promises(given, _INPUTS[number]), state, known.plain)
    found: list[Any] = [None if at is None else answers[at] for at in _answers_for(known.number, number)]
    for at, its in enumerate(known.batched):
        if its and found[at] is not None:
            found[at] = found[at].view_as(saved[at])
    return (None, None, *found)


_once_differentiable = torch.autograd.function.once_differentiable(_eager_gradients)
# Function.apply asks first for a transform of torch.func, which nobody is in here: 5 us
_apply_eager: Any = super(torch.autograd.Function, _Eager).apply


def _distinct(answers: Sequence[Any], number: int) -> Sequence[Any]:
    """Those that are not an earlier one again."""
    return [answers[first] for first in _distinct_of(number)] if VERIFIED[number].backward else answers


@functools.cache
def _distinct_of(number: int) -> list[int]:
    return [*dict.fromkeys(_firsts(number))]


@functools.cache
def _firsts(number: int) -> tuple[int, ...]:
    """For each answer of an entry, the first one that is the same tensor. Gradients of both terms of a sum are, where
    they are one in the reference: to copy it would be to read and write it once more."""
    entry = VERIFIED[number]
    count = len(_OUTPUTS[number])
    if not entry.backward:
        return tuple(range(count))
    try:
        model = _made(_reference(number).Model, entry.init, "meta")
        found = _tensors(model(*_filled(entry.inputs, iter(_without_data(entry)))))
    except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError):  # it reads values
        return tuple(range(count))
    firsts: dict[int, int] = {}
    return tuple([firsts.setdefault(id(t), place) for place, t in enumerate(found)])


@functools.cache
def _parameters_of(number: int) -> tuple[str, ...]:
    """Names of the parameters in the state of the task of gradients, in the order of their gradients."""
    return tuple(name for name, _ in _made(_reference(number).Model, VERIFIED[number].init, "cpu").named_parameters())


def _registered(name: str, numbers: Sequence[int]) -> Any:
    """The operator for these entries. What is traceable is added to `_seen`."""
    if seen := _traceable(numbers):
        _seen.update(seen)
        return torch.library.triton_op(name, _in_sight, mutates_args=())
    operator: Any = torch.library.custom_op(name, _opaque, mutates_args=())
    operator.register_fake(_shapes)
    return operator


_has_contract = any((s.slack, s.alignment) != (0, 16) for specs in _INPUTS for s in specs)
_seen: dict[int, tuple[nn.Module, dict[str, str]]] = {}
_backwards = [number for number, entry in enumerate(VERIFIED) if entry.backward]
_operator = _registered(f"kerneltune::{OP}", [n for n in range(len(VERIFIED)) if n not in _backwards])
if _backwards:
    _operator.register_autograd(_gradients, setup_context=_keep)
    _backward = _registered(f"kerneltune::{OP}_backward", _backwards)
else:
    _operator.register_autograd(_refuse)

# One call: the kernel's or the reference's ----------------------------------------------------------------------------

_ALIGNMENTS = " or ".join(map(str, sorted({s.alignment for specs in _INPUTS for s in specs} | {16})))
_REASONS = {
    "arguments": "it is given other arguments than were verified",
    "shapes": "these shapes, dtypes or strides were not verified",
    "device": f"the kernel was verified for {ARCH}, and the tensors are elsewhere",
    "alignment": f"a tensor's address is not a multiple of {_ALIGNMENTS} bytes",
    "slack": "the kernel may read behind the end of a tensor, and its storage ends before that",
    "transform": "a transform of torch.func, a derivative in forward mode or torch.jit.trace sees each operator",
    "subclass": "a tensor is of a subclass of torch.Tensor",
    "backward": "gradients of these shapes, or of what is a buffer of the reference, were not verified",
    "autocast": "autocast changes the dtypes of what the reference returns",
    "constructor": "the kernel's constructor makes something of its parameters, and has made it of others",
    "training": "the module does something else in training",
}
_warned: set[str] = set()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _warn(why: str) -> None:
    """Once for each reason; of a compiled call, when it is compiled."""
    if why not in _warned:
        _warned.add(why)
        count, its = len(_specs(VERIFIED[0].inputs)), [e for e in VERIFIED if e.backward == (why == "backward")]
        known = "; ".join(dict.fromkeys(", ".join(_shown(s, e.lead) for s in _specs(e.inputs)[:count]) for e in its))
        has_shapes = why in ("shapes", "backward")
        hint = f". Verified: {known}. Add yours to CASES of the task, and run it again" if has_shapes else ""
        warnings.warn(f"{NAME}: the reference runs, not the kernel: {_REASONS[why]}{hint}", stacklevel=2)


def _shown(spec: Spec, lead: Sequence[tuple[int, int]]) -> str:
    sizes = [
        size if size is not None else "-".join(map(str, dict.fromkeys(lead[i]))) for i, size in enumerate(spec.shape)
    ]
    strides = f" stride {list(spec.stride)}" if spec.stride else ""
    return f"{str(spec.dtype).removeprefix('torch.')}[{', '.join(map(str, sizes))}]{strides}"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _runs_on(device: torch.device) -> bool:
    """Whether this is what the kernel was verified for; a CPU is when Triton's interpreter is on."""
    return _suits(device)


@functools.cache
def _suits(device: torch.device) -> bool:
    if device.type != "cuda":
        return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}" == ARCH


def _inputs(place: _Place, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The tensors among the arguments; None where another argument is not as was verified."""
    if not kwargs and place.is_plain and len(args) == len(place.given):
        return args
    if len(args) > len(place.parameters) or any([name not in place.parameters for name in kwargs]):
        return None
    values = {**dict(zip(place.parameters, args, strict=False)), **kwargs}
    for name, its in place.parameters.items():
        value, verified = values.get(name, its), its.value if isinstance(its, Given) else its
        if value is its and (its is INPUT or isinstance(its, Given)):  # it is missing
            return None
        if its is not INPUT and (type(value) is not type(verified) or value != verified):
            return None
    return tuple([values[name] for name in place.given])


def _match(place: _Place, inputs: Sequence[Any], state: Sequence[Tensor]) -> tuple[int, int] | None:
    """The entry that these are of, and how many of their leading dimensions are folded."""
    for number in place.entries:
        entry = VERIFIED[number]
        extra = _extra(entry, inputs)
        if _fits(entry.inputs, inputs, entry.lead, extra) and _fits(list(entry.state.values()), state, (), 0):
            pairs = zip(_INPUTS[number], _in_order(entry.inputs, inputs), strict=True)
            leads = [t.shape[: extra + s.shape.count(None)] for s, t in pairs if None in s.shape]
            if all([lead == leads[0] for lead in leads]):  # the reference would broadcast one over another, or raise
                return number, extra
    return None


def _backward_of(place: _Place, number: int, tensors: Sequence[Tensor], state: Sequence[Tensor]) -> int | None:
    """The entry for the gradients of a call of that entry; None too if one would have gradients that no kernel has."""
    inputs = _filled(VERIFIED[number].inputs, iter(tensors))
    if any([t.requires_grad and t.dtype not in _HAS_GRADIENT for t in tensors]):
        return None
    for backward, parameters in place.backwards.items():
        entry = VERIFIED[backward]
        of_forward = entry.inputs[: len(inputs)]
        if any([t.requires_grad and key not in parameters for key, t in zip(entry.state, state, strict=True)]):
            continue
        if _fits(of_forward, inputs, entry.lead, 0) and _fits(list(entry.state.values()), state, (), 0):
            return backward
    return None


def _is_foreign(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor and type(tensor) is not nn.Parameter


def _why_not(
    place: _Place,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
    number: int,
) -> str:
    """Why the kernel cannot run for tensors whose shapes were verified; "" where it can."""
    device = tensors[0].device if tensors else torch.device("meta")  # nothing says where
    if place.eval_only and module.training:
        return "training"
    if not _runs_on(device) or any([t.device != device for t in tensors]):
        return "device"
    if not torch.compiler.is_compiling():
        if any([_is_foreign(t) and torch.utils._python_dispatch.is_traceable_wrapper_subclass(t) for t in tensors]):
            return "subclass"
        for tensor, spec in zip(tensors, (*_INPUTS[number], *VERIFIED[number].state.values()), strict=True):
            if not _is_foreign(tensor) and (broken := _broken(tensor, spec)):
                return broken
        if not any(map(_is_foreign, tensors)) and not _reads_its_state(number, device):
            return "constructor"
    if torch.is_autocast_enabled(device.type):
        answered = [t.dtype for t in _tensors(_original(place, module)(*args, **kwargs))]
        if answered != [spec.dtype for spec in _OUTPUTS[number]]:
            return "autocast"
    return ""


def _original(place: _Place, module: nn.Module) -> Callable[..., Any]:
    return place.original or type(module).forward.__get__(module)


def _call(place: _Place, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if kwargs or torch.compiler.is_dynamo_compiling() or (known := _known(place, module, args)) is None:
        return _call_anew(place, module, args, kwargs)
    if (bound := known.bound) is None:
        return _answered(place, known, args)
    place.calls["kernel"] += 1  # as `answer` does, without five Python calls: 3 us
    if bound.given is not place.state:
        bound.give(place.state)
    if not known.lead:
        return bound.forward(*args)
    found = bound.forward(*map(_reinterpreted, args, *known.folded))
    row = (found,) if type(found) is Tensor else found
    return _FILL_OUTPUTS[known.number]([*map(_reinterpreted, row, *known.unfolded)])


def _call_anew(place: _Place, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The answer to a call of which nothing is known."""
    if (inputs := _inputs(place, args, kwargs)) is None:
        return _by_reference(place, module, args, kwargs, "arguments")
    if _is_transformed():
        return _by_reference(place, module, args, kwargs, "transform")
    state = [_held(module, path) for path in place.paths.values()]
    if (found := _match(place, inputs, state)) is None:
        return _by_reference(place, module, args, kwargs, "shapes")
    number, extra = found
    entry, tensors = VERIFIED[number], _in_order(VERIFIED[number].inputs, inputs)
    if why := _why_not(place, module, args, kwargs, (*tensors, *state), number):
        return _by_reference(place, module, args, kwargs, why)
    has_gradients = any([spec.dtype.is_floating_point or spec.dtype.is_complex for spec in _OUTPUTS[number]])
    is_asked = torch.is_grad_enabled() and any([t.requires_grad for t in (*tensors, *state)])
    needs_gradients = has_gradients and is_asked
    if needs_gradients and not _backwards:
        raise RuntimeError(_NO_BACKWARD)
    batched = [extra > 0 and None in spec.shape for spec in _INPUTS[number]]
    lead = tuple(tensors[batched.index(True)].shape[: extra + 1]) if extra else ()
    folded = [t.flatten(0, extra) if its else t for t, its in zip(tensors, batched, strict=True)]
    backward = _backward_of(place, number, folded, state) if needs_gradients else None
    if backward is not None and not torch.compiler.is_compiling() and not any(map(_is_foreign, (*tensors, *state))):
        backward = backward if _reads_its_state(backward, _first(tensors, state).device) else None
    if needs_gradients and backward is None:
        return _by_reference(place, module, args, kwargs, "backward")
    if torch.compiler.is_compiling() or _is_watched() or any([_is_foreign(t) for t in (*tensors, *state)]):
        answers = _operator(folded, state, number, place.number)
        return _filled(entry.outputs, iter([t.view(lead + t.shape[1:]) for t in answers] if extra else answers))
    whole = [torch.empty((*lead, *shape[1:]), device="meta") for _, shape in _sized_outputs(folded, number) if extra]
    saves = backward is not None and not lead and _is_in_halves(backward)
    known = _Known(number, backward, lead, batched, _laid(folded), _laid(whole), set(), saves)
    slots = [_slot(module, path)[:2] for path in place.paths.values()]
    place.state = tuple(state)
    place.held = [(*slot, t, t.data_ptr()) for slot, t in zip(slots, state, strict=True)]
    answer = _answered(place, known, tensors)
    is_plain = args and not kwargs and len(args) == len(tensors) and all(isinstance(a, Tensor) for a in args)
    if is_plain and _Likeness is not None and _known(place, module, args) is None:
        place.remember(args, known)
    return answer


# Asks at once for types, dtypes, devices, shapes, strides, who needs a gradient, and which transforms and autocasts see
# the tensors, as torch.compile does; 0.3 us a tensor, 4 from Python. It does not ask for modes.
_Likeness: Any = getattr(torch._C._dynamo.guards, "TensorGuards", None)
# The same memory with other sizes, as Inductor's code takes it: in half of a view's time, and it is none, so that
# autograd lets the answers of our function be changed in place.
_reinterpreted: Any = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", torch.as_strided)


_forward_mode: Any = torch.autograd.forward_ad
_jit: Any = torch.jit


def _laid(tensors: Sequence[Tensor]) -> tuple[list[torch.Size], list[tuple[int, ...]]]:
    return [t.shape for t in tensors], [t.stride() for t in tensors]


class _Known(NamedTuple):
    """What was decided for a call. `number`: of the entry; `backward`: of that for its gradients, where they are
    needed; `lead`: the dimensions that are folded into one, of which tensors is in `batched`; `folded`: the shapes and
    the strides that the kernel is given then; `unfolded`: those of its answers; `plain`: entries whose answers are
    taken as they come; `saves`: whether the kernel for gradients gives the outputs, too, and says what it needs.
    For the next call: `is_like`, `grad` and `autocast` say whether it is one like this; the forward of `bound` is all
    that it takes."""

    number: int
    backward: int | None
    lead: tuple[int, ...]
    batched: Sequence[bool]
    folded: tuple[Sequence[torch.Size], Sequence[tuple[int, ...]]]
    unfolded: tuple[Sequence[torch.Size], Sequence[tuple[int, ...]]]
    plain: set[int]
    saves: bool = False
    is_like: Callable[..., bool] = bool
    grad: bool = False
    autocast: torch.dtype | None = None
    bound: _Bound | None = None

    def answers(self, place: _Place, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """The kernel's, in the shapes of the reference's."""
        if not self.lead:
            return place.answer(self.number, tensors, place.state, self.plain)
        tensors = [*map(_reinterpreted, tensors, *self.folded)]
        return [*map(_reinterpreted, place.answer(self.number, tensors, place.state, self.plain), *self.unfolded)]


def _answered(place: _Place, known: _Known, tensors: Sequence[Tensor]) -> Any:
    """The kernel's answer, in the reference's tree."""
    if known.backward is None:
        return _FILL_OUTPUTS[known.number](known.answers(place, tensors))
    return _FILL_OUTPUTS[known.number](_apply_eager(place, known, *tensors, *place.state))


def _known(place: _Place, module: nn.Module, args: tuple[Any, ...]) -> _Known | None:
    """What was decided for a call like this one; None where anything is different. This is what a call costs, so it
    asks no more than is needed."""
    for held, leaf, tensor, address in place.held:
        if held.get(leaf) is not tensor or tensor.data_ptr() != address:
            return None
    if (
        (place.eval_only and module.training)
        or torch._C._len_torch_dispatch_stack()
        or _forward_mode._current_level >= 0
    ):
        return None
    try:
        for known in place.known.get(args[0].numel(), ()):
            if (
                known.grad is torch.is_grad_enabled()
                and known.is_like(*args, *place.state)
                and (known.autocast is None or known.autocast is torch.get_autocast_dtype(args[0].device.type))
            ):
                if _has_contract:
                    pairs = zip(args, _INPUTS[known.number], strict=True)
                    return None if any([_broken(*pair) for pair in pairs]) else known
                for t in args:  # written out: a function that asks the same took 0.6 us
                    if t.data_ptr() % 16:
                        return None
                return known
    except (AttributeError, IndexError, TypeError):  # not tensors alone, or not as many
        pass
    return None


def _is_watched() -> bool:
    """Whether a mode or a transform of torch sees each operator, and must see one for the kernel."""
    return torch._C._len_torch_dispatch_stack() > 0 or _is_transformed()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_transformed() -> bool:
    """Whether a transform of torch.func has the tensors, which then have no addresses. vmap has no rule for our
    operator, and one that called the kernel for each element of the batch could be slower than the reference. Or
    whether torch follows operators to a derivative in forward mode or to a graph: launches would be missing there."""
    in_forward_mode = _forward_mode._current_level >= 0
    return torch._C._functorch.maybe_current_level() is not None or in_forward_mode or _jit.is_tracing()


def _held(module: nn.Module, path: str) -> Tensor:
    above, _, leaf = path.rpartition(".")
    found: Tensor = getattr(module.get_submodule(above) if above else module, leaf)
    return found


def _by_reference(place: _Place, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], why: str) -> Any:
    _warn(why)
    if not torch.compiler.is_compiling():
        place.calls["reference"] += 1
    return _original(place, module)(*args, **kwargs)


def _patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    place = getattr(self, _ATTRIBUTE)
    found = _call(place, self, args, kwargs)
    return found if place.kinds is None else _of_kinds(found, place.kinds)


# What a person calls --------------------------------------------------------------------------------------------------


def patch(model: nn.Module, pattern: str = "") -> dict[str, Counter[str]]:
    """Have the kernel stand in at every module whose dotted name fits a pattern such as "layers.*.mlp"; "" is the model
    itself. Returns their counts of calls, as `calls` does.

    A module is taken if it computes what the reference does, which is tried on the task's own inputs. Raises ValueError
    for one that does not, and where no name fits; then nothing is patched.
    """
    named = dict(model.named_modules())
    fitting = [name for name in named if _name_fits(name.split("."), pattern.split("."))]
    if not fitting:
        top = ", ".join(dict.fromkeys(name.partition(".")[0] for name in named if name)) or "nothing"
        raise ValueError(f"no module is called {pattern!r}; at the top of the model there is {top}")
    try:
        places = {name: _place_of(named[name], name or type(model).__name__) for name in fitting}
    finally:
        _drawn.cache_clear()  # of which nobody else has use
    for name, place in places.items():
        _stand_in(named[name], place)
    return {name: place.calls for name, place in places.items()}


def unpatch(model: nn.Module) -> int:
    """Give every module of the model its own forward back. Returns how many this file had patched."""
    patched = [module for module in model.modules() if _ATTRIBUTE in vars(module)]
    for module in patched:
        original = vars(module).pop(_ATTRIBUTE).original
        del vars(module)["forward"]
        if original:
            vars(module)["forward"] = original
    return len(patched)


def calls(model: nn.Module) -> dict[str, Counter[str]]:
    """By the name of each patched module, how many of its calls the "kernel" and the "reference" have answered. In a
    compiled graph those of the kernel are counted where it is an operator that the compiler does not see into."""
    found = ((name, vars(module).get(_ATTRIBUTE)) for name, module in model.named_modules())
    return {name: place.calls for name, place in found if place}


def ModelNew(*arguments: Any, **named: Any) -> nn.Module:  # noqa: N802 - as the kernel calls its own
    """The reference's Model with the kernel standing in. The arguments are those of its constructor. Raises ValueError
    where with these it computes something else than was verified."""
    model: nn.Module = _reference(-1).Model(*arguments, **named)
    _stand_in(model, _place_of(model, "Model", is_own=not named, made_with=arguments))
    _drawn.cache_clear()
    return model


def _stand_in(module: nn.Module, place: _Place) -> None:
    vars(module)[_ATTRIBUTE] = place
    vars(module)["forward"] = types.MethodType(_patched, module)


def _name_fits(name: Sequence[str], wanted: Sequence[str]) -> bool:
    if [*name] == [""]:  # the model itself
        return [*wanted] == [""]
    return len(name) == len(wanted) and all(map(fnmatch.fnmatchcase, name, wanted))


def _function(*args: Any, **kwargs: Any) -> Any:
    """The function that the task calls, with the kernel standing in for it."""
    place = _place_of_function()
    found = _call(place, _no_module, args, kwargs)
    return found if place.kinds is None else _of_kinds(found, place.kinds)


_no_module = nn.Module()


@functools.cache
def _place_of_function() -> _Place:
    its = _place_of(_reference(-1).Model(*VERIFIED[0].init), CALLED, is_own=True, made_with=VERIFIED[0].init)
    _drawn.cache_clear()
    return _Place({}, (*its.entries, *its.backwards), getattr(_reference(-1), CALLED), CALLED_WITH, kinds=its.kinds)


# Whether a module is what was verified --------------------------------------------------------------------------------


def _place_of(module: nn.Module, name: str, *, is_own: bool = False, made_with: Sequence[Any] | None = None) -> _Place:
    """The place that a module is. `is_own`: its class is that of the reference, made with the arguments `made_with`, or
    with those that were verified. Raises ValueError."""
    if _ATTRIBUTE in vars(module):
        raise ValueError(f"{name} is patched already")
    own, entries, others = dict(module.state_dict(keep_vars=True)), [], 0
    for number, entry in enumerate(VERIFIED):
        paths = _paired(own, _state_of(entry))
        if len(paths) == len(entry.state) == len(own):
            as_verified = is_own and (made_with is None or _fits(entry.init, made_with, (), 0))
            if (as_verified and not entry.alters and (not entry.kernel or entry.backward)) or _computes_the_same(
                module, paths, number
            ):
                entries.append(number)
            else:
                others += 1
    forwards = [number for number in entries if not VERIFIED[number].backward]
    if not forwards:
        has = ", ".join(f"{key} {list(tensor.shape)}" for key, tensor in own.items()) or "none"
        why = "does not compute what was verified" if others else f"has other parameters than were verified: {has}"
        raise ValueError(f"{name} {why}; {NAME} cannot stand in for it")
    least = min(forwards, key=_elements)
    paths, drawn = _paired(own, VERIFIED[least].state), _drawn(least, _device_of(module))
    given = [_given(module, paths, least) for _ in range(2)]
    once, again = (
        _answer(module, its, drawn, training=training) for its, training in zip(given, (False, True), strict=True)
    )
    # statistics that it gathers in training are its own work, too
    differs = [_off(_tensors(a), _tensors(b), 0.0) > 1 for a, b in ((once, again), given)]
    place = _Place(paths, entries, vars(module).get("forward"), eval_only=any(differs), kinds=_kinds(once))
    if own and not is_own:
        for number in (least, *sorted(place.backwards, key=_elements)[:1]):
            _require_right(place, module, number, name)
    return place


def _computes_the_same(module: nn.Module, paths: Mapping[str, str], number: int) -> bool:
    """Whether a module gives what the reference of an entry gives with the module's parameters: for the task's own
    inputs and for small ones, which tell constants that are added to them."""
    entry, drawn = VERIFIED[number], _drawn(number, _device_of(module))
    made_by, count = _reference(number).Model, len(entry.inputs)
    if entry.backward:
        made_by, count = _reference(number).Forward, sum(its is INPUT for its in PARAMETERS.values())
    reference = _made(made_by, entry.init, _device_of(module))
    for scale in (1.0, 2.0**-10):
        scaled = _filled(entry.inputs, iter([_scaled(t, scale) for t in _tensors(drawn)]))[:count]
        given = _given(module, paths, number)
        try:
            found = _answer(module, given, scaled)
        except (TypeError, ValueError, RuntimeError, LookupError):  # it takes other arguments, or other shapes
            return False
        wanted = _answer(reference, {key: given[path] for key, path in paths.items()}, scaled)
        if _form(found) != _form(wanted) or _off(_in_order(wanted, found), _tensors(wanted), 1e-5) > 1:
            return False
    return True


def _require_right(place: _Place, module: nn.Module, number: int, name: str) -> None:
    """Raise ValueError where the kernel can be run now and does not give what the module does, or its gradients: a
    constructor that packs parameters has packed others."""
    entry, drawn = VERIFIED[number], _drawn(number, _device_of(module))
    state, tensors = [_held(module, path) for path in place.paths.values()], _tensors(drawn)
    device = _first(tensors, state).device
    if _runs_on(device) and _fits(list(entry.state.values()), state, (), 0):
        with torch.no_grad():
            found = _answers(place.run(number, tensors, state), number)
        if entry.backward:
            reference = _made(_reference(number).Model, entry.init, device)
            with torch.no_grad():
                wanted = torch.func.functional_call(reference, dict(zip(entry.state, state, strict=True)), tuple(drawn))
        else:
            wanted = _answer(module, _given(module, place.paths, number), drawn)
        off = _off(found, _in_order(entry.outputs, wanted), TOLERANCE)
        if off > 1:
            raise ValueError(f"with the parameters of {name} the kernel is {off:.1f} times as far off as it may be")


def _elements(number: int) -> int:
    """Of the smallest inputs of an entry."""
    return sum(t.numel() for t in _without_data(VERIFIED[number]))


@functools.lru_cache(maxsize=2)
def _drawn(number: int, device: torch.device) -> list[Any]:
    """Inputs of an entry, with no more rows than needed."""
    entry = VERIFIED[number]
    with _own_random(device, 0), torch.device(device), torch.no_grad():
        found = _tensors(_reference(number).get_inputs())
    rows = max(64, entry.lead[0][0]) if entry.lead else 0
    cut = [t[:rows] if None in spec.shape else t for t, spec in zip(found, _INPUTS[number], strict=True)]
    copies = [t.detach().clone().to(device) for t in cut]
    if _has_contract:
        copies = [_kept_promise(t, spec) for t, spec in zip(copies, _INPUTS[number], strict=True)]
    filled: list[Any] = _filled(entry.inputs, iter(copies))
    return filled


def _scaled(tensor: Tensor, scale: float) -> Tensor:
    return (tensor.double() * scale).to(tensor.dtype) if tensor.is_floating_point() else tensor


def _device_of(module: nn.Module) -> torch.device:
    tensor = next(iter(module.state_dict().values()), None)
    return tensor.device if tensor is not None else torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _state_of(entry: Entry) -> dict[str, Spec]:
    """The forward's state, by its own names."""
    return {key.removeprefix(_HELD): spec for key, spec in entry.state.items()} if entry.backward else entry.state


def _given(module: nn.Module, paths: Mapping[str, str], number: int) -> dict[str, Tensor]:
    """Copies of a module's parameters in the dtypes of an entry, by the module's names for them."""
    state = _state_of(VERIFIED[number])
    return {path: _held(module, path).detach().clone().to(state[key].dtype) for key, path in paths.items()}


def _answer(module: nn.Module, state: dict[str, Tensor], inputs: list[Any], *, training: bool = False) -> Any:
    """What a module answers with other parameters, in evaluation or in training, which leaves it as it was."""
    takes = inspect.signature(module.forward).parameters
    fixed = {name: its.value for name, its in PARAMETERS.items() if isinstance(its, Given) and name in takes}
    by_name = dict(zip((name for name, value in PARAMETERS.items() if value is INPUT), inputs, strict=True))
    is_plain = list(PARAMETERS)[: len(inputs)] == list(by_name)
    # a module of a person's, unlike the task's Model around it, may take an argument by its name only
    by_place = [
        name
        for name in by_name
        if is_plain and not (name in takes and takes[name].kind is inspect.Parameter.KEYWORD_ONLY)
    ]
    were = {one: one.training for one in module.modules()}
    try:
        module.train(training)
        with torch.no_grad(), _own_random(_device_of(module), 0):
            named = {**by_name, **fixed}
            args = tuple(named.pop(name) for name in by_place)
            return torch.func.functional_call(module, state, args, named)
    finally:
        for one, was in were.items():
            one.training = was


def _off(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> float:
    """The largest error, as a multiple of what is allowed; infinite for other shapes or dtypes."""
    if [(t.shape, t.dtype) for t in found] != [(t.shape, t.dtype) for t in wanted]:
        return float("inf")
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        if torch.equal(one, other):  # also of no elements; a module is mostly made of the reference's own operations
            continue
        if not one.is_floating_point():
            worst = max(worst, float((one != other).double().mean()) * 100)  # one element in a hundred may be a tie
            continue
        a, b = one.double(), other.double()
        same = (a == b) | (a.isnan() & b.isnan())
        scale = b.abs() + b[b.isfinite()].square().mean().sqrt()
        error = torch.where(same, 0.0, (a - b).abs() / scale)
        allowed = tolerance + 4 * torch.finfo(one.dtype).eps
        worst = max(worst, float(error.nan_to_num(float("inf"), float("inf")).max()) / allowed)
    return worst


def _check() -> int:
    """Run the kernel for what was verified, as far as this machine can, and compare and time it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not _runs_on(device):
        print(f"no {ARCH} GPU here: the kernel was not run; the reference answers in its place")
        return 0
    wrong = 0
    for number, entry in enumerate(VERIFIED):
        if _is_too_large(number, device):
            print(f"- {entry.cases}: too large for Triton's interpreter")
            continue
        drawn = _drawn(number, device)
        shown = _shown_all(_tensors(drawn))
        model = _made(_reference(number).Model, entry.init, device)
        state = [_held(model, path) for path in entry.state]
        place = _Place({key: key for key in entry.state}, [number])
        with torch.no_grad():
            found = _answers(place.run(number, _tensors(drawn), state), number)
            off = _off(found, _tensors(model(*drawn)), TOLERANCE)
        times = _times(place, number, model, drawn, state)
        what = "gradients, " if entry.backward else ""
        print(f"{'✔' if off <= 1 else '✗'} {what}{shown}: the largest error is {off:.2g} of what is allowed{times}")
        wrong += off > 1
    return int(wrong > 0 or (bool(_backwards) and _is_step_wrong(device)))


def _is_too_large(number: int, device: torch.device) -> bool:
    """For Triton's interpreter, which is what runs on a CPU."""
    return device.type == "cpu" and _elements(number) > 300_000


def _shown_all(tensors: Sequence[Tensor]) -> str:
    return ", ".join(_shown(Spec(t.dtype, tuple(t.shape)), ()) for t in tensors)


def _is_step_wrong(device: torch.device) -> bool:
    """Whether a training step with the kernels has other gradients than the reference has. Tried, once all kernels are
    right, on the first verified inputs with gradients; on a GPU both are timed, forward and gradients together."""
    for number, entry in enumerate(VERIFIED):
        if entry.backward or _is_too_large(number, device):
            continue
        drawn = _drawn(number, device)
        inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in _tensors(drawn)]
        given = _filled(entry.inputs, iter(inputs))
        reference = _made(_reference(number).Model, entry.init, device).requires_grad_()
        ours = copy.deepcopy(reference)
        try:
            patch(ours)
        except ValueError as error:
            print(f"✗ a training step: {error}")
            return True
        # not seeded as the inputs: of a norm those have the gradient 0, and all is rounding
        with torch.enable_grad(), _own_random(device, 1):
            through = [torch.randn_like(t) for t in _tensors(reference(*given)) if t.requires_grad]
            steps = [_step(run, given, inputs, through) for run in (ours, reference)]
            found, wanted = (step() for step in steps)
            off = _off(found, wanted, TOLERANCE)
            if not calls(ours)[""]["gradients"]:
                continue
            times = ""
            if device.type == "cuda":
                compiled: Any = torch.compile(reference)
                steps.append(_step(compiled, given, inputs, through))
                told = zip(("", ", the reference ", ", compiled "), map(_step_time, steps), strict=True)
                times = "; " + "".join(who + time for who, time in told)
        words = f"the largest error of a gradient is {off:.2g} of what is allowed"
        print(f"{'✔' if off <= 1 else '✗'} a training step, {_shown_all(inputs)}: {words}{times}")
        return off > 1
    return False


def _step(
    run: nn.Module, given: Sequence[Any], inputs: Sequence[Tensor], through: Sequence[Tensor]
) -> Callable[[], list[Tensor]]:
    """A forward, and the gradients of the floating inputs and of the parameters for those of its outputs."""
    taken = [t for t in (*inputs, *run.parameters()) if t.requires_grad]

    def step() -> list[Tensor]:
        outputs = [t for t in _tensors(run(*given)) if t.requires_grad]
        return list(torch.autograd.grad(outputs, taken, through, allow_unused=True, materialize_grads=True))

    return step


def _step_time(step: Callable[[], list[Tensor]]) -> str:
    """The median of its replays as a CUDA graph, in which the host has no part; of its calls where none can hold it."""
    from triton.testing import do_bench

    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError:  # it reads a value on the host
        return f"{1000 * do_bench(step, return_mode='median'):.1f} us with its host"
    return f"{1000 * do_bench(graph.replay, return_mode='median'):.1f} us"


def _times(place: _Place, number: int, model: nn.Module, drawn: list[Any], state: list[Tensor]) -> str:
    """Medians of both on a GPU, roughly: `optimize verify` measures."""
    if any(t.device.type != "cuda" for t in (*_tensors(drawn), *state)):
        return ""
    from triton.testing import do_bench

    tensors, times = _tensors(drawn), []
    with torch.no_grad():
        for run in (lambda: place.run(number, tensors, state), lambda: model(*drawn)):
            times.append(1000 * do_bench(run, return_mode="median"))
    return f"; {times[0]:.1f} us, the reference {times[1]:.1f} us"
