"""The offline author's candidates on a real GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.gpu
@pytest.mark.parametrize("name", "softmax row_sum rms_norm layer_norm cross_entropy gelu_bias rope swiglu".split())
def test_candidates_of_built_in_tasks_are_right_in_float64(name: str, tmp_path: Path) -> None:
    import torch

    from kerneltune.tools.judge.correctness.comparison import judge
    from kerneltune.tools.judge.correctness.problem import Problem
    from kerneltune.tools.task.load import find_task

    source = (ROOT / "tools" / "tasks" / f"{name}.py").read_text()
    script = Path(__file__).with_name("offline_bench.py")
    done = subprocess.run(
        [sys.executable, str(script), "propose"], input=json.dumps({name: source}), text=True, capture_output=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    job = json.loads(done.stdout.splitlines()[-1])[name]
    assert job["problems"] == []
    problem = Problem.load(find_task(name), device="cuda")
    drawn = problem.draw(seed=1)
    assert drawn is not None
    for sketch, text in job["candidates"].items():
        candidate = _load(text, tmp_path / f"{sketch}.py").ModelNew(*problem.init_args).cuda()
        candidate.load_state_dict(drawn.state)
        with torch.no_grad():
            got = candidate(*drawn.inputs)
        result = judge(problem, drawn, got, case="main", battery="own")
        assert result.ok, f"{sketch}: {result.detail}"


def _load(text: str, path: Path) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
