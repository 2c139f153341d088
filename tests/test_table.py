"""The table of all tasks: it is made from the record alone, and nothing that happens to one task ends it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import table
from benchmarks.public_kernels import FOLDER, SOURCES, _tables, candidate, public_kernels, source_of, written
from benchmarks.table import JOURNAL, Ahead, Plan, Row, Table, line_of, main, parts_of, rows_of, table_text
from kerneltune.agent.attempt import StopReason
from kerneltune.agent.authors.search.author import OfflineAuthor, through
from kerneltune.agent.commands.session import session, workshop
from kerneltune.agent.events import Judged, Proposed, RunEnded, RunStarted
from kerneltune.agent.record.folder import receipt_path
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Settings
from kerneltune.tools.schema.verdict import Comparison, Status, Timing, Verdict
from kerneltune.tools.task.load import builtin_names, find_task
from tests import shared_fork_server
from tests.agent.shell import optimize
from tests.corpus.public.inline import InlineError

ROOT = Path(__file__).resolve().parents[1]
LIGER_LIKE = """
import torch
import triton
import triton.language as tl


@triton.jit
def _rows(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class LigerSoftmaxFunction:
    @staticmethod
    def apply(x):
        y = torch.empty_like(x)
        _rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
"""

WRONG_SWIGLU = """
import torch
import triton
import triton.language as tl


@triton.jit
def _product(a, b, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + i, tl.load(a + i, mask=i < n) * tl.load(b + i, mask=i < n), mask=i < n)


class LigerSiLUMulFunction:
    @staticmethod
    def apply(a, b):
        c = torch.empty_like(a)
        _product[(triton.cdiv(a.numel(), 1024),)](a, b, c, a.numel(), BLOCK=1024)
        return c
"""

SWIGLU = """
import torch
import triton
import triton.language as tl


@triton.jit
def _swiglu(a, b, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(a + i, mask=i < n).to(tl.float32)
    up = tl.load(b + i, mask=i < n).to(tl.float32)
    tl.store(c + i, gate / (1 + tl.exp(-gate)) * up, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        c = torch.empty_like(a)
        _swiglu[(triton.cdiv(a.numel(), 1024),)](a, b, c, a.numel(), BLOCK=1024)
        return c
"""


def liger_like(folder: Path, text: str = LIGER_LIKE) -> Path:
    """A folder laid out as the first of the public sources."""
    path = folder / "liger_kernel" / "ops" / "softmax.py"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return folder


class Recorded:
    """A record that tests write as runs do."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0

    def run(
        self, task: str, verdicts: Sequence[Verdict], *, author: str = "offline", names: Sequence[str] = (),
        why: StopReason | None = StopReason.TIME, copy_gbps: float = 4000.0, light_us: float = 90.0,
        source: str = "source",
    ) -> str:  # fmt: skip
        """One run of attempts of one source; a receipt for each. `why` None: its process was killed."""
        self.runs += 1
        run_id = f"20260101-0000{self.runs:02}-{task}-aaaa"
        gpu = "NVIDIA H200"
        started = RunStarted(run_id, task, "00", "", author, "", "sm_90", gpu, {}, {}, 0, {"torch": "2.11.0"})
        with Store.open(self.folder) as store:
            store.write(started)
            for number, verdict in enumerate(verdicts, 1):
                attempt_id, name = f"{run_id}/{number}", names[number - 1] if names else f"idea {number}"
                us = verdict.timing.median_us if verdict.timing else None
                key = (us,) if us is not None else (1.0,) if verdict.accepted else ()
                store.write(Proposed(run_id, attempt_id, number, None, source, name))
                store.write(Judged(run_id, attempt_id, verdict, 0.1, False, key))
                self._receipt(run_id, attempt_id, copy_gbps, light_us)
            if why is not None:
                accepted = sum(v.accepted for v in verdicts)
                store.write(RunEnded(run_id, why, len(verdicts), accepted, None, None, elapsed_s=61.5))
        return run_id

    def _receipt(self, run_id: str, attempt_id: str, copy_gbps: float, light_us: float) -> None:
        case = {"name": "main", "inputs": [{"$tensor": {"shape": [8, 4], "dtype": "bfloat16", "stride": None}}] * 2}
        evidence = {"copy_gbps": copy_gbps, "speed_of_light": {"us": light_us}, "baselines_us": {"eager": 200.0}}
        receipt = {"task": {"cases": [case | {"bytes_moved": 400_000_000, "flops": 0}]}, "evidence": evidence}
        path = receipt_path(self.folder / run_id, attempt_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(receipt))

    def journal(self, **line: Any) -> None:
        """How a command ended."""
        with (self.folder / JOURNAL).open("a") as file:
            file.write(json.dumps(line) + "\n")


@pytest.fixture
def record(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def timed(us: float, eager: float = 200.0, compiled: float = 120.0, most: float = 110.0) -> Verdict:
    baselines = {"eager": eager, "compile": compiled, "compile-max": most}
    compared = [Comparison(name, b, b / us, 0.99 * b / us, 1.01 * b / us) for name, b in baselines.items()]
    hardest_first = tuple(sorted(compared, key=lambda c: c.speedup))
    timing = Timing(us, us - 0.1, us + 0.1, 12, 1200)
    return Verdict(Status.CORRECT, "right", (), timing, hardest_first, 1.0, 90.0 / us, tier="confirmed")


WRONG = Verdict(Status.WRONG, "case ragged: 3 elements wrong")


def row(record: Recorded, task: str = "softmax") -> Row:
    return rows_of(record.folder, [task])[0]


def test_a_row_is_the_best_attempt_against_the_fastest_of_the_three(record: Recorded) -> None:
    record.run("softmax", [timed(105.0), timed(100.0), WRONG])
    found = row(record)
    assert (found.attempts, found.accepted, found.number, found.finished) == (3, 2, 2, True)
    assert found.hardest is not None
    assert (found.hardest.baseline, round(found.hardest.speedup, 3)) == ("compile-max", 1.1)
    assert found.sizes == "2 x 8x4 bfloat16"
    assert found.copy_share == pytest.approx(1.0)  # 400 MB in 100 us are 4000 GB/s
    text = table_text([found])
    assert "| softmax | 2 x 8x4 bfloat16 | 200.0 | 120.0 | 110.0 |  | **100.0** [99.90, 100.1] |" in text
    assert "| 1.100x [1.089, 1.111] max-autotune |  | 90 % | 100 % | 100 % | 3 | 62 |" in text


def test_a_task_that_arithmetic_bounds_has_no_share_of_the_copy_s_bandwidth(record: Recorded) -> None:
    record.run("matmul_bf16", [timed(300.0)], light_us=150.0)
    assert row(record, "matmul_bf16").copy_share is None


def test_the_geometric_mean_the_share_and_each_missed_goal_are_told(record: Recorded) -> None:
    record.run("softmax", [timed(55.0)], light_us=40.0)  # 2x
    record.run("layer_norm", [timed(220.0)])  # 0.5x, and 45 % of the copy
    record.run("matmul_bf16", [timed(250.0)], light_us=200.0)
    text = table_text(rows_of(record.folder, ["softmax", "layer_norm", "matmul_bf16"]))
    assert "**0.761x**" in text  # (2 * 0.5 * 0.44) ** (1/3)
    assert "1 of 3 at or above 0.98x" in text
    assert "geometric mean at least 1.25x: **missed**: 0.761x on 3 of 3 tasks" in text
    assert "no task below 0.98x: **missed**: layer_norm 0.500x, matmul_bf16 0.440x" in text
    assert "the 2 tasks that memory bounds at 90 % of the copy bandwidth: **missed**: layer_norm 45 %" in text
    assert "matmul_bf16 at least 0.95x of cuBLAS: **missed**: 0.800x" in text
    assert "searches within 180 s: met" in text


def test_a_task_without_a_time_is_looked_up_in_earlier_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, tasks in {"now": ["softmax"], "before": ["softmax", "rope"], "once": ["rope", "layer_norm"]}.items():
        (tmp_path / name).mkdir()
        for at, task in enumerate(tasks, 1):
            Recorded(tmp_path / name).run(task, [timed({"now": 50.0, "before": 60.0, "once": 70.0}[name] + at)])
    Recorded(tmp_path / "now").run("rope", [WRONG])
    earlier = ["--earlier", str(tmp_path / "before"), "--earlier", str(tmp_path / "once")]
    asked = ["--tasks", "softmax,rope,layer_norm,cumsum"]
    assert main(["--runs-dir", str(tmp_path / "now"), "--render", *asked, *earlier]) == 0
    text = capsys.readouterr().out
    assert [f"**{us}** [" in text for us in ("51.00", "62.00", "72.00")] == [True] * 3
    assert "cumsum: no run of it is stored" in text


def test_goals_are_met_only_by_all_tasks(record: Recorded) -> None:
    record.run("softmax", [timed(50.0)], light_us=40.0)
    told = table_text(rows_of(record.folder, ["softmax", "rope"]))
    assert "geometric mean at least 1.25x: **missed**: 2.200x on 1 of 2 tasks" in told
    assert "rope: no run of it is stored" in told
    assert "geometric mean at least 1.25x: met" in table_text(rows_of(record.folder, ["softmax"]))


def test_public_kernels_are_compared_with_ours_of_their_own_session(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)])
    names = ["public/softmax/ours.py", "public/softmax/softmax__liger.py", "public/softmax/softmax__tutorials.py"]
    record.run("softmax", [timed(98.0), timed(147.0), WRONG], author="files", names=names, why=StopReason.AUTHOR_DONE)
    found = row(record)
    assert [(k.name, k.status) for k in found.public] == [
        ("softmax__liger", "correct"),
        ("softmax__tutorials", "wrong"),
    ]
    assert found.over_public is not None
    assert found.over_public.speedup == pytest.approx(1.5)
    assert 1.495 < found.over_public.low < 1.5 < found.over_public.high < 1.505
    text = table_text([found])
    assert "| 147.0 Liger-Kernel 0.8.2 |" in text
    assert "softmax, Triton's tutorials: wrong, case ragged: 3 elements wrong" in text
    assert "Over the fastest public kernel: 1.500x on 1 tasks, 1 of them ahead" in text


def test_public_kernels_of_another_session_than_ours_are_not_compared(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)])
    record.run("softmax", [timed(98.0)], author="files", names=["ours.py"])
    record.run("softmax", [timed(130.0)], author="files", names=["softmax__liger.py"])
    found = row(record)
    assert [kernel.name for kernel in found.public] == ["softmax__liger"]
    assert found.over_public is None


