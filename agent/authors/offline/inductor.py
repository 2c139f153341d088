"""Lowers a task's Model with TorchInductor and hands back what it wrote, without a GPU and without running a kernel.

Runs in a child process of ours, forked from one that has imported torch. The model is built and traced on fake
tensors, so shapes cost no memory. Each code ends with a line `# kerneltune: {json}`: what `clean` needs and the text
does not say.
"""

import contextlib
import json
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._inductor.config as inductor_config
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.fx.traceback import preserve_node_meta
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from agent.authors.offline.attributes import different_tensors, plain, put, text, varying
from agent.authors.offline.harvest import helpers_of, launch_configs
from agent.authors.offline.trailer import MARK
from agent.authors.offline.written_out import written_out
from tools.codec import Json

_CONFIG = {
    "compile_threads": 1,  # a pool of compilers would outlive us and compile nothing
    "force_disable_caches": True,  # a cache hit would give us no text
    "autotune_local_cache": False,
    "cpp_wrapper": False,
    "graph_partition": False,
    "combo_kernels": False,
    "triton.descriptive_names": "original_aten",
    "triton.mix_order_reduction": False,
    "size_asserts": False,
    "alignment_asserts": False,
}


Symbols = dict[str, tuple[int, int]]  # size symbol -> (flat argument, dimension)


class _Written(BaseException):
    """Carries the text out of Inductor before it would load and compile it."""

    def __init__(self, code: str) -> None:
        super().__init__("code written")
        self.code = code


@dataclass
class _Call:
    """A model ready to be traced: all that it reads, as flat arguments, and how to call it with them.

    `sizes`: attributes that are symbols, with the symbol's name; `cases`: those that differ between the task's cases,
    as text; `differs`: tensors of the state that do."""

    model: nn.Module
    state: dict[str, torch.Tensor]
    inputs: Any
    symbols: Symbols = field(default_factory=dict)
    sizes: dict[str, tuple[str, torch.SymInt]] = field(default_factory=dict)
    cases: dict[str, dict[str, str]] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    outputs: Any = None

    def flat(self) -> list[Any]:
        """State first, then the tensors among the inputs, then attributes."""
        leaves = pytree.tree_leaves(self.inputs)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return [*self.state.values(), *tensors, *(size for _, size in self.sizes.values())]

    def __call__(self, *flat: Any) -> tuple[Any, ...]:
        leaves, spec = pytree.tree_flatten(self.inputs)
        given = iter(flat[len(self.state) :])
        inputs = pytree.tree_unflatten([next(given) if isinstance(v, torch.Tensor) else v for v in leaves], spec)
        for path, value in zip(self.sizes, given, strict=True):
            put(self.model, path, value)
        state = dict(zip(self.state, flat, strict=False))
        result = torch.func.functional_call(self.model, state, tuple(inputs))
        leaves, self.outputs = pytree.tree_flatten(result)
        return tuple(leaves)


def main(channel: Any) -> None:
    """Answer {"source", "overrides", "arch"} with {"codes": […]} or {"error": "…"} until the supervisor is gone."""
    while True:
        body = channel.receive().body
        try:
            reply: dict[str, Json] = {"codes": lower(body["source"], body.get("overrides") or {}, int(body["arch"]))}
        except Exception as error:  # noqa: BLE001 - the task's code and Inductor may raise anything; the author goes on
            reply = {"error": f"{type(error).__name__}: {str(error).strip()[:2000]}"}
        channel.send(reply)


def lower(source: str, overrides: dict[str, Json], arch: int) -> list[str]:
    """Inductor's output codes for the task.

    `overrides`: "inputs" and "init_args" (specs of a case; otherwise the task's own functions are asked), "cases"
    (overrides of the task's cases by name: attributes that differ between them are told apart), "dynamic" (any sizes
    instead of these), "config" (Inductor settings); every other key replaces a module-level constant.
    """
    from agent.authors.offline.no_gpu import pretend_gpu  # here: it imports Inductor, which takes a second

    known = inductor_config.get_config_copy()  # settings differ between versions of torch
    config = {k: v for k, v in {**_CONFIG, **overrides.get("config", {})}.items() if k in known}
    dynamic = bool(overrides.get("dynamic"))
    with pretend_gpu(arch), inductor_config.patch(config), _no_grad_fakes(dynamic) as fake_mode:
        call = _prepare(source, overrides, fake_mode.shape_env if dynamic else None)
        code = _inductor(call)
        return [f"{code.rstrip()}\n{MARK}{json.dumps(_facts(call, code, fake_mode.shape_env))}\n"]


@contextlib.contextmanager
def _no_grad_fakes(dynamic: bool) -> Iterator[FakeTensorMode]:
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    with mode, torch.no_grad():
        yield mode


def _load(source: str, constants: dict[str, Json]) -> types.ModuleType:
    module = types.ModuleType("task")
    exec(compile(source, "task.py", "exec"), module.__dict__)  # the user's own task file
    module.__dict__.update(constants)
    return module


