"""The share of KernelBench's problems: what is counted, what is stored, and problems from file to verdict."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from benchmarks import kernelbench
from benchmarks.kernelbench import (
    Deadline,
    Lines,
    OpenedProblem,
    Plan,
    Share,
    is_open,
    line_text,
    main,
    name_of,
    new_line,
    problems,
    proposed,
    report,
    stored,
)
from kerneltune.agent.commands.session import Lowering
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.task import CaseSpec, TaskSpec, TensorSpec
from kerneltune.tools.task.load import find_task
from tests import shared_fork_server

ROOT = Path(__file__).resolve().parents[1]
PROBLEM = """
import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x): return %s
def get_inputs(): return [torch.randn(rows, 32)]
def get_init_inputs(): return []
rows = 16
"""
FORWARDS = {"level1/19_ReLU": "torch.relu(x) * 2", "level1/4_Nothing": "x", "level2/3_Broken": "x @ x"}
LINES: list[dict[str, Any]] = [
    {"problem": "level1/1_A", "stage": "proposed", "cause": "wrong: row 3", "attempts": []},
    {"problem": "level1/2_B", "stage": "checked", "cause": "", "attempts": []},
    {"problem": "level2/9_C", "stage": "", "cause": "after reading: TaskError: no", "attempts": []},
    {"problem": "level1/3_D", "stage": "compiled", "cause": "wrong: row 77", "attempts": []},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with a problem that can be solved, one with nothing to do, and one that does not run."""
    for name, forward in FORWARDS.items():
        path = tmp_path / "KernelBench" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROBLEM % forward)
    return tmp_path


def text_of(lines: list[dict[str, Any]]) -> str:
    return "\n".join(report({line["problem"]: line for line in lines}))


def timed(us: float, *, eager: float, compiled: float | None, stage: str = "correct") -> dict[str, Any]:
    """A candidate of which the interval is 1 % to both sides."""
    baselines = {"eager": eager} | ({} if compiled is None else {"compile": compiled})
    over = {name: [b / us, 0.99 * b / us, 1.01 * b / us] for name, b in baselines.items()}
    times = [us, us, us] if stage == "correct" else None
    return {"stage": stage, "status": stage, "us": times, "over": over, "tier": "screened", "slots": 3, "detail": ""}


def judged(name: str, *attempts: dict[str, Any], **more: Any) -> dict[str, Any]:
    line = {"problem": name, "stage": "correct", "cause": "", "attempts": list(attempts), "gpu": "NVIDIA H200"}
    return line | {"versions": {"torch": "2.11.0", "triton": "3.6.0", "python": "3.12.3"}} | more


def test_the_last_whole_line_of_a_problem_counts(tmp_path: Path) -> None:
    out = tmp_path / "share.jsonl"
    again = {"problem": "level1/1_A", "stage": "checked", "cause": ""}
    out.write_text("\n".join(map(json.dumps, [*LINES, again])) + '\n{"problem": "level1/2_B", "sta')
    found = stored(out)
    assert {name: line["stage"] for name, line in found.items()} == {
        "level1/1_A": "checked", "level1/2_B": "checked", "level2/9_C": "", "level1/3_D": "compiled",
    }  # fmt: skip
    Lines(out).add(new_line("level2/5_E"))
    assert stored(out).keys() - found.keys() == {"level2/5_E"}
    assert stored(tmp_path / "none.jsonl") == {}


def test_files_of_several_machines_are_one_report_that_says_of_which_build_gpu_and_day_its_lines_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(name: str, gpu: str, day: str, us: float, build: str = "0.1.0 at abc") -> str:
        more = {"gpu": gpu, "at": f"2026-11-{day}T10:00:00Z", "build": build}
        return json.dumps(judged(name, timed(us, eager=200.0, compiled=100.0), **more))

    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    here.write_text(line("level1/1_A", "H200", "27", 50.0, "0.1.0 at def") + "\n" + json.dumps(LINES[1]) + "\n")
    there.write_text(
        "\n".join(
            [line("level1/1_A", "H100", "26", 400.0), line("level1/3_D", "H100", "26", 100.0), json.dumps(LINES[2])]
        )
    )
    reports = []
    for files in ((here, there), (there, here)):
        assert main(["--report", "--out", *map(str, files)]) == 0
        reports.append(capsys.readouterr().out)
    text, again = (sorted(one.splitlines()) for one in reports)
    assert text == again  # the later line of a problem counts, in whatever file it is
    assert "| level1 | 3 | 3 | 3 | 3 | 3 | 2 of 2 | 1 of 2 | 2 of 2 | 2 of 2 | 1.414x (2) | 1.414x (2) |" in text
    assert "| 0.1.0 at def | H200 | 2026-11-27 | 1 | 1 |" in text
    assert "| 0.1.0 at abc | H100 | 2026-11-26 | 1 | 1 |" in text
    assert "| unknown | none | unknown | 2 | 1 |" in text


