"""The three tools as a model sees them, and its calls of them, carried out by asking the loop.

Pydantic makes the strict schemas, which require every property, and checks the arguments; a model that leaves out a
nullable one is understood all the same. Whatever a model did wrong comes back as a result that teaches. Updates of one
reply run side by side; benches and reflections follow in the order of the calls. An attempt belongs to the conversation
that made it until it is benched.
"""

import difflib
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kerneltune.agent.attempt import (
    NO_ROOM,
    Action,
    ActionResult,
    Attempt,
    BenchAction,
    Declined,
    LlmTurn,
    Proposal,
    ReflectAction,
    UpdateAction,
)
from kerneltune.agent.authors.llm.prompts import Disassembled, format_bench, format_reflect, format_same, format_update
from kerneltune.agent.models.types import Tool, ToolCall, ToolResult
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.reflect import PlanWork, Roofline, facts_of, roofline, work_of
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.gpus import Gpu
from kerneltune.tools.schema.sass import KernelFacts
from kerneltune.tools.update import Update

_MOST_PROBLEMS = 4
_MOST_NAMED = 12  # attempts that an error lists
_MOST_NUMBER = 1_000_000
_NEAREST = 3  # lines that are shown when nothing matches
_SHOWN = 160  # characters of a line
Notes = tuple[str, ...]  # what of a call was not quite as written
T = TypeVar("T")
Steps = Generator[Sequence[Action], Sequence[ActionResult], T]  # what the loop shall do on the way to a T


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


class Mistake(Exception):
    """A call that cannot be carried out; the message says why, and what would work."""


