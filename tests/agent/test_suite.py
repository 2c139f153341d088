"""`optimize suite` and `optimize eval` as a person types them, on small tasks without a GPU."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import judges_of
from kerneltune.agent.commands.suite import Asked, left_out_in_words, parsed_weights, suite_name
from kerneltune.agent.events import Proposed, RunStarted
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.task.folder import LeftOut
from tests.agent import warm
from tests.agent.models.server import LlmServer
from tests.agent.models.story import Fault
from tests.agent.shell import ROOT, SOFTMAX, command, env, optimize

STORY = f"scripted:{ROOT / 'tests' / 'agent' / 'stories' / 'softmax.jsonl'}"
RIGHT = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
"""


def tasks(folder: Path, *names: str) -> Path:
    """A folder of tasks that differ in a comment alone."""
    made = folder / "tasks"
    made.mkdir()
    for name in names:
        (made / f"{name}.py").write_text(f"# {name}\n{Path(SOFTMAX).read_text()}")
    return made


def told(stdout: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.splitlines()]


def attempts_of(folder: Path) -> dict[tuple[str, str], list[int]]:
    """The numbers of the attempts that have a verdict, by task and author."""
    with Store.open(folder / "runs") as store:
        runs = {run_id: store.load_run(run_id) for run_id in store.run_ids()}
        return {(r.task, r.author): [a.number for a in store.attempts(run_id)] for run_id, r in runs.items()}


@dataclass(frozen=True)
class Ran:
    """A suite of three tasks and two authors that came to its end: the folder, and what the first command printed."""

    folder: Path
    arguments: tuple[str, ...]
    first: "subprocess.CompletedProcess[str]"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("suite")
    tasks(folder, "a1", "a2", "a10")
    (folder / "tasks" / "helper\x1b[2J.py").write_text("")
    arguments = ("suite", "tasks", "--authors", f"offline,{STORY}", "--max-attempts", "8", "--json")
    return Ran(folder, arguments, optimize(*arguments, cwd=folder, timeout_s=300))


def test_each_task_and_author_is_a_stored_run_and_the_budget_is_kept(ran: Ran) -> None:
    assert ran.first.returncode == 0, ran.first.stderr
    made = attempts_of(ran.folder)
    assert made == {
        ("a1", "offline"): [1, 2], ("a1", STORY): [1, 2],
        ("a2", "offline"): [1], ("a2", STORY): [1], ("a10", "offline"): [1], ("a10", STORY): [1],
    }  # fmt: skip
    with Store.open(ran.folder / "runs") as store:
        started = [store.load_run(run_id) for run_id in store.run_ids()]
    assert {event.limits["suite"] for event in started} == {"tasks"}
    assert {event.limits["from"] for event in started} == {"nothing"}  # no author begins with another's kernel


def test_its_json_has_each_event_once_and_ends_in_what_it_came_to(ran: Ran) -> None:
    *lines, last = told(ran.first.stdout)
    proposed = Counter(line["attempt_id"] for line in lines if line["type"] == "proposed")
    assert (len(proposed), set(proposed.values())) == (8, {1})
    assert sum(line["type"] == "result" for line in lines) == 8  # turns
    assert (last["type"], last["subtype"], last["suite"], last["unsolved"]) == ("suite", "success", "tasks", [])
    assert [(r["task"], r["shares"]) for r in last["runs"]] == [
        ("a1", 2), ("a1", 2), ("a2", 1), ("a2", 1), ("a10", 1), ("a10", 1),
    ]  # fmt: skip
    shares = {name: its["fast_p"] for name, its in last["authors"].items()}
    assert shares == {
        "offline": {"first": {"0": [1.0, 1.0]}, "best": {"0": [1.0, 1.0]}},
        STORY: {"first": {"0": [0.0, 0.0]}, "best": {"0": [0.0, 0.0]}},
    }
    assert [Path(one["path"]).name for one in last["left_out"]] == ["helper\x1b[2J.py"]
    assert "\x1b" not in ran.first.stderr
    assert "left out: tasks/helper.py: no task file" in ran.first.stderr


