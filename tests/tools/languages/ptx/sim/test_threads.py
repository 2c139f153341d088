"""How threads, warps and blocks go together: branches, barriers, memory, copies; and what is said when they do not."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from kerneltune.tools.languages.ptx import PtxError, parse
from kerneltune.tools.languages.ptx.loader import PtxLaunch
from kerneltune.tools.languages.ptx.sim import launch as launch_module
from kerneltune.tools.languages.ptx.sim.launch import HostMap, run
from kerneltune.tools.languages.ptx.sim.values import Deadlock, Race, Unsupported
from kerneltune.tools.languages.triton.ttir.ir import AssertFailed, InterpreterError, Misaligned, OutOfBounds, StepLimit
from kerneltune.tools.languages.triton.ttir.memory import DescriptorValue
from tests.tools.languages.ptx.sim.threads import HEAD, Array, compute, pointer, start, u32

NUMBERS = np.arange(64, dtype=np.uint32)
SHARED = ".shared .align 16 .b8 s[1024]; .reg .b32 w, v; mov.b32 w, s; mad.lo.u32 w, %t, 4, w;"


# -- ways apart and together ------------------------------------------------------------------------------------------


def test_threads_that_loop_for_different_times_meet_again() -> None:
    body = """
    mov.b32 d, 0;
    again: setp.eq.u32 p, a, 0; @p bra out; add.u32 d, d, a; sub.u32 a, a, 1; bra again;
    out: activemask.b32 a; popc.b32 a, a; shl.b32 a, a, 16; or.b32 d, d, a;
    """
    found = compute(body, NUMBERS)
    assert found.tolist() == [32 << 16 | i * (i + 1) // 2 for i in range(64)]


def test_nested_branches_take_each_thread_its_own_way() -> None:
    body = """
    .reg .pred odd, big; .reg .b32 x; and.b32 x, a, 1; setp.eq.u32 odd, x, 1; setp.gt.u32 big, a, 20;
    @odd bra Odd; @big bra EvenBig; mov.b32 d, 1; bra.uni out; EvenBig: mov.b32 d, 2; bra out;
    Odd: @!big bra OddSmall; mov.b32 d, 3; bra out; OddSmall: mov.b32 d, 4;
    out:
    """
    found = compute(body, NUMBERS)
    assert found.tolist() == [(4, 3)[i > 20] if i % 2 else (1, 2)[i > 20] for i in range(64)]


def test_threads_that_ended_are_not_waited_for() -> None:
    body = SHARED + """
    setp.ge.u32 p, %t, 40; @p exit; st.shared.b32 [w], a; bar.sync 0; mov.b32 w, s; ld.shared.b32 d, [w+156];
    bar.sync 0; shfl.sync.idx.b32 a, d, 0, 31, -1; mov.b32 d, a;
    """  # fmt: skip
    found = compute(body, NUMBERS)
    assert found.tolist() == [39] * 40 + [0] * 24


def test_a_block_that_is_no_multiple_of_a_warp_works() -> None:
    assert compute("mov.b32 d, %ntid.x; add.u32 d, d, a; bar.sync 0;", NUMBERS[:45]).tolist() == list(range(45, 90))


def test_one_half_of_a_block_can_wait_for_the_other_at_its_own_barrier() -> None:
    body = SHARED + """
    setp.lt.u32 p, %t, 32; @p bra Producer;
    barrier.cta.sync 3, 64; ld.shared.b32 d, [w+-128]; bra out;
    Producer: st.shared.b32 [w], a; barrier.cta.arrive 3, 64; mov.b32 d, 7;
    out:
    """  # fmt: skip
    assert compute(body, NUMBERS).tolist() == [7] * 32 + list(range(32))


def test_a_barrier_counts_predicates() -> None:
    body = "setp.gt.u32 p, a, 9; bar.red.popc.u32 d, 0, p; bar.red.or.pred q, 0, p; @!q mov.b32 d, 0;"
    assert compute(body, NUMBERS).tolist() == [54] * 64


def test_a_thread_that_spins_lets_others_write_what_it_waits_for() -> None:
    flag = np.zeros(1, np.uint32)
    body = """
    .reg .b32 t, v; .reg .pred p; mov.u32 t, %tid.x; setp.eq.u32 p, t, 63; @p bra Last;
    wait: ld.volatile.global.b32 v, [%p0]; setp.eq.u32 p, v, 0; @p bra wait; ret;
    Last: st.global.b32 [%p0], 1; ret;
    """
    start(body, flag, threads=64, max_work=100_000)
    assert flag[0] == 1


def test_two_groups_that_spin_at_places_of_their_own_let_a_third_write_what_both_wait_for() -> None:
    flag = np.zeros(3, np.uint32)
    body = """
    .reg .b32 t, v; .reg .pred p; mov.u32 t, %tid.x; setp.ge.u32 p, t, 64; @p bra Last;
    setp.ge.u32 p, t, 32; @p bra second;
    first: ld.volatile.global.b32 v, [%p0]; setp.eq.u32 p, v, 0; @p bra first; st.global.b32 [%p0+4], 2; ret;
    second: ld.volatile.global.b32 v, [%p0]; setp.eq.u32 p, v, 0; @p bra second; st.global.b32 [%p0+8], 3; ret;
    Last: st.global.b32 [%p0], 1; ret;
    """
    start(body, flag, threads=96, max_work=100_000)
    assert flag.tolist() == [1, 2, 3]


def product_of_warps(first: int) -> Array:
    """What four of five warps of each of two blocks multiply, from warp `first` on: halves that are all 1, or all 2."""
    out = np.zeros((2, 128), np.float32)
    body = f"""
    .reg .b32 t, c, w, v; .reg .b64 m; .reg .f32 d<4>; .reg .pred p;
    mov.u32 t, %tid.x; sub.u32 t, t, {32 * first}; setp.gt.u32 p, t, 127; @p ret;
    mov.u32 c, %ctaid.x; setp.eq.u32 p, c, 0; selp.b32 v, 0x3C003C00, 0x40004000, p;
    mov.u32 w, dynamic; mad.lo.u32 w, t, 16, w; st.shared.v4.b32 [w], {{v, v, v, v}};
    fence.proxy.async.shared::cta; bar.sync 1, 128;
    mov.u32 w, dynamic; shr.u32 w, w, 4; cvt.u64.u32 m, w; add.u64 m, m, {(8 << 16) + (16 << 32)}; setp.ne.u32 p, t, t;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{d0, d1, d2, d3}}, m, m, p, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;
    mad.lo.u32 t, c, 128, t; mad.wide.u32 m, t, 4, %p0; st.global.f32 [m], d3; ret;
    """
    start(body, out, threads=160, grid=2, shared_bytes=2048)
    return out


def test_four_warps_multiply_beside_others_of_their_block_and_begin_where_groups_of_four_do() -> None:
    assert (product_of_warps(0) == [[16], [64]]).all()
    with pytest.raises(Unsupported, match="whole groups of four warps"):
        product_of_warps(1)


def test_blocks_of_a_grid_in_three_dimensions_know_where_they_are() -> None:
    out = np.zeros(2 * 3 * 4 * 8, np.uint32)
    text = f"""{HEAD}.entry k(.param .u64 out) {{
    .reg .b32 x<9>; .reg .b64 p, q; ld.param.u64 p, [out];
    mov.u32 x0, %ctaid.x; mov.u32 x1, %ctaid.y; mov.u32 x2, %ctaid.z; mov.u32 x3, %nctaid.x; mov.u32 x4, %nctaid.y;
    mad.lo.u32 x5, x2, x4, x1; mad.lo.u32 x5, x5, x3, x0;
    mov.u32 x6, %tid.y; mov.u32 x7, %tid.x; mad.lo.u32 x6, x6, 4, x7; mad.lo.u32 x5, x5, 8, x6;
    mad.wide.u32 q, x5, 4, p; st.global.u32 [q], x5; }}"""
    run(PtxLaunch(text, "", (2, 3, 4), (4, 2, 1), (pointer(out, "out"),)))
    assert out.tolist() == list(range(192))


# -- memory -----------------------------------------------------------------------------------------------------------


def test_atomics_take_turns_in_order_and_return_what_was_there() -> None:
    total, found = np.zeros(2, np.uint32), np.zeros(64, np.uint32)
    body = """
    .reg .b32 t, o; .reg .b64 q; mov.u32 t, %tid.x; mad.wide.u32 q, t, 4, %p1;
    atom.global.add.u32 o, [%p0], 2; st.global.b32 [q], o; red.global.max.u32 [%p0+4], t;
    """
    start(body, total, found, threads=64)
    assert total.tolist() == [128, 63]
    assert found.tolist() == list(range(0, 128, 2))


@pytest.mark.parametrize("space", ["", ".global"])
def test_atomics_of_several_blocks_take_turns_whether_or_not_their_state_space_is_said(space: str) -> None:
    total, found = np.zeros(2, np.uint32), np.zeros(4, np.uint32)
    body = f"""
    .reg .b32 t, o; .reg .b64 q; .reg .pred p; mov.u32 t, %tid.x; red{space}.add.u32 [%p0], 1;
    setp.ne.u32 p, t, 0; @p ret; atom{space}.add.u32 o, [%p0+4], 1; mov.u32 t, %ctaid.x; mad.wide.u32 q, t, 4, %p1;
    st.global.b32 [q], o;
    """
    start(body, total, found, threads=32, grid=4)
    assert (total.tolist(), found.tolist()) == ([128, 4], [0, 1, 2, 3])


@pytest.mark.parametrize("load", ["ld.shared.b32 v, [s];", "mov.u64 q, s; cvta.shared.u64 q, q; ld.b32 v, [q];"])
def test_blocks_that_read_one_address_of_their_shared_memory_find_their_own(load: str) -> None:
    found = np.zeros(4, np.uint32)
    body = f"""
    .shared .b32 s; .reg .b32 t, v; .reg .b64 q; mov.u32 t, %ctaid.x; st.shared.b32 [s], t; bar.sync 0; {load}
    mad.wide.u32 q, t, 4, %p0; st.global.b32 [q], v;
    """
    start(body, found, threads=32, grid=4)
    assert found.tolist() == [0, 1, 2, 3]


def test_threads_that_read_one_address_of_their_local_memory_find_their_own() -> None:
    body = """
    .local .b32 l; .reg .b64 x; st.local.b32 [l], a; mov.u64 x, l; cvta.local.u64 x, x; ld.b32 d, [x];
    """
    assert compute(body, NUMBERS).tolist() == NUMBERS.tolist()


def test_atomics_of_other_kinds() -> None:
    memory = np.array([5, 5, 5, 5], np.uint32)
    floats = np.zeros(4, np.float32)
    body = """
    .reg .b32 x; atom.global.inc.u32 x, [%p0], 6; atom.global.cas.b32 x, [%p0+4], 5, 9;
    atom.global.exch.b32 x, [%p0+8], 1; red.global.and.b32 [%p0+12], 4;
    red.global.add.v4.f32 [%p1], {0f3F800000, 0f40000000, 0f3F800000, 0f3F800000};
    """
    start(body, memory, floats, threads=3)
    assert memory.tolist() == [1, 9, 1, 4]
    assert floats.tolist() == [3.0, 6.0, 3.0, 3.0]


def test_tables_of_the_module_hold_their_values() -> None:
    out = np.zeros(4, np.uint32)
    text = f"""{HEAD}.const .align 4 .u32 table[2][2] = {{{{10, 20}}, {{30, -1}}}};
    .global .align 4 .f32 g[1] = {{0f3F800000}};
    .entry k(.param .u64 out) {{ .reg .b64 p, c; .reg .b32 v; ld.param.u64 p, [out];
    ld.const.u32 v, [table+8]; st.global.u32 [p], v; mov.u64 c, table; cvta.const.u64 c, c; ld.u32 v, [c+12];
    st.global.u32 [p+4], v; ld.global.f32 v, [g]; st.global.u32 [p+8], v; }}"""
    run(PtxLaunch(text, "", (1, 1, 1), (1, 1, 1), (pointer(out, "out"),)))
    assert out.tolist() == [30, 0xFFFFFFFF, 0x3F800000, 0]


def test_dynamic_shared_memory_begins_behind_the_static_one_and_is_as_large_as_the_launch_says() -> None:
    out = np.zeros(2, np.uint32)
    body = """
    .shared .align 4 .b8 s[20]; .reg .b32 w, v; mov.b32 w, dynamic; st.global.b32 [%p0], w;
    mov.u32 v, %dynamic_smem_size; st.global.b32 [%p0+4], v;
    """
    start(body, out, shared_bytes=64)
    assert out.tolist() == [32, 64]
    with pytest.raises(OutOfBounds, match=r"byte 96 of 96 bytes of shared memory"):
        start(".shared .align 4 .b8 s[20]; .reg .b32 w; mov.b32 w, dynamic; st.shared.b32 [w+64], 1;", shared_bytes=64)


# -- what is wrong is named ------------------------------------------------------------------------------------------


def test_a_store_behind_a_tensor_names_thread_line_and_byte() -> None:
    out = np.zeros(60, np.uint32)
    body = """.reg .b32 t, u; .reg .b64 q; mov.u32 t, %ctaid.x; mov.u32 u, %tid.x; mad.lo.u32 t, t, 32, u;
    mad.wide.u32 q, t, 4, %p0;
    st.global.b32 [q], t;"""
    words = (
        r"st.global.b32, PTX line 8: thread \(28, 0, 0\) of CTA \(1, 0, 0\) uses byte 240 of p0, which has 240 bytes"
    )
    with pytest.raises(OutOfBounds, match=words):
        start(body, out, grid=2)


def test_an_address_that_is_in_no_tensor_is_out_of_bounds() -> None:
    with pytest.raises(OutOfBounds, match="in no tensor"):
        start(".reg .b64 q; .reg .b32 v; mov.u64 q, 64; ld.global.b32 v, [q];", u32(1))


def test_a_misaligned_vector_is_named_with_what_it_needs() -> None:
    words = r"ld.global.v4.b32 needs 16-byte alignment; byte 4 of p0 is 4 past one; .*PTX line 6"
    with pytest.raises(Misaligned, match=words):
        start(".reg .b32 v<4>; ld.global.v4.b32 {v0, v1, v2, v3}, [%p0+4];", np.zeros(16, np.uint32))


def test_a_loop_without_end_is_named_with_its_line() -> None:
    with pytest.raises(StepLimit, match="bra, PTX line 7"):
        start("top:\nbra top;", u32(0), max_work=1000)


def test_a_barrier_that_some_threads_never_reach_is_a_deadlock_with_its_line() -> None:
    body = "setp.lt.u32 p, %t, 32; @p bar.sync 1, 64; mov.b32 d, 0;"
    with pytest.raises(
        Deadlock, match=r"bar.sync, PTX line 8: 32 of 64 threads of CTA \(0, 0, 0\) wait .*32 have ended"
    ):
        compute(body, NUMBERS)


def test_threads_that_wait_at_different_barriers_wait_for_ever() -> None:
    body = "setp.lt.u32 p, %t, 32; @p bar.sync 1; @!p bar.sync 2; mov.b32 d, 0;"
    with pytest.raises(Deadlock, match="wait there for others"):
        compute(body, NUMBERS)


def test_warps_that_take_the_number_of_their_barrier_from_a_register_wait_for_ever_at_different_ones() -> None:
    with pytest.raises(Deadlock, match=r"32 of 64 threads .*the others wait at another barrier"):
        compute("shr.u32 d, %t, 5; bar.sync d;", NUMBERS)
    assert compute("shr.u32 d, %t, 6; bar.sync d;", NUMBERS).tolist() == [0] * 64


def test_a_shuffle_that_names_lanes_which_never_come_is_a_deadlock() -> None:
    body = "setp.lt.u32 p, %t, 16; @p bra Low; bar.sync 0; bra out; Low: shfl.sync.bfly.b32 d, a, 1, 31, -1; out:"
    with pytest.raises(Deadlock, match=r"of 32 threads"):
        compute(body, NUMBERS[:32])


def test_a_trap_that_is_reached_is_said_and_one_that_is_not_does_no_harm() -> None:
    with pytest.raises(AssertFailed, match="trap, PTX line"):
        compute("setp.eq.u32 p, a, 3; @p trap; mov.b32 d, 1;", NUMBERS)
    assert compute("setp.eq.u32 p, a, 99; @p trap; mov.b32 d, 1;", NUMBERS).tolist() == [1] * 64


@pytest.mark.parametrize(
    ("called", "error", "words"),
    [
        ("__assertfail", AssertFailed, "an assertion of the kernel failed"),
        ("helper", Unsupported, "calls of functions"),
    ],
)
def test_a_call_says_what_becomes_of_the_values_that_it_is_given(
    called: str, error: type[InterpreterError], words: str
) -> None:
    body = """
    setp.ne.u32 p, a, {n}; @p bra past; {{ .param .b32 given; st.param.b32 [given+0], a; call.uni {called}, (given); }}
    past: mov.b32 d, 1;
    """
    with pytest.raises(error, match=words):
        compute(body.format(n=3, called=called), NUMBERS)
    assert compute(body.format(n=99, called=called), NUMBERS).tolist() == [1] * 64


def test_what_is_not_emulated_says_so_only_where_it_runs() -> None:
    body = "setp.eq.u32 p, a, {n}; @p tcgen05.wait::ld.sync.aligned; mov.b32 d, 1;"
    with pytest.raises(Unsupported, match=r"tcgen05\.wait::ld\.sync\.aligned, PTX line 8"):
        compute(body.format(n=3), NUMBERS)
    assert compute(body.format(n=99), NUMBERS).tolist() == [1] * 64


@pytest.mark.parametrize(
    "text", ["mov.u32 d, %clock;", "tex.1d.v4.f32.s32 {a, a, a, a}, [a, {a}];", "frob.b32 d, a;",
             "add.strange.s32 d, a, a;", "call.uni f, (a);"],
)  # fmt: skip
def test_the_unknown_is_unsupported_and_not_wrong(text: str) -> None:
    with pytest.raises(Unsupported):
        compute(text, u32(1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("add.s32 d, a, nowhere;", "'nowhere' is not declared"), ("add.s64 d, a, a;", "has 32 bits, not 64"),
        ("@r add.s32 d, a, a;", "'r' is not a declared predicate"), ("bra nowhere;", "no label 'nowhere'"),
        ("add.s32 d, a;", "2 operands; it takes 3"), ("ld.global.b32 d, [%p0], 1, 2;", "operands"),
    ],
)  # fmt: skip
def test_text_that_makes_no_sense_is_named(text: str, words: str) -> None:
    with pytest.raises(InterpreterError, match=words):
        compute(text, u32(1))


# -- races and copies ------------------------------------------------------------------------------------------------


def test_reading_what_another_warp_wrote_needs_a_barrier() -> None:
    body = SHARED + "st.shared.b32 [w], a; {} xor.b32 w, w, 128; ld.shared.b32 d, [w];"
    assert compute(body.format("bar.sync 0;"), NUMBERS).tolist() == [i ^ 32 for i in range(64)]
    with pytest.raises(
        Race, match=r"ld.shared.b32, PTX line 8: warp 0 reads .* warp 1 wrote \(PTX line 8\), and no barrier"
    ):
        compute(body.format(""), NUMBERS)


def test_writing_over_what_another_warp_reads_is_a_race_too() -> None:
    body = SHARED + """
    st.shared.b32 [w], a; bar.sync 0; xor.b32 v, w, 128; ld.shared.b32 d, [v]; {} st.shared.b32 [w], 0;
    """  # fmt: skip
    assert compute(body.format("bar.sync 0;"), NUMBERS).tolist() == [i ^ 32 for i in range(64)]
    with pytest.raises(Race, match="writes shared memory that warp 1 read"):
        compute(body.format(""), NUMBERS)


def test_warps_that_write_the_same_do_not_race_and_warps_that_differ_do() -> None:
    same = SHARED + "mov.b32 w, s; st.shared.b32 [w], 7; ld.shared.b32 d, [w];"
    assert compute(same, NUMBERS).tolist() == [7] * 64
    with pytest.raises(Race, match="in the same instruction"):
        compute(SHARED + "mov.b32 w, s; st.shared.b32 [w], a; mov.b32 d, 0;", NUMBERS)


COPY = (
    SHARED
    + """
