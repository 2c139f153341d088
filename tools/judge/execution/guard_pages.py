"""All memory of one plan while it is checked: every tensor in pages of its own, with canaries in what is left.

The pages lie between unmapped guards, and inputs and parameters are mapped for reading only in the runner, where the
driver can do that; then an access outside of a tensor faults as soon as it leaves the pages. What a task's contract
lets kernels read behind a tensor, or between its rows, is in its pages, too, with other values in each run. Tensors lie
at the right end of their pages or at the left one, by turns, so that both directions show. What cannot fault is found
afterwards: a changed canary, or (without read-only mappings) a changed input. Knows no device: pages come from
`allocate`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from kerneltune.tools.backends.base import SharedBuffer
from kerneltune.tools.backends.runner_messages import MAX_ROOMS, Allocation, BufferRegion, Shared
from kerneltune.tools.judge.correctness.reference_model import Drawn
from kerneltune.tools.judge.correctness.tree import (
    Tree,
    extent_bytes,
    leaves,
    like,
    portions,
    readable_bytes,
    tensors,
    write_promised,
)
from kerneltune.tools.replay.replay import ReplayError, aligned, constant_bytes, map_outputs, poison, view_of
from kerneltune.tools.schema.plan import Plan, Storage, tensor_refs
from kerneltune.tools.schema.task import POINTER_ALIGNMENT, Contract, contract_of


def regions_of(
    named: Sequence[tuple[str, torch.Tensor]], contracts: Sequence[Contract] = ()
) -> tuple[tuple[BufferRegion, ...], int]:
    """Places for named tensors one after the other, and where they end. `contracts`: of inputs, by their paths."""
    regions, end = [], 0
    for name, tensor in named:
        behind = readable_bytes(tensor, contract_of(contracts, name))
        regions.append(BufferRegion(name, end, extent_bytes(tensor), behind))
        end += aligned(extent_bytes(tensor) + behind)
    return tuple(regions), aligned(end)


def tree_bytes(tree: Tree) -> int:
    """Bytes of all tensors of a tree as they lie in memory."""
    return sum(extent_bytes(leaf) for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor))


def same_bits(left: Tree, right: Tree) -> bool:
    """Whether two trees hold the same bits (NaN equals NaN)."""
    pairs = zip(tensors(left), tensors(right), strict=True)
    return all(torch.equal(_bits(a[place]), _bits(b[place])) for a, b in pairs for place in portions(a))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor


CANARY = 0xFFFBFFFB - (1 << 32)  # NaN as float64, float32, float16 and bfloat16: reading it shows, too
MARGIN_BYTES = 2 << 20  # of mapped canaries on either side of a piece, when a fault is looked into
_OWN_ROOMS = MAX_ROOMS - 2  # pieces beyond share the last two rooms
_MOST_CONSTANT_BYTES = 1 << 30  # they are unpacked in this process
_GAP = 4096  # canaries around a piece that shares its room


@dataclass(frozen=True)
class PlacedAllocation:
    """The place of an allocation: `capacity` bytes of a room from `base` on, with `margin` kept free on either side."""

    name: str
    words: str
    nbytes: int
    writable: bool
    own: bool
    behind: int
    alignment: int
    room: int
    base: int
    capacity: int
    margin: int

    def offset(self, *, right: bool) -> int:
        """The piece's offset into its room: at the right end of its place or at the left one."""
        if right:
            return self.base + self.capacity - self.margin - self.whole
        return self.base + self.margin + self.alignment % POINTER_ALIGNMENT  # by which it is a multiple of no more

    @property
    def whole(self) -> int:
        """Bytes of the tensor and of what may be read behind it, to where an aligned one could follow."""
        return -(-(self.nbytes + self.behind) // self.alignment) * self.alignment


@dataclass(frozen=True)
class RequestedAllocation:
    """A piece before it has a place. `behind`: bytes that may be read behind it."""

    name: str
    words: str
    nbytes: int
    writable: bool
    own: bool = True
    behind: int = 0
    alignment: int = POINTER_ALIGNMENT


@dataclass(frozen=True)
class Harm:
    """What a run has changed that was not its own, in words. `overwrites`: an input or a parameter; else what lies
    beside a tensor."""

    words: str
    overwrites: bool = False


def allocations_of(
    plan: Plan, drawn: Drawn, scratch: Mapping[tuple[int, str], int], *, strict: bool
) -> list[RequestedAllocation]:
    """List all allocations that a plan may touch. `strict`: only what it makes itself may be written to."""
    given = drawn.named()
    outputs = [ref.storage for ref in tensor_refs(plan.outputs)]
    found = []
    for storage in plan.storages:
        name, own = f"{storage.origin}:{storage.name}", storage.origin not in ("input", "state")
        if storage.nbytes < 0:
            raise ReplayError(f"storage {storage.id} has {storage.nbytes} bytes")
        if storage.data is not None and storage.nbytes > _MOST_CONSTANT_BYTES:
            raise ReplayError(f"a constant of {storage.nbytes >> 20} MiB; make it on the GPU instead")
        if own or name in given:  # the runner refuses a plan that reads what there is not
            piece = RequestedAllocation(
                f"storage:{storage.id}", _words(storage, outputs), storage.nbytes, own or not strict, own
            )
            if not own:
                contract = drawn.contract(name)
                piece = replace(
                    piece,
                    nbytes=extent_bytes(given[name]),
                    behind=readable_bytes(given[name], contract),
                    alignment=contract.alignment if contract else POINTER_ALIGNMENT,
                )
            found.append(piece)
    found += [
        RequestedAllocation(f"launcher:{k}:{w}", "the compiler's scratch", n, True) for (k, w), n in scratch.items()
    ]
    if len({wanted.name for wanted in found}) != len(found):
        raise ReplayError("two storages of the plan have the same number")
    return found


def _words(storage: Storage, outputs: Sequence[int]) -> str:
    if storage.origin in ("input", "state"):
        return f"{'input' if storage.origin == 'input' else 'parameter'} {storage.name}"
    if storage.id in outputs:
        distinct = list(dict.fromkeys(outputs))
        return "the output" if len(distinct) == 1 else f"output {distinct.index(storage.id)}"
    return {"scratch": "a scratch tensor", "prepared": "a prepared tensor"}.get(storage.origin, "a constant")


def places_for(
    wanted: Sequence[RequestedAllocation], page_bytes: int, margin: int
) -> tuple[list[PlacedAllocation], list[int]]:
    """Places, and the bytes of the rooms. The largest pieces get rooms of their own when there are too many."""
    by_size = sorted(range(len(wanted)), key=lambda i: -wanted[i].nbytes)
    places: dict[int, PlacedAllocation] = {}
    rooms: list[int] = []
    for index in by_size[:_OWN_ROOMS]:
        piece = wanted[index]
        whole = aligned(_room(piece) + 2 * margin, page_bytes)
        places[index] = PlacedAllocation(**vars(piece), room=len(rooms), base=0, capacity=whole, margin=margin)
        rooms.append(whole)
    for writable in (False, True):
        rest = [i for i in by_size[_OWN_ROOMS:] if wanted[i].writable == writable]
        end = 0
        for index in rest:
            whole = aligned(_room(wanted[index]) + 2 * _GAP)
            places[index] = PlacedAllocation(
                **vars(wanted[index]), room=len(rooms), base=end, capacity=whole, margin=_GAP
            )
            end += whole
        rooms += [aligned(end, page_bytes)] if rest else []
    return [places[i] for i in range(len(wanted))], rooms


def _room(piece: RequestedAllocation) -> int:
    """Bytes that it takes wherever it lies: at the left end it is moved where it shall not be aligned."""
    return aligned(piece.nbytes + piece.behind, piece.alignment) + piece.alignment % POINTER_ALIGNMENT


class GuardedMemory:
    """The pieces of one plan. `drawn` says what the given ones look like, `scratch` what the launcher wants beside them
    (`launcher.scratch_bytes`). `strict=False` looks into a fault: margins of canaries, all of it writable.

    Raises ReplayError when the plan contradicts itself or wants more than `most_bytes` for itself; DeviceError when the
    memory is not there.
    """

    def __init__(
        self,
        plan: Plan,
        drawn: Drawn,
        scratch: Mapping[tuple[int, str], int],
        allocate: Callable[[int], SharedBuffer],
        *,
        most_bytes: int,
        page_bytes: int = 2 << 20,
        strict: bool = True,
    ) -> None:
        self.plan, self.strict = plan, strict
        wanted = allocations_of(plan, drawn, scratch, strict=strict)
        own = sum(w.nbytes for w in wanted if w.own)
        if own > most_bytes:
            raise ReplayError(f"the plan needs {own >> 20} MiB of workspace; it may have {most_bytes >> 20}")
        self.places, sizes = places_for(wanted, page_bytes, 0 if strict else MARGIN_BYTES)
        self.nbytes = sum(sizes)
        self._by_name = {place.name: place for place in self.places}
        self._rooms: list[SharedBuffer] = []
        try:
            self._rooms += (allocate(size) for size in sizes)
            self._constants = {s.id: constant_bytes(s) for s in plan.storages if s.data is not None}
        except BaseException:
            self.close()
            raise
        self._right = True
        self._drawn: Drawn | None = None
        self._runs = 0

    @property
    def guarded(self) -> bool:
        """Whether accesses outside of the pages fault, and so do writes to what is only for reading."""
        return all(room.guarded for room in self._rooms)

    def fits(self, drawn: Drawn) -> bool:
        """Whether other inputs and parameters have the sizes that these places were made for."""
        try:
            other = allocations_of(self.plan, drawn, {}, strict=self.strict)
        except ReplayError:
            return False
        return all(w.name in self._by_name and self._by_name[w.name].nbytes == w.nbytes for w in other)

    def share(self, fds: list[int]) -> tuple[tuple[Shared, ...], tuple[Allocation, ...]]:
        """What a runner needs to map it; descriptors are appended to `fds`, the caller closes them."""
        writable = {place.room for place in self.places if place.writable}
        rooms = tuple(room.share(fds, writable=i in writable) for i, room in enumerate(self._rooms))
        return rooms, tuple(Allocation(p.name, p.room, p.nbytes) for p in self.places)

    def offsets(self) -> tuple[int, ...]:
        """Offsets of the allocations now, in the order of `share`."""
        return tuple(place.offset(right=self._right) for place in self.places)

    def lay(self, drawn: Drawn, *, right: bool, turn: int, stale: Mapping[int, torch.Tensor] | None = None) -> None:
        """Prepare all memory for a run: inputs, parameters, constants; poison in what the plan makes, or in
        outputs the bytes of `stale` (by storage); canaries in between."""
        moved = self._drawn is not drawn or self._right != right
        self._drawn, self._right = drawn, right
        self._runs += 1
        given = drawn.named()
        for room in self._rooms_to_fill(everything=moved or not (self.strict and self.guarded)):
            room.tensor.view(torch.int32).fill_(CANARY)
        for storage in self.plan.storages:
            name = f"{storage.origin}:{storage.name}"
            if name in given and (moved or not (self.strict and self.guarded) or drawn.contract(name)):
                write_promised(self._whole(storage.id), given[name], drawn.contract(name), self._seed)
            elif storage.id in self._constants:
                self._flat(storage.id).copy_(self._constants[storage.id])
            elif storage.origin not in ("input", "state"):
                self._empty(storage.id, turn, stale or {})
        for place in self.places:
            if place.name.startswith("launcher"):
                poison(self._bytes(place), turn + 1)

    def forget_inputs(self) -> None:
        """Hold the inputs of the last run no longer: those of a next one may need their room."""
        self._drawn = None

    def _rooms_to_fill(self, *, everything: bool) -> list[SharedBuffer]:
        chosen = {p.room for p in self.places if everything or p.writable}
        return [self._rooms[i] for i in sorted(chosen)]

    def _empty(self, storage: int, turn: int, stale: Mapping[int, torch.Tensor]) -> None:
        flat, outputs = self._flat(storage), self.output_storages()
        poison(flat, turn if storage in outputs else turn + 1)
        if storage in stale and stale[storage].numel() == flat.numel():
            flat.copy_(stale[storage])

    def output_storages(self) -> list[int]:
        """Storages of the plan's own that it returns."""
        made = {s.id for s in self.plan.storages if s.origin not in ("input", "state")}
        return [n for n in dict.fromkeys(ref.storage for ref in tensor_refs(self.plan.outputs)) if n in made]

    @property
    def _seed(self) -> int:
        """Of undefined values: others for each run."""
        return (self._drawn.seed if self._drawn else 0) + self._runs

    def _bytes(self, place: PlacedAllocation, behind: int = 0) -> torch.Tensor:
        at = place.offset(right=self._right)
        return self._rooms[place.room].tensor[at : at + place.nbytes + behind]

    def _flat(self, storage: int) -> torch.Tensor:
        return self._bytes(self._place(storage))

    def _whole(self, storage: int) -> torch.Tensor:
        """With what may be read behind it."""
        place = self._place(storage)
        return self._bytes(place, place.behind)

    def _place(self, storage: int) -> PlacedAllocation:
        if f"storage:{storage}" not in self._by_name:
            raise ReplayError(f"no storage {storage} in the plan")
        return self._by_name[f"storage:{storage}"]

    def outputs(self, held: Mapping[int, torch.Tensor] | None = None) -> Tree:
        """What forward returned; with `held`, what it would be if these storages held those bytes."""
        held = held or {}
        return map_outputs(self.plan.outputs, lambda ref: view_of(held.get(ref.storage, self._flat(ref.storage)), ref))

    def kept(self) -> dict[int, torch.Tensor]:
        """Copies of the bytes of `output_storages` as they are now."""
        return {n: self._flat(n).clone() for n in self.output_storages()}

    def harmed(self) -> Harm | None:
        """What a run has changed that was not its own; None when nothing."""
        checks = [*self._input_checks(), *self._canary_checks()]
        if not checks:
            return None
        changed = torch.stack([flag for _, flag in checks]).tolist()
        return next((harm for (harm, _), hit in zip(checks, changed, strict=True) if hit), None)

    def _input_checks(self) -> Iterable[tuple[Harm, torch.Tensor]]:
        if (self.strict and self.guarded) or self._drawn is None:
            return  # a write would have been a fault
        given = self._drawn.named()
        for storage in self.plan.storages:
            name = f"{storage.origin}:{storage.name}"
            if name in given and given[name].numel():
                now, was = _dense(like(self._flat(storage.id), given[name])), _dense(given[name])
                if contract := self._drawn.contract(name):
                    now, was = self._whole(storage.id), torch.empty_like(self._whole(storage.id))
                    write_promised(was, given[name], contract, self._seed)
                words = _words(storage, [])
                harm = f"the candidate overwrites {words}; write results to memory of your own"
                yield Harm(harm, overwrites=True), (now != was).any()

    def _canary_checks(self) -> Iterable[tuple[Harm, torch.Tensor]]:
        for place in self.places:
            if place.writable or not self.guarded:
                room = self._rooms[place.room].tensor
                at = place.offset(right=self._right)
                end = at + place.nbytes + place.behind
                whole = at + place.whole
                for start, stop, where in (
                    (place.base, at, "before the start"),
                    (end, whole, "past the end"),
                    (whole, place.base + place.capacity, "past the end"),
                ):
                    if stop > start:
                        words = f"a kernel writes {where} of {place.words}; check masks and offsets"
                        yield Harm(f"an out-of-bounds access: {words}"), _disturbed(room, start, stop)

    def close(self) -> None:
        """Free the memory."""
        for room in self._rooms:
            room.close()
        self._rooms = []


def _disturbed(room: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Whether bytes of a room are no canaries any more (a 0-dim bool)."""
    if start % 4 == stop % 4 == 0:
        return (room[start:stop].view(torch.int32) != CANARY).any()
    first = start % 4
    words = -(-(first + stop - start) // 4)
    wanted = torch.full((words,), CANARY, dtype=torch.int32, device=room.device).view(torch.uint8)
    return (room[start:stop] != wanted[first : first + stop - start]).any()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
