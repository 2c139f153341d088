"""Where a row comes from and what is known of it: the columns that every row of every format has besides its own.

A row is about one attempt (of a conversation: the best one it made), or about none, when nothing was attempted; then
the columns of attempts are null. Unknown is null, never 0.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from agent.export.base import Column, Row
from agent.export.duplicates import Duplicate
from agent.export.labels import labels
from agent.export.lengths import n_lines
from agent.export.privacy import Scrubber
from agent.export.rewards import Scorer
from agent.export.terms import PROVIDERS, provider_of, source_terms
from agent.record.events import RunStarted
from agent.record.trajectory import AttemptRecord

SCHEMA_VERSION = 1
_RUN = (
    Column("schema_version", "int", "of this table's columns; it grows when one changes its meaning"),
    Column("run_id", "text", "the run"),
    Column("task", "text", "the task's name"),
    Column("task_sha256", "text", "of the task's file"),
    Column("family", "text", "tasks that are the same up to shapes and names; never in two splits"),
    Column("split", "text", "train, validation or test"),
    Column("leaked", "text", "the benchmark problem that the task is, or nearly is; null if none, or not looked for"),
    Column("author", "text", "who wrote: offline, or provider:model"),
    Column("provider", "text", f"whose words: {', '.join(PROVIDERS)}"),
    Column("model", "text", "the model; null without one"),
    Column("source_terms", "text", "which terms bind those who use the words; see the card"),
    Column("arch", "text", "what was compiled for"),
    Column("gpu", "text", "the GPU that the run began on; null: it began without one"),
    Column("torch", "text", "version"),
    Column("triton", "text", "version"),
    Column("kerneltune", "text", "version"),
)
_ATTEMPT = (
    Column("attempt_id", "text", "the attempt that the row is about"),
    Column("created", "text", "when it was proposed, UTC"),
    Column("status", "text", "the verdict that counts; null: never judged"),
    Column("tier", "text", "how thoroughly it was timed: screened, judged, confirmed"),
    Column("compilable", "bool", "tracer and compiler accepted it; null: it never came to that"),
    Column("correct", "bool", "right as far as known; null: nothing there could run it"),
    Column("timed", "bool", "timed on a GPU, with every timed output checked"),
    Column("faster", "bool", "its interval lies above 1 against the fastest baseline; null: not timed"),
    Column("impossible", "bool", "faster than light, or clocks disagreed: a cheat or a broken measurement"),
    Column("why", "text", "why it is not right: status/tool/reason, of a closed set of words; empty if it is"),
    Column("verified", "bool", "whether a later verification bore the verdict out; null: nobody verified it"),
    Column("speedup", "float", "over the fastest baseline; null: not timed"),
    Column("speedup_low", "float", "lower end of its 95 % interval"),
    Column("median_us", "float", "microseconds on the device, cold L2; null: not timed"),
    Column("sol_fraction", "float", "speed-of-light time / measured time; null: not timed"),
    Column("coverage", "float", "share of GPU time in its own kernels; null: not timed"),
    Column("registers", "int", "the most per thread of its kernels"),
    Column("spill_bytes", "int", "stored and loaded per thread, all kernels"),
    Column("n_lines", "int", "of the source"),
    Column("n_chars", "int", "of the source"),
    Column("thinking_chars", "int", "of the reasoning that led to it; null: no model, or conversations were not read"),
    Column("exact_id", "text", "equal for sources that differ in layout, comments and docstrings at most"),
    Column("near_id", "text", "equal for sources of one cluster of near duplicates"),
    Column("exact_first", "bool", "the first of its `exact_id`"),
    Column("near_first", "bool", "the first of its `near_id`"),
)


@dataclass(frozen=True)
class Place:
    """What is known of a task as a member of this data set. `leaked`: a benchmark problem's name."""

    family: str
    split: str
    leaked: str | None = None


def columns(rewards: Sequence[Scorer]) -> tuple[Column, ...]:
    """What every row has besides its own columns."""
    paid = (Column(f"reward_{r.name}", "float", f"{r.reward.about}; null: not known") for r in rewards)
    return (*_RUN, *_ATTEMPT, *paid)


class Provenance:
    """Makes the values of `columns`. `place_of`: by the hash of a task's file; `duplicate_of`: by attempt, None where
    nobody looked for duplicates. Names of tasks, models and machines are other people's words, and cleaned."""

    def __init__(
        self,
        rewards: Sequence[Scorer],
        place_of: Callable[[str], Place],
        duplicate_of: Callable[[str], Duplicate] | None,
        scrubber: Scrubber,
    ) -> None:
        self.clean = scrubber.text
        self._rewards = [(f"reward_{r.name}", r) for r in rewards]
        self._place_of, self._duplicate_of = place_of, duplicate_of

    def of_run(self, run: RunStarted) -> Row:
        """The part that all rows of a run share."""
        place = self._place_of(run.task_sha256)
        provider, _, model = run.author.partition(":")
        provider = provider_of(run.author)
        versions = run.versions
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": run.run_id,
            "task": self.clean(run.task),
            "task_sha256": run.task_sha256,
            "family": self.clean(place.family),
            "split": place.split,
            "leaked": place.leaked and self.clean(place.leaked),
            "author": self.clean(run.author),
            "provider": provider,
            "model": self.clean(model) or None,
            "source_terms": source_terms(provider).tag,
            "arch": run.arch,
            "gpu": run.gpu and self.clean(run.gpu),
            "torch": versions.get("torch"),
            "triton": versions.get("triton"),
            "kerneltune": versions.get("kerneltune"),
        }

    def of_attempt(self, attempt: AttemptRecord, thought: Mapping[tuple[str, int], int]) -> Row:
        """The part that is about one attempt. `thought`: characters of reasoning by conversation and turn."""
        made: Row = {
            "attempt_id": attempt.attempt_id,
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
            "n_lines": n_lines(attempt.source),
            "n_chars": len(attempt.source),
            "thinking_chars": thought.get((attempt.conversation, attempt.turn)) if attempt.turn is not None else None,
        }
        _add(made, labels(attempt), ("compilable", "correct", "timed", "faster", "impossible", "why", "verified"))
        if self._duplicate_of is not None:
            found = self._duplicate_of(attempt.attempt_id)
            made["exact_id"], made["near_id"] = found.exact, found.near
            made["exact_first"], made["near_first"] = found.exact_first, found.near_first
        for name, reward in self._rewards:
            made[name] = reward(attempt)
        return made


def _moment(at: float) -> str | None:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # no moment of any calendar
        return None


def _spills(attempt: AttemptRecord) -> int | None:
    return sum(k.spill_store_bytes + k.spill_load_bytes for k in attempt.kernels) if attempt.kernels else None


def _add(row: Row, found: Any, names: Sequence[str]) -> None:
    for name in names:
        row[name] = getattr(found, name)
