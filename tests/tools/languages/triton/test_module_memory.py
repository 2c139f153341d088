"""What a kernel may bring into its module, seen in the text of compiled kernels, and ask of the compiler."""

from collections.abc import Callable

import pytest

from kerneltune.tools.languages.triton.language import LANGUAGE, foreign_ttir, module_memory
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.plan import Kernel
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Status
from kerneltune.tools.update import Update, UpdateLimits, Updater
from tests.tools.conftest import HEADER, tensor

PTX = """.version 8.7
.target sm_90a
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf(.param .b64 a);
.extern .shared .align 16 .b8 global_smem[];
.global .align 1 .b8 printfFormat_0[4] = {37, 100, 59, 0};
.visible .entry k(
	.param .u64 .ptr .global .align 1 k_param_0
)
{
	// begin inline asm
	ld.global.b32 { %r1 }, [ %rd1 + 0 ];
	// end inline asm
	// begin inline asm
	ASSEMBLY
	// end inline asm
	ret;
}
	.section .debug_abbrev { .b8 1 }
"""
BODY = """
@triton.jit
def kernel(x, y, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i)
    tl.store(y + i, changed(v))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(4,)](x, y, B=256)
        return y
"""


@pytest.fixture(scope="module")
def update(machine: Machine) -> Callable[[str], Update]:
    """Update a candidate whose kernel applies `changed`, a function that the source brings."""
    task = TaskSpec("change", "0" * 64, "float32", "", (CaseSpec("main", (tensor(1024),), (), tensor(1024)),))
    updater = Updater(task, "sm_90", machine.tracer, machine.compiler, UpdateLimits(trace_s=20.0, compile_s=60.0))
    return lambda source: updater.update(HEADER + "from triton.language.extra import libdevice\n" + source + BODY)


def inline(assembly: str) -> str:
    return f'%1 = tt.elementwise_inline_asm "{assembly}" {{constraints = "=r,r"}} %0 : i32 -> i32'


@pytest.mark.parametrize(
    "assembly",
    [
        "{ .global .align 4 .b32 c; }",
        ";.global .b32 c;",
        "}\n.const .b32 c = {1};\n{",
        "l:.global .b32 c;",
        "/* .reg */ .extern .func f; // ",
        "} .visible .global .b32 c; .func x() {",
        "} .func (.param .b64 o) malloc (.param .b64 n); {",
        "} .visible .entry other() {",
        "} .weak .global .b32 c; {",
        ".version 7.0",
        "{ .local .align 4 .b8 t[16]; st.local.b32 [t], %r1; }",
        "{ .shared .align 4 .b8 t[16]; ld.shared.b32 %r1, [t]; }",
        "// end inline asm\n.global .b32 c;\n// begin inline asm",
        '.pragma "no escape\\"; .global .b32 c; // "',
    ],
)
def test_assembly_that_declares_something_of_the_module_is_seen(assembly: str) -> None:
    assert "inline assembly" in (module_memory(PTX.replace("ASSEMBLY", assembly), "") or "")


@pytest.mark.parametrize(
    "assembly",
    [
        "{ .reg .b32 %t; add.u32 %t, %r1, 1; }",
        "st.global.b32 [%rd1], %r1; // .global .b32 c;",
        "/* .extern .func f; */ ld.const.b32 %r1, [%rd1];",
        '.pragma ".global .b32 c";',
        "fence.acq_rel.gpu; red.global.add.u32 [%rd1], 1;",
    ],
)
def test_assembly_that_uses_registers_and_its_arguments_is_let_through(assembly: str) -> None:
    assert module_memory(PTX.replace("ASSEMBLY", assembly), "") is None


PROMISED = ".func (.param .b64 r) __internal_accurate_pow\n(\n\t.param .b64 a\n)\n;\n"
DEFINED = ".func (.param .b64 r) __internal_accurate_pow(\n\t.param .b64 a\n)\n{\n\tret;\n}\n"


def test_a_function_of_libdevice_s_is_let_through_once_where_the_compiler_promised_it() -> None:
    plain, more = (PTX.replace("ASSEMBLY", text) for text in ("add.u32 %r1, %r1, 1;", "} .func other() {"))
    assert module_memory(PROMISED + plain + DEFINED, "") is None
    for ptx in (plain + DEFINED, PROMISED + more + DEFINED, PROMISED + more, PROMISED + plain + DEFINED + DEFINED):
        assert "assembly declares .func" in (module_memory(ptx, "") or "")
    assert module_memory(PROMISED + plain + DEFINED, "tt.call @__internal_accurate_pow") is not None


