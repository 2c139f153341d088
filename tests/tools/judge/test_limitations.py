"""A check for which the memory is too short is tried again with room made, and then says what it did without.

The references here ask for memory that no machine has, in float64 alone.
"""

import json
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kerneltune.tools.backends.base import CompiledImage
from kerneltune.tools.judge.correctness.comparison import compare
from kerneltune.tools.judge.correctness.gates import Expected
from kerneltune.tools.judge.correctness.problem import MOST_DISTURBED, Problem, describe
from kerneltune.tools.judge.correctness.reference_model import is_out_of_memory
from kerneltune.tools.judge.correctness.tree import tensors
from kerneltune.tools.judge.execution.correctness_run import CorrectnessRun
from kerneltune.tools.judge.service.cpu_judge import CpuJudge
from kerneltune.tools.judge.service.tiers import VerdictCache
from kerneltune.tools.receipt import author_view, statement
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.errors import OutOfMemory, TaskError
from kerneltune.tools.schema.messages import NewInputs, Open
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import (
    LIMITATIONS,
    NOT_IN_FULL,
    CaseResult,
    Limitation,
    LimitationKind,
    Status,
    Verdict,
    concluded,
    standing_for,
)
from kerneltune.tools.task.load import TaskFile, read_task
from tests.tools.judge.simulated import Device, linked
from tests.tools.judge.test_correctness_run import plan_for, right

ASKS = "torch.empty((1 << 50) if {} else 0, dtype=torch.uint8)"  # a pebibyte
RAISES = "if {}: raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 is full')"
WIDE = "x.dtype == torch.float64"
PRODUCT = "return x @ w"


def task_of(folder: Path, *lines: str, inputs: str = "torch.randn(64, 256), torch.randn(256, 96)") -> TaskFile:
    """A task whose forward has these lines; SEEN is for what they remember."""
    body = "\n        ".join(lines)
    path = folder / "mine.py"
    path.write_text(
        "import pathlib, weakref\nimport torch\nimport torch.nn as nn\nSEEN = []\nclass Model(nn.Module):\n"
        f"    def forward(self, x, w):\n        {body}\ndef get_inputs():\n    return [{inputs}]\n"
    )
    return read_task(path)


def short_of(folder: Path, how: str = ASKS, when: str = WIDE, result: str = PRODUCT) -> TaskFile:
    return task_of(folder, how.format(when), result)


def expected(problem: Problem, battery: str = "own") -> tuple[tuple[Any, ...], Expected]:
    drawn = problem.draw(1, battery)
    assert drawn is not None
    return drawn.inputs, problem.expect(drawn.inputs)


@pytest.mark.parametrize(("how", "asked"), [(ASKS, "1125899906842624 bytes"), (RAISES, "12.00 GiB")])
def test_a_comparison_without_float64_says_so_and_what_was_asked_for(tmp_path: Path, how: str, asked: str) -> None:
    inputs, wanted = expected(Problem.load(short_of(tmp_path, how)))
    passed, failed = compare(wanted, inputs[0] @ inputs[1]), compare(wanted, inputs[0] @ inputs[1] + 1)
    assert (passed.ok, failed.ok) == (True, False)
    assert passed.limitations == failed.limitations == (Limitation(LimitationKind.NOT_FLOAT64, asked),)
    assert passed.sentence == f"{NOT_FLOAT64} (asked for {asked})"
    assert failed.sentence.endswith(f"; {passed.sentence}")
    assert failed.detail.startswith("6144 of 6144 elements wrong")


def test_an_answer_in_float64_lacks_nothing(tmp_path: Path) -> None:
    inputs, wanted = expected(Problem.load(task_of(tmp_path, PRODUCT)))
    assert (wanted.limitations, compare(wanted, inputs[0] @ inputs[1]).sentence) == ((), "")


def test_a_reference_that_does_not_run_in_float64_is_told_apart_from_one_without_memory(tmp_path: Path) -> None:
    problem = Problem.load(task_of(tmp_path, "return (x.view(torch.int32) & -4096).view(torch.float32) * 2"))
    _, wanted = expected(problem)
    assert wanted.limitations == (Limitation(LimitationKind.OWN_DTYPE),)
    assert not problem.reference(problem.inputs(1) or ()).lacked_memory


def test_memory_that_is_found_once_room_is_made_gives_the_full_check(tmp_path: Path) -> None:
    room = tmp_path / "room"
    made: list[bool] = []

    def make_room() -> None:
        made.append(room.exists())
        room.touch()

    when = f"{WIDE} and not pathlib.Path({str(room)!r}).exists()"
    problem = Problem.load(short_of(tmp_path, when=when), make_room=make_room)
    inputs, wanted = expected(problem)
    assert wanted.limitations == ()
    assert wanted.noise is not None
    assert torch.allclose(wanted.values, inputs[0].double() @ inputs[1].double(), rtol=1e-14, atol=0)
    assert made == [False]
    assert problem.draw(1, "one_hot_left") is not None
    assert problem.left_out == {}


