"""Rewrites of a forward's graph that are exact in real numbers: a sum over a linear map's outputs needs none of them.

Graphs of ATen operators, as `inductor` traces them. Each rewrite is exact where all that the forward computes is
finite; what became NaN or infinite there may be a number afterwards (the difference of equals is 0).

Tensors of 16 bits are summed in float32. What is read by something else, too, is computed anyhow and left alone.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten
ValueOf = Callable[[Any], Any]  # of a node the tensor; of a number the number
Make = Callable[[ValueOf], Any]  # what takes a node's place
Found = tuple[str, Make] | None  # with the rewrite's name
Graph = torch.fx.GraphModule

_MOST_PASSES = 10
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_BOUNDS: dict[Any, tuple[tuple[Any, ...], Callable[[Any, Any], bool]]] = {
    aten.clamp_min.default: ((aten.minimum.default, aten.clamp_max.default), operator.ge),
    aten.clamp_max.default: ((aten.maximum.default, aten.clamp_min.default), operator.le),
}
_ONE = "reduction of one element"


def allowed(graph: Graph) -> list[str]:
    """The rewrites that apply to it as it is, each once."""
    found = filter(None, map(_rewrite, _without_dead(graph).graph.nodes))
    return list(dict.fromkeys(name for name, _ in found))


def rewritten(graph: Graph, trace: Callable[[Callable[..., Any]], Graph]) -> tuple[Graph, list[str]]:
    """The graph after all rewrites, and their names in the order in which they were made. `trace` makes a graph of a
    function of the same arguments."""
    names: list[str] = []
    for _ in range(_MOST_PASSES):
        rewriting = _Rewriting(_without_dead(graph))
        made = trace(rewriting.run)
        if not rewriting.names:
            break
        graph, names = _without_dead(made), names + rewriting.names
    return graph, list(dict.fromkeys(names))


class _Rewriting(torch.fx.Interpreter):
    """Computes what a graph does, with what takes the place of some of its nodes."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.names: list[str] = []

    def run_node(self, n: Node) -> Any:
        if (found := _rewrite(n)) is None:
            return super().run_node(n)
        name, make = found
        self.names.append(name)
        return make(lambda arg: self.env[arg] if isinstance(arg, Node) else arg)


def _without_dead(graph: Graph) -> Graph:
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(graph.graph, {}))
    copied.eliminate_dead_code()
    return torch.fx.GraphModule(graph, copied)


def _rewrite(node: Any) -> Found:
    rules = (_of_one, _log_sum_of_one, _sum_or_mean, _pooling, _difference, _clamped)
    return next(filter(None, (rule(node) for rule in rules)), None) if node.op == "call_function" else None


# ---
# What is known of a node.


def _calls(node: Any, *targets: Any) -> bool:
    return isinstance(node, Node) and node.target in targets


def _is_node(arg: Any) -> bool:
    return isinstance(arg, Node)


def _shape(node: Any) -> Sequence[Any]:
    return tuple(node.meta["val"].shape)


def _dtype(node: Any) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other, strict=True))


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _is_read_once(node: Any) -> bool:
    return _is_node(node) and node.op == "call_function" and len(node.users) == 1


def _reduced(node: Any) -> tuple[Any, tuple[int, ...], bool] | None:
    """What a reduction reads, over which dimensions, and whether these stay; None where the dtype changes."""
    x = node.args[0]
    if node.kwargs or not _is_node(x) or _dtype(x) != _dtype(node):
        return None
    rank = len(_shape(x))
    listed: Any = node.args[1] if len(node.args) > 1 and node.args[1] else range(rank)
    return x, tuple(sorted(dim % rank for dim in listed)), len(node.args) > 2 and bool(node.args[2])


def _product_of(sizes: Sequence[Any]) -> int | None:
    """None where they are not known."""
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


# ---
# One element alone, equals, and what ends at a bound whatever it is.


def _of_one(node: Any) -> Found:
    """Sum, mean, maximum and minimum over dimensions of size 1 are what they read."""
    found: Any = None
    if node.target is operator.getitem and _calls(node.args[0], aten.max.dim, aten.min.dim) and node.args[1] == 0:
        x, dim, *keeps = node.args[0].args
        found = x, (dim,), keeps == [True]
    elif _calls(node, aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default):
        found = _reduced(node)
    if found is None:
        return None
    x, dims, stays = found
    is_one = _shape(x) and dims and all(_is_one(_shape(x)[dim]) for dim in dims)
    return (_ONE, lambda of: _without(of(x), () if stays else dims)) if is_one else None


