"""Candidates in CUDA C++ in the real tracer and compiler, and what wrong ones are told."""

import subprocess
import sys
from collections.abc import Callable

import pytest

import kerneltune
from kerneltune.tools.languages.base import NotCompiled, language_of
from kerneltune.tools.languages.cuda import nvrtc
from kerneltune.tools.languages.ptx.ir import parse
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.messages import Program
from kerneltune.tools.schema.plan import Kernel, Launch, plan_hash
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Cause, Status, Verdict
from kerneltune.tools.update import Update, UpdateLimits, Updater

Updates = Callable[[str], Update]
SHAPE = {"$tensor": {"shape": [1000], "dtype": "float32", "stride": None}}
RELU = r"""
__global__ void relu(float* __restrict__ y, const float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = fmaxf(x[i], 0.0f);
}
"""
CALL = "kernel[(8,)](y, x, x.numel(), block=128)"


def candidate(text: str = RELU, made: str = "", call: str = CALL) -> str:
    """A candidate around one text; `made`: what follows the text among CudaKernel's arguments."""
    return f"""import torch
from torch import nn
from kerneltune import CudaKernel

kernel = CudaKernel(r\"\"\"{text}\"\"\"{made})


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        {call}
        return y
"""


@pytest.fixture
def update(machine: Machine) -> Updates:
    """Trace and compile for a task with one input of 1000 floats."""
    task = TaskSpec("relu", "0" * 64, "float32", "", (CaseSpec("main", (SHAPE,), (), SHAPE),))
    limits = UpdateLimits(trace_s=20.0, compile_s=60.0)
    return Updater(task, "sm_90", machine.tracer, machine.compiler, limits).update


def only(update: Update) -> tuple[Kernel, Launch]:
    assert update.failure is None, update.failure
    assert update.main_plan is not None
    (launch,) = update.main_plan.launches
    return update.main_plan.kernels[launch.kernel], launch


def failed(update: Update) -> Verdict:
    assert update.failure is not None
    return update.failure


def test_a_launch_is_ptx_of_one_entry_that_is_called_as_in_cuda(update: Updates) -> None:
    other = "__global__ void other(int* p) { *p = 1; }\n"
    done = update(candidate(other + RELU, ', "relu"'))
    kernel, launch = only(done)
    assert (kernel.name, kernel.language, kernel.signature) == ("relu", "ptx", ("*fp32", "*fp32", "i32"))
    assert kernel.options == {"block": [128, 1, 1], "shared_bytes": 0}
    (entry,) = parse(kernel.text).entries
    assert [p.name for p in entry.params] == ["y", "x", "n"]
    assert launch.grid == (8, 1, 1)
    (report,) = done.kernels
    assert (report.name, report.num_warps) == ("relu", 4)


def test_templates_and_macros_make_a_variant_of_each_config(update: Updates) -> None:
    text = """
namespace ops {
template <typename T, int N>
__global__ void __launch_bounds__(BLOCK) relu(T* y, const T* x, int n) {
    for (int u = 0, i = blockIdx.x * N * BLOCK + threadIdx.x; u < N; u++, i += BLOCK) if (i < n) y[i] = max(x[i], T(0));
}
}
"""
    configs = [{"BLOCK": 64, "WORK": 2, "block": 64}, {"BLOCK": 32, "WORK": 1, "block": 32}]
    made = f', "ops::relu<float, WORK>", configs={configs}'
    call = "kernel[lambda c: -(-1000 // (c['BLOCK'] * c['WORK']))](y, x, x.numel())"
    done = update(candidate(text, made, call))
    assert done.failure is None, done.failure
    plans = done.plans["main"]
    assert [p.kernels[0].options["block"] for p in plans] == [[64, 1, 1], [32, 1, 1]]
    assert [p.launches[0].grid[0] for p in plans] == [8, 32]
    assert {p.kernels[0].name for p in plans} == {"relu"}
    assert plans[1].variant == "ops::relu<float, WORK>: BLOCK: 32, WORK: 1, block: 32"


def test_what_does_not_compile_is_told_with_the_candidates_lines(update: Updates) -> None:
    source = candidate(RELU.replace("fmaxf(x[i]", "fmaxf(z[i]").replace("int i =", "int j ="))
    failure = failed(update(source))
    assert failure.status is Status.COMPILE_FAILED
    wrong = next(n for n, line in enumerate(source.split("\n"), 1) if "fmaxf" in line)
    assert failure.lines == (wrong,)
    assert 'identifier "i" is undefined' in failure.detail
    assert f'line {wrong}: identifier "z" is undefined: if (i < n) y[i] = fmaxf(z[i], 0.0f);' in failure.detail


