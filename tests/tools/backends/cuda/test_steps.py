"""Which launches of a forward are timed apart, what becomes of the times of its steps, and what of it the L2 holds."""

import pytest

from kerneltune.tools.backends.cuda.memory import PAGE_BYTES
from kerneltune.tools.backends.cuda.runner import group_times, index_storages, piece_for, scratch_sizes
from kerneltune.tools.backends.runner_messages import MOST_LAUNCHES, Resident, TimedBlock, Times, fits, launch_groups
from kerneltune.tools.replay.replay import OutputLayout, ReplayError
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.plan import Aten, Kernel, Launch, Plan, Storage, TensorArg, TensorRef

FILL = Aten("aten::zero_", (), {}, ())


def plan(*launched: str, grid: tuple[int, int, int] = (1, 1, 1)) -> Plan:
    """A fill, then a launch of each named kernel."""
    names = list(dict.fromkeys(launched))
    kernels = tuple(Kernel(name, "ttir", name, ()) for name in names)
    return Plan(
        "main", "", "sm_90", (), kernels, (), (FILL, *(Launch(names.index(n), grid, ()) for n in launched)), None
    )


def test_each_launch_has_a_time_of_its_own_where_there_are_few_of_them() -> None:
    assert launch_groups(plan("rows", "finish", "rows")) == (("rows", (1,)), ("finish", (2,)), ("rows", (3,)))


def test_a_launch_that_is_all_there_is_or_that_does_nothing_is_not_timed_apart() -> None:
    assert launch_groups(plan("rows")) == ()
    assert launch_groups(plan("rows", "finish", grid=(0, 1, 1))) == ()


def test_many_launches_are_timed_by_kernel_and_many_kernels_within_the_bound() -> None:
    often = launch_groups(plan(*["rows", "finish"] * 10))
    assert often == (("rows", tuple(range(1, 21, 2))), ("finish", tuple(range(2, 21, 2))))
    groups = launch_groups(plan(*(f"k{n}" for n in range(40))))
    assert len(groups) == MOST_LAUNCHES
    assert groups[-1] == ("others", tuple(range(MOST_LAUNCHES, 41)))


def test_a_group_takes_the_median_over_passes_of_the_mean_over_forwards_of_its_steps() -> None:
    one_pass = [[9.0, 2.0, 5.0, 1.0], [9.0, 4.0, 7.0, 1.0]]
    disturbed = [[9.0, 200.0, 500.0, 1.0], [9.0, 400.0, 700.0, 1.0]]
    times = group_times([(1, 3), (2,)], [one_pass, disturbed, one_pass])
    assert times == pytest.approx((4.0, 6.0))


def reading(*storages: tuple[int, str]) -> Plan:
    """A plan whose only launch is given tensors of so many pages and that dtype."""
    refs = [TensorRef(number, dtype, (8,), (1,), 0) for number, (_, dtype) in enumerate(storages)]
    kept = tuple(Storage(number, pages * PAGE_BYTES, "scratch") for number, (pages, _) in enumerate(storages))
    kernel = Kernel("rows", "ttir", "rows", ())
    return Plan("main", "", "sm_90", kept, (kernel,), (), (Launch(0, (1, 1, 1), tuple(map(TensorArg, refs))),), None)


def test_tensors_share_what_the_l2_holds_and_indices_stay_whole() -> None:
    plan_ = reading((100, "float32"), (100, "bfloat16"), (1, "float32"), (3, "int64"))
    assert index_storages(plan_) == {3}
    assert piece_for(plan_, 10 * PAGE_BYTES) == 3 * PAGE_BYTES
    assert piece_for(plan_, 5 * PAGE_BYTES) == 0
    assert piece_for(reading((100, "int32")), 10 * PAGE_BYTES) == 0


def test_slots_of_different_contents_share_scratch_where_one_each_would_not_fit() -> None:
    gib = 1 << 30
    storages = (Storage(0, 17 * gib, "scratch"), Storage(1, gib, "scratch"), Storage(2, gib, "prepared"))
    whole = [TensorRef(number, "uint8", (8,), (1,), 0) for number in range(3)]
    packed = Aten("aten::copy_", ({"$tensor": encode(whole[2])}, {"$tensor": encode(whole[1])}), {}, (whole[2],))
    plan_ = Plan("main", "", "sm_90", storages, (), (packed,), (), None)
    layout = OutputLayout({1: 0}, (), gib)  # storage 1 is where the judge has room for the output

    def sharing(slots: int, contents: int, most_gib: int) -> int:
        once, each, found = scratch_sizes(plan_, layout, slots, contents, most_gib * gib)
        assert (once // gib, each) == (2, 17 * gib)  # one forward's scratch, and what the constructor works with
        return found

    assert [sharing(6, 8, most) for most in (105, 104, 54, 37, 20)] == [1, 2, 2, 3, 6]
    assert sharing(6, 2, 54) == 2
    with pytest.raises(ReplayError, match=r"17408 for each forward, of which 3 have to be there at once; it may have"):
        sharing(6, 2, 37)


def test_a_runner_may_leave_out_the_probe_but_no_block() -> None:
    one, none = Times((1.0,), 2.0), Times((), 0.0)
    assert (fits(Resident(1), one), fits(Resident(1), none), fits(Resident(2), one)) == (True, True, False)
    assert (fits(TimedBlock(1, 0), one), fits(TimedBlock(1, 0), none)) == (True, False)
