"""Events as NDJSON for programs: one object per stored event, then exactly one `result`, also when the run dies."""

import json
import time
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Literal, Self, TextIO

from kerneltune.agent.attempt import Attempt, StopReason
from kerneltune.agent.events import Event, is_stored
from kerneltune.agent.record.folder import receipt_path
from kerneltune.agent.view import text as words
from kerneltune.agent.view.output import LineWriter
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.tools.schema.codec import Json, encode

SCHEMA_VERSION = 2  # of every line; docs/commands.md says what may change without another
Subtype = Literal["success", "interrupted", "error"]


class JsonView:
    """Called with each event. `finish`, or leaving the context, writes the result; a second finish does nothing."""

    def __init__(self, stream: TextIO) -> None:
        self.state = ViewState()
        self._lines = LineWriter(stream)
        self._lock = Lock()
        self._finished = False

    @property
    def broken(self) -> bool:
        """Whether the reader is gone."""
        return self._lines.broken

    def __call__(self, event: Event) -> None:
        """Write a stored event; keep the others for the result."""
        with self._lock:
            self.state = fold(self.state, event)
            if is_stored(event) and not self._finished:
                self._write({"type": event.kind, "schema_version": SCHEMA_VERSION, **encode(event)})

    def finish(self, error: BaseException | None = None, *, internal_errors: int = 0) -> None:
        """Write the result. `error` is what ended the run early, when something did."""
        with self._lock:
            if not self._finished:
                self._finished = True
                self._write(result(self.state, error, internal_errors=internal_errors, now=time.time()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(error)

    def _write(self, value: dict[str, Json]) -> None:
        self._lines.write(json.dumps(value, allow_nan=False))


def result(state: ViewState, error: BaseException | None, *, internal_errors: int = 0, now: float) -> dict[str, Json]:
    """Return the last object. `success`: the run ended by its own limits, whether or not something was verified."""
    subtype = _subtype(state, error)
    ended = state.ended
    failed = subtype == "error"
    return {
        "type": "result",
        "schema_version": SCHEMA_VERSION,
        "subtype": subtype,
        "is_error": failed,
        "error": _message(state, error) if failed else None,
        "run_id": state.run_id,
        "task": state.task,
        "attempts": ended.attempts if ended else state.finished,
        "accepted": ended.accepted if ended else state.accepted,
        "by_status": state.by_status,
        "best": _best(state.best, ended.best_path if ended else None) if state.best else None,
        "spending": encode(state.spending) if state.spending.replies else None,
        "judge_s": round(state.judge_s, 3),
        "internal_errors": max(internal_errors, int(failed)),
        "elapsed_s": round(state.elapsed_s(now), 3),
    }


def _subtype(state: ViewState, error: BaseException | None) -> Subtype:
    why = state.ended.why if state.ended else None
    if isinstance(error, KeyboardInterrupt) or (error is None and why is StopReason.INTERRUPTED):
        return "interrupted"
    return "error" if error is not None or why in (None, StopReason.FAILED) else "success"


def _message(state: ViewState, error: BaseException | None) -> str:
    if error is not None:
        return words.clean(f"{type(error).__name__}: {error}")
    return "the run failed" if state.ended else "the run stopped before it ended"


def _best(row: Attempt, path: str | None) -> dict[str, Json]:
    verdict = row.verdict
    return {
        "attempt_id": row.attempt_id,
        "number": row.number,
        "path": path,
        "receipt_path": str(receipt_path(Path(path).parent, row.attempt_id)) if path else None,
        "rationale": row.rationale,
        "verdict": verdict.status.value if verdict else None,
        "detail": verdict.detail if verdict else None,
        "tier": verdict.tier if verdict else None,
        "kernels": encode(row.kernels),
        "timing": encode(verdict.timing) if verdict else None,
        "comparisons": encode(verdict.comparisons) if verdict else [],
        "coverage": verdict.coverage if verdict else None,
        "sol_fraction": verdict.sol_fraction if verdict else None,
    }
