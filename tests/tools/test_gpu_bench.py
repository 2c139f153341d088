"""The supervisor's part of judging on a GPU, with a process in the place of the judge that says what it was asked."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kerneltune.tools.bench import GpuBench, opening, waiting_judge
from kerneltune.tools.sandbox import workers
from kerneltune.tools.sandbox.workers import Machine, Worker
from kerneltune.tools.schema.codec import decode, encode
from kerneltune.tools.schema.errors import GpuLost, TaskError, WorkerError
from kerneltune.tools.schema.messages import (
    Baselines,
    BenchReply,
    BenchRequest,
    GpuTaken,
    NeedRunner,
    Screened,
    SupervisorMessage,
    Warm,
)
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.verdict import Status, Tier, Verdict
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import Update
from tests import shared_fork_server

UPDATE = Update({"main": (Plan("main", "default", "sm_90", (), (), (), (), []),)}, main_case="main")


def judge(channel: Any) -> None:
    """Answer with the request's tier, and whether an earlier verdict would do. To open a task takes half a second."""
    while True:
        request: Any = decode(SupervisorMessage, channel.receive().body)  # type: ignore[arg-type]
        if isinstance(request, Warm):
            time.sleep(0.5)
            channel.send(encode(GpuTaken()))
            channel.send(encode(Baselines(pending=() if request.all else ("compile",))))
            continue
        assert isinstance(request, BenchRequest)
        channel.send(encode(BenchReply(Verdict(Status.WRONG, f"{request.tier} {request.reuse}"))))


def judge_that_cannot(channel: Any) -> None:
    """A task that it has no room for."""
    channel.receive()
    channel.send(encode(Baselines(problem="it does not fit")))


def judge_that_needs_a_runner(channel: Any) -> None:
    channel.receive()
    channel.send(encode(NeedRunner("a plan is to be run")))
    channel.receive()


def judge_that_says_nonsense(channel: Any) -> None:
    channel.receive()
    channel.send({"kind": "x" * 100_000})
    channel.receive()


def judge_that_times_too_few(channel: Any) -> None:
    channel.receive()
    channel.send(encode(Screened((1.0,), ("",))))
    channel.receive()


class WithoutRunners(Machine):
    """Memory runs out whenever a runner is started."""

    def runner(self, target: str, judge_end: socket.socket) -> Worker:
        raise WorkerError("runner was killed by SIGKILL", exit_status=-signal.SIGKILL)


def judge_that_hangs(channel: Any) -> None:
    channel.receive()
    time.sleep(600)


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


def test_a_judge_is_left_unconfined_only_where_its_caller_says_so() -> None:
    with workers.started_base() as machine, pytest.raises(TypeError, match="task_file"):
        waiting_judge(machine)  # type: ignore[call-arg]


def test_a_judge_that_is_killed_before_it_has_started_ends_at_once() -> None:
    """It is no session's leader yet, and imports; waiting for the end of that took a killed one's whole task."""
    with (
        workers.started_base() as machine,
        waiting_judge(machine, "tests.tools.test_gpu_bench:judge", task_file=None) as bench,
    ):
        began_s = time.monotonic()
        bench.kill()
        assert time.monotonic() - began_s < 5.0
        with pytest.raises(GpuLost, match="SIGKILL"):
            bench.warm()


@contextlib.contextmanager
def opened(name: str, told: list[str]) -> Iterator[GpuBench]:
    with (
        shared_fork_server.forked(workers.started_base()) as machine,
        waiting_judge(
            machine, f"tests.tools.test_gpu_bench:{name}", told.append, task_file=find_task("softmax")
        ) as bench,
        opening(bench, lambda: bench.warm(every=False)),
    ):
        yield bench


def test_a_candidate_waits_for_the_task_and_the_person_hears_what_for() -> None:
    told: list[str] = []
    with opened("judge", told) as bench:
        assert bench.opening is not None
        assert not bench.opening.done()  # a candidate can be traced meanwhile
        assert bench.bench(UPDATE, "screened").detail == "screened True"
        assert bench.opening.result().pending == ("compile",)
    assert told == ["another optimize is at work on this GPU; they take turns"]


def test_a_task_that_cannot_be_opened_is_a_task_s_error_for_whoever_benches_first() -> None:
    with opened("judge_that_cannot", []) as bench, pytest.raises(TaskError, match="does not fit"):
        bench.bench(UPDATE)


def test_nobody_waits_for_an_opening_that_hangs_when_the_session_ends() -> None:
    began_s = time.monotonic()
    with opened("judge_that_hangs", []):
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 10.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("judge_that_needs_a_runner", "kernels can be started: runner was killed"),
        ("judge_that_says_nonsense", "sent no message of a judge"),
    ],
)
def test_a_runner_that_does_not_start_and_an_answer_that_is_none_are_no_fault_of_the_task(
    name: str, words: str
) -> None:
    with shared_fork_server.forked(workers.started_base()) as started:
        machine = WithoutRunners(started.base, started.base, started.base, started.base)
        target = f"tests.tools.test_gpu_bench:{name}"
        with waiting_judge(machine, target, task_file=None) as bench:
            held = len(os.listdir("/proc/self/fd"))
            with pytest.raises(GpuLost, match=words) as lost:
                bench.warm()
            assert len(os.listdir("/proc/self/fd")) <= held
    assert len(str(lost.value)) < 1000


def test_times_of_fewer_variants_than_there_are_end_the_judge_s_work_in_words_of_ours() -> None:
    plans = tuple(replace(UPDATE.plans["main"][0], variant=name) for name in ("default", "other"))
    with (
        workers.started_base() as machine,
        waiting_judge(machine, "tests.tools.test_gpu_bench:judge_that_times_too_few", task_file=None) as bench,
    ):
        bench._weights = {"main": 1.0}  # as `open` does
        with pytest.raises(GpuLost, match="the judge's process sent 1 times of 2 plans"):
            bench.bench(replace(UPDATE, plans={"main": plans}))
