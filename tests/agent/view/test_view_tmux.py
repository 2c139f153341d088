"""The command as a person sees it: a real run in a real terminal (tmux), with keys, resizing, Ctrl-Z and Ctrl-C."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent import warm
from tests.agent.shell import SOFTMAX, command, env

pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
    pytest.mark.timeout(400),  # a real run, on whatever else the machine is doing
]
ROOT = Path(__file__).parents[3]
COMMAND = f"{sys.executable} -c 'from kerneltune.agent.cli import main; main()'"
FLAGS = ("--task", SOFTMAX, "--model", "offline", "--runs-dir", "runs")
STORY = ("--task", SOFTMAX, "--model", f"scripted:{ROOT}/tests/agent/stories/softmax.jsonl", "--runs-dir", "runs")
MANY = ("--max-attempts", "60", "--width", "1")
RUN = f"{COMMAND} {shlex.join([*FLAGS, *MANY])}"


class Tmux:
    """One window with a shell in it."""

    def __init__(self, folder: Path, more_env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._socket = str(folder / "tmux")
        kept = {k: v for k, v in env().items() if k not in ("CI", "NO_COLOR", "TMUX", "COLUMNS", "LINES")}
        self._env = kept | {"TERM": "xterm-256color"} | (more_env or {})
        self.ask("-f", os.devnull, "new-session", "-d", "-x", "120", "-y", "40", "bash --norc --noprofile -i")
        self.wait(lambda: bool(self.page().strip()))  # the prompt

    def ask(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self._env, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def keys(self, *names: str) -> None:
        self.ask("send-keys", *names)

    def type(self, line: str) -> None:
        self.ask("send-keys", "-l", line)
        self.keys("Enter")

    def page(self, *options: str) -> str:
        return self.ask("capture-pane", "-p", *options)

    def resize(self, width: int, height: int) -> None:
        self.ask("resize-window", "-x", str(width), "-y", str(height))

    def wait(self, done: Callable[[], bool], timeout_s: float = 90.0) -> None:
        end = time.monotonic() + timeout_s
        while not done():
            assert time.monotonic() < end, f"waited {timeout_s:g} s before\n{self.page()}"
            time.sleep(0.1)

    def shows(self, text: str) -> None:
        self.wait(lambda: text in self.page())

    def mode(self, name: str) -> str:
        """What `stty -a` says, without the size."""
        self.type(f"stty -a > {name}; echo wrote-{name}")
        self.shows(f"\nwrote-{name}")
        return re.sub(r"rows \d+; columns \d+;", "", (self.folder / name).read_text())

    def is_clean(self) -> bool:
        """Whether the cursor is visible, on the main screen."""
        return self.ask("display-message", "-p", "#{cursor_flag} #{alternate_on} #{wrap_flag}").split() == [
            "1",
            "0",
            "1",
        ]

    def flaw(self, width: int, height: int) -> str:
        """What is wrong with the picture as one whole frame; "" when nothing is.

        The time at the end of the first line tells a frame of this size from the upper part of one that was begun
        before the window was resized, over the last lines of the frame before.
        """
        page = self.page()
        lines = page.split("\n")[:-1]
        checks = {
            "lines": len(lines) == height,
            "first line": bool(re.fullmatch(r" kerneltune  softmax .* (\d+s|left)", lines[0]))
            and len(lines[0]) == width - 1,
            "one title": page.count("kerneltune  softmax") == 1,
            "one table": page.count("what was tried") == 1,
            "one pipeline": len(re.findall(r"^ (tracing|compiling|compiled|checking|nothing under way)", page, re.M))
            == 1,
            "last line": "help" in lines[-1],
            "width": max(map(len, lines)) <= width,
        }
        return "".join(f"{name}\n{page}" for name, is_so in checks.items() if not is_so)

    def stays_whole(self, seconds: float, width: int, height: int) -> None:
        """Looks again and again; every picture must be one whole frame."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.flaw(width, height) == ""


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    terminal = Tmux(tmp_path)
    yield terminal
    terminal.ask("kill-server")


