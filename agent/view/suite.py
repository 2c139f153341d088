"""A suite while it goes on: a screen with a row for each run, or lines where there is no terminal. Knows no store."""

import time
from dataclasses import dataclass, replace
from threading import Lock
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.events import Emit, Event, Note, Warned
from kerneltune.agent.view import text as words
from kerneltune.agent.view.live import LiveView
from kerneltune.agent.view.output import JsonView, LineWriter
from kerneltune.agent.view.render import Pane, Part, Ui, line, share_bar
from kerneltune.agent.view.state import ViewState, format_note
from kerneltune.tools.schema.codec import one_line, plural

_GAUGE = 10  # cells
_LEAST_S = 10.0  # before that nobody can tell when it ends
_MOST_NAME = 40


@dataclass(frozen=True)
class SuiteRow:
    """One run of a suite as far as it has come. `turns`: how often it has had its share of the budget; `over`: why it
    gets no more, "" while it may."""

    task: str
    author: str
    seed: int
    turns: int = 0
    attempts: int = 0
    accepted: int = 0
    best: Attempt | None = None
    over: str = ""

    @property
    def name(self) -> str:
        """What tells it from the others."""
        return f"{self.task}, {author_label(self.author)}" + (f", seed {self.seed}" if self.seed else "")


@dataclass(frozen=True)
class SuiteState:
    """What there is to see of a suite. `used`: the share of its budget that is gone, `step` what the run under way may
    take of it; `began` and `used_before`: when this process began, and what was gone then; `at`: which row is under
    way, if one is."""

    name: str
    gpu: str | None
    rows: tuple[SuiteRow, ...]
    began: float
    used_before: float = 0.0
    used: float = 0.0
    step: float = 0.0
    at: int | None = None

    def left_s(self, now: float, used: float) -> float | None:
        """Seconds until the end at the rate so far; None while that is a guess."""
        since_s, gone = now - self.began, used - self.used_before
        return None if since_s < _LEAST_S or gone <= 0.0 else since_s * max(0.0, 1.0 - used) / gone


def author_label(author: str) -> str:
    """An author's name for a narrow column: of a script the file alone."""
    return f"scripted:{author.rpartition('/')[2]}" if author.startswith("scripted:") else author


def best_of_row(best: Attempt | None) -> str:
    """The best attempt in a few words."""
    if best is None:
        return "nothing yet"
    if best.timing is None:
        return f"#{best.number}, not timed"
    speedup = f", {best.speedup:.2f}x" if best.speedup is not None else ""
    return f"#{best.number} {words.microseconds(best.timing.median_us)}{speedup}"


def _fraction(run: ViewState, now: float) -> float:
    """How much of its share the run under way has had."""
    return max((b.fraction for b in run.budgets(now) if b.name != "patience"), default=0.0)


def _how_far(state: SuiteState, used: float, now: float) -> str:
    left_s = state.left_s(now, used)
    ends = "" if left_s is None or used >= 1.0 else f", about {words.duration(left_s)} left"
    return f"{used:.0%} of the suite, {words.duration(now - state.began)}{ends}"


def suite_lines(state: SuiteState, run: ViewState, size: tuple[int, int], now: float) -> list[Text]:
    """One frame of so many columns and lines: what fits of the rows, with the one that is under way among them."""
    used = state.used + state.step * (0.0 if state.at is None else _fraction(run, now))
    begun = sum(row.turns > 0 for row in state.rows)
    runs = f"{begun} of {plural(len(state.rows), 'run')} had a turn"
    where = state.gpu or "no GPU: kernels are checked, not timed"
    top = [
        line((" suite ", "bold"), (one_line(state.name), "bold cyan"), f"   {runs}   ", _how_far(state, used, now)),
        line(" ", *share_bar(used, max(_GAUGE, min(60, size[0] - 4))), " "),
        line(" ", (one_line(where), "green" if state.gpu else "yellow"), "   ", _doing(state, run)),
        Text(),
    ]  # fmt: skip
    foot = line((" Ctrl-C ends it, all stored; the same command goes on. `optimize watch` shows the run.", "dim"))
    room = max(1, size[1] - len(top) - 2)
    first = _first_row(state, room)
    shown = state.rows[first : first + room]
    several = len({(row.author, row.seed) for row in state.rows}) > 1
    names = [one_line(row.name if several else row.task) for row in shown]
    cells = min(max(map(len, names), default=0), _MOST_NAME, max(8, size[0] - 56))
    rows = [
        _row(run, row, line(" ▶ " if at == state.at else "   ", name), cells + 3, now, is_now=at == state.at)
        for at, (row, name) in enumerate(zip(shown, names, strict=True), first)
    ]
    more = len(state.rows) - len(shown)
    return [*top, *rows, line((f"   and {more} more" if more else "", "dim")), foot]


