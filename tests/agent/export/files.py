"""A small writer of rows, as JSON lines and as Parquet, for tests that read them with their real consumers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent.export.base import Column, Made


def write_lines(rows: Sequence[Made], path: Path, columns: Sequence[Column] = ()) -> Path:
    """A row a line; `exact` columns as texts."""
    import orjson

    exact = [c.name for c in columns if c.kind == "exact"]
    with path.open("wb") as file:
        for made in rows:
            texts = {name: orjson.dumps(made.values[name]).decode() for name in exact}
            file.write(orjson.dumps(made.values | texts) + b"\n")
    return path


def write_parquet(rows: Sequence[Made], path: Path, columns: Sequence[Column]) -> Path:
    """Strings first, then a cast: Arrow makes no JSON arrays out of Python values by itself."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = pa.schema([(c.name, _arrow(c.kind, pa.string())) for c in columns])
    wanted = pa.schema([(c.name, _arrow(c.kind, pa.json_())) for c in columns])
    values = [{c.name: _plain(c.kind, made.values[c.name]) for c in columns} for made in rows]
    pq.write_table(pa.Table.from_pylist(values, schema=plain).cast(wanted), path)
    return path


def _arrow(kind: str, json: Any) -> Any:
    import pyarrow as pa

    types = {"text": pa.string(), "exact": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    nested = {"json": json, "messages": pa.list_(json), "texts": pa.list_(pa.string())}
    return types.get(kind) or nested[kind]


def _plain(kind: str, value: Any) -> Any:
    import orjson

    if kind == "messages":
        return [orjson.dumps(v).decode() for v in value]
    return orjson.dumps(value).decode() if kind in ("json", "exact") and value is not None else value