def test_the_report_counts_who_reached_what_and_joins_causes_that_differ_in_numbers() -> None:
    text = text_of(LINES)
    assert "| level | tried | candidate | traces | compiles | `checked` |" in text
    assert "| level1 | 3 | 3 | 2 | 2 | 1 |" in text
    assert "| all | 4 | 3 | 2 | 2 | 1 |" in text
    assert "- 2: wrong: row #: 1/1, 1/3" in text
    assert "- 1: after reading: TaskError: no: 2/9" in text
    assert "no GPU: checked on small cases, nothing is timed" in text


def test_the_fastest_candidate_that_is_right_is_compared_with_both_baselines() -> None:
    wrong = timed(50.0, eager=200.0, compiled=100.0, stage="compiled")
    slow, fast = (timed(us, eager=200.0, compiled=100.0) for us in (110.0, 50.0))
    lines = [
        judged("level1/1_A", wrong, slow, fast),
        judged("level1/2_B", timed(100.0, eager=100.5, compiled=99.0)),  # 1.005 and 0.99: neither is beaten
        judged(
            "level2/3_C", timed(100.0, eager=300.0, compiled=50.0) | {"algebraic": ["sum over a product's outputs"]}
        ),
        judged("level2/4_D", timed(100.0, eager=400.0, compiled=None), notes=["no baseline compile: over 20 s"]),
    ]
    text = text_of(lines)
    head = "`correct` | beats eager | beats torch.compile | at least 0.98 of torch.compile"
    assert f"{head} | at least the faster baseline | geometric mean | without algebraic |" in text
    assert (
        "| level1 | 2 | 2 | 2 | 2 | 2 | 1 of 2 | 1 of 2 | 2 of 2 | 1 of 2 | 1.407x (2) | 1.407x (2) |" in text
    )  # sqrt(2 * 0.99)
    assert "| level2 | 2 | 2 | 2 | 2 | 2 | 2 of 2 | 0 of 1 | 0 of 1 | 0 of 1 | 0.500x (1) |  |" in text
    assert "| all | 4 | 4 | 4 | 4 | 4 | 3 of 4 | 1 of 3 | 2 of 3 | 1 of 3 | 0.997x (3) | 1.407x (2) |" in text
    assert "Algebraic, by rewrite:\n\n- 1: sum over a product's outputs: 2/3" in text
    assert "- 1: no baseline compile: over # s: 2/4" in text
    assert "NVIDIA H200; torch 2.11.0, triton 3.6.0, python 3.12.3; the fastest of up to 3 screened: 4 screened" in text


def test_problems_come_in_one_order_always_and_can_be_chosen(folder: Path) -> None:
    assert problems(folder) == problems(folder)
    assert {name_of(path) for path in problems(folder)} == FORWARDS.keys()
    assert [name_of(path) for path in problems(folder, "level2/*")] == ["level2/3_Broken"]
    assert [name_of(path) for path in problems(folder, "level2/*,level1/4*")] == ["level2/3_Broken", "level1/4_Nothing"]
    assert [name_of(path) for path in problems(folder, levels=["level2", "level3"])] == ["level2/3_Broken"]


def test_a_folder_of_levels_needs_no_checkout_around_it(folder: Path) -> None:
    assert problems(folder / "KernelBench") == problems(folder)


def test_the_forty_problems_kept_aside_open_at_full_size_and_name_their_sources() -> None:
    paths = problems(ROOT / "benchmarks" / "aside")
    assert Counter(path.parent.name for path in paths) == {"level1": 14, "level2": 26}
    for path in paths:
        parts: dict[str, Any] = {}
        exec(compile(find_task(str(path)).source, str(path), "exec"), parts)
        assert re.search(r"\n *Source: \w.*(?:github\.com/|arXiv:)", parts["Model"].__doc__, re.DOTALL), path
        with FakeTensorMode(), torch.no_grad():
            model, inputs = parts["Model"](*parts["get_init_inputs"]()), parts["get_inputs"]()
            tensors = [*model.parameters(), *inputs, *tree_leaves(model(*inputs))]
        assert 1e7 < sum(tensor.nbytes for tensor in tensors) < 4e9, path  # float64, probes and copies must fit 80 GB


