"""Replays a plan on the CPU: ATen steps by torch, kernels by the interpreter of their language. Runs confined, in
a fresh child.

No code of the candidate runs here, only its plan; inputs arrive as bytes and outputs leave as bytes. What they should
have been is known elsewhere.
"""

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kerneltune.tools.languages.base import NotInterpreted, device_code, effects_of, launch_effects
from kerneltune.tools.languages.triton.ttir.memory import DescriptorValue, Pointer
from kerneltune.tools.replay.replay import Replay, TensorDescriptor, gather_outputs
from kerneltune.tools.replay.shared_memory import mapped
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.messages import UNCHECKABLE, InterpretReply, InterpretRequest
from kerneltune.tools.schema.plan import (
    EMPTY,
    FILLS,
    NO_OPS,
    ArgEffect,
    Kernel,
    Launch,
    Plan,
    Step,
    TensorRef,
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
    """Launches kernels in the interpreters of their languages. `leads`: by the address of a memory, how many bytes of
    it come before its tensor."""

    def __init__(self, leads: Mapping[int, int] | None = None) -> None:
        self._leads = leads or {}

    def launch(
        self, kernel_index: int, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Any], launch: Launch
    ) -> None:
        """Run every program, or block, of the grid. Raises NotInterpreted."""
        device_code(kernel.language).interpret(
            kernel, grid, [_argument(i, a, leads=self._leads) for i, a in enumerate(args)], launch
        )


class TooLarge(NotInterpreted):
    """A plan wants more memory than this process may have."""

    problem = UNCHECKABLE


class NotSampled(NotInterpreted):
    """Some programs of a plan say nothing of what the others would, and why."""

    problem = UNCHECKABLE


_AT_ONCE = 2  # programs of a sample, between two looks at the clock
_MOST_MADE_BYTES = 2 << 30  # by torch's operators, which have no sample


