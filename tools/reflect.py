"""The `reflect` tool: what the evidence says about an attempt, and whether a hypothesis held. Pure."""

from collections.abc import Sequence
from typing import Literal

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.schema.verdict import KernelReport, Verdict

NOISE = 0.005  # a change below this share of the parent's time is no evidence either way


def evidence(
    task: TaskSpec, verdict: Verdict, kernels: Sequence[KernelReport], parent: Verdict | None
) -> dict[str, Json]:
    """Facts about an attempt: what the compiler reports, its place on the roofline, the change to its parent."""
    facts: dict[str, Json] = {
        "status": verdict.status.value,
        "arithmetic_intensity": round(task.main.flops / task.main.bytes_moved, 3) if task.main.bytes_moved else None,
        "registers": [k.registers for k in kernels],
        "spill_bytes": sum(k.spill_store_bytes + k.spill_load_bytes for k in kernels),
        "occupancy": [k.occupancy for k in kernels],
        "shared_bytes": [k.shared_bytes for k in kernels],
        "source": "compiler report",
    }
    if verdict.timing and verdict.sol_fraction is not None:
        facts["speed_of_light_fraction"] = round(verdict.sol_fraction, 4)
        facts["coverage"] = verdict.coverage
    if verdict.timing and parent and parent.timing:
        facts["time_ratio_to_parent"] = round(verdict.timing.median_us / parent.timing.median_us, 4)
    return facts


def outcome(key: tuple[float, ...], parent_key: tuple[float, ...]) -> Literal["open", "confirmed", "refuted"]:
    """Whether a predicted improvement happened, by rank keys (smaller is better).

    A first attempt has no parent and stays open; an attempt that is not accepted refutes its hypothesis. Only times
    decide: a key of several numbers is what a compiler says where there is no clock, and a claim about speed is open
    there whatever came of the attempt.
    """
    if len(parent_key) != 1 or len(key) > 1:
        return "open"
    if not key:
        return "refuted"
    change = 1.0 - key[0] / parent_key[0]
    return "open" if abs(change) < NOISE else "confirmed" if change > 0 else "refuted"
