"""The command line as a person meets it: the first page, mistakes, exit codes, pipes, completion, a new task."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from kerneltune.agent.cli import ABOUT, app, exit_code
from kerneltune.agent.commands import VerdictName
from kerneltune.agent.models.types import KeyRejected
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import FIELDS
from kerneltune.tools.backends import gpu_info
from kerneltune.tools.schema.errors import GpuLost, StoreError, Unfit, UsageError, WorkerError
from kerneltune.tools.schema.verdict import Status
from tests.agent.record.samples import started
from tests.agent.shell import ROOT, command, env, optimize

MINE = """import math
import torch
def scores(q, k):
    "Scaled scores."
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
def constant(x):
    return torch.zeros_like(x)
"""
COMMANDS = sorted(name for name in app if not name.startswith("-"))


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr of a command line that fails before anything heavy is loaded."""
    code = exit_code(lambda: app(arguments, result_action="return_value", exit_on_error=False, print_error=False))
    return code, capsys.readouterr().err


def test_the_command_alone_teaches_and_names_the_newest_run(tmp_path: Path) -> None:
    first = optimize(cwd=tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert all(
        w in first.stdout for w in ("optimize --task softmax", "optimize init", "optimize doctor", "this machine")
    )
    assert "latest run" not in first.stdout
    assert not (tmp_path / "runs").exists()
    with Store.open(tmp_path / "runs") as store:
        store.write(started("20260101-120000-softmax-ab12"))
    second = optimize(cwd=tmp_path).stdout
    assert "optimize show 20260101-120000-softmax-ab12" in second
    assert "optimize --resume 20260101-120000-softmax-ab12" in second


def test_the_first_page_loads_neither_torch_nor_the_store_nor_an_sdk(tmp_path: Path) -> None:
    heavy = ("torch", "triton", "numpy", "anthropic", "openai", "sqlalchemy", "pydantic")
    code = f"""
import sys
from kerneltune.agent.cli import app
app([], result_action="return_value")
print([m for m in {heavy!r} if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env(), capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


def test_runs_are_listed_without_the_store_and_without_a_trace(tmp_path: Path) -> None:
    code = """
import sys
from kerneltune.agent.cli import app
app(["runs"], result_action="return_value")
print([m for m in ("torch", "sqlalchemy", "pydantic") if m in sys.modules])
"""

    def listed() -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, cwd=tmp_path, env=env(), capture_output=True, text=True).stdout

    assert listed().splitlines() == ["no runs yet in runs; start one with: optimize --task softmax", "[]"]
    assert not list(tmp_path.iterdir())
    with Store.open(tmp_path / "runs") as store:
        store.write(started("20260101-120000-softmax-ab12"))
    before = sorted((tmp_path / "runs").iterdir())
    assert "20260101-120000-softmax-ab12" in (said := listed())
    assert said.endswith("[]\n")
    assert sorted((tmp_path / "runs").iterdir()) == before


@pytest.mark.parametrize("line", ["--task softmax --model gpt-5", "--resume nothing", "--task softmax --patience 0"])
def test_a_run_that_cannot_be_is_refused_before_anything_heavy_is_imported(tmp_path: Path, line: str) -> None:
    code = f"""
import sys
from kerneltune.agent.cli import app, exit_code
code = exit_code(lambda: app({line.split()!r}, result_action="return_value", exit_on_error=False, print_error=False))
print(code, [m for m in ("torch", "sqlalchemy", "kerneltune.agent.commands.lifecycle") if m in sys.modules])
"""
    with Store.open(tmp_path / "runs") as store:
        store.write(started("20260101-120000-softmax-ab12"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env(), capture_output=True, text=True)
    assert done.stdout == "2 []\n", done.stderr


@pytest.mark.parametrize("name", ["runs", "show", "doctor"])
def test_what_only_reads_does_without_numpy(tmp_path: Path, name: str) -> None:
    arguments = [name, *(["x"] if name == "show" else [])]
    code = f"""
import sys
from kerneltune.agent.cli import app, exit_code
exit_code(lambda: app({arguments!r}, result_action="return_value", exit_on_error=False, print_error=False))
print([m for m in ("torch", "triton", "numpy") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env(), capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_has_examples_that_fit_a_narrow_window(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    app([*name.split(), "--help"], result_action="return_value", exit_on_error=False)
    page = capsys.readouterr().out
    examples = page.partition("Examples:\n")[2]
    assert f"optimize {name}".strip() in examples
    assert max(len(line.rstrip()) for line in page.splitlines()) <= 80
    flags = set(re.findall(r" (--[a-z-]+)", examples))
    known = {
        flag for c in (app, *(app[c] for c in COMMANDS)) for a in c.assemble_argument_collection() for flag in a.names
    }
    assert flags <= known | {"--help"}


def test_the_first_page_says_of_each_command_what_its_own_page_begins_with(capsys: pytest.CaptureFixture[str]) -> None:
    for name, about in ABOUT.items():
        app([name, "--help"], result_action="return_value", exit_on_error=False)
        assert about in " ".join(capsys.readouterr().out.split()), name


MISTAKES = {
    "--tsak softmax": "no flag --tsak; did you mean --task?",
    "--task": "--task needs a value; see optimize --help",
    "shwo": "no command 'shwo'; did you mean show?",
    "softmax": "did you mean: optimize --task softmax",
    "sofmax": "did you mean: optimize --task softmax",
    "mine.py": "did you mean: optimize --task mine.py",
    "zzz": "no command 'zzz'; commands: bench, browse, capture",
    "runs --jsno": "runs has no flag --jsno; did you mean --json?",
    "runs --limit ten": "--limit 'ten' is not a whole number; see optimize runs --help",
    "runs --limit 1.6": "--limit '1.6' is not a whole number; see optimize runs --help",
    "--task softmax --max-attempts 1.5": "--max-attempts '1.5' is not a whole number; see optimize --help",
    "runs --verdict corect": "did you mean correct?",
    "--task softmax --effort hihg": "--effort 'hihg' is not one of low, medium, high, xhigh, max; did you mean high?",
    "--task softmax --max-cost $2": "--max-cost '$2' is not a number",
    "--task softmax --model antropic": "did you mean anthropic?",
    "--task softmax --trust-task": "--trust-task is for --resume RUN",
    "--plain": "give --task NAME, or --resume RUN",
    "show": "show: give NAME; see optimize show --help",
    "show a b": "show: 'b' is one word too many",
    "verify": "verify: give ATTEMPT",
    "bench x.py": "bench: --task must be given",
    "bench --taks softmax x.py": "bench: no flag --taks; did you mean --task?",
    "bench x.py --task softmax --wdith 2": "bench has no flag --wdith; did you mean --width?",
    "export --format kto": "export: --output must be given",
    "selftest --class timin": "did you mean timing?",
    "completion bahs": "SHELL 'bahs' is not one of bash, zsh, fish; did you mean bash?",
    "tasks --check": "name the task to check",
    "tasks sotfmax": "did you mean softmax?",
    "init nowhere.py:f": "nowhere.py cannot be read",
    "init a_file": "a_file cannot be read",
    "init ~nosuchuser/m.py:f": "~nosuchuser/m.py cannot be read",
    "init -o mytask.txt": "a task is a Python file",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_that_names_the_value_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, error = said(line.split(), capsys)
    assert (code, len(error.splitlines())) == (2, 1), error
    assert MISTAKES[line] in error
    assert not error.startswith("optimize: optimize")


def test_a_run_that_is_misspelt_is_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(tmp_path) as store:
        store.write(started("20260101-120000-softmax-ab12"))
    for line in ("show 20260101-120000-sofmax-ab12", "--resume 20260101-120000-sofmax-ab12", "verify ab13"):
        code, error = said([*line.split(), "--runs-dir", str(tmp_path)], capsys)
        assert code == 2
        assert "did you mean 20260101-120000-softmax-ab12?" in error or "verify" in line


def test_the_exit_codes_are_those_of_the_documentation() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert re.findall(r"^\| (\d+) \| .+ \|$", page, re.MULTILINE) == ["0", "1", "2", "3", "4", "5", "6", "130"]
    assert set(re.findall(r"^\| `optimize (\w+)", page, re.MULTILINE)) | {"show"} == set(COMMANDS)


def of_disk(cause: BaseException) -> StoreError:
    """What the record raises for it."""
    error = StoreError("runs.db: no event can be written")
    error.__cause__ = cause
    return error


def of_sqlite(*statements: str) -> DBAPIError:
    """What the last of them raises, as the record hears it."""
    try:
        with create_engine("sqlite://").connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
    except DBAPIError as error:
        return error
    raise AssertionError(statements)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (Unfit("x"), 3),
        (KeyRejected("x"), 3),
        (OSError(28, "No space left on device"), 3),
        (MemoryError(), 3),
        (RuntimeError("can't start new thread"), 3),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), 3),
        (of_disk(OSError(errno.ENOSPC, "No space left on device")), 3),
        (of_disk(of_disk(OSError(errno.EDQUOT, "Disk quota exceeded"))), 3),
        (of_disk(of_sqlite("PRAGMA max_page_count = 1", "CREATE TABLE runs (id)")), 3),
        (of_disk(OSError(errno.EACCES, "Permission denied")), 2),
        (of_disk(of_sqlite("SELECT * FROM nowhere")), 2),
        (WorkerError("x"), 4),
        (GpuLost("x"), 5),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 0),
    ],
)
def test_each_kind_of_end_has_its_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise error

    assert exit_code(command) == code
    assert len(capsys.readouterr().err.splitlines()) == (0 if code == 0 else 1)