def test_the_session_that_judged_this_best_counts_even_when_it_is_older(record: Recorded) -> None:
    names = ["ours.py", "softmax__liger.py"]
    record.run("softmax", [timed(100.0)], source="the best")
    beside = record.run(
        "softmax", [timed(98.0), timed(147.0)], author="files", names=names, source="# proved\nthe best"
    )
    record.run("softmax", [timed(90.0)], why=StopReason.INTERRUPTED, source="another")
    record.run("softmax", [timed(88.0), timed(149.0)], author="files", names=names, source="another")
    found = row(record)
    assert found.beside == beside
    assert found.over_public is not None
    assert found.over_public.speedup == pytest.approx(147.0 / 98.0)


def test_of_sessions_with_this_best_the_one_that_judged_most_counts(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)])
    whole = record.run("softmax", [timed(98.0), timed(147.0)], author="files", names=["ours.py", "softmax__liger.py"])
    record.run("softmax", [timed(97.0)], author="files", names=["ours.py"], why=StopReason.INTERRUPTED)
    found = row(record)
    assert (found.beside, found.over_public is not None) == (whole, True)


def test_without_a_session_of_this_best_the_latest_counts(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)], source="the best")
    record.run("softmax", [timed(98.0), timed(147.0)], author="files", names=["ours.py", "softmax__liger.py"])
    found = row(record)
    assert found.beside is None
    assert [kernel.name for kernel in found.public] == ["softmax__liger"]


