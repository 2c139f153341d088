"""Frozen dataclasses to JSON values and back, strictly: what two processes, or a file and a process, agree on.

Decoding never builds anything but the type that was asked for, so that an untrusted process can send wrong data
but not surprising data. Unions of dataclasses are told apart by a `kind` field with a default value.

Texts from outside (models, candidates, files, servers, other machines) are made fit to be stored and shown by `plain`
and nothing else: a lone surrogate makes an encoder raise, an escape sequence rewrites a terminal, thirty megabytes
fill a log. What comes compressed, as JSON or as a file may be of any size once it is unpacked, and is taken in by
`inflated`, `parsed` and `read_file`, which have a bound each.
"""

import ast
import contextlib
import dataclasses
import difflib
import enum
import errno
import gc
import json
import math
import re
import reprlib
import shlex
import threading
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Decoder = Callable[[Any, str], Any]
Json = Any  # None, bool, int, float, str, list[Json], dict[str, Json]: the recursion is checked at run time


class DecodeError(ValueError):
    """The data does not have the declared shape; the message names the place and the value."""


def encode(value: Any) -> Json:
    """Turn dataclasses, enums, tuples and mappings into plain JSON values (non-finite floats become strings)."""
    with _collector_off():
        return _encode(value)


_COLLECTOR_LOCK = threading.RLock()  # a finaliser, or what handles a signal, may encode while its thread holds it


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """No search for cycles meanwhile: values of JSON have none, and of what a plan of 4,000 launches took it was 1.1 of
    2.5 s."""
    with _COLLECTOR_LOCK:  # else one turns it off as another turns it on, and nobody does that again
        was_on = gc.isenabled()  # by whichever thread, and whoever turned it off turns it on
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            with _COLLECTOR_LOCK:
                gc.enable()


def _encode(value: Any) -> Json:
    its: Any = type(value)
    return value if its in _AS_THEY_ARE else _encoder(its)(value)


@cache
def _encoder(cls: type) -> Callable[[Any], Json]:
    """What encodes values of a type. To ask of each value anew what it is took 0.18 s for 4,000 launches, which are
    encoded in 0.07."""
    if issubclass(cls, enum.Enum):
        return lambda value: value.value
    if issubclass(cls, float):
        return lambda value: value if math.isfinite(value) else str(value)
    if issubclass(cls, int | str):
        return lambda value: value
    if dataclasses.is_dataclass(cls):
        names = tuple(f.name for f in dataclasses.fields(cls))
        return lambda value: {name: _encode(getattr(value, name)) for name in names}
    if issubclass(cls, Mapping):
        return lambda value: {str(k): _encode(v) for k, v in value.items()}
    if issubclass(cls, list | tuple):
        return lambda value: list(value) if _AS_THEY_ARE.issuperset(map(type, value)) else [_encode(v) for v in value]
    return _not_encoded


def _not_encoded(value: Any) -> Json:
    raise TypeError(f"cannot encode {type(value).__name__}: {value!r:.100}")


_SHORT = reprlib.Repr()  # what is wrong may be half a million values; repr() would write them all down first
_SHORT.maxstring = _SHORT.maxother = 100
_AS_THEY_ARE = frozenset((int, str, bool, types.NoneType))


def decode(cls: type[T], data: Json, where: str = "$") -> T:
    """Build a `cls` from JSON values. Raises DecodeError when a field is missing, unknown or of another type."""
    with _collector_off():
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
        its = [(_right(a), _decoder(a)) for a in args if a is not Ellipsis]
        return partial(_decode_tuple if Ellipsis not in args and origin is tuple else _decode_sequence, origin, its)
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


_Right = tuple[frozenset[type], Decoder]  # the types of which a value is right as it is, and what decodes others


def _decode_tuple(origin: Any, its: list[_Right], data: Json, where: str) -> Any:
    _require(isinstance(data, list), data, where, "an array")
    _require(len(data) == len(its), data, where, f"an array of {len(its)}")
    pairs = enumerate(zip(its, data, strict=True))
    return tuple(v if type(v) in right else decoder(v, f"{where}[{i}]") for i, ((right, decoder), v) in pairs)


def _decode_sequence(origin: Any, its: list[_Right], data: Json, where: str) -> Any:
    _require(isinstance(data, list), data, where, "an array")
    right, decoder = its[0]
    if right.issuperset(map(type, data)):  # shapes and strides: half of the time that a plan took
        return origin(data)
    return origin(decoder(v, f"{where}[{i}]") for i, v in enumerate(data))


@cache
def _fields(cls: Any) -> dict[str, _Right]:
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
            unknown = _SHORT.repr(sorted(data.keys() - fields.keys()))
            raise DecodeError(f"{where}: unknown fields {unknown} for {cls.__name__}")
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
        raise DecodeError(f"{where}: wanted {wanted}, got {_SHORT.repr(data):.100}")
    return data


_PIECE_BYTES = 1 << 24  # unpacked at a time
MOST_FILE_BYTES = 1 << 26  # of a text: a task, a receipt with its plan, a configuration
MAX_SOURCE_BYTES = 1 << 20  # of a candidate
MOST_VALUES = 1 << 23  # a plan of 20,000 launches with 16 arguments each has 5 million


