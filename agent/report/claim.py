"""The result of a run in a sentence or two, made of the facts that exist and of no others. Pure."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from agent.record.trajectory import AttemptRecord
from agent.report.material import Material, baseline_name, dig, finite, hardest, ranked, timing_of
from agent.view import text as words
from tools.verdict import Comparison, Status

Tone = Literal["faster", "even", "slower", "untimed", "nothing", "refuted"]
_ENDED_EARLY = {
    "interrupted": "The run was interrupted; more attempts might change this.",
    "model_error": "The run ended because its model could not be asked any more.",
    "failed": "The run ended with a failure of kerneltune itself.",
}


@dataclass(frozen=True)
class Claim:
    """`headline`: the claim; `sentences`: what it rests on, and what speaks against it."""

    tone: Tone
    headline: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join((self.headline, *self.sentences))


def claim(material: Material) -> Claim:
    """What this run may claim."""
    best = material.best
    if best is None:
        return Claim("nothing", *_nothing(material))
    first = _claim_of(material, best)
    return _refuted(material, best, first) if material.doubt else first


def _claim_of(material: Material, best: AttemptRecord) -> Claim:
    """What the run's own verdict may claim."""
    run = material.trajectory.run
    timing = timing_of(best)
    if best.status is not Status.CORRECT or timing is None:
        return Claim("untimed", f"A right kernel for {run.task}, of which no time is known.", tuple(_untimed(material)))
    against = hardest(best)
    if against is None:
        headline = f"A right kernel for {run.task}: {words.timing(timing)} on {run.gpu}."
        return Claim("untimed", headline, ("It was compared with no baseline.", *_footing(material, best)))
    tone = tone_of(against, material.resolution)
    return Claim(tone, _headline(material, tone, against), tuple(_measured(material, best)))


def _refuted(material: Material, best: AttemptRecord, first: Claim) -> Claim:
    """A verification weighs more than what was found at first."""
    task = material.trajectory.run.task
    if material.doubt == "wrong":
        headline = f"Nothing is claimed for {task}: attempt {best.number} was not right when it was verified."
    else:
        headline = f"{task}: the time of attempt {best.number} did not repeat when it was verified."
    return Claim("refuted", headline, ("What the run itself found, before that:", *first.sentences))


def tone_of(against: Comparison, resolution: float) -> Literal["faster", "even", "slower"]:
    """What a comparison shows. `resolution`: what the same kernel showed as a difference to itself, as a share."""
    if against.low <= 1.0 <= against.high or abs(against.speedup - 1.0) <= resolution:
        return "even"
    return "faster" if against.speedup > 1.0 else "slower"


def interval(c: Comparison) -> str:
    """A speed-up with its 95 % interval."""
    return f"{c.speedup:.3g}x [{c.low:.3f}, {c.high:.3f}]" if c.speedup >= 10 else _close(c)


def _close(c: Comparison) -> str:
    return f"{c.speedup:.3f}x [{c.low:.3f}, {c.high:.3f}]"


def _headline(material: Material, tone: Tone, against: Comparison) -> str:
    run = material.trajectory.run
    where, than = f"{run.task} on one {run.gpu}", baseline_name(against.baseline)
    if tone == "faster":
        return f"{where}: {against.speedup:.2f}x the speed of {than}."
    if tone == "even":
        return f"{where}: no difference from {than} could be measured."
    return f"{where}: nothing faster than {than} was found."


def _measured(material: Material, best: AttemptRecord) -> Iterator[str]:
    assert best.timing is not None
    all_of_them = ranked(best)
    told = ", ".join(f"{interval(c)} against {baseline_name(c.baseline)}" for c in all_of_them)
    yield (f"Attempt {best.number} takes {words.timing(best.timing)}: the speed-up is {told} (with 95 % intervals).")
    yield from _footing(material, best)


def _footing(material: Material, best: AttemptRecord) -> Iterator[str]:
    processes = dig(material.receipt, "evidence", "processes")
    if best.tier == "confirmed":
        many = f"{len(processes)} " if isinstance(processes, list) else ""
        yield f"Confirmed: judged again, with new inputs, in {many}fresh processes."
    else:
        yield f"Not confirmed in fresh processes: the time is a {best.tier or 'single'} one."
    if shares := list(_shares(best)):
        yield f"{' and '.join(shares)}."
    yield from _doubts(material, best)


def _shares(best: AttemptRecord) -> Iterator[str]:
    if (fraction := finite(best.sol_fraction)) is not None:
        yield f"It reaches {fraction:.0%} of the speed of light"
    if (coverage := finite(best.coverage)) is not None:
        yield f"{coverage:.0%} of its device time is spent in its own kernels"
    else:
        yield "how much of its device time is spent in its own kernels is unknown"


def _untimed(material: Material) -> Iterator[str]:
    best, run = material.best, material.trajectory.run
    assert best is not None
    where = "there was no GPU" if run.gpu is None else "it was not timed"
    yield (
        f"Attempt {best.number} is right in the CPU interpreter on small cases; {where}, so nothing here says whether"
        " it is fast."
    )
    yield f"It was compiled for {run.arch} and ranked by what the compiler reports; a GPU may rank it otherwise."
    yield from _doubts(material, best)


def _doubts(material: Material, best: AttemptRecord) -> Iterator[str]:
    if best.held is False:
        yield "A later verification did NOT bear this out."
    elif best.held:
        yield "A later verification bore this out."
    yield from _unfinished(material)


def _unfinished(material: Material) -> Iterator[str]:
    why = material.trajectory.why
    if why is None:
        yield "The run has not ended, or its process was killed; this is how far it has come."
    elif why in _ENDED_EARLY:
        yield _ENDED_EARLY[why]


def _nothing(material: Material) -> tuple[str, tuple[str, ...]]:
    attempts, run = material.trajectory.attempts, material.trajectory.run
    rest = tuple(_unfinished(material))
    if not attempts:
        return f"Nothing was tried: this run of {run.task} made no attempt.", rest
    counts = Counter(a.status.value.replace("_", " ") if a.status else "never judged" for a in attempts)
    told = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    if counts.get(Status.UNCHECKED.value):
        return f"Nothing was proved for {run.task}: kernels compiled, but nothing there could run them.", (
            f"{words.plural(len(attempts), 'attempt')}: {told}.",
            *rest,
        )
    headline = f"Nothing was accepted for {run.task}: none of {words.plural(len(attempts), 'attempt')} was right."
    return headline, (f"They ended as: {told}.", "PyTorch's own kernels remain the best that is known.", *rest)