def test_what_the_first_try_held_is_gone_before_the_second(tmp_path: Path) -> None:
    alive: list[bool] = []

    def make_room() -> None:
        seen: list[weakref.ref[torch.Tensor]] = sys.modules["kerneltune_task_mine"].SEEN
        alive.extend(one() is not None for one in seen)

    remember = f"SEEN.append(weakref.ref(x)) if {WIDE} else None"
    problem = Problem.load(task_of(tmp_path, remember, ASKS.format(WIDE), PRODUCT), make_room=make_room)
    problem.reference(problem.inputs(1) or ())
    assert alive == [False]


def test_a_battery_that_only_float64_can_judge_is_left_out_and_named(tmp_path: Path) -> None:
    problem, full = Problem.load(short_of(tmp_path)), Problem.load(task_of(tmp_path, PRODUCT))
    for battery in ("one_hot_left", "one_hot_right", "integers", "huge"):
        assert full.draw(1, battery) is not None
        assert problem.draw(1, battery) is None
    assert set(problem.left_out) == {"one_hot_left", "one_hot_right", "integers", "huge"}
    assert {limitation.kind for limitation in problem.left_out.values()} == {LimitationKind.LEFT_OUT}
    assert all(limitation.asked_for for limitation in problem.left_out.values())
    for battery in ("own", "scaled", "spikes", "structure", "tiny"):
        assert expected(problem, battery)[1].limitations[0].kind is LimitationKind.NOT_FLOAT64
    assert (problem.draw(1, "specials"), "specials" in problem.left_out) == (None, False)  # it does not apply


def test_a_battery_is_left_out_no_longer_once_there_is_memory(tmp_path: Path) -> None:
    room = tmp_path / "room"
    problem = Problem.load(short_of(tmp_path, when=f"{WIDE} and not pathlib.Path({str(room)!r}).exists()"))
    assert problem.draw(1, "one_hot_left") is None
    room.touch()
    assert problem.draw(1, "one_hot_left") is not None
    assert problem.left_out == {}


def test_inputs_or_a_native_run_that_do_not_fit_are_an_exception(tmp_path: Path) -> None:
    problem = Problem.load(short_of(tmp_path, when="True"))
    assert problem.draw(1) is not None
    with pytest.raises(OutOfMemory, match="forward"):
        problem.expect(problem.inputs(1) or ())
    assert problem.draw(1, "scaled") is None
    assert "scaled" in problem.left_out
    absurd = Problem.load(task_of(tmp_path, PRODUCT, inputs="torch.empty(1 << 50)"))
    with pytest.raises(OutOfMemory, match="get_inputs"):
        absurd.draw(1)


def test_noise_that_finds_no_memory_is_missing_and_told(tmp_path: Path) -> None:
    count = f"SEEN.append(1) if {WIDE} else None"
    task = task_of(tmp_path, count, ASKS.format(f"{WIDE} and len(SEEN) > 1"), PRODUCT)
    problem = Problem.load(task)
    wanted = problem.expect(problem.inputs(1) or ())
    assert (wanted.noise, wanted.operand_noise) == (None, None)
    assert [limitation.kind for limitation in wanted.limitations] == [LimitationKind.NO_NOISE]
    x, w = problem.inputs(1) or ()
    assert torch.equal(wanted.values, x.double() @ w.double())


def test_more_outputs_than_noise_is_measured_for_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOST_DISTURBED, "cpu", 64 * 96 - 1)
    _, wanted = expected(Problem.load(task_of(tmp_path, PRODUCT)))
    assert wanted.limitations == (Limitation(LimitationKind.MANY_OUTPUTS),)


def test_without_its_noise_a_tolerance_is_wider_for_what_is_small_in_its_row(tmp_path: Path) -> None:
    """Why its absence is told: it is no tighter check."""
    task = task_of(tmp_path, "return torch.softmax(x, 1)", inputs="6 * torch.randn(16, 4096), torch.ones(1)")
    problem = Problem.load(task)
    _, wanted = expected(problem)
    small = wanted.native < 1e-4 * wanted.native.amax(1, keepdim=True)
    off = torch.where(small, wanted.native * 1.001, wanted.native)
    assert not compare(wanted, off).ok
    assert compare(replace(wanted, noise=None), off).ok


