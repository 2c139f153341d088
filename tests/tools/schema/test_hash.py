"""What names a plan: its work, not where in a file its kernels stand."""

import time

import pytest

from kerneltune.tools.schema.plan import Kernel, Plan, plan_hash, without_locations

LOCATED = """#loc = loc("a.py":3:0)
module {
  tt.func public @k(%x: !tt.ptr<f32> loc("x"(#loc))) {
    %c = arith.constant 1.0 : f32 loc(callsite("f)"("a \\" (.py":1:2) at #loc1))
    tt.store %x, %c : !tt.ptr<f32> loc(#loc2)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc1 = loc("a.py":5:4)
"""

BARE = """module {
  tt.func public @k(%x: !tt.ptr<f32>) {
    %c = arith.constant 1.0 : f32
    tt.store %x, %c : !tt.ptr<f32>
    tt.return
  }
}
"""


def plan_of(text: str, language: str = "ttir") -> Plan:
    kernel = Kernel("k", language, text, ("*fp32",))  # type: ignore[arg-type]
    return Plan("main", "default", "sm_90", (), (kernel,), (), (), None)


def test_locations_go_and_everything_else_stays() -> None:
    assert without_locations(LOCATED) == BARE


@pytest.mark.parametrize(
    "text",
    [
        '%a = tt.elementwise_inline_asm "mov $0, $1; // loc(\\0A add $0, $0, $1; // )" {pure = false} %x',
        '%a = tt.elementwise_inline_asm "a \\" loc(b) \\"" {pure = true} %x',
        "// loc(\ntt.store %x, %c\n// )\n",
        'x // "\ntt.store %x, %c\n// "\n',
        "tt.func @loc(%x: i32) { tt.call @a.loc(%x)",
        "%loc(1) #loc(2) !loc(3) my.loc(4) my$loc(5)",
        "#loc1 = dense<1> : tensor<1xi32>\n",
        "tt.return loc(#loc",
        'tt.return loc("a',
    ],
)
def test_what_only_looks_like_a_location_stays(text: str) -> None:
    assert without_locations(text) == text


def test_plans_that_differ_in_a_string_differ_in_their_hash() -> None:
    one, other = (f'%a = tt.elementwise_inline_asm "loc({what})" %x' for what in ("1", "2"))
    assert plan_hash(plan_of(one)) != plan_hash(plan_of(other))


def test_in_ptx_nothing_is_a_location() -> None:
    assert plan_hash(plan_of("a loc(1)", "ptx")) != plan_hash(plan_of("a loc(2)", "ptx"))
    assert plan_hash(plan_of("a loc(1)")) == plan_hash(plan_of("a loc(2)"))


@pytest.mark.parametrize("unit", [" ", "loc(", '"\\', '"', "\n#loc = loc(", "loc()", "(", "//", "\n#a", "loc(\n"])
def test_odd_text_takes_time_in_proportion_to_its_length(unit: str) -> None:
    started = time.thread_time()
    without_locations(unit * (1_000_000 // len(unit)))
    assert time.thread_time() - started < 2.0
