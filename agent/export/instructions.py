"""What a data set says of a task: the prompt and the answer in words, the reference, and nothing of a held-out case.

The words are the templates in prompts/export/. The record keeps a task without its held-out cases, and words that name
none; this makes sure of both, for records that come from elsewhere: a case that the task does not show is taken for a
held-out one. A task is put into words once per target and kept, since a row may cost no more than some microseconds.
"""

import ast
import hashlib
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path, PurePath

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.authors.llm.prompts import PRECISIONS
from kerneltune.agent.events import RunStarted
from kerneltune.agent.export.base import Feature, Row
from kerneltune.agent.export.similarity import parse
from kerneltune.prompts import code, render
from kerneltune.tools.languages.base import language as language_in
from kerneltune.tools.languages.base import language_of
from kerneltune.tools.receipt import author_view
from kerneltune.tools.schema.codec import one_line, plural, syntax_tree
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Verdict
from kerneltune.tools.task.load import MAIN, CaseDef, TaskFile, assignments, builtin_tasks, class_named, visible_source

Messages = list[Row]
MESSAGE = (Feature("role", "text", "system, user or assistant"), Feature("content", "text", "its words"))
ASKED = Feature("prompt", "structs", "system and user: the PyTorch reference, the target, what is wanted", MESSAGE)
ANSWERED = Feature("completion", "structs", "one assistant message: the kernel's file in a block of code", MESSAGE)
MOST_KEPT = 1024  # tasks whose words are kept: some 8 KiB each
_REFERENCE = "that of the reference's tensors"
MOST_OF_AN_ERROR = 2_000  # characters; a tool's answer to a model is cut there too
_UNDECLARED = frozenset({MAIN, "small"})  # cases that a task has without listing them
_CASE = re.compile(r"^(?:while timing: )?case (.+?)(?: \([^()]* inputs\))?: |\(in case '(.*)'\)$", re.MULTILINE)
ENTRY_POINT = "Model"
OURS = "kerneltune"
_LEVEL = re.compile(r"level_?([1-9])")
_ROOTS = ("torch", "nn", "F", "functional")
_NO_OPERATORS = ("Module", "Parameter", "Tensor", "Size", "device", "dtype")


def solve(run: RunStarted, language: str) -> Messages:
    """Write a kernel in a language ("triton") for the task of a run, on the GPU of that run."""
    return _asked(_solve(run.task, run.task_source, run.arch, run.gpu, language), language)


def fix(run: RunStarted, source: str, status: str, error: str) -> Messages:
    """Repair an attempt at the task of a run, in its language. `error`: what its author was told."""
    task = _task(run.task, run.task_source, run.arch, run.gpu)
    asked = render("export/fix.j2", task=task, source=source, status=status, error=error)
    return _asked(asked, language_of(source))


def convert(run: RunStarted, source: str, language: str) -> Messages:
    """Write what a file with kernels computes in another language."""
    task = _task(run.task, run.task_source, run.arch, run.gpu)
    names = {"from_name": language_in(language_of(source)).name, "language_name": language_in(language).name}
    return _asked(render("export/convert.j2", task=task, source=source, **names), language)


def fim(run: RunStarted, kernel: str, parts: tuple[str, str], *, left_out: bool) -> Messages:
    """Write the body of a kernel for the task of a run, between the two parts of a file, in which bodies of others may
    be `left_out`."""
    task = _task(run.task, run.task_source, run.arch, run.gpu)
    before, after = parts
    asked = render("export/fim.j2", task=task, kernel=kernel, prefix=before, suffix=after, left_out=left_out)
    return [_said("user", asked)]


def answer(source: str) -> Messages:
    """A file, or a part of one, as an assistant's message: one block of code, word for word."""
    return [_said("assistant", code(source))]


def _asked(user: str, language: str) -> Messages:
    return [_said("system", _system(language)), _said("user", user)]


def _said(role: str, text: str) -> Row:
    return {"role": role, "content": text}


def talk(run: RunStarted) -> str:
    """A short system prompt for a conversation with tools: what to do, the rules, the task."""
    return _talk(run.task, run.task_source, run.arch, run.gpu, run.language)


def _spoken(language: str) -> dict[str, str]:
    found = language_in(language)
    return {"language": language, "language_name": found.name, "imports": found.imports}


@cache
def _system(language: str) -> str:
    return render("export/system.j2", **_spoken(language))


@lru_cache(maxsize=MOST_KEPT)
def _talk(name: str, source: str, arch: str, gpu: str | None, language: str) -> str:
    return render("export/talk.j2", task=_task(name, source, arch, gpu), **_spoken(language))


@lru_cache(maxsize=MOST_KEPT)
def _solve(name: str, source: str, arch: str, gpu: str | None, language: str) -> str:
    return render("export/solve.j2", task=_task(name, source, arch, gpu), language_name=language_in(language).name)


