"""`runs`, `show` and `merge` as a person types them: what they print, to whom, and how they refuse."""

import contextlib
import json
import os
import pty
import re
import select
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import LlmTurn, StopReason
from kerneltune.agent.cli import app, exit_code
from kerneltune.agent.events import Event, Proposed, Replied, RunEnded, Said
from kerneltune.agent.record.folder import verify_paths
from kerneltune.agent.record.store import FILE_NAME, Store
from kerneltune.agent.view.attempt import unified, worst
from kerneltune.tools.schema.verdict import CaseResult, Status
from tests.agent import warm
from tests.agent.record.samples import attempt, started
from tests.agent.record.test_record_receipts import verified
from tests.agent.shell import env, optimize

MODEL, FILES = "20261121-093000-softmax-1a2b", "20261122-093000-matmul-77aa"
SOURCE = "import torch\n\nx = 'naïve ünïcode 核'\ttab\r\nno newline at the end"
SHOWN = "red \ufffdevil"  # what is left of the next one
HOSTILE = "\x1b]0;owned\x07\x1b[2Jred \u202eevil"


def said(role: str, text: str, at: float) -> Said:
    return Said(MODEL, role, text, conversation="1" if role != "system" else "", at=at)  # type: ignore[arg-type]


def replied(turn: int, text: str, calls: Any, at: float) -> Replied:
    usage = {"input_tokens": 1200, "output_tokens": 30}
    facts = (text, "thoughts of mine", calls, "tools", "", usage, 0.0123, "model-1", 2.5)
    return Replied(MODEL, "1", turn, *facts, at=at)


