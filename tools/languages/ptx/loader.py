"""PTX as candidates hold it: texts, templates with configs, and the `PtxKernel` that launches them."""

import ast
import itertools
import math
import operator
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from jinja2 import Environment, StrictUndefined, Template, TemplateError

from kerneltune.tools.languages.ptx.ir import Function, Module, PtxError, Variable, line_of, parse
from kerneltune.tools.schema.codec import Json, syntax_tree
from kerneltune.tools.schema.gpus import LARGEST_BLOCK
from kerneltune.tools.schema.messages import Lowered, Program
from kerneltune.tools.schema.plan import described_rank, is_descriptor

# ---
# Which candidates hold texts for it. Pure.

_IMPORTS_US = re.compile(r"^\s*(?:from (?:kerneltune|tools\.ptx) import|import kerneltune)\b", re.MULTILINE)


def imports_loader(source: str, name: str) -> bool:
    """Whether a source takes the loader of that name from this package."""
    return _IMPORTS_US.search(source) is not None and re.search(rf"\b{name}\b", source) is not None


def ptx_texts(source: str) -> list[str]:
    """The texts that a candidate gives to PtxKernel as literals, in order; a template as it is written."""
    try:
        calls = [node for node in ast.walk(syntax_tree(source)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return []
    first = [c.args[0] for c in calls if c.args and getattr(c.func, "id", getattr(c.func, "attr", "")) == "PtxKernel"]
    found = [node for node in first if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [str(node.value) for node in sorted(found, key=lambda node: node.lineno)]


# ---
# Which values fit the parameters of an entry, and under what type names a launch plan keeps them. Pure.
#
# Type names are Triton's ("i32", "fp32", "*bf16"): plans, launchers and stores know them already.

_POINTEES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "i1",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
}  # fmt: skip
_FLOATS = {"f64": "fp64", "f32": "fp32", "b64": "fp64", "b32": "fp32", "f16": "fp16", "b16": "fp16"}


TENSOR_MAP = "tensormap"


class PtxLaunchError(Exception):
    """A launch that does not fit its kernel: values, their number, the block. The message says what would; `whole` is
    the text that it is about, where somebody knows it."""

    whole = ""


def entry_of(module: Module, name: str | None) -> Function:
    """The entry of that name; without a name, the only one. Raises PtxLaunchError."""
    entries = module.entries
    names = [entry.name for entry in entries]
    if doubled := next((n for n in names if names.count(n) > 1), None):
        lines = ", ".join(str(e.line) for e in entries if e.name == doubled)
        raise PtxLaunchError(f"the PTX defines the entry {doubled!r} more than once (PTX lines {lines}); keep one")
    if not entries:
        raise PtxLaunchError("the PTX has no entry: write `.visible .entry NAME(…) { … }`")
    if name is None and len(entries) > 1:
        raise PtxLaunchError(f"the PTX has several entries; say which: PtxKernel(text, entry={names[0]!r})")
    found = next((e for e in entries if name in (None, e.name)), None)
    if found is None:
        raise PtxLaunchError(f"the PTX has no entry {name!r}; it has {', '.join(names)}")
    return found


def bind(entry: Function, values: Sequence[Any]) -> tuple[str, ...]:
    """Return the type name of each value. Raises PtxLaunchError."""
    known = [_type_of_described(value) if is_descriptor(value) else "" for value in values]
    widths = [len(parts) for parts in parameters_of(known)]
    if sum(widths) != len(entry.params):
        declared = ", ".join(f".{p.type} {p.name}" for p in entry.params)
        hint = f". {_DESCRIBED}" if any(known) else ""
        raise PtxLaunchError(f"{entry.name} takes {len(entry.params)} arguments ({declared}), not {sum(widths)}{hint}")
    firsts = list(itertools.accumulate(widths, initial=0))[:-1]
    kinds = [kind or _type(entry, entry.params[i], value) for kind, i, value in zip(known, firsts, values, strict=True)]
    if any(known) and (problem := mismatch(entry, kinds)):
        raise PtxLaunchError(problem)
    return tuple(kinds)


def _type(entry: Function, param: Variable, value: Any) -> str:
    if param.count is not None:
        raise _misfit(entry, param, f"an array, given {_short(value)}: only a TensorDescriptor fills one. {_DESCRIBED}")
    if hasattr(value, "data_ptr"):
        if param.type not in ("u64", "b64", "s64"):
            raise _misfit(entry, param, "given a tensor: an address takes .u64")
        return "*" + _POINTEES.get(str(value.dtype).removeprefix("torch."), "i8")
    if isinstance(value, bool | int) and not param.type.startswith("f"):
        return _whole(entry, param, int(value))
    if isinstance(value, bool | int | float) and param.type in _FLOATS:
        return _FLOATS[param.type]
    raise _misfit(entry, param, f"given {_short(value)}")


def _whole(entry: Function, param: Variable, value: int) -> str:
    bits = 8 * param.nbytes
    if -(1 << bits - 1) <= value < 1 << bits - 1:
        return f"i{bits}"
    if 0 <= value < 1 << bits:
        return f"u{bits}"
    raise _misfit(entry, param, f"given {value}, which does not fit")


def _short(value: Any) -> str:
    return f"{value!r:.40} ({type(value).__name__})"


def _misfit(entry: Function, param: Variable, what: str) -> PtxLaunchError:
    return PtxLaunchError(f"the parameter `.{param.type} {param.name}` of {entry.name}{_place(param)} is {what}")


def _place(param: Variable) -> str:
    return f" (PTX line {param.line})" if param.line else ""


def mismatch(entry: Function, signature: Sequence[str]) -> str | None:
    """Return why values of these types cannot be what the entry takes, or None: asked again where nobody trusts the
    plan."""
    kinds = [kind for its in parameters_of(signature) for kind in its]
    if len(kinds) != len(entry.params):
        return f"{entry.name} takes {len(entry.params)} arguments, not {len(kinds)}"
    for param, kind in zip(entry.params, kinds, strict=True):
        odd = kind == TENSOR_MAP and (param.align or 1) % _MAP_ALIGN
        if (param.count is not None) != (kind == TENSOR_MAP) or param.nbytes != _nbytes(kind) or odd:
            hint = f". {_DESCRIBED}" if any(map(described_rank, signature)) else ""
            return f"the parameter `.{param.type} {param.name}`{_place(param)} cannot be given a {kind!r:.40}{hint}"
    return None


def parameters_of(signature: Sequence[str]) -> list[tuple[str, ...]]:
    """The parameters of an entry that each argument fills: of a tensor's descriptor a tensor map, its sizes and its
    strides."""
    ranks = [(kind, described_rank(kind)) for kind in signature]
    return [(TENSOR_MAP, *["i32"] * rank, *["i64"] * rank) if rank else (kind,) for kind, rank in ranks]


def _nbytes(kind: str) -> int:
    if kind.startswith("*"):
        return 8
    if kind == TENSOR_MAP:
        return 128
    letters = kind.rstrip("0123456789")
    digits = kind.removeprefix(letters)
    known = letters in ("i", "u", "fp") and digits in ("8", "16", "32", "64") and kind != "fp8"
    return int(digits) // 8 if known else 1 if kind in ("i1", "u1") else -1


# ---
# Descriptors of tensors, Triton's and Gluon's: each becomes a tensor map (TMA), its sizes and its strides. A box is the
# block, and lies in shared memory as Gluon's layout says; without a layout, row after row. Pure.

_MAP_ALIGN = 64
_MOST_OF_A_BOX = 256  # of each dimension
_LINE_BYTES = 16
_ELEMENT_TYPES = {"float16": 6, "float32": 7, "float64": 9, "bfloat16": 10, "int32": 3, "int64": 5}  # PTX's numbers
_UNSIGNED = {1: 0, 2: 1, 4: 2, 8: 4}  # by bytes
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_DESCRIBED = (
    "A descriptor of N dimensions fills 1 + 2 * N parameters: `.param .align 64 .b8 x[128]`, N sizes `.param .u32`, "
    "N strides `.param .u64`"
)


def encodings(values: Sequence[Any]) -> list[Json]:
    """How the tensor map of each descriptor among the values is encoded, as plans keep it. Raises PtxLaunchError."""
    return [_encoding(value) for value in values if is_descriptor(value)]


def _type_of_described(value: Any) -> str:
    dtype = str(value.base.dtype).removeprefix("torch.")
    if dtype not in _POINTEES:
        raise PtxLaunchError(f"no tensor map is of {dtype}; describe a view of another type")
    return f"tensordesc<{_POINTEES[dtype]}{[int(n) for n in value.block_shape]}>"


def _encoding(value: Any) -> Json:
    box, item, layout = [int(n) for n in value.block_shape], value.base.element_size(), getattr(value, "layout", None)
    dtype = str(value.base.dtype).removeprefix("torch.")
    swizzled = getattr(layout, "swizzle_byte_width", 0)
    if getattr(layout, "transposed", False) or getattr(layout, "fp4_padded", False):
        raise PtxLaunchError("a descriptor with a transposed or fp4_padded layout: describe the bytes as they lie")
    if getattr(value, "round_f32_to_tf32", False):
        raise PtxLaunchError("a descriptor with round_f32_to_tf32=True: leave it out, and round in the PTX")
    if max(box) > _MOST_OF_A_BOX:
        raise PtxLaunchError(f"a box of {box}: a side has {_MOST_OF_A_BOX} at most; make it smaller and copy several")
    if box[-1] * item % _LINE_BYTES:
        words = f"a box of {box} {dtype}: its rows have {box[-1] * item} bytes, which {_LINE_BYTES} does not divide"
        raise PtxLaunchError(f"{words}; make block_shape[-1] a multiple of {max(1, _LINE_BYTES // item)}")
    if swizzled and box[-1] * item > swizzled:
        words = f"a box of {box} {dtype}: its rows have {box[-1] * item} bytes, more than the {swizzled} of its swizzle"
        raise PtxLaunchError(f"{words}; write block_shape[-1] = {swizzled // item}, and copy several boxes")
    return {
        "swizzle": _SWIZZLES[swizzled],
        "elem_size": item,
        "elem_type": _ELEMENT_TYPES.get(dtype, _UNSIGNED[item]),
        "block_size": box,
        "fp4_padded": False,
    }


# ---
# PTX with open parameters: Jinja2 with marks that PTX has no use for.
#
# `${NAME}` or `${expression}` is replaced; a line that begins with `//:` is a statement (`//: for i in range(UNROLL)`
# … `//: endfor`, `//: if VEC == 4` … `//: endif`, `//: set N = 4`), and a comment to everything else that reads PTX.

_MOST_WORDS = 400


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        variable_start_string="${",
        variable_end_string="}",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        line_statement_prefix="//:",
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - PTX is no HTML
        keep_trailing_newline=True,
    )


@lru_cache(maxsize=64)
def _template(text: str) -> Template:
    return _environment().from_string(text)


def render(text: str, parameters: Mapping[str, object]) -> str:
    """The text with its parameters filled in. Raises PtxError, with the template's line where it is known."""
    try:
        return _template(text).render(parameters)
    except Exception as error:  # an expression of the template can raise anything
        said = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        line = getattr(error, "lineno", None) or _line_of(error)
        raise PtxError(line, f"the template cannot be filled in: {said[:_MOST_WORDS]}", line_of(text, line)) from error


def _line_of(error: Exception) -> int:
    """The template's line that raised; Jinja2 gives its frames the lines of the template."""
    frames = traceback.extract_tb(error.__traceback__)
    return next((f.lineno for f in reversed(frames) if f.filename == "<template>" and f.lineno), 1)


# ---
# What a candidate launches its PTX with. Where launches go is decided by who is in charge of the process: a tracer
# writes them down; elsewhere they go to the GPU (`GpuPtxLauncher`).

LARGEST_CLUSTER = 16
_AXES = 3


@dataclass(frozen=True)
class PtxLaunch:
    """One launch. `grid` counts blocks, `block` threads, `cluster` blocks of a cluster; `signature` has the values'
    types as plans name them; `shared_bytes` is dynamic shared memory."""

    text: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: tuple[Any, ...]
    signature: tuple[str, ...] = ()
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    pdl: bool = False


class PtxLauncher(Protocol):
    """Where launches go: it runs them or writes them down, and chooses among configs."""

    def launch(self, launch: PtxLaunch) -> None:
        """Launch it, or record the launch."""

    def choose(
        self,
        key: str,
        values: Sequence[Any],
        configs: Sequence[Mapping[str, Any]],
        run: Callable[[Mapping[str, Any]], None],
    ) -> int:
        """Which config a launch of `values` shall use; `run` launches with one of them."""

    def lowered(self, program: Program) -> Lowered:
        """PTX with one entry, of a program in another language. Raises NotCompiled."""


_launcher: PtxLauncher | None = None
_by_default: Callable[[], PtxLauncher] | None = None


def use(launcher: PtxLauncher) -> None:
    """Send all launches of this process there from now on."""
    global _launcher
    _launcher = launcher


def use_by_default(make: Callable[[], PtxLauncher]) -> None:
    """Say where launches go when nobody else is in charge."""
    global _by_default
    _by_default = make


def in_charge() -> PtxLauncher:
    """Where launches of this process go."""
    if _launcher is None:
        if _by_default is None:
            raise PtxLaunchError("nothing launches PTX in this process: import PtxKernel from kerneltune")
        use(_by_default())
    assert _launcher is not None
    return _launcher


class PtxKernel:
    """An entry of a PTX text, to be launched as a Triton kernel is: `kernel[grid](*args, block=256)`.

    A launch takes `block` (threads: an int, or up to three), `shared_bytes` (dynamic shared memory), `cluster`
    (blocks), `cooperative` and `pdl`. Arguments are tensors, of which the entry gets the address, numbers, and Triton's
    or Gluon's TensorDescriptor, of which it gets the tensor map, the sizes and the strides.

    Args:
        text: PTX; with `configs` a template, which each config fills in. The fastest config is used.
        entry: The entry's name; may be left out where the text has one.
        configs: Dicts of parameters. Grid, block and shared_bytes may be functions of the config; "block" and
            "shared_bytes" in a config stand for arguments that a launch leaves out.

    Raises:
        PtxError: at the first launch, with the line: the text is not PTX.
        PtxLaunchError: the values do not fit the entry.
    """

    def __init__(self, text: str, *, entry: str | None = None, configs: Sequence[Mapping[str, Any]] = ()) -> None:
        if not isinstance(text, str):
            raise PtxLaunchError(f"PtxKernel takes PTX as a str, not {type(text).__name__}")
        self.text, self.entry = text, entry
        self.configs = tuple(dict(config) for config in configs)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """A launch over that many blocks: an int, up to three of them, or a function of the config."""
        return lambda *args, **options: self._choose(grid, args, options)

    def _choose(self, grid: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        launcher = in_charge()

        def run(config: Mapping[str, Any]) -> None:
            launcher.launch(self._bound(config, grid, args, **options))

        try:
            if not self.configs:
                run({})
                return
            run(self.configs[launcher.choose(self._key(), args, self.configs, run)])
        except (PtxError, PtxLaunchError) as error:
            error.whole = error.whole or self.text
            raise

    def _key(self) -> str:
        """What its configs are called."""
        return self.entry or self._entry(self.configs[0])[1].name

    def _entry(self, config: Mapping[str, Any]) -> tuple[str, Function]:
        text = render(self.text, config) if self.configs else self.text
        return text, entry_of(parse(text), self.entry)

    def _bound(
        self,
        config: Mapping[str, Any],
        grid: Any,
        args: tuple[Any, ...],
        *,
        block: Any = None,
        shared_bytes: Any = None,
        cluster: Any = None,
        cooperative: bool = False,
        pdl: bool = False,
    ) -> PtxLaunch:
        text, entry = self._entry(config)
        wanted = config.get("block") if block is None else block
        shared = config.get("shared_bytes", 0) if shared_bytes is None else shared_bytes
        blocks = sizes("grid", _filled(grid, config), least=0)
        return PtxLaunch(
            text,
            entry.name,
            blocks,
            block_of(_filled(wanted, config), entry.directives, entry.name),
            args,
            bind(entry, args),
            _size("shared_bytes", _filled(shared, config)),
            cluster_of(_filled(cluster, config), blocks, entry.directives),
            bool(cooperative),
            bool(pdl),
        )


def _filled(value: Any, config: Mapping[str, Any]) -> Any:
    return value(config) if callable(value) else value


def _size(name: str, value: Any) -> int:
    try:
        size = operator.index(value)
    except (TypeError, ValueError) as error:
        raise PtxLaunchError(f"{name} is a whole number, not {value!r:.40} (divide with // or triton.cdiv)") from error
    if size < 0:
        raise PtxLaunchError(f"{name} cannot be {size}")
    return size


def sizes(name: str, value: Any, *, least: int = 1) -> tuple[int, int, int]:
    """Return one to three sizes as three. Raises PtxLaunchError."""
    given = [_size(name, v) for v in (value if isinstance(value, list | tuple) else (value,))]
    if not 1 <= len(given) <= _AXES or min(given) < least:
        raise PtxLaunchError(f"{name} has one to three sizes of at least {least}, not {value!r:.60}")
    first, second, third = (*given, 1, 1)[:_AXES]
    return first, second, third


def block_of(wanted: Any, directives: Mapping[str, tuple[int, ...]], entry: str) -> tuple[int, int, int]:
    """Threads of a block, which the text may demand (.reqntid) or bound (.maxntid). Raises PtxLaunchError."""
    demanded, bound = directives.get("reqntid"), directives.get("maxntid")
    if wanted is None and demanded is None:
        raise PtxLaunchError(f"say how many threads a block of {entry} has: kernel[grid](…, block=256)")
    block = sizes("block", demanded if wanted is None else wanted)
    threads = math.prod(block)
    if demanded is not None and block != sizes("block", demanded):
        raise PtxLaunchError(f"block={block}, but the text says .reqntid {', '.join(map(str, demanded))}")
    if bound is not None and threads > math.prod(bound):
        raise PtxLaunchError(f"a block of {threads} threads, but the text says .maxntid {', '.join(map(str, bound))}")
    if threads > LARGEST_BLOCK:
        raise PtxLaunchError(f"a block of {threads} threads; the most is {LARGEST_BLOCK}")
    return block


def cluster_of(
    wanted: Any, grid: tuple[int, int, int], directives: Mapping[str, tuple[int, ...]]
) -> tuple[int, int, int]:
    """Blocks of a cluster, which the text may demand (.reqnctapercluster) and the grid must be made of. Raises
    PtxLaunchError."""
    demanded = directives.get("reqnctapercluster")
    cluster = sizes("cluster", (demanded or (1, 1, 1)) if wanted is None else wanted)
    if demanded and cluster != sizes("cluster", demanded):
        raise PtxLaunchError(f"cluster={cluster}, but the text says .reqnctapercluster {', '.join(map(str, demanded))}")
    if math.prod(cluster) > LARGEST_CLUSTER:
        raise PtxLaunchError(f"a cluster of {math.prod(cluster)} blocks; the most is {LARGEST_CLUSTER}")
    if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
        raise PtxLaunchError(f"a grid of {grid} blocks cannot be divided into clusters of {cluster}")
    return cluster
