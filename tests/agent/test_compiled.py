"""`optimize show` and `--sass` of an attempt whose timed variant is not the one that the record keeps the plan of."""

from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.events import Judged, Updated
from kerneltune.agent.record.store import Store
from tests.agent.shell import optimize

TASK = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x * 2.0


def get_inputs():
    return [torch.randn(256, 1024)]


def get_init_inputs():
    return []
"""
TUNED = """\
import torch, triton, triton.language as tl
from torch import nn


@triton.autotune([triton.Config({"B": 128}, num_warps=4), triton.Config({"B": 1024}, num_warps=8)], key=["n"])
@triton.jit
def double(out, x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double[lambda m: (triton.cdiv(x.numel(), m["B"]),)](y, x, x.numel())
        return y
"""
OTHER = "double: B: 1024, num_warps: 8, num_ctas: 1, num_stages: 3, maxnreg: None"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compiled")
    (path / "double.py").write_text(TASK)
    (path / "tuned.py").write_text(TUNED)
    done = optimize("bench", "tuned.py", "--task", "double.py", "--plain", cwd=path)
    assert "1 file for double" in done.stderr + done.stdout
    return path


def told(folder: Path, variant: str, *options: str) -> str:
    """What is shown of the attempt as if this variant had been timed."""
    runs_dir = folder / f"runs-{len(variant)}{''.join(options)}"
    with Store.open(folder / "runs") as old, Store.open(runs_dir) as new:
        (run_id,) = old.run_ids()
        for event in old.load_events(run_id):
            if isinstance(event, Judged):
                event = replace(event, verdict=replace(event.verdict, variant=variant))
            new.write(event)
        assert any(isinstance(e, Updated) and e.plan is not None for e in old.load_events(run_id))
    done = optimize("show", f"{run_id}/1", *options, "--runs-dir", str(runs_dir), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plan_that_is_stored_compiles_to_the_very_cubins_that_were_judged(folder: Path) -> None:
    shown = told(folder, "", "--sass")
    assert "variant default: compiled for sm_90" in shown
    assert "the same cubins, byte for byte, as those that were judged" in shown
    assert "1 global load 32, " in shown
    assert "2048 programs: 0.97 waves (last 97 %); loads of 32 bits; stores of 32 bits\n" in shown


def test_another_variant_that_was_timed_is_traced_again(folder: Path) -> None:
    shown = told(folder, OTHER, "--sass")
    assert f"variant {OTHER}: compiled for sm_90" in shown
    assert "cubins" not in shown
    assert "1 global load 128, " in shown


def test_a_variant_that_no_longer_comes_of_the_source_is_said_to_be_gone(folder: Path) -> None:
    shown = told(folder, "of long ago", "--sass")
    assert "variant default: compiled for sm_90" in shown
    assert "the variant that was timed, of long ago, does not come of the source here" in shown


def test_what_the_compiler_did_is_shown_without_disassembling_where_the_stored_plan_was_timed(folder: Path) -> None:
    assert "2048 programs: 0.97 waves (last 97 %)" in " ".join(told(folder, "").split())
    assert "programs:" not in told(folder, OTHER)
