"""The recording Triton: kernels are lowered to TTIR and their launches written down; nothing runs. In the jail.

`JITFunction.run`, heuristics, pre-run hooks and argument specialisation stay Triton's own. Three things are
replaced: `triton.compiler.compile` (stops at TTIR), the compiled kernel (its `run` records), and `Autotuner.run`
(the tracer chooses the config; each config becomes a plan variant).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.autotuner import Autotuner

from kerneltune.tools.languages.ptx import loader
from kerneltune.tools.languages.ptx.launch import PtxLaunch
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import FOREIGN_TENSOR, GLUON, Refused
from kerneltune.tools.schema.plan import (
    DescriptorArg,
    Kernel,
    Launch,
    LaunchArg,
    ScalarArg,
    TensorArg,
    forbidden_option,
)
from kerneltune.tools.trace.recorder import Tape

# Compile options that an author can set and that change the code; the rest follow from the target.
_ALWAYS_KEPT = ("num_warps", "num_stages", "num_ctas")
_KEPT_WHEN_SET = (
    "maxnreg cluster_dims enable_fp_fusion launch_cooperative_grid launch_pdl default_dot_input_precision "
    "ptx_options sanitize_overflow minRegAutoWS maxRegAutoWS"
).split()
MAX_LAUNCHES = 10_000


@dataclass
class LaunchLog:
    """The kernels and autotuner choices of one trace. `choices` maps an autotuner's key to a config index."""

    tape: Tape
    kernels: list[Kernel] = field(default_factory=list)
    choices: dict[str, int] = field(default_factory=dict)
    offered: dict[str, list[str]] = field(default_factory=dict)  # autotuner key -> its configs, as text
    ask_compiler: Callable[[Kernel], dict[str, Json]] | None = None

    def kernel_index(self, kernel: Kernel) -> int:
        """The kernel's number in the plan; equal kernels share one."""
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        return self.kernels.index(kernel)

    def launch(self, kernel: Kernel, grid: tuple[int, int, int], args: tuple[LaunchArg, ...]) -> None:
        """Write one launch down."""
        if 0 in grid:
            return  # Triton does not launch an empty grid either
        if len(self.tape.steps) > MAX_LAUNCHES:
            raise Refused(f"forward makes more than {MAX_LAUNCHES} launches and operator calls")
        cooperative = bool(kernel.options.get("launch_cooperative_grid"))
        pdl = bool(kernel.options.get("launch_pdl"))
        self.tape.steps.append(Launch(self.kernel_index(kernel), grid, args, cooperative, pdl))


