"""GRPO with the advantages of turns (Dr.Kernel's TRLOO) for TRL (1.16), in one process.

TurnGRPO(model, environment_factory=KernelEnv, train_dataset=rows)
"""

from typing import Any

import torch
from trl import GRPOTrainer


class TurnGRPO(GRPOTrainer):  # type: ignore[misc]
    """The advantage of a turn is its return less the mean of the others' in its group, for the tokens that led to it."""

    def _generate_single_turn(self, *given: Any, **more: Any) -> Any:
        for environment in self.environments or ():
            environment.speech += 1  # whoever still speaks: TRL asks once for the next speech of all these
        return super()._generate_single_turn(*given, **more)

    def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
        made: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mask = made["completion_mask"] * made.get("tool_mask", made["completion_mask"])
        turns = [[turn["return"] for turn in env.turns] for env in self.environments]
        made["advantages"] = turn_advantages(turns, [e.ends for e in self.environments], mask, self.num_generations).to(
            mask.device
        )
        return made


def turn_advantages(
    turns: list[list[float | None]], ends: list[list[int]], mask: torch.Tensor, size: int
) -> torch.Tensor:
    """(rollouts, tokens). `turns`: returns, by rollout; `ends`: which of the policy's speeches ended each; `mask`: 1 where the
    policy speaks. What follows the last turn is part of it. A turn that no other rollout of its group has moves nothing."""
    found = torch.zeros(mask.shape, dtype=torch.float32)
    for i, returns in enumerate(turns):
        group = turns[i - i % size : i - i % size + size]
        starts = [j for j in range(mask.shape[1]) if mask[i, j] and (j == 0 or not mask[i, j - 1])] + [mask.shape[1]]
        for t, own in enumerate(returns):
            others = [o[t] for k, o in enumerate(group) if k != i % size and t < len(o) and o[t] is not None]
            first = starts[min(ends[i][t - 1] + 1, len(starts) - 1)] if t else 0
            last = starts[min(ends[i][t] + 1, len(starts) - 1)] if t + 1 < len(returns) else mask.shape[1]
            if own is not None and others:
                found[i, first:last] = own - sum(others) / len(others)
    return found * mask.cpu()
