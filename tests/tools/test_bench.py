"""The CPU bench from a candidate's source to its verdict, with real workers: what is checked, told and written down."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kerneltune.agent.commands.session import open_task
from kerneltune.tools.bench import CpuBench, ask_judge
from kerneltune.tools.judge.correctness.inputs import derived
from kerneltune.tools.judge.correctness.problem import Problem
from kerneltune.tools.judge.service import cpu_judge
from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.workers import Machine, Worker
from kerneltune.tools.schema.codec import Json, decode, encode
from kerneltune.tools.schema.errors import TaskError, Unfit
from kerneltune.tools.schema.messages import Compare, ComparisonReply, NewInputs, Open, Opened, PreparedInputs
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.task import BATTERIES, CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import LIMITATIONS, NOT_IN_FULL, CaseResult, Cause, LimitationKind, Status, Verdict
from kerneltune.tools.task.load import read_task
from kerneltune.tools.update import Update, Updater
from tests import shared_fork_server

Judge = Callable[[str, str], Verdict]

HEADER = "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n"
MATMUL = """
import torch
M, K, N = 64, 64, 64
CASES = [{"name": "tall", "M": 128}, {"name": "secret_shape", "N": 32, "held_out": True}]
PRECISION = "float32"
class Model(torch.nn.Module):
    def forward(self, a, b): return a @ b
