"""Columns as the driver returns them, turned into what a trajectory is made of: as the types of `agent.record.tables`
do it, only without SQLAlchemy. A row is as `agent.record.harvest` selects it; damage raises ValueError or zlib.error.
"""

import json
import zlib
from dataclasses import fields, make_dataclass
from typing import Any, cast

from agent.record.events import RunStarted
from agent.record.trajectory import AttemptRecord, Expectation, Message, replied, said
from tools.codec import Json, decode
from tools.verdict import CaseResult, Comparison, KernelReport, Limitation, Status

Row = tuple[Any, ...]

STATUSES = {status.value: status for status in Status}
UNJUDGED = (None, None, "", None, (), None, None, "", None)  # from `status` to `tier`


def words(value: Any) -> Any:
    """A `Words` column: lone surrogates made it a BLOB."""
    return value.decode("utf-8", "surrogatepass") if type(value) is bytes else value


def real(value: Any) -> Any:
    """A `Real` column: a NaN is the word 'nan'."""
    return value if type(value) is float or value is None else float(value)


def text_of(data: bytes | None) -> str:
    """A text. Raises ValueError when it is not there, zlib.error when it is damaged."""
    if data is None:
        raise ValueError("a text is missing")
    return zlib.decompress(data).decode("utf-8", "surrogatepass")


def json_of(text: str | None) -> Json:
    """A `Document` column that may be NULL."""
    return None if text is None else json.loads(text)


def numbers(text: str | None) -> tuple[float, ...]:
    """A JSON list of numbers."""
    return () if text is None or text == "[]" else tuple(map(float, json.loads(text)))


# The constructor of a frozen dataclass sets its fields one by one through `object.__setattr__`, a tenth of all the time
# here. An object of a plain class with the same slots is filled at once, and then becomes a record.
_Draft = make_dataclass("_Draft", [field.name for field in fields(AttemptRecord)], slots=True)


def record(*values: Any) -> AttemptRecord:
    """An AttemptRecord, its fields in their order."""
    made: Any = _Draft(*values)
    made.__class__ = AttemptRecord
    return cast(AttemptRecord, made)


def started(row: Row) -> RunStarted:
    """How a run began."""
    run_id, task, sha256, source, author, why, arch, gpu, machine, limits, seed, versions, at = row
    return RunStarted(
        run_id,
        words(task),
        words(sha256),
        text_of(source),
        words(author),
        words(why),
        words(arch),
        words(gpu),
        json_of(machine),
        json_of(limits),
        seed,
        json_of(versions),
        at=real(at),
    )


def kernel(row: Row) -> KernelReport:
    """Of `kernels`."""
    _, name, registers, stores, loads, stack, shared, warps, stages, occupancy, cubin, compile_s = row
    spills, shape = (stores, loads, stack), (shared, warps, stages)
    return KernelReport(words(name), registers, *spills, *shape, real(occupancy), words(cubin), real(compile_s))


def comparison(row: Row) -> Comparison:
    """Of `comparisons`."""
    return Comparison(words(row[1]), *map(real, row[2:]))


def case(row: Row) -> CaseResult:
    """Of `cases`."""
    _, case, inputs, ok, error_ratio, max_abs_error, detail, limitations = row
    lacked = tuple(decode(Limitation, one) for one in json.loads(limitations)) if limitations else ()
    numbers = real(error_ratio), real(max_abs_error)
    return CaseResult(words(case), words(inputs), bool(ok), *numbers, words(detail), lacked)


def expectation(row: Row) -> Expectation:
    """Of `reflections`."""
    _, hypothesis, prediction, outcome, evidence = row
    return Expectation(words(hypothesis), words(prediction), outcome, json.loads(evidence))


def said_message(row: Row) -> Message:
    """Of `messages`."""
    *_, role, text, at, raw = row
    return said(role, text_of(text), real(at), None if raw is None else json.loads(text_of(raw)))


def replied_message(row: Row) -> Message:
    """Of `replies`."""
    _, _, _, text, at, thinking, calls, turn, stop, model, seconds, usage, cost_usd = row
    return replied(
        text_of(text),
        real(at),
        thinking=text_of(thinking),
        calls=json.loads(text_of(calls)),
        turn=turn,
        stop=words(stop),
        model=words(model),
        seconds=real(seconds),
        usage=json_of(usage),
        cost_usd=real(cost_usd),
    )
