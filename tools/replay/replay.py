"""Replays a launch plan on any device: ATen steps by torch, kernels by the launcher it is given.

Knows no device and no interpreter. Every tensor is a bounds-checked view of a flat uint8 tensor, one per storage.
What the plan allocates as empty is poisoned, so that an element that nobody writes shows.

A storage that `run` allocates (or fills) itself, and that holds an output, is laid directly into the caller's buffer;
any other output (an input returned, a library operator's result) gets a region into which it is copied afterwards.
Two processes that hold the same plan compute the same layout.
"""

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch

from kerneltune.tools.schema.codec import Json, decode, inflated
from kerneltune.tools.schema.plan import (
    EMPTY,
    FILLS,
    NO_OPS,
    Aten,
    DescriptorArg,
    Kernel,
    Launch,
    LaunchArg,
    Plan,
    Step,
    Storage,
    TensorArg,
    TensorRef,
    base_name,
    is_allowed,
    tensor_refs,
)
from kerneltune.tools.schema.task import extent, rebuilt, row_major, tagged


class NotAllowed(ValueError):
    """The plan holds an operator, an argument or a dtype that no plan may hold."""


@cache
def resolve(op: str) -> Any:
    """The torch operator named "aten::name.overload". Raises NotAllowed."""
    if not is_allowed(op):
        raise NotAllowed(f"operator {op} is not on the list of operators that a plan may hold")
    name, _, overload = op.removeprefix("aten::").partition(".")
    try:
        return getattr(getattr(torch.ops.aten, name), overload or "default")
    except AttributeError as error:
        raise NotAllowed(f"operator {op} does not exist in torch {torch.__version__}") from error


@cache
def takes_device(op: str) -> bool:
    """Whether the operator has a `device` argument."""
    return any(a.name == "device" for a in resolve(op)._schema.arguments)


@cache
def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of that name ("float32"). Raises NotAllowed."""
    dtype = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(dtype, torch.dtype):
        raise NotAllowed(f"no dtype {name!r}")
    return dtype


def decode_argument(value: Json, view: Callable[[TensorRef], torch.Tensor]) -> Any:
    """Tagged JSON back to an operator argument; `view` finds tensors. Raises NotAllowed on an unknown tag, DecodeError
    for a tensor that is none."""
    if isinstance(value, list | tuple):
        return [decode_argument(v, view) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        if tag == "$tensor":
            return view(decode(TensorRef, inner))
        if tag == "$dtype":
            return dtype_named(str(inner))
        if tag == "$float":
            return float(inner)
        if tag == "$memory_format":
            return _memory_format(str(inner))
    raise NotAllowed(f"unknown argument {value!r:.100}")


def _memory_format(name: str) -> torch.memory_format:
    found = getattr(torch, name, None) if name.isidentifier() else None
    if not isinstance(found, torch.memory_format):
        raise NotAllowed(f"no memory format {name!r}")
    return found


# NaN in every float format; +huge; -huge; 65504-like in fp16. As integers: -1, large, large negative, large.
POISONS = (-1, 0x7F7F7F7F, 0xFF7FFF7F - (1 << 32), 0x7BFF7BFF)


class ReplayError(ValueError):
    """The plan does not fit the storages it was given, or refers outside of them."""


@dataclass(frozen=True)
class TensorDescriptor:
    """A host-side tensor descriptor over a view."""

    tensor: torch.Tensor
    block_shape: tuple[int, ...]
    padding: str = "zero"


Argument = torch.Tensor | int | float | bool | TensorDescriptor
Allocate = Callable[[int], torch.Tensor]


class Launcher(Protocol):
    """Runs one kernel launch on the device of the tensors."""

    def launch(
        self,
        kernel_index: int,
        kernel: Kernel,
        grid: tuple[int, int, int],
        args: Sequence[Argument],
        launch: Launch,
    ) -> None:
        """Run (or enqueue) the kernel over the grid; `args` in the kernel's order."""
        ...


def poison(flat: torch.Tensor, turn: int) -> None:
    """Overwrite a flat uint8 tensor with the poison of this turn."""
    whole = flat.numel() // 4 * 4
    if whole:
        flat[:whole].view(torch.int32).fill_(POISONS[turn % len(POISONS)])
    flat[whole:].fill_(0xFF)


def dtype_bytes(name: str) -> int:
    """Bytes of one element of the torch dtype of that name."""
    return dtype_named(name).itemsize


