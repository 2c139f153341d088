"""Frozen dataclasses to JSON values and back, strictly: what two processes, or a file and a process, agree on.

Decoding never builds anything but the type that was asked for, so that an untrusted process can send wrong data
but not surprising data. Unions of dataclasses are told apart by a `kind` field with a default value.
"""

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
Json = Any  # None, bool, int, float, str, list[Json], dict[str, Json]: the recursion is checked at run time


class DecodeError(ValueError):
    """The data does not have the declared shape; the message names the place and the value."""


def encode(value: Any) -> Json:
    """Turn dataclasses, enums, tuples and mappings into plain JSON values (non-finite floats become strings)."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    raise TypeError(f"cannot encode {type(value).__name__}: {value!r:.100}")


def decode(cls: type[T], data: Json, where: str = "$") -> T:
    """Build a `cls` from JSON values. Raises DecodeError when a field is missing, unknown or of another type."""
    return typing.cast(T, _decode(cls, data, where))


def _decode(hint: Any, data: Json, where: str) -> Any:
    if hint is Any:
        return data
    origin, args = _shape(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, data, where)
    if origin is typing.Literal:
        return _require(data in args, data, where, f"one of {args}")
    if origin in (tuple, list):
        return _decode_sequence(origin, args, data, where)
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        _require(isinstance(data, dict), data, where, "an object")
        return {_decode(args[0], k, where): _decode(args[1], v, f"{where}.{k}") for k, v in data.items()}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        _require(data in [m.value for m in hint], data, where, f"one of {[m.value for m in hint]}")
        return hint(data)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, data, where)
    return _decode_scalar(hint, data, where)


def _decode_union(options: tuple[Any, ...], data: Json, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    rest = [o for o in options if o is not type(None)]
    if isinstance(data, dict) and "kind" in data:
        rest = [o for o in rest if _kind(o) in (None, data["kind"])] or rest
    errors = []
    for option in rest:
        try:
            return _decode(option, data, where)
        except DecodeError as error:
            errors.append(str(error))
    raise DecodeError("; or ".join(errors))


def _kind(option: Any) -> Json:
    if not dataclasses.is_dataclass(option):
        return None
    return next((f.default for f in dataclasses.fields(option) if f.name == "kind"), None)


def _decode_sequence(origin: Any, args: tuple[Any, ...], data: Json, where: str) -> Any:
    _require(isinstance(data, list), data, where, "an array")
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        _require(len(data) == len(args), data, where, f"an array of {len(args)}")
        return tuple(_decode(a, d, f"{where}[{i}]") for i, (a, d) in enumerate(zip(args, data, strict=True)))
    return origin(_decode(args[0], d, f"{where}[{i}]") for i, d in enumerate(data))


@cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """What `typing` says of a type; asking it took a quarter of the time of a decoding."""
    return typing.get_origin(hint), typing.get_args(hint)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode_dataclass(cls: Any, data: Json, where: str) -> Any:
    _require(isinstance(data, dict), data, where, f"a {cls.__name__}")
    hints = _hints(cls)
    if unknown := set(data) - set(hints):
        raise DecodeError(f"{where}: unknown fields {sorted(unknown)} for {cls.__name__}")
    values = {name: _decode(hints[name], data[name], f"{where}.{name}") for name in data}
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"{where}: {error}") from error


def _decode_scalar(hint: Any, data: Json, where: str) -> Any:
    if hint is float:
        if isinstance(data, str) and data in ("inf", "-inf", "nan"):
            return float(data)
        _require(isinstance(data, int | float) and not isinstance(data, bool), data, where, "a number")
        return float(data)
    if hint is int:
        return _require(isinstance(data, int) and not isinstance(data, bool), data, where, "an integer")
    return _require(isinstance(data, hint), data, where, getattr(hint, "__name__", str(hint)))


def _require(ok: bool, data: Json, where: str, wanted: str) -> Json:
    if not ok:
        raise DecodeError(f"{where}: wanted {wanted}, got {data!r:.100}")
    return data
