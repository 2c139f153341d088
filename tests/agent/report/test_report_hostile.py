"""Every word of a model, a candidate or another machine is hostile until it is text."""

import base64
import hashlib
import json
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent.commands.report import write_report
from kerneltune.agent.events import Event, Replied, RunStarted
from kerneltune.agent.export.privacy import PrivateNames
from kerneltune.agent.record.folder import receipt_path
from kerneltune.agent.record.store import Store
from kerneltune.agent.report.page import run_page
from kerneltune.agent.report.suite import suite_page
from kerneltune.agent.report.text import MOST_OF_A_SOURCE, Sanitizer, diff, source
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import StoreError
from kerneltune.tools.schema.verdict import Timing
from tests.agent.record.samples import arbitrary_run
from tests.agent.report.made import GPU, RUN, SANITIZER, correct, events, hostile, material, receipt
from tests.agent.report.reading import SCRIPT, Reading
from tests.agent.shell import optimize

WORDS = [
    "</style></title></pre><script>alert(1)</script>",
    '"><img src=http://evil.example/x onerror=alert(1)>',
    "<svg onload=alert(1)><style>*{display:none}</style></svg>",
    "<a href=javascript:alert(1)>click</a> javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}${7*7}",
    "\x1b[31mred\x1b]0;title\x07\x1b[2J",
    "lone \ud800 surrogate \udfff",
    "right\u202eto left\u2066 marks\u200f",
    "nul\0 bell\a \x85\u2028line ends\x9b1m",
    "]]><!--<!DOCTYPE html><frameset>&lt;script&gt;&#60;script&#62;",
    "]]>" * 40 + "é漢🦀" * 50,
]
BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


def told(word: str) -> Json:
    """A receipt that says it everywhere."""
    made = json.loads(json.dumps(receipt(f"{RUN}/1")).replace('"2026-11-21T09:31:00+00:00"', json.dumps(word)))
    made["protocol"] = {"version": word, "evaluator_sha256": word}
    made["where"] = {"sandbox": {word: {"landlock_abi": word, "seccomp": True}}, "warnings": [word]}
    made["task"] = {"precision": word, "cases": [{"bytes_moved": 1 << 20, "flops": 1 << 20}]}
    made["evidence"]["protocol"] = word
    made["evidence"]["processes"][0]["rounds"][0][word] = [1.0, 2.0]
    return made


def page(made: list[Event], told: Json = None) -> str:
    return run_page(material(made, told), SANITIZER, version="1")


@pytest.mark.parametrize("word", WORDS)
def test_hostile_words_stay_words(word: str) -> None:
    html = page(hostile(word), told(word))
    read = Reading(html)
    assert read.problems == []
    assert not BAD.search(html)
    assert html.encode()  # no surrogate is left
    assert [link for link in read.links if not re.fullmatch(r"#[a-z0-9-]+", link)] == []
    assert set(read.links) - {f"#{name}" for name in read.ids} == set()


@pytest.mark.parametrize("word", WORDS[:4])
def test_hostile_words_are_still_there_to_be_read(word: str) -> None:
    assert Reading(page(hostile(word))).text.count(word) > 10


@pytest.mark.parametrize("word", WORDS)
def test_a_suite_of_hostile_runs_is_text_too(word: str) -> None:
    html = suite_page([material(hostile(word), told(word))] * 3, SANITIZER, version="1", chosen="named")
    assert Reading(html).problems == []
    assert not BAD.search(html)


