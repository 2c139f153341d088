"""How a task becomes a prompt in words, and a kernel an answer. The words are the templates in prompts/export/.

A task is put into words once per target and kept, since a row may cost no more than some microseconds.
"""

from functools import lru_cache

from agent.authors.llm.prompts import PRECISIONS
from agent.export.base import Column, Row
from agent.export.told import constants, visible
from agent.record.events import RunStarted
from prompts import code, render

Messages = list[Row]
MESSAGE = (Column("role", "text", "system, user or assistant"), Column("content", "text", "its words"))
ASKED = Column("prompt", "structs", "system and user: the PyTorch reference, the target, what is wanted", MESSAGE)
ANSWERED = Column("completion", "structs", "one assistant message: the kernel's file in a block of code", MESSAGE)
MOST_KEPT = 1024  # tasks whose words are kept: some 8 KiB each
_REFERENCE = "that of the reference's tensors"


def solve(run: RunStarted) -> Messages:
    """Write a kernel for the task of a run, on the GPU of that run."""
    return _asked(_solve(run.task, run.task_source, run.arch, run.gpu))


def fix(run: RunStarted, source: str, status: str, error: str) -> Messages:
    """Repair an attempt at the task of a run. `error`: what its author was told."""
    task = _task(run.task, run.task_source, run.arch, run.gpu)
    return _asked(render("export/fix.j2", task=task, source=source, status=status, error=error))


def fim(kernel: str, prefix: str, suffix: str) -> Messages:
    """Write the body of a kernel between the two parts of a file."""
    return [_said("user", render("export/fim.j2", kernel=kernel, prefix=prefix, suffix=suffix))]


def answer(source: str) -> Messages:
    """A whole file as an assistant's message: one block of code, word for word."""
    return [_said("assistant", code(source))]


def plain(text: str) -> Messages:
    """A text as an assistant's message."""
    return [_said("assistant", text)]


def _asked(user: str) -> Messages:
    return [_said("system", _system()), _said("user", user)]


def _said(role: str, text: str) -> Row:
    return {"role": role, "content": text}


@lru_cache(maxsize=1)
def _system() -> str:
    return render("export/system.j2")


@lru_cache(maxsize=MOST_KEPT)
def _solve(name: str, source: str, arch: str, gpu: str | None) -> str:
    return render("export/solve.j2", task=_task(name, source, arch, gpu))


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
