"""Whether a task, or a source, is one of the problems of a benchmark that somebody will be measured with.

Four questions, over texts without comments and docstrings. Are the words the same (Jaccard of the sets of words, 0.8
by default, as other data sets have it)? Does a method have the body of the problem's `forward`, whatever its names and
constants? Does the Model do the same operations, as often (`F.layer_norm` is `nn.LayerNorm`; shapes, parameters and
their names do not count)? Is the problem contained, its 5-grams of tokens among those of the source? One problem is
named; where a benchmark has sisters of it (matrix products of many shapes, say), it may be one of those.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agent.export.normalise import Form, Forms
from agent.export.trees import body_form, parse
from tools.errors import UsageError

JACCARD = 0.8
CONTAINED = 0.9  # of a problem's 5-grams
_GRAM = 5
_FEWEST_GRAMS = 20  # a shorter problem is contained in much that has nothing to do with it
_SHORTEST_BODY = 90  # characters of its form; `return x + y` is no problem's own
_NO_OPERATIONS = frozenset(  # of a constructor, of shapes, of dtypes
    "init super parameter registerbuffer ones zeros randn rand empty tensor full arange size dim view reshape"
    " contiguous to float half bfloat16 len range int tuple list manualseed".split()
)
_MOST_FILES = 100_000
_MOST_BYTES = 1_000_000

How = Literal["words", "body", "operations", "contained"]


@dataclass(frozen=True)
class Leak:
    """`problem`: path of its file below the folder, without the ending. `score`: 0 to 1, of what `how` says: Jaccard of
    words, share of its 5-grams, or 1 for what is equal."""

    problem: str
    score: float
    how: How


@dataclass(frozen=True)
class _Known:
    """What is looked for of one text."""

    words: frozenset[str]
    grams: frozenset[int]
    bodies: frozenset[str]
    operations: str


class Benchmark:
    """The problems of a benchmark, ready for comparison. Answers are remembered by source: many runs share a task."""

    def __init__(self, problems: Iterable[tuple[str, str]], *, jaccard: float = JACCARD) -> None:
        """problems: name and source of each. Raises UsageError when jaccard is not within (0, 1]."""
        if not 0 < jaccard <= 1:
            raise UsageError(f"a word-Jaccard of {jaccard} cannot be asked for; it lies above 0 and is at most 1")
        self._forms = Forms()
        self._jaccard = jaccard
        named = sorted((name, self._known(source, forward_only=True)) for name, source in problems)
        self.names = tuple(name for name, _ in named)
        self._grams = [known.grams for _, known in named]
        self._column = {w: i for i, w in enumerate(sorted(frozenset().union(*(k.words for _, k in named))))}
        self._words = np.zeros((len(named), len(self._column)), bool)
        for row, (_, known) in enumerate(named):
            self._words[row, [self._column[w] for w in known.words]] = True
        self._sizes = self._words.sum(axis=1)
        self._holders: dict[int, list[int]] = {}  # 5-gram: problems that have it
        for row, (_, known) in enumerate(named):
            for gram in known.grams if len(known.grams) >= _FEWEST_GRAMS else ():
                self._holders.setdefault(gram, []).append(row)
        self._body = {body: name for name, known in reversed(named) for body in known.bodies}
        self._doing = {known.operations: name for name, known in reversed(named) if known.operations}
        self._answers: dict[str, Leak | None] = {}

    def of(self, source: str) -> Leak | None:
        """The problem that a task or a source is, nearly is, or holds; None when there is none."""
        if source not in self._answers:
            if len(self._answers) >= 10_000:
                self._answers.clear()
            self._answers[source] = self._found(source)
        return self._answers[source]

    def nearest(self, source: str) -> Leak | None:
        """The problem with the most similar words, however far; None without problems or words."""
        known = self._known(source)
        if not self.names or not known.words:
            return None
        shared = self._words[:, [c for w in known.words if (c := self._column.get(w)) is not None]].sum(axis=1)
        scores: NDArray[np.float64] = shared / np.maximum(1, self._sizes + len(known.words) - shared)
        best = int(scores.argmax())
        return Leak(self.names[best], round(float(scores[best]), 4), "words")

    def _found(self, source: str) -> Leak | None:
        known = self._known(source)
        near = self.nearest(source)
        if near and near.score >= self._jaccard:
            return near
        for body in sorted(known.bodies):
            if body in self._body:
                return Leak(self._body[body], 1.0, "body")
        if known.operations in self._doing:
            return Leak(self._doing[known.operations], 1.0, "operations")
        return self._contained(known.grams)

    def _contained(self, grams: frozenset[int]) -> Leak | None:
        held: dict[int, int] = {}
        for gram in grams:
            for row in self._holders.get(gram, ()):
                held[row] = held.get(row, 0) + 1
        shares = {row: n / len(self._grams[row]) for row, n in held.items()}
        best = min(shares, key=lambda row: (-shares[row], row), default=None)
        if best is None or shares[best] < CONTAINED:
            return None
        return Leak(self.names[best], round(shares[best], 4), "contained")

    def _known(self, source: str, *, forward_only: bool = False) -> _Known:
        form = self._forms.of(source)
        words = frozenset(word.lower() for word in form.text.split() if word.isidentifier() or word.isdigit())
        tree = parse(source) if "def " in source else None
        operations = _operations(tree) if tree else ""
        bodies = frozenset(_bodies(tree, forward_only=forward_only)) if tree else frozenset()
        return _Known(words, _grams(form), bodies, operations)


def load(folder: Path) -> list[tuple[str, str]]:
    """Names and sources of the problems in a folder and those below it: every Python file that defines a Model, as
    KernelBench's do. Raises UsageError when there is none, or the folder cannot be read."""
    if not folder.is_dir():
        raise UsageError(f"no folder {str(folder)!r}: wanted one with benchmark problems, such as KernelBench's")
    try:
        paths = sorted(p for p in folder.rglob("*.py") if p.is_file())[:_MOST_FILES]
        read = [(p.relative_to(folder).with_suffix("").as_posix(), _text(p)) for p in paths]
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    found = [(name, source) for name, source in read if "class Model" in source]
    if not found:
        raise UsageError(f"{str(folder)!r} holds no benchmark problem: no Python file there has a `class Model`")
    return found