def test_problems_judged_in_full_are_counted_and_each_of_the_others_is_named_with_its_reason() -> None:
    def in_full(us: float, peak: float, **more: Any) -> dict[str, Any]:
        return timed(us, eager=200.0, compiled=100.0) | {"tier": "judged", "peak_bytes": peak * 1e9} | more

    short = {"no memory for float64": ["main/own", "main/huge"]}
    lines = [
        judged("level1/1_A", in_full(50.0, 45.3), memory_gib=74.5),
        judged("level1/2_B", in_full(50.0, 2.0, not_in_full=short), memory_gib=74.5),
        judged("level1/3_C", stage="traced", cause="wrong: row 7"),
        judged("level1/4_D", {"stage": "checked", "status": "checked", "peak_bytes": 1e9}, stage="checked"),
        judged("level1/5_E", timed(50.0, eager=200.0, compiled=100.0), cut="judging: more than 60 s"),
    ]
    text = text_of(lines)
    assert "Judged in full: 1 of 5. The others:" in text
    assert "- level1/5_E: screened alone; judging: more than 60 s" in text
    assert "- level1/2_B: no memory for float64: main/own, main/huge" in text
    assert "- level1/3_C: wrong: row 7" in text
    assert "- level1/4_D: right, not timed" in text
    assert "median 2.0 GB, 90 % within 45.3 GB, most 45.3 GB (level1/1_A)" in text
    assert "74.5 GiB of the GPU's memory" in text
    assert [is_open(line, "judged") for line in lines] == [False, True, True, True, True]  # tried by --again
    assert [is_open(line, "screened") for line in lines] == [False, False, True, False, False]


STAND_IN = """
import json, os, signal, sys, time
def answer(code=0, **more): print(json.dumps({"exit_code": code, "seconds": 0.5, "over": code > 2, **more}), flush=True)
for line in filter(str.strip, sys.stdin):
    asked = json.loads(line)
    do, problem = asked["do"], asked.get("problem", "")
    name = "/".join(problem.split("/")[-2:])[:-3]
    told = {"problem": name, "stage": "correct", "cause": "", "attempts": [], "seconds": {"open": 7.1}}
    {BODY}
    answer(**({"problem": asked["wanted"][-1]} if do == "ready" else {"line": told} if do == "judge" else {}))
"""


def plan_of(folder: Path, body: str, **more: Any) -> Plan:
    """One with a program in the place of a worker: what `body` does with a request, then it answers."""
    program = folder / "program.py"
    program.write_text(STAND_IN.replace("{BODY}", body.strip().replace("\n", "\n    ")))
    return Plan(folder / "share.jsonl", command=(sys.executable, str(program)), **more)


def test_a_problem_that_kills_its_worker_is_told_and_the_others_have_a_new_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(folder, 'if name.endswith("_Nothing"): os.kill(os.getpid(), signal.SIGKILL)')
    Share(plan, problems(folder), [None]).run()
    lines = stored(plan.out)
    assert {name: line["stage"] for name, line in lines.items()} == {
        "level1/19_ReLU": "correct", "level2/3_Broken": "correct", "level1/4_Nothing": "",
    }  # fmt: skip
    assert (
        "the worker was lost: it said nothing (the worker was killed by SIGKILL)" in lines["level1/4_Nothing"]["cause"]
    )
    told = capsys.readouterr().out
    assert told.count("started after") == 2
    assert "correct  level1/19_ReLU  0 judged  open 7.1" in told


def test_a_gpu_that_loses_every_judge_is_given_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [folder / f"level1/{number}_A.py" for number in range(9)]
    Share(plan_of(folder, 'told["lost"] = True'), paths, ["0"]).run()
    assert len(stored(folder / "share.jsonl")) == 5
    assert "gpu0: given up after 5 failures in a row" in capsys.readouterr().out


def test_what_a_gpu_that_is_given_up_had_before_it_is_left_to_the_others(folder: Path) -> None:
    paths = [folder / f"level1/{number}_A.py" for number in range(20)]
    body = 'if os.environ["CUDA_VISIBLE_DEVICES"] == "0": answer(3); break\ntime.sleep(0.1 * (do == "judge"))'
    Share(plan_of(folder, body, width=4), paths, ["0", "1"]).run()
    assert stored(folder / "share.jsonl").keys() == set(map(name_of, paths))


