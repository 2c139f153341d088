"""Where to go next: pure choices over the rewrites of a file and what is known of those that were tried."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.attempt import Attempt
from agent.authors.ptx.base import Choices

Options = Mapping[str, Sequence[str]]

# What takes instructions away and costs nothing but rounding; without a GPU it is what most likely helps.
FEWER_INSTRUCTIONS: Mapping[str, str] = {
    "masks": "on", "reuse": "on", "maximum": "nan", "fold": "on", "exponential": "ftz", "division": "reciprocal",
    "flat": "on", "redux": "floats", "trees": "maxima",
}  # fmt: skip
SAME_BITS = ("masks", "reuse", "flat", "barriers", "hoist", "wider", "read_only")
NEVER_SLOWER: Mapping[str, str] = {"load_policy": "evict_last", "exponential": "ftz", "maximum": "nan", "flat": "on"}
# The order of single rewrites is that of what they took away on an H200, from the PTX of Triton's fastest kernels of
# softmax (127.6 and 127.8 us) and rms_norm (64.3 and 64.5): the policy 2 us where loads have none, exponentials 1.3,
# flat up to 0.7, .cs stores 0.4, maxima 0.3, folding 0.1 to 0.7. Others helped one kernel and not the next.
FIRST = ("load_policy", "exponential", "flat", "store_hint", "maximum", "fold", "reuse", "division", "masks")
LAST = ("load_hint", "registers")  # 3 to 6 us more; a cap that made a kernel spill, 30 more
NEIGHBOUR_EVERY = 3  # one proposal in three is a step from the best, while single rewrites are still to be tried
_JUMPS = 48


@dataclass(frozen=True)
class Move:
    """Rewrites to try together. `kind` says why: start, bundle, single, winners, step, jump; `changed`: the rewrite in
    which it differs from `parent`."""

    choices: Choices
    kind: str
    parent: Attempt | None = None
    changed: str = ""


@dataclass(frozen=True)
class Tried:
    """An attempt and its rewrites. `merit`: smaller is better; () when it was not accepted."""

    choices: Choices
    attempt: Attempt
    merit: tuple[float, ...] = ()


def merit(attempt: Attempt, issue_cycles: int) -> tuple[float, ...]:
    """The time where there is one; else the order of the run, with the cycles that issuing takes put after spills."""
    key = attempt.rank_key
    return (*key[:2], float(issue_cycles), *key[2:]) if len(key) > 1 else key


def moves(offered: Options, tried: Sequence[Tried], *, seed: int, turn: int) -> Iterator[Move]:
    """Moves in the order in which to try them; may repeat what was tried. `turn` counts proposals so far."""
    ranked = sorted((t for t in tried if t.merit), key=lambda t: (t.merit, t.attempt.number))
    start = next((t for t in tried if not t.choices), None)
    origin = start.attempt if start else None
    offered = {name: offered[name] for name in sorted(offered, key=_likelihood)}
    yield Move({}, "start")
    if "evict_last" in offered.get("load_policy", ()):
        yield Move({"load_policy": "evict_last"}, "single", origin, "load_policy")
    yield from _bundles(offered, origin)
    if turn % NEIGHBOUR_EVERY == NEIGHBOUR_EVERY - 1:
        yield from _steps(offered, ranked[:1], seed)
    yield from _singles(offered, origin, 0)
    yield from _winners(offered, tried, origin)
    yield from _steps(offered, ranked, seed)
    for number in range(1, max(map(len, offered.values()), default=0)):
        yield from _singles(offered, origin, number)
    yield from _jumps(offered, ranked, random.Random(f"{seed}/jump/{turn}"))


def _likelihood(name: str) -> int:
    """How early a rewrite is tried; those of which nothing is known keep the catalogue's order between the others."""
    return FIRST.index(name) if name in FIRST else len(FIRST) + (name in LAST)


def _bundles(offered: Options, origin: Attempt | None) -> Iterator[Move]:
    for wanted in (NEVER_SLOWER, FEWER_INSTRUCTIONS, {name: offered[name][0] for name in SAME_BITS if name in offered}):
        found = {name: value for name, value in wanted.items() if value in offered.get(name, ())}
        if len(found) > 1:
            yield Move(found, "bundle", origin)


def _singles(offered: Options, origin: Attempt | None, number: int) -> Iterator[Move]:
    """Each rewrite alone, with its value of that number."""
    for name, values in offered.items():
        if number < len(values):
            yield Move({name: values[number]}, "single", origin, name)


def _winners(offered: Options, tried: Sequence[Tried], origin: Attempt | None) -> Iterator[Move]:
    """All rewrites that helped alone, together, each with the value that helped most."""
    start = next((t.merit for t in tried if not t.choices), ())
    alone = sorted((t for t in tried if len(t.choices) == 1 and t.merit), key=lambda t: t.merit)
    found: dict[str, str] = {}
    for each in alone:
        ((name, value),) = each.choices.items()
        if start and each.merit < start and value in offered.get(name, ()):
            found.setdefault(name, value)
    if len(found) > 1:
        yield Move(found, "winners", origin)


def _steps(offered: Options, ranked: Sequence[Tried], seed: int) -> Iterator[Move]:
    """From each tried one, the best first: one rewrite more, with another value, or left out."""
    for best in ranked:
        rng = random.Random(f"{seed}/{best.attempt.number}")
        steps = [(at, name, value) for name, values in offered.items() for at, value in enumerate((*values, ""))]
        rng.shuffle(steps)
        helped = _that_helped(offered, ranked)
        # what helped elsewhere is tried first, then the likeliest value of each rewrite, then the next one
        steps.sort(key=lambda step: (step[1:] not in helped, step[0] if step[2] else 0, step[1] in LAST))
        for _, name, value in steps:
            without = {key: kept for key, kept in best.choices.items() if key != name}
            choices = {**without, name: value} if value else without
            if choices != best.choices and choices:
                yield Move(choices, "step", best.attempt, name)


def _that_helped(offered: Options, ranked: Sequence[Tried]) -> set[tuple[str, str]]:
    """Single rewrites that are better than the file as it was."""
    start = next((t.merit for t in ranked if not t.choices), ())
    return {pair for t in ranked if len(t.choices) == 1 and start and t.merit < start for pair in t.choices.items()}


def _jumps(offered: Options, ranked: Sequence[Tried], rng: random.Random) -> Iterator[Move]:
    """Random rewrites together, half of them of the best: neighbours alone stay on the first hill."""
    best = ranked[0].choices if ranked else {}
    for _ in range(_JUMPS if offered else 0):
        kept = {name: value for name, value in best.items() if rng.random() < 0.5}
        added = {name: rng.choice(list(offered[name])) for name in offered if rng.random() < 0.25}
        if kept | added:
            yield Move(kept | added, "jump")
