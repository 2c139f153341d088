"""Arguments and results of a model as trees: tuples, lists and dicts with tensors or plain values as leaves.

Paths are those of a launch plan ("0", "2.mask"); specs are the JSON of `tools.schema.task` ({"$tensor": …}).
"""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite, prod
from typing import Any

import torch
from torch import Tensor

from kerneltune.tools.replay.replay import POISONS
from kerneltune.tools.schema.codec import Json, encode
from kerneltune.tools.schema.task import Contract, TensorSpec, extent, row_major, tagged

AT_ONCE = 1 << 27  # elements that values are drawn for, or answered in float64, at a time: 1 GiB of float64
# NaN first; then -65504 in float16, infinity in float32, zeros and ones: what nobody would notice in a kernel's answer
_UNDEFINED = torch.tensor((*POISONS, 0xFBFFFBFF - (1 << 32), 0x7F800000, 0, 0x3F800000), dtype=torch.int32)
_PERIOD = 4099  # words, a prime, so that no two rows hold the same
Tree = Any  # Tensor, tuple, list, dict, int, float, bool, str or None, recursively


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Return all leaves with their paths, in order; the path of a lone leaf is "" ."""
    if isinstance(tree, dict):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        items = [(str(index), value) for index, value in enumerate(tree)]
    else:
        yield path, tree
        return
    for key, value in items:
        yield from leaves(value, f"{path}.{key}" if path else key)


def tensors(tree: Tree) -> Iterator[Tensor]:
    """Return all tensors, in order."""
    return (leaf for _, leaf in leaves(tree) if isinstance(leaf, Tensor))


def named(inputs: Tree, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor by its name in a launch plan: "input:0", "state:weight"."""
    found = {f"input:{path}": leaf for path, leaf in leaves(inputs) if isinstance(leaf, Tensor)}
    return found | {f"state:{name}": tensor for name, tensor in state.items()}


