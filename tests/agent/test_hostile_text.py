"""Text from outside, through every command: nothing of it moves a cursor, reverses a line or forges one.

The commands run in this process, on a real record in which every text that somebody else chooses is the same hostile
word. Hypothesis makes up the words.
"""

import ast
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kerneltune.agent.cli import app, exit_code
from kerneltune.agent.commands.bench import FilesView
from kerneltune.agent.commands.verify import Verification, print_verification, verification_json
from kerneltune.agent.events import Judged, RunStarted, Verified
from kerneltune.agent.models.types import LlmError
from kerneltune.agent.record.folder import ReceiptBook, is_plain
from kerneltune.agent.record.store import Store
from kerneltune.agent.view.output import standard_page
from kerneltune.tools.schema.codec import one_line, shell_word
from kerneltune.tools.schema.errors import KerneltuneError, UsageError
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import Update
from tests.agent.record.test_record_receipts import SETTING
from tests.agent.report.made import RUN, hostile

FORGED = "FORGED"
PARTS = (
    *("\x1b[2J", "\x1b]0;title\x07", "\x1b]8;;http://evil.example\x1b\\", "\x1bP+q\x1b\\", "\x1b", "\x9b2J", "\x9d"),
    *("\x00", "\x07", "\x08\x08", "\r", "\x0b", "\x0c", "\x7f", "\x85", "\u2028", "\n", "\t"),
    *("\u202e", "\u2066", "\u200f", "\u200b", "\ufeff", "\U000e0041", "\ud800", "\udcff"),
    *("a word", "naïve", "核", "<script>alert(1)</script>", "`$(id)`;'\"|&", "[link=http://x]", "--json", " " * 3),
)
WORDS = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), min_size=1, max_size=12).map(
    lambda parts: f"w{''.join(parts)}\x1b[2J\n{FORGED}\r{FORGED}\u2028{FORGED}\u202e\x9b2J"
)
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e01ef]"
)
SGR = re.compile("\x1b\\[[0-9;]*m")
EXAMPLES = settings(
    max_examples=int(os.environ.get("HOSTILE_EXAMPLES", "8")),
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
)


