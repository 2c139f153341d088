import pytest

from kerneltune.tools.languages.ptx import PtxError, parse
from kerneltune.tools.languages.ptx.ir import (
    Address,
    Both,
    Guard,
    Immediate,
    Label,
    Not,
    Register,
    Symbol,
    Variable,
    Vector,
)

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"


def body(*lines: str) -> list[object]:
    """What a function of these lines holds; they begin in line 5."""
    text = HEAD + ".visible .entry k(.param .u64 p) {\n" + "\n".join(lines) + "\n}\n"
    return list(parse(text).entries[0].body)


def operands(line: str) -> tuple[object, ...]:
    (instruction,) = body(line)
    return instruction.operands  # type: ignore[attr-defined, no-any-return]


def test_the_head_of_a_file_is_read() -> None:
    module = parse(".version 7.8\n.target sm_80, debug\n.address_size 64\n")
    assert (module.version, module.target, module.target_line, module.functions) == ((7, 8), "sm_80", 2, ())


def test_an_entry_has_its_parameters_and_directives() -> None:
    text = HEAD + (
        ".visible .entry k(\n.param .u64 .ptr .global .align 16 x,\n.param .align 64 .b8 map[128],\n.param .f32 a)\n"
        ".reqntid 128, 2\n.minnctapersm 2\n.explicitcluster\n{ ret; }"
    )
    (entry,) = parse(text).entries
    assert entry.params == (
        Variable("x", "param", "u64", 5, align=16, ptr=True),
        Variable("map", "param", "b8", 6, 128, align=64),
        Variable("a", "param", "f32", 7),
    )
    assert [p.nbytes for p in entry.params] == [8, 128, 4]
    assert entry.directives == {"reqntid": (128, 2), "minnctapersm": (2,), "explicitcluster": ()}


def test_an_instruction_has_its_line_its_guard_and_its_modifiers() -> None:
    _, load = body(".reg .pred %p<2>;", "foo: @!%p1 ld.global.L1::no_allocate.L2::128B.v2.f32 {%f1, _}, [%rd1+-16];")
    assert load.line == 6  # type: ignore[attr-defined]
    assert load.guard == Guard("%p1", negated=True)  # type: ignore[attr-defined]
    assert load.modifiers == ("global", "L1::no_allocate", "L2::128B", "v2", "f32")  # type: ignore[attr-defined]
    assert load.operands == (Vector((Register("%f1"), Symbol("_"))), Address(Register("%rd1"), -16))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("written", "value", "bits"),
    [("0f3F800000", 1.0, 32), ("0dC000000000000000", -2.0, 64), ("-8388608", -8388608, 0), ("0xFFU", 255, 0),
     ("0b101", 5, 0), ("017", 15, 0), ("2.5e-1", 0.25, 0), ("-0f3F800000", -1.0, 32)],
)  # fmt: skip
def test_numbers_are_read_in_every_form(written: str, value: float, bits: int) -> None:
    assert operands(f"mov.b32 %r1, {written};")[1] == Immediate(value, bits)


def test_operands_of_every_shape_are_read() -> None:
    assert operands("setp.lt.and.f32 %p1|%p2, %f1, %f2, !%p3;") == (
        Both(Register("%p1"), Register("%p2")), Register("%f1"), Register("%f2"), Not(Register("%p3")),
    )  # fmt: skip
    assert operands("mov.u32 %r1, %tid.x;") == (Register("%r1"), Register("%tid.x"))
    assert operands("mov.u64 %rd1, buffer+64;")[1] == Symbol("buffer", 64)
    assert operands("st.shared.b32 [buffer+4], %r1;")[0] == Address(Symbol("buffer"), 4)
    assert operands("prefetch.tensormap [%rd1, {%r1, %r2}];") == (
        Address(Register("%rd1"), 0, (Vector((Register("%r1"), Register("%r2"))),)),
    )


def test_a_register_of_an_inner_scope_is_another_one() -> None:
    _, first, second, outer = body(
        ".reg .b32 t; mov.b32 t, 0;", "{ .reg .f32 t; mov.f32 t, 0f00000000; }", "{ .reg .b64 t; mov.b64 t, 1; }",
        "mov.b32 t, 2;",
    )  # fmt: skip
    names = [item.operands[0].name for item in (first, second, outer)]  # type: ignore[attr-defined]
    assert names == ["t@1", "t@2", "t"]


def test_numbered_registers_are_written_out_with_their_types() -> None:
    (entry,) = parse(HEAD + ".entry k() { .reg .f32 %f<3>, g; .reg .pred p; ret; }").entries
    assert entry.registers == {"%f0": "f32", "%f1": "f32", "%f2": "f32", "g": "f32", "p": "pred"}


def test_memory_is_listed_wherever_it_is_declared() -> None:
    text = HEAD + ".extern .shared .align 16 .b8 dynamic[];\n.global .u32 table[2][2] = {{1,2},{3,4}};\n"
    module = parse(text + ".entry k() { .shared .align 8 .v2 .f32 tile[32]; .local .b32 spill; ret; }")
    dynamic, table = module.variables
    tile, spill = module.entries[0].variables
    assert (dynamic.extern, dynamic.count, dynamic.space) == (True, 0, "shared")
    assert (table.nbytes, table.has_value, table.space) == (16, True, "global")
    assert (tile.nbytes, tile.align, spill.space, spill.nbytes) == (256, 8, "local", 4)


def test_labels_and_functions_are_kept_and_locations_are_not() -> None:
    label, call = body("top:", ".loc 1 12 3, function_name $L, inlined_at 1 2 3", "call (r), f, (a, 1);")
    assert label == Label("top", 5)
    assert len(call.operands) == 3  # type: ignore[attr-defined]
    module = parse(HEAD + ".func (.param .b32 r) f(.param .b32 a);\n.entry k() { ret; }")
    assert [(f.name, f.entry, f.defined) for f in module.functions] == [("f", False, False), ("k", True, True)]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "begins with .version"),
        (".version 8.0\n.visible .entry k() {}", 2, ".target follows"),
        (HEAD + ".entry k() {\nadd.s32 %r1, %r2\n}", 5, "expected ',' or ';' behind '%r2'"),
        (HEAD + ".entry k() {\nadd.s32 %r1, ;\n}", 5, "expected an operand"),
        (HEAD + ".entry k() {\nret;\n", 4, "never closed"),
        (HEAD + ".entry k(.param .q32 x) {}", 4, "no PTX type"),
        (HEAD + ".entry k() {\nmov.b32 %r1, `;\n}", 5, "cannot read"),
        (HEAD + ".entry k() {\n.reg .b32 %r<99999999>;\n}", 5, "the limit is"),
        (HEAD + "// " + "x" * (1 << 20), 1, "1 MiB"),
    ],
)
def test_what_is_not_ptx_is_named_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(PtxError, match=words) as raised:
        parse(text)
    assert raised.value.line == line
