"""Which system calls a runner and a task's process really make, and which of those their lists do not have.

    python -m benchmarks.system_calls PROGRAM [ARGUMENT ...]     # optimize bench FILE --task softmax

Runs `optimize`, or a module as a program, with the filters of these two roles replaced by one that refuses nothing and
tells of each call (seccomp's user notifications, Linux 5.5): also those of programs that a task starts. Prints a line
for each call, with the argument that is judged (`checks`), how often, and the first program that made it; at its head,
what the lists of `tools/sandbox/rules.py` would have refused. A process is 1 for the caller's own, 2 for its own
thread, 3 for another; a pointer 1 for any. What every program does all the time is not told of. `clone3`, which is
refused so that `clone` can be judged, is told of as what it is.
"""

import contextlib
import ctypes
import fcntl
import os
import platform
import re
import runpy
import select
import socket
import struct
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from kerneltune.agent import cli
from kerneltune.tools.sandbox import confine, linux, workers
from kerneltune.tools.sandbox import rules as sandbox_rules
from kerneltune.tools.sandbox.rules import Profile

ROLES = (Profile.RUNNER, Profile.TASK)
_UNTOLD = """
read write close openat fstat newfstatat stat lstat lseek mmap munmap mprotect futex madvise brk sched_yield pread64
getpid gettid clock_gettime rt_sigprocmask rt_sigaction sendmsg recvmsg readlink getdents64 set_robust_list rseq exit
exit_group
"""
_NOTIFY, _NEW_LISTENER, _SPEC_ALLOW, _WAIT_KILLABLE = 0x7FC00000, 8, 4, 32
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # ioctls of a listener: 80 bytes to us, 24 from us
_GO_ON = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
_JUDGED = {check.call: check.argument for check in sandbox_rules.checks(Profile.TASK, pid=0, signals_scoped=False)}
_JUDGED |= {"fcntl": 1, "ioctl": 1, "prctl": 0, "socket": 0, "clone": 0, "sched_setaffinity": 0, "mbind": 2}
_OF_PROCESSES = ("kill", "tkill", "tgkill", "sched_setaffinity")

Call = tuple[str, str, int | None]  # role, name of the call, the argument that is judged


def watch(address: str) -> None:
    """In this process and those that it forks: instead of a filter, tell the collector at that address."""
    judged = confine._Entry._filter

    def told(entry: Any, *, signals_scoped: bool) -> bool:
        profile = entry._profile
        if profile not in ROLES:
            return judged(entry, signals_scoped=signals_scoped)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(address)
            listener = _notifying()
            socket.send_fds(sock, [profile.value.encode()], [listener])
            os.close(listener)
        return True

    setattr(confine._Entry, "_filter", told)  # noqa: B010 - a method replaced on purpose


def _notifying() -> int:
    """Have the kernel tell of this process's calls; where they can be read."""
    nr = linux.numbers(platform.machine())
    ops = [linux._Op(linux._LOAD, 0, 0, linux._NR)]
    for name in _UNTOLD.split():
        if name in nr:
            ops += [linux._Op(linux._JUMP_EQ, 0, 1, nr[name]), linux._allow()]
    ops.append(linux._Op(linux._RETURN, 0, 0, _NOTIFY))
    program = b"".join(struct.pack("=HBBI", *op) for op in ops)
    buffer = ctypes.create_string_buffer(program, len(program))
    argument = linux._Program(len(ops), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_NEW_LISTENER | _SPEC_ALLOW | _WAIT_KILLABLE)
    listener: int = libc.syscall(ctypes.c_long(nr["seccomp"]), ctypes.c_ulong(1), flags, ctypes.byref(argument))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


