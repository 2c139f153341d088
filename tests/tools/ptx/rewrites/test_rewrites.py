"""Each rewrite on a text where its condition holds, and on one beside it where it does not."""

import pytest

from tools.ptx.rewrites import CATALOGUE, CannotRewrite, Launched, options, rewritten

HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u32 n)
.reqntid {threads}
{{
    .reg .b32 %r<40>;
    .reg .b64 %d<20>;
    .reg .pred %p<20>;
    .shared .align 16 .b8 part[128];
    ld.param.u64 %d0, [x];
    ld.param.u64 %d1, [y];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d2, %r0, 16;
    add.s64 %d3, %d0, %d2;
    add.s64 %d4, %d1, %d2;
"""
KNOWN = Launched(grid=(1, 1, 1), scalars={2: (64, 64)}, aligned={0: 16, 1: 16}, known=True)


def text(body: str, threads: int = 64) -> str:
    return HEAD.format(threads=threads) + body + "\n    ret;\n}\n"


def after(name: str, value: str, body: str, launched: Launched = KNOWN, threads: int = 64) -> str:
    """The body's statements after a rewrite."""
    done = rewritten(text(body, threads), {name: value}, launched).text
    return done.split("add.s64 %d4, %d1, %d2;\n")[-1] if "add.s64 %d4" in done else done


MASKED = """
    setp.lt.s32 %p1, %r0, 64;
    mov.b32 %r1, 0;
    @%p1 ld.global.b32 %r1, [%d3];
    selp.b32 %r2, %r1, 7, %p1;
    st.global.b32 [%d4], %r2;"""


def test_a_mask_that_is_always_true_goes_with_the_default_that_it_needed() -> None:
    done = after("masks", "on", MASKED)
    assert "setp" not in done
    assert "selp" not in done
    assert "@" not in done
    assert "mov.b32 %r1, 0" not in done


def test_a_mask_that_some_thread_fails_stays() -> None:
    assert rewritten(text(MASKED, threads=96), {"masks": "on"}, KNOWN).applied == ()


def test_a_store_under_a_mask_that_never_holds_goes() -> None:
    assert "st.global" not in after("masks", "on", "setp.gt.s32 %p1, %r0, 63;\n    @%p1 st.global.b32 [%d4], %r0;")


TWICE = """
    ld.global.b32 %r1, [%d3];
    bar.sync 0;
    ld.global.b32 %r2, [%d3];
    add.s32 %r3, %r1, %r2;
    st.global.b32 [%d4], %r3;"""


def test_a_second_load_of_the_same_place_becomes_a_copy() -> None:
    assert after("reuse", "on", TWICE).count("ld.global") == 1


@pytest.mark.parametrize(
    ("change", "launched"),
    [
        (("[%d4], %r3", "[%d3], %r3"), KNOWN),
        (("", ""), Launched(known=True, shares={0: frozenset({1}), 1: frozenset({0})})),
        (("", ""), Launched()),
        (("ld.global.b32 %r2, [%d3]", "ld.global.b32 %r2, [%d3+4]"), KNOWN),
        (("ld.global.b32 %r2", "ld.volatile.global.b32 %r2"), KNOWN),
        (("bar.sync 0;", "add.s64 %d3, %d3, 4;"), KNOWN),
        (("bar.sync 0;", "mov.b32 %r1, 5;"), KNOWN),
        (("bar.sync 0;", "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r0], 16;"), KNOWN),
    ],
    ids=["it is written", "another pointer may write it", "nothing is known of the launches", "another place",
         "volatile", "the address moves", "the register is overwritten", "a bulk copy writes"],
)  # fmt: skip
def test_a_load_stays_where_it_may_bring_something_else(change: tuple[str, str], launched: Launched) -> None:
    assert rewritten(text(TWICE.replace(*change)), {"reuse": "on"}, launched).applied == ()


def test_a_load_moves_over_a_barrier_to_where_its_address_is_known() -> None:
    body = TWICE.replace("[%d3];\n    add", "[%d3+4];\n    add")
    done = rewritten(text(body), {"hoist": "on"}, KNOWN).text
    assert done.index("add.s64 %d3") < done.index("[%d3+4]")
    assert done.index("[%d3+4]") < done.index("bar.sync")
    assert rewritten(text(body.replace("[%d4], %r3", "[%d3], %r3")), {"hoist": "on"}, KNOWN).applied == ()


NEIGHBOURS = (
    "\n".join(f"    ld.global.b32 %r{4 + i}, [%d3+{4 * i}];" for i in (1, 0, 3, 2))
    + "\n"
    + "\n".join(f"    st.global.b32 [%d4+{4 * i}], %r{4 + i};" for i in range(4))
)


def test_neighbouring_accesses_become_one_in_the_order_of_their_addresses() -> None:
    done = after("wider", "v4", NEIGHBOURS)
    assert "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%d3];" in done
    assert "st.global.v4.b32 [%d4], {%r4, %r5, %r6, %r7};" in done


@pytest.mark.parametrize(
    ("change", "launched"),
    [
        (("", ""), Launched(grid=(1, 1, 1), aligned={0: 4, 1: 4}, known=True)),
        (("ld.global.b32 %r4, [%d3+0];", "ld.global.b32 %r4, [%d3+0];\n    bar.sync 0;"), KNOWN),
        (("ld.global.b32 %r4, [%d3+0];", "ld.global.b32 %r4, [%d3+0];\n    add.s32 %r9, %r5, 1;"), KNOWN),
    ],
    ids=["unaligned", "a barrier between", "a result is read between"],
)
def test_loads_stay_apart_where_they_may_not_be_one(change: tuple[str, str], launched: Launched) -> None:
    loads = NEIGHBOURS.split("    st.")[0] + "    st.global.b32 [%d4], %r4;"
    assert "v4" not in rewritten(text(loads.replace(*change)), {"wider": "v4"}, launched).text


def test_stores_stay_apart_where_a_load_stands_between() -> None:
    body = NEIGHBOURS.replace(
        "    st.global.b32 [%d4+8]", "    ld.global.b32 %r20, [%d3+32];\n    st.global.b32 [%d4+8]"
    )
    assert "st.global.v4" not in rewritten(text(body), {"wider": "v4"}, KNOWN).text


def test_hints_are_exchanged_and_policies_made_once() -> None:
    body = "ld.global.L1::evict_last.L2::cache_hint.b32 %r1, [%d3], %d5;\n    st.global.cs.b32 [%d4], %r1;"
    assert "ld.global.cg.L2::cache_hint.b32 %r1, [%d3], %d5;" in after("load_hint", "cg", body)
    assert "ld.global.b32 %r1, [%d3];" in after("load_hint", "plain", body)
    assert "ld.global.L1::evict_last.L2::cache_hint.L2::128B.b32" in after("load_prefetch", "L2::128B", body)
    assert "ld.global.nc.L1::evict_last.L2::cache_hint.b32" in after("read_only", "on", body)
    assert "st.global.L1::no_allocate.b32 [%d4], %r1;" in after("store_hint", "L1::no_allocate", body)
    made = rewritten(text(body), {"load_policy": "evict_first"}, KNOWN).text
    assert made.count("createpolicy.fractional.L2::evict_first.b64 %policy_0, 1.0;") == 1


KEEPING = """createpolicy.fractional.L2::evict_last.b64 %d5{share};
    ld.global.L2::cache_hint.b32 %r1, [%d3], %d5;
    ld.global.L1::evict_last.b32 %r2, [%d3+4];
    st.global.v2.b32 [%d4], {{%r1, %r2}};"""


@pytest.mark.parametrize("share", ["", ", 1.0"])
def test_loads_that_have_the_policy_keep_theirs_and_the_others_get_it(share: str) -> None:
    done = after("load_policy", "evict_last", KEEPING.format(share=share))
    assert "ld.global.L2::cache_hint.b32 %r1, [%d3], %d5;" in done
    assert "ld.global.L1::evict_last.L2::cache_hint.b32 %r2, [%d3+4], %policy_0;" in done


def test_a_policy_for_half_of_the_lines_is_another_one() -> None:
    done = after("load_policy", "evict_last", KEEPING.format(share=", 0.5"))
    assert "%r1, [%d3], %policy_0;" in done
    assert "0.5" not in done


def test_a_policy_that_every_load_has_is_not_offered_again() -> None:
    whole = "\n".join(line for line in KEEPING.format(share="").splitlines() if "%r2, [" not in line)
    assert "evict_last" not in options(text(whole), KNOWN)["load_policy"]
    assert options(text(whole.replace("evict_last", "evict_first")), KNOWN)["load_policy"][0] == "evict_last"


def test_a_strong_load_keeps_its_words() -> None:
    body = "ld.relaxed.gpu.global.b32 %r1, [%d3];"
    assert not {"load_hint", "load_prefetch", "read_only", "reuse", "wider"} & set(options(text(body), KNOWN))


def test_divisions_by_one_number_share_its_reciprocal() -> None:
    body = "div.full.f32 %r3, %r1, %r9;\n    div.full.f32 %r4, %r2, %r9;\n    st.global.v2.b32 [%d4], {%r3, %r4};"
    done = after("division", "reciprocal", body)
    assert done.count("rcp.approx.ftz.f32 %inverse_0, %r9;") == 1
    assert "mul.f32 %r4, %r2, %inverse_0;" in done
    changed = body.replace("    div", "    mov.b32 %r9, %r8;\n    div")  # in a loop the first one divides by another
    assert rewritten(text(changed), {"division": "reciprocal"}, KNOWN).applied == ()


CHAIN = (
    """
    ld.global.b32 %r1, [%d3];
"""
    + "".join(
        f"    shfl.sync.bfly.b32 %r{2 * i + 2}, %r{2 * i + 1}, {16 >> i}, 31, -1;\n"
        f"    max.s32 %r{2 * i + 3}, %r{2 * i + 1}, %r{2 * i + 2};\n"
        for i in range(5)
    )
    + "    st.global.b32 [%d4], %r11;"
)


def test_a_reduction_of_integers_over_a_warp_is_one_instruction() -> None:
    assert "redux.sync.max.s32 %r11, %r1, -1;" in after("redux", "integers", CHAIN)


@pytest.mark.parametrize(
    ("old", "new"), [("8, 31, -1", "4, 31, -1"), ("[%d4], %r11", "[%d4], %r5"), ("2, 31, -1", "2, 31, 255")]
)
def test_a_chain_with_a_gap_or_another_reader_stays(old: str, new: str) -> None:
    assert rewritten(text(CHAIN.replace(old, new)), {"redux": "integers"}, KNOWN).applied == ()


def test_a_chain_becomes_a_tree_but_a_tree_stays() -> None:
    chain = (
        "\n".join(f"    max.f32 %r{10 + i}, %r{9 + i}, %r{20 + i};" for i in range(8))
        + "\n    st.global.b32 [%d4], %r17;"
    )
    once = rewritten(text(chain), {"trees": "maxima"}, KNOWN)
    assert once.applied
    assert rewritten(once.text, {"trees": "maxima"}, KNOWN).applied == ()
    assert rewritten(text(chain.replace("max", "add")), {"trees": "maxima"}, KNOWN).applied == ()


def test_a_barrier_behind_a_barrier_goes_unless_memory_was_touched() -> None:
    assert after("barriers", "fewer", "bar.sync 0;\n    add.s32 %r1, %r0, 1;\n    bar.sync 0;").count("bar.sync") == 1
    body = "bar.sync 0;\n    st.shared.b32 [part], %r0;\n    bar.sync 0;"
    assert rewritten(text(body), {"barriers": "fewer"}, KNOWN).applied == ()


def test_the_barrier_of_one_warp_is_the_warp_s() -> None:
    assert "bar.warp.sync 0xffffffff;" in after("barriers", "fewer", "bar.sync 0;", threads=32)


def test_register_caps_are_directives_and_leave_a_launch_possible() -> None:
    assert ".maxnreg 64\n{" in rewritten(text(""), {"registers": "maxnreg 64"}, KNOWN).text
    assert rewritten(text("", threads=1024), {"registers": "maxnreg 128"}, KNOWN).applied == ()
    assert rewritten(text("", threads=1024), {"registers": "minnctapersm 4"}, KNOWN).applied == ()


def test_comments_indentation_and_other_lines_stay() -> None:
    body = "    ld.global.b32 %r1, [%d3];\n  div.full.f32 %r3, %r1, %r9;  // the mean\n    // so on\n"
    body += "    st.global.b32 [%d4], %r3;"
    done = rewritten(text(body), {"division": "approx"}, KNOWN).text
    assert done == text(body.replace("div.full.f32 ", "div.approx.f32 "))


def test_statements_that_share_a_line_are_left_alone() -> None:
    body = "div.full.f32 %r3, %r1, %r9; st.global.b32 [%d4], %r3;"
    assert rewritten(text(body), {"division": "approx"}, KNOWN).applied == ()


def test_registers_of_inner_scopes_are_left_alone() -> None:
    body = "{\n    .reg .b32 %t;\n    div.full.f32 %t, %r1, %r9;\n    st.global.b32 [%d4], %t;\n    }"
    assert rewritten(text(body), {"division": "approx"}, KNOWN).applied == ()


@pytest.mark.parametrize("body", ["call f, (%r1);", "brx.idx %r1, $t;"])
def test_a_text_whose_flow_is_not_followed_is_refused(body: str) -> None:
    with pytest.raises(CannotRewrite, match="goes where"):
        rewritten(text(body), {"masks": "on"}, KNOWN)
    assert options(text(body), KNOWN) == {}


def test_a_value_that_a_rewrite_does_not_know_is_an_error_that_names_those_it_knows() -> None:
    with pytest.raises(KeyError, match="reciprocal"):
        rewritten(text(""), {"division": "fast"}, KNOWN)


def test_every_rewrite_has_a_line_in_the_document() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[4] / "docs/ptx-rewrites.md").read_text()
    for rewrite in CATALOGUE.values():
        line = next((line for line in page.splitlines() if line.startswith(f"| `{rewrite.name}` |")), "")
        assert f"| {rewrite.keeps} |" in line, rewrite.name
        assert rewrite.name == "registers" or all(value in line for value in rewrite.values), rewrite.name
