"""Real forked children try to get out. Each probe runs in a child of this process, after `enter`."""

import contextlib
import ctypes
import errno
import fcntl
import importlib
import json
import mmap
import os
import platform
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kerneltune.tools.sandbox import linux as sandbox_linux
from kerneltune.tools.sandbox.confine import available, enter
from kerneltune.tools.sandbox.rules import IGNORED, Profile, calls
from kerneltune.tools.sandbox.wire import ResourceLimits
from kerneltune.tools.sandbox.workers import compile_ahead, describe_exit, isolated

ROOT = Path(__file__).resolve().parents[3]
LIMITS = ResourceLimits(memory_bytes=1 << 30, file_bytes=1 << 20, cpu_s=20, open_files=64)
HOSTILE = [Profile.TRACER, Profile.INTERPRETER, Profile.COMPILER]
HERE = available()
pytestmark = pytest.mark.skipif(not HERE.confined, reason=f"this machine enforces only {HERE}")
Probe = Callable[[], object]
NOBODY = 65534


def jailed(
    probe: Probe,
    profile: Profile = Profile.TRACER,
    *,
    scratch: Path | None = None,
    limits: ResourceLimits = LIMITS,
    keep: Sequence[int] = (),
) -> str:
    """What became of `probe` in a confined child: its result, the name of its OSError, or its end, as text."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: fork in a process with threads
        pid = os.fork()
    if pid == 0:
        _child(probe, profile, scratch, limits, [write_end, *keep])
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        told = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return told or describe_exit(status)


def _child(probe: Probe, profile: Profile, scratch: Path | None, limits: ResourceLimits, fds: list[int]) -> None:
    try:
        enter(profile, scratch=scratch, limits=limits, keep_fds=[1, 2, *fds])
        answer = str(probe())
    except OSError as error:
        answer = errno.errorcode.get(error.errno or 0, repr(error))
    except BaseException as error:  # noqa: BLE001 - a forked child must end here, not in pytest
        answer = repr(error)
    try:
        os.write(fds[0], answer.encode())
    finally:
        os._exit(0)


def raw(name: str, *arguments: int) -> int:
    """A system call without libc's help; raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = sandbox_linux.numbers(platform.machine())[name]
    result: int = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


@pytest.mark.parametrize("profile", HOSTILE)
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, 40])
def test_no_socket_can_be_opened(profile: Profile, family: int) -> None:
    assert jailed(lambda: socket.socket(family, socket.SOCK_STREAM), profile) == "EPERM"


def test_a_socket_pair_works_but_cannot_be_aimed_elsewhere() -> None:
    def talk() -> bytes:
        left, right = socket.socketpair()
        left.sendall(b"hello")
        return right.recv(5)

    assert jailed(talk) == "b'hello'"
    assert jailed(lambda: socket.socketpair(type=socket.SOCK_DGRAM)) == "EPERM"
    assert jailed(lambda: socket.socketpair()[0].connect("\0somewhere")) == "EPERM"


@pytest.mark.parametrize("profile", [Profile.TRACER, Profile.INTERPRETER, Profile.RUNNER])
def test_no_process_can_be_started(profile: Profile) -> None:
    assert jailed(os.fork, profile) == "EPERM"
    assert jailed(lambda: raw("clone", signal.SIGCHLD, 0, 0, 0, 0), profile) == "EPERM"
    assert jailed(lambda: raw("clone3", 0, 0), profile) == "ENOSYS"
    assert jailed(lambda: subprocess.run(["/bin/true"]), profile) == "EPERM"
    assert jailed(lambda: os.execv("/bin/true", ["true"]), profile) == "EPERM"


def test_the_compiler_may_run_only_triton_s_tools() -> None:
    assert jailed(lambda: subprocess.run(["/bin/true"]), Profile.COMPILER) == "EACCES"


@pytest.mark.parametrize("profile", [*HOSTILE, Profile.RUNNER])
def test_no_other_process_can_be_signalled(profile: Profile) -> None:
    parent = os.getpid()
    assert jailed(lambda: os.kill(parent, 0), profile) == "EPERM"
    assert jailed(lambda: os.kill(parent, signal.SIGTERM), profile) == "EPERM"
    assert jailed(lambda: raw("tgkill", parent, parent, signal.SIGTERM), profile) == "EPERM"
    assert jailed(lambda: os.kill(-1, 0), profile) == "EPERM"


