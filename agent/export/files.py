"""The files of an export: tables as Parquet or JSON lines, in a folder that is there whole, or not at all.

`pyarrow` and `orjson` are of the extra `export`. Two exports into one folder do not meet: each writes aside, and who
ends second is refused.
"""

import contextlib
import csv
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from kerneltune.agent.export.base import Feature, Format, Row
from kerneltune.tools.sandbox.scratch import ScratchFolder
from kerneltune.tools.schema.codec import Json, parsed, read_file, reason
from kerneltune.tools.schema.errors import StoreError, UsageError

FileType = Literal["parquet", "jsonl", "csv"]
CSV_COLUMNS = ("prompt", "completion")
LABEL = "label"  # of a format whose answers may be bad ones
MANIFEST = "export.json"
_BATCH_ROWS, _BATCH_TALKS = 2_000, 100  # kernels have some 2 kB, conversations a hundred


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


class JsonlFile:
    """One JSON object a line, keys in the order of the columns, null where a row has none. Without columns rows are
    written as they come."""

    def __init__(self, path: Path, columns: Sequence[Feature] | None) -> None:
        self._nulls: Row = dict.fromkeys(c.name for c in columns or ())
        self._exact = [c.name for c in columns or () if c.kind == "exact"]
        self._file: BinaryIO = path.open("wb", buffering=1 << 20)

    def add(self, row: Row) -> None:
        """Append a row."""
        made = self._nulls | row
        for name in self._exact:
            made[name] = json.dumps(made[name])
        self._file.write(dumps(made) + b"\n")

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


class CsvFile:
    """`prompt` and `completion` as texts, the messages of each one after the other, and the `label` of an answer."""

    def __init__(self, path: Path, columns: Sequence[Feature]) -> None:
        self._file = path.open("w", newline="", encoding="utf-8", errors="replace")
        self._rows = csv.writer(self._file)
        self._labels = [c.name for c in columns if c.name == LABEL]
        self._rows.writerow([*CSV_COLUMNS, *self._labels])

    def add(self, row: Row) -> None:
        """Append a row."""
        said = ("\n\n".join(m["content"] for m in row[name]) for name in CSV_COLUMNS)
        self._rows.writerow([*said, *(row[name] for name in self._labels)])

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


class ParquetFile:
    """Arrow types by the kind of each column; zstd. Memory holds one batch."""

    def __init__(self, path: Path, columns: Sequence[Feature]) -> None:
        self._columns = columns
        self._schema = pa.schema([pa.field(c.name, arrow_type(c)) for c in columns])
        self._plain = pa.schema([pa.field(c.name, _PLAIN.get(c.kind) or arrow_type(c)) for c in columns])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._most = _BATCH_TALKS if any(c.kind == "messages" for c in columns) else _BATCH_ROWS
        self._batch: list[Row] = []

    def add(self, row: Row) -> None:
        """Append a row."""
        self._batch.append(row)
        if len(self._batch) == self._most:
            self._flush()

    def _flush(self) -> None:
        arrays = [
            _array([row.get(c.name) for row in self._batch], kind, _TEXT_OF.get(c.kind))
            for c, kind in zip(self._columns, self._plain.types, strict=True)
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._plain).cast(self._schema))
        self._batch.clear()

    def close(self) -> None:
        """Write what is left."""
        if self._batch:
            self._flush()
        self._writer.close()


def fits_csv(made_by: Format) -> bool:
    """Whether rows of a format are a question and an answer in words."""
    found = {c.name: c.kind for c in made_by.columns}
    return all(found.get(name) == "structs" for name in CSV_COLUMNS)


def open_file(path: Path, columns: Sequence[Feature] | None, form: FileType) -> JsonlFile | ParquetFile | CsvFile:
    """Start a file of these columns; None: rows are written as they come, which only JSONL can."""
    if form == "csv" and columns is not None:
        return CsvFile(path, columns)
    return JsonlFile(path, columns) if columns is None or form == "jsonl" else ParquetFile(path, columns)


_TYPES = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "texts": pa.list_(pa.string()),
    "ints": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
    "json": pa.json_(),
    "messages": pa.list_(pa.json_()),  # a struct would give every message every key
    "exact": pa.string(),
}
# Arrow makes no JSON arrays from Python values: texts are cast.
_PLAIN = {"json": pa.string(), "messages": pa.list_(pa.string())}
_TEXT_OF: dict[str, Callable[[Any], Any]] = {
    "json": lambda value: dumps(value).decode(),
    "exact": json.dumps,
    "messages": lambda value: [dumps(message).decode() for message in value],
}


def arrow_type(column: Feature) -> pa.DataType:
    """What a column is in Parquet. Arrow's JSON type comes out of `datasets` as the values that went in."""
    if column.kind in ("struct", "structs"):
        record = pa.struct([(c.name, arrow_type(c)) for c in column.fields])
        return record if column.kind == "struct" else pa.list_(record)
    return _TYPES[column.kind]


def _array(values: list[Any], kind: pa.DataType, text_of: Callable[[Any], Any] | None) -> pa.Array:
    if text_of is not None:
        values = [None if value is None else text_of(value) for value in values]
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        return pa.array(encodable(values), kind)
    except OverflowError:  # a server's count of tokens, say: what no integer column holds is unknown
        return pa.array([v if v is not None and _fits(v) else None for v in values], kind)


