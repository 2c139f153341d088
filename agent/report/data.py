"""What a report of one run is made of (its trajectory, its course, a receipt), and what it may claim. Pure.

A claim is made of the facts that exist and of no others.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from kerneltune.agent.attempt import Attempt, StopReason
from kerneltune.agent.events import Event, RunResumed, Verified, Warned
from kerneltune.agent.record.trajectory import Trajectory, ending
from kerneltune.agent.view import text as words
from kerneltune.agent.view.state import Spending
from kerneltune.tools.schema.codec import Json, number, one_line, plural
from kerneltune.tools.schema.verdict import NOT_TIMED, Comparison, Status, Timing, light_in_words, losses_in_words

_BASELINES = {
    "eager": "eager PyTorch",
    "compile": "torch.compile",
    "compile-max": "torch.compile max-autotune",
}

_PLAIN = re.compile(r"[a-z][a-z0-9_-]{0,19}")


@dataclass(frozen=True)
class RunData:
    """One run. `course`: how it began, was resumed, ended, what it warned of and what was verified. `receipt`: that of
    the best attempt, and why there is none. `spending`: what its model was asked and cost."""

    trajectory: Trajectory
    course: Sequence[Event] = ()
    receipt: Json = None
    receipt_note: str = ""
    spending: Spending = field(default_factory=Spending)

    @property
    def best(self) -> Attempt | None:
        """The best attempt, if it is an accepted one."""
        best = self.trajectory.best
        return best if best is not None and best.accepted else None

    @cached_property
    def doubt(self) -> Literal["wrong", "moved"] | None:
        """What the latest verification had against the best: it is not right, or it is, and its time did not repeat."""
        if self.best is None or self.best.held is not False:
            return None
        its = [e.verdict for e in self.verified("verify") if e.attempt_id == self.best.attempt_id]
        return "moved" if its and its[-1].accepted else "wrong"

    @cached_property
    def resolution(self) -> float:
        """The largest difference that the same kernel showed to itself, as a share; 0 where nobody noted it."""
        return number(dig(self.receipt, "evidence", "aa_resolution")) or 0.0

    @cached_property
    def warnings(self) -> list[str]:
        """What the run warned of, each once."""
        return list(dict.fromkeys(e.text for e in self.course if isinstance(e, Warned)))

    @cached_property
    def elapsed_s(self) -> float | None:
        """How long the last process worked, without pauses, as the run's ending says."""
        ended = ending(self.course)
        return number(ended.elapsed_s) if ended else None

    @property
    def resumed(self) -> int:
        """How often it went on in a new process."""
        return sum(isinstance(e, RunResumed) for e in self.course)

    def verified(self, purpose: str) -> list[Verified]:
        """Confirmations ("confirm") or later verifications ("verify")."""
        return [e for e in self.course if isinstance(e, Verified) and e.purpose == purpose]

    @property
    def judge_s(self) -> float:
        """Seconds for which the judge, and with it the GPU, was busy with the run's attempts."""
        benched = sum(number(a.bench_s) or 0.0 for a in self.trajectory.attempts)
        again = (e for e in self.course if isinstance(e, Verified) and e.purpose != "verify")
        return benched + sum(number(e.bench_s) or 0.0 for e in again)

    @cached_property
    def timed(self) -> list[Attempt]:
        """The attempts that have a time."""
        return [a for a in self.trajectory.attempts if timing_of(a)]