def _without(value: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    return value.squeeze(tuple(dims)) if dims else value


def _log_sum_of_one(node: Any) -> Found:
    """The log-sum-exp of one element, whose sum and maximum are gone by now, is the element; infinite ones, too."""
    if not _calls(node, aten.add.Tensor) or node.kwargs:
        return None
    log, shift = node.args
    squeezed = shift.args[1] if _is_node(shift) and _calls(shift, aten.squeeze.dims) else ()
    kept = shift.args[0] if _is_node(shift) and squeezed else shift
    inner: Any = log
    for target in (aten.log.default, aten.squeeze.dims, aten.exp.default):
        if _calls(inner, target):
            inner = inner.args[0]
        elif target is not aten.squeeze.dims:
            return None
    if not _calls(inner, aten.sub.Tensor) or inner.args[1] is not kept or not _calls(kept, aten.where.self):
        return None
    x = inner.args[0]
    is_infinite, zero, otherwise = kept.args
    fits = otherwise is x and _calls(zero, aten.scalar_tensor.default) and zero.args[0] == 0
    fits = fits and _calls(is_infinite, aten.eq.Scalar) and is_infinite.args[1] == math.inf
    fits = fits and _calls(is_infinite.args[0], aten.abs.default) and is_infinite.args[0].args[0] is x
    return (_ONE, lambda of: _without(of(x), squeezed)) if fits else None


def _difference(node: Any) -> Found:
    """x - x."""
    if _calls(node, aten.sub.Tensor) and not node.kwargs and node.args[0] is node.args[1]:
        return "difference of equals", lambda of: torch.zeros_like(of(node.args[0]))
    return None


def _clamped(node: Any) -> Found:
    """The minimum with 0, raised to at least 0, is 0; and the like."""
    bounds, reaches = _BOUNDS.get(node.target, ((), operator.eq))
    inner: Any = node.args[0] if bounds else None
    limit: Any = node.args[1] if bounds else None
    if not _calls(inner, *bounds) or not isinstance(limit, int | float) or not _same(_shape(inner), _shape(node)):
        return None
    known = [number for arg in inner.args if (number := _number(arg)) is not None]
    is_met = any(reaches(limit, number) for number in known)
    return ("clamp to a constant", lambda of: torch.full_like(of(inner), limit)) if is_met else None


def _number(arg: Any) -> float | None:
    """The one value that a tensor has everywhere."""
    if _calls(arg, aten.full.default):
        arg = arg.args[1]
    elif _calls(arg, aten.scalar_tensor.default):
        arg = arg.args[0]
    return arg if isinstance(arg, int | float) else None


# ---
# Sums and means of linear maps. A way to compute the sum (`kind`) of a node over `dims` keeps these with size 1.


def _sum_or_mean(node: Any) -> Found:
    kind = {aten.sum.dim_IntList: "sum", aten.sum.default: "sum", aten.mean.dim: "mean", aten.mean.default: "mean"}
    if node.target not in kind or (found := _reduced(node)) is None or not _dtype(node).is_floating_point:
        return None
    x, dims, keeps = found
    if (way := _through(x, kind[node.target], dims)) is None:
        return None
    name, make = way
    return name, lambda of: _without(make(of), () if keeps else dims).to(_dtype(node))


def _through(node: Any, kind: str, dims: Sequence[int]) -> Found:
    """Through scaling by what is the same along the dimensions, and addition, down to a linear map."""
    if not _is_read_once(node):
        return None
    if node.target in (aten.mul.Tensor, aten.div.Tensor, aten.add.Tensor, aten.sub.Tensor):
        return None if node.kwargs else _through_arithmetic(node, kind, dims)
    return _of_linear(node, kind, dims) or _of_convolution(node, kind, dims) or _of_same(node, kind, dims)


def _through_arithmetic(node: Any, kind: str, dims: Sequence[int]) -> Found:
    is_added = node.target in (aten.add.Tensor, aten.sub.Tensor)
    ways = [_through(arg, kind, dims) if _is_whole(arg, node) else None for arg in node.args]
    if not is_added and (ways[0] or node.target is aten.div.Tensor):
        ways[1] = None  # of two factors one alone may vary, and what divides cannot be summed
    rest = _of_term if is_added else _of_factor
    makes = [way[1] if way else rest(arg, node, kind, dims) for way, arg in zip(ways, node.args, strict=True)]
    one, other = makes
    name = next((way[0] for way in ways if way), "")
    if not name or one is None or other is None:
        return None
    apply: Any = node.target
    return name, lambda of: apply(one(of), other(of))


def _of_factor(arg: Any, node: Any, _kind: str, dims: Sequence[int]) -> Make | None:
    """Of a factor that is the same along the dimensions."""
    return (lambda of: of(arg)) if all(_is_same_along(arg, len(_shape(node)), dim) for dim in dims) else None


def _is_whole(arg: Any, node: Any) -> bool:
    return _is_node(arg) and _same(_shape(arg), _shape(node)) and _dtype(arg) == _dtype(node)


def _is_same_along(arg: Any, rank: int, dim: int) -> bool:
    own = dim - rank + (len(_shape(arg)) if _is_node(arg) else 0)
    return own < 0 or _is_one(_shape(arg)[own])


def _of_term(arg: Any, node: Any, kind: str, dims: Sequence[int]) -> Make | None:
    """Of what is added to make the node: along some of the dimensions it may be the same."""
    shape = _shape(node)
    own = [dim - len(shape) for dim in dims if not _is_same_along(arg, len(shape), dim)]
    times = _product_of([shape[dim] for dim in dims if dim - len(shape) not in own]) if kind == "sum" else 1
    return None if times is None else lambda of: _total(of(arg), kind, own) * times


def _total(value: Any, kind: str, dims: Sequence[int]) -> Any:
    """The sum or mean over dimensions, which stay; over none, the value. 16 bits become 32."""
    if isinstance(value, torch.Tensor):
        value = _wide(value)
    return (torch.sum if kind == "sum" else torch.mean)(value, list(dims), keepdim=True) if dims else value


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _of_same(node: Any, kind: str, dims: Sequence[int]) -> Found:
    """A mean of means is one mean, and a sum of sums one sum."""
    if node.target is not {"sum": aten.sum.dim_IntList, "mean": aten.mean.dim}[kind] or not (found := _reduced(node)):
        return None
    x, inner, keeps = found
    left = [dim for dim in range(len(_shape(x))) if keeps or dim not in inner]
    both = sorted({*inner, *(left[dim] for dim in dims)})
    name, make = _through(x, kind, both) or (f"{kind} of {kind}s", lambda of: _total(of(x), kind, both))
    return name, lambda of: _without(make(of), () if keeps else inner)


def _of_linear(node: Any, kind: str, dims: Sequence[int]) -> Found:
    """Of x @ w + bias over outputs: x @ (the sum of w's columns); over rows: (the sum of x's rows) @ w."""
    if (parts := _linear(node)) is None:
        return None
    x, w, bias = parts
    last = len(_shape(node)) - 1
    rows = [dim for dim in dims if dim != last]
    added = None if bias is None else _of_term(bias, node, kind, dims)
    if added is None and bias is not None:
        return None

    def make(of: ValueOf) -> Any:
        a, b = _total(of(x), kind, rows), _wide(of(w))
        # a product with one column is a sum over rows of x, which fuses with what follows
        y = (a * _total(b, kind, [1]).squeeze(1)).sum(-1, keepdim=True) if last in dims else torch.matmul(a, b)
        return y + added(of) if added else y

    return f"{kind} over a product's {'outputs' if last in dims else 'rows'}", make


def _linear(node: Any) -> tuple[Any, Any, Any] | None:
    """x, w and bias where the node is x @ w + bias over x's last dimension."""
    product: Any = node.args[0] if node.target in _VIEWS else node
    if not _calls(product, aten.mm.default, aten.addmm.default) or product.kwargs or not _is_read_once(product):
        return None
    bias = product.args[0] if len(product.args) == 3 else None
    x, w = product.args[-2:]
    if product is not node:
        x = x.args[0] if x.target in _VIEWS else x
        if not _same([*_shape(x)[:-1], *_shape(w)], [*_shape(node)[:-1], _shape(x)[-1], _shape(node)[-1]]):
            return None
    return None if bias is not None and len(_shape(bias)) > 1 else (x, w, bias)


def _of_convolution(node: Any, kind: str, dims: Sequence[int]) -> Found:
    """Of a convolution over positions: for each tap of the kernel, a sum of x over those that it is multiplied with.
    Positions become taps, taps join the channels, and a convolution of fewer dimensions is left."""
    if not _calls(node, aten.convolution.default) or min(dims) < 2:
        return None
    x, w, bias, *geometry, is_transposed, beyond, groups = node.args
    over, out = list(dims), _shape(node)
    positions = _product_of([out[dim] for dim in over])
    if positions is None or not _is_node(x) or not _is_node(w):
        return None
    rest = [dim - 2 for dim in range(2, len(out)) if dim not in over]

    def make(of: ValueOf) -> Any:
        a, b = _wide(of(x)), _wide(of(w))
        for dim in reversed(over):
            stride, padding, dilation = (values[dim - 2] for values in geometry)
            a = _sums_by_tap(a, dim, b.shape[dim], out[dim], stride, padding, dilation, is_transposed)
        a, b = _joined(a, 1, over), _joined(b, 0 if is_transposed else 1, over)
        if rest:
            kept = [[values[at] for at in rest] for values in (*geometry, beyond)]
            y = aten.convolution(a, b, None, *kept[:3], is_transposed, kept[3], groups)
        else:
            y = aten.convolution(a[..., None], b[..., None], None, [1], [0], [1], is_transposed, [0], groups).squeeze(
                -1
            )
        for dim in over:
            y = y.unsqueeze(dim)
        y = y / positions if kind == "mean" else y
        if bias is None:
            return y
        return y + (_wide(of(bias)) * (1 if kind == "mean" else positions)).reshape(-1, *[1] * (len(out) - 2))

    return f"{kind} over a convolution's positions", make


def _joined(value: torch.Tensor, channels: int, dims: Sequence[int]) -> torch.Tensor:
    """With dimensions made part of the channels."""
    beside = list(range(channels + 1, channels + 1 + len(dims)))
    return value.movedim(tuple(dims), beside).flatten(channels, beside[-1])


def _sums_by_tap(
    x: torch.Tensor, dim: int, taps: int, out: Any, stride: Any, padding: Any, dilation: Any, is_transposed: Any
) -> torch.Tensor:
    """x with a dimension in which each tap's sum has taken the place of the positions."""
    size: Any = x.shape[dim]

    def is_met(tap: int, at: Any) -> Any:
        if is_transposed:
            place = at * stride - padding + tap * dilation
            return (place >= 0) & (place < out)
        place = at + padding - tap * dilation
        return (place >= 0) & (place < out * stride) & (place % stride == 0)

    places = torch.arange(size, device=x.device).reshape(-1, *[1] * (x.dim() - 1 - dim))
    is_dense = isinstance(size, int) and (is_transposed or stride == 1)
    sums = []
    for tap in range(taps):
        is_all = is_dense and is_met(tap, 0) and is_met(tap, size - 1)
        sums.append((x if is_all else torch.where(is_met(tap, places), x, 0.0)).sum(dim))
    return torch.stack(sums, dim)


def _pooling(node: Any) -> Found:
    """Average pooling along a linear layer's outputs is a linear layer with pooled weights."""
    if not _calls(node, aten.avg_pool2d.default):
        return None
    source, added = node.args[0], []
    while _calls(source, aten.unsqueeze.default) and _is_read_once(source):
        source, dim = source.args
        added.append(dim)
    parts = _linear(source) if _is_node(source) and len(_shape(source)) == 2 else None
    before, kernel = _shape(node.args[0]), node.args[1]
    if parts is None or kernel[0] != 1 or not _is_one(before[-2]) or not _same(before[-1:], _shape(source)[1:]):
        return None
    x, w, bias = parts

    def pooled(value: torch.Tensor) -> Any:
        return aten.avg_pool2d(value.reshape(-1, 1, 1, value.shape[-1]), *node.args[1:]).flatten(1)

    def make(of: ValueOf) -> Any:
        y = torch.matmul(_wide(of(x)), pooled(_wide(of(w))))
        y = (y if bias is None else y + pooled(_wide(of(bias)))).to(_dtype(node))
        for dim in reversed(added):
            y = y.unsqueeze(dim)
        return y

    return "pooling over a product's outputs", make