def test_what_flushing_changes_is_never_measured_between_two_arithmetics(tmp_path: Path) -> None:
    """The rounding of float32 must not widen a tolerance that is for denormals."""
    flushed = f"{WIDE} and not bool(((x != 0) & (x.abs() < 2.0**-126)).any())"
    task = task_of(tmp_path, ASKS.format(flushed), "return x * 3.1", inputs="torch.randn(64, 256), torch.ones(1)")
    _, wanted = expected(Problem.load(task), "tiny")
    assert wanted.limitations == ()
    assert 0 < float(next(tensors(wanted.slack)).max()) < 2.0**-123


def test_what_a_task_may_be_fed_is_not_decided_by_a_lack_of_memory(tmp_path: Path) -> None:
    assert Problem.load(short_of(tmp_path)).kinds == {"0": "any", "1": "any"}
    unknown = Problem.load(short_of(tmp_path, result="return (x * 1e38).log() @ w"))
    with pytest.raises(OutOfMemory):
        unknown.kinds  # noqa: B018 - a property that is computed
    assert unknown.draw(1, "spikes") is None
    assert "spikes" in unknown.left_out


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_mean_a_lack_of_memory_are_known(error: Exception, is_it: bool) -> None:
    assert is_out_of_memory(error) is is_it


def test_any_other_failure_is_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        Problem.load(task_of(tmp_path, "return x @ x")).native((torch.ones(2, 3), torch.ones(1)))
    assert not isinstance(caught.value, OutOfMemory)


TIMES_TWO = """
import pathlib, weakref
import torch
from torch import nn
N = 37
SEEN = []
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(N))
    def forward(self, x):
        GATE
        return x * 2 + self.w
def get_inputs(): return [torch.randn(8, N)]
def get_init_inputs(): return []
"""


def tried(
    folder: Path, quick_check: str, batteries: tuple[str, ...], make_room: Callable[[Device], None] = lambda _: None
) -> tuple[Verdict | None, CorrectnessRun, Device]:
    """A right kernel on the simulated device, for a task of that gate."""
    path = folder / "twice.py"
    path.write_text(TIMES_TWO.replace("GATE", quick_check))
    task, device, plan = read_task(path), Device({"right": right}), plan_for("main", 37, right)
    images = {k.sha256: CompiledImage({}, b"") for k in plan.kernels}
    with linked(device) as link:
        trial = CorrectnessRun(
            device, link, task, describe(task), bytes(32), images, make_room=lambda: make_room(device),
        )  # fmt: skip
        verdict = trial.run([plan], batteries)
    assert device.allocated == device.freed
    return verdict, trial, device


def test_a_trial_says_which_comparisons_were_weaker_and_which_batteries_were_left_out(tmp_path: Path) -> None:
    verdict, trial, _ = tried(tmp_path, ASKS.format(WIDE), ("own", "integers", "one_hot_left", "scaled", "specials"))
    assert verdict is None
    assert [
        (r.inputs, r.ok, [one.kind for one in r.limitations] == [LimitationKind.NOT_FLOAT64]) for r in trial.results
    ] == [
        ("own", True, True),
        ("scaled", True, True),
    ]
    assert trial.left_out == ["main/integers"]  # there is no contraction to probe


def test_a_trial_says_which_inputs_said_nothing_since_torch_misses_there_too(tmp_path: Path) -> None:
    changed = f"(torch.arange(8)[:, None] < (1 if {WIDE} else 2)) & (x.abs().max() > 30)"  # rows of large inputs
    verdict, trial, _ = tried(tmp_path, f"x = x + ({changed}).to(x)", ("own", "scaled"))
    assert verdict is None
    assert [(r.inputs, r.sentence) for r in trial.results] == [
        ("own", ""),
        ("scaled", LIMITATIONS[LimitationKind.NATIVE_MISSES]),
    ]


def test_a_trial_that_refuses_a_plan_keeps_no_model_in_the_gpu_s_memory(tmp_path: Path) -> None:
    verdict, trial, _ = tried(tmp_path, "SEEN.append(weakref.ref(self)); x = x + 1", ("own",))
    assert verdict is not None
    assert trial.results[0].ok is False
    seen = sys.modules["kerneltune_task_twice"].SEEN
    assert [one() is None for one in seen] == [True] * len(seen)
    assert seen


def test_a_plan_s_own_memory_is_freed_for_the_answer_and_laid_out_again(tmp_path: Path) -> None:
    """Otherwise a plan could ask for so much that it is compared with less."""
    room, held = tmp_path / "room", []

    def make_room(device: Device) -> None:
        held.append(device.allocated - device.freed)
        room.touch()

    quick_check = ASKS.format(f"{WIDE} and not pathlib.Path({str(room)!r}).exists()")
    verdict, trial, device = tried(tmp_path, quick_check, ("own", "scaled"), make_room)
    assert verdict is None
    assert held == [0]
    assert device.allocated == 2 * 3
    assert [r.sentence for r in trial.results] == ["", ""]
    assert device.launches == 2 * 3