def view_of(flat: torch.Tensor, ref: TensorRef) -> torch.Tensor:
    """The strided view of a flat uint8 tensor that `ref` describes. Raises ReplayError when it leaves the storage."""
    dtype = dtype_named(ref.dtype)
    end = ref.offset + extent(ref.shape, ref.stride)
    negative = ref.offset < 0 or any(n < 0 for n in (*ref.shape, *ref.stride))
    empty = 0 in ref.shape
    if negative or (not empty and end * dtype.itemsize > flat.numel()):
        raise ReplayError(f"{ref} leaves its storage of {flat.numel()} bytes")
    if empty:
        return torch.empty(ref.shape, dtype=dtype, device=flat.device)
    typed = flat[: flat.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
    return typed.as_strided(ref.shape, ref.stride, typed.storage_offset() + ref.offset)


class Replay:
    """Replays one plan on one set of storages.

    `storages` maps "input:<name>" and "state:<name>" to flat uint8 tensors on `device`. `bound` may pin scratch
    storages (by id) to memory of the caller, who then reads the outputs there. `allocate` makes flat uint8 tensors.
    `ready` are constants and prepared storages of another replay of the same plan, which `shareable` gives. Without
    `poisons` what is allocated stays as `allocate` made it.
    """

    def __init__(
        self,
        plan: Plan,
        device: str,
        launcher: Launcher | None,
        storages: Mapping[str, torch.Tensor],
        *,
        bound: Mapping[int, torch.Tensor] | None = None,
        allocate: Allocate | None = None,
        ready: Mapping[int, torch.Tensor] | None = None,
        poisons: bool = True,
    ) -> None:
        self._poisons = poisons
        self.plan, self.device, self._launcher = plan, device, launcher
        self._allocate = allocate or (lambda n: torch.empty(n, dtype=torch.uint8, device=device))
        self._by_id = {s.id: s for s in plan.storages}
        self._flat: dict[int, torch.Tensor] = dict(ready or {})
        self._empty: set[int] = set()  # made by an allocation step: ours to poison
        self._adopted: set[int] = set()  # results of library operators: a new tensor each time
        self._pristine: dict[int, torch.Tensor] = {}
        for storage in plan.storages:
            self._bind_given(storage, storages)
        for number, flat in (bound or {}).items():
            self._flat[number] = _fitting(flat, self._storage(number))
            self._empty.add(number)

    def prepare(self) -> None:
        """Do what the constructor (and a lazy first forward) did; keep copies of what must survive between runs."""
        for step in self.plan.prepare:
            self._step(step)
        self._pristine = {n: f.clone() for n, f in self._flat.items() if self._storage(n).origin == "prepared"}
        self._empty -= set(self._pristine)

    def shareable(self) -> dict[int, torch.Tensor]:
        """What further replays of this plan need not make again, once this one is prepared."""
        shared = {n for n in self._flat if self._storage(n).origin in ("constant", "prepared")}
        return {n: self._flat[n] for n in shared}

    def run(self) -> Any:
        """Do one forward; returns its outputs (tensors in tuples, lists and dicts)."""
        for step in self.plan.run:
            self._step(step)
        return self.outputs()

    def run_step(self, step: Step) -> None:
        """Do one step by itself (to time it)."""
        self._step(step)

    def outputs(self) -> Any:
        """The outputs as they are now."""
        return map_outputs(self.plan.outputs, self.view)

    def again(self) -> Any:
        """Run one forward more, as a caller's next call would be: what is kept between calls is as the last one left
        it. None where that is what it was, so that nothing can come out otherwise."""
        kept = [(n, f) for n, f in self._flat.items() if self._storage(n).origin in ("constant", "prepared")]
        pristine = {n: self._pristine[n] if n in self._pristine else constant_bytes(self._storage(n)) for n, _ in kept}
        if all(torch.equal(flat.cpu(), pristine[n].cpu()) for n, flat in kept):
            return None
        for number in self._empty:
            poison(self._flat[number], 1)
        return self.run()

    def _bind_given(self, storage: Storage, storages: Mapping[str, torch.Tensor]) -> None:
        if storage.origin in ("input", "state"):
            name = f"{storage.origin}:{storage.name}"
            if name not in storages:
                raise ReplayError(f"the plan reads {name}; given are {', '.join(storages) or 'none'}")
            self._flat[storage.id] = _fitting(storages[name], storage)
        elif storage.data is not None and storage.id not in self._flat:
            flat = self._allocate(storage.nbytes)
            flat.copy_(constant_bytes(storage))
            self._flat[storage.id] = flat

    def _storage(self, number: int) -> Storage:
        if number not in self._by_id:
            raise ReplayError(f"no storage {number} in the plan")
        return self._by_id[number]

    def view(self, ref: TensorRef) -> torch.Tensor:
        """The tensor that `ref` names, as it is now."""
        flat = self._flat.get(ref.storage)
        if flat is None:
            raise ReplayError(f"storage {ref.storage} is used before anything made it")
        return view_of(flat, ref)

    def _step(self, step: Step) -> None:
        if isinstance(step, Launch):
            self._launch(step)
        else:
            self._aten(step)

    def _launch(self, step: Launch) -> None:
        if self._launcher is None:
            raise ReplayError("this replay has no launcher")
        if not 0 <= step.kernel < len(self.plan.kernels):
            raise ReplayError(f"no kernel {step.kernel} in the plan")
        kernel = self.plan.kernels[step.kernel]
        if len(step.args) != len(kernel.signature):
            raise ReplayError(f"{kernel.name} takes {len(kernel.signature)} arguments, not {len(step.args)}")
        self._launcher.launch(step.kernel, kernel, step.grid, [self._argument(a) for a in step.args], step)

    def _argument(self, arg: LaunchArg) -> Argument:
        if isinstance(arg, TensorArg):
            return self.view(arg.tensor)
        if isinstance(arg, DescriptorArg):
            return TensorDescriptor(self.view(arg.tensor), arg.block_shape, arg.padding)
        return arg.value

    def _aten(self, step: Aten) -> None:
        name = base_name(step.op)
        resolve(step.op)
        if name in NO_OPS:
            return
        if name in EMPTY:
            for ref in step.outs:
                self._make_empty(ref)
        elif name in FILLS and len(step.outs) == 1 and step.outs[0] is not None:
            self._make(step.outs[0]).fill_(self._fill_value(step, FILLS[name]))
        else:
            self._call(step)

    def _make_empty(self, ref: TensorRef | None) -> None:
        if ref is not None and ref.storage not in self._flat:
            self._make(ref)
            self._empty.add(ref.storage)
            if self._poisons:
                poison(self._flat[ref.storage], 0)

    def _make(self, ref: TensorRef) -> torch.Tensor:
        if ref.storage not in self._flat:
            self._flat[ref.storage] = self._allocate(self._storage(ref.storage).nbytes)
        return self.view(ref)

    def _fill_value(self, step: Aten, place: int | None) -> Any:
        if place is None:
            return 1 if "ones" in step.op else 0
        given = step.args[place] if len(step.args) > place else step.kwargs.get("fill_value", step.kwargs.get("s"))
        return decode_argument(given, self.view)

    def _call(self, step: Aten) -> None:
        args = [decode_argument(a, self.view) for a in step.args]
        kwargs = {k: decode_argument(v, self.view) for k, v in step.kwargs.items()}
        if takes_device(step.op):
            kwargs["device"] = self.device
        result = resolve(step.op)(*args, **kwargs)
        results = result if isinstance(result, list | tuple) else [result]
        for ref, value in zip(step.outs, results, strict=False):
            if ref is not None and isinstance(value, torch.Tensor):
                self._take(ref, value)

    def _take(self, ref: TensorRef, value: torch.Tensor) -> None:
        """Let the storage of `ref` hold a result: in place already, or adopted as it is, or copied."""
        known = ref.storage in self._flat and ref.storage not in self._adopted
        if known and _same_memory(self.view(ref), value):
            return
        nbytes = self._storage(ref.storage).nbytes
        if not known and _matches(ref, value, nbytes):
            whole = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value.untyped_storage())
            self._flat[ref.storage] = whole[:nbytes]
            self._adopted.add(ref.storage)
            return
        if ref.storage in self._adopted:
            self._adopted.discard(ref.storage)
            self._flat.pop(ref.storage, None)
        self._make(ref).copy_(value)