def test_the_seconds_of_each_part_are_told(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)])
    record.journal(task="softmax", step="open", exit_code=0, why="", seconds=6.0)
    record.journal(task="softmax", step="ours", exit_code=0, why="", seconds=37.0, search_s=26.0, end_s=11.0)
    record.journal(task="softmax", step="public", exit_code=1, why="1 of 2", seconds=8.0)
    record.journal(task="softmax", step="public", exit_code=None, why="not started", seconds=0.0)
    record.journal(task="rope", step="open", exit_code=0, why="", seconds=8.0)
    record.journal(task="rope", step="ours", exit_code=-9, why="ended: by force", seconds=50.0)
    found = rows_of(record.folder, ["softmax", "rope"])
    assert [dict(one.parts) for one in found] == [
        {"open": 6.0, "search": 26.0, "end": 11.0, "public": 8.0}, {"open": 8.0, "search": 50.0}
    ]  # fmt: skip
    assert parts_of(found[0].parts) == " (open 6, search 26, end 11, public 8)"
    assert "over those that have the part: open 7.0, search 38.0, end 11.0, public 8.0." in table_text(found)


def test_what_was_judged_before_a_session_was_ended_counts(record: Recorded) -> None:
    names = ["ours.py", "softmax__liger.py"]
    record.run("softmax", [timed(100.0), timed(147.0)], author="files", names=names, why=StopReason.INTERRUPTED)
    assert [kernel.name for kernel in row(record).public] == ["softmax__liger"]


def test_the_latest_run_that_ended_of_itself_counts(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)])
    later = record.run("softmax", [timed(101.0)])
    record.run("softmax", [timed(90.0)], why=StopReason.INTERRUPTED)
    assert row(record).run_id == later


@pytest.mark.parametrize(("why", "words"), [(StopReason.INTERRUPTED, "the run ended as interrupted"), (None, "killed")])
def test_a_run_that_was_cut_short_is_a_row_that_says_so(record: Recorded, why: StopReason | None, words: str) -> None:
    record.run("softmax", [timed(100.0)], why=why)
    found = row(record)
    assert (found.finished, found.accepted) == (False, 1)
    assert words in found.why
    assert f"softmax: {found.why}" in table_text([found])


def test_a_task_that_failed_is_a_row_that_says_why(record: Recorded) -> None:
    record.journal(
        task="rope", step="ours", gpu="1", exit_code=4, seconds=3.0, why="GpuLost: the judge's process ended"
    )
    record.run("softmax", [WRONG, WRONG])
    text = table_text(rows_of(record.folder, ["rope", "softmax", "geglu"]))
    assert "rope: GpuLost: the judge's process ended" in text
    assert "softmax: none accepted (2 wrong); the last: case ragged: 3 elements wrong" in text
    assert "geglu: no run of it is stored" in text


