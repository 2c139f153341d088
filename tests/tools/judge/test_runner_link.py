"""The judge's line to a runner, with a runner that is a thread in this process."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kerneltune.tools.backends.runner_messages import (
    CopyOut,
    Done,
    Failed,
    Reply,
    Request,
    Setup,
    Shared,
    Shares,
    Steps,
    TimedBlock,
    Times,
)
from kerneltune.tools.judge.execution.runner_link import RunnerFailed, RunnerLink, Runners, pass_runner, receive_runner
from kerneltune.tools.sandbox import wire
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.errors import Unfit, WorkerTimeout
from kerneltune.tools.schema.plan import Plan
from kerneltune.tools.schema.verdict import Status

Behaviour = Callable[[socket.socket], None]
EMPTY_PLAN = Plan("main", "", "sm_90", (), (), (), (), None)
NEW_PLAN = Setup(EMPTY_PLAN, (), Shared(0), Shared(0), Shared(0), 1, 1, (), 0, (), 0, 0)


class Supervisor:
    """Passes a runner through the door whenever one is needed; runners behave as told, one after the other."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self.ours, self.judges = socket.socketpair()
        self._behaviours = list(behaviours)
        self.needed: list[str] = []
        self.ended: list[str] = []
        self._runners: list[socket.socket] = []

    def need(self, why: str) -> None:
        self.needed.append(why)
        judge_end, runner_end = socket.socketpair()
        with judge_end:
            pass_runner(self.ours, judge_end)
        self._runners.append(runner_end)
        threading.Thread(target=self._run, args=(self._behaviours.pop(0), runner_end), daemon=True).start()

    def _run(self, behaviour: Behaviour, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            behaviour(sock)

    def close(self) -> None:
        for sock in (self.ours, self.judges, *self._runners):
            sock.close()


def answer(sock: socket.socket, message: wire.WireMessage, reply: Reply | dict[str, Any]) -> None:
    said = reply if isinstance(reply, dict) else encode(reply)
    wire.send(sock, {"token": message.body["token"], "reply": said})


def always(reply: Reply | dict[str, Any]) -> Behaviour:
    def behave(sock: socket.socket) -> None:
        while True:
            answer(sock, wire.receive(sock, max_fds=9), reply)

    return behave


serving = always(Done())


def failing(sock: socket.socket) -> None:
    answer(sock, wire.receive(sock), Failed("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access\nwas \x1b[2Jmet"))
    sock.shutdown(socket.SHUT_RDWR)


def dying(sock: socket.socket) -> None:
    wire.receive(sock)
    sock.shutdown(socket.SHUT_RDWR)


def hanging(sock: socket.socket) -> None:
    wire.receive(sock)


def trickling(sock: socket.socket) -> None:
    wire.receive(sock)
    for _ in range(100):
        sock.sendall(b"\0")
        time.sleep(0.05)


def babbling(sock: socket.socket) -> None:
    wire.receive(sock)
    sock.sendall(os.urandom(4096))


def flooding(sock: socket.socket) -> None:
    answer(sock, wire.receive(sock), Failed("x" * (2 << 20)))


def handing_blobs(sock: socket.socket) -> None:
    token = wire.receive(sock).body["token"]
    wire.send(sock, {"token": token, "reply": encode(Done())}, [b"for you"])


def handing_descriptors(sock: socket.socket) -> None:
    token = wire.receive(sock).body["token"]
    with open(os.devnull) as file:
        wire.send(sock, {"token": token, "reply": encode(Done())}, None, [file.fileno()] * 30)


def nesting(sock: socket.socket) -> None:
    wire.receive(sock)
    header = b'{"m": {"a": ' + b"[" * 50_000 + b"]" * 50_000 + b'}, "b": []}'
    sock.sendall(struct.pack("<Q", len(header)) + header)


def forgetting_the_token(sock: socket.socket) -> None:
    wire.receive(sock)
    wire.send(sock, {"reply": encode(Done())})


def answering_ahead(sock: socket.socket) -> None:
    wire.send(sock, {"token": "guess", "reply": encode(Done())})
    wire.receive(sock)


def answering_twice(sock: socket.socket) -> None:
    message = wire.receive(sock)
    answer(sock, message, Done())
    answer(sock, message, Done())


@contextlib.contextmanager
def linked(*behaviours: Behaviour) -> Iterator[tuple[RunnerLink, Supervisor]]:
    supervisor = Supervisor(*behaviours)
    link = RunnerLink(supervisor.judges, supervisor.need, supervisor.ended.append)
    try:
        yield link, supervisor
    finally:
        link.distrust("the test is over")
        supervisor.close()


def test_a_runner_is_asked_for_when_it_is_first_needed_and_kept() -> None:
    with linked(serving) as (link, supervisor):
        assert link.ask(CopyOut(), timeout_s=5).reply == Done()
        assert link.ask(CopyOut(), timeout_s=5).host_us > 0
        assert len(supervisor.needed) == 1


@pytest.mark.parametrize(
    ("behaviour", "status", "words"),
    [
        (failing, Status.CRASHED, "ILLEGAL_ADDRESS"),
        (always(Failed("no such kernel", refused=True)), Status.REJECTED, "no such kernel"),
        (always(Failed("cuMemMap: out of memory", no_memory=True)), Status.UNCHECKED, "cuMemMap"),
        (dying, Status.CRASHED, "died"),
        (always({"kind": "verdict", "status": "correct"}), Status.CRASHED, "died"),
        (always({"kind": "done", "extra": 1}), Status.CRASHED, "unknown fields"),
        (always(Times((), 1.0)), Status.CRASHED, "answered times to copy_out"),
        (hanging, Status.TIMED_OUT, "ran longer than 0.2 s"),
        (trickling, Status.TIMED_OUT, "ran longer than 0.2 s"),
        (babbling, Status.CRASHED, "died"),
        (flooding, Status.CRASHED, "the limit is 1048576"),
        (handing_blobs, Status.CRASHED, "of blobs; the limit is 0"),
        (handing_descriptors, Status.CRASHED, "30 file descriptors; the limit is 0"),
        (nesting, Status.CRASHED, "died"),
        (forgetting_the_token, Status.CRASHED, "answered another request"),
    ],
)
def test_a_runner_that_fails_is_a_verdict_and_the_next_one_takes_over(
    behaviour: Behaviour, status: Status, words: str
) -> None:
    with linked(behaviour, serving) as (link, supervisor):
        with pytest.raises(RunnerFailed, match=words) as caught:
            link.ask(CopyOut(), timeout_s=0.2)
        assert caught.value.status is status
        assert caught.value.detail.isprintable()
        assert link.ask(CopyOut(), timeout_s=5).reply == Done()
        assert len(supervisor.needed) == 2


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (TimedBlock(2, 0), Times((1.0,), 2.0)),
        (TimedBlock(1, 0), Times((float("nan"),), 2.0)),
        (TimedBlock(1, 0), Times((float("inf"),), 2.0)),
        (TimedBlock(1, 0), Times((1.0,), -1.0)),
        (TimedBlock(1, 0), Done()),
        (Steps(1), {"kind": "shares", "own_us": -1, "library_us": 0, "glue_us": 0}),
        (Steps(1, 2), Shares(3.0, 0.0, 0.0, (3.0,))),
        (Steps(1, 1), Shares(3.0, 0.0, 0.0, (3.0, 0.0))),
        (Steps(1, 1), Shares(3.0, 0.0, 0.0, (float("nan"),))),
        (Steps(1), {"kind": "shares", "own_us": 10**400, "library_us": 0, "glue_us": 0}),
    ],
)
def test_times_that_are_none_are_a_dead_runner(request_: Request, reply: Reply | dict[str, Any]) -> None:
    with linked(always(reply)) as (link, _), pytest.raises(RunnerFailed) as caught:
        link.ask(request_, timeout_s=5)
    assert caught.value.status is Status.CRASHED


