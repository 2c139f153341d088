"""Lowers a task's Model with TorchInductor and hands back what it wrote, without a GPU and without running a kernel.

Runs in a child process of ours, forked from one that has imported torch. The model is built and traced on fake
tensors, so shapes cost no memory. With each code go the facts that `clean` needs and the text does not say.
"""

import ast
import contextlib
import functools
import inspect
import re
import signal
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
import torch._inductor.config as inductor_config
import torch.nn.functional as functional
from torch import nn
from torch._decomp import get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.runtime import triton_helpers
from torch._subclasses.fake_tensor import DataDependentOutputException, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.fx.traceback import preserve_node_meta
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from kerneltune.agent.authors.search import algebra
from kerneltune.agent.authors.search.clean import (
    RECURRENT,
    REDUCTIONS,
    InductorKernel,
    LoweredCode,
    LoweringFacts,
    kernel_texts,
)
from kerneltune.tools.backends import stand_ins
from kerneltune.tools.schema.codec import Json, encode, literal, syntax_tree
from kerneltune.tools.schema.task import rebuilt
from kerneltune.tools.trace.recorder import CopiedFakes

# ---
# Ends a computation of our own that takes too much processor time.


class TooLong(BaseException):
    """Not an Exception, so that nobody on the way takes it for one of his own."""


@contextlib.contextmanager
def processor_time(limit_s: float) -> Iterator[None]:
    """Raise TooLong in the block after so many seconds of this process's processor time, however busy the machine is
    with other things. Only in the main thread; elsewhere there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# ---
# Plain values that a model keeps from its constructor, which differ between a task's cases: a lowering that took them
# for constants would be wrong in the other cases.

Path = str  # "groups", "norm.num_groups", "layers.0.eps"

_OF_EVERY_MODULE = {*vars(nn.Module()), "training"}
_SAID_BY_PARAMETERS = {  # of torch's own modules, whose forward does not read them
    *("in_features", "out_features", "in_channels", "out_channels", "num_features", "num_channels"),
    *("num_embeddings", "embedding_dim", "normalized_shape"),  # the last: see `_over_last`
}


def plain(model: nn.Module) -> dict[Path, Any]:
    """Numbers, texts, dtypes, and lists and dicts of them that the model, its submodules and their settings hold, by
    path, and which class each submodule and which function each attribute is."""
    found: dict[Path, Any] = {}
    for prefix, module in model.named_modules():
        torchs_own = type(module).__module__.startswith("torch.nn.")
        left_out = _OF_EVERY_MODULE | (_SAID_BY_PARAMETERS if torchs_own else set())
        path = f"{prefix}." if prefix else ""
        if prefix:
            found[f"{path}__class__.__name__"] = type(module).__name__
        for name, value in vars(module).items():
            if name not in left_out:
                found |= {f"{path}{name}{rest}": held for rest, held in _held(value)}
    return found


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """What is plain of an attribute, and the path to it from there."""
    if _is_plain(value):
        yield "", value
    elif callable(value):
        yield from ((".__name__", name) for name in [getattr(value, "__name__", None)] if isinstance(name, str))
    elif not isinstance(value, torch.Tensor):
        yield from ((f".{name}", held) for name, held in getattr(value, "__dict__", {}).items() if _is_plain(held))


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | torch.dtype)


def varying(models: Mapping[str, nn.Module]) -> dict[str, dict[Path, str]]:
    """What is not the same in all the models, by the model's name and as Python text."""
    held = {name: {path: literal(value) for path, value in plain(model).items()} for name, model in models.items()}
    common = set.intersection(*map(set, held.values())) if held else set()
    differ = sorted(path for path in common if len({values[path] for values in held.values()}) > 1)
    return {name: {path: values[path] for path in differ} for name, values in held.items()}


def different_tensors(models: Iterable[nn.Module]) -> list[Path]:
    """Parameters and buffers that have not the same shape and dtype in all the models."""
    held = [{name: (t.shape, t.dtype) for name, t in model.state_dict().items()} for model in models]
    return [name for name, fact in (held[0] if held else {}).items() if any(h.get(name) != fact for h in held)]