def _prepare(source: str, overrides: dict[str, Json], shape_env: ShapeEnv | None) -> _Call:
    module = _load(source, _constants(overrides))
    model = _built(module, overrides)
    inputs = _given(overrides, "inputs") if "inputs" in overrides else module.get_inputs()
    symbols: Symbols = {}
    held = _state(model)
    state = {name: _fake(t, index, shape_env, symbols) for index, (name, t) in enumerate(held.items())}
    call = _Call(model.eval(), state, _on_gpu(inputs, len(state), shape_env, symbols), symbols)
    cases = {n: _built(_load(source, _constants(o)), o) for n, o in overrides.get("cases", {}).items()}
    call.cases, call.differs = varying(cases), different_tensors(cases.values())
    if shape_env is not None:
        call.sizes = _sizes_among(call, shape_env)
    return call


def _constants(overrides: dict[str, Json]) -> dict[str, Json]:
    return {k: v for k, v in overrides.items() if k not in ("inputs", "init_args", "cases", "dynamic", "config")}


def _built(module: types.ModuleType, overrides: dict[str, Json]) -> nn.Module:
    arguments = _given(overrides, "init_args") if "init_args" in overrides else module.get_init_inputs()
    model: nn.Module = module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)
    return model


def _sizes_among(call: _Call, shape_env: ShapeEnv) -> dict[str, tuple[str, torch.SymInt]]:
    """A symbol for each integer attribute that differs between cases, so that the code reads it at run time."""
    values = plain(call.model)
    sizes = {}
    for path in (p for p in next(iter(call.cases.values()), {}) if type(values.get(p)) is int):
        source = ConstantSource(f"attribute_{len(sizes)}")
        symbol = shape_env.create_symbol(
            values[path], source=source, dynamic_dim=DimDynamic.DYNAMIC, do_not_specialize_zero_one=True
        )
        sizes[path] = str(symbol), shape_env.create_symintnode(symbol, hint=values[path], source=source)
    return sizes


def _given(overrides: dict[str, Json], key: str) -> list[Any]:
    return [_build(tree) for tree in overrides[key]]


def _build(tree: Json) -> Any:
    """A fake tensor or plain value from the JSON of `tools.spec`."""
    if isinstance(tree, list):
        return [_build(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if "$tensor" in tree:
        spec = tree["$tensor"]
        empty = torch.empty(spec["shape"], dtype=getattr(torch, spec["dtype"]))
        return empty.as_strided(spec["shape"], spec["stride"]) if spec.get("stride") else empty
    if "$tuple" in tree:
        return tuple(_build(value) for value in tree["$tuple"])
    if "$dtype" in tree:
        return getattr(torch, tree["$dtype"])
    if "$float" in tree:
        return float(tree["$float"])
    return {key: _build(value) for key, value in tree.get("$dict", tree).items()}


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor that the model holds; plain tensor attributes are made buffers first."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)
    return dict([*model.named_parameters(), *model.named_buffers()])


def _on_gpu(inputs: Any, index: int, shape_env: ShapeEnv | None, symbols: Symbols) -> Any:
    leaves, spec = pytree.tree_flatten(list(inputs))
    moved = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            moved.append(_fake(leaf, index, shape_env, symbols))
            index += 1
        else:
            moved.append(leaf)
    return pytree.tree_unflatten(moved, spec)


def _fake(like: torch.Tensor, index: int, shape_env: ShapeEnv | None, symbols: Symbols) -> torch.Tensor:
    if shape_env is None or not like.is_contiguous():
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cuda")
    sizes: list[Any] = []
    for dim, size in enumerate(like.shape):
        if size < 2:  # Inductor treats 0 and 1 as facts
            sizes.append(size)
            continue
        source = ConstantSource(f"argument_{index}_{dim}")
        symbol = shape_env.create_symbol(size, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        symbols[str(symbol)] = (index, dim)
        sizes.append(shape_env.create_symintnode(symbol, hint=size, source=source))
    return torch.empty(sizes, dtype=like.dtype, device="cuda")


def _inductor(call: _Call) -> str:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering

    flat = call.flat()
    # kernels are named after the operators they came from; attention is written out, or it would be one library call
    with preserve_node_meta(), sdpa_kernel(SDPBackend.MATH), written_out():
        functional = torch.func.functionalize(call, remove="mutations")
        graph = make_fx(functional, decomposition_table=select_decomp_table())(*flat)
        call.operators = _operators(graph)

    def save(code: str) -> None:
        raise _Written(code)

    before = GraphLowering.save_output_code
    GraphLowering.save_output_code = staticmethod(save)
    try:
        compile_fx_inner(graph, flat, is_inference=True)
    except _Written as written:
        return written.code
    finally:
        GraphLowering.save_output_code = before
    raise RuntimeError("Inductor wrote no code: the model computes nothing from its inputs")


def _operators(graph: torch.fx.GraphModule) -> list[str]:
    """What forward called, before it was taken apart, each once."""
    called = (node.meta.get("original_aten") for node in graph.graph.nodes)
    return list(dict.fromkeys(op._overloadpacket.__name__.strip("_") for op in called if op is not None))


def _facts(call: _Call, code: str, shape_env: ShapeEnv | None) -> dict[str, Json]:
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


def _baked(call: _Call) -> dict[str, Json]:
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