class Collector:
    """Answers each call with "go on", and remembers it. A thread of its own."""

    def __init__(self, address: str) -> None:
        self.counts: Counter[Call] = Counter()
        self.first: dict[Call, str] = {}
        self._names = _names()
        self._roles: dict[int, str] = {}
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(address)
        self._door.listen(64)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        poll = select.epoll()
        poll.register(self._door, select.EPOLLIN)
        while True:
            for fd, event in poll.poll():
                if fd == self._door.fileno():
                    with self._door.accept()[0] as sock:
                        role, fds, _, _ = socket.recv_fds(sock, 64, 1)
                    self._roles[fds[0]] = role.decode()
                    poll.register(fds[0], select.EPOLLIN)
                elif event & select.EPOLLIN:
                    with contextlib.suppress(OSError):  # who called may have been killed
                        self._answer(fd)
                else:  # the last process that it told of has ended
                    poll.unregister(fd)
                    os.close(fd)

    def _answer(self, fd: int) -> None:
        told = bytearray(80)
        fcntl.ioctl(fd, _RECEIVE, told)
        number, pid, _, call, _, _, *arguments = struct.unpack("=QIIiIQ6Q", told)
        try:
            self._remember(self._roles[fd], pid, call, arguments)
        finally:
            fcntl.ioctl(fd, _SEND, bytearray(struct.pack("=QqiI", number, 0, 0, _GO_ON)))

    def _remember(self, role: str, pid: int, call: int, arguments: list[int]) -> None:
        name = self._names.get(call, str(call))
        argument = arguments[_JUDGED[name]] if name in _JUDGED else None
        if argument is not None:
            argument &= 0xFFFFFFFF
            if name in _OF_PROCESSES and argument:
                argument = 1 if argument == _process_of(pid) else 2 if argument == pid else 3
            argument = int(argument > 0) if name in ("sendto", "prlimit64") else argument
        key = (role, name, argument)
        self.counts[key] += 1
        if key not in self.first:
            self.first[key] = _program(pid)


def _process_of(thread: int) -> int:
    status = Path(f"/proc/{thread}/status").read_text()
    return int(status.partition("Tgid:")[2].split()[0])


def _program(pid: int) -> str:
    """The end of its command line's first word, and of its thread."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"{os.path.basename(words[0].decode())}/{Path(f'/proc/{pid}/comm').read_text().strip()}"
    return "?"


def _names() -> dict[int, str]:
    """The names of calls by number: all of this machine's, where its headers are there."""
    found: dict[int, str] = {}
    for header in ("x86_64-linux-gnu/asm/unistd_64.h", "asm/unistd_64.h", "asm-generic/unistd.h"):
        path = Path("/usr/include", header)
        if path.exists():
            found |= {int(n): name for name, n in re.findall(r"#define __NR_(\w+) (\d+)\n", path.read_text())}
            break
    return found | {number: name for name, number in linux.numbers(platform.machine()).items()}


def told(collector: Collector) -> None:
    """Print what was seen."""
    for role in ROLES:
        seen = sorted((call for call in collector.counts if call[0] == role), key=str)
        names = {name for _, name, _ in seen}
        missing = sorted(names - {*sandbox_rules.calls(role), *sandbox_rules.IGNORED.get(role, ()), "clone3"})
        print(f"CALLS {role.value}: {len(names)} told of; its list would have refused: {' '.join(missing) or 'none'}")
        for call in seen:
            argument = "" if call[2] is None else f" {call[2]:#x}"
            print(f"  {role.value} {call[1]}{argument} x{collector.counts[call]} {collector.first[call]}")


def main() -> None:
    """The command line."""
    program, sys.argv = sys.argv[1], sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/told"
        collector = Collector(address)
        watch(address)
        isolated = workers.isolated

        def watched(code: str, bytecode: Path | None = None) -> list[str]:
            return isolated(f"from benchmarks.system_calls import watch; watch({address!r}); {code}", bytecode)

        workers.isolated = watched
        try:
            if program == "optimize":
                cli.main()
            else:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
        finally:
            told(collector)


if __name__ == "__main__":
    main()