def _same_memory(view: torch.Tensor, value: torch.Tensor) -> bool:
    return view.data_ptr() == value.data_ptr() and (view.numel() == 0 or value.data_ptr() != 0)


def _matches(ref: TensorRef, value: torch.Tensor, nbytes: int) -> bool:
    """Whether the result lies in its storage exactly as the plan says."""
    layout = (tuple(value.shape), tuple(value.stride()), value.storage_offset(), value.dtype)
    wanted = (ref.shape, ref.stride, ref.offset, dtype_named(ref.dtype))
    return layout == wanted and value.untyped_storage().nbytes() >= nbytes


def _fitting(flat: torch.Tensor, storage: Storage) -> torch.Tensor:
    if flat.dtype is not torch.uint8 or flat.dim() != 1 or flat.numel() < storage.nbytes:
        given = f"{flat.numel() * flat.element_size()} bytes of {flat.dtype}"
        raise ReplayError(f"storage {storage.id} ({storage.name}) needs {storage.nbytes} flat uint8 bytes, not {given}")
    return flat[: storage.nbytes]


def constant_bytes(storage: Storage) -> torch.Tensor:
    """The bytes of a constant, on the CPU. Raises ReplayError when they are not `nbytes` long."""
    try:
        raw = inflated(base64.b64decode(storage.data), storage.nbytes) if storage.data else b""
    except ValueError as error:
        raise ReplayError(f"constant {storage.id}, of {storage.nbytes} bytes: {error}") from error
    if len(raw) != storage.nbytes:
        raise ReplayError(f"constant {storage.id} has {len(raw)} bytes, not {storage.nbytes}")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)


