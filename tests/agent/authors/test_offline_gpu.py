"""The offline author's candidates on a real GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.gpu
@pytest.mark.parametrize("name", "softmax row_sum rms_norm layer_norm cross_entropy gelu_bias rope swiglu".split())
def test_candidates_of_built_in_tasks_compute_what_torch_computes(name: str, tmp_path: Path) -> None:
    import torch

    source = (ROOT / "tools" / "tasks" / f"{name}.py").read_text()
    script = Path(__file__).with_name("offline_bench.py")
    done = subprocess.run(
        [sys.executable, str(script), "propose"], input=json.dumps({name: source}), text=True, capture_output=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    job = json.loads(done.stdout.splitlines()[-1])[name]
    assert job["problems"] == []
    task: dict[str, Any] = {}
    exec(source, task)
    torch.manual_seed(0)
    model, inputs = task["Model"](*task["get_init_inputs"]()).cuda(), [x.cuda() for x in task["get_inputs"]()]
    with torch.no_grad():
        want = model(*inputs)
        for sketch, text in job["candidates"].items():
            candidate = _load(text, tmp_path / f"{sketch}.py").ModelNew(*task["get_init_inputs"]()).cuda()
            candidate.load_state_dict(model.state_dict())
            got = candidate(*inputs)
            pairs = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
            for expected, found in pairs:
                torch.testing.assert_close(
                    found, expected, rtol=2e-2 if found.dtype == torch.bfloat16 else 1e-4, atol=1e-2
                )


def _load(text: str, path: Path) -> Any:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
