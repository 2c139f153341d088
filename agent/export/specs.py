"""Formats as a command line names them: `sft-chat`, or `sft-chat:seen=true,reasoning=none`."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any

from agent.export.base import Format
from agent.export.formats.atif import Atif
from agent.export.formats.convert import Convert
from agent.export.formats.dpo import Dpo
from agent.export.formats.fim import Fim
from agent.export.formats.fix import Fix
from agent.export.formats.kto import Kto
from agent.export.formats.openai import OpenAi
from agent.export.formats.raw import Raw
from agent.export.formats.rl_turns import RlTurns
from agent.export.formats.sft_best import SftBest
from agent.export.formats.sft_chat import SftChat
from agent.export.formats.sharegpt import ShareGpt
from agent.export.formats.sts import Sts
from agent.export.formats.verl import Verl
from tools.errors import UsageError

FORMATS: dict[str, type[Format]] = {
    f.name: f for f in (SftChat, SftBest, Fim, Convert, Fix, Dpo, Kto, RlTurns, Verl, OpenAi, ShareGpt, Atif, Sts, Raw)
}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def formats_of(specs: Iterable[str]) -> tuple[Format, ...]:
    """The formats that specs name, in order. Raises UsageError, also when one is named twice."""
    made: dict[str, Format] = {}
    for spec in specs:
        found = format_of(spec)
        if found.name in made:
            raise UsageError(f"format {found.name} is named twice; make two exports of it")
        made[found.name] = found
    return tuple(made.values())


def format_of(spec: str) -> Format:
    """The format that a spec names, with its options. Raises UsageError: which part is wrong, and what would work."""
    name, _, rest = spec.partition(":")
    found = FORMATS.get(name)
    if found is None:
        close = difflib.get_close_matches(name, FORMATS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(FORMATS)}"
        raise UsageError(f"no format {name!r}; {hint}")
    hints = typing.get_type_hints(found)
    known = {f.name: hints[f.name] for f in _fields(found) if f.init}
    return found(**dict(_option(name, part, known) for part in filter(None, rest.split(","))))


def _fields(made_by: Any) -> Sequence[dataclasses.Field[Any]]:
    return dataclasses.fields(made_by) if dataclasses.is_dataclass(made_by) else ()


def _option(name: str, part: str, known: dict[str, Any]) -> tuple[str, Any]:
    key, equals, value = (p.strip() for p in part.partition("="))
    if key not in known:
        ways = f"it has {', '.join(known)}" if known else "it has none"
        raise UsageError(f"format {name} has no option {key!r}; {ways}")
    if not equals:
        raise UsageError(f"format {name}: {part!r} is not key=value")
    try:
        return key, _value(known[key], value)
    except (ValueError, KeyError):
        raise UsageError(f"format {name}: {key}={value!r} is not {_kind(known[key])}") from None


def _value(kind: Any, text: str) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [k for k in typing.get_args(kind) if k is not types.NoneType]
        return None if text == "none" else _value(inner[0], text)
    if typing.get_origin(kind) is typing.Literal:
        return {str(choice): choice for choice in typing.get_args(kind)}[text]
    return _TRUTHS[text.lower()] if kind is bool else kind(text)


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "possible")
