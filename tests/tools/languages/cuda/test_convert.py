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


def said_in_python(body: str) -> list[str]:
    """The lines of a launcher's body, but for those that make y, launch a kernel and return y."""
    last = "ops::halves<float, EACH><<<a, THREADS>>>(y.data_ptr<float>(), x.data_ptr<float>(), a, b); return y;"
    text = f"torch::Tensor run(torch::Tensor x, int a, int b) {{ auto y = torch::empty_like(x); {body} {last} }}"
    made = converted(f"{KERNEL}{text}", "k.cu")
    lines = made[made.index("def run(") : made.index("class ModelNew")].split("\n")
    return [line.strip() for line in lines if line.strip()][2:-2]


@pytest.mark.parametrize(
    "check",
    ["C10_CUDA_KERNEL_LAUNCH_CHECK()", "C10_CUDA_CHECK(cudaGetLastError())", "AT_CUDA_CHECK(cudaPeekAtLastError())",
     "CUDA_CHECK(cudaGetLastError())", "TORCH_INTERNAL_ASSERT(a > 0)"],
)  # fmt: skip
def test_checks_of_launches_are_left_out_whoever_defines_them(check: str) -> None:
    assert said_in_python(f"{check};") == []


def test_an_address_that_has_a_name_moves_by_elements() -> None:
    launch = "ops::halves<float, EACH><<<a, THREADS>>>"
    declared = "float* to = y.data_ptr<float>(); const float* from = x.data_ptr<float>();"
    assert said_in_python(f"{declared} {launch}(to + b, from + a * b, a, b);")[-1] == (
        'CudaKernel(TEXT, "ops::halves<float, EACH>")[a](to.view(-1)[b:], from_.view(-1)[a * b:], a, b, block=THREADS)'
    )
    given = f"{KERNEL}void run(float* y, const float* x, int n) {{ {launch.replace('a,', 'n,')}(y + n, x, n, n); }}"
    assert "(y.view(-1)[n:], x, n, n, block=THREADS)" in converted(given, "k.cu")


@pytest.mark.parametrize(
    ("cpp", "python"),
    [
        ("to += a * b;", "to = to.view(-1)[a * b:]"),
        ("to++;", "to = to.view(-1)[1:]"),
        ("float* next = &to[a];", "next = to.view(-1)[a:]"),
    ],
)
def test_moving_an_address_changes_no_element(cpp: str, python: str) -> None:
    assert said_in_python(f"float* to = y.data_ptr<float>(); {cpp}")[1] == python


@pytest.mark.parametrize(
    ("cpp", "python"),
    [
        ("if (to != nullptr) a = 1;", "if isinstance(to, torch.Tensor):"),
        ("if (NULL == to) a = 1;", "if not isinstance(to, torch.Tensor):"),
        ("if (to && a > 1) a = 1;", "if isinstance(to, torch.Tensor) and a > 1:"),
        ("if (!to) a = 1;", "if not isinstance(to, torch.Tensor):"),
        ("a = to ? 4 : 5;", "a = (4 if isinstance(to, torch.Tensor) else 5)"),
    ],
)
def test_an_address_is_asked_whether_it_is_there_not_what_its_elements_are(cpp: str, python: str) -> None:
    assert said_in_python(f"float* to = y.data_ptr<float>(); {cpp}")[1] == python


@pytest.mark.parametrize("cpp", ["to -= 1;", "int first = to[0];", "a = x.data_ptr<float>() - to;"])
def test_what_an_address_means_to_the_host_is_left_to_a_person(cpp: str) -> None:
    with pytest.raises(CannotConvert, match="is not of the common form"):
        said_in_python(f"float* to = y.data_ptr<float>(); {cpp}")


def test_an_address_of_vectors_that_is_moved_is_left_to_a_person() -> None:
    with pytest.raises(CannotConvert, match="counts vectors, not elements"):
        said_in_python("auto from = reinterpret_cast<const float4*>(x.data_ptr<float>()) + b;")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("torch::dtype(torch::kHalf).device(torch::kCUDA)", '({"dtype": torch.float16} | {"device": "cuda"})'),
        ("torch::device(torch::kCUDA).dtype(torch::kInt)", '({"device": "cuda"} | {"dtype": torch.int32})'),
        (
            "torch::TensorOptions(torch::kHalf).device(torch::kCUDA, 0)",
            '({"dtype": torch.float16} | {"device": "cuda"})',
        ),
        ("torch::TensorOptions().dtype(torch::kLong)", '({} | {"dtype": torch.int64})'),
    ],
)
def test_options_of_tensors_are_kept_however_they_begin(options: str, said: str) -> None:
    assert said_in_python(f"auto z = torch::empty({{a}}, {options});") == [f"z = torch.empty([a], **{said})"]


@pytest.mark.parametrize(
    ("cpp", "python"),
    [
        ("a & 3 == b", "a & (3 == b)"),
        ("a == b == 1", "(a == b) == 1"),
        ("!a == b", "(not a) == b"),
        ("!a && a < b", "not a and a < b"),
        ("(a & 3) == b", "(a & 3) == b"),
    ],
)
def test_operators_bind_as_they_do_in_cpp(cpp: str, python: str) -> None:
    assert said_in_python(f"bool t = {cpp};") == [f"t = {python}"]


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
    missing = optimize("convert", "none.cu", cwd=tmp_path)
    assert (missing.returncode, missing.stderr) == (2, "optimize: none.cu: No such file or directory\n")
    refused = optimize("convert", "deep.cu", cwd=tmp_path)
    assert (refused.returncode, "nested too deeply" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("(torch::Tensor x)", "(torch::Tensor x, )"),
        ("int cols = static_cast<int>(x.numel() / rows);", "int cols(1, 2);"),
        ("int cols = static_cast<int>(x.numel() / rows);", "int cols = x.sizes()[];"),
        ("<<<grid, block, bytes, stream>>>", "<<<grid>>>"),
        ("int cols = static_cast<int>(x.numel() / rows);", "int cols = 1'000;"),
        ("x.size(0)", "x.()"),
    ],
)
def test_a_launcher_that_is_broken_or_says_what_python_cannot_is_told_as_such(there: str, instead: str) -> None:
    assert there in LAUNCHER
    with pytest.raises(CannotConvert):
        converted(KERNEL + LAUNCHER.replace(there, instead), "row_sum.cu")


def test_a_text_that_grows_after_it_was_given_is_not_taken_for_its_beginning() -> None:
    grown = INLINE.replace("\n\nclass ModelNew", '\ncode += "// and more"\n\nclass ModelNew')
    with pytest.raises(CannotConvert, match="code is no text that stands in the file once"):
        converted_python(grown)
