"""Records what host code does with tensors: a dispatch mode over fake tensors. Runs in the jail.

Every ATen operator that touches data becomes an `Aten` step; operators that only make a view vanish, because a tensor
is written down as storage + dtype + shape + stride + offset. Values of constants that host code brings along
(`torch.tensor(data)`, numpy arrays) are kept as data.
"""

import base64
import ctypes
import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.messages import (
    DATA_DEPENDENT_SHAPE,
    FOREIGN_TENSOR,
    NOT_ALLOWED,
    POINTER_TABLE,
    UNKNOWN_OPERATOR,
    UNRESOLVED,
    Lowered,
    Program,
    Refused,
)
from kerneltune.tools.schema.plan import (
    MOST_STEPS,
    Aten,
    DescriptorArg,
    Kernel,
    Launch,
    LaunchArg,
    ScalarArg,
    Step,
    TensorArg,
    TensorRef,
    fill_of,
    is_allowed,
    is_descriptor,
    is_library,
)
from kerneltune.tools.schema.task import extent
from kerneltune.tools.schema.verdict import Cause

MAX_CONSTANT_BYTES = 64 << 20
_ADDRESS_BITS = 40
_MOST_ADDRESSES = 4096  # a longer table of integers is data
_RANDOM_SIDE_EFFECT_FREE = ("aten::sym_", "aten::is_", "prim::", "aten::_has_")


class CopiedFakes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors of which copies are of the same mode, and modules of which are converted while the mode is entered.

    torch's deepcopy of one copies its mode, too, and then refuses to mix the two: so any nn.TransformerEncoder, which
    copies its layer. And its `self.to(dtype)` in a constructor swaps storages, which it refuses where something watches
    a parameter, as the cache of fake operators does on its first call ("Couldn't swap Model.weight")."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._usual: list[Any] = []

    def __enter__(self) -> "CopiedFakes":
        super().__enter__()
        self._usual.append(torch.nn.Module._apply)
        torch.nn.Module._apply = _apply  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: Any) -> None:
        torch.nn.Module._apply = self._usual.pop()  # type: ignore[method-assign]
        super().__exit__(*error)

    def __deepcopy__(self, _memo: dict[int, Any]) -> "CopiedFakes":
        return self


