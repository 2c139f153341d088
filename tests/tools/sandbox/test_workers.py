"""Workers that do not read, that leave processes behind, and that cannot be started."""

import os
import resource
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kerneltune.tools.sandbox import fork_server, workers
from kerneltune.tools.sandbox.fork_server import Channel
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.sandbox.workers import ForkServer, Machine
from kerneltune.tools.schema.errors import Unfit, WorkerTimeout
from tests import shared_fork_server
from tests.agent.shell import is_alive

NOBODY = 65534


def reads_nothing(_: Channel) -> None:
    time.sleep(600)


def leaves_a_process_behind(channel: Channel) -> None:
    if (pid := os.fork()) == 0:
        time.sleep(600)
    channel.send({"pid": pid})


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with shared_fork_server.forked(workers.started_base()) as started:
        yield started


@pytest.mark.parametrize("blobs", [[], [bytes(1 << 20)]])
def test_a_message_that_a_worker_does_not_read_ends_it_at_the_limit(machine: Machine, blobs: list[Any]) -> None:
    """More than a socket holds: sending it waited for ever, with whoever sent it."""
    body = {} if blobs else {"text": "x" * (1 << 20)}
    with machine.trusted(f"{__name__}:reads_nothing") as worker:
        worker.enforced()
        began_s = time.monotonic()
        with pytest.raises(WorkerTimeout):
            worker.call(body, blobs, timeout_s=0.5)
        assert time.monotonic() - began_s < 5.0
        assert worker.exit_status == -signal.SIGKILL


def test_what_a_task_has_started_ends_with_its_worker_however_that_ends(machine: Machine) -> None:
    with machine.task(f"{__name__}:leaves_a_process_behind") as worker:
        pid = int(worker.receive(timeout_s=30.0).body["pid"])
        assert worker.exited.wait(10.0)
        assert worker.exit_status == 0
    deadline = time.monotonic() + 5.0
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


def allowed_no_process(control: socket.socket) -> None:
    """A fork server of a user who may have no further process."""
    if os.geteuid() == 0:  # whom the limit is not for
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    fork_server.serve(Channel(control, []))


def test_a_worker_that_cannot_be_forked_is_this_machine_s_lack_and_the_fork_server_goes_on(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork in a process with threads
        pid = os.fork()
    if pid == 0:
        ours.close()
        try:
            allowed_no_process(theirs)
        finally:
            os._exit(1)
    theirs.close()
    server = ForkServer(ours, tmp_path)
    for _ in range(2):
        began_s = time.monotonic()
        worker = server.spawn("kerneltune.tools.sandbox.fork_server:idle", Profile.TRUSTED)
        with worker, pytest.raises(Unfit, match="no further process"):
            worker.receive(timeout_s=10.0)
        assert not server.gone
        assert time.monotonic() - began_s < 4.0
    server.close()
    os.waitpid(pid, 0)


def test_nobody_waits_for_workers_of_a_fork_server_that_has_ended(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    server = ForkServer(ours, tmp_path)
    server._ready.set()
    worker = server.spawn("kerneltune.tools.sandbox.fork_server:idle", Profile.TRUSTED)
    theirs.close()
    assert worker.exited.wait(5.0)
    began_s = time.monotonic()
    worker.close()
    assert time.monotonic() - began_s < 2.0
    server.close()
