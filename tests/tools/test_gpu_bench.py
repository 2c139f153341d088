"""The supervisor's part of judging on a GPU, with a process in the place of the judge that says what it was asked."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kerneltune.tools.bench import GpuBench, waiting_judge
from kerneltune.tools.sandbox import workers
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.errors import GpuLost
from kerneltune.tools.schema.messages import BenchReply, BenchRequest, SupervisorMessage
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.verdict import Status, Tier, Verdict
from kerneltune.tools.update import Update
from tests import shared_fork_server

UPDATE = Update({"main": (Plan("main", "default", "sm_90", (), (), (), (), []),)}, main_case="main")


def judge(channel: Any) -> None:
    """Answer with the request's tier, and whether an earlier verdict would do."""
    while True:
        request: Any = decode(SupervisorMessage, channel.receive().body)  # type: ignore[arg-type]
        assert isinstance(request, BenchRequest)
        channel.send(encode(BenchReply(Verdict(Status.WRONG, f"{request.tier} {request.reuse}"))))


@pytest.fixture(scope="module")
def bench() -> Iterator[GpuBench]:
    with contextlib.ExitStack() as held:
        machine = held.enter_context(shared_fork_server.forked(workers.started_base()))
        ours, theirs = map(held.enter_context, socket.socketpair())
        worker = held.enter_context(machine.trusted("tests.tools.test_gpu_bench:judge", extra=[theirs]))
        yield GpuBench(machine, worker, ours)


@pytest.mark.parametrize("tier", ["screened", "judged", "confirmed"])
def test_an_earlier_verdict_on_the_same_will_do_where_nothing_else_was_said(bench: GpuBench, tier: Tier) -> None:
    assert bench.bench(UPDATE, tier).detail == f"{tier} True"


def test_a_candidate_is_judged_anew_when_that_is_asked_for(bench: GpuBench) -> None:
    assert bench.bench(UPDATE, "judged", reuse=False).detail == "judged False"


def test_a_judge_that_is_killed_before_it_has_started_ends_at_once() -> None:
    """It is no session's leader yet, and imports; waiting for the end of that took a killed one's whole task."""
    with workers.started_base() as machine, waiting_judge(machine, "tests.tools.test_gpu_bench:judge") as bench:
        began_s = time.monotonic()
        bench.kill()
        assert time.monotonic() - began_s < 5.0
        with pytest.raises(GpuLost, match="SIGKILL"):
            bench.warm()
