"""Coding agents: the tools through the Model Context Protocol, driven by its SDK's own client."""

import asyncio
import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.commands.mcp import AgentTools, prepared
from kerneltune.agent.commands.service import Service
from kerneltune.agent.events import RunEnded
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Environment, Settings
from kerneltune.tools.sandbox import workers
from kerneltune.tools.schema.errors import UsageError
from tests import shared_fork_server
from tests.agent.shell import SOFTMAX, command, env, optimize
from tests.agent.test_serve import served

RIGHT = """
import torch, triton, triton.language as tl

@triton.jit
def softmax_kernel(x_ptr, y_ptr, cols, COLS: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, COLS)
    x = tl.load(x_ptr + row * cols + column, mask=column < cols, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * cols + column, e / tl.sum(e, axis=0), mask=column < cols)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        x, y = x.contiguous(), torch.empty_like(x)
        cols = x.shape[-1]
        softmax_kernel[(x.numel() // cols,)](x, y, cols, COLS=triton.next_power_of_2(cols), num_warps=8)
        return y
"""
WRONG = RIGHT.replace("/ tl.sum", "* tl.sum")
SLOW = RIGHT.replace("    e = tl.exp", "    for _ in tl.static_range(100_000):\n        x = x * 1.0\n    e = tl.exp")
NOBODY = Environment((), "", "", no_color=True, ci=True)
Story = Callable[[Client], Awaitable[None]]


@pytest.fixture(scope="module")
def begun() -> Iterator[workers.Workers]:
    with shared_fork_server.in_use(), workers.begun(allow_unconfined=False) as begun:
        yield begun


def told(begun: workers.Workers, folder: Path, story: Story, soon_s: float = 120.0) -> None:
    """Let an agent tell its story on a server of its own in this process."""

    async def tell(service: "Future[Service]") -> None:
        async with Client(AgentTools(service, folder, soon_s).server()) as agent:
            await story(agent)

    with prepared(Settings(runs_dir=folder / "runs"), NOBODY, begun) as service:
        asyncio.run(tell(service))


