"""verifiers (0.4) over the evaluator's service: a taskset whose tools are an MCP server of each rollout's.

    vf-eval kernel_verifiers --env.taskset.rows rows.jsonl --env.taskset.task.reward fast_0    # and prime-rl, by this id

Rows are those of `optimize export --format verl --as jsonl`. A fault of the service's is an error of the rollout, and no reward.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from kernel_service import begin, call, close, outcome

__all__ = ["KernelTaskset"]


class KernelState(vf.State):
    path: str = ""  # where the service keeps the rollout


class KernelTools(vf.Toolset[vf.ToolsetConfig, KernelState]):
    """The tools of a rollout."""

    TOOL_PREFIX = None

    @vf.tool
    async def update(self, source: str, rationale: str) -> str:
        """Compile a whole file that defines ModelNew. It becomes an attempt with a number."""
        return await self._called("update", {"source": source, "rationale": rationale})

    @vf.tool
    async def bench(self, attempt: int) -> str:
        """Check an attempt on every shape and many kinds of inputs, and time it where there is a GPU."""
        return await self._called("bench", {"attempt": attempt})

    async def _called(self, name: str, arguments: dict[str, Any]) -> str:
        return str((await asyncio.to_thread(call, self.state.path, name, arguments))["text"])


class KernelTaskConfig(vf.TaskConfig):
    """`reward` is named as in `optimize export --reward`."""

    reward: str = "fast_0"
    max_attempts: int = 8
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class KernelData(vf.TaskData):
    wanted: dict[str, Any]  # what a rollout is begun with


class KernelTask(vf.Task[KernelData, KernelState, KernelTaskConfig]):
    """Write a kernel for a reference, with tools."""

    async def setup(self, trace: Any, runtime: Any) -> None:
        """Begin the rollout in the service."""
        asked = {"reward": self.config.reward, "limits": {"max_attempts": self.config.max_attempts}}
        trace.state.path = (await asyncio.to_thread(lambda: begin(**self.data.wanted, **asked)))["path"]

    @classmethod
    def toolsets(cls, config: KernelTaskConfig) -> list[vf.Toolset]:
        """The one server."""
        return [KernelTools(config.tools)]

    @vf.reward
    async def kernel(self, trace: Any) -> dict[str, float]:
        """The best attempt's reward; none where nobody knows."""
        try:
            found = (await asyncio.to_thread(outcome, trace.state.path))["reward"]
        finally:
            await asyncio.to_thread(close, trace.state.path)
        return {} if found is None else {"kernel": float(found)}


class KernelConfig(vf.TasksetConfig):
    """`rows`: a file of `optimize export --format verl --as jsonl`."""

    rows: Path = Path("rows.jsonl")
    task: KernelTaskConfig = KernelTaskConfig()


class KernelTaskset(vf.Taskset[KernelTask, KernelConfig]):
    """A task for each row."""

    def load(self) -> Iterator[KernelTask]:
        """In the order of the file."""
        for row in map(json.loads, self.config.rows.read_text(encoding="utf-8").splitlines()):
            create = row["extra_info"]["tools_kwargs"]["bench"]["create_kwargs"]
            code = None if row["extra_info"]["type"] == "builtin" else row["reward_model"]["ground_truth"]
            wanted = {"task": create["task"], "reference_code": code, "language": create["language"]}
            system, user = (message["content"] for message in row["prompt"])
            data = KernelData(name=create["task"], prompt=user, system_prompt=system, wanted=wanted)
            yield KernelTask(data, self.config.task)


if __name__ == "__main__":  # verifiers starts it so
    KernelTools.run()