def put(model: nn.Module, path: Path, value: Any) -> None:
    """Set an attribute by its path."""
    *owners, name = path.split(".")
    setattr(functools.reduce(getattr, owners, model), name, value)


# ---
# Takes from Inductor what its output refers to but does not contain: launch configurations and helper functions.

_HELPER = re.compile(r"\btriton_helpers\.(\w+)")


def _launched(name: str, text: str) -> InductorKernel:
    """Ask Inductor's own heuristics which configurations they would try for a kernel."""
    text = text.replace("triton_helpers.set_driver_to_gpu()", "")  # it would load libcuda
    autotuner = getattr(PyCodeCache.load(text), name)
    configs = [{**c.kwargs, "num_warps": c.num_warps, "num_stages": c.num_stages} for c in autotuner.configs]
    if name.startswith(REDUCTIONS):  # several: it does not know along what memory lies, and times one row first
        configs.sort(key=lambda config: -config["XBLOCK"])
    elif configs[0].get("XBLOCK") == 1024 and "YBLOCK" not in configs[0] and "'*fp32'" in text:
        # one load of 16 bytes a thread instead of two: 6.4 GB in 3,014 us on an H200 instead of 3,042 to 3,063
        configs.insert(0, {**configs[0], "XBLOCK": 512})
    return InductorKernel(configs, autotuner.inductor_meta.get("grid_type", "Grid1D"))


def helpers_of(code: str) -> dict[str, str]:
    """Source of every Triton helper that the code uses, and of those they use, in an order that can be executed."""
    found: dict[str, str] = {}
    for name in dict.fromkeys(_HELPER.findall(code)):
        _add(name, found)
    return found


def _add(name: str, found: dict[str, str]) -> None:
    helper = getattr(triton_helpers, name, None)
    function = getattr(helper, "fn", None)
    if name in found or not isinstance(function, types.FunctionType):
        return
    text = inspect.getsource(function)
    for used in _names(text):
        if used != name:
            _add(used, found)
    found[name] = text


def _names(text: str) -> Iterator[Any]:
    return (node.id for node in ast.walk(syntax_tree(text)) if isinstance(node, ast.Name))


# ---
# A model that is being lowered: how a trace calls it, and the facts that the lowered code's text does not say.

Symbols = dict[str, tuple[int, int]]  # size symbol -> (flat argument, dimension)


@dataclass
class TracedModel:
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
    allows: list[str] = field(default_factory=list)
    algebraic: list[str] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    outputs: Any = None
    under_way: str = "forward is still being traced, operation by operation"  # said where it takes too long

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


def facts_of(call: TracedModel, code: str, shape_env: ShapeEnv | None) -> LoweringFacts:
    """What the lowered code does not say."""
    leaves = [v for v in pytree.tree_leaves(call.inputs) if isinstance(v, torch.Tensor)]
    printer = PythonPrinter()
    guards = [printer.doprint(guard.expr) for guard in shape_env.guards] if shape_env is not None else []
    return LoweringFacts(
        state={name: (_sizes(t), str(t.dtype).removeprefix("torch.")) for name, t in call.state.items()},
        inputs=_shape_tree(call.inputs, iter(range(len(leaves)))),
        tensors=[(_sizes(t), str(t.dtype).removeprefix("torch."), _stride(t)) for t in leaves],
        symbols=call.symbols,
        guards=list(dict.fromkeys(guard.replace("torch.sym_", "") for guard in guards)),  # sizes are plain integers
        outputs=_output_tree(call.outputs),
        kernels={name: _launched(name, text) for name, text in kernel_texts(code).items()},
        helpers=helpers_of(code),
        operators=call.operators,
        sizes={path: symbol for path, (symbol, _) in call.sizes.items()},
        baked=_baked(call),
        cases=call.cases,
        differs=call.differs,
        allows=call.allows,
        algebraic=call.algebraic,
    )


