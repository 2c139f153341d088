"""`optimize watch` as a person types it: beside a process that writes, on runs that are over, in a real terminal."""

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.events import Event, RunResumed, RunStarted, is_stored
from kerneltune.agent.record.folder import process_of
from kerneltune.agent.record.store import FILE_NAME, Store
from tests.agent import warm
from tests.agent.shell import ROOT, command, env, optimize
from tests.agent.view.scripts import ENDED, NOW, many_attempts
from tests.agent.view.test_playback import OVER, RUN

WRITER = """
import sys, time
from pathlib import Path
from kerneltune.agent.record.folder import alive
from kerneltune.agent.record.store import Store
from tests.agent.test_watch import WRITTEN

folder, pause_s, last = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
slowest_s = 0.0
with Store.open(folder) as store, alive(folder / "r-7f3a"):
    for number, event in enumerate(WRITTEN):
        for _ in range(600 if number == last else 0):
            if (folder.parent / "go on").exists():
                break
            time.sleep(0.1)
        begun = time.perf_counter()
        store.write(event)
        slowest_s = max(slowest_s, time.perf_counter() - begun)
        print(event.kind, flush=True)
        time.sleep(pause_s)
print(slowest_s)
"""
WRITTEN: list[Event] = OVER


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs") as opened:
        yield opened


def write(store: Store, events: Sequence[Event]) -> None:
    for event in events:
        store.write(event)


