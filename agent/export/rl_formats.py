"""Formats for reinforcement learning: `rl-turns`, a row for each turn with its reward, return and advantage, and
`verl`, a prompt for each task.

What a turn is, how rewards become returns, and which turns are compared with each other is `agent.export.rewards`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from kerneltune.agent.attempt import Attempt, RunStart
from kerneltune.agent.events import RunStarted
from kerneltune.agent.export import instructions
from kerneltune.agent.export.base import ExportRow, Feature, Format, Row
from kerneltune.agent.export.chat_formats import Exchange, chat_messages, dialogues, tool_schemas
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
    correct,
    group_of,
    reward_of,
    turns_of,
)
from kerneltune.agent.record.trajectory import Message, Trajectory
from kerneltune.tools.languages import FOLDERS
from kerneltune.tools.languages.base import language_of
from kerneltune.tools.schema.errors import UsageError

_NO_TOKENS: Row = {"token_ids": None, "logprobs": None, "prompt_tokens": None}
_CREATE = (
    Feature("task", "text", "the task's name"),
    Feature("task_sha256", "text", "of the task's file"),
    Feature("arch", "text", "compile target"),
    Feature("language", "text", "what the kernel is to be written in"),
    Feature("reference_code", "text", "the PyTorch reference; null for a task that ships with kerneltune"),
)
_EXTRA = (
    Feature("index", "int", "of the row in this export, from 0"),
    Feature("split", "text", "as in the column of that name"),
    Feature("need_tools_kwargs", "bool", "false: the prompt can be answered without tools"),
    Feature(
        "tools_kwargs",
        "struct",
        "for verl's tool agent with the tool `bench` of kerneltune/rl/kernel_verl_tool.yaml",
        (Feature("bench", "struct", "", (Feature("create_kwargs", "struct", "", _CREATE),)),),
    ),
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
    """`reward` is a spec as in `agent.export.rewards`, with ";" between options; `gamma`: its discount. `alone`: the
    advantage of a return that has no other to be compared with, unknown or the return itself (Dr.Kernel's). `state`:
    the state that a reply saw, by reference (the conversation, and how many of its messages came before) or as
    `messages`, with the reply as `completion`."""

    reward: str = "kevin"
    gamma: float = GAMMA
    advantage: Literal["trloo", "grpo"] = "trloo"
    alone: Literal["unknown", "return"] = "unknown"
    state: Literal["reference", "messages"] = "reference"

    name: ClassVar[str] = "rl-turns"
    about: ClassVar[str] = "every turn with its action, rewards, return and advantage (TRLOO)"
    columns: ClassVar[tuple[Feature, ...]] = (
        Feature("prompt", "messages", "the task as a request; with state=messages what the reply answered"),
        Feature("completion", "messages", "with state=messages: the reply, with its calls; else null"),
        Feature("tools", "json", "with state=messages: the tools as JSON Schemas; null without a conversation"),
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
        Feature("token_ids", "ints", "all that the model wrote, in its vocabulary; null when unknown or taken out"),
        Feature("logprobs", "floats", "of each of them, when it was drawn, natural; null when unknown or taken out"),
        Feature("prompt_tokens", "int", "before them, as the server counted; null when unknown"),
        Feature("attempts", "texts", "ids of the attempts that the turn made"),
        Feature("sources", "texts", "their files, edits applied"),
        Feature("reward", "float", "of the turn: the best of its attempts; null when unknown"),
        Feature("attempt_rewards", "floats", "of each attempt of the turn, in their order; null when unknown"),
        Feature("return", "float", "the reward and those of later turns, discounted; null when unknown"),
        Feature("advantage", "float", "of the return over those of the same turn of the same task; null when unknown"),
        Feature(
            "group_size",
            "int",
            "how many returns were compared; 1: there was no other, and the advantage is unknown",
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
        self._n_known = self._n_compared = self._n_turns = 0

    def survey(self, trajectory: Trajectory) -> None:
        """Add this run's returns to those of their groups."""
        for turn in self._turns(trajectory):
            self._groups.add(group_of(trajectory.run, turn), turn.to_go)

    def notes(self) -> Iterator[str]:
        """Of what nothing can be learned from."""
        if self._n_turns and not self._n_known:
            yield f"rl-turns: no return is known: {self._reward.name} needs times of a GPU, reward=fast_0 does not"
        elif self._n_turns and not self._n_compared:
            yield "rl-turns: no advantage is known, as no task was tried twice; more runs per task, or alone=return"

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """A row for each turn of this run."""
        replies = _replies(trajectory)
        states = _states(trajectory) if self.state == "messages" else {}
        for turn in self._turns(trajectory):
            before, reply = replies.get((turn.conversation, turn.reply or 0), (None, None))
            action = _spoken(reply) if reply is not None else _made(turn)
            leader = self._leader(turn)
            said: Row = {"prompt": instructions.solve(trajectory.run, language_of(leader.source))}
            said |= {"completion": None, "tools": None}
            if self.state == "messages":
                said["completion"] = instructions.answer(leader.source)
                if turn.reply is not None and (turn.conversation, turn.reply) not in states:
                    continue  # the run was killed during it, or what it was shown is not known
                said |= states.get((turn.conversation, turn.reply or 0), {})
            values = {
                **said,
                "conversation": turn.conversation,
                "turn": turn.number,
                "reply": turn.reply,
                "state_messages": before,
                **action,
                **self._worth(trajectory, turn),
            }
            yield ExportRow(values, leader)

    def _turns(self, trajectory: Trajectory) -> list[RewardedTurn]:
        return turns_of(trajectory, self._reward, self.gamma)

    def _worth(self, trajectory: Trajectory, turn: RewardedTurn) -> Row:
        group = group_of(trajectory.run, turn)
        size = self._groups.size(group)  # 0: the run went on after the first pass
        compare = self._groups.grpo if self.advantage == "grpo" else self._groups.trloo
        self._n_turns += 1
        self._n_known += turn.to_go is not None
        advantage = compare(group, turn.to_go) if size else None
        if size == 1 and self.alone == "return":
            advantage = turn.to_go
        self._n_compared += advantage is not None
        return {
            "parents": list(dict.fromkeys(a.parent_id for a in turn.attempts if a.parent_id)),
            "attempts": [a.attempt_id for a in turn.attempts],
            "sources": [a.source for a in turn.attempts],
            "reward": turn.reward,
            "attempt_rewards": [self._reward(a) for a in turn.attempts],
            "return": turn.to_go,
            "advantage": advantage,
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


def _states(trajectory: Trajectory) -> Mapping[tuple[str, int], Row]:
    """By conversation and number: the messages that a reply answered, as the model was shown them, and the reply."""
    found: dict[tuple[str, int], Row] = {}
    for conversation in trajectory.conversations:
        for talk in dialogues(conversation, seen=True):
            for i, part in enumerate(talk.parts):
                if isinstance(part, Exchange) and not part.copied and part.reply.turn is not None:
                    said = [{k: v for k, v in m.items() if k != "train"} for m in chat_messages(talk, upto=i + 1)]
                    place = next(at for at in reversed(range(len(said))) if said[at]["role"] == "assistant")
                    found[conversation.key, part.reply.turn] = {
                        "prompt": said[:place],
                        "completion": [said[place]],
                        "tools": tool_schemas(),
                    }
    return found


def _spoken(reply: Message) -> Row:
    calls = [{"name": call.name, "arguments": call.arguments} for call in reply.calls]
    said: Row = {"text": reply.text, "thinking": reply.thinking, "action": calls}
    told = {"token_ids": reply.token_ids, "logprobs": reply.logprobs}
    tokens: Row = {name: None if those is None else list(those) for name, those in told.items()}
    return said | tokens | {"prompt_tokens": reply.tokens("input_tokens")}


def _made(turn: RewardedTurn) -> Row:
    """What the author of a generation did, as the call that it amounts to."""
    calls = [{"name": "update", "arguments": {"source": a.source, "parent": a.parent_id}} for a in turn.attempts]
    return {"text": "\n".join(a.rationale for a in turn.attempts), "thinking": "", "action": calls, **_NO_TOKENS}


@dataclass
class Verl(Format):
    """`agent_name` is the agent loop that verl shall use."""

    agent_name: str = "single_turn_agent"

    name: ClassVar[str] = "verl"
    about: ClassVar[str] = (
        "one prompt for each task and language with its PyTorch reference as ground truth (verl's RL columns)"
    )
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
        Feature("solve_rate", "float", "share of this record's attempts at it that were right; null: none was judged"),
        Feature("agent_name", "text", "verl's agent loop"),
    )
    surveys: ClassVar[bool] = True
    about_tasks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._splits: Mapping[str, str] = {}
        self._first: dict[tuple[str, str], tuple[bool, float, str]] = {}  # by task and language
        self._indices: dict[tuple[str, str], int] = {}
        self._judged: dict[tuple[str, str], list[int]] = {}  # right ones, all of which that is known
        self._unknown: list[str] = []  # languages of runs

    def notes(self) -> Iterator[str]:
        """Of runs without a prompt."""
        yield from instructions.left_out(self.name, self._unknown)

    def set_splits(self, splits: Mapping[str, str]) -> None:
        """A row says the split too, where verl's tools look for it."""
        self._splits = splits

    def survey(self, trajectory: Trajectory) -> None:
        """Choose the run that speaks for each task and language: the first that had a GPU, else the first."""
        run, key = trajectory.run, _asked_for(trajectory.run)
        if run.language not in FOLDERS:
            self._unknown.append(run.language)
            return
        claim = (run.gpu is None, run.at, run.run_id)
        self._first[key] = min(claim, self._first.get(key, claim))
        self._indices.clear()
        held = self._judged.setdefault(key, [0, 0])
        own = (a for a in trajectory.attempts if not isinstance(a.origin, RunStart))
        known = [correct(a) for a in own if language_of(a.source) == run.language]
        held[0] += known.count(True)
        held[1] += len(known) - known.count(None)

    def rows(self, trajectory: Trajectory) -> Iterator[ExportRow]:
        """One row if this run speaks for its task, and its reference can be shown."""
        run = trajectory.run
        reference = visible(run.task_source)
        if self._first.get(_asked_for(run), (False, 0.0, ""))[-1] == run.run_id and reference:
            yield ExportRow(self._row(run, reference))

    def _row(self, run: RunStarted, reference: str) -> Row:
        prompt = instructions.solve(run, run.language)
        return {
            "data_source": OURS,
            "prompt": prompt,
            "ability": "kernel_optimization",
            "reward_model": {"style": "rule", "ground_truth": reference},
            "extra_info": self._extra(run, reference, str(prompt[-1]["content"])),
            "solve_rate": self._solve_rate(run),
            "agent_name": self.agent_name,
        }

    def _extra(self, run: RunStarted, reference: str, asked: str) -> Row:
        language = run.language
        create: Row = {"task": run.task, "task_sha256": run.task_sha256, "arch": run.arch, "language": language}
        create["reference_code"] = None if ships_with_us(run) else reference
        return {
            "index": self._index(_asked_for(run)),
            "split": self._splits.get(run.task_sha256, "train"),
            "need_tools_kwargs": False,
            "tools_kwargs": {"bench": {"create_kwargs": create}},
            "entry_point": ENTRY_POINT,
            "level": level(run),
            "module_name": run.task,
            "ops": list(operators(reference)),
            "original_prompt": asked,
            "repo_name": repo_name(run),
            "type": "builtin" if ships_with_us(run) else "file" if level(run) is None else "kernelbench",
            "uuid": stable_uuid(reference, run.arch, *(() if language == "triton" else (language,))),
        }

    def _solve_rate(self, run: RunStarted) -> float | None:
        n_right, n_known = self._judged.get(_asked_for(run), (0, 0))
        return n_right / n_known if n_known else None

    def _index(self, wanted: tuple[str, str]) -> int:
        if not self._indices:
            order = sorted(self._first, key=lambda key: self._first[key][1:])
            self._indices = {key: index for index, key in enumerate(order)}
        return self._indices[wanted]


def _asked_for(run: RunStarted) -> tuple[str, str]:
    return run.task_sha256, run.language
