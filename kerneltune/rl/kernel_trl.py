"""TRL (1.16) over the evaluator's service: a reward function and an environment.

    GRPOTrainer(model, reward_funcs=kernel_reward, train_dataset=rows)          # an answer is a whole file
    GRPOTrainer(model, environment_factory=KernelEnv, train_dataset=rows)       # calls of tools

Rows are those of `optimize export --format verl`. A reward that nobody knows is None, which TRL leaves out.
"""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kernel_service import Fault, begin, call, close, outcome, reward_of

REWARD = os.environ.get("KERNELTUNE_REWARD", "fast_0")  # as `optimize export --reward` names them
TOLD = "\n\nUse the tools: `update` compiles a whole file and gives it a number, `bench` checks and times that number."


def _wanted(row: dict[str, Any]) -> dict[str, Any]:
    create = row["extra_info"]["tools_kwargs"]["bench"]["create_kwargs"]
    what = {"task": create["task"]} if row["extra_info"]["type"] == "builtin" else {}
    return {"reference_code": None if what else row["reward_model"]["ground_truth"], **what, "language": create["language"], "reward": REWARD}  # fmt: skip


def kernel_reward(
    completions: list[Any], extra_info: list[Any], reward_model: list[Any], **_: Any
) -> list[float | None]:
    """What the file in each answer is worth; a group is judged side by side."""
    rows = [_wanted({"extra_info": e, "reward_model": r}) for e, r in zip(extra_info, reward_model, strict=True)]
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda text, row: reward_of(text, **row), texts, rows))


class KernelEnv:
    """A rollout of tool calls. `turns`: with reward and return, once `get_reward` was asked; `ends`: which of the policy's speeches
    ended each, where the trainer counts them in `speech` (TurnGRPO does), the first as 0."""

    _path = ""

    def reset(self, **row: Any) -> str:
        """Begin a rollout of this row's task; what is appended to its prompt."""
        if self._path:  # of the rollout before, whose place it would keep for some minutes
            close(self._path)
        self._path, self.turns, self.ends = "", [], []
        self.speech, self._newest = -1, 0
        with contextlib.suppress(Fault):  # get_reward says None
            self._path = begin(**_wanted(row))["path"]
        return TOLD

    def _called(self, name: str, arguments: dict[str, Any]) -> str:
        try:
            told = (
                call(self._path, name, arguments)
                if self._path
                else {"text": "The evaluator cannot be asked.", "attempt": None}
            )
        except Fault:
            self._path = ""
            return "The evaluator cannot be asked any more."
        number = told["attempt"]["number"] if name == "update" and told["attempt"] else -1
        if number > self._newest:  # else it repeats a source
            self._newest = number
            self.ends.append(self.speech)
        return str(told["text"])

    def update(self, source: str, rationale: str) -> str:
        """Compile a file that defines ModelNew. It becomes an attempt with a number.

        Args:
            source: The whole file.
            rationale: One line: what is tried, and why it should help.
        """
        return self._called("update", {"source": source, "rationale": rationale})

    def bench(self, attempt: int) -> str:
        """Check an attempt on every shape and many kinds of inputs, and time it where there is a GPU.

        Args:
            attempt: The number that `update` gave.
        """
        return self._called("bench", {"attempt": attempt})

    def get_reward(self) -> float | None:
        """The best of the rollout; None where the service failed, or where nobody knows."""
        try:
            told = outcome(self._path) if self._path else {"reward": None, "turns": []}
        except Fault:
            told = {"reward": None, "turns": []}
        self.turns = told["turns"]
        return None if told["reward"] is None else float(told["reward"])