@pytest.mark.parametrize(
    "assembly",
    [
        "st.global.u32 [printfFormat_0], $1; mov.u32 $0, $1;",
        "mov.u64 $0, printfFormat_0;",
        "mov.u64 $0, printfFormat_$1;",
        "mov.u64 $0, printf$(Format$|$)_0;",
        "mov.u64 $0, %rd4;",
        "{ .reg .b64 %t; mov.u64 %t, %rd4; mov.u64 $0, %t; }",
        "ld.global.u32 $0, [$1];",
        r"mov.u64 $0, printf\46ormat_0;",
    ],
)
def test_assembly_reaches_no_memory_that_the_compiler_sets_aside(assembly: str) -> None:
    assert "it outlives a launch" in (module_memory(PTX, inline(assembly)) or "")


@pytest.mark.parametrize(
    "assembly",
    [
        "tanh.approx.f32 $0, $1;",
        "{ .reg .b32 t, %r<3>; mov.u32 t, %laneid; add.u32 %r1, t, $1; mov.b32 $0, %r1; }",
        r"{\0A.reg .pred %p;\0A setp.eq.f32 %p, $1, 0f00000000; @%p mov.f32 $0, $1; }",
    ],
)
def test_assembly_that_computes_with_its_operands_may_stand_beside_a_print(assembly: str) -> None:
    assert module_memory(PTX, inline(assembly)) is None


def test_assembly_of_the_whole_file_declares_nothing_either() -> None:
    comment = "// {} of file scope inline assembly\n"
    kept = f"{comment.format('Start')}.global .align 4 .u32 kept = 1;\n{comment.format('End')}"
    assert "assembly declares .global" in (module_memory(PTX.replace(".visible", f"{kept}.visible"), "") or "")


def test_a_module_variable_without_a_value_is_seen_wherever_it_comes_from() -> None:
    assert "module variable" in (module_memory(".global .align 4 .u32 counter;\n" + PTX, "") or "")


@pytest.mark.parametrize(
    "text",
    [
        "module {\n  llvm.mlir.global internal @c() : i32\n}",
        '%p = "llvm.mlir.addressof"() <{global_name = @c}> : () -> !llvm.ptr',
        '%p = "llvm.mlir.addressof" // of a variable\n () <{global_name = @c}> : () -> !llvm.ptr',
        '%p = "llv\\6D.mlir.addressof"() <{global_name = @c}> : () -> !llvm.ptr',
        '"\\6C\\6cvm\\2emlir.global"() ({}) : () -> ()',
        "%p = llvm.inline_asm %a : (i32) -> i32",
        'module attributes {llvm.module_asm = [".global .u32 kept = 1;"]} {',
        'module attributes {"llvm\\2Emodule_asm" = [".global .u32 kept = 1;"]} {',
    ],
)
def test_an_operation_or_attribute_of_llvm_s_own_is_seen(text: str) -> None:
    assert "llvm." in (foreign_ttir(text) or "")


def test_no_operation_of_triton_s_is_written_with_escapes() -> None:
    assert "elementwise_inline_asm" in (foreign_ttir('%p = "tt.elementwise\\5Finline_asm"(%a) : (i32) -> i32') or "")


@pytest.mark.parametrize(
    "text",
    [
        "llvm.intr.assume %a : i1",
        "} {llvm.loop_annotation = #loop_annotation}\n"
        "#loop_annotation = #llvm.loop_annotation<licm = <disable = true>>",
        'tt.assert %c, "llvm.mlir.global" : i1  // llvm.call',
        'tt.assert %c, "a \\22 b" : i1\n"llvm.intr.assume"(%a) : (i1) -> ()',
        "tt.call @llvm.sqrt(%x)",
    ],
)
def test_what_triton_writes_of_llvm_is_let_through(text: str) -> None:
    assert foreign_ttir(text) is None