class Terminal(io.TextIOWrapper):
    """A stream in memory that may be a terminal."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="surrogatepass", newline="\n")
        self._terminal = terminal

    def isatty(self) -> bool:
        """Whether a person sits before it."""
        return self._terminal

    def text(self) -> str:
        """All that was written."""
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode("utf-8", "surrogatepass")


@contextmanager
def streams(*, terminal: bool = False) -> Iterator[tuple[Terminal, Terminal]]:
    kept, out, err = (sys.stdout, sys.stderr), Terminal(terminal=terminal), Terminal(terminal=terminal)
    sys.stdout, sys.stderr = out, err
    try:
        yield out, err
    finally:
        sys.stdout, sys.stderr = kept


@dataclass(frozen=True)
class Shown:
    """What a command wrote."""

    code: int
    out: str
    err: str


def optimize(*arguments: str, terminal: bool = False) -> Shown:
    with streams(terminal=terminal) as (out, err):
        code = exit_code(lambda: app(arguments, result_action="return_value", exit_on_error=False, print_error=False))
    return Shown(code, out.text(), err.text())


def assert_plain(shown: Shown, *, own_lines: bool = True, terminal: bool = False) -> None:
    """`own_lines`: no line may begin with words of somebody else, but where a window folds one."""
    text = SGR.sub("", shown.out + shown.err) if terminal else shown.out + shown.err
    assert not (found := RAW.search(text)), repr(text[max(0, found.start() - 200) : found.end() + 50])
    assert "Traceback" not in text, text
    if own_lines and not terminal:
        assert not re.search(f"^{FORGED}", text, re.MULTILINE), text


def stored(word: str, runs: Path) -> None:
    with Store.open(runs) as store:
        for event in hostile(word, source="x = 1\n"):
            store.write(event)


def each(folder: Path) -> Iterator[Path]:
    """A fresh folder for each example."""
    number = 0
    while True:
        number += 1
        made = folder / str(number)
        made.mkdir()
        yield made


LOOKS: tuple[
    tuple[tuple[str, ...], bool], ...
] = (  # at a record; and whether texts of several lines are shown as they are
    (("runs",), True),
    (("show", RUN), True),
    (("show", f"{RUN}/1"), True),
    (("show", f"{RUN}/2"), False),
    (("show", RUN, "--conversation"), False),
    (("watch", RUN, "--plain"), True),
)
OBJECTS: tuple[tuple[str, ...], ...] = (
    ("runs", "--json"),
    ("show", RUN, "--json", "--conversation"),
    ("show", f"{RUN}/1", "--json"),
    ("watch", RUN, "--json"),
    ("report", RUN, "--json"),
)


def test_no_command_shows_a_record_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = each(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")

    @EXAMPLES
    @given(WORDS)
    def holds(word: str) -> None:
        runs = next(folders) / "runs"
        stored(word, runs)
        place = ("--runs-dir", str(runs))
        for arguments, own_lines in LOOKS:
            assert_plain(optimize(*arguments, *place), own_lines=own_lines)
            if arguments[0] != "watch":
                assert_plain(optimize(*arguments, *place, terminal=True), own_lines=own_lines, terminal=True)
        for words in OBJECTS:
            shown = optimize(*words, *place)
            assert_plain(shown)
            for line in [shown.out] if words[0] == "runs" else shown.out.splitlines():
                json.loads(line)

    holds()


def test_files_that_are_made_of_a_record_hold_nothing_raw(tmp_path: Path) -> None:
    folders = each(tmp_path)

    @EXAMPLES
    @given(WORDS)
    def holds(word: str) -> None:
        folder = next(folders)
        runs = folder / "runs"
        stored(word, runs)
        place = ("--runs-dir", str(runs))
        assert_plain(optimize("report", RUN, *place))
        assert_plain(optimize("report", "--suite", *place))
        assert_plain(optimize("watch", RUN, "--svg", str(folder / "run.svg"), *place))
        assert_plain(optimize("merge", str(runs), "--runs-dir", str(folder / "ours")))
        assert_plain(optimize("export", "--format", "raw", "-o", str(folder / "data"), *place))
        made = [runs / RUN / "report.html", runs / "suite.html", folder / "run.svg", folder / "data" / "README.md"]
        assert [path for path in made if not path.is_file()] == []
        for path in made:
            assert not RAW.search(path.read_text()), path

    holds()


NAMES = WORDS.map(  # what a file or an argument may be called: bytes, of which those that are no UTF-8 are surrogates
    lambda word: re.sub("[\ud800-\udfff]", "\udcff", re.sub("[\x00/]", "", word))[:60]
)
ASKED = (  # with a name that nobody knows; none of them starts a worker
    ("show", "{}"),
    ("watch", "{}"),
    ("report", "{}"),
    ("--task", "{}"),
    ("--task", "{}.py"),
    ("--task", "softmax", "--arch", "{}"),
    ("bench", "x.py", "--task", "{}"),
    ("tasks", "{}"),
    ("init", "{}"),
    ("init", "{}:f"),
    ("merge", "{}"),
    ("export", "--format", "{}"),
    ("export", "--format", "raw", "--task", "{}"),
    ("selftest", "--class", "{}"),
    ("config", "{}"),
    ("{}",),
    ("runs", "--{}"),
)


def test_no_error_repeats_a_name_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored("softmax", tmp_path / "runs")

    @EXAMPLES
    @given(NAMES)
    def holds(name: str) -> None:
        for words in ASKED:
            shown = optimize(*(word.format(name) for word in words))
            assert shown.code in (1, 2, 3), (words, shown)
            assert_plain(shown)

    holds()


def test_settings_are_shown_plainly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @EXAMPLES
    @given(NAMES)
    def holds(name: str) -> None:
        name = name.encode(errors="replace").decode()
        for variable in ("KERNELTUNE_MODEL", "KERNELTUNE_ARCH", f"KERNELTUNE_{name.replace('=', '')}"):
            with monkeypatch.context() as changed:
                changed.setenv(variable, name)
                assert_plain(optimize("config"))
                assert_plain(optimize())
                assert_plain(shown := optimize("config", "--json"))
                assert shown.code or json.loads(shown.out)

    holds()


def test_whatever_an_exception_says_is_told_plainly() -> None:
    @EXAMPLES
    @given(WORDS)
    def holds(word: str) -> None:
        for error in (
            LlmError(word),
            UsageError(word),
            KerneltuneError(word),
            OSError(5, word, word),
            RuntimeError(word),
        ):
            with streams() as (out, err):
                code = exit_code(lambda error=error: raised(error))  # type: ignore[misc]
            assert code in (2, 3, 4)
            text = out.text() + err.text()
            assert not RAW.search(text)
            assert re.search("^optimize: ", text, re.MULTILINE)
            assert isinstance(error, RuntimeError) or not re.search(f"^{FORGED}", text, re.MULTILINE)

    holds()


def raised(error: BaseException) -> None:
    raise error


def test_names_of_files_and_details_of_verdicts_stay_words_in_what_bench_and_verify_print(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")  # where a narrow window folds a line, any word may come first

    @EXAMPLES
    @given(WORDS)
    def holds(word: str) -> None:
        events = hostile(word)
        [started], [again] = ([e for e in events if isinstance(e, kind)] for kind in (RunStarted, Verified))
        assert isinstance(started, RunStarted)
        assert isinstance(again, Verified)
        verified = Verification(started, again.verdict, again, (word,), {}, word)
        for as_json, terminal in ((False, False), (False, True), (True, False)):
            with streams(terminal=terminal) as (out, err):
                view = FilesView(out, err, json=as_json, colour=terminal, live=terminal, total=2)
                view.folder, view.book = Path("runs") / "r", ReceiptBook(None, SETTING, dict)
                for event in events:
                    if isinstance(event, Judged):
                        view.keep(event.attempt_id, word, Update(), event.verdict, "judged")
                    view(event)
                if not as_json:
                    print_verification(verified, standard_page(colour=True))
            line = Shown(0, out.text(), err.text().replace("\r\x1b[K", "") if terminal else err.text())
            assert_plain(line, terminal=terminal)
            assert len([json.loads(line) for line in out.text().splitlines() if as_json]) == 3 * as_json
        json.loads(json.dumps(verification_json(verified)))

    holds()


@EXAMPLES
@given(WORDS)
def test_a_text_is_one_word_for_a_shell_which_obeys_nothing_in_it(word: str) -> None:
    assert shlex.split(shell_word(word)) == [one_line(word)]


def test_a_command_to_paste_holds_a_strange_run_s_id_as_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = each(tmp_path)

    @EXAMPLES
    @given(NAMES)
    def holds(name: str) -> None:
        runs, run_id = next(folders) / "runs", f"{name.encode(errors='replace').decode()}; $(id) `id` '"
        with Store.open(runs) as store:
            for event in hostile("w", run_id=run_id):
                store.write(event)
        monkeypatch.setenv("KERNELTUNE_RUNS_DIR", str(runs))
        first_page, watched = optimize(), optimize("watch", "--plain")
        for shown in (first_page, watched, optimize("runs"), optimize("__complete", "show", "")):
            assert not RAW.search(shown.out.replace("\x1fbegin", "")), shown.out
        commands = re.findall(
            "(optimize (?:show|watch|--resume) .*?)(?: --speed 10)?(?:   *[a-z].*)?$",
            first_page.out + watched.out,
            re.MULTILINE,
        )
        assert len(commands) >= 3
        for command in commands:
            assert shlex.split(command)[2:] == [one_line(run_id)], command

    holds()


TASK = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return x + 1
def get_inputs():
    return [torch.rand(4)]
def get_init_inputs():
    return []
"""


