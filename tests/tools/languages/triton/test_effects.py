"""What a kernel in TTIR may do to its arguments, where its text was written to hide that."""

import pytest

from kerneltune.tools.languages.triton.language import LANGUAGE
from kerneltune.tools.schema.plan import EVERYTHING, ArgEffect, Kernel

CALLED = """
module {
  tt.func public @k(%a: !tt.ptr<f32>, %b: !tt.ptr<f32>, %c: i1) {
    %p = tt.splat %a : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    tt.call @inner(%p, %b, %c) : (tensor<16x!tt.ptr<f32>>, !tt.ptr<f32>, i1) -> ()
    tt.return
  }
  tt.func private @inner(%p: tensor<16x!tt.ptr<f32>>, %b: !tt.ptr<f32>, %c: i1) {
    %q = tt.splat %b : !tt.ptr<f32> -> tensor<16x!tt.ptr<f32>>
    %s = arith.select %c, %p, %q : tensor<16x!tt.ptr<f32>>
    %v = arith.constant dense<1.0> : tensor<16xf32>
    tt.store %s, %v : tensor<16x!tt.ptr<f32>>
    tt.return
  }
}
"""
# `%v` is an address that another kernel has written down
BY_NUMBER = """
module {
  tt.func public @k(%a: !tt.ptr<i64>, %b: !tt.ptr<i32>) {
    %v = tt.load %a : !tt.ptr<i64>
    %w = OPERATION
    tt.store %b, %w : !tt.ptr<i32>
    tt.return
  }
}
"""
ASSEMBLY = (
    'tt.elementwise_inline_asm "TEXT" {constraints = "=r,l", packed_element = 1 : i32, pure = false} %v : i64 -> i32'
)
GENERIC = (
    '"tt.elementwise_inline_asm"(%v) '
    '<{asm_string = "TEXT", constraints = "=r,l", packed_element = 1 : i32, pure = false}>'
)
CLEAN = '{asm_string = "mov.b32 $0, 0;"}'
STORES = "st.global.b32 [$1], 0; mov.b32 $0, 0;"
EXTERN = 'tt.extern_elementwise %v {libname = "", libpath = "", pure = true, symbol = "SYMBOL"} : (i64) -> i32'


def effects(text: str, *signature: str) -> tuple[ArgEffect, ...]:
    return LANGUAGE.effects(Kernel("k", "ttir", text, signature, {}))


def test_of_two_pointers_that_a_function_chooses_from_both_may_be_written() -> None:
    found = effects(CALLED, "*fp32", "*fp32", "i1")
    assert [its.writes for its in found] == [True, True, False]


@pytest.mark.parametrize(
    "operation",
    [
        ASSEMBLY.replace("TEXT", STORES),
        ASSEMBLY.replace("TEXT", STORES.replace("[", r"\5B").replace("]", r"\5d")),
        f"{GENERIC.replace('TEXT', STORES)} : (i64) -> i32",
        f"{GENERIC.replace('TEXT', STORES)} {CLEAN} : (i64) -> i32",
        EXTERN.replace("SYMBOL", "__nv_modf"),
        EXTERN.replace("SYMBOL", r"__nv_mod\66"),
        EXTERN.replace("SYMBOL", "memset"),
    ],
)
def test_what_may_store_to_an_address_that_was_read_may_reach_everything(operation: str) -> None:
    assert effects(BY_NUMBER.replace("OPERATION", operation), "*i64", "*i32") == (EVERYTHING, EVERYTHING)


@pytest.mark.parametrize(
    "operation", [ASSEMBLY.replace("TEXT", "popc.b64 $0, $1;"), EXTERN.replace("SYMBOL", "__nv_popcll")]
)
def test_what_computes_with_a_number_reaches_nothing(operation: str) -> None:
    found = effects(BY_NUMBER.replace("OPERATION", operation), "*i64", "*i32")
    assert found == (ArgEffect(reads=True, writes=False), ArgEffect(reads=False, writes=True))


ONE_LINE = """
module {
  tt.func public @k(%a: !tt.ptr<i32>, %b: !tt.ptr<i32>) {
    %v = arith.constant 1 : i32
    FIRST SECOND
    tt.return
  }
}
"""


@pytest.mark.parametrize(
    "first", ["%w = tt.load %a : !tt.ptr<i32>", "gpu.barrier", '%w = arith.constant 1 : i32 loc("x")']
)
@pytest.mark.parametrize("second", ["tt.store %b, %v : !tt.ptr<i32>", '"tt.store"(%b, %v) : (!tt.ptr<i32>, i32) -> ()'])
def test_a_second_operation_of_a_line_is_not_taken_for_a_part_of_the_first(first: str, second: str) -> None:
    text = ONE_LINE.replace("FIRST", first).replace("SECOND", second)
    assert effects(text, "*i32", "*i32") == (EVERYTHING, EVERYTHING)


@pytest.mark.parametrize(
    "ahead", ['%w = arith.constant 1 : i32 loc("x" // (\n)', "%w = arith.constant dense<1 // <\n> : tensor<4xi32>"]
)
def test_a_bracket_in_a_comment_hides_no_operation_behind_it(ahead: str) -> None:
    text = ONE_LINE.replace("FIRST", ahead).replace("SECOND", "\n tt.store %b, %v : !tt.ptr<i32>\n // )>")
    assert effects(text, "*i32", "*i32") == (ArgEffect(False, False), ArgEffect(reads=False, writes=True))


def test_a_text_with_more_behind_its_module_is_not_followed() -> None:
    assert effects(CALLED + "module {\n}\n", "*fp32", "*fp32", "i1")[:2] == (EVERYTHING, EVERYTHING)


def test_the_kernel_is_the_function_that_is_not_private_whether_or_not_its_text_says_public() -> None:
    private = "tt.func private @d(%a: !tt.ptr<i32>, %b: !tt.ptr<i32>) {\n    tt.return\n  }\n  tt.func @k("
    text = ONE_LINE.replace("FIRST SECOND", "tt.store %b, %v : !tt.ptr<i32>").replace("tt.func public @k(", private)
    assert effects(text, "*i32", "*i32") == (ArgEffect(False, False), ArgEffect(reads=False, writes=True))