def test_public_kernels_that_were_not_judged_are_named_with_the_reason(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)])
    record.journal(task="softmax", step="public", exit_code=None, why="softmax__gems.py cannot be made: no such file")
    record.journal(task="softmax", step="public", exit_code=1, why="1 of 2 accepted")  # is told by their verdicts
    record.journal(task="softmax", step="public", exit_code=130, why="ended: the deadline came")
    assert row(record).troubles == ("softmax__gems.py cannot be made: no such file", "ended: the deadline came")
    assert "- softmax: softmax__gems.py cannot be made: no such file" in table_text([row(record)])


def test_a_journal_whose_last_line_was_cut_off_is_read(record: Recorded) -> None:
    record.journal(task="rope", step="ours", why="too slow")
    with (record.folder / JOURNAL).open("a") as file:
        file.write('{"task": "rope", "wh')
    assert row(record, "rope").why == "too slow"


def test_a_record_that_is_not_there_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--runs-dir", str(tmp_path / "none"), "--render"])
    assert ended.value.code == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "words", [["--tasks", "sotfmax"], ["--public", "liger=nowhere"], ["--time", "0"], ["--earlier", "."]]
)
def test_mistakes_are_told_before_anything_runs(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--runs-dir", str(tmp_path / "runs"), *words])
    assert ended.value.code == 2
    assert not (tmp_path / "runs").exists()


STAND_IN = """
import json, os, signal, subprocess, sys, time
task = ""
def say(*words): print(*words, file=open(log, "a"))
def answer(code=0, **more): print(json.dumps({"exit_code": code, "seconds": 0.5, "over": code > 2, **more}), flush=True)
for line in filter(str.strip, sys.stdin):
    asked = json.loads(line)
    do, log, task = asked["do"], asked["log"], asked.get("task", task)
    say(do, task)
"""


def stand_in(folder: Path, body: str) -> tuple[str, ...]:
    """A program in the place of a worker: what `body` does with a request, then it answers."""
    path = folder / "program.py"
    path.write_text(STAND_IN + "".join(f"    {line}\n" for line in [*body.splitlines(), "answer()"]))
    return (sys.executable, str(path))


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]


def steps(folder: Path) -> list[tuple[str, str]]:
    return [(line["task"], line["step"]) for line in journal(folder)]


def searches(folder: Path) -> dict[str, tuple[int | None, str]]:
    return {line["task"]: (line["exit_code"], line["why"]) for line in journal(folder) if line["step"] == "ours"}


def test_one_worker_does_all_tasks(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "say(os.getpid())")
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax"], [None]).run()
    assert steps(tmp_path / "runs") == [
        ("", "start"), ("rope", "open"), ("rope", "ours"), ("softmax", "open"), ("softmax", "ours"),
    ]  # fmt: skip
    told = [path.read_text().split()[-1] for path in (tmp_path / "runs" / "logs").glob("*.ours.txt")]
    assert len(told) == 2
    assert len(set(told)) == 1
    assert not runs(int(told[0]))


def test_a_step_that_fails_ends_only_its_own_task(tmp_path: Path) -> None:
    fails = "if (do, task) == ('search', 'rope'): say('no such luck'); answer(4); break"
    program = stand_in(tmp_path, fails)
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax", "geglu"], [None]).run()
    assert searches(tmp_path / "runs") == {"rope": (4, "no such luck"), "softmax": (0, ""), "geglu": (0, "")}
    assert steps(tmp_path / "runs").count(("", "start")) == 2
    assert (tmp_path / "runs" / "logs" / "softmax.ours.txt").read_text() == "search softmax\n"


def test_a_task_that_cannot_be_opened_is_told_and_the_worker_goes_on(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "if (do, task) == ('open', 'rope'): say('too large'); answer(2); continue")
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax"], [None]).run()
    assert steps(tmp_path / "runs") == [("", "start"), ("rope", "open"), ("softmax", "open"), ("softmax", "ours")]
    assert rows_of(tmp_path / "runs", ["rope"])[0].why == "too large"


def test_a_task_that_kills_its_worker_is_told_and_the_next_has_a_new_one(tmp_path: Path) -> None:
    dies = "if (do, task) == ('search', 'rope'): say('too much memory'); os.kill(os.getpid(), signal.SIGKILL)"
    Table(Plan(tmp_path / "runs", 5.0, command=stand_in(tmp_path, dies)), ["rope", "softmax"], [None]).run()
    assert searches(tmp_path / "runs") == {
        "rope": (-signal.SIGKILL, "too much memory (the worker was killed by SIGKILL)"), "softmax": (0, ""),
    }  # fmt: skip


def test_a_worker_that_is_no_good_after_one_task_does_not_cost_the_next(tmp_path: Path) -> None:
    program = stand_in(
        tmp_path, "if (do, task) == ('open', 'softmax') and done: answer(4); break\ndone = do == 'search'"
    )
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax"], [None]).run()
    assert searches(tmp_path / "runs") == {"rope": (0, ""), "softmax": (0, "")}
    assert steps(tmp_path / "runs").count(("softmax", "open")) == 2