def writer(folder: Path, pause_s: float, last: int = len(WRITTEN)) -> "subprocess.Popen[str]":
    """A process that writes a run; after `last` events it waits for a file "go on" beside the folder, or a minute."""
    arguments = [sys.executable, "-c", WRITER, str(folder), str(pause_s), str(last)]
    process = subprocess.Popen(arguments, cwd=ROOT, env=env(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "run_started\n"
    return process


def objects(text: str) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in text.splitlines()]


def test_a_watcher_sees_what_another_process_writes_and_does_not_slow_it(tmp_path: Path) -> None:
    process = writer(tmp_path / "runs", 0.05)
    done = optimize("watch", "--json", cwd=tmp_path)
    written, _ = process.communicate(timeout=60)
    assert done.returncode == 0, done.stderr
    *events, result = objects(done.stdout)
    assert [e["type"] for e in events] == [e.kind for e in WRITTEN]
    assert (result["type"], result["subtype"], result["attempts"]) == ("result", "success", 6)
    assert float(written.splitlines()[-1]) < 2.0
    with Store.open(tmp_path / "runs") as store:
        assert store.load_events("r-7f3a") == WRITTEN


def test_a_watcher_ends_with_a_run_whose_process_is_killed_and_says_so(tmp_path: Path) -> None:
    process = writer(tmp_path / "runs", 0.0, last=8)
    watcher = subprocess.Popen(
        warm.command("watch", "r-7", "--plain"), cwd=tmp_path, env=env(), stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    while "#2" not in watcher.stdout.readline():
        pass
    process.kill()
    rest, _ = watcher.communicate(timeout=60)
    process.communicate()
    assert watcher.returncode == 1
    assert re.search(r"no event for \d+[smh]\b.*; its process is not running\n", rest)
    assert "optimize --resume r-7f3a" in rest


def test_a_watched_run_does_not_notice_when_its_watcher_is_interrupted(tmp_path: Path) -> None:
    process = writer(tmp_path / "runs", 0.0, last=8)
    watcher = subprocess.Popen(
        warm.command("watch", "--plain"), cwd=tmp_path, env=env(), stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    watcher.stdout.readline()
    watcher.send_signal(signal.SIGINT)
    watcher.communicate(timeout=30)
    assert watcher.returncode == 130
    (tmp_path / "go on").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_lines_follow_a_run_that_is_resumed(store: Store, tmp_path: Path) -> None:
    later: list[Event] = [RunResumed("r-7f3a", 6, at=NOW + 100.0), replace(ENDED, at=NOW + 130.0, why=StopReason.TIME)]
    write(store, [*OVER, *later])
    done = optimize("watch", "--plain", cwd=tmp_path)
    assert "goes on after 6 finished attempts" in done.stdout
    assert "ended (time)" in done.stdout
    assert done.returncode == 0


def of_now(events: Sequence[Event], ago_s: float = 0.0) -> list[Event]:
    later_s = time.time() - ago_s - events[-1].at
    return [replace(e, at=e.at + later_s) for e in events]


def test_a_run_of_which_nothing_is_known_is_not_called_dead(store: Store, tmp_path: Path) -> None:
    *run, ended = of_now(OVER)
    write(store, run)
    watcher = subprocess.Popen(
        warm.command("watch", "--plain"), cwd=tmp_path, env=env(), stdout=subprocess.PIPE, text=True
    )
    with pytest.raises(subprocess.TimeoutExpired):
        watcher.wait(timeout=4)
    write(store, [ended])
    assert "ended (attempts)" in watcher.communicate(timeout=30)[0]
    assert watcher.returncode == 0


@pytest.mark.parametrize(
    ("flags", "ago_s", "said"),
    [
        (("--plain",), 3600.0, "whether its process runs is not known here"),
        (("--plain",), -3600.0, "no end is recorded"),  # by a clock that is ahead of ours
        (("--json",), 3600.0, '"type":"result"'),
    ],
)
def test_an_old_run_without_an_end_and_a_process_is_printed_and_left(
    store: Store, tmp_path: Path, flags: tuple[str, ...], ago_s: float, said: str
) -> None:
    write(store, of_now(RUN, ago_s))
    done = optimize("watch", *flags, cwd=tmp_path)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) > 5
    assert said in done.stdout.replace('": "', '":"')


def test_what_was_judged_from_files_has_the_exit_code_of_bench_and_is_not_resumed(store: Store, tmp_path: Path) -> None:
    files = [replace(e, author="files") if isinstance(e, RunStarted) else e for e in RUN]
    write(store, [*files, replace(ENDED, why=StopReason.AUTHOR_DONE, attempts=6, accepted=5)])
    done = optimize("watch", "--plain", cwd=tmp_path)
    assert done.returncode == 1
    assert "optimize show r-7f3a" in done.stdout
    assert "--resume" not in done.stdout


@pytest.mark.parametrize(
    ("why", "best", "code"),
    [
        (StopReason.ATTEMPTS, "r-7f3a/3", 0),
        (StopReason.ATTEMPTS, None, 1),
        (StopReason.INTERRUPTED, "r-7f3a/3", 130),
        (StopReason.FAILED, "r-7f3a/3", 1),
    ],
)
def test_the_exit_code_is_that_of_the_run(
    store: Store, tmp_path: Path, why: StopReason, best: str | None, code: int
) -> None:
    write(store, [*RUN, replace(ENDED, why=why, best_attempt_id=best)])
    assert optimize("watch", "r-7f3a", "--json", cwd=tmp_path).returncode == code


def test_a_speed_paces_the_lines(store: Store, tmp_path: Path) -> None:
    write(store, OVER)
    begun = time.monotonic()
    done = optimize("watch", "--plain", "--speed", "20", cwd=tmp_path)
    assert done.returncode == 0
    assert time.monotonic() - begun > 64 / 20


def test_a_reader_that_leaves_ends_the_watcher(store: Store, tmp_path: Path) -> None:
    write(store, of_now(RUN))
    first = subprocess.run(
        ["sh", "-c", '"$@" | (head -1; sleep 3)', "sh", *warm.command("watch", "--plain")],  # all is written by then
        cwd=tmp_path, env=env(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert first.stdout.startswith("run r-7f3a: softmax")
    assert first.stderr == ""


def test_a_picture_is_written_where_it_is_wanted(store: Store, tmp_path: Path) -> None:
    write(store, OVER)
    for flags in ((), ("--width", "80", "--height", "24")):
        done = optimize("watch", *flags, "--svg", "out/run.svg", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        assert (tmp_path / "out/run.svg").read_text().startswith("<svg ")
    assert not process_of(tmp_path / "runs" / "r-7f3a").pid


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["r-7f3b"], "no run 'r-7f3b'; did you mean r-7f3a?"),
        (["--speed", "-1"], "--speed -1: give a number above 0"),
        (["--speed", "1e-310"], "--speed 1e-310: give a number above 0 (0.01 to 1000), or max"),
        (["--speed", "nan"], "--speed nan: give a number above 0"),
        (["--width", "80"], "--width is for pictures: give --svg FILE too"),
        (["--svg", "x.svg", "--width", "3"], "--width 3: give 20 to 400"),
        (["--svg", "/proc/x.svg"], "--svg /proc/x.svg: No such file"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_the_way_out(
    store: Store, tmp_path: Path, flags: list[str], said: str
) -> None:
    write(store, OVER)
    done = optimize("watch", *flags, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "x.svg").exists()


def test_records_that_cannot_be_watched_are_one_line_and_stay_as_they_are(tmp_path: Path) -> None:
    done = optimize("watch", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "optimize: no runs in runs; make one with: optimize --task softmax\n")
    assert not (tmp_path / "runs").exists()
    Store.open(tmp_path / "empty").close()
    assert "no runs in empty" in optimize("watch", "--runs-dir", "empty", cwd=tmp_path).stderr
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / FILE_NAME).write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 20)
    assert "not a database" in optimize("watch", "--runs-dir", "broken", cwd=tmp_path).stderr
    shutil.copytree(tmp_path / "empty", tmp_path / "newer")
    with sqlite3.connect(tmp_path / "newer" / FILE_NAME) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    assert "has schema 999, newer than schema" in optimize("watch", "--runs-dir", "newer", cwd=tmp_path).stderr


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Runs tmux's commands on a server of its own, whose one window is 110 x 30 with a shell in it."""
    if shutil.which("tmux") is None:
        pytest.skip("no tmux")
    socket = str(tmp_path / "tmux.sock")
    variables = env() | {"PS1": "$ ", "TERM": "screen-256color"}
    variables.pop("CI", None)

    def call(*arguments: str) -> str:
        asked = ["tmux", "-S", socket, "-f", "/dev/null", *arguments]
        return subprocess.run(asked, env=variables, capture_output=True, text=True, timeout=30).stdout

    call("new-session", "-d", "-s", "w", "-x", "110", "-y", "30", "-c", str(tmp_path), "sh")
    yield call
    call("kill-server")


def until(tmux: Callable[..., str], wanted: str, timeout_s: float = 40.0) -> str:
    """The screen once it shows that."""
    end = time.monotonic() + timeout_s
    while wanted not in (screen := tmux("capture-pane", "-p", "-t", "w")):
        assert time.monotonic() < end, f"no {wanted!r} in:\n{screen}"
        time.sleep(0.1)
    return screen


def shell_line(*arguments: str) -> str:
    quoted = shlex.join(command(*arguments))
    return f"clear; {quoted}; echo exit code $?"


def test_a_playback_obeys_keys_follows_the_size_and_gives_the_terminal_back(
    store: Store, tmp_path: Path, tmux: Callable[..., str]
) -> None:
    write(store, OVER)
    before = tmux("display-message", "-p", "-t", "w", "#{alternate_on}")
    tmux("send-keys", "-t", "w", shell_line("watch", "--speed", "0.1"), "Enter")
    until(tmux, "▶ 0.1x")
    for key, wanted in (("+", "▶ 0.2x"), ("Space", "‖ paused"), ("p", "▶ 0.2x"), ("?", "faster, slower"),
                        ("Escape", "best so far"), ("-", "▶ 0.1x"), ("e", "exit code 0")):  # fmt: skip
        tmux("send-keys", "-t", "w", key)
        until(tmux, wanted)
    tmux("send-keys", "-t", "w", shell_line("watch"), "Enter")
    until(tmux, "■ the end")
    tmux("resize-window", "-t", "w", "-x", "70", "-y", "18")
    tmux("send-keys", "-t", "w", "Up", "Enter")
    screen = until(tmux, "#7 eight rows")
    assert len(screen.splitlines()) == 18
    tmux("send-keys", "-t", "w", "q")
    until(tmux, "exit code 0")
    tmux(
        "send-keys", "-t", "w", "clear; stty -a | tr ';' '\\n' | grep -w susp; stty -a | grep -ow -e '-*echo'", "Enter"
    )
    assert "^Z" in until(tmux, "\necho")
    assert tmux("display-message", "-p", "-t", "w", "#{alternate_on}") == before


def test_the_screen_follows_a_run_to_its_end_and_closes_with_its_words(
    tmp_path: Path, tmux: Callable[..., str]
) -> None:
    process = writer(tmp_path / "runs", 0.0, last=8)
    tmux("send-keys", "-t", "w", shell_line("watch"), "Enter")
    until(tmux, "● live")
    (tmp_path / "go on").touch()
    screen = until(tmux, "exit code 0")
    assert "the limit of attempts is reached" in screen
    assert "optimize watch r-7f3a --speed 10" in screen
    process.communicate(timeout=60)


def test_ctrl_c_on_the_screen_leaves_the_run_alone_and_the_terminal_clean(
    tmp_path: Path, tmux: Callable[..., str]
) -> None:
    process = writer(tmp_path / "runs", 0.0, last=8)
    try:
        tmux("send-keys", "-t", "w", shell_line("watch"), "Enter")
        until(tmux, "● live")
        tmux("send-keys", "-t", "w", "C-c")
        until(tmux, "exit code 130")
        assert process.poll() is None
        assert process_of(tmp_path / "runs" / "r-7f3a").pid == process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        tmux("send-keys", "-t", "w", shell_line("watch"), "Enter")
        until(tmux, "its process is not running")
        tmux("send-keys", "-t", "w", "q")
        until(tmux, "exit code 0")
    finally:
        process.kill()
        process.communicate()


def test_a_run_without_an_end_ends_by_itself_where_nobody_can_press_a_key(
    store: Store, tmp_path: Path, tmux: Callable[..., str]
) -> None:
    write(store, RUN)
    tmux("send-keys", "-t", "w", shell_line("watch").replace("; echo", " < /dev/null; echo"), "Enter")
    until(tmux, "exit code 1")


def test_a_playback_ends_by_itself(store: Store, tmp_path: Path, tmux: Callable[..., str]) -> None:
    write(store, OVER)
    tmux("send-keys", "-t", "w", shell_line("watch", "--speed", "max"), "Enter")
    assert "right and timed on NVIDIA H200" in until(tmux, "exit code 0")


def test_a_long_run_is_read_page_by_page(store: Store) -> None:
    events = [e for e in many_attempts(60) if is_stored(e)]
    write(store, events)
    seen: list[Event] = []
    after, pages = 0, 0
    while len(seen) < len(events):
        after, found = store.later_events("r-7f3a", after, 50)
        assert 0 < len(found) <= 50
        seen, pages = [*seen, *found], pages + 1
    assert seen == events
    assert pages == -(-len(events) // 50)
    assert store.later_events("r-7f3a", after) == (after, [])
    assert store.later_events("no such run", 0) == (0, [])
