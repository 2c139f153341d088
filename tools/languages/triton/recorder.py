"""The recording Triton: kernels are lowered to TTIR and their launches written down; nothing runs. In the jail.

`JITFunction.run`, heuristics, pre-run hooks and argument specialisation stay Triton's own. Three things are
replaced: `triton.compiler.compile` (stops at TTIR), the compiled kernel (its `run` records), and `Autotuner.run`
(the tracer chooses the config; each config becomes a plan variant).
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import triton
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.autotuner import Autotuner

from kerneltune.tools.languages.base import LaunchRecorder
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import Refused
from kerneltune.tools.schema.plan import (
    Kernel,
)

# Compile options that an author can set and that change the code; the rest follow from the target.
_ALWAYS_KEPT = ("num_warps", "num_stages", "num_ctas")
_KEPT_WHEN_SET = (
    "maxnreg cluster_dims enable_fp_fusion launch_cooperative_grid launch_pdl default_dot_input_precision "
    "ptx_options sanitize_overflow minRegAutoWS maxRegAutoWS"
).split()


class TracedKernel:
    """Stands in for triton.compiler.CompiledKernel: the same attributes, but launching it only records."""

    def __init__(self, src: ASTSource, kernel: Kernel, metadata: Any, log: LaunchRecorder) -> None:
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
        return self._log.facts(self.kernel_text)

    def launch_metadata(self, *_: Any) -> None:
        """No launch hooks here."""

    def run(self, g0: int, g1: int, g2: int, stream: Any, function: Any, packed: Any, *rest: Any) -> None:
        """Record a launch; called by JITFunction.run with launch metadata, two hooks, then the bound arguments."""
        self._record((g0, g1, g2), rest[3:])

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """`compiled[grid](*args)`, as in the official softmax tutorial."""
        return lambda *args, stream=None: self._record(grid3(grid), args)

    def _record(self, grid: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        self._log.launch(self.kernel_text, grid3(grid), values, list(self.src.signature.values()))


def grid3(grid: Any) -> tuple[int, int, int]:
    sizes = [int(n) for n in (grid if isinstance(grid, list | tuple) else (grid,))]
    if not 1 <= len(sizes) <= 3 or any(n < 0 for n in sizes):
        raise ValueError(f"a grid has 1 to 3 sizes, none negative, not {sizes}")
    first, second, third = (*sizes, 1, 1)[:3]
    return first, second, third


def front_half(src: ASTSource, target: Any, options: dict[str, Any]) -> tuple[str, Any, dict[str, Any]]:
    """The front half of triton.compile: (text in TTIR, or TTGIR of Gluon, options, metadata). Raises triton's
    CompilationError, with MLIR's diagnostics as its note."""
    from triton._C.libtriton import ir

    backend = make_backend(target)
    parsed = backend.parse_options(dict(options or {}, **src.parse_options()))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, src.language)
    metadata = {"target": target, **parsed.__dict__}
    with _noted_diagnostics():
        functions, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
        text = str(stages[src.ext](src.make_ir(target, parsed, functions, modules, context), metadata))
    return text, parsed, metadata


@contextlib.contextmanager
def _noted_diagnostics() -> Iterator[None]:
    """What native code writes to stderr becomes a note of the exception that follows: Triton asserts that MLIR found no
    fault, and MLIR says there which."""
    saved = os.dup(2)
    told, into = os.pipe()  # a tracer has no folder to write in; MLIR's first fault fits into the 64 KiB of a pipe
    os.dup2(into, 2)
    os.close(into)
    os.set_blocking(told, False)
    try:
        yield
    except Exception as error:
        with contextlib.suppress(BlockingIOError):
            error.add_note(os.read(told, 4096).decode(errors="replace"))
        raise
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(told)


def signature_of(src: ASTSource) -> tuple[str, ...]:
    flat: list[str] = []

    def walk(kinds: Any) -> None:
        for kind in kinds:
            if isinstance(kind, tuple | list):
                walk(kind)
            elif kind != "constexpr":
                flat.append(str(kind))

    walk(src.signature.values())
    return tuple(flat)


def plain_options(parsed: Any, default: Any) -> dict[str, Json]:
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


def compile_stand_in(
    log: LaunchRecorder, target: Any, forbidden_option: Callable[[Mapping[str, Json]], str | None]
) -> Callable[..., TracedKernel]:
    """A replacement for triton.compiler.compile that lowers to TTIR and returns a recording kernel."""

    # two cases often ask for the same kernel: 3,000 unrolled steps for five cases take 3.7 s, not 5.5
    lowered: dict[tuple[str, str], tuple[str, Any, dict[str, Any]]] = {}

    def compile(src: Any, target: Any = target, options: Any = None, _env_vars: Any = None) -> TracedKernel:
        if not isinstance(src, ASTSource):
            raise Refused("triton.compile of an IR file inside a candidate; launch a @triton.jit function instead")
        key = (src.hash(), repr(sorted((options or {}).items())))
        if key not in lowered:
            lowered[key] = front_half(src, target, options)
        text, parsed, metadata = lowered[key]
        name = kernel_name(text, src.name)
        default = make_backend(target).parse_options({})
        kept = plain_options(parsed, default)
        if problem := forbidden_option(kept):
            raise Refused(problem)
        kernel = Kernel(name, "ttir", text, signature_of(src), kept)
        traced = TracedKernel(src, kernel, None, log)
        traced.metadata = _Metadata(metadata | {"name": name}, traced._report)
        return traced

    return compile


def kernel_name(text: str, fallback: str) -> str:
    start = text.find("tt.func public @")
    return text[start + 16 : text.index("(", start)].strip('"') if start >= 0 else fallback


def run_autotuned(log: LaunchRecorder) -> Callable[..., Any]:
    """A replacement for Autotuner.run: no timing; the trace says which config is wanted."""

    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
        key = self.base_fn.__name__
        config = configs[log.choice(key, [str(c) for c in configs])]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
        result = self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.nargs = None
        return result

    return run


def install(log: LaunchRecorder, target: Any, forbidden_option: Callable[[Mapping[str, Json]], str | None]) -> None:
    """Make Triton record into `log`. For a process that will do nothing else."""
    triton.compiler.compile = compile_stand_in(log, target, forbidden_option)
    triton.compile = triton.compiler.compile
    Autotuner.run = run_autotuned(log)