def test_a_worker_may_end_itself() -> None:
    def end() -> None:
        # The fork has inherited the handlers of pytest's process (faulthandler's, and those of libraries that earlier
        # tests loaded). After the whole suite they spin until the limit on CPU time; a worker has none of them.
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.abort()

    assert jailed(end) == "was killed by SIGABRT"


# What would end, stop or double the process that calls it; threads, programs and signals are tried by other tests.
UNTRIED = {"exit", "exit_group", "pause", "rt_sigreturn", "clone", "fork", "vfork"}
PASSING = {"prctl": (16,), "fcntl": (-1, 1), "ioctl": (-1, 0x5421), "socketpair": (1, 1, 0), "sendto": (-1, 0, 0, 0, 0)}
PASSING |= {"prlimit64": (0, -1, 0), "futex": (0, 1), "kill": (), "tgkill": (), "socket": (1, 1, 0)}
PASSING |= {"sched_setaffinity": (0,)}
UPROBES = (
    {335, 336} if platform.machine() == "x86_64" else set()
)  # past every filter, and SIGILL but from the kernel's own
X32 = 0x40000000


def answers(profile: Profile) -> dict[int, int]:
    """By system-call number, the errno of each in a jail, with arguments that make no sense but pass the checks."""
    nr = sandbox_linux.numbers(platform.machine())
    untried = {nr[name] for name in UNTRIED if name in nr} | UPROBES

    def attempt() -> str:
        libc, told = ctypes.CDLL(None, use_errno=True), {}
        own = {"kill": (os.getpid(), 0), "tgkill": (os.getpid(), os.getpid(), 0)}
        known = {nr[name]: own.get(name, given) for name, given in PASSING.items()}
        for number in [*range(600), *range(X32, X32 + 600), 0xFFFFFFFF]:
            if number not in untried:
                arguments = (*known.get(number, ()), -1, -1, -1, -1, -1, -1)[:6]
                ctypes.set_errno(0)
                libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
                told[number] = ctypes.get_errno()
        return json.dumps(told)

    return {int(number): code for number, code in json.loads(jailed(attempt, profile)).items()}


@pytest.mark.parametrize("profile", [*HOSTILE, Profile.RUNNER, Profile.TASK])
def test_of_all_system_calls_exactly_the_named_ones_work(profile: Profile) -> None:
    nr = sandbox_linux.numbers(platform.machine())
    named = {nr[name] for name in (*calls(profile), *IGNORED.get(profile, ())) if name in nr}
    if sandbox_linux.version() < (5, 9):
        named -= {nr["close_range"], nr["faccessat2"]}  # there as unknown as refused
    told = answers(profile)
    refused = {number for number, code in told.items() if code in (errno.EPERM, errno.ENOSYS)}
    assert set(told) - refused == named - {nr[name] for name in UNTRIED if name in nr}
    assert {told[number] for number in refused if number < nr["clone3"]} == {errno.EPERM}
    assert {told[number] for number in refused if number >= nr["clone3"]} == {errno.ENOSYS}  # libc does without


def test_the_documented_system_calls_are_those_that_work() -> None:
    page = (ROOT / "docs/architecture.md").read_text().partition("### System calls")[2]
    everybody, *more = (set(block.split("```")[0].split()) for block in page.split("```text")[1:6])
    files, programs, cuda, tools = more
    listed = {profile: set(calls(profile)) for profile in Profile if profile is not Profile.TRUSTED}
    assert listed == {
        Profile.TRACER: everybody,
        Profile.INTERPRETER: everybody,
        Profile.COMPILER: everybody | files | programs,
        Profile.RUNNER: everybody | files | cuda,
        Profile.TASK: everybody | files | programs | cuda | tools,
    }
    assert len(everybody) <= 120


def test_what_candidates_could_disturb_each_other_by_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "shared").open("w+") as file:
        fd = file.fileno()

        def tried(command: int, profile: Profile) -> str:
            return jailed(lambda: fcntl.fcntl(fd, command, 0), profile, keep=[fd])

        outward, locks = (1024, 1026, 8, 1031), (fcntl.F_SETLK, 37)  # lease, notify, SIGIO, the size of a pipe
        for profile in (Profile.TRACER, Profile.RUNNER):
            assert {tried(command, profile) for command in (*outward, *locks)} == {"EPERM"}
            assert jailed(lambda: fcntl.flock(fd, fcntl.LOCK_EX), profile, keep=[fd]) == "EPERM"
            assert tried(fcntl.F_GETFL, profile) == str(fcntl.fcntl(fd, fcntl.F_GETFL))
        assert {tried(command, Profile.TASK) for command in outward} == {"EPERM"}