def get_inputs(): return [torch.rand(M, K), torch.rand(K, N)]
"""
DOT = """
@triton.jit
def dot(a, b, y, K: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    k, n = tl.arange(0, K), tl.arange(0, N)[None, :]
    total = tl.dot(tl.load(a + row * K + k[None, :]), tl.load(b + k[:, None] * N + n), input_precision="PRECISION")
    tl.store(y + row * N + n, total)
class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0], b.shape[1], device=a.device)
        dot[(a.shape[0] // 32,)](a, b, y, a.shape[1], b.shape[1], 32)
        return y
"""


@pytest.fixture
def judge(machine: Machine, tmp_path: Path) -> Judge:
    """The verdict on a candidate for a task, both given as source."""

    def verdict(task: str, candidate: str) -> Verdict:
        path = tmp_path / "task.py"
        path.write_text(task)
        with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
            opened = decode(
                Opened, judge.call(encode(Open("task", str(path), read_task(path).sha256)), timeout_s=60.0).body
            )
            assert opened.task is not None, opened.problem
            update = Updater(opened.task, "sm_90", machine.tracer, machine.compiler).update(HEADER + candidate)
            assert update.failure is None, update.failure
            return CpuBench(opened.task, judge, machine.interpreter).bench(update)

    return verdict


def test_a_right_kernel_meets_every_battery_and_its_seeds_are_told_afterwards(judge: Judge, tmp_path: Path) -> None:
    verdict = judge(MATMUL, DOT.replace("PRECISION", "ieee"))
    assert verdict.status is Status.CHECKED, verdict.detail
    batteries = {r.inputs for r in verdict.cases}
    assert set(BATTERIES) - batteries == {"specials", "indices", "one_index"}
    assert batteries == set(verdict.receipt["batteries"])
    seeds = verdict.receipt["seeds"]
    assert isinstance(seeds, dict)
    assert set(seeds) == {f"{r.case}/{r.inputs}" for r in verdict.cases}
    assert len(set(map(str, seeds.values()))) == len(seeds)
    problem = Problem.load(read_task(tmp_path / "task.py"), "tall")
    seed = int(str(seeds["tall/scaled"]), 16)
    own, scaled = problem.inputs(seed), problem.draw(seed, "scaled")
    assert own is not None
    assert scaled is not None
    again = derived(own, "scaled", seed, problem.kinds)
    assert again is not None
    assert bool((again[0] == scaled.inputs[0]).all())


def test_a_check_without_the_memory_for_float64_says_what_it_did_without(judge: Judge) -> None:
    greedy = "torch.empty((1 << 50) if a.dtype == torch.float64 else 0, dtype=torch.uint8); return a @ b"
    verdict = judge(MATMUL.replace("return a @ b", greedy), DOT.replace("PRECISION", "ieee"))
    assert verdict.status is Status.CHECKED, verdict.detail
    lacking = verdict.receipt[NOT_IN_FULL]
    not_float64, left_out = (LIMITATIONS[kind] for kind in (LimitationKind.NOT_FLOAT64, LimitationKind.LEFT_OUT))
    assert set(lacking[not_float64]) == {f"{r.case}/{r.inputs}" for r in verdict.cases}
    assert {"main/one_hot_left", "main/one_hot_right"} <= set(lacking[left_out])
    assert f"; not checked in full: {not_float64}: main (own, " in verdict.detail


def test_a_float32_matmul_with_the_default_precision_of_tl_dot_is_told_to_use_ieee(judge: Judge) -> None:
    verdict = judge(MATMUL, DOT.replace("PRECISION", "tf32"))
    assert verdict.status is Status.WRONG
    assert "TF32" in verdict.detail
    assert "input_precision='ieee'" in verdict.detail
    assert judge(MATMUL, DOT.replace("PRECISION", "tf32x3")).status is Status.CHECKED


def test_the_name_of_a_held_out_case_is_not_told(judge: Judge) -> None:
    narrow = DOT.replace("PRECISION", "ieee").replace("n, total)", "n, total * (N != 32))")
    verdict = judge(MATMUL, narrow)
    assert verdict.status is Status.WRONG
    assert verdict.detail.startswith("a held-out case: ")
    loop = DOT.replace("PRECISION", "ieee").replace("tl.store(y", "tl.store(y + (1 << 28) * (N == 32)")
    beyond = judge(MATMUL, loop)
    assert beyond.status is Status.WRONG
    assert "out of bounds" in beyond.detail
    assert "secret_shape" not in beyond.detail + str(beyond.receipt["problem"]) + str(beyond.receipt["case"])


def test_a_task_that_a_null_kernel_passes_is_opened_with_a_note(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(MATMUL.replace("return a @ b", "return (a @ b) * 0"))
    with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        opened = decode(
            Opened, judge.call(encode(Open("task", str(path), read_task(path).sha256)), timeout_s=60.0).body
        )
    assert opened.task is not None
    assert opened.notes[0].startswith("a kernel that writes zeros passes case ")


MASKED = """
import torch
INPUTS = {"bias": "own"}
class Model(torch.nn.Module):
    def forward(self, x, bias): return torch.softmax(x + bias, -1)
def get_inputs():
    bias = torch.zeros(16, 64).masked_fill(torch.ones(16, 64).triu(1) > 0, -torch.inf)
    bias[3] = -torch.inf
    return [torch.randn(16, 64), bias]
PRECISION = "float32"
"""
SOFTMAX = """
@triton.jit
def softmax(x, bias, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + at) + tl.load(bias + at)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0))
class ModelNew(nn.Module):
    def forward(self, x, bias):
        y = torch.empty_like(x)
        softmax[(x.shape[0],)](x, bias, y, x.shape[1])
        return y
"""


def test_a_row_that_is_masked_throughout_may_be_nan_as_in_the_reference(judge: Judge) -> None:
    verdict = judge(MASKED, SOFTMAX)
    assert verdict.status is Status.CHECKED, verdict.detail


ROWS = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return torch.softmax(x, -1)
def get_inputs(): return [torch.randn(8, 64)]
"""
TOUCH = """
@triton.jit
def touch(x, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) WHAT)
class ModelNew(nn.Module):
    def forward(self, x):
        y = BEFORE
        touch[(8,)](y, 64)
        return torch.softmax(y, -1)
"""


def test_kernels_without_which_the_result_is_the_same_are_refused(judge: Judge) -> None:
    verdict = judge(ROWS, TOUCH.replace("WHAT", "").replace("BEFORE", "x + 0"))
    assert verdict.status is Status.REJECTED
    assert "the same without your kernels" in verdict.detail
    assert "softmax" in verdict.detail
    assert judge(ROWS, TOUCH.replace("WHAT", "+ 1").replace("BEFORE", "x + 0")).status is Status.CHECKED