def test_as_many_times_as_passes_are_an_answer() -> None:
    with linked(always(Times((1.0, 2.0), 3.0))) as (link, _):
        assert link.ask(TimedBlock(2, 0), timeout_s=5).reply == Times((1.0, 2.0), 3.0)


def test_an_answer_that_was_there_before_the_request_does_not_count() -> None:
    with linked(answering_ahead) as (link, supervisor):
        supervisor.need("early")
        link._line = receive_runner(supervisor.judges)
        time.sleep(0.1)
        with pytest.raises(RunnerFailed, match="before it was asked"):
            link.ask(CopyOut(), timeout_s=5)


def test_a_second_answer_costs_the_runner_its_place_but_not_the_next_plan_its_verdict() -> None:
    with linked(answering_twice, serving) as (link, supervisor):
        assert link.ask(CopyOut(), timeout_s=5).reply == Done()
        time.sleep(0.1)
        assert link.ask(NEW_PLAN, timeout_s=5).reply == Done()
        assert len(supervisor.needed) == 2
        assert len(supervisor.ended) == 1


def test_no_descriptor_is_left_open_by_runners_that_fail() -> None:
    behaviours = (handing_descriptors, handing_blobs, babbling, dying, hanging)
    with linked(*behaviours) as (link, supervisor):
        for _ in behaviours:
            with pytest.raises(RunnerFailed):
                link.ask(CopyOut(), timeout_s=0.2)
        held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_open(fd)}
        assert os.devnull not in held - _standard()
        assert len(supervisor.needed) == len(behaviours)


