"""Joins the offline author of PTX with a run: what it begins with, and who traces and assembles for it."""

from collections.abc import Callable, Sequence

from agent.authors.ptx.author import PtxAuthor
from agent.authors.ptx.library import experts
from agent.compose.session import Session
from tools.plan.schema import Plan
from tools.ptx_files.host_code import CannotSay
from tools.spec import TaskSpec
from tools.tooling import Tools

Triton = Callable[[], Sequence[str]]  # files of Triton candidates, the likeliest best first


def ptx_author(opened: Session, triton: Triton, seed: int, *, own: bool = True) -> PtxAuthor:
    """The author of a run: besides what that begins with, its starts are the PTX of `triton`'s kernels and, with `own`,
    the expert kernels that we have in PTX."""
    tools, problems = opened.tools, list[str]()
    author = PtxAuthor(
        starts=lambda: _starts(opened, triton, problems, own=own),
        plans=lambda source: _told(tools, opened.task, source),
        assemble=tools.machine_code,
        seed=seed,
    )
    author.problems = problems
    return author


def _starts(opened: Session, triton: Triton, problems: list[str], *, own: bool) -> dict[str, str]:
    """PTX candidates of experts and from Triton ones; of those that cannot be said in PTX the reason is kept."""
    found: dict[str, str] = dict(experts(opened.task.name)) if own else {}
    for source in triton():
        update = opened.tools.update(source)
        if update.failure is not None:
            problems.append(f"a Triton kernel to begin with was refused: {update.failure.detail}")
            continue
        try:
            found[opened.tools.as_ptx(source, update)] = ""
        except CannotSay as error:
            problems.append(f"a Triton kernel to begin with cannot be said in PTX: {error}")
    return found


def _told(tools: Tools, task: TaskSpec, source: str) -> list[Plan]:
    """The plans of a candidate's cases that are not held out, the timed one first, the default variant of each."""
    update = tools.update(source)
    shown = sorted((case for case in task.cases if not case.held_out), key=lambda case: case.name != task.main.name)
    return [update.plans[case.name][0] for case in shown if update.plans.get(case.name)]
