"""The kernel's means of self-restriction, one function each, through ctypes: no package, x86_64 and aarch64.

Every function acts on the calling process, for good, and raises OSError when the kernel refuses. What is asked of
which worker, and what a refusal means, is decided in `tools.sandbox.confine`.

System-call filters are seccomp-BPF programs, built by hand: no libseccomp, no package. An architecture that is not in
the table gets no filter, and the caller is told so.
"""

import contextlib
import ctypes
import enum
import errno
import functools
import os
import platform
import re
import resource
import signal
import struct
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# name:x86_64:aarch64 from the kernel's unistd headers; "-" where the architecture lacks the call.
_TABLE = """
fork:57:- vfork:58:- clone:56:220 clone3:435:435 execve:59:221 execveat:322:281 socket:41:198 socketpair:53:199
sendto:44:206 seccomp:317:277 memfd_create:319:279 kill:62:129 tgkill:234:131 prlimit64:302:261 setpgid:109:154
sched_setaffinity:203:122 prctl:157:167 fcntl:72:25 ioctl:16:29 read:0:63 write:1:64 readv:19:65 writev:20:66
pread64:17:67 pwrite64:18:68 lseek:8:62 open:2:- openat:257:56 close:3:57 close_range:436:436 dup:32:23 dup2:33:-
dup3:292:24 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44 access:21:-
faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents:78:- getdents64:217:61 getcwd:79:17
chdir:80:49 fchdir:81:50 fadvise64:221:223 pipe:22:- pipe2:293:59 poll:7:- ppoll:271:73 select:23:- pselect6:270:72
epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 eventfd2:290:19 mmap:9:222 munmap:11:215
mprotect:10:226 mremap:25:216 madvise:28:233 brk:12:214 futex:202:98 set_robust_list:273:99 get_robust_list:274:100
rseq:334:293 set_tid_address:218:96 exit:60:93 exit_group:231:94 restart_syscall:219:128 arch_prctl:158:-
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
rt_sigsuspend:130:133 sigaltstack:131:132 pause:34:- alarm:37:- setitimer:38:103 getitimer:36:102
clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201:-
times:100:153 getpid:39:172 getppid:110:173 gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176
getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 getpgrp:111:- getpgid:121:155 getsid:124:156
uname:63:160 sysinfo:99:179 getrusage:98:165 getrlimit:97:163 getpriority:140:141 sched_yield:24:124
sched_getaffinity:204:123 sched_getparam:143:121 sched_getscheduler:145:120 getcpu:309:168
sched_get_priority_max:146:125 sched_get_priority_min:147:126 getrandom:318:278 recvfrom:45:207 sendmsg:46:211
recvmsg:47:212 getsockopt:55:209 setsockopt:54:208 getsockname:51:204 getpeername:52:205 shutdown:48:210 mkdir:83:-
mkdirat:258:34 rename:82:- renameat:264:38 renameat2:316:276 unlink:87:- unlinkat:263:35 rmdir:84:- ftruncate:77:46
truncate:76:45 fallocate:285:47 fsync:74:82 fdatasync:75:83 umask:95:166 sendfile:40:71 copy_file_range:326:285
wait4:61:260 waitid:247:95 creat:85:- epoll_create:213:- eventfd:284:- fgetxattr:193:10 flistxattr:196:13 flock:73:32
get_mempolicy:239:236 getxattr:191:8 lgetxattr:192:9 link:86:- linkat:265:37 listxattr:194:11 llistxattr:195:12
mbind:237:235 membarrier:324:283 mincore:27:232 mlock:149:228 mlock2:325:284 mlockall:151:230 msync:26:227
munlock:150:229 munlockall:152:231 preadv:295:69 preadv2:327:286 pwritev:296:70 pwritev2:328:287 readahead:187:213
sched_getattr:315:275 sched_rr_get_interval:148:127 set_mempolicy:238:237 signalfd4:289:74 sync_file_range:277:84
timer_create:222:107 timer_delete:226:111 timer_getoverrun:225:109 timer_gettime:224:108 timer_settime:223:110
timerfd_create:283:85 timerfd_gettime:287:87 timerfd_settime:286:86 bind:49:200 listen:50:201 accept:43:202
accept4:288:242 symlink:88:- symlinkat:266:36
"""
_ARCHITECTURES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column of the table, AUDIT_ARCH_*

_LOAD, _JUMP, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SET_MODE_FILTER = 1
_TSYNC, _SPEC_ALLOW = 1, 4  # before 5.16 a filter also switched on speculation fences: tracing 10-30 % slower


class _Op(NamedTuple):
    code: int
    on_true: int
    on_false: int
    k: int


@dataclass(frozen=True)
class ArgumentCheck:
    """A call judged by one argument, too: EPERM when it matches (`deny=True`), or unless it matches (`deny=False`).

    It matches when its low 32 bits equal one of `values`; with `bits`, when it has any bit of one of them; with
    `wide`, both halves of the argument are looked at (pointers).
    """

    call: str
    argument: int
    values: tuple[int, ...]
    deny: bool
    bits: bool = False
    wide: bool = False

    def body(self) -> list[_Op]:
        """Refuses, or goes on behind its end."""
        base = _ARGS + 8 * self.argument
        words = (base, base + 4) if self.wide else (base,)
        tests = [(word, value) for word in words for value in self.values]
        jump = _JUMP_SET if self.bits else _JUMP_EQ
        ops: list[_Op] = []
        for index, (word, value) in enumerate(tests):
            to_match = 2 * (len(tests) - index - 1) + 1
            ops += [_Op(_LOAD, 0, 0, word), _Op(jump, to_match, 0, value)]
        no_match = [_Op(_JUMP, 0, 0, 1)] if self.deny else []
        return [*ops, *no_match, _refuse(errno.EPERM)]


