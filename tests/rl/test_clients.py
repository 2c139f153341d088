"""What trainers import: small, of the standard library and their own package, and a fault of ours is never a reward."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.agent.shell import ROOT
from tests.agent.test_serve import BROKEN, REFERENCE, RIGHT, served

FOLDER = ROOT / "kerneltune" / "rl"
CLIENTS = sorted(FOLDER.glob("*.py"))
TRAINERS = {"kernel_verl": "verl", "kernel_trl": "", "kernel_trl_turns": "trl torch", "kernel_verifiers": "verifiers",
            "kernel_openenv": "openenv", "kernel_inspect": "inspect_ai", "kernel_service": ""}  # fmt: skip
VENVS = os.environ.get("KERNELTUNE_TRAINERS", "")


def test_every_client_is_a_hundred_lines_of_the_standard_library_and_its_trainer() -> None:
    assert {path.stem for path in CLIENTS} == set(TRAINERS)
    for path in CLIENTS:
        text = path.read_text()
        assert text.count("\n") <= 100, path.name
        nodes = list(ast.walk(ast.parse(text)))
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
        roots = {name.partition(".")[0] for name in names}
        assert roots - sys.stdlib_module_names - {"kernel_service"} == set(TRAINERS[path.stem].split()), path.name


def service_module() -> Any:
    spec = importlib.util.spec_from_file_location("kernel_service", FOLDER / "kernel_service.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


class _Answers(BaseHTTPRequestHandler):
    status, calls = 500, 0
    sessions = 0  # that are open, of a service that begins and ends them, and has a fault in every other request

    def do_POST(self) -> None:
        type(self).calls += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        begins = self.status == 500 and self.path == "/sessions"
        type(self).sessions += begins
        self._answer(200 if begins else self.status, {"session": "a"} if begins else {"error": "not now"})

    def do_DELETE(self) -> None:
        type(self).sessions -= 1
        self._answer(200, {})

    def _answer(self, status: int, told: dict[str, str]) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Answers]]:
    """A service that answers everything with one status."""

    class Answers(_Answers):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("KERNELTUNE_SERVICE", f"http://:token@127.0.0.1:{server.server_port}")
        yield Answers
        server.shutdown()


@pytest.mark.parametrize("status", [500, 503, 401, 404, 409])
def test_a_fault_of_the_service_s_is_no_reward(answers: type[_Answers], status: int) -> None:
    answers.status = status
    assert service_module().reward_of("x", "softmax") is None
    assert answers.sessions == 0  # each that was begun was ended, too


def test_a_service_that_is_not_there_is_no_reward(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELTUNE_SERVICE", f"unix:{tmp_path}/none.sock")
    assert service_module().reward_of("x", "softmax") is None


def test_a_request_that_makes_no_sense_is_told_and_a_full_service_is_asked_again(answers: type[_Answers]) -> None:
    service = service_module()
    answers.status = 400
    with pytest.raises(ValueError, match="not now"):
        service.reward_of("x", "softmax")
    answers.status, answers.calls = 429, 0
    with pytest.raises(service.Fault, match="429"):
        service.ask("POST", "/sessions", {}, timeout_s=2.5)
    assert answers.calls > 1


def test_answers_that_make_the_same_file_are_judged_once(answers: type[_Answers], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: verl\n  data_files: verl.jsonl\n---\n")
    create = {"task": "softmax", "task_sha256": "of softmax", "language": "triton"}
    extra = {"type": "builtin", "tools_kwargs": {"bench": {"create_kwargs": create}}}
    (tmp_path / "verl.jsonl").write_text(json.dumps({"extra_info": extra, "reward_model": {"ground_truth": ""}}))
    judge = """
