"""What each kind of worker may touch: paths for Landlock, system calls for seccomp. Data and small pure functions.

Landlock does not cover changes of mode, owner, times or attributes, nor signals before version 6, nor any socket but
TCP: those are closed by refusing the calls.
"""

import contextlib
import glob
import importlib.util
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from tools import readable
from tools.sandbox_linux import Access
from tools.seccomp import Check, null


class Profile(StrEnum):
    """Who is being confined."""

    TRACER = "tracer"
    COMPILER = "compiler"
    INTERPRETER = "interpreter"
    RUNNER = "runner"
    TRUSTED = "trusted"


_KERNEL = """
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_open pidfd_getfd
pidfd_send_signal move_pages migrate_pages bpf perf_event_open userfaultfd io_uring_setup io_uring_enter
io_uring_register keyctl add_key request_key seccomp lookup_dcookie fanotify_init fanotify_mark mount umount2
pivot_root chroot setns unshare fsopen fsconfig fsmount fspick move_mount open_tree open_tree_attr mount_setattr
open_by_handle_at name_to_handle_at quotactl quotactl_fd swapon swapoff acct kexec_load kexec_file_load init_module
finit_module delete_module reboot personality iopl ioperm modify_ldt syslog vhangup sethostname setdomainname
settimeofday clock_settime adjtimex clock_adjtime uselib
"""
_PROCESSES = ["fork", "vfork", "execve", "execveat"]
# Not for the runner: CUDA makes sockets and memfds, pins threads, and is not ours to second-guess.
_HOSTILE_HOST_CODE = """
socket connect bind listen accept accept4 memfd_create memfd_secret shmget shmat shmctl msgget semget mq_open mq_unlink
inotify_add_watch chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr setxattrat
removexattr lremovexattr fremovexattr removexattrat utime utimes futimesat utimensat file_setattr setrlimit setpriority
ioprio_set sched_setscheduler sched_setparam sched_setattr
"""

_AF_UNIX, _SOCK_STREAM, _SOCK_FLAGS = 1, 1, (0, 0x80000, 0x800, 0x80800)
_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000
_PRCTL = (1, 4, 22, 36, 0x59616D61)  # PDEATHSIG, DUMPABLE, SECCOMP, CHILD_SUBREAPER, PTRACER
_FCNTL = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: SIGIO to any process
_IOCTL = (0x8901, 0x8902, 0x5412, 0x541C, 0x540E)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX, TIOCSCTTY
_EVERYBODY = 0xFFFFFFFF  # kill(-1, ...)
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")


def denied(profile: Profile) -> list[str]:
    """System calls refused whatever their arguments."""
    calls = _KERNEL.split()
    if profile is not Profile.COMPILER:
        calls += _PROCESSES
    if profile is not Profile.RUNNER:
        calls += _HOSTILE_HOST_CODE.split()
    return calls


def checks(profile: Profile, *, pid: int, signals_scoped: bool) -> list[Check]:
    """System calls judged by an argument."""
    found = [Check("prctl", 0, _PRCTL, deny=True)]
    if profile is Profile.COMPILER:
        found.append(Check("clone", 0, (_CLONE_NEW,), deny=True, bits=True))
    else:
        found.append(Check("clone", 0, (_CLONE_THREAD,), deny=False, bits=True))
    if profile is Profile.COMPILER and signals_scoped:  # it may end its own ptxas; Landlock guards everyone else
        found.append(Check("kill", 0, (_EVERYBODY,), deny=True))
    else:
        found += [Check(call, 0, (pid,), deny=False) for call in _SIGNALS]
    if profile is Profile.RUNNER:
        return [*found, Check("socket", 0, (_AF_UNIX,), deny=False)]
    return [
        *found,
        Check("socketpair", 1, tuple(_SOCK_STREAM | flags for flags in _SOCK_FLAGS), deny=False),  # no addresses
        null("sendto", 4),
        null("prlimit64", 2),
        Check("sched_setaffinity", 0, (0, pid), deny=False),
        Check("fcntl", 1, _FCNTL, deny=True),
        Check("ioctl", 1, _IOCTL, deny=True),
    ]


def paths(profile: Profile, scratch: Path | None) -> list[tuple[Path, Access]]:
    """What may be opened, and how; everything else may not."""
    roots = readable.roots(_PARTS[profile])
    rules = [(path, Access.READ) for path in [*roots.readable, *map(Path, _SYSTEM)]]
    rules += [(path, Access.READ_DIR) for path in roots.listed]
    rules += [(Path("/dev/null"), Access.DEVICE)]
    if scratch is not None:
        rules.append((scratch, Access.WRITE))
    if profile is Profile.COMPILER:
        rules += [(path, Access.RUN) for path in _compiler_tools()]
    if profile is Profile.RUNNER:
        rules += _cuda()
    return rules


_SYSTEM = (
    *("/etc/ld.so.cache", "/etc/localtime", "/proc/self", "/proc/cpuinfo", "/proc/meminfo"),
    *("/sys/devices/system/cpu", "/dev/zero", "/dev/urandom", "/dev/random"),
)

_PARTS = {  # sub-packages of tools that a role imports
    Profile.TRACER: ("plan", "ptx"),
    Profile.COMPILER: ("plan", "ptx"),
    Profile.INTERPRETER: ("plan", "ptx", "ttir"),
    Profile.RUNNER: ("cuda", "plan", "runner"),
}


def root_in_a_foreign_folder() -> bool:
    """Are we root, and does Python or a package lie in a folder that only another user may read?"""
    roots = readable.roots(_PARTS[Profile.TRACER])
    return os.geteuid() == 0 and any(map(_is_foreign, (*roots.readable, *roots.listed)))


def _is_foreign(path: Path) -> bool:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_uid != os.geteuid() and status.st_mode & 0o005 != 0o005
    return False


def _compiler_tools() -> Iterator[Path]:
    spec = importlib.util.find_spec("triton")
    if spec and spec.origin:
        yield Path(spec.origin).parent / "backends" / "nvidia" / "bin"
    for loader in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"):
        yield Path(loader)


def _cuda() -> list[tuple[Path, Access]]:
    """Device nodes with ioctl; all of /proc for reading (other processes stay closed: ptrace rules guard them); our
    own /proc folder for writing (CUDA names its threads there)."""
    devices = [*glob.glob("/dev/nvidia*"), "/dev/dxg", "/dev/shm"]
    # This process's own loader path, not a setting: read where it acts.
    libraries = filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    toolkits = glob.glob("/usr/local/cuda*")
    folders = ["/proc", "/sys", "/dev", "/etc/nvidia", "/run/nvidia", "/opt/nvidia", *toolkits, *libraries]
    return [
        *((Path(path), Access.DEVICE | Access.WRITE) for path in devices),
        *((Path(path), Access.READ) for path in folders),
        (Path("/proc/self"), Access.DEVICE),
    ]