def test_two_gpus_share_the_problems_and_judge_none_twice(folder: Path) -> None:
    paths = [folder / f"level1/{number}_A.py" for number in range(20)]
    plan = plan_of(folder, 'told["by"] = os.environ["CUDA_VISIBLE_DEVICES"]; time.sleep(0.02)', width=4)
    Share(plan, paths, ["0", "1"]).run()
    lines = [json.loads(text) for text in plan.out.read_text().splitlines()]
    assert sorted(line["problem"] for line in lines) == sorted(map(name_of, paths))
    assert {line["by"] for line in lines} == {"0", "1"}


def test_at_the_deadline_what_runs_is_ended_and_tried_again_another_time(folder: Path) -> None:
    started = time.monotonic()
    body = 'time.sleep(60 if name.endswith("_Nothing") else 0)'
    plan = plan_of(folder, body, deadline=started + 15.5, grace_s=2.0)
    Share(plan, [path for path in problems(folder) if path.stem == "4_Nothing"], [None]).run()
    assert time.monotonic() - started < 18
    assert stored(plan.out) == {}
    later = plan_of(folder, body, deadline=time.monotonic() + 13.0, grace_s=2.0)
    Share(later, problems(folder), [None]).run()  # too late to begin anything
    assert not later.out.exists()


@pytest.mark.timeout(400)
def test_problems_go_from_their_files_to_verdicts_and_on_from_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(kernelbench, "WORKER", shared_fork_server.benchmark("benchmarks.kernelbench"))
    words = ["--kernelbench", str(folder), "--out", str(folder / "share.jsonl"), "--seconds", "150", "--most", "1"]
    assert main([*words, "--only", "level1/*", "--attempts", "1"]) == 0
    lines = stored(folder / "share.jsonl")
    done, empty = lines["level1/19_ReLU"], lines["level1/4_Nothing"]
    assert (done["stage"], [a["status"] for a in done["attempts"]]) == ("checked", ["checked"])
    assert "class ModelNew" in done["attempts"][0]["source"]
    assert {"prepared", "waited", "judge", "end", "all"} <= done["seconds"].keys()
    assert (empty["stage"], empty["attempts"]) == ("described", [])
    assert "computes nothing from its inputs" in empty["cause"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "1 problems to try, 2 done" in told
    assert "| all | 3 | 1 | 1 | 1 | 1 |" in told
    assert stored(folder / "share.jsonl")["level2/3_Broken"]["stage"] == ""
    assert line_text(done).startswith("checked  level1/19_ReLU  1 judged  prepared ")


def test_ctrl_c_ends_it_with_130_and_leaves_nothing_behind(folder: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.kernelbench", "--kernelbench", str(folder)]
    scratch = folder / "scratch"
    scratch.mkdir()
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        [*words, "--out", str(folder / "share.jsonl")], cwd=ROOT, env=variables, start_new_session=True
    )
    asked = folder / "share.logs" / "gpu.ready.txt"  # it prepares its first problems
    while not asked.exists():
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert list(scratch.iterdir()) == []


@pytest.mark.timeout(400)
def test_a_problem_is_ended_by_its_time_and_the_next_is_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(kernelbench, "WORKER", shared_fork_server.benchmark("benchmarks.kernelbench"))
    out = str(folder / "share.jsonl")
    words = ["--kernelbench", str(folder), "--out", out, "--only", "level1/19*"]
    assert main([*words, "--seconds", "0.05"]) == 0
    assert "judging: more than 0.05 s" in stored(Path(out))["level1/19_ReLU"]["cause"]
    assert main([*words, "--again", "--prepare-seconds", "0.05"]) == 0
    assert ": more than 0.05 s" in stored(Path(out))["level1/19_ReLU"]["cause"]
    assert main([*words, "--again"]) == 0
    assert stored(Path(out))["level1/19_ReLU"]["stage"] == "checked"
    assert "0 problems are left" in capsys.readouterr().out


def test_a_problem_whose_time_is_up_has_nothing_more_lowered(folder: Path) -> None:
    file = find_task(str(folder / "KernelBench" / "level1" / "19_ReLU.py"))
    case = CaseSpec("main", ({"$tensor": TensorSpec((16, 32), "float32")},), (), None)
    opened = OpenedProblem(file, TaskSpec("relu", file.sha256, "float32", file.source, (case,)), desk=None)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="too long"):
        proposed(Lowering(machine=None), opened, "sm_90", Deadline(0))  # type: ignore[arg-type]
