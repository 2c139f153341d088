"""Public kernels for our built-in tasks: candidate files made of sources that are fetched and not kept here.

    pip download --no-deps liger-kernel==0.8.2 flag-gems==5.0.2 sglang==0.5.23      # and unzip each
    python -m benchmarks.public_kernels --into DIR --public liger=LIGER --public tutorials=triton/python/tutorials

A file of `public/` is named TASK__SOURCE.py, or TASK__SOURCE_WHICH.py. It holds the `class ModelNew` that calls a
public kernel for that task, and PUBLIC: of each source's files the definitions that it needs (as in
tests/corpus/public). Host code is the source's own wherever the task leaves room for it; where not, the file says
what it does instead. `public/stand_ins` takes the place of what a source asks about the machine and of its caches;
tables of launch parameters are the source's own, and TUNED names them, with the values that are tried where the judge
would not try all (it takes 16 of a kernel). EDITS, texts and what replaces them, make a kernel
fit that is written for one dtype or constant.
"""

import argparse
import ast
import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.corpus.public.inline import InlineError, Inliner, Module

PublicFolders = Mapping[str, Path]
FOLDER = Path(__file__).with_name("public")
_IN_EACH = {"logger", "prev_multiple_of"}  # of FlagGems' modules; the same wherever they are
_STAND_INS = FOLDER / "stand_ins"
_TABLES = "runtime/backend/_nvidia/{}tune_configs.yaml"  # FlagGems'; those of an architecture come first
OURS = "ours.py"  # what our own kernel is called beside them


@dataclass(frozen=True)
class Source:
    """Where kernels come from. `package`: the name its modules import each other by, which lies in the given folder."""

    title: str
    package: str = ""


SOURCES = {
    "liger": Source("Liger-Kernel 0.8.2", "liger_kernel"),
    "gems": Source("FlagGems 5.0.2", "flag_gems"),
    "sglang": Source("SGLang 0.5.23", "sglang"),
    "tutorials": Source("Triton's tutorials"),
}


@dataclass(frozen=True)
class Public:
    """One of them. `wanted`: by source, then by file, the names of its definitions; `tuned`, `edits`: as told above."""

    path: Path
    wanted: Mapping[str, Mapping[str, Sequence[str]]]
    tuned: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    edits: Mapping[str, str] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The built-in task that it is for."""
        return self.path.stem.partition("__")[0]


def public_kernels(task: str | None = None, folder: Path = FOLDER) -> list[Public]:
    """Those for a task, or all, by name. Raises InlineError for a file without PUBLIC."""
    found = sorted(folder.glob(f"{task or '*'}__*.py"))
    return [
        Public(path, _literal(path, "PUBLIC"), _literal(path, "TUNED", {}), _literal(path, "EDITS", {}))
        for path in found
    ]


def source_of(name: str) -> str:
    """What a file's name says of where it comes from, for people."""
    source, _, which = name.partition("__")[2].partition("_")
    title = SOURCES[source].title if source in SOURCES else source
    return f"{title} ({which.replace('_', ' ')})" if which else title


def candidate(kernel: Public, folders: PublicFolders) -> str:
    """The text of the candidate: the definitions in one file, and ModelNew. Raises InlineError and OSError."""
    files = [
        (folders[source] / SOURCES[source].package / file, names)
        for source, wanted in kernel.wanted.items()
        for file, names in wanted.items()
    ]
    packages = {SOURCES[s].package: folder / SOURCES[s].package for s, folder in folders.items() if SOURCES[s].package}
    inliner = _WithStandIns(packages)
    text = _edited(inliner.source(files), kernel) + inliner.source([(kernel.path, ["ModelNew"])])
    return text.replace("_TUNED = {}", f"_TUNED = {_tables(packages, kernel.tuned)!r}") if kernel.tuned else text


def _edited(text: str, kernel: Public) -> str:
    for old, new in kernel.edits.items():
        if old not in text:
            raise InlineError(f"there is no {old!r} to edit")
        text = text.replace(old, new)
    return text


class _WithStandIns(Inliner):
    """Takes a module from `public/stand_ins` where there is one of that name."""

    def _file(self, node: ast.ImportFrom) -> Path | None:
        place = _STAND_INS.joinpath(*(node.module or "").split("."))
        stand_ins = (place / "__init__.py", place.with_suffix(".py"))
        return next((path for path in stand_ins if path.is_file()), None) or super()._file(node)

    def _claim(self, path: Path, names: Iterable[str]) -> None:
        super()._claim(path, set(names) - _IN_EACH)


def _tables(packages: Mapping[str, Path], tuned: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, Any]:
    """FlagGems' launch parameters for Hopper, else for any NVIDIA GPU. Raises InlineError and OSError."""
    try:
        import yaml
    except ImportError as error:
        raise InlineError("its launch parameters are YAML: pip install pyyaml") from error
    paths = [packages["flag_gems"] / _TABLES.format(part) for part in ("", "hopper/")]
    known = {name: table for path in paths for name, table in yaml.safe_load(path.read_text()).items()}
    return {
        name: [
            choice for entry in known[name] for choice in _choices(entry)
            if all(choice["META"].get(key) in values for key, values in tried.items())
        ]
        for name, tried in tuned.items()
    }  # fmt: skip


def _choices(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """An entry as it is, or, where it says how to make them, all that it stands for."""
    if not entry.get("gen"):
        return [entry]
    lists = {name: values for name, values in entry.items() if name not in ("gen", "param_map")}
    picks = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    return [_filled(entry["param_map"], pick) for pick in picks]


def _filled(form: Any, pick: Mapping[str, Any]) -> Any:
    if isinstance(form, dict):
        return {name: _filled(value, pick) for name, value in form.items()}
    return pick.get(form, form) if isinstance(form, str) else form


def written(task: str, folders: PublicFolders, into: Path) -> tuple[list[Path], list[str]]:
    """Write the candidates for a task of which the sources were given; where they are, and what could not be made."""
    made: list[Path] = []
    problems: list[str] = []
    for kernel in public_kernels(task):
        if not set(kernel.wanted) <= set(folders):
            continue
        try:
            text = candidate(kernel, folders)
        except (InlineError, OSError, SyntaxError) as error:
            problems.append(f"{kernel.path.name} cannot be made: {error}")
            continue
        into.mkdir(parents=True, exist_ok=True)
        made.append(into / kernel.path.name)
        made[-1].write_text(text)
    return made, problems


def _literal(path: Path, name: str, default: Any = None) -> Any:
    for statement in Module(path).statements:
        if name in statement.binds and isinstance(statement.node, ast.Assign):
            return ast.literal_eval(statement.node.value)
    if default is None:
        raise InlineError(f"{path.name} has no {name}")
    return default


def main(argv: Sequence[str] | None = None) -> int:
    """Write all candidates into DIR/TASK/: 0; 1 when one of them cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    parser.add_argument("--public", action="append", default=[], metavar="SOURCE=DIR", help=f"of {', '.join(SOURCES)}")
    given = parser.parse_args(argv)
    folders = {name: Path(folder) for name, _, folder in (text.partition("=") for text in given.public)}
    if unknown := set(folders) - set(SOURCES):
        parser.error(f"--public {sorted(unknown)[0]}: sources are {', '.join(SOURCES)}")
    troubles: list[str] = []
    for task in dict.fromkeys(kernel.task for kernel in public_kernels()):
        made, problems = written(task, folders, given.into / task)
        troubles += problems
        for path in made:
            print(path)
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    return int(bool(troubles))


if __name__ == "__main__":
    sys.exit(main())
