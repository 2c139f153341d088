"""Rows of one format as the exporter writes them, for tests that read them with their real consumers."""

from collections.abc import Sequence
from pathlib import Path

from kerneltune.agent.export.base import ExportRow, Feature
from kerneltune.agent.export.files import FileType, open_file


def write_lines(rows: Sequence[ExportRow], path: Path, columns: Sequence[Feature] = ()) -> Path:
    """A row a line."""
    return _write(rows, path, columns, "jsonl")


def write_parquet(rows: Sequence[ExportRow], path: Path, columns: Sequence[Feature]) -> Path:
    """Arrow's types by the kinds of the columns."""
    return _write(rows, path, columns, "parquet")


def _write(rows: Sequence[ExportRow], path: Path, columns: Sequence[Feature], form: FileType) -> Path:
    sheet = open_file(path, columns, form)
    for made in rows:
        sheet.add(made.values)
    sheet.close()
    return path
