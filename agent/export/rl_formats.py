"""Formats for reinforcement learning: `rl-turns`, a row for each turn with its reward, return and advantage, and
`verl`, a prompt for each task.

What a turn is, how rewards become returns, and which turns are compared with each other is `agent.export.rewards`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import RunStarted
from kerneltune.agent.export import instructions
from kerneltune.agent.export.base import ExportRow, Feature, Format, Row
from kerneltune.agent.export.instructions import (
    ENTRY_POINT,
    OURS,
    level,
    operators,
    repo_name,
    ships_with_us,
    stable_uuid,
    visible,
)
from kerneltune.agent.export.rewards import (
    GAMMA,
    ReturnGroups,
    RewardedTurn,
    group_of,
    reward_of,
    turns_of,
)
from kerneltune.agent.record.trajectory import Message, Trajectory
from kerneltune.tools.schema.errors import UsageError

_CREATE = (
    Feature("task", "text", "the task's name"),
    Feature("task_sha256", "text", "of the task's file"),
    Feature("arch", "text", "compile target"),
)
_EXTRA = (
    Feature("index", "int", "of the task in this export, from 0"),
    Feature("split", "text", "as in the column of that name"),
    Feature("need_tools_kwargs", "bool", "false: the prompt can be answered without tools"),
    Feature(
        "tools_kwargs",
        "struct",
        "for an agent loop that has the tool `bench`",
        (Feature("bench", "struct", "", (Feature("create_kwargs", "struct", "", _CREATE),)),),
    ),
    Feature("interaction_kwargs", "struct", "for an interaction of that name", (*_CREATE, Feature("name", "text", ""))),
    Feature("entry_point", "text", "the class in ground_truth; the answer's is called <entry_point>New"),
    Feature("level", "int", "of a KernelBench problem, by its folder; else null"),
    Feature("module_name", "text", "the task's name"),
    Feature("ops", "texts", "torch operators that the reference calls by name"),
    Feature("original_prompt", "text", "the words of the user's message"),
    Feature("repo_name", "text", "kerneltune for tasks that ship with it; else empty"),
    Feature("type", "text", "builtin, kernelbench or file"),
    Feature("uuid", "text", "of the reference and its target"),
)


@dataclass
class RlTurns(Format):
    """`reward` is a spec as in `agent.export.rewards`, with ";" between options; `gamma`: its discount. The
    state that a reply saw is told by reference: the conversation and how many of its messages came before."""

    reward: str = "kevin"
    gamma: float = GAMMA
    advantage: Literal["trloo", "grpo"] = "trloo"

    name: ClassVar[str] = "rl-turns"
    about: ClassVar[str] = "every turn with its action, rewards, return and advantage (TRLOO)"
    columns: ClassVar[tuple[Feature, ...]] = (
        instructions.ASKED,
        Feature("conversation", "text", "of the run; empty for an author that holds none"),
        Feature("turn", "int", "turns of the conversation from 1; without one, generations"),
        Feature("reply", "int", "replies of the conversation from 1; null without one"),
        Feature(
            "state_messages", "int", "how many messages of the conversation the reply came after; null without one"
        ),
        Feature("parents", "texts", "ids of the attempts that those of the turn were derived from"),
        Feature("text", "text", "what the reply said beside its calls, or why the attempt was made"),
        Feature("thinking", "text", "its reasoning, where the provider shows it"),
        Feature("action", "json", 'its calls: [{"name", "arguments"}], with a whole source or edits to a parent'),
        Feature("attempts", "texts", "ids of the attempts that the turn made"),
        Feature("sources", "texts", "their files, edits applied"),
        Feature("reward", "float", "of the turn: the best of its attempts; null when unknown"),
        Feature("attempt_rewards", "json", "of each attempt of the turn, in their order; null when unknown"),
        Feature("return", "float", "the reward and those of later turns, discounted; null when unknown"),
        Feature("advantage", "float", "of the return over those of the same turn of the same task; null when unknown"),
        Feature(
            "group_size",
            "int",
            "how many returns were compared; 1: there was no other, and the advantage is the return",
        ),
    )
    conversations: ClassVar[bool] = True
    surveys: ClassVar[bool] = True
    whole_runs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._reward = reward_of(self.reward.replace(";", ","))
        if not 0.0 <= self.gamma <= 1.0:
            raise UsageError(f"gamma={self.gamma} is no discount; it lies in [0, 1], such as {GAMMA} or 1")
        self._groups = ReturnGroups()

    def survey(self, trajectory: Trajectory) -> None:
        """Add this run's returns to those of their groups."""
        for turn in self._turns(trajectory):
            self._groups.add(group_of(trajectory.run, turn), turn.to_go)

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """A row for each turn of this run."""
        replies = _replies(trajectory)
        for turn in self._turns(trajectory):
            before, reply = replies.get((turn.conversation, turn.reply or 0), (None, None))
            action = _spoken(reply) if reply is not None else _made(turn)
            values = {
                "prompt": instructions.solve(trajectory.run),
                "conversation": turn.conversation,
                "turn": turn.number,
                "reply": turn.reply,
                "state_messages": before,
                **action,
                **self._worth(trajectory, turn),
            }
            yield ExportRow(values, self._leader(turn))

    def _turns(self, trajectory: Trajectory) -> list[RewardedTurn]:
        return turns_of(trajectory, self._reward, self.gamma)

    def _worth(self, trajectory: Trajectory, turn: RewardedTurn) -> Row:
        group = group_of(trajectory.run, turn)
        size = self._groups.size(group)  # 0: the run went on after the first pass
        compare = self._groups.grpo if self.advantage == "grpo" else self._groups.trloo
        return {
            "parents": list(dict.fromkeys(a.parent_id for a in turn.attempts if a.parent_id)),
            "attempts": [a.attempt_id for a in turn.attempts],
            "sources": [a.source for a in turn.attempts],
            "reward": turn.reward,
            "attempt_rewards": [self._reward(a) for a in turn.attempts],
            "return": turn.to_go,
            "advantage": compare(group, turn.to_go) if size else None,
            "group_size": size,
        }

    def _leader(self, turn: RewardedTurn) -> Attempt:
        """The attempt whose reward is the turn's; the last one when none is known."""
        if turn.reward is None:
            return turn.attempts[-1]
        return next((a for a in turn.attempts if self._reward(a) == turn.reward), turn.attempts[-1])


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