class _SampleLauncher:
    """Runs what prepares a plan whole, and some programs of those launches of its run that read nothing another program
    writes; `writes` has the byte offsets of what the last launch to write there wrote, with the size of the elements,
    by the address of the memory: what an earlier one wrote, programs that are not run may overwrite."""

    def __init__(self, request: InterpretRequest) -> None:
        self._most, self._until_s = request.most_programs, time.process_time() + request.sample_s
        self._left_out, self.known = _independent(request.plan)
        self._prepares = {id(step) for step in request.plan.prepare}
        self.ran, self.programs, self.in_part = 0, 0, False
        self.writes: dict[int, list[tuple[Any, int]]] = {}

    def launch(
        self, kernel_index: int, kernel: Kernel, grid: tuple[int, int, int], args: Sequence[Any], launch: Launch
    ) -> None:
        """Run a sample of the grid: the first few in any case, others while there is time. Raises NotInterpreted."""
        if id(launch) in self._left_out:
            return
        if id(launch) in self._prepares:
            InterpreterLauncher().launch(kernel_index, kernel, grid, args, launch)
            return
        for effect, value in zip(device_code(kernel.language).effects(kernel), args, strict=False):
            if effect.writes and isinstance(value, torch.Tensor | TensorDescriptor):
                tensor = value.tensor if isinstance(value, TensorDescriptor) else value
                self.writes[tensor.untyped_storage().data_ptr()] = []
        values = [_argument(i, a, self.writes) for i, a in enumerate(args)]
        total = math.prod(grid)
        chosen = sample(grid, self._most) if self._most < total else list(range(total))
        self.programs += total
        for at in range(0, len(chosen), _AT_ONCE):
            if at and time.process_time() > self._until_s:  # which others who are busy do not use up
                break
            some = chosen[at : at + _AT_ONCE]
            ended = device_code(kernel.language).interpret(kernel, grid, values, launch, some, self._until_s)
            self.ran, self.in_part = self.ran + len(some), self.in_part or not ended

    def written(self, replay: Replay, ref: TensorRef) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Numbers of the elements of an output that were written, ascending, and their bytes."""
        view = replay.view(ref)
        found = self.writes.get(view.untyped_storage().data_ptr(), []) if ref.storage in self.known else []
        if not found:
            return np.empty(0, np.int64), np.empty(0, np.uint8)
        if not view.is_contiguous():
            raise NotSampled("its outputs are not row-major")
        size = view.element_size()
        offsets = [(at[:, None] + np.arange(0, width, min(size, width))).reshape(-1) for at, width in found]
        elements = np.sort(np.concatenate(offsets) // size) - view.storage_offset()  # np.unique: 5 s for 2 million
        distinct = np.diff(elements, prepend=-1) != 0
        elements = elements[distinct & (elements >= 0) & (elements < view.numel())]
        raw = view.reshape(-1).view(torch.uint8).numpy().reshape(-1, size)
        return elements, raw[elements].reshape(-1)


def sample(grid: tuple[int, int, int], most: int) -> list[int]:
    """Linear ids of programs, `most` at most: the first, the last, those at the ends of each axis; and one of each of
    as many equal parts of the grid as there is room for, which nobody foresees, in an order that nobody foresees.

    The parts bound what is missed: 10 programs drawn from the whole of 70,000 all missed the 47 % whose int32 offsets
    are negative once in 550 runs; one of each tenth of the grid cannot."""
    total, (x, y, _) = math.prod(grid), grid
    ends = list(dict.fromkeys([0, total - 1, x - 1, x * y - 1, total - x, total - x * y][:most]))
    parts = most - len(ends)
    starts = [total * part // parts for part in range(parts)]
    drawn = [secrets.choice(range(start, end)) for start, end in pairwise([*starts, total])]
    secrets.SystemRandom().shuffle(drawn)
    return list(dict.fromkeys(ends + drawn))


def _independent(plan: Plan) -> tuple[set[int], set[int]]:
    """Of a plan's run, the launches (by id) whose programs read what others may have written, and the storages of
    which all that is written comes from the other launches. Raises NotSampled where a sample says nothing."""
    left_out, known, unknown, made_bytes = set[int](), set[int](), set[int](), 0
    effects = effects_of(plan.kernels)
    for step in plan.run:
        reads, writes = _touched(step, effects)
        if isinstance(step, Launch):
            depends = bool(reads & (known | unknown | writes))
            left_out |= {id(step)} if depends else set()
            (unknown if depends else known).update(writes)
            continue
        made_bytes += 0 if base_name(step.op) in EMPTY else sum(plan.storage(n).nbytes for n in writes)
        if step.library:
            raise NotSampled("library operators follow from its launches, or these from them")
        if made_bytes > _MOST_MADE_BYTES:
            raise NotSampled(f"torch's operators make {made_bytes / 1e9:.1f} GB of its tensors")
        if reads & (known | unknown) or writes & known:
            unknown |= writes
    known -= unknown
    if not known & {ref.storage for ref in tensor_refs(plan.outputs)}:
        raise NotSampled("its programs read what others may have written")
    return left_out, known


def _touched(step: Step, effects: Sequence[Sequence[ArgEffect]]) -> tuple[set[int], set[int]]:
    """Storages that a step reads and writes."""
    if not isinstance(step, Launch):
        made = {ref.storage for ref in step.outs if ref is not None}
        if base_name(step.op) in NO_OPS or base_name(step.op) in EMPTY or base_name(step.op) in FILLS:
            return set(), set() if base_name(step.op) in NO_OPS else made
        return {ref.storage for ref in tensor_refs([list(step.args), dict(step.kwargs)])}, made
    reads, writes = set[int](), set[int]()
    for ref, effect in launch_effects(step, effects):
        reads |= {ref.storage} if effect.reads else set()
        writes |= {ref.storage} if effect.writes else set()
    return reads, writes


_Writes = dict[int, list[tuple[Any, int]]]


def _argument(index: int, value: Any, writes: _Writes | None = None, leads: Mapping[int, int] | None = None) -> Any:
    if isinstance(value, torch.Tensor):
        return _pointer(value, f"argument {index}", writes, leads or {})
    if isinstance(value, TensorDescriptor):
        shape, strides = tuple(value.tensor.shape), tuple(value.tensor.stride())
        pointer = _pointer(value.tensor, f"argument {index}", writes, leads or {})
        return DescriptorValue(
            pointer, shape, strides, value.block_shape, _ttir_name(value.tensor.dtype), value.padding
        )
    return value


def _ttir_name(dtype: torch.dtype) -> str:
    """A dtype as TTIR spells it: float32 is f32, and integers have no sign."""
    if dtype in _OWN_NAMES:
        return _OWN_NAMES[dtype]
    return f"{'f' if dtype.is_floating_point else 'i'}{dtype.itemsize * 8}"


def _pointer(tensor: torch.Tensor, name: str, writes: _Writes | None, leads: Mapping[int, int]) -> Pointer:
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    added = None if writes is None else writes.setdefault(storage.data_ptr(), [])
    offset, lead = int(tensor.storage_offset()) * tensor.element_size(), leads.get(storage.data_ptr(), 0)
    return Pointer(whole.numpy(), offset, name, added, lead)


_CHANGES = (
    "a second call with the same inputs gives something else: it depends on memory that the first call left behind"
)


def warm() -> None:
    """Import what forks use, so that they need not (0.1 s on an idle machine; 0.05 s of it for PTX alone)."""
    import numpy.ma  # noqa: F401 - numpy.unique does

    import kerneltune.tools.languages.ptx.sim.launch  # noqa: F401

    device_code("ttir")


def main(channel: Any) -> None:
    """Answer InterpretRequests until the supervisor closes the socket."""
    wire.serve(channel, {InterpretRequest: interpret})


def interpret(
    request: InterpretRequest, blobs: Sequence[bytes], fds: Sequence[int] = ()
) -> tuple[InterpretReply, list[Any]]:
    """Replay once and return the outputs' bytes; a plan that cannot be replayed is a reply, not an exception."""
    try:
        return _sampled(request, fds[0]) if request.most_programs else _replayed(request, blobs)
    except NotInterpreted as error:
        return InterpretReply(problem=error.problem, detail=error.detail), []
    except Exception as error:  # noqa: BLE001 - whatever torch raises on this plan (IndexError, OverflowError) is its failure
        return InterpretReply(problem="failed", detail=f"{type(error).__name__}: {error}"), []