def test_the_policy_forbids_the_network_and_every_other_script_and_style() -> None:
    html = page(events())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert policy is not None
    assert style is not None
    ours, copies = (base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (style[1], SCRIPT))
    assert policy[1].replace("&#39;", "'") == (
        f"default-src 'none'; style-src 'sha256-{ours}'; script-src 'sha256-{copies}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert Reading(html).problems == []
    assert not re.search(r"url\(|@import|https?:", html)


def test_five_megabytes_of_source_are_cut_and_that_is_said() -> None:
    html = page(hostile("plain", source="x = '<b>'\n" * 500_000))
    assert len(html) < 1_000_000
    assert f"{5_000_000 - MOST_OF_A_SOURCE:,} characters more are not shown here" in html


def test_one_line_of_five_megabytes_is_cut_too() -> None:
    html = page(hostile("x" * 5_000_000))
    assert len(html) < 2_000_000
    assert Reading(html).problems == []


def test_a_source_is_coloured_without_losing_a_character() -> None:
    text = 'def f(x: "<b>") -> None:  # <i>\n\treturn f"&{x!r}" + \'é\' * 0x1f\n@dec\nclass A: ...'
    assert Reading(f"<pre>{source(text, SANITIZER).markup}</pre>").text == text


def with_machine(made: list[Event], machine: dict[str, Json]) -> list[Event]:
    return [replace(e, machine=machine) if isinstance(e, RunStarted) else e for e in made]


def test_home_folders_hosts_users_and_keys_are_taken_out() -> None:
    secret = "sk-ant-REDACTED" + "b" * 20
    word = f"/home/adalovelace/x.py on babbage-01 by adalovelace with {secret}"
    shown = Sanitizer(PrivateNames(frozenset({"babbage-01"}), frozenset({"adalovelace"})))
    html = run_page(material(hostile(word), told(word)), shown, version="1")
    assert not re.search("adalovelace|babbage|sk-ant", html)
    assert "&lt;home&gt;" in html


def test_a_key_that_is_cut_in_half_leaves_no_half() -> None:
    assert "sk-ant" not in SANITIZER.text("x" * 95 + " sk-ant-REDACTED" + "c" * 30, 110)


def test_the_command_takes_out_names_that_the_record_gives_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = with_machine(hostile("on babbage-01"), {"host": "babbage-01", "task_path": "/home/adalovelace/t/softmax.py"})
    with Store.open(tmp_path) as store:
        for event in made:
            store.write(event)
    assert write_report((RUN,), tmp_path) == 0
    html = (tmp_path / RUN / "report.html").read_text()
    assert not re.search("babbage|adalovelace", html + "".join(capsys.readouterr().err))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"attempt_id": 7}', "[" * 100_000, '{"attempt_id": "other/1"}']
)
def test_a_damaged_receipt_is_said_to_be_missing(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(tmp_path) as store:
        for event in events([(None, correct(80.0))], gpu=GPU):
            store.write(event)
    path = receipt_path(tmp_path / RUN, f"{RUN}/1")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    write_report((RUN,), tmp_path, output=tmp_path / "out.html")
    html = (tmp_path / "out.html").read_text()
    assert re.search(r"The receipt of attempt 1 (cannot be read|is of another attempt)", html)
    capsys.readouterr()


def test_a_run_whose_id_leads_elsewhere_writes_nothing_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, strange = tmp_path / "a" / "runs", "../../elsewhere"
    with Store.open(runs) as store:
        for event in events(run_id=strange):
            store.write(event)
    assert write_report(("../../else",), runs) in (0, 2)
    done = optimize("--resume", strange, "--plain", "--runs-dir", str(runs), cwd=tmp_path)
    assert (done.returncode, "has no folder of its own here" in done.stderr) == (2, True)
    assert not (tmp_path / "elsewhere").exists()
    capsys.readouterr()


def test_of_a_long_error_the_beginning_and_the_end_are_shown() -> None:
    told = SANITIZER.ends("line 12: at 5:8:\n" + "x = 1\n" * 100 + 'AttributeError("no expo")', 80)
    assert told.startswith("line 12: at 5:8: x = 1")
    assert told.endswith('AttributeError("no expo")')
    assert len(told) <= 80


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_record_holds_makes_a_page(seed: int) -> None:
    made = [replace(e, calls=[]) if isinstance(e, Replied) else e for e in arbitrary_run(seed)]
    html = page(made)
    assert Reading(html).problems == []
    assert not BAD.search(html)


@pytest.mark.parametrize("us", [1e-300, 6e23, -1.5, 0.0, float("inf"), float("nan")])
def test_times_that_cannot_be_are_not_drawn(us: float) -> None:
    timing = Timing(us, us, us, 1, 1)
    html = page(events([(None, correct(80.0)), (1, replace(correct(70.0), timing=timing, sol_fraction=us))]))
    assert not re.search(r'[ "][-+]?(nan|inf)\b', html.split("<svg", 1)[1].split("All attempts")[0])


def stored(folder: Path) -> Path:
    with Store.open(folder) as store:
        for event in events():
            store.write(event)
    return folder


def test_a_pipe_stays_a_pipe_and_its_reader_gets_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, pipe, got = stored(tmp_path / "runs"), tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    assert write_report((RUN,), runs, output=pipe) == 0
    reader.join(10.0)
    assert got
    assert got[0].endswith("</html>\n")
    assert pipe.is_fifo()
    capsys.readouterr()


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = stored(tmp_path / "runs")
    for name, target in (("link", "real.html"), ("null", "/dev/null")):
        (tmp_path / name).symlink_to(target)
        assert write_report((RUN,), runs, output=tmp_path / name) == 0
        assert (tmp_path / name).is_symlink()
    assert (tmp_path / "real.html").read_text().endswith("</html>\n")
    assert Path("/dev/null").is_char_device()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(StoreError, match="cannot be written"):
        write_report((RUN,), runs, output=tmp_path / "circle")
    capsys.readouterr()


def test_stdout_by_its_name_is_stdout(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert write_report((RUN,), stored(tmp_path), output=Path("/dev/stdout")) == 0
    out = capsysbinary.readouterr().out
    assert out.startswith(b"<!doctype html>")
    assert out.endswith(b"</html>\n")


@pytest.mark.parametrize("blank", [" \n", "\t\n", "\u00a0\n", "  \n\n", " \n" * 3 + "u\n"])
def test_a_source_of_blank_lines_does_not_hold_up_its_lexer(blank: str) -> None:
    """The time grew with the square of the lines."""
    started = time.monotonic()
    assert source("x=1\n" + blank * 30_000 + "y", SANITIZER).lines > 1000
    assert time.monotonic() - started < 10.0


class Counted(Sanitizer):
    """Says how many characters it was given to search for secrets."""

    def __init__(self) -> None:
        super().__init__(PrivateNames())
        self.given = 0

    def text(self, text: str, most: int = 20_000) -> str:
        """The same."""
        self.given += len(text)
        return super().text(text, most)


def test_what_will_not_be_shown_is_not_searched_for_secrets() -> None:
    shown = Counted()
    diff("x\n" * 40_000, "a" * 5_000_000, shown)
    assert shown.given < 100_000
    shown = Counted()
    assert len(source("b" * 1_000_000 + "\n" + "c" * 1_000_000, shown).markup) < 5_000
    assert shown.given < 20_000


def test_a_difference_of_long_sources_says_what_was_not_compared() -> None:
    assert diff("x = 1\n" * 300, "y = 1\n" * 300 + "#" * 200_000, SANITIZER).left_out >= 140_000