def map_outputs(tree: Json, leaf: Callable[[TensorRef], Any]) -> Any:
    """A plan's `outputs` with `leaf` applied to its tensors: {"$tuple"}, {"$dict"} and lists become Python's own."""
    return rebuilt(tree, {"$tensor": lambda tensor, _: leaf(decode(TensorRef, tensor["$tensor"]))})


def gather_outputs(outputs: Any, leaves: list[np.ndarray[Any, Any]]) -> Json:
    """Outputs as JSON with {"$blob": index, "dtype", "shape"} leaves; their bytes (row-major) go to `leaves`."""

    def leaf(value: Any) -> Json:
        if not isinstance(value, torch.Tensor):
            return value
        data = value.detach().cpu().contiguous().reshape(-1)
        leaves.append(data.view(torch.uint8).numpy() if data.numel() else np.empty(0, np.uint8))
        shape, dtype = list(value.shape), str(value.dtype).removeprefix("torch.")
        return {"$blob": len(leaves) - 1, "dtype": dtype, "shape": shape}

    return tagged(outputs, leaf)


ALIGNMENT = 512


@dataclass(frozen=True)
class OutputLayout:
    """Offsets into one slot's output buffer of `nbytes`: of storages laid into it, and of outputs copied into it."""

    bound: dict[int, int]
    copied: tuple[tuple[TensorRef, int], ...]
    nbytes: int


def aligned(nbytes: int, to: int = ALIGNMENT) -> int:
    """Rounded up, at least one unit."""
    return max(1, -(-nbytes // to)) * to


def output_layout(plan: Plan) -> OutputLayout:
    """Lay out the outputs of one forward."""
    made = _made_by_run(plan)
    bound: dict[int, int] = {}
    copied: dict[TensorRef, int] = {}
    end = 0
    for ref in tensor_refs(plan.outputs):
        if ref.storage in made and ref.storage not in bound:
            bound[ref.storage] = end
            end += aligned(plan.storage(ref.storage).nbytes)
        elif ref.storage not in made and ref not in copied:
            copied[ref] = end
            end += aligned(dense_bytes(ref))
    return OutputLayout(bound, tuple(copied.items()), aligned(end))


def dense_bytes(ref: TensorRef) -> int:
    """Bytes of a row-major copy."""
    return math.prod(ref.shape) * dtype_bytes(ref.dtype)


def dense(ref: TensorRef) -> TensorRef:
    """The same tensor, row-major and from the start of its storage."""
    return TensorRef(ref.storage, ref.dtype, ref.shape, row_major(ref.shape))


def _made_by_run(plan: Plan) -> set[int]:
    """Scratch storages whose first mention in `run` is an allocation or a fill."""
    scratch = {s.id for s in plan.storages if s.origin == "scratch"}
    made: set[int] = set()
    other: set[int] = set()
    for step in plan.run:
        if isinstance(step, Aten):
            results = {r.storage for r in step.outs if r is not None}
            allocates = base_name(step.op) in EMPTY or base_name(step.op) in FILLS
            (made if allocates else other).update(results & scratch - made - other)
    return made