async def call(agent: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers; its text stands in both forms."""
    answer = await agent.call_tool(name, arguments)
    assert answer.structured_content is not None
    assert [part.text for part in answer.content] == [answer.structured_content["text"]]  # type: ignore[union-attr]
    return {**answer.structured_content, "is_error": answer.is_error}


def test_an_agent_improves_softmax_over_stdio_and_its_run_is_one_like_any_other(tmp_path: Path) -> None:
    program, *arguments = command("mcp")
    server = StdioServerParameters(command=program, args=arguments, cwd=str(tmp_path), env=env())
    ended: dict[str, Any] = {}

    async def story() -> None:
        async with Client(stdio_client(server)) as agent:
            names = [tool.name for tool in (await agent.list_tools()).tools]
            assert names == "tasks start update bench reflect look wait show finish".split()
            assert (
                "class ModelNew"
                in (await call(agent, "start", task=shutil.copy(SOFTMAX, tmp_path / "mine.py")))["text"]
            )
            await call(agent, "update", rationale="multiplies", source=WRONG)
            assert (await call(agent, "bench", attempt=1))["attempt"]["status"] == "wrong"
            edits = [{"search": "* tl.sum", "replace": "/ tl.sum"}]
            said = {"hypothesis": "the sign of the exponent", "rationale": "divides", "edits": edits}
            await call(agent, "update", parent=1, **said)
            assert (await call(agent, "bench", attempt=2))["attempt"]["status"] == "checked"
            assert "memory" in (await call(agent, "reflect", attempt=2, hypothesis="each element is read once"))["text"]
            ended.update(await call(agent, "finish"))
            best = await agent.read_resource(f"kerneltune://runs/{ended['run']}/best")
            assert best.contents[0].text == RIGHT  # type: ignore[union-attr]

    asyncio.run(story())
    assert ended["state"] == "over"
    assert ended["best"]["number"] == 2
    assert RIGHT.strip() in Path(ended["best_path"]).read_text()
    shown = json.loads(optimize("show", ended["run"], "--json", cwd=tmp_path).stdout)
    assert shown["author"] == "mcp:mcp"
    assert [a["status"] for a in shown["attempts_shown"]] == ["wrong", "checked"]
    exported = optimize("export", "--format", "openai", "--as", "jsonl", "-o", "rows", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    rows = "".join(path.read_text() for path in (tmp_path / "rows").rglob("*.jsonl"))
    assert "the sign of the exponent" in rows
    replayed = optimize("--task", "mine.py", "--model", f"replay:{ended['run']}", "--json", cwd=tmp_path)
    assert json.loads(replayed.stdout.splitlines()[-1])["by_status"] == {"wrong": 1, "checked": 1}
    assert "a client" in optimize("--resume", ended["run"], cwd=tmp_path).stderr


def test_what_is_edited_on_disk_changes_no_verdict(begun: workers.Workers, tmp_path: Path) -> None:
    async def story(agent: Client) -> None:
        mine = Path(shutil.copy(SOFTMAX, tmp_path / "mine.py"))
        run = (await call(agent, "start", task="mine.py"))["run"]
        mine.write_text(mine.read_text().replace("torch.softmax(x, dim=-1)", "torch.zeros_like(x)"))
        await call(agent, "update", rationale="multiplies", source=WRONG)
        assert (await call(agent, "bench", attempt=1))["attempt"]["status"] == "wrong"
        receipt = tmp_path / "runs" / run / "receipts" / "1.json"
        receipt.write_text(receipt.read_text().replace('"wrong"', '"checked"'))
        (tmp_path / "runs" / run / "best.py").write_text(WRONG)
        shown = await call(agent, "show", attempt=1)
        assert shown["attempt"]["status"] == "wrong"
        assert "best" not in await call(agent, "finish")

    told(begun, tmp_path, story)


def test_an_agent_reads_nothing_of_held_out_cases_and_sees_what_is_not_benched(
    begun: workers.Workers, tmp_path: Path
) -> None:
    async def story(agent: Client) -> None:
        shutil.copy(SOFTMAX, tmp_path / "mine.py")
        run = (await call(agent, "start", task="mine.py"))["run"]
        source = RIGHT.replace("        return y", "        return y[:5] if cols == 203 else y")  # of the held-out case
        await call(agent, "update", rationale="cuts", source=source)
        made = [await call(agent, "bench", attempt=1)]
        await call(agent, "update", rationale="does not", source=RIGHT)
        made += [await call(agent, "show"), await call(agent, "show", attempt=1), await call(agent, "show", attempt=2)]
        history = json.loads((await agent.read_resource(f"kerneltune://runs/{run}/history")).contents[0].text)  # type: ignore[union-attr]
        assert [one["is_error"] for one in made] == [False] * 4
        facts = [made[0]["attempt"], made[1]["attempts"][0], made[2]["attempt"], history[0]]
        assert {(one["status"], one["detail"].partition(" is wrong")[0]) for one in facts} == {
            ("wrong", "a case with held-out shapes")
        }
        assert "203" not in json.dumps([made, history])
        assert "#2 does not: updated\n" in made[1]["text"]
        assert made[3]["text"] == "#2 does not: updated"

    told(begun, tmp_path, story)


def test_a_call_under_way_is_handed_back_and_waited_for(begun: workers.Workers, tmp_path: Path) -> None:
    async def story(agent: Client) -> None:
        answer = await call(agent, "start", task="softmax")
        while answer["state"] == "running":
            answer = await call(agent, "wait")
        assert "class ModelNew" in answer["text"]
        handed_back = [await call(agent, "update", rationale=f"expert {n}", source=f"{RIGHT}# {n}\n") for n in (1, 2)]
        assert [answer["state"] for answer in handed_back] == ["running", "running"]
        assert {answer["text"].partition(" compiled")[0] for answer in await both(agent)} == {"#1", "#2"}

    async def both(agent: Client) -> list[dict[str, Any]]:
        done: list[dict[str, Any]] = []
        while len(done) < 2:
            answer = await call(agent, "wait")
            done += [answer] if answer["state"] == "done" else []
        return done

    told(begun, tmp_path, story, soon_s=0.02)


def test_a_call_that_is_cancelled_gives_up_what_it_had_under_way(begun: workers.Workers, tmp_path: Path) -> None:
    async def story(agent: Client) -> None:
        await call(agent, "start", task="softmax")
        with anyio.move_on_after(3):
            await call(agent, "update", rationale="takes minutes", source=SLOW)
            pytest.fail("the kernel that takes minutes was traced in 3 s")
        await call(agent, "update", rationale="the expert", source=RIGHT)
        assert (await call(agent, "bench", attempt=2))["attempt"]["status"] == "checked"
        assert "there is no attempt 1" in (await call(agent, "bench", attempt=1))["text"]

    told(begun, tmp_path, story)


def test_a_wait_that_is_cancelled_leaves_its_result_to_the_next(begun: workers.Workers, tmp_path: Path) -> None:
    async def story(agent: Client) -> None:
        answer = await call(agent, "start", task="softmax")
        while answer["state"] == "running":
            answer = await call(agent, "wait")
        assert (await call(agent, "update", rationale="takes minutes", source=SLOW))["state"] == "running"
        with anyio.move_on_after(0.5):
            await call(agent, "wait")
        answer = await call(agent, "wait")
        assert "attempt 1 was skipped" in answer["text"], answer

    told(begun, tmp_path, story, soon_s=2.0)


def test_a_run_of_a_shared_service_ends_whose_client_no_longer_waits_for_its_name(
    begun: workers.Workers, tmp_path: Path
) -> None:
    service = Service(Settings(runs_dir=tmp_path), NOBODY, begun)  # whose tasks do not open yet
    there: Future[Service] = Future()
    there.set_result(service)

    async def tell() -> None:
        async with Client(AgentTools(there, None, is_shared=True).server()) as agent:
            with anyio.move_on_after(0.5):
                await call(agent, "start", task="softmax")
            for _ in range(100):
                if all(run.controls.stopping for run in service.runs):
                    break
                await asyncio.sleep(0.1)

    asyncio.run(tell())
    assert [run.controls.stopping for run in service.runs] == [True]
    service.shop.set_exception(UsageError("over"))


def test_a_shared_service_forgets_runs_that_are_over(begun: workers.Workers, tmp_path: Path) -> None:
    service = Service(Settings(runs_dir=tmp_path), NOBODY, begun)
    there: Future[Service] = Future()
    there.set_result(service)

    async def tell() -> None:
        async with Client(AgentTools(there, None, is_shared=True).server()) as agent:
            await call(agent, "start", resume="none")  # which is over at once
            first = weakref.ref(service.runs[0])
            while first() in service.runs:
                await call(agent, "start", resume="none")
            gc.collect()
            assert first() is None

    asyncio.run(tell())


def test_what_cannot_be_meant_is_said_and_harms_nothing(begun: workers.Workers, tmp_path: Path) -> None:
    async def story(agent: Client) -> None:
        (tmp_path / "out.py").symlink_to("/etc/passwd")
        (tmp_path / "link").symlink_to("/etc/passwd")
        for wrong, hint in (
            (call(agent, "start", task="softmaxx"), "did you mean softmax"),
            (call(agent, "start", task="../secret.py"), "is not below"),
            (call(agent, "start", task="out.py"), "is not below"),
            (call(agent, "start", task="/etc/passwd"), "is not below"),
            (call(agent, "start", task="softmax", begin_with="/etc/passwd"), "is not below"),
            (call(agent, "start", task="softmax", begin_with="~/kernel.py"), "is not below"),
            (call(agent, "start", task="softmax", begin_with="/etc/passwd"), "is not below"),
            (call(agent, "start", task="softmax", begin_with="link"), "is not below"),
            (call(agent, "start", task="../../../../../../../../etc/passwd"), "is not below"),
            (call(agent, "start", task="nul\0"), "is not below"),
            (call(agent, "start", task="a" * 5000), "no task"),
            (call(agent, "start", task="softmax", begin_with="a" * 5000), "no attempt"),
            (call(agent, "start", task="softmax", max_attempts=0), "max_attempts"),
            (call(agent, "start"), "either `task` or `resume`"),
            (call(agent, "start", resume="nothing-like-it"), "nothing-like-it"),
            (call(agent, "start", task="softmax", language="cobol\x1b[2J"), "triton"),
            (call(agent, "bench", attempt=1, run="x" * 1000), "no run"),
            (call(agent, "judge"), "the tools are tasks, start"),
        ):
            answer = await wrong
            assert answer["is_error"], answer
            assert hint in answer["text"], answer
            assert answer["text"].isprintable() or "\n" in answer["text"]
        await call(agent, "start", task="softmax")
        assert "source" in (await call(agent, "update", rationale="", source=7))["text"]
        assert "no attempt" in (await call(agent, "bench", attempt=10**30))["text"]

    told(begun, tmp_path, story)


def test_a_run_whose_server_was_killed_goes_on_from_another_client(begun: workers.Workers, tmp_path: Path) -> None:
    program, *arguments = command("mcp")
    server = StdioServerParameters(command=program, args=arguments, cwd=str(tmp_path), env=env())
    started: dict[str, Any] = {}

    async def first() -> None:
        async with Client(stdio_client(server)) as agent:
            started.update(await call(agent, "start", task="softmax"))
            await call(agent, "update", rationale="multiplies", source=WRONG)
            await call(agent, "bench", attempt=1)
            process = json.loads((tmp_path / "runs" / started["run"] / "process.json").read_text())
            os.kill(process["pid"], signal.SIGKILL)

    async def second(agent: Client) -> None:
        resumed = await call(agent, "start", resume=started["run"])
        assert resumed["run"] == started["run"]
        assert "wrong" in resumed["text"]
        await call(agent, "update", rationale="divides", source=RIGHT)
        await call(agent, "bench", attempt=2)
        await call(agent, "finish")

    asyncio.run(first())
    told(begun, tmp_path, second)
    with Store.open(tmp_path / "runs") as store:
        assert [a.judged.status for a in store.attempts(started["run"])] == ["wrong", "checked"]


def test_when_a_client_goes_its_best_is_on_disk_and_what_was_not_benched_waits(
    begun: workers.Workers, tmp_path: Path
) -> None:
    started: dict[str, Any] = {}

    async def goes(agent: Client) -> None:
        started.update(await call(agent, "start", task="softmax"))
        await call(agent, "update", rationale="divides", source=RIGHT)
        await call(agent, "bench", attempt=1)
        await call(agent, "update", rationale="multiplies", source=WRONG)

    async def comes_back(agent: Client) -> None:
        assert "#2" in (await call(agent, "start", resume=started["run"]))["text"]
        assert (await call(agent, "wait"))["text"] == "nothing is under way"
        assert (await call(agent, "show", attempt=2))["attempt"]["status"] == "wrong"

    told(begun, tmp_path, goes)
    folder = tmp_path / "runs" / started["run"]
    assert RIGHT.strip() in (folder / "best.py").read_text()
    with Store.open(tmp_path / "runs") as store:
        (ended,) = [e for e in store.load_events(started["run"]) if isinstance(e, RunEnded)]
        assert (ended.why, ended.attempts) == (StopReason.INTERRUPTED, 1)
    told(begun, tmp_path, comes_back)


HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


@contextlib.contextmanager
def begun_server(folder: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[..., None]]]:
    """A server that has answered `initialize`, and what sends it another message."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command("mcp"), cwd=folder, env=env(), **pipes) as server:  # type: ignore[call-overload]

        def send(method: str, **more: Any) -> None:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method, **more}).encode() + b"\n")
            server.stdin.flush()

        send("initialize", id=1, params=HELLO)
        assert json.loads(server.stdout.readline())["id"] == 1
        send("notifications/initialized")
        yield server, send