from pathlib import Path
from data import all_judged
print(all_judged(Path.cwd(), [({"task_sha256": "of softmax"}, text) for text in "xyxx"]))
"""
    path = os.pathsep.join([str(FOLDER), str(ROOT / "recipes")])
    environment = os.environ | {"PYTHONPATH": path, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", judge], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[None, None, None, None]\n"  # this service has nothing but faults
    assert answers.calls == 4  # of two files, a session each and a call in it
    assert answers.sessions == 0


WHAT = """
import json, sys
import kernel_service as service
right, broken, reference = json.loads(sys.stdin.read())
wanted = {"reference_code": reference, "reward": "stages"}
answers = (f"Here:\\n```python\\n{text}\\n```\\nDone." for text in (right, broken, "I cannot."))
worth = [service.reward_of(answer, **wanted) for answer in answers]
path = service.begin(**wanted)["path"]
assert service.outcome(path)["reward"] == 0.0  # nothing was tried
first = service.call(path, "update", {"rationale": "a", "source": broken})
second = service.call(path, "update", {"rationale": "b", "source": right})
assert (first["reward"], second["reward"]) == (0.0, None), (first, second)
told = service.outcome(path)  # what was not benched is
service.close(path)
ours = sorted(name for name in sys.modules if name.startswith(("kerneltune", "torch")))
print(json.dumps([worth, told, ours]))
"""


def test_a_process_with_nothing_of_ours_gets_rewards_of_the_service(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        done = subprocess.run(
            [sys.executable, "-S", "-c", WHAT],
            input=json.dumps([RIGHT, BROKEN["source"], REFERENCE]),
            env={"KERNELTUNE_SERVICE": f"unix:{service.path}", "PYTHONPATH": str(FOLDER)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        worth, told, ours = json.loads(done.stdout)
        with service.client() as client:
            metrics = client.get("/metrics").text
    assert worth == [1.0, 0.0, 0.0]
    assert told["reward"] == 1.0
    assert [(turn["attempts"], turn["reward"], turn["return"]) for turn in told["turns"]] == [
        ([1], 0.0, 0.4),
        ([2], 1.0, 1.0),
    ]
    assert ours == []
    assert 'kerneltune_refusals_total{cause="source"} 1' in metrics


HALF = """
import json, sys
import kernel_service as service
path = service.begin(reference_code=sys.stdin.read())["path"]
told = service.call(path, "update", json.loads('{"rationale": "half of a smile: \\\\ud83d", "source": ""}'))
print(told["text"])
"""


def test_half_a_character_in_the_words_of_a_policy_ends_no_training(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        done = subprocess.run(
            [sys.executable, "-S", "-c", HALF],
            input=REFERENCE,
            env={"KERNELTUNE_SERVICE": f"unix:{service.path}", "PYTHONPATH": str(FOLDER)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert "`source` is empty" in done.stdout


ANEW = """
import sys
from kernel_trl import KernelEnv
create = {"task": "softmax", "language": "triton"}
row = {"extra_info": {"type": "kernelbench", "tools_kwargs": {"bench": {"create_kwargs": create}}},
       "reward_model": {"ground_truth": sys.stdin.read()}}
environments = [KernelEnv(), KernelEnv()]
for generation in range(3):
    for environment in environments:
        environment.reset(**row)
"""


def test_an_environment_that_begins_anew_gives_the_place_of_its_rollout_back(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        subprocess.run(
            [sys.executable, "-S", "-c", ANEW],
            input=REFERENCE,
            env={"KERNELTUNE_SERVICE": f"unix:{service.path}", "PYTHONPATH": str(FOLDER)},
            text=True,
            check=True,
        )
        with service.client() as client:
            metrics = client.get("/metrics").text
    assert "kerneltune_sessions 2\n" in metrics  # of the third generation


SPEECHES = """
import json, sys
from kernel_trl import KernelEnv
reference, one, other = json.loads(sys.stdin.read())
create = {"task": "softmax", "language": "triton"}
environment = KernelEnv()
environment.reset(extra_info={"type": "kernelbench", "tools_kwargs": {"bench": {"create_kwargs": create}}},
                  reward_model={"ground_truth": reference})
update, bench = environment.update, environment.bench
for calls in (
    [lambda: update(one, "an attempt"), lambda: bench(1)],
    [],  # the trainer refuses its call
    [lambda: update(one, "the same")],
    [lambda: bench(1), lambda: update(other, "another"), lambda: bench(2)],
):
    environment.speech += 1
    for call in calls:
        call()
