"""Problems of KernelBench on a GPU, without one: a process in the place of the judge opens problems, gives verdicts,
and fails as judges can. All else is as it is on a GPU: candidates are proposed, traced, compiled, and handed to it."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernelbench import Ahead, Judging, Limits, Line, Place, best_of, line_text, not_in_full, worth_trying
from kerneltune.agent.attempt import Proposal, SearchPoint
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.bench import EARLY_JUDGE
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.messages import (
    Baselines,
    BenchReply,
    BenchRequest,
    OpenTask,
    Ready,
    SupervisorMessage,
    Warm,
)
from kerneltune.tools.schema.verdict import (
    CaseResult,
    Comparison,
    Limitation,
    LimitationKind,
    Status,
    Timing,
    Verdict,
    concluded,
)
from tests import shared_fork_server

PROBLEM = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x): return torch.softmax(x, dim=-1)
def get_inputs(): return [torch.randn(512, 512)]
def get_init_inputs(): return []
"""
GPU = GpuInfo("NVIDIA H200", 90, "GPU-none", 150 << 30, "580.0")


RECEIPT: dict[str, Any] = {"slots": 7, "peak_memory_bytes": 45_300_000_000, "checks_s": 2.5, "wall_s": 5.5}


def judge(channel: Any) -> None:
    """What it does follows from the problem's name, which TorchInductor's kernel bears, too."""
    opened, settings, in_full = Path(), "", 0
    while True:
        request: Any = decode(SupervisorMessage, channel.receive().body)  # type: ignore[arg-type]
        match request:
            case OpenTask():
                opened = Path(request.path)
                settings = f"{request.memory_bytes >> 29} half GiB"
                assert request.baselines == ("eager", "compile")
                channel.send(encode(Ready({"name": GPU.name})))
            case Warm():
                time.sleep(60 if "Slow" in opened.stem else 0)
                found = _baselines(opened)
                channel.send(encode(replace(found, notes=(settings,)) if "Full" in opened.stem else found))
            case BenchRequest():
                if any(kernel.name == "deadly_kernel" for plan in request.plans for kernel in plan.kernels):
                    os.kill(os.getpid(), signal.SIGKILL)
                assert request.all_baselines
                wrong = Verdict(Status.WRONG, "row 3")
                right = _correct(request.tier)
                if "Short" in opened.stem:
                    case = CaseResult(
                        "main", "tiny", True, 0.1, 0.0, limitations=(Limitation(LimitationKind.NO_NOISE),)
                    )
                    right = concluded(replace(right, cases=(case,), pending=("compile",)), right.receipt)
                in_full += request.tier != "screened"
                is_wrong = "Wrong" in opened.stem or ("Fragile" in opened.stem and in_full == 1)
                channel.send(encode(BenchReply(replace(wrong, tier=request.tier) if is_wrong else right)))


def _baselines(opened: Path) -> Baselines:
    if "Huge" in opened.stem:
        return Baselines(problem="the timed case does not fit this GPU's memory beside its baselines: 200 GiB")
    return Baselines({"eager": 200.0, "compile": 100.0}, build_s={"eager": 0.1, "compile": 3.0}, notes=("noted",))


def _correct(tier: Any) -> Verdict:
    compared = (Comparison("compile", 100.0, 1.25, 1.2, 1.3), Comparison("eager", 200.0, 2.5, 2.4, 2.6))
    timing = Timing(80.0, 79.0, 81.0, 20, 400)
    return Verdict(Status.CORRECT, "right", (), timing, compared, 1.0, 0.5, tier=tier, receipt=RECEIPT)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with shared_fork_server.started() as machine:
        yield Place(machine, Limits(judge_s=100.0, most=2), GPU, "tests.test_kernelbench_judge:judge")


def judged(place: Place, folder: Path, name: str) -> Line:
    path = folder / "level1" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROBLEM)
    with contextlib.closing(Ahead(place, 1)) as ahead:
        ahead.want([path])
        assert ahead.first_ready() == path
        return Judging(place).line(ahead.take(path))


def test_inductor_s_and_the_expert_s_first_come_first_then_other_sketches_then_other_points() -> None:
    names = ["inductor", "inductor", "tiles", "persistent", "tiles"]
    given = [Proposal(f"{name} {number}", "", origin=SearchPoint(name)) for number, name in enumerate(names)]
    wanted = ["inductor 0", "tiles 2", "persistent 3", "inductor 1", "tiles 4"]
    assert [proposal.source for proposal in worth_trying(given, 9)] == wanted
    assert [proposal.source for proposal in worth_trying(given, 2)] == wanted[:2]