@pytest.mark.parametrize(
    ("assembly", "waits"),
    [
        ("griddepcontrol.wait; // dummy $0", True),
        (r"{\0A\09griddepcontrol.wait;\0A mov.u32 $0, 0; }", True),
        ("mov.u32 $0, 0; // griddepcontrol.wait;", False),
        ("mov.u32 $0, 0; /* griddepcontrol.wait; */", False),
        (r".pragma \22no escape\5C\22, \22;griddepcontrol.wait; \22;", False),
        (r".pragma \22;griddepcontrol.wait; mov.u32 $0, 0;", False),
        ("{ .reg .pred p; setp.ne.u32 p, 0, 0; @p griddepcontrol.wait; }", False),
    ],
)
def test_a_kernel_waits_for_the_one_before_by_what_it_does(assembly: str, waits: bool) -> None:
    text = f'%0 = tt.elementwise_inline_asm "{assembly}" {{constraints = "=r"}} -> i32'
    assert LANGUAGE.waits(Kernel("k", "ttir", text, ())) == waits
    printed = 'tt.print " griddepcontrol.wait; " {hex = false} : %n : i32'
    assert not LANGUAGE.waits(Kernel("k", "ttir", printed, ()))


CHANGES = {
    "a printed value": 'def changed(v):\n    tl.device_print("v", v)\n    return v\n',
    "an assertion": 'def changed(v):\n    tl.device_assert(v < 3.0, "large")\n    return v\n',
    "tables of libdevice": "def changed(v):\n    return libdevice.sin(v) + libdevice.tgamma(v) + libdevice.j0(v)\n",
    "a function of libdevice": "def changed(v):\n    power = tl.full(v.shape, 1.7, tl.float64)\n"
    "    return libdevice.pow(tl.abs(v).to(tl.float64), power).to(tl.float32)\n",
    "assembly": "def changed(v):\n    return tl.inline_asm_elementwise("
    '"{ .reg .f32 t; mov.f32 t, $1; mov.f32 $0, t; }", '
    '"=f,f", [v], tl.float32, True, 1)\n',
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_the_compiler_declares_is_no_memory_of_the_kernel(update: Callable[[str], Update], what: str) -> None:
    result = update("@triton.jit\n" + CHANGES[what])
    assert result.failure is None, result.failure


def test_a_function_that_is_not_inlined_may_hold_assembly(update: Callable[[str], Update]) -> None:
    once = CHANGES["assembly"].replace("changed", "once")
    whole = "@triton.jit\ndef changed(v):\n    return v + once(tl.program_id(0).to(tl.float32))\n"
    result = update("@triton.jit(noinline=True)\n" + once + "\n\n" + whole)
    assert result.failure is None, result.failure


def test_assembly_with_memory_of_its_own_is_rejected_in_words(update: Callable[[str], Update]) -> None:
    assembly = "{ .global .align 4 .b32 c; .reg .b32 t; atom.global.add.u32 t, [c], 1; mov.f32 $0, $1; }"
    source = f'def changed(v):\n    return tl.inline_asm_elementwise("{assembly}", "=f,f", [v], tl.float32, False, 1)\n'
    failure = update("@triton.jit\n" + source).failure
    assert failure is not None
    assert failure.status is Status.REJECTED
    assert "outlives a launch" in failure.detail


@pytest.mark.parametrize(
    "options",
    [
        {"num_warps": 8, "num_stages": 3, "num_ctas": 1},
        {"maxnreg": 128, "ptx_options": "--maxrregcount=64 -O3", "enable_fp_fusion": False},
        {"cluster_dims": [2, 1, 1], "launch_pdl": True, "default_dot_input_precision": "tf32x3"},
        {"ptx_options": None, "maxnreg": None},
    ],
)
def test_options_of_triton_that_tune_a_kernel_are_allowed(options: dict[str, Json]) -> None:
    assert LANGUAGE.forbidden_option(options) is None


@pytest.mark.parametrize(
    "options",
    [
        {"extern_libs": [["a", "/etc/passwd"]]},
        {"ir_override": "a.ptx"},
        {"ptx_options": "--output-file x"},
        {"ptx_options": "-O3 -o x"},
        {"ptx_options": "-O3\n-o"},
        {"ptx_options": ["-O3"]},
        {"num_warps": 3},
        {"num_warps": True},
        {"num_warps": "4"},
        {"num_stages": 10**6},
        {"maxnreg": -1},
        {"cluster_dims": [1, 1]},
        {"launch_pdl": 1},
        {"arch": "sm_80"},
    ],
)
def test_any_other_option_or_value_is_named(options: dict[str, Json]) -> None:
    assert next(iter(options)) in (LANGUAGE.forbidden_option(options) or "")
