"""Which sources say the same, which tasks are one family, and which are a benchmark's problems.

Exactly the same: equal lexemes without comments, docstrings and layout. Nearly the same: about 0.8 of their 5-grams of
lexemes are, with their names or without (MinHash, by rensa). `rensa` is of the extra `export`.
"""

import ast
import keyword
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kerneltune.tools.schema.codec import leads_within, syntax_tree
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.task.load import class_named

if TYPE_CHECKING:
    from rensa import RMinHash

JACCARD = 0.8
TRAIN, VALIDATION, TEST = "train", "validation", "test"
Leaked = Literal["keep", "test", "exclude"]
_PERMUTATIONS, _SEED, _GRAM = 128, 20260101, 5
_MOST_CHARACTERS = 200_000
_MOST_OF_A_STATEMENT = 20_000  # characters of a physical line
_NESTED = re.compile(r"(?:(?:[-+~(\[{]|not\s|lambda\b[^:\n]{0,80}:|await\s)\s*){60}")  # as no honest source is
_LEXEME = re.compile(  # every alternative that begins to match goes on to an end, so that nothing is read twice
    r'''(?i:[rbfu]{0,2})"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:"""|\Z)'''
    r"""|(?i:[rbfu]{0,2})'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(?:'''|\Z)"""
    r"""|(?i:[rbfu]{0,2})"(?:[^"\\\n]|\\.)*"?|(?i:[rbfu]{0,2})'(?:[^'\\\n]|\\.)*'?"""
    r"|\w+|#[^\n]*|\n[ \t\f]*|[^\S\n]+|\\(?:\n[ \t\f]*)?|[^\w\s]",
    re.DOTALL,
)
_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def parse(source: str) -> ast.Module | None:
    """The tree of a source, or None for one that is no Python, or too deep or too long to be parsed without danger: a
    model wrote it, it is parsed in this process, and the parser's stack is C's."""
    if len(source) > _MOST_CHARACTERS or _NESTED.search(source):
        return None
    if len(source) > _MOST_OF_A_STATEMENT and max(map(len, source.split("\n"))) > _MOST_OF_A_STATEMENT:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in strings
            return syntax_tree(source)
    except SyntaxError:
        return None


def lexemes(source: str) -> list[str]:
    """What a source says, without comments, docstrings and layout: the lexemes of each statement behind a mark for its
    depth. Any text has lexemes, in time linear in its length, and none is parsed: 0.25 ms for 2.3 kB, where `ast.parse`
    and `ast.unparse` take 0.85 ms."""
    made: list[str] = []
    statement: list[str] = []
    indents, indent, depth = [0], 0, 0
    for lexeme in _LEXEME.findall(source.replace("\r\n", "\n").replace("\r", "\n") + "\n"):
        first = lexeme[0]
        if first in "# \\" or (first != "\n" and first.isspace()):
            continue
        if first != "\n":
            depth = max(depth + _BRACKETS.get(lexeme, 0), 0)
            statement.append(lexeme)
        elif depth == 0:
            if statement and not _says_nothing(statement):
                while indents[-1] > indent:
                    indents.pop()
                if indents[-1] < indent:
                    indents.append(indent)
                made.append(f"\n{len(indents)}")
                made += statement
            statement, indent = [], len(lexeme.expandtabs()) - 1
    return made + statement  # what a bracket that is never closed has swallowed


def _says_nothing(statement: Sequence[str]) -> bool:
    return len(statement) == 1 and (statement[0] == "pass" or statement[0][-1] in "'\"")


def _drop_docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> None:
    """Of a module, its classes and functions, however deep; also other statements that do nothing."""
    kept = [s for s in node.body if not isinstance(s, ast.Pass) and not _is_constant(s)]
    node.body = kept or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    for statement in kept:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            _drop_docstrings(statement)


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def renamed(said: Sequence[str]) -> list[str]:
    """The lexemes with numbers in the place of names, by the order of their first use: what other names would leave as
    it is. Words of Python and attributes stay, `tl.exp` for one."""
    numbers: dict[str, str] = {}
    before, made = "", []
    for lexeme in said:
        is_name = lexeme.isidentifier() and not keyword.iskeyword(lexeme) and before != "."
        made.append(numbers.setdefault(lexeme, f"${len(numbers)}") if is_name else lexeme)
        before = lexeme
    return made


