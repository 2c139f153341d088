"""The judge's line to a runner, with a runner that is a thread in this process."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tools import wire
from tools.codec import encode
from tools.judge.runner_link import RunnerFailed, RunnerLink, pass_runner, receive_runner
from tools.runner.protocol import CopyOut, Done, Failed
from tools.verdict import Status

Behaviour = Callable[[socket.socket], None]


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
        threading.Thread(target=self._behaviours.pop(0), args=(runner_end,), daemon=True).start()

    def close(self) -> None:
        for sock in (self.ours, self.judges, *self._runners):
            sock.close()


def serving(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            wire.receive(sock)
            wire.send(sock, encode(Done()))


def failing(sock: socket.socket) -> None:
    wire.receive(sock)
    wire.send(sock, encode(Failed("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered")))
    sock.shutdown(socket.SHUT_RDWR)


def dying(sock: socket.socket) -> None:
    wire.receive(sock)
    sock.shutdown(socket.SHUT_RDWR)


def lying(sock: socket.socket) -> None:
    wire.receive(sock)
    wire.send(sock, {"kind": "verdict", "status": "correct"})


def hanging(sock: socket.socket) -> None:
    wire.receive(sock)


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
        (dying, Status.CRASHED, "died"),
        (lying, Status.CRASHED, "died"),
        (hanging, Status.TIMED_OUT, "ran longer than 0.2 s"),
    ],
)
def test_a_runner_that_fails_is_a_verdict_and_the_next_one_takes_over(
    behaviour: Behaviour, status: Status, words: str
) -> None:
    with linked(behaviour, serving) as (link, supervisor):
        with pytest.raises(RunnerFailed, match=words) as caught:
            link.ask(CopyOut(), timeout_s=0.2)
        assert caught.value.status is status
        assert link.ask(CopyOut(), timeout_s=5).reply == Done()
        assert len(supervisor.needed) == 2


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
