"""Returns of turns, and their advantages. Pure; see docs/rewards.md.

A *turn* is a reply that proposed at least one attempt; they count from 1 within their conversation, which is a rollout.
Replies in between (a bench, a reflection) prepare the next turn and are no turns of their own: a policy is neither
rewarded nor discounted for how many calls it puts into one reply. Several attempts of one reply are worth what the best
of them is, since that is what the turn achieved: their sum would pay for quantity.

An author that is no conversation (the offline search) has no replies. There a turn is a generation: an attempt's is 1
more than its parent's, and what follows an attempt is the mean of what follows from each of its children. In a chain
that is the same as in a conversation.

G_t = r_t + gamma * G_(t+1), Kevin's sum, or max over i >= t of gamma^(i-t) * r_i. A reward may be unknown:

- `strict`: then so is every return that contains it.
- `skip`: it adds nothing to the returns of the turns before, and its own turn is no valid one.
- `zero`: it counts as 0, as in Dr.Kernel for a turn that never happened. For those who want that and nothing else.

Advantages compare a return with those of the same task and turn in other rollouts. They need two passes: `Groups` adds
every valid return up in the first, and says the advantage of each in the second. It holds three numbers a group.
"""

import math
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from agent.export.formulas import Score
from agent.record.events import RunStarted
from agent.record.trajectory import AttemptRecord, Trajectory
from tools.errors import UsageError

GAMMA: Final = 0.4
Unknown = Literal["strict", "skip", "zero"]
How = Literal["sum", "max"]
_STD_FLOOR = 1e-6


@dataclass(frozen=True)
class Discount:
    """How rewards become returns. Raises UsageError for a gamma outside of [0, 1]."""

    gamma: float = GAMMA
    unknown: Unknown = "strict"
    how: How = "sum"

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise UsageError(f"gamma={self.gamma} is no discount; it lies in [0, 1], such as {GAMMA} or 1")


@dataclass(frozen=True)
class Turn:
    """A turn. `conversation` is "" and `reply` None for a generation. `number` counts turns from 1, `reply` the replies
    of the conversation. `reward` and `to_go` (its return) are None when unknown; the turn is valid when `to_go` is
    known."""

    conversation: str
    number: int
    reply: int | None
    attempts: tuple[AttemptRecord, ...]
    reward: float | None
    to_go: float | None


def returns(rewards: Sequence[float | None], discount: Discount = Discount()) -> list[float | None]:
    """The returns of the turns of one rollout, from their rewards in order."""
    found: list[float | None] = []
    later: tuple[float | None, bool] = (None, True)
    for reward in reversed(rewards):
        later = _one(reward, later[0], known_later=later[1], discount=discount)
        found.append(_valid(reward, later, discount))
    return found[::-1]


def _one(
    reward: float | None, later: float | None, *, known_later: bool, discount: Discount
) -> tuple[float | None, bool]:
    """The return of a turn as far as it is known, and whether all of it is."""
    known = known_later and reward is not None
    parts = [x for x in (reward, None if later is None else discount.gamma * later) if x is not None]
    if not parts:
        return None, known
    return (max(parts) if discount.how == "max" else sum(parts)), known


def _valid(reward: float | None, found: tuple[float | None, bool], discount: Discount) -> float | None:
    value, known = found
    if discount.unknown == "strict":
        return value if known else None
    return value if reward is not None else None


def turns_of(trajectory: Trajectory, reward: Score, discount: Discount = Discount()) -> list[Turn]:
    """The turns of all conversations of a run, in order; then the generations of attempts that no reply proposed."""
    talked: dict[str, dict[int, list[AttemptRecord]]] = {}
    grown: list[AttemptRecord] = []
    for attempt in trajectory.attempts:
        if attempt.turn is None:
            grown.append(attempt)
        else:
            talked.setdefault(attempt.conversation, {}).setdefault(attempt.turn, []).append(attempt)
    found = [turn for key, replies in talked.items() for turn in _conversation(key, replies, reward, discount)]
    return found + (_generations(grown, trajectory.attempts, reward, discount) if grown else [])


def _conversation(key: str, replies: dict[int, list[AttemptRecord]], reward: Score, discount: Discount) -> list[Turn]:
    order = sorted(replies)
    rewards = [_best([reward(a) for a in replies[n]], discount.unknown) for n in order]
    rows = zip(order, rewards, returns(rewards, discount), strict=True)
    return [Turn(key, i, n, tuple(replies[n]), r, to_go) for i, (n, r, to_go) in enumerate(rows, 1)]


def _best(rewards: Sequence[float | None], unknown: Unknown) -> float | None:
    """The reward of a turn. Strictly, it is unknown as soon as one of its attempts may be the best and nobody knows."""
    known = [r for r in rewards if r is not None]
    if unknown == "zero":
        known += [0.0] * (len(rewards) - len(known))
    return max(known) if known and (len(known) == len(rewards) or unknown == "skip") else None


