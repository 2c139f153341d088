"""TTIR text: what MLIR prints is read, with and without debug locations, and anything else is a typed error."""

from __future__ import annotations

import random
import re

import pytest
import torch

from kerneltune.tools.languages.triton.ttir.interpreter import run
from kerneltune.tools.languages.triton.ttir.ir import (
    Desc,
    InterpreterError,
    Ptr,
    Scalar,
    StepLimit,
    TensorType,
    TtirSyntaxError,
    UnsupportedOp,
    parse,
    parse_type,
)
from kerneltune.tools.languages.triton.ttir.memory import Argument
from tests.tools.languages.triton.ttir import kernels
from tests.tools.languages.triton.ttir.lowering import lower, pointer

SOFTMAX = lower(kernels.softmax_row, {"x": "*fp32", "y": "*fp32", "n": "i32"}, {"B": 64})
COLLATZ = lower(kernels.collatz, {"x": "*i32", "y": "*i32"}, {})


def without_locations(text: str) -> str:
    """As `-strip-debuginfo` prints it."""
    text = re.sub(r"^#loc.*\n?", "", text, flags=re.MULTILINE)
    while "loc(" in text:
        text = re.sub(r' ?loc\((?:"[^"]*"|[^()"])*(?:\((?:"[^"]*"|[^()"])*\))?(?:"[^"]*"|[^()"])*\)', "", text)
    return text


def wrapped(body: str, args: str = "") -> str:
    return f"module {{\n  tt.func public @k({args}) {{\n{body}\n    tt.return\n  }}\n}}\n"


@pytest.mark.parametrize("text", [SOFTMAX, COLLATZ])
def test_debug_locations_make_no_difference(text: str) -> None:
    bare = without_locations(text)
    assert "loc" in text
    assert "loc(" not in bare
    names = [op.name for op in parse(text).kernel.body.blocks[0].ops]
    assert names == [op.name for op in parse(bare).kernel.body.blocks[0].ops]


def test_types_are_read_as_printed() -> None:
    assert parse_type("tensor<4x1x!tt.ptr<f8E4M3FN>>") == TensorType((4, 1), Ptr(Scalar("f8E4M3FN")))
    assert parse_type("!tt.ptr<i8, 1>") == Ptr(Scalar("i8"))
    block = TensorType((16, 32), Scalar("bf16"))
    assert parse_type("!tt.tensordesc<tensor<16x32xbf16>>") == Desc(block)
    assert parse_type("!tt.tensordesc<16x32xbf16>") == Desc(block)


