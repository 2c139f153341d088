"""Where a row comes from and what is known of it: the columns that every row of every format has besides its own, whose
words it holds, and which rows `--where` keeps.

A row is about one attempt (of a conversation: the best one it made), or about none, when nothing was attempted; then
the columns of attempts are null. Unknown is null, never 0.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Protocol

from kerneltune.agent.attempt import Attempt, LlmTurn, RunStart, point_of
from kerneltune.agent.events import RunStarted
from kerneltune.agent.export.base import Feature, Format, Row
from kerneltune.agent.export.privacy import Scrubber
from kerneltune.agent.export.rewards import Reward, labels
from kerneltune.agent.export.similarity import Duplicate, Placement
from kerneltune.agent.models.providers import CLIENTS, OFFLINE, SourceTerms
from kerneltune.agent.models.providers import PROVIDERS as MODEL_PROVIDERS
from kerneltune.agent.record.trajectory import JUDGED_FILES, Trajectory
from kerneltune.tools.languages import FOLDERS
from kerneltune.tools.languages.base import language_of
from kerneltune.tools.schema.codec import did_you_mean
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status

_TERMS = {name: provider.terms for name, provider in MODEL_PROVIDERS.items()} | {
    OFFLINE: SourceTerms(
        "apache-2.0",
        "Written by kerneltune's own search, without a language model: Apache-2.0. Kernels that start from"
        " TorchInductor's output derive from PyTorch, which is under a BSD-3-Clause licence: keep its notice."
        " https://www.apache.org/licenses/LICENSE-2.0",
    ),
    **{
        name: SourceTerms(
            f"unknown-{name}-client",
            "Written by a coding agent or another program that called the tools; which model it asked is not recorded."
            " Find out, and keep to that model's terms, before you use these rows.",
        )
        for name in CLIENTS
    },
    "other": SourceTerms(
        "unknown",
        "The author is not one that kerneltune knows. Find out who wrote these rows, and under which terms, before you"
        " use them.",
    ),
}
PROVIDERS = tuple(_TERMS)
_OPEN_WEIGHTS = ("gpt-oss", "gpt-neo", "gpt-j", "gpt2")  # names that begin alike, licences of their own


def provider_of(author: str) -> str:
    """Return one of PROVIDERS.

    A server's model is "chat" unless its name is one of a provider's closed models ("anthropic/claude-…"), whose terms
    go with the words whoever passed them on.
    """
    provider, _, name = author.strip().partition(":")
    provider = provider.lower()
    if provider == "chat":
        return _family(name) or provider
    return provider if provider in _TERMS else "other"


def _family(model: str) -> str:
    name = model.strip().lower().removeprefix("models/").rpartition("/")[2]
    if name.startswith(_OPEN_WEIGHTS):
        return ""
    return next((family for family, p in MODEL_PROVIDERS.items() if p.models and name.startswith(p.models)), "")


def terms_of(provider: str) -> SourceTerms:
    """Return what goes with the words of a provider; for one that is not known, that it is not."""
    return _TERMS.get(provider, _TERMS["other"])


class Authors:
    """Who wrote the files of attempts. What a run began with was there before it: a person's file, or an attempt of
    another run, which may have begun with it, too. `load`: a stored run by its id."""

    def __init__(self, load: Callable[[str], Trajectory | None]) -> None:
        self._load = load
        self._known: dict[str, str | None] = {}  # of attempts that have the text of a start

    def of(self, trajectory: Trajectory, attempt: Attempt) -> str | None:
        """As runs name their authors; None when it is not known. Asked again it answers of an attempt alone."""
        passed: set[str] = set()
        author: str | None = None
        while attempt.attempt_id not in passed:
            start = _begun_with(trajectory, attempt)
            if attempt.attempt_id in self._known:
                author = self._known[attempt.attempt_id]
                break
            if start is None:  # the search holds no conversation: a client went on with its run, before version 8
                its = trajectory.author_of(attempt)
                author = None if isinstance(attempt.origin, LlmTurn) and its == OFFLINE else its
                break
            passed.add(attempt.attempt_id)
            if _is_offline(start) or start.parent_id is None:
                author = OFFLINE if _is_offline(start) else JUDGED_FILES
                break
            if (found := self._stored(trajectory, start.parent_id)) is None:
                break
            trajectory, attempt = found
        self._known |= dict.fromkeys(passed, author)
        return author

    def _stored(self, trajectory: Trajectory, attempt_id: str) -> tuple[Trajectory, Attempt] | None:
        run_id = attempt_id.rpartition("/")[0]
        its = trajectory if run_id == trajectory.run.run_id else self._load(run_id)
        found = next((a for a in its.attempts if a.attempt_id == attempt_id), None) if its else None
        return (its, found) if its and found else None


def _begun_with(trajectory: Trajectory, attempt: Attempt) -> Attempt | None:
    """The attempt of a run's start whose text this one has: itself, or that of which a search varied the parameters."""
    if isinstance(attempt.origin, RunStart):
        return attempt
    point = point_of(attempt.origin)
    own = (start for start in trajectory.starts if not _is_offline(start))
    return next((s for s in own if point and (of := point_of(s.origin)) and of.sketch == point.sketch), None)


