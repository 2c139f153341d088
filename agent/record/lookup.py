"""Which attempt does a person mean? An id, a run's id (its best attempt), or the start of either. Pure."""

import difflib
from collections.abc import Callable, Sequence

EXAMPLE = "20261121-093000-softmax-1a2b/7"


class NotFound(LookupError):
    """The text names no attempt, or several; the message says what would work."""


def attempt_named(text: str, attempts: Sequence[str], runs: Sequence[str], best_of: Callable[[str], str | None]) -> str:
    """The id of the attempt. `best_of` gives a run's best accepted attempt. Raises NotFound."""
    if text in attempts:
        return text
    run, slash, number = text.rpartition("/")
    if slash and number.isdecimal():
        found = [a for a in attempts if a.startswith(run) and a.endswith(slash + number)]
        its_run = [r for r in runs if r.startswith(run)]
        if not found and len(its_run) == 1:
            count = sum(a.rpartition("/")[0] == its_run[0] for a in attempts)
            raise NotFound(f"no attempt {number} in run {its_run[0]}, which has {count}")
    elif slash:
        found = [a for a in attempts if a.startswith(text)]
    else:
        return _of_run(text, attempts, runs, best_of)
    return _only(text, found, attempts, runs)


def _of_run(text: str, attempts: Sequence[str], runs: Sequence[str], best_of: Callable[[str], str | None]) -> str:
    found = [text] if text in runs else [r for r in runs if text and r.startswith(text)]
    if len(found) != 1:
        return _only(text, found, attempts, runs)
    its = [a for a in attempts if a.rpartition("/")[0] == found[0]]
    leader = best_of(found[0])
    if leader is not None or len(its) == 1:
        return leader or its[0]
    listed = ", ".join(a.rpartition("/")[2] for a in its[:10])
    hint = f"name one of its attempts: {found[0]}/NUMBER, of {listed}" if its else "it has no attempts"
    raise NotFound(f"run {found[0]} has no accepted attempt; {hint}")


def _only(text: str, found: Sequence[str], attempts: Sequence[str], runs: Sequence[str]) -> str:
    if len(found) == 1:
        return found[0]
    if found:
        more = ", …" * (len(found) > 3)
        kind = "attempts" if "/" in found[0] else "runs"
        raise NotFound(f"{text!r} could be {len(found)} {kind}: {', '.join(found[:3])}{more}")
    close = _close(text, attempts if "/" in text else runs)
    hint = f"did you mean {' or '.join(close)}?" if close else f"an id looks like {EXAMPLE}; `optimize runs` lists runs"
    raise NotFound(f"no attempt {text!r}; {hint}")


def _close(text: str, known: Sequence[str]) -> list[str]:
    """The latest that end so (people copy the end of an id), else those spelt most alike."""
    ending = [name for name in reversed(known) if text.strip("/") and name.endswith(text)]
    return ending[:3] or difflib.get_close_matches(text, known, n=3, cutoff=0.6)
