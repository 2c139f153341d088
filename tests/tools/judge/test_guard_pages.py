"""The memory of a plan that is checked: where pieces lie, what is found disturbed, what a plan cannot ask for."""

import base64
import zlib
from dataclasses import replace
from typing import Any

import pytest
import torch

from kerneltune.tools.backends.runner_messages import MAX_ROOMS
from kerneltune.tools.judge.correctness.reference_model import Drawn
from kerneltune.tools.judge.correctness.tree import like, pitched
from kerneltune.tools.judge.execution.device_buffers import OutputBuffers
from kerneltune.tools.judge.execution.guard_pages import (
    MARGIN_BYTES,
    GuardedMemory,
    RequestedAllocation,
    places_for,
)
from kerneltune.tools.replay.replay import ReplayError
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.plan import Plan, Storage, TensorRef
from kerneltune.tools.schema.task import POINTER_ALIGNMENT, Contract
from kerneltune.tools.schema.verdict import CaseResult
from tests.tools.judge.simulated import Device

PAGE = 4096
Y = TensorRef(1, "float32", (5,), (1,))
X = torch.arange(5.0)


def plan_of(*storages: Storage, outputs: Any = None) -> Plan:
    return Plan("main", "", "sm_90", storages, (), (), (), outputs or {"$tensor": encode(Y)})


PLAN = plan_of(Storage(0, 20, "input", "0"), Storage(1, 20, "scratch"), Storage(2, 12, "state", "w"))
DRAWN = Drawn(0, "own", (X,), {"w": torch.ones(3)})


def guarded(
    plan: Plan = PLAN, *, strict: bool = True, unmapped: bool = True, most_bytes: int = 1 << 20
) -> GuardedMemory:
    device = Device({}, guarded=unmapped)
    return GuardedMemory(plan, DRAWN, {}, device.allocate, most_bytes=most_bytes, page_bytes=PAGE, strict=strict)


def bytes_around(memory: GuardedMemory, name: str) -> tuple[torch.Tensor, int, int]:
    """The room of a piece, and where the piece lies in it."""
    number = [p.name for p in memory.places].index(name)
    place, at = memory.places[number], memory.offsets()[number]
    return memory._rooms[place.room].tensor, at, at + place.nbytes


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("nbytes", [0, 1, 4, 15, 16, 20, 4095, 4096, 4097, 10_000])
@pytest.mark.parametrize("margin", [0, MARGIN_BYTES])
def test_a_piece_is_aligned_and_inside_its_room_and_touches_its_end(nbytes: int, margin: int, right: bool) -> None:
    (place,), (room,) = places_for([RequestedAllocation("a", "a", nbytes, True)], PAGE, margin)
    at = place.offset(right=right)
    assert at % POINTER_ALIGNMENT == 0
    assert margin <= at
    assert at + nbytes <= room - margin
    assert room % PAGE == 0
    slack = room - margin - at - nbytes if right else at - margin
    assert 0 <= slack < POINTER_ALIGNMENT


def test_many_pieces_share_rooms_without_meeting_and_by_right() -> None:
    wanted = [RequestedAllocation(str(i), "a", 1 + 37 * i, i % 3 == 0) for i in range(MAX_ROOMS + 300)]
    places, rooms = places_for(wanted, PAGE, 0)
    assert len(rooms) <= MAX_ROOMS
    assert [p.name for p in places] == [w.name for w in wanted]
    for number, size in enumerate(rooms):
        inside = [p for p in places if p.room == number]
        assert len({p.writable for p in inside}) == 1
        ends = 0
        for place in sorted(inside, key=lambda p: p.base):
            assert ends <= place.base
            for right in (True, False):
                assert place.base <= place.offset(right=right)
                assert place.offset(right=right) + place.nbytes <= place.base + place.capacity
            ends = place.base + place.capacity
        assert ends <= size


