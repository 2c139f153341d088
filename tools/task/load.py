"""Task files, read without running them: a KernelBench problem file plus optional CASES, PRECISION, INPUTS and so on.

Knows no torch: whatever needs the file's code to run (shapes, values, references) is `tools.judge.correctness.problem`.
"""

import ast
import difflib
import hashlib
import json
import operator
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kerneltune.tools.schema.codec import Json, decode, did_you_mean, expression_tree, one_line, read_file, syntax_tree
from kerneltune.tools.schema.errors import TaskError
from kerneltune.tools.schema.task import POINTER_ALIGNMENT, Contract, TaskSpec

MAIN = "main"
SMALL = "small"  # the case that a file gets when its own sizes are too large for a CPU
PRECISIONS = ("float64", "float32", "tf32_ok", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
INPUT_KINDS = {
    "any": "any finite value of its dtype; an integer or a boolean: any value that the task's own inputs show",
    "positive": "any finite value above zero",
    "special": "any value, NaN and infinities too: the op defines them",
    "own": "values with a structure that matters: always the task's own",
}
_MOST_SLACK = 1 << 16  # elements, of a pitch too
_MOST_ALIGNMENT = 512  # bytes: as the judge's buffers lie
_BUILTIN_DIR = Path(__file__).parent.with_name("tasks")
TABLE = _BUILTIN_DIR / "described.json"  # by sha256 of the file: TaskSpec without its source
_EXTRAS = ("CASES", "PRECISION", "INPUTS", "NOTES", "WEIGHT")
_LONGEST_NAME = 100  # characters; a folder of a run is named after its task
FLAGS = ("name", "held_out", "cpu", "weight")  # of a case; everything else in it is a constant


@dataclass(frozen=True)
class CaseDef:
    """A case as declared: which module-level constants it replaces. `cpu`: small enough for the interpreter; `weight`:
    how often it occurs where the kernel is used, compared with the others; 0: it is not timed."""

    name: str
    overrides: tuple[tuple[str, Json], ...] = ()
    held_out: bool = False
    cpu: bool = False
    weight: float = 0.0


@dataclass(frozen=True)
class TaskFile:
    """A task before any of its code has run. `precision` is None when the file does not declare one; `declared`
    says whether the file lists CASES of its own; `inputs` holds what may be fed to forward, by position;
    `contracts` what is promised of the memory of its arguments."""

    name: str
    path: Path
    source: str
    sha256: str
    cases: tuple[CaseDef, ...]
    precision: str | None = None
    notes: str = ""
    declared: bool = False
    inputs: tuple[tuple[int, str], ...] = ()  # a kind of INPUT_KINDS; positions that are not declared are inferred
    contracts: tuple[Contract, ...] = ()

    def __hash__(self) -> int:
        return hash((self.path, self.sha256))  # overrides may hold lists

    def case(self, name: str) -> CaseDef:
        """The case of that name; raises TaskError."""
        for case in self.cases:
            if case.name == name:
                return case
        raise TaskError(f"{self.name}: no case {name!r}; known cases: {', '.join(c.name for c in self.cases)}")


def with_small(task: TaskFile, overrides: Mapping[str, Json]) -> TaskFile:
    """The task with a further case of these constants, for the interpreter."""
    return replace(task, cases=(*task.cases, CaseDef(SMALL, tuple(overrides.items()), cpu=True)))


def unchanged_task(path: str, sha256: str) -> TaskFile:
    """The task file that had that hash when it was read first. Raises TaskError where it has another one by now: what
    is stored of a run says which task was judged."""
    file = find_task(path)
    if file.sha256 != sha256:
        raise TaskError(
            f"{file.path} was edited while a run on it went on (its sha256 was {sha256[:12]}, and is "
            f"{file.sha256[:12]} now), so it is another task; begin a new run, or restore the file"
        )
    return file


def find_task(name_or_path: str) -> TaskFile:
    """A built-in task by name, or any task file by path. Raises TaskError with one line that says what is wrong."""
    builtin = _BUILTIN_DIR / f"{name_or_path}.py"
    if name_or_path.isidentifier() and os.path.isfile(builtin):  # Path.is_file raises for a name of 300 letters
        return read_task(builtin)
    path = Path(os.path.expanduser(name_or_path))
    if os.path.isfile(path):
        return read_task(path)
    if os.path.isdir(path) or path.suffix == ".py" or len(path.parts) > 1:
        raise TaskError(f"no task file at {name_or_path!r:.500}" + (": it is a folder" if os.path.isdir(path) else ""))
    raise TaskError(_unknown(name_or_path))


def _unknown(name: str) -> str:
    known = builtin_names()
    hint = did_you_mean(name, known, lead="; ") or ";"
    shown = f"{name!r:.{_LONGEST_NAME}}"
    return f"no task {shown}{hint} `optimize tasks` lists all {len(known)}; or give the path of a KernelBench file"


def builtin_tasks() -> list[TaskFile]:
    """The tasks that ship, by name."""
    return [read_task(_BUILTIN_DIR / f"{name}.py") for name in builtin_names()]


def described(file: TaskFile) -> TaskSpec | None:
    """Return a built-in task as data, from a table that a test holds against the references, which take 8 s to run;
    None for another file, and for one that has changed since."""
    found = _table().get(file.sha256)
    return None if found is None else decode(TaskSpec, found | {"source": visible_source(file)})


@cache
def _table() -> dict[str, Json]:
    return dict(json.loads(TABLE.read_text()))


def builtin_names() -> list[str]:
    """Names of the tasks that ship."""
    return sorted(p.stem for p in _BUILTIN_DIR.glob("*.py") if p.stem != "__init__")


def not_python(path: Path, error: SyntaxError | UnicodeDecodeError) -> TaskError:
    """Say why a file cannot be parsed."""
    if isinstance(error, SyntaxError) and error.lineno:
        return TaskError(f"{path}, line {error.lineno}: {error.msg}")
    return TaskError(f"{path} is not a Python file: {error}")


def read_task(path: Path) -> TaskFile:
    """Read a task file without running it."""
    try:
        data = read_file(path)
        source = data.decode()
        tree = syntax_tree(source, str(path))
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise not_python(path, error) from error
    _require_parts(path, tree)
    _require_said_once(path, tree)
    extras = {name: node for name, node in assignments(tree) if name in _EXTRAS}
    inputs, contracts = _inputs(path, tree, extras.get("INPUTS"))
    return TaskFile(
        name=task_name(path.stem),
        path=path.resolve(),
        source=source,
        sha256=hashlib.sha256(data).hexdigest(),
        cases=(
            CaseDef(MAIN, weight=_main_weight(path, extras.get("WEIGHT"))),
            *_cases(path, tree, extras.get("CASES")),
        ),
        precision=_precision(path, extras.get("PRECISION")),
        notes=_text(path, extras.get("NOTES")),
        declared="CASES" in extras,
        inputs=inputs,
        contracts=contracts,
    )


def task_name(stem: str) -> str:
    """The name of the task in a file of that name: one plain word, since runs, folders and commands are named so."""
    return re.sub(r"[^\w.+-]+", "_", one_line(stem)).lstrip(".-")[:_LONGEST_NAME] or "task"


def _require_parts(path: Path, tree: ast.Module) -> None:
    names = {alias.asname or alias.name for n in tree.body if isinstance(n, ast.ImportFrom) for alias in n.names}
    names |= {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    names |= {name for name, _ in assignments(tree)}
    parts = {"Model": "class Model(torch.nn.Module)", "get_inputs": "get_inputs()"}
    if missing := [text for name, text in parts.items() if name not in names]:
        raise TaskError(f"{path} is not a task: it does not define {' nor '.join(missing)} (KernelBench format)")


_CHANGING = ("append", "extend", "insert", "update", "setdefault", "pop", "remove", "clear")


def _require_said_once(path: Path, tree: ast.Module) -> None:
    """Refuse what the file makes of CASES after it is given: it is read, not run, so that would be lost."""
    seen = set[str]()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) or (isinstance(node, ast.AnnAssign) and not node.value):
            continue
        names = [name for name, _ in assignments(ast.Module([node], []))]
        for name in names if names else _touched(node):
            if name in _EXTRAS and (not names or name in seen):
                raise TaskError(f"{path}, line {node.lineno}: {name} is read, not run: give it once, as one literal")
        seen.update(names)


def _touched(node: ast.AST) -> Iterator[str]:
    """Names that a statement gives a value, or whose value it changes."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.Subscript) and not isinstance(inner.ctx, ast.Load):
            yield from (n.id for n in ast.walk(inner.value) if isinstance(n, ast.Name))
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _CHANGING:
            yield from (n.id for n in ast.walk(inner.func.value) if isinstance(n, ast.Name))


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Top-level `NAME = value`, also annotated and tuple-wise (`M, N = 1, 2`)."""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _pairs(target, node.value)


def _classes(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}


def lineage(tree: ast.Module, name: str) -> list[ast.ClassDef]:
    """The class of that name at the top level of a file and those of the same file that it inherits from, in the order
    in which Python looks into them; none where there is no such class."""
    known, done, seen = _classes(tree), list[ast.ClassDef](), set[str]()
    left = [(name, False)] if name in known else []
    while left:  # a file may have a chain of any length
        one, are_bases_done = left.pop()
        if are_bases_done:
            done.append(known[one])
        elif one not in seen:  # or claim that a class inherits from itself
            seen.add(one)
            bases = [b.value if isinstance(b, ast.Subscript) else b for b in known[one].bases]  # Base[T]
            left.append((one, True))
            left += [(b.id, False) for b in bases if isinstance(b, ast.Name) and b.id in known]
    return done[::-1]


def class_named(tree: ast.Module, name: str) -> ast.ClassDef | None:
    """The class of that name at the top level of a file."""
    return _classes(tree).get(name)


def method_named(name: str, *classes: ast.ClassDef | None) -> ast.FunctionDef | None:
    """The method of the first of these classes that has one of that name; None is a class that was not found."""
    found = (n for one in classes if one for n in one.body if isinstance(n, ast.FunctionDef) and n.name == name)
    return next(found, None)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, its_value in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, its_value)