def test_a_text_that_is_no_literal_counts_its_own_lines(update: Updates) -> None:
    source = candidate().replace('""", ', '"""').replace("int n) {", "int n) {{").replace('r"""', 'f"""', 1)
    source = source.replace("    }\n", "").replace('}\n"', '}}\n"').replace("x[i]", "z[i]")
    failure = failed(update(source))
    assert failure.status is Status.COMPILE_FAILED
    assert 'CUDA line 4: identifier "z" is undefined' in failure.detail


def test_the_same_text_further_down_is_the_same_work(update: Updates) -> None:
    here, there = (update(source).main_plan for source in (candidate(), "# a comment\n\n" + candidate()))
    assert here is not None
    assert there is not None
    assert here.kernels[0].text != there.kernels[0].text
    assert plan_hash(here) == plan_hash(there)


@pytest.mark.usefixtures("forked_workers")
def test_a_stray_access_is_told_with_the_candidates_line() -> None:
    text = r"""
__global__ void total(float* y, const float* x, int cols) {
    float sum = 0;
    for (int i = 0; i <= cols; i++)
        sum += x[(long long)blockIdx.x * cols + i];
    y[blockIdx.x] = sum;
}
"""
    call = "y = torch.empty(x.shape[:-1], device=x.device); kernel[y.numel()](y, x, x.shape[-1], block=1)"
    source = candidate(text, call=call)
    wrong = next(n for n, line in enumerate(source.split("\n"), 1) if "sum += " in line)
    verdict = kerneltune.bench(source, "row_sum")
    assert (verdict.status, verdict.cause) == (Status.WRONG, Cause.OUT_OF_BOUNDS)
    assert f"candidate line {wrong}" in verdict.detail


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("__device__ int calls;" + RELU.replace("if", "calls++; if"), "calls is memory that outlives a launch"),
        (
            "__device__ float kept[4];" + RELU.replace("x[i], 0", "x[i], kept[i % 4] * 0"),
            "kept is memory",
        ),
        ("__constant__ float w[4];" + RELU.replace("x[i], 0", "x[i], w[i % 4] * 0"), "w has no value"),
        ("__managed__ int calls;" + RELU.replace("if", "calls++; if"), "calls is memory that outlives a launch"),
        (RELU.replace("if", 'printf("%d", i); if'), "vprintf comes from elsewhere"),
        (RELU.replace("if", "int* p = new int[4]; p[0] = i; y[0] = p[0]; if"), "malloc comes from elsewhere"),
    ],
)
def test_what_outlives_a_launch_or_talks_to_the_host_is_refused(update: Updates, text: str, said: str) -> None:
    failure = failed(update(candidate(text)))
    assert failure.status is Status.REJECTED
    assert said in failure.detail


def test_a_table_with_values_is_fine(update: Updates) -> None:
    only(update(candidate("__constant__ float w[2] = {0, 1};" + RELU.replace("x[i], 0.0f", "x[i], w[i % 2]"))))


@pytest.mark.parametrize(
    ("header", "use"),
    [
        ("cuda_fp16.h", "x[i] + __half2float(__float2half(0))"),
        ("cuda_bf16.h", "x[i] + __bfloat162float(__float2bfloat16(0))"),
        ("cuda_fp8.h", "x[i] + float(__nv_fp8_e4m3(0.0f))"),
        ("mma.h", "x[i] + nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float>().num_elements * 0"),
        ("cooperative_groups.h", "x[i] + cooperative_groups::this_thread_block().thread_rank() * 0"),
        ("cuda_pipeline.h", "x[i]"),
        ("cub/block/block_reduce.cuh", "x[i]"),
        ("cuda/std/limits", "x[i] + cuda::std::numeric_limits<float>::min()"),
        ("cmath", "x[i] + (float)isnan(INFINITY) + (uint32_t)0 + std::sqrt(x[i])"),
        ("limits", "x[i] + std::numeric_limits<float>::min()"),
        ("algorithm", "std::max(x[i], x[0])"),
        ("type_traits", "x[i] + std::is_same<int, float>::value"),
        ("cuda_runtime.h", "x[i] + FLT_MIN"),
    ],
)
def test_headers_of_cudas_device_side_are_there(header: str, use: str) -> None:
    text = f"#include <{header}>\n" + RELU.replace("x[i], 0.0f", f"{use}, 0.0f")
    assert ".entry relu(" in nvrtc.lowered(Program("cuda", text), "sm_90")