def _apply(module: torch.nn.Module, function: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    """nn.Module._apply without swapping storages: a converted parameter is new."""
    if recurse:
        for child in module.children():
            _apply(child, function)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            converted = function(parameter.detach())
            module._parameters[name] = torch.nn.Parameter(converted, parameter.requires_grad)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def copies_are_clones() -> None:
    """Let a fake tensor be copied, in this process, by an operator that a plan can hold: torch's own deepcopy copies
    storages, which no step of a plan has."""

    def copied(tensor: FakeTensor, memo: dict[int, Any]) -> torch.Tensor:
        with torch.no_grad():
            copy = tensor.clone(memory_format=torch.preserve_format).requires_grad_(tensor.requires_grad)
        if getattr(tensor, "_is_param", False):  # how torch knows that a tensor of a class of its own is a parameter
            copy._is_param = True
        memo[id(tensor)] = copy
        return copy

    FakeTensor.__deepcopy__ = copied  # type: ignore[method-assign, assignment]


@dataclass
class Tape:
    """Everything recorded so far, of tensors on `device`. Storages are numbered in the order in which they are first
    seen. `call_start`: the step at which the call that is being recorded, the constructor's or forward's, begins."""

    device: str
    call_start: int = 0
    steps: list[Step] = field(default_factory=list)
    nbytes: dict[int, int] = field(default_factory=dict)
    constants: dict[int, str] = field(default_factory=dict)
    leads: dict[int, int] = field(default_factory=dict)  # how far past a multiple of 16 a storage's address is
    _ids: dict[int, int] = field(default_factory=dict)
    _keep: list[torch.Tensor] = field(default_factory=list)  # a freed storage's address could be given out again

    def clear(self) -> None:
        """Forget everything, in place: stand-ins hold a reference to this tape."""
        for collection in (self.steps, self.nbytes, self.constants, self.leads, self._ids, self._keep):
            collection.clear()
        self.call_start = 0

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of the tensor's storage."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._ids:
            self._ids[key] = len(self._ids)
            self._keep.append(tensor)
        number = self._ids[key]
        self.nbytes[number] = int(storage.nbytes())
        return number

    def address(self, tensor: torch.Tensor) -> int:
        """A synthetic device address, 1 TiB apart per storage: alignment tests and pointer-keyed caches see what a GPU
        would show."""
        number = self.storage(tensor)
        base = ((number + 1) << _ADDRESS_BITS) + self.leads.get(number, 0)
        return base + int(tensor.storage_offset()) * tensor.element_size()

    def at(self, address: int, dtype: str, item_bytes: int) -> TensorRef:
        """What lies at a synthetic address, to the end of its storage. Raises Refused for a made-up address."""
        number = (address >> _ADDRESS_BITS) - 1
        offset = (address & ((1 << _ADDRESS_BITS) - 1)) - self.leads.get(number, 0)
        if number not in self.nbytes or offset % item_bytes:
            raise Refused(
                f"a kernel argument points to {address:#x}, which is no tensor's address", Cause.FOREIGN_MEMORY
            )
        return TensorRef(number, dtype, ((self.nbytes[number] - offset) // item_bytes,), (1,), offset // item_bytes)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a step, an input or a constant has mentioned this tensor's storage."""
        return tensor.untyped_storage()._cdata in self._ids

    def ref(self, tensor: torch.Tensor) -> TensorRef:
        """The tensor as (storage, dtype, shape, stride, offset). Raises Refused where these do not say its values."""
        if tensor.is_conj() or tensor.is_neg():
            raise Refused(UNRESOLVED, Cause.OPERATOR)
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(int(n) for n in tensor.shape)
        stride = tuple(int(n) for n in tensor.stride())
        return TensorRef(self.storage(tensor), dtype, shape, stride, int(tensor.storage_offset()))

    def add_constant(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        """Note that the storage of `tensor` holds the bytes of that of the real CPU tensor `value`."""
        if self._holds_addresses(value):
            raise Refused(POINTER_TABLE, Cause.FOREIGN_MEMORY)
        number = self.storage(tensor)
        data = _bytes_of(value)
        if len(data) > MAX_CONSTANT_BYTES:
            raise Refused(f"a constant of {len(data) >> 20} MiB made by host code; the limit is 64 MiB", Cause.TOO_MUCH)
        self.nbytes[number] = len(data)
        self.constants[number] = base64.b64encode(zlib.compress(data, 1)).decode()

    def _holds_addresses(self, value: torch.Tensor) -> bool:
        """Whether an integer constant contains the synthetic address of a known storage."""
        if value.dtype != torch.int64 or value.numel() > _MOST_ADDRESSES:
            return False
        with _disable_current_modes():
            return any((int(v) >> _ADDRESS_BITS) - 1 in self.nbytes for v in value.flatten().tolist())


def _bytes_of(value: torch.Tensor) -> bytes:
    """All of its storage: offset and strides say what of it is the tensor's, as a part or a transpose of an array."""
    with _disable_current_modes():
        storage = value.untyped_storage()
        return ctypes.string_at(storage.data_ptr(), storage.nbytes()) if storage.nbytes() else b""


def argument_json(value: Any, tape: Tape) -> Json:
    """An operator argument as tagged JSON; see `schema.Aten`. Devices become None: a plan has one device."""
    if isinstance(value, torch.Tensor):
        return {"$tensor": encode(tape.ref(value))}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"$memory_format": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device | torch.layout | torch.Generator):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, list | tuple):
        return [argument_json(v, tape) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise Refused(f"an operator argument of type {type(value).__name__} cannot be part of a launch plan")


def tensors_in(*trees: Any) -> Iterator[torch.Tensor]:
    """All tensors anywhere inside the arguments."""
    for leaf in pytree.tree_leaves(trees):
        if isinstance(leaf, torch.Tensor):
            yield leaf


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The mode that writes the tape. Must be entered inside (after) its FakeTensorMode."""

    def __init__(self, fake: FakeTensorMode, tape: Tape, read_constant: Callable[[Tape, torch.Tensor], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake, self.tape, self._read_constant = fake, tape, read_constant

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator on fakes and write it down."""
        kwargs = kwargs or {}
        name = func.name()
        if name.startswith(_RANDOM_SIDE_EFFECT_FREE):
            return func(*args, **kwargs)
        if name == "inductor::_reinterpret_tensor":  # a view in Inductor's words
            return func(*args, **kwargs)
        if not name.startswith("aten::"):
            return self._custom(func, args, kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._as_fake, (args, kwargs))
        if name == "aten::lift_fresh":
            return args[0]
        if name in ("aten::_local_scalar_dense", "aten::item"):
            return self._read_constant(self.tape, args[0])
        known = [t.untyped_storage()._cdata for t in tensors_in(args, kwargs)]
        try:
            out = func(*args, **kwargs)
        except DynamicOutputShapeException as error:
            raise Refused(DATA_DEPENDENT_SHAPE, Cause.DATA_DEPENDENT_SHAPE) from error
        if func._schema.is_mutable or any(t.untyped_storage()._cdata not in known for t in tensors_in(out)):
            self._write(func, name, args, kwargs, out)
        return out

    def _write(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        if isinstance(out, torch.Tensor) and (filled := fill_of(name, args)) is not None:
            self._allocate(out, filled)
            return
        if not is_allowed(name):
            raise Refused(NOT_ALLOWED.format(op=name), Cause.OPERATOR)
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "layout", "pin_memory", "non_blocking")}
        outs = out if isinstance(out, list | tuple) else [out]
        tape = self.tape
        recorded = tuple(argument_json(a, tape) for a in args)
        named = {k: argument_json(v, tape) for k, v in kwargs.items()}
        refs = tuple(tape.ref(t) if isinstance(t, torch.Tensor) else None for t in outs)
        tape.steps.append(Aten(name, recorded, named, refs, library=is_library(name)))

    def _allocate(self, out: torch.Tensor, filled: list[Any]) -> None:
        """Every way to allocate is written as empty_strided (and fill_), so that no step reads another's metadata."""
        ref = self.tape.ref(out)
        dtype = {"dtype": {"$dtype": ref.dtype}}
        self.tape.steps.append(Aten("aten::empty_strided", (list(ref.shape), list(ref.stride)), dtype, (ref,)))
        if filled:
            arguments = ({"$tensor": encode(ref)}, argument_json(filled[0], self.tape))
            self.tape.steps.append(Aten("aten::fill_.Scalar", arguments, {}, (ref,)))

    def _as_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A real tensor that host code brings along becomes a fake whose bytes are plan data."""
        if isinstance(tensor, FakeTensor):
            return tensor
        with _disable_current_modes():
            fake = self.fake.from_tensor(tensor)
        if not self.tape.knows(fake):
            self.tape.add_constant(fake, tensor)
        return fake

    def _custom(self, func: Any, args: Any, kwargs: Any) -> Any:
        """torch.library operators: run their Python body, so that the launches inside are seen."""
        from torch._library.custom_ops import OPDEFS

        qualified = func._schema.name
        definition = OPDEFS.get(qualified)
        if definition is None:
            raise Refused(UNKNOWN_OPERATOR.format(op=qualified), Cause.OPERATOR)
        body = definition._backend_fns.get(self.tape.device, definition._init_fn)
        with self:
            return body(*args, **kwargs)


@dataclass
class LaunchLog:
    """The kernels and autotuner choices of one trace. `choices` maps an autotuner's key to a config index."""

    tape: Tape
    kernels: list[Kernel] = field(default_factory=list)
    choices: dict[str, int] = field(default_factory=dict)
    offered: dict[str, list[str]] = field(default_factory=dict)  # autotuner key -> its configs, as text
    ask_compiler: Callable[[Kernel], dict[str, Json]] | None = None
    ask_for_ptx: Callable[[Program], Lowered] | None = None

    def kernel_index(self, kernel: Kernel) -> int:
        """The kernel's number in the plan; equal kernels share one."""
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        return self.kernels.index(kernel)

    def choice(self, key: str, configs: Sequence[str]) -> int:
        """The number of the config that the trace wants of this autotuner; one of the same name that offers others is
        another."""
        texts, names = list(configs), (key if n == 1 else f"{key} ({n})" for n in itertools.count(1))
        return self.choices.get(next(name for name in names if self.offered.setdefault(name, texts) == texts), 0)

    def facts(self, kernel: Kernel) -> dict[str, Json]:
        """Registers, spills and shared memory of a kernel. Raises Refused."""
        if self.ask_compiler is None:
            raise Refused(
                "host code asks for registers or spills of a kernel; not available while tracing", Cause.ASKS_COMPILER
            )
        return self.ask_compiler(kernel)

    def lowered(self, program: Program) -> Lowered:
        """PTX of a program. Raises NotCompiled, and Refused where nobody is there to ask."""
        if self.ask_for_ptx is None:
            raise Refused("host code launches a program; there is no compiler to ask", Cause.ASKS_COMPILER)
        return self.ask_for_ptx(program)

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], values: Sequence[Any], types: Sequence[Any]) -> None:
        """Write one launch down; `types` are nested as the values are, "constexpr" for what is no argument."""
        if 0 in grid:
            return  # Triton does not launch an empty grid either
        if len(self.tape.steps) - self.tape.call_start >= MOST_STEPS:
            raise Refused(f"forward makes more than {MOST_STEPS} launches and operator calls", Cause.TOO_MUCH)
        args = tuple(_arguments(values, types, self.tape))
        cooperative = bool(kernel.options.get("launch_cooperative_grid"))
        pdl = bool(kernel.options.get("launch_pdl"))
        self.tape.steps.append(Launch(self.kernel_index(kernel), grid, args, cooperative, pdl))


