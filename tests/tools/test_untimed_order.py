"""The order of kernels that nobody times, of real kernels in the real workers."""

from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.attempt import Attempt, best, rank_key
from kerneltune.agent.authors.llm.prompts import result_words
from kerneltune.agent.authors.search.author import OfflineAuthor
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.sandbox.workers import Machine
from kerneltune.tools.schema.sass import SassInstruction, phases
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import NotTimed, Status, Timing, Verdict
from kerneltune.tools.update import Update, Updater
from tests.agent.authors.search.test_offline_search import TASK, climb, refuse
from tests.tools.conftest import tensor

ROOT = Path(__file__).parents[2]
CHECKED = Verdict(Status.CHECKED, "right")
ROWS, COLS = 16384, 4096
X, WEIGHT = tensor(ROWS, COLS, dtype="bfloat16"), tensor(COLS, dtype="bfloat16")
RMS_NORM = TaskSpec("rms_norm", "0" * 64, "bfloat16", "", (CaseSpec("main", (X, WEIGHT), (), X),))
EXPERT = (
    "import torch\nimport triton\nimport triton.language as tl\n"
    + (ROOT / "agent" / "authors" / "search" / "experts" / "rms_norm.py").read_text()
    + """

class ModelNew(torch.nn.Module):
    def forward(self, x, weight):
        return rms_norm(x, weight, 1e-6)
"""
)
TWICE = """
import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(x, weight, y, cols, eps, B: tl.constexpr):
    row, total = tl.program_id(0), tl.zeros((B,), tl.float32)
    for start in range(0, cols, B):
        part = tl.load(x + row * cols + start + tl.arange(0, B)).to(tl.float32)
        total += part * part
    scale = tl.rsqrt(tl.sum(total) / cols + eps)
    for start in range(0, cols, B):
        i = start + tl.arange(0, B)
        tl.store(y + row * cols + i, tl.load(x + row * cols + i).to(tl.float32) * scale * tl.load(weight + i))


class ModelNew(torch.nn.Module):
    def forward(self, x, weight):
        y = torch.empty_like(x)
        rms_norm_kernel[(x.shape[0],)](x, weight, y, x.shape[1], 1e-6, B=128, num_warps=4)
        return y
"""


def compiled(machine: Machine, source: str) -> Update:
    updater = Updater(RMS_NORM, "sm_90", machine.tracer, machine.compiler)
    update = updater.update(source)
    assert update.failure is None, update.failure
    return without_gpu(updater).ordered(update, CHECKED)


def without_gpu(updater: Updater) -> Evaluator:
    return Evaluator(updater, None, "checking")  # type: ignore[arg-type]


def widths(machine: Machine, update: Update) -> set[str]:
    reply = Updater(RMS_NORM, "sm_90", machine.tracer, machine.compiler).sass(update)
    return {name for name in reply.kernels[0].whole.classes if name.startswith("global load")}


def test_without_a_clock_one_wide_read_comes_before_two_of_two_bytes(machine: Machine) -> None:
    once, twice = compiled(machine, EXPERT), compiled(machine, TWICE)
    assert (widths(machine, once), widths(machine, twice)) == ({"global load 128"}, {"global load 16"})
    assert once.traffic_bytes == twice.traffic_bytes  # which told them apart by registers alone
    assert sum(k.registers for k in twice.kernels) < sum(k.registers for k in once.kernels)
    assert rank_key(CHECKED, once) < rank_key(CHECKED, twice)
    assert once.effective_bytes is not None
    assert twice.effective_bytes is not None
    assert once.effective_bytes == pytest.approx(3 * ROWS * COLS * 2, rel=0.1)  # x, weight out of the cache, y
    assert twice.effective_bytes > 2 * once.effective_bytes


def test_what_is_wrong_or_timed_is_not_disassembled_for_an_order(machine: Machine) -> None:
    updater = Updater(RMS_NORM, "sm_90", machine.tracer, machine.compiler)
    update = updater.update(TWICE)
    assert without_gpu(updater).ordered(update, Verdict(Status.WRONG, "one is off")) is update
    assert Evaluator(updater, None, "timing").ordered(update, CHECKED) is update  # type: ignore[arg-type]
    assert without_gpu(updater).ordered(update).effective_bytes is not None  # whose verdict is not known yet


def test_without_a_clock_what_leaves_work_to_a_library_comes_after_what_is_all_in_kernels() -> None:
    timed = replace(CHECKED, status=Status.CORRECT, tier="judged", timing=Timing(5.0, 5.0, 5.0, 10, 10))
    made = Attempt("", "", attempt_id="r/1", number=1, verdict=CHECKED, rank_key=(100.0,), library_ops=("mm",))
    own = replace(made, attempt_id="r/2", number=2, rank_key=(200.0,), library_ops=())
    assert best([made, own]) is own
    timed_ones = [replace(a, verdict=timed) for a in (made, own)]
    assert best(timed_ones) is timed_ones[0]  # a clock sees all of it


def test_what_a_busy_gpu_left_without_a_time_is_told_without_a_rank() -> None:
    verdict = Verdict(Status.CHECKED, "right", not_timed=NotTimed.SHARED)
    made = Attempt("", "", attempt_id="r/1", number=1, verdict=verdict, rank_key=rank_key(verdict, Update()))
    assert result_words(made, verdict) == ""


def test_each_loop_is_a_phase_without_the_loops_within_it() -> None:
    text = "MOV R0, R1|LDG.E.128 R4, [R2]|LDG.E.U16 R5, [R2]|@P0 BRA `(.L_b)|STG.E [R2], R4|@P1 BRA `(.L_a)|EXIT"
    labels = {1: ".L_a", 2: ".L_b"}
    code = [SassInstruction(16 * n, one, labels.get(n, "")) for n, one in enumerate(text.split("|"))]
    found = [(p.instructions, p.loaded_bytes, p.stored_bytes) for p in phases(code)]
    assert found == [(2, 0, 0), (3, 16, 4), (2, 2, 0)]


def test_a_search_without_a_clock_tries_neighbours_only_where_the_order_was_found_to_say_something() -> None:
    bound = replace(TASK.main, flops=10**15)
    for task, climbs in ((TASK, True), (replace(TASK, cases=(bound, *TASK.cases[1:])), False)):
        history = climb(OfflineAuthor(refuse, 90), 12, task=task)
        assert any(a.parent_id is not None for a in history) is climbs
