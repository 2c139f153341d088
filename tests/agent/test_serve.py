"""The service as its clients meet it: a real process, a real socket, and clients of every kind."""

import asyncio
import contextlib
import errno
import io
import itertools
import json
import os
import select
import shutil
import signal
import socket
import socketserver
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.requests import Request

from kerneltune.agent.attempt import Controls
from kerneltune.agent.commands import kernelgym, service_socket
from kerneltune.agent.commands.bench import FilesView, bench_opened, from_bytes
from kerneltune.agent.commands.http_server import (
    ENDPOINTS,
    MOST_BODY_BYTES,
    MOST_CONNECTIONS,
    MOST_VALUES,
    HttpServer,
    HttpTimes,
    SessionBody,
    listen_to,
    openapi,
    refusal,
)
from kerneltune.agent.commands.serve import _on_unix
from kerneltune.agent.commands.service import (
    MOST_CALLS,
    MOST_RUNS,
    Busy,
    ClientRun,
    FairQueue,
    OpenTasks,
    Priority,
    Service,
    Turn,
)
from kerneltune.agent.commands.session import Patience, Session, Workshop, memory_is_short, session, workshop
from kerneltune.agent.events import Judged, RunEnded, RunResumed, Verified
from kerneltune.agent.models.types import ModelRequest, NoLongerWanted
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Environment, Settings, environment
from kerneltune.tools.bench import CpuBench
from kerneltune.tools.sandbox import workers
from kerneltune.tools.schema.errors import Unfit, UsageError
from kerneltune.tools.schema.messages import BASELINES
from kerneltune.tools.schema.verdict import evaluator_sha256
from kerneltune.tools.task.load import TaskFile, find_task
from tests.agent import warm
from tests.agent.shell import ROOT, SOFTMAX, env, optimize, process_tree

REFERENCE = Path(SOFTMAX).read_text()
BROKEN = json.loads((ROOT / "tests/agent/stories/softmax.jsonl").read_text().split("\n")[0])["calls"][0]["arguments"]
OVERFLOWS = BROKEN["source"].replace("tl.expo(v)", "tl.exp(v)")
RIGHT = BROKEN["source"].replace("tl.expo(v)", "tl.exp(v - tl.max(v, 0))")
NOBODY = Environment((), "", "", no_color=True, ci=True)
COLD = (sys.executable, "-c", "from kerneltune.agent.cli import main; main()")  # its fork servers are its own
ENDLESS = "while True:\n    pass\n"


@dataclass
class Served:
    """A service in a folder of its own, and a client of it."""

    folder: Path
    process: "subprocess.Popen[str]"
    place: str  # as the service said it

    @property
    def path(self) -> Path:
        return self.folder / self.place

    @property
    def pid(self) -> int:
        """Of the service itself."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.path))
            return int(struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])

    def client(self, timeout_s: float = 100) -> httpx2.Client:
        transport = httpx2.HTTPTransport(uds=str(self.path))
        return httpx2.Client(transport=transport, base_url="http://service", timeout=timeout_s)

    def ask(self, method: str, path: str, timeout_s: float = 100, **body: Any) -> Any:
        """The answer, which must be a good one."""
        with self.client(timeout_s) as client:
            answer = client.request(method, path, json=body or None)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def ask_lines(self, path: str, **body: Any) -> list[str]:
        """The lines of an answer."""
        with self.client() as client:
            return client.post(path, json=body).text.splitlines()

    def begin(self, **body: Any) -> str:
        """A new session's path."""
        return f"/sessions/{self.ask('POST', '/sessions', **({'reference_code': REFERENCE} | body))['session']}"

    def call(self, session: str, name: str, timeout_s: float = 100, **arguments: Any) -> Any:
        return self.ask("POST", f"{session}/call", timeout_s, name=name, arguments=arguments)

    def events(self, session: str, after: str = "") -> list[tuple[str, dict[str, Any]]]:
        """Ids and data of all events of a session that is over."""
        with self.client() as client:
            answer = client.get(f"{session}/events", headers={"last-event-id": after} if after else {})
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = [dict(line.split(": ", 1) for line in part.split("\n")) for part in answer.text.strip().split("\n\n")]
        return [(one["id"], json.loads(one["data"])) for one in told]


