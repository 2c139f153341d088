"""What each kind of worker may touch: paths for Landlock, system calls for seccomp. Data and small pure functions.

Landlock does not cover changes of mode, owner, times or attributes, nor signals before version 6, nor any socket but
TCP: those are closed by refusing the calls.

A rule of Landlock's covers all that lies below, and there is none that takes something away. So where a private thing
lies inside of a readable folder, the folder's other entries are named one by one.

Never readable: task files (with their held-out cases), the judge, the expert kernels, tests, runs, the history of a
checkout, and whatever else happens to be on `sys.path`, such as the folder of the script that runs.
"""

import contextlib
import functools
import glob
import importlib.util
import itertools
import os
import pwd
import sys
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from kerneltune.tools.sandbox.linux import Access, ArgumentCheck, null

_OURS = "kerneltune"
_OF_A_PREFIX = ("bin", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg", "share", "targets")
# and of compilers: CUDA's, GCC's and conda's for their targets, Homebrew's
_OF_A_TOOLCHAIN = (*_OF_A_PREFIX, "sbin", "nvvm", "extras", "*-linux-*", "compiler_compat", "Cellar", "opt")
_SITES = ("*-packages", "lib*/python*/*-packages", "lib*/python*/*/*-packages", "local/lib*/python*/*-packages")
_NEEDED = ("numpy", "torch", "triton", "cuda.bindings", "nvidia.cuda_nvrtc")  # wherever they are installed
_PACKAGE = Path(__file__).absolute().parents[2]  # kerneltune, which in a checkout holds links to the other folders


class Roots(NamedTuple):
    """What may be read with all that is below, and folders of which only the listing may be read."""

    readable: tuple[Path, ...]
    listed: tuple[Path, ...]


def readable_roots(our_parts: Iterable[str]) -> Roots:
    """Python, its packages, and of our package `tools` the named sub-packages with what their import needs."""
    found, tools = libraries(), _PACKAGE / "tools"  # the name that Python imports by, which in a checkout is a link
    parts = [tools / part for part in our_parts]
    above = {folder for part in parts for folder in part.parents if folder.is_relative_to(_PACKAGE)}
    starts = sorted(folder / "__init__.py" for folder in above)
    return Roots((*found.readable, *starts, *parts), (*found.listed, *sorted(above)))


@functools.cache  # a jail hides what it is computed from
def libraries() -> Roots:
    """Python and its packages, but for ours."""
    return without(sorted(library_folders()), private_places(_PACKAGE))


def library_folders() -> set[Path]:
    """Where Python and the packages live that a worker imports; each by the name that Python knows and by its own."""
    found = {path for prefix in _prefixes() for name in _OF_A_PREFIX if (path := prefix / name).exists()}
    found |= {Path(entry) for entry in sys.path if entry.endswith("-packages") and os.path.isdir(entry)}
    found |= {folder for name in _NEEDED for folder in _home_of(name)}
    return found | {path.resolve() for path in found}


def _home_of(name: str) -> Iterator[Path]:
    """The site folder that a package is installed in; of one that lies in a checkout only the package."""
    with contextlib.suppress(ModuleNotFoundError):
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            package = Path(place)
            yield next((p for p in package.parents[: name.count(".") + 1] if _is_site(p)), package)


def _is_site(folder: Path) -> bool:
    """Do packages get installed there? `pip install --target` takes any folder."""
    return folder.name.endswith("-packages") or any(folder.glob("*.dist-info"))


def _prefixes() -> set[Path]:
    return {Path(sys.prefix), Path(sys.base_prefix), Path("/"), Path("/usr"), Path("/usr/local")}


def private_places(package: Path) -> set[Path]:
    """What no worker may read, even where it lies inside of a readable folder: our package wherever it is installed,
    the checkout that runs, and the home folder."""
    sites = {Path(entry).resolve() for entry in sys.path if entry}
    for prefix in _prefixes():
        sites |= {Path(path).resolve() for pattern in _SITES for path in glob.glob(str(prefix / pattern))}
    found = {package, *(site / _OURS for site in sites if (site / _OURS).is_dir())}
    if not _is_site(package.parent):
        found.add(package.parent)
    return found | {home()}


def without(folders: Iterable[Path], private: Iterable[Path]) -> Roots:
    """The folders but for what is private in them; a folder that is private itself may hold readable ones."""
    readable: list[Path] = []
    listed: list[Path] = []
    hidden = tuple(private)
    for folder in folders:
        for path, whole in _parts(folder, hidden):
            (readable if whole else listed).append(path)
    return Roots(tuple(dict.fromkeys(readable)), tuple(dict.fromkeys(listed)))


def _parts(folder: Path, private: tuple[Path, ...]) -> Iterator[tuple[Path, bool]]:
    """(path, whether it may be read whole; else only listed)."""
    real = folder.resolve()
    inside = tuple(path for path in private if path.is_relative_to(real))
    if real in inside:
        return
    if not inside:
        yield folder, True
        return
    yield folder, False
    with contextlib.suppress(OSError):
        for entry in sorted(folder.iterdir()):
            if not entry.is_symlink() or entry.resolve().is_relative_to(real):  # a rule would follow it outside
                yield from _parts(entry, inside)


def home() -> Path:
    """The user's home folder; "/" for an unknown user, as in a container."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    except KeyError:
        return Path("/")


class Profile(StrEnum):
    """Who is being confined."""

    TRACER = "tracer"
    COMPILER = "compiler"
    INTERPRETER = "interpreter"
    RUNNER = "runner"
    TASK = "task"
    TRUSTED = "trusted"


# What torch, Triton and Python call in a role that has neither a file to write nor a process to start: measured over
# the honest kernels of the corpus, with what other versions of libc, Python and the kernel use in its place.
_FILES = """
read write readv writev pread64 pwrite64 lseek open openat close close_range dup dup2 dup3 fcntl ioctl stat fstat lstat
newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd chdir fchdir
fadvise64 pipe pipe2 poll ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2
"""
_MEMORY_AND_THREADS = """
mmap munmap mprotect mremap madvise brk futex set_robust_list get_robust_list rseq clone exit exit_group restart_syscall
prctl sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max
sched_get_priority_min getcpu
"""
_SIGNALS_AND_TIME = """
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause alarm setitimer
getitimer kill tgkill clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday time times
"""
_ITSELF = """
getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid uname sysinfo
getrusage getrlimit prlimit64 getpriority getrandom
"""
_SOCKET_PAIRS = """
socketpair sendto recvfrom sendmsg recvmsg getsockopt setsockopt getsockname getpeername shutdown
"""
_SCRATCH = """
mkdir mkdirat rmdir rename renameat renameat2 unlink unlinkat truncate ftruncate fallocate fsync fdatasync umask
sendfile copy_file_range
"""
_PROGRAMS = """
vfork fork execve wait4 waitid arch_prctl set_tid_address
"""
# Links of files are Landlock's to refuse, as CUDA is used to. It tries to connect, too, and does without
_CUDA = """
socket bind listen accept accept4 memfd_create membarrier mlock mlock2 munlock mincore msync get_mempolicy set_mempolicy
mbind sched_setaffinity symlink symlinkat
"""
# What any program may use that reaches nobody else; torch.compile locks its own folder
_OF_ANY_PROGRAM = """
execveat flock link linkat creat preadv preadv2 pwritev pwritev2 readahead sync_file_range getxattr lgetxattr fgetxattr
listxattr llistxattr flistxattr mlockall munlockall epoll_create eventfd signalfd4 timer_create timer_settime
timer_gettime timer_getoverrun timer_delete timerfd_create timerfd_settime timerfd_gettime sched_getattr
sched_rr_get_interval
"""


_MORE = {
    Profile.COMPILER: (_SCRATCH, _PROGRAMS),
    Profile.RUNNER: (_SCRATCH, _CUDA),
    Profile.TASK: (_SCRATCH, _PROGRAMS, _CUDA, _OF_ANY_PROGRAM),
}
IGNORED = {Profile.TASK: ("setpgid",)}  # seem to work: ninja starts each compiler in a group of its own


def calls(profile: Profile) -> tuple[str, ...]:
    """The system calls of a role that work; some of them are judged by an argument as well (`checks`). What changes
    modes, owners, times and attributes, which Landlock does not know, is nobody's, nor is what leaves a session."""
    groups = [_FILES, _MEMORY_AND_THREADS, _SIGNALS_AND_TIME, _ITSELF, _SOCKET_PAIRS, *_MORE.get(profile, ())]
    return tuple(" ".join(groups).split())


# Kinds of sockets that have no addresses unless they connect, with SOCK_NONBLOCK and SOCK_CLOEXEC
_AF_UNIX, _STREAMS, _PACKETS = 1, (1, 0x80001, 0x801, 0x80801), (5, 0x80005, 0x805, 0x80805)
_A_THREAD = (0x3D0F00, 0x7D0F00)  # clone's flags as glibc and musl start one
_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000
_PRCTL = (1, 4, 22, 36, 0x59616D61)  # PDEATHSIG, DUMPABLE, SECCOMP, CHILD_SUBREAPER, PTRACER
_NAMES = (15, 16, 0x53564D41)  # of prctl: PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
# To any process: F_SETOWN, F_SETSIG, F_SETOWN_EX send it SIGIO, a lease (1024) lets its open() wait 45 s, F_NOTIFY,
# F_SETPIPE_SZ takes of what a user's pipes may have together
_FCNTL_TO_OTHERS = (8, 10, 15, 1024, 1026, 1031)
_FCNTL_LOCKS = (5, 6, 7, 36, 37, 38)  # of POSIX and of open files
_FCNTL = (0, 1, 2, 3, 4, 1030)  # F_DUPFD, flags of descriptors and files, F_DUPFD_CLOEXEC: no locks, which others see
# TCGETS, TCGETS2, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX
_IOCTL = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_IOCTL_TO_OTHERS = (0x8901, 0x8902, 0x5412, 0x541C, 0x540E)  # FIOSETOWN, SIOCSPGRP, TIOCSTI, TIOCLINUX, TIOCSCTTY
_EVERYBODY = 0xFFFFFFFF  # kill(-1, ...)


def checks(profile: Profile, *, pid: int, signals_scoped: bool) -> list[ArgumentCheck]:
    """System calls judged by an argument."""
    found = [null("sendto", 4), null("prlimit64", 2), ArgumentCheck("socketpair", 0, (_AF_UNIX,), deny=False)]
    programs = profile in (Profile.COMPILER, Profile.TASK)
    # Where Landlock guards everyone else, a process may end what it has started itself.
    whom, forbidden = ((_EVERYBODY,), True) if programs and signals_scoped else ((pid,), False)
    found.append(ArgumentCheck("kill", 0, whom, deny=forbidden))
    if profile is not Profile.TASK or not signals_scoped:
        found.append(ArgumentCheck("tgkill", 0, (pid,), deny=False))
    if programs:
        found.append(ArgumentCheck("clone", 0, (_CLONE_NEW,), deny=True, bits=True))
    elif profile is Profile.RUNNER:
        found.append(ArgumentCheck("clone", 0, (_CLONE_THREAD,), deny=False, bits=True))
    else:
        found.append(ArgumentCheck("clone", 0, _A_THREAD, deny=False))
    if profile not in (Profile.RUNNER, Profile.TASK):
        return [
            *found,
            ArgumentCheck("prctl", 0, _NAMES, deny=False),
            ArgumentCheck("fcntl", 1, _FCNTL, deny=False),
            ArgumentCheck("ioctl", 1, _IOCTL, deny=False),
            ArgumentCheck("socketpair", 1, _STREAMS, deny=False),
        ]
    locks = _FCNTL_LOCKS if profile is Profile.RUNNER else ()
    return [
        *found,
        ArgumentCheck("prctl", 0, _PRCTL, deny=True),
        ArgumentCheck("fcntl", 1, (*_FCNTL_TO_OTHERS, *locks), deny=True),
        ArgumentCheck("ioctl", 1, _IOCTL_TO_OTHERS, deny=True),
        ArgumentCheck("sched_setaffinity", 0, (0,), deny=False),  # which takes any process of the user's
        ArgumentCheck("socket", 0, (_AF_UNIX,), deny=False),
        *(ArgumentCheck(call, 1, (*_STREAMS, *_PACKETS), deny=False) for call in ("socket", "socketpair")),
    ]


Rule = tuple[Path, Access]
MOST_ENTRIES, MOST_NAMED = 100_000, 20_000  # of a project: looked at (0.2 s), and with a rule of their own (0.5 s)
_RECORD = "runs.db"  # what models were told, and what they answered


def paths(profile: Profile, scratch: Path | None) -> list[Rule]:
    """What may be opened, and how; everything else may not."""
    roots = readable_roots(_PARTS[profile])
    rules = [(path, Access.READ) for path in [*roots.readable, *map(Path, _SYSTEM)]]
    rules += [(path, Access.READ_DIR) for path in roots.listed]
    rules += [(ITSELF / name, Access.READ_FILE) for name in _ITS_FILES]
    rules += [(ITSELF / name, Access.READ_DIR) for name in _ITS_LISTINGS]
    rules += [(Path("/dev/null"), Access.DEVICE)]
    if scratch is not None:
        rules.append((scratch, Access.WRITE))
    if profile is Profile.COMPILER:
        rules += [(path, Access.RUN) for path in _compiler_tools()]
    if profile is Profile.RUNNER:
        rules += _cuda()
    if profile is Profile.TASK:
        rules += _of_a_task(roots)
    return rules


def _of_a_task(roots: Roots) -> list[Rule]:
    """Any program (torch.compile and extensions start a C compiler), our sources, packages that are installed in place,
    and the GPU. Of other processes names and command lines stay readable, nothing that ptrace's rules guard."""
    crowded = _crowded_places()
    found = [(path, Access.RUN) for path in (*roots.readable, _PACKAGE / "agent", *_installed(crowded))]
    found += [(path, Access.READ) for path in (Path("/proc"), *map(Path, _ETC))]
    for path in map(Path, sys.path):
        if path.is_dir() and not _is_above(path, crowded) and not any(map(path.is_relative_to, roots.readable)):
            found += [(path, Access.READ)] if _is_site(path) else _project(path)
    return [*found, *_cuda()] if glob.glob("/dev/nvidia*") else found


def _installed(crowded: set[Path]) -> Iterator[Path]:
    """Where programs lie, and what belongs to them, as to a compiler in /apps/gcc/12/bin; in the home folder the
    programs alone. Beside a `bin` there may be anything else, too."""
    for folder in filter(Path.is_absolute, map(Path, [*os.get_exec_path(), *glob.glob("/usr/local/cuda*"), "/sbin"])):
        yield folder
        prefix = folder.parent
        if folder.name not in ("bin", "sbin") or prefix in _prefixes():  # of which `libraries` has the parts
            continue
        if not folder.is_relative_to(home()) and not _is_above(prefix, crowded):
            parts = (part for name in _OF_A_TOOLCHAIN for part in prefix.glob(name))
            real = os.path.realpath(prefix)
            yield from (part for part in parts if Path(os.path.realpath(part)).is_relative_to(real))


def beside(task: Path) -> list[Rule]:
    """What the code of a task file may read of the folder that it lies in, as `_project` says; where the folder holds
    more than a project only files."""
    path = task.resolve()
    crowded = _is_above(path.parent, _crowded_places())
    return [(path, Access.READ), *_project(path.parent, files_only=crowded)]


def _project(folder: Path, *, files_only: bool = False) -> list[Rule]:
    """What may be read of a folder of somebody's: at no depth what is hidden (.env, .git, .ssh), a record or a folder
    with one, nor what a link leads to. Of very many entries those that lie deepest are left out."""
    top = str(folder)
    read: dict[str, list[os.DirEntry[str]]] = {}  # what may be read of each folder, those above it first
    mixed = {top}  # folders whose entries are named one by one: of this one also what comes into it later is not read
    waiting, left = deque([top]), MOST_ENTRIES
    while waiting:
        place = waiting.popleft()
        entries = _entries(place, left)
        left -= left // 2 if entries is None else len(entries)
        if entries is None or (place != top and any(entry.name == _RECORD for entry in entries)):
            mixed.add(place)
            continue
        kept = [entry for entry in entries if not entry.name.startswith((".", _RECORD))]  # SQLite's own beside it, too
        if len(kept) < len(entries):
            mixed.add(place)
        read[place] = [e for e in kept if not e.is_symlink() and not (files_only and e.is_dir())]
        waiting += [entry.path for entry in read[place] if entry.is_dir()]
    for place, its in reversed(read.items()):
        if any(entry.path in mixed for entry in its):
            mixed.add(place)
    named = (entry.path for place, its in read.items() if place in mixed for entry in its if entry.path not in mixed)
    return [(folder, Access.READ_DIR), *((Path(path), Access.READ) for path in itertools.islice(named, MOST_NAMED))]


def _entries(folder: str, most: int) -> list[os.DirEntry[str]] | None:
    """What lies in a folder; None where that is more, or cannot be listed."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        entries = list(itertools.islice(found, most + 1))
        return entries if len(entries) <= most else None
    return None


def _crowded_places() -> set[Path]:
    """What holds more than a project: the home folder, a checkout of ours, everybody's temporary files."""
    return {*private_places(_PACKAGE), Path(tempfile.gettempdir()).resolve()}


def _is_above(folder: Path, places: Iterable[Path]) -> bool:
    """Is it one of these places, or a folder that one of them lies in?"""
    return any(place.is_relative_to(folder.resolve()) for place in places)


_SYSTEM = (
    *("/etc/ld.so.cache", "/etc/localtime", "/proc/cpuinfo", "/proc/meminfo"),
    *("/sys/devices/system/cpu", "/dev/zero", "/dev/urandom", "/dev/random"),
)
# What libc, Python and torch read of the process itself. Not mountinfo, mounts and mountstats: they name the host's
# devices and folders, and lie in each thread's folder as well
_ITS_FILES, _ITS_LISTINGS = ("maps", "stat", "statm", "status"), ("fd", "task")
ITSELF = Path("/proc/self")

_ETC = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/alternatives")

_PARTS = {  # sub-packages of tools that a role imports
    Profile.TRACER: ("languages/ptx", "replay", "sandbox", "schema", "trace"),
    Profile.COMPILER: ("compile", "languages/ptx", "sandbox", "schema"),
    Profile.INTERPRETER: ("languages", "replay", "sandbox", "schema"),
    Profile.RUNNER: ("backends", "replay", "sandbox", "schema"),
    Profile.TASK: ("",),
}


def root_in_a_foreign_folder() -> bool:
    """Are we root, and does Python or a package lie in a folder that only another user may read?"""
    roots = readable_roots(_PARTS[Profile.TRACER])
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


def _cuda() -> list[Rule]:
    """Device nodes with ioctl; all of /proc for reading (other processes stay closed: ptrace rules guard them); our
    own /proc folder for writing (CUDA names its threads there)."""
    devices = [*glob.glob("/dev/nvidia*"), "/dev/dxg", "/dev/shm"]  # noqa: S108 - a runner needs it
    # This process's own loader path, not a setting: read where it acts.
    libraries = filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    toolkits = glob.glob("/usr/local/cuda*")
    folders = ["/proc", "/sys", "/dev", "/etc/nvidia", "/run/nvidia", "/opt/nvidia", *toolkits, *libraries]
    return [
        *((Path(path), Access.DEVICE | Access.WRITE) for path in devices),
        *((Path(path), Access.READ) for path in folders),
        (ITSELF, Access.DEVICE),
    ]
