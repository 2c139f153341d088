"""verl (0.9) over the evaluator's service: a reward function, and one tool for its tool agent.

    custom_reward_function.path=…/kernel_verl.py custom_reward_function.name=compute_score
    actor_rollout_ref.rollout.multi_turn.tool_config_path=…/kernel_verl_tool.yaml      # and agent_name=tool_agent in the export

verl has no word for a reward that nobody knows: after WAIT_S without an answer of the service's, or where the tool had none in any
call of a rollout, `compute_score` raises and training ends, to go on from its checkpoint. Rows are those of `optimize export --format verl`.
"""

import asyncio
import threading
import time
from typing import Any
from weakref import WeakKeyDictionary, finalize

from kernel_service import Fault, begin, call, close, reward_of
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import ToolResponse

WAIT_S = 1800.0
UNKNOWN = float("nan")  # of a tool's reward, which `compute_score` leaves out


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, reward: str = "fast_0", **_: Any) -> float:  # fmt: skip
    """The best that the tool was told; without tool calls what the answer's file is worth. Raises Fault."""
    extra = extra_info or {}
    rewards = [float(r) for r in extra.get("tool_rewards") or ()]
    told = [r for r in rewards if r == r]
    if told:
        return max(told)
    if rewards:
        raise Fault(f"nobody knows what the {len(rewards)} calls of the tool are worth")
    create = ((extra.get("tools_kwargs") or {}).get("bench") or {}).get("create_kwargs") or {}
    ours = extra.get("type") == "builtin"
    what = {"task": extra["module_name"]} if ours else {"reference_code": ground_truth}
    until_s = time.monotonic() + WAIT_S
    while True:
        score = reward_of(solution_str, **what, language=create.get("language") or "triton", reward=reward)
        if score is not None:
            return score
        if time.monotonic() > until_s:
            raise Fault(f"nobody knows what this answer is worth by {reward}: is the service there, and has it a GPU?")
        time.sleep(10.0)


class KernelTool(BaseTool):
    """`bench(source)`: compile a file, check it, time it. verl creates and releases a tool at every call, so the rollout is kept
    by what verl keeps of it."""

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        super().__init__(config, tool_schema)
        self._asked: dict[str, dict[str, Any]] = {}
        self._paths: WeakKeyDictionary[Any, str] = WeakKeyDictionary()

    async def create(self, instance_id: str | None = None, **kwargs: Any) -> tuple[str, ToolResponse]:
        """Remember which task is meant."""
        instance_id, response = await super().create(instance_id)
        self._asked[instance_id] = kwargs.get("create_kwargs") or kwargs
        return instance_id, response

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> tuple[ToolResponse, float, dict[str, Any]]:  # fmt: skip
        """Compile and check a source; its reward."""
        rollout = kwargs["agent_data"]
        try:
            told = await asyncio.to_thread(
                self._judged, rollout, self._asked[instance_id], str(parameters.get("source") or "")
            )
        except Fault as error:
            return ToolResponse(text=f"The evaluator could not be asked: {error}"), UNKNOWN, {}
        reward = UNKNOWN if told["reward"] is None else float(told["reward"])
        return ToolResponse(text=str(told["text"])), reward, {}

    def _judged(self, rollout: Any, asked: dict[str, Any], source: str) -> dict[str, Any]:
        path = self._paths.get(rollout)
        if path is None:
            language, reward = asked.get("language") or "triton", self.config.get("reward", "fast_0")
            told = begin(asked.get("task"), asked.get("reference_code"), language=language, reward=reward)
            path = self._paths[rollout] = told["path"]
            ended = threading.Thread(target=close, args=[path], daemon=True)
            finalize(rollout, ended.start).atexit = False  # at the end of Python no thread begins
        made = call(path, "update", {"rationale": "a try", "source": source})
        if not made["attempt"] or made["attempt"]["status"] is not None:
            return made  # it did not come to an attempt, or did not compile
        return call(path, "bench", {"attempt": made["attempt"]["number"]})

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Forget the call; the rollout ends when verl forgets it."""
        self._asked.pop(instance_id, None)