@contextlib.contextmanager
def served(
    folder: Path, *flags: str, more_env: dict[str, str] | None = None, words: Sequence[str] = ()
) -> Iterator[Served]:
    process = subprocess.Popen(
        [*(words or warm.command()), "serve", *flags],
        cwd=folder,
        env=env() | (more_env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving on "), line + (process.stderr.read() if process.stderr else "")
        yield Served(folder, process, line.split(maxsplit=2)[2].strip())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert "never retrieved" not in said


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "tasks").mkdir()
    with served(folder, "--root", "tasks") as started:
        yield started


@pytest.fixture
def begun(forked_workers: None) -> Iterator[workers.Workers]:
    with workers.begun() as begun:
        yield begun


def test_a_client_improves_a_kernel_by_calls_and_its_session_is_a_run_like_any_other(service: Served) -> None:
    begun = service.ask("POST", "/sessions", reference_code=REFERENCE, client="me")
    session = f"/sessions/{begun['session']}"
    assert "softmax" in begun["system"]
    assert {tool["name"] for tool in begun["tools"]} == {"update", "bench", "reflect", "look"}
    broken = service.call(session, "update", rationale="one program a row", source=BROKEN["source"])
    assert broken["attempt"]["status"] == "compile_failed"
    assert "no attribute 'expo'" in broken["text"]
    service.call(session, "update", parent=1, rationale="exp", edits=[{"search": "tl.expo(v)", "replace": "tl.exp(v)"}])
    assert service.call(session, "bench", attempt=2)["attempt"]["status"] == "wrong"
    service.call(session, "update", parent=2, rationale="subtract the maximum", source=RIGHT)
    right = service.call(session, "bench", attempt=3)
    assert right["attempt"]["status"] == "checked"
    assert right["attempt"]["median_us"] is None
    assert service.call(session, "sing")["is_error"]
    ended = service.ask("DELETE", session)
    assert ended["best"]["number"] == 3
    assert (service.folder / ended["best_path"]).read_text().count("tl.exp(v - tl.max(v, 0))") == 1

    run_id = begun["run_id"]
    shown = json.loads(optimize("show", run_id, "--json", cwd=service.folder).stdout)
    assert (shown["author"], shown["attempts"]) == ("http:me", 3)
    exported = optimize("export", "--format", "sft-chat", "-o", "rows", cwd=service.folder)
    assert exported.returncode == 0, exported.stderr

    for warps, client in ((4, "you"), (8, "me")):  # the second time an end and a resumption are told again
        again = service.ask("POST", "/sessions", resume=run_id, client=client)
        assert again["run_id"] == run_id
        assert [one["status"] for one in again["attempts"]][:3] == ["compile_failed", "wrong", "checked"]
        session, source = f"/sessions/{again['session']}", RIGHT.replace("s=2", f"s={warps}")
        made = service.call(session, "update", parent=3, rationale=f"{warps} warps", source=source)
        assert made["attempt"]["number"] == len(again["attempts"]) + 1
        service.ask("DELETE", session)
    with Store.open(service.folder / "runs", to_look=True) as store:
        resumed = [event for event in store.load_events(run_id) if isinstance(event, RunResumed)]
    assert [event.other_author for event in resumed] == ["http:you", ""]


def test_a_run_that_ended_by_itself_and_still_concludes_is_gone_on_with_once_it_has(service: Served) -> None:
    slow = RIGHT.replace("    e = tl.exp", "    for _ in range(2000):\n        v = v * 1.0\n    e = tl.exp")
    begun = service.ask("POST", "/sessions", reference_code=REFERENCE, limits={"max_time_s": 4})
    session = f"/sessions/{begun['session']}"
    service.call(session, "update", rationale="judged when the time is up", source=slow)
    while service.ask("GET", session)["doing"] != "checking attempt 1":
        time.sleep(0.02)
    again = service.ask("POST", "/sessions", resume=begun["run_id"])
    assert [one["status"] for one in again["attempts"]] == ["checked"]
    for name in (session, f"/sessions/{again['session']}"):
        service.ask("DELETE", name)


def test_a_session_in_ptx_begins_without_a_kernel_and_is_paid_for_its_client_s_alone(service: Served) -> None:
    begun = service.ask("POST", "/sessions", reference_code=REFERENCE, language="ptx", limits={"max_attempts": 1})
    session = f"/sessions/{begun['session']}"
    assert (begun["attempts"], begun["turns"], begun["reward"]) == ([], [], None)
    made = service.call(session, "update", rationale="it does not even parse", source="class ModelNew(")
    assert made["attempt"]["number"] == 1
    assert service.ask("GET", session)["reward"] == 0.0
    service.ask("DELETE", session)


def test_a_call_after_the_last_attempt_is_told_that_the_run_is_over_and_is_no_mistake(service: Served) -> None:
    session = service.begin(limits={"max_attempts": 1})
    service.call(session, "update", rationale="the last", source=BROKEN["source"])
    for _ in range(2):  # while the run concludes, or after that
        told = service.call(session, "update", rationale="one more", source=RIGHT)
        assert (told["over"], told["is_error"], told["attempt"], told["reward"]) == (True, True, None, None)
    assert "is over" in told["text"]
    assert [one["number"] for one in service.ask("GET", session)["attempts"]] == [1]
    service.ask("DELETE", session)


def test_a_checkout_that_is_not_installed_serves_and_says_so_in_the_place_of_its_version(tmp_path: Path) -> None:
    packages, checkout = tmp_path / "packages", tmp_path / "checkout"
    packages.mkdir()
    checkout.mkdir()
    (checkout / "kerneltune").symlink_to(ROOT / "kerneltune")
    for part in Path(pytest.__file__).parent.parent.iterdir():
        if "kerneltune" not in part.name and part.suffix != ".pth":
            (packages / part.name).symlink_to(part)
    cold = (COLD[0], "-S", *COLD[1:])  # without what is installed beside this interpreter
    path = {"PYTHONPATH": f"{checkout}:{packages}"}
    asked = subprocess.run([*cold, "--version"], cwd=tmp_path, env=env() | path, capture_output=True, text=True)
    assert asked.stdout == "not installed\n"
    with served(tmp_path, more_env=path, words=cold) as started:
        assert started.ask("GET", "/health")["version"] == "not installed"
        assert started.ask("GET", "/openapi.json")["info"]["version"] == "not installed"


def test_a_client_has_one_conversation_whatever_strategy_models_are_to_use(tmp_path: Path) -> None:
    with served(tmp_path, more_env={"KERNELTUNE_STRATEGY": "evolve"}) as service:
        session = service.begin()
        for number in (1, 2, 3):
            made = service.call(session, "update", rationale="another", source=f"{RIGHT}# {number}\n")
            assert made["attempt"]["number"] == number, made["text"]
            told = service.call(session, "bench", attempt=number)
            assert (told["is_error"], told["attempt"]["status"]) == (False, "checked"), told["text"]
        service.ask("DELETE", session)


def test_events_are_those_of_the_record_and_go_on_after_the_last_that_was_seen(service: Served) -> None:
    begun = service.ask("POST", "/sessions", reference_code=REFERENCE)
    session = f"/sessions/{begun['session']}"
    heard: list[str] = []

    def listen() -> None:
        with service.client() as client, client.stream("GET", f"{session}/events") as lines:
            heard.extend(line for line in lines.iter_lines() if line.startswith(("id: ", "event: ")))

    listener = threading.Thread(target=listen)
    listener.start()
    service.call(session, "update", rationale="wrong", source=BROKEN["source"])
    service.ask("DELETE", session)
    listener.join(20)
    assert not listener.is_alive()
    with Store.open(service.folder / "runs") as store:
        kinds = [event.kind for event in store.load_events(begun["run_id"])]
    assert [line.removeprefix("event: ") for line in heard if line.startswith("event: ")] == kinds
    assert kinds[0] == "run_started"
    assert kinds[-1] == "run_ended"

    kept = f"/sessions/{service.ask('POST', '/sessions', resume=begun['run_id'])['session']}"
    service.call(kept, "look", what="docs")
    threading.Timer(0.5, service.ask, ["DELETE", kept]).start()
    whole = service.events(kept)
    assert [data["type"] for _, data in whole][: len(kinds)] == kinds
    names = [name for name, _ in whole]
    assert len(set(names)) == len(names)
    again = f"/sessions/{service.ask('POST', '/sessions', resume=begun['run_id'])['session']}"
    threading.Timer(0.5, service.ask, ["DELETE", again]).start()
    rest = service.events(again, after=names[4])
    assert rest[: len(whole) - 5] == whole[5:]


def test_a_bench_answers_as_the_command_does_and_the_same_plans_are_judged_once(service: Served) -> None:
    with service.client() as client:
        sources = {"right": RIGHT, "overflows": OVERFLOWS, "big": "#" * ((1 << 20) + 1)}
        answer = client.post("/bench", json={"reference_code": REFERENCE, "sources": sources})
        again = client.post("/bench", json={"reference_code": REFERENCE, "source": RIGHT + "# once more\n"})
    *files, summary = map(json.loads, answer.text.splitlines())
    found = {file["file"]: file["verdict"]["status"] for file in files}
    assert found == {"right": "checked", "overflows": "wrong", "big": "rejected"}
    assert (summary["type"], summary["by_status"]) == ("bench_summary", {"rejected": 1, "wrong": 1, "checked": 1})
    stored = optimize("verify", f"{summary['run_id']}/1", "--json", cwd=service.folder)
    assert json.loads(stored.stdout)["held"] is True
    repeated = json.loads(again.text.splitlines()[0])
    assert repeated["verdict"]["status"] == "checked"
    assert repeated["receipt"]["evidence"]["reused"] is True


def loaded_for(*words: str, cwd: Path) -> list[str]:
    """What a command has loaded by its end, of what takes a while to load."""
    heavy = ("torch", "numpy", "kerneltune.tools.update", "kerneltune.agent.record.store")
    code = f"""
import sys
from kerneltune.agent.cli import app
app({words!r}, result_action="return_value")
print(*(name for name in {heavy!r} if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env(), capture_output=True, text=True)
    return done.stdout.splitlines()[-1].split()


def test_optimize_bench_has_a_running_service_judge_and_shows_it_as_ever(service: Served) -> None:
    (service.folder / "tasks" / "own.py").write_text(REFERENCE)
    (service.folder / "right.py").write_text(RIGHT)
    (service.folder / "wrong.py").write_text(OVERFLOWS)
    words = ("bench", "right.py", "wrong.py", "--task", "tasks/own.py")
    shown = optimize(*words, cwd=service.folder)
    assert shown.returncode == 1
    assert f"… judged by the service, process {service.pid}; --no-service judges here" in shown.stderr
    lines = shown.stdout.splitlines()
    assert [line.split()[1:4] for line in lines[:2]] == [["checked", "#1", "right.py"], ["wrong", "#2", "wrong.py"]]
    run_id = lines[-1].split()[3].rstrip(";")
    assert (service.folder / "runs" / run_id / "receipts" / "1.json").is_file()
    told = optimize(*words, "--json", cwd=service.folder)
    assert [json.loads(line)["type"] for line in told.stdout.splitlines()] == ["judged_file"] * 2 + ["bench_summary"]
    assert loaded_for(*words, cwd=service.folder) == ["kerneltune.agent.record.store"]
    assert loaded_for(*words, "--json", cwd=service.folder) == []
    (service.folder / "other.py").write_text(REFERENCE)
    here = optimize("bench", "wrong.py", "--task", "other.py", cwd=service.folder)
    assert (here.returncode, "judged here, not by the service" in here.stderr) == (1, True)
    assert "no task" in here.stderr


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        (None, 0, "judged here, not by the service, process 7: it answers with status 499 and no more"),
        (b"", 3, "optimize: the service is gone"),
        (b'{"type": "error", "status": 409, "error": "full"}\n', 3, "optimize: the service failed: full"),
        (
            b'{"type": "error", "status": 500, "error": "KeyError"}\n',
            4,
            "internal failure: the service failed: KeyError",
        ),
    ],
)
def test_the_exit_code_says_whether_a_service_that_cannot_go_on_is_at_fault(
    tmp_path: Path, answer: bytes | None, code: int, told: str
) -> None:
    class Fails(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(json.dumps({"pid": 7, "evaluator": evaluator_sha256()}).encode())

        def do_POST(self) -> None:
            if answer is None:
                self.say(b"", 499)
            elif answer:
                self.say(answer)

        def say(self, text: bytes, status: int = 200) -> None:
            head = f"HTTP/1.1 {status} OK\r\ncontent-length: {len(text)}\r\nconnection: close\r\n\r\n"
            self.wfile.write(head.encode() + text)

        def log_message(self, format: str, *args: object) -> None:
            """Tests are quiet."""

    place = service_socket(tmp_path / "runs")
    place.parent.mkdir(parents=True)
    (tmp_path / "right.py").write_text(RIGHT)
    Store.open(tmp_path / "runs").close()
    with socketserver.UnixStreamServer(str(place), Fails) as failing:
        threading.Thread(target=failing.serve_forever, args=(0.02,), daemon=True).start()
        shown = optimize("bench", "right.py", "--task", SOFTMAX, cwd=tmp_path)
        failing.shutdown()
    assert shown.returncode == code
    assert told in shown.stderr


def command_line(pid: int) -> bytes:
    """Of a process; b"" where it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_a_service_whose_fork_server_is_killed_ends_and_the_next_command_judges_by_itself(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    words = ("bench", "right.py", "--task", SOFTMAX)
    with served(tmp_path, words=COLD) as own:
        assert optimize(*words, cwd=tmp_path).returncode == 0
        os.kill(next(pid for pid in process_tree(own.pid) if b"fork_server" in command_line(pid)), signal.SIGKILL)
        _, told = own.process.communicate(timeout=60)
    assert own.process.returncode == 3
    assert "optimize: the fork server was killed" in told
    assert "Traceback" not in told
    assert not own.path.exists()
    shown = optimize(*words, cwd=tmp_path)
    assert (shown.returncode, "judged by the service" in shown.stderr) == (0, False)


def test_optimize_verify_has_a_running_service_judge_on_inputs_that_no_one_has_seen(service: Served) -> None:
    bench = [json.loads(line) for line in service.ask_lines("/bench", reference_code=REFERENCE, source=RIGHT)]
    attempt = bench[0]["attempt_id"]
    assert bench[-1]["by_status"] == {"checked": 1}
    told = optimize("verify", attempt, "--json", cwd=service.folder)
    assert told.stderr.splitlines() == [f"… judged by the service, process {service.pid}; --no-service judges here"]
    found = json.loads(told.stdout)
    assert (told.returncode, found["held"], found["new"]["verdict"]["status"]) == (0, True, "checked")
    seeds = [json.loads(Path(service.folder, path).read_text())["evidence"] for path in
             (bench[0]["receipt_path"], found["receipt_path"])]  # fmt: skip
    assert set(seeds[0]["seeds"]) == set(seeds[1]["seeds"])
    assert not set(seeds[0]["seeds"].values()) & set(seeds[1]["seeds"].values())
    assert "reused" not in seeds[1]
    shown = optimize("verify", attempt, "--plain", cwd=service.folder)
    assert "held: right again" in shown.stdout
    assert found["receipt_path"].endswith("verify-1.json")
    assert "verify-2.json" in shown.stdout
    alone = optimize("verify", attempt, "--no-service", "--json", cwd=service.folder)
    assert "judged by the service" not in alone.stderr
    assert json.loads(alone.stdout).keys() == found.keys()
    with service.client() as client:
        answer = client.post("/verify", json={"attempt": "20260101-nothing/1"})
    assert (answer.status_code, "20260101-nothing" in answer.json()["error"]) == (409, True)


def test_what_was_never_judged_cannot_be_judged_again_and_that_is_no_failure_of_the_service(service: Served) -> None:
    begun = service.ask("POST", "/sessions", reference_code=REFERENCE)
    session = f"/sessions/{begun['session']}"
    service.call(session, "update", rationale="not benched", source=RIGHT)
    with service.client() as client:
        answer = client.post("/verify", json={"attempt": f"{begun['run_id']}/1"})
    assert answer.status_code == 409, answer.text
    assert "never got a verdict" in answer.json()["error"]
    service.ask("DELETE", session)


def test_a_verification_that_a_service_gives_up_at_its_end_is_neither_waited_for_nor_stored(
    tmp_path: Path, forked_workers: None
) -> None:
    settings, view = Settings(runs_dir=tmp_path), FilesView(io.StringIO(), io.StringIO(), total=1)
    candidates = [from_bytes("endless", ENDLESS.encode())]
    with workers.begun() as begun, Service(settings, NOBODY, begun) as service:

        def judge(opened: Session, store: Store) -> int:
            return bench_opened(opened, candidates, settings, view, store, Controls())

        service.bench(SOFTMAX, judge, Controls(), Patience(trace_s=1.0)).result()
        attempt_id = view.judged[0].attempt_id
        verifying = service.verify(attempt_id)
        time.sleep(5)  # it is traced, for a minute
        service.give_up()
        with pytest.raises(Unfit, match="given up"):
            verifying.result(20)
    with Store.open(tmp_path) as store:
        assert not [e for e in store.load_events(attempt_id.partition("/")[0]) if isinstance(e, Verified)]


def test_a_judge_that_dies_is_an_error_of_the_call_and_the_next_session_has_a_fresh_one(service: Served) -> None:
    trap = service.folder / "tasks" / "trap"
    ends = f"        import os\n        os.path.exists({str(trap)!r}) and os.kill(os.getpid(), 9)\n"
    (service.folder / "tasks" / "fragile.py").write_text(
        REFERENCE.replace("        return torch", f"{ends}        return torch")
    )
    session = service.begin(reference_code=None, task="fragile.py")
    service.call(session, "update", rationale="right", source=RIGHT)
    trap.touch()
    with service.client() as client:
        answer = client.post(f"{session}/call", json={"name": "bench", "arguments": {"attempt": 1}})
    assert answer.status_code == 400, answer.text
    assert "its own code ended the process" in answer.json()["error"]
    trap.unlink()
    again = service.begin(reference_code=None, task="fragile.py")
    service.call(again, "update", rationale="right", source=RIGHT)
    assert service.call(again, "bench", attempt=1)["attempt"]["status"] == "checked"
    service.ask("DELETE", again)


def test_a_client_that_goes_away_frees_its_place_and_limits_are_a_session_s_own(service: Served) -> None:
    session = service.begin(limits={"trace_s": 30.0})
    with pytest.raises(httpx2.TimeoutException):
        service.call(session, "update", 1.0, rationale="forever", source=ENDLESS)
    began_s = time.monotonic()
    service.call(session, "look", 20, what="docs")  # its turn comes after the update's
    assert time.monotonic() - began_s < 10
    assert service.ask("GET", session)["attempts"][0]["status"] is None  # given up, which is no verdict
    service.ask("DELETE", session)
    short = service.begin(limits={"trace_s": 1.0})
    timed_out = service.call(short, "update", rationale="forever", source=ENDLESS)
    assert timed_out["attempt"]["status"] == "timed_out"
    service.ask("DELETE", short)


def test_a_client_that_goes_away_before_its_session_begins_leaves_no_words_of_python(tmp_path: Path) -> None:
    with served(tmp_path, words=COLD) as fresh, fresh.client() as client:
        with pytest.raises(httpx2.TimeoutException):
            client.post("/sessions", json={"reference_code": REFERENCE}, timeout=0.5)  # torch still loads
        for line in ('requests_total{code="499"} 1', "runs_under_way 0"):
            while f"kerneltune_{line}\n" not in client.get("/metrics").text:
                time.sleep(0.1)


FALLBACK = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, 1)
"""


ROW_SOFTMAX = REFERENCE.replace("class Model(", "class RowSoftmax(").replace("super(Model,", "super(RowSoftmax,")


def test_a_client_of_kernelgym_is_answered_in_its_words_and_a_failure_of_ours_is_no_result(service: Served) -> None:
    kernels = {"right": RIGHT, "broken": BROKEN["source"], "overflows": OVERFLOWS, "decoy": FALLBACK}
    kernels["prose"] = "I am sorry, but I cannot write that kernel."  # most answers of a small model; no cheat
    tasks = [
        # as Dr.Kernel's client sends it
        {"task_id": name, "reference_code": REFERENCE, "kernel_code": kernel, "backend": "triton",
         "entry_point": "Model", "num_correct_trials": 5, "num_perf_trials": 100, "timeout": 30, "priority": "normal",
         "is_valid": False, "verbose_errors": True, "enable_profiling": True, "detect_decoy_kernel": True,
         "reference_backend": None, "run_performance": False}
        for name, kernel in kernels.items()
    ]  # fmt: skip
    named = {"entry_point": "RowSoftmax", "reference_backend": "compile"}
    named |= {"reference_code": ROW_SOFTMAX, "kernel_code": RIGHT.replace("ModelNew", "RowSoftmaxNew")}
    broken_reference = tasks[0] | {"task_id": "ours", "reference_code": "this is no Python at all"}
    more = [tasks[0] | {"task_id": "named"} | named, broken_reference]
    with service.client() as client:
        answer = client.post("/evaluate/batch", json={"batch_id": "b", "tasks": [*tasks, *more]}).json()
        assert (answer["total_tasks"], answer["completed_tasks"], answer["failed_tasks"]) == (7, 6, 1)
        fields = ("compiled", "correctness", "decoy_kernel")
        found = {one["task_id"]: tuple(one.get(name) for name in fields) for one in answer["results"]}
        assert found == {
            "right": (True, True, False),
            "broken": (False, False, False),
            "overflows": (True, False, False),
            "decoy": (False, False, True),
            "prose": (False, False, False),
            "named": (True, True, False),
            "ours": (None, None, None),
        }
        assert answer["results"][1]["error_code"] == "COMPILATION_ERROR"
        again = client.post("/evaluate", json=tasks[0])  # whose result is kept
        assert again.json() == answer["results"][0] == client.get("/results/right").json()
        unmeasured = [again.json()[name] for name in ("speedup", "kernel_runtime", "reference_runtime")]
        assert unmeasured == [0.0, -1.0, -1.0]
        assert client.get("/status/right").json()["status"] == "completed"
        assert client.get("/status/unknown").status_code == 404
        other = client.post("/evaluate", json=tasks[1] | {"task_id": "right"})  # another kernel under a known name
        assert other.json()["error_code"] == "COMPILATION_ERROR"


def test_what_cannot_be_found_out_is_failed_to_a_client_of_kernelgym_and_of_status_200(service: Served) -> None:
    """Of another status its client makes an error with the URL in it, token and all, which its policy is shown."""
    timed = {"task_id": "timed", "reference_code": REFERENCE, "kernel_code": RIGHT}
    cuda = timed | {"task_id": "cuda", "backend": "cuda"}
    unknown = timed | {"task_id": "unknown backend", "reference_backend": "jax"}
    unclear = timed | {
        "task_id": "no reference",
        "reference_code": "this is no Python at all",
        "run_performance": False,
    }
    expected = {
        "timed": "nothing is timed here",
        "cuda": "'cuda' is not served",
        "unknown backend": "'jax' is none of",
        "no reference": "line 1",
    }
    with service.client() as client:
        for asked in (timed, cuda, unknown, unclear):
            answer = client.post("/evaluate", json=asked)
            told = answer.json()
            assert (answer.status_code, told["status"], told["error_code"]) == (200, "failed", "SYSTEM_ERROR")
            assert expected[asked["task_id"]] in told["error_message"]
            assert not {"compiled", "correctness", "speedup"} & told.keys()
            status = client.get(f"/status/{asked['task_id']}").json()
            assert (status["status"], status["error_message"]) == ("failed", told["error_message"])
        # asked otherwise under the same name, it is no longer that failure
        assert client.post("/evaluate", json=timed | {"run_performance": False}).json()["correctness"] is True
        assert client.post("/evaluate", json=timed | {"entry_point": "Model; import os"}).status_code == 400


def test_a_screening_beside_the_fastest_baseline_alone_is_no_answer_to_a_client_of_kernelgym_that_wants_another(
    tmp_path: Path,
) -> None:
    demo = shutil.copytree(ROOT / "docs" / "demo", tmp_path / "demo")  # of an H200, as later kernels are screened
    with Store.open(demo) as store:
        _, screened = store.find_attempt("20261127-020414-window_attention-80c5cf7c/3")
        _, wrong = store.find_attempt("20261127-022348-softmax-4de2d30a/1")
    assert [c.baseline for c in screened.comparisons] == ["compile-max"]
    assert not screened.pending
    asked = kernelgym.EvaluationBody(task_id="later", reference_code=REFERENCE, kernel_code=RIGHT)
    assert asked.lacks_time(screened)
    assert not asked.model_copy(update={"run_performance": False}).lacks_time(screened)
    assert not asked.lacks_time(wrong)
    beside = replace(screened.judged, comparisons=(replace(screened.comparisons[0], baseline="eager"),))
    assert not asked.lacks_time(replace(screened, verdict=beside))


def test_a_policy_reads_nothing_of_held_out_cases_in_kernelgym_s_words(service: Served) -> None:
    wrong_at_203 = RIGHT.replace("tl.store(y + at, ", "tl.store(y + at, (cols % 7 != 0) * ")
    asked = {"reference_code": REFERENCE, "kernel_code": wrong_at_203, "run_performance": False}
    told = service.ask("POST", "/evaluate", task_id="secret", **asked)
    assert (told["compiled"], told["correctness"]) == (True, False)
    assert "a case with held-out shapes is wrong" in told["error_message"]
    assert not [word for word in ("prime", "203") if word in json.dumps(told)]


def raw(service: Served, data: bytes, *, hangs: bool = False) -> socket.socket:
    """A connection on which these bytes were sent, and no more."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(service.path))
    line.settimeout(20)
    with contextlib.suppress(OSError):  # it may be refused before all is sent
        line.sendall(data)
    if not hangs:
        line.shutdown(socket.SHUT_WR)
    return line


def post(path: str, body: bytes, length: int | None = None) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
    return head.encode() + body


def test_of_64_clients_a_tenth_is_hostile_and_the_others_notice_nothing(service: Served) -> None:
    deep = b'{"task": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    wide = b'{"task": [' + b"0," * (MOST_VALUES + 1) + b"0]}"
    hostile = [
        raw(service, b"POST /bench HT", hangs=True),
        raw(service, post("/bench", b'{"task": "softm', 1000), hangs=True),
        raw(service, post("/sessions", b"x" * (MOST_BODY_BYTES + 1)), hangs=True),
        raw(service, b"\x00\xff\x16\x03garbage\r\n\r\n", hangs=True),
        raw(service, post("/bench", deep), hangs=True),
        raw(service, post("/sessions", wide), hangs=True),
    ]
    codes: list[int] = []
    took_s: list[float] = []

    def honest() -> None:
        with service.client(30) as client:
            began_s = time.monotonic()  # 57 clients of httpx take a slow machine 10 s to make
            codes.append(client.get("/health").status_code)
            took_s.append(time.monotonic() - began_s)

    clients = [threading.Thread(target=honest) for _ in range(57)]
    judged = threading.Thread(
        target=lambda: codes.append(len(service.ask_lines("/bench", reference_code=REFERENCE, source=OVERFLOWS)))
    )
    for client in (*clients, judged):
        client.start()
    for client in (*clients, judged):
        client.join(60)
    answers = [line.recv(1 << 16).split(b"\r\n")[0] for line in hostile[2:]]
    for line in hostile:
        line.close()
    assert sorted(codes) == [2] + 57 * [200]
    assert max(took_s) < 10
    assert answers[0] == b"HTTP/1.1 413 Request Entity Too Large" or b" 413 " in answers[0]
    assert all(b" 400 " in answer for answer in answers[1:])


def test_idle_connections_keep_nobody_out(service: Served) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(MOST_CONNECTIONS + 100):
            held.enter_context(raw(service, b"", hangs=True))
        assert service.ask("GET", "/health")["status"] == "healthy"
        assert len(os.listdir(f"/proc/{service.pid}/fd")) < MOST_CONNECTIONS + 200


def test_a_client_that_sent_ahead_and_went_away_frees_its_place(service: Served) -> None:
    body = json.dumps({"task": "softmax", "source": ENDLESS, "limits": {"trace_s": 50.0}}).encode()
    line = raw(service, post("/bench", body), hangs=True)
    with service.client() as client:

        def under_way() -> bool:
            return "kerneltune_runs_under_way 0" not in client.get("/metrics").text

        until(under_way, 40)
        line.sendall(post("/bench", b"{}"))
        time.sleep(0.2)
        line.close()
        until(lambda: not under_way(), 40)  # what is begun meanwhile, its task opened for one, ends first


def until(is_so: Callable[[], bool], most_s: float) -> None:
    ends = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_a_client_that_does_not_read_is_let_go(begun: workers.Workers, tmp_path: Path) -> None:
    got = list[int]()

    def client(path: str) -> None:
        with socket.socket(socket.AF_UNIX) as line, contextlib.suppress(OSError):
            line.connect(path)
            line.settimeout(5)
            line.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 200)
            gone = select.poll()
            gone.register(line, 0)  # that the other end is closed is always told
            gone.poll(60_000)
            while data := line.recv(1 << 20):
                got.append(data.count(b"HTTP/1.1 200"))
        os.kill(os.getpid(), signal.SIGINT)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path := str(tmp_path / "socket"))
        listening.listen()
        thread = threading.Thread(target=client, args=[path])
        thread.start()
        service = Service(Settings(runs_dir=tmp_path), NOBODY, begun)
        asyncio.run(listen_to([listening], HttpServer(service, times=HttpTimes(head_s=0.5))))
        thread.join()
    assert 0 < sum(got) < 200


def test_one_client_does_not_take_all_places(begun: workers.Workers, tmp_path: Path) -> None:
    service = Service(Settings(runs_dir=tmp_path), NOBODY, begun)  # whose tasks do not open yet

    def bench(client: str) -> Future[int]:
        return service.bench("softmax", lambda opened, store: 0, Controls(), client=client)

    waiting = [bench("many") for _ in range(MOST_RUNS // 2)]
    with pytest.raises(Busy, match="runs of many are under way"):
        bench("many")
    waiting.append(bench("few"))
    service.shop.set_exception(UsageError("over"))
    assert all("over" in str(one.exception(10)) for one in waiting)


def test_what_the_machine_has_no_thread_for_takes_no_place(begun: workers.Workers, tmp_path: Path) -> None:
    service = Service(Settings(runs_dir=tmp_path), NOBODY, begun)
    before = threading.stack_size(1 << 46)  # more than there is
    try:
        for begin in (
            lambda: service.bench("softmax", lambda opened, store: 0, Controls()),
            lambda: service.start("softmax", "http:trainer"),
        ):
            with pytest.raises(Busy, match="can't start new thread"):
                begin()
    finally:
        threading.stack_size(before)
    assert (service.running, service.runs) == (0, ())


def test_a_client_that_calls_and_goes_again_and_again_fills_no_memory() -> None:
    run = ClientRun("http:trainer")
    for _ in range(MOST_CALLS):
        run.call("look", {"what": "docs"})
    with pytest.raises(Busy, match=f"{MOST_CALLS} calls of run"):
        run.call("look", {"what": "docs"})


def test_kernels_under_one_name_wait_within_the_same_bound_as_under_many(
    begun: workers.Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerneltune.agent.commands.http_server._MOST_EVALUATIONS", 3)

    async def scenario() -> None:
        service = Service(Settings(runs_dir=tmp_path), NOBODY, begun)  # which cannot judge yet
        http = HttpServer(service)
        asked = [
            kernelgym.EvaluationBody(task_id="a", reference_code=REFERENCE, kernel_code=f"{RIGHT}# {n}\n")
            for n in range(4)
        ]
        waiting = [http._evaluation(one) for one in asked[:3]]
        with pytest.raises(Busy, match="3 evaluations wait"):
            http._evaluation(asked[3])
        service.shop.set_exception(UsageError("over"))
        await asyncio.wait(waiting)
        http._evaluation(asked[3])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"nothing", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "this is no JSON object"),
        (b'{"task": "softmax", "sorce": "x"}', "`sorce`: no such field; did you mean source?"),
        (b'{"task": "softmax", "source": "x", "limits": {"trace": 1}}', "`limits.trace`: no such field"),
        (b'{"task": "softmax"}', "give one of source, sources"),
        (b'{"task": "softmax", "reference_code": "x", "source": ""}', "give one of task, reference_code"),
        (b'{"task": 7, "source": "x"}', "`task`: input should be a valid string, not int '7'"),
        (b'{"task": "softmax", "source": "x", "limits": {"trace_s": 1e9}}', "limits.trace_s"),
        (b'{"task": "softmax", "source": "x", "limits": {"trace_s": NaN}}', "limits.trace_s"),
        (b'{"task": "softmax", "source": "x", "limits": {"max_time_s": Infinity}}', "limits.max_time_s"),
        (b'{"task": "softmax", "source": "x", "client": "../me"}', "client"),
        (b'{"task": "softmax", "source": "x", "baselines": ["fast"]}', "'eager', 'compile' or 'compile-max'"),
        (b'{"task": "softmax", "source": "\\ud800"}', "not JSON"),
        (b'{"task": "softmax", "sources": {"' + b"n" * 5000 + b'": "x"}}', "at most 4096 characters"),
        (b'{"task": "sotfmax", "source": "x"}', "no task 'sotfmax' here"),
        (b'{"reference_code": "1 +", "source": "x"}', "line 1: invalid syntax"),
    ],
)
def test_a_request_that_cannot_be_meant_is_told_why(service: Served, body: bytes, says: str) -> None:
    with service.client() as client:
        answer = client.post("/bench", content=body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]


def test_a_task_is_timed_beside_all_baselines_or_those_that_a_client_names() -> None:
    asked = [SessionBody(task="softmax"), SessionBody(task="softmax", baselines=["compile", "eager"])]
    assert [one.patience.baselines for one in asked] == [BASELINES, ("eager", "compile")]


def test_a_shortage_is_told_as_one_and_a_fault_as_one_without_paths(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for number in (errno.EMFILE, errno.ENOENT):
        error = OSError(number, os.strerror(number), "/home/me/x")
        answer = asyncio.run(refusal(Request({"type": "http"}), error))
        told.append(
            (answer.status_code, json.loads(bytes(answer.body))["error"], "/home/me/x" in capsys.readouterr().err)
        )
    assert told == [
        (503, "the service cannot go on: Too many open files", False),
        (500, "internal failure: FileNotFoundError", True),
    ]


def test_a_client_names_files_below_the_root_alone_and_guesses_no_session(service: Served) -> None:
    tasks, elsewhere = service.folder / "tasks", service.folder / "elsewhere.py"
    elsewhere.write_text(REFERENCE)
    (tasks / "mine.py").write_text(REFERENCE)
    (tasks / "link.py").symlink_to(elsewhere)
    with service.client() as client:
        for name in ("../elsewhere.py", str(elsewhere), "link.py", "/etc/passwd", "nul\0.py", "."):
            answer = client.post("/sessions", json={"task": name})
            assert (answer.status_code, "no task" in answer.json()["error"]) == (400, True), name
        for path in ("/sessions/x", "/sessions/x/events"):
            assert client.get(path).status_code == 404
        assert client.get("/nothing").status_code == 404
    begun = service.ask("POST", "/sessions", task="mine.py")
    assert begun["task"] == "mine"
    assert len(begun["session"]) >= 20
    service.ask("DELETE", f"/sessions/{begun['session']}")
    sent = [path for path in (service.folder / "runs" / "references").rglob("*.py")]
    assert all(len(list(path.parent.iterdir())) == 1 for path in sent)  # a task's code may read beside itself
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in sent} == {0o700}


def test_the_description_and_the_metrics_say_what_there_is(service: Served) -> None:
    with service.client() as client:
        described = client.get("/openapi.json").json()
        metrics = client.get("/metrics").text
    assert described == openapi()
    assert {(path, method.upper()) for path, of in described["paths"].items() for method in of} == {
        (one.path, one.method) for one in ENDPOINTS
    }
    document = (ROOT / "docs" / "service.md").read_text()
    assert [one for one in ENDPOINTS if f"`{one.method} {one.path}`" not in document] == []
    lines = [line for line in metrics.splitlines() if not line.startswith("#")]
    assert all(line.startswith("kerneltune_") and float(line.split()[-1]) >= 0 for line in lines)
    assert [line for line in lines if line.startswith("kerneltune_sessions ")]


def test_the_socket_is_its_owner_s_and_a_second_service_is_told_who_has_it(service: Served) -> None:
    assert stat.S_IMODE(service.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(service.path.parent.stat().st_mode) == 0o700
    second = optimize("serve", cwd=service.folder)
    assert second.returncode == 2
    assert f"process {service.pid} serves on {service.place} already" in second.stderr
    (service.folder / "a-file").write_text("mine")
    refused = optimize("serve", "--socket", "a-file", cwd=service.folder)
    assert refused.returncode == 2
    assert (service.folder / "a-file").read_text() == "mine"


def test_a_service_that_takes_long_to_end_leaves_the_socket_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with _on_unix(path) as following:
        following.close()
    assert not path.exists()  # its own it takes away
    with contextlib.ExitStack() as later:
        with _on_unix(path) as ending:
            ending.close()  # as a server does at once, which then concludes its runs
            following = later.enter_context(_on_unix(path))
        assert is_listening(path)
    assert not path.exists()


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        return asking.connect_ex(str(path)) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--listen", "0.0.0.0:0"), "can be reached from elsewhere: set KERNELTUNE_TOKEN"),
        (("--listen", "127.0.0.1"), "give HOST:PORT"),
        (("--listen", ":1", "--socket", "x"), "not both"),
        (("--socket", "x" * 200), "longer than 107 bytes"),
        (("--listen", ":0", "--token-file", "/dev/null"), "holds no token"),
        (("--root", "nowhere"), "no such folder"),
    ],
)
def test_a_service_that_would_be_open_or_nowhere_is_not_started(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    refused = optimize("serve", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert says in refused.stderr


def test_on_tcp_only_the_token_opens_it(tmp_path: Path) -> None:
    with served(tmp_path, "--listen", "127.0.0.1:0", more_env={"KERNELTUNE_TOKEN": "s3cret-token"}) as service:
        url = service.place
        with httpx2.Client(timeout=60) as client:

            def status(path: str, shown: str | None = None) -> int:
                headers = {} if shown is None else {"authorization": shown}
                return client.get(f"{url}{path}", headers=headers).status_code

            assert status("/health") == 200
            wrong = (None, "", "Bearer", "Bearer s3cret-toke", "Bearer x s3cret-token", "Basic ####")
            assert {status("/metrics", shown) for shown in wrong} == {401}
            assert status("/metrics", "Bearer s3cret-token") == 200
            with_it = url.replace("http://", "http://:s3cret-token@")
            assert client.get(f"{with_it}/metrics").status_code == 200
            assert client.post(f"{url}/bench", json={"task": "softmax", "source": RIGHT}).status_code == 401


def test_what_a_killed_service_had_finished_is_stored_once_and_its_run_goes_on(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        begun = service.ask("POST", "/sessions", reference_code=REFERENCE)
        session = f"/sessions/{begun['session']}"
        service.call(session, "update", rationale="wrong", source=OVERFLOWS)
        service.call(session, "bench", attempt=1)
        service.call(session, "update", rationale="right", source=RIGHT)
        killed = threading.Timer(0.05, os.kill, [service.pid, signal.SIGKILL])
        with service.client() as client, contextlib.suppress(httpx2.TransportError):  # a bench may take less
            client.get("/health")  # connected: httpcore2 leaves a socket open that nobody answers any more
            killed.start()
            client.post(f"{session}/call", json={"name": "bench", "arguments": {"attempt": 2}})
        killed.join()
    with served(tmp_path) as service:  # whose socket the dead one left behind
        again = service.ask("POST", "/sessions", resume=begun["run_id"])
        session = f"/sessions/{again['session']}"
        service.call(session, "look", what="docs")
        assert [one["status"] for one in service.ask("GET", session)["attempts"]] == ["wrong", "checked"]
        os.kill(service.pid, signal.SIGTERM)
        assert service.process.wait(60) == 0
        assert service.process.stderr is not None
        assert "ending; first 1 run to conclude" in service.process.stderr.read()
        assert not service.path.exists()
    with Store.open(tmp_path / "runs") as store:
        events = store.load_events(begun["run_id"])
    judged = [event.attempt_id for event in events if isinstance(event, Judged)]
    assert judged == [f"{begun['run_id']}/1", f"{begun['run_id']}/2"]
    assert isinstance(events[-1], RunEnded)


def test_a_run_that_a_client_ends_does_not_wait_for_the_next_look_at_whether_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kerneltune.agent.commands.service._POLL_S", 60.0)
    run, ends = ClientRun("http:trainer"), Future[str]()

    def ask() -> None:
        assert run.choice.model is not None
        with pytest.raises(NoLongerWanted):
            run.choice.model.ask(ModelRequest("", (), is_over=lambda: run.controls.stopping))
        ends.set_result("over")

    threading.Thread(target=ask, daemon=True).start()
    time.sleep(0.05)
    run.stop()
    assert ends.result(10) == "over"


def test_turns_go_to_interactive_clients_first_and_then_round_by_round() -> None:
    queue, order = FairQueue(), list[str]()

    def judge(client: str, priority: Priority) -> None:
        with Turn(queue, client, priority):
            order.append(client)

    wanted = ["many", "many", "many", "few", "few", "me"]
    threads = []
    with Turn(queue, "first", "batch"):
        for number, client in enumerate(wanted, 1):
            priority = "interactive" if client == "me" else "batch"
            threads.append(threading.Thread(target=judge, args=[client, priority]))
            threads[-1].start()
            while queue.waiting < number:
                time.sleep(0.001)
    for thread in threads:
        thread.join(10)
    assert order == ["me", "many", "few", "many", "few", "many"]


def test_nobody_waits_for_ever_for_a_turn() -> None:
    queue, is_over = FairQueue(), threading.Event()

    def others(number: int) -> None:
        for turn in itertools.count():
            if is_over.is_set():
                return
            with Turn(queue, f"{number}.{turn}", "interactive"):  # another name each time
                time.sleep(0.001)

    def me(priority: Priority) -> None:
        for _ in range(3):
            with Turn(queue, "me", priority):
                pass

    threads = [threading.Thread(target=others, args=[number]) for number in range(4)]
    waiting = [threading.Thread(target=me, args=[priority], daemon=True) for priority in ("interactive", "batch")]
    for thread in [*threads, *waiting]:
        thread.start()
    try:
        for thread in waiting:
            thread.join(10)
            assert not thread.is_alive()
    finally:
        is_over.set()
    for thread in threads:
        thread.join()


def test_a_task_that_is_being_opened_keeps_nobody_s_turn() -> None:
    queue, opening, order = FairQueue(), Future[None](), list[str]()

    def bench(client: str, opening: Future[None] | None) -> None:
        with Turn(queue, client, "interactive", opening):
            order.append(client)

    first = threading.Thread(target=bench, args=("opens", opening))
    first.start()
    time.sleep(0.2)
    bench("another", None)
    opening.set_result(None)
    first.join(10)
    assert order == ["another", "opens"]


def test_a_task_is_open_once_and_the_least_recently_used_goes_when_there_are_more(
    tmp_path: Path, forked_workers: None
) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text(REFERENCE)
    other.write_text(REFERENCE)
    with workers.begun() as begun, workshop(Settings(), lambda _: None, begun) as shop:
        tasks = OpenTasks(partial(session, shop), 1, lambda: False)
        with tasks.use(find_task(str(one))) as first, tasks.use(find_task(str(other))) as second:
            assert len(tasks) == 2  # those in use stay
            with tasks.use(find_task(str(one)), patience=Patience(replay_s=7.0)) as third:
                benches = [opened.tools.benches for opened in (first, second, third)]
                judges = [bench.judge for bench in benches if isinstance(bench, CpuBench)]
                assert [judge is judges[0] for judge in judges] == [True, False, True]
                assert third.patience.replay_s == 7.0
                compiled = [opened.tools.updater.update(RIGHT).artefacts for opened in (first, second, third)]
                [name] = compiled[0]
                assert [artefacts[name] is compiled[0][name] for artefacts in compiled] == [True, False, True]
            with tasks.use(find_task(str(one)), patience=Patience(baselines=("eager",))) as fourth:
                assert isinstance(fourth.tools.benches, CpuBench)  # whose judge would build no other
                assert fourth.tools.benches.judge is not judges[0]
                assert fourth.patience.baselines == ("eager",)
        assert len(tasks) == 1
        tasks.close()
        assert len(tasks) == 0


def opening(
    shop: Workshop, closed: Callable[[str], None]
) -> Callable[[TaskFile, Patience], contextlib.AbstractContextManager[Session]]:
    """Opens tasks in a workshop, and says the name of each that was closed."""

    @contextlib.contextmanager
    def opened(file: TaskFile, patience: Patience) -> Iterator[Session]:
        with session(shop, file, patience) as one:
            yield one
        closed(file.name)

    return opened


def test_a_task_that_does_not_close_in_order_keeps_no_other_open(tmp_path: Path, forked_workers: None) -> None:
    files = [tmp_path / f"{name}.py" for name in ("first", "second", "third")]
    for file in files:
        file.write_text(REFERENCE)
    with workers.begun() as begun, workshop(Settings(), lambda _: None, begun) as shop:
        closed: list[str] = []

        def broken(name: str) -> None:
            closed.append(name)
            raise OSError(f"{name} does not close")

        tasks = OpenTasks(opening(shop, broken), 32, lambda: False)
        for file in files:
            with tasks.use(find_task(str(file))):
                pass
        with pytest.raises(OSError, match="does not close"):
            tasks.close()
        assert sorted(closed) == ["first", "second", "third"]


def test_tasks_that_nobody_uses_are_closed_one_by_one_until_there_is_memory_for_the_next(
    tmp_path: Path, forked_workers: None
) -> None:
    files = [tmp_path / f"{name}.py" for name in ("first", "second", "used", "next")]
    for file in files:
        file.write_text(REFERENCE)
    first, second, used, following = (find_task(str(file)) for file in files)
    least_free = [0.0]
    with workers.begun() as begun, workshop(Settings(), lambda _: None, begun) as shop:
        closed: list[str] = []

        def freed(name: str) -> None:
            closed.append(name)
            least_free[0] -= 1.0  # as if its memory had been that much

        tasks = OpenTasks(opening(shop, freed), 32, lambda: memory_is_short(None, least_free[0]))
        with tasks.use(used):
            for unused in (second, first, second):
                with tasks.use(unused):
                    pass
            assert (len(tasks), closed) == (3, [])
            least_free[0] = 1.0  # more than is ever free: the least recently used makes room, and one is enough
            with tasks.use(following):
                assert (len(tasks), closed) == (3, ["first"])
            least_free[0] = 9.0
            with tasks.anew(first, client="me", priority="batch"):
                assert closed == ["first", "second", "next"]  # never one that is in use
        tasks.close()


@contextlib.asynccontextmanager
async def hurried(
    folder: Path, times: HttpTimes, most_runs: int, path: Path | None = None, runs_dir: Path | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    """A service in this process, with times and places of its own, and a client of it."""
    path = path or folder / "hurried.sock"
    with (
        socket.socket(socket.AF_UNIX) as listening,
        workers.begun() as begun,
        Service(Settings(runs_dir=runs_dir or folder / "runs"), environment(), begun, most_runs) as service,
    ):
        listening.bind(str(path))
        listening.listen()
        serving = asyncio.create_task(listen_to([listening], HttpServer(service, times=times)))
        transport = httpx2.AsyncHTTPTransport(uds=str(path))
        try:
            async with httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=100) as client:
                yield client
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await serving


async def seconds_to_answer(folder: Path, data: bytes) -> tuple[float, bytes]:
    """How long a connection is held on which this is all that is sent, and what comes."""
    began_s = time.monotonic()
    reader, writer = await asyncio.open_unix_connection(folder / "hurried.sock")
    writer.write(data)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return time.monotonic() - began_s, answer


def test_who_sends_half_a_request_is_waited_for_no_longer_than_that(tmp_path: Path, forked_workers: None) -> None:
    async def scenario() -> None:
        async with hurried(tmp_path, HttpTimes(head_s=0.4, body_s=3.0), 64) as client:
            silent, half, slow = await asyncio.gather(
                seconds_to_answer(tmp_path, b""),
                seconds_to_answer(tmp_path, b"GET /health HTTP/1.1\r\nhost: serv"),
                seconds_to_answer(tmp_path, post("/bench", b'{"task"', 100)),
            )
            for seconds, answer in (silent, half):
                assert (answer, 0.4 <= seconds < 3.0) == (b"", True)
            assert 3.0 <= slow[0] < 10
            assert slow[1].startswith(b"HTTP/1.1 408 ")
            assert b"did not arrive within 3 s" in slow[1]
            assert (await client.get("/health")).status_code == 200  # whole ones are answered as ever

    asyncio.run(scenario())


def test_a_session_that_nobody_uses_ends_in_order_and_one_that_is_watched_stays(
    tmp_path: Path, forked_workers: None
) -> None:
    async def scenario() -> None:
        async with hurried(tmp_path, HttpTimes(idle_s=1.0), 64) as client:
            begun = [(await client.post("/sessions", json={"reference_code": REFERENCE})).json() for _ in range(2)]
            left, watched = (f"/sessions/{one['session']}" for one in begun)
            async with client.stream("GET", f"{watched}/events") as events:
                lines = events.aiter_lines()
                await anext(lines)
                for _ in range(100):
                    await asyncio.sleep(0.1)
                    if (await client.get("/metrics")).text.count("kerneltune_runs_under_way 1\n"):
                        break
                gone = await client.get(left)
                assert (gone.status_code, "resume its run" in gone.json()["error"]) == (404, True)
                assert not (await client.get(watched)).json()["over"]
        with Store.open(tmp_path / "runs") as store:
            ends = [e.why for e in store.load_events(begun[0]["run_id"]) if isinstance(e, RunEnded)]
        assert ends == ["stopped"]

    asyncio.run(scenario())


def test_a_session_does_not_end_while_a_call_of_its_client_arrives(tmp_path: Path, forked_workers: None) -> None:
    async def scenario() -> None:
        async with hurried(tmp_path, HttpTimes(idle_s=0.5), 64) as client:
            session = (await client.post("/sessions", json={"reference_code": REFERENCE})).json()["session"]
            body = json.dumps({"name": "update", "arguments": BROKEN}).encode()
            reader, writer = await asyncio.open_unix_connection(tmp_path / "hurried.sock")
            asked = post(f"/sessions/{session}/call", body, len(body)).replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
            writer.write(asked[:-10])
            await asyncio.sleep(1.5)
            writer.write(asked[-10:])
            answer = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["attempt"]["number"] == 1, answer

    asyncio.run(scenario())


def test_beyond_the_places_a_client_is_told_to_try_again_until_one_is_free(
    tmp_path: Path, forked_workers: None
) -> None:
    asked = {"reference_code": REFERENCE}

    async def scenario() -> None:
        async with hurried(tmp_path, HttpTimes(), 2) as client:
            of_two = [asked | {"client": name} for name in ("one", "other")]
            first, second = [(await client.post("/sessions", json=of_one)).json() for of_one in of_two]
            for path, more in (("/sessions", {}), ("/bench", {"source": RIGHT})):
                refused = await client.post(path, json=asked | more)
                assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
                assert "2 runs are under way" in refused.json()["error"]
            assert (await client.delete(f"/sessions/{first['session']}")).status_code == 200
            third = await client.post("/sessions", json=asked)
            assert third.status_code == 201
            assert not (await client.get(f"/sessions/{second['session']}")).json()["over"]

    asyncio.run(scenario())