def test_what_a_task_starts_stays_in_its_group_and_session() -> None:
    def groups() -> str:
        code = "import os; print(os.getpgid(0))"
        told = subprocess.run([sys.executable, "-c", code], process_group=0, check=True, capture_output=True)
        return str(int(told.stdout) == os.getpgid(0))

    assert jailed(groups, Profile.TASK) == "True"
    assert jailed(os.setsid, Profile.TASK) == "EPERM"


def test_confinement_cannot_be_loosened() -> None:
    assert jailed(lambda: raw("prctl", 4, 1, 0, 0, 0)) == "EPERM"  # PR_SET_DUMPABLE
    assert jailed(lambda: raw("prctl", 1, 0, 0, 0, 0)) == "EPERM"  # PR_SET_PDEATHSIG
    assert jailed(lambda: raw("prlimit64", 0, 7, ctypes.addressof(ctypes.create_string_buffer(16)), 0)) == "EPERM"
    for profile in (Profile.TRACER, Profile.RUNNER, Profile.TASK):
        assert jailed(lambda: os.sched_setaffinity(os.getppid(), [0]), profile) == "EPERM"


@pytest.mark.parametrize("profile", [*HOSTILE, Profile.RUNNER])
def test_files_outside_stay_unread(profile: Profile, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the answer")
    parent = os.getpid()
    assert jailed(secret.read_text, profile) == "EACCES"
    assert jailed(lambda: os.listdir(tmp_path), profile) == "EACCES"
    assert jailed(lambda: Path("/etc/passwd").read_text(), profile) == "EACCES"
    assert jailed(lambda: Path(f"/proc/self/root{secret}").read_text(), profile) == "EACCES"
    assert jailed(lambda: Path(f"/proc/{parent}/environ").read_bytes(), profile) in ("EACCES", "EPERM")
    assert jailed(lambda: os.open(f"/proc/{parent}/mem", os.O_RDONLY), profile) in ("EACCES", "EPERM")


@pytest.mark.parametrize("profile", HOSTILE)
def test_a_process_reads_its_own_state_but_not_what_is_mounted_where(profile: Profile) -> None:
    def mounts() -> list[str]:
        own = [f"/proc/self/task/{thread}" for thread in os.listdir("/proc/self/task")]
        folders = ["/proc/self", "/proc/thread-self", f"/proc/{os.getpid()}", *own]
        held = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]  # some are of /proc/self
        names = ("mountinfo", "mounts", "mountstats")
        return [path for path in ("/proc/mounts", *(f"{at}/{name}" for at in (*folders, *held) for name in names))]

    def read() -> list[str]:
        found = []
        for path in mounts():
            with contextlib.suppress(OSError):
                found.append(Path(path).read_text())
        return found

    assert jailed(lambda: len(mounts()) > 12, profile) == "True"
    assert jailed(read, profile) == "[]"
    for name in ("maps", "stat", "statm", "status"):
        assert jailed(lambda name=name: len(Path(f"/proc/self/{name}").read_text()) > 10, profile) == "True"  # type: ignore[misc]


@pytest.mark.parametrize("place", ["runs", "pyproject.toml", ".git/HEAD", "tests"])
def test_of_our_own_checkout_only_the_sources_are_visible(place: str) -> None:
    assert jailed(lambda: len((ROOT / "kerneltune/tools/sandbox/confine.py").read_text()) > 0) == "True"
    assert jailed(lambda: os.open(ROOT / place, os.O_RDONLY)) in ("EACCES", "ENOENT", "ENOTDIR")