environment.get_reward()
print(json.dumps([environment.ends, [turn["attempts"] for turn in environment.turns]]))
"""


def test_a_turn_ends_with_the_speech_that_made_a_new_attempt_however_many_calls_there_were(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        done = subprocess.run(
            [sys.executable, "-S", "-c", SPEECHES],
            input=json.dumps([REFERENCE, BROKEN["source"], RIGHT]),
            env={"KERNELTUNE_SERVICE": f"unix:{service.path}", "PYTHONPATH": str(FOLDER)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert json.loads(done.stdout) == [[0, 3], [[1], [2]]]


VERL = {"base_tool": "class BaseTool: pass", "schemas": "class ToolResponse: pass"}  # what is imported of it
SCORE = """
from kernel_service import Fault
from kernel_verl import compute_score
for rewards in ([0.0, 1.0, float("nan")], [0.0, 0.0], [float("nan")] * 2, [0.0, float("nan")]):
    try:
        print(compute_score("kerneltune", "Done.", "", {"tool_rewards": rewards}))
    except Fault as error:
        print(error)
"""


def test_calls_of_a_tool_that_had_no_answer_make_no_zero(answers: type[_Answers], tmp_path: Path) -> None:
    (tmp_path / "verl" / "tools").mkdir(parents=True)
    for name, text in VERL.items():
        (tmp_path / "verl" / "tools" / f"{name}.py").write_text(text)
    told = subprocess.run(
        [sys.executable, "-S", "-c", SCORE],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(FOLDER), str(tmp_path)])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    unknown = "nobody knows what the 2 calls of the tool are worth"
    assert (told, answers.calls) == (["1.0", "0.0", unknown, "0.0"], 0)


def looped(loop: str, folder: Path, service: str, *words: str) -> None:
    """Let a trainer's own loop run in its environment."""
    python, rows = Path(VENVS) / loop.partition("-")[0] / "bin" / "python", folder / "rows.jsonl"
    create = {"task": "softmax", "language": "triton", "reference_code": None}
    kwargs = {"bench": {"create_kwargs": create}}
    extra = {"module_name": "softmax", "type": "builtin", "uuid": "1", "tools_kwargs": kwargs}
    prompt = [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": "Task softmax."}]
    row = {"data_source": "kerneltune", "prompt": prompt, "extra_info": extra}
    rows.write_text(json.dumps(row | {"reward_model": {"style": "rule", "ground_truth": REFERENCE}}) + "\n")
    done = subprocess.run(
        [str(python), str(ROOT / "benchmarks" / "trainers.py"), loop, str(rows), *words],
        env=os.environ | {"KERNELTUNE_SERVICE": service, "PYTHONPATH": str(FOLDER)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"{loop}: passed" in done.stdout


needs_trainers = pytest.mark.skipif(
    not VENVS, reason="KERNELTUNE_TRAINERS names no folder with an environment for each trainer"
)


@pytest.mark.train
@pytest.mark.timeout(900)
@needs_trainers
@pytest.mark.parametrize("words", [[], ["down"]], ids=["there", "down"])
@pytest.mark.parametrize("loop", ["trl", "trl-turns", "verl", "verifiers", "openenv", "inspect"])
def test_a_trainer_s_own_loop_gets_its_rewards(loop: str, words: list[str], tmp_path: Path) -> None:
    with served(tmp_path) as service:
        looped(loop, tmp_path, f"unix:{service.path}", *words)


@pytest.mark.train
@pytest.mark.timeout(900)
@needs_trainers
@pytest.mark.parametrize("loop", ["verifiers", "inspect"])
def test_a_rollout_whose_reward_cannot_be_had_gives_its_place_back(
    answers: type[_Answers], loop: str, tmp_path: Path
) -> None:
    looped(loop, tmp_path, os.environ["KERNELTUNE_SERVICE"], "faulty")
    assert (answers.calls > 1, answers.sessions) == (True, 0)
