"""All 39 built-in tasks with an expert kernel each, as packaged files in a process that knows nothing of kerneltune."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kerneltune.agent.authors.search.experts import experts
from kerneltune.tools.backends import gpu_info
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.package.write import VerifiedKernel, file_name, launched, packaged
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.task.load import builtin_names, described, find_task, read_task
from kerneltune.tools.task.write import backward_source

ROOT = Path(__file__).resolve().parents[3]
FEW = ("softmax", "rope", "grouped_matmul", "top_k", "adam_step")
WITH_GRADIENTS = ("geglu", "softmax", "swiglu")
ON_A_GPU_TOO = ("add_rms_norm", "gelu_bias", "layer_norm", "layer_norm_residual", "rms_norm", "rope")  # for PROPERTIES
PROPERTIES = "its host code asks for the GPU's properties, and there is none"
RAW_WORDS = "Triton's interpreter multiplies bfloat16 as whole numbers"
NOT_INTERPRETED = {
    **dict.fromkeys(
        (
            "argmax", "column_sum", "cumsum", "decode_attention", "grouped_matmul", "int4_matmul",
            "linear_cross_entropy", "log_softmax", "matmul_bf16", "matmul_bias_relu", "matmul_fp16_gelu",
            "matmul_fp8", "rms_norm_backward", "skinny_matmul", "split_k_matmul",
        ),
        PROPERTIES,
    ),
    "batched_matmul": RAW_WORDS,
    "gqa_attention": RAW_WORDS,
}  # fmt: skip
NOT_ON_A_GPU = {
    "grouped_matmul": ("replays_in_a_graph", "Cannot copy between CPU and CUDA tensors during CUDA graph capture"),
    "matmul_fp8": ("operator_is_sound", "not implemented for 'Float8_e4m3fn'"),  # opcheck compares by arithmetic
}


def package(name: str, folder: Path, arch: str, *, trains: bool = False) -> None:
    task = described(find_task(name))
    assert task
    gradients = [first_expert(task_of_gradients(name, task, folder))] if trains else []
    text = packaged([first_expert(task)], arch=arch, header="# a header\n\n", backward=gradients)
    (folder / file_name(task)).write_text(text)


def first_expert(task: TaskSpec) -> VerifiedKernel:
    sketch = experts(task)[0]
    return VerifiedKernel(task, sketch.render(sketch.params))


def task_of_gradients(name: str, task: TaskSpec, folder: Path) -> TaskSpec:
    path = folder / "tasks" / f"{name}_gradients.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(backward_source(task, task.source))
    return describe(read_task(path))


def problems(
    names: Sequence[str], folder: Path, *, arch: str = "sm_90", train: Sequence[str] = WITH_GRADIENTS, **variables: str
) -> dict[str, dict[str, str]]:
    """What does not hold, by task and check, where the files are imported and used."""
    for name in names:
        package(name, folder, arch, trains=name in train)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0", **variables}

    def rows_of(share: Sequence[str]) -> list[dict[str, str]]:
        command = [sys.executable, "-m", "tests.tools.package.stand_in", str(folder), *(f"{name}_op" for name in share)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    processes = max(1, min((os.cpu_count() or 1) // 2, len(names)))  # each compiles; nothing is timed
    with ThreadPoolExecutor(processes) as pool:
        rows = [row for rows in pool.map(rows_of, (names[n::processes] for n in range(processes))) for row in rows]
    assert sorted(row["name"] for row in rows) == sorted(f"{name}_op" for name in names)
    return {row.pop("name").removesuffix("_op"): {check: why for check, why in row.items() if why} for row in rows}


@pytest.mark.parametrize("names", [FEW, pytest.param(builtin_names(), marks=pytest.mark.slow)], ids=["few", "all"])
def test_without_a_gpu_the_reference_answers_as_if_nothing_were_there(names: Sequence[str], tmp_path: Path) -> None:
    found = problems(names, tmp_path)
    assert {name: why for name, why in found.items() if why} == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names",
    [
        ("softmax", "rope"),
        pytest.param([n for n in builtin_names() if n not in NOT_INTERPRETED], marks=pytest.mark.slow),
    ],
    ids=["few", "all"],
)
def test_the_interpreted_kernel_answers_checks_as_an_operator_and_compiles(
    names: Sequence[str], tmp_path: Path
) -> None:
    found = problems(names, tmp_path, TRITON_INTERPRET="1")
    assert {name: why for name, why in found.items() if why} == {}


def test_a_compiler_sees_the_launches_unless_it_would_make_another_kernel_of_one_that_is_given_a_number(
    tmp_path: Path,
) -> None:
    # the first has eps as a constant, the second asks how many multiprocessors there are; the launch of the third has
    # numbers that are float32, but float64 in Inductor's graph
    names = ("rms_norm", "rms_norm_backward", "adam_step")
    for name in names:
        package(name, tmp_path, "sm_90")
    files = ", ".join(f"{name}_op" for name in names)
    code = f"import {files}; print(*[bool(its._seen) for its in ({files})])"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True False\n"


@pytest.mark.gpu
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("names", [FEW, pytest.param(builtin_names(), marks=pytest.mark.slow)], ids=["few", "all"])
def test_on_a_gpu_the_kernel_answers_is_sound_as_an_operator_compiles_and_is_captured(
    names: Sequence[str], tmp_path: Path
) -> None:
    gpu = gpu_info()
    assert gpu
    train = (*WITH_GRADIENTS, *ON_A_GPU_TOO)
    found = problems(names, tmp_path, arch=f"sm_{gpu.arch}", train=train, CUDA_VISIBLE_DEVICES="0")
    for name, (check, why) in NOT_ON_A_GPU.items():
        if name in found:
            assert why in found[name].pop(check), found[name]
    assert {name: why for name, why in found.items() if why} == {}


def test_every_builtin_task_can_be_packaged_with_any_expert_kernel_and_says_both_word_for_word() -> None:
    for name in builtin_names():
        task = described(find_task(name))
        assert task
        for sketch in experts(task):
            source = sketch.render(sketch.params)
            text = packaged([VerifiedKernel(task, source)], arch="sm_90", header="# a header\n\n")
            assert held_in(text) == [(source, task.source)]


def held_in(text: str) -> list[tuple[str, str]]:
    """The sources of the kernels and of their references."""
    calls = [
        n
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "PackagedKernel"
    ]
    found = [{k.arg: ast.literal_eval(k.value) for k in call.keywords} for call in calls]
    return [(one["source"], one["reference"]) for one in found]


SEEN = """
import triton, triton.language as tl, torch
@triton.jit
def inner(x): return x
@triton.jit
def kernel(x, y): tl.store(y, inner(tl.load(x)))
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y)
        return y
"""


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (("", ""), ("kernel",)),
        (("kernel[(1,)](x, y)", "kernel[(1,)](x, y) if x.data_ptr() % 16 else None"), ()),
        (("kernel[(1,)](x, y)", "launch = kernel; launch[(1,)](x, y)"), ()),
        (("kernel[(1,)](x, y)", "kernel[(1,)](x, y); self.last = y"), ()),
        (("kernel[(1,)](x, y)", "kernel[(1,)](x, y); inner[(1,)](x)"), ()),
        (("kernel[(1,)](x, y)", "torch.cuda.synchronize(); kernel[(x.sum().item(),)](x, y)"), ()),
        (("import triton,", "from kerneltune import PtxKernel\nimport triton,"), ()),
    ],
    ids=["plain", "asks_for_an_address", "another_name", "keeps", "launches_what_a_kernel_calls", "reads", "ptx"],
)
def test_a_compiler_is_shown_launches_only_where_it_can_see_all_that_is_done(
    change: tuple[str, str], seen: tuple[str, ...]
) -> None:
    assert launched(SEEN.replace(*change)) == seen
