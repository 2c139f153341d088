"""`optimize export` as a person runs it: what comes out, what a reader gets, and what happens when things go wrong."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.attempt import LlmTurn, Origin, RunStart, SearchPoint
from kerneltune.agent.events import Event, Judged, Proposed, Reflected, RunEnded, RunStarted, Verified
from kerneltune.agent.export.base import FORMATS, format_class
from kerneltune.agent.record.store import FILE_NAME, Store
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.made_runs import run, source, tried
from tests.agent.random_runs import RunMaker
from tests.agent.shell import command, env, optimize

datasets = pytest.importorskip("datasets")
RUNS, ATTEMPTS = 12, 10
BARE = [name for name in FORMATS if format_class(name).bare]
LOADED = [name for name in FORMATS if name not in BARE]


def stored(folder: Path, runs: range = range(RUNS)) -> Path:
    """A runs directory with made-up runs of several authors, tasks and machines."""
    with Store.open(folder) as store:
        for index in runs:
            store.write_all(RunMaker(index, seed=7, attempts=ATTEMPTS).events())
    return folder


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def long_runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So many runs that an export can be stopped on its way."""
    return stored(tmp_path_factory.mktemp("long"), range(30))


def export(runs_dir: Path, output: Path, *flags: str, code: int = 0, **options: Any) -> dict[str, Any]:
    """Run it with --json; its answer, or {} when it gave none."""
    flags = ("--runs-dir", str(runs_dir), "-o", str(output), *flags)
    done = optimize("export", *flags, "--json", cwd=output.parent, **options)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    return json.loads(done.stdout) if done.stdout else {}


def formats(*names: str) -> list[str]:
    return [part for name in names for part in ("--format", name)]


