"""Replays a plan on the CPU: ATen steps by torch, kernels by the interpreter of their language. Runs confined, in
a fresh child.

No code of the candidate runs here, only its plan; inputs arrive as bytes and outputs leave as bytes. What they should
have been is known elsewhere.
"""

import math
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kerneltune.tools.languages.base import NotInterpreted, language, launch_effects
from kerneltune.tools.languages.triton.ttir.memory import DescriptorValue, Pointer
from kerneltune.tools.replay.replay import Replay, TensorDescriptor, gather_outputs
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.messages import UNCHECKABLE, InterpretReply, InterpretRequest
from kerneltune.tools.schema.plan import (
    EMPTY,
    Aten,
    Kernel,
    Launch,
    Plan,
    base_name,
    tensor_refs,
)

_OWN_NAMES = {
    torch.bool: "i8",  # in memory
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
}


class InterpreterLauncher:
    """Launches kernels in the interpreters of their languages; of a launch of more than `most_programs` (0: no limit) a
    sample, of which `ran` and `programs` tell."""

    def __init__(self, most_programs: int = 0) -> None:
        self._most, self.ran, self.programs = most_programs, 0, 0

    def launch(
        self, kernel_index: int, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Any], launch: Launch
    ) -> None:
        """Run every program, or block, of the grid. Raises NotInterpreted."""
        values = [_argument(i, a) for i, a in enumerate(args)]
        chosen = sample(grid, self._most) if 0 < self._most < math.prod(grid) else None
        language(kernel.language).interpret(kernel, grid, values, launch, chosen)
        self.ran += math.prod(grid) if chosen is None else len(chosen)
        self.programs += math.prod(grid)


def sample(grid: tuple[int, int, int], most: int) -> list[int]:
    """Linear ids of programs: the first, the last, those at the ends of each axis, and others that nobody foresees."""
    total, (x, y, _) = math.prod(grid), grid
    ends = [0, total - 1, x - 1, x * y - 1, total - x, total - x * y]
    chosen = dict.fromkeys(ends[:most])
    while len(chosen) < most:
        chosen[secrets.randbelow(total)] = None
    return sorted(chosen)


def _why_not_sampled(plan: Plan) -> str:
    """Why some programs of a plan say nothing of what the others would; "" where they do."""
    empty = [step for step in plan.run if isinstance(step, Aten) and base_name(step.op) in EMPTY]
    made = {ref.storage for step in empty for ref in step.outs if ref is not None}
    read, written = set[int](), set[int]()
    for launch in (step for step in plan.run if isinstance(step, Launch)):
        for ref, effect in launch_effects(launch, plan.kernels):
            read |= {ref.storage} if effect.reads else set()
            written |= {ref.storage} if effect.writes else set()
    if read & written:
        return "its programs read what others may have written"
    if any(isinstance(step, Aten) and step.library for step in plan.run):
        return "library operators follow from its launches, or these from them"
    if not {ref.storage for ref in tensor_refs(plan.outputs)} <= made:
        return "its outputs hold something before its launches"
    return ""


def _argument(index: int, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _pointer(value, f"argument {index}")
    if isinstance(value, TensorDescriptor):
        shape, strides = tuple(value.tensor.shape), tuple(value.tensor.stride())
        pointer = _pointer(value.tensor, f"argument {index}")
        return DescriptorValue(
            pointer, shape, strides, value.block_shape, _ttir_name(value.tensor.dtype), value.padding
        )
    return value


def _ttir_name(dtype: torch.dtype) -> str:
    """A dtype as TTIR spells it: float32 is f32, and integers have no sign."""
    if dtype in _OWN_NAMES:
        return _OWN_NAMES[dtype]
    return f"{'f' if dtype.is_floating_point else 'i'}{dtype.itemsize * 8}"


def _pointer(tensor: torch.Tensor, name: str) -> Pointer:
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    return Pointer(whole.numpy(), int(tensor.storage_offset()) * tensor.element_size(), name)


_CHANGES = (
    "a second call with the same inputs gives something else: it depends on memory that the first call left behind"
)


def warm() -> None:
    """Import what most forks use, so that they need not (0.1 s on an idle machine)."""
    language("ttir")


def main(channel: Any) -> None:
    """Answer InterpretRequests until the supervisor closes the socket."""
    wire.serve(channel, {InterpretRequest: interpret})


def interpret(request: InterpretRequest, blobs: Sequence[bytes]) -> tuple[InterpretReply, list[Any]]:
    """Replay once and return the outputs' bytes; a plan that cannot be replayed is a reply, not an exception."""
    if request.most_programs and (why := _why_not_sampled(request.plan)):
        return InterpretReply(problem=UNCHECKABLE, detail=why), []
    launcher = InterpreterLauncher(request.most_programs)
    storages = {n: torch.frombuffer(bytearray(b), dtype=torch.uint8) for n, b in zip(request.names, blobs, strict=True)}
    try:
        replay = Replay(request.plan, "cpu", launcher, storages)
        replay.prepare()
        leaves: list[np.ndarray[Any, Any]] = []
        outputs = gather_outputs(replay.run(), leaves)
        leaves = [leaf.copy() for leaf in leaves]
        if (second := replay.again()) is not None and not _are(leaves, second):
            return InterpretReply(problem="changes", detail=_CHANGES), []
    except NotInterpreted as error:
        return InterpretReply(problem=error.problem, detail=error.detail), []
    except (MemoryError, RuntimeError, ValueError, TypeError, KeyError) as error:
        return InterpretReply(problem="failed", detail=f"{type(error).__name__}: {error}"), []
    if harmed := next((n for n, b in zip(request.names, blobs, strict=True) if storages[n].numpy().data != b), None):
        kind, _, name = harmed.partition(":")
        words = f"its {kind} {name}" if kind == "input" else f"its parameter or buffer {name!r}"
        return InterpretReply(problem="overwrites", detail=f"{words}; write results to memory of your own"), []
    return InterpretReply(outputs=outputs, ran=launcher.ran, programs=launcher.programs), leaves


def _are(leaves: Sequence[np.ndarray[Any, Any]], outputs: Any) -> bool:
    """Whether outputs are these bytes."""
    others: list[np.ndarray[Any, Any]] = []
    gather_outputs(outputs, others)
    return all(np.array_equal(one, other) for one, other in zip(leaves, others, strict=True))