def test_a_client_that_goes_without_reading_its_answers_is_no_failure(tmp_path: Path) -> None:
    with begun_server(tmp_path) as (server, send):
        server.stdout.close()  # type: ignore[union-attr]
        send("tools/list", id=2)
        server.stdin.close()  # type: ignore[union-attr]
        said = server.stderr.read().decode()  # type: ignore[union-attr]
    assert (server.returncode, said) == (0, "")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_whose_client_stays(how: signal.Signals, tmp_path: Path) -> None:
    with begun_server(tmp_path) as (server, _):
        server.send_signal(how)
        assert server.wait(30) == 130
        assert server.stderr.read().decode() == "optimize: interrupted\n"  # type: ignore[union-attr]


def test_what_lies_beside_the_service_is_no_file_of_an_agent(
    begun: workers.Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("a key\n")
    monkeypatch.chdir(tmp_path)  # where the service runs, and not the root

    async def story(agent: Client) -> None:
        for name in ("secret", "./secret", "work/../secret"):
            assert (await call(agent, "start", task="softmax", begin_with=name))["is_error"]
        assert "no task" in (await call(agent, "start", task="secret"))["text"]

    told(begun, tmp_path / "work", story)


def test_two_agents_share_a_service_over_http_and_each_names_its_run(tmp_path: Path) -> None:
    async def agent_at(path: Path, story: Story) -> None:
        async with (
            httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), timeout=100) as http,
            Client(streamable_http_client("http://service/mcp", http_client=http)) as agent,
        ):
            await story(agent)

    runs: list[str] = []

    async def story(agent: Client) -> None:
        runs.append(run := (await call(agent, "start", task="softmax"))["run"])
        assert "`run`" in (await call(agent, "update", rationale="divides", source=RIGHT))["text"]
        await call(agent, "update", run=run, rationale="divides", source=RIGHT)
        assert (await call(agent, "bench", run=run, attempt=1))["attempt"]["status"] == "checked"
        assert (await agent.list_resources()).resources == []  # nor does a mistake tell the runs of others
        assert (await call(agent, "show", run="another"))["text"].endswith("no run 'another' was started here")
        async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(place)), timeout=100) as http:
            begun = (await http.post("http://service/sessions", json={"task": "softmax"})).json()
            assert "no run" in (await call(agent, "finish", run=begun["run_id"]))["text"]
            await http.delete(f"http://service/sessions/{begun['session']}")
        assert "takes no files" in (await call(agent, "start", task="/etc/passwd"))["text"]
        assert (await call(agent, "finish", run=run))["best"]["number"] == 1

    async def both(path: Path) -> None:
        await asyncio.gather(agent_at(path, story), agent_at(path, story))

    with served(tmp_path) as service:
        place = service.path
        asyncio.run(both(place))
    assert len(set(runs)) == 2
    with Store.open(tmp_path / "runs") as store:
        assert [store.load_run(run).author for run in runs] == ["mcp:mcp", "mcp:mcp"]
