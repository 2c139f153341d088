"""Which values fit the parameters of an entry, and under what type names a launch plan keeps them. Pure.

Type names are Triton's ("i32", "fp32", "*bf16"): plans, launchers and stores know them already.
"""

from collections.abc import Sequence
from typing import Any

from tools.ptx.ir import Function, Module, Param

_POINTEES = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "i1",
    "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5", "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
}  # fmt: skip
_FLOATS = {"f64": "fp64", "f32": "fp32", "b64": "fp64", "b32": "fp32", "f16": "fp16", "b16": "fp16"}


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
    """Each value's type name. Raises PtxLaunchError."""
    if len(values) != len(entry.params):
        declared = ", ".join(f".{p.type} {p.name}" for p in entry.params)
        raise PtxLaunchError(f"{entry.name} takes {len(entry.params)} arguments ({declared}), not {len(values)}")
    return tuple(_type(entry, param, value) for param, value in zip(entry.params, values, strict=True))


def _type(entry: Function, param: Param, value: Any) -> str:
    if param.count is not None:
        raise _misfit(entry, param, "an array: no launch can pass one. Pass a tensor's address or single numbers")
    if hasattr(value, "data_ptr"):
        if param.type not in ("u64", "b64", "s64"):
            raise _misfit(entry, param, "given a tensor: an address takes .u64")
        return "*" + _POINTEES.get(str(value.dtype).removeprefix("torch."), "i8")
    if isinstance(value, bool | int) and not param.type.startswith("f"):
        return _whole(entry, param, int(value))
    if isinstance(value, bool | int | float) and param.type in _FLOATS:
        return _FLOATS[param.type]
    raise _misfit(entry, param, f"given {_short(value)}")


def _whole(entry: Function, param: Param, value: int) -> str:
    bits = 8 * param.nbytes
    if -(1 << bits - 1) <= value < 1 << bits - 1:
        return f"i{bits}"
    if 0 <= value < 1 << bits:
        return f"u{bits}"
    raise _misfit(entry, param, f"given {value}, which does not fit")


def _short(value: Any) -> str:
    return f"{value!r:.40} ({type(value).__name__})"


def _misfit(entry: Function, param: Param, what: str) -> PtxLaunchError:
    return PtxLaunchError(
        f"the parameter `.{param.type} {param.name}` of {entry.name} (PTX line {param.line}) is {what}"
    )


def mismatch(entry: Function, signature: Sequence[str]) -> str | None:
    """Why values of these types cannot be what the entry takes, or None: asked again where nobody trusts the plan."""
    if len(signature) != len(entry.params):
        return f"{entry.name} takes {len(entry.params)} arguments, not {len(signature)}"
    for param, kind in zip(entry.params, signature, strict=True):
        if param.count is not None or param.nbytes != _nbytes(kind):
            return f"the parameter `.{param.type} {param.name}` (PTX line {param.line}) cannot be given a {kind!r:.40}"
    return None


def _nbytes(kind: str) -> int:
    if kind.startswith("*"):
        return 8
    letters = kind.rstrip("0123456789")
    digits = kind.removeprefix(letters)
    known = letters in ("i", "u", "fp") and digits in ("8", "16", "32", "64") and kind != "fp8"
    return int(digits) // 8 if known else -1
