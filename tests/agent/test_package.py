"""`optimize package`: a stored kernel as a file, which another program imports where there is no kerneltune."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.events import Judged
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.verdict import CaseTime, Status, Timing
from tests.agent.shell import ROOT, optimize

STORY = "scripted:" + str(ROOT / "tests/agent/stories/softmax.jsonl")
USE = """
import sys, torch
assert not {"kerneltune", "triton"} - set(sys.builtin_module_names) & set(sys.modules)
import fused as op
model = torch.nn.Sequential(torch.nn.Softmax(dim=-1))
op.patch(model, "0")
x = torch.randn(63, 129)
with torch.no_grad():
    torch.testing.assert_close(model(x), torch.softmax(x, -1))
print(op.calls(model)["0"].most_common(), any(name.startswith("kerneltune") for name in sys.modules))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it, one of whose attempts is wrong."""
    folder = tmp_path_factory.mktemp("place")
    done = optimize("--task", "softmax", "--model", STORY, "--max-attempts", "4", "--plain", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def python(folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
    )


def told(done: "subprocess.CompletedProcess[str]") -> Mapping[str, object]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_the_best_of_a_run_is_a_file_that_a_program_imports_and_that_checks_itself(place: Path) -> None:
    (run,) = (p.name for p in (place / "runs").iterdir() if p.is_dir())
    made = told(optimize("package", run, "-o", "fused.py", "--json", cwd=place))
    assert (made["type"], made["path"], made["verdict"]) == ("package", "fused.py", "checked")
    text = (place / "fused.py").read_text()
    beside = (place / "runs" / run / "softmax_op.py").read_text()
    assert text == beside.replace("softmax_op", "fused")  # by which name it is imported
    assert text.startswith("# The first choice, not timed")
    assert "from fused import" in text
    used = python(place, "-c", USE, TRITON_INTERPRET="1")
    assert used.stdout == "[('kernel', 1)] False\n", used.stderr
    checked = python(place, "fused.py", TRITON_INTERPRET="1")
    assert (checked.returncode, checked.stdout.count("✔")) == (0, 3), checked
    alone = python(place, "fused.py", TRITON_INTERPRET="0")
    assert (alone.returncode, alone.stdout[:17]) == (0, "no sm_90 GPU here")


def test_what_is_there_is_kept_and_what_is_not_right_is_not_packaged(place: Path) -> None:
    (run,) = (p.name for p in (place / "runs").iterdir() if p.is_dir())
    (place / "taken.py").write_text("mine")
    refused = optimize("package", run, "-o", "taken.py", cwd=place)
    assert (refused.returncode, (place / "taken.py").read_text()) == (2, "mine")
    assert "--overwrite" in refused.stderr
    with Store.open(place / "runs") as store:
        wrong = next(a.attempt_id for a in store.attempts(run) if not a.accepted)
    assert "was not accepted" in optimize("package", wrong, cwd=place).stderr


def test_runs_of_one_op_at_different_sizes_are_one_file_though_their_task_files_are_gone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import torch\ndef doubled(x):\n    return x * 2\n")
    runs = []
    for shape in ("64,128", "3,128"):
        words = ("--task", "mine.py:doubled", "--shape", shape, "--max-attempts", "1", "--model", "offline", "--plain")
        assert optimize(*words, cwd=tmp_path).returncode == 0
        (tmp_path / "doubled_task.py").unlink()
        runs += [p.name for p in (tmp_path / "runs").iterdir() if p.is_dir() and p.name not in runs]
    made = told(optimize("package", *runs, "-o", "doubled_kernel.py", "--json", cwd=tmp_path))
    assert made["attempts"] == [f"{run}/1" for run in runs]
    use = "import torch, doubled_kernel as op\nfor n in (64, 3): op.doubled(torch.ones(n, 128))\n"
    used = python(tmp_path, "-c", use + "print(op._place_of_function().calls, len(op.KERNELS))", TRITON_INTERPRET="1")
    assert used.stdout == "Counter({'kernel': 2}) 2\n", used.stderr


def test_of_a_run_with_weighted_cases_the_attempts_come_along_that_are_faster_in_one(
    place: Path, tmp_path: Path
) -> None:
    """A stored run as a GPU would have left it: its best attempt takes 9 µs in main and 5 in timed_columns, another one
    20 and 3."""
    (run,) = (p.name for p in (place / "runs").iterdir() if p.is_dir())
    with Store.open(place / "runs") as store:
        events, leader = store.load_events(run), store.load_trajectory(run).best
        other = next(a for a in store.attempts(run) if a.accepted and leader and a.attempt_id != leader.attempt_id)
    assert leader is not None
    us = {leader.attempt_id: (9.0, 5.0), other.attempt_id: (20.0, 3.0)}

    def timed(event: Judged) -> Judged:
        each = [Timing(n, n - 0.1, n + 0.1, 40, 400) for n in us[event.attempt_id]]
        cases = tuple(CaseTime(name, 1.0, its) for name, its in zip(("main", "timed_columns"), each, strict=True))
        verdict = replace(event.verdict, status=Status.CORRECT, timing=each[0], tier="judged", case_times=cases)
        return replace(event, verdict=verdict, rank_key=(each[0].median_us,))

    with Store.open(tmp_path / "runs") as store:
        store.write_all([timed(e) if isinstance(e, Judged) and e.attempt_id in us else e for e in events])
    made = told(optimize("package", run, "-o", "chosen.py", "--json", cwd=tmp_path))
    assert made["attempts"] == [leader.attempt_id, other.attempt_id]
    entries = (
        "import chosen as op; print([(e.kernel, e.lead) for e in op.VERIFIED if e.inputs[0].shape[1] == 8192][:2])"
    )
    used = python(tmp_path, "-c", entries)
    assert used.stdout == "[(1, ((16, 362),)), (0, ((363, 8192),))]\n", used.stderr
    assert "\n# Case timed_columns (weight 1): median 3.00 us\n" in (tmp_path / "chosen.py").read_text()
    alone = told(optimize("package", leader.attempt_id, "-o", "alone.py", "--json", cwd=tmp_path))
    assert alone["attempts"] == [leader.attempt_id]


TRAIN = """
import copy, torch
from mymodel import Tail
import tail_kernel as op
torch.manual_seed(0)
def trained(model):
    steps = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for _ in range(2):
        x, residual = torch.randn(4, 16, 64, requires_grad=True), torch.randn(4, 16, 64)
        y, s = model(x, residual)
        steps.zero_grad()
        (y.square().mean() + s.square().mean()).backward()
        steps.step()
    return [x.grad, *(p.detach() for p in model.parameters())]