def _fits(value: Any) -> bool:
    return all(map(_fits, value)) if isinstance(value, list) else abs(value) < 2**63


# The files of all formats and splits --------------------------------------------------------------------------------


@dataclass
class DataFile:
    """A file. `path` is relative to the export's folder; `beside`: provenance of a format's bare rows."""

    format: str
    split: str
    path: str
    beside: bool
    rows: int = 0
    longest_tokens: int = 0  # as estimated, of one row; 0 where trainers read none
    bytes: int = 0
    sha256: str = ""


class DataFiles:
    """Writes rows below `folder`: a file for each format and split that has rows. Use it with `with`."""

    def __init__(self, folder: Path, form: FileType, common: Sequence[Feature]) -> None:
        self._folder, self._form, self._common = folder, form, tuple(common)
        self._open: dict[tuple[str, str, bool], tuple[DataFile, JsonlFile | ParquetFile | CsvFile]] = {}

    def __enter__(self) -> "DataFiles":
        return self

    def __exit__(self, *error: object) -> None:
        """After an error the files are let go of, however that ends: their folder is about to be removed."""
        for _, file in self._open.values():
            with contextlib.suppress(Exception):
                file.close()

    def add(self, made_by: Format, split: str, common: Row, own: Row, facts: Row) -> None:
        """Append a row; where a format's own column has the name of a common one, the format's counts."""
        if made_by.bare:
            self._add(made_by, split, common | facts, beside=True)
        self._add(made_by, split, own if made_by.bare else common | facts | own)
        known, _ = self._open[made_by.name, split, False]
        known.longest_tokens = max(known.longest_tokens, facts.get("tokens") or 0)

    def _add(self, made_by: Format, split: str, row: Row, *, beside: bool = False) -> None:
        key = (made_by.name, split, beside)
        if key not in self._open:
            columns = None if made_by.bare and not beside else all_columns(made_by, self._common, beside=beside)
            form: FileType = "jsonl" if columns is None else self._form
            folder = "provenance" if beside else "data"
            known = DataFile(made_by.name, split, f"{folder}/{made_by.name}/{split}-00000-of-00001.{form}", beside)
            path = self._folder / known.path
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open[key] = (known, open_file(path, columns, form))
        known, file = self._open[key]
        known.rows += 1
        file.add(row)

    def finish(self) -> list[DataFile]:
        """Close all files; what they hold, by format and split."""
        for known, file in self._open.values():
            file.close()
            path = self._folder / known.path
            known.bytes = path.stat().st_size
            with path.open("rb") as written:
                known.sha256 = hashlib.file_digest(written, "sha256").hexdigest()
        return [known for _, (known, _) in sorted(self._open.items(), key=lambda item: item[0])]


def all_columns(made_by: Format, common: Iterable[Feature], *, beside: bool = False) -> tuple[Feature, ...]:
    """A format's own columns, facts of its rows, then what every row has; `beside`: without the first."""
    found = {} if beside else {c.name: c for c in made_by.columns}
    for column in (*made_by.all_facts(), *common):
        found.setdefault(column.name, column)
    return tuple(found.values())


# A folder written aside, then renamed -------------------------------------------------------------------------------


@contextlib.contextmanager
def made_whole(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to write into, which becomes `target` when all went well, and is removed otherwise. `overwrite` replaces
    an earlier export, and nothing else. Raises UsageError when the place is taken, StoreError when the disk fails."""
    target = target.resolve()
    if not target.name:
        raise UsageError(f"{target} cannot be an export; give a folder of its own to -o")
    try:
        target.name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"-o {str(target)!r}: the name cannot be encoded as UTF-8; give another") from error
    earlier = target.with_name(f"kerneltune-replaced-{target.name}")
    try:
        _settle(target, earlier)
        _check_free(target, overwrite=overwrite)
        target.parent.mkdir(parents=True, exist_ok=True)
        with ScratchFolder(target.parent) as aside:  # on the same file system; one that was killed left its own
            made = aside / "new"
            made.mkdir()
            yield made
            _check_free(target, overwrite=overwrite)  # much may have happened in an hour
            try:
                if _is_export(target):
                    target.rename(earlier)
                made.rename(target)
            finally:
                _settle(target, earlier)
    except OSError as error:
        raise StoreError(f"{target}: {reason(error)}; nothing was left there") from error


def _settle(target: Path, earlier: Path) -> None:
    """Remove an export that was replaced, or put it back where nothing has taken its place: whoever replaced it was
    killed on the way, or could not."""
    if target.exists():
        shutil.rmtree(earlier, ignore_errors=True)
    elif earlier.exists():
        earlier.rename(target)


def _check_free(target: Path, *, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir() or (any(target.iterdir()) and not _is_export(target)):
        raise UsageError(f"{target} is there already and is no export of ours; give another place to -o")
    if any(target.iterdir()) and not overwrite:
        raise UsageError(f"{target} holds an export already; give --overwrite to replace it, or another place to -o")


def _is_export(folder: Path) -> bool:
    try:
        found = parsed(read_file(folder / MANIFEST).decode())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "kerneltune_export" in found