def test_a_run_is_watched_steered_resized_stopped_and_leaves_the_terminal_clean(tmux: Tmux) -> None:
    before = tmux.mode("before")
    tmux.type(f"{RUN} > summary.txt")
    tmux.shows("✓ checked")
    tmux.stays_whole(1.5, 120, 40)
    tmux.keys("?")
    tmux.shows("stop after what is under way")
    tmux.keys("Escape")
    tmux.keys("Home", "Enter")
    tmux.shows("TorchInductor's own kernels")
    tmux.keys("o")
    tmux.shows("import triton")
    tmux.keys("Escape", "Escape")
    for width, height in ((80, 24), (200, 50), (100, 30)):
        tmux.resize(width, height)
        tmux.wait(lambda w=width, h=height: not tmux.flaw(w, h))  # type: ignore[misc]
        tmux.stays_whole(0.8, width, height)
    tmux.keys("+")
    tmux.shows("/75")
    tmux.keys("p")
    tmux.shows("paused")
    tmux.keys("C-z")
    tmux.shows("Stopped")
    assert tmux.mode("stopped") == before
    assert tmux.is_clean()
    tmux.type("fg")
    tmux.shows("first choice, not timed")
    tmux.keys("p")
    tmux.shows("running")
    tmux.keys("C-c")
    tmux.shows("ended: interrupted")
    tmux.wait(tmux.is_clean)
    tmux.type("echo exit-$?")
    tmux.shows("exit-130")
    assert tmux.mode("after") == before
    summary = (tmux.folder / "summary.txt").read_text()
    assert "interrupted; every finished attempt is kept" in summary
    assert "\x1b" not in summary


def test_the_screen_of_a_run_stays_when_it_has_ended_until_q_leaves_it(tmux: Tmux) -> None:
    run = shlex.join(command(*STORY, "--max-attempts", "1"))
    tmux.type(f"{run} > summary.txt; echo exit-$?")
    tmux.shows("■ ended")
    time.sleep(1.0)
    assert "exit-" not in tmux.page()
    tmux.keys("Enter")
    tmux.shows("expo")  # what the compiler said of it
    tmux.keys("c")
    tmux.shows("[system]")
    tmux.keys("BSpace", "/")
    tmux.shows("only rows with")
    tmux.keys("z", "z", "q", "Enter")
    tmux.shows("no attempt has: zzq")
    tmux.keys("q")
    tmux.shows("exit-1")
    assert tmux.is_clean()
    assert "ended after" in (tmux.folder / "summary.txt").read_text()


def test_stored_runs_are_browsed_from_the_list_to_the_machine_code(tmux: Tmux) -> None:
    shutil.copytree(ROOT / "docs" / "demo", tmux.folder / "runs")
    before = tmux.mode("before")
    tmux.resize(80, 24)
    tmux.type(f"{COMMAND} runs")  # as it is typed: without filters, in a terminal
    tmux.shows("4 stored runs")
    tmux.keys("/")
    tmux.ask("send-keys", "-l", "cross")
    tmux.keys("Enter", "Enter")
    tmux.shows("kerneltune  cross_entropy · NVIDIA H200")
    tmux.shows("■ the end")
    tmux.keys("s", "Enter")  # the fastest
    tmux.shows("#4 ★ blocks of")
    tmux.shows("237.1 µs (237.0-237.1)")
    tmux.keys("d")
    tmux.shows("@@ ")
    tmux.keys("a")
    tmux.shows("being made")
    tmux.shows("disassembled by")
    tmux.keys("/")
    tmux.ask("send-keys", "-l", "LDG")
    tmux.keys("Enter")
    tmux.shows("LDG.E")
    tmux.keys("n")
    tmux.shows("#2 online")
    tmux.keys("BSpace", "BSpace", "BSpace")
    tmux.shows("stored runs")
    tmux.keys("q")
    tmux.wait(tmux.is_clean)
    assert tmux.mode("after") == before