class TracedKernel:
    """Stands in for triton.compiler.CompiledKernel: the same attributes, but launching it only records."""

    def __init__(self, src: ASTSource, kernel: Kernel, metadata: Any, log: LaunchLog) -> None:
        self.src, self.kernel_text, self.metadata, self._log = src, kernel, metadata, log
        self.name = kernel.name
        self.hash = kernel.name
        self.function = self.packed_metadata = None
        self.asm = {"ttir": kernel.text}
        self.n_max_threads = 1024

    def _init_handles(self) -> None:
        """Nothing to load: there is no GPU here."""

    def __getattr__(self, name: str) -> Any:
        if name in ("n_regs", "n_spills", "shared"):
            return self._report()[name]
        raise AttributeError(name)

    def _report(self) -> dict[str, Json]:
        if self._log.ask_compiler is None:
            raise Refused("host code asks for registers or spills of a kernel; not available while tracing")
        return self._log.ask_compiler(self.kernel_text)

    def launch_metadata(self, *_: Any) -> None:
        """No launch hooks here."""

    def run(self, g0: int, g1: int, g2: int, stream: Any, function: Any, packed: Any, *rest: Any) -> None:
        """Record a launch; called by JITFunction.run with launch metadata, two hooks, then the bound arguments."""
        self._record((g0, g1, g2), rest[3:])

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """`compiled[grid](*args)`, as in the official softmax tutorial."""
        return lambda *args, stream=None: self._record(_grid3(grid), args)

    def _record(self, grid: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        signature = list(self.src.signature.values())
        args = tuple(_arguments(values, signature, self._log.tape))
        self._log.launch(self.kernel_text, _grid3(grid), args)


def _grid3(grid: Any) -> tuple[int, int, int]:
    sizes = [int(n) for n in (grid if isinstance(grid, list | tuple) else (grid,))]
    if not 1 <= len(sizes) <= 3 or any(n < 0 for n in sizes):
        raise ValueError(f"a grid has 1 to 3 sizes, none negative, not {sizes}")
    first, second, third = (*sizes, 1, 1)[:3]
    return first, second, third


def _arguments(values: Any, types: Any, tape: Tape) -> list[LaunchArg]:
    flat: list[LaunchArg] = []
    for value, kind in zip(values, types, strict=False):
        if isinstance(kind, tuple | list):
            flat.extend(_arguments(value, kind, tape))
        elif kind != "constexpr":
            flat.append(_argument(value, str(kind), tape))
    return flat


def _argument(value: Any, kind: str, tape: Tape) -> LaunchArg:
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        base = value.base
        view = torch.as_strided(base, list(value.shape), list(value.strides), base.storage_offset())
        return DescriptorArg(tape.ref(view), tuple(value.block_shape), str(getattr(value, "padding", "zero")))
    tensor = getattr(value, "base", value)  # triton.reinterpret wraps a tensor
    if isinstance(tensor, torch.Tensor):
        if tensor.device.type != "cuda":
            raise Refused(FOREIGN_TENSOR.format(device=tensor.device))
        return TensorArg(tape.ref(tensor))
    if isinstance(value, bool | int | float):
        return ScalarArg(value, kind)
    if hasattr(value, "data_ptr") and isinstance(getattr(value, "dtype", None), torch.dtype):
        dtype = value.dtype  # an object that only looks like a tensor: known by its address
        return TensorArg(tape.at(int(value.data_ptr()), str(dtype).removeprefix("torch."), dtype.itemsize))
    raise TypeError(f"cannot pass {type(value).__name__} to a kernel")


def lower_to_ttir(src: ASTSource, target: Any, options: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """The front half of triton.compile: (TTIR text, options, metadata). Raises triton's CompilationError."""
    from triton._C.libtriton import ir

    backend = make_backend(target)
    parsed = backend.parse_options(dict(options or {}, **src.parse_options()))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, src.language)
    if "ttir" not in stages:
        raise Refused(GLUON)
    module = src.make_ir(target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
    metadata = {"target": target, **parsed.__dict__}
    return str(stages["ttir"](module, metadata)), parsed, metadata


def _signature(src: ASTSource) -> tuple[str, ...]:
    flat: list[str] = []

    def walk(kinds: Any) -> None:
        for kind in kinds:
            if isinstance(kind, tuple | list):
                walk(kind)
            elif kind != "constexpr":
                flat.append(str(kind))

    walk(src.signature.values())
    return tuple(flat)


def _plain_options(parsed: Any, default: Any) -> dict[str, Json]:
    kept = {name: getattr(parsed, name) for name in _ALWAYS_KEPT}
    for name in _KEPT_WHEN_SET:
        value = getattr(parsed, name, None)
        if value != getattr(default, name, None):
            kept[name] = list(value) if isinstance(value, tuple) else value
    return kept


class _Metadata:
    """Attribute access to compile metadata; `shared` and the like are asked of the real compiler when wanted."""

    def __init__(self, values: dict[str, Any], report: Callable[[], dict[str, Json]]) -> None:
        self.__dict__.update(values)
        self._report = report

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        report = self._report()
        if name not in report:
            raise AttributeError(name)
        return report[name]


def compile_stand_in(log: LaunchLog, target: Any) -> Callable[..., TracedKernel]:
    """A replacement for triton.compiler.compile that lowers to TTIR and returns a recording kernel."""

    def compile(src: Any, target: Any = target, options: Any = None, _env_vars: Any = None) -> TracedKernel:
        if not isinstance(src, ASTSource):
            raise Refused("triton.compile of an IR file inside a candidate; launch a @triton.jit function instead")
        text, parsed, metadata = lower_to_ttir(src, target, options)
        name = _kernel_name(text, src.name)
        default = make_backend(target).parse_options({})
        kept = _plain_options(parsed, default)
        if problem := forbidden_option(kept):
            raise Refused(problem)
        kernel = Kernel(name, "ttir", text, _signature(src), kept)
        traced = TracedKernel(src, kernel, None, log)
        traced.metadata = _Metadata(metadata | {"name": name}, traced._report)
        return traced

    return compile


def _kernel_name(text: str, fallback: str) -> str:
    start = text.find("tt.func public @")
    return text[start + 16 : text.index("(", start)].strip('"') if start >= 0 else fallback


def run_autotuned(log: LaunchLog) -> Callable[..., Any]:
    """A replacement for Autotuner.run: no timing; the trace says which config is wanted."""

    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
        key = self.base_fn.__name__
        log.offered.setdefault(key, [str(c) for c in configs])
        config = configs[min(log.choices.get(key, 0), len(configs) - 1)]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
        result = self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.nargs = None
        return result

    return run


class PtxRecorder:
    """Records launches of PTX kernels while tracing."""

    def __init__(self, log: LaunchLog) -> None:
        self._log = log

    def launch(self, launch: PtxLaunch) -> None:
        """Write it down."""
        options: dict[str, Json] = {"block": list(launch.block), "shared_bytes": launch.shared_bytes}
        if launch.cluster != (1, 1, 1):
            options["cluster"] = list(launch.cluster)
        options |= {"launch_cooperative_grid": True} if launch.cooperative else {}
        options |= {"launch_pdl": True} if launch.pdl else {}
        kernel = Kernel(launch.entry, "ptx", launch.text, launch.signature, options)
        self._log.launch(kernel, launch.grid, tuple(_arguments(launch.values, launch.signature, self._log.tape)))

    def choose(
        self,
        key: str,
        values: Sequence[Any],
        configs: Sequence[Mapping[str, Any]],
        run: Callable[[Mapping[str, Any]], None],
    ) -> int:
        """No timing; the trace says which config is wanted."""
        texts = [", ".join(f"{k}: {v}" for k, v in c.items()) for c in configs]
        names = (key if n == 1 else f"{key} ({n})" for n in itertools.count(1))
        name = next(name for name in names if self._log.offered.setdefault(name, texts) == texts)
        return min(self._log.choices.get(name, 0), len(configs) - 1)


def install(log: LaunchLog, target: Any) -> None:
    """Make Triton and our loader of PTX record into `log`. For a process that will do nothing else."""
    loader.use(PtxRecorder(log))
    triton.compiler.compile = compile_stand_in(log, target)
    triton.compile = triton.compiler.compile
    Autotuner.run = run_autotuned(log)
