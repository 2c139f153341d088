"""The LLM as an author: its conversations, which the loop drives, begun as one of three strategies says.

`refine`: one at a time; each attempt builds on what the ones before have shown. `best-of`: independent samples; every
conversation begins with the task alone, or with the start, and knows nothing of the others. `evolve`: a population on
islands that seldom meet; short conversations, each of which begins at one or two of the attempts before it, chosen by
speed (the rank among the accepted attempts of an island) and by novelty (how little a source has in common with those
that rank before it: 1 - the largest Jaccard similarity of token 5-grams).

    opening -> reply -> tool results -> reply -> tool results … -> a limit, or a model that has no more to say

The length of a conversation is bounded: when a prompt exceeds `context_tokens`, all but the last few exchanges give way
to a history that is made anew from the attempts, unless something that was compiled waits to be benched. System prompt
and tools stay the same to the byte, so providers can cache them.
"""

import contextlib
import difflib
import itertools
import math
import re
import threading
import time
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kerneltune.agent.attempt import (
    Action,
    ActionResult,
    Actions,
    Attempt,
    BenchAction,
    Declined,
    LlmTurn,
    Proposal,
    ReflectAction,
    Remaining,
    StopReason,
    UpdateAction,
    rank_order,
)
from kerneltune.agent.authors.llm.prompts import (
    RunPrompts,
    Trouble,
    format_baseline,
    format_bench,
    format_code,
    format_expert,
    format_look,
    format_reflect,
    format_same,
    format_sass,
    format_update,
    without_locations,
)
from kerneltune.agent.authors.search.neighbours import CannotLower, Sketch
from kerneltune.agent.events import ModelAsked, ModelBusy, Replied, Said, Warned
from kerneltune.agent.models.types import (
    ContextOverflow,
    Delta,
    Effort,
    LanguageModel,
    Message,
    ModelFacts,
    ModelRequest,
    NoLongerWanted,
    Reply,
    Tool,
    ToolCall,
    ToolResult,
    ToolResults,
    Usage,
    User,
)
from kerneltune.agent.settings import Strategy
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.reflect import PlanWork, Roofline, counters_in_words, facts_of, roofline, work_of
from kerneltune.tools.schema.codec import Json, did_you_mean, encode, one_line
from kerneltune.tools.schema.errors import WorkerError
from kerneltune.tools.schema.gpus import Gpu, gpu_for_arch
from kerneltune.tools.schema.messages import SassReply
from kerneltune.tools.schema.sass import KernelFacts
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.update import Update

# The four tools as a model sees them, and its calls of them ---------------------------------------------------------


_MOST_PROBLEMS, _MOST_TOLD = 4, 800  # faults of a call, and characters of all of them
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

    search: str = Field(description="Lines exactly as they are there, found once.")
    replace: str = Field(description="What stands there instead.")


class UpdateArguments(_Arguments):
    """Of `update`."""

    parent: int | None = Field(default=None, description="The attempt that it is derived from.")
    rationale: str = Field(description="One line: what is tried, and why it should help.")
    hypothesis: str | None = Field(
        default=None,
        description="What limits `parent`, or makes it wrong, as a claim that this attempt can refute.",
    )
    predicted_speedup: float | None = Field(
        default=None,
        description="Time of `parent` / time of this attempt, such as 1.2; 1 for no change.",
    )
    source: str | None = Field(default=None, description="The whole file; null with `edits`.")
    edits: list[EditArguments] | None = Field(default=None, description="In the source of `parent`, or null.")


class BenchArguments(_Arguments):
    """Of `bench`."""

    attempt: int = Field(description="The number that `update` gave.")


class ReflectArguments(_Arguments):
    """Of `reflect`."""

    attempt: int = Field(description="A benched attempt.")
    hypothesis: str = Field(description="What limits it, before the evidence.")


What = Literal["baseline_code", "expert", "source", "ttgir", "ptx", "sass", "counters", "docs"]


class LookArguments(_Arguments):
    """Of `look`."""

    what: What
    name: str | None = Field(default=None, description="Of expert or docs; null lists them.")
    number: int | None = Field(default=None, description="Of an attempt, for the others.")


ARGUMENTS: dict[str, type[_Arguments]] = {
    "update": UpdateArguments,
    "bench": BenchArguments,
    "reflect": ReflectArguments,
    "look": LookArguments,
}
_WORDS = {
    "update": "Trace and compile a file, whole or as `edits` of any earlier attempt. It becomes an attempt with a "
    "number. Returns the compiler's report, or the error with its line.",
    "bench": "Check an attempt on every shape and many kinds of inputs; where there is a GPU, time it against the "
    "baselines and the speed of light.",
    "reflect": "State what limits a benched attempt. Returns what does, what fixing it can gain, and how your "
    "predictions came out.",
    "look": "Show code and texts; costs no attempt.",
}


