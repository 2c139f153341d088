"""inspect-ai (0.3) over the evaluator's service: a task whose samples are rows of `optimize export --format verl --as jsonl`.

    inspect eval kernel_inspect.py@kernels -T rows=rows.jsonl -T reward=fast_0 --model …

A reward that nobody knows makes an unscored sample; a fault of the service's is an error of the sample's.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import Tool, tool
from inspect_ai.util import store
from kernel_service import begin, call, close, outcome


async def _called(name: str, arguments: dict[str, Any]) -> str:
    return str((await asyncio.to_thread(call, store().get("path"), name, arguments))["text"])


@tool
def update() -> Tool:
    """Compile a file."""

    async def execute(source: str, rationale: str) -> str:
        """Compile a file that defines ModelNew. It becomes an attempt with a number.

        Args:
            source: The whole file.
            rationale: One line: what is tried, and why it should help.
        """
        return await _called("update", {"source": source, "rationale": rationale})

    return execute


@tool
def bench() -> Tool:
    """Check and time an attempt."""

    async def execute(attempt: int) -> str:
        """Check an attempt on every shape and many kinds of inputs, and time it where there is a GPU.

        Args:
            attempt: The number that `update` gave.
        """
        return await _called("bench", {"attempt": attempt})

    return execute


@solver
def begun(reward: str, max_attempts: int) -> Solver:
    """Begin a rollout in the service for a sample."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        asked = {**state.metadata, "reward": reward, "limits": {"max_attempts": max_attempts}}
        store().set("path", (await asyncio.to_thread(lambda: begin(**asked)))["path"])
        return state

    return solve


@scorer(metrics=[mean(), stderr()])
def kernel() -> Scorer:
    """The best attempt's reward."""

    async def score(state: TaskState, target: Target) -> Score | None:
        found = await asyncio.to_thread(outcome, store().get("path"))
        worth = found["reward"]
        return None if worth is None else Score(value=float(worth), metadata={"turns": found["turns"]})

    return score


async def ended(state: TaskState) -> None:
    """End the rollout, whatever became of it."""
    await asyncio.to_thread(close, state.store.get("path"))


@task
def kernels(rows: str, reward: str = "fast_0", max_attempts: int = 8) -> Task:
    """Write kernels with the tools `update` and `bench`."""
    samples = []
    for row in map(json.loads, Path(rows).read_text(encoding="utf-8").splitlines()):
        create = row["extra_info"]["tools_kwargs"]["bench"]["create_kwargs"]
        code = None if row["extra_info"]["type"] == "builtin" else row["reward_model"]["ground_truth"]
        wanted = {"task": create["task"], "reference_code": code, "language": create["language"]}
        system, user = (message["content"] for message in row["prompt"])
        said = [ChatMessageSystem(content=system), ChatMessageUser(content=user)]
        samples.append(Sample(input=said, id=row["extra_info"]["uuid"], metadata=wanted))
    agent = react(tools=[update(), bench()])
    return Task(dataset=samples, setup=begun(reward, max_attempts), solver=agent, scorer=kernel(), cleanup=ended)
