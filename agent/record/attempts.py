"""Attempts as folds over the events of a run. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from kerneltune.agent.attempt import Attempt, Proposal
from kerneltune.agent.events import Event, Judged, Proposed, Updated, Verified


def finished(events: Iterable[Event]) -> list[Attempt]:
    """The attempts that have a verdict, in the order in which they got it. A confirmation counts instead of it; a
    verification, which may be another machine's, does not."""
    events = list(events)
    proposed = {e.attempt_id: e for e in events if isinstance(e, Proposed)}
    updated = {e.attempt_id: e for e in events if isinstance(e, Updated)}
    judged = [_attempt(proposed[e.attempt_id], updated.get(e.attempt_id), e) for e in events if isinstance(e, Judged)]
    confirmed = {e.attempt_id: e for e in events if isinstance(e, Verified) and e.purpose == "confirm"}
    return [_confirmed(a, confirmed[a.attempt_id]) if a.attempt_id in confirmed else a for a in judged]


def _confirmed(attempt: Attempt, event: Verified) -> Attempt:
    return replace(attempt, verdict=event.verdict, rank_key=event.rank_key)


def unfinished(events: Iterable[Event]) -> list[Proposed]:
    """What was proposed and never judged: the process ended first."""
    events = list(events)
    judged = {e.attempt_id for e in events if isinstance(e, Judged)}
    return [e for e in events if isinstance(e, Proposed) and e.attempt_id not in judged]


def _attempt(proposed: Proposed, updated: Updated | None, judged: Judged) -> Attempt:
    proposal = Proposal(
        proposed.source,
        proposed.rationale,
        proposed.parent_id,
        proposed.origin,
        hypothesis=proposed.hypothesis,
        prediction=proposed.prediction,
    )
    return Attempt(
        proposed.attempt_id,
        proposed.number,
        proposed.parent_id,
        proposal,
        judged.verdict,
        kernels=updated.kernels if updated else (),
        rank_key=judged.rank_key,
    )