@pytest.mark.parametrize("error", [RuntimeError("a fault"), ImportError("no x", name="kerneltune.agent.x")])
def test_a_fault_of_ours_leaves_its_traceback(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> int:
        raise error

    assert exit_code(command) == 4
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("megabytes", "line"),
    [
        (56, "show last"),
        (300, "--task softmax --max-attempts 1 --plain"),
        (800, "--task softmax --max-attempts 1 --plain"),
    ],
)
def test_a_command_that_memory_is_too_short_for_says_so_in_a_line(megabytes: int, line: str, tmp_path: Path) -> None:
    limit = ["prlimit", f"--as={megabytes << 20}", "--"]
    done = subprocess.run(
        [*limit, *command(*line.split())], cwd=tmp_path, env=env(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert re.match(r"optimize: .*\bmemory\b", done.stderr.splitlines()[-1]), done.stderr


def test_codes_come_out_of_the_process(tmp_path: Path) -> None:
    assert optimize("config", cwd=tmp_path).returncode == 0
    assert optimize("doctor", "--runs-dir", "/proc/nowhere", cwd=tmp_path).returncode == 1
    assert optimize("--nonsense", cwd=tmp_path).returncode == 2
    no_key = optimize("--task", "softmax", "--model", "openai:x", cwd=tmp_path)
    assert (no_key.returncode, "OPENAI_API_KEY" in no_key.stderr) == (3, True)
    if gpu_info() is None:
        assert optimize("doctor", "--calibrate", cwd=tmp_path).returncode == 3


@pytest.mark.parametrize(
    "line", ["config", "doctor", "runs", "tasks softmax", "tasks softmax --check", "init --no-check", "selftest --list"]
)
def test_json_is_one_value_on_stdout_with_a_schema_version(tmp_path: Path, line: str) -> None:
    done = optimize(*line.split(), "--json", cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    told = json.loads(done.stdout)
    for entry in told if isinstance(told, list) else [told]:
        assert entry["schema_version"] == (2 if line == "config" else 1)


def test_ctrl_c_before_a_run_begins_is_one_line_without_a_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command("--task", "row_sum", "--plain"), cwd=tmp_path, env=env(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "starting" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "--resume" in error


@pytest.mark.parametrize("line", ["--help", "completion bash", "config", "doctor", "runs", "", "init --no-check"])
def test_a_reader_that_goes_away_ends_a_command_quietly(tmp_path: Path, line: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command(*line.split()), cwd=tmp_path, env=env(), stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_disk_that_is_full_is_told(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("config"), cwd=tmp_path, env=env(), stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (3, "optimize: No space left on device\n")


def test_config_shows_each_setting_with_its_source(tmp_path: Path) -> None:
    done = optimize("config", "--json", cwd=tmp_path, more_env={"KERNELTUNE_SEED": "3", "KERNELTUNE_SED": "4"})
    told = json.loads(done.stdout)
    assert set(told["settings"]) == set(FIELDS)
    assert told["settings"]["seed"] == {"value": 3, "source": "KERNELTUNE_SEED"}
    assert told["unknown_variables"] == ["KERNELTUNE_SED"]
    shown = optimize("config", cwd=tmp_path, more_env={"KERNELTUNE_SEED": "3", "KERNELTUNE_SED": "4"}).stdout
    assert re.search(r"^seed +3 +KERNELTUNE_SEED$", shown, re.MULTILINE)
    assert "KERNELTUNE_SED is no setting; did you mean KERNELTUNE_SEED?" in shown


def test_a_bad_setting_stops_every_command_with_its_name(tmp_path: Path) -> None:
    done = optimize("runs", cwd=tmp_path, more_env={"KERNELTUNE_MAX_ATTEMPTS": "many"})
    assert (done.returncode, "KERNELTUNE_MAX_ATTEMPTS='many' is not a whole number" in done.stderr) == (2, True)


def test_a_task_made_from_a_function_is_checked_and_then_optimised(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    made = optimize("init", "mine.py:scores", cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    assert "next: optimize --task scores_task.py" in made.stdout
    shown = optimize("tasks", "scores_task.py", cwd=tmp_path).stdout
    assert "def scores(q, k):" in shown
    assert "unseen" not in shown
    (tmp_path / "padded.py").write_text((tmp_path / "scores_task.py").read_text() + "INPUTS = {'q': {'slack': 3}}\n")
    assert "Contract: q: 3 elements behind its end may be read" in optimize("tasks", "padded.py", cwd=tmp_path).stdout
    again = optimize("init", "mine.py:scores", cwd=tmp_path)
    assert (again.returncode, "--overwrite" in again.stderr) == (2, True)
    own = optimize("init", "mine.py:scores", "-o", "mine.py", "--overwrite", cwd=tmp_path)
    assert (own.returncode, (tmp_path / "mine.py").read_text()) == (2, MINE)


def test_a_task_that_nothing_passes_is_told_and_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    made = optimize("init", "mine.py:constant", "--json", cwd=tmp_path)
    told = json.loads(made.stdout)
    assert (made.returncode, told["sound"]) == (1, False)
    assert any("writes zeros" in note for note in told["notes"])
    check = optimize("tasks", told["path"], "--check", cwd=tmp_path)
    assert (check.returncode, "writes zeros" in check.stdout) == (1, True)


def test_every_verdict_can_be_asked_for() -> None:
    assert set(get_args(VerdictName)) == {"accepted", *(status.value for status in Status)}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_flags_and_choices(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "optimize"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from kerneltune.agent.cli import main; main()' \"$@\"\n")
    program.chmod(0o755)
    script = """
source <(optimize completion bash)
offer() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _optimize; echo "${COMPREPLY[*]}"; }
offer optimize sel; offer optimize --patie; offer optimize runs --verdict wro; offer optimize --effort xh
"""
    variables = env() | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.stdout.split() == ["selftest", "--patience", "wrong", "xhigh"], done.stderr
