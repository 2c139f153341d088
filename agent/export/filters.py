"""Which rows an export keeps: `--where` on the command line, each a field, an operator and a value.

All of them must hold. `status=correct|checked` holds for either. What is unknown (null) matches nothing, `!=` neither:
nobody knows that it differs. The grammar has no brackets, no expressions and no patterns, and nothing is evaluated.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agent.export.terms import PROVIDERS
from tools.errors import UsageError

Kind = Literal["text", "time", "number", "bool", "choice"]
Keep = Callable[[Mapping[str, object]], bool]
_Test = Callable[[Any], bool]  # of a value that is known


@dataclass(frozen=True)
class Field:
    """A name that `--where` knows. `column`: what it looks at, if named otherwise. `choices`: what it may be compared
    with; of a choice, each with the column and the value of it that are meant."""

    name: str
    kind: Kind
    about: str
    column: str = ""
    choices: Mapping[str, tuple[str, bool] | None] = field(default_factory=dict)


_STATUSES = "rejected compile_failed crashed timed_out wrong impossible unchecked checked correct"


def _words(names: str) -> Mapping[str, None]:
    return dict.fromkeys(names.split())


FIELDS = (
    Field("run_id", "text", "the run"),
    Field("task", "text", "the task's name"),
    Field("task_sha256", "text", "of the task's file"),
    Field("family", "text", "tasks that are the same up to shapes and names"),
    Field("split", "text", "train, validation or test", choices=_words("train validation test")),
    Field("leaked", "text", "the benchmark problem that the task is near; null for none"),
    Field("author", "text", "who wrote: offline, or provider:model"),
    Field("provider", "text", "whose words", choices=dict.fromkeys(PROVIDERS)),
    Field("model", "text", "the model"),
    Field("source_terms", "text", "the tag of the terms that bind users of the words"),
    Field("arch", "text", "what was compiled for, sm_90"),
    Field("gpu", "text", "what was timed on"),
    Field("torch", "text", "version"),
    Field("triton", "text", "version"),
    Field("kerneltune", "text", "version"),
    Field("attempt_id", "text", "the attempt"),
    Field("created", "time", "when it was proposed, UTC: created>=2026-11-01"),
    Field("status", "text", "the verdict that counts", choices=_words(_STATUSES)),
    Field("tier", "text", "how thoroughly it was timed", choices=_words("screened judged confirmed")),
    Field("compilable", "bool", "tracer and compiler accepted it"),
    Field("correct", "bool", "right as far as known"),
    Field("timed", "bool", "timed on a GPU"),
    Field("faster", "bool", "its interval lies above 1 against the fastest baseline"),
    Field("impossible", "bool", "faster than light, or clocks disagreed"),
    Field("verified", "bool", "a later verification bore the verdict out"),
    Field("why", "text", "why it is not right: status/tool/reason"),
    Field("speedup", "number", "over the fastest baseline"),
    Field("speedup_low", "number", "lower end of its 95 % interval"),
    Field("median_us", "number", "microseconds on the device"),
    Field("sol_fraction", "number", "speed-of-light time / measured time, from 0 to 1"),
    Field("coverage", "number", "share of GPU time in its own kernels, from 0 to 1"),
    Field("registers", "number", "the most per thread of its kernels"),
    Field("spills", "number", "bytes stored and loaded per thread, all kernels", column="spill_bytes"),
    Field("spill_bytes", "number", "the same"),
    Field("n_lines", "number", "lines of the source"),
    Field("n_chars", "number", "characters of the source"),
    Field("thinking_chars", "number", "characters of the reasoning that led to it"),
    Field("exact_id", "text", "equal for sources that say the same"),
    Field("near_id", "text", "equal for near duplicates"),
    Field("exact_first", "bool", "the first of its exact_id"),
    Field("near_first", "bool", "the first of its near_id"),
    Field(
        "exact_duplicate",
        "choice",
        "first of those that say the same, or a repeat",
        choices={"first": ("exact_first", True), "repeat": ("exact_first", False)},
    ),
    Field(
        "near_duplicate",
        "choice",
        "first of its near duplicates, or a repeat",
        choices={"first": ("near_first", True), "repeat": ("near_first", False)},
    ),
    Field(
        "label",
        "choice",
        "a label that is true",
        choices={n: (n, True) for n in ("compilable", "correct", "timed", "faster", "impossible", "verified")},
    ),
)
REWARD = "reward_"  # what names of rewards' columns begin with
_BY_NAME = {known.name: known for known in FIELDS}
_SPEC = re.compile(r"\s*([A-Za-z_]\w*)\s*(!=|>=|<=|!~|=|>|<|~)\s*(.*?)\s*", re.DOTALL)
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_OPERATORS: dict[Kind, tuple[str, ...]] = {
    "text": ("=", "!=", "~", "!~"),
    "time": ("=", "!=", ">=", "<=", ">", "<", "~"),
    "number": ("=", "!=", ">=", "<=", ">", "<"),
    "bool": ("=", "!="),
    "choice": ("=", "!="),
}
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_MOMENT = re.compile(r"\d{4}(-\d\d(-\d\d([T ]\d\d(:\d\d(:\d\d)?)?)?)?)?(\+00:00|Z)?")
_MOST_OF_A_SPEC = 1000


def predicate(where: Sequence[str], rewards: Iterable[str] | None = None) -> Keep:
    """Whether a row with these columns is kept. rewards: names of the rewards' columns; None lets any pass.

    Raises UsageError naming the condition, what is wrong with it, and what would work.
    """
    known = None if rewards is None else frozenset(rewards)
    tests = [_compiled(spec, known) for spec in where]
    if not tests:
        return lambda row: True
    if len(tests) == 1:
        return tests[0]
    return lambda row: all(test(row) for test in tests)


def only_providers(names: str) -> str:
    """The condition that `--only-providers openai,offline` means. Raises UsageError."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UsageError(f"--only-providers {names!r}: name one or more of {_listed(_BY_NAME['provider'].choices)}")
    condition = f"provider={'|'.join(wanted)}"
    predicate([condition])
    return condition


