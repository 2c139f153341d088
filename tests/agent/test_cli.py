"""The command itself, as a person types it: real processes, exit codes, one clear line for bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.shell import SOFTMAX, command, env, optimize

BROKEN_TASKS = {
    "no_model.py": ("import torch\ndef get_inputs():\n    return []\n", "Model"),
    "syntax.py": ("def f(:\n", "syntax"),
    "fails.py": (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x @ torch.ones(3, 3)\n"
        "def get_inputs():\n    return [torch.randn(2, 2)]\ndef get_init_inputs():\n    return []\n",
        "failed",
    ),
}
NO_KERNEL = """import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvalsh(x)

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""


def test_help_loads_neither_torch_nor_an_llm_sdk(tmp_path: Path) -> None:
    heavy = ("torch", "triton", "anthropic", "openai", "sqlalchemy", "ray")
    code = f"""
import sys
from kerneltune.agent.cli import app, exit_code
exit_code(lambda: app(["--help"], result_action="return_value", exit_on_error=False))
print([m for m in {heavy!r} if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env(), capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--task", "sotfmax"], "did you mean softmax?"),
        (["--task", "softmax", "--max-attempts", "0"], "at least 1 attempt"),
        (["--task", "softmax", "--max-attempts", "many"], "max-attempts"),
        (["--task", "softmax", "--max-time", "-1"], "above 0"),
        (["--task", "softmax", "--runs-dir", "/proc/nowhere"], "/proc/nowhere"),
        (["--resume", "nothing"], "no runs in runs; make one with: optimize --task softmax"),
        (["--tsak", "softmax"], "--task"),
        (["--task", "missing/file.py"], "missing/file.py"),
        (["--task", "softmax", "--model", "gpt"], "offline"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = optimize(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.glob("runs/*-softmax-*"))


@pytest.mark.parametrize("name", BROKEN_TASKS)
def test_a_task_file_that_cannot_be_used_is_one_line_and_leaves_no_run(tmp_path: Path, name: str) -> None:
    source, words = BROKEN_TASKS[name]
    (tmp_path / name).write_text(source)
    done = optimize("--task", name, "--plain", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr.strip().splitlines()[-1]
    assert optimize("runs", "--json", cwd=tmp_path).stdout.strip() == "[]"


def test_a_run_without_a_gpu_checks_candidates_and_never_mentions_a_time(tmp_path: Path) -> None:
    done = optimize("--task", "softmax", "--max-attempts", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    result = events[-1]
    assert (result["type"], result["by_status"], result["internal_errors"]) == ("result", {"checked": 2}, 0)
    assert all(e["verdict"]["timing"] is None for e in events if e["type"] == "judged")
    best = (tmp_path / result["best"]["path"]).read_text()
    assert "class ModelNew" in best
    assert "Not timed" in best


def test_a_run_whose_author_has_nothing_to_try_says_why_and_what_to_try_next(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(NO_KERNEL)
    done = optimize("--task", "odd.py", "--model", "offline", "--target-speedup", "2", "--plain", cwd=tmp_path)
    assert done.returncode == 1
    said = done.stdout
    assert "the author has nothing left to try" in said
    assert "TorchInductor makes only library calls" in said
    assert "without a GPU nothing is timed, so --target-speedup does nothing" in said
    assert "optimize --task odd.py --from FILE.py" in said
    assert "--resume" not in said  # it would end at once again


def test_kill_9_loses_no_finished_attempt_and_resume_goes_on(tmp_path: Path) -> None:
    arguments = command("--task", SOFTMAX, "--max-attempts", "4", "--width", "1", "--json")
    process = subprocess.Popen(arguments, cwd=tmp_path, env=env(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        seen = next(json.loads(line) for line in process.stdout if '"judged"' in line)
        process.send_signal(signal.SIGKILL)
        process.wait()
    run_id = seen["run_id"]
    done = optimize("--resume", run_id, "--max-attempts", "3", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["attempts"] == 3
    (stored,) = json.loads(optimize("runs", "--json", cwd=tmp_path).stdout)
    assert (stored["run_id"], stored["attempts"]) == (run_id, 3)


def test_ctrl_c_ends_the_run_cleanly_with_exit_code_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    arguments = command("--task", SOFTMAX, "--max-attempts", "50", "--json")
    process = subprocess.Popen(
        arguments, cwd=tmp_path, env=env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = []
    while '"judged"' not in (line := process.stdout.readline()):
        lines.append(json.loads(line))
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=60)
    lines += map(json.loads, (line, *out.splitlines()))
    assert process.returncode == 130
    assert lines[-1]["subtype"] == "interrupted"
    assert {line["schema_version"] for line in lines} == {2}
    assert error.splitlines()[-1] == f"optimize: interrupted; go on with: optimize --resume {lines[-1]['run_id']}"
    ends = time.monotonic() + 20
    while _children_named(str(tmp_path)) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not _children_named(str(tmp_path))


def _children_named(text: str) -> list[str]:
    """Processes whose working directory lies in `text`: nothing of ours may be left."""
    left = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "cwd").startswith(text):
                left.append(folder.name)
        except OSError:
            continue
    return left


DROPPED = """
import signal, sys, time
from kerneltune.agent import cli
class Dropping:
    def __del__(self):
        raise KeyboardInterrupt
def command():
    Dropping()  # what __del__ raises is dropped, as what a callback raises
    time.sleep(100)
sys.unraisablehook = cli.interrupt_again
sys.exit(cli.exit_code(command))
"""


def test_a_ctrl_c_that_python_drops_in_a_callback_ends_the_command_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stderr) == (130, "optimize: interrupted\n")