def test_the_same_command_again_has_nothing_left_to_do(ran: Ran) -> None:
    with Store.open(ran.folder / "runs") as store:
        before = store.last_seq()
    again = optimize(*ran.arguments, cwd=ran.folder)
    assert again.returncode == 0, again.stderr
    (line,) = told(again.stdout)
    assert {**line, "elapsed_s": 0} == {**told(ran.first.stdout)[-1], "elapsed_s": 0}
    with Store.open(ran.folder / "runs") as store:
        assert store.last_seq() == before


def test_a_report_is_made_of_its_name(ran: Ran) -> None:
    done = optimize("report", "tasks", "--suite", "-o", "-", cwd=ran.folder)
    assert done.returncode == 0, done.stderr
    page = " ".join(re.sub("<[^>]*>", " ", done.stdout).split())
    assert "3 of 6 runs of 3 tasks have a kernel that was found right; none was timed." in page
    assert re.search(r"offline 3 100% 100% none", page)


def interrupted(
    folder: Path,
    words: list[str],
    number: int,
    by: signal.Signals,
    meanwhile: Callable[[], None] = lambda: None,
    hit: Callable[[int], list[int]] = lambda pid: [pid],
) -> tuple[int, str, str]:
    """Exit code, the rest of stdout and stderr of a suite that is hit at its attempt of that number, or processes of
    its. `meanwhile`: what is done before that."""
    with subprocess.Popen(
        words, cwd=folder, env=env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = 0
        for line in process.stdout:
            seen += json.loads(line)["type"] == "proposed"
            if seen == number:
                meanwhile()
                for pid in hit(process.pid):
                    os.kill(pid, by)
                break
        rest, errors = process.stdout.read(), process.stderr.read()
    return process.returncode, rest, errors


def test_kill_9_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    tasks(tmp_path, "a1", "a2")
    words = ("suite", "tasks", "--authors", "offline", "--max-attempts", "4", "--json")
    code, _, _ = interrupted(tmp_path, command(*words), 2, signal.SIGKILL)
    assert code == -signal.SIGKILL
    before = attempts_of(tmp_path)
    done = optimize(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = attempts_of(tmp_path)
    assert {key: sorted(numbers) for key, numbers in after.items()} == {
        ("a1", "offline"): [1, 2],
        ("a2", "offline"): [1, 2],
    }
    assert before.items() <= {key: numbers[: len(before.get(key, []))] for key, numbers in after.items()}.items()
    with Store.open(tmp_path / "runs") as store:
        events = [event for run_id in store.run_ids() for event in store.load_events(run_id)]
    assert sum(isinstance(event, RunStarted) for event in events) == 2
    assert sum(isinstance(event, Proposed) for event in events) == 4


def test_a_killed_judge_ends_the_turn_of_its_task_and_not_the_suite(tmp_path: Path) -> None:
    tasks(tmp_path, "a1", "a2")
    words = ("suite", "tasks", "--authors", "offline", "--max-attempts", "2", "--json")
    alone = [sys.executable, "-c", "from kerneltune.agent.cli import main; main()", *words]  # its workers are its own
    code, rest, errors = interrupted(tmp_path, alone, 1, signal.SIGKILL, hit=judges_of)
    assert code == 1, errors
    ended = told(rest)[-1]
    assert "as the system does when memory runs out" in ended["not_opened"].pop("a1")
    assert ended["not_opened"] == {}
    assert attempts_of(tmp_path)["a2", "offline"] == [1, 2]  # a1's share as well
    more = ["4" if word == "2" else word for word in words]
    done = optimize(*more, cwd=tmp_path)  # again: what was left out has another chance
    assert done.returncode == 0, done.stderr
    assert len(attempts_of(tmp_path)["a1", "offline"]) == 2


def test_what_a_turn_had_come_to_when_its_judge_was_killed_counts(tmp_path: Path) -> None:
    tasks(tmp_path, "a1")
    words = ("suite", "tasks", "--authors", "offline", "--max-attempts", "6", "--width", "1", "--json")
    alone = [sys.executable, "-c", "from kerneltune.agent.cli import main; main()", *words]  # its workers are its own
    _, rest, errors = interrupted(tmp_path, alone, 2, signal.SIGKILL, hit=judges_of)
    ended = told(rest)[-1]
    assert "a1" in ended["not_opened"], errors
    (run,) = ended["runs"]
    with Store.open(tmp_path / "runs") as store:
        (run_id,) = store.run_ids()
        stored = store.run_summary(run_id)
    assert stored is not None
    assert stored.accepted > 0
    assert (run["run_id"], run["attempts"], run["accepted"]) == (run_id, stored.attempts, stored.accepted)
    assert ended["unsolved"] == []


def test_ctrl_c_ends_it_with_the_command_that_goes_on(tmp_path: Path) -> None:
    tasks(tmp_path, "a1", "a2")
    words = ("suite", "tasks", "--authors", "offline", "--max-attempts", "4", "--json")
    again: list[subprocess.CompletedProcess[str]] = []
    code, rest, errors = interrupted(
        tmp_path, warm.command(*words), 1, signal.SIGINT, lambda: again.append(optimize(*words, cwd=tmp_path))
    )
    assert [(second.returncode, second.stdout) for second in again] == [(2, "")]
    assert re.search(r"suite tasks is under way in process \d+; wait for it, or give --name", again[0].stderr)
    assert code == 130
    last = told(rest)[-1]
    assert (last["type"], last["subtype"], last["why"]) == ("suite", "interrupted", "interrupted")
    assert errors.splitlines()[-1].endswith(f"the same command goes on: optimize {' '.join(words)}")


def test_samples_are_runs_of_their_own_and_make_pass_at_k(tmp_path: Path) -> None:
    tasks(tmp_path, "a1")
    calls = [{"name": "update", "arguments": {"parent": None, "rationale": "rows", "source": RIGHT}}]
    calls.append({"name": "bench", "arguments": {"attempt": 1}})
    (tmp_path / "right.jsonl").write_text(json.dumps({"calls": calls}) + "\n")
    done = optimize(
        "eval", "--model", "scripted:right.jsonl", "--suite", "tasks", "--samples", "2", "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    last = told(done.stdout)[-1]
    assert [(run["seed"], run["attempts"], run["accepted"]) for run in last["runs"]] == [(0, 1, 1), (1, 1, 1)]
    assert len({run["run_id"] for run in last["runs"]}) == 2
    passed = last["authors"]["scripted:right.jsonl"]["pass_at_k"]
    assert passed == {k: {"value": 1.0, "low": pytest.approx(0.2065, abs=1e-4), "high": 1.0} for k in ("1", "2")}


def test_each_sample_of_a_server_that_takes_seeds_is_asked_with_seeds_of_its_own_and_always_the_same(
    tmp_path: Path,
) -> None:
    tasks(tmp_path, "a1")
    words = ("eval", "--model", "chat:local", "--suite", "tasks", "--samples", "2", "--attempts", "2", "--json")
    calls = [{"name": "update", "arguments": {"parent": None, "rationale": "rows", "source": RIGHT}}]
    drawn: list[list[int]] = []
    for name in ("first", "again"):
        with LlmServer([{"calls": calls}] * 9, "chat") as server:
            done = optimize(
                *words, "--base-url", server.url, "--name", name,
                cwd=tmp_path, more_env={"KERNELTUNE_API_KEY": server.key},
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        drawn.append([one.body["seed"] for one in server.asked])
    assert len(drawn[0]) >= 4
    assert len(set(drawn[0])) == len(drawn[0])  # never the same reply to the same prompt
    assert drawn[0] == drawn[1]
    with Store.open(tmp_path / "runs") as store:
        began = [store.load_run(run["run_id"]) for run in told(done.stdout)[-1]["runs"]]
    assert [(event.seed, event.limits["seeds_model"]) for event in began] == [(0, True), (1, True)]


def test_an_author_that_no_longer_answers_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    tasks(tmp_path, "a1", "a2")
    (tmp_path / "tasks" / "broken.py").write_text(Path(SOFTMAX).read_text().replace("torch.softmax", "torch.sofmax"))
    story = [{"calls": [{"name": "update", "arguments": {"parent": None, "rationale": "rows", "source": RIGHT}}]}]
    with LlmServer(story, "chat", faults={1: Fault("status", 401)}) as server:
        done = optimize(
            "suite", "tasks", "--authors", "chat:local,offline", "--base-url", server.url, "--max-attempts", "6",
            "--json", cwd=tmp_path, more_env={"KERNELTUNE_API_KEY": server.key},
        )  # fmt: skip
    assert done.returncode == 3, done.stderr
    last = told(done.stdout)[-1]
    assert (last["subtype"], last["why"], last["unsolved"]) == ("error", "no_access", ["broken"])
    assert list(last["not_opened"]) == ["broken"]
    runs = {(run["task"], run["author"]): run for run in last["runs"]}
    assert runs["a2", "chat:local"]["run_id"] is None
    assert [runs[task, "offline"]["accepted"] for task in ("a1", "a2")] == [3, 2]
    assert "the same command goes on: optimize suite tasks" in done.stderr.splitlines()[-1]


def test_dollars_that_buy_no_reply_end_it_at_once(tmp_path: Path) -> None:
    tasks(tmp_path, "a1", "a2")
    with LlmServer([], "anthropic") as server:
        done = optimize(
            "suite", "tasks", "--authors", "anthropic:claude-opus-5-5", "--base-url", server.url, "--max-cost", "0.002",
            "--plain", cwd=tmp_path, more_env={"ANTHROPIC_API_KEY": server.key},
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert server.asked == []
    assert done.stderr.count("right, best nothing yet (a request costs more than its share)") == 2
    assert re.search(r"a1 +anthropic:claude-opus-5-5 +0 +0 +nothing yet", done.stdout)


def test_samples_that_the_dollars_do_not_reach_are_not_drawn_and_it_is_said(tmp_path: Path) -> None:
    tasks(tmp_path, "a1", "a2")
    with LlmServer([], "anthropic") as server:
        done = optimize(
            "eval", "--model", "anthropic:claude-opus-5-5", "--suite", "tasks", "--base-url", server.url, "--max-cost",
            "0.002", "--plain", cwd=tmp_path, more_env={"ANTHROPIC_API_KEY": server.key},
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert re.search(r"a2 +anthropic:claude-opus-5-5 +0 +0 +not begun +-\n", done.stdout)
    assert "1 of 2 runs were not begun; the shares below are of the others" in done.stdout


# Before anything is started ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("suite",), "which tasks?"),
        (("suite", "sofmax"), "did you mean softmax"),
        (("suite", "softmax", "--seeds", "0"), "--seeds 0: give at least 1"),
        (("suite", "softmax", "--name", "../x"), "--name '../x'"),
        (("suite", "softmax", "--name", ".."), "--name '..'"),
        (("suite", "softmax", "--authors", "ofline"), "did you mean offline"),
        (("suite", "softmax", "--weights", "sofmax=2"), "no task 'sofmax' here"),
        (("suite", "softmax", "--authors", "replay:nobody"), "no run 'nobody'"),
        (("suite", "softmax", "row_sum", "--max-attempts", "1", "--authors", "offline"), "2 runs need at least 1 each"),
        (("suite", "softmax", "--authors", STORY, "--max-cost", "1"), "the price of scripted:"),
        (("eval", "--model", "offline", "--suite", "softmax", "--samples", "0"), "--samples 0: give at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = optimize(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (("builtin",), "builtin"),
        (("/x/KernelBench/level1", "softmax"), "level1-softmax"),
        (("/x/my tasks\x1b[2J/",), "my_tasks_2J"),
        (("/",), "suite"),
    ],
)
def test_a_suite_is_named_after_its_paths(paths: tuple[str, ...], name: str) -> None:
    assert suite_name(Asked(paths, ())) == name


def test_a_folder_of_other_things_is_told_in_few_lines() -> None:
    many = [LeftOut(f"/x/{number}.py", "no task") for number in range(9_000)]
    assert left_out_in_words(many) == ["x/0.py, x/1.py, x/2.py and 8997 more: no task"]
    told = left_out_in_words([LeftOut(f"/x/{number}.py", f"line {number}") for number in range(9_000)])
    assert (len(told), told[-1]) == (9, "and files for 8992 other reasons")


@pytest.mark.parametrize("text", ["softmax", "softmax=", "softmax=x", "softmax=0", "softmax=-1", "softmax=nan", "=1"])
def test_a_weight_is_a_task_and_a_number(text: str) -> None:
    with pytest.raises(UsageError, match="--weights"):
        parsed_weights(text, {"softmax"})
    assert parsed_weights("softmax=2, gelu=0.5", {"softmax", "gelu"}) == {"softmax": 2.0, "gelu": 0.5}
