"""What lies beside the rows of an export: counts of what it holds, the data set card (README.md), a manifest for
programs.

Names of tasks, models and providers are other people's: whatever they hold, they stay words.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kerneltune.agent.attempt import Attempt, RunStart
from kerneltune.agent.export.base import Feature, Format, Row
from kerneltune.agent.export.files import MANIFEST, DataFile, all_columns
from kerneltune.agent.export.provenance import SCHEMA_VERSION, Provenance, terms_of
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.prompts import cell, code, templates
from kerneltune.tools.schema.codec import MOST, Json, one_line, plain
from kerneltune.tools.schema.verdict import RIGHT, Status

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_OF_A_NAME = 100
STATUSES = {
    Status.CORRECT.value: "right on every input tried, and timed on a GPU",
    Status.CHECKED.value: "right on every input tried, **not timed**: there was no GPU, or others used it",
    Status.UNCHECKED.value: "compiled; nothing there could run it",
    Status.WRONG.value: "an output is outside of the tolerance of the float64 reference",
    Status.COMPILE_FAILED.value: "the compiler refused it",
    Status.CRASHED.value: "faulted on the GPU or broke the rules of memory",
    Status.TIMED_OUT.value: "did not come to an end in time",
    Status.REJECTED.value: "could not be traced to a launch plan; the verdict says why",
    Status.IMPOSSIBLE.value: "faster than light, or clocks disagree, or it remembers answers: not believed",
    "unjudged": "its run ended before it was judged",
}
_SPLITS = ("train", "validation", "test")
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
# TRL's trainer of each format, with what its configuration must say; by default it cuts rows at 1,024 tokens, and drops
# those in which nothing is left to learn.
_TRAINERS = {
    "sft-chat": ("SFT", "assistant_only_loss=True, max_length=None"),
    **dict.fromkeys(("sft-best", "fim", "convert", "fix"), ("SFT", "max_length=None")),
    "dpo": ("DPO", "max_length=None"),
    "kto": ("KTO", "max_length=None"),
}
_ORDINARY = re.compile(r"[\w.,+/ @=()-]+\Z", re.ASCII)
_MARKUP = re.compile(r"[\\`*_\[\]<>#|~$&]")
_MARKUP_AND_LINKS = re.compile(r"[\\`*_{}\[\]<>()#!|~$&:@.+=\"'-]")


class Statistics:
    """Counts of the attempts that pass. `marks`: timed, faster, "exact duplicate", "near duplicate", leaked, held, "did
    not hold"; `leaks`: runs by task and the benchmark problem that it is."""

    def __init__(self) -> None:
        self.runs = 0
        self.tasks: dict[str, set[str]] = {}  # what was reached: right, faster, "first right", "first faster", timed
        self.statuses: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()
        self.leaks: Counter[tuple[str, str]] = Counter()
        self.first_at, self.last_at = math.inf, -math.inf

    def add(self, trajectory: Trajectory, kept: Sequence[Attempt], facts: Provenance) -> None:
        """Count one run, of which these attempts pass."""
        at, row = trajectory.run.at, facts.of(None)
        self.runs += 1
        self.first_at, self.last_at = min(self.first_at, at), max(self.last_at, at)
        if row["leaked"] is not None:
            self.leaks[row["task"], row["leaked"]] += 1
            self.marks["leaked"] += len(kept)
        for attempt in kept:
            reached = self.tasks.setdefault(row["task"], set())
            reached.update(_reached(attempt, facts.of(attempt)))
            self.statuses[attempt.status.value if attempt.status else "unjudged"] += 1
            self.marks.update(_marks(attempt, facts.of(attempt)))


def _reached(attempt: Attempt, row: Row) -> Iterator[str]:
    """Of a task, by KernelBench's fast_0 and fast_1 over problems: by its best attempt, and by a run's first, unless
    the run began with that."""
    for what, known in (("right", row["correct"]), ("timed", row["timed"]), ("faster", row["faster"])):
        if known:
            yield what
            if attempt.number == 1 and not isinstance(attempt.origin, RunStart):
                yield f"first {what}"


