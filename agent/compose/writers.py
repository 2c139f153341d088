"""Joins a run's author with what it works on: the offline author with its loop, a model with its strategy."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from agent.authors.base import Author
from agent.authors.offline.author import OfflineAuthor, through
from agent.authors.offline.sketch import Earlier
from agent.compose.budget import USUAL_WIDTH
from agent.compose.choice import Choice
from agent.compose.session import Session
from agent.compose.starting import Beginning, begin
from agent.controls import Controls
from agent.converse.ledger import Ledger
from agent.converse.prompts import RunPrompts
from agent.converse.toolbox import Toolbox
from agent.converse.toolset import TOOLS
from agent.llm.scripted import ScriptedModel
from agent.llm.types import LanguageModel
from agent.loop import Run, optimize
from agent.policy import Limits
from agent.record.events import Event, Progress, Reflected, Replied, Warned
from agent.settings import Settings, Strategy
from agent.strategies.best_of import best_of
from agent.strategies.evolve import evolve
from agent.strategies.refine import refine
from agent.strategies.studio import Studio
from agent.workbench import Workbench
from tools.codec import Json
from tools.gpus import arch_number

LOWER_TIMEOUT_S = 120.0
Drive = Callable[[], str]  # makes attempts until something ends that, and says what


@dataclass(frozen=True)
class Work:
    """What an author is given. `events`: of the same run in earlier processes."""

    opened: Session
    bench: Workbench
    limits: Limits
    settings: Settings
    seed: int
    events: Sequence[Event] = ()
    controls: Controls = field(default_factory=Controls)
    beginning: Beginning = field(default_factory=Beginning)
    earlier: Sequence[Earlier] = ()  # of other runs, for a search to begin with


@contextlib.contextmanager
def writing(choice: Choice, work: Work) -> Iterator[Drive]:
    """The author at work; afterwards what it holds is let go of, and its problems are told."""
    with contextlib.ExitStack() as stack:
        offline = functools.cache(lambda: stack.enter_context(_offline_author(choice, work)))
        if choice.model is None:
            yield lambda: _drive_offline(work, offline)
            return
        for note in choice.notes:
            work.bench.emit(Warned(work.bench.run_id, note))
        studio = _studio(choice.model, work)
        try:
            yield lambda: _drive_model(work, studio, offline)
        finally:
            studio.halted.set()


@contextlib.contextmanager
def _offline_author(choice: Choice, work: Work) -> Iterator[OfflineAuthor]:
    lowering = work.opened.workshop.lowering

    def call(body: dict[str, Json]) -> dict[str, Json]:
        return lowering.call(body, LOWER_TIMEOUT_S)

    def told(words: str) -> None:
        work.bench.emit(Progress(work.bench.run_id, "search", words))

    arch = arch_number(work.opened.workshop.arch)
    tools, in_ptx = work.opened.tools, choice.model is None and work.settings.language == "ptx"
    author = OfflineAuthor(through(call), arch, work.seed, work.earlier, told, tools.ptx_of if in_ptx else None)
    try:
        yield author
    finally:
        for problem in dict.fromkeys(author.problems):
            work.bench.emit(Warned(work.bench.run_id, problem))


def _drive_offline(work: Work, offline: Callable[[], Author]) -> str:
    run = Run(work.bench, offline(), work.limits, work.opened.workshop.width, work.controls)
    begin(work.beginning, work.bench, offline, run.why_stop)
    return optimize(run)


def _drive_model(work: Work, studio: Studio, offline: Callable[[], Author]) -> str:
    studio.start = begin(work.beginning, work.bench, offline, studio.why_stop)
    return _strategy(work.settings.strategy, studio, work.seed)


def _strategy(name: Strategy, studio: Studio, seed: int) -> str:
    match name:
        case "refine":
            why = refine(studio)
        case "best-of":
            why = best_of(studio)
        case "evolve":
            why = evolve(studio, seed)
    if studio.bench.tiers.confirm:
        studio.bench.confirm()
    return why


def _studio(model: LanguageModel, work: Work) -> Studio:
    """A room for the model's conversations; those of earlier processes count for keys and costs."""
    replies = [e for e in work.events if isinstance(e, Replied)]
    ledger = Ledger()
    for reply in replies:
        ledger.note(reply.cost_usd)
        if isinstance(model, ScriptedModel):
            model.skip(1, reply.conversation)
    bench, width = work.bench, work.settings.width or USUAL_WIDTH  # conversations are bound by the model, not by cores
    arch, gpu = work.opened.workshop.arch, work.opened.gpu
    bench.predictions += [e for e in work.events if isinstance(e, Reflected) and e.outcome != "open"]
    return Studio(
        bench,
        model,
        TOOLS,
        RunPrompts(bench, arch, gpu.name if gpu else None, work.settings.language, lambda: list(bench.predictions)),
        work.limits,
        lambda key, left: Toolbox(bench, key, left, width, arch),
        width,
        work.settings.context_tokens,
        ledger=ledger,
        finished_keys=max((int(r.conversation) for r in replies if r.conversation.isdigit()), default=0),
        controls=work.controls,
    )