def test_the_desk_tells_a_battery_without_memory_from_one_that_does_not_apply(tmp_path: Path) -> None:
    judge = CpuJudge()
    task = short_of(tmp_path)
    assert judge.open(Open("mine", str(task.path), task.sha256)).problem is None
    told_of = {b: judge.new_inputs(NewInputs("main", b, "0" * 64))[0] for b in ("own", "one_hot_left", "specials")}
    assert {b: (p.applies, p.short) for b, p in told_of.items()} == {
        "own": (True, False),
        "one_hot_left": (False, True),
        "specials": (False, False),
    }


NOT_FLOAT64, LEFT_OUT = LIMITATIONS[LimitationKind.NOT_FLOAT64], LIMITATIONS[LimitationKind.LEFT_OUT]
WEAK = (Limitation(LimitationKind.NOT_FLOAT64, "12.00 GiB"),)
CASES = (
    CaseResult("main", "own", True, 0.1, 0.0, limitations=WEAK),
    CaseResult("prime", "own", True, 0.1, 0.0, limitations=WEAK),
    CaseResult("main", "scaled", True, 0.1, 0.0),
)
RECEIPT = {"plan": "f" * 64}
CHECKED = Verdict(Status.CHECKED, "right on 2 small cases", CASES, left_out=("main/one_hot_left",))
WORDS = f"{NOT_FLOAT64}: main (own), prime (own); {LEFT_OUT}: main (one_hot_left)"


def test_a_verdict_that_accepts_names_what_it_did_without() -> None:
    verdict = concluded(CHECKED, RECEIPT)
    assert verdict.detail == f"right on 2 small cases; not checked in full: {WORDS}"
    assert verdict.receipt[NOT_IN_FULL] == {NOT_FLOAT64: ["main/own", "prime/own"], LEFT_OUT: ["main/one_hot_left"]}
    assert json.loads(json.dumps(verdict.receipt)) == verdict.receipt
    assert decode(Verdict, json.loads(json.dumps(encode(verdict)))) == verdict


def test_a_verdict_that_knows_nothing_of_limitations_decodes() -> None:
    names = ("case", "kernel", "lines", "ptx_lines", "needed_shared_bytes", "left_out")
    stored = {name: value for name, value in encode(replace(CHECKED, cases=CASES[2:])).items() if name not in names}
    del stored["cases"][0]["limitations"]
    assert decode(Verdict, stored) == replace(CHECKED, cases=CASES[2:], left_out=())


def test_a_full_check_says_nothing_and_a_refusal_says_it_in_its_receipt_alone() -> None:
    full = replace(CHECKED, cases=CASES[2:], left_out=())
    assert concluded(full, RECEIPT) == replace(full, receipt=RECEIPT)
    refused = replace(CASES[0], ok=False)
    wrong = concluded(Verdict(Status.WRONG, "case main (own inputs): all NaN", (refused,)), {})
    assert (wrong.detail, wrong.receipt) == (
        "case main (own inputs): all NaN",
        {NOT_IN_FULL: {NOT_FLOAT64: ["main/own"]}},
    )


def test_the_statement_says_it_and_an_author_reads_no_held_out_name() -> None:
    leaf = {"$tensor": {"shape": [3], "dtype": "float32", "stride": None}}
    cases = (CaseSpec("main", (leaf,), (), leaf), CaseSpec("prime", (leaf,), (), leaf, held_out=True))
    task = TaskSpec("softmax", "a" * 64, "float32", "", cases)
    verdict = concluded(replace(CHECKED, left_out=("main/one_hot_left", "prime/one_hot_left")), RECEIPT)
    words = WORDS.replace("main (one_hot_left)", "main (one_hot_left), prime (one_hot_left)")
    assert f"not checked in full: {words}; plan sha256" in statement(task, verdict, None)
    view = author_view(verdict, task)
    assert "prime" not in repr(view)
    assert NOT_FLOAT64 in view.detail


def test_a_result_that_stands_for_others_says_what_they_lacked() -> None:
    assert standing_for(CASES[2], CASES).sentence == NOT_FLOAT64
    assert standing_for(CASES[0], CASES) is CASES[0]
    assert standing_for(CASES[2], CASES[2:]) is CASES[2]


def test_a_verdict_for_which_memory_was_short_is_judged_anew_the_next_time() -> None:
    short = {LimitationKind.NOT_FLOAT64, LimitationKind.NO_NOISE, LimitationKind.LEFT_OUT}
    for kind in LimitationKind:
        limitations = (Limitation(kind),)
        verdict = Verdict(Status.WRONG, "no", (CaseResult("main", "own", False, 9.0, 1.0, limitations=limitations),))
        verdicts = VerdictCache()
        verdicts.keep("a", verdict)
        assert verdict.lacked_memory is (kind in short)
        assert (verdicts.find("a") is None) is (kind in short)
