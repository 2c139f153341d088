"""Frames over real sockets: what is sent arrives, what is no frame is refused, and no descriptor is left behind."""

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from kerneltune.tools.sandbox import wire


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def raw(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


def test_a_message_arrives_with_its_blobs() -> None:
    with pair() as (ours, theirs):
        wire.send(ours, {"a": 1}, [b"xyz", b""])
        found = wire.receive(theirs)
        assert (found.body, found.blobs, found.fds) == ({"a": 1}, [b"xyz", b""], [])


@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_descriptors_arrive_in_order_and_lead_to_the_same_files(count: int) -> None:
    with pair() as (ours, theirs):
        sent = [os.memfd_create(f"m{i}") for i in range(count)]
        for number, fd in enumerate(sent):
            os.write(fd, b"%d" % number)
        wire.send(ours, {}, [b"after"], sent)
        found = wire.receive(theirs, max_fds=200)
        assert [os.pread(fd, 9, 0) for fd in found.fds] == [b"%d" % i for i in range(count)]
        assert found.blobs == [b"after"]
        found.close()
        for fd in sent:
            os.close(fd)


def test_descriptors_that_nobody_wants_are_refused_and_not_kept() -> None:
    with pair() as (ours, theirs):
        before = open_fds()
        with open(os.devnull) as file:
            wire.send(ours, {}, None, [file.fileno()])
        with pytest.raises(wire.WireError, match="1 file descriptors; the limit is 0"):
            wire.receive(theirs)
        assert open_fds() == before


def test_descriptors_beside_a_message_that_announces_none_are_not_kept() -> None:
    with pair() as (ours, theirs):
        before = open_fds()
        with open(os.devnull) as file:
            socket.send_fds(ours, [raw(b'{"m": {}, "b": []}')], [file.fileno()] * 20)
        assert wire.receive(theirs, max_fds=20).fds == []
        assert open_fds() == before


def test_a_sender_that_dies_halfway_through_its_descriptors_leaves_none_open() -> None:
    with pair() as (ours, theirs):
        before = open_fds()
        with open(os.devnull) as file:
            ours.sendall(raw(b'{"m": {}, "b": [], "f": 100}'))
            socket.send_fds(ours, [b"f"], [file.fileno()] * 64)
            ours.shutdown(socket.SHUT_RDWR)
        with pytest.raises(wire.WireError, match="0 file descriptors, not 36"):
            wire.receive(theirs, max_fds=100)
        assert open_fds() == before


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"nonsense",
        b"\xff\xfe",
        b'{"m": 1, "b": []}',
        b'{"m": {}, "b": [-1]}',
        b'{"m": {}, "b": [true]}',
        b'{"m": {}, "b": 3}',
        b'{"m": {}, "b": [], "f": -1}',
        b'{"m": {}, "b": [], "f": "many"}',
        b'{"m": ' + b"[" * 100_000,
        '{"m": {"wide": "\U0001f600"}, "b": []}'.encode(),
    ],
    ids=range(12),
)
def test_what_is_no_frame_is_refused(header: bytes) -> None:
    with pair() as (ours, theirs):
        threading.Thread(target=ours.sendall, args=(raw(header),), daemon=True).start()
        with pytest.raises(wire.WireError):
            wire.receive(theirs, max_fds=1)


def test_more_than_was_asked_for_is_refused_before_it_is_read() -> None:
    with pair() as (ours, theirs):
        ours.sendall(struct.pack("<Q", 1 << 40))
        with pytest.raises(wire.WireError, match="a header of"):
            wire.receive(theirs)
        ours.sendall(raw(b'{"m": {}, "b": [99999999999]}'))
        with pytest.raises(wire.WireError, match="of blobs"):
            wire.receive(theirs, max_blob_bytes=10)
        ours.sendall(raw(b'{"m": {"lists": [' + b"[]," * 40 + b'[]]}, "b": []}'))
        with pytest.raises(wire.WireError, match="86 commas and brackets, and so may have more than 85 values"):
            wire.receive(theirs, max_values=85)


def test_a_message_that_trickles_in_cannot_outlast_its_deadline() -> None:
    with pair() as (ours, theirs):
        message, over = raw(b'{"m": {}, "b": []}'), threading.Event()

        def trickle() -> None:
            for at in range(len(message)):
                if over.wait(0.05):
                    return
                ours.sendall(message[at : at + 1])

        thread = threading.Thread(target=trickle)
        thread.start()
        with pytest.raises(TimeoutError):  # the whole message takes 0.9 s
            wire.receive(theirs, timeout_s=0.3)
        over.set()
        thread.join()


def test_the_time_for_which_the_reader_was_stopped_is_not_the_sender_s() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = int(wire.receive(theirs, timeout_s=1.0).body != {"after": "the stop"})
            finally:
                os._exit(status)
        time.sleep(0.2)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.2)  # what was sent while it was stopped may come late: the sender may have been stopped, too
        wire.send(ours, {"after": "the stop"})
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
