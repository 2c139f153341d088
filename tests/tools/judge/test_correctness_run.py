"""Trials of plans on a simulated device: what each kind of wrong plan is told, and that right ones pass."""

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kerneltune.tools.backends.base import CompiledImage
from kerneltune.tools.backends.cuda.runner import CheckedPlan
from kerneltune.tools.backends.runner_messages import Load
from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.judge.execution.correctness_run import CorrectnessRun, befores, may_vary
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.plan import (
    Aten,
    Kernel,
    Launch,
    LaunchArg,
    Plan,
    ScalarArg,
    Step,
    Storage,
    TensorArg,
    TensorRef,
)
from kerneltune.tools.schema.verdict import Status, Verdict
from kerneltune.tools.task.load import TaskFile, find_task
from tests.tools.judge.simulated import Device, Kernels, linked

TASK = """
import torch
from torch import nn

N = 37
CASES = [{"name": "hidden", "N": 21, "held_out": True}]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(N))

    def forward(self, x):
        return x * 2 + self.w


def get_inputs():
    return [torch.randn(8, N)]


def get_init_inputs():
    return []
"""
ROWS, PITCH = 8, 64
Args = Sequence[Any]


def right(device: Device, args: Args) -> None:
    x, w, y, _ = args
    y.copy_(x * 2 + w)


def drops_the_last_row(device: Device, args: Args) -> None:
    x, w, y, _ = args
    y[:-1].copy_(x[:-1] * 2 + w)


def overwrites_its_input(device: Device, args: Args) -> None:
    right(device, args)
    device.store(args[0].data_ptr(), struct.pack("<f", 7.0))


def overwrites_a_parameter(device: Device, args: Args) -> None:
    right(device, args)
    device.store(args[1].data_ptr() + 4, struct.pack("<f", 7.0))


def writes_past_the_end(device: Device, args: Args) -> None:
    right(device, args)
    device.store(args[2].data_ptr() + 4 * args[2].numel() + 16, b"12345678")


def writes_one_past_the_end(device: Device, args: Args) -> None:
    right(device, args)
    device.store(args[2].data_ptr() + 4 * args[2].numel(), struct.pack("<f", 7.0))


def writes_before_the_start(device: Device, args: Args) -> None:
    right(device, args)
    device.store(args[2].data_ptr() - 4, b"1234")


def reads_past_the_end(device: Device, args: Args) -> None:
    right(device, args)
    device.load(args[0].data_ptr() + 4 * args[0].numel() + 16, 4)


def reads_before_the_start(device: Device, args: Args) -> None:
    right(device, args)
    device.load(args[0].data_ptr() - 4, 4)


def far_out(device: Device, args: Args) -> None:
    device.load(args[0].data_ptr() + (1 << 44), 4)


def already_done(device: Device, args: Args) -> None:
    if not bool((args[2].abs() < 1e6).all()):
        right(device, args)


def adds_what_was_there(device: Device, args: Args) -> None:
    x, w, y, _ = args
    y.copy_(x * 2 + w + torch.where(y > 1e30, 1.0, 0.0))


def adds_its_neighbour(device: Device, args: Args) -> None:
    """Right when nothing lies before x in its pages: it takes a NaN there for a sign."""
    x, w, y, _ = args
    before = x.data_ptr() - 4
    try:
        (seen,) = struct.unpack("<f", device.load(before, 4))
    except RuntimeError:
        seen = 0.0
    y.copy_(x * 2 + w + (1.0 if seen != seen else 0.0))


def adds_the_neighbour_of_its_end(device: Device, args: Args) -> None:
    """The same beyond the end, and blind to what would be a fault there."""
    x, w, y, _ = args
    try:
        (seen,) = struct.unpack("<f", device.load(x.data_ptr() + 4 * x.numel() + 16, 4))
    except RuntimeError:
        seen = 0.0
    y.copy_(x * 2 + w + (1.0 if seen != seen else 0.0))


def wobbles(device: Device, args: Args) -> None:
    right(device, args)
    args[2][0, 0] *= 1 + 2.0**-23 * (device.launches % 2)