def test_a_task_that_no_worker_can_open_is_tried_once_more_and_no_more(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "if (do, task) == ('open', 'softmax'): answer(4); break")
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax", "geglu"], [None]).run()
    assert searches(tmp_path / "runs") == {"rope": (0, ""), "geglu": (0, "")}
    assert steps(tmp_path / "runs").count(("softmax", "open")) == 2


def test_without_a_worker_each_task_says_why(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "say('cannot confine'); answer(3); break")
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax"], [None]).run()
    assert [found.why for found in rows_of(tmp_path / "runs", ["rope", "softmax"])] == ["no worker: cannot confine"] * 2


def test_each_gpu_has_a_worker_and_is_calibrated_first(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "say(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(0.3)")
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax", "geglu", "cumsum"], ["0", "5"]).run()
    lines = journal(tmp_path / "runs")
    assert sorted(line["gpu"] for line in lines if line["step"] == "calibrate") == ["0", "5"]
    assert {line["gpu"] for line in lines if line["step"] == "ours"} == {"0", "5"}
    for gpu in ("0", "5"):
        assert [line["step"] for line in lines if line["gpu"] == gpu][:3] == ["start", "calibrate", "open"]
    for line in lines:
        name = f"{line['task'] or 'gpu' + line['gpu']}.{line['step']}.txt"
        assert (tmp_path / "runs" / "logs" / name).read_text().endswith(f"{line['gpu']}\n")


def test_a_gpu_is_calibrated_once_however_many_workers_it_takes(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "if do == 'search': answer(4); break")
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax"], ["0"]).run()
    assert [step for _, step in steps(tmp_path / "runs")] == [
        "start",
        "calibrate",
        "open",
        "ours",
        "start",
        "open",
        "ours",
    ]


def test_what_takes_too_long_is_ended_as_by_ctrl_c(tmp_path: Path) -> None:
    body = """
try:
    time.sleep(60 if do == 'search' else 0)
except KeyboardInterrupt:
    say('stored'); answer(130, search_s=1.5, end_s=0.25); break
"""
    Table(Plan(tmp_path / "runs", 1.0, warm_up_s=1.0, command=stand_in(tmp_path, body)), ["rope"], [None]).run()
    line = journal(tmp_path / "runs")[-1]
    assert (line["why"], line["exit_code"], line["search_s"]) == ("ended: it took more than 2 s", 130, 1.5)
    assert (tmp_path / "runs" / "logs" / "rope.ours.txt").read_text().endswith("stored\n")


