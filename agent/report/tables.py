"""The tables of a run's report as plain values: attempts, baselines, failures, costs, hypotheses. Pure."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.record.trajectory import AttemptRecord, Expectation, Message, Trajectory
from agent.report import looks
from agent.report.claim import interval, tone_of
from agent.report.material import Material, baseline_name, finite, hardest, ranked, timing_of
from agent.report.shown import Shown
from agent.view import text as words
from agent.view.state import Spending
from tools.verdict import Status

UNKNOWN = "unknown"
_RIGHT = (Status.CORRECT, Status.CHECKED, Status.UNCHECKED)
_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_MOST_REASONS = 40


class AttemptLine(NamedTuple):
    """A row of the table of attempts, ready to be shown; "" where there is nothing to say."""

    number: int
    parent: str
    tried: str
    status: Status | None
    tier: str
    detail: str
    time: str
    speedup: str
    registers: str
    spills: str
    coverage: str
    best: bool


def attempt_lines(material: Material, shown: Shown) -> list[AttemptLine]:
    """Every attempt, by number."""
    best = material.best
    run = material.trajectory.run.run_id
    return [_attempt_line(a, shown, run, best=a is best) for a in material.trajectory.attempts]


def _attempt_line(a: AttemptRecord, shown: Shown, run_id: str, *, best: bool) -> AttemptLine:
    against = hardest(a)
    spilled = words.spill_bytes(a.kernels)
    return AttemptLine(
        a.number,
        _parent(a, run_id),
        shown.line(a.rationale, 160),
        a.status,
        a.tier or "",
        "" if a.status in (None, Status.CORRECT, Status.CHECKED) else shown.ends(a.detail, 180),
        words.timing(timing) if (timing := timing_of(a)) else "",
        interval(against) if against else "",
        words.registers(a.kernels),
        f"{spilled} B" if a.kernels else "",
        f"{a.coverage:.0%}" if finite(a.coverage) is not None else "",
        best,
    )


def _parent(a: AttemptRecord, run_id: str) -> str:
    if a.parent_id is None:
        return ""
    run, _, number = a.parent_id.rpartition("/")
    return f"#{number}" if run == run_id else a.parent_id


class BaselineLine(NamedTuple):
    """How the best attempt compares with one baseline."""

    name: str
    time: str
    speedup: str
    words: str


_SHOWS = {"even": "no difference measured", "faster": "faster", "slower": "slower"}


def baseline_lines(material: Material) -> list[BaselineLine]:
    """Of the best attempt, the hardest first."""
    return [
        BaselineLine(
            baseline_name(c.baseline),
            words.microseconds(c.baseline_us),
            interval(c),
            "not borne out" if material.doubt else _SHOWS[tone_of(c, material.resolution)],
        )
        for c in (ranked(material.best) if material.best else ())
    ]


@dataclass(frozen=True)
class Reason:
    """Why attempts failed, in the words of the first of them, and which they are."""

    words: str
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Cause:
    """A verdict that is a failure, and the reasons for it."""

    status: Status
    count: int
    share: float  # of the commonest cause
    reasons: tuple[Reason, ...]
    left_out: int


def causes(run: Trajectory, shown: Shown) -> list[Cause]:
    """Failures by verdict, then by reason; reasons that differ in numbers only are one."""
    by_status: dict[Status, dict[str, list[AttemptRecord]]] = defaultdict(lambda: defaultdict(list))
    for attempt in run.attempts:
        if attempt.status is not None and attempt.status not in _RIGHT:
            by_status[attempt.status][_alike(attempt.detail)].append(attempt)
    counts = Counter({status: sum(map(len, found.values())) for status, found in by_status.items()})
    return [
        Cause(status, count, count / max(counts.values()), *_reasons(by_status[status], shown))
        for status, count in counts.most_common()
    ]


def _alike(detail: str) -> str:
    """What two reasons have in common when they differ in numbers only."""
    return _NUMBERS.sub("0", detail[:120]) + _NUMBERS.sub("0", detail[-120:])


def _reasons(found: dict[str, list[AttemptRecord]], shown: Shown) -> tuple[tuple[Reason, ...], int]:
    ordered = sorted(found.values(), key=lambda its: (-len(its), its[0].number))
    kept = tuple(
        Reason(shown.ends(its[0].detail, 240), tuple(a.number for a in its)) for its in ordered[:_MOST_REASONS]
    )
    return kept, sum(map(len, ordered[_MOST_REASONS:]))


class CostLine(NamedTuple):
    """What one model was asked and what that cost."""

    model: str
    replies: int
    input: str
    cached: str
    output: str
    cost: str


def cost_lines(run: Trajectory) -> list[CostLine]:
    """A row for each model, and one for all when there are several; empty when no model was asked."""
    spent: dict[str, Spending] = {}
    for conversation in run.conversations:
        for message in conversation.messages:
            if message.role == "assistant":
                spent[message.model] = _with(spent.get(message.model, Spending()), message)
    lines = [_cost_line(model or UNKNOWN, its) for model, its in spent.items()]
    return lines + ([_cost_line("together", _sum(list(spent.values())))] if len(lines) > 1 else [])


def _with(spent: Spending, message: Message) -> Spending:
    cost = finite(message.cost_usd)
    input_tokens, cached, output = (_tokens(message, kind) for kind in ("input", "cached", "output"))
    one = Spending(1, input_tokens, cached, output, cost or 0.0, int(cost is None))
    return _sum([spent, one])


def _tokens(message: Message, kind: str) -> int:
    count = (message.usage or {}).get(f"{kind}_tokens")
    return count if isinstance(count, int) else 0


def _sum(all_of: Sequence[Spending]) -> Spending:
    return Spending(
        replies=sum(s.replies for s in all_of),
        input_tokens=sum(s.input_tokens for s in all_of),
        cached_tokens=sum(s.cached_tokens for s in all_of),
        output_tokens=sum(s.output_tokens for s in all_of),
        cost_usd=sum(s.cost_usd for s in all_of),
        unpriced=sum(s.unpriced for s in all_of),
    )


def _cost_line(model: str, spent: Spending) -> CostLine:
    counted = bool(spent.input_tokens or spent.output_tokens)
    share = f"{spent.cached_tokens / spent.input_tokens:.0%}" if spent.input_tokens else UNKNOWN
    return CostLine(
        model,
        spent.replies,
        words.tokens(spent.input_tokens) if counted else "not counted",
        share,
        words.tokens(spent.output_tokens) if counted else "not counted",
        dollars(spent),
    )


def dollars(spent: Spending) -> str:
    """The cost; what is unknown is not 0."""
    if spent.usd is None:
        return UNKNOWN
    more = f", and {spent.unpriced} replies of unknown price" if spent.unpriced else ""
    return words.dollars(spent.usd) + more


def total_cost(run: Trajectory) -> str | None:
    """Of all replies; None when no model was asked."""
    lines = cost_lines(run)
    return lines[-1].cost if lines else None


class HypothesisLine(NamedTuple):
    """What was expected of an attempt, and what came."""

    number: int
    outcome: str
    hypothesis: str
    prediction: str
    measured: str


def hypothesis_lines(run: Trajectory, shown: Shown) -> list[HypothesisLine]:
    """Every hypothesis with the last that is known of it: one that was decided is not listed as open too."""
    decided = {(e.hypothesis, e.prediction) for a in run.attempts for e in a.expectations if e.outcome != "open"}
    return [
        HypothesisLine(a.number, e.outcome, shown.line(e.hypothesis, 400), shown.line(e.prediction, 400), _measured(e))
        for a in run.attempts
        for e in a.expectations
        if e.outcome != "open" or (e.hypothesis, e.prediction) not in decided
    ]


def _measured(said: Expectation) -> str:
    seen = said.evidence
    told = list(_told(seen.get("predicted_speedup"), "predicted")) + list(
        _told(seen.get("measured_speedup"), "measured")
    )
    return ", ".join(told)


def _told(value: object, word: str) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6:
        yield f"{word} {value:.3g}x"


def counts(run: Trajectory) -> list[tuple[str, str, str, int]]:
    """(class, symbol, words, how many) of every verdict that occurred."""
    tally = Counter(a.status for a in run.attempts)
    return [(looks.css_class(s), looks.symbol(s), looks.name(s), tally[s]) for s in (*Status, None) if tally[s]]
