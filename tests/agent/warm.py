"""The command in a process of its own, without the second that an interpreter and its imports take: a process that has
the modules forks a child for each call, and its workers come from a shared_fork_server. How those start, being killed,
and a terminal's job control are no subject for it.

As a program, `python -I -S warm.py SOCKET ARGUMENTS` is the command on its own descriptors; SIGINT is passed on to it.
"""

import atexit
import gc
import importlib.util
import io
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

_ROOT = Path(__file__).resolve().parents[2]
_EXPORT = ("orjson", "pyarrow.parquet", "rensa", "kerneltune.agent.export.pipeline")
_WORD = 20  # bytes of a number on the line
SHARED = "SHARED_COMMAND"  # the variable that says where one listens


def call(
    arguments: Sequence[str], cwd: Path, variables: Mapping[str, str], timeout_s: float, stdin: str | None
) -> "subprocess.CompletedProcess[str]":
    """As subprocess.run with captured text. Raises subprocess.TimeoutExpired; the child is killed then."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write((stdin or "").encode())
        given.seek(0)
        with _asked(address(), arguments, str(cwd), variables, [f.fileno() for f in (given, out, err)]) as line:
            line.settimeout(timeout_s)
            pid = 0
            try:
                pid, code = int(line.recv(_WORD)), int(line.recv(_WORD))
            except TimeoutError:
                if pid:
                    os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout_s) from None
        texts = [file.read().decode() for file in (out, err) if file.seek(0) == 0]
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def command(*arguments: str) -> list[str]:
    """The argument vector of a small program that is the command."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), address(), *arguments]


def share() -> None:
    """Start one for the processes that this one will start."""
    os.environ[SHARED] = address()


@cache
def address() -> str:
    """Where the process that forks listens: this process's own, which ends with it, or its parent's."""
    if SHARED in os.environ:
        return os.environ[SHARED]
    from tests import shared_fork_server  # not at the top: the small program has no path

    address = shared_fork_server.address()

    def start(listening: int, _: Path) -> "subprocess.Popen[bytes]":
        code = f"from tests.agent.warm import serve; serve({listening}, {os.getpid()}, {address!r})"
        variables = os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
        words = [sys.executable, "-c", code]
        return subprocess.Popen(words, env=variables, pass_fds=[listening], stdin=subprocess.DEVNULL)

    return shared_fork_server.served("warm-", socket.SOCK_SEQPACKET, start)


def _asked(
    path: str, arguments: Sequence[str], cwd: str, variables: Mapping[str, str], streams: Sequence[int]
) -> socket.socket:
    """The line on which the child's number and its exit code will come."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(path)
    socket.send_fds(line, [json.dumps([list(arguments), cwd, dict(variables)]).encode()], list(streams))
    return line


def serve(listening: int, parent: int, workers: str) -> NoReturn:
    """Load what the commands load, and fork for each call; the children are nobody's to wait for. `workers`: where the
    process of theirs listens."""
    import kerneltune.agent.cli
    import kerneltune.agent.commands
    import kerneltune.agent.models
    import kerneltune.tools.languages.triton.language
    from kerneltune.tools.sandbox.linux import die_with_parent
    from tests import shared_fork_server

    die_with_parent(parent)
    gc.disable()
    for package in (kerneltune.agent.commands, kerneltune.agent.models):  # the models' SDKs: 1 s of each run
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    if all(importlib.util.find_spec(name.partition(".")[0]) for name in _EXPORT):
        for name in _EXPORT:
            importlib.import_module(name)
    assert threading.active_count() == 1  # threads do not survive a fork; those of OpenBLAS and jemalloc are made anew
    shared_fork_server.use(workers)
    gc.freeze()  # what is shared with the children stays so
    gc.enable()
    shared_fork_server.gather_pages()
    with socket.socket(fileno=listening) as server:
        while True:
            line, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _attend(line)
            line.close()
            shared_fork_server.reap()


def _attend(line: socket.socket) -> NoReturn:
    """Fork once more: one is the command, the other tells its number and how it ended."""
    message, streams, _, _ = socket.recv_fds(line, 1 << 20, 3)
    pid = os.fork()
    if pid == 0:
        line.close()
        arguments, cwd, variables = json.loads(message)
        _become(arguments, cwd, variables, streams)
    for fd in streams:
        os.close(fd)
    line.send(str(pid).encode())
    line.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _become(arguments: list[str], cwd: str, variables: dict[str, str], streams: list[int]) -> NoReturn:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["-c", *arguments]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    from kerneltune.agent.cli import main

    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else end.code is not None
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends a fork
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until there is somebody to pass it on to
    with _asked(sys.argv[1], sys.argv[2:], os.getcwd(), os.environ, (0, 1, 2)) as its:
        command_pid = int(its.recv(_WORD))
        signal.signal(signal.SIGINT, lambda *_: os.kill(command_pid, signal.SIGINT))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        ended = int(its.recv(_WORD))
    sys.exit(ended if ended >= 0 else 128 - ended)
