"""Files of rows take what programs and models write."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kerneltune.agent.export.base import FORMATS, Feature, format_class
from kerneltune.agent.export.files import CSV_COLUMNS, FileType, open_file

COLUMNS = (
    Feature("n", "int", ""),
    Feature("text", "text", ""),
    Feature("value", "json", ""),
    Feature("x", "float", ""),
)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_what_no_column_holds_is_null_or_marked_and_the_file_is_whole(tmp_path: Path, form: FileType) -> None:
    sheet = open_file(tmp_path / "f", COLUMNS, form)
    odd = {"x": float("inf"), "n": 2**70, "s": "\ud800"}
    sheet.add({"n": 10**23 if form == "parquet" else 1, "text": "a\ud800b", "value": odd})
    sheet.add({"n": 7, "text": "plain", "x": 0.1})
    sheet.close()
    if form == "parquet":
        rows = pq.read_table(tmp_path / "f").to_pylist()
        assert [row["n"] for row in rows] == [None, 7]
    else:
        rows = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "f").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["a?b", "plain"]
    assert [row["x"] for row in rows] == [None, 0.1]
    value = rows[0]["value"]
    assert (json.loads(value) if isinstance(value, str) else value) == {"x": None, "n": 2**70, "s": "?"}


def test_a_label_goes_into_a_csv_file_with_its_question_and_answer(tmp_path: Path) -> None:
    sheet = open_file(tmp_path / "f", format_class("kto").columns, "csv")
    talk = {name: [{"role": "user", "content": name}] for name in CSV_COLUMNS}
    for label in (True, False):
        sheet.add(talk | {"label": label})
    sheet.close()
    told = (tmp_path / "f").read_text().splitlines()
    assert told == ["prompt,completion,label", "prompt,completion,True", "prompt,completion,False"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_called_what_the_registry_calls_it_and_says_what_its_columns_are(name: str) -> None:
    found = format_class(name)
    assert (found.name, bool(found.about)) == (name, True)
    assert all(column.about for column in found.columns)