def _is_offline(start: Attempt) -> bool:
    return isinstance(start.origin, RunStart) and start.origin.given == OFFLINE and start.origin.point is not None


SCHEMA_VERSION = 1
_LESSONS_FROM = ("none", "same_task", "same_split", "other_split")
_RUN = (
    Feature("schema_version", "int", "of this table's columns; it grows when one changes its meaning"),
    Feature("run_id", "text", "the run"),
    Feature("task", "text", "the task's name"),
    Feature("task_sha256", "text", "of the task's file"),
    Feature("family", "text", "tasks that are the same up to shapes and names; never in two splits"),
    Feature("split", "text", "train, validation or test"),
    Feature(
        "lessons", "text", f"where the lessons of earlier runs in its prompts came from: {', '.join(_LESSONS_FROM)}"
    ),
    Feature("leaked", "text", "the benchmark problem that the task is, or nearly is; null if none, or not looked for"),
    Feature("author", "text", f"who wrote: offline, provider:model, or {JUDGED_FILES} of a person; null: not known"),
    Feature("provider", "text", f"whose words: {', '.join(PROVIDERS)}"),
    Feature("model", "text", "the model; null without one"),
    Feature("source_terms", "text", "which terms bind those who use the words; see the card"),
    Feature("language", "text", f"what the kernel is, or was to be, written in: {', '.join(FOLDERS)}"),
    Feature("arch", "text", "what was compiled for"),
    Feature("gpu", "text", "the GPU that the run began on; null: it began without one"),
    Feature("torch", "text", "version"),
    Feature("triton", "text", "version"),
    Feature("kerneltune", "text", "version"),
)
_ATTEMPT = (
    Feature("attempt_id", "text", "the attempt that the row is about"),
    Feature("created", "text", "when it was proposed, UTC"),
    Feature("status", "text", "the verdict that counts; null: never judged"),
    Feature("tier", "text", "how thoroughly it was timed: screened, judged, confirmed"),
    Feature("compilable", "bool", "tracer and compiler accepted it; null: it never came to that"),
    Feature("correct", "bool", "right as far as known; null: nothing there could run it"),
    Feature("timed", "bool", "timed on a GPU, with every timed output checked"),
    Feature("faster", "bool", "its interval lies above 1 against the fastest baseline; null: not timed"),
    Feature("impossible", "bool", "faster than light, or clocks disagreed: a cheat or a broken measurement"),
    Feature("why", "text", "why it is not right: status/tool/cause, as far as it is known; empty if it is"),
    Feature("verified", "bool", "whether a later verification bore the verdict out; null: nobody verified it"),
    Feature("speedup", "float", "over the fastest baseline; null: not timed"),
    Feature("speedup_low", "float", "lower end of its 95 % interval"),
    Feature("median_us", "float", "microseconds on the device, cold L2; null: not timed"),
    Feature("sol_fraction", "float", "speed-of-light time / measured time; null: not timed"),
    Feature("coverage", "float", "share of GPU time in its own kernels; null: not timed"),
    Feature("registers", "int", "the most per thread of its kernels"),
    Feature("spill_bytes", "int", "stored and loaded per thread, all kernels"),
    Feature("n_lines", "int", "of the source"),
    Feature("n_chars", "int", "of the source"),
    Feature("thinking_chars", "int", "of the reasoning that led to it; null: no model, or conversations were not read"),
    Feature("exact_id", "text", "equal for sources that differ in layout, comments and docstrings at most"),
    Feature("near_id", "text", "equal for sources of one cluster of near duplicates"),
    Feature("exact_first", "bool", "the first of its `exact_id`"),
    Feature("near_first", "bool", "the first of its `near_id`"),
)


