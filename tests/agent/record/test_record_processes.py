"""The record under several processes, and under kill -9. Children are real."""

import signal
import subprocess
import sys
from pathlib import Path

from kerneltune.agent.events import Judged, Proposed, Reflected, Updated
from kerneltune.agent.record.store import Store
from tests.agent.record.samples import attempt

WRITER = """
import sys
from pathlib import Path
from kerneltune.agent.record.store import Store
from tests.agent.record.samples import attempt, started
folder, run_id, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with Store.open(folder) as store:
    store.write(started(run_id))
    for number in range(1, count + 1):
        for event in attempt(number, run_id):
            store.write(event)
            print(number, event.kind, flush=True)
"""


def writer(folder: Path, run_id: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(folder), run_id, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for kill_at in (1, 6, 23):
        run_id = f"killed-at-{kill_at}"
        with writer(tmp_path, run_id, 10_000) as child:
            assert child.stdout is not None
            seen = [child.stdout.readline().split() for _ in range(kill_at)]
            child.send_signal(signal.SIGKILL)
            seen += [line.split() for line in child.stdout if line.endswith("\n")]
        assert child.returncode == -signal.SIGKILL
        with Store.open(tmp_path) as store:
            attempts = [e for e in store.load_events(run_id) if isinstance(e, Proposed | Updated | Judged | Reflected)]
            stored = [(e.attempt_id.partition("/")[2], e.kind) for e in attempts]
            assert stored[: len(seen)] == [tuple(words) for words in seen]
            assert len(stored) <= len(seen) + 1
            assert len(store.attempts(run_id)) == sum(kind == "judged" for _, kind in stored)
            assert len(store.load_trajectory(run_id).attempts) == int(stored[-1][0])


def test_several_processes_make_and_write_one_database_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet?#%20"
    children = {f"run-{i}": writer(folder, f"run-{i}", 40) for i in range(4)}
    for child in children.values():
        child.communicate()
        assert child.returncode == 0
    with Store.open(folder) as store:
        assert sorted(store.run_ids()) == sorted(children)
        for run_id in children:
            assert [a.number for a in store.attempts(run_id)] == list(range(1, 41))


def test_a_reader_sees_what_another_process_has_written_meanwhile(tmp_path: Path) -> None:
    with Store.open(tmp_path) as reader:
        with writer(tmp_path, "other", 3) as child:
            child.communicate()
        assert [e.kind for e in reader.load_events("other")].count("judged") == 3
        again = attempt(4, "other")[0]
        reader.write(again)
        assert not any(isinstance(e, Judged) for e in reader.load_events("other")[-1:])