def test_a_candidate_that_changes_its_input_is_wrong_although_its_result_is_right(judge: Judge) -> None:
    verdict = judge(ROWS, TOUCH.replace("WHAT", "+ 1").replace("BEFORE", "x"))
    assert verdict.status is Status.WRONG
    assert "overwrites" in verdict.detail
    assert "input 0" in verdict.detail


SCALE = """
import torch
ROWS, COLS = 3000, 2048
CASES = [{"name": "few", "ROWS": 33, "COLS": 100, "cpu": True}]
PRECISION = "float32"
class Model(torch.nn.Module):
    def forward(self, x): return x * 1.5 + x.amax(1, keepdim=True)
def get_inputs(): return [torch.randn(ROWS, COLS)]
"""
SCALE_KERNEL = """
@triton.jit
def scale(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=-float("inf"))
    top = tl.max(v, 0)
    tl.store(y + at, v * 1.5 + top, mask=i < cols)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        scale[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""


def test_some_programs_are_run_at_the_timed_shape_and_what_was_covered_is_told(judge: Judge) -> None:
    verdict = judge(SCALE, SCALE_KERNEL)
    assert verdict.status is Status.CHECKED, verdict.detail
    covered = verdict.receipt["timed_shape"]
    assert isinstance(covered, dict)
    ran = int(str(covered["ran"]))
    assert 2 <= ran <= 12
    assert (covered["programs"], covered["compared"]) == (3000, ran * 2048)
    assert (
        f"at the timed shape {ran} of 3,000 programs were run, and {ran * 2048:,} elements compared" in verdict.detail
    )
    assert "main/own" not in str(verdict.receipt["seeds"])  # other candidates of the session meet these inputs, too


@pytest.mark.parametrize(
    "mistake",
    [
        ("v * 1.5 + top", "tl.where(i < 1024, v * 1.5 + top, v)"),
        (
            "top = tl.max(v, 0)",
            "top = tl.max(tl.where(tl.program_id(0) < 2999, v, 0.0), 0) if BLOCK > 128 else tl.max(v, 0)",
        ),
        ("at = tl.program_id(0).to(tl.int64) * cols + i", "at = tl.program_id(0) * cols + i + (BLOCK // 2048) * 1024"),
    ],
)
def test_a_kernel_that_is_wrong_at_the_timed_shape_alone_is_wrong(judge: Judge, mistake: tuple[str, str]) -> None:
    verdict = judge(SCALE, SCALE_KERNEL.replace(*mistake))
    assert verdict.status is Status.WRONG
    assert verdict.case == "main"


WEIGHTED = """
import torch
ROWS, COLS = 3000, 2048
CASES = [{"name": "few", "ROWS": 33, "COLS": 100, "cpu": True}]
class Model(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(n))
    def forward(self, x): return x * self.scale
