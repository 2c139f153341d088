"""Whatever a jail says can be stored, encoded and shown."""

import contextlib
import json
import random
import re
import sqlite3
import sys
import time
import unicodedata

import pytest

from kerneltune.tools.schema.codec import MOST, one_line, plain
from kerneltune.tools.schema.verdict import CaseResult, KernelReport, Status, Verdict

HOSTILE = {
    "lone surrogates": "\ud800 and \udcff",
    "a window title": "\x1b]0;owned\x07",
    "a cleared screen": "\x1b[2J\x9b31m",
    "a NUL": "before\0after",
    "backspaces": "rm -rf /\x08\x08\x7f",
    "text that runs backwards": "\u202egnp.exe\u2066",
    "lines that are none": "a\r\nb\rc\u2028d\x85e",
    "thirty megabytes": "x" * 30_000_000,
    "thirty megabytes of escapes": "\x1b" * 30_000_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_words_become_short_printable_text_in_no_time(kind: str) -> None:
    started = time.thread_time()
    said = plain(HOSTILE[kind])
    assert time.thread_time() - started < 0.5
    assert len(said) <= MOST
    assert said.encode().decode() == said
    assert all(c.isprintable() or c in "\n\t" for c in said)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_database_takes_any_verdict(kind: str) -> None:
    words = HOSTILE[kind]
    verdict = Verdict(Status.CRASHED, words, (CaseResult("c", "own", False, 2.0, 1.0, words),), variant=words)
    report = KernelReport(words, 1, 0, 0, 0, 0, 4, 3, 1.0, "f" * 64)
    said = [verdict.detail, verdict.variant, verdict.cases[0].detail, report.name]
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("create table told (what text)")
        database.executemany("insert into told values (?)", [(text,) for text in said])
        assert [row[0] for row in database.execute("select what from told")] == said
    assert json.loads(json.dumps(said, ensure_ascii=False).encode()) == said


def test_honest_words_stay_as_they_are() -> None:
    words = "CompilationError: at 12:4\n\tacc = tl.dot(x, y)  # naïve 核 ≤ 3 µs\n    ^"
    assert plain(words) == words


def test_of_a_long_message_beginning_and_end_are_kept() -> None:
    said = plain("begin " + "x" * 5000 + " end")
    assert (said[:6], said[-4:], len(said)) == ("begin ", " end", MOST)


UNSEEN = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e01ef]"
)


def is_plain(text: str) -> bool:
    return all(c.isprintable() or c in "\n\t" for c in text) and not UNSEEN.search(text)


def test_of_all_characters_only_those_that_move_nothing_and_have_a_width_are_left() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    for at in range(0, len(every), 1500):
        once = plain(every[at : at + 1500])
        assert is_plain(once)
        assert plain(once) == once
        assert not any(unicodedata.category(c) in ("Cc", "Cs", "Cf") and c not in "\n\t" for c in once)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_texts_are_made_of_they_end_plain_and_on_one_line_where_that_is_asked(seed: int) -> None:
    draw = random.Random(seed)
    parts = [
        *("\x1b", "[", "]", "31m", "0;", "\x07", "\x1b\\", "\x9b", "\r", "\n", "\t", "\x00", "\ud83d", "\ude80"),
        *("\u202e", "\u200d", "\ufe0f", "\u2028", "a word", "naïve", "核", " ", "\u3000", "\U000e0041"),
    ]
    for _ in range(200):
        text = "".join(draw.choices(parts, k=draw.randrange(60)))
        once, line = plain(text, None), one_line(text)
        assert is_plain(once)
        assert plain(once, None) == once
        assert is_plain(line)
        assert one_line(line) == line
        assert not set("\n\t") & set(line)


def test_an_escape_sequence_without_an_end_hides_nothing_that_follows() -> None:
    assert plain("\x1b]0;title and what was wrong\nnext line") == "0;title and what was wrong\nnext line"
    assert plain("\x1b核 \x1b[核") == "核 核"
    assert plain("a\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x07") == "ared link"
