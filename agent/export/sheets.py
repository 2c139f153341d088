"""One file of rows, JSONL or Parquet, written in batches. Memory holds one batch.

Parquet needs pyarrow, JSONL nothing. The columns of kind `json` and `messages` are Arrow's JSON type in Parquet, which
`datasets` gives back as the values that they were; pandas and DuckDB see JSON texts.
"""

import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from agent.export.base import Column, Row
from tools.codec import Json
from tools.errors import UsageError

Form = Literal["parquet", "jsonl"]
_BATCH_ROWS = 2_000
_BATCH_CHARACTERS = 16 << 20  # of a conversation, a few rows; of a kernel, all of the 2,000


@dataclass(frozen=True)
class Written:
    """A finished file: its rows and its size."""

    path: Path
    rows: int
    bytes: int


class Sheet(Protocol):
    """A file that takes rows. A row has a value for each column, or lacks it, which is null."""

    def add(self, row: Row) -> None:
        """Append a row."""
        ...

    def close(self) -> Written:
        """Write what is left."""
        ...


def form_or_default(form: Form | None) -> Form:
    """Parquet where it can be written, otherwise JSONL. Raises UsageError when Parquet is asked for and cannot be."""
    found = importlib.util.find_spec("pyarrow") is not None
    if form == "parquet" and not found:
        raise UsageError("Parquet needs the extra: pip install 'kerneltune[export]'; or give --as jsonl")
    return form or ("parquet" if found else "jsonl")


def open_sheet(path: Path, columns: Sequence[Column], form: Form) -> Sheet:
    """Start a file of these columns."""
    return ParquetSheet(path, columns) if form == "parquet" else JsonlSheet(path, columns)


def json_writer() -> Callable[[Json], bytes]:
    """Compact JSON in UTF-8; by orjson where it is installed, which is ten times as fast."""
    if importlib.util.find_spec("orjson") is not None:
        import orjson

        return orjson.dumps
    return lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class JsonlSheet:
    """One JSON object a line, keys in the order of the columns."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._path, self._names = path, [c.name for c in columns]
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)
        self._dumps = json_writer()
        self._rows = 0

    def add(self, row: Row) -> None:
        """Append a row."""
        self._file.write(self._dumps({name: row.get(name) for name in self._names}) + b"\n")
        self._rows += 1

    def close(self) -> Written:
        """Write what is left."""
        self._file.close()
        return Written(self._path, self._rows, self._path.stat().st_size)


class ParquetSheet:
    """Arrow types by the kind of each column; zstd."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pa.set_cpu_count(1)  # exports write several files side by side, each from a process of its own
        self._pa, self._path, self._dumps = pa, path, json_writer()
        self._json = [c.kind in ("json", "messages") for c in columns]
        self._names = [c.name for c in columns]
        self._schema = pa.schema([pa.field(c.name, _arrow_type(pa, c)) for c in columns])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows = 0
        self._begin()

    def _begin(self) -> None:
        self._batch: list[list[Any]] = [[] for _ in self._names]
        self._characters = 0

    def add(self, row: Row) -> None:
        """Append a row."""
        for values, name, is_json in zip(self._batch, self._names, self._json, strict=True):
            value = row.get(name)
            if is_json and value is not None:
                value = self._dumps(value)
            if isinstance(value, str | bytes):
                self._characters += len(value)
            values.append(value)
        self._rows += 1
        if len(self._batch[0]) >= _BATCH_ROWS or self._characters >= _BATCH_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        arrays = [
            self._array(values, field.type, is_json)
            for values, field, is_json in zip(self._batch, self._schema, self._json, strict=True)
        ]
        self._writer.write_table(self._pa.Table.from_arrays(arrays, schema=self._schema))
        self._begin()

    def _array(self, values: list[Any], kind: Any, is_json: bool) -> Any:
        if is_json:
            texts = self._pa.array(values, self._pa.binary()).cast(self._pa.string())
            return self._pa.ExtensionArray.from_storage(kind, texts)
        return self._pa.array(values, kind)

    def close(self) -> Written:
        """Write what is left."""
        if self._batch[0]:
            self._flush()
        self._writer.close()
        return Written(self._path, self._rows, self._path.stat().st_size)


def _arrow_type(pa: Any, column: Column) -> Any:
    if column.kind in ("struct", "structs"):
        record = pa.struct([pa.field(c.name, _arrow_type(pa, c)) for c in column.fields])
        return record if column.kind == "struct" else pa.list_(record)
    return {
        "text": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "json": pa.json_(),
        "messages": pa.json_(),
        "texts": pa.list_(pa.string()),
    }[column.kind]