def _baked(call: TracedModel) -> dict[str, Json]:
    """What of the attributes that differ the code has for a constant, as text."""
    values = plain(call.model)
    paths = next(iter(call.cases.values()), {})
    return {path: literal(values[path]) for path in paths if path not in call.sizes}


def _sizes(tensor: torch.Tensor) -> list[int]:
    sizes: Iterable[Any] = tensor.shape
    return [int(s.node.hint) if isinstance(s, torch.SymInt) else s for s in sizes]


def _stride(tensor: torch.Tensor) -> list[int] | None:
    return None if tensor.is_contiguous() else [*tensor.stride()]


def _shape_tree(tree: Any, numbers: Iterator[int]) -> Json:
    """The inputs with {"$i": n} for tensors, in the order of the flat arguments, and Python text for all else."""
    if isinstance(tree, torch.Tensor):
        return {"$i": next(numbers)}
    if isinstance(tree, list | tuple):
        return [_shape_tree(value, numbers) for value in tree]
    if isinstance(tree, dict):
        return {"$dict": {str(key): _shape_tree(value, numbers) for key, value in tree.items()}}
    return literal(tree)


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
        return "{{" + ", ".join(f"{_braces_twice(repr(key))}: {child}" for key, child in pairs) + "}}"
    return f"({', '.join(children)}{',' if len(children) == 1 else ''})"


