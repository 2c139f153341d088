"""What a record leaves out and yet implies: when an attempt was traced, compiled and judged, when a reply was written.

The store keeps no progress, but how long each step took and when it was over. A replay shows the steps at those times.
Of a reply only the whole time is known: its pieces come evenly. Nothing here is ever stored.
"""

import math
from collections.abc import Iterator, Sequence

from agent.record.events import Event, Judged, Progress, Replied, RunStarted, Said, Updated, Verified

_SHORTEST_S = 0.02  # a shorter step is not worth a frame
_PIECES = 12  # of a reply


def with_steps(events: Sequence[Event], *, on_gpu: bool = False) -> list[Event]:
    """The events in their order, and among them the steps that they imply. `on_gpu`: the run, of which these are not
    the first events, is timed."""
    timed: list[tuple[float, Event]] = []
    latest = 0.0
    for event in events:
        on_gpu = on_gpu or (isinstance(event, RunStarted) and event.gpu is not None)
        earliest, latest = latest, max(latest, event.at if math.isfinite(event.at) else 0.0)
        timed += [(at, step) for step in _steps(event, on_gpu) if (at := max(step.at, _first(earliest, step))) < latest]
        timed.append((latest, event))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]  # stable: what happened at once stays so


def _first(earliest: float, step: Event) -> float:
    """Steps of attempts go beside what others did meanwhile; a reply's pieces come after what happened before."""
    return 0.0 if getattr(step, "attempt_id", None) else earliest


def _steps(event: Event, on_gpu: bool) -> Iterator[Event]:
    match event:
        case Updated():
            yield from _doing(event, "compiling", event.compile_s)
            yield from _doing(event, "tracing", event.trace_s + event.compile_s)
        case Judged():
            yield from _doing(event, "timing" if on_gpu else "checking", event.bench_s)
        case Verified(purpose="confirm") if event.bench_s > _SHORTEST_S:
            number = f"#{event.attempt_id.rpartition('/')[2]}"
            yield Progress(event.run_id, "confirming", number, at=event.at - event.bench_s)
        case Replied() if event.seconds > _SHORTEST_S:
            yield Progress(event.run_id, "asking", event.conversation, at=event.at - event.seconds)
            yield from _pieces(event)


def _doing(event: Updated | Judged, stage: str, before_s: float) -> Iterator[Event]:
    if before_s > _SHORTEST_S:
        yield Progress(event.run_id, stage, attempt_id=event.attempt_id, at=event.at - before_s)


def _pieces(reply: Replied) -> Iterator[Event]:
    text = "\n\n".join(filter(None, (reply.thinking, reply.text)))
    step = max(1, -(-len(text) // _PIECES))
    for start in range(0, len(text), step):
        at = reply.at - reply.seconds * (1 - start / len(text))
        piece = text[start : start + step]
        yield Said(reply.run_id, "assistant", piece, final=False, conversation=reply.conversation, at=at)
