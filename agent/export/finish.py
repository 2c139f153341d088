"""What lies beside the rows: the dataset card, its figures, and a manifest for programs."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from agent.export import card
from agent.export.base import Format
from agent.export.figures import figures
from agent.export.folder import MANIFEST
from agent.export.provenance import SCHEMA_VERSION
from agent.export.shards import Shard
from agent.export.sheets import Form
from agent.export.statistics import Statistics
from tools.codec import Json

ANALYSIS = "analysis"
_ORDER = ("train", "validation", "test")
_CAPTIONS = {
    "verdicts.svg": "Verdicts by task",
    "speedups.svg": "Speed-ups over the fastest baseline",
    "best.svg": "The best speed-up within N attempts",
    "turns.svg": "Share of right attempts by turn",
    "rows.svg": "Rows by format and split",
}


def configs(formats: Iterable[Format], shards: Sequence[Shard], form: Form) -> tuple[card.Config, ...]:
    """The formats that `datasets` can load from this folder: it reads all of one with one reader."""
    return tuple(_config(f, shards) for f in formats if _suffix(f, form) == form and not f.apart)


def others(formats: Iterable[Format], shards: Sequence[Shard], form: Form) -> tuple[card.Config, ...]:
    """The formats that are files for other programs."""
    return tuple(_config(f, shards) for f in formats if _suffix(f, form) != form or f.apart)


def _suffix(made_by: Format, form: Form) -> str:
    return "jsonl" if made_by.bare else form


def _config(made_by: Format, shards: Sequence[Shard]) -> card.Config:
    its = [s for s in shards if s.format == made_by.name and not s.beside]
    splits = []
    for name in sorted({s.split for s in its}, key=lambda n: (_ORDER.index(n) if n in _ORDER else 9, n)):
        files = [s for s in its if s.split == name]
        splits.append(card.Split(name, tuple(dict.fromkeys(s.path for s in files)), sum(s.rows for s in files)))
    return card.Config(made_by.name, made_by.about, made_by.columns, tuple(splits))


def finish(folder: Path, export: card.Export, statistics: Statistics, shards: Sequence[Shard], facts: Json) -> Json:
    """Write README.md, analysis/*.svg and export.json; returns the manifest. `facts`: what was asked for."""
    drawn = folder / ANALYSIS
    drawn.mkdir()
    for name, svg in figures(statistics).items():
        (drawn / name).write_text(svg)
    (folder / "README.md").write_text(card.card(export, statistics))
    manifest = _manifest(folder, export, shards, facts)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    (folder / ANALYSIS / "statistics.json").write_text(json.dumps(statistics.to_json()) + "\n")
    return manifest


def captions() -> tuple[tuple[str, str], ...]:
    """The figures as the card shows them: path and caption."""
    return tuple((f"{ANALYSIS}/{name}", caption) for name, caption in _CAPTIONS.items())


def _manifest(folder: Path, export: card.Export, shards: Sequence[Shard], facts: Json) -> Json:
    files = [asdict(s) | ({} if s.apart else {"sha256": _sha256(folder / s.path)}) for s in shards]
    return {
        "kerneltune_export": SCHEMA_VERSION,
        "kerneltune": export.version,
        "made_at": export.made_at,
        "command": export.command,
        **facts,
        "files": [{k: v for k, v in f.items() if k not in ("part",)} for f in files],
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