@pytest.mark.parametrize("right", [True, False])
def test_what_is_laid_is_found_at_its_offset_and_the_rest_is_nan(right: bool) -> None:
    memory = guarded()
    memory.lay(DRAWN, right=right, turn=0)
    room, start, stop = bytes_around(memory, "storage:0")
    assert torch.equal(room[start:stop].view(torch.float32), X)
    rest = torch.cat([room[:start], room[stop + 12 :]])
    assert bool(torch.isnan(rest.view(torch.float32)).all())
    assert bool(torch.isnan(rest.view(torch.bfloat16)).all())
    assert bool(torch.isnan(memory.outputs()).all())
    assert memory.harmed() is None


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize(("step", "words"), [(-1, "before the start of the output"), (1, "past the end of the output")])
def test_one_byte_beside_an_output_is_noticed(right: bool, step: int, words: str) -> None:
    memory = guarded()
    memory.lay(DRAWN, right=right, turn=0)
    room, start, stop = bytes_around(memory, "storage:1")
    at = stop if step > 0 else start - 1
    if 0 <= at < len(room):  # else it would be a fault
        room[at] ^= 1
        harm = memory.harmed()
        assert harm is not None
        assert words in harm.words
        assert not harm.overwrites
        memory.lay(DRAWN, right=right, turn=0)
        assert memory.harmed() is None
    else:
        assert step == (1 if right else -1)


@pytest.mark.parametrize(("name", "words"), [("storage:0", "input 0"), ("storage:2", "parameter w")])
def test_a_changed_input_is_noticed_where_pages_cannot_be_read_only(name: str, words: str) -> None:
    memory = guarded(unmapped=False)
    memory.lay(DRAWN, right=True, turn=0)
    assert memory.harmed() is None
    room, start, _ = bytes_around(memory, name)
    room[start] ^= 1
    harm = memory.harmed()
    assert harm is not None
    assert harm.overwrites
    assert f"overwrites {words}" in harm.words
    memory.lay(DRAWN, right=True, turn=1)
    assert memory.harmed() is None


def promising(**contract: int) -> Drawn:
    promise = Contract(0, "x", **contract)
    return replace(DRAWN, inputs=(pitched(torch.arange(15.0).reshape(3, 5), promise),), contracts=(promise,))


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("alignment", [4, 16, 128])
def test_what_a_task_lets_kernels_read_is_in_the_pages_undefined_and_another_in_each_run(
    right: bool, alignment: int
) -> None:
    drawn = promising(pitch=8, slack=7, alignment=alignment)
    plan = plan_of(Storage(0, 84, "input", "0"), *PLAN.storages[1:])
    memory = GuardedMemory(plan, drawn, {}, Device({}).allocate, most_bytes=1 << 20, page_bytes=PAGE)
    seen = []
    for _ in range(3):
        memory.lay(drawn, right=right, turn=0)
        room, start, stop = bytes_around(memory, "storage:0")
        assert start % alignment == 0
        assert right or alignment >= 16 or start % 16
        assert not right or len(room) - (stop + 7 * 4) < alignment
        assert torch.equal(like(room[start:stop], drawn.inputs[0]), drawn.inputs[0])
        words = room[start : stop + 7 * 4].view(torch.float32)
        seen.append(torch.cat([words[5:8], words[13:16], words[21:]]))
        assert bool(torch.isnan(room[stop + 7 * 4 :].view(torch.float32)).all())
    assert [bool(values.isnan().all()) for values in seen] == [False, True, False]
    assert not torch.equal(seen[0].view(torch.int32), seen[2].view(torch.int32))


@pytest.mark.parametrize(("at", "words"), [(5, "overwrites input 0"), (27, "overwrites input 0"), (28, "past the end")])
def test_a_write_to_what_may_only_be_read_is_noticed_where_pages_cannot_be_read_only(at: int, words: str) -> None:
    drawn = promising(pitch=8, slack=7)
    plan = plan_of(Storage(0, 84, "input", "0"), *PLAN.storages[1:])
    device = Device({}, guarded=False)
    memory = GuardedMemory(plan, drawn, {}, device.allocate, most_bytes=1 << 20, page_bytes=PAGE)
    memory.lay(drawn, right=False, turn=0)
    assert memory.harmed() is None
    room, start, _ = bytes_around(memory, "storage:0")
    room[start + 4 * at] ^= 1
    harm = memory.harmed()
    assert harm is not None
    assert words in harm.words


def test_a_nan_among_the_inputs_is_not_taken_for_a_change() -> None:
    drawn = replace(DRAWN, inputs=(torch.tensor([0.0, float("nan"), -0.0, 1.0, 2.0]),))
    memory = guarded(unmapped=False)
    memory.lay(drawn, right=False, turn=0)
    assert memory.harmed() is None


