"""Twenty things that a person wants to know or to do, with keys and `--help` alone.

The record is that of `docs/demo`: four runs on an H200. Each task is a question, what is typed, and what answers it.
"""

import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent import warm
from tests.agent.view.test_view_tmux import COMMAND, ROOT, Tmux

pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
    pytest.mark.timeout(400),
]
SIZES = {"narrow": (80, 24), "wide": (200, 60)}
IN_THE_SHELL = (
    ("what can I type?", "optimize --help", "--resume"),
    ("which flag goes on with a run?", "optimize --help | grep -e --resume", "RUN"),
    ("which runs are there?", "optimize runs | cat", "rms_norm"),
    ("how did the last one go?", "optimize show last", "✔ correct 3"),
    ("which attempt of softmax is the fastest?", "optimize show softmax | grep ^best", "#5 126.4 µs"),
    ("why did #1 not compile?", "optimize show last/1", "line 12: at 5:8"),
    ("how do #3 and #5 differ?", "optimize show last/5 --against 3", "what differs in the source"),
    ("can a colleague see it?", "optimize report last -o r.html", "softmax on one NVIDIA H200"),
    ("can my model use it?", "optimize package last -o fast.py", "it has no backward"),
    ("can I train on it?", "optimize export --format sft-best -o data", "4 rows"),
    ("can I show a picture of it?", "optimize watch last --svg it.svg", "it.svg:"),
    ("what did I misspell?", "optimize shwo last", "did you mean"),
)
ON_THE_SCREEN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("which runs are there?", ("$optimize browse",), "4 stored runs"),
    ("which keys are there?", ("?",), "show only rows that hold"),
    ("what was tried for softmax?", ("Escape", "/", "$softmax", "Enter", "Enter"), "kerneltune softmax · NVIDIA H200"),
    ("why was #2 wrong?", ("Home", "Down", "Enter"), "2849 of them are NaN"),
    ("what did its author write?", ("o",), "import triton"),
    ("what did it change?", ("d",), "@@ "),
    ("what was it asked?", ("c",), "[system]"),
    (
        "what did the prompt say of values on the host?",
        ("/", "$tensor values", "Enter"),
        "no tensor values on the host",
    ),
    ("what came next?", ("n",), "#3"),
)


@pytest.fixture
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tmux]:
    shutil.copytree(ROOT / "docs" / "demo", tmp_path / "runs")
    tmux = Tmux(tmp_path)
    tmux.ask("set-option", "-g", "history-limit", "5000")
    tmux.resize(*SIZES[request.param])
    tmux.type(f'optimize() {{ {COMMAND} "$@"; }}')
    yield tmux
    tmux.ask("kill-server")


@pytest.mark.parametrize("terminal", ["narrow"], indirect=True)
def test_questions_are_answered_and_files_made_by_commands_in_80_columns(terminal: Tmux) -> None:
    terminal.type(f'optimize() {{ {shlex.join(warm.command())} "$@"; }}')  # no keys, so without an interpreter's start
    for number, (question, line, answer) in enumerate(IN_THE_SHELL):
        terminal.type("clear")
        terminal.ask("clear-history")
        terminal.type(f"{line} 2>&1; echo done-$((40 + {number}))")
        terminal.wait(lambda n=number: f"done-{40 + n}" in terminal.page("-S", "-5000"))  # type: ignore[misc]
        assert answer in " ".join(terminal.page("-J", "-S", "-5000").split()), question
    assert {"r.html", "fast.py", "data", "it.svg"} <= {path.name for path in terminal.folder.iterdir()}


@pytest.mark.parametrize("terminal", SIZES, indirect=True)
def test_questions_are_answered_by_keys_on_a_narrow_and_a_wide_screen(terminal: Tmux) -> None:
    for question, keys, answer in ON_THE_SCREEN:
        for key in keys:
            if key.startswith("$optimize"):
                terminal.type(key[1:])
            elif key.startswith("$"):
                terminal.ask("send-keys", "-l", key[1:])
            else:
                terminal.keys(key)
        try:
            terminal.wait(lambda text=answer: text in " ".join(terminal.page().split()), 30)  # type: ignore[misc]
        except AssertionError as error:
            raise AssertionError(question) from error
    terminal.keys("q")
    terminal.wait(terminal.is_clean)
