"""Databases of several machines become one: nothing lost, nothing doubled, whole runs only."""

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import StopReason
from kerneltune.agent.events import Event, RunEnded, RunResumed, RunStarted, Warned
from kerneltune.agent.record.merge import Merged, merge, opened_other
from kerneltune.agent.record.store import FILE_NAME, Store, read_texts
from kerneltune.tools.schema.errors import StoreError
from tests.agent.record.samples import arbitrary_run, attempt, made_old, started
from tests.agent.record.test_record_processes import writer
from tests.agent.record.test_record_receipts import verified
from tests.agent.record.test_record_runs import lively_run
from tests.agent.shell import ROOT
from tests.tools.schema.test_bounds import bomb

RUNS = [f"20261121-09{n:02}00-softmax-{n:04x}" for n in range(6)]


def machine(folder: Path, *runs: Sequence[Event]) -> Path:
    """A runs directory with these runs; its database."""
    with Store.open(folder) as store:
        for run in runs:
            store.write_all(run)
    return folder / FILE_NAME


def joined(ours: Path, other: Path, *, dry_run: bool = False) -> Merged:
    with Store.open(ours.parent) as store, opened_other(other, ours) as source:
        return merge(store, source, dry_run=dry_run)


def query(path: Path, text: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(text).fetchall()


def content(path: Path) -> dict[str, list[Event]]:
    with Store.open(path.parent) as store:
        return {run_id: store.load_events(run_id) for run_id in store.run_ids()}


def by_run(path: Path) -> dict[str, Any]:
    """Where each run stands."""
    with Store.open(path.parent) as store:
        return {run.run_id: run for run in store.runs()}


def strange_run(seed: int, run_id: str) -> list[Event]:
    """An arbitrary run of a task whose name is one."""
    first, *rest = arbitrary_run(seed, run_id)
    assert isinstance(first, RunStarted)
    return [replace(first, task="softmax"), *rest]


def plain_run(run_id: str, attempts: int) -> list[Event]:
    return [started(run_id), *(e for n in range(1, attempts + 1) for e in attempt(n, run_id))]


@pytest.mark.parametrize("demo", ["demo", "demo-ptx"])
def test_a_record_of_an_older_version_comes_whole(tmp_path: Path, demo: str) -> None:
    other, ours = ROOT / "docs" / demo / FILE_NAME, machine(tmp_path)
    found = joined(ours, other)
    assert (len(found.new), found.clashes) == (query(other, "SELECT count(*) FROM runs")[0][0], ())
    assert query(ours, "SELECT count(*) FROM events") == query(other, "SELECT count(*) FROM events")


def test_the_runs_of_three_machines_come_together_and_are_what_they_were(tmp_path: Path) -> None:
    runs = {run_id: strange_run(i, run_id) if i % 2 else lively_run(run_id, i) for i, run_id in enumerate(RUNS)}
    ours = machine(tmp_path / "a", *(runs[r] for r in RUNS[:2]))
    for name, theirs in (("b", RUNS[2:4]), ("c", RUNS[3:])):
        machine(tmp_path / name, *(runs[r] for r in theirs))
    assert joined(ours, tmp_path / "b").new == tuple(RUNS[2:4])
    found = joined(ours, tmp_path / "c" / FILE_NAME)
    assert (found.new, found.same, found.clashes) == (tuple(RUNS[4:]), (RUNS[3],), ())
    assert content(ours) == runs
    assert query(ours, "PRAGMA foreign_key_check") == []
    assert set(by_run(ours)) == set(runs)
    assert by_run(ours) == by_run(machine(tmp_path / "whole", *runs.values()))


def test_merging_again_or_backwards_adds_nothing(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a", lively_run(RUNS[0], 1))
    theirs = machine(tmp_path / "b", lively_run(RUNS[1], 2), strange_run(3, RUNS[2]))
    joined(ours, theirs)
    before = [query(ours, f"SELECT * FROM {name} ORDER BY 1") for name in ("events", "texts", "verdicts")]
    again = joined(ours, theirs)
    assert (again.new, again.extended, again.events, again.attempts) == ((), (), 0, 0)
    assert again.same == (RUNS[1], RUNS[2])
    assert joined(theirs, ours).new == (RUNS[0],)
    assert joined(ours, theirs).events == 0
    after = [query(ours, f"SELECT * FROM {name} ORDER BY 1") for name in ("events", "texts", "verdicts")]
    assert after == before
    assert {r: e for r, e in sorted(content(theirs).items())} == {r: e for r, e in sorted(content(ours).items())}


@pytest.mark.parametrize("seed", range(5))
def test_runs_that_were_copied_at_different_times_end_as_the_longest(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    runs = {r: lively_run(r, seed * 10 + i) for i, r in enumerate(RUNS)}
    cuts = [{r: rng.randint(1, len(e)) for r, e in runs.items()} for _ in range(3)]
    paths = [machine(tmp_path / str(i), *(e[: cut[r]] for r, e in runs.items())) for i, cut in enumerate(cuts)]
    for other in paths[1:]:
        assert joined(paths[0], other).clashes == ()
    assert content(paths[0]) == {r: e[: max(cut[r] for cut in cuts)] for r, e in runs.items()}
    anew = machine(tmp_path / "anew", *content(paths[0]).values())
    assert by_run(anew) == by_run(paths[0])


def test_a_run_that_went_on_differently_on_two_machines_is_left_out_and_the_others_come(tmp_path: Path) -> None:
    common = plain_run(RUNS[0], 2)
    ours = machine(tmp_path / "a", [*common, RunResumed(RUNS[0], 2), *attempt(3, RUNS[0])])
    mine = content(ours)[RUNS[0]]
    machine(
        tmp_path / "b", [*common, RunEnded(RUNS[0], StopReason.ATTEMPTS, 2, 2, None, None, 1.0)], plain_run(RUNS[1], 1)
    )
    found = joined(ours, tmp_path / "b")
    assert (found.new, [c.run_id for c in found.clashes]) == ((RUNS[1],), [RUNS[0]])
    assert "two different runs have this id" in found.clashes[0].why
    assert content(ours)[RUNS[0]] == mine


def test_two_runs_that_share_no_more_than_their_id_are_not_mixed(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a", plain_run(RUNS[0], 1))
    machine(tmp_path / "b", [replace(started(RUNS[0]), at=5.0), *attempt(1, RUNS[0])])
    assert [c.run_id for c in joined(ours, tmp_path / "b").clashes] == [RUNS[0]]
    assert query(ours, "SELECT count(*) FROM events") == [(5,)]


@pytest.mark.parametrize("purpose", ["verify", "unfinished"])
def test_verifications_of_several_machines_are_all_kept(tmp_path: Path, purpose: str) -> None:
    common = [*plain_run(RUNS[0], 1), RunEnded(RUNS[0], StopReason.ATTEMPTS, 1, 1, f"{RUNS[0]}/1", None, 1.0)]
    made = (verified(1, purpose, held=held, at=2e9 + held) for held in (True, False))
    here, there = (replace(event, run_id=RUNS[0], attempt_id=f"{RUNS[0]}/1") for event in made)
    ours = machine(tmp_path / "a", [*common, here])
    theirs = machine(tmp_path / "b", [*common, there])
    assert joined(ours, theirs).extended == (RUNS[0],)
    assert content(ours)[RUNS[0]] == [*common, here, there]
    assert joined(theirs, ours).extended == (RUNS[0],)
    assert content(theirs)[RUNS[0]] == [*common, there, here]
    assert joined(ours, theirs).same == (RUNS[0],)
    with Store.open(tmp_path / "a") as store:
        assert store.runs()[0].verified is (False if purpose == "verify" else None)  # the latest that came


def test_a_dry_run_says_the_same_and_changes_nothing(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a", plain_run(RUNS[0], 1))
    theirs = machine(tmp_path / "b", plain_run(RUNS[0], 1)[:3], lively_run(RUNS[1], 1))
    before = ours.read_bytes()
    told = joined(ours, theirs, dry_run=True)
    assert ours.read_bytes() == before
    assert told == joined(ours, theirs)
    assert told.attempts == 8


def test_a_database_of_an_older_schema_is_converted_in_a_copy_only(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a")
    theirs = machine(tmp_path / "b", lively_run(RUNS[0], 1))
    made_old(theirs)
    with contextlib.closing(sqlite3.connect(theirs)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = theirs.read_bytes()
    assert joined(ours, theirs).new == (RUNS[0],)
    assert theirs.read_bytes() == before
    assert [p for p in tmp_path.glob("*/*") if not p.name.startswith(FILE_NAME)] == []  # no scratch is left
    assert len(by_run(ours)) == 1
    assert joined(ours, theirs).same == (RUNS[0],)


def damaged(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:8192] + b"\xff" * 20_000 + whole[28_192:])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: p.unlink(), "no such file"),
        (lambda p: p.write_bytes(b"not a database\n" * 999), "not a database"),
        (lambda p: p.write_bytes(b""), "not (a database|one) of kerneltune's"),
        (lambda p: p.write_bytes(p.read_bytes()[:50]), "malformed"),
        (damaged, "damaged|malformed"),
    ],
)
def test_what_is_no_whole_database_of_ours_is_one_clear_line(tmp_path: Path, spoil: Any, words: str) -> None:
    ours = machine(tmp_path / "a")
    theirs = machine(tmp_path / "b", *(plain_run(r, 3) for r in RUNS))
    for end in ("-wal", "-shm"):
        Path(f"{theirs}{end}").unlink(missing_ok=True)
    spoil(theirs)
    with pytest.raises(StoreError, match=words) as caught:
        joined(ours, theirs)
    assert "\n" not in str(caught.value)
    assert str(theirs) in str(caught.value)
    assert query(ours, "SELECT count(*) FROM events") == [(0,)]


def test_a_newer_one_one_of_another_program_and_our_own_are_refused(tmp_path: Path) -> None:
    ours, theirs = machine(tmp_path / "a"), machine(tmp_path / "b")
    with contextlib.closing(sqlite3.connect(theirs)) as connection:
        connection.execute("PRAGMA user_version = 999")
        connection.commit()
    with pytest.raises(StoreError, match=r"schema 999, newer than schema \d+ of this kerneltune; upgrade kerneltune"):
        joined(ours, theirs)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreError, match=r"not (a database|one) of kerneltune's"):
        joined(ours, tmp_path / "other.db")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for same in (ours, tmp_path / "a", tmp_path / "link" / FILE_NAME):
        with pytest.raises(StoreError, match="is the database of this runs directory itself"):
            joined(ours, same)
    with pytest.raises(StoreError, match="not a file"):
        joined(ours, Path("/dev/null"))


def test_a_run_with_a_damaged_text_or_a_broken_reference_is_left_out_alone(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a")
    theirs = machine(tmp_path / "b", *(plain_run(r, 2) for r in RUNS[:4]))
    with contextlib.closing(sqlite3.connect(theirs)) as connection:
        of_one = "SELECT receipt_json_ref FROM verdicts WHERE attempt_id = ?"
        connection.execute("UPDATE runs SET task_source_ref = ? WHERE run_id = ?", ("f" * 64, RUNS[2]))
        connection.execute("INSERT INTO texts VALUES (?, ?)", ("e" * 64, b"nonsense"))
        connection.execute("UPDATE attempts SET source_ref = ? WHERE attempt_id = ?", ("e" * 64, f"{RUNS[1]}/2"))
        assert connection.execute(of_one, (f"{RUNS[1]}/2",)).fetchone()
        connection.commit()
    found = joined(ours, theirs)
    assert (found.new, [c.run_id for c in found.clashes]) == ((RUNS[0], RUNS[3]), [RUNS[1], RUNS[2]])
    assert "damaged" in found.clashes[0].why
    assert "the text ffffffffffffffff is missing" in found.clashes[1].why
    assert list(content(ours)) == [RUNS[0], RUNS[3]]


def test_both_databases_may_be_written_meanwhile(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a", plain_run(RUNS[0], 1))
    theirs = machine(tmp_path / "b", *(plain_run(r, 30) for r in RUNS[1:]))
    children = [writer(tmp_path / name, f"live-{name}", 25) for name in ("a", "b")]
    done = threading.Event()
    rounds = 0
    while not done.is_set():
        assert joined(ours, theirs).clashes == ()
        rounds += 1
        if all(child.poll() is not None for child in children):
            done.set()
        for child in children:  # let them go on: their pipes are small
            assert child.stdout is not None
            os.set_blocking(child.stdout.fileno(), False)
            with contextlib.suppress(TypeError, BlockingIOError):  # the second from Python 3.14 on
                child.stdout.read()
    for child in children:
        child.communicate()
        assert child.returncode == 0
    joined(ours, theirs)
    found = content(ours)
    assert sorted(found) == sorted([*RUNS, "live-a", "live-b"])
    assert [len(found[f"live-{name}"]) for name in ("a", "b")] == [101, 101]
    assert found["live-b"] == content(theirs)["live-b"]


MERGER = """
import sys
from pathlib import Path
from kerneltune.agent.record.merge import merge
from kerneltune.agent.record.store import Store
with Store.open(Path(sys.argv[1]).parent) as store:
    merge(store, Path(sys.argv[2]), progress=lambda so_far, events: print(len(so_far.new), flush=True))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_merge_that_is_stopped_leaves_whole_runs_and_goes_on_later(tmp_path: Path, how: signal.Signals) -> None:
    ours = machine(tmp_path / "a")
    ids = [f"{RUNS[0]}{n}" for n in range(60)]
    theirs = machine(tmp_path / "b", *(plain_run(r, 2) for r in ids))
    command = [sys.executable, "-c", MERGER, str(ours), str(theirs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        for _ in range(5):
            child.stdout.readline()
        child.send_signal(how)
        child.stdout.read()
    found = content(ours)
    assert 5 <= len(found) < len(ids)
    assert {len(events) for events in found.values()} == {9}
    assert len(by_run(ours)) == min(len(found), 20)
    assert len(joined(ours, theirs).new) == len(ids) - len(found)
    assert list(content(ours)) == ids


def test_a_database_in_a_folder_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    """Root may write anywhere, so a child without rights tries."""
    theirs = machine(tmp_path / "b", plain_run(RUNS[0], 1))
    ours = machine(tmp_path / "a")
    for path in (tmp_path, tmp_path / "a", ours):
        path.chmod(0o777)
    theirs.chmod(0o444)
    (tmp_path / "b").chmod(0o555)
    code = """
import os, sys
from pathlib import Path
import sqlalchemy.dialects.sqlite.pysqlite
from kerneltune.agent.record.merge import merge, opened_other
from kerneltune.agent.record.store import Store
if os.geteuid() == 0: os.setuid(65534)
with Store.open(Path(sys.argv[1]).parent) as ours, opened_other(Path(sys.argv[2]), ours.path) as source:
    print(len(merge(ours, source).new))
"""
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            with contextlib.suppress(OSError):
                parent.chmod(parent.stat().st_mode | 0o011)
    done = subprocess.run([sys.executable, "-c", code, str(ours), str(theirs)], capture_output=True, text=True)
    (tmp_path / "b").chmod(0o755)
    assert done.stdout == "1\n", done.stderr


def test_a_disk_that_is_full_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    """The limit on the size of a file stands for it."""
    ours = machine(tmp_path / "a", plain_run(RUNS[0], 1))
    theirs = machine(tmp_path / "b", *(plain_run(r, 20) for r in RUNS[1:]))
    shutil.copy(ours, tmp_path / "copy.db")
    code = """
import resource, signal, sys
from pathlib import Path
from kerneltune.agent.record.merge import merge
from kerneltune.agent.record.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    with Store.open(Path(sys.argv[1]).parent) as ours: merge(ours, Path(sys.argv[2]))
except Exception as error: print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(ours), str(theirs)], capture_output=True, text=True)
    assert done.stdout.startswith("StoreError merging "), done.stdout + done.stderr
    assert done.stdout.count("\n") == 1
    found = {run_id: len(events) for run_id, events in content(ours).items()}
    assert found.pop(RUNS[0]) == 5
    assert len(found) < 5
    assert set(found.values()) <= {81}  # a run came whole or not at all
    assert query(ours, "PRAGMA quick_check") == [("ok",)]


def test_a_run_that_came_has_the_number_of_its_first_event(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a", [started(RUNS[0]), Warned(RUNS[0], "no GPU", at=1.0)])
    joined(ours, machine(tmp_path / "b", plain_run(RUNS[1], 1)))
    assert query(ours, "SELECT count(*) FROM runs JOIN events USING (seq) WHERE kind = 'run_started'") == [(2,)]
    assert all(isinstance(events[0], RunStarted) for events in content(ours).values())


def test_a_run_whose_id_leads_out_of_the_folder_is_left_out(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a")
    theirs = machine(tmp_path / "b", plain_run("../../esc/x", 1), plain_run(RUNS[0], 1), plain_run(".git", 1))
    found = joined(ours, theirs)
    assert found.new == (RUNS[0],)
    assert [(c.run_id, c.why) for c in found.clashes] == [
        (run_id, "its id is no name of a folder") for run_id in ("../../esc/x", ".git")
    ]
    assert list(content(ours)) == [RUNS[0]]


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE attempts SET rationale = 'better'",
        "UPDATE cases SET ok = 1 - ok",
        "UPDATE cases SET ok = 1 - ok; ALTER TABLE events DROP COLUMN merged_from; PRAGMA user_version = 3",
    ],
)
def test_an_event_that_is_not_what_its_digest_says_is_left_out_with_its_run(tmp_path: Path, spoil: str) -> None:
    ours = machine(tmp_path / "a")
    theirs = machine(tmp_path / "b", plain_run(RUNS[0], 1))
    with contextlib.closing(sqlite3.connect(theirs)) as connection, connection:
        connection.executescript(spoil)
    found = joined(ours, theirs)
    assert found == joined(ours, theirs, dry_run=True)
    assert (found.new, [c.run_id for c in found.clashes]) == ((), [RUNS[0]])
    assert "is not what its digest says" in found.clashes[0].why
    assert content(ours) == {}


def test_an_event_about_an_attempt_of_another_run_is_left_out_with_its_run(tmp_path: Path) -> None:
    """It would be a verdict on an attempt of ours that whoever sent the record never saw."""
    common = plain_run(RUNS[0], 1)
    ours = machine(tmp_path / "a", common)
    forged = replace(verified(1, "verify", held=False), run_id=RUNS[1], attempt_id=f"{RUNS[0]}/1")
    theirs = machine(tmp_path / "b", common, [started(RUNS[1]), forged])
    found = joined(ours, theirs)
    assert [c.run_id for c in found.clashes] == [RUNS[1]]
    assert f"is about '{RUNS[0]}/1', which is no attempt of this run" in found.clashes[0].why
    with Store.open(tmp_path / "a") as store:
        assert [a.held for a in store.attempts(RUNS[0])] == [None]


def test_a_run_that_came_is_marked_with_the_database_that_it_came_with(tmp_path: Path) -> None:
    common = plain_run(RUNS[0], 1)
    ours = machine(tmp_path / "a", common)
    theirs = machine(tmp_path / "b", [*common, *attempt(2, RUNS[0])], plain_run(RUNS[1], 1))
    assert joined(ours, theirs).extended == (RUNS[0],)
    with Store.open(tmp_path / "a") as store:
        assert [store.merged_from(run_id) for run_id in RUNS[:3]] == [None, str(theirs), None]
    machine(tmp_path / "c")
    joined(tmp_path / "c" / FILE_NAME, ours)
    with Store.open(tmp_path / "c") as store:  # what our mark says counts nowhere else
        assert [store.merged_from(run_id) for run_id in RUNS[:2]] == [str(ours)] * 2


@pytest.mark.parametrize("task", ["../../x", "a/b", "/etc/passwd", ".hidden", "a\nb", ""])
def test_a_task_whose_name_leads_elsewhere_is_left_out(tmp_path: Path, task: str) -> None:
    """A task of the record may have to be written to a file of its name."""
    ours = machine(tmp_path / "a")
    theirs = machine(tmp_path / "b", [started(RUNS[0], task), *attempt(1, RUNS[0])])
    found = joined(ours, theirs)
    assert "is no plain name" in found.clashes[0].why
    assert content(ours) == {}


PEAK = """
import sys
from pathlib import Path
from kerneltune.agent.record.merge import merge, opened_other
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.errors import StoreError

def peak_mib():
    return int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1]) >> 10

ours, *others = map(Path, sys.argv[1:])
begun = peak_mib()
with Store.open(ours) as store:
    for other in others:
        try:
            with opened_other(other, store.path) as source:
                print(merge(store, source).clashes)
        except StoreError as error:
            print(error)
try:
    with Store.open(others[0]) as store:
        print(store.runs())
        print(store.load_events(store.run_ids()[0]))
except StoreError as error:
    print(error)
print(peak_mib() - begun)
"""


def test_a_text_of_three_gib_in_three_mib_is_unpacked_nowhere(tmp_path: Path) -> None:
    """Not when it is merged, as it is or converted from an older schema, nor when it is looked at where it lies."""
    others = [machine(tmp_path / name, plain_run(RUNS[0], 1)) for name in ("now", "older")]
    for path in others:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            where = "sha256 = (SELECT source_ref FROM attempts)"
            connection.execute(f"UPDATE texts SET data = ? WHERE {where}", (bomb(3),))
    made_old(others[1])
    words = [sys.executable, "-c", PEAK, str(tmp_path / "ours"), *(str(path.parent) for path in others)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    merged, converted, _, looked, peak = done.stdout.splitlines()
    assert all("unpacks to more than 268,435,456 bytes" in line for line in (merged, converted, looked))
    assert int(peak) < 700  # MiB: 582 with Python 3.12


def test_many_texts_have_a_bound_together(tmp_path: Path) -> None:
    path = machine(tmp_path, plain_run(RUNS[0], 3))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        addresses = [address for (address,) in connection.execute("SELECT sha256 FROM texts")]
        whole = sum(len(text.encode()) for text in read_texts(connection, addresses, 1 << 30).values())
        assert len(read_texts(connection, addresses, whole)) == len(addresses) > 3
        with pytest.raises(ValueError, match="bytes together"):
            read_texts(connection, addresses, whole - 1)


def test_a_column_that_is_computed_is_refused(tmp_path: Path) -> None:
    """A file of some KiB would hold texts of any size."""
    ours = machine(tmp_path / "a")
    theirs = machine(tmp_path / "b", plain_run(RUNS[0], 1))
    with contextlib.closing(sqlite3.connect(theirs)) as connection, connection:
        connection.execute("ALTER TABLE attempts RENAME COLUMN rationale TO hidden")
        connection.execute("ALTER TABLE attempts ADD COLUMN rationale AS (hex(zeroblob(400000000)))")
    with pytest.raises(StoreError, match="is not a database of kerneltune's"):
        joined(ours, theirs)


def test_a_view_in_the_place_of_a_table_is_refused(tmp_path: Path) -> None:
    ours = machine(tmp_path / "a")
    theirs = machine(tmp_path / "b", plain_run(RUNS[0], 1))
    with contextlib.closing(sqlite3.connect(theirs)) as connection, connection:
        connection.execute("DROP TABLE warnings")
        connection.execute("CREATE VIEW warnings AS SELECT 1 AS seq, 'x' AS text")
    with pytest.raises(StoreError, match="is not a database of kerneltune's"):
        joined(ours, theirs)