def columns(rewards: Sequence[Reward]) -> tuple[Feature, ...]:
    """What every row has besides its own columns."""
    paid = (Feature(f"reward_{r.name}", "float", f"{r.about}; null: not known") for r in rewards)
    return (*_RUN, *_ATTEMPT, *paid)


class Provenance:
    """The values of `columns` for one run. `duplicate_of`: by attempt, None where nobody looked for duplicates. Names
    of tasks, models and machines are other people's words, and cleaned. Each attempt's are made once."""

    def __init__(
        self,
        trajectory: Trajectory,
        placements: Mapping[str, Placement],
        rewards: Sequence[Reward],
        duplicate_of: Callable[[str], Duplicate] | None,
        scrubber: Scrubber,
        authors: Authors | None = None,
    ) -> None:
        self.clean = scrubber.text
        self._trajectory, self._authors = trajectory, authors or Authors(lambda _: None)
        placement = placements[trajectory.run.task_sha256]
        self.split = str(placement.split)
        self._rewards, self._duplicate_of = rewards, duplicate_of
        self._run = self._of_run(trajectory.run, placement)
        self._run["lessons"] = _lessons_from(trajectory.run, placements)
        self._known: dict[str, Row] = {}
        self._thought = {
            (conversation.key, message.turn): len(message.thinking)
            for conversation in trajectory.conversations
            for message in conversation.messages
            if message.role == "assistant" and message.turn is not None
        }

    def of(self, attempt: Attempt | None) -> Row:
        """The common columns of a row about this attempt, or about none."""
        if attempt is None:
            return self._run
        known = self._known.get(attempt.attempt_id)
        if known is None:
            known = self._known[attempt.attempt_id] = self._run | self._of_attempt(attempt)
        return known

    def _of_run(self, run: RunStarted, place: Placement) -> Row:
        versions = run.versions
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.clean(run.run_id),
            "task": self.clean(run.task),
            "task_sha256": run.task_sha256,
            "family": self.clean(place.family),
            "split": place.split,
            "leaked": place.leaked and self.clean(place.leaked),
            **self._of_author(run.author),
            "language": run.language,
            "arch": run.arch,
            "gpu": run.gpu and self.clean(run.gpu),
            "torch": versions.get("torch"),
            "triton": versions.get("triton"),
            "kerneltune": versions.get("kerneltune"),
        }

    def _of_author(self, named: str | None) -> Row:
        kind, _, model = (named or "").partition(":")
        if kind == "scripted":
            model = PurePath(model).name  # of a script's path the folders are nobody's business
        author = f"{kind}:{model}" if model else kind
        provider = provider_of(named or "")
        return {
            "author": None if named is None else self.clean(author),
            "provider": provider,
            "model": self.clean(model) or None,
            "source_terms": terms_of(provider).tag,
        }

    def with_words_of(self, row: Row, other: Row) -> Row:
        """A row that holds words of another attempt, too. Those of the search bind nobody who keeps to the terms of a
        model; where two others wrote, the row is of an author that nobody can name."""
        if other["provider"] in (row["provider"], OFFLINE):
            return row
        whose = other if row["provider"] == OFFLINE else self._of_author(None)
        return row | {name: whose[name] for name in self._of_author(None)}

    def _of_attempt(self, attempt: Attempt) -> Row:
        thought = self._thought.get((attempt.conversation, attempt.turn)) if attempt.turn is not None else None
        made: Row = {
            **self._of_author(self._authors.of(self._trajectory, attempt)),
            "attempt_id": self.clean(attempt.attempt_id),
            "language": language_of(attempt.source),
            "created": _moment(attempt.at),
            "status": attempt.status.value if attempt.status else None,
            "tier": attempt.tier,
            "speedup": attempt.speedup,
            "speedup_low": attempt.speedup_low,
            "median_us": attempt.timing.median_us if attempt.timing else None,
            "sol_fraction": attempt.sol_fraction,
            "coverage": attempt.coverage,
            "registers": max((k.registers for k in attempt.kernels), default=None),
            "spill_bytes": _spills(attempt),
            "n_lines": attempt.source.count("\n") + (not attempt.source.endswith("\n")) if attempt.source else 0,
            "n_chars": len(attempt.source),
            "thinking_chars": thought,
        }
        made |= labels(attempt)._asdict()
        if self._duplicate_of is not None:
            found = self._duplicate_of(attempt.attempt_id)
            made["exact_id"], made["near_id"] = found.exact, found.near
            made["exact_first"], made["near_first"] = found.exact_first, found.near_first
        for reward in self._rewards:
            made[f"reward_{reward.name}"] = reward(attempt)
        return made