def _made(turn: RewardedTurn) -> Row:
    """What the author of a generation did, as the call that it amounts to."""
    calls = [{"name": "update", "arguments": {"source": a.source, "parent": a.parent_id}} for a in turn.attempts]
    return {"text": "\n".join(a.rationale for a in turn.attempts), "thinking": "", "action": calls}


@dataclass
class Verl(Format):
    """`agent_name` is the agent loop that verl shall use."""

    agent_name: str = "single_turn_agent"

    name: ClassVar[str] = "verl"
    about: ClassVar[str] = "one prompt for each task with its PyTorch reference as ground truth (verl's RL columns)"
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("data_source", "text", "which reward function is meant: kerneltune"),
        instructions.ASKED,
        Feature("ability", "text", "kernel_optimization"),
        Feature(
            "reward_model",
            "struct",
            "how an answer is judged",
            (Feature("style", "text", "rule"), Feature("ground_truth", "text", "the PyTorch reference")),
        ),
        Feature("extra_info", "struct", "what verl and Dr.Kernel keep beside", _EXTRA),
        Feature("agent_name", "text", "verl's agent loop"),
    )
    surveys: ClassVar[bool] = True
    about_tasks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._splits: Mapping[str, str] = {}
        self._first: dict[str, tuple[bool, float, str]] = {}
        self._indices: dict[str, int] = {}

    def set_splits(self, splits: Mapping[str, str]) -> None:
        """A row says the split too, where verl's tools look for it."""
        self._splits = splits

    def survey(self, trajectory: Trajectory) -> None:
        """Choose the run that speaks for each task: the first that had a GPU, else the first."""
        run = trajectory.run
        claim = (run.gpu is None, run.at, run.run_id)
        self._first[run.task_sha256] = min(claim, self._first.get(run.task_sha256, claim))
        self._indices.clear()

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """One row if this run speaks for its task, and its reference can be shown."""
        run = trajectory.run
        reference = visible(run.task_source)
        if self._first.get(run.task_sha256, (False, 0.0, ""))[-1] == run.run_id and reference:
            yield ExportRow(self._row(run, reference))

    def _row(self, run: RunStarted, reference: str) -> Row:
        prompt = instructions.solve(run)
        return {
            "data_source": OURS,
            "prompt": prompt,
            "ability": "kernel_optimization",
            "reward_model": {"style": "rule", "ground_truth": reference},
            "extra_info": self._extra(run, reference, str(prompt[-1]["content"])),
            "agent_name": self.agent_name,
        }

    def _extra(self, run: RunStarted, reference: str, asked: str) -> Row:
        create = {"task": run.task, "task_sha256": run.task_sha256, "arch": run.arch}
        return {
            "index": self._index(run.task_sha256),
            "split": self._splits.get(run.task_sha256, "train"),
            "need_tools_kwargs": False,
            "tools_kwargs": {"bench": {"create_kwargs": create}},
            "interaction_kwargs": {**create, "name": OURS},
            "entry_point": ENTRY_POINT,
            "level": level(run),
            "module_name": run.task,
            "ops": list(operators(reference)),
            "original_prompt": asked,
            "repo_name": repo_name(run),
            "type": "builtin" if ships_with_us(run) else "file" if level(run) is None else "kernelbench",
            "uuid": stable_uuid(reference, run.arch),
        }

    def _index(self, task_sha256: str) -> int:
        if not self._indices:
            order = sorted(self._first, key=lambda task: self._first[task][1:])
            self._indices = {task: index for index, task in enumerate(order)}
        return self._indices[task_sha256]
