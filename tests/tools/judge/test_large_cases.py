"""A case of any size is judged in a bounded multiple of its own bytes: rows are answered and compared in parts.

"Large" begins at a few thousand elements here; sizes are what the code divides by, so that nothing else changes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kerneltune.tools.backends.base import CompiledImage
from kerneltune.tools.judge.correctness import float64, inputs, problem, tree
from kerneltune.tools.judge.correctness.comparison import WholeExpectation, compare_in_parts
from kerneltune.tools.judge.correctness.problem import ExpectationInParts, Problem, describe
from kerneltune.tools.judge.execution.correctness_run import CorrectnessRun
from kerneltune.tools.judge.service.admission import too_large
from kerneltune.tools.judge.service.cpu_judge import CpuJudge
from kerneltune.tools.schema.messages import Open
from kerneltune.tools.schema.task import BATTERIES
from kerneltune.tools.schema.verdict import Verdict
from kerneltune.tools.task.load import TaskFile, find_task, read_task
from tests.tools.judge.simulated import Device, linked
from tests.tools.judge.test_correctness_run import plan_for

AT_ONCE = 1 << 15
ROWS, COLUMNS = 2000, 256
SOFTMAX = "torch.softmax(x, 1)"


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tree, inputs, float64, problem):
        monkeypatch.setattr(module, "AT_ONCE", AT_ONCE)
    monkeypatch.setattr(problem, "_MOST_WHOLE", 4 * AT_ONCE)


def task_of(folder: Path, result: str, made: str = f"torch.randn({ROWS}, {COLUMNS})", more: str = "") -> TaskFile:
    path = folder / "mine.py"
    path.write_text(
        "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        f"        super().__init__()\n        self.w = nn.Parameter(torch.randn({COLUMNS}))\n"
        f"    def forward(self, x{more}):\n        return {result}\n"
        f"def get_inputs():\n    return [{made}]\nINPUTS = {{'x': 'any'}}\n"
    )
    return read_task(path)


def expected(file: TaskFile, battery: str = "own") -> tuple[Problem, tuple[Any, ...], Any]:
    loaded = Problem.load(file)
    drawn = loaded.draw(1, battery)
    assert drawn is not None
    return loaded, drawn.inputs, loaded.expectation(drawn.inputs)


def test_what_is_expected_in_parts_is_what_is_expected_of_the_whole(tmp_path: Path) -> None:
    loaded, given, found = expected(task_of(tmp_path, f"{SOFTMAX} @ x.new_ones({COLUMNS}, 8)"))
    assert isinstance(found, ExpectationInParts)
    whole, parts = loaded.expect(given), list(found.parts())
    assert [rows.start for rows, _ in parts if rows] == list(range(0, ROWS, parts[0][0].stop))  # type: ignore[union-attr]
    assert len(parts) > 5
    assert torch.allclose(torch.cat([e.values for _, e in parts]), whole.values, rtol=1e-14, atol=0)
    assert torch.equal(torch.cat([e.native for _, e in parts]), whole.native)
    found_noise: list[Any] = [e.noise for _, e in parts]
    noise, wanted = torch.cat(found_noise), whole.noise
    assert 0.5 < float(noise.median() / wanted.median()) < 2  # type: ignore[union-attr]
    assert {(e.reduction_length, e.read) for _, e in parts} == {(whole.reduction_length, whole.read)}


def test_a_wrong_row_in_any_part_is_found_and_named(tmp_path: Path) -> None:
    _, (x,), found = expected(task_of(tmp_path, SOFTMAX))
    right = torch.softmax(x, 1)
    assert compare_in_parts(found, right).ok
    for row in (0, 17, ROWS - 1):
        wrong = right.clone()
        wrong[row, 3] *= 1.01
        result = compare_in_parts(found, wrong)
        assert not result.ok
        first, last = result.detail.removeprefix("rows ").partition(",")[0].split("..")
        assert int(first) <= row <= int(last)


@pytest.mark.parametrize("extra", [1, -1])
def test_outputs_with_another_number_of_rows_are_refused(tmp_path: Path, extra: int) -> None:
    _, (x,), found = expected(task_of(tmp_path, SOFTMAX))
    right = torch.softmax(x, 1)
    other = torch.cat([right, right])[: ROWS + extra]
    result = compare_in_parts(found, other)
    assert (
        result.detail
        == f"expected a float32 tensor of shape {(ROWS, COLUMNS)}, got a float32 tensor of shape "
        + str((ROWS + extra, COLUMNS))
    )


@pytest.mark.parametrize(
    "result",
    [
        "x - x.mean(0)",
        "torch.cumsum(x, 0)",
        "x / x.shape[0]",
        "x.flip(0)",
        "x + x[0]",
        "x + x[-1]",
        "x / x.norm()",
        "torch.softmax(x, 0)",
        "torch.nn.functional.dropout(x, 0.5)",
        "x.t().contiguous()",
        "(x.sum(1), x.sum(0))",
    ],
)
def test_rows_that_depend_on_each_other_are_answered_together(tmp_path: Path, result: str) -> None:
    _, _, found = expected(task_of(tmp_path, result))
    assert isinstance(found, WholeExpectation)


def test_of_a_square_product_only_the_left_operand_has_rows(tmp_path: Path) -> None:
    two = "torch.randn(256, 256), torch.randn(256, 256)"
    _, (x, y), found = expected(task_of(tmp_path, "x @ y", two, ", y"))
    assert isinstance(found, ExpectationInParts)
    assert found.rows.paths == {"0"}
    assert compare_in_parts(found, x @ y).ok


@pytest.mark.parametrize("battery", ["one_hot_left", "one_hot_right"])
def test_the_probes_of_a_large_product_see_narrow_operands(tmp_path: Path, battery: str) -> None:
    two = "torch.randn(2048, 96), torch.randn(96, 128)"
    file = task_of(tmp_path, "x @ y", two, ", y")
    file.path.write_text(file.source.replace("{'x': 'any'}", "{'x': 'any', 'y': 'any'}"))
    _, (x, y), found = expected(read_task(file.path), battery)
    assert isinstance(found, ExpectationInParts)
    assert all(e.bits is not None for _, e in found.parts())
    assert compare_in_parts(found, x @ y, battery=battery).ok
    assert not compare_in_parts(found, x.bfloat16().float() @ y.bfloat16().float(), battery=battery).ok


@pytest.mark.parametrize("battery", [b for b in BATTERIES if b not in ("own", "specials", "indices", "one_index")])
def test_a_large_softmax_meets_every_battery_that_a_small_one_meets(
    tmp_path: Path, battery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = task_of(tmp_path, SOFTMAX)
    large = Problem.load(file).draw(1, battery)
    monkeypatch.setattr(problem, "_MOST_WHOLE", 1 << 40)
    for module in (tree, inputs, float64, problem):
        monkeypatch.setattr(module, "AT_ONCE", 1 << 40)
    small = Problem.load(file).draw(1, battery)
    assert (large is None) == (small is None)
    if large is not None and small is not None:
        assert large.inputs[0].shape == small.inputs[0].shape
        ratio = large.inputs[0].abs().mean() / small.inputs[0].abs().mean()
        assert 0.3 < float(ratio) < 3


def softmax(device: Device, args: Any) -> None:
    x, _, y, _ = args
    y.copy_(torch.softmax(x, 1))


def product(device: Device, args: Any) -> None:
    x, w, y, _ = args
    y.copy_(x * w)


_WEAK_REF: Any = StorageWeakRef  # without types


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes of tensors that lived at once, of those that operators were given or made meanwhile."""

    peak_bytes = 0

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[Any, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves((args, result)):
            if isinstance(tensor, torch.Tensor) and type(tensor) is not FakeTensor:
                storage = tensor.untyped_storage()
                self._live[storage._cdata] = (_WEAK_REF(storage), storage.nbytes())
        self._live = {k: (ref, size) for k, (ref, size) in self._live.items() if not ref.expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._live.values()))
        return result