def _lessons_from(run: RunStarted, placements: Mapping[str, Placement]) -> str:
    """The farthest place that a lesson came from; that of a task which nobody placed is another split."""
    told = run.limits.get("lessons")
    tasks = set(map(str, told.values())) if isinstance(told, dict) else set()
    if not tasks - {run.task_sha256}:
        return "same_task" if tasks else "none"
    splits = {place.split if (place := placements.get(task)) else None for task in tasks}
    return "same_split" if splits == {placements[run.task_sha256].split} else "other_split"


def _moment(at: float) -> str | None:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # no moment of any calendar
        return None


def _spills(attempt: Attempt) -> int | None:
    return sum(k.spill_bytes for k in attempt.kernels) if attempt.kernels else None


# Filters --------------------------------------------------------------------------------------------------------------

_CHOICES: Mapping[str, Sequence[str]] = {
    "split": ("train", "validation", "test"),
    "lessons": _LESSONS_FROM,
    "language": FOLDERS,
    "provider": PROVIDERS,
    "status": [status.value for status in Status],
    "tier": ("screened", "judged", "confirmed"),
}
_TRUTHS = {"true": True, "false": False}
_Test = Callable[[Mapping[str, object]], bool]


class Keep(Protocol):
    """See `predicate`."""

    def __call__(self, row: Mapping[str, object], of: str | None = None) -> bool:
        """Whether these values pass."""


_SPEC = re.compile(r"\s*([A-Za-z_]\w*)\s*(!=|>=|<=|=|>|<)\s*(.*?)\s*", re.DOTALL)
_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_MOMENT = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d)?)?)?)?)?")
_MOST_OF_A_SPEC = 1000


def where_fields() -> dict[str, tuple[str, str]]:
    """What `--where` may ask for: kind and meaning of each name."""
    return {name: kind for name, kind in _fields((*_RUN, *_ATTEMPT)).items() if name != "schema_version"}


def _fields(features: Iterable[Feature]) -> dict[str, tuple[str, str]]:
    kinds = {"int": "number", "float": "number", "text": "text", "bool": "bool"}
    return {c.name: ("date" if c.name == "created" else kinds[c.kind], c.about) for c in features if c.kind in kinds}