def _marks(attempt: Attempt, row: Row) -> Iterator[str]:
    if row["speedup"] is not None:
        yield "timed"
    if row["faster"]:
        yield "faster"
    if row.get("exact_first") is False:
        yield "exact duplicate"
    elif row.get("near_first") is False:
        yield "near duplicate"
    if attempt.held is not None:
        yield "held" if attempt.held else "did not hold"


@dataclass(frozen=True)
class Card:
    """What was asked for and how it was made. `made_at`: Unix time. Texts must be free of secrets already. `files`:
    what was written; `providers`: whose words the rows hold."""

    name: str
    formats: Sequence[Format]
    files: Sequence[DataFile]
    providers: Sequence[str]
    common: tuple[Feature, ...]
    version: str
    command: str
    made_at: float
    seed: int
    split_rule: str
    deduplication: str
    leakage: str
    filters: tuple[str, ...] = ()

    def rows(self, name: str, split: str | None = None) -> int:
        """Rows of a format, in all or in one split; "other": in none of the usual ones."""
        return sum(
            f.rows
            for f in self.files
            if f.format == name
            and not f.beside
            and (split in (None, f.split) or (split == "other" and f.split not in _SPLITS))
        )

    def to_train(self, name: str) -> str | None:
        """The file of a format that is for training, from the export's folder; None where no row is."""
        its = (f.path for f in self.files if f.format == name and f.split == "train" and not f.beside)
        return next(its, None)

    def longest(self, name: str) -> int:
        """Estimated tokens of the longest row of a format."""
        return max((f.longest_tokens for f in self.files if f.format == name), default=0)

    def needs(self, of: Format) -> str:
        """The least version of `datasets` that reads a format: JSON is a type of its own since 4.7."""
        kinds = {c.kind for c in own_columns(of)}
        return "4.7" if kinds & {"json", "messages"} and not of.bare else "4.0"

    @property
    def loadable(self) -> list[Format]:
        """The formats with rows that `datasets` can load from this folder: it reads all of one with one reader."""
        form = next((Path(f.path).suffix for f in self.files if f.beside or not self._by_name(f.format).bare), ".jsonl")
        return [f for f in self.formats if self.rows(f.name) and (not f.bare or form == ".jsonl")]

    @property
    def others(self) -> list[Format]:
        """The formats that are files for other programs."""
        return [f for f in self.formats if f.bare and f not in self.loadable]

    def _by_name(self, name: str) -> Format:
        return next(f for f in self.formats if f.name == name)


def notices(providers: Iterable[str]) -> list[tuple[str, str, str]]:
    """What binds those who use the rows: provider, tag and notice."""
    return [(provider, terms_of(provider).tag, terms_of(provider).notice) for provider in sorted(providers)]