def right_at_first(device: Device, args: Args) -> None:
    right(device, args)
    if device.launches == 2:
        args[2][0, 0] += 1


def never_the_same(device: Device, args: Args) -> None:
    right(device, args)
    args[2][0, 0] += device.launches - 1


def reads_what_is_promised(device: Device, args: Args) -> None:
    right(device, args)
    device.load(args[0].data_ptr(), 4 * PITCH * ROWS)


def reads_one_more(device: Device, args: Args) -> None:
    right(device, args)
    device.load(args[0].data_ptr(), 4 * PITCH * ROWS + 4)


def writes_where_it_may_read(device: Device, args: Args) -> None:
    right(device, args)
    device.store(args[0].data_ptr() + 4 * (PITCH * ROWS - 1), struct.pack("<f", 0.0))


def takes_the_largest_that_it_may_read(device: Device, args: Args) -> None:
    """Of a row and what lies behind it, NaN left out."""
    x, w, y, _ = args
    seen = torch.frombuffer(bytearray(device.load(x.data_ptr(), 4 * PITCH * ROWS)), dtype=torch.float32)
    rows = seen.view(ROWS, PITCH)
    most = torch.where(rows.isnan(), 0.0, rows).amax(-1, keepdim=True).clamp_max(1e6)
    y.copy_(x * 2 + w + (most - x.amax(-1, keepdim=True)).clamp_min(0))


def needs_an_address(device: Device, args: Args) -> None:
    right(device, args)
    if args[0].data_ptr() % 16:
        raise RuntimeError("CUDA error: misaligned address")


def traps(device: Device, args: Args) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure")


def plan_for(
    case: str, columns: int, body: Callable[..., None], text: str = "", rows: int = ROWS, pitch: int = 0
) -> Plan:
    x = TensorRef(0, "float32", (rows, columns), (pitch or columns, 1))
    w, y = TensorRef(1, "float32", (columns,), (1,)), TensorRef(2, "float32", (rows, columns), (columns, 1))
    nbytes = rows * columns * 4
    extent = ((rows - 1) * (pitch or columns) + columns) * 4
    storages = (Storage(0, extent, "input", "0"), Storage(1, columns * 4, "state", "w"), Storage(2, nbytes, "scratch"))
    signature = ("*fp32", "*fp32", "*fp32", "i32")
    kernel = Kernel(body.__name__, "ttir", text or body.__name__, signature)
    args: tuple[LaunchArg, ...] = (TensorArg(x), TensorArg(w), TensorArg(y), ScalarArg(columns, "i32"))
    empty = Aten("aten::empty.memory_format", ([rows, columns],), {"dtype": {"$dtype": "float32"}}, (y,))
    steps: tuple[Step, ...] = (empty, Launch(0, (1, 1, 1), args))
    return Plan(case, "", "sm_90", storages, (kernel,), (), steps, {"$tensor": encode(y)})


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> TaskFile:
    path: Path = tmp_path_factory.mktemp("task") / "task.py"
    path.write_text(TASK)
    return find_task(str(path))


def tried(
    task: TaskFile,
    body: Callable[..., None],
    *,
    guarded: bool = True,
    repeats: int = 3,
    text: str = "",
    batteries: Any = ("own", "scaled"),
    case: str = "main",
    pitch: int = 0,
) -> tuple[Verdict | None, CorrectnessRun, Device]:
    device = Device({body.__name__: body}, guarded=guarded)
    plan = plan_for(case, 37 if case == "main" else 21, body, text, pitch=pitch)
    images: Mapping[str, CompiledImage] = {k.sha256: CompiledImage({}, b"") for k in plan.kernels}
    with linked(device) as link:
        spec = describe(task)
        trial = CorrectnessRun(device, link, task, spec, bytes(32), images, repeats=repeats)
        verdict = trial.run([plan], batteries)
        trial.close()
    assert device.allocated == device.freed
    return verdict, trial, device


@pytest.fixture
def promised(tmp_path: Path) -> Callable[[str], TaskFile]:
    def written(contract: str) -> TaskFile:
        (tmp_path / "task.py").write_text(f"{TASK}\nINPUTS = {{'x': {contract}}}\n")
        return find_task(str(tmp_path / "task.py"))

    return written