def dig(value: Json, *path: str | int) -> Json:
    """What lies at a path of a JSON value; None where something is missing or of another type."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, Mapping) else None
        else:
            value = value[step] if isinstance(value, list) and len(value) > step else None
    return value


def ranked(attempt: Attempt) -> list[Comparison]:
    """Its comparisons that are numbers, with the baseline that is hardest to beat first."""
    good = [c for c in attempt.comparisons if all(plausible(v) for v in (c.speedup, c.low, c.high, c.baseline_us))]
    return sorted(good, key=lambda c: (c.speedup, c.baseline))


def timing_of(attempt: Attempt) -> Timing | None:
    """Its time, if it is one."""
    timing = attempt.timing
    return timing if timing and all(map(plausible, (timing.median_us, timing.low_us, timing.high_us))) else None


def plausible(value: float) -> bool:
    """Whether it can be a time in microseconds or a speed-up at all: a damaged record may hold anything."""
    return 1e-9 < value < 1e12


def ancestors(run: Trajectory, attempt: Attempt) -> list[Attempt]:
    """What it was derived from within the run, nearest first."""
    found: list[Attempt] = []
    while (parent := run.parent(attempt)) is not None:
        found.append(attempt := parent)
    return found


def hardest(attempt: Attempt) -> Comparison | None:
    """The comparison with the baseline that was hardest to beat."""
    return next(iter(ranked(attempt)), None)


def baseline_name(key: str) -> str:
    """A baseline as people call it. Ours are a closed set; what is no plain name did not come from us."""
    plain = key if _PLAIN.fullmatch(key) else "an unnamed baseline"
    return _BASELINES.get(key, plain)


Tone = Literal["faster", "even", "slower", "untimed", "nothing", "refuted"]
_ENDED_EARLY = {
    StopReason.INTERRUPTED: "The run was interrupted; more attempts might change this.",
    StopReason.MODEL_ERROR: "The run ended because its model could not be asked any more.",
    StopReason.NO_ACCESS: "The run ended because the provider refused the key, the account or the model's name.",
    StopReason.FAILED: "The run ended with a failure of kerneltune itself.",
}


@dataclass(frozen=True)
class Claim:
    """`subject`: what was optimised, and where; `headline`: the claim, the number first; `sentences`: what it rests on,
    and what speaks against it."""

    tone: Tone
    subject: str
    headline: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join((f"{self.subject}: {self.headline}.", *self.sentences))


def claim(material: RunData) -> Claim:
    """What this run may claim."""
    best = material.best
    if best is None:
        return Claim("nothing", _subject(material), *_nothing(material))
    first = _claim_of(material, best)
    return _refuted(material, best, first) if material.doubt else first


def _claim_of(material: RunData, best: Attempt) -> Claim:
    """What the run's own verdict may claim."""
    timing = timing_of(best)
    if best.status is not Status.CORRECT or timing is None:
        return Claim("untimed", _subject(material), "a correct kernel, not timed yet", tuple(_untimed(material)))
    against, subject = hardest(best), _subject(material)
    if against is None:
        headline = f"a correct kernel, {words.timing(timing)}"
        return Claim("untimed", subject, headline, ("It was compared with no baseline.", *_footing(material, best)))
    tone = tone_of(against, material.resolution)
    return Claim(tone, subject, _headline(tone, against), tuple(_measured(material, best)))


def _subject(material: RunData) -> str:
    run = material.trajectory.run
    return f"{run.task} on one {run.gpu}" if run.gpu else run.task


def _refuted(material: RunData, best: Attempt, first: Claim) -> Claim:
    """A verification weighs more than what was found at first."""
    if material.doubt == "wrong":
        headline = f"attempt {best.number} was wrong when it was verified again"
    else:
        headline = f"the time of attempt {best.number} did not repeat when it was verified again"
    return Claim("refuted", first.subject, headline, ("What the run itself found, before that:", *first.sentences))


def tone_of(against: Comparison, resolution: float) -> Literal["faster", "even", "slower"]:
    """What a comparison shows. `resolution`: what the same kernel showed as a difference to itself, as a share."""
    if against.low <= 1.0 <= against.high or abs(against.speedup - 1.0) <= resolution:
        return "even"
    return "faster" if against.speedup > 1.0 else "slower"


def interval(c: Comparison) -> str:
    """A speed-up with its 95 % interval."""
    speedup = f"{c.speedup:.3g}" if c.speedup >= 10 else f"{c.speedup:.3f}"
    return f"{speedup}x [{c.low:.3f}, {c.high:.3f}]"