def _literal(path: Path, name: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise TaskError(f"{path}, line {node.lineno}: {name} must be a literal: it is read, not run") from error


def _main_weight(path: Path, node: ast.expr | None) -> float:
    found = 1.0 if node is None else _weight(path, MAIN, _literal(path, "WEIGHT", node))
    if not found:
        raise TaskError(f"{path}: WEIGHT = 0, but the case {MAIN!r} is always timed; give a number above 0")
    return found


def _weight(path: Path, case: str, value: Any) -> float:
    """A case's weight. Raises TaskError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise TaskError(f"{path}: case {case!r:.100} has the weight {value!r:.40}; give a number of at least 0")
    return float(value)


def _precision(path: Path, node: ast.expr | None) -> str | None:
    if node is None:
        return None
    value = _literal(path, "PRECISION", node)
    if value not in PRECISIONS:
        raise TaskError(f"{path}, line {node.lineno}: PRECISION = {value!r} is not one of {', '.join(PRECISIONS)}")
    return str(value)


def _text(path: Path, node: ast.expr | None) -> str:
    value = "" if node is None else _literal(path, "NOTES", node)
    if not isinstance(value, str):
        raise TaskError(f"{path}: NOTES must be a string, not {type(value).__name__}")
    return value


def _inputs(
    path: Path, tree: ast.Module, node: ast.expr | None
) -> tuple[tuple[tuple[int, str], ...], tuple[Contract, ...]]:
    """What may be fed to arguments of forward, and what is promised of their memory."""
    value = {} if node is None else _literal(path, "INPUTS", node)
    if not isinstance(value, dict):
        raise TaskError(f"{path}: INPUTS must be a dict of forward's arguments, not {type(value).__name__}")
    known = _forward_arguments(tree)
    kinds: dict[int, str] = {}
    contracts: dict[int, Contract] = {}
    seen = set[int]()
    for name, said in value.items():
        place = _position(path, name, known)
        if place in seen:
            raise TaskError(f"{path}: INPUTS names argument {place} of forward twice")
        seen.add(place)
        promised = dict(said) if isinstance(said, dict) else {"values": said}
        if "values" in promised:
            kinds[place] = _kind(path, name, promised.pop("values"))
        if promised:
            contracts[place] = _contract(path, place, known[place] if known else f"input {place}", promised)
    return tuple(sorted(kinds.items())), tuple(contracts[place] for place in sorted(contracts))


def _kind(path: Path, name: Any, kind: Any) -> str:
    if not isinstance(kind, str) or kind not in INPUT_KINDS:
        meanings = "; ".join(f"{word!r} ({meaning})" for word, meaning in INPUT_KINDS.items())
        raise TaskError(f"{path}: INPUTS[{name!r}] = {kind!r:.100} is not one of {meanings}")
    return kind


def _contract(path: Path, position: int, name: str, promised: dict[Any, Any]) -> Contract:
    """The contract of an argument. Raises TaskError."""
    limits = {"slack": (0, _MOST_SLACK), "pitch": (1, _MOST_SLACK), "alignment": (1, _MOST_ALIGNMENT)}
    for key, value in promised.items():
        if key not in limits:
            hint = did_you_mean(str(key), limits, lead="; ")
            raise TaskError(f"{path}: INPUTS[{name!r}] has {key!r:.100}; known are values, {', '.join(limits)}{hint}")
        low, high = limits[key]
        if type(value) is not int or not low <= value <= high:
            raise TaskError(
                f"{path}: INPUTS[{name!r}]: {key} = {value!r:.40} is not a whole number from {low} to {high}"
            )
    alignment = promised.get("alignment", POINTER_ALIGNMENT)
    if alignment & (alignment - 1):
        raise TaskError(f"{path}: INPUTS[{name!r}]: an alignment of {alignment} bytes is not a power of two")
    return Contract(position, name, promised.get("slack", 0), promised.get("pitch", 1), alignment)


def _position(path: Path, name: Any, known: Sequence[str] | None) -> int:
    """Return the position of an argument of forward, given by name or by position."""
    if type(name) is int and name >= 0 and (known is None or name < len(known)):
        return name
    if known is None:
        raise TaskError(f"{path}: INPUTS[{name!r}]: forward's arguments cannot be read from the file; use positions")
    if name in known:
        return known.index(name)
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise TaskError(f"{path}: INPUTS names {name!r}; forward takes {', '.join(known) or 'nothing'}{hint}")


def _forward_arguments(tree: ast.Module) -> list[str] | None:
    """Names of the arguments of Model.forward; None when the file does not spell them out (imported, *args)."""
    forward = method_named("forward", class_named(tree, "Model"))
    if forward is None or forward.args.vararg is not None:
        return None
    return [a.arg for a in (*forward.args.posonlyargs, *forward.args.args)][1:]


def _cases(path: Path, tree: ast.Module, node: ast.expr | None) -> tuple[CaseDef, ...]:
    if node is None:
        return ()
    value = _literal(path, "CASES", node)
    if not isinstance(value, list | tuple) or not all(isinstance(item, dict) for item in value):
        raise TaskError(f"{path}, line {node.lineno}: CASES must be a list of dicts")
    known = {name for name, _ in assignments(tree)} - {"CASES", "INPUTS", "NOTES", "WEIGHT"}
    cases = tuple(_case(path, item, known) for item in value)
    names = Counter([MAIN, *(c.name for c in cases)])
    if twice := sorted(name for name, times in names.items() if times > 1):
        raise TaskError(f"{path}: two cases are called {twice[0]!r:.100} ({MAIN!r} is the file's own constants)")
    return cases


def _case(path: Path, item: dict[Any, Any], known: Set[str]) -> CaseDef:
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise TaskError(f"{path}: a case has no name: {item!r:.100}")
    overrides = tuple((key, value) for key, value in item.items() if key not in FLAGS)
    for key, value in overrides:
        if key not in known:
            hint = did_you_mean(str(key), known, lead="; ")
            raise TaskError(f"{path}: case {name!r:.100} sets {key!r:.100}, which is not a constant of the file{hint}")
        if key == "PRECISION" and value not in PRECISIONS:
            raise TaskError(f"{path}: case {name!r}: PRECISION {value!r} is not one of {', '.join(PRECISIONS)}")
    weight = _weight(path, name, item.get("weight", 0))
    return CaseDef(name, overrides, bool(item.get("held_out", False)), bool(item.get("cpu", False)), weight)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: lambda base, exponent: base**exponent if 0 <= exponent < 64 and abs(base) < 1 << 64 else 0,
    ast.LShift: lambda base, bits: base << bits if 0 <= bits < 64 else 0,
}


def int_constants(source: str) -> dict[str, int | tuple[int, ...]]:
    """Top-level constants that are ints or tuples of ints (`4 * 1024` counts, `2 * rows` is derived and does not)."""
    found: dict[str, int | tuple[int, ...]] = {}
    for name, node in assignments(syntax_tree(source)):
        value = tuple(map(_int, node.elts)) if isinstance(node, ast.Tuple | ast.List) else _int(node)
        if isinstance(value, int) or (value and all(item is not None for item in value)):
            found[name] = value  # type: ignore[assignment]
    return found


def _int(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _int(node.left), _int(node.right)
        if left is None or right is None or (isinstance(node.op, ast.FloorDiv) and right == 0):
            return None
        return _OPERATORS[type(node.op)](left, right)
    return None


def replaced_by_cases(tree: ast.Module) -> dict[str, dict[str, Json]]:
    """What each case of a task file puts in the place of top-level constants, by the case's name."""
    listed = dict(assignments(tree)).get("CASES")
    cases = ast.literal_eval(listed) if listed is not None else []
    return {MAIN: {}} | {c["name"]: {k: v for k, v in c.items() if k not in FLAGS} for c in cases}


def with_overrides(source: str, overrides: Mapping[str, Json]) -> ast.Module:
    """The file's syntax tree with the values of top-level constants replaced; what is derived from them follows."""
    tree = syntax_tree(source)
    tree.body = [new for node in tree.body for new in (node, *_again(node, overrides))]
    return tree


def _again(node: ast.stmt, overrides: Mapping[str, Json]) -> Iterator[ast.stmt]:
    """What a statement of the top level gives values to, with those that count. It runs before them: in `M = N = 4`
    names share a value, and in `if …: N = 4` one has none that could be replaced."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return
    stored = (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    for name in dict.fromkeys(name for name in stored if name in overrides):
        again = ast.Assign([ast.Name(name, ast.Store())], _constant(overrides[name], node))
        yield ast.fix_missing_locations(ast.copy_location(again, node))


def _constant(value: Json, at: ast.AST) -> ast.expr:
    """`value` as an expression at the place of `at`, so that error messages keep their line numbers."""
    expression = expression_tree(repr(value))
    for node in ast.walk(expression):
        ast.copy_location(node, at)
    return expression


def visible_source(task: TaskFile) -> str:
    """The file as an author may see it: without the entries of held-out cases and the comments on them."""
    listed = dict(assignments(syntax_tree(task.source))).get("CASES")
    hidden = {case.name for case in task.cases if case.held_out}
    if not hidden or not isinstance(listed, ast.List | ast.Tuple):
        return task.source
    lines = task.source.encode().splitlines(keepends=True)
    shown = [item for item in listed.elts if ast.literal_eval(item).get("name") not in hidden]
    for item in reversed(listed.elts):
        if item not in shown:
            _cut(lines, item, listed.lineno)
    text = b"".join(lines).decode()
    return text if _lists(text, shown) else _written_anew(task.source, listed, shown)


def _lists(source: str, cases: Sequence[ast.expr]) -> bool:
    """Whether these are its cases."""
    try:
        listed = dict(assignments(syntax_tree(source))).get("CASES")
    except SyntaxError:
        return False
    return isinstance(listed, ast.List | ast.Tuple) and [*map(ast.dump, listed.elts)] == [*map(ast.dump, cases)]


def _written_anew(source: str, listed: ast.expr, cases: Sequence[ast.expr]) -> str:
    """The source with other cases, for a list in which a comma or a bracket stands where nobody looks for one."""
    lines = source.encode().splitlines(keepends=True)
    first, last = listed.lineno - 1, (listed.end_lineno or listed.lineno) - 1
    new = ast.unparse(ast.List([*cases], ast.Load())).encode()
    lines[first : last + 1] = [lines[first][: listed.col_offset] + new + lines[last][listed.end_col_offset :]]
    return b"".join(lines).decode()


def _cut(lines: list[bytes], node: ast.expr, below: int) -> None:
    """Remove an element of a list display, its comma, the comments in, behind and directly above it, but none above the
    line that it lies `below`; and, when nothing else is left on it, its line."""
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    tail = tail.lstrip().removeprefix(b",") if tail.lstrip().startswith(b",") else tail
    tail = b"\n" if tail.lstrip().startswith(b"#") else tail
    while not head.strip() and first > below and lines[first - 1].strip()[:1] in (b"#", b""):
        first -= 1
    rest = head + tail
    lines[first : last + 1] = [rest] if rest.strip() else []
