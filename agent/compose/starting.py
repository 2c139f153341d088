"""Makes the first attempts of a run that does not start from nothing: the start, and its PTX where that is wanted."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.authors.base import Attempt, Author, Proposal
from agent.compose.start import BEST, Start
from agent.record.events import Warned
from agent.settings import Language
from agent.workbench import Draft, GivenUp, Workbench
from tools.codec import Json
from tools.ptx.loader import language_of
from tools.ptx_files.host_code import CannotSay
from tools.update import Update

FROM, AS = "from", "as"  # the parameters that mark the attempts of a start, and the one that says it in PTX
MOST_TRIES = 6  # of the offline author, until one of its kernels is accepted
_PTX_WORDS = "the same kernels as PTX: what Triton made of them, with names; other shapes go through Triton"


@dataclass(frozen=True)
class Beginning:
    """What a run begins with. `wanted` is --from, `start` what it was found to mean."""

    wanted: str = ""
    language: Language = "triton"
    start: Start | None = None


def start_of(bench: Workbench) -> Attempt | None:
    """The attempt that the work begins at: the last accepted one of the start, else the last one, if there is one."""
    made = [a for a in bench.attempts if FROM in a.proposal.params]
    return next((a for a in reversed(made) if a.verdict.accepted), made[-1] if made else None)


def begin(
    beginning: Beginning, bench: Workbench, offline: Callable[[], Author], why_stop: Callable[[], str | None]
) -> Attempt | None:
    """Make the attempts of the start, as far as the limits go, and say which of them the work begins at. PTX without a
    start begins with the first kernel of the offline author that is accepted."""
    if (earlier := start_of(bench)) is not None:
        if beginning.language == "ptx" and _is_all(earlier, bench) and why_stop() is None:
            _as_ptx(earlier, bench.tools.update(earlier.proposal.source), bench)
        return start_of(bench)
    if beginning.start is not None:
        start = beginning.start
        params: dict[str, Json] = {FROM: beginning.wanted or BEST}
        made_of = _made(bench, Proposal(start.source, f"the start: {start.name}", start.parent_id, params))
    elif beginning.language == "ptx" and not beginning.wanted:
        made_of = _first_offline(bench, offline(), why_stop)
    else:
        return None
    if made_of and beginning.language == "ptx" and why_stop() is None:
        _as_ptx(made_of[1], made_of[0].update, bench)
    return start_of(bench)


def _is_all(start: Attempt, bench: Workbench) -> bool:
    """Whether the process that made the start ended before it said it in PTX."""
    return bench.attempts[-1] is start and AS not in start.proposal.params


def _first_offline(
    bench: Workbench, author: Author, why_stop: Callable[[], str | None]
) -> tuple[Draft, Attempt] | None:
    """The first kernel of the offline author that is accepted."""
    for _ in range(MOST_TRIES):
        proposals = author.propose(bench.task, bench.attempts, 1) if why_stop() is None else []
        if not proposals:
            return None
        proposal = proposals[0]
        params: dict[str, Json] = {**proposal.params, FROM: "offline"}
        made = _made(bench, Proposal(proposal.source, proposal.rationale, proposal.parent_id, params))
        if made and made[1].verdict.accepted:
            return made
    return None


def _made(bench: Workbench, proposal: Proposal) -> tuple[Draft, Attempt] | None:
    """The candidate as it was drafted and as it was judged; None where a person skipped it."""
    try:
        draft = bench.update(proposal)
        return draft, bench.bench(draft)
    except GivenUp:
        return None


def _as_ptx(attempt: Attempt, update: Update, bench: Workbench) -> None:
    """The kernels of an accepted attempt as PTX, an attempt of its own; a warning where they cannot be said."""
    source = attempt.proposal.source
    if language_of(source) == "ptx" or not attempt.verdict.accepted:
        return
    try:
        ptx = bench.tools.as_ptx(source, update, attempt.verdict.variant or "default")
    except CannotSay as error:
        bench.emit(Warned(bench.run_id, f"attempt {attempt.number} cannot be the start in PTX: {error}"))
        return
    params: dict[str, Json] = {FROM: attempt.proposal.params[FROM], AS: "ptx"}
    _made(bench, Proposal(ptx, _PTX_WORDS, attempt.attempt_id, params))