def predicate(
    where: Sequence[str],
    rewards: Iterable[str] = (),
    formats: Iterable[type[Format] | Format] = (),
    clean: Callable[[str], str] = str,
) -> Keep:
    """Whether a row is kept: all of the conditions must hold, each a field, an operator and a value.
    `status=correct|checked` holds for either. What is unknown (null) matches nothing, `!=` neither: nobody knows that
    it differs.

    The answer is for what every row has when it is asked without a format's name, and for what rows of that format
    have of their own otherwise. rewards: names of the rewards' columns; formats: whose own columns may be asked for;
    clean: what was done to texts that every row has, and is done to those that are asked for.
    Raises UsageError naming the condition, what is wrong with it, and what would work.
    """
    known = where_fields() | {f"reward_{name}": ("number", "a reward") for name in rewards}
    own = {f.name: _fields((*f.columns, *f.all_facts())) for f in formats}
    whose: dict[str | None, list[_Test]] = {}
    for spec in where:
        name = _parted(spec)[0]
        having = [of for of, its in own.items() if name in its and name not in known]
        if having and len(having) < len(own):
            lacking = ", ".join(of for of in own if of not in having)
            raise UsageError(f"--where {spec!r}: {name} is a column of {', '.join(having)}, not of {lacking}")
        of: str | None
        for of in having or (None,):
            whose.setdefault(of, []).append(_compiled(spec, own[of] if of else known, str if of else clean))
    return lambda row, of=None: all(test(row) for test in whose.get(of, ()))


def _parted(spec: str) -> tuple[str, str, str]:
    """Field, operator and value. Raises UsageError."""
    found = _SPEC.fullmatch(spec) if len(spec) <= _MOST_OF_A_SPEC else None
    if found is None:
        raise UsageError(f"--where {spec!r:.200}: wanted a field, an operator and a value, as in speedup>=1.2")
    return found[1], found[2], found[3]


def _compiled(spec: str, known: Mapping[str, tuple[str, str]], clean: Callable[[str], str]) -> _Test:
    name, sign, text = _parted(spec)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        way_out = f"did you mean {' or '.join(close)}?" if close else f"fields: {', '.join(known)}"
        raise UsageError(f"--where {spec!r}: no field {name!r}; {way_out}")
    kind = known[name][0]
    if sign in _ORDER and kind not in ("number", "date"):
        raise UsageError(f"--where {spec!r}: {name} is a {kind}; compare it with = !=")
    values = [_value(name, kind, value.strip(), spec) for value in text.split("|")]
    if len(values) > 1 and sign in _ORDER:
        raise UsageError(f"--where {spec!r}: several values go with = and !=, not with {sign}")
    test = _test(kind, sign, list(map(clean, values)) if kind == "text" else values)
    return lambda row: (value := row.get(name)) is not None and test(value)


def _value(name: str, kind: str, text: str, spec: str) -> Any:
    """A value of a field's kind, as it stands in rows. Raises UsageError."""
    if not text:
        raise UsageError(f"--where {spec!r}: a value is missing; what is unknown cannot be asked for")
    choices = _CHOICES.get(name)
    if choices and text not in choices:
        hint = did_you_mean(text, choices, f"one of {', '.join(choices)}")
        raise UsageError(f"--where {spec!r}: {name} is never {text!r}; {hint}")
    if kind == "bool" and text.lower() not in _TRUTHS:
        raise UsageError(f"--where {spec!r}: {text!r} is neither true nor false")
    if kind == "date" and not _MOMENT.fullmatch(text):
        raise UsageError(f"--where {spec!r}: {text!r} is no date such as 2026-11-21 or 2026-11-21T14:00")
    if kind == "number":
        return _number(text, spec)
    return _TRUTHS[text.lower()] if kind == "bool" else text


def _test(kind: str, sign: str, values: Sequence[Any]) -> Callable[[Any], bool]:
    """Of a value that is known. A date alone stands for all of its moments."""
    if sign in _ORDER:
        compare, bound = _ORDER[sign], values[0]
        return lambda value: compare(value[: len(bound)] if kind == "date" else value, bound)
    if kind == "date":
        return lambda value: value.startswith(tuple(values)) is (sign == "=")
    return lambda value: (value in values) is (sign == "=") and value == value  # a NaN differs from itself


def _number(value: str, spec: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or "_" in value:
        raise UsageError(f"--where {spec!r}: {value!r} is not a number")
    return number
