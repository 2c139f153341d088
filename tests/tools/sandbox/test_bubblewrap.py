"""Candidates that look around, in the real tracer: with bubblewrap's namespaces, and without."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kerneltune.tools.sandbox import bubblewrap, workers
from kerneltune.tools.sandbox.bubblewrap import NamespaceHolder
from kerneltune.tools.sandbox.confine import available
from kerneltune.tools.sandbox.rules import Profile
from kerneltune.tools.sandbox.wire import Enforced
from kerneltune.tools.sandbox.workers import ForkServer, Machine
from kerneltune.tools.schema.errors import Unconfined
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.update import Updater
from tests import shared_fork_server
from tests.agent.shell import is_alive, process_tree
from tests.tools.conftest import COPY_KERNEL, HEADER, tensor

ROOT = Path(__file__).resolve().parents[3]
CONFINE = ROOT / "kerneltune/tools/sandbox/confine.py"
BWRAP = bubblewrap.find()
SECRET = "a secret that only the supervisor holds"
HERE = available()
pytestmark = pytest.mark.skipif(not HERE.confined, reason=f"this machine enforces only {HERE}")
needs_bwrap = pytest.mark.skipif(not HERE.bubblewrap, reason=f"no working bubblewrap: {HERE.notes}")
GOOD = HEADER + COPY_KERNEL + "class ModelNew(nn.Module):\n    def forward(self, x):\n        return scale(x)\n"

LOOK = """
import json, os, socket, sys
def tried(step):
    try:
        return repr(step())
    except OSError as error:
        return type(error).__name__