@lru_cache(maxsize=MOST_KEPT)
def _task(name: str, source: str, arch: str, gpu: str | None) -> str:
    shown = visible(source)
    return render(
        "export/task.j2",
        name=name,
        target=f"{gpu} ({arch})" if gpu else f"any GPU of {arch}",
        precision=precision_words(shown),
        source=shown,
    )


def precision_words(source: str) -> str:
    """What a task's source declares about arithmetic, in words."""
    declared = str(constants(source).get("PRECISION") or "")
    return PRECISIONS.get(declared, declared or _REFERENCE)


def left_out(made_by: str, languages: Collection[str]) -> Iterator[str]:
    """What a format says of runs in languages that this version does not know, one each; it cannot ask for them."""
    if languages:
        named = ", ".join(sorted({one_line(name, 40) for name in languages})[:5])
        runs = plural(len(languages), "run")
        yield f"{made_by}: {runs} left out, in languages that this version does not know: {named}"


# What may be told -----------------------------------------------------------------------------------------------------


def error_told(run: RunStarted, attempt: Attempt) -> str:
    """Why an attempt failed, in the words that its author was told; "" when it was never judged."""
    if attempt.status is None:
        return ""
    hidden = hidden_cases(run.task_source, attempt)
    if not hidden and "case" not in attempt.detail:
        return attempt.detail[:MOST_OF_AN_ERROR]
    cases = tuple(CaseSpec(name, (), (), None, held_out=True) for name in sorted(hidden))
    task = TaskSpec(run.task, run.task_sha256, "", "", cases)
    verdict = Verdict(attempt.status, attempt.detail, attempt.cases, attempt.timing, receipt={})
    return author_view(verdict, task).detail[:MOST_OF_AN_ERROR]


def hidden_cases(source: str, attempt: Attempt) -> frozenset[str]:
    """Names of cases that an attempt was judged on and that the task does not show."""
    shown, hidden = declared_cases(source)
    named = {case.case for case in attempt.cases}
    if "case " in attempt.detail:
        named.update(a or b for a, b in _CASE.findall(attempt.detail))
    return hidden | (named - shown)


@lru_cache(maxsize=1024)
def visible(source: str) -> str:
    """A task's source without held-out cases. What does not parse and speaks of any is left out whole."""
    if "held_out" not in source:
        return source
    try:
        hidden = declared_cases(source)[1]
        cases = tuple(CaseDef(name, held_out=True) for name in sorted(hidden))
        return visible_source(TaskFile("", Path(), source, "", cases))
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError, MemoryError):
        return ""


@lru_cache(maxsize=1024)
def constants(source: str) -> dict[str, object]:
    """Top-level literals of a task's source, by name; what is no literal is left out, and all of it if nothing parses.
    Do not change what is returned."""
    try:
        found = dict(assignments(syntax_tree(source)))
    except SyntaxError:
        return {}
    return {name: value for name, node in found.items() if (value := _literal(node)) is not None}


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def declared_cases(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the cases that a source lists: those that it shows, and those that it marks as held out."""
    listed = constants(source).get("CASES")
    entries = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list | tuple) else []
    hidden = frozenset(str(c.get("name")) for c in entries if c.get("held_out"))
    return frozenset(str(c.get("name")) for c in entries) - hidden | _UNDECLARED, hidden


# Where a reference is from --------------------------------------------------------------------------------------------


def ships_with_us(run: RunStarted) -> bool:
    """Whether the task of a run is a built-in one, as this version has it: by its name a trainer gets that."""
    return _folder(run).parts[-2:] == ("tools", "tasks") and run.task_source == _builtins().get(run.task)


@cache
def _builtins() -> Mapping[str, str]:
    return {task.name: visible_source(task) for task in builtin_tasks()}


def repo_name(run: RunStarted) -> str:
    """Where a reference is from; "" when that is not known. Never a path of the machine."""
    return OURS if ships_with_us(run) else ""


def level(run: RunStarted) -> int | None:
    """Of a KernelBench problem, whose folder is called level1 to level4; else None."""
    found = _LEVEL.fullmatch(_folder(run).name)
    return int(found[1]) if found else None


def _folder(run: RunStarted) -> PurePath:
    return PurePath(str(run.machine.get("task_path") or "")).parent


def stable_uuid(*texts: str) -> str:
    """The same for the same texts, wherever and whenever it is made."""
    digest = hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).digest()
    return str(uuid.UUID(bytes=digest[:16], version=5))


@lru_cache(maxsize=1024)
def operators(source: str) -> tuple[str, ...]:
    """The torch operators that class Model calls by name ("torch.softmax", "nn.Linear"), in order of first use."""
    tree = parse(source)
    model = class_named(tree, ENTRY_POINT) if tree else None
    calls = [n.func for n in ast.walk(model) if isinstance(n, ast.Call)] if model else []
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return tuple(dict.fromkeys(name for name in map(_dotted, calls) if _is_operator(name)))


def _is_operator(name: str) -> bool:
    parts = name.split(".")
    return len(parts) > 1 and parts[0] in _ROOTS and parts[-1] not in _NO_OPERATORS


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