def _is_open(fd: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}") and int(fd) > 2


def _standard() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{fd}") for fd in range(3)}


def test_a_hanging_runner_is_killed_at_once() -> None:
    with linked(hanging) as (link, supervisor):
        with pytest.raises(RunnerFailed):
            link.ask(CopyOut(), timeout_s=0.1)
        assert len(supervisor.ended) == 1


def test_a_supervisor_that_is_gone_ends_the_judge() -> None:
    ours, judges = socket.socketpair()
    ours.close()
    with judges, pytest.raises(wire.WireError):
        receive_runner(judges, timeout_s=1)


def test_a_supervisor_that_brings_nobody_is_waited_for_only_so_long() -> None:
    ours, judges = socket.socketpair()
    with ours, judges, pytest.raises(WorkerTimeout):
        receive_runner(judges, timeout_s=0.05)


class Pool:
    """Runners of `Runners`: each a line that is held open until it is killed."""

    def __init__(self) -> None:
        self.ours, self.judges = socket.socketpair()
        self.most = 99  # runners that can be started
        self.lines: list[socket.socket] = []
        self.killed: list[int] = []
        self.runners = Runners(self.ours, self._start, self._end)

    def _start(self, line: socket.socket) -> int:
        if len(self.lines) == self.most:
            raise Unfit("no further process can be started here")
        self.lines.append(line.dup())
        return len(self.lines) - 1

    def _end(self, number: int) -> None:
        self.killed.append(number)
        self.lines[number].close()

    def judges_runner(self) -> int:
        """Which runner the judge was handed."""
        with receive_runner(self.judges, timeout_s=1) as line:
            line.sendall(b"?")
        alive = [n for n, held in enumerate(self.lines) if n not in self.killed and _heard(held)]
        assert len(alive) == 1
        return alive[0]


def _heard(line: socket.socket) -> bool:
    line.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return line.recv(1) == b"?"
    return False


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.runners.close()
    made.ours.close()
    made.judges.close()


def test_the_spare_takes_over_and_another_spare_is_started(pool: Pool) -> None:
    pool.runners.need()
    assert pool.judges_runner() == 0
    assert pool.runners.started == 2
    pool.runners.end()
    assert pool.killed == [0]
    pool.runners.need()
    assert pool.judges_runner() == 1
    assert pool.runners.started == 3


def test_a_spare_that_died_while_it_waited_is_replaced(pool: Pool) -> None:
    pool.runners.need()
    assert pool.judges_runner() == 0
    pool.lines[1].close()
    pool.runners.need()
    assert pool.judges_runner() == 2
    assert pool.killed == [0, 1]


def test_a_spare_that_does_not_start_takes_nothing_from_the_runner_at_hand(pool: Pool) -> None:
    pool.most = 1
    pool.runners.need()
    assert pool.judges_runner() == 0
    with pytest.raises(Unfit):
        pool.runners.need()
    pool.most = 3
    pool.runners.need()
    assert pool.judges_runner() == 1
    assert pool.runners.started == 3


def test_closing_ends_the_runner_and_the_spare(pool: Pool) -> None:
    pool.runners.need()
    pool.runners.close()
    assert sorted(pool.killed) == [0, 1]
    pool.runners.close()
    assert sorted(pool.killed) == [0, 1]
