"""Train, validation and test by family of tasks, so that what a model is tested on is nothing that it was trained on.

Tasks are one family when they share a name, a file, or a Model up to numbers: another shape or dtype of the same work
teaches the answer. A family's split follows from the seed and the family's name alone, so an export next week, with
more tasks, moves no family to another split.
"""

import ast
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from agent.export.normalise import Forms
from agent.export.trees import node_form, parse
from tools.errors import UsageError

TRAIN, VALIDATION, TEST = "train", "validation", "test"
Leaked = Literal["keep", "test", "exclude"]


@dataclass(frozen=True)
class Task:
    """A task as runs record it. `sha256` is that of its file."""

    name: str
    sha256: str
    source: str


@dataclass(frozen=True)
class Fractions:
    """Shares of the families, expected ones: each family draws its own lot. What is left is `train`."""

    validation: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.validation, self.test)
        if not all(math.isfinite(s) and 0 <= s <= 1 for s in shares) or sum(shares) > 1:
            raise UsageError(
                f"splits of {self.validation} and {self.test}: shares lie within 0 and 1, and so does their sum"
            )


@dataclass(frozen=True)
class Member:
    """Where a task belongs. `split` is None for one that is left out."""

    family: str
    split: str | None


def split_of(family: str, fractions: Fractions = Fractions(), seed: int = 0) -> str:
    """The split of a family: a lot drawn by its name and the seed."""
    lot = int.from_bytes(sha256(f"{seed}\0{family}".encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64
    if lot < fractions.test:
        return TEST
    return VALIDATION if lot < fractions.test + fractions.validation else TRAIN


def assign(
    tasks: Iterable[Task],
    fractions: Fractions = Fractions(),
    seed: int = 0,
    *,
    leaked: Iterable[str] = (),
    leaked_to: Leaked = "keep",
) -> dict[str, Member]:
    """Family and split of each task, by the hash of its file.

    leaked: hashes of tasks that are in a benchmark. With leaked_to "test" all of their families are tested on, with
    "exclude" left out: whoever trains on a sister of a problem has trained on the problem.
    """
    family = families(tasks)
    marked = {family[sha] for sha in leaked if sha in family} if leaked_to != "keep" else set()
    forced = TEST if leaked_to == "test" else None
    return {
        sha: Member(name, forced if name in marked else split_of(name, fractions, seed)) for sha, name in family.items()
    }


def families(tasks: Iterable[Task]) -> dict[str, str]:
    """The family of each task, by the hash of its file. A family bears the name of its first task here, so
    that a later one does not rename it."""
    tasks = list(tasks)
    parent: dict[str, str] = {}

    def root(key: str) -> str:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    forms = Forms()
    for task in tasks:
        for key in (f"name {task.name}", f"model {model_form(task.source, forms)}"):
            parent[root(key)] = root(f"file {task.sha256}")
    first: dict[str, str] = {}
    for task in tasks:
        first.setdefault(root(f"file {task.sha256}"), task.name)
    return {task.sha256: first[root(f"file {task.sha256}")] for task in tasks}


def model_form(source: str, forms: Forms | None = None) -> str:
    """What a task computes, in words: its classes and functions without numbers and strings, not its inputs. For what
    is no Python the whole of its normal form."""
    tree = parse(source)
    kept = [node for node in tree.body if _computes(node)] if tree else []
    if kept:
        try:
            return node_form(ast.Module([_plain(node) for node in kept], []), constants=False)
        except RecursionError:
            pass
    return (forms or Forms()).of(source).text


def _computes(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and not node.name.startswith("get_"))


def _plain(node: ast.stmt) -> ast.stmt:
    """Without annotations, which some write and some do not."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            inner.returns = None
        elif isinstance(inner, ast.arg):
            inner.annotation = None
    return node


def counts(members: Mapping[str, Member]) -> dict[str, int]:
    """Families in each split; those left out under "excluded"."""
    found = {member.family: member.split or "excluded" for member in members.values()}
    return {split: list(found.values()).count(split) for split in (TRAIN, VALIDATION, TEST, "excluded")}
