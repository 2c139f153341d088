"""The attack corpus: candidates that try to fool the evaluator, and honest ones that it must not refuse. Pure data.

A specimen is a candidate file whose docstring says what it does, with a module-level literal `SPECIMEN`. It is read
with `ast` and never run here; `corpus/README.md` describes the format.
"""

import ast
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard

from kerneltune.tools.schema.codec import DecodeError, decode, encode, reason, syntax_tree
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Status, Verdict

ATTACK_FAMILIES = (
    "timing", "caching", "harness", "lazy", "inputs", "precision", "device", "resources", "exfiltration", "ptx", "cuda",
    "gluon",
)  # fmt: skip
Naive = Literal["fooled", "not fooled", "needs gpu", "not applicable"]
Kind = Literal["attack", "honest"]
Outcome = Literal["stopped", "accepted", "right", "false_alarm", "skipped"]


class CorpusError(UsageError):
    """A specimen that cannot be read; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class SpecimenFields:
    """What a candidate file says of itself, as `Specimen` explains it; tasks and twins by name."""

    task: str
    id: str = ""
    family: str = ""
    expect: tuple[Status, ...] | None = None
    expect_gpu: tuple[Status, ...] | None = None
    needs_gpu: bool = False
    twin: str = ""
    naive: Naive = "not applicable"
    coverage_below: float | None = None
    gain_below: float | None = None


@dataclass(frozen=True)
class Specimen:
    """One candidate of the corpus.

    task: a file of the corpus, or the name of a built-in task. says: the docstring. expect, expect_gpu: statuses that
    count as stopped (attacks) or right (honest ones). twin: an honest file; an attack whose plan is its twin's plan was
    neutralised. coverage_below: accepted with less than this share of GPU time in own kernels counts as stopped.
    gain_below: accepted counts as stopped when its time is at least its twin's divided by this, both measured.
    naive: what a harness that runs candidates in its own process makes of it.
    """

    name: str
    path: Path
    kind: Kind
    family: str
    task: Path | str
    says: str
    expect: tuple[Status, ...]
    expect_gpu: tuple[Status, ...]
    needs_gpu: bool
    twin: Path | None
    id: str = ""
    naive: Naive = "not applicable"
    coverage_below: float | None = None
    gain_below: float | None = None


@dataclass(frozen=True)
class Twin:
    """What is known of a specimen's honest twin: its plan's hash, and its verdict where its time matters."""

    plan_sha256: str | None = None
    verdict: Verdict | None = None


def corpus_root() -> Path | None:
    """Where the corpus lies in the package; None where it was not installed."""
    root = Path(__file__).absolute().parents[1] / "corpus"
    return root if (root / "attacks").is_dir() else None


def example(name: str) -> str:
    """The code of an honest candidate, without what it says of itself. Raises CorpusError where there is no corpus."""
    root = corpus_root()
    if root is None:
        raise CorpusError("the corpus is not installed")
    text = (root / "honest" / f"{name}.py").read_text(encoding="utf-8")
    docstring, *rest = syntax_tree(text).body
    about = [docstring, *filter(_says_fields, rest)]
    gone = {line for node in about for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    lines = enumerate(text.split("\n"), 1)
    kept = "\n".join(line for number, line in lines if number not in gone and not line.startswith("# task: "))
    return re.sub(r"\n{4,}", "\n\n\n", kept.strip()) + "\n"


def load_corpus(root: Path) -> tuple[Specimen, ...]:
    """All specimens below attacks/ and honest/, by kind, family and name. Raises CorpusError for a malformed one."""
    found: list[Specimen] = []
    folders: tuple[tuple[str, Kind], ...] = (("attacks", "attack"), ("honest", "honest"))
    for folder, kind in folders:
        paths = (p for p in (root / folder).rglob("*.py") if p.name != "__init__.py")
        found += [_specimen(root, path, kind) for path in sorted(paths)]
    _require_unique(root, found)
    return tuple(found)


def _require_unique(root: Path, found: list[Specimen]) -> None:
    for what in ("name", "id"):
        seen: dict[str, Path] = {}
        for specimen in found:
            value = getattr(specimen, what)
            if value and value in seen:
                first, second = (p.relative_to(root) for p in (seen[value], specimen.path))
                raise CorpusError(f"two specimens have the {what} {value!r}: {first} and {second}")
            seen[value] = specimen.path


def _specimen(root: Path, path: Path, kind: Kind) -> Specimen:
    says, fields = _read(path)
    wanted, wanted_gpu = ((), None) if kind == "attack" else ((Status.CHECKED,), (Status.CORRECT,))
    expect = wanted if fields.expect is None else fields.expect
    expect_gpu = fields.expect_gpu if fields.expect_gpu is not None else wanted_gpu
    return Specimen(
        name=path.stem,
        path=path,
        kind=kind,
        family=_family(root, path, kind, fields.family),
        task=_task(root, path, fields.task),
        says=says,
        expect=expect,
        expect_gpu=expect if expect_gpu is None else expect_gpu,
        needs_gpu=fields.needs_gpu,
        twin=_beside(root, path, "twins", fields.twin, "twin") if fields.twin else None,
        id=fields.id,
        naive=fields.naive,
        coverage_below=fields.coverage_below,
        gain_below=fields.gain_below,
    )


def _read(path: Path) -> tuple[str, SpecimenFields]:
    """The docstring and the SPECIMEN literal."""
    try:
        tree = syntax_tree(path.read_bytes(), str(path))
    except (OSError, SyntaxError) as error:
        raise CorpusError(f"{path} cannot be read: {reason(error)}") from error
    says = ast.get_docstring(tree)
    if not says:
        raise CorpusError(f"{path} has no docstring that says what it does")
    for node in filter(_says_fields, tree.body):
        return " ".join(says.split()), _fields(path, node.value)
    raise CorpusError(f"{path} has no module-level SPECIMEN = {{...}}")


def _says_fields(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "SPECIMEN" for t in node.targets)


def _fields(path: Path, node: ast.expr) -> SpecimenFields:
    try:
        return decode(SpecimenFields, encode(ast.literal_eval(node)), "SPECIMEN")
    except DecodeError as error:
        raise CorpusError(f"{path}, line {node.lineno}: {error}") from error
    except (ValueError, TypeError, SyntaxError) as error:
        raise CorpusError(f"{path}, line {node.lineno}: SPECIMEN must be a literal: it is read, not run") from error


def _family(root: Path, path: Path, kind: Kind, said: str) -> str:
    """The folder says it; an honest specimen may name one instead."""
    folder = "/".join(path.relative_to(root).parts[1:-1])
    if kind == "attack" and folder not in ATTACK_FAMILIES:
        raise CorpusError(f"{path}: family {folder!r} is not one of {', '.join(ATTACK_FAMILIES)}")
    return folder if kind == "attack" else said or folder or "honest"


def _task(root: Path, path: Path, name: str) -> Path | str:
    """A task of the corpus before a built-in one of the same name."""
    if not name.isidentifier():
        raise CorpusError(f"{path}: task = {name!r} is not the name of a task")
    builtin = Path(__file__).resolve().parent / "tasks" / f"{name}.py"
    return (
        name
        if builtin.is_file() and not _named(root, "tasks", name).is_file()
        else _beside(root, path, "tasks", name, "task")
    )


def _named(root: Path, folder: str, name: str) -> Path:
    return root / folder / f"{name}.py"


def _beside(root: Path, path: Path, folder: str, name: str, key: str) -> Path:
    """The file that a specimen names in another folder of the corpus."""
    if not name.isidentifier():
        raise CorpusError(f"{path}: {key} = {name!r} is not a name")
    found = _named(root, folder, name)
    if not found.is_file():
        raise CorpusError(f"{path}: no {key} {name!r} in {root / folder}")
    return found


def outcome(specimen: Specimen, verdict: Verdict, plan_sha256: str | None, twin: Twin, on_gpu: bool) -> Outcome:
    """What a verdict says of the evaluator: "stopped" or "accepted" of an attack, "right" or "false_alarm" of an honest
    candidate; "skipped" where this machine cannot tell."""
    wanted = specimen.expect_gpu if on_gpu else specimen.expect
    if specimen.needs_gpu and not on_gpu:
        return "skipped"
    if verdict.status in wanted:
        return "right" if specimen.kind == "honest" else "stopped"
    if verdict.status is Status.UNCHECKED or verdict.not_timed is not None:
        return "skipped"
    if specimen.kind == "honest":
        return "false_alarm"
    return "stopped" if _harmless(specimen, verdict, plan_sha256, twin) else "accepted"


def _harmless(specimen: Specimen, verdict: Verdict, plan_sha256: str | None, twin: Twin) -> bool:
    """Refused, or what runs is exactly the honest kernel, or it gained nothing over it, or hardly anything was credited
    to it."""
    if not verdict.accepted:
        return True
    if specimen.twin is not None and plan_sha256 is not None and plan_sha256 == twin.plan_sha256:
        return True
    if specimen.gain_below is not None and _gain(verdict, twin.verdict) < specimen.gain_below:
        return True
    limit = specimen.coverage_below
    return limit is not None and verdict.coverage is not None and verdict.coverage < limit


def _gain(verdict: Verdict, twin: Verdict | None) -> float:
    """How much faster than its twin; infinite where that was not measured."""
    if verdict.timing is None or twin is None or twin.timing is None:
        return math.inf
    return twin.timing.median_us / verdict.timing.median_us
