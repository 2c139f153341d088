"""Values of small tensors that host code made from constants, for the rare host code that reads them back."""

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tools.plan.build import reads, writes
from tools.plan.recorder import Tape
from tools.plan.refusal import READS_VALUE, Refused
from tools.plan.replay import Replay
from tools.plan.schema import Aten, Plan, Storage, TensorRef

_RANDOM = ("uniform", "normal", "rand", "bernoulli")


def constant_scalar(tape: Tape, tensor: torch.Tensor) -> Any:
    """The Python value of a one-element tensor that depends on constants only. Raises Refused otherwise."""
    ref = tape.ref(tensor)
    steps = _producers(tape, ref)
    storages = tuple(
        Storage(n, size, "constant" if n in tape.constants else "scratch", data=tape.constants.get(n))
        for n, size in tape.nbytes.items()
    )
    outputs = {"$tensor": ref.__dict__ | {"shape": list(ref.shape), "stride": list(ref.stride)}}
    plan = Plan("", "", "", storages, (), (), tuple(steps), outputs)
    with _disable_current_modes():
        value: Any = Replay(plan, "cpu", None, {}).run()
        return value.item()


def _producers(tape: Tape, ref: TensorRef) -> list[Aten]:
    needed, kept = {ref.storage}, []
    for step in reversed(tape.steps):
        if not writes(step) & needed:
            continue
        if not isinstance(step, Aten) or any(word in step.op for word in _RANDOM):
            raise Refused(READS_VALUE)
        kept.append(step)
        needed |= reads(step)
    made = set().union(*map(writes, kept)) if kept else set()
    if needed - made - set(tape.constants):
        raise Refused(READS_VALUE)
    return kept[::-1]
