"""Lowers a task's Model with TorchInductor and hands back what it wrote, without a GPU and without running a kernel.

Runs in a child process of ours, forked from one that has imported torch. The model is built and traced on fake
tensors, so shapes cost no memory. Each code ends with a line `# kerneltune: {json}`: what `clean` needs and the text
does not say.
"""

import contextlib
import json
import types
from collections.abc import Iterator
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

from agent.authors.offline.attributes import different_tensors, plain, varying
from agent.authors.offline.call import Call, Symbols, facts_of, operators_of
from agent.authors.offline.limit import TooLong, processor_time
from agent.authors.offline.trailer import MARK
from agent.authors.offline.written_out import written_out
from tools.codec import Json
from tools.plan.stand_ins import apply_to_module

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


# Seconds of processor time; usually two. Pooling in three dimensions takes minutes: then known shapes have to do.
DYNAMIC_S = 10.0
STATIC_S = 60.0  # for known shapes; a recurrent layer of hundreds of steps takes longer
_IN_WORDS = {
    "DataDependentOutputException": "forward looks at a tensor's values on the host (an `if`, `.item()`, a slice), "
    "which no fixed sequence of kernels can do; torch.where computes both",
    "DynamicOutputShapeException": "the shape of a result depends on a tensor's values, which no fixed sequence of "
    "kernels can have",
    "replace_random.py": "forward draws random numbers, so there is no right answer to compare with",
}


class _Written(BaseException):
    """Carries the text out of Inductor before it would load and compile it."""

    def __init__(self, code: str) -> None:
        super().__init__("code written")
        self.code = code


def main(channel: Any) -> None:
    """Answer {"source", "overrides", "arch"} with {"codes": […]} or {"error": "…"} until the supervisor is gone."""
    while True:
        body = channel.receive().body
        try:
            reply: dict[str, Json] = {"codes": lower(body["source"], body.get("overrides") or {}, int(body["arch"]))}
        except TooLong:
            reply = {"error": f"Inductor takes more than {_limit_s(body):g} s of processor time for it"}
        except Exception as error:  # noqa: BLE001 - the task's code and Inductor may raise anything; the author goes on
            reply = {"error": in_words(error)}
        channel.send(reply)


def _limit_s(body: dict[str, Json]) -> float:
    return DYNAMIC_S if (body.get("overrides") or {}).get("dynamic") else STATIC_S


def in_words(error: BaseException) -> str:
    """Why a lowering failed; where we know the cause, what it means comes first."""
    text = f"{type(error).__name__}: {str(error).strip()[:2000]}"
    known = next((words for mark, words in _IN_WORDS.items() if mark in text), "")
    return f"{known} ({text.partition(chr(10))[0][:200]})" if known else text


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
    limited = processor_time(DYNAMIC_S if dynamic else STATIC_S)
    with pretend_gpu(arch), inductor_config.patch(config), limited, _no_grad_fakes(dynamic) as fake_mode:
        call = _prepare(source, overrides, fake_mode.shape_env if dynamic else None)
        code = _inductor(call)
        return [f"{code.rstrip()}\n{MARK}{json.dumps(facts_of(call, code, fake_mode.shape_env))}\n"]


@contextlib.contextmanager
def _no_grad_fakes(dynamic: bool) -> Iterator[FakeTensorMode]:
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    before = nn.Module._apply
    nn.Module._apply = apply_to_module  # type: ignore[method-assign]  # `self.to(dtype)` in a constructor
    try:
        with mode, torch.no_grad():
            yield mode
    finally:
        nn.Module._apply = before  # type: ignore[method-assign]


def _load(source: str, constants: dict[str, Json]) -> types.ModuleType:
    module = types.ModuleType("task")
    exec(compile(source, "task.py", "exec"), module.__dict__)  # the user's own task file
    module.__dict__.update(constants)
    return module


def _prepare(source: str, overrides: dict[str, Json], shape_env: ShapeEnv | None) -> Call:
    module = _load(source, _constants(overrides))
    model = _built(module, overrides)
    inputs = _given(overrides, "inputs") if "inputs" in overrides else module.get_inputs()
    symbols: Symbols = {}
    held = _state(model)
    state = {name: _fake(t, index, shape_env, symbols) for index, (name, t) in enumerate(held.items())}
    call = Call(model.eval(), state, _on_gpu(inputs, len(state), shape_env, symbols), symbols)
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


def _sizes_among(call: Call, shape_env: ShapeEnv) -> dict[str, tuple[str, torch.SymInt]]:
    """A symbol for each integer attribute that differs between cases, so that the code reads it at run time."""
    values = plain(call.model)
    sizes: dict[str, tuple[str, torch.SymInt]] = {}
    for path in (p for p in next(iter(call.cases.values()), {}) if type(values.get(p)) is int):
        source = ConstantSource(f"attribute_{len(sizes)}")
        symbol = shape_env.create_symbol(
            values[path], source=source, dynamic_dim=DimDynamic.DYNAMIC, do_not_specialize_zero_one=True
        )
        size = shape_env.create_symintnode(symbol, hint=values[path], source=source)
        assert isinstance(size, torch.SymInt)
        sizes[path] = str(symbol), size
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


def _inductor(call: Call) -> str:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering

    flat = call.flat()
    # kernels are named after the operators they came from; attention is written out, or it would be one library call
    with preserve_node_meta(), sdpa_kernel(SDPBackend.MATH), written_out():
        functional = torch.func.functionalize(call, remove="mutations")
        graph = make_fx(functional, decomposition_table=select_decomp_table())(*flat)
        if written := _written_into(graph):
            call.written = written
            graph = make_fx(functional, decomposition_table=select_decomp_table())(*flat)
    call.operators = operators_of(graph)

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


def _written_into(graph: torch.fx.GraphModule) -> set[int]:
    arguments = [node for node in graph.graph.nodes if node.op == "placeholder"]
    targets = {n.args[0] for n in graph.graph.nodes if n.target is torch.ops.aten.copy_.default}
    return {index for index, node in enumerate(arguments) if node in targets}