def test_inputs_and_parameters_are_shared_for_reading_only_but_not_when_a_fault_is_looked_into() -> None:
    for strict, wanted in ((True, [False, True, False]), (False, [True, True, True])):
        memory = guarded(strict=strict)
        rooms, pieces = memory.share([])
        assert [rooms[p.room].writable for p in pieces] == wanted


def test_outputs_hold_the_answer_to_other_inputs_when_told_so() -> None:
    memory = guarded()
    memory.lay(DRAWN, right=True, turn=0)
    room, start, stop = bytes_around(memory, "storage:1")
    room[start:stop].view(torch.float32).copy_(X + 1)
    kept = memory.kept()
    memory.lay(DRAWN, right=False, turn=1, stale=kept)
    assert torch.equal(memory.outputs(), X + 1)
    memory.lay(DRAWN, right=False, turn=1)
    assert not torch.equal(memory.outputs(), X + 1)
    assert torch.equal(memory.outputs(kept), X + 1)


def test_a_constant_is_unpacked_and_renewed_before_every_run() -> None:
    data = base64.b64encode(zlib.compress(b"0123456789abcdef")).decode()
    memory = guarded(plan_of(*PLAN.storages, Storage(3, 16, "constant", data=data)))
    memory.lay(DRAWN, right=True, turn=0)
    for _ in range(2):
        room, start, stop = bytes_around(memory, "storage:3")
        assert bytes(room[start:stop].numpy()) == b"0123456789abcdef"
        room[start:stop] = 0
        memory.lay(DRAWN, right=True, turn=0)


def test_other_sizes_of_inputs_do_not_fit() -> None:
    memory = guarded()
    assert memory.fits(replace(DRAWN, inputs=(X + 1,)))
    assert not memory.fits(replace(DRAWN, inputs=(torch.ones(6),)))


@pytest.mark.parametrize(
    ("storages", "words"),
    [
        ((Storage(1, 20, "scratch"), Storage(1, 30, "scratch")), "same number"),
        ((Storage(1, -20, "scratch"),), "-20 bytes"),
        ((Storage(1, 1 << 40, "scratch"),), "MiB of workspace"),
        ((Storage(1, 2 << 30, "constant", data=""),), "a constant of 2048 MiB"),
        ((Storage(1, 16, "constant", data=base64.b64encode(zlib.compress(bytes(99))).decode()),), "more than 16 bytes"),
    ],
)
def test_a_plan_that_contradicts_itself_or_wants_too_much_is_refused(storages: tuple[Storage, ...], words: str) -> None:
    device = Device({})
    with pytest.raises(ReplayError, match=words):
        GuardedMemory(plan_of(*storages), DRAWN, {}, device.allocate, most_bytes=1 << 20, page_bytes=PAGE)
    assert device.allocated == device.freed


def test_an_output_that_leaves_its_storage_is_refused() -> None:
    wide = TensorRef(1, "float32", (6,), (1,))
    memory = guarded(plan_of(*PLAN.storages, outputs={"$tensor": encode(wide)}))
    with pytest.raises(ReplayError, match="leaves its storage"):
        memory.outputs()


def test_outputs_are_looked_at_again_unless_their_bits_were_right_for_the_same_contents() -> None:
    looked: list[list[float]] = []

    def judge(found: Any) -> CaseResult:
        looked.append(found.tolist())
        return CaseResult("main", "timed", bool((found == X).all()), 0.5, 0.0)

    outputs = OutputBuffers(Device({}), PLAN, 2)
    for slot in (0, 1):
        outputs.tree(slot).copy_(X)
    assert [outputs.judged(slot, "a", judge).ok for slot in (0, 1, 0)] == [True, True, True]
    assert looked == [X.tolist()]
    outputs.tree(1)[2] = 7.0
    assert [outputs.judged(slot, "a", judge).ok for slot in (1, 1, 0)] == [False, False, True]
    assert len(looked) == 3  # what was wrong is not remembered
    assert outputs.judged(0, "b", judge).ok
    assert len(looked) == 4


def test_outputs_that_change_after_they_were_looked_at_are_looked_at_again() -> None:
    outputs = OutputBuffers(Device({}), PLAN, 1)
    outputs.tree(0).copy_(X)

    def judge(found: Any) -> CaseResult:
        right = bool((found == X).all())
        outputs.tree(0).zero_()  # as a kernel that still runs would
        return CaseResult("main", "timed", right, 0.5, 0.0)

    assert outputs.judged(0, "a", judge).ok
    assert not outputs.judged(0, "a", judge).ok