class ToolExecutor:
    """Turns the tool calls of one conversation into actions, and what came of those into words. `gpu`: what kernels are
    compiled for; `share`: how many attempts it may make, None for as many as the run has; `made`: how many it made."""

    def __init__(self, tracker: AttemptTracker, key: str, gpu: Gpu, share: int | None = None) -> None:
        self._tracker, self._key, self._gpu, self._share = tracker, key, gpu, share
        self._drafts: dict[int, Attempt] = {}  # not benched yet
        self._updates: dict[int, Update] = {}  # of attempts of this conversation
        self.made = 0

    @property
    def is_full(self) -> bool:
        """Whether it has made its share."""
        return self._share is not None and self.made >= self._share

    def run(self, calls: Sequence[ToolCall], turn: int) -> Steps[tuple[ToolResult, ...]]:
        """A result for every call, in order."""
        results: dict[int, ToolResult] = {}
        written: dict[int, tuple[Proposal, Notes]] = {}
        for i, call in enumerate(calls):
            if call.name == "update":
                try:
                    wanted = self._written(call, turn, len(written))
                except Mistake as mistake:
                    wanted = _mistaken(call, mistake)
                if isinstance(wanted, ToolResult):
                    results[i] = wanted
                else:
                    written[i] = wanted
        made = (yield [UpdateAction(proposal) for proposal, _ in written.values()]) if written else ()
        for (i, (_, notes)), came in zip(written.items(), made, strict=True):
            results[i] = self._updated(calls[i], notes, came)
        for i, call in enumerate(calls):
            if i not in results:
                results[i] = yield from self._result(call)
        return tuple(results[i] for i in range(len(calls)))

    def _result(self, call: ToolCall) -> Steps[ToolResult]:
        try:
            match _arguments(call):
                case BenchArguments(attempt=number):
                    return ToolResult(call.call_id, (yield from self._benched(number)))
                case ReflectArguments() as wanted:
                    return ToolResult(call.call_id, (yield from self._reflected(wanted)))
            raise AssertionError(call.name)
        except Mistake as mistake:
            return _mistaken(call, mistake)

    def _written(self, call: ToolCall, turn: int, before: int) -> tuple[Proposal, Notes] | ToolResult:
        """What a call wants to have updated, or its result where that is an attempt already. `before`: how many others
        the same reply wants."""
        wanted = _arguments(call)
        assert isinstance(wanted, UpdateArguments)
        source, notes = self._source(wanted)
        parent_id = f"{self._tracker.run_id}/{wanted.parent}" if wanted.parent is not None else None
        if (same := self._same(source)) is not None:
            return ToolResult(call.call_id, format_same(*same, notes))
        if self._share is not None and self.made + before >= self._share:
            raise Mistake(NO_ROOM)
        return Proposal(source, wanted.rationale, parent_id, LlmTurn(self._key, turn)), notes

    def _updated(self, call: ToolCall, notes: Notes, came: ActionResult) -> ToolResult:
        if isinstance(came, Declined):
            self.made += came.number is not None
            return _mistaken(call, Mistake(came.why))
        sha256 = came.plan_sha256
        twin = next((n for n, u in self._updates.items() if sha256 is not None and u.sha256 == sha256), None)
        self.made += 1
        assert came.update is not None
        self._updates[came.number] = came.update
        if came.update.failure is None:  # else it is benched, too
            self._drafts[came.number] = came
        return ToolResult(call.call_id, format_update(came, self._tracker.task, twin, notes))

    def _source(self, wanted: UpdateArguments) -> tuple[str, Notes]:
        """The whole source that is meant."""
        if wanted.parent is not None:
            parent = self._source_of(wanted.parent)
        if (wanted.source is None) == (wanted.edits is None):
            raise Mistake("give either `source`, the whole file, or `edits` on a `parent`; the other is null")
        if wanted.edits is not None:
            if wanted.parent is None:
                raise Mistake("`edits` need a `parent`: the attempt whose source they change")
            return apply(parent, wanted.edits)
        source = wanted.source or ""
        if not source.strip():
            raise Mistake("`source` is empty; give a whole file that defines `class ModelNew(nn.Module)`")
        return source, ()

    def _source_of(self, number: int) -> str:
        if number in self._drafts:
            return self._drafts[number].source
        return self._attempt(number).source

    def _attempt(self, number: int) -> Attempt:
        named = 0 < number < _MOST_NUMBER  # a number of 5,000 digits cannot even be said
        found = self._tracker.find(f"{self._tracker.run_id}/{number}") if named else None
        if found is None:
            known = sorted({*self._drafts, *(a.number for a in self._tracker.attempts)})
            latest = ", ".join(map(str, known[-_MOST_NAMED:])) or "none yet"
            raise Mistake(f"there is no attempt {number if named else 'of that number'}; the latest are: {latest}")
        return found

    def _same(self, source: str) -> tuple[int, str] | None:
        """The attempt that has this source already, and what it is."""
        wanted = source.strip()
        for attempt in list(self._tracker.attempts):
            if attempt.source.strip() == wanted:
                return attempt.number, attempt.judged.status.value
        drafts = self._drafts.values()
        return next(((d.number, "not benched yet") for d in drafts if d.source.strip() == wanted), None)

    def _benched(self, number: int) -> Steps[str]:
        draft = self._drafts.pop(number, None)
        if draft is None:
            attempt, again = self._attempt(number), "(benched before)\n"
        else:
            (came,) = yield [BenchAction(draft)]
            if isinstance(came, Declined):
                raise Mistake(came.why)
            attempt, again = came, ""
        predictions = reversed(self._tracker.predictions)
        outcome = next((p for p in predictions if p.attempt_id == attempt.attempt_id), None)
        place = self._place(attempt) if attempt.accepted else None
        return again + format_bench(attempt, self._tracker, outcome, place)

    def _reflected(self, wanted: ReflectArguments) -> Steps[str]:
        if wanted.attempt in self._drafts:
            raise Mistake(f"attempt {wanted.attempt} is not benched yet; bench it first")
        attempt = self._attempt(wanted.attempt)
        yield [ReflectAction(attempt, wanted.hypothesis, wanted.prediction, wanted.predicted_speedup)]
        predictions = self._tracker.predictions
        return format_reflect(attempt, self._tracker, self._disassembled(attempt), predictions, self._place(attempt))

    def _place(self, attempt: Attempt) -> Roofline:
        """Where an attempt lies on the roofline, and what to look at."""
        update = self._updates.get(attempt.number)
        work = work_of(update, attempt.judged.variant) if update is not None else PlanWork()
        return roofline(self._tracker.task, self._gpu, attempt.judged, attempt.kernels, work)

    def _disassembled(self, attempt: Attempt) -> Disassembled:
        """What the attempt's kernels are made of, and those of the best if it is another one of this conversation."""
        update, variant = self._updates.get(attempt.number), attempt.judged.variant
        if update is None or not attempt.kernels:
            return Disassembled(tuple(map(KernelFacts, attempt.kernels)))
        leader, disassemble = self._tracker.best, self._tracker.tools.updater.sass
        other = self._updates.get(leader.number) if leader and leader.number != attempt.number else None
        facts = facts_of(update, update.judged_plan(variant) or update.main_plan)
        best = disassemble(other, leader.judged.variant).kernels if leader and other else ()
        return Disassembled(facts, disassemble(update, variant), best)


