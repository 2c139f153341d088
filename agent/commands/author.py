"""Chooses who writes the kernels of a run (what --model says, else the first provider whose key is set), and joins that
author with what it works on."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kerneltune.agent.attempt import Attempt, Author, Earlier, Limits
from kerneltune.agent.authors.llm.author import LlmAuthor
from kerneltune.agent.authors.llm.prompts import RunPrompts
from kerneltune.agent.authors.replay import ReplayAuthor
from kerneltune.agent.authors.search.author import OfflineAuthor, through
from kerneltune.agent.commands.session import USUAL_WIDTH, Session
from kerneltune.agent.commands.start import Beginning, start_actions, start_of
from kerneltune.agent.controls import Controls
from kerneltune.agent.events import Event, Note, Reflected, Replied, Warned
from kerneltune.agent.loop import Run
from kerneltune.agent.models.providers import KEY_VARIABLES, OFFLINE, REPLAY, open_model, parse
from kerneltune.agent.models.scripted import ScriptedModel
from kerneltune.agent.models.types import LanguageModel, Usage
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.gpus import arch_number

LOWER_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Choice:
    """`model` is None for the offline author and for a replay. `notes`: what a person should know of the model;
    `replayed`: the run whose attempts are proposed again."""

    name: str
    why: str
    model: LanguageModel | None = None
    notes: tuple[str, ...] = ()
    replayed: str = ""

    @property
    def is_search(self) -> bool:
        """Whether the offline author searches."""
        return self.model is None and not self.replayed

    def close(self) -> None:
        """Let go of connections."""
        if self.model is not None:
            self.model.close()


def chosen(settings: Settings, environment: Environment) -> Choice:
    """The author of a new run. Raises UsageError for a --model that nobody knows, LlmError for one that is no use."""
    if settings.model:
        return named(settings.model, "--model", settings, environment)
    if not environment.keys:
        return named(OFFLINE, f"neither {' nor '.join(KEY_VARIABLES.values())} is set", settings, environment)
    provider = environment.keys[0]
    return named(provider, f"{KEY_VARIABLES[provider]} is set", settings, environment)


def named(name: str, why: str, settings: Settings, environment: Environment) -> Choice:
    """The author of that name, which is asked about itself, so that a key or a name that is wrong shows at once."""
    if name == OFFLINE:
        return Choice(OFFLINE, why)
    if name.startswith(f"{REPLAY}:"):
        return Choice(name, why, replayed=name.removeprefix(f"{REPLAY}:"))
    parse(name)
    keys = {"chat": environment.server_key} if environment.server_key else {}
    model = open_model(name, keys=keys, base_url=settings.base_url or None, effort=settings.effort)
    try:
        facts = model.facts()
    except BaseException:
        model.close()
        raise
    provider = name.partition(":")[0]
    known = name if provider == "scripted" else f"{provider}:{facts.model}"
    return Choice(known, why, model, facts.notes)


def require_price(choice: Choice, settings: Settings) -> None:
    """A limit on cost needs a price. Raises UsageError."""
    if choice.model is None or settings.max_cost_usd is None:
        return
    if choice.model.price_usd(Usage(1_000, 1_000)) is None:
        raise UsageError(
            f"--max-cost {settings.max_cost_usd:g}: the price of {choice.name} is unknown, so no cost can be kept to; "
            "limit the run by --max-attempts or --max-time instead"
        )


@dataclass(frozen=True)
class Work:
    """What an author is given. `events`: of the same run in earlier processes."""

    opened: Session
    tracker: AttemptTracker
    limits: Limits
    settings: Settings
    seed: int
    events: Sequence[Event] = ()
    controls: Controls = field(default_factory=Controls)
    beginning: Beginning = field(default_factory=Beginning)
    earlier: Sequence[Earlier] = ()  # of other runs, for a search to begin with
    replayed: Sequence[Attempt] = ()


@contextlib.contextmanager
def ready(choice: Choice, work: Work) -> Iterator[Run]:
    """The run with its author; afterwards what that holds is let go of, and its problems are told."""
    with contextlib.ExitStack() as stack:
        offline = functools.cache(lambda: stack.enter_context(_offline_author(choice, work)))
        if choice.model is not None:
            author: Author = _llm_author(choice.model, work, choice.notes)
            width = work.settings.width or USUAL_WIDTH  # conversations are bound by the model, not by cores
        elif choice.replayed:
            author, width = ReplayAuthor(work.tracker, choice.name, work.replayed), work.opened.workshop.width
        else:
            author = offline()
            width = work.opened.workshop.width
        start = start_actions(work.beginning, work.tracker, offline)
        run = Run(work.tracker, author, work.limits, width, work.controls, start=start)
        try:
            yield run
        except KeyboardInterrupt:
            choice.close()  # wakes those that wait for a reply
            raise
        finally:
            run.halted.set()


@contextlib.contextmanager
def _offline_author(choice: Choice, work: Work) -> Iterator[OfflineAuthor]:
    lowering = work.opened.workshop.lowering

    def call(body: dict[str, Json]) -> dict[str, Json]:
        return lowering.call(body, LOWER_TIMEOUT_S)

    def told(words: str) -> None:
        work.tracker.emit(Note(work.tracker.run_id, "search", words))

    arch = arch_number(work.opened.workshop.arch)
    tools, in_ptx = work.opened.tools, choice.model is None and work.settings.language == "ptx"
    author = OfflineAuthor(through(call), arch, work.seed, work.earlier, told, tools.updater.ptx_of if in_ptx else None)
    try:
        yield author
    finally:
        for problem in dict.fromkeys(author.problems):
            work.tracker.emit(Warned(work.tracker.run_id, problem))


def _llm_author(model: LanguageModel, work: Work, notes: Sequence[str]) -> LlmAuthor:
    """The model's conversations; those of earlier processes count for keys and costs."""
    tracker, settings = work.tracker, work.settings
    for note in notes:
        tracker.emit(Warned(tracker.run_id, note))
    replies = [e for e in work.events if isinstance(e, Replied)]
    for reply in replies:
        tracker.cost.add(reply.cost_usd)
        if isinstance(model, ScriptedModel):
            model.skip(1, reply.conversation)
    arch, gpu = work.opened.workshop.arch, work.opened.gpu
    tracker.predictions += [e for e in work.events if isinstance(e, Reflected) and e.outcome != "open"]
    return LlmAuthor(
        tracker,
        model,
        RunPrompts(tracker, arch, gpu.name if gpu else None, settings.language, lambda: list(tracker.predictions)),
        arch,
        settings.strategy,
        work.seed,
        settings.context_tokens,
        finished_keys=max((int(r.conversation) for r in replies if r.conversation.isdigit()), default=0),
        start=lambda: start_of(tracker),
    )