def _arguments(values: Any, types: Any, tape: Tape) -> list[LaunchArg]:
    flat: list[LaunchArg] = []
    for value, kind in zip(values, types, strict=False):
        if isinstance(kind, tuple | list):
            flat.extend(_arguments(value, kind, tape))
        elif kind != "constexpr":
            flat.append(_argument(value, str(kind), tape))
    return flat


def _described(value: Any, tape: Tape) -> TensorRef:
    """What a descriptor describes. Not by as_strided, which lets a fake tensor's storage grow. Raises Refused."""
    shape, stride = tuple(map(int, value.shape)), tuple(map(int, value.strides))
    ref = replace(tape.ref(value.base), shape=shape, stride=stride)
    end = ref.offset + extent(shape, stride)
    if min(shape) > 0 and end * value.base.element_size() > tape.nbytes[ref.storage]:
        raise Refused(
            f"a tensor descriptor of {list(shape)} with strides {list(stride)} describes more than its tensor, which "
            f"has {tape.nbytes[ref.storage]} bytes",
            Cause.FOREIGN_MEMORY,
        )
    return ref


def _argument(value: Any, kind: str, tape: Tape) -> LaunchArg:
    if is_descriptor(value):
        if getattr(value, "round_f32_to_tf32", False):
            raise Refused(
                "a tensor descriptor with round_f32_to_tf32=True: a launch plan cannot say that its loads round; leave "
                "it out, and say by input_precision what tl.dot may do"
            )
        described = _described(value, tape)
        return DescriptorArg(described, tuple(value.block_shape), str(getattr(value, "padding", "zero")))
    tensor = getattr(value, "base", value)  # triton.reinterpret wraps a tensor
    if isinstance(tensor, torch.Tensor):
        if tensor.device.type != tape.device:
            raise Refused(FOREIGN_TENSOR.format(device=tensor.device), Cause.FOREIGN_MEMORY)
        return TensorArg(tape.ref(tensor))
    if isinstance(value, bool | int | float):
        return ScalarArg(value, kind)
    if hasattr(value, "data_ptr") and isinstance(getattr(value, "dtype", None), torch.dtype):
        dtype = value.dtype  # an object that only looks like a tensor: known by its address
        return TensorArg(tape.at(int(value.data_ptr()), str(dtype).removeprefix("torch."), dtype.itemsize))
    raise TypeError(f"cannot pass {type(value).__name__} to a kernel")
