"""One self-contained file out of other people's modules: the definitions that are asked for and all that they need.

    text = Inliner({"liger_kernel": Path("liger/liger_kernel")}).source([(path, ["LigerRMSNormFunction"])])

Read with `ast` and `dis`, never run. Of each module the top-level statements that bind a needed name are kept as they
are written, in their order; whatever else a file does when it is run (tests, prints, benchmarks) is left out. An import
from a package that is inlined becomes the definitions of that module, once, before the statement that needs them.
"""

import ast
import dis
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import CodeType

_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}
_STORES = {"STORE_NAME"}


class InlineError(ValueError):
    """A module that cannot be joined; the message names it and what is in the way."""


@dataclass(frozen=True)
class Statement:
    """One top-level statement: its text, the names that it binds, and the names that it or its functions look up."""

    text: str
    binds: frozenset[str]
    needs: frozenset[str]
    node: ast.stmt


@dataclass
class Inliner:
    """Joins modules. `packages` maps the name of a package that is to be inlined to its folder."""

    packages: Mapping[str, Path] = field(default_factory=dict)
    _owners: dict[str, Path] = field(default_factory=dict, init=False)
    _done: set[tuple[Path, int]] = field(default_factory=set, init=False)

    def source(self, wanted: Iterable[tuple[Path, Sequence[str]]]) -> str:
        """The text of the definitions named in each file, with all that they need. Raises InlineError."""
        self._owners, self._done = {}, set()
        return "\n\n".join(part for path, names in wanted for part in self._parts(path, names)) + "\n"

    def _parts(self, path: Path, names: Sequence[str]) -> Iterator[str]:
        module = Module(path)
        keep = module.needed(names)
        if missing := set(names) - module.bound:
            raise InlineError(f"{path.name} does not define {', '.join(sorted(missing))}")
        for at, statement in enumerate(module.statements):
            if at in keep and (path, at) not in self._done:
                self._done.add((path, at))
                yield from self._part(path, statement)

    def _part(self, path: Path, statement: Statement) -> Iterator[str]:
        node = statement.node
        inlined = isinstance(node, ast.ImportFrom) and self._file(node)
        if isinstance(node, ast.ImportFrom) and inlined:
            yield from self._parts(inlined, [alias.name for alias in node.names])
            yield from (f"{a.asname} = {a.name}" for a in node.names if a.asname)
            return
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.If | ast.Try):
            self._claim(path, statement.binds)
        yield statement.text

    def _file(self, node: ast.ImportFrom) -> Path | None:
        """The file that an import names, if it lies in a package that is inlined."""
        package, *rest = (node.module or "").split(".")
        if package not in self.packages:
            return None
        found = self.packages[package].joinpath(*rest)
        return found / "__init__.py" if found.is_dir() else found.with_suffix(".py")

    def _claim(self, path: Path, names: Iterable[str]) -> None:
        """In one file, two definitions of one name would overwrite each other."""
        for name in names:
            if self._owners.setdefault(name, path) != path:
                raise InlineError(f"{path.name} and {self._owners[name].name} both define {name}")


@dataclass(frozen=True)
class Module:
    """A module as its top-level statements."""

    path: Path

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """All of them, in order."""
        text = self.path.read_text()
        lines = text.splitlines()
        return tuple(_statement(node, lines) for node in ast.parse(text).body)

    @cached_property
    def bound(self) -> frozenset[str]:
        """Every name that some statement binds."""
        return frozenset(name for statement in self.statements for name in statement.binds)

    def needed(self, names: Iterable[str]) -> set[int]:
        """The places of the statements that bind these names or what those need, to the end."""
        binders: dict[str, list[int]] = {}
        for at, statement in enumerate(self.statements):
            for name in statement.binds:
                binders.setdefault(name, []).append(at)
        keep: set[int] = set()
        open_names, seen = list(names), set(names)
        while open_names:
            fresh = set(binders.get(open_names.pop(), ())) - keep
            keep |= fresh
            found = {name for at in fresh for name in self.statements[at].needs} - seen
            seen |= found
            open_names += found
        return keep


def _statement(node: ast.stmt, lines: Sequence[str]) -> Statement:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    code = compile(ast.Module([node], []), "<module>", "exec", dont_inherit=True)
    needs = frozenset(name for part in _codes(code) for name in _names(part, _LOADS))
    return Statement("\n".join(lines[first - 1 : node.end_lineno]), frozenset(_names(code, _STORES)), needs, node)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names(code: CodeType, operations: set[str]) -> Iterator[str]:
    return (str(i.argval) for i in dis.get_instructions(code) if i.opname in operations)
