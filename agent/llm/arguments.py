"""Arguments of tool calls: JSON that models write, and calls that nobody answered."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agent.llm.dialogue import Call, Message, Reply, Result, Results, User
from tools.codec import Json

UNANSWERED = "This call was not run: the session was interrupted. Call again if it still makes sense."
CUT_OFF = "the reply reached its limit of tokens in the middle of this call: write less before it, or a shorter source"


@dataclass(frozen=True)
class Arguments:
    """What `text` was read as. `problem` says why it could not be."""

    values: dict[str, Json]
    problem: str = ""


def read(text: str, *, cut_off: bool = False) -> Arguments:
    """Arguments out of a model's JSON. `cut_off`: the reply ended at its limit of tokens."""
    if not text.strip() and not cut_off:
        return Arguments({})  # several servers write nothing for a call without arguments
    try:
        values = json.loads(text, strict=False)  # small models put raw newlines into strings
    except (ValueError, RecursionError) as error:  # a ValueError, too, for a number of 5,000 digits
        return Arguments({}, CUT_OFF if cut_off else f"the arguments are not JSON: {error}")
    if isinstance(values, str):  # encoded twice
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(values)
    if not isinstance(values, dict):
        return Arguments({}, f"the arguments are a JSON {type(values).__name__}, not an object")
    return Arguments(values)


def answered(messages: Sequence[Message]) -> Iterator[Message]:
    """`messages` such that Results, one for each call in order, follow every reply with calls: all APIs insist.

    Calls without a result, as an interruption leaves them, get one that says so. Raises ValueError for a result
    without a call.
    """
    waiting: tuple[Call, ...] = ()
    for message in messages:
        if waiting or isinstance(message, Results):
            given = message if isinstance(message, Results) else Results(())
            yield _paired(waiting, given, message.text if isinstance(message, User) else given.text)
            waiting = ()
        elif isinstance(message, User):
            yield message
        if isinstance(message, Reply):
            yield message
            waiting = message.calls
    if waiting:
        yield _paired(waiting, Results(()), "")


def _paired(calls: tuple[Call, ...], given: Results, text: str) -> Results:
    known = {result.call_id: result for result in given.results}
    if stray := sorted(set(known) - {call.call_id for call in calls}):
        raise ValueError(f"results for calls that were not made: {stray}")
    results = (known.get(call.call_id, Result(call.call_id, UNANSWERED, is_error=True)) for call in calls)
    return Results(tuple(results), text)


def distinct(calls: Sequence[Call], prefix: str) -> tuple[Call, ...]:
    """`calls` with ids that exist and differ; local servers leave them out or repeat them."""
    seen: set[str] = set()
    named = []
    for number, call in enumerate(calls):
        call_id = call.call_id
        if not call_id or call_id in seen:
            call_id = f"{prefix}_{number}"
        seen.add(call_id)
        named.append(replace(call, call_id=call_id))
    return tuple(named)
