"""The launcher of PTX for a person who uses a kernel."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from kerneltune.tools.backends.cuda.ptx_launch import GpuPtxLauncher


def test_choosing_a_config_leaves_the_arguments_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {1: 3.0, 2: 1.0}

    def timed(run: Any) -> float:
        run()
        run()
        return took[added[-1]]

    y, added = torch.zeros(4), list[int]()

    def run(config: Mapping[str, Any]) -> None:
        y.add_(config["by"])
        added.append(config["by"])

    monkeypatch.setattr("triton.testing.do_bench", timed)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert GpuPtxLauncher().choose("k", (y, 4), [{"by": 1}, {"by": 2}], run) == 1
    assert (added, y.tolist()) == ([1, 1, 2, 2], [0.0] * 4)
