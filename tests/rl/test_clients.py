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

    def do_POST(self) -> None:
        type(self).calls += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"error": "not now"}).encode()
        self.send_response(self.status)
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


@pytest.mark.parametrize("status", [500, 503, 401, 409])
def test_a_fault_of_the_service_s_is_no_reward(answers: type[_Answers], status: int) -> None:
    answers.status = status
    assert service_module().reward_of("x", "softmax") is None


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


@pytest.mark.train
@pytest.mark.timeout(900)
@pytest.mark.skipif(not VENVS, reason="KERNELTUNE_TRAINERS names no folder with an environment for each trainer")
@pytest.mark.parametrize("words", [[], ["down"]], ids=["there", "down"])
@pytest.mark.parametrize("loop", ["trl", "trl-turns", "verl", "verifiers", "openenv", "inspect"])
def test_a_trainer_s_own_loop_gets_its_rewards(loop: str, words: list[str], tmp_path: Path) -> None:
    python = Path(VENVS) / loop.partition("-")[0] / "bin" / "python"
    rows = tmp_path / "rows.jsonl"
    with served(tmp_path) as service:
        create = {"task": "softmax", "language": "triton", "reference_code": None}
        extra = {
            "module_name": "softmax",
            "type": "builtin",
            "uuid": "1",
            "tools_kwargs": {"bench": {"create_kwargs": create}},
        }
        prompt = [{"role": "system", "content": "You write kernels."}, {"role": "user", "content": "Task softmax."}]
        row = {
            "data_source": "kerneltune",
            "prompt": prompt,
            "reward_model": {"style": "rule", "ground_truth": REFERENCE},
        }
        rows.write_text(json.dumps(row | {"extra_info": extra}) + "\n")
        done = subprocess.run(
            [str(python), str(ROOT / "benchmarks" / "trainers.py"), loop, str(rows), *words],
            env=os.environ | {"KERNELTUNE_SERVICE": f"unix:{service.path}", "PYTHONPATH": str(FOLDER)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert f"{loop}: passed" in done.stdout
