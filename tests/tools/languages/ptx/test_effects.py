"""What PTX may read and write, read off its text: never less than it does."""

from pathlib import Path

import pytest

from kerneltune.tools.languages.base import device_code
from kerneltune.tools.languages.ptx import parse
from kerneltune.tools.languages.ptx.checks import effects, waits_for_earlier, written_variables
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.messages import TraceCase, TraceReply, TraceRequest
from kerneltune.tools.schema.plan import Kernel
from tests.tools.languages.ptx.conftest import HEAD, LOAD, RELU, STORE, with_lines

TWINS = Path(__file__).parents[4] / "corpus" / "twins"
WRITES_Y_READS_X = ((False, True), (True, False), (False, False))


def tensor(*shape: int) -> dict[str, object]:
    return {"$tensor": {"shape": list(shape), "dtype": "float32", "stride": None}}


def test_loads_read_and_stores_write() -> None:
    assert effects(RELU, "relu") == WRITES_Y_READS_X


def test_an_update_reads_and_writes() -> None:
    added = effects(RELU.replace("st.global.f32", "red.global.add.f32"), "relu")
    assert added is not None
    assert added[0] == (True, True)


@pytest.mark.parametrize(
    "lines",
    [
        ("mov.b64 {%r5, %r6}, %rd5;", "mov.b64 %rd5, {%r5, %r6};"),
        ("selp.b64 %rd5, %rd5, 0, %p1;",),
        ("@%p1 mov.u64 %rd5, %rd2;",),
        ("bra two;", "one: mov.u64 %rd5, %rd7;", "bra three;", "two: mov.u64 %rd7, %rd5;", "bra one;", "three:"),
        ("shfl.sync.idx.b32 %r5|%p2, %r4, 0, 31, -1;",),
    ],
)
def test_an_address_is_followed_wherever_it_goes(lines: tuple[str, ...]) -> None:
    found = effects(with_lines(*lines), "relu")
    assert found is not None
    assert found[:2] == WRITES_Y_READS_X[:2]  # the third is a number, which may choose among addresses


@pytest.mark.parametrize(
    "line",
    [
        "mov.u64 %rd5, 4096;",
        "ld.shared.u64 %rd5, [%r5];",
        "call f, (%rd5);",
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r5], [%rd5, {%r5}], [%r6];",
        "{ .param .b64 x; ld.param.u64 %rd6, [x]; ld.global.u32 %r5, [%rd6]; }",
    ],
)
def test_an_address_of_unknown_origin_may_go_anywhere(line: str) -> None:
    text = with_lines(line) if "%rd5" not in line or "call" in line or "cp" in line else RELU.replace(
        LOAD, f"    {line}\n{LOAD}"
    )  # fmt: skip
    if line.startswith(("mov", "ld.shared")):
        text = text.replace("add.s64 %rd5, %rd2, %rd3;", "")
    assert effects(text, "relu") is None


CHOOSES = (
    HEAD.replace("8.0", "8.6")
    + """.visible .entry k(.param .u64 a, .param .u64 b, .param .u32 n)
{
    .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<20>;
    ld.param.u64 %rd2, [b];
    ld.param.u32 %r1, [n];
    setp.eq.s32 %p1, %r1, 7;
    LINES
    selp.b64 %rd3, %rd1, %rd2, %p1;
    st.global.u32 [%rd3], %r1;
    ret;
}
"""
)


@pytest.mark.parametrize(
    "lines",
    [
        "mov.u64 %rd4, a; ld.param.u64 %rd1, [%rd4];",
        "ld.param::entry.u64 %rd1, [a];",
        "ld.param.u64 %rd1, [b+-8];",
        "ld.param.v2.u64 {%rd5, %rd1}, [a];",
        ".local .align 8 .b8 s[16]; ld.param.u64 %rd6, [a]; st.local.u64 [s], %rd6; ld.local.u64 %rd1, [s];",
        ".shared .b64 s; ld.param.u64 %rd6, [a]; st.shared::cta.u64 [s], %rd6; ld.shared.u64 %rd1, [s];",
        ".shared .b64 s; ld.param.u64 %rd6, [a]; atom.shared.exch.b64 %rd7, [s], %rd6; ld.shared.u64 %rd1, [s];",
    ],
)
def test_an_address_that_comes_by_another_way_is_that_of_its_parameter(lines: str) -> None:
    found = effects(CHOOSES.replace("LINES", lines), "k")
    assert found is not None
    assert [writes for _, writes in found[:2]] == [True, True]


