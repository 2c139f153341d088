"""What `optimize init` writes for a person's module can be optimised without a key and without a GPU."""

import json
import re
from pathlib import Path

import pytest

from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.verdict import Status
from tests.agent.shell import optimize

MODULES = '''
import torch
import torch.nn.functional as F
from torch import nn


class Dense(nn.Module):
    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.fc = nn.Linear(in_features, out_features)

    def forward(self, x):
        return self.fc(x)


class Norm(nn.Module):
    def __init__(self, hidden_size: int):
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size)

    def forward(self, x):
        return self.norm(x)


class Scaled(nn.Module):
    """One with a parameter of its own."""

    def __init__(self, dim: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.silu(x) * self.scale


class Fixed(nn.Module):
    """One whose code says how wide the input is."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(48, 32)

    def forward(self, x):
        return F.silu(self.fc(x))
'''


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "dtype"), [("Dense", "float32"), ("Dense", "bfloat16"), ("Norm", "bfloat16"), ("Scaled", "float32")]
)
def test_a_module_gets_an_attempt_that_is_right(name: str, dtype: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULES)
    done = optimize("init", f"mine.py:{name}", "-o", "task.py", "--no-check", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    task = tmp_path / "task.py"
    text = task.read_text()
    assert 'DTYPE = "float32"' in text
    narrower = re.sub(r'"(COLS|OUT)": (\d+)', lambda size: f'"{size[1]}": {int(size[2]) // 4}', text)
    assert narrower != text  # a product is judged in 1 s instead of 5
    task.write_text(narrower.replace('"float32"', f'"{dtype}"'))
    flags = ("--model", "offline", "--max-attempts", "1", "--plain", "--runs-dir", "runs")
    done = optimize("--task", "task.py", *flags, cwd=tmp_path, timeout_s=280)
    with Store.open(tmp_path / "runs") as its:
        attempts = list(its.attempts(its.run_ids()[0]))
    assert [a.status for a in attempts] == [Status.CHECKED], done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_sizes_with_which_the_code_fails_stay_as_they_were_told_and_guesses_that_fail_are_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULES)
    run = ("--task", "mine.py:Fixed", "--model", "offline", "--max-attempts", "1", "--json", "--runs-dir", "runs")
    failed = optimize(*run, cwd=tmp_path, timeout_s=140)
    assert failed.returncode == 2
    assert "if its sizes are guesses, give them, as in --shape" in failed.stdout + failed.stderr
    done = optimize(*run, "--shape", "x=6,48", cwd=tmp_path, timeout_s=140)  # over what was written by guesses
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["is_error"] for r in records if r["type"] == "result"] == [False], done.stderr
    with Store.open(tmp_path / "runs") as its:
        assert [a.status for a in its.attempts(its.run_ids()[0])] == [Status.CHECKED]
    task = (tmp_path / "fixed_task.py").read_text()
    assert "COLS = 48  # LOOK: the same in all cases, since the code failed with other sizes" in task
    assert '"name": "ragged", "ROWS":' in task
    assert '"COLS"' not in task