def _mistaken(call: ToolCall, mistake: Mistake) -> ToolResult:
    return ToolResult(call.call_id, f"{call.name}: {mistake}", is_error=True)


def _arguments(call: ToolCall) -> _Arguments:
    """The arguments of a call, checked. Raises Mistake, which names each field and what is wrong with it."""
    if call.name not in ARGUMENTS:
        raise Mistake(f"there is no such tool; the tools are {', '.join(ARGUMENTS)}")
    if call.problem:
        raise Mistake(f"the arguments are not a JSON object: {call.problem}")
    try:
        return ARGUMENTS[call.name].model_validate(call.arguments)
    except ValidationError as error:
        raise Mistake("; ".join(map(_problem, error.errors()[:_MOST_PROBLEMS]))) from error


def _problem(error: Any) -> str:
    place = ".".join(map(str, error["loc"])) or "the arguments"
    if error["type"] in ("missing", "extra_forbidden"):
        return f"`{place}`: {error['msg'].lower()}"
    given = error.get("input")
    return f"`{place}`: {error['msg'].lower()}, not {type(given).__name__} {str(given)[:60]!r}"


def apply(source: str, edits: Sequence[EditArguments]) -> tuple[str, Notes]:
    """The source after all edits, each made on what the one before left; `search` must be found exactly once. Raises
    Mistake, which says which cannot be made, why, and what would match; then none of them is made."""
    notes: list[str] = []
    for number, edit in enumerate(edits, 1):
        source, note = _one(source, edit, f"edit {number} of {len(edits)}")
        notes += [note] if note else []
    return source, tuple(notes)


def _one(source: str, edit: EditArguments, which: str) -> tuple[str, str]:
    if not edit.search:
        raise Mistake(f"{which}: `search` is empty; give the lines to be replaced, or the whole `source`")
    found = source.count(edit.search)
    if found == 1:
        return source.replace(edit.search, edit.replace), ""
    if found > 1:
        lines = ", ".join(map(str, _lines_of(source, edit.search)))
        raise Mistake(
            f"{which}: `search` is found {found} times (lines {lines}); add lines around it to tell them apart"
        )
    return _loosely(source, edit, which)


def _lines_of(source: str, search: str) -> list[int]:
    """The line numbers of all matches."""
    places, at = [], source.find(search)
    while at >= 0:
        places.append(source.count("\n", 0, at) + 1)
        at = source.find(search, at + 1)
    return places


def _loosely(source: str, edit: EditArguments, which: str) -> tuple[str, str]:
    """The same lines but for white space at their ends, and indented by as much more or less, if that is one place."""
    lines, wanted = source.split("\n"), edit.search.strip("\n").split("\n")
    bare = [line.strip() for line in wanted]
    starts = [
        i for i in range(len(lines) - len(wanted) + 1) if [line.strip() for line in lines[i : i + len(wanted)]] == bare
    ]
    if len(starts) != 1:
        raise Mistake(f"{which}: `search` is not in the source" + _nearest(lines, bare))
    at = starts[0]
    shift = _indent(lines[at]) - _indent(wanted[0])
    made = [_shifted(line, shift) for line in edit.replace.strip("\n").split("\n")]
    lines[at : at + len(wanted)] = made if edit.replace.strip() else []
    note = f"{which} matched line {at + 1} but for white space" + (f"; indented by {shift:+d}" if shift else "")
    return "\n".join(lines), note


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _shifted(line: str, shift: int) -> str:
    if not line.strip():
        return line
    return " " * shift + line if shift > 0 else line[min(-shift, _indent(line)) :]


def _nearest(lines: list[str], bare: list[str]) -> str:
    """The lines that the first line of the search resembles most."""
    first = next((line for line in bare if line), "")
    close = difflib.get_close_matches(first, [line.strip() for line in lines], n=_NEAREST, cutoff=0.5)
    shown = [f"  line {i}: {line[:_SHOWN]}" for i, line in enumerate(lines, 1) if line.strip() in close][:_NEAREST]
    return "; the nearest lines are\n" + "\n".join(shown) if shown else "; nothing in it resembles its first line"