def _first_row(state: SuiteState, room: int) -> int:
    at = state.at or 0
    return max(0, min(at - room // 3, len(state.rows) - room))


def _doing(state: SuiteState, run: ViewState) -> str:
    if state.at is None:
        return one_line(run.stage)
    working = [f"#{attempt.number} {run.stage_of(attempt)}" for attempt in run.working[-3:]]
    asked = "the model is asked" if run.asked else ""
    return one_line(", ".join(filter(None, [", ".join(working) or run.stage, asked])))


def _row(run: ViewState, row: SuiteRow, made: Text, cells: int, now: float, *, is_now: bool) -> Text:
    made.truncate(cells, overflow="ellipsis", pad=True)
    if is_now and run.started:
        row = replace(row, attempts=run.finished, accepted=run.accepted, best=run.best or row.best)
    share = _fraction(run, now) if is_now else float(row.turns > 0)
    told: list[Part] = ["  ", *share_bar(share, _GAUGE), f"  {row.accepted:3} of {row.attempts:3} right  "]
    if row.over:
        told += [(f"{row.over}  ", "dim")]
    if row.turns or is_now:
        told += [best_of_row(row.best)]
    return made.append_text(line(*told))


class SuiteScreen(LiveView):
    """The screen of a suite. `self.state` is that of the run under way."""

    def __init__(self, console: Console, suite: SuiteState) -> None:
        super().__init__(console, leaves_frame=False)
        self.suite = suite

    def begin(self, suite: SuiteState) -> None:
        """Another run is under way, or is got ready."""
        self.state, self.suite = ViewState(), suite

    def end(self, suite: SuiteState) -> None:
        """The run under way had its turn."""
        self.suite = suite

    def of_run(self, at: int | None) -> Emit:
        """What the run of a row tells its events to."""
        return self

    def frame(self, size: tuple[int, int], now: float, ui: Ui) -> RenderableType:
        """One frame."""
        return Pane(Pane(suite_lines(self.suite, self.state, size, now)).fitted(size[1]))


class SuiteLines:
    """A line when a run begins its turn and one when it has had it; warnings once."""

    def __init__(self, stream: TextIO, suite: SuiteState) -> None:
        self.state, self._lines, self._lock = ViewState(), LineWriter(stream), Lock()
        self._warned: set[str] = set()
        where = suite.gpu or words.NO_GPU
        self._lines.write(one_line(f"suite {suite.name}: {plural(len(suite.rows), 'run')}; {where}"))

    def begin(self, suite: SuiteState) -> None:
        """Say whose turn it is."""
        self.state = ViewState()
        if suite.at is not None:
            place = f"{suite.at + 1}/{len(suite.rows)}"
            again = " goes on" if suite.rows[suite.at].attempts else ""
            self._lines.write(one_line(f"… {place} {suite.rows[suite.at].name}{again}"))

    def end(self, suite: SuiteState) -> None:
        """Say what came of it."""
        assert suite.at is not None
        row = suite.rows[suite.at]
        told = f"{row.accepted} of {plural(row.attempts, 'attempt')} right, best {best_of_row(row.best)}"
        over = f" ({row.over})" if row.over else ""
        self._lines.write(one_line(f"{row.name}: {told}{over}; {_how_far(suite, suite.used, time.time())}"))

    def of_run(self, at: int | None) -> Emit:
        """What the run of a row tells its events to."""
        return self

    def __call__(self, event: Event) -> None:
        """Say a warning that was not said before, and what all wait for."""
        with self._lock:
            if isinstance(event, Note) and not event.run_id:
                self._lines.write(one_line(f"… {format_note(event)}"))
            if isinstance(event, Warned) and event.text not in self._warned:
                self._warned.add(event.text)
                self._lines.write(one_line(f"warning: {event.text}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to restore."""


class SuiteJson:
    """What `optimize --task --json` prints of each run, whether one after the other or side by side; what an earlier
    turn or process printed is not printed again."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._views: dict[int | None, JsonView] = {}  # of the runs under way, by row

    def begin(self, suite: SuiteState) -> None:
        """Another run."""
        self._views[suite.at] = JsonView(self._stream, since=time.time())

    def end(self, suite: SuiteState) -> None:
        """The result of the run."""
        self._views.pop(suite.at).finish()

    def of_run(self, at: int | None) -> Emit:
        """What the run of a row tells its events to, while it is under way."""
        return self._views[at]

    def __call__(self, event: Event) -> None:
        """What is of no run is told by the last object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The results of runs that were cut short."""
        for view in self._views.values():
            if view.state.run_id is not None:
                view.finish(error)


SuiteView = SuiteScreen | SuiteLines | SuiteJson
