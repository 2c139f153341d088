"""A task from somebody else, in the judge that runs its reference: what its code reaches, and what it does not."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from kerneltune.agent.commands.session import open_task
from kerneltune.tools.bench import CPU_JUDGE
from kerneltune.tools.sandbox import rules, workers
from kerneltune.tools.sandbox.confine import available
from kerneltune.tools.sandbox.rules import Profile, beside
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.task.load import find_task
from tests import shared_fork_server

HERE = available(Profile.TASK)
pytestmark = pytest.mark.skipif(not HERE.confined, reason=f"this machine enforces only {HERE}")

TASK = """
import ctypes, fcntl, json, os, signal, socket, subprocess, sys, tempfile
import torch
from torch import nn
def tried(step):
    try:
        return repr(step())
    except Exception as error:
        return type(error).__name__
HERE, OUTSIDE = os.path.dirname(__file__), {outside!r}
def connected(kind):
    with socket.socket(socket.AF_UNIX, kind) as sock:
        return sock.connect(OUTSIDE + "/listens")
def scratch():
    with tempfile.NamedTemporaryFile() as file:
        return file.write(b"x")
def beside():
    sys.path.insert(0, HERE)
    import of_the_task
    return of_the_task.VALUE
forbidden = {{
    "network": lambda: socket.create_connection(("127.0.0.1", 9)),
    "datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "local service": lambda: connected(socket.SOCK_STREAM),
    "local datagrams": lambda: connected(socket.SOCK_DGRAM),
    "home": lambda: os.listdir(os.path.expanduser("~" + __import__("pwd").getpwuid(os.getuid()).pw_name)),
    "a secret": lambda: open(OUTSIDE + "/secret").read(),
    "by a link": lambda: open(HERE + "/link").read(),
    "by a link to a hidden file": lambda: open(HERE + "/plain").read(),
    ".env": lambda: open(HERE + "/.env").read(),
    "the record": lambda: open(HERE + "/runs/runs.db").read(),
    "a hidden file further down": lambda: open(HERE + "/data/part/.env").read(),
    "a record further down": lambda: open(HERE + "/data/runs/runs.db").read(),
    "environment of the supervisor": lambda: open("/proc/{pid}/environ").read(),
    "memory of the fork server": lambda: open(f"/proc/{{os.getppid()}}/mem"),
    "write beside itself": lambda: open(HERE + "/new", "w"),
    "what another task keeps": lambda: open(OUTSIDE + "/new", "w"),
    "write to /tmp": lambda: open("/tmp/planted-by-a-task", "w"),
    "write by a program": lambda: subprocess.run(["cp", "/etc/passwd", HERE + "/new"], check=True, stderr=-3) and 1,
    "mode": lambda: os.chmod(__file__, 0o777),
    "times": lambda: os.utime(__file__, (0, 0)),
    "signal": lambda: os.kill({pid}, 0),
    "signal all": lambda: os.kill(-1, 0),
    "escape the session": lambda: os.setsid(),
    "lease": lambda: fcntl.fcntl(open(__file__), 1024, 1),
    "limits": lambda: __import__("resource").setrlimit(7, (64, 64)),
}}
allowed = {{
    "beside": (beside, 7),
    "weights": (lambda: open(HERE + "/data/weights").read(), "weights"),
    "beside what is hidden": (lambda: open(HERE + "/data/part/weights").read(), "weights"),
    "below": (lambda: open(HERE + "/data/part/whole/further/weights").read(), "weights"),
    "scratch": (scratch, 1),
    "what it keeps": (lambda: open(OUTSIDE + "/kept/new", "w").write("x"), 1),
    "program": (lambda: subprocess.run(["sh", "-c", "echo hello"], capture_output=True, text=True).stdout, "hello\\n"),
    "pair": (lambda: [end.close() for end in socket.socketpair()], [None, None]),
}}
def look():
    secrets = [name for name in os.environ if "KEY" in name or "SECRET" in name]
    reached = [name for name, step in forbidden.items() if "Error" not in tried(step)]
    refused = {{name: tried(step) for name, (step, wanted) in allowed.items() if tried(step) != repr(wanted)}}
    return json.dumps([secrets, reached, refused])
class Model(nn.Module):
    def forward(self, x):
        raise RuntimeError(look())
def get_inputs():
    return [torch.randn(8, 8)]
def get_init_inputs():
    return []
"""

TASK_THAT_READS = """
import torch
from torch import nn
WEIGHTS = open({weights!r}).read()
class Model(nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.randn(8, 8)]
def get_init_inputs():
    return []