def test_operand_names_with_result_numbers_resolve() -> None:
    x, y = torch.tensor([6, 1], dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    run(parse(COLLATZ), (2, 1, 1), [pointer("x", x), pointer("y", y)])
    assert y.tolist() == [8, 0]


def test_a_result_that_nothing_reads_is_not_among_the_values_that_are_used() -> None:
    kernel = parse(lower(kernels.total, {"x": "*fp32", "y": "*fp32", "n": "i32"}, {"B": 64})).kernel
    results = [name for op in kernel.body.blocks[0].ops for name in op.results if op.name == "tt.atomic_rmw"]
    assert len(results) == 1
    assert not kernel.used & set(results)
    assert {"%x", "%y", "%n"} <= kernel.used
    text = """tt.func public @f(%a: i32, %b: i1) {
      cf.cond_br %b, ^one(%a : i32), ^two
    ^one(%c: i32):
      %d = arith.addi %c, %c : i32
      tt.return
    ^two:
      tt.return
    }"""
    assert parse(text).kernel.used == {"%a", "%b", "%c"}


def test_an_unknown_op_parses_and_is_unsupported_only_when_it_runs() -> None:
    body = (
        '    %0 = "my.op"(%a) <{mode = 3 : i32}> ({\n    ^bb0(%x: i32):\n      my.yield %x : i32\n    }) : (i32) -> i32'
    )
    module = parse(wrapped(body, "%a: i32"))
    with pytest.raises(UnsupportedOp) as caught:
        run(module, (1, 1, 1), [1])
    assert caught.value.op == "my.op"


@pytest.mark.parametrize(
    "body",
    [
        "    %0 = tt.reshape %r : tensor<4xi32> -> tensor<3xi32>",
        '    %0 = "tt.reduce"(%r) <{axis = 7 : i32}> ({\n    ^bb0(%a: i32, %b: i32):\n'
        "      tt.reduce.return %a : i32\n    }) : (tensor<4xi32>) -> i32",
        "    %0 = arith.addi %r, %missing : tensor<4xi32>",
        "    %0 = arith.cmpi %r, %r : tensor<4xi32>",
        "    %0 = tt.trans %r {order = array<i32: 5>} : tensor<4xi32> -> tensor<4xi32>",
        "    %0 = tt.load %r : tensor<4xi32>",
        "    %0, %1 = tt.expand_dims %r {axis = 0 : i32} : tensor<4xi32> -> tensor<1x4xi32>",
        "    cf.br ^nowhere",
        "    tt.call @k() : () -> ()",
    ],
)
def test_ill_formed_ops_raise_typed_errors(body: str) -> None:
    text = wrapped("    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>\n" + body)
    with pytest.raises(InterpreterError):
        run(parse(text), (1, 1, 1), [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "module {",
        "module { }",
        "tt.func public @f(",
        "tt.func public @f() {\n",
        wrapped("    %0 = arith.constant dense<1.0> : tensor<99999999x99999999xf32>"),
        wrapped("    %0 = arith.constant 1 : " + "!tt.ptr<" * 5000 + "f32" + ">" * 5000),
        wrapped("    my.op {a = " + "[" * 5000 + "]" * 5000 + "}"),
        wrapped("    scf.if %c {\n" * 200 + "}\n" * 200),
        wrapped("    %0 = arith.constant dense<1"),
        'tt.func public @f() { "unterminated',
        "\x00\x01",
        "import os; os.system('true')",
    ],
)
def test_malformed_text_is_a_syntax_error(text: str) -> None:
    with pytest.raises(TtirSyntaxError):
        parse(text)


def test_damaged_text_raises_nothing_but_typed_errors() -> None:
    chance = random.Random(0)
    x, y = torch.randn(2, 50), torch.zeros(2, 50)
    source = without_locations(SOFTMAX)
    for _ in range(300):
        characters = list(source)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(characters))
            characters[at] = chance.choice(
                ["", " ", "\n", "0", "9", "(", "}", "%", "x", ":", "-", "<", characters[at] * 2]
            )
        try:
            run(parse("".join(characters)), (2, 1, 1), [pointer("x", x), pointer("y", y), 50], max_ops=1000)
        except InterpreterError:
            continue


def test_wrong_arguments_are_typed_errors() -> None:
    module, x = parse(SOFTMAX), torch.zeros(4)
    wrong: list[list[Argument]] = [
        [],
        [pointer("x", x)],
        [pointer("x", x), pointer("y", x), 1, 2],
        [1, 2, 3],
        [pointer("x", x)] * 3,
    ]
    for args in wrong:
        with pytest.raises(InterpreterError):
            run(module, (1, 1, 1), args)


def test_loops_without_a_body_end_in_a_step_limit() -> None:
    body = """    %a = arith.constant 0 : i64
    %b = arith.constant 9000000000000 : i64
    %c = arith.constant 1 : i64
    scf.for %i = %a to %b step %c  : i64 {
    }"""
    with pytest.raises(StepLimit):
        run(parse(wrapped(body)), (1, 1, 1), [], max_ops=1000)


def test_more_programs_than_can_be_numbered_end_in_a_step_limit() -> None:
    module, grid = parse(wrapped("")), (2**31 - 1, 65_535, 65_535)
    with pytest.raises(StepLimit, match="at most 2,147,483,648"):
        run(module, grid, [])
    assert run(module, grid, [], programs=[0, 2**60]).programs == 2


def test_values_that_contradict_their_types_cannot_exhaust_memory() -> None:
    body = """    %r = tt.make_range {end = 65536 : i32, start = 0 : i32} : tensor<65536xi32>
    %x = tt.expand_dims %r {axis = 0 : i32} : tensor<65536xi32> -> tensor<1x65536xi32>
    %y = tt.expand_dims %r {axis = 1 : i32} : tensor<65536xi32> -> tensor<65536x1xi32>
    %z = arith.addi %x, %y : tensor<1x65536xi32>"""
    with pytest.raises(StepLimit, match="4294967296 elements"):
        run(parse(wrapped(body)), (1, 1, 1), [])
