"""The three tools as a model sees them: names, words, strict JSON Schemas, and the arguments that they take.

Pydantic makes the schemas and checks the arguments. Strict schemas require every property; a model that leaves out a
nullable one is understood all the same.
"""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kerneltune.agent.models.types import Tool
from kerneltune.tools.schema.codec import Json

_MOST_PROBLEMS = 4


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class EditArguments(_Arguments):
    """One replacement in the parent's source."""

    search: str = Field(description="Lines of the source, exactly as they are there, found once.")
    replace: str = Field(description="What stands there instead.")


class UpdateArguments(_Arguments):
    """Of `update`."""

    parent: int | None = Field(default=None, description="The attempt that this one is derived from.")
    rationale: str = Field(description="One line: what is tried, and why it should help.")
    source: str | None = Field(default=None, description="The whole file; null when `edits` are given.")
    edits: list[EditArguments] | None = Field(
        default=None, description="Replacements in the source of `parent`; null when `source` is given."
    )


class BenchArguments(_Arguments):
    """Of `bench`."""

    attempt: int = Field(description="The number that `update` gave.")


class ReflectArguments(_Arguments):
    """Of `reflect`."""

    attempt: int = Field(description="A benched attempt.")
    hypothesis: str = Field(description="What limits it, as a claim that the next attempt can refute.")
    prediction: str = Field(description="What you will change, and what should then be measured.")
    predicted_speedup: float | None = Field(
        default=None, description="Time of this attempt divided by that of the next one, such as 1.2."
    )


ARGUMENTS: dict[str, type[_Arguments]] = {
    "update": UpdateArguments,
    "bench": BenchArguments,
    "reflect": ReflectArguments,
}
_WORDS = {
    "update": "Trace and compile a kernel: one Python file with its Triton or PTX in it. It becomes an attempt with a "
    "number. Give the whole `source`, or `edits` on any earlier attempt. Several updates in one reply are compiled "
    "side by side. Tells registers, spills, shared memory, occupancy and library calls, or the error with its line.",
    "bench": "Check an attempt on every shape and many kinds of inputs, and time it where there is a GPU. Tells the "
    "verdict, the worst error, the time with its interval, the ratio to each baseline and to the speed of light.",
    "reflect": "State what limits a benched attempt and what you will change. Tells the evidence: roofline, compiler "
    "report, instruction counts, difference to the best, and how your earlier predictions came out. The next attempt "
    "with this one as its parent is held against your prediction.",
}


def _schema(model: type[_Arguments]) -> dict[str, Json]:
    """As strict modes want it: every property required, nothing besides, no titles or defaults."""
    schema: dict[str, Json] = _strict(model.model_json_schema())
    schema.pop("description", None)
    return schema


def _strict(value: Any) -> Any:
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {k: _strict(v) for k, v in value.items() if k not in ("default", "title") or isinstance(v, dict)}
    if "properties" in made:
        made["required"] = list(made["properties"])
    return made


TOOLS: tuple[Tool, ...] = tuple(
    Tool(name, _WORDS[name], _schema(model), "source" if name == "update" else None)
    for name, model in ARGUMENTS.items()
)

T = TypeVar("T", bound=_Arguments)


class BadArguments(ValueError):
    """Arguments that a tool does not take; the message names each field and what is wrong with it."""


def read(model: type[T], arguments: dict[str, Json]) -> T:
    """The arguments, checked. Raises BadArguments."""
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        raise BadArguments("; ".join(map(_problem, error.errors()[:_MOST_PROBLEMS]))) from error


def _problem(error: Any) -> str:
    place = ".".join(map(str, error["loc"])) or "the arguments"
    given = error.get("input")
    shown = (
        "" if error["type"] in ("missing", "extra_forbidden") else f", not {type(given).__name__} {str(given)[:60]!r}"
    )
    return f"`{place}`: {error['msg'].lower()}{shown}"
