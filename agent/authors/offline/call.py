"""A model that is being lowered: how a trace calls it, and the facts that the lowered code's text does not say."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from agent.authors.offline.attributes import plain, put, text
from agent.authors.offline.harvest import helpers_of, launch_configs
from tools.codec import Json

Symbols = dict[str, tuple[int, int]]  # size symbol -> (flat argument, dimension)


@dataclass
class Call:
    """A model ready to be traced: all that it reads, as flat arguments, and how to call it with them.

    `sizes`: attributes that are symbols, with the symbol's name; `cases`: those that differ between the task's cases,
    as text; `differs`: tensors of the state that do; `written`: flat arguments that forward writes into, of which it
    gets copies, for a candidate leaves its inputs alone."""

    model: nn.Module
    state: dict[str, torch.Tensor]
    inputs: Any
    symbols: Symbols = field(default_factory=dict)
    sizes: dict[str, tuple[str, torch.SymInt]] = field(default_factory=dict)
    cases: dict[str, dict[str, str]] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    outputs: Any = None

    def flat(self) -> list[Any]:
        """State first, then the tensors among the inputs, then attributes."""
        leaves = pytree.tree_leaves(self.inputs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return [*self.state.values(), *tensors, *(size for _, size in self.sizes.values())]

    def __call__(self, *flat: Any) -> tuple[Any, ...]:
        leaves, spec = pytree.tree_flatten(self.inputs)
        flat = tuple(v.clone() if index in self.written else v for index, v in enumerate(flat))
        given = iter(flat[len(self.state) :])
        inputs = pytree.tree_unflatten([next(given) if isinstance(v, torch.Tensor) else v for v in leaves], spec)
        for path, value in zip(self.sizes, given, strict=True):
            put(self.model, path, value)
        state = dict(zip(self.state, flat, strict=False))
        recurrent = any(isinstance(module, nn.RNNBase) for module in self.model.modules())
        # in steps that can be fused, where the operator is one that only a GPU has
        with enable_python_dispatcher() if recurrent else contextlib.nullcontext():
            result = torch.func.functional_call(self.model, state, tuple(inputs))
        leaves, self.outputs = pytree.tree_flatten(result)
        return tuple(leaves)


def operators_of(graph: torch.fx.GraphModule) -> list[str]:
    """What forward called, before it was taken apart, each once."""
    called = (node.meta.get("original_aten") for node in graph.graph.nodes)
    return list(dict.fromkeys(op._overloadpacket.__name__.strip("_") for op in called if op is not None))


def facts_of(call: Call, code: str, shape_env: ShapeEnv | None) -> dict[str, Json]:
    """What `trailer.Facts` holds, as JSON."""
    leaves = [v for v in pytree.tree_leaves(call.inputs) if isinstance(v, torch.Tensor)]
    printer = PythonPrinter()
    guards = [printer.doprint(guard.expr) for guard in shape_env.guards] if shape_env is not None else []
    guards = [guard.replace("torch.sym_", "") for guard in guards]  # sizes are plain integers to a candidate
    return {
        "state": {name: [_sizes(t), str(t.dtype).removeprefix("torch.")] for name, t in call.state.items()},
        "inputs": _shape_tree(call.inputs, iter(range(len(leaves)))),
        "tensors": [[_sizes(t), str(t.dtype).removeprefix("torch."), t.is_contiguous()] for t in leaves],
        "sizes": {path: symbol for path, (symbol, _) in call.sizes.items()},
        "baked": _baked(call),
        "cases": call.cases,
        "differs": call.differs,
        "symbols": {name: list(place) for name, place in call.symbols.items()},
        "guards": list(dict.fromkeys(guards)),
        "outputs": _output_tree(call.outputs),
        "kernels": launch_configs(code),
        "helpers": helpers_of(code),
        "operators": call.operators,
    }


def _baked(call: Call) -> dict[str, Json]:
    """What of the attributes that differ the code has for a constant, as text."""
    values = plain(call.model)
    paths = next(iter(call.cases.values()), {})
    return {path: text(values[path]) for path in paths if path not in call.sizes}


def _sizes(tensor: torch.Tensor) -> list[int]:
    sizes: Iterable[Any] = tensor.shape
    return [int(s.node.hint) if isinstance(s, torch.SymInt) else s for s in sizes]


def _shape_tree(tree: Any, numbers: Iterator[int]) -> Json:
    """The inputs with {"$i": n} for tensors, in the order of the flat arguments."""
    if isinstance(tree, torch.Tensor):
        return {"$i": next(numbers)}
    if isinstance(tree, list | tuple):
        return [_shape_tree(value, numbers) for value in tree]
    if isinstance(tree, dict):
        return {"$dict": {str(key): _shape_tree(value, numbers) for key, value in tree.items()}}
    return str(tree)


def _output_tree(spec: Any) -> Json:
    """The result's structure as Python text with `{}` for each leaf."""
    if spec.is_leaf():
        return "{}"
    children = [_output_tree(child) for child in (spec.children() if callable(spec.children) else spec.children_specs)]
    kind = spec.type
    if kind is list:
        return f"[{', '.join(children)}]"
    if kind is dict:
        pairs = zip(spec.context, children, strict=True)
        return "{{" + ", ".join(f"{key!r}: {child}" for key, child in pairs) + "}}"
    return f"({', '.join(children)}{',' if len(children) == 1 else ''})"
