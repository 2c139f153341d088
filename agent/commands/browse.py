"""`optimize browse`: stored runs in a terminal: a list of them, each with its attempts, each attempt with its pages.

A run that is opened is followed as `optimize watch` follows it; the screen is the one of a run.
"""

import contextlib
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock, Thread
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kerneltune.agent.commands import DATABASE, RunsDir, no_runs
from kerneltune.agent.events import Event
from kerneltune.agent.record.folder import folder_of, process_of
from kerneltune.agent.record.query import Filter, RunSummary, at_once, summaries
from kerneltune.agent.settings import Settings, chosen_settings, environment
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.schema.codec import DecodeError, decode
from kerneltune.tools.schema.errors import KerneltuneError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kerneltune.agent.commands.session import Workshop
    from kerneltune.agent.record.store import Store
    from kerneltune.agent.view.live import LiveView
    from kerneltune.agent.view.render import Tab

MOST_RUNS = 1000  # in the list: 80 ms

command = App(
    name="browse",
    help_epilogue="""
Keys: arrows and enter choose and open; / shows only rows with a text; s sorts;
esc goes back; ? lists all; q leaves.

Examples:
    optimize browse                  all stored runs
    optimize browse last             the attempts of the latest one
    optimize browse softmax
""",
)


@command.default
def browse(
    run: Annotated[
        str | None, Parameter(metavar="RUN", help="Open this run: an id or its start, last, -2, a task's name.")
    ] = None,
    /,
    *,
    runs_dir: RunsDir = None,
) -> int:
    """Look through stored runs in the terminal.

    Runs, their attempts, and of each attempt its facts, source, difference, machine code and conversation.
    """
    settings = chosen_settings(locals())
    if not can_browse():
        raise UsageError("browse needs a terminal and a keyboard; elsewhere: optimize runs, optimize show RUN")
    return look_through(settings, run)


def can_browse() -> bool:
    """Whether a person sits at a terminal that can be redrawn."""
    from kerneltune.agent.view.live import keys_fd, may_read
    from kerneltune.agent.view.output import can_show_screen, choose_view

    choice = choose_view(environment(), is_terminal=can_show_screen(sys.stdout))
    return choice.kind == "live" and (fd := keys_fd()) is not None and may_read(fd)


def look_through(settings: Settings, run: str | None = None) -> int:
    """Show the list, or one run, until a person leaves."""
    from kerneltune.agent.view.live import Leaving, LiveView, keys_fd
    from kerneltune.agent.view.output import PlainConsole, choose_view
    from kerneltune.agent.view.render import Ui

    runs = _stored_runs(settings)
    with shelf(settings) as texts:
        opened = texts.store.find_run(run) if run is not None else None
        leaving = Leaving()
        colour = choose_view(environment(), is_terminal=True).colour
        view = LiveView(PlainConsole(no_color=not colour), keys_fd=keys_fd(), steering=leaving, leaves_frame=False)
        view.ui = Ui(page="run" if opened else "runs", run=opened, opened=opened)
        texts.serve(view, runs)
        with view:
            while not leaving.left.is_set() and view.is_drawn:
                if view.ui.opened is None:
                    view.steering = leaving
                    time.sleep(_LOOK_S)
                else:
                    _follow(view, texts.store, view.ui.opened, leaving)
    return 0


_LOOK_S = 0.05  # between two looks whether a run was opened


def _stored_runs(settings: Settings) -> list[RunSummary]:
    """Raises UsageError where there are none."""
    wanted, database = Filter(limit=MOST_RUNS), settings.runs_dir / DATABASE
    if not database.is_file():
        raise no_runs(settings.runs_dir)
    found = at_once(database, lambda record: summaries(record, wanted))
    if found is None:
        from kerneltune.agent.record.store import Store

        with Store.open(settings.runs_dir, to_look=True) as store:
            found = store.runs(wanted)
    if not found:
        raise no_runs(settings.runs_dir)
    return found


def _follow(view: "LiveView", store: "Store", run_id: str, leaving: Any) -> None:
    """Show a run, and what comes of it while it goes on, until another one is opened, or nobody looks."""
    from kerneltune.agent.view.live import gpu_samples
    from kerneltune.agent.view.state import ViewState
    from kerneltune.agent.view.watch import Playback

    stored = StoredRun(store, run_id)
    view.state = ViewState()
    playback = Playback(stored.more, lambda: process_of(stored.folder))
    view.steering = playback

    def is_left() -> bool:
        return view.ui.opened != run_id or not view.is_drawn

    with gpu_samples(stored.gpu_here(), run_id, view):
        for event in playback.events(is_left, hears_keys=True):
            view(event)
    if playback.controls.stopping:
        leaving.left.set()