def _text(path: Path) -> str:
    return path.read_bytes()[:_MOST_BYTES].decode(errors="replace")


def _grams(form: Form) -> frozenset[int]:
    tokens = np.frombuffer(form.words, "<u4").astype(np.uint64)
    if len(tokens) < _GRAM:
        return frozenset()
    grams = np.zeros(len(tokens) - _GRAM + 1, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(_GRAM):
            grams = grams * np.uint64(0x9E3779B97F4A7C15) + tokens[i : i + len(grams)]
    return frozenset(grams.tolist())


def _bodies(tree: ast.Module, *, forward_only: bool) -> Iterator[str]:
    """Forms of the bodies of functions, which are changed. A candidate may have the reference under another name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (node.name == "forward" or not forward_only):
            form = body_form(node)
            if form is not None and len(form) >= _SHORTEST_BODY:
                yield form


def _operations(tree: ast.Module) -> str:
    """What the class Model computes, sorted; "" without one. Of its constructor, only modules that it makes count."""
    model = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Model"), None)
    found: list[str] = []
    for method in model.body if model else ():
        makes = isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for node in ast.walk(method):
            if isinstance(node, ast.BinOp) and not makes:
                found.append(type(node.op).__name__)
            elif isinstance(node, ast.Call):
                name = _called(node.func)
                found.append(name if name[:1].isupper() or not makes else "")
    plain = (name.lower().replace("_", "").replace("matmult", "matmul") for name in found)
    return " ".join(sorted(name for name in plain if name and name not in _NO_OPERATIONS))


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        own = isinstance(function.value, ast.Name) and function.value.id == "self"
        return "" if own else function.attr
    return function.id if isinstance(function, ast.Name) else ""
