"""`optimize serve`: the evaluator as a service, for programs that ask again and again."""

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import socket as sockets
import stat
import struct
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kerneltune.agent.commands import Arch, RunsDir, Unsandboxed, Width, begun_workers, service_socket
from kerneltune.agent.settings import chosen_settings, environment
from kerneltune.tools.schema.codec import one_line, read_file, reason
from kerneltune.tools.schema.errors import Unfit, UsageError

_WEB = "127.0.0.1:8422"
_LONGEST_PATH = 107  # bytes of a Unix socket's
_MOST_TOKEN_BYTES = 4096
_OWN_HOSTS = ("127.0.0.1", "localhost", "::1")

command = App(
    name="serve",
    help_epilogue="""
Examples:
    optimize serve                             on a Unix socket in runs/
    optimize serve --web                       and show runs in a browser
    optimize serve --listen 127.0.0.1:8123     and print a token
    KERNELTUNE_TOKEN=… optimize serve --listen 0.0.0.0:8123
    curl http://127.0.0.1:8123/health          does it answer?
""",
)


@command.default
def serve(
    *,
    socket: Annotated[
        Path | None, Parameter(metavar="PATH", help="Path of the Unix socket; in the folder of runs by default.")
    ] = None,
    listen: Annotated[
        str | None, Parameter(metavar="HOST:PORT", help="Listen on TCP instead; clients need the token.")
    ] = None,
    token_file: Annotated[
        Path | None, Parameter(metavar="FILE", help="File with the token; else KERNELTUNE_TOKEN; else a new token.")
    ] = None,
    root: Annotated[
        Path | None,
        Parameter(metavar="DIR", help="Clients may use task files below it; by default built-in tasks only."),
    ] = None,
    web: Annotated[
        bool, Parameter(help="Show stored runs as pages: on --listen, else 127.0.0.1:8422.", negative="")
    ] = False,
    width: Width = None,
    arch: Arch = None,
    runs_dir: RunsDir = None,
    allow_unsandboxed: Unsandboxed = None,
) -> int:
    """Keep the evaluator warm, and judge for clients over HTTP.

    Workers stay, tasks stay open, and what clients do is stored as runs. Ctrl-C ends it when the runs are concluded.
    """
    settings, here = chosen_settings(locals()), environment()
    if missing := [name for name in ("starlette", "uvicorn") if util.find_spec(name) is None]:
        raise Unfit(f"optimize serve needs {' and '.join(missing)}: pip install 'kerneltune[serve]'")
    if listen is not None and socket is not None:
        raise UsageError("give --socket or --listen, not both")
    if listen is None and token_file is not None and not web:
        raise UsageError("--token-file is for --listen and --web; a Unix socket is for its owner alone")
    if root is not None and not root.is_dir():
        raise UsageError(f"--root {root}: no such folder")
    path = socket or service_socket(settings.runs_dir)
    on_tcp = listen or (_WEB if web else None)
    token, made = _token(token_file, here.token, on_tcp) if on_tcp is not None else ("", False)
    with contextlib.ExitStack() as held:
        listening = [held.enter_context(_on_unix(path))] if listen is None else []
        if on_tcp is not None:
            listening.append(held.enter_context(_on_tcp(on_tcp, may_move=listen is None)))
        print(f"serving on {_place(listening[0], path)}", flush=True)
        if made and not web:
            print(f"token {token}", flush=True)
        if web:
            print(f"pages at {_place(listening[-1], path)}/?token={token}", flush=True)
        with begun_workers(settings) as begun:
            from kerneltune.agent.commands.http_server import HttpServer, listen_to
            from kerneltune.agent.commands.service import Service
            from kerneltune.agent.commands.web import RecordPages

            pages = RecordPages(settings.runs_dir, token) if web else None
            with Service(settings, here, begun) as service:
                http = HttpServer(service, root and root.resolve(), token, pages=pages)
                asyncio.run(listen_to(listening, http))
    return 0


def _token(file: Path | None, given: str, listen: str) -> tuple[str, bool]:
    """The token, and whether it was made here. Raises UsageError."""
    if file is not None:
        try:
            given = read_file(file, _MOST_TOKEN_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--token-file {file} cannot be read: {reason(error)}") from error
    where = f"--token-file {file}" if file is not None else "KERNELTUNE_TOKEN"
    if given:
        if not (given.isascii() and given.isprintable() and " " not in given):
            raise UsageError(f"{where}: a token is one word of printable ASCII characters")
        return given, False
    if file is not None:
        raise UsageError(f"{where} holds no token")
    if _address(listen)[0] not in _OWN_HOSTS:
        raise UsageError(f"--listen {listen} can be reached from elsewhere: set KERNELTUNE_TOKEN, or give --token-file")
    return secrets.token_urlsafe(24), True


def _address(listen: str) -> tuple[str, int]:
    """Host and port. Raises UsageError."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {listen}: give HOST:PORT, as in 127.0.0.1:8123")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


@contextlib.contextmanager
def _on_tcp(listen: str, *, may_move: bool = False) -> Iterator[sockets.socket]:
    """`may_move`: to any other port, where somebody has that one."""
    host, port = _address(listen)
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    try:
        try:
            listening = sockets.create_server((host, port), family=family)
        except OSError as error:
            if not (may_move and error.errno == errno.EADDRINUSE):
                raise
            listening = sockets.create_server((host, 0), family=family)
    except OSError as error:
        raise UsageError(f"--listen {listen}: {reason(error)}") from error
    with listening:
        yield listening


@contextlib.contextmanager
def _on_unix(path: Path) -> Iterator[sockets.socket]:
    """A listening socket that only this user may open; a dead one in its place goes. Raises UsageError."""
    from kerneltune.agent.record.folder import make_private

    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise UsageError(f"the path of the socket is longer than {_LONGEST_PATH} bytes: {path}; give --socket another")
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as listening:
        make_private(path.parent)
        try:
            with _alone(path.parent):  # of two that begin at once one finds the other's
                _remove_dead(path)
                listening.bind(str(path))
                path.chmod(0o600)  # before it listens, so that nobody came in between
                listening.listen()
        except OSError as error:
            raise UsageError(f"{path} cannot be made: {error.strerror}") from error
        try:
            yield listening
        finally:
            listening.close()
            with contextlib.suppress(OSError, UsageError), _alone(path.parent):  # another may have begun meanwhile
                _remove_dead(path)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else makes or removes a socket in the folder for as long as the block lasts."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_dead(path: Path) -> None:
    """Raises UsageError where somebody listens, or the file is another one."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"{path} is there already, and is no socket")
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as asking:
            try:
                asking.connect(str(path))
            except OSError as error:
                if error.errno != errno.ECONNREFUSED:
                    raise
                return path.unlink()
            held = asking.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
            raise UsageError(
                f"process {struct.unpack('3i', held)[0]} serves on {path} already; use it, or end it first"
            )


def _place(listening: sockets.socket, path: Path) -> str:
    if listening.family == sockets.AF_UNIX:
        return one_line(str(path))
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