def map_tensors(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """The same tree with `function` applied to each tensor; named tuples become tuples."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: map_tensors(function, value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [map_tensors(function, value) for value in tree]
    if isinstance(tree, tuple):
        return tuple(map_tensors(function, value) for value in tree)
    return tree


def portions(tensor: Tensor) -> Iterator[tuple[slice, ...]]:
    """Parts of at most AT_ONCE elements (or of one row), to be worked on one after the other: what draws and sorts
    values takes 30 bytes an element beside them, for which a tensor of 6 GB left no room on a GPU of 139 GiB."""
    dim = next((dim for dim, size in enumerate(tensor.shape) if size > 1), 0)
    if tensor.numel() <= AT_ONCE or tensor.dim() == 0:
        yield (slice(None),) * tensor.dim()
        return
    step = max(1, AT_ONCE // (tensor.numel() // tensor.shape[dim]))
    for start in range(0, tensor.shape[dim], step):
        yield (*(slice(None),) * dim, slice(start, start + step))


def stored_as(model: Tree, values: Tree) -> Tree:
    """The values in the dtypes of a tree with as many tensors."""
    formats = iter([tensor.dtype for tensor in tensors(model)])
    return map_tensors(lambda tensor: tensor.to(next(formats)), values)


def map_leaves(function: Callable[[str, Tensor], Any], tree: Tree) -> Tree:
    """The same tree with `function` applied to the path of each tensor and the tensor."""
    paths = (path for path, leaf in leaves(tree) if isinstance(leaf, Tensor))
    return map_tensors(lambda tensor: function(next(paths), tensor), tree)


def dtype_name(dtype: torch.dtype) -> str:
    """torch's name without `torch.`"""
    return str(dtype).removeprefix("torch.")


def tensor_spec(tensor: Tensor) -> TensorSpec:
    """Shape and dtype, and strides unless they are row-major."""
    stride = None if tensor.is_contiguous() else tuple(tensor.stride())
    return TensorSpec(tuple(tensor.shape), dtype_name(tensor.dtype), stride)


def spec_of(tree: Tree) -> Json:
    """The tree as JSON with {"$tensor": …}, {"$tuple": …}, {"$dict": …} and {"$float": "inf"}."""
    return tagged(tree, _leaf)


def _leaf(value: Any) -> Json:
    if isinstance(value, Tensor):
        return {"$tensor": encode(tensor_spec(value))}
    if isinstance(value, float) and not isfinite(value):
        return {"$float": str(value)}  # JSON has none, and a text would stay one
    if value is None or isinstance(value, bool | int | float | str):
        return encode(value)
    if isinstance(value, torch.dtype):
        return {"$dtype": dtype_name(value)}
    raise TypeError(
        f"arguments and results are tensors, numbers, strings or None, not {type(value).__name__}, "
        "which Model itself can make or take apart"
    )


def nbytes(tree: Tree) -> int:
    """Bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors(tree))


def numel(tree: Tree) -> int:
    """Elements of all tensors."""
    return sum(t.numel() for t in tensors(tree))


def is_float8(tensor: Tensor) -> bool:
    """Whether the tensor holds floats of 8 bits, for which torch has conversions and hardly anything else."""
    return tensor.is_floating_point() and tensor.element_size() == 1


def rows_at(tensor: Tensor, axis: int, rows: Tensor) -> Tensor:
    """The elements at those places of an axis, of any dtype: torch cannot index floats of 8 bits."""
    if is_float8(tensor):
        return tensor.view(torch.uint8).index_select(axis, rows).view(tensor.dtype)
    return tensor.index_select(axis, rows)


def is_finite(tree: Tree) -> bool:
    """Whether no floating tensor holds NaN or Inf."""
    floats = (t for t in tensors(tree) if t.is_floating_point())
    return all(bool(torch.isfinite(t.float() if is_float8(t) else t).all()) for t in floats)


def pitched(tensor: Tensor, contract: Contract) -> Tensor:
    """A row-major tensor with its rows as far apart as its contract says."""
    padded = contract.padded(tensor.shape)
    if padded == tuple(tensor.shape) or not tensor.numel():
        return tensor
    flat = torch.full((prod(padded) * tensor.element_size(),), 0xFF, dtype=torch.uint8, device=tensor.device)
    return flat.view(tensor.dtype).as_strided(tensor.shape, row_major(padded)).copy_(tensor)


def laid_out(values: Tensor, own: Tensor) -> Tensor:
    """The values at the strides of another tensor of their shape: rows that lie apart stay apart, with what is between
    them, and a dimension of stride 0 holds its first values. Kernels are told the strides of the task's own inputs."""
    if values.stride() == own.stride() or values.numel() == 0:
        return values
    flat = own.as_strided((extent(own.shape, own.stride()),), (1,), own.storage_offset()).to(values.dtype, copy=True)
    return _put(values, flat.as_strided(own.shape, own.stride()))


def _put(values: Tensor, into: Tensor) -> Tensor:
    """Copy values element by element; where a dimension has a stride of 0, the first ones."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in into.stride())
    into[once].copy_(values[once])
    return into


def extent_bytes(tensor: Tensor) -> int:
    """Bytes from the tensor's first element to its last."""
    return extent(tensor.shape, tensor.stride()) * tensor.element_size()


def readable_bytes(tensor: Tensor, contract: Contract | None) -> int:
    """Bytes that may be read behind the tensor's last element."""
    return contract.readable(tensor.shape) * tensor.element_size() if contract and tensor.numel() else 0


def write(region: Tensor, tensor: Tensor) -> None:
    """Copy a tensor as it lies in memory, strides included, into flat bytes."""
    nbytes = extent_bytes(tensor)
    if nbytes:
        flat = tensor.as_strided((nbytes // tensor.element_size(),), (1,), tensor.storage_offset())
        region[:nbytes].copy_(flat.view(torch.uint8))


def like(region: Tensor, tensor: Tensor) -> Tensor:
    """The region seen as a tensor of the same dtype, shape and strides."""
    if tensor.numel() == 0:
        return torch.empty_like(tensor, device=region.device)
    typed = region[: extent_bytes(tensor)].view(tensor.dtype)
    return typed.as_strided(tensor.shape, tensor.stride(), typed.storage_offset())


def write_promised(region: Tensor, tensor: Tensor, contract: Contract | None, seed: int) -> None:
    """Copy a tensor as it lies in memory into flat bytes; where it has a contract, what is between its elements and may
    be read behind them gets undefined values, others for each seed."""
    write(region, tensor)
    if contract is None or not tensor.numel():
        return
    start = extent_bytes(tensor) if tensor.is_contiguous() else 0
    end = extent_bytes(tensor) + readable_bytes(tensor, contract)
    make_undefined(region[start:end], seed)
    if not start:
        _put(tensor, like(region, tensor))


def make_undefined(flat: Tensor, seed: int) -> None:
    """Fill flat bytes with what no result may depend on: NaN, or for every other seed a mixture of values in an order
    of its own. Both, since a maximum may leave a NaN out, and a product with zero a finite value."""
    generator = torch.Generator().manual_seed(seed % (1 << 63))
    order = torch.randint(0, len(_UNDEFINED), (_PERIOD,), generator=generator) * (seed % 2)
    period = _UNDEFINED[order].view(torch.uint8).to(flat.device)
    times = flat.numel() // period.numel()
    whole = times * period.numel()
    flat[:whole].view(times, period.numel()).copy_(period)
    flat[whole:].copy_(period[: flat.numel() - whole])


def promised(tensor: Tensor, contract: Contract | None = None, seed: int = 0) -> Tensor:
    """A copy of the bytes from the tensor's first element to the last that may be read, as they lie in memory (strides
    included)."""
    nbytes = extent_bytes(tensor) + readable_bytes(tensor, contract)
    region = torch.empty(nbytes, dtype=torch.uint8, device=tensor.device)
    write_promised(region, tensor.detach(), contract, seed)
    return region


def raw_bytes(tensor: Tensor, contract: Contract | None = None, seed: int = 0) -> memoryview:
    """The same on the CPU, for a message."""
    return promised(tensor.cpu(), contract, seed).numpy().data