def _headline(tone: Tone, against: Comparison) -> str:
    than = baseline_name(against.baseline)
    if tone == "faster":
        return f"{against.speedup:.2f}x the speed of {than}"
    if tone == "even":
        return f"no measurable difference from {than}"
    return f"{against.speedup:.3f}x the speed of {than}, not faster"


def _measured(material: RunData, best: Attempt) -> Iterator[str]:
    assert best.timing is not None
    all_of_them = ranked(best)
    told = ", ".join(f"{interval(c)} against {baseline_name(c.baseline)}" for c in all_of_them)
    of_cases = f" on average over {len(best.case_times)} weighted cases" if best.case_times else ""
    takes = f"Attempt {best.number} takes {words.timing(best.timing)}{of_cases}"
    yield f"{takes}: the speed-up is {told} (with 95 % intervals)."
    for its in best.case_times:
        yield f"Case {one_line(its.case)} (weight {its.weight:g}) takes {words.case_time(its)}."
    if lost := losses_in_words(best.case_times):
        yield f"It is {one_line(lost)}."
    yield from _footing(material, best)


def _footing(material: RunData, best: Attempt) -> Iterator[str]:
    processes = dig(material.receipt, "evidence", "processes")
    if best.tier == "confirmed":
        many = f"{len(processes)} " if isinstance(processes, list) else ""
        yield f"Confirmed: judged again, with new inputs, in {many}fresh processes."
    else:
        yield f"Not confirmed in fresh processes: the time is a {best.tier or 'single'} one."
    if shares := list(_shares(best)):
        yield f"{' and '.join(shares)}."
    yield from _doubts(material, best)


def _shares(best: Attempt) -> Iterator[str]:
    if (fraction := number(best.sol_fraction)) is not None:
        yield f"It reaches {light_in_words(fraction)}"
    if (coverage := number(best.coverage)) is not None:
        yield f"{coverage:.0%} of its device time is spent in its own kernels"
    else:
        yield "how much of its device time is spent in its own kernels is unknown"


def _untimed(material: RunData) -> Iterator[str]:
    best, run = material.best, material.trajectory.run
    assert best is not None
    if run.gpu is not None:
        why = f": {NOT_TIMED[best.judged.not_timed]}" if best.judged.not_timed else ""
        yield (
            f"Attempt {best.number} is right on the GPU, and was not timed{why}; so nothing here says whether it is"
            " fast."
        )
    else:
        yield (
            f"Attempt {best.number} is right in the CPU interpreter on small cases; there was no GPU, so nothing here"
            " says whether it is fast."
        )
        yield (
            f"It was compiled for {run.arch} and ranked by the bytes that its code loads and what the compiler"
            " reports; a GPU may rank it otherwise."
        )
    yield from _doubts(material, best)


def _doubts(material: RunData, best: Attempt) -> Iterator[str]:
    if best.held is False:
        yield "A later verification did NOT confirm it."
    elif best.held:
        yield "A later verification confirmed it."
    yield from _unfinished(material)


def _unfinished(material: RunData) -> Iterator[str]:
    why = material.trajectory.why
    if why is None:
        yield "The run has not ended, or its process was killed; this is how far it has come."
    elif why in _ENDED_EARLY:
        yield _ENDED_EARLY[why]


def _nothing(material: RunData) -> tuple[str, tuple[str, ...]]:
    attempts = material.trajectory.attempts
    rest = tuple(_unfinished(material))
    if not attempts:
        return "no attempt was made", rest
    counts = Counter(a.status.value.replace("_", " ") if a.status else "never judged" for a in attempts)
    told = ", ".join(f"{n} {status}" for status, n in counts.most_common())
    if counts.get(Status.UNCHECKED.value):
        return "nothing verified: kernels compiled, but nothing there could run them", (
            f"{plural(len(attempts), 'attempt')}: {told}.",
            *rest,
        )
    headline = f"nothing accepted: none of {plural(len(attempts), 'attempt')} was correct"
    return headline, (f"They ended as: {told}.", "PyTorch's own kernels remain the best that is known.", *rest)