@pytest.fixture(scope="module")
def everything(runs_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One export of all formats."""
    output = tmp_path_factory.mktemp("everything") / "out"
    more = ("--reward", "kevin", "--reward", "proven", "--test", "0.5", "--seed", "2")
    return output, export(runs_dir, output, *formats(*FORMATS), *more)


def loaded(output: Path, name: str, cache: Path) -> Any:
    return datasets.load_dataset(str(output), name, cache_dir=str(cache))


@pytest.mark.parametrize("name", LOADED)
def test_a_folder_is_loaded_by_the_name_of_a_format(
    everything: tuple[Path, dict[str, Any]], name: str, tmp_path: Path
) -> None:
    output, told = everything
    found = loaded(output, name, tmp_path)
    assert {split: rows.num_rows for split, rows in found.items()} == told["rows"][name]
    row = next(iter(found.values()))[0]
    assert row["run_id"]
    assert row["schema_version"] == 1
    assert row["source_terms"]
    assert row["split"] in told["rows"][name]


@pytest.mark.parametrize("name", BARE)
def test_a_row_that_may_hold_no_more_has_its_origin_in_the_same_line_beside(
    everything: tuple[Path, dict[str, Any]], name: str
) -> None:
    output, told = everything
    for split, rows in told["rows"][name].items():
        beside = sorted((output / "provenance" / name).glob(f"{split}-*"))
        assert sum(_rows_of(path) for path in beside) == rows
        files = sorted((output / "data" / name).glob(f"{split}-*.jsonl"))
        assert sum(len(path.read_bytes().splitlines()) for path in files) == rows


def _table(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def _rows_of(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def test_no_task_is_in_two_splits(everything: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    found = loaded(everything[0], "rl-turns", tmp_path)
    assert set(found) == {"train", "test"}
    assert not set(found["train"]["family"]) & set(found["test"]["family"])
    assert not set(found["train"]["task_sha256"]) & set(found["test"]["task_sha256"])


def test_an_unknown_time_is_null_and_never_zero(everything: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    found = loaded(everything[0], "kto", tmp_path)
    rows = [row for split in found.values() for row in split.to_list()]
    untimed = [row for row in rows if row["status"] == "checked"]
    assert untimed
    assert {(row["speedup"], row["median_us"], row["faster"], row["reward_kevin"]) for row in untimed} == {
        (None, None, None, None)
    }


def test_the_card_counts_what_is_there(everything: tuple[Path, dict[str, Any]]) -> None:
    output, told = everything
    card = (output / "README.md").read_text()
    assert f"| attempts | {RUNS * ATTEMPTS} |" in card
    for name, splits in told["rows"].items():
        assert f"| `{name}` |" in card
        assert f" {splits.get('train', 0):,} " in card


def test_the_manifest_s_hashes_are_those_of_the_files(everything: tuple[Path, dict[str, Any]]) -> None:
    import hashlib

    output, told = everything
    files = told["manifest"]["files"]
    assert {f["path"]: f["sha256"] for f in files} == {
        f["path"]: hashlib.sha256((output / f["path"]).read_bytes()).hexdigest() for f in files
    }


def test_filters_choose_rows_and_a_filter_that_nothing_passes_writes_nothing(runs_dir: Path, tmp_path: Path) -> None:
    told = export(runs_dir, tmp_path / "some", *formats("convert"), "--where", "speedup>=1.1", "--as", "jsonl")
    files = list((tmp_path / "some" / "data" / "convert").glob("*.jsonl"))
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert rows
    assert min(row["speedup"] for row in rows) >= 1.1
    assert told["filtered"]["convert"] > 0
    none = export(runs_dir, tmp_path / "none", *formats("convert"), "--where", "speedup>=1000", code=1)
    assert none["rows"] == {}
    assert not (tmp_path / "none").exists()


def test_rejection_sampling_drops_right_attempts_whose_kernels_do_little(runs_dir: Path, tmp_path: Path) -> None:
    told = export(
        runs_dir, tmp_path / "out", *formats("kto"), "--rejection-sampling", "tau=0.9,s=none", "--as", "jsonl"
    )
    files = (tmp_path / "out" / "data" / "kto").glob("*.jsonl")
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert told["filtered"]["kto"] > 0
    assert min(row["coverage"] for row in rows if row["timed"]) >= 0.9
    assert {row["label"] for row in rows} == {True, False}


def test_only_first_of_near_duplicates_are_compared(runs_dir: Path, tmp_path: Path) -> None:
    told = export(runs_dir, tmp_path / "out", *formats("kto"), "--where", "near_first=true", "--as", "jsonl")
    files = (tmp_path / "out" / "data" / "kto").glob("*.jsonl")
    ids = [json.loads(line)["near_id"] for path in files for line in path.read_text().splitlines()]
    assert ids
    assert len(set(ids)) == len(ids)
    assert told["filtered"]["kto"] > 0


def test_a_task_that_is_a_benchmark_s_problem_is_for_testing_only(runs_dir: Path, tmp_path: Path) -> None:
    from kerneltune.tools.task.load import builtin_tasks

    (tmp_path / "problems").mkdir()
    made = RunMaker(0, seed=7).task  # a built-in one, or a variant of it
    task = next(t for t in builtin_tasks() if made.startswith(t.name))
    shutil.copy(task.path, tmp_path / "problems" / "23_Problem.py")
    export(runs_dir, tmp_path / "out", *formats("kto"), "--leak-check", str(tmp_path / "problems"), "--as", "jsonl")
    files = (tmp_path / "out" / "data" / "kto").glob("*.jsonl")
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert {row["split"] for row in rows if row["leaked"] == "23_Problem"} == {"test"}
    assert {row["split"] for row in rows if row["task"].startswith(task.name)} == {"test"}
    assert "train" in {row["split"] for row in rows if row["leaked"] is None}


def rows_of(output: Path, name: str) -> list[dict[str, Any]]:
    files = sorted((output / "data" / name).glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_what_is_asked_for_moves_no_task_to_another_split(runs_dir: Path, tmp_path: Path) -> None:
    flags = (*formats("kto"), "--as", "jsonl", "--test", "0.5", "--seed", "2")
    export(runs_dir, tmp_path / "all", *flags)
    splits = {row["task"]: row["split"] for row in rows_of(tmp_path / "all", "kto")}
    assert set(splits.values()) == {"train", "test"}
    for i, task in enumerate(splits):
        export(runs_dir, tmp_path / str(i), *flags, "--task", task)
        assert {row["split"] for row in rows_of(tmp_path / str(i), "kto")} == {splits[task]}


def test_the_card_counts_what_the_sampling_left(runs_dir: Path, tmp_path: Path) -> None:
    told = export(runs_dir, tmp_path / "out", *formats("sft-best"), "--rejection-sampling", "tau=0.9,s=none")
    counted = re.search(r"^\| attempts \| ([\d,]+) \|$", (tmp_path / "out" / "README.md").read_text(), re.MULTILINE)
    assert counted is not None
    assert 0 < int(counted[1].replace(",", "")) < RUNS * ATTEMPTS
    assert told["rows"]["sft-best"]
    assert told["filtered"]["sft-best"] == 0  # the best of those that are left


def test_the_command_in_the_card_makes_the_same_rows_and_holds_no_secret(runs_dir: Path, tmp_path: Path) -> None:
    import shlex

    where = ("--where", "author!=chat:/home/margaret/m", "--where", "model!=margaret@apollo.example.com")
    told = export(runs_dir, tmp_path / "out", *formats("kto"), "--as", "jsonl", "--test", "0.125", *where)
    text = "".join(p.read_text() for p in (tmp_path / "out").glob("*.*"))
    assert "margaret" not in text
    again = shlex.split(told["manifest"]["command"])
    assert again[:2] == ["optimize", "export"]
    done = optimize(*again[1:], "--overwrite", "--runs-dir", str(runs_dir), "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["rows"] == told["rows"]


@pytest.mark.parametrize("name", ["kto", "convert", "fix", "dpo", "rl-turns", "raw"])
def test_a_model_s_words_in_a_run_of_the_search_keep_the_model_s_terms(name: str, tmp_path: Path) -> None:
    """A search began with a model's kernel, which failed there; another made the same in another language."""
    sketch, start = SearchPoint("x"), RunStart("talked/1")
    cuda = source("the search's") + '\nfrom kerneltune import CudaKernel\n\nkernel = CudaKernel("void k() {}")\n'
    its: dict[str, list[tuple[Status, Origin, str | None, str]]] = {
        "talked": [(Status.CHECKED, LlmTurn("1", 1), None, source("claude's"))],
        "began": [
            (Status.WRONG, start, "talked/1", source("claude's")),
            (Status.CHECKED, sketch, "began/1", source("the search's")),
        ],
        "other": [(Status.CHECKED, sketch, None, cuda)],
    }
    with Store.open(tmp_path / "runs") as store:
        for run_id, attempts in its.items():
            store.write(replace(run(run_id=run_id).run, author="anthropic:claude" if run_id == "talked" else "offline"))
            for number, (status, origin, parent, text) in enumerate(attempts, 1):
                proposed, *judged = tried(number, status, parent, run_id=run_id)
                store.write_all([replace(proposed, source=text, origin=origin), *judged])  # type: ignore[arg-type]
    export(tmp_path / "runs", tmp_path / "out", *formats(name), "--as", "jsonl")
    found = rows_of(tmp_path / "out", name)
    assert {row["source_terms"] for row in found if "claude" in json.dumps(row)} == {"anthropic-commercial"}
    assert "anthropic-commercial" in (tmp_path / "out" / "README.md").read_text()


def test_a_name_in_a_run_s_id_is_gone_and_ids_still_tell_which_attempt_is_of_which_run(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs") as store:
        for user in ("margaret", "hamilton"):
            run_id = f"{user}-1"
            store.write(replace(run(run_id=run_id).run, machine={"user": user}))
            store.write_all(event for n in (1, 2) for event in tried(n, Status.CHECKED, n - 1 or None, run_id=run_id))
    export(tmp_path / "runs", tmp_path / "out", *formats("rl-turns", "raw"), "--as", "jsonl")
    text = "".join(path.read_text() for path in (tmp_path / "out").rglob("*.*l*"))
    assert not re.search("margaret|hamilton", text)
    turns = rows_of(tmp_path / "out", "rl-turns")
    assert {row["run_id"] for row in turns} == {row["run_id"] for row in rows_of(tmp_path / "out", "raw")}
    assert len({row["attempt_id"] for row in turns}) == 4
    for row in turns:
        assert [row["attempt_id"]] == row["attempts"]
        assert {row["run_id"]} == {name.rpartition("/")[0] for name in (*row["attempts"], *row["parents"])}
    told = export(tmp_path / "runs", tmp_path / "one", *formats("kto"), "--where", "run_id=hamilton-1")
    assert told["rows"]["kto"] == {"train": 2}


def test_where_all_runs_are_in_a_language_of_a_later_version_the_note_says_so(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs") as store:
        store.write(replace(run().run, limits={"language": "tile"}))
    told = export(tmp_path / "runs", tmp_path / "out", *formats("verl"), code=1)
    assert told["notes"] == ["verl: 1 run left out, in languages that this version does not know: tile"]


SECRETS = {
    "key": "sk-ant-api03-Zz9yXw8vUt7sRq6pOn5mLk4jIh3gFe2dCb1a",
    "hub": "hf_QwErTyUiOpAsDfGhJkLzXcVbNm1234567",
    "home": "/home/margaret/kernels",
    "mail": "margaret.hamilton@apollo.example.com",
    "host": "apollo-node-17",
}


def planted(event: Event) -> Event:
    """The event with every secret in every text that a model, a candidate or a compiler can write."""
    said = " ".join(SECRETS.values())
    for name in ("text", "thinking", "rationale", "hypothesis", "prediction", "detail", "source", "why"):
        value = getattr(event, name, None)
        if isinstance(value, str) and not isinstance(value, StrEnum):  # why a run stopped is one of a closed set
            spoken = f"# {said}\n{value}" if name == "source" else f"{value} {said}"
            object.__setattr__(event, name, spoken)
    if hasattr(event, "machine"):
        object.__setattr__(event, "machine", event.machine | {"host": SECRETS["host"]})
    if hasattr(event, "calls"):
        calls = [c | {"arguments": c["arguments"] | {"note": said, "nested": [{said: said}]}} for c in event.calls]
        object.__setattr__(event, "calls", calls)
    if hasattr(event, "raw"):
        object.__setattr__(event, "raw", {"items": [json.dumps({"text": said})], "was": event.raw})
    if verdict := getattr(event, "verdict", None):
        object.__setattr__(verdict, "detail", f"{verdict.detail} {said}")
    return event


def test_no_secret_that_was_planted_is_in_any_file(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs") as store:
        for index in range(6):
            for event in RunMaker(index, seed=3, attempts=6).events():
                store.write(planted(event))
    export(tmp_path / "runs", tmp_path / "out", *formats(*FORMATS), "--as", "jsonl", "--test", "0.3")
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 10
    found = {
        (path.relative_to(tmp_path / "out").as_posix(), name)
        for path in files
        for name, secret in SECRETS.items()
        if secret in (text := path.read_text()) or json.dumps(secret)[1:-1] in text
    }
    assert found == set()


def test_an_export_during_a_run_sees_whole_attempts(tmp_path: Path) -> None:
    runs_dir = stored(tmp_path / "runs", range(4))
    done = threading.Event()

    def go_on() -> None:
        with Store.open(runs_dir) as store:
            for index in range(100, 130):
                for event in RunMaker(index, seed=7, attempts=ATTEMPTS).events():
                    store.write(event)
                    if done.is_set():
                        return

    writer = threading.Thread(target=go_on)
    writer.start()
    try:
        told = export(runs_dir, tmp_path / "out", *formats("kto", "raw", "rl-turns"), "--as", "jsonl")
    finally:
        done.set()
        writer.join()
    assert told["rows"]["kto"]
    for path in (tmp_path / "out" / "data").rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line)


def test_ctrl_c_leaves_nothing(long_runs_dir: Path, tmp_path: Path) -> None:
    arguments = ["export", "--runs-dir", str(long_runs_dir), *formats(*FORMATS), "-o", str(tmp_path / "out")]
    with subprocess.Popen(
        command(*arguments), env=env(), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        for _ in range(600):
            if any(tmp_path.glob("kerneltune-scratch-*")):
                break
            time.sleep(0.05)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert list(tmp_path.iterdir()) == []


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_a_disk_that_takes_no_more_leaves_nothing_half_valid(runs_dir: Path, tmp_path: Path, form: str) -> None:
    flags = ("--runs-dir", str(runs_dir), *formats("raw"), "-o", str(tmp_path / "out"))
    more = ("--as", form)
    with largest_file(33_000):  # stands for a full disk: both are an error of `write`. SQLite needs its 32 KiB
        done = optimize("export", *flags, *more, cwd=tmp_path, cold=True)  # limits are inherited
    assert done.returncode == 3
    assert "too large" in done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("…")]) == 1  # progress is told in time
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--format", "sft-chatt"], "did you mean sft-chat"),
        (["--format", "sft-best:topp=3"], "it has per, top"),
        (["--format", "sft-best:top=many"], "not a whole number"),
        (["--format", "kto", "--format", "kto"], "named twice"),
        (["--format", "kto", "--where", "speeedup>1"], "did you mean speedup"),
        (["--format", "kto", "--where", "speedup>fast"], "fast"),
        (["--format", "kto", "--reward", "kevn"], "kevin"),
        (["--format", "kto", "--task", "cross_entropy_raged"], "did you mean cross_entropy_ragged"),
        (["--format", "kto", "--author", "nobody"], "nobody"),
        (["--format", "kto", "--test", "1.5"], "--test 1.5 and --validation 0"),
        (["--format", "kto:least_speedup=fast"], "least_speedup='fast' is not a number or none"),
        (["--format", "kto", "--leak-check", "nowhere"], "nowhere"),
        (["--format", "kto", "--where", "provider=antropic"], "did you mean anthropic"),
        (["--format", "kto", "--no-duplicates", "--where", "near_first=true"], "leave out --no-duplicates"),
        (["--format", "kto", "--task", "softmaxx", "--task", "rms_norm_ragged"], "no run of task 'softmaxx'"),
        (["--format", "kto", "--rejection-sampling", "tua=0.3"], "it has tau"),
        ([], "format"),
    ],
)
def test_bad_input_is_one_line_that_names_the_value_and_the_way_out(
    runs_dir: Path, tmp_path: Path, flags: list[str], told: str
) -> None:
    done = optimize("export", "--runs-dir", str(runs_dir), *flags, "-o", str(tmp_path / "out"), cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_was_written_a_person_is_told_what_a_row_of_the_format_is(tmp_path: Path) -> None:
    keep(tmp_path / "runs", run().run, *tried(1, Status.CHECKED))  # a search holds no conversation
    done = optimize("export", "--format", "openai", "-o", "out", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "rows of openai: conversations as fine-tuning files of OpenAI's API" in done.stdout


def test_a_place_without_runs_says_how_to_get_some(tmp_path: Path) -> None:
    done = optimize("export", "--format", "kto", "-o", "out", cwd=tmp_path)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "optimize --task softmax" in done.stderr
    with Store.open(tmp_path / "runs"):
        pass
    done = optimize("export", "--format", "kto", "-o", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "no run" in done.stderr


def test_a_damaged_or_newer_database_is_one_line(runs_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / FILE_NAME).write_bytes(b"SQLite format 3\0" + b"\7" * 5000)
    shutil.copytree(runs_dir, tmp_path / "newer")
    with contextlib.closing(sqlite3.connect(tmp_path / "newer" / FILE_NAME)) as database, database:
        database.execute("PRAGMA user_version = 9999")
    for name, told in (("damaged", "malformed|not a database"), ("newer", "newer")):
        done = optimize("export", "--runs-dir", name, "--format", "kto", "-o", "out", cwd=tmp_path)
        assert done.returncode == 2
        assert any(word in done.stderr for word in told.split("|")), done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "out").exists()


def test_a_killed_export_leaves_nothing_that_counts_and_nothing_once_another_was_made(
    long_runs_dir: Path, tmp_path: Path
) -> None:
    arguments = ["export", "--runs-dir", str(long_runs_dir), *formats("raw", "sft-chat"), "-o", str(tmp_path / "out")]
    process = subprocess.Popen(command(*arguments), env=env(), stderr=subprocess.DEVNULL)
    for _ in range(600):
        if list(tmp_path.glob("kerneltune-scratch-*/new/data/*/*")):
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not (tmp_path / "out").exists()
    assert len(list(tmp_path.iterdir())) == 1
    export(long_runs_dir, tmp_path / "out", *formats("kto"))
    assert sorted(path.name for path in (tmp_path / "out" / "data").iterdir()) == ["kto"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_no_label_of_an_export_without_a_gpu_rests_on_a_rank(tmp_path: Path) -> None:
    """Stored ranks, `best` and outcomes of runs that had no clock are turned round: no row changes but for `raw`."""
    rows = []
    for turned in (False, True):
        with Store.open(tmp_path / f"runs{turned}") as store:
            for index in range(8):
                events = RunMaker(index, seed=7, attempts=ATTEMPTS).events()
                store.write_all(without_clock(event, turned=turned) for event in events)
        output = tmp_path / f"out{turned}"
        labels = ("--reward", "kevin", "--reward", "proven", "--reward", "hypothesis", "--reward", "fast_0")
        every = ("sft-chat", "sft-best:top=2", "convert", "dpo", "kto", "rl-turns")
        more = ("openai", "fix", "verl")
        export(tmp_path / f"runs{turned}", output, *formats(*every, *more), *labels, "--as", "jsonl", "--test", "0")
        found = {p.relative_to(output): p.read_text() for p in sorted(output.glob("*/*/*.jsonl"))}
        rows.append(found)
    assert rows[0] == rows[1]
    dpo = [json.loads(line) for path, text in rows[0].items() if path.parts[1] == "dpo" for line in text.splitlines()]
    assert {row["better_by"] for row in dpo} == {"right"}


def without_clock(event: Event, *, turned: bool) -> Event:
    """The event as a machine without a GPU stores it, with a rank, a best and outcomes one way or the other."""
    if isinstance(event, RunStarted):
        return replace(event, gpu=None)
    if isinstance(event, RunEnded):
        return replace(event, best_attempt_id=None)
    if isinstance(event, Reflected):
        return replace(event, outcome="refuted" if turned else "confirmed", evidence={})
    if isinstance(event, Judged | Verified):
        right = event.verdict.status is Status.CORRECT
        status = Status.CHECKED if right else event.verdict.status
        timed: dict[str, Any] = {
            "timing": None,
            "comparisons": (),
            "coverage": None,
            "sol_fraction": None,
            "tier": None,
        }
        key = (float(hash(event.attempt_id) % 97) * (-1 if turned else 1),) if right else ()
        found = replace(event, verdict=replace(event.verdict, status=status, **timed), rank_key=key)
        return replace(found, best=right and turned) if isinstance(found, Judged) else found
    return event


def test_the_tasks_of_few_families_are_all_trained_on_unless_a_share_is_asked_for(tmp_path: Path) -> None:
    # of the built-in tasks softmax is one that a test share of 0.1 takes
    keep(tmp_path / "runs", run().run, *tried(1, Status.CHECKED), *tried(2, Status.WRONG, 1))
    told = export(tmp_path / "runs", tmp_path / "usual", *formats("kto"))
    assert told["rows"] == {"kto": {"train": 2}}
    assert told["notes"] == ["all tasks are in train, for 1 family are too few to hold some out; --test SHARE does so"]
    assert "none is held out" in (tmp_path / "usual" / "README.md").read_text()
    told = export(tmp_path / "runs", tmp_path / "asked", *formats("kto"), "--test", "0.1")
    assert told["rows"] == {"kto": {"test": 2}}
    assert told["notes"] == ["no row of kto is in train; with --test 0 all are"]


def keep(folder: Path, *events: Event) -> None:
    with Store.open(folder) as store:
        for event in events:
            store.write(event)


def test_rows_can_be_chosen_by_the_columns_of_their_format(runs_dir: Path, tmp_path: Path) -> None:
    every = export(runs_dir, tmp_path / "all", *formats("fix"), "--as", "jsonl")
    chosen = export(runs_dir, tmp_path / "some", *formats("fix"), "--as", "jsonl", "--where", "hops=1")
    kept = sum(chosen["rows"]["fix"].values())
    assert 0 < kept < sum(every["rows"]["fix"].values())
    assert chosen["filtered"]["fix"] == sum(every["rows"]["fix"].values()) - kept
    assert {row["hops"] for row in rows_of(tmp_path / "some", "fix")} == {1}
    long = export(runs_dir, tmp_path / "talks", *formats("openai"), "--where", "n_calls>5")
    assert long["rows"]["openai"]
    beside = (row for path in (tmp_path / "talks").rglob("provenance/openai/*") for row in _table(path))
    assert all(row["n_calls"] > 5 for row in beside)
    done = optimize(
        "export", *formats("fix", "kto"), "-o", "x", "--where", "hops=1", "--runs-dir", str(runs_dir), cwd=tmp_path
    )
    assert (done.returncode, "hops is a column of fix, not of kto" in done.stderr) == (2, True), done.stderr


def test_rows_that_a_trainer_reads_tell_how_long_they_are(runs_dir: Path, tmp_path: Path) -> None:
    export(runs_dir, tmp_path / "out", *formats("sft-chat", "sft-best", "dpo", "verl"), "--as", "jsonl")
    for name in ("sft-chat", "sft-best", "dpo", "verl"):
        for row in rows_of(tmp_path / "out", name):
            assert 0 < row["tokens_before"] <= row["tokens"], name
            if name == "sft-best":
                before = sum(len(m["content"]) for m in row["prompt"])
                assert before / 2.3 < row["tokens_before"] < before / 2.3 + 40
                assert row["tokens"] - row["tokens_before"] >= len(row["completion"][0]["content"]) / 2.3


def test_rows_that_say_the_same_have_one_id_and_one_first(tmp_path: Path) -> None:
    again = [
        replace(event, source=f"{event.source}\n# said again {number}\n") if isinstance(event, Proposed) else event
        for number in (2, 3)
        for event in tried(number, Status.CHECKED, what="number 1")
    ]
    keep(tmp_path / "runs", run().run, *tried(1, Status.CHECKED), *again)
    export(tmp_path / "runs", tmp_path / "out", *formats("fim"), "--as", "jsonl")
    made = rows_of(tmp_path / "out", "fim")
    assert len({row["row_exact"] for row in made}) == 1
    assert [row["row_first"] for row in made] == [True, False, False]
    told = export(tmp_path / "runs", tmp_path / "once", *formats("fim"), "--where", "row_first=true")
    assert (told["rows"], told["filtered"]) == ({"fim": {"train": 1}}, {"fim": 2})


def test_an_export_made_anew_in_its_place_is_not_taken_for_the_earlier_one(tmp_path: Path) -> None:
    """`datasets` keeps what it has loaded under the folder's name, and does not look whether the files are others."""
    for number in (1, 2):
        keep(tmp_path / "runs", *(() if number > 1 else (run().run,)), *tried(number, Status.CHECKED))
        export(tmp_path / "runs", tmp_path / "out", *formats("fim", "kto"), "--test", "0", "--overwrite")
        rows = {name: loaded(tmp_path / "out", name, tmp_path / "cache")["train"].num_rows for name in ("fim", "kto")}
        assert rows == {"fim": number, "kto": number}


def test_prompts_and_completions_alone_are_what_a_csv_holds(runs_dir: Path, tmp_path: Path) -> None:
    told = export(runs_dir, tmp_path / "out", *formats("sft-best", "fim"), "--as", "csv", "--test", "0")
    for name in ("sft-best", "fim"):
        found = loaded(tmp_path / "out", name, tmp_path / "cache")["train"]
        assert found.column_names == ["prompt", "completion"]
        assert found.num_rows == told["rows"][name]["train"]
        assert all(row["completion"].strip() for row in found)
    done = optimize("export", *formats("dpo"), "-o", "x", "--as", "csv", "--runs-dir", str(runs_dir), cwd=tmp_path)
    assert (done.returncode, "it is for sft-best, fim, convert, fix, kto" in done.stderr) == (2, True), done.stderr