def test_what_decides_about_an_address_goes_into_it() -> None:
    steered = with_lines("setp.gt.u64 %p2, %rd1, %rd3;", "@%p2 add.s64 %rd5, %rd5, 4;")
    assert effects(steered, "relu") == ((True, True), (True, False), (False, False))


def test_copies_between_spaces_read_and_write_their_sides() -> None:
    text = RELU.replace(LOAD, "cp.async.cg.shared.global [%r5], [%rd5], 16;\n").replace(
        STORE, "cp.async.bulk.global.shared::cta.bulk_group [%rd4], [%r5], 16;\n"
    )
    assert effects(text, "relu") == WRITES_Y_READS_X


@pytest.mark.parametrize("text", ["", RELU.replace("relu", "other"), RELU.replace("}", "")])
def test_what_cannot_be_read_has_every_effect(text: str) -> None:
    assert effects(text, "relu") is None
    kernel = Kernel("relu", "ptx", text, ("*fp32", "*fp32", "i32"))
    assert [(e.reads, e.writes) for e in device_code(kernel.language).effects(kernel)] == [
        (True, True),
        (True, True),
        (False, False),
    ]


def test_a_variable_is_written_through_its_address() -> None:
    table = RELU.replace(".visible", ".global .u32 a = 1;\n.global .u32 b = 1;\n.visible")
    moved = table.replace(LOAD, "    mov.u64 %rd6, a;\n    st.global.u32 [%rd6], 1;\n" + LOAD)
    assert written_variables(parse(moved)) == frozenset({"a"})
    assert written_variables(parse(table)) == frozenset()


def test_a_variable_whose_address_another_function_finds_in_shared_memory_may_be_written() -> None:
    table = RELU.replace(".visible", ".global .u32 a = 1;\n.shared .u64 s;\n.func f() {\n    ret;\n}\n.visible")
    kept = table.replace(LOAD, "    mov.u64 %rd6, a;\n    st.shared.u64 [s], %rd6;\n" + LOAD)
    assert written_variables(parse(table)) == frozenset()
    assert written_variables(parse(kept)) is None


def test_a_text_that_takes_many_passes_ends_in_time() -> None:
    chain = [f"mov.b32 %a{i}, %a{i + 1};" for i in range(20_000)]
    assert effects(with_lines(".reg .b32 %a<20001>;", *chain, "mov.b32 %a20000, %rd5;"), "relu") is None


def test_a_wait_is_an_instruction_not_a_word() -> None:
    assert waits_for_earlier(with_lines("griddepcontrol.wait;"), "relu")
    assert not waits_for_earlier(with_lines("// griddepcontrol.wait"), "relu")
    assert not waits_for_earlier("griddepcontrol.wait", "relu")


@pytest.mark.parametrize(
    ("twin", "inputs"),
    [
        ("softmax_rows", (tensor(33, 100),)),
        ("row_sum_rows", (tensor(33, 100),)),
        ("gelu_flat", (tensor(33, 100),)),
        ("matmul_tiles", (tensor(64, 32), tensor(32, 48))),
    ],
)
def test_the_effects_of_triton_s_ptx_are_those_of_its_ttir_or_wider(
    twin: str, inputs: tuple[dict[str, object], ...], machine: Machine, tmp_path: Path
) -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    request = TraceRequest((TWINS / f"{twin}.py").read_text(), (TraceCase("main", inputs, (), {}),), 1)
    with machine.tracer() as worker:
        reply = decode(TraceReply, worker.call(encode(request), timeout_s=60).body)
    assert reply.failure is None, reply.failure
    for kernel in reply.plans[0].kernels:
        path = tmp_path / "kernel.ttir"
        path.write_text(kernel.text)
        ptx = triton.compile(str(path), target=GPUTarget("cuda", 90, 32)).asm["ptx"]
        found = effects(ptx, kernel.name)
        assert found is not None
        pairs = zip(kernel.signature, device_code(kernel.language).effects(kernel), found, strict=False)
        for known, (reads, writes) in ((known, both) for kind, known, both in pairs if kind.startswith("*")):
            assert (known.reads <= reads, known.writes <= writes) == (True, True)
            assert writes == known.writes  # and no wider where it matters most
