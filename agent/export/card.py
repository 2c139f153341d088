"""The dataset card: README.md of an export, from what was asked for and what was counted. Pure; the same for the same
input. Names of tasks, models and providers are other people's: whatever they hold, they stay words."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from agent.export import svg
from agent.export.base import Column
from agent.export.statistics import THRESHOLDS, Statistics
from prompts import cell, code, templates
from tools.verdict import Status
from tools.words import plain

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_TASKS = 50
MOST_OF_A_NAME = 100
STATUSES = {
    Status.CORRECT.value: "right on every input tried, and timed on a GPU",
    Status.CHECKED.value: "right on every input tried, **not timed**: there was no GPU",
    Status.UNCHECKED.value: "compiled; nothing there could run it",
    Status.WRONG.value: "an output is outside of the tolerance of the float64 reference",
    Status.COMPILE_FAILED.value: "the compiler refused it",
    Status.CRASHED.value: "faulted on the GPU or broke the rules of memory",
    Status.TIMED_OUT.value: "did not come to an end in time",
    Status.REJECTED.value: "could not be traced to a launch plan; the verdict says why",
    Status.IMPOSSIBLE.value: "faster than light, or clocks disagree, or it remembers answers: not believed",
    "unjudged": "its run ended before it was judged",
}
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
_TAGS = {
    "sft-chat": ("sft", "tool-calling", "agent-traces"),
    "sft-best": ("sft",),
    "dpo": ("dpo", "preference"),
    "kto": ("kto", "preference"),
    "rl-turns": ("reinforcement-learning",),
    "verl": ("reinforcement-learning", "verl"),
    "atif": ("agent-traces",),
}
_SPLIT = re.compile(r"\w+(\.\w+)*\Z", re.ASCII)  # what `datasets` takes for the name of a split
_CONFIG = re.compile(r"[\w.-]+\Z", re.ASCII)
_ORDINARY = re.compile(r"[\w.,+/ @=()-]+\Z", re.ASCII)
_MARKUP = re.compile(r"[\\`*_\[\]<>#|~$&]")
_MARKUP_AND_LINKS = re.compile(r"[\\`*_{}\[\]<>()#!|~$&:@.+=\"'-]")


@dataclass(frozen=True)
class Split:
    """Files of one split of a config; `paths` are relative to the card and may be patterns."""

    name: str
    paths: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class Config:
    """A format as it was exported. `columns`: its own, without those that every row has."""

    name: str
    about: str
    columns: tuple[Column, ...]
    splits: tuple[Split, ...]


@dataclass(frozen=True)
class Notice:
    """What the terms of a provider, or the licence of a source, ask of those who use its words."""

    provider: str
    terms: str  # the tag in the column `source_terms`
    text: str


@dataclass(frozen=True)
class Export:
    """What was asked for and how it was made, for the card. `made_at`: Unix time. `command` and texts must be free of
    secrets already. `figures`: file names beside their captions, relative to the card."""

    name: str
    configs: tuple[Config, ...]  # what `datasets` loads
    common: tuple[Column, ...]
    version: str
    schema_version: int
    command: str
    made_at: float
    seed: int
    split_rule: str
    filters: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    deduplication: str = ""
    leakage: str = ""
    licence: str = "other"  # an identifier of the Hub
    licence_name: str = "see-provider-terms"  # only with "other"
    figures: tuple[tuple[str, str], ...] = ()
    others: tuple[Config, ...] = ()  # files for other programs


def card(export: Export, statistics: Statistics) -> str:
    """The text of README.md. Raises ValueError for names that `datasets` refuses, for configs of different file types
    (it reads all of a folder's with one reader), and for values that are not known (jinja2.UndefinedError)."""
    _check(export)
    body = _environment().get_template("card.md.j2").render(_values(export, statistics))
    text = re.sub(r"\n{3,}", "\n\n", body.strip())
    return f"---\n{front_matter(export)}---\n\n{text}\n"


def front_matter(export: Export) -> str:
    """The YAML that `datasets` and the Hub read. Splits without rows have no files worth reading and are left out."""
    total = sum(split.rows for config in export.configs for split in config.splits)
    size = next((name for most, name in _SIZES if total < most), "n>10M")
    tags = dict.fromkeys(tag for config in export.configs for tag in _TAGS.get(config.name, ()))
    categories = ("text-generation", *(["reinforcement-learning"] if "reinforcement-learning" in tags else []))
    lines = [f"pretty_name: {scalar(export.name)}", f"license: {scalar(export.licence)}"]
    if export.licence == "other":
        lines.append(f"license_name: {scalar(export.licence_name)}")
    lines += ["language:", "- en", *_list("task_categories", categories)]
    lines += [
        *_list("tags", ("code", "gpu", "triton", "kernel-optimization", *tags)),
        *_list("size_categories", [size]),
    ]
    filled = [config for config in export.configs if any(split.rows for split in config.splits)]
    if filled:
        lines.append("configs:")
    for config in filled:
        lines += [f"- config_name: {scalar(config.name)}", *(["  default: true"] if config is filled[0] else [])]
        lines.append("  data_files:")
        for split in config.splits:
            if split.rows:
                lines += [f"  - split: {scalar(split.name)}", "    path:", *(f"    - {scalar(p)}" for p in split.paths)]
    return "\n".join(lines) + "\n"


def scalar(text: str) -> str:
    """The text as a YAML scalar in double quotes, whatever it holds."""
    return '"' + "".join(map(_escaped, plain(text))) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    return character


def name(text: object) -> str:
    """A name as Markdown, in tables too: as code where it is an ordinary one, else escaped throughout."""
    line = svg.short(str(text), MOST_OF_A_NAME)
    if not line:
        return "(none)"
    return f"`{line}`" if _ORDINARY.match(line) and line == line.strip() else _MARKUP_AND_LINKS.sub(_entity, line)


def prose(text: object) -> str:
    """Words of others as Markdown on one line: nothing in them is taken for markup, but links may be followed."""
    return _MARKUP.sub(_entity, " ".join(plain(str(text), 4000).split()))


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def _list(key: str, values: Iterable[str]) -> list[str]:
    return [f"{key}:", *(f"- {scalar(value)}" for value in values)]


def _check(export: Export) -> None:
    for config in export.configs:
        if not _CONFIG.match(config.name):
            raise ValueError(f"not a name for a config of a dataset: {config.name!r}")
        for split in config.splits:
            if not _SPLIT.match(split.name):
                raise ValueError(f"not a name for a split of {config.name}: {split.name!r}")
    suffixes = {PurePosixPath(p).suffix for c in export.configs for s in c.splits if s.rows for p in s.paths}
    if len(suffixes) > 1:
        raise ValueError(f"one file type for all configs, not {', '.join(sorted(suffixes))}")


def flat(columns: Iterable[Column], inside: str = "") -> list[Column]:
    """The columns, and the fields of nested ones below them with dots in their names."""
    out: list[Column] = []
    for column in columns:
        out.append(replace(column, name=f"{inside}{column.name}"))
        out += flat(column.fields, f"{inside}{column.name}.")
    return out


def _values(export: Export, statistics: Statistics) -> dict[str, object]:
    judged = statistics.total("verdicts") - statistics.by("verdicts", 1).get(("unjudged",), 0)
    return {
        "export": export,
        "s": statistics,
        "made": _date(export.made_at),
        "first": _date(statistics.first_at),
        "last": _date(statistics.last_at),
        "statuses": [(str(s), STATUSES.get(str(s), ""), n) for (s,), n in statistics.by("verdicts", 1).items()],
        "judged": judged,
        "tasks": _tasks(statistics),
        "writers": _writers(statistics),
        "thresholds": [(t, statistics.table("above").get((i,), 0)) for i, t in enumerate(THRESHOLDS)],
        "turns": _middle({int(k): n for (k,), n in statistics.table("turns").items()}),
        "characters": _middle({2 ** max(int(k), 0): n for (k,), n in statistics.table("sizes").items()}),
        "versions": _versions(statistics),
        "empty": [(c.name, s.name) for c in export.configs for s in c.splits if not s.rows],
        "most_tasks": MOST_TASKS,
    }


def _tasks(statistics: Statistics) -> list[dict[str, object]]:
    table, splits = statistics.table("verdicts"), {task: split for task, split in statistics.by("run_tasks", 0, 1)}
    out: list[dict[str, object]] = []
    for (task,), n in list(statistics.by("verdicts", 0).items())[:MOST_TASKS]:
        right = sum(table.get((task, status), 0) for status in ("checked", "correct"))
        best = statistics.best.get(str(task))
        out.append({"task": task, "split": splits.get(task, ""), "attempts": n, "right": right, "best": best})
    return out


def _writers(statistics: Statistics) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    right = {key[:3]: 0 for key in statistics.table("writers")}
    for (*who, status), n in statistics.table("writers").items():
        right[tuple(who)] += n if status in ("checked", "correct") else 0
    attempts = statistics.by("writers", 0, 1, 2)
    for key, runs in statistics.by("runs", 0, 1, 2).items():
        provider, model, gpu = key
        counts = {"runs": runs, "attempts": attempts.get(key, 0), "right": right.get(key, 0)}
        out.append({"provider": provider, "model": model, "gpu": gpu or "no GPU", **counts})
    return out


def _versions(statistics: Statistics) -> list[tuple[str, list[tuple[str, int]]]]:
    by_name: dict[str, list[tuple[str, int]]] = {}
    for (package, version), n in statistics.by("versions", 0, 1).items():
        by_name.setdefault(str(package), []).append((str(version), n))
    return sorted(by_name.items())


def _middle(counts: dict[int, int]) -> int | None:
    """The lower median of counted values."""
    total, seen = sum(counts.values()), 0
    for value, n in sorted(counts.items()):
        seen += n
        if 2 * seen >= total:
            return value
    return None


def _date(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


@cache
def _environment() -> "Environment":
    return templates(  # `name` and `prose` escape what is not ours
        "agent.export",
        "templates",
        name=name,
        prose=prose,
        code=code,
        cell=cell,
        flat=flat,
        share=_share,
        n="{:,}".format,
    )
