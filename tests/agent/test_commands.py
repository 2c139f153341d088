"""`bench` and `verify` as a person types them, on a small task: verdicts, record, receipts, exit codes."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.agent import warm
from tests.agent.shell import env, optimize

TASK = '''import torch
ROWS = 24

class Model(torch.nn.Module):
    """Doubled, the rows' sums, and which are positive."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        y = x * self.factor
        return {"y": y, "parts": (y.sum(1), (x > 0).to(torch.int32))}

def get_inputs():
    return [torch.randn(ROWS, 40)]

def get_init_inputs():
    return [2.0]

CASES = [{"name": "odd", "ROWS": 7, "cpu": True}, {"name": "secret", "ROWS": 13, "cpu": True, "held_out": True}]
'''
KERNEL = """import torch, triton
import triton.language as tl

@triton.jit
def double(x, y, s, p, n, f, B: tl.constexpr):
    r, c = tl.program_id(0), tl.arange(0, B)
    m = c < n
    v = tl.load(x + r * n + c, mask=m, other=0.0)
    tl.store(y + r * n + c, v * f, mask=m)
    tl.store(s + r, tl.sum(v * f, 0))
    tl.store(p + r * n + c, (v > 0).to(tl.int32), mask=m)

class ModelNew(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        y, p = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int32, device=x.device)
        s = torch.empty(x.shape[0], device=x.device)
        double[(x.shape[0],)](x, y, s, p, x.shape[1], self.factor, B=64)
        return {"y": y, "parts": (s, p)}
"""
FILES: dict[str, tuple[bytes, str, str]] = {  # file: content, status, words of the verdict
    "a_good.py": (KERNEL.encode(), "checked", "right on"),
    "binary.py": (b"\x7fELF\0\0\xff", "rejected", "binary, not Python text"),
    "bom.py": (b"\xef\xbb\xbf" + KERNEL.encode(), "checked", "right on"),
    "class.py": (
        KERNEL.replace("(torch.nn.Module)", "").replace("super().__init__()", "pass").encode(),
        "rejected",
        "not an nn.Module",
    ),
    "ctor.py": (KERNEL.replace("self, factor", "self, factor, more").encode(), "rejected", "its Model with (2.0)"),
    "dtype.py": (KERNEL.replace('"y": y', '"y": y.half()').encode(), "wrong", "{y: float16["),
    "empty.py": (b"", "rejected", "empty"),
    "forward.py": (KERNEL.replace("self, x)", "self, x, mask)").encode(), "rejected", "float32["),
    "host.py": (KERNEL.replace("(s, p)", "(s.cpu(), p)").encode(), "rejected", "on the cpu device"),
    "integers.py": (KERNEL.replace("v > 0", "v >= 1").encode(), "wrong", "elements wrong"),
    "latin.py": ("x = 'caf\u00e9'\n".encode("latin-1"), "rejected", "not UTF-8"),
    "none.py": (b"x = 1\n", "rejected", "no class ModelNew"),
    "nul.py": (b"x = 1\n\0", "rejected", "NUL bytes (line 2)"),
    "secret.py": (
        KERNEL.replace("* f, mask", "* f * (1 + (tl.num_programs(0) == 13)), mask").encode(),
        "wrong",
        "held-out",
    ),
    "structure.py": (KERNEL.replace("(s, p)", "[s]").encode(), "wrong", "the task's Model returns {y: float32["),
    "syntax.py": (b"def f(:\n", "rejected", "line 1: SyntaxError"),
    "ten_mb.py": (b"#" * 10_000_000, "rejected", "10000000 bytes"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task, and a folder of candidates."""
    path = tmp_path_factory.mktemp("bench")
    (path / "twice.py").write_text(TASK)
    (path / "kernels" / ".hidden").mkdir(parents=True)
    (path / "kernels" / ".hidden" / "x.py").write_text("not to be read")
    (path / "kernels" / "notes.txt").write_text("not Python")
    for name, (content, *_) in FILES.items():
        (path / "kernels" / name).write_bytes(content)
    return path


@pytest.fixture(scope="module")
def benched(folder: Path) -> list[dict[str, Any]]:
    """What `bench --json` prints for all of them."""
    done = optimize("bench", "kernels", "--task", "twice.py", "--json", cwd=folder)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def number_of(benched: list[dict[str, Any]], name: str) -> str:
    return next(str(o["attempt_id"]) for o in benched[:-1] if o["file"] == f"kernels/{name}")


def test_every_file_of_a_folder_gets_one_verdict_that_helps_its_author(benched: list[dict[str, Any]]) -> None:
    found = {Path(o["file"]).name: o for o in benched[:-1]}
    assert {name: o["verdict"]["status"] for name, o in found.items()} == {n: s for n, (_, s, _) in FILES.items()}
    for name, (_, _, words) in FILES.items():
        assert words in found[name]["verdict"]["detail"], name


def test_the_last_object_sums_up(benched: list[dict[str, Any]]) -> None:
    last = benched[-1]
    assert (last["type"], last["schema_version"], last["files"], last["judged"]) == (
        "bench_summary",
        1,
        len(FILES),
        len(FILES),
    )
    assert last["ranking"] == ["kernels/a_good.py", "kernels/bom.py"]
    assert (last["accepted"], last["by_status"]["checked"], last["gpu"]) == (2, 2, None)


def test_each_object_holds_its_receipt_and_the_receipt_lies_on_disk(
    folder: Path, benched: list[dict[str, Any]]
) -> None:
    for found in benched[:-1]:
        assert found["receipt"]["attempt_id"] == found["attempt_id"]
        assert json.loads((folder / found["receipt_path"]).read_text()) == found["receipt"]
    good = next(o for o in benched if o["file"] == "kernels/a_good.py")["receipt"]
    assert {c["case"] for c in good["cases"]} == {"main", "odd", "secret"}
    assert all(c["held_out"] == (c["case"] == "secret") for c in good["cases"])
    assert set(good["where"]["sandbox"]) == {"tracer", "compiler", "interpreter"}
    assert all(role["seccomp"] for role in good["where"]["sandbox"].values())
    assert re.fullmatch("[0-9a-f]{64}", good["candidate"]["plan_sha256"])
    assert re.fullmatch("[0-9a-f]{64}", good["compiled"]["kernels"][0]["cubin_sha256"])
    assert good["statement"].startswith("right in the CPU interpreter, not timed (no GPU); precision float32; 3 cases")


def test_the_record_lists_them_as_a_run_of_files(folder: Path, benched: list[dict[str, Any]]) -> None:
    runs = json.loads(optimize("runs", "--json", cwd=folder).stdout)
    run = next(r for r in runs if r["run_id"] == benched[-1]["run_id"])
    assert (run["author"], run["attempts"], run["accepted"], run["why"]) == ("files", len(FILES), 2, "author_done")
    assert run["best_attempt_id"] == number_of(benched, "a_good.py")


def test_for_people_there_is_a_line_a_file_and_a_ranking(folder: Path) -> None:
    names = ["kernels/none.py", "kernels/a_good.py"]
    done = optimize("bench", *names, "--task", "twice.py", "--no-store", "--plain", cwd=folder)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert any(re.match(r"✓ checked +#2 kernels/a_good.py  regs \d+, spills 0 B; right on", line) for line in lines)
    assert any(line.startswith("⊘ rejected") and "no class ModelNew" in line for line in lines)
    assert any(re.match(r"1\. kernels/a_good.py +regs", line) for line in lines)
    assert "2 files for twice in" in lines[-1]
    assert "\x1b" not in done.stdout + done.stderr
    assert "µs" not in done.stdout
    assert "2 judged" in done.stderr or "1/2 judged" in done.stderr


def test_stdin_is_judged_and_all_accepted_is_exit_code_0(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TASK)
    done = optimize("bench", "-", "--task", "twice.py", "--no-store", "--json", cwd=tmp_path, stdin=KERNEL)
    assert done.returncode == 0, done.stderr
    first, last = map(json.loads, done.stdout.splitlines())
    assert (first["file"], first["accepted"], first["attempt_id"], first["receipt_path"]) == (
        "<stdin>",
        True,
        None,
        None,
    )
    assert last["run_id"] is None
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "--task", "softmax"], "give at least one FILE"),
        (["bench", "nowhere.py", "--task", "softmax"], "nowhere.py cannot be read: No such file"),
        (["bench", "void", "--task", "softmax"], "no .py file in the folder void"),
        (["bench", "x.py"], "--task"),
        (["bench", "x.py", "--task", "sotfmax"], "did you mean softmax?"),
        (["bench", "x.py", "--task", "softmax", "--width", "0"], "--width 0"),
        (["bench", "x.py", "--task", "softmax", "--tier", "fast"], "judged"),
        (["bench", "x.py", "--task", "softmax", "--wdith", "2"], "no flag --wdith; did you mean --width?"),
        (["bench", "~nobody77/x.py", "--task", "softmax"], "~nobody77/x.py cannot be read: No such file"),
        (["suite", "~nobody77/x"], "no task file at '~nobody77/x'"),
        (["--task", "softmax", "--model", "scripted:~nobody77/x"], "~nobody77/x"),
        (["verify", "nothing"], "no attempt 'nothing'"),
        (["verify"], "ATTEMPT"),
        (["selftest", "--class", "nonsense"], "nonsense"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "void").mkdir()
    (tmp_path / "x.py").write_text("x = 1\n")
    done = optimize(*arguments, cwd=tmp_path)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
    assert words.lower() in done.stderr.lower()


def test_a_stored_verdict_is_repeated_with_fresh_inputs(folder: Path, benched: list[dict[str, Any]]) -> None:
    attempt_id = number_of(benched, "a_good.py")
    done = optimize("verify", str(benched[-1]["run_id"]), "--json", cwd=folder)  # the run: its best
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["attempt_id"], found["held"], found["why"], found["differs"]) == (attempt_id, True, "right again", [])
    old, new = (side["verdict"]["cases"] for side in (found["old"], found["new"]))
    assert [(c["case"], c["inputs"]) for c in old] == [(c["case"], c["inputs"]) for c in new]
    assert [c["max_abs_error"] for c in old] != [c["max_abs_error"] for c in new]  # other inputs, other errors
    receipt = json.loads((folder / found["receipt_path"]).read_text())
    assert (receipt["attempt_id"], Path(found["receipt_path"]).name) == (attempt_id, "1.verify-1.json")
    runs = json.loads(optimize("runs", "--json", cwd=folder).stdout)
    assert next(r for r in runs if r["best_attempt_id"] == attempt_id)["verified"] is True


@pytest.mark.usefixtures("benched")
def test_what_a_run_leaves_is_for_its_user_alone(folder: Path) -> None:
    left = [p for p in (folder / "runs").rglob("*") if not p.name.startswith("runs.db-")]
    assert {p.name for p in left} >= {"runs.db", "receipts", "1.json", "process.json"}
    assert [p for p in left if p.stat().st_mode & 0o077] == []


def test_a_merged_run_is_verified_with_its_task_only_by_somebody_who_trusts_it(
    folder: Path, benched: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Where the record says that its task lies is a file that would end the command; its own source would not."""
    task, kernel = tmp_path / "theirs" / "twice.py", folder / "kernels" / "a_good.py"
    task.parent.mkdir()
    stops = "import os\nassert not os.path.exists(os.path.join(os.path.dirname(__file__), 'stop')), 'it ran'\n"
    task.write_text(stops + TASK.partition("CASES")[0])
    done = optimize("bench", str(kernel), "--task", str(task), "--json", cwd=task.parent)
    attempt_id = json.loads(done.stdout.splitlines()[0])["attempt_id"]
    assert optimize("merge", str(task.parent / "runs"), cwd=tmp_path).returncode == 0
    (task.parent / "stop").touch()
    done = optimize("verify", attempt_id, "--task", str(task), cwd=tmp_path)
    assert "it ran" in done.stderr
    done = optimize("verify", attempt_id, cwd=tmp_path)
    assert (done.returncode, done.stdout, len(done.stderr.strip().splitlines())) == (2, "", 1), done.stderr
    assert "--trust-task" in done.stderr
    task.unlink()
    done = optimize("verify", attempt_id, "--trust-task", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["held"] is True, done.stderr


def test_a_failure_is_repeated_as_well_and_shown_side_by_side(folder: Path, benched: list[dict[str, Any]]) -> None:
    done = optimize("verify", number_of(benched, "integers.py"), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert re.search(r"status +✗ wrong +✗ wrong", done.stdout)
    assert "held: was wrong, is wrong again" in done.stdout


def test_what_was_no_text_cannot_be_repeated(folder: Path, benched: list[dict[str, Any]]) -> None:
    done = optimize("verify", number_of(benched, "binary.py"), cwd=folder)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert "has no source that could be judged again" in done.stderr


def test_a_task_that_has_changed_is_refused_and_one_that_has_moved_is_found(
    folder: Path, benched: list[dict[str, Any]]
) -> None:
    attempt_id = number_of(benched, "a_good.py")
    task = folder / "twice.py"
    try:
        task.write_text(TASK.replace("24", "25"))
        done = optimize("verify", attempt_id, cwd=folder)
        assert done.returncode == 2
        assert "has changed or is gone" in done.stderr
        (folder / "elsewhere.py").write_text(TASK)
        done = optimize("verify", attempt_id, "--task", "elsewhere.py", "--json", cwd=folder)
        assert done.returncode == 0, done.stderr
        done = optimize("verify", attempt_id, "--task", "twice.py", cwd=folder)
        assert done.returncode == 2
        assert "is not the task of run" in done.stderr
    finally:
        task.write_text(TASK)


def test_ctrl_c_ends_a_bench_cleanly_and_keeps_what_is_judged(folder: Path, tmp_path: Path) -> None:
    many = [str(folder / "kernels" / name) for name in FILES]
    arguments = warm.command("bench", *many, "--task", str(folder / "twice.py"), "--width", "1", "--json")
    process = subprocess.Popen(arguments, cwd=tmp_path, env=env(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        next(line for line in process.stdout if '"judged_file"' in line)
        process.send_signal(signal.SIGINT)
        lines = process.stdout.read().splitlines()
    assert process.wait(30) == 130
    last = json.loads(lines[-1])
    assert (last["type"], last["why"]) == ("bench_summary", "interrupted")
    assert 0 < last["judged"] < len(FILES)
    (run,) = json.loads(optimize("runs", "--json", cwd=tmp_path).stdout)
    assert (run["attempts"], run["why"]) == (last["judged"], "interrupted")
    assert not [p for p in Path("/proc").glob("[0-9]*") if _works_in(p, tmp_path)]


def _works_in(process: Path, folder: Path) -> bool:
    try:
        return os.readlink(process / "cwd").startswith(str(folder))
    except OSError:
        return False


def test_a_reader_that_goes_away_does_not_hurt(folder: Path) -> None:
    names = ("kernels/none.py", "kernels/empty.py", "kernels/a_good.py")  # the first is told at once
    shell = " ".join([f"'{part}'" for part in warm.command("bench", *names, "--task", "twice.py", "--no-store")])
    done = subprocess.run(["bash", "-c", f"{shell} | head -1"], cwd=folder, env=env(), capture_output=True, text=True)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
