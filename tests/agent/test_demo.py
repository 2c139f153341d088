"""The recorded demo stays readable: runs of an H200, written by the version of that day."""

import json
import shutil
from pathlib import Path

import pytest

from tests.agent.shell import ROOT, optimize

DEMO = ROOT / "docs" / "demo"


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A copy: opening a record may bring it up to date."""
    return Path(shutil.copytree(DEMO, tmp_path / "demo"))


def test_the_recorded_runs_are_listed_with_their_times(demo: Path) -> None:
    assert listed(demo) == {
        "softmax": (5, 3), "cross_entropy": (5, 4), "rms_norm_backward": (24, 24), "window_attention": (5, 5),
    }  # fmt: skip


def listed(record: Path) -> dict[str, tuple[int, int]]:
    """By task, the attempts and how many of them are right; of runs on an H200, all of them."""
    done = optimize("runs", "--json", "--runs-dir", str(record), cwd=record)
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout)
    assert all(run["gpu"] == "NVIDIA H200" for run in runs)
    return {run["task"]: (run["attempts"], run["accepted"]) for run in runs}


def test_the_best_of_the_demo_is_told_with_its_intervals(demo: Path) -> None:
    done = optimize("show", "20261127-022454-cross_entropy-97ef2b7a/4", "--runs-dir", str(demo), cwd=demo)
    assert done.returncode == 0, done.stderr
    assert "237.1" in done.stdout
    assert "1.40" in done.stdout


def test_the_demo_is_exported_with_its_rewards_and_conversations(demo: Path) -> None:
    out = demo / "out"
    formats = ("--format", "raw", "--format", "rl-turns", "--format", "sft-chat", "--as", "jsonl")
    done = optimize("export", *formats, "-o", str(out), "--runs-dir", str(demo), cwd=demo)
    assert done.returncode == 0, done.stderr
    rows = {name: lines(out / "data" / name) for name in ("raw", "rl-turns", "sft-chat")}
    assert len({row["run_id"] for row in rows["raw"]}) == 4
    assert len(rows["sft-chat"]) == 3
    assert {row["task"] for row in rows["rl-turns"]} == {
        "cross_entropy",
        "rms_norm_backward",
        "softmax",
        "window_attention",
    }


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


FIRST, FOURTH = (f"20261127-022454-cross_entropy-97ef2b7a/{n}" for n in (1, 4))


def test_what_a_recorded_attempt_compiles_to_is_shown_on_a_machine_without_its_gpu(demo: Path) -> None:
    done = optimize("show", FOURTH, "--sass", "--runs-dir", str(demo), cwd=demo)
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith(f"// attempt {FOURTH}, variant default: compiled for sm_90 by triton ")
    assert "the same cubins" in second or "other cubins than those that were judged" in second
    assert " MUFU.EX2 R" in done.stdout


def test_two_recorded_attempts_are_told_apart_and_programs_get_one_object(demo: Path) -> None:
    wanted = ("show", FOURTH, "--sass", "--ptx", "--against", FIRST, "--runs-dir", str(demo))
    done = optimize(*wanted, "--json", cwd=demo)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["type"], told["attempt_id"], told["against"]) == ("compiled", FOURTH, FIRST)
    assert "loss_kernel: the kernel " in told["difference"]["sass"]
    assert "\n+.reqntid 256\n" in told["difference"]["ptx"]
    assert told["sass"][0]["whole"]["instructions"] > 10
    assert ".visible .entry loss_kernel" in told["ptx"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((FOURTH, "--against", FIRST, "--receipt"), "--against goes with --diff, --sass, --ptx or nothing"),
        ((FOURTH, "--ptx", "--source"), "are shown by themselves"),
        ((FOURTH, "--sass", "--against", "nobody"), "no attempt 'nobody'"),
        (
            ("20261127-022348-softmax-4de2d30a/1", "--sass"),
            "has no kernels that could be compiled: its verdict is compile_failed",
        ),
    ],
)
def test_what_cannot_be_compiled_is_one_line(arguments: tuple[str, ...], words: str, demo: Path) -> None:
    done = optimize("show", *arguments, "--runs-dir", str(demo), cwd=demo)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_recorded_runs_in_ptx_tell_what_the_assembler_said_and_what_came_of_it(tmp_path: Path) -> None:
    demo = Path(shutil.copytree(ROOT / "docs" / "demo-ptx", tmp_path / "demo-ptx"))
    assert listed(demo) == {"softmax": (4, 3), "rms_norm": (4, 2), "swiglu": (3, 2)}
    done = optimize("show", "20261122-040234-rms_norm-cfd0/1", "--runs-dir", str(demo), cwd=demo)
    assert "PTX line 35" in done.stdout
    done = optimize("show", "20261122-040152-softmax-4b88/3", "--runs-dir", str(demo), cwd=demo)
    assert "129.3" in done.stdout
