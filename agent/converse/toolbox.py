"""Runs a model's tool calls on the workbench. Whatever a model did wrong comes back as a result that teaches.

Updates of one reply run side by side; benches and reflections follow in the order of the calls. An attempt belongs to
the conversation that made it until it is judged; `finish` judges what is left, so that nothing is lost.
"""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from agent.authors.base import Attempt, Proposal
from agent.converse.edits import Edit, EditFailed, apply
from agent.converse.feedback import Disassembled, bench_words, reflect_words, same_words, update_words
from agent.converse.toolset import (
    ARGUMENTS,
    BadArguments,
    BenchArguments,
    ReflectArguments,
    UpdateArguments,
    read,
)
from agent.llm.types import ToolCall, ToolResult
from agent.workbench import Draft, GivenUp, Workbench
from tools.gpus import gpu_for_arch
from tools.metrics import PlanWork, Roofline, roofline, work_of
from tools.update import Update

_MOST_NAMED = 12  # attempts that an error lists
_MOST_NUMBER = 1_000_000


class Mistake(Exception):
    """A call that cannot be carried out; the message says why, and what would work."""


class Toolbox:
    """The hands of one conversation. `room`: from how many attempts it made to how many more it may make."""

    def __init__(self, bench: Workbench, key: str, room: Callable[[int], int], width: int, arch: str) -> None:
        self._bench, self._key, self._room, self._width = bench, key, room, max(1, width)
        self._arch = arch
        self._lock = threading.Lock()
        self._drafts: dict[int, Draft] = {}  # not judged yet
        self._updates: dict[int, Update] = {}  # of attempts of this conversation
        self.made = 0

    def run(self, calls: Sequence[ToolCall], turn: int) -> tuple[ToolResult, ...]:
        """A result for every call, in order."""
        results = self._updated(calls, turn)
        for i, call in enumerate(calls):
            if i not in results:
                results[i] = self._result(call, turn)
        return tuple(results[i] for i in range(len(calls)))

    def _updated(self, calls: Sequence[ToolCall], turn: int) -> dict[int, ToolResult]:
        """The results of the updates among the calls; Ctrl-C does not wait for them."""
        pool = ThreadPoolExecutor(self._width, thread_name_prefix="update")
        waiting = {i: pool.submit(self._result, call, turn) for i, call in enumerate(calls) if call.name == "update"}
        try:
            return {i: future.result() for i, future in waiting.items()}
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def finish(self) -> None:
        """Judge what was written and never judged."""
        for draft in list(self._drafts.values()):
            with contextlib.suppress(GivenUp):
                self._judge(draft)

    def _result(self, call: ToolCall, turn: int) -> ToolResult:
        try:
            return ToolResult(call.call_id, self._carry_out(call, turn))
        except (Mistake, BadArguments, EditFailed, GivenUp) as mistake:
            return ToolResult(call.call_id, f"{call.name}: {mistake}", is_error=True)

    def _carry_out(self, call: ToolCall, turn: int) -> str:
        if call.name not in ARGUMENTS:
            raise Mistake(f"there is no such tool; the tools are {', '.join(ARGUMENTS)}")
        if call.problem:
            raise Mistake(f"the arguments are not a JSON object: {call.problem}")
        arguments = read(ARGUMENTS[call.name], call.arguments)
        match arguments:
            case UpdateArguments():
                return self._update(arguments, turn)
            case BenchArguments():
                return self._benched(arguments.attempt)
            case ReflectArguments():
                return self._reflect(arguments)
        raise AssertionError(call.name)

    def _update(self, wanted: UpdateArguments, turn: int) -> str:
        source, notes = self._source(wanted)
        parent_id = f"{self._bench.run_id}/{wanted.parent}" if wanted.parent is not None else None
        if (same := self._same(source)) is not None:
            return same_words(*same, notes)
        proposal = Proposal(source, wanted.rationale, parent_id, {"conversation": self._key, "turn": turn})
        draft = self._bench.update(proposal, self._reserve(proposal))
        twin = self._twin(draft)
        with self._lock:
            self._updates[draft.number] = draft.update
            self._drafts[draft.number] = draft
        if draft.update.failure:
            self._judge(draft)
        return update_words(draft, self._bench.task, twin, notes)

    def _reserve(self, proposal: Proposal) -> tuple[str, int]:
        with self._lock:
            if self._room(self.made) <= 0:
                raise Mistake("no attempts are left in this run's budget; bench what is not benched yet, then stop")
            self.made += 1
            return self._bench.propose(proposal)

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
            return self._drafts[number].proposal.source
        return self._attempt(number).proposal.source

    def _attempt(self, number: int) -> Attempt:
        named = 0 < number < _MOST_NUMBER  # a number of 5,000 digits cannot even be said
        found = self._bench.find(f"{self._bench.run_id}/{number}") if named else None
        if found is None:
            known = sorted({*self._drafts, *(a.number for a in self._bench.attempts)})
            latest = ", ".join(map(str, known[-_MOST_NAMED:])) or "none yet"
            raise Mistake(f"there is no attempt {number if named else 'of that number'}; the latest are: {latest}")
        return found

    def _same(self, source: str) -> tuple[int, str] | None:
        """The attempt that has this source already, and what it is."""
        wanted = source.strip()
        for attempt in list(self._bench.attempts):
            if attempt.proposal.source.strip() == wanted:
                return attempt.number, attempt.verdict.status.value
        drafts = list(self._drafts.values())
        return next(((d.number, "not benched yet") for d in drafts if d.proposal.source.strip() == wanted), None)

    def _twin(self, draft: Draft) -> int | None:
        """An earlier attempt of this conversation that does the same work."""
        sha256 = draft.update.sha256
        known = list(self._updates.items())
        return next((n for n, update in known if sha256 is not None and update.sha256 == sha256), None)

    def _benched(self, number: int) -> str:
        draft = self._drafts.get(number)
        attempt = self._judge(draft) if draft else self._attempt(number)
        held = next((p for p in reversed(self._bench.predictions) if p.attempt_id == attempt.attempt_id), None)
        again = "" if draft else "(benched before)\n"
        place = self._place(attempt) if attempt.verdict.accepted else None
        return again + bench_words(attempt, self._bench, held, place)

    def _place(self, attempt: Attempt) -> Roofline:
        """Where an attempt lies on the roofline, and what to look at."""
        update = self._updates.get(attempt.number)
        work = work_of(update, attempt.verdict.variant) if update is not None else PlanWork()
        gpu = gpu_for_arch(self._arch)
        return roofline(self._bench.task, gpu, attempt.verdict, attempt.kernels, work)

    def _judge(self, draft: Draft) -> Attempt:
        try:
            attempt = self._bench.bench(draft)
        except GivenUp:
            self._forget(draft)
            raise
        self._forget(draft)
        return attempt

    def _forget(self, draft: Draft) -> None:
        with self._lock:
            self._drafts.pop(draft.number, None)

    def _reflect(self, wanted: ReflectArguments) -> str:
        if wanted.attempt in self._drafts:
            raise Mistake(f"attempt {wanted.attempt} is not benched yet; bench it first")
        attempt, bench = self._attempt(wanted.attempt), self._bench
        bench.expect(attempt, wanted.hypothesis, wanted.prediction, wanted.predicted_speedup)
        return reflect_words(attempt, bench, self._disassembled(attempt), bench.predictions, self._place(attempt))

    def _disassembled(self, attempt: Attempt) -> Disassembled:
        """What the attempt's kernels are made of, and those of the best if it is another one of this conversation."""
        update, variant = self._updates.get(attempt.number), attempt.verdict.variant
        if update is None or not attempt.kernels:
            return Disassembled(attempt.kernels)
        leader = self._bench.best
        other = self._updates.get(leader.number) if leader and leader.number != attempt.number else None
        reports = update.kernels_of(update.judged_plan(variant)) or attempt.kernels
        best = self._bench.tools.sass(other, leader.verdict.variant).kernels if leader and other else ()
        return Disassembled(reports, self._bench.tools.sass(update, variant), best)