def test_what_does_not_listen_is_ended_by_force_with_its_children(tmp_path: Path) -> None:
    body = """
if do == 'search':
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(['sleep', '60'], start_new_session=True)
    say(os.getpid(), child.pid)
    time.sleep(60)
"""
    plan = Plan(tmp_path / "runs", 1.0, warm_up_s=1.0, command=stand_in(tmp_path, body), grace_s=0.5)
    Table(plan, ["rope"], [None]).run()
    line = journal(tmp_path / "runs")[-1]
    assert (line["why"], line["exit_code"]) == ("ended: it took more than 2 s, by force", -signal.SIGKILL)
    pids = (tmp_path / "runs" / "logs" / "rope.ours.txt").read_text().split()[-2:]
    assert [runs(int(pid)) for pid in pids] == [False, False]


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie, given a moment to end."""
    for _ in range(50):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        time.sleep(0.05)
    return True


def test_what_a_worker_leaves_in_its_folder_is_removed(tmp_path: Path) -> None:
    leaves = "import tempfile; say(tempfile.mkdtemp()); os.kill(os.getpid(), signal.SIGKILL)"
    Table(Plan(tmp_path / "runs", 5.0, command=stand_in(tmp_path, leaves)), ["rope"], [None]).run()
    left = (tmp_path / "runs" / "logs" / "gpu.start.txt").read_text().split()[-1]
    assert left.startswith(tempfile.gettempdir())
    assert not Path(left).exists()


def test_at_the_deadline_all_is_over_and_the_rest_is_not_started(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "if do == 'search': time.sleep(60)")
    started = time.monotonic()
    plan = Plan(tmp_path / "runs", 2.0, deadline=started + 44.0, command=program, grace_s=41.0)
    Table(plan, ["rope", "softmax"], [None]).run()
    assert time.monotonic() - started < 30
    assert [(line["task"], line["why"]) for line in journal(tmp_path / "runs")][-2:] == [
        ("rope", "ended: the deadline came"),
        ("softmax", "not started: the deadline came first"),
    ]


def test_stopping_ends_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "if do == 'search': time.sleep(60)")
    table = Table(Plan(tmp_path / "runs", 60.0, command=program), ["rope", "softmax"], [None])
    running = threading.Thread(target=table.run)
    running.start()
    while not (tmp_path / "runs" / "logs" / "rope.ours.txt").exists():
        time.sleep(0.02)
    table.stop()
    running.join(20)
    assert not running.is_alive()
    assert steps(tmp_path / "runs") == [("", "start"), ("rope", "open"), ("rope", "ours")]
    assert journal(tmp_path / "runs")[-1]["why"] == "ended: interrupted"


def test_ctrl_c_ends_the_table_with_130_and_leaves_nothing_behind(tmp_path: Path) -> None:
    shared = f"table.WORKER = {shared_fork_server.benchmark('benchmarks.table')!r}"
    body = f"import sys\nfrom benchmarks import table\n{shared}\nsys.exit(table.main())"
    words = ["--runs-dir", str(tmp_path / "runs"), "--tasks", "softmax", "--time", "60"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(scratch)}
    process = subprocess.Popen([sys.executable, "-c", body, *words], cwd=ROOT, start_new_session=True, env=variables)
    log = tmp_path / "runs" / "logs" / "softmax.ours.txt"
    while not (log.exists() and "proposed" in log.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    line = journal(tmp_path / "runs")[-1]
    assert (line["why"], line["exit_code"]) == ("ended: interrupted", 130)
    with Store.open(tmp_path / "runs") as store:
        assert [run.why for run in store.runs()] == ["interrupted"]
    assert list(scratch.iterdir()) == []


def test_what_needs_no_gpu_is_done_when_it_is_asked_for(tmp_path: Path) -> None:
    """TorchInductor is not asked again by a search, and what was compiled is not compiled again."""
    with shared_fork_server.forked(workshop(Settings(runs_dir=tmp_path), lambda _: None)) as shop:
        ahead = Ahead(shop, find_task("swiglu"), [SWIGLU], lower=True)
        with contextlib.closing(ahead), session(shop, find_task("swiglu")) as opened:
            ahead.wait_lowered()
            tools = ahead.tools(opened)
            found = tools.updater.update(SWIGLU)
            assert found.failure is None
            assert tools.updater.update(SWIGLU) is found
            assert tools.updater.update(SWIGLU + "\n") is not found
        shop.lowering.close()
        lowered = time.monotonic()
        author = OfflineAuthor(through(lambda body: shop.lowering.call(body, 0.001)), 90)
        assert len(author.propose(opened.task, [], 2)) == 2
        assert author.problems == []
        assert time.monotonic() - lowered < 5


def test_what_was_begun_for_a_task_that_is_left_is_given_up(tmp_path: Path) -> None:
    with shared_fork_server.forked(workshop(Settings(runs_dir=tmp_path), lambda _: None)) as shop:
        ahead = Ahead(shop, find_task("swiglu"), [SWIGLU], lower=True)
        began = time.monotonic()
        ahead.close()
        ahead.wait_lowered()
        assert time.monotonic() - began < 20
        assert "lowered" in shop.lowering.call(
            {"source": find_task("softmax").source, "overrides": {}, "arch": 90}, 60.0
        )


def test_a_worker_whose_parent_is_gone_ends_what_it_does(tmp_path: Path) -> None:
    """Killed with -9, a parent cannot end it."""
    words = shared_fork_server.benchmark("benchmarks.table")
    variables = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)}
    flags = {"runs_dir": str(tmp_path / "runs"), "width": 1, "max_attempts": 500, "seed": 0}
    log = tmp_path / "log.txt"
    worker = subprocess.Popen(words, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert worker.stdin is not None
    asked: list[dict[str, Any]] = [
        {"do": "start", "flags": flags}, {"do": "open", "task": "softmax", "files": [], "search": True},
        {"do": "search", "time_s": 100.0},
    ]  # fmt: skip
    for request in asked:
        worker.stdin.write(json.dumps(request | {"log": str(log)}).encode() + b"\n")
        worker.stdin.flush()
    while not (log.exists() and "proposed" in log.read_text()):
        time.sleep(0.05)
    worker.stdin.close()
    assert worker.wait(60) == 130
    with Store.open(tmp_path / "runs") as store:
        assert [run.why for run in store.runs()] == ["interrupted"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("kerneltune-")] == []


@pytest.fixture(scope="module")
def run_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real table, without this machine's GPU: two tasks, each with a kernel in the place of a public one, of which
    that for swiglu is wrong."""
    folder = tmp_path_factory.mktemp("table")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setattr(table, "WORKER", shared_fork_server.benchmark("benchmarks.table"))
        assert main(words_of(folder)) == 0
        yield folder


def words_of(folder: Path, tasks: str = "softmax,swiglu") -> list[str]:
    liger = folder / "liger"
    if not liger.exists():
        (liger_like(liger) / "liger_kernel" / "ops" / "swiglu.py").write_text(WRONG_SWIGLU)
    words = ["--tasks", tasks, "--time", "60", "--max-attempts", "1", "--public", f"liger={liger}"]
    return ["--runs-dir", str(folder / "runs"), *words]