WATCHED = """
import time
from rich.console import Console
from kerneltune.agent.attempt import Controls
from kerneltune.agent.view.live import LiveView
from tests.agent.view.scripts import GPU_RUN
controls = Controls()
with LiveView(Console(stderr=True), controls=controls, keys_fd=0) as view:
    for event in GPU_RUN:
        view(event)
    while not controls.stopping:
        open("beats", "a").write("x")
        open("paused", "w").write(str(controls.paused_s))
        time.sleep(0.1)
"""


def test_a_run_that_goes_on_in_the_background_leaves_the_terminal_to_others_until_fg(tmux: Tmux) -> None:
    (tmux.folder / "watched.py").write_text(WATCHED)
    beats = tmux.folder / "beats"
    before = tmux.mode("before")
    tmux.type(f"PYTHONPATH={ROOT} {sys.executable} watched.py")
    tmux.shows("help")
    tmux.keys("C-z")
    tmux.shows("Stopped")
    time.sleep(1.0)
    tmux.type("bg")
    been = beats.stat().st_size
    tmux.wait(lambda: beats.stat().st_size > been + 10)  # it runs, and is not stopped for reading or writing
    assert tmux.mode("background") == before
    assert tmux.is_clean()
    tmux.type("jobs")
    tmux.shows("Running")
    tmux.wait(lambda: float((tmux.folder / "paused").read_text() or 0) >= 1.0)  # empty while it is written
    tmux.type("fg")
    tmux.shows("best so far")
    tmux.keys("q")
    tmux.wait(tmux.is_clean)
    assert tmux.mode("after") == before


def test_a_run_that_begins_in_the_background_takes_the_terminal_after_fg(tmux: Tmux) -> None:
    (tmux.folder / "watched.py").write_text(WATCHED)
    beats = tmux.folder / "beats"
    tmux.type(f"PYTHONPATH={ROOT} {sys.executable} watched.py &")
    tmux.wait(lambda: beats.exists() and beats.stat().st_size > 10)
    assert tmux.is_clean()
    tmux.type("fg")
    tmux.shows("best so far")
    tmux.keys("C-c")
    tmux.wait(tmux.is_clean)


def test_a_run_without_colours_stops_after_what_is_under_way_when_it_is_asked_to(tmux: Tmux) -> None:
    run = shlex.join(command(*FLAGS, *MANY))
    tmux.type(f"NO_COLOR=1 {run}; echo exit-$?")
    tmux.shows("✓ checked")
    codes = set(re.findall("\x1b\\[([0-9;]*)m", tmux.page("-e")))
    assert not [c for c in codes if re.search(r"(^|;)(3[0-8]|4[0-8]|9\d)(;|$)", c)]
    tmux.keys("q")
    tmux.shows("exit-0")
    assert "stopped with q" in tmux.page("-S", "-100")
    assert tmux.is_clean()


@pytest.mark.parametrize("variable", [{"TERM": "dumb"}, {"CI": "1"}])
def test_where_nobody_looks_at_a_screen_there_are_lines_without_escapes(
    tmp_path: Path, variable: dict[str, str]
) -> None:
    tmux = Tmux(tmp_path)
    try:
        tmux.ask("pipe-pane", "-o", "cat > written")
        name, value = next(iter(variable.items()))
        (tmp_path / "run.sh").write_text(shlex.join(warm.command(*STORY, "--max-attempts", "1")))
        tmux.type(f"{name}={value} sh run.sh; echo exit-$?")
        tmux.shows("exit-1")
        written = (tmp_path / "written").read_text().split("\n", 1)[1].rpartition("exit-1")[0]
        written = re.sub("\x1b\\[\\?2004[hl]", "", written)  # the shell's own
        assert "#1 compile_failed" in re.sub("\x1b\\[[0-9;]*m", "", written)
        assert "\x1b[?1049h" not in written
        assert "\x1b" not in written or variable == {"CI": "1"}  # a CI's log may have colours, nothing else
    finally:
        tmux.ask("kill-server")
