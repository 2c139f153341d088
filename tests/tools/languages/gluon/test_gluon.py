"""Candidates in Gluon in the real tracer, compiler and emulator."""

import textwrap
from collections.abc import Callable

import numpy as np
import pytest

import kerneltune
from kerneltune.tools.corpus import example
from kerneltune.tools.languages.base import device_code, language_of
from kerneltune.tools.languages.ptx.ir import parse
from kerneltune.tools.languages.ptx.loader import mismatch
from kerneltune.tools.languages.ptx.sim.machine import DecodedTensorMap
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.plan import DescriptorArg, Kernel, Launch, ScalarArg, TensorArg, plan_hash
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Cause, Status
from kerneltune.tools.update import Update, UpdateLimits, Updater

Updates = Callable[[str], Update]
SHAPE = {"$tensor": {"shape": [64, 64], "dtype": "float16", "stride": None}}
HEAD = """
import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
"""
RELU = """
@gluon.jit
def relu_kernel(x, y, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y + at, gl.maximum(gl.load(x + at, mask=at < n), 0.0), mask=at < n)
"""
CALL = "relu_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 256, gl.BlockedLayout([2], [32], [4], [0]))"
COPY = """
@gluon.jit
def copy_kernel(x, y, row, column, ROWS: gl.constexpr):
    tile = gl.allocate_shared_memory(x.dtype, x.block_type.shape, x.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, x.block_type.nbytes)
    tma.async_copy_global_to_shared(x, [row, column], full, tile)
    mbarrier.wait(full, 0)
    fence_async_shared()
    tma.async_copy_shared_to_global(y, [row, column], tile)
    tma.store_wait(0)
"""
DESCRIBED = """
        block = [32, WIDTH]
        layout = gl.NVMMASharedLayout.get_default_for(block, gl.float16)
        x, out = (TensorDescriptor.from_tensor(t, block, layout) for t in (x, y))
        for row in range(0, y.shape[0], 32):
            for column in range(0, y.shape[1], WIDTH):
                copy_kernel[(1,)](x, out, row, column, 32)
"""


def candidate(kernel: str = RELU, call: str = CALL, empty: str = "torch.empty_like(x)") -> str:
    """A candidate around one kernel."""
    body = textwrap.indent(textwrap.dedent(call).strip("\n"), "        ")
    return f"""{HEAD}

{kernel}

class ModelNew(nn.Module):
    def forward(self, x):
        y = {empty}
{body}
        return y
"""


@pytest.fixture
def update(machine: Machine) -> Updates:
    """Trace and compile for a task with one input of 64 x 64 halves."""
    task = TaskSpec("relu", "0" * 64, "float16", "", (CaseSpec("main", (SHAPE,), (), SHAPE),))
    limits = UpdateLimits(trace_s=30.0, compile_s=60.0)
    return Updater(task, "sm_90", machine.tracer, machine.compiler, limits).update


def only(update: Update) -> tuple[Kernel, Launch]:
    assert update.failure is None, update.failure
    assert update.main_plan is not None
    launch = update.main_plan.launches[0]
    return update.main_plan.kernels[launch.kernel], launch


def test_a_launch_is_ptx_with_the_functions_own_names_and_two_pointers_that_nobody_needs(update: Updates) -> None:
    kernel, launch = only(update(candidate()))
    assert (kernel.name, kernel.language) == ("relu_kernel", "ptx")
    assert kernel.signature == ("*fp16", "*fp16", "i32", "i64", "i64")
    assert kernel.options == {"block": [128, 1, 1], "shared_bytes": 0}
    (entry,) = parse(kernel.text).entries
    assert [p.name for p in entry.params[:3]] == ["x", "y", "n"]
    assert [type(a) for a in launch.args] == [TensorArg, TensorArg, *[ScalarArg] * 3]
    assert launch.grid == (16, 1, 1)
    effects = device_code("ptx").effects(kernel)
    assert [(e.reads, e.writes) for e in effects[:2]] == [(True, False), (False, True)]


def test_descriptors_are_arguments_of_the_plan_and_their_maps_choices_of_the_compiler(update: Updates) -> None:
    kernel, launch = only(update(candidate(COPY, DESCRIBED.replace("WIDTH", "32"))))
    assert [type(a) for a in launch.args[:2]] == [DescriptorArg, DescriptorArg]
    choice = {"swizzle": 2, "elem_size": 2, "elem_type": 6, "block_size": [32, 32], "fp4_padded": False}
    assert kernel.options["tensordesc_meta"] == [choice, choice]
    assert mismatch(parse(kernel.text).entries[0], kernel.signature) is None
    effects = device_code("ptx").effects(kernel)
    assert [(e.reads, e.writes) for e in effects[:2]] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"swizzle": 99}, {"elem_size": 0}, {"block_size": [1 << 40]}, {"block_size": "all"}, {"fp4_padded": 1},
        {"more": 1}, {"elem_type": None},
    ],
)  # fmt: skip
def test_a_plan_may_not_choose_what_no_map_can_be(wrong: dict[str, object]) -> None:
    choice = {"swizzle": 2, "elem_size": 2, "elem_type": 6, "block_size": [32, 32], "fp4_padded": False}
    forbidden = device_code("ptx").forbidden_option
    assert forbidden({"block": [32, 1, 1], "tensordesc_meta": [choice]}) is None
    assert "tensordesc_meta" in str(forbidden({"block": [32, 1, 1], "tensordesc_meta": [choice | wrong]}))