def table() -> str:
    """The fields as a Markdown table."""
    rows = [f"| `{f.name}` | {_shown(f)} | {f.about} |" for f in FIELDS]
    return "\n".join(("| field | compares with | about |", "| --- | --- | --- |", *rows))


def _shown(asked: Field) -> str:
    if asked.choices:
        return ", ".join(asked.choices)
    return {"bool": "true, false", "time": "a date"}.get(asked.kind, asked.kind)


def _compiled(spec: str, rewards: frozenset[str] | None) -> Keep:
    found = _SPEC.fullmatch(spec) if len(spec) <= _MOST_OF_A_SPEC else None
    if found is None:
        raise UsageError(f"--where {spec!r:.200}: wanted a field, an operator and a value, as in speedup>=1.2")
    name, sign, text = found.groups()
    asked = _field(name, spec, rewards)
    if sign not in _OPERATORS[asked.kind]:
        signs = " ".join(_OPERATORS[asked.kind])
        raise UsageError(f"--where {spec!r}: {name} is a {asked.kind}; compare it with {signs}")
    values = [value.strip() for value in text.split("|")]
    if not all(values):
        raise UsageError(f"--where {spec!r}: a value is missing; what is unknown cannot be asked for")
    if len(values) > 1 and sign in _ORDER:
        raise UsageError(f"--where {spec!r}: several values go with = and !=, not with {sign}")
    if asked.kind == "choice":
        return _choice(asked, sign, [_one_of(asked, value, spec) for value in values])
    return _comparison(asked.column or asked.name, _test(asked, sign, values, spec))


def _field(name: str, spec: str, rewards: frozenset[str] | None) -> Field:
    if name in _BY_NAME:
        return _BY_NAME[name]
    if name.startswith(REWARD) and (rewards is None or name in rewards):
        return Field(name, "number", "a reward")
    names = [*_BY_NAME, *(rewards or ())]
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    way_out = f"did you mean {' or '.join(close)}?" if close else f"fields: {', '.join(names)}"
    raise UsageError(f"--where {spec!r}: no field {name!r}; {way_out}")


def _comparison(column: str, test: _Test) -> Keep:
    def keep(row: Mapping[str, object]) -> bool:
        value = row.get(column)
        return value is not None and test(value)

    return keep


def _choice(asked: Field, sign: str, values: Sequence[str]) -> Keep:
    meant = [pair for value in values if (pair := asked.choices[value])]
    if sign == "=":
        return lambda row: any(row.get(column) is wanted for column, wanted in meant)
    return lambda row: all(row.get(column) is (not wanted) for column, wanted in meant)


def _test(asked: Field, sign: str, values: Sequence[str], spec: str) -> _Test:
    if asked.kind == "number":
        return _of_numbers(sign, [_number(value, spec) for value in values])
    if asked.kind == "bool":
        wanted_flags = frozenset(_flag(value, spec) for value in values)
        return lambda value: (value in wanted_flags) is (sign == "=")
    if asked.kind == "time":
        return _of_times(sign, [_moment(value, spec) for value in values])
    if sign in ("~", "!~"):
        parts = [value.lower() for value in values]
        return lambda value: any(part in str(value).lower() for part in parts) is (sign == "~")
    wanted = frozenset(_one_of(asked, value, spec) for value in values)
    return lambda value: (value in wanted) is (sign == "=")


def _of_numbers(sign: str, values: Sequence[float]) -> _Test:
    if sign in _ORDER:
        compare, bound = _ORDER[sign], values[0]
        return lambda value: compare(value, bound)
    return lambda value: (value in values) is (sign == "=") and not math.isnan(value)


def _of_times(sign: str, values: Sequence[str]) -> _Test:
    """As texts; a date alone stands for all of its moments: `=` asks for the beginning, `>` for what comes after."""
    if sign not in _ORDER:
        return lambda value: str(value).startswith(tuple(values)) is (sign != "!=")
    compare, bound = _ORDER[sign], values[0]
    return lambda value: compare(str(value)[: len(bound)], bound)


def _one_of(asked: Field, value: str, spec: str) -> str:
    if asked.choices and value not in asked.choices:
        close = difflib.get_close_matches(value, asked.choices, n=1)
        hint = f"did you mean {close[0]}?" if close else f"one of {_listed(asked.choices)}"
        raise UsageError(f"--where {spec!r}: {asked.name} is never {value!r}; {hint}")
    return value


def _number(value: str, spec: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or "_" in value:
        raise UsageError(f"--where {spec!r}: {value!r} is not a number")
    return number


def _flag(value: str, spec: str) -> bool:
    if value.lower() not in (*_TRUE, *_FALSE):
        raise UsageError(f"--where {spec!r}: {value!r} is neither true nor false")
    return value.lower() in _TRUE


def _moment(value: str, spec: str) -> str:
    if not _MOMENT.fullmatch(value):
        raise UsageError(f"--where {spec!r}: {value!r} is no date such as 2026-11-21 or 2026-11-21T14:00")
    return value.removesuffix("Z").removesuffix("+00:00").replace(" ", "T")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
