"""The live screen in a real terminal: it comes up, follows its size, and gives the terminal back."""

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"
PROGRAM = """
import signal, sys, time
from rich.console import Console
from kerneltune.agent.attempt import Controls
from kerneltune.agent.view.live import LiveView
from tests.agent.view.scripts import GPU_RUN

signal.signal(signal.SIGHUP, signal.SIG_IGN)
controls = Controls()
with LiveView(Console(), controls=controls, keys_fd=0) as view:
    for event in GPU_RUN:
        view(event)
    {body}
"""


@dataclass
class Terminal:
    """A program on a pty, and everything that it has written."""

    pid: int
    fd: int
    mode: list[Any]
    output: bytearray = field(default_factory=bytearray)

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read_until(self, done: Callable[[bytes], bool], timeout_s: float = 30.0) -> None:
        end = time.monotonic() + timeout_s
        while not done(bytes(self.output)):
            assert time.monotonic() < end, f"waited {timeout_s:g} s; got {bytes(self.output[-2000:])!r}"
            if select.select([self.fd], [], [], 0.1)[0] and not self._read():
                return

    def _read(self) -> bool:
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # Linux: the program has closed its side
            return False
        self.output += data
        return bool(data)

    def end(self) -> int:
        """Read to the end; the exit status."""
        self.read_until(lambda _: False)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def start() -> Iterator[Callable[[str], Terminal]]:
    terminals: list[Terminal] = []

    def run(body: str) -> Terminal:
        environment = {"TERM": "xterm-256color", "PATH": os.environ["PATH"], "PYTHONUTF8": "1"}
        command = [sys.executable, "-c", PROGRAM.format(body=body)]
        read_end, write_end = os.pipe()
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(ROOT)
            os.read(read_end, 1)  # until the terminal has its size
            os.execve(command[0], command, environment)
        terminal = Terminal(pid, fd, termios.tcgetattr(fd))
        terminal.resize(100, 30)
        os.write(write_end, b"x")
        os.close(write_end)
        os.close(read_end)
        terminals.append(terminal)
        return terminal

    yield run
    for terminal in terminals:
        os.close(terminal.fd)


def assert_restored(output: bytes) -> None:
    assert output.rindex(b"\x1b[?7h") > output.rindex(b"\x1b[?7l")  # lines wrap again
    assert output.rindex(b"\x1b[?2004l") > output.rindex(b"\x1b[?2004h")  # pastes are not marked any more
    assert output.count(ENTER_SCREEN) == output.count(LEAVE_SCREEN) == 1
    assert output.rindex(SHOW_CURSOR) > output.rindex(HIDE_CURSOR)
    below = output[output.index(LEAVE_SCREEN) :]
    assert b"single-pass rows" in below  # the last frame stays


def test_ctrl_c_leaves_a_terminal_as_it_was_and_the_last_frame_below(start: Callable[[str], Terminal]) -> None:
    terminal = start("time.sleep(60)")
    terminal.read_until(lambda out: b"rows a program" in out)
    os.kill(terminal.pid, signal.SIGINT)
    assert terminal.end() in (-signal.SIGINT, 130)
    assert_restored(bytes(terminal.output))
    assert b"KeyboardInterrupt" in terminal.output.split(LEAVE_SCREEN)[1]  # not swallowed: the caller decides


def test_the_terminal_itself_can_send_ctrl_c(start: Callable[[str], Terminal]) -> None:
    terminal = start("time.sleep(60)")
    terminal.read_until(lambda out: b"rows a program" in out)
    os.write(terminal.fd, b"\x03")
    assert terminal.end() in (-signal.SIGINT, 130)
    assert_restored(bytes(terminal.output))


def test_an_exception_restores_the_terminal_before_its_traceback(start: Callable[[str], Terminal]) -> None:
    terminal = start("raise RuntimeError('GPU lost')")
    assert terminal.end() == 1
    assert_restored(bytes(terminal.output))
    assert b"GPU lost" in terminal.output.split(LEAVE_SCREEN)[1]


def test_a_run_that_ends_at_once_still_leaves_a_frame(start: Callable[[str], Terminal]) -> None:
    terminal = start("pass")
    assert terminal.end() == 0
    assert_restored(bytes(terminal.output))


