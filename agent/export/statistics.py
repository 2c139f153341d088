"""What an export holds, in numbers: tables of counts that grow with the names they count, never with the attempts.

Everything added is an integer, a maximum or a date, so that parts counted by several processes come to the same,
to the last bit, in whatever order they are merged. Speed-ups are kept as fixed bins of a quarter octave, and summed as
whole millionths of an octave.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tools.codec import Json

# Quarter octaves: the first bin holds everything below 1/16, the last everything from 64 up.
LOWEST_OCTAVE, HIGHEST_OCTAVE, BINS_PER_OCTAVE = -4, 6, 4
SPEEDUP_BINS = (HIGHEST_OCTAVE - LOWEST_OCTAVE) * BINS_PER_OCTAVE + 2
# Where the curve "best so far after N attempts" is read off.
CHECKPOINTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
MOST_TURNS = 64  # longer conversations are counted as this long
MICRO = 1_000_000
ACCEPTED = ("checked", "correct")
THRESHOLDS = (1.0, 1.1, 1.5, 2.0, 4.0)  # strictly above, as fast_p has it
_LOWEST, _HIGHEST = 2.0**LOWEST_OCTAVE, 2.0**HIGHEST_OCTAVE

Key = tuple[str | int, ...]
Table = dict[Key, int]


class RunFacts(NamedTuple):
    """A run, as the card counts it. `gpu` and `why` are None without one; `at` is Unix time; `versions` by package;
    `leaked` names the benchmark problem that the task is (almost) the same as."""

    task: str
    split: str
    provider: str
    model: str
    gpu: str | None = None
    at: float = 0.0
    why: str | None = None
    versions: Mapping[str, str] = {}
    leaked: str | None = None


class AttemptFacts(NamedTuple):
    """An attempt, as the card counts it. `status`: None when it was never judged. `speedup` and its lower bound are
    over the fastest baseline, None when nothing was timed. `outcomes`: of its hypotheses. A named tuple, because a
    frozen dataclass takes longer to make than to count. `duplicate`: a copy of an earlier one, or nearly so."""

    attempt_id: str
    number: int
    turn: int | None = None
    status: str | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    labels: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    characters: int = 0
    duplicate: str | None = None  # "exact", "near"
    leaked: bool = False
    held: bool | None = None


class ConversationFacts(NamedTuple):
    """A conversation: replies of the model, characters of all messages, tokens (None where the server did not say)
    and what it cost (None when unknown)."""

    turns: int
    characters: int
    input_tokens: int | None = None
    output_tokens: int | None = None
    thinking_tokens: int | None = None
    cost_usd: float | None = None


class Best(NamedTuple):
    """The fastest kernel of a task."""

    speedup: float
    attempt_id: str
    gpu: str


class Statistics:
    """Counts of one export, or of a part of it. `tables` by name, each from a tuple of names and numbers to a count:

    verdicts   task, status                       writers    provider, model, gpu, status
    splits     split                              by_turn    turn, 1 if accepted
    labels     label                              outcomes   outcome of a hypothesis
    speedups   bin                                above      index of THRESHOLDS
    curve      checkpoint (sums, millionths of an octave)    reached    first checkpoint that a run did not pass
    marks      whatever else is true of attempts  totals     sums over attempts and conversations
    sizes      floor(log2(characters))            turns      turns of a conversation
    runs       provider, model, gpu               run_tasks  task, split
    endings    why                                versions   name, version
    leaks      task, benchmark problem
    rows       format, split                      row_characters   format, split
    """

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {name: {} for name in TABLES}
        self.best: dict[str, Best] = {}  # by task
        self.first_at: float | None = None
        self.last_at: float | None = None

    def add(
        self, run: RunFacts, attempts: Sequence[AttemptFacts], conversations: Iterable[ConversationFacts] = ()
    ) -> None:
        """Counts one run. Attempts must be in the order of their numbers."""
        self._add_run(run)
        self._add_attempts(run, attempts)
        for conversation in conversations:
            self._add_conversation(conversation)
        if run.gpu is not None and attempts:
            self._add_to_curve(attempts)

    def add_rows(self, format_name: str, split: str, rows: int = 1, characters: int = 0) -> None:
        """Counts rows that were written."""
        key = (format_name, split)
        _count(self.tables["rows"], key, rows)
        _count(self.tables["row_characters"], key, characters)

    def merge(self, other: "Statistics") -> None:
        """Adds what another process has counted."""
        for name, table in other.tables.items():
            mine = self.tables[name]
            for key, n in table.items():
                mine[key] = mine.get(key, 0) + n
        for task, best in other.best.items():
            self._offer(task, best)
        for at in (other.first_at, other.last_at):
            self._date(at)

    def to_json(self) -> Json:
        """Plain JSON values, in an order that does not depend on the order of counting."""
        return {
            "tables": {
                name: [[*key, n] for key, n in sorted(t.items(), key=_order)] for name, t in self.tables.items()
            },
            "best": {task: list(best) for task, best in sorted(self.best.items())},
            "first_at": self.first_at,
            "last_at": self.last_at,
        }

    @classmethod
    def from_json(cls, data: Json) -> "Statistics":
        """What `to_json` wrote. Raises KeyError for tables that this version does not know."""
        made = cls()
        for name, entries in data["tables"].items():
            made.tables[name].update({tuple(key): n for *key, n in entries})
        made.best = {task: Best(*best) for task, best in data["best"].items()}
        made.first_at, made.last_at = data["first_at"], data["last_at"]
        return made

    def table(self, name: str) -> Table:
        """One table."""
        return self.tables[name]

    def total(self, name: str) -> int:
        """The sum of a table."""
        return sum(self.tables[name].values())

    def by(self, name: str, *columns: int) -> Table:
        """A table summed over all but some columns of its key, largest first, then by name."""
        out: Table = {}
        for key, n in self.tables[name].items():
            _count(out, tuple(key[c] for c in columns), n)
        return dict(sorted(out.items(), key=lambda item: (-item[1], _order(item))))

    def mark(self, name: str) -> int:
        """How many attempts have a mark: accepted, timed, untimed, "exact duplicate", "near duplicate", leaked, …"""
        return self.tables["marks"].get((name,), 0)

    def sum_of(self, name: str) -> int:
        """A sum over conversations or attempts: characters, input_tokens, cost_microdollars, …"""
        return self.tables["totals"].get((name,), 0)

    def median_speedup(self) -> tuple[float, float] | None:
        """The bin in which the median of all speed-ups lies, as (from, to). None without any."""
        table, total = self.tables["speedups"], self.total("speedups")
        seen = 0
        for index in range(SPEEDUP_BINS):
            seen += table.get((index,), 0)
            if total and 2 * seen >= total:
                return edges(index)
        return None

    def curve(self) -> list[tuple[int, float]]:
        """(N, speed-up) at each checkpoint that some run has reached: the geometric mean, over all runs on a GPU that
        have attempts, of the best speed-up within N attempts, where PyTorch itself (1.0) is kept until beaten."""
        reached, table = self.tables["reached"], self.tables["curve"]
        runs, last = self.total("reached"), max((int(n) for (n,) in reached), default=0)
        return [(n, 2.0 ** (table[(n,)] / MICRO / runs)) for n in CHECKPOINTS if n <= last]

    def _add_run(self, run: RunFacts) -> None:
        tables, gpu = self.tables, run.gpu or ""
        _count(tables["runs"], (run.provider, run.model, gpu))
        _count(tables["run_tasks"], (run.task, run.split))
        _count(tables["endings"], (run.why or "not ended",))
        for name, version in run.versions.items():
            _count(tables["versions"], (name, version))
        if run.leaked is not None:
            _count(tables["leaks"], (run.task, run.leaked))
        self._date(run.at or None)

    def _add_attempts(self, run: RunFacts, attempts: Sequence[AttemptFacts]) -> None:
        """The hot loop: a million times in an export. Counters are locals, keys are tuples that most often exist."""
        statuses: dict[str, int] = {}
        by_turn, labels, outcomes, sizes, marks = (self.tables[name] for name in _HOT)
        characters = 0
        for attempt in attempts:
            _, _, turn, status, speedup, low, its_labels, its_outcomes, size, duplicate, leaked, held = attempt
            name = status or "unjudged"
            statuses[name] = statuses.get(name, 0) + 1
            if turn is not None:
                key: Key = (min(turn, MOST_TURNS), int(name in ACCEPTED))
                by_turn[key] = by_turn.get(key, 0) + 1
            for label in its_labels:
                _count(labels, (label,))
            for outcome in its_outcomes:
                _count(outcomes, (outcome,))
            key = (size.bit_length() - 1,)
            sizes[key] = sizes.get(key, 0) + 1
            characters += size
            if speedup is not None:
                self._add_speedup(run, attempt, speedup, low)
            if duplicate is not None:
                _count(marks, (f"{duplicate} duplicate",))
            if leaked:
                _count(marks, ("leaked",))
            if held is not None:
                _count(marks, ("held" if held else "did not hold",))
        self._add_statuses(run, statuses)
        _count(self.tables["totals"], ("source_characters",), characters)

    def _add_statuses(self, run: RunFacts, statuses: Mapping[str, int]) -> None:
        for status, n in statuses.items():
            _count(self.tables["verdicts"], (run.task, status), n)
            _count(self.tables["writers"], (run.provider, run.model, run.gpu or "", status), n)
            _count(self.tables["splits"], (run.split,), n)
            if status in ACCEPTED:
                _count(self.tables["marks"], ("accepted",), n)
            if status == "checked":
                _count(self.tables["marks"], ("untimed",), n)

    def _add_speedup(self, run: RunFacts, attempt: AttemptFacts, speedup: float, low: float | None) -> None:
        marks, above = self.tables["marks"], self.tables["above"]
        if not 0.0 < speedup < math.inf:  # NaN too
            return _count(marks, ("speed-up is no positive number",))
        _count(self.tables["speedups"], (bin_of(speedup),))
        _count(marks, ("timed",))
        for index, threshold in enumerate(THRESHOLDS):
            if speedup <= threshold:
                break
            _count(above, (index,))
        if low is not None and low > 1.0:
            _count(marks, ("proved faster",))
        return self._offer(run.task, Best(speedup, attempt.attempt_id, run.gpu or ""))

    def _add_conversation(self, facts: ConversationFacts) -> None:
        _count(self.tables["turns"], (min(facts.turns, MOST_TURNS),))
        totals = self.tables["totals"]
        _count(totals, ("characters",), facts.characters)
        for name in ("input_tokens", "output_tokens", "thinking_tokens"):
            tokens = getattr(facts, name)
            _count(totals, (name if tokens is not None else f"{name} unknown",), 1 if tokens is None else tokens)
        cost = facts.cost_usd if facts.cost_usd is not None and math.isfinite(facts.cost_usd) else None
        _count(totals, ("cost unknown",), 1) if cost is None else _count(totals, ("cost_microdollars",), _micro(cost))

    def _add_to_curve(self, attempts: Sequence[AttemptFacts]) -> None:
        """A run that ended early keeps its best, so that every point is over the same runs."""
        table, best, at = self.tables["curve"], 0, 0
        _count(self.tables["reached"], (_checkpoint(attempts[-1].number),))
        for n in CHECKPOINTS:
            while at < len(attempts) and attempts[at].number <= n:
                speedup = attempts[at].speedup
                if speedup is not None and 1.0 < speedup < math.inf:
                    best = max(best, _micro(math.log2(speedup)))
                at += 1
            _count(table, (n,), best)

    def _offer(self, task: str, best: Best) -> None:
        if task not in self.best or best > self.best[task]:
            self.best[task] = best

    def _date(self, at: float | None) -> None:
        if at is not None:
            self.first_at = at if self.first_at is None else min(self.first_at, at)
            self.last_at = at if self.last_at is None else max(self.last_at, at)


TABLES = (
    *(
        "verdicts",
        "writers",
        "splits",
        "by_turn",
        "labels",
        "outcomes",
        "speedups",
        "above",
        "curve",
        "reached",
        "marks",
    ),
    *("totals", "sizes", "turns", "runs", "run_tasks", "endings", "versions", "leaks", "rows", "row_characters"),
)
_HOT = ("by_turn", "labels", "outcomes", "sizes", "marks")


def bin_of(speedup: float) -> int:
    """The bin of a positive finite speed-up."""
    if speedup < _LOWEST:
        return 0
    if speedup >= _HIGHEST:
        return SPEEDUP_BINS - 1
    return 1 + math.floor((math.log2(speedup) - LOWEST_OCTAVE) * BINS_PER_OCTAVE)


def edges(index: int) -> tuple[float, float]:
    """Where a bin begins and ends. The first begins at 0, the last ends at infinity."""
    low = 0.0 if index == 0 else 2.0 ** (LOWEST_OCTAVE + (index - 1) / BINS_PER_OCTAVE)
    high = math.inf if index == SPEEDUP_BINS - 1 else 2.0 ** (LOWEST_OCTAVE + index / BINS_PER_OCTAVE)
    return low, high


def _checkpoint(number: int) -> int:
    return next((n for n in CHECKPOINTS if n >= number), CHECKPOINTS[-1])


def _micro(value: float) -> int:
    return round(value * MICRO)


def _count(table: Table, key: Key, n: int = 1) -> None:
    table[key] = table.get(key, 0) + n


def _order(item: tuple[Key, int]) -> list[tuple[bool, str | int]]:
    return [(isinstance(part, str), part) for part in item[0]]
