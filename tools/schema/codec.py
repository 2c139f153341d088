"""Frozen dataclasses to JSON values and back, strictly: what two processes, or a file and a process, agree on.

Decoding never builds anything but the type that was asked for, so that an untrusted process can send wrong data
but not surprising data. Unions of dataclasses are told apart by a `kind` field with a default value.

Texts from outside (models, candidates, files, servers, other machines) are made fit to be stored and shown by `plain`
and nothing else: a lone surrogate makes an encoder raise, an escape sequence rewrites a terminal, thirty megabytes
fill a log.
"""

import dataclasses
import enum
import math
import re
import shlex
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")
Decoder = Callable[[Any, str], Any]
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
    return _decoder(hint)(data, where)


@cache
def _decoder(hint: Any) -> Decoder:
    """What decodes values of a type. Resolving a hint takes longer than decoding by it."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda data, where: data
    if origin in (typing.Union, types.UnionType):
        rest = [(_kind(o), _decoder(o)) for o in args if o is not types.NoneType]
        decoder = partial(_decode_union, rest) if len(rest) > 1 else rest[0][1]
        return partial(_or_none, decoder) if types.NoneType in args else decoder
    if origin is typing.Literal:
        return lambda data, where: _require(data in args, data, where, f"one of {args}")
    if origin in (tuple, list):
        return partial(_decode_sequence, origin, [_decoder(a) for a in args if a is not Ellipsis], args)
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        return partial(_decode_mapping, _decoder(args[0]), _decoder(args[1]))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return partial(_decode_enum, hint, [m.value for m in hint])
    if dataclasses.is_dataclass(hint):
        return partial(_decode_dataclass, hint)
    return partial(_decode_scalar, hint)


def _decode_mapping(of_key: Decoder, of_value: Decoder, data: Json, where: str) -> Any:
    _require(isinstance(data, dict), data, where, "an object")
    return {of_key(k, where): of_value(v, f"{where}.{k}") for k, v in data.items()}


def _decode_enum(hint: Any, values: list[Json], data: Json, where: str) -> Any:
    return hint(_require(data in values, data, where, f"one of {values}"))


def _decode_union(options: list[tuple[Json, Decoder]], data: Json, where: str) -> Any:
    """`options`: kind (None for what has none) and decoder of each."""
    if isinstance(data, dict) and "kind" in data:
        options = [o for o in options if o[0] in (None, data["kind"])] or options
    errors = []
    for _, decoder in options:
        try:
            return decoder(data, where)
        except DecodeError as error:
            errors.append(str(error))
    raise DecodeError("; or ".join(errors))


def _or_none(decoder: Decoder, data: Json, where: str) -> Any:
    return None if data is None else decoder(data, where)


def _kind(option: Any) -> Json:
    if not dataclasses.is_dataclass(option):
        return None
    return next((f.default for f in dataclasses.fields(option) if f.name == "kind"), None)


def _decode_sequence(origin: Any, decoders: list[Decoder], args: tuple[Any, ...], data: Json, where: str) -> Any:
    _require(isinstance(data, list), data, where, "an array")
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        _require(len(data) == len(args), data, where, f"an array of {len(args)}")
        return tuple(d(v, f"{where}[{i}]") for i, (d, v) in enumerate(zip(decoders, data, strict=True)))
    return origin(decoders[0](v, f"{where}[{i}]") for i, v in enumerate(data))


@cache
def _fields(cls: Any) -> dict[str, tuple[frozenset[type], Decoder]]:
    """Of each field the types of which a value is right as it is, and what decodes others."""
    return {name: (_right(hint), _decoder(hint)) for name, hint in typing.get_type_hints(cls).items()}


def _right(hint: Any) -> frozenset[type]:
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return frozenset(option for option in options if option in (int, str, bool, float, types.NoneType))


def _decode_dataclass(cls: Any, data: Json, where: str) -> Any:
    _require(isinstance(data, dict), data, where, f"a {cls.__name__}")
    fields = _fields(cls)
    values = {}
    for name, value in data.items():
        field = fields.get(name)
        if field is None:
            raise DecodeError(f"{where}: unknown fields {sorted(data.keys() - fields.keys())} for {cls.__name__}")
        values[name] = value if type(value) in field[0] else field[1](value, f"{where}.{name}")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"{where}: {error}") from error


def _decode_scalar(hint: Any, data: Json, where: str) -> Any:
    if hint is float:
        if isinstance(data, str) and data in ("inf", "-inf", "nan"):
            return float(data)
        _require(isinstance(data, int | float) and not isinstance(data, bool), data, where, "a number")
        try:
            return float(data)
        except OverflowError as error:  # of an integer beyond 1.8e308
            raise DecodeError(f"{where}: wanted a number, got one of {data.bit_length()} bits") from error
    if hint is int:
        return _require(isinstance(data, int) and not isinstance(data, bool), data, where, "an integer")
    return _require(isinstance(data, hint), data, where, getattr(hint, "__name__", str(hint)))


def _require(ok: bool, data: Json, where: str, wanted: str) -> Json:
    if not ok:
        raise DecodeError(f"{where}: wanted {wanted}, got {data!r:.100}")
    return data


MOST = 2000  # characters of a message
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
# Whole where it has an end; ESC and what follows it otherwise, lest a sequence without an end hides the rest.
_ESCAPE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)|[ -~])?")
# Soft hyphens, zero-width and direction marks, variation selectors, tags: terminals disagree on their width.
_UNSEEN = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]"
)
_GAP = " … "


def plain(text: str, most: int | None = MOST) -> str:
    """Make a text from outside fit for a terminal, a file or a page: printable characters, tabs and newlines.

    Escape sequences and characters without a width are left out, other control characters, bidirectional overrides and
    lone surrogates become U+FFFD. Of more than `most` characters the beginning and the end are kept; None keeps all.
    """
    if most is not None and len(text) > most:
        tail = most // 3
        text = text[: most - tail - len(_GAP)] + _GAP + text[len(text) - tail :]
    if not text.isascii():
        text = _UNSEEN.sub("", text)
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text  # as nearly all words are, and stored ones pass here again
    return "".join(map(_shown, _ESCAPE.sub("", _LINE_ENDS.sub("\n", text))))


def one_line(text: str, most: int | None = None) -> str:
    """Make a text `plain` and put it on one line, with runs of blanks made one."""
    return " ".join(plain(text, most).split())


def shell_word(text: str) -> str:
    """Make a text one word of a command that a person may paste into a shell: nothing in it is obeyed there."""
    return shlex.quote(one_line(text))


def _shown(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"
