"""Launchers in C++ as Python, and what is said of those that are not of the common form."""

from pathlib import Path

import pytest

import kerneltune
from kerneltune.tools.languages.cuda.convert import CannotConvert, converted, converted_python, taken_apart
from tests.agent.shell import optimize

KERNEL = """
#define THREADS 64
constexpr int EACH = 2 * THREADS;  // of a block

namespace ops {
template <typename T, int N>
__global__ void halves(T* y, const T* x, int rows, int cols) {
    extern __shared__ float part[];
    float sum = 0;
    for (int i = threadIdx.x; i < cols; i += THREADS) sum += x[(size_t)blockIdx.x * cols + i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int h = N / 4; h; h /= 2) {
        if (threadIdx.x < h) part[threadIdx.x] += part[threadIdx.x + h];
        __syncthreads();
    }
    if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
}
"""
LAUNCHER = """
#include <torch/extension.h>
torch::Tensor row_sum(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "on the GPU, please");
    x = x.contiguous();
    const auto rows = x.size(0);
    int cols = static_cast<int>(x.numel() / rows);
    auto y = torch::empty({rows}, x.options().dtype(x.scalar_type()));
    dim3 block(THREADS), grid;
    grid.x = rows > 0 ? rows : 1;
    size_t bytes = block.x * sizeof(float);
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "row_sum", ([&] {
        ops::halves<scalar_t, EACH><<<grid, block, bytes, stream>>>(
            y.data_ptr<scalar_t>(), reinterpret_cast<const scalar_t*>(x.data_ptr()), rows, cols);
    }));
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) throw std::runtime_error(cudaGetErrorString(err));
    return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("row_sum", &row_sum); }
"""
INLINE = f"""
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

code = r'''{KERNEL}''' + r'''{LAUNCHER}'''


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.ops = load_inline(name="ops", cpp_sources="torch::Tensor row_sum(torch::Tensor x);", cuda_sources=code)

    def forward(self, x):
        return self.ops.row_sum(x)
"""


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("made", [converted(KERNEL + LAUNCHER, "k.cu"), converted_python(INLINE)], ids=["cu", "inline"])
def test_what_is_converted_is_right(made: str) -> None:
    verdict = kerneltune.bench(made, "row_sum")
    assert verdict.accepted, verdict.detail


def test_device_code_keeps_its_lines_and_loses_the_host() -> None:
    text = KERNEL + LAUNCHER
    device = taken_apart(text).device.split("\n")
    assert len(device) == text.count("\n") + 1
    assert all(line in ("", its) for line, its in zip(device, text.split("\n"), strict=True))
    assert "torch" not in "\n".join(device)
    assert [line for line in device if line][-1] == "}"


def test_a_launcher_reads_as_python_does() -> None:
    made = converted(KERNEL + LAUNCHER, "k.cu")
    body = made[made.index("def row_sum") : made.index("class ModelNew")].strip()
    assert (
        body
        == """def row_sum(x):
    x = x.contiguous()
    rows = x.shape[0]
    cols = x.numel() // rows
    y = torch.empty([rows], **({"dtype": x.dtype, "device": x.device} | {"dtype": x.dtype}))
    block = [THREADS]
    grid = [1, 1, 1]
    grid[0] = (rows if rows > 0 else 1)
    bytes = block[0] * 4
    CudaKernel(TEXT, f"ops::halves<{_CUDA[x.dtype]}, EACH>")[grid](y, x, rows, cols, block=block, shared_bytes=bytes)
    return y"""
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("__global__ ", "", "the text has no __global__ function"),
        ("<<<", "<", "no function of the text launches a kernel"),
        ("static_cast<int>", "my_own", "line 26: 'my_own(x.numel() / rows)' is not of the common form"),
        ("x.size(0)", "x.item<int>()", "line 25: item of a tensor: no launch can pass one"),
        ("grid.x = rows", "grid.x = lost", "line 29: nothing says what lost is"),
        ("ops::halves<", "others<", "others is no __global__ function of this text"),
        ("const auto rows", "while (rows) {} const auto rows", "'while (rows) {}' is not of the common form"),
    ],
)
def test_what_is_not_of_the_common_form_is_said_with_its_line(old: str, new: str, said: str) -> None:
    with pytest.raises(CannotConvert) as caught:
        converted((KERNEL + LAUNCHER).replace(old, new), "k.cu")
    assert said in str(caught.value)


def test_in_a_python_file_lines_are_those_of_the_text_that_it_holds() -> None:
    with pytest.raises(CannotConvert, match=r"in its CUDA C\+\+, line 29: nothing says what lost is"):
        converted_python(INLINE.replace("grid.x = rows", "grid.x = lost"))
    with pytest.raises(CannotConvert, match="line 52: made_up is no text that stands in the file once"):
        converted_python(INLINE.replace("cuda_sources=code", "cuda_sources=made_up"))


def test_a_launcher_with_addresses_says_what_to_look_at() -> None:
    text = (
        KERNEL
        + "void run(float* y, const float* x, int r, int c) { ops::halves<float, EACH><<<r, THREADS>>>(y, x, r, c); }"
    )
    made = converted(text, "k.cu")
    assert "# LOOK: of (y, x, r, c) make here what is no input" in made
    assert 'CudaKernel(TEXT, "ops::halves<float, EACH>")[r](y, x, r, c, block=THREADS)' in made


def test_the_command_writes_a_file_once_and_says_what_comes_next(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(KERNEL + LAUNCHER)
    done = optimize("convert", "k.cu", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (
        0, "wrote k_cuda.py from k.cu\nnext: optimize bench k_cuda.py --task TASK\n"
    )  # fmt: skip
    assert (tmp_path / "k_cuda.py").read_text() == converted(KERNEL + LAUNCHER, "k.cu")
    again = optimize("convert", "k.cu", cwd=tmp_path)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert optimize("convert", "k.cu", "-o", "new/folder/k.py", cwd=tmp_path).returncode == 0
    assert (tmp_path / "new/folder/k.py").is_file()
    below = optimize("convert", "k.cu", "-o", "k.cu/k.py", cwd=tmp_path)
    assert (below.returncode, below.stderr) == (2, "optimize: k.cu/k.py cannot be written: Not a directory\n")
    deep = "(" * 20_000 + "n" + ")" * 20_000
    (tmp_path / "deep.cu").write_text(KERNEL + LAUNCHER.replace("<<<", f"<<<{deep} + ", 1))
    refused = optimize("convert", "deep.cu", cwd=tmp_path)
    assert (refused.returncode, "nested too deeply" in refused.stderr) == (2, True), refused.stderr
