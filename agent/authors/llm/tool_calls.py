"""Carries out a model's tool calls by asking the loop. Whatever a model did wrong comes back as a result that teaches.

Updates of one reply run side by side; benches and reflections follow in the order of the calls. An attempt belongs to
the conversation that made it until it is benched.
"""

import difflib
from collections.abc import Generator, Sequence
from dataclasses import dataclass

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
from kerneltune.agent.authors.llm.feedback import Disassembled, bench_words, reflect_words, same_words, update_words
from kerneltune.agent.authors.llm.tool_schemas import (
    ARGUMENTS,
    BadArguments,
    BenchArguments,
    ReflectArguments,
    UpdateArguments,
    read,
)
from kerneltune.agent.models.types import ToolCall, ToolResult
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.reflect import PlanWork, Roofline, roofline, work_of
from kerneltune.tools.schema.gpus import gpu_for_arch
from kerneltune.tools.update import Update

_MOST_NAMED = 12  # attempts that an error lists
_MOST_NUMBER = 1_000_000
_NEAREST = 3  # lines that are shown when nothing matches
_SHOWN = 160  # characters of a line


class Mistake(Exception):
    """A call that cannot be carried out; the message says why, and what would work."""


@dataclass(frozen=True)
class _WantedUpdate:
    """A candidate that a call wants to have updated. `notes`: what was not quite as written."""

    proposal: Proposal
    notes: tuple[str, ...]


class ToolExecutor:
    """Turns the tool calls of one conversation into actions, and what came of those into words. `share`: how many
    attempts it may make, None for as many as the run has; `made`: how many it made."""

    def __init__(self, tracker: AttemptTracker, key: str, arch: str, share: int | None = None) -> None:
        self._tracker, self._key, self._arch, self._share = tracker, key, arch, share
        self._drafts: dict[int, Attempt] = {}  # not benched yet
        self._updates: dict[int, Update] = {}  # of attempts of this conversation
        self.made = 0

    @property
    def is_full(self) -> bool:
        """Whether it has made its share."""
        return self._share is not None and self.made >= self._share

    def run(
        self, calls: Sequence[ToolCall], turn: int
    ) -> Generator[Sequence[Action], Sequence[ActionResult], tuple[ToolResult, ...]]:
        """A result for every call, in order."""
        results: dict[int, ToolResult] = {}
        written: dict[int, _WantedUpdate] = {}
        for i, call in enumerate(calls):
            if call.name == "update":
                try:
                    asked = self._written(call, turn, len(written))
                except (Mistake, BadArguments, EditFailed) as mistake:
                    results[i] = _mistaken(call, mistake)
                else:
                    if isinstance(asked, str):
                        results[i] = ToolResult(call.call_id, asked)
                    else:
                        written[i] = asked
        made = (yield [UpdateAction(w.proposal) for w in written.values()]) if written else ()
        for (i, its), came in zip(written.items(), made, strict=True):
            results[i] = self._updated(calls[i], its, came)
        for i, call in enumerate(calls):
            if i not in results:
                results[i] = yield from self._result(call)
        return tuple(results[i] for i in range(len(calls)))

    def _result(self, call: ToolCall) -> Generator[Sequence[Action], Sequence[ActionResult], ToolResult]:
        try:
            match _arguments(call):
                case BenchArguments(attempt=number):
                    return ToolResult(call.call_id, (yield from self._benched(number)))
                case ReflectArguments() as wanted:
                    return ToolResult(call.call_id, (yield from self._reflected(wanted)))
            raise AssertionError(call.name)
        except (Mistake, BadArguments) as mistake:
            return _mistaken(call, mistake)

    def _written(self, call: ToolCall, turn: int, before: int) -> _WantedUpdate | str:
        """What a call wants to have updated, or the words where that is an attempt already. `before`: how many others
        the same reply wants."""
        wanted = _arguments(call)
        assert isinstance(wanted, UpdateArguments)
        source, notes = self._source(wanted)
        parent_id = f"{self._tracker.run_id}/{wanted.parent}" if wanted.parent is not None else None
        if (same := self._same(source)) is not None:
            return same_words(*same, notes)
        if self._share is not None and self.made + before >= self._share:
            raise Mistake(NO_ROOM)
        return _WantedUpdate(Proposal(source, wanted.rationale, parent_id, LlmTurn(self._key, turn)), notes)

    def _updated(self, call: ToolCall, its: _WantedUpdate, came: ActionResult) -> ToolResult:
        if isinstance(came, Declined):
            self.made += came.number is not None
            return _mistaken(call, Mistake(came.why))
        twin = self._twin(came)
        self.made += 1
        assert came.update is not None
        self._updates[came.number] = came.update
        if came.update.failure is None:  # else it is benched, too
            self._drafts[came.number] = came
        return ToolResult(call.call_id, update_words(came, self._tracker.task, twin, its.notes))

    def _source(self, wanted: UpdateArguments) -> tuple[str, tuple[str, ...]]:
        """The whole source that is meant."""
        if wanted.parent is not None:
            parent = self._source_of(wanted.parent)
        if (wanted.source is None) == (wanted.edits is None):
            raise Mistake("give either `source`, the whole file, or `edits` on a `parent`; the other is null")
        if wanted.edits is not None:
            if wanted.parent is None:
                raise Mistake("`edits` need a `parent`: the attempt whose source they change")
            edited = apply(parent, [Edit(e.search, e.replace) for e in wanted.edits])
            return edited.source, edited.notes
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
        drafts = list(self._drafts.values())
        return next(((d.number, "not benched yet") for d in drafts if d.source.strip() == wanted), None)

    def _twin(self, draft: Attempt) -> int | None:
        """An earlier attempt of this conversation that does the same work."""
        sha256 = draft.plan_sha256
        known = list(self._updates.items())
        return next((n for n, update in known if sha256 is not None and update.sha256 == sha256), None)

    def _benched(self, number: int) -> Generator[Sequence[Action], Sequence[ActionResult], str]:
        draft = self._drafts.pop(number, None)
        if draft is None:
            attempt, again = self._attempt(number), "(benched before)\n"
        else:
            (came,) = yield [BenchAction(draft)]
            if isinstance(came, Declined):
                raise Mistake(came.why)
            attempt, again = came, ""
        predictions = reversed(self._tracker.predictions)
        held = next((p for p in predictions if p.attempt_id == attempt.attempt_id), None)
        place = self._place(attempt) if attempt.accepted else None
        return again + bench_words(attempt, self._tracker, held, place)

    def _reflected(self, wanted: ReflectArguments) -> Generator[Sequence[Action], Sequence[ActionResult], str]:
        if wanted.attempt in self._drafts:
            raise Mistake(f"attempt {wanted.attempt} is not benched yet; bench it first")
        attempt = self._attempt(wanted.attempt)
        yield [ReflectAction(attempt, wanted.hypothesis, wanted.prediction, wanted.predicted_speedup)]
        predictions = self._tracker.predictions
        return reflect_words(attempt, self._tracker, self._disassembled(attempt), predictions, self._place(attempt))

    def _place(self, attempt: Attempt) -> Roofline:
        """Where an attempt lies on the roofline, and what to look at."""
        update = self._updates.get(attempt.number)
        work = work_of(update, attempt.judged.variant) if update is not None else PlanWork()
        gpu = gpu_for_arch(self._arch)
        return roofline(self._tracker.task, gpu, attempt.judged, attempt.kernels, work)

    def _disassembled(self, attempt: Attempt) -> Disassembled:
        """What the attempt's kernels are made of, and those of the best if it is another one of this conversation."""
        update, variant = self._updates.get(attempt.number), attempt.judged.variant
        if update is None or not attempt.kernels:
            return Disassembled(attempt.kernels)
        leader = self._tracker.best
        other = self._updates.get(leader.number) if leader and leader.number != attempt.number else None
        reports = update.kernels_of(update.judged_plan(variant)) or attempt.kernels
        best = self._tracker.tools.updater.sass(other, leader.judged.variant).kernels if leader and other else ()
        return Disassembled(reports, self._tracker.tools.updater.sass(update, variant), best)


