"""Every format of attempts, written as an export writes it and read by who reads it; from runs of the command too."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kerneltune.agent.export.base import Feature, Format
from kerneltune.agent.export.files import open_file
from kerneltune.agent.export.kernel_formats import Convert, Dpo, Fim, Fix, Kto, SftBest
from kerneltune.agent.export.rl_formats import RlTurns, Verl
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import Trajectory, trajectory
from kerneltune.tools.schema.verdict import Status
from tests.agent.export.made_runs import H200, rows, run, timed, tried
from tests.agent.shell import ROOT, SOFTMAX, optimize

datasets = pytest.importorskip("datasets")

FORMATS: tuple[Callable[[], Format], ...] = (SftBest, Fim, Convert, Fix, Dpo, Kto, RlTurns, Verl)
MADE = (
    run(tried(1, Status.WRONG), tried(2, timed(90.0), 1), tried(3, timed(50.0), 2), gpu=H200),
    run(tried(1, Status.CRASHED, what="é 核", run_id="r2"), tried(2, Status.CHECKED, 1, run_id="r2"), run_id="r2"),
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    """Two runs of the command on this machine: the search without a model, and a scripted model."""
    folder = tmp_path_factory.mktemp("runs")
    story = ROOT / "tests" / "agent" / "stories" / "softmax.jsonl"
    for more in (("--max-attempts", "2"), ("--model", f"scripted:{story}")):
        done = optimize("--task", SOFTMAX, "--plain", "--runs-dir", "runs", *more, cwd=folder)
        assert done.returncode == 0, done.stderr
    with Store.open(folder / "runs") as store:
        return [trajectory(store.load_events(run_id)) for run_id in store.run_ids()]


def loaded(
    made: Sequence[dict[str, Any]], columns: Sequence[Feature], tmp_path: Path, form: Any
) -> list[dict[str, Any]]:
    """The rows after a way through a file and `load_dataset`."""
    path = tmp_path / f"train.{form}"
    sheet = open_file(path, columns, form)
    for row in made:
        sheet.add(row)
    sheet.close()
    kind = "json" if form == "jsonl" else form
    found = datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert found.column_names == [c.name for c in columns]
    return list(found)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.parametrize("new", FORMATS, ids=lambda new: new.name)
def test_what_is_loaded_is_what_was_made(new: Callable[[], Format], form: str, tmp_path: Path) -> None:
    its = new()
    made = rows(its, *MADE)
    assert made
    assert all(set(row) == {c.name for c in its.columns} for row in made)
    found = loaded(made, its.columns, tmp_path, form)
    assert [_sorted(row) for row in found] == [_sorted(row) for row in made]


def _sorted(row: Any) -> Any:
    """Without the order of keys."""
    return json.loads(json.dumps(row, sort_keys=True))


@pytest.mark.parametrize("new", FORMATS, ids=lambda new: new.name)
def test_runs_of_the_command_make_rows_of_every_format(
    new: Callable[[], Format], stored: list[Trajectory], tmp_path: Path
) -> None:
    its = new()
    made = rows(its, *stored)
    expected = {"sft-best": 1, "fim": None, "convert": 5, "fix": 2, "dpo": 2, "kto": 7, "rl-turns": None, "verl": 1}
    assert len(made) == expected[its.name] or (expected[its.name] is None and len(made) >= 5)
    assert [_sorted(r) for r in loaded(made, its.columns, tmp_path, "parquet")] == [_sorted(r) for r in made]
    text = json.dumps(made)
    assert "prime" not in text  # the held-out case of softmax
    assert "2053" not in text
    if its.name == "fim":
        sources = {a.source for each in stored for a in each.attempts}
        assert {row["prefix"] + row["middle"] + row["suffix"] for row in made} <= sources


def test_a_fix_of_a_real_run_tells_what_the_model_was_told(stored: list[Trajectory]) -> None:
    first, second = rows(Fix(), *stored)
    said = [m.text for m in stored[1].conversations[0].messages if m.role == "tool"]
    for row in (first, second):
        assert any(row["error"] in text for text in said)
    assert (first["status_before"], second["status_before"]) == ("compile_failed", "wrong")
    assert (first["hops"], second["hops"]) == (2, 1)
    assert "+    e = tl.exp(v - tl.max(v, 0))" in first["diff"]


def test_plain_records_are_read_by_pandas_as_they_are(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    made = rows(Verl(), *MADE)
    loaded(made, Verl.columns, tmp_path, "parquet")
    (row,) = pandas.read_parquet(tmp_path / "train.parquet").to_dict("records")
    assert list(row["prompt"]) == made[0]["prompt"]
    assert row["reward_model"] == made[0]["reward_model"]
    assert row["extra_info"].get("index", 0) == 0
    assert row["extra_info"].get("tools_kwargs", {}) == made[0]["extra_info"]["tools_kwargs"]
    assert list(row["extra_info"]["ops"]) == ["torch.softmax"]