def test_nothing_can_be_written_without_a_scratch_folder(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    for place in (kept, Path(__file__), Path(ctypes.__file__)):  # opened without truncation: a failure harms nothing
        assert jailed(lambda place=place: os.open(place, os.O_WRONLY)) == "EACCES"  # type: ignore[misc]
    assert jailed(lambda: (tmp_path / "new").write_text("escaped")) == "EACCES"
    assert jailed(lambda: os.truncate(kept, 0)) == "EPERM"
    assert jailed(kept.unlink) == "EPERM"
    assert jailed(lambda: kept.chmod(0o777)) == "EPERM"
    assert jailed(lambda: os.utime(kept, (0, 0))) == "EPERM"
    assert jailed(lambda: Path("/dev/null").write_text("x")) == "1"
    assert kept.read_text() == "kept"


def test_the_scratch_folder_is_writable_and_holds_no_trap(tmp_path: Path) -> None:
    def use() -> str:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "b").write_text("x")
        os.replace(tmp_path / "a" / "b", tmp_path / "c")
        return (tmp_path / "c").read_text()

    def written(probe: Probe) -> str:
        return jailed(probe, Profile.COMPILER, scratch=tmp_path)

    assert written(use) == "x"
    assert written(lambda: (tmp_path / "link").symlink_to("/etc/passwd")) == "EPERM"
    assert written(lambda: (tmp_path / "big").write_bytes(b"x" * (2 << 20))) == "EFBIG"
    assert written(lambda: (tmp_path.parent / "new").write_text("escaped")) == "EACCES"


def test_memory_is_bounded() -> None:
    assert jailed(lambda: len(bytearray(2 << 30))) == "MemoryError()"
    assert jailed(lambda: mmap.mmap(-1, 2 << 30)) == "ENOMEM"
    assert jailed(lambda: len(bytearray(64 << 20))) == str(64 << 20)


def threads_started(most: int) -> int:
    """How many threads a child can have beside its own, at most `most`; of another user than root, who is exempt."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        started = 0
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresuid(NOBODY, NOBODY, NOBODY)
                ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again: /proc/self is ours
            enforced = enter(Profile.TRACER, scratch=None, limits=LIMITS, keep_fds=[1, 2, write_end])
            threading.stack_size(1 << 16)
            held = threading.Event()
            with contextlib.suppress(RuntimeError):
                while started < most and enforced.user_namespace:
                    threading.Thread(target=held.wait, daemon=True).start()
                    started += 1
        finally:
            os.write(write_end, str(started).encode())
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        told = int(pipe.read())
    os.waitpid(pid, 0)
    return told


def test_a_flood_of_threads_is_bounded_where_a_worker_has_a_user_namespace() -> None:
    started = threads_started(2000)
    if started == 0:
        pytest.skip("no user namespace for an ordinary user here")
    assert 100 < started < 600


def test_processor_time_is_bounded() -> None:
    def spin() -> None:
        while True:
            pass

    limits = ResourceLimits(memory_bytes=None, file_bytes=0, cpu_s=1, open_files=16)
    assert jailed(spin, limits=limits) in ("was killed by SIGKILL", "was killed by SIGXCPU")


def test_hostile_work_on_the_processor_comes_after_the_judge_and_its_runner() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    told = [jailed(niceness, profile) for profile in (*HOSTILE, Profile.RUNNER)]
    assert told == [str(niceness() + more) for more in (5, 5, 5, 0)]
    assert jailed(lambda: os.nice(-1)) == "EPERM"


def test_open_files_do_not_leak_into_a_worker(tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w+") as held:
        held.write("the answer")
        held.flush()
        fd = held.fileno()
        assert jailed(lambda: os.pread(fd, 10, 0)) == "EBADF"
        assert jailed(lambda: os.pread(fd, 10, 0), Profile.TRUSTED) == "EBADF"


def test_the_runner_may_be_handed_file_descriptors_over_a_socket_it_has() -> None:
    def child(sock: socket.socket) -> str:
        _, fds, _, _ = socket.recv_fds(sock, 1, 4)
        with mmap.mmap(fds[0], 4096) as memory:
            memory[:5] = b"hello"
        return str(len(fds))

    ours, theirs = socket.socketpair()
    shared = os.memfd_create("shared")
    os.truncate(shared, 4096)
    with ours, theirs:
        socket.send_fds(ours, [b"+"], [shared])
        assert jailed(lambda: child(theirs), Profile.RUNNER, keep=[theirs.fileno()]) == "1"
    assert os.pread(shared, 5, 0) == b"hello"
    os.close(shared)


def test_a_worker_dies_with_its_parent() -> None:
    read_end, write_end = os.pipe()
    script = f"""
        import os, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from kerneltune.tools.sandbox.confine import enter
        from kerneltune.tools.sandbox.rules import Profile, calls
        from kerneltune.tools.sandbox.wire import ResourceLimits
        if os.fork() == 0:
            enter(Profile.TRACER, scratch=None, limits=ResourceLimits(None, 0, 9, 16), keep_fds=[{write_end}])
            os.write({write_end}, b"up")
            time.sleep(60)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], pass_fds=[write_end])
    os.close(write_end)
    with open(read_end, "rb", buffering=0) as pipe:
        assert pipe.read(2) == b"up"
        parent.kill()
        parent.wait()
        started = time.monotonic()
        assert pipe.read(1) == b""  # end of file: the last holder of the pipe is gone
    assert time.monotonic() - started < 5