def test_the_screen_follows_the_size_of_the_terminal(start: Callable[[str], Terminal]) -> None:
    terminal = start("time.sleep(60)")
    terminal.read_until(lambda out: b"rows a program" in out)
    assert b"source of #7" not in terminal.output  # 100x30 has no room for it
    terminal.resize(200, 50)
    terminal.read_until(lambda out: b"source of #7" in out)
    os.kill(terminal.pid, signal.SIGINT)
    terminal.end()
    assert_restored(bytes(terminal.output))


def test_a_terminal_that_goes_away_does_not_end_the_run(start: Callable[[str], Terminal], tmp_path: Path) -> None:
    marker = tmp_path / "finished"
    body = f"time.sleep(1.5); open({str(marker)!r}, 'w')"
    terminal = start(body)
    terminal.read_until(lambda out: b"rows a program" in out)
    os.close(terminal.fd)
    terminal.fd = os.open(os.devnull, os.O_RDONLY)
    assert os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1]) == 0
    assert marker.exists()


def test_keys_reach_the_run_and_the_terminal_s_mode_comes_back(start: Callable[[str], Terminal]) -> None:
    terminal = start("""while not controls.stopping:
        time.sleep(0.05)
    print("asked:", controls.paused, controls.raises)""")
    terminal.read_until(lambda out: b"rows a program" in out)
    mode = termios.tcgetattr(terminal.fd)
    assert not mode[3] & (termios.ECHO | termios.ICANON)
    assert mode[3] & termios.ISIG
    os.write(terminal.fd, b"p+")
    terminal.read_until(lambda out: b"raised" in out)
    os.write(terminal.fd, b"\x1b[200~qqqq\x1b[201~?")
    terminal.read_until(lambda out: b"stop after what is under way" in out)
    os.write(terminal.fd, b"q")
    assert terminal.end() == 0
    assert_restored(bytes(terminal.output))
    assert terminal.mode == mode_of(terminal)
    assert b"asked: True 1" in terminal.output.split(LEAVE_SCREEN)[1]  # held back until the screen is gone


def mode_of(terminal: Terminal) -> list[Any]:
    try:
        return termios.tcgetattr(terminal.fd)
    except termios.error:
        return terminal.mode  # the last process has closed it: no mode is left to be wrong


def test_a_run_that_is_ending_has_no_limits_to_raise(start: Callable[[str], Terminal], tmp_path: Path) -> None:
    is_ending = tmp_path / "ending"
    terminal = start(f"""while not controls.stopping:
        time.sleep(0.05)
    from kerneltune.agent.events import RunStopping
    view(RunStopping("r-7f3a")); open({str(is_ending)!r}, "w").close(); time.sleep(2)
    print("raised:", controls.raises)""")
    terminal.read_until(lambda out: b"rows a program" in out)
    os.write(terminal.fd, b"q")
    terminal.read_until(lambda _: is_ending.exists())
    os.write(terminal.fd, b"+")
    assert terminal.end() == 0
    assert b"no limit to raise" in terminal.output
    assert b"raised: 0" in terminal.output


@pytest.mark.parametrize("body", ["time.sleep(60)", "raise RuntimeError('GPU lost')"])
def test_whatever_ends_it_keys_are_seen_again(start: Callable[[str], Terminal], body: str, tmp_path: Path) -> None:
    told = tmp_path / "mode"
    report = f"open({str(told)!r}, 'w').write(str(termios.tcgetattr(0)[3]))"
    terminal = start(f"import atexit, termios; atexit.register(lambda: {report})\n    {body}")
    if "sleep" in body:
        terminal.read_until(lambda out: b"rows a program" in out)
        os.write(terminal.fd, b"\x03")
    terminal.end()
    assert int(told.read_text()) == terminal.mode[3]


def test_a_frame_that_cannot_be_drawn_ends_the_screen_and_not_the_run(start: Callable[[str], Terminal]) -> None:
    terminal = start("""controls.pause(); chosen, view.ui = view.ui, None; time.sleep(1.5); view.ui = chosen
    print("the run went on, paused:", controls.paused)""")
    assert terminal.end() == 0
    output = bytes(terminal.output)
    assert_restored(output)
    below = output.split(LEAVE_SCREEN)[1]
    assert b"the run went on, paused: False" in below  # no key could end the pause
    assert b"AttributeError" in below