.reg .b64 q; mad.wide.u32 q, %t, 4, %p1; cp.async.ca.shared.global [w], [q], 4; cp.async.commit_group;
{} ld.shared.b32 d, [w];
"""
)


@pytest.mark.parametrize(
    ("wait", "arrived"),
    [("cp.async.wait_group 0;", True), ("cp.async.wait_all;", True), ("cp.async.wait_group 1;", False), ("", False)],
)
def test_a_copy_has_happened_only_behind_the_wait_for_it(wait: str, arrived: bool) -> None:
    found = compute(COPY.format(wait), NUMBERS)
    assert (found == NUMBERS).all() == arrived
    assert arrived or set(found.tolist()) == {0x7FFD7FFD}


def test_a_copy_can_be_padded_with_zeros() -> None:
    body = COPY.replace("[q], 4;", "[q], 4, v;").replace(
        "mad.lo.u32 w,", "setp.lt.u32 p, a, 9; selp.b32 v, 4, 0, p; mad.lo.u32 w,"
    )
    found = compute(body.format("cp.async.wait_all;"), NUMBERS)
    assert found.tolist() == [i if i < 9 else 0 for i in range(64)]


BULK = """
.shared .align 128 .b8 tile[256]; .shared .align 8 .b64 bar; .reg .b32 w, b; .reg .pred first;
mov.b32 w, tile; mov.b32 b, bar; setp.eq.u32 first, %t, 0;
@first mbarrier.init.shared::cta.b64 [b], 1; bar.sync 0;
@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [b], 256;
@first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [w], [%p1], 256, [b];
{} mad.lo.u32 w, %t, 4, w; ld.shared.b32 d, [w];
"""
WAIT = "wait: mbarrier.try_wait.parity.shared::cta.b64 p, [b], 0; @!p bra wait;"


def test_a_bulk_copy_arrives_at_its_mbarrier() -> None:
    assert compute(BULK.format(WAIT), NUMBERS).tolist() == NUMBERS.tolist()
    assert set(compute(BULK.format(""), NUMBERS).tolist()) == {0x7FFD7FFD}


def test_launches_of_one_text_share_its_steps_and_each_has_its_own_tensors() -> None:
    text = f"""{HEAD}.visible .entry k(.param .u64 out, .param .align 64 .b8 map[128]) {{
    .shared .align 128 .b8 tile[128]; .shared .align 8 .b64 bar; .reg .b32 w, x; .reg .b64 to; .reg .pred p, first;
    mov.u32 x, %tid.x; setp.eq.u32 first, x, 0;
    @first mbarrier.init.shared::cta.b64 [bar], 1; bar.sync 0;
    @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 128;
    @first cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], [map, {{0}}], [bar];
    wait: mbarrier.try_wait.parity.shared::cta.b64 p, [bar], 0; @!p bra wait;
    ld.param.u64 to, [out]; mad.wide.u32 to, x, 4, to; mov.b32 w, tile; mad.lo.u32 w, x, 4, w;
    ld.shared.b32 x, [w]; st.global.b32 [to], x; }}"""
    choice = {"elem_size": 4, "fp4_padded": False, "block_size": [32], "swizzle": 0}
    before = launch_module._steps.cache_info()
    for first, fits in ((0, 32), (100, 20)):
        out, tensor = np.zeros(32, np.uint32), np.arange(first, first + fits, dtype=np.uint32)
        described = DescriptorValue(pointer(tensor, "x"), (fits,), (1,), (32,), "i32")
        run(PtxLaunch(text, "", (1, 1, 1), (32, 1, 1), (pointer(out, "out"), HostMap(described, choice))))
        assert out.tolist() == [*range(first, first + fits), *[0] * (32 - fits)]
    after = launch_module._steps.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 1)


SEND = """
.shared .align 128 .b8 tile[256]; .reg .b32 w, x; .reg .b64 to; .reg .pred first;
setp.eq.u32 first, %t, 0; mad.wide.u32 to, %t, 4, %p1; ld.global.b32 x, [to];
mov.b32 w, tile; mad.lo.u32 w, %t, 4, w; st.shared.b32 [w], x;
fence.proxy.async.shared::cta; bar.sync 0;
@first cp.async.bulk.global.shared::cta.bulk_group [%p0], [tile], 256;
@first cp.async.bulk.commit_group;
{} @first cp.async.bulk.wait_group.read 0; ret;
"""


def _sent(body: str) -> Array:
    out = np.zeros(64, np.uint32)
    start(".reg .b32 %t; .reg .pred p; mov.u32 %t, %tid.x;" + body, out, NUMBERS, threads=64)
    return out


def test_a_bulk_copy_out_of_shared_memory_has_read_it_when_its_group_has_been_waited_for() -> None:
    assert _sent(SEND.format("")).tolist() == NUMBERS.tolist()
    again = "@first cp.async.bulk.wait_group.read 0; bar.sync 0; st.shared.b32 [w], 7;"
    assert _sent(SEND.format(again)).tolist() == NUMBERS.tolist()
    assert set(_sent(SEND.format("st.shared.b32 [w], 7;")).tolist()) == {7}


def test_a_wait_leaves_the_last_groups_of_bulk_copies_open() -> None:
    second = (
        "@first cp.async.bulk.global.shared::cta.bulk_group [%p0+16], [tile], 16; @first cp.async.bulk.commit_group;"
    )
    body = SEND.format(f"{second} @first cp.async.bulk.wait_group.read 1; @first st.shared.b32 [tile], 9;")
    first, later = _sent(body)[[0, 4]].tolist()
    assert (first, later) == (NUMBERS[0], 9)


@pytest.mark.parametrize("left_out", ["cp.async.bulk.wait_group.read 0;", "cp.async.bulk.commit_group;"])
def test_a_block_does_not_end_before_bulk_copies_have_read_its_shared_memory(left_out: str) -> None:
    with pytest.raises(Race, match="may end before its shared memory has been read"):
        _sent(SEND.format("").replace("@first " + left_out, ""))


def test_bulk_copies_see_stores_after_a_fence_only() -> None:
    with pytest.raises(Race, match=r"bulk copies need not see what threads have stored \(PTX line 9\)"):
        _sent(SEND.format("").replace("fence.proxy.async.shared::cta;", ""))
    with pytest.raises(Race, match="need not see"):
        _sent(SEND.format("").replace("fence.proxy.async.shared::cta;", "fence.acq_rel.cta;"))


def test_an_mbarrier_that_nobody_arrives_at_is_waited_for_to_the_limit() -> None:
    body = BULK.format(WAIT).replace("[b], 1; bar", "[b], 2; bar")
    head = ".reg .b32 %t, d; .reg .pred p; mov.u32 %t, %tid.x;"
    with pytest.raises(StepLimit):
        start(head + body, NUMBERS.copy(), NUMBERS.copy(), threads=64, max_work=5000)


# -- hostile texts end ------------------------------------------------------------------------------------------------


def _quickly(body: str, error: type[InterpreterError], limit_s: float = 10.0, **options: object) -> None:
    began = time.monotonic()
    with pytest.raises(error):
        start(body, u32(0), **options)  # type: ignore[arg-type]
    assert time.monotonic() - began < limit_s


def test_hostile_texts_end_soon_in_errors() -> None:
    _quickly(".reg .b32 x; top: add.u32 x, x, 1; bra top;", StepLimit, threads=1024, grid=64, max_work=20_000)
    _quickly(".reg .b32 x; mov.u32 x, %tid.x;", StepLimit, threads=1024, grid=1 << 20, max_work=20_000)
    _quickly(".shared .b8 s[1000000000]; ret;", InterpreterError)
    _quickly(".local .b8 s[1000000000]; ret;", Unsupported)
    _quickly("ret;", InterpreterError, threads=1025)
    _quickly("ret;", InterpreterError, shared_bytes=1 << 40)
    _quickly("ret;", InterpreterError, grid=1 << 40)
    nested = "{ .reg .b32 x; " * 60 + "}" * 60
    start(nested + " ret;", u32(0))
    with pytest.raises(InterpreterError, match="braces more than 64 deep"):
        start(nested.replace("{", "{" * 50).replace("}", "}" * 50) + " ret;", u32(0))


@pytest.mark.parametrize("operand", ["{" * 5000 + "a" + "}" * 5000, "a|" * 5000 + "a"])
def test_operands_nested_without_end_are_no_ptx(operand: str) -> None:
    with pytest.raises(PtxError, match="PTX line 4: brackets more than 16 deep"):
        parse(f"{HEAD}.entry k() {{ mov.b32 a, {operand}; }}")


def test_many_registers_are_held_in_smaller_batches() -> None:
    body = ".reg .b64 r<60000>; .reg .b32 t; mov.u32 t, %tid.x;" + "".join(f"cvt.u64.u32 r{i}, t;" for i in range(2000))
    start(body, u32(0), threads=256, grid=8)


# -- launches ---------------------------------------------------------------------------------------------------------


def test_arguments_are_packed_by_the_parameters_types() -> None:
    out = np.zeros(4, np.uint64)
    text = f"""{HEAD}.entry k(.param .u64 out, .param .u8 a, .param .f32 b, .param .s64 c, .param .b32 d) .reqntid 32 {{
    .reg .b64 p, x; .reg .b32 y; ld.param.u64 p, [out]; ld.param.u8 y, [a]; st.global.b32 [p], y;
    ld.param.f32 y, [b]; st.global.b32 [p+8], y; ld.param.s64 x, [c]; st.global.b64 [p+16], x;
    ld.param.b32 y, [d]; st.global.b32 [p+24], y; }}"""
    launch = PtxLaunch(text, "", (1, 1, 1), (32, 1, 1), (pointer(out, "out"), 200, 1.5, -1, 2.0))
    run(launch)
    assert out.tolist() == [200, 0x3FC00000, 2**64 - 1, 0x40000000]
    for args, words in (([1], "takes 5 arguments, 1 were given"), ([pointer(out, "o")] * 5, "pointers are .u64"),
                        ([pointer(out, "o"), 1.5, 1.0, 1, 1], "is the float 1.5, but a is .u8")):  # fmt: skip
        with pytest.raises(InterpreterError, match=words):
            run(replace(launch, values=tuple(args)))
    with pytest.raises(InterpreterError, match="reqntid 32"):
        run(replace(launch, block=(64, 1, 1)))


def test_an_entry_is_chosen_by_name() -> None:
    out = np.zeros(1, np.uint32)
    entry = ".entry {n}(.param .u64 out) {{ .reg .b64 p; ld.param.u64 p, [out]; st.global.b32 [p], {v}; }}\n"
    text = HEAD + entry.format(n="one", v=1) + entry.format(n="two", v=2)
    launch = PtxLaunch(text, "two", (1, 1, 1), (1, 1, 1), (pointer(out, "out"),))
    run(launch)
    assert out.tolist() == [2]
    with pytest.raises(InterpreterError, match="has several entries"):
        run(replace(launch, entry=""))