def test_a_process_whose_parent_ended_before_it_asked_ends_at_once() -> None:
    words = "import os; from kerneltune.tools.sandbox.linux import die_with_parent as ask\n"
    words += "ask(os.getppid()); print('lives', flush=True); ask(os.getpid()); print('too long')"
    done = subprocess.run([sys.executable, "-c", words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("lives\n", -signal.SIGKILL)


def test_packages_can_be_imported_late_and_threads_started() -> None:
    def work() -> list[str]:
        minidom = importlib.import_module("xml.dom.minidom")
        mpmath = importlib.import_module("mpmath")  # no other test imports it
        done: list[str] = []
        threads = [threading.Thread(target=done.append, args=("done",)) for _ in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
        return [*done, minidom.__name__[:3], str(mpmath.mpf(2))]

    assert jailed(work) == "['done', 'done', 'xml', '2.0']"


def test_the_filter_is_known_for_both_architectures_and_no_other() -> None:
    for machine in ("x86_64", "aarch64"):
        assert sandbox_linux.assemble(["read"], [], machine=machine)
    assert sandbox_linux.assemble(["read"], [], machine="riscv64") is None


def test_probing_does_not_restrict_the_caller(tmp_path: Path) -> None:
    assert available().confined
    (tmp_path / "free").write_text("free")
    socket.socket().close()


@pytest.mark.parametrize("kept", [True, False])
def test_bytecode_is_kept_in_our_own_folder_or_not_at_all(tmp_path: Path, *, kept: bool) -> None:
    """A torch without bytecode is compiled for 10 s otherwise, at every start."""
    (tmp_path / "slow.py").write_text("x = 1")
    code = f"sys.path.append({str(tmp_path)!r}); import slow"
    subprocess.run(isolated(code, tmp_path / "bytecode" if kept else None), check=True, timeout=60)
    assert [p.name.partition(".")[0] for p in tmp_path.rglob("slow*.pyc")] == ["slow"] * kept
    assert not (tmp_path / "__pycache__").exists()


def test_bytecode_that_was_compiled_ahead_is_what_an_import_finds(tmp_path: Path) -> None:
    compile_ahead(tmp_path, ["kerneltune.tools.sandbox"]).wait(60)
    made = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.pyc")}
    assert any(p.name.startswith("wire.") for p in made)
    subprocess.run(isolated("import kerneltune.tools.sandbox.wire", tmp_path), check=True, timeout=60)
    assert {p: p.stat().st_mtime_ns for p in made} == made
    assert len([p for p in tmp_path.rglob("wire*.pyc")]) == 1


GATHERED = """
import re
from pathlib import Path
from tests.shared_fork_server import gather_pages

def huge_mib():
    return int(re.search(r"AnonHugePages: +(\\d+) kB", Path("/proc/self/smaps_rollup").read_text())[1]) >> 10

filled = [bytes([n]) * 4096 for n in range(256)] * 64
kept = [bytearray(page) for page in filled]
before = huge_mib()
gather_pages()
assert kept == filled
print(before, huge_mib())
"""


@pytest.mark.skipif(sandbox_linux.version() < (6, 1), reason="Linux gathers pages from 6.1 on")
def test_what_is_gathered_in_huge_pages_is_as_it_was(tmp_path: Path) -> None:
    done = subprocess.run(isolated(GATHERED), check=True, timeout=60, capture_output=True, text=True, cwd=tmp_path)
    before, after = map(int, done.stdout.split())
    assert before < 16
    assert after >= 48  # of the 64 MiB that were filled