model = Tail(64)
wanted = trained(copy.deepcopy(model))
op.patch(model)
for found, its in zip(trained(model), wanted, strict=True):
    torch.testing.assert_close(found, its)
print(op.calls(model)[""].most_common())
"""


@pytest.mark.timeout(300)
def test_a_model_trains_with_a_kernel_and_one_for_its_gradients(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_bytes((ROOT / "tests/agent/stories/twelve_ops.txt").read_bytes())
    few = ("--max-attempts", "1", "--model", "offline", "--plain")
    assert optimize("--task", "mymodel.py:Tail", "--shape", "4,16,64", *few, cwd=tmp_path).returncode == 0
    done = optimize("--task", "tail_task.py", "--backward", *few, cwd=tmp_path)
    assert (done.returncode, "tail_backward_task.py: the task of the gradients" in done.stderr) == (0, True), (
        done.stderr
    )
    forward, backward = (
        next(p.name for p in (tmp_path / "runs").glob(f"*-{n}-*")) for n in ("tail_task", "tail_backward_task")
    )
    made = told(optimize("package", forward, "--backward", backward, "-o", "tail_kernel.py", "--json", cwd=tmp_path))
    assert made["backward"] == f"{backward}/1"
    used = python(tmp_path, "-c", TRAIN, TRITON_INTERPRET="1")
    assert used.stdout == "[('kernel', 2), ('gradients', 2)]\n", used.stderr
    wrong = optimize("package", backward, "--backward", forward, cwd=tmp_path)
    assert "is not the task of the gradients of tail_backward_task" in wrong.stderr


ATTENTION = """
import torch
class Model(torch.nn.Module):
    def forward(self, q, k, v): return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
def get_inputs(): return [torch.randn(1, 2, 33, 16) for _ in range(3)]
def get_init_inputs(): return []
"""
STEP = """
import torch
import attention_kernel as op
from attention_task import Model
inputs = [torch.randn(1, 2, 33, 16, requires_grad=True) for _ in range(3)]
found, wanted = op.ModelNew()(*inputs), Model()(*inputs)
through = torch.randn_like(wanted)
torch.testing.assert_close(torch.autograd.grad(found, inputs, through), torch.autograd.grad(wanted, inputs, through))
print([list(t.shape) for t in op.ModelNew()(*inputs).grad_fn.saved_tensors[6:]])
"""


@pytest.mark.timeout(300)
def test_attention_trains_with_what_the_kernel_of_its_step_saved(tmp_path: Path) -> None:
    (tmp_path / "attention_task.py").write_text(ATTENTION)
    few = ("--model", "offline", "--plain")
    assert optimize("--task", "attention_task.py", "--max-attempts", "1", *few, cwd=tmp_path).returncode == 0
    done = optimize("--task", "attention_task.py", "--step", "--max-attempts", "3", *few, cwd=tmp_path)
    assert (done.returncode, "attention_step_task.py: the task of a training step" in done.stderr) == (0, True), (
        done.stderr
    )
    forward, step = (next(p.name for p in (tmp_path / "runs").glob(f"*-attention_{n}task-*")) for n in ("", "step_"))
    lowered = optimize("package", forward, "--backward", f"{step}/1", "-o", "lowered.py", cwd=tmp_path)
    assert "is not in two halves" in lowered.stderr
    made = optimize("package", forward, "--backward", f"{step}/3", "-o", "attention_kernel.py", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    used = python(tmp_path, "-c", STEP, TRITON_INTERPRET="1")
    assert used.stdout == "[[1, 2, 33, 16], [1, 2, 33]]\n", used.stderr  # the output, and a number for each row
    both = optimize("--task", "attention_task.py", "--step", "--backward", cwd=tmp_path)
    assert "give one of --backward and --step" in both.stderr


def test_the_layout_of_the_hub_has_the_file_as_a_package_with_what_its_library_reads(place: Path) -> None:
    (run,) = (p.name for p in (place / "runs").iterdir() if p.is_dir())
    made = told(optimize("package", run, "--layout", "huggingface", "--json", cwd=place))
    folder = place / str(made["path"])
    variant = folder / "build" / "torch-cuda"
    metadata = json.loads((variant / "metadata.json").read_text())
    assert {key: metadata[key] for key in ("name", "version", "python-depends", "backend")} == {
        "name": "softmax",
        "version": 1,
        "python-depends": [],
        "backend": {"type": "cuda", "archs": ["9.0"]},
    }
    loaded = f"import importlib.util as u; s = u.spec_from_file_location({metadata['id']!r}, '__init__.py'); "
    done = python(variant, "-c", loaded + "m = u.module_from_spec(s); s.loader.exec_module(m); print(m.__all__)")
    assert "patch" in done.stdout, done.stderr
    assert (folder / "README.md").read_text().startswith("---\nlibrary_name: kernels\n")