def test_a_task_file_s_name_is_one_plain_word_whatever_the_file_is_called(tmp_path: Path) -> None:
    folders = each(tmp_path)

    @EXAMPLES
    @given(NAMES)
    def holds(name: str) -> None:
        path = next(folders) / f"{name.encode(errors='replace').decode()}.py"
        path.write_text(TASK)
        found = find_task(str(path)).name
        assert re.fullmatch(r"[\w+][\w.+-]*", found)
        assert shell_word(found) == found or not found.isascii()
        assert is_plain(found)

    holds()
    (tmp_path / "23_Softmax-v1.2.py").write_text(TASK)
    assert find_task(str(tmp_path / "23_Softmax-v1.2.py")).name == "23_Softmax-v1.2"


def test_a_task_that_is_written_from_a_file_holds_its_name_as_a_comment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = each(tmp_path)

    @EXAMPLES
    @given(NAMES)
    def holds(name: str) -> None:
        folder = next(folders)
        own, made = folder / f"{name.encode(errors='replace').decode()}.py", folder / "made.py"
        own.write_text("import torch\n\ndef f(x):\n    return torch.exp(x)\n")
        assert_plain(optimize("init", f"{own}:f", "-o", str(made), "--no-check"))
        source = made.read_text()
        assert not RAW.search(source)
        assert not [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name) and n.id == FORGED]

    holds()
