"""One file of rows, JSONL or Parquet, written in batches. Memory holds one batch."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from agent.export.base import Column, Row
from tools.codec import Json

Form = Literal["parquet", "jsonl"]
_BATCH_ROWS, _BATCH_TALKS = 2_000, 100  # kernels have some 2 kB, conversations a hundred


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


def open_sheet(path: Path, columns: Sequence[Column] | None, form: Form) -> Sheet:
    """Start a file of these columns; None: rows are written as they come, which only JSONL can."""
    if columns is None or form == "jsonl":
        return JsonlSheet(path, columns)
    return ParquetSheet(path, columns)


def dumps(value: Json) -> bytes:
    """Compact JSON in UTF-8. orjson refuses integers beyond 64 bits and lone surrogates: the former are written by
    Python's own encoder, the latter become question marks. Infinities and NaN are null either way."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(encodable(value), ensure_ascii=False, allow_nan=False).encode()


def encodable(value: Json) -> Json:
    """The value with question marks for lone surrogates, and null for what is no finite number."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [encodable(v) for v in value]
    if isinstance(value, dict):
        return {encodable(k): encodable(v) for k, v in value.items()}
    return value


class JsonlSheet:
    """One JSON object a line, keys in the order of the columns, null where a row has none."""

    def __init__(self, path: Path, columns: Sequence[Column] | None) -> None:
        self._path, self._nulls = path, dict.fromkeys(c.name for c in columns or ())
        self._exact = [c.name for c in columns or () if c.kind == "exact"]
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)
        self._rows = 0

    def add(self, row: Row) -> None:
        """Append a row."""
        made = self._nulls | row
        for name in self._exact:
            made[name] = dumps(made[name]).decode()
        self._file.write(dumps(made) + b"\n")
        self._rows += 1

    def close(self) -> Written:
        """Write what is left."""
        self._file.close()
        return Written(self._path, self._rows, self._path.stat().st_size)


class ParquetSheet:
    """Arrow types by the kind of each column; zstd."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        pa.set_cpu_count(1)  # exports write several files side by side, each from a process of its own
        self._path, self._names = path, [c.name for c in columns]
        self._prepared = [_PREPARED.get(c.kind) for c in columns]
        self._schema = pa.schema([pa.field(c.name, arrow_type(c)) for c in columns])
        self._plain = pa.schema([pa.field(c.name, _PLAIN.get(c.kind) or arrow_type(c)) for c in columns])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._most = _BATCH_TALKS if any(c.kind == "messages" for c in columns) else _BATCH_ROWS
        self._rows = 0
        self._batch: list[Row] = []

    def add(self, row: Row) -> None:
        """Append a row."""
        self._batch.append(row)
        self._rows += 1
        if len(self._batch) == self._most:
            self._flush()

    def _flush(self) -> None:
        columns = zip(self._names, self._prepared, self._plain.types, strict=True)
        arrays = [_array(_values(self._batch, name, prepare), kind) for name, prepare, kind in columns]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._plain).cast(self._schema))
        self._batch.clear()

    def close(self) -> Written:
        """Write what is left."""
        if self._batch:
            self._flush()
        self._writer.close()
        return Written(self._path, self._rows, self._path.stat().st_size)


_TYPES = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "texts": pa.list_(pa.string()),
    "json": pa.json_(),
    "messages": pa.list_(pa.json_()),  # a struct would give every message every key
    "exact": pa.string(),
}
# Arrow makes no JSON arrays from Python values: texts are cast.
_PLAIN = {"json": pa.string(), "messages": pa.list_(pa.string())}
_PREPARED: dict[str, Callable[[Any], Any]] = {
    "json": lambda value: dumps(value).decode(),
    "exact": lambda value: dumps(value).decode(),
    "messages": lambda value: [dumps(message).decode() for message in value],
}


def arrow_type(column: Column) -> pa.DataType:
    """What a column is in Parquet. Arrow's JSON type comes out of `datasets` as the values that went in."""
    if column.kind in ("struct", "structs"):
        record = pa.struct([(c.name, arrow_type(c)) for c in column.fields])
        return record if column.kind == "struct" else pa.list_(record)
    return _TYPES[column.kind]


def _values(rows: list[Row], name: str, prepare: Callable[[Any], Any] | None) -> list[Any]:
    if prepare is None:
        return [row.get(name) for row in rows]
    return [None if (value := row.get(name)) is None else prepare(value) for row in rows]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array(encodable(values), kind)
    except OverflowError:  # a server's count of tokens, say: what no integer column holds is unknown
        return pa.array([v if v is not None and abs(v) < 2**63 else None for v in values], kind)
