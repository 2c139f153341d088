"""The files of a part of an export: a sheet for each format and split that has rows, named by the part's number.

When all parts are there, `numbered` gives them their final names: data/<format>/<split>-00000-of-00003.parquet.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from agent.export.base import Column, Format, Row
from agent.export.sheets import Form, Sheet, dumps, open_sheet

DATA, BESIDE = "data", "provenance"


@dataclass(frozen=True)
class Shard:
    """A finished file. `path` is relative to the export's folder; `beside`: provenance of a format's bare rows."""

    format: str
    split: str
    part: int
    path: str
    rows: int
    bytes: int
    beside: bool = False
    apart: bool = False  # `path` is a folder with a file for each row


class Shards:
    """Writes the rows of one part below `folder`."""

    def __init__(self, folder: Path, part: int, form: Form, common: Sequence[Column]) -> None:
        self._folder, self._part, self._form, self._common = folder, part, form, tuple(common)
        self._open: dict[tuple[str, str, bool], tuple[Path, Sheet]] = {}
        self._apart: dict[tuple[str, str], list[int]] = {}  # rows and bytes
        self._columns: dict[str, tuple[Column, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """After an error the files are let go of, however that ends: their folder is about to be removed."""
        if kind is not None:
            for _, sheet in self._open.values():
                with contextlib.suppress(Exception):
                    sheet.close()

    def add(self, made_by: Format, split: str, common: Row, own: Row) -> None:
        """Append a row; where a format's own column has the name of a common one, the format's counts."""
        if made_by.bare:
            self._bare(made_by, split, own)
            self._sheet(made_by.name, split, self._common, beside=True).add(common)
        else:
            columns = self._columns.get(made_by.name) or all_columns(made_by, self._common)
            self._columns[made_by.name] = columns
            self._sheet(made_by.name, split, columns, beside=False).add(common | own)

    def _bare(self, made_by: Format, split: str, own: Row) -> None:
        if not made_by.apart:
            return self._sheet(made_by.name, split, None, beside=False).add(own)
        path = self._folder / DATA / made_by.name / split / str(own["file"])
        path.parent.mkdir(parents=True, exist_ok=True)
        text = b"".join(dumps(line) + b"\n" for line in own["lines"])
        path.write_bytes(text)
        counted = self._apart.setdefault((made_by.name, split), [0, 0])
        counted[0] += 1
        counted[1] += len(text)
        return None

    def _sheet(self, name: str, split: str, columns: Sequence[Column] | None, *, beside: bool) -> Sheet:
        key = (name, split, beside)
        if key not in self._open:
            form: Form = "jsonl" if columns is None else self._form
            path = self._folder / (BESIDE if beside else DATA) / name / f"{split}.{self._part}.{form}"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open[key] = (path, open_sheet(path, columns, form))
        return self._open[key][1]

    def close(self) -> list[Shard]:
        """Finish all files."""
        done = []
        for (name, split, beside), (path, sheet) in self._open.items():
            written = sheet.close()
            relative = path.relative_to(self._folder).as_posix()
            done.append(Shard(name, split, self._part, relative, written.rows, written.bytes, beside))
        for (name, split), (rows, size) in self._apart.items():
            done.append(Shard(name, split, self._part, f"{DATA}/{name}/{split}", rows, size, apart=True))
        return done


def all_columns(made_by: Format, common: Iterable[Column]) -> tuple[Column, ...]:
    """A format's own columns, then those that every row has."""
    own = {c.name for c in made_by.columns}
    return (*made_by.columns, *(c for c in common if c.name not in own))


def numbered(folder: Path, shards: Iterable[Shard]) -> list[Shard]:
    """Give finished files their final names, in the order of the parts."""
    groups: dict[tuple[str, str, bool], list[Shard]] = {}
    for shard in sorted(shards, key=lambda s: (s.format, s.split, s.beside, s.part)):
        groups.setdefault((shard.format, shard.split, shard.beside), []).append(shard)
    return [final for group in groups.values() for final in _final(folder, group)]


def _final(folder: Path, group: list[Shard]) -> list[Shard]:
    if group[0].apart:
        return [replace(group[0], rows=sum(s.rows for s in group), bytes=sum(s.bytes for s in group))]
    return [_renamed(folder, shard, i, len(group)) for i, shard in enumerate(group)]


def _renamed(folder: Path, shard: Shard, number: int, count: int) -> Shard:
    old = folder / shard.path
    new = old.with_name(f"{shard.split}-{number:05d}-of-{count:05d}{old.suffix}")
    old.rename(new)
    return replace(shard, path=new.relative_to(folder).as_posix())
