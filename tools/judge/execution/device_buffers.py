"""The judge's device buffers that a runner maps: inputs and parameters in slots, and room for outputs.

A pristine copy of everything that the runner can write to but should not stays in the judge's own memory. Large inputs
have none where the runner maps them for reading only: 6 GB for a second time, of what no kernel can change.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing

import torch

from kerneltune.tools.backends.base import Backend
from kerneltune.tools.backends.runner_messages import Shared
from kerneltune.tools.judge.correctness.reference_model import Drawn
from kerneltune.tools.judge.correctness.tree import Tree, leaves, like, map_tensors, write, write_promised
from kerneltune.tools.judge.execution.guard_pages import regions_of, same_bits
from kerneltune.tools.replay.replay import (
    ALIGNMENT,
    OutputLayout,
    dense,
    dense_bytes,
    map_outputs,
    output_layout,
    poison,
    view_of,
)
from kerneltune.tools.schema.plan import Plan, TensorRef
from kerneltune.tools.schema.task import contract_of
from kerneltune.tools.schema.verdict import CaseResult

_MOST_COPIED_BYTES = 4 << 30  # of inputs, or of outputs that were right


def without_data(inputs: Tree) -> Tree:
    """The same tree with tensors that have sizes, strides and dtypes but no memory."""
    return map_tensors(lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta"), inputs)


class InputBuffers:
    """`slots` sets of inputs and one set of parameters. Of `sample`, no more is kept than how its inputs look."""

    def __init__(self, backend: Backend, sample: Drawn, slots: int) -> None:
        named = [(path, leaf) for path, leaf in leaves(sample.inputs) if isinstance(leaf, torch.Tensor)]
        self._backend, self._sample, self.slots = backend, without_data(sample.inputs), slots
        self.regions, self.stride = regions_of(named, sample.contracts)
        self._contracts = sample.contracts
        self.state_regions, state_bytes = regions_of(list(sample.state.items()))
        with ExitStack() as made:  # pages that nobody closes stay for good
            self.buffer = made.enter_context(closing(backend.allocate(self.stride * slots)))
            self.state_buffer = made.enter_context(closing(backend.allocate(max(state_bytes, ALIGNMENT))))
            made.callback(backend.synchronize)
            poison(self.buffer.tensor, 1)
            poison(self.state_buffer.tensor, 1)
            for region, tensor in zip(self.state_regions, sample.state.values(), strict=True):
                write(self.state_buffer.tensor[region.offset :], tensor)
            self._pristine_state = self.state_buffer.tensor.clone()
            copied = not self.buffer.guarded or self.buffer.nbytes <= _MOST_COPIED_BYTES
            self._pristine = self.buffer.tensor.clone() if copied else None
            made.pop_all()

    @property
    def nbytes(self) -> int:
        """Bytes of pages; the pristine copies are torch's."""
        return self.buffer.nbytes + self.state_buffer.nbytes

    def fill(self, slot: int, inputs: Tree) -> None:
        """New contents for a slot."""
        found = [leaf for _, leaf in leaves(inputs) if isinstance(leaf, torch.Tensor)]
        for region, tensor in zip(self.regions, found, strict=True):
            contract = contract_of(self._contracts, region.name)
            for buffer in (self.buffer.tensor, *([] if self._pristine is None else [self._pristine])):
                write_promised(buffer[slot * self.stride + region.offset :], tensor, contract, slot)

    def tree(self, slot: int, *, pristine: bool = False) -> Tree:
        """The arguments of forward over a slot's memory, or over the `pristine` copy where there is one."""
        base = self._pristine if pristine and self._pristine is not None else self.buffer.tensor
        places = iter(self.regions)

        def place(tensor: torch.Tensor) -> torch.Tensor:
            region = next(places)
            start = slot * self.stride + region.offset
            return like(base[start : start + region.nbytes], tensor)

        return map_tensors(place, self._sample)

    def harmed(self) -> str:
        """Name the buffer that a runner has changed, slack included; "" when none. What was changed is put right."""
        for name, buffer, pristine in (
            ("inputs", self.buffer.tensor, self._pristine),
            ("parameters", self.state_buffer.tensor, self._pristine_state),
        ):
            if pristine is not None and not torch.equal(buffer.view(torch.int64), pristine.view(torch.int64)):
                buffer.copy_(pristine)
                self._backend.synchronize()
                return name
        return ""

    def holds(self, slot: int, inputs: Tree) -> bool:
        """Whether a slot holds these inputs, bit by bit."""
        return same_bits(self.tree(slot), inputs)

    def shared(self, fds: list[int]) -> tuple[Shared, Shared]:
        """What a runner needs to map inputs and parameters, for reading only; appends descriptors for it to `fds`."""
        return self.buffer.share(fds, writable=False), self.state_buffer.share(fds, writable=False)

    def close(self) -> None:
        """Free the memory."""
        self._backend.synchronize()
        self.buffer.close()
        self.state_buffer.close()
        self._pristine, self._pristine_state = None, torch.empty(0, dtype=torch.uint8)


class OutputBuffers:
    """Room for a plan's outputs in `slots` sets."""

    def __init__(self, backend: Backend, plan: Plan, slots: int) -> None:
        self._backend, self.plan, self.slots = backend, plan, slots
        self.layout: OutputLayout = output_layout(plan)
        self.stride = self.layout.nbytes
        self.buffer = backend.allocate(self.stride * slots)
        self._right: dict[str, tuple[Tree, CaseResult]] = {}

    def tree(self, slot: int, base: torch.Tensor | None = None) -> Tree:
        """What forward returned for a slot."""
        flat = (self.buffer.tensor if base is None else base)[slot * self.stride : (slot + 1) * self.stride]
        copied = dict(self.layout.copied)

        def leaf(ref: TensorRef) -> torch.Tensor:
            if ref in copied:
                return view_of(flat[copied[ref] : copied[ref] + dense_bytes(ref)], dense(ref))
            at = self.layout.bound[ref.storage]
            return view_of(flat[at : at + self.plan.storage(ref.storage).nbytes], ref)

        return map_outputs(self.plan.outputs, leaf)

    def judged(self, slot: int, contents: str, judge: Callable[[Tree], CaseResult]) -> CaseResult:
        """What `judge` finds in a slot's outputs; where they are, bit by bit, those that were found right for the same
        `contents`, the same without looking. A copy is judged: the memory is the runner's, too."""
        found = self.tree(slot)
        outputs, result = self._right.get(contents, (None, None))
        if result is not None and same_bits(found, outputs):
            return result
        if self.stride * self.slots > _MOST_COPIED_BYTES:
            return judge(found)
        copy = map_tensors(torch.clone, found)
        result = judge(copy)
        if result.ok:
            if len(self._right) == self.slots:  # contents of before
                self._right.clear()
            self._right[contents] = copy, result
        return result

    def poisoned(self, slot: int, turn: int) -> Tree:
        """What the slot's outputs held before a run with that poison (a copy)."""
        copy = torch.empty_like(self.buffer.tensor)
        poison(copy, turn)
        return self.tree(slot, copy)

    def shared(self, fds: list[int]) -> Shared:
        """What a runner needs to map it; appends a descriptor for it to `fds`."""
        return self.buffer.share(fds, writable=True)

    def close(self) -> None:
        """Free the memory."""
        self._backend.synchronize()
        self._right.clear()
        self.buffer.close()
