"""The kernel's means of self-restriction, one function each, through ctypes: no package, x86_64 and aarch64.

Every function acts on the calling process, for good, and raises OSError when the kernel refuses. What is asked of
which worker, and what a refusal means, is decided in `tools.sandbox`.
"""

import contextlib
import ctypes
import enum
import functools
import os
import re
import resource
import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
CAP_DAC_READ_SEARCH, CAP_IPC_LOCK, CAP_SYS_NICE = 2, 14, 23
CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x04000000, 0x08000000, 0x10000000, 0x40000000


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc().prctl(option, *padded), f"prctl({option})")


def close_fds(keep: Collection[int]) -> None:
    """Close every file descriptor but those in `keep`."""
    kept = set(keep)
    for fd in map(int, os.listdir("/proc/self/fd")):  # os.closerange may loop over a billion numbers
        if fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)


def new_session() -> None:
    """Leave the terminal and the process group; a process that leads one already stays as it is."""
    with contextlib.suppress(PermissionError):
        os.setsid()


def die_with_parent(parent: int | None = None) -> None:
    """SIGKILL when the thread that forked us ends. A change of credentials clears it: call it after those. `parent`:
    who that was; the kernel sends nothing for one that has ended before this call, so then we end here."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def hide() -> None:
    """No core dump, no ptrace and no /proc/<pid>/mem for others of the same uid."""
    _prctl(_PR_SET_DUMPABLE, 0)


def forbid_new_privileges() -> None:
    """No set-uid program gains anything; required for Landlock and seccomp."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(keep: Collection[int] = ()) -> None:
    """Clear the effective, permitted, inheritable, ambient and (where we may) bounding sets, but for `keep`."""
    with contextlib.suppress(OSError):
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    with contextlib.suppress(OSError):  # beyond the kernel's last one, or not ours to drop
        for capability in range(64):
            _prctl(_PR_CAPBSET_DROP, capability)
    mask = sum(1 << c for c in keep) & _permitted() if keep else 0
    halves = (mask & 0xFFFFFFFF, mask >> 32)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(halves[0], halves[0], 0, halves[1], halves[1], 0)  # effective, permitted, inheritable
    _check(_libc().capset(header, data), "capset")


def _permitted() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapPrm:"):
            return int(line.split()[1], 16)
    return 0


def unshare(flags: int) -> None:
    """Move into new namespaces; in a new user namespace we keep our own uid and gid."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc().unshare(ctypes.c_int(flags)), "unshare")
    if flags & CLONE_NEWUSER:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def join_namespace(fd: int) -> None:
    """Move into the namespace that an open /proc/PID/ns/KIND names; needs a single thread."""
    _check(_libc().setns(fd, 0), "setns")


def set_limits(limits: Mapping[int, int]) -> None:
    """Set soft and hard resource limits; never above the hard limit that already holds."""
    for kind, wanted in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def virtual_bytes() -> int:
    """Address space in use now."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def thread_count() -> int:
    """Threads of this process; 1 right after a fork."""
    return len(os.listdir("/proc/self/task"))


class Access(enum.IntFlag):
    """What a path may be used for, as Landlock's file-system rights."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15
    READ = READ_FILE | READ_DIR
    RUN = READ | EXECUTE
    DEVICE = READ | WRITE_FILE | TRUNCATE | IOCTL_DEV
    # No symbolic links, sockets or fifos: what reads the folder afterwards must not be led astray.
    WRITE = READ | WRITE_FILE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | REFER | TRUNCATE


_FILE_RIGHTS = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32)]


def version() -> tuple[int, int]:
    """The kernel's, as (5, 14)."""
    major, minor = re.findall(r"\d+", os.uname().release)[:2]
    return int(major), int(minor)


def landlock_abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    number = ctypes.c_long(_LANDLOCK_CREATE)
    return max(0, int(_libc().syscall(number, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def landlock(rules: Iterable[tuple[Path, Access]], *, abi: int, scopes: int) -> None:
    """Confine to the named paths (those that do not exist are skipped), without TCP, with `scopes` closed."""
    fs = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    attribute = _Ruleset(fs, 3 if abi >= 4 else 0, scopes if abi >= 6 else 0)
    size = ctypes.c_size_t(8 if abi < 4 else 16 if abi < 6 else 24)
    number = ctypes.c_long(_LANDLOCK_CREATE)
    ruleset = _check(_libc().syscall(number, ctypes.byref(attribute), size, ctypes.c_uint32(0)), "landlock")
    try:
        for path, access in rules:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _allow_path(ruleset, path, access & fs)
        _check(_libc().syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ruleset, ctypes.c_uint32(0)), "landlock")
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: Path, access: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = access if path.is_dir() else access & _FILE_RIGHTS
        rule = _PathRule(allowed, fd)
        number = ctypes.c_long(_LANDLOCK_ADD)
        _check(_libc().syscall(number, ruleset, 1, ctypes.byref(rule), ctypes.c_uint32(0)), f"landlock {path}")
    finally:
        os.close(fd)


def pin(path: Path) -> None:
    """Keep a /proc folder's inode in memory for the life of the process: a rule on it would go with the inode."""
    os.open(path, os.O_PATH | os.O_CLOEXEC)
