"""What the same attacks do to a harness that runs candidates in its own process: the corpus is worth something only
if it fools somebody."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kerneltune.tools.corpus import Specimen
from tests.corpus.conftest import CORPUS, Judge, spread, wanted

HERE = Path(__file__).resolve().parent
ALWAYS = {"zeros_for_tiny_answers"}
FOOLED = spread((s for s in CORPUS.values() if s.naive == "fooled"), ALWAYS)
NOT_FOOLED = spread(s for s in CORPUS.values() if s.naive == "not fooled")
FALSE_CREDIT = 2.0  # times its honest twin's speed, for the same work or none

Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def naive(request: pytest.FixtureRequest) -> Results:
    """What the naive harness says of the specimens that it is to judge in this session, and of their twins."""
    names = dict.fromkeys([*ALWAYS, *wanted(request)])
    chosen = [CORPUS[name] for name in names if name in CORPUS and CORPUS[name].naive in ("fooled", "not fooled")]
    rows = CORPUS["scales_the_host_clock"]
    twins = dict.fromkeys((_task(s), s.twin) for s in (rows, *chosen) if s.twin is not None)
    pairs = [*twins, *((_task(s), s.path) for s in chosen)]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(HERE.parents[1]), "CUDA_VISIBLE_DEVICES": ""}
    arguments = [str(path) for pair in pairs for path in pair]
    done = subprocess.run(
        [sys.executable, str(HERE / "naive.py"), *arguments], capture_output=True, text=True, timeout=150, env=env
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {found["name"]: found for found in filter(None, map(_result, done.stdout.splitlines()))}


def _task(specimen: Specimen) -> Path:
    assert isinstance(specimen.task, Path)
    return specimen.task


def _result(line: str) -> dict[str, Any] | None:
    """Candidates print too."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "name" in value else None


def _credit(result: dict[str, Any], twin: dict[str, Any]) -> float:
    """How much faster than its twin the harness takes a candidate to be, by its own time or by the reference's."""
    if not result["us"] > 0:
        return math.inf  # a time that is zero, negative or no number at all
    by_time = twin["us"] / result["us"]
    by_reference = result["reference_us"] / result["us"] * twin["us"] / max(twin["reference_us"], 1e-9)
    return float(max(by_time, by_reference))


def test_the_naive_harness_is_asked_about_tasks_of_the_corpus_alone() -> None:
    asked = [s.name for s in CORPUS.values() if s.naive in ("fooled", "not fooled") and not isinstance(s.task, Path)]
    assert asked == []


@pytest.mark.parametrize("name", FOOLED)
def test_the_naive_harness_is_fooled(name: str, naive: Results) -> None:
    result, twin = naive[name], CORPUS[name].twin
    assert result["correct"], result
    if twin is not None:
        assert _credit(result, naive[twin.stem]) > FALSE_CREDIT, (result, naive[twin.stem])


@pytest.mark.parametrize("name", NOT_FOOLED)
def test_the_naive_harness_is_right_about_the_others(name: str, naive: Results) -> None:
    """Refused, or an honest kernel with an honest time."""
    assert not naive[name]["correct"] or CORPUS[name].twin is not None


def test_zeros_pass_kernelbench_s_softmax_there_and_are_wrong_here(naive: Results, judge: Judge) -> None:
    """KernelBench level 1, problem 23: torch.rand(…, 393216), where the largest right value is 4e-6."""
    specimen = CORPUS["zeros_for_tiny_answers"]
    assert naive[specimen.name]["correct"]
    found = judge.judge(specimen.task, specimen.path.read_text(), bench=True)
    assert found.verdict is not None
    assert found.verdict.status.value == "wrong"
    assert "all zeros" in found.verdict.detail


def test_an_honest_twin_passes_the_naive_harness_too(naive: Results) -> None:
    assert naive["softmax_rows"]["correct"]