JUDGED = ("own", "scaled", "one_hot_left", "structure", "huge")


def judged(file: TaskFile, kernel: Callable[..., None]) -> tuple[Verdict | None, int]:
    """The verdict on a kernel, and the most bytes that the judge held."""
    device = Device({kernel.__name__: kernel})
    plan = plan_for("main", COLUMNS, kernel, rows=ROWS)
    images = {k.sha256: CompiledImage({}, b"") for k in plan.kernels}
    task = describe(file)
    with linked(device) as link, Meter() as meter:
        run = CorrectnessRun(device, link, file, task, bytes(32), images)
        verdict = run.run([plan], JUDGED)
    assert run.left_out == []
    assert {one for result in run.results for one in result.limitations} == set()
    return verdict, meter.peak_bytes


@pytest.mark.parametrize(("result", "kernel"), [(SOFTMAX, softmax), ("x * self.w", product)])
def test_a_large_case_is_judged_in_a_bounded_multiple_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: str, kernel: Callable[..., None]
) -> None:
    """Inputs and outputs are of one size here: 7 times that, and what a part takes; 24 times all at once."""
    file = task_of(tmp_path, result)
    tensor, part = 4 * ROWS * COLUMNS, 80 * AT_ONCE
    verdict, peak_bytes = judged(file, kernel)
    assert verdict is None
    assert 4 * tensor < peak_bytes <= 7 * tensor + part
    monkeypatch.setattr(problem, "_MOST_WHOLE", 1 << 40)
    _, whole_bytes = judged(file, kernel)
    assert whole_bytes > 2 * peak_bytes


