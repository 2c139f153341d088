"""The table of all tasks: it is made from the record alone, and nothing that happens to one task ends it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent.record.events import Judged, Proposed, RunEnded, RunStarted
from agent.record.receipts import receipt_path
from agent.record.store import Store
from benchmarks.public_kernels import FOLDER, SOURCES, _tables, candidate, public_kernels, source_of, written
from benchmarks.table import main
from benchmarks.table_rows import JOURNAL, Row, rows_of
from benchmarks.table_run import Plan, Table
from benchmarks.table_text import line_of, table_text
from tests.exploits.public.inline import InlineError
from tools.task import builtin_names
from tools.verdict import Comparison, Status, Timing, Verdict

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
        why: str | None = "time", copy_gbps: float = 4000.0, light_us: float = 90.0,
    ) -> str:  # fmt: skip
        """One run; a receipt for each attempt. `why` None: its process was killed."""
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
                store.write(Proposed(run_id, attempt_id, number, None, "source", name))
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


def test_goals_are_met_only_by_all_tasks(record: Recorded) -> None:
    record.run("softmax", [timed(50.0)], light_us=40.0)
    told = table_text(rows_of(record.folder, ["softmax", "rope"]))
    assert "geometric mean at least 1.25x: **missed**: 2.200x on 1 of 2 tasks" in told
    assert "rope: no run of it is stored" in told
    assert "geometric mean at least 1.25x: met" in table_text(rows_of(record.folder, ["softmax"]))


def test_public_kernels_are_compared_with_ours_of_their_own_session(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)])
    names = ["public/softmax/ours.py", "public/softmax/softmax__liger.py", "public/softmax/softmax__tutorials.py"]
    record.run("softmax", [timed(98.0), timed(147.0), WRONG], author="files", names=names, why="author_done")
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
    record.run("softmax", [timed(130.0)], author="files", names=["softmax__liger.py"], why="author_done")
    assert row(record).over_public is None  # theirs is of a later session than ours


def test_what_was_judged_before_a_session_was_ended_counts(record: Recorded) -> None:
    names = ["ours.py", "softmax__liger.py"]
    record.run("softmax", [timed(100.0), timed(147.0)], author="files", names=names, why="interrupted")
    assert [kernel.name for kernel in row(record).public] == ["softmax__liger"]


def test_the_latest_run_that_ended_of_itself_counts(record: Recorded) -> None:
    record.run("softmax", [timed(100.0)])
    later = record.run("softmax", [timed(101.0)])
    record.run("softmax", [timed(90.0)], why="interrupted")
    assert row(record).run_id == later


@pytest.mark.parametrize(("why", "words"), [("interrupted", "the run ended as interrupted"), (None, "killed")])
def test_a_run_that_was_cut_short_is_a_row_that_says_so(record: Recorded, why: str | None, words: str) -> None:
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


@pytest.mark.parametrize("words", [["--tasks", "sotfmax"], ["--public", "liger=nowhere"], ["--time", "0"]])
def test_mistakes_are_told_before_anything_runs(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--runs-dir", str(tmp_path / "runs"), *words])
    assert ended.value.code == 2
    assert not (tmp_path / "runs").exists()


def stand_in(folder: Path, body: str) -> tuple[str, ...]:
    """A program in the place of `optimize`."""
    path = folder / "program.py"
    path.write_text(f"import os, signal, sys, time\nwords = sys.argv[1:]\n{body}\n")
    return (sys.executable, str(path))


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]


def test_a_command_that_fails_ends_only_its_own_task(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "print(words[1]); sys.exit('no such luck' if 'rope' in words else 0)")
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax", "geglu"], [None]).run()
    ended = {line["task"]: (line["exit_code"], line["why"]) for line in journal(tmp_path / "runs")}
    assert ended == {"rope": (1, "no such luck"), "softmax": (0, ""), "geglu": (0, "")}
    assert (tmp_path / "runs" / "logs" / "softmax.ours.txt").read_text() == "softmax\n"


def test_each_gpu_has_a_worker_and_is_calibrated_first(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "print(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(0.3)")
    Table(Plan(tmp_path / "runs", 5.0, command=program), ["rope", "softmax", "geglu", "cumsum"], ["0", "5"]).run()
    lines = journal(tmp_path / "runs")
    assert sorted(line["gpu"] for line in lines if line["step"] == "calibrate") == ["0", "5"]
    assert {line["gpu"] for line in lines if line["step"] == "ours"} == {"0", "5"}
    for line in lines:
        name = f"{line['task'] or 'gpu' + line['gpu']}.{line['step']}.txt"
        assert (tmp_path / "runs" / "logs" / name).read_text() == f"{line['gpu']}\n"


def test_what_takes_too_long_is_ended_as_by_ctrl_c(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('stored')")
    Table(Plan(tmp_path / "runs", 1.0, warm_up_s=1.0, command=program), ["rope"], [None]).run()
    (line,) = journal(tmp_path / "runs")
    assert (line["why"], line["exit_code"]) == ("ended: it took more than 2 s", 0)
    assert (tmp_path / "runs" / "logs" / "rope.ours.txt").read_text() == "stored\n"


def test_what_does_not_listen_is_ended_by_force_with_its_children(tmp_path: Path) -> None:
    body = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
time.sleep(60)
"""
    plan = Plan(tmp_path / "runs", 1.0, warm_up_s=1.0, command=stand_in(tmp_path, body), grace_s=0.5)
    Table(plan, ["rope"], [None]).run()
    (line,) = journal(tmp_path / "runs")
    assert (line["why"], line["exit_code"]) == ("ended: it took more than 2 s, by force", -signal.SIGKILL)
    for pid in (tmp_path / "runs" / "logs" / "rope.ours.txt").read_text().split():
        assert not runs(int(pid))


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie, given a moment to end."""
    for _ in range(50):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return False
        time.sleep(0.05)
    return True


def test_at_the_deadline_all_is_over_and_the_rest_is_not_started(tmp_path: Path) -> None:
    program = stand_in(tmp_path, "time.sleep(60)")
    started = time.monotonic()
    plan = Plan(tmp_path / "runs", 2.0, deadline=started + 44.0, command=program, grace_s=41.0)
    Table(plan, ["rope", "softmax"], [None]).run()
    assert time.monotonic() - started < 30
    assert [(line["task"], line["why"]) for line in journal(tmp_path / "runs")] == [
        ("rope", "ended: the deadline came"),
        ("softmax", "not started: the deadline came first"),
    ]


def test_stopping_ends_what_runs_and_starts_no_more(tmp_path: Path) -> None:
    table = Table(
        Plan(tmp_path / "runs", 60.0, command=stand_in(tmp_path, "time.sleep(60)")), ["rope", "softmax"], [None]
    )
    running = threading.Thread(target=table.run)
    running.start()
    while not (tmp_path / "runs" / "logs" / "rope.ours.txt").exists():
        time.sleep(0.02)
    table.stop()
    running.join(20)
    assert not running.is_alive()
    assert [(line["task"], line["why"]) for line in journal(tmp_path / "runs")] == [("rope", "ended: interrupted")]


def test_ctrl_c_ends_the_table_with_130_and_leaves_nothing_behind(tmp_path: Path) -> None:
    body = "import sys\nfrom benchmarks.table import main\nsys.exit(main())"
    words = ["--runs-dir", str(tmp_path / "runs"), "--tasks", "softmax", "--time", "60"]
    process = subprocess.Popen([sys.executable, "-c", body, *words], cwd=ROOT, start_new_session=True)
    while not (tmp_path / "runs" / "logs" / "softmax.ours.txt").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    (line,) = journal(tmp_path / "runs")
    assert line["why"].startswith("ended: interrupted")


@pytest.fixture(scope="module")
def run_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real table, without this machine's GPU: softmax, and one kernel in the place of a public one."""
    folder = tmp_path_factory.mktemp("table")
    visible, os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES"), ""
    try:
        assert main(words_of(folder)) == 0
        yield folder
    finally:
        os.environ.pop("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def words_of(folder: Path) -> list[str]:
    liger = folder / "liger"
    liger = liger if liger.exists() else liger_like(liger)
    words = ["--tasks", "softmax", "--time", "30", "--max-attempts", "1", "--public", f"liger={liger}"]
    return ["--runs-dir", str(folder / "runs"), *words]


@pytest.mark.timeout(600)
def test_a_table_is_made_of_real_runs(run_here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = rows_of(run_here / "runs", ["softmax"])
    assert (found.finished, found.attempts, found.accepted, found.why) == (True, 1, 1, "")
    assert found.sizes == "8192x8192 float32"
    assert [(kernel.name, kernel.status) for kernel in found.public] == [("softmax__liger", "checked")]
    assert found.ours_again is not None
    assert found.ours_again.session == found.public[0].session
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
    assert [(line["step"], line["exit_code"]) for line in before] == [("ours", 0), ("public", 0)]


@pytest.mark.timeout(600)
def test_what_is_done_is_run_again_when_that_is_asked_for(run_here: Path) -> None:
    before, first = journal(run_here / "runs"), rows_of(run_here / "runs", ["softmax"])[0].run_id
    assert main([*words_of(run_here), "--again"]) == 0
    assert [line["step"] for line in journal(run_here / "runs")[len(before) :]] == ["ours", "public"]
    assert rows_of(run_here / "runs", ["softmax"])[0].run_id != first


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
