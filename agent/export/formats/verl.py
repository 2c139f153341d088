"""`verl`: a row for each task, as verl reads prompts for reinforcement learning, with Dr.Kernel's further columns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from agent.export import instructions
from agent.export.base import Column, Format, Made, Row
from agent.export.reference import ENTRY_POINT, OURS, level, operators, repo_name, ships_with_us, stable_uuid
from agent.export.told import visible
from agent.record.events import RunStarted
from agent.record.trajectory import Trajectory

ABILITY = "kernel_optimization"
TRAIN = "train"  # the split of a task that was put into none
_CREATE = (
    Column("task", "text", "the task's name"),
    Column("task_sha256", "text", "of the task's file"),
    Column("arch", "text", "compile target"),
)
_EXTRA = (
    Column("index", "int", "of the task in this export, from 0"),
    Column("split", "text", "as in the column of that name"),
    Column("need_tools_kwargs", "bool", "false: the prompt can be answered without tools"),
    Column(
        "tools_kwargs",
        "struct",
        "for an agent loop that has the tool `bench`",
        (Column("bench", "struct", "", (Column("create_kwargs", "struct", "", _CREATE),)),),
    ),
    Column("interaction_kwargs", "struct", "for an interaction of that name", (*_CREATE, Column("name", "text", ""))),
    Column("entry_point", "text", "the class in ground_truth; the answer's is called <entry_point>New"),
    Column("level", "int", "of a KernelBench problem, by its folder; else null"),
    Column("module_name", "text", "the task's name"),
    Column("ops", "texts", "torch operators that the reference calls by name"),
    Column("original_prompt", "text", "the words of the user's message"),
    Column("repo_name", "text", "kerneltune for tasks that ship with it; else empty"),
    Column("type", "text", "builtin, kernelbench or file"),
    Column("uuid", "text", "of the reference and its target"),
)


@dataclass
class Verl(Format):
    """`agent_name` is the agent loop that verl shall use."""

    agent_name: str = "single_turn_agent"

    name: ClassVar[str] = "verl"
    about: ClassVar[str] = "one prompt for each task with its PyTorch reference as ground truth (verl's RL columns)"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("data_source", "text", "which reward function is meant: kerneltune"),
        instructions.ASKED,
        Column("ability", "text", ABILITY),
        Column(
            "reward_model",
            "struct",
            "how an answer is judged",
            (Column("style", "text", "rule"), Column("ground_truth", "text", "the PyTorch reference")),
        ),
        Column("extra_info", "struct", "what verl and Dr.Kernel keep beside", _EXTRA),
        Column("agent_name", "text", "verl's agent loop"),
    )
    surveys: ClassVar[bool] = True
    about_tasks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._splits: Mapping[str, str] = {}
        self._first: dict[str, tuple[bool, float, str]] = {}
        self._indices: dict[str, int] = {}

    def placed(self, splits: Mapping[str, str]) -> None:
        """Hears the split of each task; a row says it too, where verl's tools look for it."""
        self._splits = splits

    def survey(self, trajectory: Trajectory) -> None:
        """Choose the run that speaks for each task: the first that had a GPU, else the first."""
        run = trajectory.run
        claim = (run.gpu is None, run.at, run.run_id)
        self._first[run.task_sha256] = min(claim, self._first.get(run.task_sha256, claim))
        self._indices.clear()

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """One row if this run speaks for its task, and its reference can be shown."""
        run = trajectory.run
        reference = visible(run.task_source)
        if self._first.get(run.task_sha256, (False, 0.0, ""))[-1] == run.run_id and reference:
            yield Made(self._row(run, reference))

    def _row(self, run: RunStarted, reference: str) -> Row:
        prompt = instructions.solve(run)
        return {
            "data_source": OURS,
            "prompt": prompt,
            "ability": ABILITY,
            "reward_model": {"style": "rule", "ground_truth": reference},
            "extra_info": self._extra(run, reference, str(prompt[-1]["content"])),
            "agent_name": self.agent_name,
        }

    def _extra(self, run: RunStarted, reference: str, asked: str) -> Row:
        create = {"task": run.task, "task_sha256": run.task_sha256, "arch": run.arch}
        return {
            "index": self._index(run.task_sha256),
            "split": self._splits.get(run.task_sha256, TRAIN),
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