def null(call: str, argument: int) -> ArgumentCheck:
    """The call is refused unless the pointer argument is NULL."""
    return ArgumentCheck(call, argument, (0xFFFFFFFF,), deny=True, bits=True, wide=True)


def _refuse(code: int) -> _Op:
    return _Op(_RETURN, 0, 0, _ERRNO | code)


def _allow() -> _Op:
    return _Op(_RETURN, 0, 0, _ALLOW)


@functools.cache
def numbers(machine: str) -> dict[str, int]:
    """System-call numbers by name on an architecture; empty when it is not known."""
    if machine not in _ARCHITECTURES:
        return {}
    column = _ARCHITECTURES[machine][0]
    rows = (entry.split(":") for entry in _TABLE.split())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def assemble(
    calls: Collection[str],
    checks: Iterable[ArgumentCheck],
    *,
    ignored: Collection[str] = (),
    machine: str | None = None,
) -> bytes | None:
    """The filter by which `calls` work and no others; a call with checks must pass each of them, and those `ignored`
    seem to work. None on an architecture that is not known.

    What is refused fails with EPERM; with ENOSYS where libc then does without: clone3 (it uses clone, which can be
    judged) and calls that are newer than that.
    """
    machine = machine or platform.machine()
    nr = numbers(machine)
    if not nr:
        return None
    cases: dict[str, list[_Op]] = {name: [] for name in calls}
    for check in checks:
        cases.setdefault(check.call, []).extend(check.body())
    cases |= {"clone3": [_refuse(errno.ENOSYS)], **{name: [_refuse(0)] for name in ignored}}
    ops = [
        _Op(_LOAD, 0, 0, _ARCH),
        _Op(_JUMP_EQ, 1, 0, _ARCHITECTURES[machine][1]),
        _Op(_RETURN, 0, 0, _KILL),  # a 32-bit call in a 64-bit process is an attack
        _Op(_LOAD, 0, 0, _NR),
    ]
    for name, body in cases.items():
        if name in nr:
            ops += [_Op(_JUMP_EQ, 0, len(body) + 1, nr[name]), *body, _allow()]
    # The numbers of x32, an architecture of its own on x86-64, lie above all others.
    ops += [_Op(_JUMP_GE, 0, 1, nr["clone3"]), _refuse(errno.ENOSYS), _refuse(errno.EPERM)]
    return b"".join(struct.pack("=HBBI", *op) for op in ops)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def install(program: bytes) -> None:
    """Put the filter on every thread of this process, for good. Raises OSError when the kernel refuses.
    PR_SET_NO_NEW_PRIVS must be set."""
    buffer = ctypes.create_string_buffer(program, len(program))
    argument = _Program(len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(numbers(platform.machine())["seccomp"])
    flags = ctypes.c_ulong(_TSYNC | _SPEC_ALLOW)
    if libc.syscall(number, ctypes.c_ulong(_SET_MODE_FILTER), flags, ctypes.byref(argument)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"seccomp: {errno.errorcode.get(code, code)}")


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


def lasting_parent() -> int | None:
    """This process, as the `parent` of what is started now; None in a thread that may end before it."""
    return os.getpid() if threading.current_thread() is threading.main_thread() else None


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


def memory_bytes() -> tuple[int, int]:
    """The memory of this machine that processes may still have, caches included, and all of it."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    facts = {words[0]: int(words[1]) << 10 for words in lines}
    return facts["MemAvailable:"], facts["MemTotal:"]


def first_to_go() -> None:
    """Have the kernel end this process rather than others when memory runs out."""
    Path("/proc/self/oom_score_adj").write_text("500")


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
    _layout_ = "ms"  # what packed structures have had all along; Python 3.14 wants it said
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
    """Confine to the named paths (those that cannot be opened are skipped), without TCP, with `scopes` closed."""
    fs = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    attribute = _Ruleset(fs, 3 if abi >= 4 else 0, scopes if abi >= 6 else 0)
    size = ctypes.c_size_t(8 if abi < 4 else 16 if abi < 6 else 24)
    number = ctypes.c_long(_LANDLOCK_CREATE)
    ruleset = _check(_libc().syscall(number, ctypes.byref(attribute), size, ctypes.c_uint32(0)), "landlock")
    try:
        for path, access in rules:
            _allow_path(ruleset, path, access & fs)
        _check(_libc().syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ruleset, ctypes.c_uint32(0)), "landlock")
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: Path, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        allowed = access if path.is_dir() else access & _FILE_RIGHTS
        rule = _PathRule(allowed, fd)
        number = ctypes.c_long(_LANDLOCK_ADD)
        _check(_libc().syscall(number, ruleset, 1, ctypes.byref(rule), ctypes.c_uint32(0)), f"landlock {path}")
    finally:
        os.close(fd)


def pin(path: Path) -> None:
    """Keep the inode of what lies in /proc in memory for the life of the process: a rule on it would go with that."""
    os.open(path, os.O_PATH | os.O_CLOEXEC)