def write_beside(folder: Path, made: Card, counted: Statistics, asked: Json) -> Json:
    """Write README.md and export.json; returns the manifest. `asked`: the flags."""
    (folder / "README.md").write_text(card(made, counted))
    manifest = {
        "kerneltune_export": SCHEMA_VERSION,
        "kerneltune": made.version,
        "made_at": made.made_at,
        "command": made.command,
        **asked,
        "files": [{k: v for k, v in asdict(f).items() if k != "sha256" or v} for f in made.files],
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def card(made: Card, counted: Statistics) -> str:
    """The text of README.md. Raises jinja2.UndefinedError for values that are not known."""
    body = _environment().get_template("card.md.j2").render(_values(made, counted))
    text = re.sub(r"\n{3,}", "\n\n", body.strip())
    return f"---\n{front_matter(made)}---\n\n{text}\n"


def front_matter(made: Card) -> str:
    """The YAML that `datasets` and the Hub read, as JSON, which is YAML. Splits without rows have no files and are left
    out."""
    loadable = made.loadable
    total = sum(made.rows(f.name) for f in loadable)
    tags = dict.fromkeys(tag for f in loadable for tag in _TAGS.get(f.name, ()))
    values: dict[str, Json] = {
        "pretty_name": plain(made.name),
        "license": "other",
        "license_name": "see-provider-terms",
        "language": ["en"],
        "task_categories": ["text-generation", *(t for t in ("reinforcement-learning",) if t in tags)],
        "tags": ["code", "gpu", "triton", "kernel-optimization", *tags],
        "size_categories": [next((name for most, name in _SIZES if total < most), "n>10M")],
    }
    if loadable:
        values["configs"] = [_config(made, f) | ({"default": True} if f is loadable[0] else {}) for f in loadable]
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def _config(made: Card, of: Format) -> dict[str, Json]:
    """Its version is of the content: `datasets` takes a folder of the same name for the one that it has kept."""
    its = [f for f in made.files if f.format == of.name and not f.beside]
    its.sort(key=lambda f: (_SPLITS.index(f.split) if f.split in _SPLITS else 9, f.split))
    version = f"0.0.{int(hashlib.sha256(''.join(f.sha256 for f in its).encode()).hexdigest()[:8], 16)}"
    data_files: list[Json] = [{"split": f.split, "path": [f.path]} for f in its]
    return {"config_name": of.name, "version": version, "data_files": data_files}


def name(text: object) -> str:
    """A name as Markdown, in tables too: as code where it is an ordinary one, else escaped throughout."""
    line = one_line(str(text), MOST)
    line = line if len(line) <= MOST_OF_A_NAME else line[: MOST_OF_A_NAME - 1] + "…"
    if not line:
        return "(none)"
    return f"`{line}`" if _ORDINARY.match(line) and line == line.strip() else _MARKUP_AND_LINKS.sub(_entity, line)


def prose(text: object) -> str:
    """Words of others as Markdown on one line: nothing in them is taken for markup, but links may be followed."""
    return _MARKUP.sub(_entity, one_line(str(text), 4000))


def _entity(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def trainer(of: Format) -> tuple[str, str] | None:
    """TRL's trainer for rows of a format, and what its configuration says."""
    as_messages = of.name == "rl-turns" and getattr(of, "state", "") == "messages"
    return ("SFT", "max_length=None") if as_messages else _TRAINERS.get(of.name)


def own_columns(of: Format) -> tuple[Feature, ...]:
    """What rows of a format have besides what every row has."""
    return of.columns if of.bare else all_columns(of, ())


def flat(columns: Iterable[Feature], inside: str = "") -> list[Feature]:
    """The columns, and the fields of nested ones below them with dots in their names."""
    out: list[Feature] = []
    for column in columns:
        out.append(replace(column, name=f"{inside}{column.name}"))
        out += flat(column.fields, f"{inside}{column.name}.")
    return out


def _values(made: Card, counted: Statistics) -> dict[str, object]:
    right = sum(counted.statuses[status] for status in RIGHT)
    return {
        "export": made,
        "schema_version": SCHEMA_VERSION,
        "notices": notices(made.providers),
        "s": counted,
        "made": _date(made.made_at),
        "first": _date(counted.first_at),
        "last": _date(counted.last_at),
        "statuses": [(status, STATUSES.get(status, ""), n) for status, n in counted.statuses.most_common()],
        "attempts": counted.statuses.total(),
        "right": right,
        "reached": Counter(what for its in counted.tasks.values() for what in its),
        "untimed": counted.statuses[Status.CHECKED.value],
        "splits": (*_SPLITS, "other"),
    }


def _date(at: float) -> str | None:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d") if math.isfinite(at) else None


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


@cache
def _environment() -> "Environment":
    return templates(  # `name` and `prose` escape what is not ours
        "kerneltune.agent.export",
        "templates",
        name=name,
        prose=prose,
        code=code,
        cell=cell,
        flat=flat,
        columns=own_columns,
        trainer=trainer,
        share=_share,
        n="{:,}".format,
    )