def _schema(model: type[_Arguments]) -> dict[str, Json]:
    """As strict modes want it: every property required, nothing besides, no titles or defaults."""
    schema: dict[str, Json] = _strict(model.model_json_schema())
    return schema


def _strict(value: Any) -> Any:
    if isinstance(value, list):
        return [_strict(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {k: _strict(v) for k, v in value.items() if k not in ("default", "title") or isinstance(v, dict)}
    if "properties" in made:
        made.pop("description", None)
        made["required"] = list(made["properties"])
    return made


TOOLS: tuple[Tool, ...] = tuple(
    Tool(name, _WORDS[name], _schema(model), "source" if name == "update" else None)
    for name, model in ARGUMENTS.items()
)


class Mistake(Exception):
    """A call that cannot be carried out; the message says why, and what would work."""


def no_inductor() -> Sketch:
    """TorchInductor, where nobody started it. Raises CannotLower."""
    raise CannotLower("it is not at hand")


class ToolExecutor:
    """Turns the tool calls of one conversation into actions, and what came of those into words. `gpu`: what kernels are
    compiled for; `rounds`: how many replies with verdicts it may have, None for as many as the run lasts; `inductor`:
    asks TorchInductor; `made`: how many attempts it made."""

    def __init__(
        self,
        tracker: AttemptTracker,
        key: str,
        gpu: Gpu,
        prompts: RunPrompts,
        rounds: int | None = None,
        inductor: Callable[[], Sketch] = no_inductor,
    ) -> None:
        self._tracker, self._key, self._gpu, self._prompts, self._rounds = tracker, key, gpu, prompts, rounds
        self._inductor = inductor
        self._had_verdicts = 0  # rounds
        self._drafts: dict[int, Attempt] = {}  # not benched yet
        self._updates: dict[int, Update] = {}  # of attempts of this conversation
        self.made = 0

    @property
    def _is_timed(self) -> bool:
        return self._tracker.tools.bench_stage == "timing"

    @property
    def drafts(self) -> tuple[Attempt, ...]:
        """What was compiled and is not benched."""
        return tuple(self._drafts.values())

    def room(self, of_run: float) -> float:
        """How many attempts it may still make, where the run may begin so many."""
        return of_run if self._rounds is None else min(of_run, designs_of(self._rounds) - self.made)

    @property
    def is_full(self) -> bool:
        """Whether it has had its rounds."""
        return self._rounds is not None and self._had_verdicts >= self._rounds

    def run(self, calls: Sequence[ToolCall], turn: int) -> Steps[tuple[ToolResult, ...]]:
        """A result for every call, in order."""
        waiting, made_before = len(self._drafts), self.made
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
        self._had_verdicts += waiting + self.made - made_before > len(self._drafts)
        return tuple(results[i] for i in range(len(calls)))

    def _result(self, call: ToolCall) -> Steps[ToolResult]:
        try:
            match _arguments(call):
                case BenchArguments(attempt=number):
                    text = yield from self._benched(number)
                    return ToolResult(call.call_id, text, attempt_id=self._id(number))
                case ReflectArguments() as wanted:
                    text = yield from self._reflected(wanted)
                    return ToolResult(call.call_id, text, attempt_id=self._id(wanted.attempt))
                case LookArguments() as wanted:
                    return ToolResult(call.call_id, self._looked(wanted))
            raise AssertionError(call.name)
        except Mistake as mistake:
            return _mistaken(call, mistake)

    def _written(self, call: ToolCall, turn: int, before: int) -> tuple[Proposal, Notes] | ToolResult:
        """What a call wants to have updated, or its result where that is an attempt already. `before`: how many others
        the same reply wants."""
        wanted = _arguments(call)
        assert isinstance(wanted, UpdateArguments)
        source, notes = self._source(wanted)
        parent_id = self._id(wanted.parent) if wanted.parent is not None else None
        if (same := self._same(source)) is not None:
            return ToolResult(call.call_id, format_same(*same, notes), attempt_id=self._id(same[0]))
        if self._rounds is not None and self.made + before >= (most := designs_of(self._rounds)):
            raise Mistake(f"this conversation may make {most} attempts, and has; bench what is not benched yet")
        return _proposal(wanted, source, parent_id, LlmTurn(self._key, turn)), notes

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
        text = format_update(came, self._tracker.task, twin, notes, timed=self._is_timed)
        return ToolResult(call.call_id, text, attempt_id=came.attempt_id)

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

    def _id(self, number: int) -> str:
        return f"{self._tracker.run_id}/{number}"

    def _attempt(self, number: int) -> Attempt:
        named = 0 < number < _MOST_NUMBER  # a number of 5,000 digits cannot even be said
        found = self._tracker.find(self._id(number)) if named else None
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
        yield [ReflectAction(attempt, wanted.hypothesis)]
        facts, sass = self._disassembled(attempt)
        return format_reflect(attempt, self._tracker, facts, sass, self._tracker.predictions, self._place(attempt))

    def _place(self, attempt: Attempt) -> Roofline:
        """Where an attempt lies on the roofline, and what to look at."""
        update = self._updates.get(attempt.number)
        work = work_of(update, attempt.judged.variant) if update is not None else PlanWork()
        return roofline(self._tracker.task, self._gpu, attempt.judged, attempt.kernels, work)

    def _disassembled(self, attempt: Attempt) -> tuple[tuple[KernelFacts, ...], SassReply]:
        """What the compiler made of an attempt's kernels, and of what those that it was compiled to here consist."""
        update, variant = self._updates.get(attempt.number), attempt.variant
        if update is None or not attempt.kernels:
            return tuple(map(KernelFacts, attempt.kernels)), SassReply()
        facts = facts_of(update, update.judged_plan(variant))
        return facts, self._tracker.tools.updater.sass(update, variant)

    def _looked(self, wanted: LookArguments) -> str:
        """What is to be seen. Raises Mistake, with the list of what there is."""
        match wanted.what:
            case "baseline_code":
                return self._baseline()
            case "docs":
                topics = {name: topic.about for name, topic in self._prompts.topics.items()}
                return _by_name(wanted, topics, self._prompts.topic)
            case "expert":
                experts = self._prompts.experts
                says = {name: sketch.says for name, sketch in experts.items()}
                return _by_name(wanted, says, lambda name: format_expert(experts[name]))
        if wanted.number is None:
            raise Mistake(f"`look` at {wanted.what} needs a `number`, that of an attempt")
        attempt = self._drafts.get(wanted.number) or self._attempt(wanted.number)
        match wanted.what:
            case "source":
                return format_look(f"#{attempt.number}: {attempt.rationale}", code=attempt.source)
            case "counters":
                return self._counters(attempt)
        return self._code(attempt, wanted.what)

    def _baseline(self) -> str:
        try:
            sketch = self._inductor()
        except (CannotLower, WorkerError) as error:
            raise Mistake(f"TorchInductor has no kernels for this task: {error}") from error
        return format_baseline(sketch)

    def _counters(self, attempt: Attempt) -> str:
        counters = counters_in_words(attempt.judged.receipt) if attempt.verdict else []
        if not counters:
            raise Mistake(
                f"nothing was counted of attempt {attempt.number}: that is done on a GPU with --counters, of what was "
                "judged in full"
            )
        return format_look(f"#{attempt.number}:", [f"{name}: {line}" for name, line in counters])

    def _code(self, attempt: Attempt, what: Literal["ttgir", "ptx", "sass"]) -> str:
        """What its kernels came to; an attempt of another conversation or process is compiled again."""
        number, variant, updater = attempt.number, attempt.variant, self._tracker.tools.updater
        update = self._updates.get(number) or updater.update(attempt.source)
        self._updates[number] = update
        plan = update.judged_plan(variant)
        kernels = [kernel for kernel, _ in update.compiled_of(plan)]
        if not kernels:
            raise Mistake(f"nothing of attempt {number} was compiled")
        if what == "ttgir":
            written = updater.ttgir(update, variant)
            if written.problem:
                raise Mistake(f"attempt {number} has no TTGIR: {written.problem}")
            named = zip((k.name for k in kernels), map(without_locations, written.texts), strict=True)
            return format_code(number, "TTGIR", list(named), "mlir")
        sass = updater.sass(update, variant)
        if sass.problem:
            raise Mistake(f"attempt {number} cannot be disassembled: {sass.problem}")
        if what == "sass":
            return format_sass(number, facts_of(update, plan), sass.kernels)
        texts = [k.text if k.language == "ptx" else its.ptx for k, its in zip(kernels, sass.kernels, strict=True)]
        return format_code(number, "PTX", list(zip((k.name for k in kernels), texts, strict=True)), "ptx")


def _by_name(wanted: LookArguments, known: Mapping[str, str], show: Callable[[str], str]) -> str:
    """What is shown of a name; the list of those that there are where it is null. Raises Mistake."""
    listed = "\n".join(f"- {name}: {about}" for name, about in known.items()) or "none for this task"
    if wanted.name is None:
        return f"{wanted.what}:\n{listed}"
    if wanted.name not in known:
        raise Mistake(f"there is no {wanted.what} {wanted.name[:_SHOWN]!r}; there are:\n{listed}")
    return show(wanted.name)


def _proposal(wanted: UpdateArguments, source: str, parent_id: str | None, origin: LlmTurn) -> Proposal:
    """The candidate, with what it claims about its parent; without one there is nothing to claim. Raises Mistake."""
    speedup = wanted.predicted_speedup
    if speedup is not None and not 0 < speedup < _MOST_NUMBER:
        raise Mistake(f"`predicted_speedup` {speedup:g} is no ratio of two times; give one such as 1.2, or null")
    if parent_id is None:
        return Proposal(source, wanted.rationale, None, origin)
    claim = wanted.hypothesis or (wanted.rationale if speedup is not None else "")
    prediction = "" if speedup is None else f"{speedup:.3g} times as fast as #{wanted.parent}"
    return Proposal(source, wanted.rationale, parent_id, origin, claim, prediction, speedup)


def designs_of(rounds: int) -> int:
    """How many attempts a conversation of so many rounds may make."""
    return DESIGNS_A_ROUND * rounds


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
        raise Mistake(argument_problems(error, ARGUMENTS[call.name])) from error


def argument_problems(error: ValidationError, kind: type[BaseModel]) -> str:
    """What pydantic found wrong with the arguments of a call or with a request, without its words for our classes."""
    return one_line("; ".join(_argument_problem(one, kind) for one in error.errors()[:_MOST_PROBLEMS]), _MOST_TOLD)


def _argument_problem(error: Any, kind: type[BaseModel]) -> str:
    loc, what = error["loc"], error["msg"].removeprefix("Value error, ")
    what = what[:1].lower() + what[1:]
    if not loc:
        return "this is no JSON object" if error["type"] == "model_type" else what
    if error["type"] == "extra_forbidden":
        known = kind.model_fields if len(loc) == 1 else {}
        takes = f"; it takes {', '.join(known)}" if known else ""
        what = f"no such field{did_you_mean(str(loc[-1]), known, takes, lead='; ')}"
    elif error["type"] != "missing":
        given = error["input"]
        what += f", not {type(given).__name__} {str(given)[:60]!r}"
    return f"`{'.'.join(map(str, loc))}`: {what}"


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


# Conversations -------------------------------------------------------------------------------------------------------


BEST_OF_ROUNDS = 4  # replies of a conversation that verdicts follow: the first idea, and repairs
EVOLVE_ROUNDS = 2  # a child, and its repair
DESIGNS_A_ROUND = 2
ISLANDS = 3
_TOKEN = re.compile(r"\w+|[^\w\s]")
_GRAM = 5
SIZE = 8  # of an island: what ranks below is not bred from
_TOURNAMENT = 3
_NOVELTY = 0.5  # weight against speed, both within [0, 1]
CROSSOVER = 0.3  # share of conversations that join two attempts
MIGRATION = 0.2  # share of those that take the second from another island
KEPT_EXCHANGES = 3  # replies with their results that stay word for word when the rest becomes history
# Tokens of a prompt. Over 50 turns at list prices, forgetting at 30,000 saves 6 to 16 % of a bill where prefixes are
# cached, and costs the model its reasoning every ten turns; without a cache the bill is two to three times as large.
CACHED_CONTEXT, UNCACHED_CONTEXT, SHARE_OF_WINDOW = 150_000, 30_000, 0.75
MOST_VAIN = 8  # replies in a row of whose calls none could be carried out, after which it is over too
MOST_DONE = 2  # times that a model with attempts says so, after which it has nothing left to try
MOST_SILENT = 3  # replies in a row that call no tool, after which the conversation is over
_CHARACTERS_PER_TOKEN = 4  # where a server does not count
_LEAST_REPLY = 1_024  # tokens: thinking takes at least so many
_REPLY_LIMITS: dict[Effort, int] = {"high": 64_000, "xhigh": 128_000, "max": 128_000}  # thinking included
_USUAL_REPLY = 32_000


@dataclass
class LlmConversation:
    """A conversation of a run. `key` names it in the record; `history` is what the model is told in the place of what
    was forgotten. Before every request the loop may end it, and while a reply is waited for `remaining` says whether
    the run has time for it. `seed`: of what its requests' are made; `logprobs`: their replies are to come with tokens;
    `is_done`: the model said, and said again, that it has nothing left to try."""

    tracker: AttemptTracker
    key: str
    model: LanguageModel
    executor: ToolExecutor
    prompts: RunPrompts
    opening: str
    history: Callable[[], str]
    context_tokens: int = 30_000
    max_tokens: int = 32_000
    remaining: Callable[[], Remaining] = Remaining
    seed: int | None = None
    logprobs: bool = False
    turn: int = 0
    is_done: bool = False
    _messages: list[Message] = field(default_factory=list)
    _last: Usage | None = None  # of the last reply, while the next prompt begins with that one's
    _silent: int = 0
    _done: int = 0
    _vain: int = 0
    _was_raised: bool = False
    _asked_s: float = 0.0  # by perf_counter

    def actions(self) -> Actions:
        """Ask, and want done what the model calls for, until it has no more to say or has made its share. Raises
        LlmError."""
        self._hear(self._with_standing(self.opening))
        try:
            while True:
                self._expect()
                yield ()
                why = yield from self._exchange()
                if why is not None or self.executor.is_full:
                    return why
        finally:
            self.tracker.cost.expect(self.key, 0.0)

    def _expect(self) -> None:
        """Tell what the next request is likely to cost; a person, too, when nothing at all can be asked for that."""
        usd, cost = self.model.price_usd(self._foreseen()), self.tracker.cost
        cost.expect(self.key, usd)
        if usd is not None and not cost.replies and usd > self.remaining().cost_usd:
            words = f"the first request is likely to cost ${usd:.3f}, which is more than the limit of cost leaves"
            self.tracker.emit(Warned(self.tracker.run_id, words))

    def _foreseen(self, output_tokens: int | None = None) -> Usage:
        """What the next request will count, as far as can be told. Writing to a cache costs up to twice as much as
        reading without one, so that the first prompt counts twice."""
        out = self.tracker.cost.output_tokens if output_tokens is None else output_tokens
        if (last := self._last) is None:
            return Usage(2 * self._estimated(), out)
        new = last.output_tokens + _characters(self._messages[-1]) // _CHARACTERS_PER_TOKEN
        cached = last.input_tokens if last.cached_tokens or last.cache_write_tokens else 0
        return Usage(last.input_tokens + new, out, cached, new if last.cache_write_tokens else 0)

    def _estimated(self) -> int:
        """Tokens of the prompt, where nobody counted them."""
        return (sum(map(_characters, self._messages)) + len(self.prompts.system)) // _CHARACTERS_PER_TOKEN

    def _affordable(self) -> int:
        """How long the next reply may be: within the model's limit, and within what the run may still spend."""
        others = self.tracker.cost.next_usd - self.tracker.cost.expected(self.key)
        left_usd = self.remaining().cost_usd - others
        prompt, more = self.model.price_usd(self._foreseen(0)), self.model.price_usd(self._foreseen(1_000))
        if math.isinf(left_usd) or prompt is None or more is None or more <= prompt:
            return self.max_tokens
        return min(self.max_tokens, max(_LEAST_REPLY, int(1_000 * (left_usd - prompt) / (more - prompt))))

    def _hear(self, text: str, raw: Json = None) -> None:
        """Words to the model, after whatever comes last."""
        self.tracker.emit(Said(self.tracker.run_id, "user", text, raw=raw, conversation=self.key))
        last = self._messages[-1] if self._messages else None
        if isinstance(last, User | ToolResults):  # two messages of one side in a row are none
            self._messages[-1] = replace(last, text=f"{last.text}\n\n{text}".strip())
        else:
            self._messages.append(User(text))

    def _exchange(self) -> Actions:
        """One reply and what it leads to; why the conversation is over, or None."""
        try:
            reply = self._ask()
        except NoLongerWanted:
            return None  # the loop knows why, and ends it
        if reply.calls or (reply.text.strip() and reply.stop != "refusal"):
            self._messages.append(reply)
        if reply.stop == "max_tokens" and not self._was_raised:
            self._was_raised = True
            most = self.model.facts().max_output_tokens or 2 * self.max_tokens
            self.max_tokens = max(self.max_tokens, min(2 * self.max_tokens, most))
        if reply.calls:
            self._silent = self._done = 0
            if (yield from self._answer(reply)) >= MOST_VAIN:
                return StopReason.AUTHOR_DONE
        elif reply.stop == "context":
            self._compact(KEPT_EXCHANGES - 1)
            self._hear(self.prompts.nudge("cut_off"))  # no provider has to take a request that ends with a reply
        elif over := self._prod(reply):
            return over
        patience = 2 if self.executor.drafts else 1  # why they were written should not be forgotten before their bench
        if self._length(reply) > patience * self.context_tokens:
            self._compact(KEPT_EXCHANGES)
        return None

    def _prod(self, reply: Reply) -> StopReason | None:
        """Answer a reply that called no tool, or give up on the model."""
        self._silent += 1
        trouble = _trouble(reply)
        self._done = self._done + 1 if trouble == "talk" else 0
        self.is_done = self._done >= MOST_DONE and self.executor.made > 0
        if self.is_done:
            return StopReason.AUTHOR_DONE
        if self._silent >= MOST_SILENT:
            return StopReason.REFUSED if trouble == "refused" else StopReason.AUTHOR_DONE
        self._hear(self.prompts.nudge(trouble))
        return None

    def _ask(self) -> Reply:
        self._asked()
        reply = self._reply_that_fits()
        self.turn += 1
        self._last = reply.usage
        self.tracker.cost.add(reply.cost_usd, reply.usage.output_tokens if reply.usage else None)
        self.tracker.emit(self._replied(reply))
        given = {"token ids": reply.token_ids, "log-probabilities": reply.logprobs}
        missing = " and no ".join(what for what, those in given.items() if those is None)
        if self.logprobs and missing and (self.key, self.turn) == ("1", 1):
            words = f"--logprobs: {self.model.name} gave no {missing} with its first reply; see docs/authors.md"
            self.tracker.emit(Warned(self.tracker.run_id, words))
        return reply

    def _asked(self) -> None:
        self._asked_s = time.perf_counter()
        self.tracker.emit(ModelAsked(self.tracker.run_id, self.key))

    def _reply_that_fits(self) -> Reply:
        """Ask; where the conversation is too long for the model, with the last exchange alone, then without."""
        for kept in (1, 0):
            with contextlib.suppress(ContextOverflow):
                return self._reply()
            self._compact(kept)
        return self._reply()

    def _reply(self) -> Reply:
        key = f"{self.tracker.run_id}/{self.key}"
        request = ModelRequest(
            self.prompts.system, tuple(self._messages), TOOLS, self._affordable(), key,
            lambda: self.remaining().time_s, lambda: self.remaining().is_over, self._told, self._lost, self._affordable,
            None if self.seed is None else request_seed(self.seed, self.key, self.turn), self.logprobs,
        )  # fmt: skip
        return self.model.ask(request, self._overheard)

    def _told(self, wait_s: float, why: str) -> None:
        self.tracker.emit(ModelBusy(self.tracker.run_id, self.key, wait_s, why))

    def _lost(self, counted: Usage | None, characters: int) -> None:
        """Count a reply that broke off after so many characters: its provider bills the prompt and what was written.
        What the server has not counted is estimated, which the stored usage says."""
        usage = counted or (self._foreseen(0) if self._last else Usage(self._estimated(), 0))
        usage = replace(usage, output_tokens=max(usage.output_tokens, characters // _CHARACTERS_PER_TOKEN))
        why = f"after {characters} characters; its tokens are estimated"
        broken = Reply("", "interrupted", detail=why, usage=usage, cost_usd=self.model.price_usd(usage))
        self.turn += 1
        self.tracker.cost.add(broken.cost_usd)
        said = self._replied(replace(broken, model=self.model.name.partition(":")[2]))
        self.tracker.emit(replace(said, usage=encode(usage) | {"estimated": True}))
        self._asked()  # as it may be again

    def _overheard(self, delta: Delta) -> None:
        if delta.kind != "arguments":
            self.tracker.emit(Said(self.tracker.run_id, "assistant", delta.text, final=False, conversation=self.key))

    def _replied(self, reply: Reply) -> Replied:
        return Replied(
            self.tracker.run_id,
            self.key,
            self.turn,
            text=reply.text,
            thinking=reply.thinking,
            calls=encode(reply.calls),
            stop=reply.stop,
            detail=reply.detail,
            usage=encode(reply.usage) if reply.usage else None,
            cost_usd=reply.cost_usd,
            model=reply.model,
            seconds=round(time.perf_counter() - self._asked_s, 3),
            raw=reply.raw,
            token_ids=reply.token_ids,
            logprobs=reply.logprobs,
        )

    def _answer(self, reply: Reply) -> Steps[int]:
        """Have the calls carried out; how many replies in a row have been in vain."""
        results = yield from self.executor.run(reply.calls, self.turn)
        results = (*results[:-1], replace(results[-1], text=self._with_standing(results[-1].text)))
        for result in results:
            raw = {"call_id": result.call_id, "is_error": result.is_error, "attempt_id": result.attempt_id}
            self.tracker.emit(Said(self.tracker.run_id, "tool", result.text, raw=raw, conversation=self.key))
        self._messages.append(ToolResults(results))
        self._vain = self._vain + 1 if all(r.is_error for r in results) else 0
        return self._vain

    def _with_standing(self, text: str) -> str:
        remaining = self.remaining()
        own = replace(remaining, attempts=self.executor.room(remaining.attempts))
        return "\n\n".join(filter(None, (text, self.prompts.standing(own))))

    def _length(self, reply: Reply) -> int:
        """Tokens of the next prompt, about: those of the last one and what came on top."""
        last = self._messages[-1]
        new = sum(len(r.text) for r in last.results) if isinstance(last, ToolResults) else 0
        if reply.usage is None:
            return self._estimated()
        return reply.usage.input_tokens + reply.usage.output_tokens + new // _CHARACTERS_PER_TOKEN

    def _compact(self, kept: int) -> None:
        """Put a history in the place of all but the last exchanges."""
        replies = [i for i, message in enumerate(self._messages) if isinstance(message, Reply)]
        tail = self._messages[replies[-kept:][0] :] if kept and replies else []
        if tail and len(tail) == len(self._messages) - 1:
            return
        self._messages, self._last = [], None
        told = filter(None, (self.history(), self.prompts.drafts(self.executor.drafts)))
        self._hear("\n\n".join(told), {"history": True, "kept": len(tail)})
        self._messages += tail


def context_limit(facts: ModelFacts) -> int:
    """How many tokens a prompt may have before a history takes its place."""
    usual = CACHED_CONTEXT if facts.caches else UNCACHED_CONTEXT
    return min(usual, int(SHARE_OF_WINDOW * facts.max_input_tokens)) if facts.max_input_tokens else usual


def reply_limit(facts: ModelFacts, effort: Effort) -> int:
    """How many tokens a reply may have, its thinking included; no more than usual where the API does not tell what the
    model can do."""
    return min(facts.max_output_tokens or _USUAL_REPLY, _REPLY_LIMITS.get(effort, _USUAL_REPLY))


def _trouble(reply: Reply) -> Trouble:
    if reply.stop == "refusal":
        return "refused"
    if reply.stop == "max_tokens":
        return "cut_off"
    return "talk" if reply.text.strip() else "empty"


def _characters(message: Message) -> int:
    match message:
        case User(text):
            return len(text)
        case ToolResults(results, text):
            return len(text) + sum(len(r.text) for r in results)
        case Reply():
            return len(message.text) + sum(len(str(c.arguments)) for c in message.calls)


@dataclass(frozen=True)
class _Rules:
    """How a strategy holds conversations. `opening`: the first words of the conversation of that key; `alone`: one at a
    time, each told the history of the whole run when it has become too long, where others are told their opening again;
    `rounds`: replies with verdicts that it may have; `most_fruitless`: conversations in a row without an attempt."""

    opening: Callable[[str], str]
    alone: bool = False
    rounds: int | None = None
    most_fruitless: int = 3


def request_seed(seed: int, conversation: str, turn: int) -> int:
    """The seed of a request, by that of its run: another for each, since servers draw the same for the same prompt and
    seed. Below 2**31, which all of them take."""
    return zlib.crc32(f"{seed} {conversation} {turn}".encode()) >> 1


@dataclass
class LlmAuthor:
    """One run of a model. `seeds_model`: its requests have seeds, made of `seed`; `logprobs`: they ask for the tokens
    of replies; `finished_keys`: conversations of
    earlier processes, whose keys are taken; `start`: the attempt that the conversations begin at, once it is made;
    `remaining`: what the run may still use; `inductor`: asks TorchInductor for its kernels."""

    tracker: AttemptTracker
    model: LanguageModel
    prompts: RunPrompts
    arch: str
    strategy: Strategy = "refine"
    seed: int = 0
    seeds_model: bool = False
    logprobs: bool = False
    context_tokens: int = 30_000
    max_tokens: int = 32_000
    finished_keys: int = 0
    start: Callable[[], Attempt | None] = lambda: None
    remaining: Callable[[], Remaining] = Remaining
    inductor: Callable[[], Sketch] = no_inductor
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.model.name
        self._keys = itertools.count(self.finished_keys + 1)
        self._ending = threading.Lock()
        self._held = self._fruitless = 0
        self._given_up = False
        self._rules = _STRATEGIES[self.strategy](self)
        self.tracker.emit(Said(self.tracker.run_id, "system", self.prompts.system))

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Actions]:
        """Conversations to hold now: none while one is held alone, or after too many came to nothing."""
        room = min(width, 1 - self._held) if self._rules.alone else width
        return [self._conversation() for _ in range(0 if self._given_up else room)]

    def _conversation(self) -> Actions:
        key = str(next(self._keys))
        opening = self._rules.opening(key)
        conversation = LlmConversation(
            self.tracker,
            key,
            self.model,
            ToolExecutor(self.tracker, key, gpu_for_arch(self.arch), self.prompts, self._rules.rounds, self.inductor),
            self.prompts,
            opening,
            self.prompts.history if self._rules.alone else lambda: opening,
            self.context_tokens,
            self.max_tokens,
            self.remaining,
            self.seed if self.seeds_model else None,
            self.logprobs,
        )
        self._held += 1
        return self._counted(conversation)

    def _counted(self, conversation: LlmConversation) -> Actions:
        """The conversation, and a note of whether anything came of it."""
        try:
            return (yield from conversation.actions())
        finally:
            with self._ending:
                self._held -= 1
                self._fruitless = 0 if conversation.executor.made else self._fruitless + 1
                self._given_up |= self._fruitless >= self._rules.most_fruitless
                self._given_up |= self._rules.alone and conversation.is_done

    def begin_at(self, rounds: int | None = None) -> str:
        """The first words of a conversation that knows of nothing but the start."""
        start = self.start()
        return self.prompts.opening((start,) if start else (), rounds)


def _refine(author: LlmAuthor) -> _Rules:
    """A model that has no more to say begins again with the history of its attempts."""

    def opening(key: str) -> str:
        last = author.tracker.attempts[-1:]
        is_first = key == str(author.finished_keys + 1) and (not last or last == [author.start()])
        return author.begin_at() if is_first else author.prompts.history()

    return _Rules(opening, alone=True, most_fruitless=2)


def _best_of(author: LlmAuthor) -> _Rules:
    return _Rules(lambda _: author.begin_at(BEST_OF_ROUNDS), rounds=BEST_OF_ROUNDS)


def _evolve(author: LlmAuthor) -> _Rules:
    random, turns = Random(author.seed), itertools.count()
    home: dict[str, int] = {}  # island of each conversation

    def opening(key: str) -> str:
        island = home[key] = next(turns) % ISLANDS
        parents = choose(_islands(author.tracker.attempts, home), island, random)
        if len(parents) == 2:
            return author.prompts.crossover(*parents, EVOLVE_ROUNDS)
        return author.prompts.opening(parents, EVOLVE_ROUNDS)

    return _Rules(opening, rounds=EVOLVE_ROUNDS)


_STRATEGIES: dict[Strategy, Callable[[LlmAuthor], _Rules]] = {
    "refine": _refine,
    "best-of": _best_of,
    "evolve": _evolve,
}


def _islands(attempts: list[Attempt], home: dict[str, int]) -> list[list[Attempt]]:
    """Attempts by island; those of earlier processes are spread by number."""
    islands: list[list[Attempt]] = [[] for _ in range(ISLANDS)]
    for attempt in list(attempts):
        origin = attempt.origin
        key = origin.conversation if isinstance(origin, LlmTurn) else ""
        islands[home.get(key, attempt.number % ISLANDS)].append(attempt)
    return islands


def choose(islands: Sequence[Sequence[Attempt]], island: int, random: Random) -> tuple[Attempt, ...]:
    """Where the next conversation of an island begins: at one attempt, or at two that it shall join; nowhere only while
    no island has any: an empty one is settled from the others."""
    here = residents(islands[island]) or residents([a for others in islands for a in others])
    if not here:
        return ()
    first = _tournament(here, random)
    if random.random() >= CROSSOVER:
        return (first,)
    away = [a for number, others in enumerate(islands) if number != island for a in residents(others)]
    pool = away if away and random.random() < MIGRATION else here
    others = [a for a in pool if a.attempt_id != first.attempt_id]
    return (first, _tournament(others, random)) if others else (first,)


def residents(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The accepted attempts that an island keeps, the fastest first; of equal sources the first one."""
    accepted = sorted((a for a in attempts if a.accepted), key=rank_order)
    unique = {a.source: a for a in reversed(accepted)}
    return [a for a in accepted if unique[a.source] is a][:SIZE]


def _tournament(ranked: Sequence[Attempt], random: Random) -> Attempt:
    entrants = random.sample(range(len(ranked)), min(_TOURNAMENT, len(ranked)))
    return ranked[max(entrants, key=lambda place: _fitness(ranked, place))]


def _fitness(ranked: Sequence[Attempt], place: int) -> float:
    speed = 1 - place / max(1, len(ranked) - 1)
    alike = (similarity(ranked[place].source, better.source) for better in ranked[:place])
    return speed + _NOVELTY * (1 - max(alike, default=0.0))


def similarity(source: str, other: str) -> float:
    """Jaccard similarity of the sources' token 5-grams, from 0 to 1."""
    ours, theirs = _grams(source), _grams(other)
    return len(ours & theirs) / len(ours | theirs) if ours | theirs else 1.0


@lru_cache(maxsize=256)
def _grams(source: str) -> frozenset[tuple[str, ...]]:
    tokens = _TOKEN.findall(source)
    return frozenset(tuple(tokens[i : i + _GRAM]) for i in range(max(1, len(tokens) - _GRAM + 1)))
