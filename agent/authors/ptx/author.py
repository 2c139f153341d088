"""The author that needs no key and writes PTX: it begins with PTX candidates and searches rewrites of their kernels.

What is proposed has other machine code than all before it: rewrites that the compiler makes nothing of cost no attempt.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.attempt import Attempt, Proposal
from agent.authors.ptx.ahead import Ahead, Assemble
from agent.authors.ptx.base import Base, Choices, base_of
from agent.authors.ptx.search import Move, Tried, merit, moves
from agent.authors.ptx.words import describe
from tools.codec import Json
from tools.compiling import MachineCode
from tools.plan.schema import Plan
from tools.ptx.language import language_of
from tools.spec import TaskSpec

Starts = Callable[[], Mapping[str, str]]  # files of PTX candidates to begin with, and the idea of each; "" for none
Plans = Callable[[str], Sequence[Plan]]  # of a file, the plans of its cases that may be told of

MOST_LOOKED_AT = 24  # rewrites without effect that are passed over for one proposal
AHEAD = 4  # rewrites that are made side by side: without a GPU cores check, too


@dataclass
class _Start:
    """A file that the search begins with, and the machine code of its kernels."""

    base: Base
    code: Sequence[MachineCode] = ()
    idea: str = ""
    dead_ends: set[frozenset[tuple[str, str]]] = field(default_factory=set)  # without effect, or not assembled


class PtxAuthor:
    """Proposes the starts as they are, then rewrites of the best of them. What comes next depends on the seed and the
    history only, so that a resumed run goes on where it was.

    It begins with the PTX candidates of the history that are nobody's rewrites, and with `starts`, which is asked once,
    and not in a resumed run. While candidates are judged, threads make what would be proposed next; `close` ends that.
    """

    name = "offline"

    def __init__(self, starts: Starts, plans: Plans, assemble: Assemble, seed: int = 0, ahead: int = AHEAD) -> None:
        self._starts, self._plans, self._assemble, self._seed = starts, plans, assemble, seed
        self._ahead = Ahead(assemble, ahead)
        self._known: dict[str, _Start] | None = None
        self._given: set[str] = set()  # machine code and sources that were proposed
        self.problems: list[str] = []

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        """Up to `width` candidates whose machine code was not proposed before; [] when there is nothing left."""
        known = self._starts_of(history)
        self._given |= {key for attempt in history for key in _keys(attempt)}
        found: list[Proposal] = []
        for start in known.values():
            if len(found) < width and start.base.source not in self._given:
                found.append(self._proposal(start, Move({}, "start"), start.base, start.code))
        while len(found) < width and not any(self._unjudged(s, history) for s in known.values()):
            proposal = self._next(known, history)
            if proposal is None:
                break
            found.append(proposal)
        if found and len(found) == width:
            self._think_ahead(known, history)
        return found

    def close(self) -> None:
        """Make nothing more ahead."""
        self._ahead.close()

    def _unjudged(self, start: _Start, history: Sequence[Attempt]) -> bool:
        """Whether a start has no verdict yet, so that it is not known which of them is the best."""
        return not any(a.proposal.source == start.base.source for a in history)

    def _starts_of(self, history: Sequence[Attempt]) -> dict[str, _Start]:
        if self._known is None:
            ideas = {a.proposal.source: "" for a in history if _is_start(a)}
            if not any("start" in a.proposal.params for a in history):  # else this goes on with an earlier process
                ideas |= self._starts()
            bases = [(base_of(source, self._plans(source)), idea) for source, idea in ideas.items()]
            if bases and not any(base.kernels for base, _ in bases):
                self.problems.append("no start holds a PTX kernel word for word, so there is nothing to rewrite")
            self._known = {b.name: _Start(b, self._assemble(b.heard) if b.kernels else (), idea) for b, idea in bases}
        return self._known

    def _next(self, known: dict[str, _Start], history: Sequence[Attempt]) -> Proposal | None:
        for start in _accepted(known, history):
            proposal = self._rewritten(start, history)
            if proposal is not None:
                return proposal
        return None

    def _rewritten(self, start: _Start, history: Sequence[Attempt]) -> Proposal | None:
        wanted, looked_at = self._moves(start, history), 0
        for number, move in enumerate(wanted):
            if looked_at == MOST_LOOKED_AT:
                break
            start.dead_ends.add(frozenset(move.choices.items()))
            self._ahead.begin(start.base, (m.choices for m in wanted[number:]))
            made = self._ahead.made(start.base, move.choices)
            if made.base is None or made.base.source in self._given:
                continue
            looked_at += 1
            if made.code and not _spills_more(made.code, start.code) and _digest(made.code) not in self._given:
                return self._proposal(start, move, made.base, made.code)
        return None

    def _think_ahead(self, known: dict[str, _Start], history: Sequence[Attempt]) -> None:
        """Begin what would be looked at next if no verdict changed it."""
        for start in _accepted(known, history)[:1]:
            self._ahead.begin(start.base, (move.choices for move in self._moves(start, history)))

    def _moves(self, start: _Start, history: Sequence[Attempt]) -> list[Move]:
        """What to look at for one proposal, without what was looked at."""
        tried = [_tried(a, start) for a in history if _start_name(a, start.base) == start.base.name]
        found: dict[frozenset[tuple[str, str]], Move] = {}
        for move in moves(start.base.options, tried, seed=self._seed, turn=len(self._given)):
            key = frozenset(move.choices.items())
            if key and key not in start.dead_ends:
                found.setdefault(key, move)
        return list(found.values())

    def _proposal(self, start: _Start, move: Move, base: Base, code: Sequence[MachineCode]) -> Proposal:
        self._given |= {base.source, _digest(code)}
        words = describe(move, code, start.code, start.idea)
        params: dict[str, Json] = {"start": start.base.name, "rewrites": dict(move.choices), "machine": _digest(code)}
        params |= {"issue_cycles": _cycles(code)} if code else {}
        parent_id = move.parent.attempt_id if move.parent else None
        return Proposal(base.source, words.rationale, parent_id, params, words.hypothesis, words.prediction)


def _digest(code: Sequence[MachineCode]) -> str:
    return "/".join(c.sha256[:16] for c in code)


def _cycles(code: Sequence[MachineCode]) -> int:
    return sum(c.issue_cycles for c in code)


def _spills_more(code: Sequence[MachineCode], before: Sequence[MachineCode]) -> bool:
    """Each rewrite whose kernel began to spill took 1.3 to 2 times as long on a GPU; they are not worth an attempt."""
    return sum(c.spill_bytes for c in code) > sum(c.spill_bytes for c in before)


def _choices(attempt: Attempt) -> Choices:
    told = attempt.proposal.params.get("rewrites")
    return {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}


def _is_start(attempt: Attempt) -> bool:
    return not _choices(attempt) and language_of(attempt.proposal.source) == "ptx"


def _start_name(attempt: Attempt, base: Base) -> Json:
    """The start that an attempt is derived from; one that others proposed is its own."""
    return base.name if attempt.proposal.source == base.source else attempt.proposal.params.get("start")


def _keys(attempt: Attempt) -> set[str]:
    machine = attempt.proposal.params.get("machine")
    return {attempt.proposal.source, *([machine] if isinstance(machine, str) else [])}


def _tried(attempt: Attempt, start: _Start) -> Tried:
    told = attempt.proposal.params.get("issue_cycles")  # others' attempts, such as what the run began with, tell none
    return Tried(_choices(attempt), attempt, merit(attempt, told if isinstance(told, int) else _cycles(start.code)))


def _accepted(known: Mapping[str, _Start], history: Sequence[Attempt]) -> list[_Start]:
    """The starts that were accepted, the best first: rewrites of one that was refused would be, too."""
    found = []
    for start in known.values():
        mine = next((a for a in history if a.proposal.source == start.base.source), None)
        if mine and (standing := merit(mine, _cycles(start.code))):
            found.append((standing, start.base.name, start))
    return [start for *_, start in sorted(found, key=lambda each: each[:2])]