def test_probes_of_large_weights_take_a_bounded_multiple_of_their_size(tmp_path: Path) -> None:
    """Numbers, places and values of each element took 14.5 times the weights beside the model: of 4 GiB of weights, in
    74.5 GiB, no candidate was judged."""
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\nimport torch.nn as nn\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.linear = nn.Linear(1024, 1024)\n"
        "    def forward(self, x):\n        return torch.relu(self.linear(x))\n"
        "def get_inputs():\n    return [torch.rand(16, 1024)]\n"
    )
    loaded, weight = Problem.load(read_task(path)), 4 * 1024**2
    for battery in ("one_hot_left", "one_hot_right"):
        with Meter() as meter:
            drawn = loaded.draw(1, battery)
            assert drawn is not None
            assert drawn.regime.one_hot
            loaded.expectation(drawn.inputs)
        assert meter.peak_bytes <= 7 * weight + 80 * AT_ONCE, battery


def test_a_task_that_can_never_fit_is_told_with_its_sizes(tmp_path: Path) -> None:
    task = describe(task_of(tmp_path, SOFTMAX, "torch.empty(1 << 17, 1 << 17)"))
    problem = too_large(task, 80 << 30)
    assert "inputs, parameters and outputs take 137.4 GB, and judging them at least 276.0 GB" in problem
    assert "85.9 GB of GPU memory, which would do for 42.4 GB of tensors" in problem
    assert too_large(task, 280 << 30) == ""


def test_what_can_never_be_judged_is_said_when_a_task_is_opened_before_anything_runs(tmp_path: Path) -> None:
    opened = CpuJudge().open(Open("softmax", "softmax", find_task("softmax").sha256, gpu_memory_bytes=1 << 30))
    assert opened.problem is not None
    assert "take 0.5 GB, and judging them at least 2.1 GB; there are 1.1 GB of GPU memory" in opened.problem
    path = tmp_path / "reads.py"
    path.write_text(
        "import torch\nROWS = 400_000\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x): return x[: 1 + int(x[0, 0].item() * 0)]\n"
        "def get_inputs(): return [torch.rand(ROWS, 1_000_000)]\n"
    )
    host = CpuJudge().open(Open("reads", str(path), find_task(str(path)).sha256))
    assert host.problem is not None
    assert "its inputs and parameters take 1600.0 GB, and running its reference" in host.problem
    assert "make the sizes of that case smaller" in host.problem