def test_a_confined_compiler_reads_no_file_of_the_user(machine: Machine, update: Updates) -> None:
    failure = failed(update(candidate('#include "/etc/passwd"' + RELU)))
    assert failure.status is Status.COMPILE_FAILED
    assert "root" not in failure.detail
    assert 'cannot open source file "/etc/passwd"' in failure.detail


@pytest.mark.parametrize(
    ("made", "call", "said"),
    [
        ("", "kernel[8](y, x, block=128)", "relu takes 3 arguments (.u64 y, .u64 x, .u32 n), not 2"),
        ("", "kernel[8](y, x, 2.5, block=128)", "the parameter `.u32 n` of relu is given 2.5 (float)"),
        ("", "kernel[8](y, x, 5)", "say how many threads a block of relu has"),
        (', "absent"', CALL, 'identifier "absent" is undefined'),
        (', options=["--include-path=/etc"]', CALL, "is no option of a CudaKernel"),
        (', configs=[{"A B": 1}]', CALL, "'A B' is no name"),
    ],
)
def test_what_does_not_fit_is_said_in_the_words_of_cuda(update: Updates, made: str, call: str, said: str) -> None:
    assert said in failed(update(candidate(made=made, call=call))).detail


def test_of_several_functions_one_must_be_named(update: Updates) -> None:
    failure = failed(update(candidate(RELU + "__global__ void other(int* p) { *p = 1; }")))
    assert "say which function is meant, CudaKernel(text, name): the text has" in failure.detail


def test_host_code_in_cpp_is_refused_with_what_to_write_instead(update: Updates) -> None:
    source = """
import torch
from torch.utils.cpp_extension import load_inline

ops = load_inline("ops", cpp_sources="torch::Tensor f(torch::Tensor x);", cuda_sources="", functions=["f"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ops.f(x)
"""
    failure = failed(update(source))
    assert (failure.status, failure.lines) == (Status.REJECTED, (5,))
    assert "from kerneltune import CudaKernel" in failure.detail


def test_what_a_candidate_asks_of_the_module_that_builds_cpp_is_there_but_still_builds_nothing(update: Updates) -> None:
    asks = "from torch.utils.cpp_extension import CUDA_HOME\nassert torch.utils.cpp_extension.BuildExtension\n"
    source = candidate().replace("import torch\n", f"import torch\n{asks}", 1)
    assert update(source).failure is None
    failure = failed(update(source.replace("kernel =", "torch.utils.cpp_extension.load_inline('ops', '')\nkernel =")))
    assert "builds C++ host code" in failure.detail


def test_a_tracer_is_ready_without_setuptools() -> None:
    program = """
import sys
from kerneltune.tools.trace import tracer
tracer.warm()
print("torch.utils.cpp_extension" in sys.modules, "setuptools" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "True False\n"


def test_without_nvrtc_it_is_said_what_to_install() -> None:
    program = """
import sys
sys.modules["nvidia.cuda_nvrtc"] = None
from kerneltune.tools.languages.cuda import nvrtc
from kerneltune.tools.schema.messages import Program
try:
    nvrtc.lowered(Program("cuda", ""), "sm_90")
except nvrtc.NotCompiled as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "pip install 'kerneltune[cuda]'" in said


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100"])
def test_every_architecture_gets_ptx_that_its_assembler_takes(machine: Machine, arch: str) -> None:
    task = TaskSpec("relu", "0" * 64, "float32", "", (CaseSpec("main", (SHAPE,), (), SHAPE),))
    limits = UpdateLimits(trace_s=20.0, compile_s=60.0)
    assert Updater(task, arch, machine.tracer, machine.compiler, limits).update(candidate()).failure is None


def test_a_text_with_nul_characters_or_of_mebibytes_never_reaches_the_compiler() -> None:
    for text in ("\0", "/" * (nvrtc.MOST_TEXT_BYTES + 1)):
        with pytest.raises(NotCompiled):
            nvrtc.lowered(Program("cuda", text), "sm_90")


def test_candidates_are_told_apart_by_what_they_import() -> None:
    assert language_of(candidate()) == "cuda"
    assert language_of(candidate().replace("CudaKernel", "PtxKernel")) == "ptx"
    assert language_of("import triton") == "triton"