def _arguments(call: ToolCall) -> UpdateArguments | BenchArguments | ReflectArguments:
    """The arguments of a call, checked. Raises Mistake and BadArguments."""
    if call.name not in ARGUMENTS:
        raise Mistake(f"there is no such tool; the tools are {', '.join(ARGUMENTS)}")
    if call.problem:
        raise Mistake(f"the arguments are not a JSON object: {call.problem}")
    arguments = read(ARGUMENTS[call.name], call.arguments)
    assert isinstance(arguments, UpdateArguments | BenchArguments | ReflectArguments)
    return arguments


def _mistaken(call: ToolCall, mistake: Exception) -> ToolResult:
    return ToolResult(call.call_id, f"{call.name}: {mistake}", is_error=True)


class EditFailed(ValueError):
    """An edit that cannot be made; the message says which, why, and what would match."""


@dataclass(frozen=True)
class Edit:
    """`search` must be found exactly once; "" is allowed only for an empty source."""

    search: str
    replace: str


@dataclass(frozen=True)
class Edited:
    """The new source. `notes`: what was not quite as written."""

    source: str
    notes: tuple[str, ...] = ()


def apply(source: str, edits: Sequence[Edit]) -> Edited:
    """All edits, each on what the one before made. Raises EditFailed; then none of them is made."""
    notes: list[str] = []
    for number, edit in enumerate(edits, 1):
        source, note = _one(source, edit, f"edit {number} of {len(edits)}")
        notes += [note] if note else []
    return Edited(source, tuple(notes))


def _one(source: str, edit: Edit, which: str) -> tuple[str, str]:
    if not edit.search:
        raise EditFailed(f"{which}: `search` is empty; give the lines to be replaced, or the whole `source`")
    found = source.count(edit.search)
    if found == 1:
        return source.replace(edit.search, edit.replace), ""
    if found > 1:
        lines = ", ".join(map(str, _lines_of(source, edit.search)))
        raise EditFailed(
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


def _loosely(source: str, edit: Edit, which: str) -> tuple[str, str]:
    """The same lines but for white space at their ends, and indented by as much more or less, if that is one place."""
    lines, wanted = source.split("\n"), edit.search.strip("\n").split("\n")
    bare = [line.strip() for line in wanted]
    starts = [
        i for i in range(len(lines) - len(wanted) + 1) if [line.strip() for line in lines[i : i + len(wanted)]] == bare
    ]
    if len(starts) != 1:
        raise EditFailed(f"{which}: `search` is not in the source" + _nearest(lines, bare))
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