def _replayed(request: InterpretRequest, blobs: Sequence[bytes]) -> tuple[InterpretReply, list[Any]]:
    storages = {n: _placed(b, request.leads.get(n, 0)) for n, b in zip(request.names, blobs, strict=True)}
    leads = {storages[n].untyped_storage().data_ptr(): lead for n, lead in request.leads.items() if n in storages}
    replay = Replay(request.plan, "cpu", InterpreterLauncher(leads), storages, allocate=_allocated)
    replay.prepare()
    leaves: list[np.ndarray[Any, Any]] = []
    outputs = gather_outputs(replay.run(), leaves)
    leaves = [leaf.copy() for leaf in leaves]
    if (second := replay.again()) is not None and not _are(leaves, second):
        return InterpretReply(problem="changes", detail=_CHANGES), []
    if harmed := next((n for n, b in zip(request.names, blobs, strict=True) if storages[n].numpy().data != b), None):
        kind, _, name = harmed.partition(":")
        words = f"its {kind} {name}" if kind == "input" else f"its parameter or buffer {name!r}"
        return InterpretReply(problem="overwrites", detail=f"{words}; write results to memory of your own"), []
    return InterpretReply(outputs=outputs), leaves


def _sampled(request: InterpretRequest, fd: int) -> tuple[InterpretReply, list[Any]]:
    """The same for some programs at a shape whose outputs nobody could hold: pages that nobody writes take none."""
    launcher = _SampleLauncher(request)
    storages = {part.name: torch.from_numpy(mapped(fd, part)) for part in request.parts}
    replay = Replay(request.plan, "cpu", launcher, storages, allocate=_untouched, poisons=False)
    replay.prepare()
    for step in request.plan.run:
        replay.run_step(step)
    leaves: list[np.ndarray[Any, Any]] = []

    def leaf(ref: TensorRef) -> Json:
        leaves.extend(launcher.written(replay, ref))
        return {"$blob": len(leaves) - 2, "dtype": ref.dtype, "shape": list(ref.shape)}

    outputs = [leaf(ref) for ref in tensor_refs(request.plan.outputs)]
    ran, programs = launcher.ran, launcher.programs
    return InterpretReply(outputs=outputs, ran=ran, programs=programs, in_part=launcher.in_part), leaves


def _placed(data: bytes, lead: int) -> torch.Tensor:
    """The bytes in a memory of their own, behind `lead` others."""
    held = bytearray(lead) + data
    return torch.frombuffer(held, dtype=torch.uint8)[lead:] if held else torch.empty(0, dtype=torch.uint8)


def _allocated(nbytes: int) -> torch.Tensor:
    """Memory of that size. Raises TooLarge where this process may not have as much."""
    try:
        return torch.empty(nbytes, dtype=torch.uint8)
    except RuntimeError as error:  # torch has no exception of its own for this
        raise TooLarge(f"a tensor of {nbytes:,} bytes does not fit into the memory there is") from error


def _untouched(nbytes: int) -> torch.Tensor:
    return torch.from_numpy(np.zeros(nbytes, np.uint8))  # torch's own zeros are written


def _are(leaves: Sequence[np.ndarray[Any, Any]], outputs: Any) -> bool:
    """Whether outputs are these bytes."""
    others: list[np.ndarray[Any, Any]] = []
    gather_outputs(outputs, others)
    return all(np.array_equal(one, other) for one, other in zip(leaves, others, strict=True))