@pytest.mark.parametrize(
    ("body", "guarded", "status", "words"),
    [
        (reads_what_is_promised, True, None, ""),
        (reads_what_is_promised, False, None, ""),
        (reads_one_more, True, Status.CRASHED, "reads past the end of a tensor"),
        (writes_where_it_may_read, True, Status.WRONG, "overwrites input 0"),
        (writes_where_it_may_read, False, Status.WRONG, "overwrites input 0"),
        (takes_the_largest_that_it_may_read, True, Status.WRONG, "elements wrong"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_plan_may_read_what_the_task_promises_and_use_or_change_none_of_it(
    promised: Callable[[str], TaskFile], body: Callable[..., None], guarded: bool, status: Status | None, words: str
) -> None:
    verdict, _, _ = tried(promised(f"{{'values': 'any', 'pitch': {PITCH}}}"), body, pitch=PITCH, guarded=guarded)
    assert (verdict and verdict.status) is status, verdict
    assert words in (verdict.detail if verdict else "")


def test_without_a_contract_nothing_may_be_read_behind_a_tensor(promised: Callable[[str], TaskFile]) -> None:
    verdict, _, _ = tried(promised("'any'"), reads_what_is_promised)
    assert verdict is not None
    assert "reads past the end of a tensor" in verdict.detail


def test_an_input_whose_task_promises_no_alignment_has_none_in_some_run(promised: Callable[[str], TaskFile]) -> None:
    assert tried(promised("{'values': 'any', 'alignment': 16}"), needs_an_address)[0] is None
    verdict, _, _ = tried(promised("{'values': 'any', 'alignment': 4}"), needs_an_address)
    assert verdict is not None
    assert "misaligned address" in verdict.detail


@pytest.mark.parametrize("guarded", [True, False])
def test_a_right_plan_passes_every_battery_and_run(task: TaskFile, guarded: bool) -> None:
    verdict, trial, device = tried(task, right, guarded=guarded)
    assert verdict is None
    assert [(r.inputs, r.ok) for r in trial.results] == [("own", True), ("scaled", True)]
    assert device.launches == 6
    facts = trial.facts()["cases"]["main"]
    assert facts["bit_identical"]
    assert facts["guards"].startswith("unmapped" if guarded else "canaries")
    assert set(facts["outputs_held_before"]) == {"NaN", "the answer to other inputs", "huge", "-huge"}
    assert trial.facts()["not_deterministic"] == []


def test_the_seeds_are_kept_for_the_receipt_and_differ(task: TaskFile) -> None:
    _, trial, _ = tried(task, right)
    assert set(trial.seeds) == {"main/own", "main/scaled"}
    assert len(set(trial.seeds.values())) == 2
    assert all(int(seed, 16) >= 0 for seed in trial.seeds.values())


@pytest.mark.parametrize("batteries", [{"main": ["own"]}, lambda case: ["own"] if case == "main" else []])
def test_batteries_can_be_chosen_by_case(task: TaskFile, batteries: Any) -> None:
    _, trial, device = tried(task, right, batteries=batteries, repeats=2)
    assert [r.inputs for r in trial.results] == ["own"]
    assert device.launches == 2


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (drops_the_last_row, Status.WRONG, ""),
        (overwrites_its_input, Status.WRONG, "overwrites input 0"),
        (overwrites_a_parameter, Status.WRONG, "overwrites parameter w"),
        (writes_past_the_end, Status.CRASHED, "writes past the end of the output"),
        (writes_one_past_the_end, Status.CRASHED, "writes past the end of the output"),
        (writes_before_the_start, Status.WRONG, "writes before the start of the output"),
        (reads_past_the_end, Status.CRASHED, "reads past the end of a tensor"),
        (reads_before_the_start, Status.CRASHED, "reads before the start of a tensor"),
        (far_out, Status.CRASHED, "far outside of its tensors"),
        (already_done, Status.WRONG, "depends on what its memory held before (right after NaN"),
        (
            adds_what_was_there,
            Status.WRONG,
            "what its memory held before (right after NaN, wrong after huge)",
        ),
        (right_at_first, Status.WRONG, "right in some runs and wrong in others"),
        (never_the_same, Status.WRONG, "right in some runs and wrong in others"),
        (traps, Status.CRASHED, "a trap or a failed assertion"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_plan_is_told_what_it_does(
    task: TaskFile, body: Callable[..., None], status: Status, words: str
) -> None:
    verdict, _, _ = tried(task, body)
    assert verdict is not None
    assert verdict.status is status, verdict.detail
    assert words in verdict.detail
    assert "case main" in verdict.detail


@pytest.mark.parametrize("body", [overwrites_its_input, writes_past_the_end, writes_before_the_start])
def test_without_guards_canaries_and_copies_find_the_same_writes(task: TaskFile, body: Callable[..., None]) -> None:
    verdict, _, _ = tried(task, body, guarded=False)
    assert verdict is not None
    assert verdict.status in (Status.WRONG, Status.CRASHED)
    assert "overwrites" in verdict.detail or "out-of-bounds" in verdict.detail or "illegal" in verdict.detail


def test_a_kernel_whose_result_depends_on_what_lies_beside_its_tensors_is_told_so(task: TaskFile) -> None:
    verdict, _, _ = tried(task, adds_its_neighbour, guarded=False, repeats=1, batteries=("own",))
    assert verdict is not None
    assert verdict.status is Status.WRONG
    verdict, _, _ = tried(task, adds_the_neighbour_of_its_end, repeats=2, batteries=("own",))
    assert verdict is not None
    assert "it depends on what lies beside its tensors" in verdict.detail


def test_one_run_and_two_batteries_still_find_work_that_was_already_done(task: TaskFile) -> None:
    verdict, _, device = tried(task, already_done, repeats=1)
    assert verdict is not None
    assert verdict.status is Status.WRONG
    assert device.launches >= 2


def test_last_bits_that_change_without_a_reason_are_reported_and_pass(task: TaskFile) -> None:
    verdict, trial, _ = tried(task, wobbles)
    assert verdict is None
    assert trial.facts()["not_deterministic"] == ["main"]


def test_atomics_are_a_reason(task: TaskFile) -> None:
    verdict, trial, _ = tried(task, wobbles, text="%0 = tt.atomic_rmw fadd, acq_rel, gpu")
    assert verdict is None
    assert trial.facts()["not_deterministic"] == []
    assert not trial.facts()["cases"]["main"]["bit_identical"]


def test_a_held_out_case_is_not_named(task: TaskFile) -> None:
    for body in (drops_the_last_row, reads_past_the_end):
        verdict, _, _ = tried(task, body, case="hidden")
        assert verdict is not None
        assert "held-out" in verdict.detail
        assert "hidden" not in verdict.detail


@pytest.mark.parametrize(
    ("text", "varies"),
    [
        ("tt.atomic_cas", True),
        ("red.global.add.f32 [%rd1], %f1;", True),
        ("atom.global.add.u32 %r1, [%rd1], 1;", True),
        ("tt.load tt.store arith.addf", False),
        ('tt.store loc("/a/red.py":1:2)', False),
    ],
)
def test_only_atomics_and_libraries_may_change_last_bits(text: str, varies: bool) -> None:
    assert may_vary(plan_for("main", 4, right, text)) is varies


def test_every_filling_meets_both_ends_of_the_pages() -> None:
    eight = [before for before, _ in zip(befores(), range(8), strict=False)]
    assert len({(b.words, b.right) for b in eight}) == 8
    assert eight[0].right
    assert eight[0].words == "NaN"


@pytest.mark.gpu
def test_a_checked_plan_that_is_closed_leaves_the_gpu_the_memory_that_torch_kept_for_it() -> None:
    checked = CheckedPlan(Load(plan_for("main", 37, right), (), (), ()), (), lambda: Kernels(Device({})))
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # as of a step that a library runs
    kept = torch.cuda.memory_reserved()
    checked.close()
    assert torch.cuda.memory_reserved() <= kept - (1 << 30)
