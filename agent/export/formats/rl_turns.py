"""`rl-turns`: a row for each turn, with its action, rewards, return and advantage.

What a turn is, how rewards become returns, and which turns are compared with each other is `agent.export.returns`. The
state that a reply saw is told by reference: the conversation and how many of its messages came before.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from agent.export import instructions
from agent.export.base import Column, Format, Made, Row
from agent.export.returns import GAMMA, Discount, Groups, How, Turn, Unknown, group_of, turns_of
from agent.export.reward_specs import reward_of
from agent.export.rewards import Scorer
from agent.record.trajectory import AttemptRecord, Message, Trajectory


@dataclass
class RlTurns(Format):
    """`reward` is a spec as in `agent.export.reward_specs`, with ";" between options; the rest is of `Discount`."""

    reward: str = "kevin"
    gamma: float = GAMMA
    unknown: Unknown = "strict"
    how: How = "sum"
    advantage: Literal["trloo", "grpo"] = "trloo"

    name: ClassVar[str] = "rl-turns"
    about: ClassVar[str] = "every turn with its action, rewards, return and advantage (TRLOO)"
    columns: ClassVar[tuple[Column, ...]] = (
        instructions.ASKED,
        Column("conversation", "text", "of the run; empty for an author that holds none"),
        Column("turn", "int", "turns of the conversation from 1; without one, generations"),
        Column("reply", "int", "replies of the conversation from 1; null without one"),
        Column("state_messages", "int", "how many messages of the conversation the reply came after; null without one"),
        Column("parents", "texts", "ids of the attempts that those of the turn were derived from"),
        Column("text", "text", "what the reply said beside its calls, or why the attempt was made"),
        Column("thinking", "text", "its reasoning, where the provider shows it"),
        Column("action", "json", 'its calls: [{"name", "arguments"}], with a whole source or edits to a parent'),
        Column("attempts", "texts", "ids of the attempts that the turn made"),
        Column("sources", "texts", "their files, edits applied"),
        Column("reward", "float", "of the turn: the best of its attempts; null when unknown"),
        Column("attempt_rewards", "json", "of each attempt of the turn, in their order; null when unknown"),
        Column("return", "float", "the reward and those of later turns, discounted; null when unknown"),
        Column("advantage", "float", "of the return over those of the same turn of the same task; null when unknown"),
        Column(
            "group_size",
            "int",
            "how many returns were compared; 1: there was no other, and the advantage is the return",
        ),
    )
    conversations: ClassVar[bool] = True
    surveys: ClassVar[bool] = True
    whole_runs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._scorer = _scorer(self.reward)
        self._discount = Discount(self.gamma, self.unknown, self.how)
        self._groups = Groups()

    def __getstate__(self) -> dict[str, object]:
        """A formula is a function, which cannot be pickled: it is read from its spec again."""
        return {name: value for name, value in vars(self).items() if name != "_scorer"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._scorer = _scorer(self.reward)

    def survey(self, trajectory: Trajectory) -> None:
        """Add this run's returns to those of their groups."""
        for turn in self._turns(trajectory):
            self._groups.add(group_of(trajectory.run, turn), turn.to_go)

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """A row for each turn of this run."""
        replies = _replies(trajectory)
        for turn in self._turns(trajectory):
            before, reply = replies.get((turn.conversation, turn.reply or 0), (None, None))
            said = _spoken(reply) if reply is not None else _made(turn)
            values = {
                "prompt": instructions.solve(trajectory.run),
                "conversation": turn.conversation,
                "turn": turn.number,
                "reply": turn.reply,
                "state_messages": before,
                **said,
                **self._worth(trajectory, turn),
            }
            yield Made(values, self._leader(turn))

    def _turns(self, trajectory: Trajectory) -> list[Turn]:
        return turns_of(trajectory, self._scorer.score, self._discount)

    def _worth(self, trajectory: Trajectory, turn: Turn) -> Row:
        group = group_of(trajectory.run, turn)
        size = self._groups.size(group)  # 0: the run went on after the first pass
        compare = self._groups.grpo if self.advantage == "grpo" else self._groups.trloo
        return {
            "parents": list(dict.fromkeys(a.parent_id for a in turn.attempts if a.parent_id)),
            "attempts": [a.attempt_id for a in turn.attempts],
            "sources": [a.source for a in turn.attempts],
            "reward": turn.reward,
            "attempt_rewards": [self._scorer(a) for a in turn.attempts],
            "return": turn.to_go,
            "advantage": compare(group, turn.to_go) if size else None,
            "group_size": size,
        }

    def _leader(self, turn: Turn) -> AttemptRecord:
        """The attempt whose reward is the turn's; the last one when none is known."""
        if turn.reward is None:
            return turn.attempts[-1]
        return next((a for a in turn.attempts if self._scorer(a) == turn.reward), turn.attempts[-1])


def _scorer(spec: str) -> Scorer:
    return reward_of(spec.replace(";", ","))


def _replies(trajectory: Trajectory) -> Mapping[tuple[str, int], tuple[int, Message]]:
    """By conversation and number: how many messages came before, and the reply."""
    return {
        (conversation.key, message.turn): (before, message)
        for conversation in trajectory.conversations
        for before, message in enumerate(conversation.messages)
        if message.turn is not None
    }


def _spoken(reply: Message) -> Row:
    calls = [{"name": call.name, "arguments": call.arguments} for call in reply.calls]
    return {"text": reply.text, "thinking": reply.thinking, "action": calls}


def _made(turn: Turn) -> Row:
    """What the author of a generation did, as the call that it amounts to."""
    calls = [{"name": "update", "arguments": {"source": a.source, "parent": a.parent_id}} for a in turn.attempts]
    return {"text": "\n".join(a.rationale for a in turn.attempts), "thinking": "", "action": calls}