class StoredRun:
    """One run's events as they come. Each look is a transaction of its own, which is over before anything is shown."""

    def __init__(self, store: "Store", run_id: str) -> None:
        self.run_id, self.folder = run_id, folder_of(store.path.parent, run_id)
        self._store, self._seq = store, 0

    def more(self) -> Sequence[Event]:
        """What is new, at most a page."""
        self._seq, events = self._store.later_events(self.run_id, self._seq)
        return events

    def rest(self) -> Iterator[Event]:
        """All that there is now."""
        while events := self.more():
            yield from events

    def gpu_here(self) -> GpuInfo | None:
        """The GPU of a run that goes on on this machine: readings of it are not stored, but can be had."""
        known = self._store.load_run(self.run_id).machine.get("gpu")
        if process_of(self.folder).state != "running" or known is None:
            return None
        try:
            return decode(GpuInfo, known, "gpu")
        except DecodeError:  # noted by another version
            return None


# Pages that take the record or a compiler ----------------------------------------------------------------------------

OFFERS: "tuple[Tab, ...]" = ("attempt", "sass", "conversation")


@contextlib.contextmanager
def shelf(settings: Settings) -> "Iterator[Shelf]":
    """Makes pages of stored attempts while the block lasts."""
    with contextlib.ExitStack() as held:
        made = Shelf(settings, held)
        thread = Thread(target=made.work, name="pages", daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.stop()
            thread.join(_END_S)


_END_S = 5.0  # what is being compiled is not waited for


class Shelf:
    """Makes what a screen asks for, one page at a time in a thread of its own: the record is opened, and workers for a
    compiler are started, for the first page that needs them, and kept. `keep` takes each page."""

    def __init__(self, settings: Settings, held: contextlib.ExitStack) -> None:
        self.keep: Callable[..., None] = lambda *_: None
        self._settings, self._held, self._opening = settings, held, Lock()
        self._asked: queue.SimpleQueue[tuple[str, Tab] | None] = queue.SimpleQueue()
        self._store: Store | None = None
        self._shop: Workshop | None = None

    @property
    def store(self) -> "Store":
        """The record."""
        from kerneltune.agent.record.store import Store

        with self._opening:
            if self._store is None:
                self._store = self._held.enter_context(Store.open(self._settings.runs_dir, to_look=True))
            return self._store

    def serve(self, view: "LiveView", runs: Sequence[RunSummary] = ()) -> None:
        """Make the pages that this screen asks for."""
        from kerneltune.agent.view.render import Library

        view.library, view.ask, self.keep = Library(tuple(runs), OFFERS), self.ask, view.keep

    def ask(self, attempt_id: str, page: "Tab") -> None:
        """Have a page made."""
        self._asked.put((attempt_id, page))

    def stop(self) -> None:
        """Make no more."""
        self._asked.put(None)

    def work(self) -> None:
        """Make pages until there are no more."""
        from kerneltune.agent.view.render import MadePage

        while (asked := self._asked.get()) is not None:
            self.keep(*asked, MadePage(tuple(self._made(*asked)), time.time()))

    def _made(self, attempt_id: str, page: "Tab") -> "Iterator[RenderableType]":
        """Its parts; where it cannot be made, why."""
        from rich.text import Text

        from kerneltune.agent.commands.show import compiled_attempts, said_until, sass_of, shown_attempt
        from kerneltune.agent.view.attempt import known_of, spoken

        try:
            if page == "sass":
                [found] = compiled_attempts(self.store, [attempt_id], self._workshop)
                yield Text(sass_of(found))
            elif page == "conversation":
                yield from spoken([said_until(self.store, self.store.find_attempt(attempt_id)[1])])
            else:
                yield from known_of(shown_attempt(self.store, attempt_id))
        except KerneltuneError as error:
            yield Text(str(error))

    def _workshop(self) -> "contextlib.AbstractContextManager[Workshop]":
        from kerneltune.agent.commands.session import workshop

        if self._shop is None:
            self._shop = self._held.enter_context(workshop(self._settings, lambda _: None))
        return contextlib.nullcontext(self._shop)
