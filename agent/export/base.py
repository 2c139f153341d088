"""What a format is, which there are, and how a command line names one with its options.

To add a format: write its class, name it in FORMATS. Help and the data set card follow. Help reads this module,
so it imports nothing heavy.

An export goes over the record twice at most. In the first pass every format that `surveys` sees every trajectory, for
what cannot be known of one run alone (the best kernel of a task, the mean return of a group); in the second, each
trajectory makes its rows.
"""

import dataclasses
import importlib
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kerneltune.tools.schema.codec import Json, did_you_mean
from kerneltune.tools.schema.errors import UsageError

if TYPE_CHECKING:
    from kerneltune.agent.attempt import Attempt
    from kerneltune.agent.events import Event
    from kerneltune.agent.record.trajectory import Trajectory

Row = dict[str, Json]
# `json`: any JSON value. `messages`: a list of {"role", "content", …} that need not have the same keys. `exact`: a JSON
# value whose every digit counts; it is stored as its text, since readers' own decoders round floats. `struct`: a plain
# nested record of the feature's `fields`; `structs`: a list of them.
Kind = Literal[
    "text", "int", "float", "bool", "json", "messages", "texts", "ints", "floats", "exact", "struct", "structs"
]

FORMATS: Mapping[str, str] = {
    "sft-chat": "chat_formats:SftChat",
    "sft-best": "kernel_formats:SftBest",
    "fim": "kernel_formats:Fim",
    "convert": "kernel_formats:Convert",
    "fix": "kernel_formats:Fix",
    "dpo": "kernel_formats:Dpo",
    "kto": "kernel_formats:Kto",
    "rl-turns": "rl_formats:RlTurns",
    "verl": "rl_formats:Verl",
    "openai": "chat_formats:OpenAi",
    "sharegpt": "chat_formats:ShareGpt",
    "atif": "chat_formats:Atif",
    "raw": "raw:Raw",
}


@dataclass(frozen=True)
class Feature:
    """A column of a format. `about` goes into the dataset card, with the unit. `fields`: of a `struct` or `structs`."""

    name: str
    kind: Kind
    about: str
    fields: tuple["Feature", ...] = ()


@dataclass(frozen=True)
class ExportRow:
    """A row as its format makes it. The exporter adds where it comes from: its run, and the `attempt` it is about.
    `facts`: values of the format's `facts`, where they are not in `values`. `other`: an attempt whose words it holds
    besides. `elsewhere`: the run of `attempt` or of `other`, where that is not the one whose rows these are."""

    values: Row
    attempt: "Attempt | None" = None
    facts: Row = field(default_factory=dict)
    other: "Attempt | None" = None
    elsewhere: "Trajectory | None" = None


class Format:
    """Subclasses say how rows look.

    conversations: whether trajectories must come with their messages; cases: verdicts with their cases. events: rows
    are made of the events of a run, by `rows_of_events`, and not of its trajectory. bare: readers refuse keys they do
    not know, so that a row is written as it is and only as JSON lines; what the exporter adds goes into a file beside
    it, line for line. whole_runs: the survey wants every attempt of a run, not only those that pass the filters.
    about_tasks: rows are about no attempt, and a run speaks for its task if what is known of the run alone passes.
    says: the columns whose words make one row the same as another, where its attempt's source does not.
    facts: what filters may ask of a row besides its columns; of a bare format they stand in the file beside it.
    """

    name: ClassVar[str]
    about: ClassVar[str]  # one line, for the card
    columns: ClassVar[tuple[Feature, ...]]
    facts: ClassVar[tuple[Feature, ...]] = ()
    says: ClassVar[tuple[str, ...]] = ()
    conversations: ClassVar[bool] = False
    cases: ClassVar[bool] = False
    surveys: ClassVar[bool] = False
    events: ClassVar[bool] = False
    bare: ClassVar[bool] = False
    whole_runs: ClassVar[bool] = False
    about_tasks: ClassVar[bool] = False

    @classmethod
    def all_facts(cls) -> tuple[Feature, ...]:
        """`facts`, the sizes of rows that a trainer reads, and the ids of rows that may be the same."""
        read = any(c.name in ("messages", "conversations", "prompt") for c in cls.columns)
        return (*cls.facts, *(SIZES if read else ()), *(ROW_IDS if cls.says else ()))

    def set_splits(self, splits: Mapping[str, str]) -> None:
        """Called before anything else with the split of each task, by the hash of its file."""

    def survey(self, trajectory: "Trajectory") -> None:
        """The first pass, if `surveys`."""

    def notes(self) -> Iterator[str]:
        """Called last: what a person should know before training on the rows that were made."""
        yield from ()

    def rows(self, trajectory: "Trajectory") -> Iterator[ExportRow]:
        """The rows of one trajectory."""
        raise NotImplementedError

    def rows_of_events(self, events: "Iterable[Event]") -> Iterator[ExportRow]:
        """The rows of the events of one run, in order, if `events`."""
        raise NotImplementedError


