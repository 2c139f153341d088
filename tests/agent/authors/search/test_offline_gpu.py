"""The offline author's candidates on a real GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[4]


NAMES = "softmax row_sum rms_norm layer_norm cross_entropy gelu_bias rope swiglu".split()


@pytest.fixture(scope="module")
def proposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the author proposes for each task, in a process of its own that TorchInductor's imports stay in."""
    sources = {name: (ROOT / "tools" / "tasks" / f"{name}.py").read_text() for name in NAMES}
    script, home = Path(__file__).with_name("offline_bench.py"), tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, str(script), "propose"], input=json.dumps(sources), text=True, capture_output=True,
        env={"PYTHONPATH": ":".join(filter(None, [str(ROOT), *sys.path])), "PATH": "/usr/bin:/bin", "HOME": str(home)},
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    jobs: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return jobs


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_candidates_of_built_in_tasks_are_right_in_float64(name: str, proposed: dict[str, Any], tmp_path: Path) -> None:
    import torch

    from kerneltune.tools.judge.correctness.comparison import judge
    from kerneltune.tools.judge.correctness.problem import Problem
    from kerneltune.tools.task.load import find_task

    job = proposed[name]
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