def _braces_twice(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


# ---
# Functions of torch that a trace without a GPU, or with symbols for sizes, cannot take as they are.


@contextlib.contextmanager
def written_out() -> Iterator[None]:
    """As long as this lasts: a norm of a symbol's groups is written out, and one over the last dimensions takes their
    sizes from its input, not from the module, where they are numbers; padding is joining with zeros where sizes are
    symbols, whose values the operator would take, and its amounts become numbers; a linear layer takes rows, since with
    more dimensions the operator would take their values; and a number that becomes a tensor on the GPU is filled in
    there."""
    instead: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (functional, "group_norm", _group_norm),
        (functional, "layer_norm", _over_last),
        (functional, "rms_norm", _rms_norm),
        (functional, "pad", _pad),
        (functional, "linear", _of_rows),
        (torch, "tensor", _tensor),
        *((torch._VF, name, _recurrent(name)) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, wrap in instead:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, wrap(getattr(owner, name)))
        yield


def _over_last(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def norm(input: torch.Tensor, normalized_shape: Sequence[int], *args: Any, **options: Any) -> torch.Tensor:
        return usual(input, input.shape[-len(normalized_shape) :], *args, **options)

    return norm


def _rms_norm(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Where its gradients are asked for, of operators none of whose gradients is the cube of 1/rms, nor is one in
    PyTorch's fused operator on a GPU. On a CPU it is made of rsqrt, and the cube is no float32 where inputs are huge
    (2^50)."""
    over_last = _over_last(usual)

    def norm(
        input: torch.Tensor,
        normalized_shape: Sequence[int],
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> torch.Tensor:
        if not any(t is not None and torch._C._functorch.is_gradtrackingtensor(t) for t in (input, weight)):
            return over_last(input, normalized_shape, weight, eps)
        wide = input.double() if input.dtype == torch.float64 else input.float()
        mean = wide.square().mean([-1 - axis for axis in range(len(normalized_shape))], keepdim=True)
        y = wide * torch.sqrt(mean + (torch.finfo(wide.dtype).eps if eps is None else eps)).reciprocal()
        return (y if weight is None else y * weight).to(input.dtype)

    return norm


def _of_rows(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if input.dim() < 3 or not any(isinstance(size, torch.SymInt) for size in input.shape):
            return usual(input, weight, bias)
        return usual(input.reshape(-1, input.shape[-1]), weight, bias).reshape(*input.shape[:-1], weight.shape[0])

    return linear


def _pad(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def pad(
        input: torch.Tensor, pad: Sequence[Any], mode: str = "constant", value: float | None = None
    ) -> torch.Tensor:
        amounts = [int(amount) for amount in pad]
        known = not any(isinstance(size, torch.SymInt) for size in input.shape)
        if known or mode != "constant" or min(amounts, default=0) < 0:
            return usual(input, amounts, mode, value)
        for place, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
            dim = input.dim() - 1 - place
            ends = [
                input.new_full([*input.shape[:dim], n, *input.shape[dim + 1 :]], value or 0.0) for n in (before, after)
            ]
            input = torch.cat([end for end in (ends[0], input, ends[1]) if end is input or end.shape[dim] > 0], dim)
        return input

    return pad


def _group_norm(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def group_norm(
        input: torch.Tensor,
        num_groups: Any,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if not isinstance(num_groups, torch.SymInt):
            return usual(input, num_groups, weight, bias, eps)
        grouped = input.float().reshape(input.shape[0], num_groups, input.shape[1] // num_groups, *input.shape[2:])
        variance, mean = torch.var_mean(grouped, tuple(range(2, grouped.dim())), correction=0, keepdim=True)
        y = ((grouped - mean) * torch.rsqrt(variance + eps)).reshape(input.shape)
        for value, apply in ((weight, torch.mul), (bias, torch.add)):
            y = y if value is None else apply(y, _per_channel(value, input.dim()))
        return y.to(input.dtype)

    return group_norm


class TooManySteps(Exception):
    """A recurrent layer that would be unrolled for minutes."""


def _recurrent(kind: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A recurrent function of torch's, of which Inductor gets the products of all steps' inputs, and the steps as one
    operator: `experts/recurrent_steps.py` has a kernel for it. What that does not do is unrolled by Inductor, unless
    the steps are too many; packed sequences, too."""

    def wrap(usual: Callable[..., Any]) -> Callable[..., Any]:
        def layers(x: torch.Tensor, hidden: Any, weights: Any, *options: Any) -> Any:
            if not isinstance(weights, list):
                return usual(x, hidden, weights, *options)
            has_biases, count, dropout, is_trained, both, batch_first = options
            reasons = {
                "with projected states": len(weights) != count * (4 if has_biases else 2) * (2 if both else 1),
                "whose gradients are asked for": any(map(_is_differentiated, (x, *weights))),
                "with dropout": is_trained and dropout > 0,
            }
            if reason := next((words for words, holds in reasons.items() if holds), ""):
                length = int(x.shape[1 if batch_first else 0])
                if length * count * (2 if both else 1) > MOST_STEPS:
                    raise TooManySteps(
                        f"{count} recurrent layers of {length} steps{', both ways' * both}, {reason}: TorchInductor "
                        f"unrolls them, which takes minutes beyond {MOST_STEPS} steps together"
                    )
                return usual(x, hidden, weights, *options)
            state, cell = hidden if kind == "lstm" else (hidden, hidden)
            steps_first = x.transpose(0, 1) if batch_first else x
            y, state, cell = _steps(kind, steps_first, state, cell, weights, has_biases, both)
            y = y.transpose(0, 1) if batch_first else y
            return (y, state, cell) if kind == "lstm" else (y, state)

        return layers

    return wrap


def _is_differentiated(tensor: torch.Tensor) -> bool:
    return torch._C._functorch.is_gradtrackingtensor(tensor) or (torch.is_grad_enabled() and tensor.requires_grad)


def _steps(
    kind: str,
    x: torch.Tensor,
    state: torch.Tensor,
    cell: torch.Tensor,
    weights: list[torch.Tensor],
    has_biases: bool,
    both: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, last states and last cells. Layers of one direction follow each other step by step, so that they are
    one operator; of both directions each layer needs all of the one below it, so that it is one.

    x: steps x batch x features, state and cell: layers x batch x width; a layer has the weight for its input, that for
    its state, and a bias for each."""
    each = 4 if has_biases else 2
    layers = [weights[n : n + each] for n in range(0, len(weights), each)]
    size = 2 if both else len(layers)
    states, cells = [], []
    for n in range(0, len(layers), size):
        part = layers[n : n + size]
        lowest = part[:2] if both else part[:1]
        rows = x.reshape(-1, x.shape[-1])
        first, *backwards = [(rows @ layer[0].t()).reshape(*x.shape[:2], -1) for layer in lowest]
        gates = [first, *(gate.flip(0) for gate in backwards)]
        bias = torch.stack([_biases(kind, *layer[1:]) for layer in part])
        below = torch.stack([layer[0] for layer in part[len(lowest) :]] or [part[0][1]])
        own = torch.stack([layer[1] for layer in part])
        given = (torch.stack(gates, 1), state[n : n + size], cell[n : n + size], below, own, bias)
        made, last = _recurrent_operator()(kind, *(tensor.contiguous() for tensor in given))
        x = torch.cat([made[1:, 0], made[1:, 1].flip(0)], -1) if both else made[1:, -1]
        states.append(made[-1])
        cells.append(last)
    return x, torch.cat(states), torch.cat(cells)


def _biases(kind: str, weight: torch.Tensor, of_input: Any = None, of_state: Any = None) -> torch.Tensor:
    """The bias of each sum that a layer makes: a GRU's third gate has one of its input and one of its state."""
    width = weight.shape[1]
    if of_input is None:
        return weight.new_zeros(4 * width if kind in ("lstm", "gru") else width)
    both = of_input + of_state
    return torch.cat([both[: 2 * width], of_input[2 * width :], of_state[2 * width :]]) if kind == "gru" else both


@functools.cache
def _recurrent_operator() -> Any:
    """What stands in a graph for the steps of recurrent layers; only its shapes are known here. Arguments as of
    `recurrent` in `experts/recurrent_steps.py`."""
    tensors = ", ".join(f"Tensor {name}" for name in ("gates", "hidden", "cell", "below", "own", "bias"))
    name = f"kerneltune::{RECURRENT}"
    torch.library.define(name, f"(str kind, {tensors}) -> (Tensor, Tensor)")

    def shapes(_kind: str, gates: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *_: torch.Tensor) -> Any:
        return hidden.new_empty((gates.shape[0] + 1, *hidden.shape)), torch.empty_like(cell)

    torch.library.register_fake(name, shapes)
    return getattr(torch.ops.kerneltune, RECURRENT).default


def _per_channel(value: torch.Tensor, dims: int) -> torch.Tensor:
    return value.reshape(-1, *[1] * (dims - 2))


def _tensor(usual: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def tensor(data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
        if (
            device is None
            or torch.device(device).type != stand_ins().DEVICE
            or not isinstance(data, bool | int | float)
        ):
            return usual(data, dtype=dtype, device=device, **options)
        return torch.full((), data, dtype=dtype, device=device)

    return tensor


# ---
# The lowering.

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


# TorchInductor takes only their `.vec` apart, instead of which our trace, being functionalized first, has `.default`.
_WITHOUT_VEC = [getattr(torch.ops.aten, f"upsample_{name}") for name in ("bilinear2d", "bicubic2d", "trilinear3d")]
# Seconds of processor time; usually two. Pooling in three dimensions takes minutes: then known shapes have to do.
DYNAMIC_S = 10.0
STATIC_S = 60.0  # for known shapes
MOST_STEPS = 256  # of unrolled recurrent layers, all together: 64 of an LSTM take 10 s, and are 65 kernels
_IN_WORDS = {
    "DataDependentOutputException": "forward looks at a tensor's values on the host (an `if`, `.item()`, a slice), "
    "which no fixed sequence of kernels can do; torch.where computes both",
    "DynamicOutputShapeException": "the shape of a result depends on a tensor's values, which no fixed sequence of "
    "kernels can have",
    "replace_random.py": "forward draws random numbers, so there is no right answer to compare with",
}


class _CodeWritten(BaseException):
    """Carries the text out of Inductor before it would load and compile it."""

    def __init__(self, code: str) -> None:
        super().__init__("code written")
        self.code = code


def main(channel: Any) -> None:
    """Answer {"source", "overrides", "arch"} with {"lowered": …} or {"error": "…"} until the supervisor is gone."""
    while True:
        body = channel.receive().body
        try:
            code = lower(body["source"], body.get("overrides") or {}, int(body["arch"]))
            reply: dict[str, Json] = {"lowered": encode(code)}
        except TooLong as late:
            limit = f"Inductor takes more than {_limit_s(body):g} s of processor time for it"
            reply = {"error": f"{limit}: {late}" if str(late) else limit, "late": True}
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


def lower(source: str, overrides: dict[str, Json], arch: int) -> LoweredCode:
    """Inductor's output code for the task.

    `overrides`: "inputs" and "init_args" (specs of a case; otherwise the task's own functions are asked), "cases"
    (overrides of the task's cases by name: attributes that differ between them are told apart), "dynamic" (any sizes
    instead of these), "algebra" (rewritten by `algebra`), "config" (Inductor settings); every other key replaces a
    module-level constant.
    """
    known = inductor_config.get_config_copy()  # settings differ between versions of torch
    config = {k: v for k, v in {**_CONFIG, **overrides.get("config", {})}.items() if k in known}
    dynamic = bool(overrides.get("dynamic"))
    limited = processor_time(DYNAMIC_S if dynamic else STATIC_S)
    with stand_ins().for_inductor(arch), inductor_config.patch(config), limited, _no_grad_fakes(dynamic) as fake_mode:
        call = _prepare(source, overrides, fake_mode.shape_env if dynamic else None)
        try:
            code = f"{_inductor(call, bool(overrides.get('algebra'))).rstrip()}\n"
        except TooLong:
            raise TooLong(call.under_way) from None
        return LoweredCode(code, facts_of(call, code, fake_mode.shape_env))


@contextlib.contextmanager
def _no_grad_fakes(dynamic: bool) -> Iterator[CopiedFakes]:
    with CopiedFakes(shape_env=ShapeEnv() if dynamic else None) as mode, torch.no_grad():
        yield mode


def _load(source: str, constants: dict[str, Json]) -> types.ModuleType:
    module = types.ModuleType("task")
    exec(compile(source, "task.py", "exec"), module.__dict__)  # noqa: S102 - a task file, in a process of its own
    module.__dict__.update(constants)
    return module


def _prepare(source: str, overrides: dict[str, Json], shape_env: ShapeEnv | None) -> TracedModel:
    module = _load(source, _constants(overrides))
    model = _built(module, overrides)
    inputs = _given(overrides, "inputs") if "inputs" in overrides else module.get_inputs()
    symbols: Symbols = {}
    held = _state(model)
    state = {name: _fake(t, index, shape_env, symbols) for index, (name, t) in enumerate(held.items())}
    call = TracedModel(model.eval(), state, _on_gpu(inputs, len(state), shape_env, symbols), symbols)
    cases = {n: _built(_load(source, _constants(o)), o) for n, o in overrides.get("cases", {}).items()}
    call.cases, call.differs = varying(cases), different_tensors(cases.values())
    if shape_env is not None:
        call.sizes = _sizes_among(call, shape_env)
    return call


def _constants(overrides: dict[str, Json]) -> dict[str, Json]:
    ours = ("inputs", "init_args", "cases", "dynamic", "algebra", "config")
    return {k: v for k, v in overrides.items() if k not in ours}


def _built(module: types.ModuleType, overrides: dict[str, Json]) -> nn.Module:
    """The model on fake tensors; on real ones where its constructor reads values, as one does that makes a list of
    rates by torch.linspace."""

    def build() -> nn.Module:
        arguments = _given(overrides, "init_args") if "init_args" in overrides else module.get_init_inputs()
        model: nn.Module = module.Model(**arguments) if isinstance(arguments, dict) else module.Model(*arguments)
        return model

    try:
        return build()
    except DataDependentOutputException:
        with unset_fake_temporarily():
            return build()


def _sizes_among(call: TracedModel, shape_env: ShapeEnv) -> dict[str, tuple[str, torch.SymInt]]:
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
    """Fake tensors and plain values."""
    leaves = {"$tensor": _empty, "$dtype": lambda leaf, _: getattr(torch, leaf["$dtype"])}
    return [rebuilt(tree, leaves) for tree in overrides[key]]


def _empty(leaf: Json, _: str) -> torch.Tensor:
    shape, dtype, stride = (leaf["$tensor"].get(name) for name in ("shape", "dtype", "stride"))
    empty = torch.empty(shape, dtype=getattr(torch, dtype))
    return empty.as_strided(shape, stride) if stride else empty


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
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=stand_ins().DEVICE)
    sizes: list[Any] = []
    for dim, size in enumerate(like.shape):
        if size < 2:  # Inductor treats 0 and 1 as facts
            sizes.append(size)
            continue
        source = ConstantSource(f"argument_{index}_{dim}")
        symbol = shape_env.create_symbol(size, source=source, dynamic_dim=DimDynamic.DYNAMIC)
        symbols[str(symbol)] = (index, dim)
        sizes.append(shape_env.create_symintnode(symbol, hint=size, source=source))
    return torch.empty(sizes, dtype=like.dtype, device=stand_ins().DEVICE)


def _inductor(call: TracedModel, is_rewritten: bool) -> str:
    from torch._inductor.graph import GraphLowering

    flat = call.flat()
    # kernels are named after the operators they came from; attention is written out, or it would be one library call
    with preserve_node_meta(), sdpa_kernel(SDPBackend.MATH), written_out():
        functional = torch.func.functionalize(call, remove="mutations")
        graph = _graph_of(functional, flat)
        if written := _written_into(graph):
            call.written = written
            graph = _graph_of(functional, flat)
        call.allows = algebra.allowed(graph)
        if is_rewritten:
            graph, call.algebraic = algebra.rewritten(graph, lambda function: _graph_of(function, flat))
    call.operators = operators_of(graph)
    call.under_way = f"forward has {len(graph.graph.nodes):,} operations"

    def save(code: str) -> None:
        raise _CodeWritten(code)

    # a random first state is drawn as forward draws it: recurrent layers forget it, which the judge finds out
    is_recurrent = any(node.target is _recurrent_operator() for node in graph.graph.nodes)
    before = GraphLowering.save_output_code
    GraphLowering.save_output_code = staticmethod(save)
    try:
        with inductor_config.patch(fallback_random=is_recurrent):
            compile_fx_inner(graph, flat, is_inference=True)
    except _CodeWritten as written:
        return written.code
    finally:
        GraphLowering.save_output_code = before
    raise RuntimeError("Inductor wrote no code: the model computes nothing from its inputs")


def _graph_of(function: Callable[..., Any], flat: Sequence[Any]) -> torch.fx.GraphModule:
    """What a function computes, as a graph. Where there is no GPU, autograd refuses to compute gradients on one, even
    without data: a forward that has some in it is traced on a CPU, and its graph once more for the GPU."""
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table() | get_decompositions(_WITHOUT_VEC)
    trace = functools.partial(make_fx, decomposition_table=table)
    try:
        return trace(function)(*flat)
    except RuntimeError as refused:
        try:
            graph = trace(function)(*map(_on_cpu, flat))
        except RuntimeError as error:
            raise refused from error
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = node.kwargs | {"device": torch.device(stand_ins().DEVICE)}
    return trace(torch.fx.Interpreter(graph).run)(*flat)


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")


def _written_into(graph: torch.fx.GraphModule) -> set[int]:
    arguments = [node for node in graph.graph.nodes if node.op == "placeholder"]
    targets = {n.args[0] for n in graph.graph.nodes if n.target is torch.ops.aten.copy_.default}
    return {index for index, node in enumerate(arguments) if node in targets}