def _generations(
    grown: Sequence[AttemptRecord], everyone: Iterable[AttemptRecord], reward: Score, discount: Discount
) -> list[Turn]:
    """Attempts come by number, and a parent has a smaller one than its child; a link that says otherwise is none."""
    parents = {a.attempt_id: a for a in everyone}
    depth: dict[str, int] = {}
    children: dict[str, list[AttemptRecord]] = {}
    for attempt in parents.values():
        parent = parents.get(attempt.parent_id or "")
        linked = parent is not None and parent.number < attempt.number
        depth[attempt.attempt_id] = depth[parent.attempt_id] + 1 if linked and parent is not None else 1
        if linked and parent is not None and attempt.turn is None:
            children.setdefault(parent.attempt_id, []).append(attempt)
    after: dict[str, tuple[float | None, bool]] = {}
    turns = []
    for attempt in reversed(grown):
        worth = _best([reward(attempt)], discount.unknown)
        following = [after[c.attempt_id] for c in children.get(attempt.attempt_id, ())]
        values = [value for value, _ in following if value is not None]
        later = math.fsum(values) / len(values) if values else None
        found = _one(worth, later, known_later=all(known for _, known in following), discount=discount)
        after[attempt.attempt_id] = found
        to_go = _valid(worth, found, discount)
        turns.append(Turn("", depth[attempt.attempt_id], None, (attempt,), worth, to_go))
    return turns[::-1]


def by_conversation(turns: Iterable[Turn]) -> dict[str, list[Turn]]:
    """The turns of each conversation, in order; generations belong to none."""
    found: dict[str, list[Turn]] = {}
    for turn in turns:
        if turn.reply is not None:
            found.setdefault(turn.conversation, []).append(turn)
    return found


def turn_of_reply(turns: Sequence[Turn], reply: int) -> Turn | None:
    """The turn of one conversation that a reply belongs to: its own, or the next one, which it prepares. None for the
    replies after the last turn: nothing came of them."""
    place = bisect_left(turns, reply, key=lambda t: t.reply or 0)
    return turns[place] if place < len(turns) else None


def group_of(run: RunStarted, turn: Turn) -> Hashable:
    """What a turn is compared with: the same turn of the same task on the same GPU, conversations with conversations.

    Rollouts of several models are compared with each other: a mean of others is a fair baseline whoever they are, for
    it does not depend on the turn's own return. Times of another GPU are on another scale."""
    return (run.task_sha256, run.gpu or "", turn.reply is not None, turn.number)


class Groups:
    """Counts, means and spreads of the returns of groups; two passes, see above."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, list[float]] = {}  # count, mean, sum of squared deviations

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: Hashable, to_go: float | None) -> None:
        """Pass one: a return; an unknown one is no part of its group. Raises ValueError when it is not finite."""
        if to_go is None:
            return
        if not math.isfinite(to_go):
            raise ValueError(f"a return of {to_go} in group {group!r}: returns are finite numbers")
        held = self._groups.setdefault(group, [0.0, 0.0, 0.0])
        held[0] += 1.0
        step = to_go - held[1]
        held[1] += step / held[0]  # Welford: sums of squares of large returns would cancel
        held[2] += step * (to_go - held[1])

    def merge(self, other: "Groups") -> None:
        """Add what another process added up."""
        for group, (n, mean, spread) in other._groups.items():
            held = self._groups.setdefault(group, [0.0, 0.0, 0.0])
            total = held[0] + n
            step = mean - held[1]
            held[2] += spread + step * step * held[0] * n / total
            held[1] += step * n / total
            held[0] = total

    def size(self, group: Hashable) -> int:
        """How many valid turns a group has."""
        return int(self._groups.get(group, (0,))[0])

    def trloo(self, group: Hashable, to_go: float | None) -> float | None:
        """Pass two, turn-level leave-one-out: G minus the mean of the others, N / (N - 1) * (G - mean); G itself when
        there are no others. None for an unknown return. Raises ValueError for a group that pass one did not see."""
        if to_go is None:
            return None
        n, mean, _ = self._seen(group)
        return to_go if n == 1.0 else n / (n - 1.0) * (to_go - mean)

    def grpo(self, group: Hashable, to_go: float | None) -> float | None:
        """Pass two, normalised in the group: (G - mean) / (standard deviation + 1e-6); G when there are no others."""
        if to_go is None:
            return None
        n, mean, spread = self._seen(group)
        return to_go if n == 1.0 else (to_go - mean) / (math.sqrt(max(spread, 0.0) / (n - 1.0)) + _STD_FLOOR)

    def _seen(self, group: Hashable) -> Sequence[float]:
        held = self._groups.get(group)
        if held is None:
            raise ValueError(f"no return of group {group!r} was added in the first pass; add them all before asking")
        return held
