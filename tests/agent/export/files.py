"""Rows of one format as the exporter writes them, for tests that read them with their real consumers."""

from collections.abc import Sequence
from pathlib import Path

from agent.export.base import Column, Made
from agent.export.sheets import Form, open_sheet


def write_lines(rows: Sequence[Made], path: Path, columns: Sequence[Column] = ()) -> Path:
    """A row a line."""
    return _write(rows, path, columns, "jsonl")


def write_parquet(rows: Sequence[Made], path: Path, columns: Sequence[Column]) -> Path:
    """Arrow's types by the kinds of the columns."""
    return _write(rows, path, columns, "parquet")


def _write(rows: Sequence[Made], path: Path, columns: Sequence[Column], form: Form) -> Path:
    sheet = open_sheet(path, columns, form)
    for made in rows:
        sheet.add(made.values)
    return sheet.close().path
