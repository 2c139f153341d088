"""Whatever a jail says can be stored, encoded and shown."""

import contextlib
import json
import sqlite3
import sys
import time
import unicodedata

import pytest

from kerneltune.tools.schema.codec import MOST, plain
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


def test_plain_words_stay_plain() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    for at in range(0, len(every), 1500):
        once = plain(every[at : at + 1500])
        assert plain(once) == once
        assert not any(unicodedata.category(c) in ("Cc", "Cs", "Cf") and c not in "\n\t" for c in once)