def number(value: Json) -> float | None:
    """A finite number; None for anything else, and for what no float holds: JSON knows whole numbers of any size."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def counted(digits: str) -> int | None:
    """The whole number that decimal digits say; None for anything else, and for more than nine of them."""
    return int(digits) if digits.isdecimal() and len(digits) < 10 else None


def inflated(data: bytes, most_bytes: int) -> bytes:
    """What zlib compressed. Raises ValueError when it has more bytes than that (3 MiB may become 3 GiB), or is
    damaged."""
    unpack, pieces, held = zlib.decompressobj(), list[bytes](), 0
    try:
        while data and not unpack.eof:
            pieces.append(unpack.decompress(data, _PIECE_BYTES))
            data, held = unpack.unconsumed_tail, held + len(pieces[-1])
            if held > most_bytes:
                raise ValueError(f"it unpacks to more than {most_bytes:,} bytes")
        pieces.append(unpack.flush())
    except zlib.error as error:
        raise ValueError(f"compressed data is damaged: {error}") from error
    if not unpack.eof:
        raise ValueError("compressed data is damaged: it breaks off")
    return b"".join(pieces)


def parsed(text: str, most_values: int = MOST_VALUES) -> Json:
    """The value of a JSON text. Raises ValueError when it is none, or has more values than that, which are counted
    before any is built (three characters, `[],`, take 64 bytes), RecursionError when they lie too deep."""
    if len(text) > most_values and (signs := sum(map(text.count, ",[{"))) > most_values:
        raise ValueError(f"it has {signs:,} commas and brackets, and so may have more than {most_values:,} values")
    with _collector_off():
        return json.loads(text)


_PARSING = threading.RLock()


def syntax_tree(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """`ast.parse`, by one thread at a time: CPython before 3.11.8 has one count of depth for all threads
    (gh-106905), so that two at once may end in a SystemError: seen once in 350 rollouts of a service. Whatever is not
    Python is a SyntaxError."""
    with _PARSING, _as_syntax_errors():
        return ast.parse(source, filename)


def expression_tree(text: str) -> ast.expr:
    """The same of an expression."""
    with _PARSING, _as_syntax_errors():
        return ast.parse(text, mode="eval").body


def literal(value: Any) -> str:
    """A plain value as Python: what numpy makes of a float, or a member of an enumeration, as a value of Python's own,
    and infinities as something that has a meaning. What else there is, as `repr` says it."""
    if isinstance(value, list | tuple):
        said = ", ".join(map(literal, value))
        return f"[{said}]" if isinstance(value, list) else f"({said}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(part)}" for key, part in value.items()) + "}"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    its = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    return repr(its(value) if its else value)


@contextlib.contextmanager
def _as_syntax_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "it is nested too deeply, or no memory is left") from error


def read_file(path: Path, most_bytes: int = MOST_FILE_BYTES) -> bytes:
    """What a file holds. Raises OSError when it cannot be read, or has more bytes than that: a link to /dev/zero has no
    end."""
    with path.open("rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return data


def reason(error: BaseException) -> str:
    """What went wrong in words, without the number and the path that an OSError puts around them: who tells it names
    the file."""
    return getattr(error, "strerror", None) or str(error)


def leads_within(folder: Path, path: Path) -> bool:
    """Whether a path found in a folder is there, and not a link to somewhere else."""
    return path.resolve().is_relative_to(folder.resolve())


MOST = 2000  # characters of a message
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
# Whole where it has an end; ESC and what follows it otherwise, lest a sequence without an end hides the rest.
_ESCAPE = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b\n]*(?:\x07|\x1b\\\\)|[ -~])?")
# Soft hyphens, zero-width and direction marks, variation selectors, tags: terminals disagree on their width.
_UNSEEN = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]"
)
_MOST_MEANT = 100  # characters of a name that others are compared with
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


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", *, lead: str = "") -> str:
    """Ask for the known name that an unknown one is most like, behind `lead`; `otherwise` where it is like none."""
    close = difflib.get_close_matches(name[:_MOST_MEANT], known, n=1)
    return f"{lead}did you mean {close[0]}?" if close else otherwise


def unified_diff(before: str, after: str, from_name: str = "before", to_name: str = "after") -> str:
    """What changed between two sources, as `patch` applies it; "" when nothing did."""
    old, new = (re.findall("[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = difflib.unified_diff(old, new, from_name, to_name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def one_line(text: str, most: int | None = None) -> str:
    """Make a text `plain` and put it on one line, with runs of blanks made one."""
    return " ".join(plain(text, most).split())


def plural(n: int, noun: str) -> str:
    """A count in words: 1 attempt, 2 attempts."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def shell_word(text: str) -> str:
    """Make a text one word of a command that a person may paste into a shell: nothing in it is obeyed there."""
    return shlex.quote(one_line(text))


def _shown(character: str) -> str:
    if character.isprintable() or character in "\n\t":
        return character
    return " " if character.isspace() else "\N{REPLACEMENT CHARACTER}"