@pytest.mark.timeout(600)
def test_a_table_is_made_of_real_runs(run_here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, other = rows_of(run_here / "runs", ["softmax", "swiglu"])
    assert (found.finished, found.attempts, found.accepted, found.why) == (True, 1, 1, "")
    assert found.sizes == "8192x8192 float32"
    assert [(kernel.name, kernel.status) for kernel in found.public] == [("softmax__liger", "checked")]
    assert found.ours_again is not None
    assert found.ours_again.session == found.public[0].session == found.beside
    assert list(found.parts) == list(other.parts) == ["open", "search", "end", "public"]
    assert (other.finished, other.accepted, other.why) == (True, 1, "")
    assert [(kernel.name, kernel.status) for kernel in other.public] == [("swiglu__liger", "wrong")]
    assert other.ours_again is not None
    assert other.ours_again.status == "checked"
    assert main(["--runs-dir", str(run_here / "runs"), "--tasks", "softmax", "--render"]) == 0
    told = capsys.readouterr().out
    assert "| softmax | 8192x8192 float32 |  |  |  | Liger-Kernel 0.8.2: checked | checked, not timed |" in told
    assert "Nothing was timed. 1 of 1 tasks have a kernel that was checked." in told
    assert line_of(found).split()[:2] == ["softmax", "checked"]


@pytest.mark.timeout(600)
def test_what_is_done_is_not_run_again(run_here: Path) -> None:
    before = journal(run_here / "runs")
    assert main(words_of(run_here)) == 0
    assert journal(run_here / "runs") == before
    assert [(line["task"], line["step"], line["exit_code"]) for line in before] == [
        ("", "start", 0), ("softmax", "open", 0), ("softmax", "ours", 0), ("softmax", "public", 0),
        ("swiglu", "open", 0), ("swiglu", "ours", 0), ("swiglu", "public", 1),
    ]  # fmt: skip


@pytest.mark.timeout(600)
def test_a_run_of_the_table_is_stored_as_the_command_stores_it(run_here: Path) -> None:
    """Both runs: the search, and the files."""
    runs_dir = run_here / "runs"
    best_path = rows_of(runs_dir, ["softmax"])[0].best_path
    words = ["--task", "softmax", "--model", "offline", "--plain", "--max-time", "60", "--max-attempts", "1"]
    files = [str(runs_dir / "public" / "softmax" / name) for name in ("ours.py", "softmax__liger.py")]
    assert Path(files[0]).read_bytes() == (best_path or Path()).read_bytes()
    for command in (words, ["bench", *files, "--task", "softmax", "--tier", "judged", "--plain"]):
        assert optimize(*command, "--runs-dir", str(run_here / "told"), cwd=ROOT).returncode == 0
    for author in ("offline", "files"):
        ours, told = (_stored(folder, author) for folder in (runs_dir, run_here / "told"))
        assert ours == told


def _stored(runs_dir: Path, author: str) -> tuple[list[str], dict[str, Any], list[str], list[Any]]:
    """Of the first softmax run of an author: the kinds of its events, its facts but for time and id, the files in its
    folder, its verdicts and sources."""
    with Store.open(runs_dir) as store:
        run = next(run for run in reversed(store.runs()) if (run.task, run.author) == ("softmax", author))
        events = store.load_events(run.run_id)
        attempts = sorted(store.attempts(run.run_id), key=lambda attempt: attempt.number)
    facts = {name: value for name, value in vars(events[0]).items() if name not in ("run_id", "at")}
    paths = sorted(str(path.relative_to(runs_dir / run.run_id)) for path in (runs_dir / run.run_id).rglob("*"))
    sources = [a.source.rpartition("\n# Use: ")[2] for a in attempts]  # after the header of a best kernel
    verdicts = [(a.status, len(a.cases), [replace(kernel, compile_s=0.0) for kernel in a.kernels]) for a in attempts]
    return sorted(type(event).__name__ for event in events), facts, paths, [*sources, *verdicts]


@pytest.mark.timeout(600)
def test_what_is_done_is_run_again_when_that_is_asked_for(
    run_here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = journal(run_here / "runs")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(table, "WORKER", stand_in(tmp_path, "say(os.getpid())"))
    assert main([*words_of(run_here, tasks="softmax"), "--again"]) == 0
    later = journal(run_here / "runs")[len(before) :]
    assert [(line["task"], line["step"]) for line in later] == [
        ("", "start"), *(("softmax", step) for step in ("open", "ours", "public"))
    ]  # fmt: skip


def test_every_public_kernel_is_for_a_task_and_from_a_known_source() -> None:
    found = public_kernels()
    assert len(found) >= 30
    for kernel in found:
        assert kernel.task in builtin_names()
        assert set(kernel.wanted) == {kernel.path.stem.partition("__")[2].partition("_")[0]}
        assert set(kernel.wanted) <= set(SOURCES)
        assert "class ModelNew" in kernel.path.read_text()
    assert [path for path in FOLDER.glob("*.py") if "__" not in path.stem] == []


def test_a_public_kernel_is_named_after_its_source() -> None:
    assert source_of("softmax__liger") == "Liger-Kernel 0.8.2"
    assert source_of("matmul_bf16__tutorials_persistent") == "Triton's tutorials (persistent)"


def test_only_kernels_whose_source_was_given_are_written(tmp_path: Path) -> None:
    made, problems = written("softmax", {"liger": liger_like(tmp_path / "liger")}, tmp_path / "made")
    assert ([path.name for path in made], problems) == (["softmax__liger.py"], [])
    assert "liger_kernel" not in made[0].read_text()


def test_a_source_that_has_changed_is_a_problem_and_no_more(tmp_path: Path) -> None:
    changed = liger_like(tmp_path / "liger", "def something_else(): ...\n")
    made, problems = written("softmax", {"liger": changed, "tutorials": tmp_path}, tmp_path / "made")
    assert made == []
    assert problems[0] == "softmax__liger.py cannot be made: softmax.py does not define LigerSoftmaxFunction"
    assert problems[1].startswith("softmax__tutorials.py cannot be made: ")


def test_an_edit_that_finds_nothing_is_a_problem(tmp_path: Path) -> None:
    source = tmp_path / "sglang" / "kernels" / "ops" / "quantization" / "int8_kernel.py"
    source.parent.mkdir(parents=True)
    source.write_text("def per_token_quant_int8(x):\n    return x.abs().clamp_min(1e-10)\n")
    (path,), problems = written("quantize_int8", {"sglang": tmp_path}, tmp_path / "made")
    assert problems == []
    assert "clamp_min(1e-8)" in path.read_text()
    source.write_text("def per_token_quant_int8(x):\n    return x\n")
    assert written("quantize_int8", {"sglang": tmp_path}, tmp_path / "made") == (
        [],
        ["quantize_int8__sglang.py cannot be made: there is no '1e-10' to edit"],
    )


GEMS_LIKE = """
import logging
import triton
from flag_gems import runtime
from flag_gems.utils import libentry, libtuner
from flag_gems.utils import triton_lang_extension as tle
logger = logging.getLogger(__name__)
@libentry()
@libtuner(configs=runtime.get_tuned_config("bmm"), key=["M"])
@triton.heuristics(runtime.get_heuristic_config("bmm"))
@triton.jit
def kernel(x, M): tle.program_id(0)
def bmm(a, b):
    logger.debug("called")
    kernel[(1,)](a, 1)
"""
HOPPER = "bmm: [{gen: true, param_map: {META: {TILE: t}, num_warps: w}, t: [32, 64], w: [4]}]\n"


def test_a_source_s_own_tables_and_heuristics_go_into_the_candidate(tmp_path: Path) -> None:
    package = tmp_path / "flag_gems"
    nvidia = "runtime/backend/_nvidia"
    files = {
        "ops/bmm.py": GEMS_LIKE,
        "utils/triton_lang_extension.py": "import triton\n@triton.jit\ndef program_id(a): pass\nnum_programs = 1\n",
        "utils/shape_utils.py": "broadcastable_to = dim_compress = print\n",
        f"{nvidia}/heuristics_config_utils.py": "HEURISTICS_CONFIGS = {'bmm': {'EVEN': max}}\n",
        f"{nvidia}/tune_configs.yaml": "bmm: [{META: {TILE: 1}, num_warps: 4}]\nmm: [{META: {TILE: 9}}]\n",
        f"{nvidia}/hopper/tune_configs.yaml": HOPPER,
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    (kernel,) = (k for k in public_kernels("batched_matmul") if "gems" in k.wanted)
    text = candidate(kernel, {"gems": tmp_path})
    table = "{'bmm': [{'META': {'TILE': 32}, 'num_warps': 4}, {'META': {'TILE': 64}, 'num_warps': 4}]}"
    assert f"_TUNED = {table}" in text
    assert "'EVEN'" in text
    assert "import flag_gems" not in text
    assert "from flag_gems" not in text
    compile(text, "candidate", "exec")


def test_of_a_long_table_the_named_values_are_tried(tmp_path: Path) -> None:
    nvidia = tmp_path / "flag_gems" / "runtime" / "backend" / "_nvidia"
    (nvidia / "hopper").mkdir(parents=True)
    (nvidia / "hopper" / "tune_configs.yaml").write_text("other: []")
    (nvidia / "tune_configs.yaml").write_text(HOPPER)
    packages = {"flag_gems": tmp_path / "flag_gems"}
    assert [c["META"]["TILE"] for c in _tables(packages, {"bmm": {}})["bmm"]] == [32, 64]
    assert [c["META"]["TILE"] for c in _tables(packages, {"bmm": {"TILE": [64, 128]}})["bmm"]] == [64]


def test_a_file_without_a_source_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "softmax__liger.py").write_text("class ModelNew: ...\n")
    with pytest.raises(InlineError, match=r"softmax__liger\.py has no PUBLIC"):
        public_kernels("softmax", tmp_path)
