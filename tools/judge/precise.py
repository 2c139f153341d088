"""Two ways to run a reference: in float64 throughout, and with rounding noise on every operation.

The first gives the answer; the spread of the second tells, element by element, how far an honest evaluation in
less precise arithmetic may be from it (cancellation, long sums, steep functions), whatever the operation is.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tools.judge.tree import Tree, map_tensors, tensors

NOISE = 2.0**-24  # small enough to stay linear, far above float64's own rounding
_NARROW = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every narrower floating tensor, cast or factory dtype becomes float64; integers stay."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.view.dtype and any(
            t.is_floating_point() for t in (args[0], torch.empty((), dtype=args[1]))
        ):
            raise TypeError("the reference reinterprets the bits of a float, which have another meaning in float64")
        keep = func._schema.is_mutable  # an in-place or out= operation must hit the tensor that it names
        wide = {k: _wide(v, keep=keep) for k, v in (kwargs or {}).items()}
        arguments = tree_map(lambda a: _wide(a, keep=keep), args)
        return self.finish(func, arguments, wide, func(*arguments, **wide))

    def finish(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """What becomes of an operation's result."""
        return result


class WithNoise(InFloat64):  # type: ignore[no-untyped-call]
    """Float64 as above, and each result multiplied by 1 ± NOISE, element by element."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator

    def finish(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Disturb new values; views, and what an in-place operation wrote, stay."""
        if any(r.alias_info is not None for r in func._schema.returns):
            return result
        return tree_map(self.disturb, result)

    def disturb(self, value: Any) -> Any:
        """The value with relative noise, when it is a floating tensor. Moves 34 bytes an element (70 if it computed the
        factors): an attention's scores are gigabytes in float64, and a judgement needs fifteen such runs."""
        if not isinstance(value, Tensor) or value.dtype != torch.float64:
            return value
        with torch.utils._python_dispatch._disable_current_modes():
            up = torch.randint(0, 2, value.shape, generator=self.generator, device=value.device, dtype=torch.bool)
            return value * torch.where(up, value.new_full((), 1 + NOISE), value.new_full((), 1 - NOISE))


class Disturbances:
    """A float64 reference, run again and again with relative noise. `run` calls a model; `exact` is the answer."""

    def __init__(
        self, run: Callable[[Any, Any], Tree], model: Any, inputs: Tree, exact: Tree, generator: Generator
    ) -> None:
        self._run, self._model, self._inputs, self._exact = run, model, inputs, exact
        self._generator = generator

    def spread(self, samples: int) -> Tree:
        """Root mean square change of each output by noise on every operation, relative to the noise."""
        total = map_tensors(torch.zeros_like, self._exact)
        for _ in range(samples):
            changes = self._changes(WithNoise(self._generator))
            for so_far, change in zip(tensors(total), changes, strict=True):
                if change.is_floating_point():
                    so_far += torch.nan_to_num(change, 0.0, 0.0, 0.0).square()
        return map_tensors(lambda t: (t / samples).sqrt() if t.is_floating_point() else t, total)

    def of_operands(self) -> Tree:
        """Change of each output by noise on inputs and parameters alone, relative to the noise; one sample."""
        changes = iter(self._changes(InFloat64()))  # type: ignore[no-untyped-call]
        return map_tensors(lambda _: next(changes), self._exact)

    def _changes(self, mode: InFloat64) -> list[Tensor]:
        noise = WithNoise(self._generator)
        model = copy.deepcopy(self._model).double()
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(noise.disturb(tensor))
        arguments = map_tensors(lambda t: noise.disturb(widened(t)), self._inputs)
        with mode:
            outputs = self._run(model, arguments)
        pairs = zip(tensors(outputs), tensors(self._exact), strict=True)
        return [(t - exact) / NOISE if exact.is_floating_point() else exact for t, exact in pairs]


def widened(tensor: Tensor) -> Tensor:
    """A copy, in float64 when it is floating."""
    return tensor.to(torch.float64, copy=True) if tensor.is_floating_point() else tensor.clone()


def _wide(value: Any, *, keep: bool) -> Any:
    if isinstance(value, torch.dtype) and value in _NARROW:
        return torch.float64
    if isinstance(value, Tensor) and value.dtype in _NARROW and not keep:
        return value.double()
    return value


@contextlib.contextmanager
def default_float64() -> Iterator[None]:
    """Factories without a dtype make float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def plain_arithmetic(*, tf32: bool) -> Iterator[None]:
    """Library calls at the precision of their dtype: TF32 only where declared, no narrow accumulators."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def flushed(tensor: Tensor) -> Tensor:
    """Denormals of float32's range as zeros, as kernels that flush see them."""
    if not tensor.is_floating_point() or torch.finfo(tensor.dtype).tiny > 2.0**-126:
        return tensor
    return torch.where(tensor.abs() < 2.0**-126, torch.zeros_like(tensor), tensor)


def differences(values: Tree, others: Tree) -> Tree:
    """|a - b| of each floating leaf, in the structure of `values`; other leaves stay."""
    pairs = zip(tensors(values), tensors(others), strict=True)
    changes = iter([(a - b).abs() if a.is_floating_point() else a for a, b in pairs])
    return map_tensors(lambda _: next(changes), values)