def five_grams(said: Sequence[str]) -> set[str]:
    """The 5-grams of lexemes; of fewer, all of them."""
    tokens = [lexeme for lexeme in said if lexeme[0] != "\n"]
    return set(map(" ".join, zip(*(tokens[i:] for i in range(_GRAM)), strict=False))) or {" ".join(tokens)}


# Duplicates ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Duplicate:
    """What is known of one attempt. Ids are 16 hex digits; `near` is the `exact` of the first source it is like.
    `first`: nobody before it was the same, or nearly the same."""

    exact: str
    near: str
    exact_first: bool
    near_first: bool


class Duplicates:
    """Sees attempts in the order in which they count as first; then answers. Keeps some bytes for each attempt and a
    signature for each first of its kind."""

    def __init__(self) -> None:
        from rensa import RMinHash, RMinHashDeduplicator

        self._minhash = RMinHash
        # One for what is said, one for what is said but for names; whoever is like a source in either is its kin.
        self._indices = [RMinHashDeduplicator(JACCARD, _PERMUTATIONS, True, 16, _SEED) for _ in range(2)]
        self._near: dict[str, str] = {}  # of each exact id
        self._leaders: dict[str, int] = {}  # in the order in which they were seen
        self._of: dict[str, Duplicate] = {}
        self._exact_of: dict[bytes, str] = {}  # by the hash of the text: many attempts have the same

    def see(self, attempt_id: str, source: str) -> None:
        """The first pass. An attempt that was seen already counts once."""
        if attempt_id in self._of:
            return
        text = blake2b(source.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        exact = self._exact_of.get(text)
        first = False
        if exact is None:
            said = lexemes(source)
            exact = blake2b("\0".join(said).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
            self._exact_of[text] = exact
            first = exact not in self._near
            if first:
                self._near[exact] = self._leader(exact, said)
        near = self._near[exact]
        self._of[attempt_id] = Duplicate(exact, near, first, first and near == exact)

    def of(self, attempt_id: str) -> Duplicate:
        """The second pass. Raises KeyError for an attempt that was not seen."""
        return self._of[attempt_id]

    def _leader(self, exact: str, said: Sequence[str]) -> str:
        """The first source that this one is nearly the same as; itself where there is none."""
        signatures = [self._signature(five_grams(words)) for words in (said, renamed(said))]
        pairs = list(zip(self._indices, signatures, strict=True))
        found: list[str] = [leader for index, signature in pairs for leader in index.get_duplicates(signature)]
        if found:
            return min(found, key=self._leaders.__getitem__)
        for index, signature in pairs:
            index.add(exact, signature)
        self._leaders[exact] = len(self._leaders)
        return exact

    def _signature(self, grams: set[str]) -> "RMinHash":
        made = self._minhash(_PERMUTATIONS, _SEED)
        try:
            made.update(list(grams))
        except UnicodeEncodeError:  # lone surrogates
            made.update([gram.encode("utf-8", "replace").decode() for gram in grams])
        return made


class SameRows:
    """Tells which rows of a format say the same, in the order in which they are made. Keeps 8 bytes a row."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def of(self, name: str, texts: Sequence[object]) -> tuple[str, bool]:
        """Of a row of the format `name` that says these texts: an id of 16 hex digits, and whether it is its first."""
        said = "\1".join("\0".join(lexemes(text if isinstance(text, str) else str(text))) for text in texts)
        found = blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        first = (name, found) not in self._seen
        self._seen.add((name, found))
        return found, first


# Families and splits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Placement:
    """Where a task belongs in a data set. `split` is None for one that is left out; `leaked`: a benchmark problem."""

    family: str
    split: str | None
    leaked: str | None = None


@dataclass(frozen=True)
class Fractions:
    """Shares of the families, expected ones: each family draws its own lot. What is left is `train`."""

    validation: float = 0.1
    test: float = 0.1

    def __post_init__(self) -> None:
        shares = (self.validation, self.test)
        if not all(math.isfinite(s) and 0 <= s <= 1 for s in shares) or sum(shares) > 1:
            raise UsageError(
                f"--test {self.test:g} and --validation {self.validation:g}: shares lie within 0 and 1, "
                "and so does their sum"
            )


def split_of(family: str, fractions: Fractions = Fractions(), seed: int = 0) -> str:
    """The split of a family: a lot drawn by its name and the seed. So an export next week, with more tasks, moves no
    family to another split."""
    lot = int.from_bytes(sha256(f"{seed}\0{family}".encode("utf-8", "surrogatepass")).digest()[:8], "big") / 2**64
    if lot < fractions.test:
        return TEST
    return VALIDATION if lot < fractions.test + fractions.validation else TRAIN


def placements(
    tasks: Mapping[str, tuple[str, str]],
    fractions: Fractions = Fractions(),
    seed: int = 0,
    *,
    leaked: Mapping[str, str] = {},
    leaked_to: Leaked = "keep",
) -> dict[str, Placement]:
    """Where each task belongs, by the hash of its file.

    tasks: name and source by that hash, the oldest first. leaked: benchmark problems by hash. With leaked_to "test" all
    of their families are tested on, with "exclude" left out: whoever trains on a sister of a problem has trained on the
    problem.
    """
    family = families(tasks)
    marked = {family[sha] for sha in leaked if sha in family} if leaked_to != "keep" else set()
    forced = TEST if leaked_to == "test" else None
    return {
        sha: Placement(name, forced if name in marked else split_of(name, fractions, seed), leaked.get(sha))
        for sha, name in family.items()
    }


def families(tasks: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The family of each task, by the hash of its file. Tasks are one family when they share a name, a file, or a Model
    up to numbers: another shape or dtype of the same work teaches the answer. A family bears the name of its first
    task, so that a later one does not rename it."""
    members: dict[str, set[str]] = {sha: {sha} for sha in tasks}
    seen: dict[str, str] = {}
    for sha, (name, source) in tasks.items():
        for key in (f"name {name}", f"model {model_form(source)}"):
            fewer, more = sorted((members[seen.setdefault(key, sha)], members[sha]), key=len)
            if fewer is not more:
                more |= fewer
                members |= dict.fromkeys(fewer, more)
    named: dict[str, str] = {}
    for sha, (name, _) in tasks.items():
        if sha not in named:
            named |= dict.fromkeys(members[sha], name)
    return {sha: named[sha] for sha in tasks}


def model_form(source: str) -> str:
    """What a task computes: its classes and functions without numbers, strings and annotations, local names by their
    order; not its inputs. For what is no Python its lexemes."""
    tree = parse(source)
    kept = [node for node in tree.body if _computes(node)] if tree else []
    if kept:
        try:
            return " ".join(ast.dump(_renamed(node), annotate_fields=False) for node in kept)
        except RecursionError:
            pass
    return " ".join(lexemes(source))


def _computes(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and not node.name.startswith("get_"))


def _renamed(node: ast.stmt) -> ast.stmt:
    """The node, changed: see `model_form`."""
    names: dict[str, str] = {}
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        _drop_docstrings(node)
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            inner.returns = None
        elif isinstance(inner, ast.arg):
            inner.annotation = None
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            names.setdefault(inner.id, f"${len(names)}")
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            inner.id = names.get(inner.id, inner.id)
        elif isinstance(inner, ast.Constant) and not isinstance(inner.value, bool | None):
            inner.value, inner.kind = 0, None
    return node


# Benchmarks ---------------------------------------------------------------------------------------------------------

_CONTAINED = 0.9  # of a problem's 5-grams
_FEWEST_GRAMS = 20  # a shorter problem is contained in much that has nothing to do with it
_NO_OPERATIONS = frozenset(  # of a constructor, of shapes, of dtypes
    "init super parameter registerbuffer ones zeros randn rand empty tensor full arange size dim view reshape"
    " contiguous to float half bfloat16 len range int tuple list manualseed".split()
)
# What else an operation is called, and what it is made of. Signs, reciprocals and the bias of a linear layer do not
# tell a task from another; where its data lie does not, either.
_MADE_OF = {
    **dict.fromkeys(("mm", "bmm", "linear", "addmm", "baddbmm", "scaledmm"), "matmul"),
    **dict.fromkeys(("sub", "rsub", "subtract", "neg", "usub"), "add"),
    **dict.fromkeys(("div", "truediv", "divide", "multiply", "mul", "reciprocal"), "mult"),
    **{"square": "pow", "max": "amax", "min": "amin", "sqrtrsqrt": "sqrt", "rsqrt": "sqrt", "silu": "sigmoid mult"},
    "softmax": "amax add exp sum mult",
    "logsoftmax": "amax add exp sum log add",
    "logsumexp": "amax add exp sum log add",
    "rmsnorm": "pow mean add sqrt mult",
    "layernorm": "mean add pow mean add sqrt mult",
    "var": "mean add pow mean",
    "softplus": "exp add log",
    "mseloss": "add pow mean",
}
_LAYOUT = frozenset(
    "t transpose permute unsqueeze squeeze expand flatten unbind zip cat chunk split splitwithsizes stack".split()
)
_ARITHMETIC = frozenset(("add", "mult", "pow"))
_MOST_FILES = 100_000
_MOST_BYTES = 1_000_000


class Benchmark:
    """The problems of a benchmark, ready for comparison with tasks. A task is leaked when its words are a problem's
    (Jaccard of at least 0.8), when its Model does the same operations as often (`F.layer_norm` is `nn.LayerNorm`;
    shapes, parameters and their names do not count), as they are called or as what they are made of (a softmax is a
    maximum, a difference, exponentials, a sum and a quotient), or when it contains the problem, by 5-grams. One problem
    is named; where a benchmark has sisters of it (matrix products of many shapes, say), it may be one of those."""

    def __init__(self, problems: Iterable[tuple[str, str]]) -> None:
        named = sorted(problems)
        self._words = {name: _words(source) for name, source in named}
        self._grams = {name: five_grams(lexemes(source)) for name, source in named}
        self._operations = {ops: name for name, source in reversed(named) if (ops := _operations(source))}
        self._primitives = {ops: name for name, source in reversed(named) if (ops := _primitives(source))}

    def of(self, source: str) -> str | None:
        """The problem that a task is, nearly is, or holds; None when there is none."""
        words, grams = _words(source), five_grams(lexemes(source))
        near = max(self._words, key=lambda name: _jaccard(words, self._words[name]), default=None)
        if near is not None and _jaccard(words, self._words[near]) >= JACCARD:
            return near
        if (ops := _operations(source)) in self._operations:
            return self._operations[ops]
        if (made_of := _primitives(source)) in self._primitives:
            return self._primitives[made_of]
        held = (n for n, its in self._grams.items() if len(its) >= _FEWEST_GRAMS and _share(its, grams) >= _CONTAINED)
        return next(held, None)


def _jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one and other else 0.0


def _share(part: set[str], whole: set[str]) -> float:
    return len(part & whole) / len(part)


def _words(source: str) -> frozenset[str]:
    return frozenset(lexeme.lower() for lexeme in lexemes(source) if lexeme.isidentifier() or lexeme.isdigit())


def _operations(source: str) -> str:
    """What the class Model computes, sorted; "" without one. Of its constructor, only modules that it makes count."""
    tree = parse(source)
    model = class_named(tree, "Model") if tree else None
    plain = (
        name.lower().replace("_", "").replace("matmult", "matmul") for name in _called(model.body if model else ())
    )
    return " ".join(sorted(name for name in plain if name and name not in _NO_OPERATIONS))


def _primitives(source: str) -> str:
    """The same in terms of what operations are made of; "" where nothing but arithmetic is left."""
    found = " ".join(_MADE_OF.get(name, name) for name in _operations(source).split() if name not in _LAYOUT).split()
    return " ".join(sorted(found)) if set(found) - _ARITHMETIC else ""


def _called(methods: Sequence[ast.stmt]) -> Iterator[str]:
    for method in methods:
        makes = isinstance(method, ast.FunctionDef) and method.name == "__init__"
        for node in ast.walk(method):
            if isinstance(node, ast.BinOp) and not makes:
                yield type(node.op).__name__
            elif isinstance(node, ast.Call):
                name = _function_name(node.func)
                if name[:1].isupper() or not makes:
                    yield name


def _function_name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        own = isinstance(function.value, ast.Name) and function.value.id == "self"
        return "" if own else function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES)


def load_problems(folder: Path) -> list[tuple[str, str]]:
    """Names and sources of the problems in a folder and those below it: every Python file that defines a Model, as
    KernelBench's do. Raises UsageError when there is none, or the folder cannot be read."""
    if not folder.is_dir():
        raise UsageError(f"no folder {str(folder)!r}: wanted one with benchmark problems, such as KernelBench's")
    try:
        paths = sorted(p for p in folder.rglob("*.py") if p.is_file() and leads_within(folder, p))[:_MOST_FILES]
        read = [
            (p.relative_to(folder).with_suffix("").as_posix(), _beginning(p).decode(errors="replace")) for p in paths
        ]
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    found = [(name, source) for name, source in read if "class Model" in source]
    if not found:
        raise UsageError(f"{str(folder)!r} holds no benchmark problem: no Python file there has a `class Model`")
    return found