def test_the_first_candidates_are_screened_against_both_baselines(place: Place, tmp_path: Path) -> None:
    line = judged(place, tmp_path, "1_Product")
    assert (line["stage"], line["cause"], line["lost"]) == ("correct", "", False)
    assert len({attempt["sketch"] for attempt in line["attempts"]}) == 2
    for attempt in line["attempts"]:
        assert (attempt["tier"], attempt["slots"], attempt["us"]) == ("screened", 7, [80.0, 79.0, 81.0])
        assert attempt["over"] == {"compile": [1.25, 1.2, 1.3], "eager": [2.5, 2.4, 2.6]}
    assert (line["baselines_us"], line["notes"]) == ({"eager": 200.0, "compile": 100.0}, ["noted"])
    assert {"prepared", "waited", "open", "load", "judge", "end", "all"} <= line["seconds"].keys()
    assert line_text(line).startswith("correct  level1/1_Product  1.250x compile  2.500x eager  2 judged  prepared ")


def test_the_fastest_of_those_screened_is_judged_in_full_in_the_memory_that_was_given(
    place: Place, tmp_path: Path
) -> None:
    line = judged(replace(place, limits=Limits(100.0, 100.0, tier="judged", memory_gib=74.5)), tmp_path, "7_Full")
    assert line["notes"] == ["149 half GiB"]
    assert [attempt["tier"] for attempt in line["attempts"]] == ["judged", "screened"]
    attempt = best_of(line)
    assert attempt is not None
    assert (attempt["tier"], attempt["peak_bytes"], attempt["not_in_full"]) == ("judged", 45_300_000_000, None)
    assert attempt["judge_s"] == {"checks_s": 2.5, "wall_s": 5.5}
    assert not_in_full(line) == ""
    assert line_text(line).endswith("  at most 45.3 GB")


def test_where_the_fastest_does_not_hold_in_full_the_next_is_judged(place: Place, tmp_path: Path) -> None:
    line = judged(replace(place, limits=Limits(judge_s=100.0, tier="judged")), tmp_path, "9_Fragile")
    told = [(attempt["tier"], attempt["status"]) for attempt in line["attempts"]]
    assert told == [("judged", "wrong"), ("judged", "correct")]
    assert best_of(line) == line["attempts"][1]


def test_what_a_verdict_did_without_and_still_waits_for_is_in_its_line(place: Place, tmp_path: Path) -> None:
    line = judged(replace(place, limits=Limits(judge_s=100.0, tier="judged")), tmp_path, "8_Short")
    attempt = best_of(line)
    assert attempt is not None
    assert (attempt["pending"], list(attempt["not_in_full"].values())) == (["compile"], [["main/tiny"]])
    assert not_in_full(line).startswith("no memory to measure the noise")
    assert "no memory to measure the noise" in line_text(line)


def test_a_candidate_with_which_the_judge_ends_costs_only_itself(place: Place, tmp_path: Path) -> None:
    line = judged(place, tmp_path, "2_Deadly")
    assert [attempt["status"] for attempt in line["attempts"]] == ["crashed", "correct"]
    assert "its own code ended the process that computes what is right" in line["attempts"][0]["detail"]
    assert (line["stage"], line["lost"]) == ("correct", False)


def test_a_problem_that_does_not_fit_says_so(place: Place, tmp_path: Path) -> None:
    line = judged(place, tmp_path, "3_Huge")
    assert (line["stage"], line["attempts"], line["lost"]) == ("compiled", [], False)
    assert line["cause"].startswith("the timed case does not fit this GPU's memory")


def test_a_problem_that_takes_too_long_to_open_is_ended(place: Place, tmp_path: Path) -> None:
    started = time.monotonic()
    line = judged(replace(place, limits=Limits(judge_s=1.0)), tmp_path, "4_Slow")
    assert (line["cause"], line["lost"]) == ("opening: more than 1 s", False)
    assert line["seconds"]["all"] < 10
    assert time.monotonic() - started < 60


def test_candidates_that_are_not_right_are_followed_by_others_up_to_the_most(place: Place, tmp_path: Path) -> None:
    line = judged(replace(place, limits=Limits(attempts=1, most=2)), tmp_path, "5_Wrong")
    assert [attempt["status"] for attempt in line["attempts"]] == ["wrong", "wrong"]
    assert (line["stage"], line["cause"]) == ("compiled", "wrong: row 3")


def test_a_judge_that_cannot_use_the_gpu_is_told_as_lost(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with shared_fork_server.started() as machine:
        line = judged(replace(place, machine=machine, judge=EARLY_JUDGE), tmp_path, "6_Lost")
    assert line["lost"]
    assert line["cause"].startswith("opening: GpuLost: the judge's process ended: ")