def model_run() -> list[Event]:
    """A run that a model wrote: two turns with an attempt each, the second with a source of many kinds of letters."""
    first, second = attempt(1, MODEL, Status.WRONG), attempt(2, MODEL, Status.CORRECT, best=True)
    assert isinstance(first[0], Proposed)
    assert isinstance(second[0], Proposed)
    first[0] = replace(first[0], origin=LlmTurn("1", 1), rationale=HOSTILE, source="import torch\n")
    second[0] = replace(second[0], origin=LlmTurn("1", 2), source=SOURCE)
    call = {"call_id": "c", "name": "update", "arguments": {"source": "a\nb", "rationale": HOSTILE}, "problem": ""}
    return [
        replace(started(MODEL), author="anthropic:claude-x"),
        said("system", "Be fast.", 1.0),
        said("user", "Here is the task.", 2.0),
        *(replied(1, "I shall try.", [call], 3.0), *first, said("tool", f"wrong {HOSTILE}", 4.0)),
        *(replied(2, "Again.", [], 5.0), *second, said("tool", "correct, and the last word", 6.0)),
        replace(verified(2, "verify", held=True), attempt_id=f"{MODEL}/2"),
        RunEnded(MODEL, StopReason.ATTEMPTS, 2, 1, f"{MODEL}/2", None, 9.0),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a runs directory: a run of a model and one of nothing right."""
    path = tmp_path_factory.mktemp("query")
    with Store.open(path / "runs") as store:
        for event in (*model_run(), started(FILES, "matmul"), *attempt(1, FILES, Status.REJECTED)):
            store.write(event)
    receipts = path / "runs" / MODEL / "receipts"
    receipts.mkdir(parents=True)
    (receipts / "2.json").write_text('{"statement": "right"}\n')
    (path / "runs" / MODEL / "best.py").write_text("# best\n")
    return path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command in this process, as into pipes."""
    code = exit_code(lambda: app(arguments, result_action="return_value", exit_on_error=False, print_error=False))
    said = capfd.readouterr()
    return code, said.out, said.err


def told(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    code, out, err = run(capfd, *arguments)
    assert (code, err) == (0, "")
    return out


def test_runs_are_listed_and_filtered(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = told(capfd, "runs").splitlines()
    assert [line.split()[0] for line in lines] == ["run", FILES, MODEL]
    assert "#2 134.5 µs, 1.12x (verified)" in lines[2]
    assert len(told(capfd, "runs", "--task", "matmul").splitlines()) == 2
    assert told(capfd, "runs", "--verdict", "impossible") == "no run passes these filters\n"
    (found,) = json.loads(told(capfd, "runs", "--model", "CLAUDE", "--min-speedup", "1.1", "--json"))
    assert (found["run_id"], found["by_status"], found["verified"]) == (MODEL, {"correct": 1, "wrong": 1}, True)


def test_a_pipe_gets_neither_colour_nor_boxes_nor_what_a_terminal_would_obey(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in (MODEL, f"{MODEL}/1", f"{MODEL}/2"):
        for more in ([], ["--conversation"]):
            out = told(capfd, "show", name, *more)
            assert not set(out) & set("\x1b\x07\u202e│┃─━┏└╭")
            assert not any(line.endswith(" ") for line in out.splitlines())
    assert not set(told(capfd, "runs")) & set("\x1b│─")


def test_a_run_is_shown_with_its_attempts(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = told(capfd, "show", "20261121")
    for words in (MODEL, "anthropic:claude-x", "no GPU (sm_90)", "✗ wrong 1", "✔ correct 1", "best.py", "2 attempts"):
        assert words in out
    first, second = out.splitlines()[-2:]
    assert first.split()[:4] == ["1", "-", "✗", "wrong"]
    assert "134.5 µs (134.1-134.9)  1.120x (1.110-1.130)  40         0  wider rows" in second
    only = told(capfd, "show", MODEL, "--verdict", "accepted", "--min-speedup", "1.1")
    assert "1 attempt of 2" in only
    assert "✗ wrong  -" not in only


def test_an_attempt_is_shown_with_all_that_is_known(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = told(capfd, "show", f"{MODEL}/2")
    for words in (
        *("conversation 1 turn 2", "wider rows", "✔ correct", "134.5 µs (134.1-134.9)", "over compile", "over eager"),
        *("2.080x (2.070-2.090) of 280.0 µs", "held: why", f"runs/{MODEL}/receipts/2.json", "worst cases (1 of 1"),
        *("confirmed  memory-bound  10% faster", "derived from", f"diff to {MODEL}/1", "+x = 'naïve ünïcode 核'"),
    ):
        assert words in out, words
    assert "parameters" not in out


def test_the_source_comes_out_byte_for_byte(folder: Path) -> None:
    done = subprocess.run(warm.command("show", f"{MODEL}/2", "--source"), cwd=folder, env=env(), capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == SOURCE.encode()


def test_of_a_run_the_source_is_that_of_its_best(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert told(capfd, "show", MODEL, "--receipt") == '{"statement": "right"}\n'
    assert told(capfd, "show", FILES, "--source").startswith("    x0 = tl.load")  # of its only attempt


def test_a_diff_of_an_attempt_without_a_parent_is_empty_and_says_why(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capfd, "show", FILES, "--diff")
    assert (code, out) == (0, "")
    assert err.startswith(f"attempt {FILES}/1 has no parent, so there is no diff")


def test_the_diff_is_one_that_patch_takes(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(warm.command("show", f"{MODEL}/2", "--diff"), cwd=folder, env=env(), capture_output=True)
    (tmp_path / "k.py").write_text("import torch\n")
    patched = subprocess.run(["git", "apply", "-p0", "-"], cwd=tmp_path, input=_named(done.stdout), capture_output=True)
    assert patched.returncode == 0, patched.stderr
    assert (tmp_path / "k.py").read_bytes() == SOURCE.encode()


def _named(diff: bytes) -> bytes:
    lines = diff.split(b"\n")
    return b"\n".join([b"--- k.py", b"+++ k.py", *lines[2:]])


def test_two_sources_of_endless_lines_are_not_compared() -> None:
    assert "too many to compare" in unified("a\n" * 15_000, "b\n" * 15_000, "x", "y")
    assert unified("a\n", "a\n", "x", "y") == ""


def test_a_conversation_ends_with_the_reply_that_proposed_the_attempt(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first = told(capfd, "show", f"{MODEL}/1", "--conversation")
    for words in ("[system]", "Be fast.", "[assistant; turn 1; model-1; 2.5 s; tokens 1.2k in, 30 out; $0.012]"):
        assert words in first
    assert f"thoughts of mine\nI shall try.\n-> update\n   source:\n   | a\n   | b\n   rationale: {SHOWN}" in first
    assert "Again." not in first
    second = told(capfd, "show", f"{MODEL}/2", "--conversation")
    assert f"wrong {SHOWN}" in second
    assert "the last word" not in second
    assert "the last word" in told(capfd, "show", MODEL, "--conversation")


def test_programs_get_one_object(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shown = json.loads(told(capfd, "show", MODEL, "--json", "--verdict", "wrong"))
    assert (shown["type"], shown["attempts"], shown["limits"]) == ("run", 2, {"max_attempts": 4})
    assert [a["number"] for a in shown["attempts_shown"]] == [1]
    shown = json.loads(told(capfd, "show", f"{MODEL}/2", "--json", "--conversation"))
    assert (shown["type"], shown["source"], shown["status"], shown["held"]) == ("attempt", SOURCE, "correct", True)
    assert [a["number"] for a in shown["ancestors"]] == [1]
    assert [m["role"] for m in shown["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert json.loads(told(capfd, "show", f"{FILES}/1", "--json", "--conversation"))["messages"] is None
    assert json.loads(told(capfd, "show", FILES, "--json", "--conversation"))["conversations"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["runs", "--task", "sofmax"], "did you mean softmax?"),
        (["runs", "--model", "gpt"], "known: "),
        (["runs", "--verdict", "wrnog"], "did you mean wrong?"),
        (["runs", "--min-speedup", "nan"], "above 0"),
        (["runs", "--min-speedup", "fast"], "min-speedup"),
        (["runs", "--limit", "0"], "at least 1"),
        (["runs", "--limit", "all"], "limit"),
        (["runs", "--taks", "softmax"], "--task"),
        (["show"], "NAME"),
        (["show", "nothing"], "no run 'nothing'"),
        (["show", ""], "could be 2 runs"),
        (["show", f"{MODEL}/9"], "which has 2"),
        (["show", f"{MODEL}/2", "--verdict", "wrong"], "choose attempts of a run"),
        (["show", MODEL, "--verdict", "wrnog"], "did you mean wrong?"),
        (["show", f"{MODEL}/1", "--receipt"], "no receipt of"),
        (["show", f"{FILES}/1", "--conversation"], "not written in a conversation"),
        (["show", FILES, "--conversation"], "held no conversation"),
        (["merge"], "at least one OTHER.db"),
        (["merge", "nowhere.db"], "nowhere.db: no such file"),
        (["merge", "runs/runs.db"], "of this runs directory itself"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    here: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, out, err = run(capfd, *arguments)
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1), err
    assert words.lower() in err.lower()


def test_a_terminal_gets_colour_and_nothing_that_it_would_obey(folder: Path) -> None:
    for arguments in (
        ["show", f"{MODEL}/2"],
        ["show", f"{MODEL}/1"],
        ["show", f"{MODEL}/2", "--source"],
        ["show", MODEL],
    ):
        shown = on_a_terminal(folder, *arguments)
        assert "\x1b[" in shown
        assert not {"\x07", "\u202e"} & set(shown)
        assert "\x1b]0" not in shown
        assert "\x1b[2J" not in shown


def on_a_terminal(folder: Path, *arguments: str, columns: int = 100) -> str:
    """What a terminal is sent."""
    ours, theirs = pty.openpty()
    more = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": f"{columns}"}
    with subprocess.Popen(
        warm.command(*arguments), cwd=folder, env=env() | more, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        chunks = []
        with contextlib.suppress(OSError):  # the end of a terminal
            while select.select([ours], [], [], 60)[0] and (chunk := os.read(ours, 65536)):
                chunks.append(chunk)
    os.close(ours)
    assert child.returncode == 0, chunks
    return b"".join(chunks).decode()


@pytest.mark.parametrize("columns", [80, 60])
def test_tables_fit_a_window_of_80_columns_and_leave_out_what_matters_least(folder: Path, columns: int) -> None:
    for arguments in (["runs"], ["tasks"], ["tasks", "causal_attention"], ["show", MODEL], ["show", f"{MODEL}/2"]):
        shown = on_a_terminal(folder, *arguments, columns=columns)
        lines = [re.sub("\x1b\\[[0-9;]*m", "", line).rstrip() for line in shown.splitlines()]
        assert max(map(len, lines)) <= columns
        assert any(len(line) > columns // 2 for line in lines)
    assert re.search(rf"{MODEL} .*#2 134.5 µs, 1.12x", on_a_terminal(folder, "runs", columns=80))


def test_two_attempts_of_a_run_are_compared(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = told(capfd, "show", f"{MODEL}/2", "--against", "1").splitlines()
    assert lines[0].split() == ["#1", "#2"]
    assert lines[2].split() == ["verdict", "✗", "wrong", "✔", "correct"]
    assert "--- " + f"{MODEL}/1" in lines
    diff = told(capfd, "show", f"{MODEL}/2", "--against", "1", "--diff")
    assert diff.startswith(f"--- {MODEL}/1\n+++ {MODEL}/2\n")
    found = json.loads(told(capfd, "show", f"{MODEL}/2", "--against", f"{FILES}/1", "--json"))
    assert [a["attempt_id"] for a in found["attempts"]] == [f"{FILES}/1", f"{MODEL}/2"]
    assert found["diff"].startswith(f"--- {FILES}/1\n")


def test_a_reader_that_goes_away_does_not_hurt(folder: Path) -> None:
    for arguments in (["show", f"{MODEL}/2"], ["show", f"{MODEL}/2", "--source"], ["runs"]):
        shell = " ".join([f"'{part}'" for part in warm.command(*arguments)])
        done = subprocess.run(["bash", "-c", f"{shell} | true"], cwd=folder, env=env(), capture_output=True, text=True)
        assert done.stderr == ""


def test_merging_brings_runs_receipts_and_best_kernels_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    other, lay_there = str(folder / "runs"), sorted((folder / "runs").rglob("*"))
    would = told(capfd, "merge", other, "--dry-run")
    assert f"{other}: 2 new runs, 0 went on, 0 known already, 0 left out; 3 attempts" in would
    assert "and 2 files would come" in would
    assert told(capfd, "runs") == "no runs yet in runs; start one with: optimize --task softmax\n"
    assert "and 2 files came" in told(capfd, "merge", f"{other}/{FILE_NAME}")
    assert (tmp_path / "runs" / MODEL / "best.py").read_text() == "# best\n"
    (tmp_path / "runs" / MODEL / "best.py").write_text("# mine\n")
    (again,) = json.loads(told(capfd, "merge", other, "--json"))["databases"]
    assert (again["new"], again["same"], again["events"], again["files"]) == ([], [MODEL, FILES], 0, 0)
    assert (tmp_path / "runs" / MODEL / "best.py").read_text() == "# mine\n"
    assert told(capfd, "show", f"{MODEL}/2", "--receipt") == '{"statement": "right"}\n'
    assert sorted((folder / "runs").rglob("*")) == lay_there


def test_receipts_of_verifications_on_two_machines_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    events = model_run()
    for name in ("runs", "theirs"):
        with Store.open(tmp_path / name) as store:
            store.write_all(events)
        (tmp_path / name / MODEL / "receipts").mkdir(parents=True)
        (tmp_path / name / MODEL / "receipts" / "2.verify-1.json").write_text(name)
    for _ in range(2):
        told(capfd, "merge", "theirs")
    found = verify_paths(tmp_path / "runs" / MODEL / "receipts" / "2.json")
    assert [path.read_text() for path in found] == ["runs", "theirs"]


def test_one_that_cannot_be_read_does_not_keep_the_others_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.db").write_text("not a database, though long enough to look at" * 99)
    code, out, err = run(capfd, "merge", "text.db", str(folder / "runs"), "missing.db")
    assert (code, len(err.splitlines()), len(out.splitlines())) == (2, 2, 1)
    assert "text.db: file is not a database" in err
    assert "2 new runs" in out


def test_a_run_that_contradicts_ours_is_named_and_gives_exit_code_1(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(tmp_path / "runs") as store:
        store.write(replace(started(MODEL), seed=7))
    code, out, err = run(capfd, "merge", str(folder / "runs"))
    assert (code, len(err.splitlines())) == (1, 1)
    assert f"run {MODEL} is left out: two different runs have this id" in err
    assert "1 new run, 0 went on, 0 known already, 1 left out" in out
    assert not (tmp_path / "runs" / MODEL).exists()


def test_a_run_s_id_cannot_lead_files_out_of_the_runs_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for i, run_id in enumerate(("../outside", ".", "..", ".hidden", "", "nul\0", "a" * 300)):
        with Store.open(tmp_path / "theirs") as store:
            store.write(started(run_id, f"task{i}"))
        with contextlib.suppress(OSError, ValueError):
            (tmp_path / "theirs" / run_id).mkdir(exist_ok=True)
            (tmp_path / "theirs" / run_id / "best.py").write_text("# theirs\n")
    code, out, err = run(capfd, "merge", "theirs")
    assert code == 1
    assert "0 new runs" in out
    assert (out + err).count("its id is no name of a folder") == 7
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [FILE_NAME]


def test_a_link_in_another_s_runs_directory_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(tmp_path / "theirs") as store:
        store.write(started(MODEL))
    (tmp_path / "secret").write_text("x")
    (tmp_path / "theirs" / MODEL / "receipts").mkdir(parents=True)
    (tmp_path / "theirs" / MODEL / "best.py").symlink_to(tmp_path / "secret")
    (tmp_path / "theirs" / MODEL / "receipts" / "1.json").symlink_to(tmp_path / "secret")
    assert "0 files came" in told(capfd, "merge", "theirs")


def test_the_case_that_failed_worst_comes_first() -> None:
    cases = [CaseResult(n, "own", ok, ratio, 0.0) for n, ok, ratio in CASES]
    assert [c.case for c in worst(cases)] == ["nan", "bad", "less", "near", "far"]


CASES = (
    ("near", True, 0.9),
    ("bad", False, 9.0),
    ("far", True, 0.1),
    ("nan", False, float("nan")),
    ("less", False, 2.0),
)


def test_the_help_of_each_command_shows_examples(tmp_path: Path) -> None:
    for name in ("runs", "show", "merge"):
        done = optimize(name, "--help", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"optimize {name} " in done.stdout.partition("Examples:")[2]
    assert not (tmp_path / "runs").exists()


def test_a_database_that_is_damaged_is_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store.open(tmp_path / "runs") as store:
        store.write(started(MODEL))
        store.write(attempt(1, MODEL)[0])
    with contextlib.closing(sqlite3.connect(tmp_path / "runs" / FILE_NAME)) as connection:
        connection.execute("UPDATE texts SET data = x'00'")
        connection.commit()
    code, out, err = run(capfd, "show", f"{MODEL}/1")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "see that the disk and the file are in order" in err