# Of SmolLM2's tokenizer, whose vocabulary of 49,152 is a small one: 2.3 for answers in PTX, 2.7 to 3.2 for Triton and
# for conversations (docs/demo, docs/demo-ptx, 2026-11-26). The least of it, so that what is estimated to fit does.
CHARS_PER_TOKEN = 2.3
SIZES = (
    Feature("tokens_before", "int", "estimated tokens before the first that is trained"),
    Feature("tokens", "int", "estimated tokens of the whole row, rather too many: a trainer's longest length"),
)


ROW_IDS = (
    Feature("row_exact", "text", "equal for rows that say the same up to layout, comments and docstrings"),
    Feature("row_first", "bool", "the first of its `row_exact`"),
)


def sizes(values: Row) -> Row:
    """The values of SIZES for a row that a trainer reads: with a prompt, with messages, or in ShareGPT's tags. Of a
    pair, the longer answer counts. Empty for other rows."""
    if "messages" in values or "conversations" in values:
        said = values.get("messages") or values["conversations"]
        trained = (i for i, m in enumerate(said) if m.get("train") or m.get("weight") or m.get("from") in _SPOKEN)
        first = next(trained, len(said))
        before = _chars(said[:first]) + _chars([values.get("tools"), values.get("system")])
        return _estimated(before, _chars(said[first:]))
    if "prompt" in values:
        answers = (values.get(name) for name in ("completion", "chosen", "rejected"))
        return _estimated(_chars(values["prompt"]), max(_chars(answer or ()) for answer in answers))
    return {}


_SPOKEN = ("gpt", "function_call")


def _chars(value: Json) -> int:
    """Of all texts in a JSON value, and of its keys and marks, as a chat template writes them, roughly."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + 4 + _chars(inner) for key, inner in value.items())
    return sum(map(_chars, value)) if isinstance(value, list | tuple) else 4


def _estimated(before: int, after: int) -> Row:
    return {
        "tokens_before": math.ceil(before / CHARS_PER_TOKEN),
        "tokens": math.ceil((before + after) / CHARS_PER_TOKEN),
    }


def format_class(name: str) -> type[Format]:
    """The class of a format. Raises KeyError."""
    module, _, cls = FORMATS[name].partition(":")
    found: type[Format] = getattr(importlib.import_module(f"kerneltune.agent.export.{module}"), cls)
    return found


def formats_of(specs: Iterable[str]) -> tuple[Format, ...]:
    """The formats that specs name, in order. Raises UsageError, also when one is named twice."""
    made: dict[str, Format] = {}
    for spec in specs:
        found = format_of(spec)
        if found.name in made:
            raise UsageError(f"format {found.name} is named twice; make two exports")
        made[found.name] = found
    return tuple(made.values())


def format_of(spec: str) -> Format:
    """The format that a spec names, with its options: `sft-chat`, or `sft-chat:seen=true,reasoning=none`. Raises
    UsageError: which part is wrong, and what would work."""
    name, _, rest = spec.partition(":")
    if name not in FORMATS:
        raise UsageError(f"no format {name!r}; {near(name, FORMATS)}")
    found = format_class(name)
    return found(**options(f"format {name}", rest, found))


def near(name: str, known: Iterable[str]) -> str:
    """The name that was probably meant, or all there are."""
    known = list(known)
    return did_you_mean(name, known, f"there are {', '.join(known)}")


def options(what: str, text: str, of: Callable[..., Any]) -> dict[str, Any]:
    """`key=value,key=value` as keyword arguments of a dataclass or a function, by their annotations. A name that is a
    word of Python's has an underscore behind it there (`lambda_`). Raises UsageError."""
    known = option_types(of)
    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals:
            raise UsageError(f"{what}: {part!r} is not key=value")
        if key not in known:
            ways = f"it has {', '.join(known)}" if known else "it has none"
            raise UsageError(f"{what} has no option {key!r}; {ways}")
        argument, hint = known[key]
        if argument in found:
            raise UsageError(f"{what}: {key} is given twice")
        try:
            found[argument] = _value(hint, value)
        except (ValueError, KeyError):
            raise UsageError(f"{what}: {key}={value!r} is not {_kind(hint)}") from None
    return found


def option_types(of: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Options of a dataclass (its fields) or a function (what may only be given by name): argument and annotation."""
    hints = typing.get_type_hints(of)
    if dataclasses.is_dataclass(of):
        names = [f.name for f in dataclasses.fields(of) if f.init]
    else:
        names = list(getattr(inspect.unwrap(of), "__kwdefaults__", None) or ())
    return {name.removesuffix("_"): (name, hints[name]) for name in names}


_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def _value(hint: Any, text: str) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [k for k in typing.get_args(hint) if k is not types.NoneType]
        return None if text.lower() == "none" else _value(inner[0], text)
    if typing.get_origin(hint) is typing.Literal:
        return {str(choice): choice for choice in typing.get_args(hint)}[text]
    if hint is bool:
        return _TRUTHS[text.lower()]
    found = hint(text)
    if (hint is float and not math.isfinite(found)) or found == "":
        raise ValueError(text)
    return found


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return f"{_kind(typing.get_args(hint)[0])} or none"
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(hint)))}"
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(hint, "possible")