def get_inputs(): return [torch.randn(ROWS, COLS)]
def get_init_inputs(): return [COLS]
"""
IN_STEPS = """
@triton.jit
def clear(y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0).to(tl.int64) * cols + i, tl.zeros((BLOCK,), tl.float32), mask=i < cols)
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n))
        self.packed = None
    def forward(self, x):
        if self.packed is None:
            self.packed = torch.empty_like(self.scale)
            double[(triton.cdiv(self.packed.numel(), 64),)](self.scale, self.packed, self.packed.numel(), BLOCK=64)
        y = torch.empty_like(x)
        clear[(x.shape[0],)](y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        weighted[(x.shape[0],)](x, self.packed, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
@triton.jit
def weighted(x, w, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    tl.store(y + at, tl.load(x + at, mask=i < cols) * tl.load(w + i, mask=i < cols) * 0.5, mask=i < cols)
"""


def test_what_prepares_weights_is_run_whole_and_what_a_later_launch_overwrites_is_not_compared(judge: Judge) -> None:
    verdict = judge(WEIGHTED, IN_STEPS)
    assert verdict.status is Status.CHECKED, verdict.detail
    assert "of 6,000 programs were run" in verdict.detail


BYTES = """
import torch
ROWS, COLS = 70000, 65536
CASES = [{"name": "few", "ROWS": 33, "COLS": 100, "cpu": True}]
class Model(torch.nn.Module):
    def forward(self, x): return x // 2
def get_inputs(): return [torch.randint(0, 256, (ROWS, COLS), dtype=torch.uint8)]
"""
HALVE = """
@triton.jit
def halve(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    tl.store(y + at, tl.load(x + at, mask=i < cols) // 2, mask=i < cols)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        halve[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""


def test_tensors_of_gigabytes_are_sampled_too_and_an_offset_that_overflows_there_is_found(judge: Judge) -> None:
    verdict = judge(BYTES, HALVE)
    assert verdict.status is Status.CHECKED, verdict.detail
    assert "of 70,000 programs were run" in verdict.detail
    overflows = judge(BYTES, HALVE.replace(".to(tl.int64) * cols", " * cols"))
    assert overflows.status is Status.WRONG, overflows.detail
    assert overflows.case == "main"
    assert re.search(r"line \d+, kernel halve: (load|store) outside argument '[xy]\w*': byte offset", overflows.detail)


PRODUCT = """
import torch
M, K, N = 8192, 1024, 8192
CASES = [{"name": "few", "M": 64, "K": 128, "N": 160, "cpu": True}]
PRECISION = "bfloat16"
class Model(torch.nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight = torch.nn.Parameter((torch.randn(n, k) * k**-0.5).bfloat16())
    def forward(self, x): return torch.nn.functional.linear(x, self.weight)
def get_inputs(): return [torch.randn(M, K).bfloat16()]
def get_init_inputs(): return [N, K]
"""
TILES = """
@triton.jit
def tiles(x, w, y, K, N, B: tl.constexpr):
    i = (tl.program_id(0) * B + tl.arange(0, B)).to(tl.int64)[:, None]
    j = (tl.program_id(1) * B + tl.arange(0, B)).to(tl.int64)[None, :]
    k = tl.arange(0, 64)
    total = tl.zeros((B, B), tl.float32)
    for start in range(0, K, 64):
        total = tl.dot(tl.load(x + i * K + start + k[None, :]), tl.load(w + j * K + start + k[:, None]), total)
    tl.store(y + i * N + j, total)
class ModelNew(nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, k, dtype=torch.bfloat16))
    def forward(self, x):
        n, k = self.weight.shape
        y = torch.empty(x.shape[0], n, device=x.device, dtype=x.dtype)
        tiles[(x.shape[0] // 32, n // 32)](x, self.weight, y, k, n, 32)
        return y
"""


@pytest.mark.parametrize("edge", ["tl.program_id(1) > 254", "tl.program_id(0) > 254"])
def test_rows_and_columns_of_a_product_of_large_matrices_are_computed_alone(judge: Judge, edge: str) -> None:
    wrong = TILES.replace("tl.store(y + i * N + j, total)", f"tl.store(y + i * N + j, tl.where({edge}, 0.0, total))")
    assert "of 65,536 programs were run" in judge(PRODUCT, TILES).detail
    verdict = judge(PRODUCT, wrong)
    assert (verdict.status, verdict.case) == (Status.WRONG, "main")


def test_a_task_whose_sizes_cannot_be_made_smaller_is_checked_at_the_timed_shape(judge: Judge) -> None:
    task = SCALE.replace("torch.randn(ROWS, COLS)", "torch.randn(1100, 1024)").replace("CASES", "UNUSED")
    verdict = judge(task, SCALE_KERNEL)
    assert verdict.status is Status.CHECKED, verdict.detail
    assert {r.inputs for r in verdict.cases} == {"own", "scaled"}
    wrong = SCALE_KERNEL.replace("top = tl.max(v, 0)", "top = tl.max(tl.where(tl.program_id(0) == 777, 0.0, v), 0)")
    assert judge(task, wrong).status is Status.WRONG


def test_rows_that_lie_apart_do_so_in_every_battery(judge: Judge) -> None:
    task = SCALE.replace("[torch.randn(ROWS, COLS)]", "[torch.randn(ROWS, COLS + 8)[:, :COLS]]")
    padded = SCALE_KERNEL.replace("(x, y, cols,", "(x, y, stride, cols,").replace(
        "(x, y, x.shape[1],", "(x, y, x.stride(0), x.shape[1],"
    )
    padded = padded.replace("v = tl.load(x + at", "v = tl.load(x + tl.program_id(0).to(tl.int64) * stride + i")
    padded = padded.replace("torch.empty_like(x)", "torch.empty(x.shape, device=x.device)")
    verdict = judge(task, padded)
    assert verdict.status is Status.CHECKED, verdict.detail
    assert len({r.inputs for r in verdict.cases}) > 5


TWICE = """
import ctypes, os, torch
ROWS = 64
class Model(torch.nn.Module):
    calls = 0
    def forward(self, x):
        Model.calls += 1
        FORWARD
        return x * 2
def get_inputs():
    INPUTS
    return [torch.randn(ROWS, 64)]
"""
TWICE_KERNEL = """
@triton.jit
def twice(x, y, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + i, tl.load(x + i) * 2)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        twice[(x.shape[0],)](x, y, 64)
        return y
"""


@pytest.mark.parametrize("place", ["FORWARD", "INPUTS"])
def test_a_task_that_exits_is_a_task_s_error_and_the_judge_lives_on(
    machine: Machine, tmp_path: Path, place: str
) -> None:
    path = tmp_path / "task.py"
    path.write_text(TWICE.replace(place, "os._exit(3)").replace("FORWARD", "pass").replace("INPUTS", "pass"))
    with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        for _ in range(2):
            opened, _ = ask_judge(judge, "task", Open("task", str(path), read_task(path).sha256), Opened)
            assert opened.problem is not None
            assert f"{path}, line" in opened.problem
            assert "os._exit(3)" in opened.problem


@pytest.mark.parametrize(
    ("end", "how"),
    [("ctypes.string_at(0)", "SIGSEGV"), ("os.kill(os.getpid(), 9)", "SIGKILL"), ("os.abort()", "SIGABRT")],
)
def test_a_task_that_ends_the_judge_s_process_is_named_in_the_error(judge: Judge, end: str, how: str) -> None:
    task = TWICE.replace("FORWARD", f"if x.abs().max() > 30: {end}").replace("INPUTS", "pass")  # no input of its own
    task = task.replace("ROWS = 64", "ROWS = 64\nINPUTS = {'x': 'any'}")
    with pytest.raises(TaskError, match=rf"task task: its own code ended the process .* killed by {how}"):
        judge(task, TWICE_KERNEL)


SPEAKS = """
import socket, struct
def say(text):
    for fd in range(3, 64):
        try:
            socket.socket(fileno=os.dup(fd)).send(struct.pack("<Q", len(text)) + text)
        except OSError:
            pass
"""


@pytest.mark.parametrize(
    "text", [b'{"m": {"problem": 7}, "b": [], "f": 0}', b'{"m": {}, "b": [], "f": 9}', b"nonsense"]
)
def test_a_task_that_speaks_in_its_judge_s_place_is_named_in_the_error(
    machine: Machine, tmp_path: Path, text: bytes
) -> None:
    path = tmp_path / "task.py"
    speaks = TWICE.replace("FORWARD", "pass").replace("INPUTS", f"say({text!r})")
    path.write_text(speaks.replace("class Model", SPEAKS + "class Model"))
    with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        with pytest.raises(TaskError, match="task task: its own code speaks in its judge's place: "):
            open_task(judge, read_task(path))
        assert judge.exited.is_set()


@pytest.mark.parametrize(
    "outputs",
    [
        {"$blob": 3, "dtype": "float32", "shape": [64, 64]},
        {"$blob": 0, "dtype": "float32", "shape": [64, 65]},
        {"$blob": 0, "dtype": "float64", "shape": [64, 64]},
        {"$blob": 0, "dtype": "save", "shape": [64, 64]},
        {"$blob": 0, "dtype": "float32", "shape": [1 << 80]},
        {"$dict": [3]},
        {"$blob": "x"},
    ],
)
def test_outputs_that_are_none_cost_their_candidate_its_verdict_and_not_the_judge(
    tmp_path: Path, outputs: Json
) -> None:
    path = tmp_path / "task.py"
    path.write_text(TWICE.replace("FORWARD", "pass").replace("INPUTS", "pass"))
    judge = cpu_judge.CpuJudge()
    judge.open(Open("task", str(path), read_task(path).sha256))
    judge.new_inputs(NewInputs("main", "own", "0" * 64))
    told = judge.compare(Compare("main", "own", "0" * 64, outputs), [bytes(4 * 64 * 64)])
    assert (bool(told.malformed), told.problem) == (True, "")


LEAF: dict[str, Json] = {"$blob": 0, "dtype": "float32", "shape": [64, 64]}


@pytest.mark.parametrize("outputs", [[], [LEAF] * 2, [LEAF | {"shape": [64, 32]}], [LEAF | {"dtype": "int64"}], {}])
def test_a_sample_s_outputs_that_are_none_are_an_answer_and_not_the_judge_s_end(tmp_path: Path, outputs: Json) -> None:
    path = tmp_path / "task.py"
    path.write_text(TWICE.replace("FORWARD", "pass").replace("INPUTS", "pass"))
    judge = cpu_judge.CpuJudge()
    judge.open(Open("task", str(path), read_task(path).sha256))
    prepared, _, fds = judge.new_inputs(NewInputs("main", "own", "", sampled=True))
    assert (prepared.problem, len(fds)) == ("", 1)
    rows = [np.arange(n, dtype=np.int64).tobytes() for n in (64, 32)]
    told = judge.compare(Compare("main", "own", "0" * 64, outputs, sampled=True), [rows[0], bytes(4 * 64)])
    assert told.malformed or not told.result.ok


NOTHING = TaskSpec(
    "nothing",
    "",
    "float32",
    "",
    (CaseSpec("main", (), (), [], runs_on_cpu=False), CaseSpec("small", (), (), [])),
)
OF_NOTHING = Update(
    {name: (Plan(name, "default", "sm_90", (), (), (), (), []),) for name in ("main", "small")}, main_case="main"
)


def judge_that_gives_no_memory(channel: Any, malformed: str = "") -> None:
    while True:
        asked: Any = decode(NewInputs | Compare, channel.receive().body)  # type: ignore[arg-type]
        if isinstance(asked, NewInputs):
            channel.send(encode(PreparedInputs(())))
        else:
            result = CaseResult(asked.case, asked.battery, ok=True, error_ratio=0.0, max_abs_error=0.0)
            channel.send(encode(ComparisonReply(result, malformed=malformed)))


def judge_of_outputs_that_are_none(channel: Any) -> None:
    judge_that_gives_no_memory(channel, "no output 3")


def test_a_sample_without_a_memory_is_no_word_of_a_judge_s(machine: Machine) -> None:
    with machine.trusted("tests.tools.test_bench:judge_that_gives_no_memory") as judge:
        with pytest.raises(TaskError, match=r"task nothing: .* in its judge's place: .* no memory"):
            CpuBench(NOTHING, judge, machine.interpreter).bench(OF_NOTHING)
        assert judge.exited.is_set()


def test_outputs_that_are_none_are_told_as_a_malformed_reply_and_not_as_the_task_s_failure(machine: Machine) -> None:
    with machine.trusted("tests.tools.test_bench:judge_of_outputs_that_are_none") as judge:
        verdict = CpuBench(NOTHING, judge, machine.interpreter).bench(OF_NOTHING)
    assert (verdict.status, verdict.cause) == (Status.CRASHED, Cause.RUNNER_DIED)
    assert verdict.detail == "case small: crashed: malformed reply: no output 3"


@pytest.mark.parametrize("place", ["FORWARD", "INPUTS"])
def test_a_task_that_fails_after_it_was_described_costs_a_verdict_and_not_the_judge(
    machine: Machine, tmp_path: Path, place: str
) -> None:
    path, broken = tmp_path / "task.py", tmp_path / "broken"
    fails = f"1 / (not os.path.exists({str(broken)!r}))"
    path.write_text(TWICE.replace(place, fails).replace("FORWARD", "pass").replace("INPUTS", "pass"))
    with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        opened, _ = ask_judge(judge, "task", Open("task", str(path), read_task(path).sha256), Opened)
        assert opened.task is not None
        update = Updater(opened.task, "sm_90", machine.tracer, machine.compiler).update(HEADER + TWICE_KERNEL)
        bench = CpuBench(opened.task, judge, machine.interpreter)
        broken.touch()
        failed = bench.bench(update)
        assert failed.status is Status.UNCHECKED
        assert "the task's own code failed" in failed.detail
        assert "ZeroDivisionError" in failed.detail
        broken.unlink()
        assert bench.bench(update).status is Status.CHECKED


@pytest.mark.timeout(0)  # which takes the one alarm that a process has
def test_what_takes_too_long_to_be_computed_is_a_reason_and_not_the_end_of_the_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, slow = tmp_path / "task.py", tmp_path / "slow"
    path.write_text(
        TWICE.replace("FORWARD", f"import time; time.sleep(9.0 * os.path.exists({str(slow)!r}))").replace(
            "INPUTS", "pass"
        )
    )
    judge = cpu_judge.CpuJudge()
    judge.open(Open("task", str(path), read_task(path).sha256))
    monkeypatch.setattr(cpu_judge, "ANSWER_LIMIT_S", 0.5)
    slow.touch()
    began_s = time.monotonic()
    assert "takes longer than 0.5 s" in judge.new_inputs(NewInputs("main", "scaled", "0" * 64))[0].problem
    assert time.monotonic() - began_s < 5.0
    slow.unlink()
    assert judge.new_inputs(NewInputs("main", "own", "0" * 64))[0].names == ("input:0",)


def _killed(new: Callable[[], Worker], most: int) -> Callable[[], Worker]:
    """The first workers are killed from outside, as when memory runs out."""
    left = [most]

    def make() -> Worker:
        worker = new()
        if left[0] > 0:
            left[0] -= 1
            assert worker.spawned.wait(10)
            os.kill(worker.pid or 0, signal.SIGKILL)
            worker.exited.wait(10)
        return worker

    return make


def test_nobody_is_blamed_for_one_process_that_the_system_killed(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(MATMUL)
    source = HEADER + DOT.replace("PRECISION", "ieee")
    with machine.trusted("kerneltune.tools.judge.service.cpu_judge:main") as judge:
        task = decode(
            Opened, judge.call(encode(Open("task", str(path), read_task(path).sha256)), timeout_s=60.0).body
        ).task
        assert task is not None
        made = Updater(task, "sm_90", _killed(machine.tracer, 1), _killed(machine.compiler, 1)).update(source)
        assert made.failure is None, made.failure
        verdict = CpuBench(task, judge, _killed(machine.interpreter, 1)).bench(made)
        assert verdict.status is Status.CHECKED, verdict.detail
        for tracer, compiler, cause in ((99, 0, Cause.TRACER_DIED), (0, 99, Cause.COMPILER_DIED)):
            always = Updater(task, "sm_90", _killed(machine.tracer, tracer), _killed(machine.compiler, compiler))
            failure = always.update(source).failure
            assert failure is not None
            assert failure.cause is cause
            assert "was killed by SIGKILL" in failure.detail


def test_an_attempt_ends_without_a_verdict_when_nothing_can_be_forked_any_more() -> None:
    with shared_fork_server.forked(workers.started()) as machine, machine.tracer() as worker:
        worker.enforced()
        machine.tracers.close()
        with pytest.raises(Unfit, match="give the command again"):
            worker.call({}, timeout_s=10)
        with pytest.raises(Unfit, match="give the command again"):
            machine.tracer()
