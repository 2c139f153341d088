"""Ctrl-C in the middle of a reply."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.agent.models.server import Format, LlmServer
from tests.agent.models.story import Fault
from tests.agent.models.talk import NAMES, STORY

# The first reply has pydantic build the SDK's types. A Ctrl-C in the middle of that becomes pydantic's SchemaError, as
# was seen on a busy machine. A run's main thread is never there: its conversations ask in threads of their own.
CODE = """
import sys
from kerneltune.agent.cli import interrupt_again
from kerneltune.agent.models.providers import open_model
from kerneltune.agent.models.types import ModelRequest, User
name, url, key = sys.argv[1:]
model = open_model(name, keys={name.partition(":")[0]: key}, base_url=url, timeout_s=60)
sys.unraisablehook = interrupt_again
model.ask(ModelRequest("", (User("Hi."),)))
try:
    model.ask(ModelRequest("", (User("Hi."),)), lambda delta: print(delta.kind, flush=True))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("format", ["anthropic", "openai", "chat"])
def test_ctrl_c_comes_through_at_once_and_closes_the_connection(format: Format) -> None:
    with LlmServer(STORY, format, faults={1: Fault("stall", pause_s=50)}) as server:
        command = [sys.executable, "-c", CODE, NAMES[format], server.url, server.key]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=os.getcwd())
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "thinking"
        time.sleep(0.2)  # into the silence
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=40)
        assert time.monotonic() - began < 30  # of the 50 s that the server would be silent
        assert "interrupted" in out
        assert err == ""
        assert child.returncode == 0
        assert server.hung_up.wait(10)