@pytest.mark.parametrize("bits", [0, 1, 2, 3])
def test_lines_of_a_box_are_swizzled_as_the_hardware_does(bits: int) -> None:
    """CUTLASS says it as Swizzle<bits, 4, 3>: bits 4… of the byte address are XORed with those from bit 7 on."""
    width = 16 << bits
    box = DecodedTensorMap(0, 2, (width // 2, 64), (2, width), (width // 2, 64), bits)
    lines = box.lines(4096)
    rows, columns = np.divmod(np.arange(len(lines)), width // 16)
    if bits == 3:
        assert (lines == 4096 + rows * 128 + (columns ^ rows % 8) * 16).all()
    assert sorted(lines) == list(range(4096, 4096 + box.nbytes, 16))
    assert (lines == 4096 + rows * width + columns * 16).all() == (bits == 0)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("inner", [16, 32, 64])
def test_products_through_every_swizzle_are_right(inner: int) -> None:
    """wgmma reads what the copies wrote, by descriptors of the compiler's: 32, 64 and 128 bytes a row."""
    source = example("gluon_persistent_matmul")
    sizes = "bm, bn, bk = 128, 128, 64"
    assert sizes in source
    verdict = kerneltune.bench(source.replace(sizes, f"bm, bn, bk = 128, 128, {inner}"), "matmul_bf16")
    assert verdict.accepted, verdict.detail


@pytest.mark.usefixtures("forked_workers")
def test_a_box_stays_inside_of_its_tensor_and_a_copy_that_nobody_waits_for_is_seen() -> None:
    kernel = COPY.replace("x.dtype", "gl.float32")
    call = DESCRIBED.replace("WIDTH", "32").replace("float16", "float32")
    source = candidate(kernel, call, "torch.empty_like(x := torch.relu(x))")
    task = "tests/tools/languages/gluon/identity.py"
    assert kerneltune.bench(source, task).accepted
    hasty = kerneltune.bench(source.replace("    mbarrier.wait(full, 0)\n", ""), task)
    assert hasty.status is Status.WRONG, hasty


def test_what_does_not_compile_is_told_with_the_candidates_line(update: Updates) -> None:
    source = candidate(RELU.replace("gl.maximum(gl.load", "gl.maximun(gl.load"))
    failure = update(source).failure
    assert failure is not None
    line = next(n for n, text in enumerate(source.split("\n"), 1) if "maximun" in text)
    assert (failure.status, failure.lines) == (Status.COMPILE_FAILED, (line,))
    assert "maximun" in failure.detail


def test_what_the_compiler_refuses_later_has_a_line_too(update: Updates) -> None:
    kernel = """
@gluon.jit
def relu_kernel(x, y, n, BLOCK: gl.constexpr, layout: gl.constexpr):
    at = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    ring = gl.allocate_shared_memory(gl.float16, [BLOCK], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    async_copy.async_copy_global_to_shared(ring, x + at)
    gl.store(y + at, ring.load(layout))
"""
    source = candidate(kernel, CALL.replace("[2], [32]", "[1], [32]"))
    source = source.replace(
        "import nn", "import nn\nfrom triton.experimental.gluon.language.nvidia.ampere import async_copy"
    )
    failure = update(source).failure
    assert failure is not None
    line = next(n for n, text in enumerate(source.split("\n"), 1) if "async_copy_global" in text)
    assert (failure.status, failure.lines) == (Status.COMPILE_FAILED, (line,))
    assert "does not support transfers smaller than 4 bytes" in failure.detail


def test_the_error_of_a_function_that_is_called_is_told_with_its_own_line(update: Updates) -> None:
    helper = "@gluon.jit\ndef helper(v):\n    v += 1\n    return gl.convert_layout(v, 3)\n"
    source = candidate(helper + RELU.replace("gl.load(x + at, mask=at < n)", "helper(gl.load(x + at))"))
    failure = update(source).failure
    assert failure is not None
    assert failure.lines == (next(n for n, text in enumerate(source.split("\n"), 1) if "convert_layout" in text),)
    assert "expected 'layout' to be a DistributedLayout" in failure.detail


def test_a_fault_that_triton_leaves_to_mlir_is_told_in_its_words(update: Updates) -> None:
    """Triton's own error is an assertion without words, in a function of its library."""
    helper = "@gluon.jit\ndef helper(v):\n    v += 1\n    return gl.sum(v, 0)\n"
    source = candidate(helper + RELU.replace("gl.load(x + at, mask=at < n)", "helper(gl.load(x + at))"))
    failure = update(source.replace("[2], [32], [4]", "[2], [16], [4]")).failure
    assert failure is not None
    assert failure.lines == (next(n for n, text in enumerate(source.split("\n"), 1) if "gl.sum" in text),)
    assert "Layout has 16 threads per warp, but the module specifies 32" in failure.detail
    assert "/" not in failure.detail.partition(" error: ")[0]


@pytest.mark.parametrize("option", ['ptx_options="-O1"', "enable_fp_fusion=False"])
def test_options_of_an_assembler_that_it_does_not_have_are_refused(update: Updates, option: str) -> None:
    failure = update(candidate(call=CALL[:-1] + f", {option})")).failure
    assert failure is not None
    assert (failure.status, option.partition("=")[0] in failure.detail) == (Status.REJECTED, True)


def test_configs_are_variants(update: Updates) -> None:
    configs = "[triton.Config({'BLOCK': b}, num_warps=4) for b in (256, 512)]"
    kernel = RELU.replace("@gluon.jit", f"@triton.autotune({configs}, key=[])\n@gluon.jit", 1)
    grid = "[lambda c: (triton.cdiv(4096, c['BLOCK']),)]"
    call = f"relu_kernel{grid}(x, y, 4096, layout=gl.BlockedLayout([2], [32], [4], [0]))"
    done = update(candidate(kernel, call))
    assert done.failure is None, done.failure
    assert [p.launches[0].grid[0] for p in done.plans["main"]] == [16, 8]


def test_a_cluster_of_blocks_is_told_to_the_launch(update: Updates) -> None:
    call = CALL.replace("[4], [0])", "[4], [0], [[1]])")
    kernel, launch = only(update(candidate(call=call[:-1] + ", num_ctas=2)")))
    assert kernel.options["cluster"] == [2, 1, 1]
    assert launch.grid == (32, 1, 1)


def test_scratch_memory_of_a_kernel_is_a_tensor_of_the_plan(update: Updates) -> None:
    kernel = """
@gluon.jit
def copy_kernel(x, y, layout: gl.constexpr):
    of_x = tma.make_tensor_descriptor(x, [64, 64], [64, 1], [32, 64], layout)
    tile = gl.allocate_shared_memory(gl.float16, [32, 64], layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, of_x.block_type.nbytes)
    tma.async_copy_global_to_shared(of_x, [gl.program_id(0) * 32, 0], full, tile)
    mbarrier.wait(full, 0)
    of_y = tma.make_tensor_descriptor(y, [64, 64], [64, 1], [32, 64], layout)
    fence_async_shared()
    tma.async_copy_shared_to_global(of_y, [gl.program_id(0) * 32, 0], tile)
    tma.store_wait(0)
"""
    call = "copy_kernel[(2,)](x, y, gl.NVMMASharedLayout.get_default_for([32, 64], gl.float16))"
    done = update(candidate(kernel, call))
    its, launch = only(done)
    assert its.signature[-2:] == ("*i8", "i64")
    scratch = launch.args[-2]
    assert isinstance(scratch, TensorArg)
    assert scratch.tensor.shape == (2 * 256,)


def test_the_same_kernel_further_down_is_the_same_work(update: Updates) -> None:
    here, there = (update(source).main_plan for source in (candidate(), "# a comment\n\n" + candidate()))
    assert here is not None
    assert there is not None
    assert here.kernels[0].text != there.kernels[0].text
    assert plan_hash(here) == plan_hash(there)


@pytest.mark.usefixtures("forked_workers")
def test_a_stray_access_is_told_with_the_candidates_line() -> None:
    kernel = RELU.replace(", mask=at < n), 0.0)", "), 0.0)").replace("gl.load(x + at", "gl.load(x + at * 2")
    source = candidate(kernel, CALL, "torch.empty_like(x)")
    verdict = kerneltune.bench(source, "tests/tools/languages/gluon/identity.py")
    line = next(n for n, text in enumerate(source.split("\n"), 1) if "at * 2" in text)
    assert (verdict.status, verdict.cause) == (Status.WRONG, Cause.OUT_OF_BOUNDS)
    assert f"candidate line {line}" in verdict.detail
    assert "of x, which has" in verdict.detail


def test_candidates_are_told_apart_by_what_they_import() -> None:
    assert language_of(candidate()) == "gluon"
    assert language_of(HEAD.replace("triton.experimental", "triton.other")) == "triton"