seen = {{
    "secrets": [n for n in os.environ if "KEY" in n or "SECRET" in n] + [t for t in map(tried, [
        lambda: open("/proc/self/environ").read()]) if {secret!r} in t],
    "home": tried(lambda: os.listdir({home!r})),
    "history": tried(lambda: open({root!r} + "/.git/HEAD").read()),
    "checkout": tried(lambda: open({root!r} + "/pyproject.toml").read()),
    "others": tried(lambda: open("/proc/{pid}/cmdline").read()),
    "processes": tried(lambda: os.listdir("/proc")),
    "network": tried(lambda: socket.create_connection(("127.0.0.1", 1))),
    "written": tried(lambda: open("/tmp/planted", "w")),
    "known paths": [p for p in ({home!r} + "/.bashrc", {root!r} + "/.git", {root!r} + "/runs", "/etc/passwd",
                                "/proc/{pid}") if os.path.exists(p)],
    "pid": os.getpid(), "uid": os.getuid(), "host": os.uname().nodename,
}}
raise RuntimeError(json.dumps(seen))
"""


@pytest.fixture(scope="module", params=["bubblewrap", "no bubblewrap"])
def jailed(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """The real workers, once in a jail and once without."""
    if request.param == "bubblewrap" and not available().bubblewrap:
        pytest.skip(f"no working bubblewrap: {available().notes}")
    os.environ["KERNELTUNE_TEST_KEY"] = SECRET
    with workers.started(bwrap=BWRAP if request.param == "bubblewrap" else None) as machine:
        yield machine
    del os.environ["KERNELTUNE_TEST_KEY"]


def updater(machine: Machine) -> Updater:
    case = CaseSpec("main", (tensor(1000),), (), tensor(1000))
    return Updater(TaskSpec("scale", "0" * 64, "float32", "", (case,)), "sm_90", machine.tracer, machine.compiler)


def look_around(machine: Machine) -> dict[str, Any]:
    source = LOOK.format(root=str(ROOT), home=str(Path.home()), pid=os.getpid(), secret=SECRET)
    failure = updater(machine).update(source).failure
    assert failure is not None
    found: dict[str, Any] = json.loads(failure.detail.partition("RuntimeError: ")[2])
    return found


def test_a_candidate_sees_no_secret_no_home_no_history_no_process_and_no_network(jailed: Machine) -> None:
    seen = look_around(jailed)
    assert seen["secrets"] == []
    refused = ("PermissionError", "FileNotFoundError", "NotADirectoryError", "OSError")
    for what in ("home", "history", "checkout", "others", "processes", "network", "written"):
        assert seen[what] in refused, (what, seen[what])


def test_in_a_jail_the_names_of_private_things_are_hidden_too(jailed: Machine) -> None:
    seen, bwrap = look_around(jailed), jailed.enforced()["tracer"].bubblewrap
    if not bwrap:
        assert seen["known paths"]  # Landlock does not cover stat: this is what bubblewrap adds
        return
    assert seen["known paths"] == []
    assert (seen["uid"], seen["host"]) == (65534, "jail")
    assert seen["pid"] < 1000  # a number of its own PID namespace


def test_each_role_says_itself_what_holds_it(jailed: Machine) -> None:
    enforced = jailed.enforced()
    assert {role: e.profile.value for role, e in enforced.items()} == {role: role for role in enforced}
    assert set(enforced) == {"tracer", "compiler", "interpreter", "runner"}
    assert all(e.confined for e in enforced.values())
    assert not enforced["runner"].bubblewrap  # CUDA
    for role in ("tracer", "compiler", "interpreter"):
        held = enforced[role]
        assert held.network_namespace
        assert held.bubblewrap == held.pid_namespace == held.mount_namespace == bool(held.bubblewrap_version)
        assert held.bubblewrap or bubblewrap.NOT_INSTALLED in held.notes


def test_candidates_are_traced_and_compiled_and_leave_nothing_behind(jailed: Machine) -> None:
    scratch = jailed.compilers._root
    before = set(scratch.iterdir())
    update = updater(jailed).update(GOOD)
    assert update.failure is None
    assert [k.name for k in update.kernels] == ["scale_kernel"]
    assert set(scratch.iterdir()) == before


def test_a_worker_that_times_out_is_ended_in_its_jail_too(jailed: Machine) -> None:
    worker = jailed.tracers.spawn("kerneltune.tools.sandbox.fork_server:idle", Profile.TRACER)
    worker.enforced()
    started = time.monotonic()
    worker.close()
    assert worker.exit_status == -signal.SIGKILL
    assert time.monotonic() - started < 10


def in_namespaces(keeper: NamespaceHolder, probe: Callable[[], object]) -> str:
    """What `probe` returns in a child that has joined and does nothing else to confine itself."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        try:
            bubblewrap.join(keeper.namespaces)
            if pid := os.fork():
                os.waitpid(pid, 0)
                os._exit(0)
            os.write(write_end, repr(probe()).encode())
        except OSError as error:
            os.write(write_end, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        told = pipe.read().decode()
    os.wait()
    return told


def survives_killing_1() -> bool:
    os.kill(1, signal.SIGKILL)
    return Path("/proc/1").exists()


@needs_bwrap
def test_the_namespaces_alone_hide_files_and_processes_and_refuse_writing() -> None:
    with NamespaceHolder(BWRAP, Profile.TRACER) as keeper:
        assert keeper.jail().problem == ""
        assert in_namespaces(keeper, lambda: [p for p in os.listdir("/proc") if p.isdigit()]) == "['1', '2']"
        assert in_namespaces(keeper, lambda: os.listdir("/home")) == "FileNotFoundError"
        assert in_namespaces(keeper, lambda: os.path.exists(ROOT / ".git")) == "False"
        assert in_namespaces(keeper, CONFINE.exists) == "True"
        assert in_namespaces(keeper, lambda: os.path.exists("/dev/nvidia0")) == "False"
        assert in_namespaces(keeper, lambda: os.open("/planted", os.O_CREAT | os.O_WRONLY)) == "OSError"
        in_namespaces(keeper, lambda: os.open(ROOT / "tools" / "x", os.O_CREAT | os.O_WRONLY))
        assert not (ROOT / "tools" / "x").exists()  # of a checkout below /tmp the namespace has a copy in memory
        assert (
            in_namespaces(keeper, lambda: os.open(ROOT / "kerneltune/tools/sandbox/confine.py", os.O_WRONLY))
            == "OSError"
        )
        assert in_namespaces(keeper, survives_killing_1) == "True"
        assert in_namespaces(keeper, lambda: ctypes.CDLL(None).unshare(0x10000000)) == "-1"  # a user namespace
        assert in_namespaces(keeper, lambda: Path("/proc/net/dev").read_text().count(":")) == "1"  # lo, and it is down


@needs_bwrap
def test_the_end_of_the_keeper_is_the_end_of_everybody_inside() -> None:
    with (
        shared_fork_server.forked(workers.started(bwrap=BWRAP)) as machine,
        machine.tracers.spawn("kerneltune.tools.sandbox.fork_server:idle", Profile.TRACER) as worker,
    ):
        worker.enforced()
        origin = machine.tracers._origin
        assert origin is not None
        assert origin.pid is not None
        for keeper in machine.holders:
            keeper.close()
        assert worker.exited.wait(5)
        assert worker.exit_status == -signal.SIGKILL


@needs_bwrap
@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_supervisor_leaves_no_process_behind(stopped: bool) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from kerneltune.tools.sandbox import workers
        from kerneltune.tools.sandbox.rules import Profile
        with workers.started(bwrap=Path(sys.argv[1])) as machine:
            spawn = machine.compilers.spawn
            worker = spawn("kerneltune.tools.sandbox.fork_server:idle", Profile.COMPILER)
            worker.enforced()
            worker.spawned.wait(10)  # its server tells its pid by another way than it answers
            print(worker.pid, *(k.pid for k in machine.holders), flush=True)
            time.sleep(60)
    """
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(script)
    child = subprocess.Popen([sys.executable, "-c", code, str(BWRAP)], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 4
        below = set[int]()
        while below != (below := set(process_tree(child.pid))):
            time.sleep(0.3)  # a process that is stopped while it starts has not asked yet to end with its parent
        for pid in below if stopped else ():
            with contextlib.suppress(ProcessLookupError):  # a helper of a start that has just ended
                os.kill(pid, signal.SIGSTOP)  # who is stopped reads of nobody's end
        child.kill()
    deadline = time.monotonic() + 10
    while (left := [pid for pid in (*pids, *below) if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left} == {}


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo bwrap: No permissions to create new namespace >&2; exit 1", "No permissions to create new namespace"),
        ("exit 0", "it did not start"),
        (None, "No such file"),
    ],
)
def test_a_bubblewrap_that_does_not_work_is_told_and_done_without(
    script: str | None, words: str, tmp_path: Path
) -> None:
    program = tmp_path / "bwrap"
    if script:
        program.write_text(f"#!/bin/sh\nif [ $1 = --version ]; then echo bubblewrap 0.9.1; exit; fi\n{script}\n")
        program.chmod(0o755)
    with NamespaceHolder(program, Profile.TRACER) as keeper:
        assert words in keeper.jail().problem
        assert keeper.namespaces == []


LEAVES_ITS_KEEPER = """#!{python}
import os, re, sys
if "--version" in sys.argv:
    print("bubblewrap 0.5.0")
elif os.fork():
    print("bwrap: No permissions", file=sys.stderr)
else:
    ready, hold = (int(re.search(call + r"[(](\\d+)", sys.argv[-1])[1]) for call in ("os.write", "os.read"))
    os.close(ready)
    os.read(hold, 1)
"""


def test_nobody_waits_for_a_keeper_that_outlives_its_bubblewrap(tmp_path: Path) -> None:
    """As one may that was started in another thread than the first: it waits for us, with bwrap's stderr in hand."""
    program = tmp_path / "bwrap"
    program.write_text(LEAVES_ITS_KEEPER.format(python=sys.executable))
    program.chmod(0o755)
    with NamespaceHolder(program, Profile.TRACER) as keeper:
        given_up = threading.Timer(5.0, keeper.close)
        given_up.start()
        began_s = time.monotonic()
        assert "No permissions" in keeper.jail().problem
        assert time.monotonic() - began_s < 4.0
        given_up.cancel()


def test_workers_go_on_without_a_bubblewrap_that_fails(tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho bwrap: setting up uid map: Permission denied >&2\nexit 1\n")
    program.chmod(0o755)
    with shared_fork_server.forked(workers.started(bwrap=program)) as machine:
        held = machine.enforced()["tracer"]
        assert held.confined
        assert not held.bubblewrap
        assert any("setting up uid map" in note for note in held.notes)
        assert updater(machine).update(GOOD).failure is None


def test_a_worker_that_is_not_confined_is_refused_unless_that_was_allowed(jailed: Machine) -> None:
    bare = Enforced(Profile.TRACER, notes=("no usable Landlock (version 0)",))
    with pytest.raises(Unconfined, match="no usable Landlock"):
        jailed.tracers.insist(bare, "trace")
    jailed.tracers.insist(Enforced(Profile.TRUSTED), "CPU judge")
    lenient = object.__new__(ForkServer)
    lenient._allow_unconfined = True
    lenient.insist(bare, "trace")