"""


_BESIDE = {
    ".env": "KEY=1",
    "runs/runs.db": "a conversation",
    "of_the_task.py": "VALUE = 7",
    "data/weights": "weights",
    "data/part/.env": "KEY=2",
    "data/part/weights": "weights",
    "data/part/whole/further/weights": "weights",
    "data/runs/runs.db": "a conversation",
}


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A task's file, what it may read beside it, and what it may not."""
    outside, folder = tmp_path / "outside", tmp_path / "task"
    (outside / "kept").mkdir(parents=True)
    for name, text in _BESIDE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (outside / "secret").write_text("a secret")
    (folder / "link").symlink_to(outside / "secret")
    (folder / "plain").symlink_to(folder / ".env")
    (folder / "evil.py").write_text(TASK.format(outside=str(outside), pid=os.getpid()))
    return folder / "evil.py"


def test_the_code_of_a_task_reads_its_folder_and_reaches_nothing_else(
    evil: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-canary")
    with (
        socket.socket(socket.AF_UNIX) as listens,
        shared_fork_server.forked(workers.started_base()) as machine,
        machine.task(CPU_JUDGE, [evil], writable=[evil.parents[1] / "outside" / "kept"]) as judge,
    ):
        listens.bind(str(evil.parents[1] / "outside" / "listens"))
        listens.listen()
        assert judge.enforced().confined
        with pytest.raises(TaskError) as failure:
            open_task(judge, find_task(str(evil)))
        text = str(failure.value)
    secrets, reached, refused = json.loads(text[text.index("[[") : text.rindex("}]") + 2])
    assert (secrets, reached, refused) == ([], [], {})
    assert not (evil.parent / "new").exists()


def test_of_a_folder_that_holds_more_than_a_project_only_files_are_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("task.py", "weights", ".netrc"):
        (tmp_path / name).write_text("")
    (tmp_path / "other").mkdir()
    readable = {path.name for path, access in beside(tmp_path / "task.py") if access & access.READ_FILE}
    assert readable == {"task.py", "weights"}


def test_what_is_hidden_where_python_imports_from_is_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (".env", "module.py", "package/.env", "package/module.py", "other/module.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    found = [path for path, use in rules.paths(Profile.TASK, None) if use & use.READ_FILE]
    assert {str(path.relative_to(tmp_path)) for path in found if path.is_relative_to(tmp_path)} == {
        "module.py",
        "other",
        "package/module.py",
    }


def test_of_a_folder_with_programs_what_belongs_to_a_toolchain_is_readable_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin/gcc", "lib/gcc/12/cc1", "x86_64-pc-linux-gnu/bin/ld", "data/secret", ".ssh/id"):
        (tmp_path / "gcc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "gcc" / name).write_text("")
    (tmp_path / "gcc" / "lib64").symlink_to("lib")
    (tmp_path / "gcc" / "include").symlink_to(tmp_path)
    (tmp_path / "gcc" / "libexec").symlink_to("libexec")
    monkeypatch.setenv("PATH", f"{tmp_path}/gcc/bin:/usr/bin")
    found = [path for path, use in rules.paths(Profile.TASK, None) if use & use.READ_FILE]
    assert {str(path.relative_to(tmp_path / "gcc")) for path in found if path.is_relative_to(tmp_path)} == {
        "bin",
        "lib",
        "lib64",
        "x86_64-pc-linux-gnu",
    }


def test_the_record_beside_a_task_is_not_readable(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("task.py", "weights", "runs.db", "runs.db-wal"):
        (folder / name).write_text("")
    readable = {path.name for path, access in beside(folder / "task.py") if access & access.READ_FILE}
    assert readable == {"task.py", "weights"}


def test_of_a_project_without_an_end_what_lies_deepest_is_not_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("task.py", "few/weights", "few/deep/weights", *(f"many/{n}" for n in range(20))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "loop").symlink_to("loop")

    def readable() -> set[str]:
        found = beside(tmp_path / "task.py")
        return {str(path.relative_to(tmp_path)) for path, access in found if access & access.READ_FILE}

    monkeypatch.setattr(rules, "MOST_ENTRIES", 12)
    assert readable() == {"task.py", "few"}
    shutil.rmtree(tmp_path / "many")
    monkeypatch.setattr(rules, "MOST_ENTRIES", 5)
    assert readable() == {"task.py", "few/weights"}


def test_a_task_that_needs_a_file_from_elsewhere_is_told_where_it_may_lie(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "weights").write_text("weights")
    path = tmp_path / "task" / "reads.py"
    path.write_text(TASK_THAT_READS.format(weights=str(tmp_path / "weights")))
    with (
        shared_fork_server.forked(workers.started_base()) as machine,
        machine.task(CPU_JUDGE, [path]) as judge,
        pytest.raises(
            TaskError, match=r"line 4: .*Permission denied.*the folder of its file.* more than 100,000 files"
        ),
    ):
        open_task(judge, find_task(str(path)))
