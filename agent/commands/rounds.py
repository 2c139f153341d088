"""The runs of a suite, in turns: which is next and with which share of the budget, made through `lifecycle` one after
another on one workshop.

All that decides is read from the record: a run is part of a suite by its name in `RunStarted.limits`, how many shares
it has had are its ends by a limit. So a suite that was killed goes on by being asked for again.

Half of a budget is spread evenly. Of the rest each share goes to the task with the most headroom times weight, divided
by one more than the shares it has had (D'Hondt's method: shares become proportional to what they are given by, and
nobody starves). All runs of a task get the same share, so that authors can be compared.
"""

import contextlib
import functools
import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace

from kerneltune.agent.attempt import Attempt, Controls, StopReason
from kerneltune.agent.commands.fleet import Fleet
from kerneltune.agent.commands.lifecycle import (
    NOTHING,
    Choice,
    budgeted,
    manner_of,
    named,
    refusal,
    resume_opened,
    run_opened,
)
from kerneltune.agent.commands.session import Session, Workshop, session
from kerneltune.agent.events import Event, RunEnded, RunResumed, RunStarted, Warned, attempts_of
from kerneltune.agent.models.types import LlmError
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import ending
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.view.suite import SuiteRow, SuiteState, SuiteView
from kerneltune.tools.schema.errors import TaskError, UsageError
from kerneltune.tools.task.load import TaskFile

ROUNDS = 2  # shares that a run has on average: a task is opened anew for each, 1 s without a GPU and 17 s with one
UNKNOWN = 0.5  # headroom where a right kernel was not timed
_BY_A_LIMIT = (StopReason.ATTEMPTS, StopReason.TIME, StopReason.COST)
_FOR_GOOD = (StopReason.AUTHOR_DONE, StopReason.REFUSED, StopReason.GOAL, StopReason.PATIENCE)
_MANNER = ("language", "strategy", "effort")
_LEAST_S = 1.0


# The allocation: pure -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """What decides whose turn it is, for one run. `shares`: those it has had; `is_open`: it may have more."""

    task: str
    weight: float = 1.0
    shares: int = 0
    is_open: bool = True
    headroom: float = 1.0


def headroom(best: Attempt | None) -> float:
    """The share of the best kernel's time that the speed of light leaves to be gained; all of it while nothing was
    accepted, a half where nobody knows."""
    if best is None:
        return 1.0
    fraction = best.sol_fraction
    return UNKNOWN if fraction is None or not math.isfinite(fraction) else min(1.0, max(0.0, 1.0 - fraction))


def whose_turn(runs: Sequence[Standing]) -> int | None:
    """The place of the run that has the next share: the first that lags behind the others of its task (all begin with
    one), else the first of the task with the most headroom times weight for its next share. None when none is open."""
    tasks: dict[str, list[Standing]] = {}
    for run in runs:
        tasks.setdefault(run.task, []).append(run)
    level = {task: max(1, *(r.shares for r in its if r.is_open), 0) for task, its in tasks.items()}
    for place, run in enumerate(runs):
        if run.is_open and run.shares < level[run.task]:
            return place
    gains = {
        task: its[0].weight * min(r.headroom for r in its) / (1 + level[task])
        for task, its in tasks.items()
        if any(r.is_open for r in its)
    }
    if not gains:
        return None
    best_task = max(gains, key=lambda task: gains[task])
    return next(place for place, run in enumerate(runs) if run.is_open and run.task == best_task)


@dataclass(frozen=True)
class RunShare:
    """What a run may use in one turn. `is_whole`: no budget of the suite bounds it, and there is one turn."""

    attempts: int
    time_s: float | None
    cost_usd: float | None
    is_whole: bool


_ALL_OF_IT = 10_000  # attempts of a replay, which ends when there are no more


def share_of(settings: Settings, *, runs: int, models: int, gpu: bool, author: Choice) -> RunShare:
    """One share of the suite's budget for a run of this author, one of `runs`, of which `models` cost money. Raises
    UsageError for a budget that is too small to begin."""
    most, time_s, usd = settings.max_attempts, settings.max_time_s, settings.max_cost_usd
    if most is not None and most < runs:
        raise UsageError(f"--max-attempts {most}: {runs} runs need at least 1 each; give {runs} or more")
    usd = usd / models if usd is not None and author.model is not None else None
    is_whole = most is None and time_s is None and usd is None
    each = replace(
        settings,
        max_attempts=None if most is None else math.ceil(most / runs),
        max_time_s=None if time_s is None else time_s / runs,
    )
    if author.replayed and most is None:
        each = replace(each, max_attempts=_ALL_OF_IT)
    each = budgeted(each, gpu=gpu, search=author.is_search)
    rounds = 1 if is_whole else ROUNDS
    assert each.max_attempts is not None
    return RunShare(
        math.ceil(each.max_attempts / rounds),
        None if each.max_time_s is None else each.max_time_s / rounds,
        None if usd is None else usd / rounds,
        is_whole,
    )


# What the record says of a run ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """A run as far as it is stored. `shares`: those it has had; `over`: why it gets no more, None while it may."""

    run_id: str | None = None
    shares: int = 0
    over: StopReason | None = None
    attempts: int = 0
    accepted: int = 0
    best: Attempt | None = None
    elapsed_s: float = 0.0
    cost_usd: float = 0.0


def progress_of(store: Store, run_id: str) -> Progress:
    """What a stored run has come to."""
    summary, course = store.run_summary(run_id), store.load_course(run_id)
    assert summary is not None
    best = attempts_of(store.load_attempt(summary.best_attempt_id)) if summary.best_attempt_id else []
    last = ending(course)
    return Progress(
        run_id,
        sum(isinstance(e, RunEnded) and e.why in _BY_A_LIMIT for e in course),
        last.why if last and last.why in _FOR_GOOD else None,
        summary.attempts,
        summary.accepted,
        best[0] if best and best[0].accepted else None,
        _elapsed_s(store, run_id, course),
        store.spending(run_id)[4],
    )


def _elapsed_s(store: Store, run_id: str, course: Sequence[Event]) -> float:
    """Of all its processes; of one that was killed, until its last verdict."""
    turns = [e for e in course if isinstance(e, RunStarted | RunResumed | RunEnded)]
    known_s = sum(e.elapsed_s for e in turns if isinstance(e, RunEnded))
    killed = [
        (e.at, later.at if later else math.inf)
        for e, later in zip(turns, [*turns[1:], None], strict=True)
        if not isinstance(e, RunEnded) and not isinstance(later, RunEnded)
    ]
    verdicts = [a.judged_at for a in store.attempts(run_id)] if killed else []
    return known_s + sum(max((v - begun for v in verdicts if begun <= v < end), default=0.0) for begun, end in killed)


# The suite ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SuiteRun:
    """A run that the suite asks for. `label`: the task's name, with its folder where two tasks have the same."""

    task: TaskFile
    label: str
    author: str
    seed: int
    weight: float = 1.0


@dataclass
class Slot:
    """Where one turn at a time is given. `opened`: the task of the last one; `controls`: of the run under way."""

    number: int
    held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    opened: Session | None = None
    opening_s: float = 0.0
    controls: Controls = field(default_factory=Controls)


@dataclass
class SuiteWork:
    """A suite in progress. `authors`: by the name that a person gave, as they were when the suite began; closed.
    `began`: when this process did, Unix time; `sample_attempts`: each run is a sample of so many attempts, whatever the
    budget; `fleet`: the judges elsewhere, each of which gives a turn at a time, so that the seconds of the budget are
    theirs together."""

    name: str
    wanted: Sequence[SuiteRun]
    authors: Mapping[str, Choice]
    settings: Settings
    environment: Environment
    shop: Workshop
    store: Store
    view: SuiteView
    began: float
    sample_attempts: int | None = None
    fleet: Fleet | None = None
    problems: dict[str, str] = field(default_factory=dict)  # of tasks that cannot be opened or judged, by hash
    lost: dict[str, StopReason] = field(default_factory=dict)  # authors that no longer answer
    too_dear: set[int] = field(default_factory=set)  # runs whose share of the dollars is less than a request costs

    def __post_init__(self) -> None:
        self._slots = [Slot(number) for number in range(self.fleet.width if self.fleet else 1)]
        self._width = len(self._slots)
        self._changed = threading.Condition()
        self._claims: dict[int, Settings] = {}  # by the place of a run that is under way, how far it may go
        self._homes: dict[int, int] = {}  # by place, the slot that a run belongs to: times of one judge are compared
        self._is_ending = False
        most_s = self.settings.max_time_s
        settings = replace(self.settings, max_time_s=None if most_s is None else most_s * self._width)
        models = sum(self.authors[w.author].model is not None for w in self.wanted)
        on_gpu = self.shop.gpu is not None
        self.shares = {
            name: RunShare(self.sample_attempts, None, None, is_whole=True)
            if self.sample_attempts
            else share_of(settings, runs=len(self.wanted), models=models, gpu=on_gpu, author=author)
            for name, author in self.authors.items()
        }
        found = self._stored()
        self.progress = [
            progress_of(self.store, found[at]) if at in found else Progress() for at in range(len(self.wanted))
        ]
        self._homes |= self._earlier_homes(found)
        self._earlier_s = sum(p.elapsed_s for p in self.progress) / self._width
        self._used_before = self.used(self.began)

    def _earlier_homes(self, found: Mapping[int, str]) -> dict[int, int]:
        """Which slots have the GPUs that stored runs began on, by the runs' places."""
        homes = {}
        for at, run_id in found.items():
            gpu = self.store.load_run(run_id).machine.get("gpu")
            if self.fleet and isinstance(gpu, dict) and (slot := self.fleet.slot_of(gpu.get("uuid"))) is not None:
                homes[at] = slot
        return homes

    def _stored(self) -> dict[int, str]:
        """The runs that this record has of those that are wanted, by place: the same task, author, seed and manner, on
        the same kind of machine."""
        places = {(w.task.sha256, self.authors[w.author].name, w.seed): at for at, w in enumerate(self.wanted)}
        here = (self.shop.place.gpu, self.shop.arch)
        found: dict[int, str] = {}
        for run_id in self.store.of_suite(self.name):
            event = self.store.load_run(run_id)
            at = places.get((event.task_sha256, event.author, event.seed))
            if at is None or (event.gpu, event.arch) != here or self.store.merged_from(run_id) is not None:
                continue
            manner = manner_of(self.authors[self.wanted[at].author], self.settings)
            if any(event.limits.get(name) != manner.get(name) for name in _MANNER):
                continue
            found.setdefault(at, run_id)
        return found

    def run(self) -> StopReason | None:
        """Give turns until the budget is used or nobody is open. Returns INTERRUPTED after a Ctrl-C in a run, the
        reason of an author that no longer answers, or None. Raises KeyboardInterrupt between runs, GpuLost."""
        if self._width == 1:
            self._work(self._slots[0])
        else:
            self._work_side_by_side()
        if self._is_ending:
            return StopReason.INTERRUPTED
        return next(iter(self.lost.values()), None)

    def _work_side_by_side(self) -> None:
        """As many turns at a time as there are slots; none more after Ctrl-C or a failure, which is raised."""
        with ThreadPoolExecutor(self._width, thread_name_prefix="share") as pool:
            working = [pool.submit(self._work, slot) for slot in self._slots]
            try:
                for one in as_completed(working):
                    one.result()
            except BaseException as error:
                self._end()
                if not isinstance(error, KeyboardInterrupt):
                    raise

    def _end(self) -> None:
        """Give no more turns, and end those under way at once, to be gone on with."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        for slot in self._slots:
            slot.controls.stop(interrupted=True)
            slot.controls.skip()

    def _work(self, slot: Slot) -> None:
        """Give a slot's turns."""
        with slot.held:
            while (at := self._claim(slot)) is not None:
                try:
                    why = self._share(at, slot)
                finally:
                    with self._changed:
                        del self._claims[at]
                        self._changed.notify_all()
                if why is StopReason.INTERRUPTED:
                    self._is_ending = True

    def _share(self, at: int, slot: Slot) -> StopReason | None:
        """One turn of a run; why it ended, None where its task cannot be opened or judged."""
        self.view.begin(self.state(at))
        opened, before = self._open(self.wanted[at], slot), self.progress[at]
        why = None
        if opened:
            try:
                why = self._turn(at, opened, slot)
            except TaskError as error:  # its code, or the system, ended its judge
                self._leave_out(self.wanted[at], slot, "judged", error)
        if why is StopReason.COST and self.progress[at].cost_usd == before.cost_usd:
            self.too_dear |= self._priced_out(at)
        if why in (StopReason.MODEL_ERROR, StopReason.NO_ACCESS):
            self.lost[self.wanted[at].author] = why
        self.view.end(self.state(at))
        return why

    def _claim(self, slot: Slot) -> int | None:
        """The place of the run whose turn a slot gives next, with its share held for it; None at the end. Where others
        have all that is open, it waits for what they leave."""
        with self._changed:
            while not self._is_ending:
                if (at := self.next_run(slot.number)) is not None:
                    self._claims[at] = self._limits(at)
                    self._homes[at] = slot.number
                    return at
                if not self._claims:
                    return None
                self._changed.wait()
        return None

    def next_run(self, slot: int) -> int | None:
        """The place of the run whose turn it is in a slot; None where there is none."""
        if self.left_share(time.time()) <= 0.0 or min(self._unclaimed()) <= 0.0:
            return None
        elsewhere = {*self._claims, *(at for at, home in self._homes.items() if home != slot)}
        standings = [self._standing(at) for at in range(len(self.wanted))]
        return whose_turn([replace(s, is_open=s.is_open and at not in elsewhere) for at, s in enumerate(standings)])

    def _standing(self, at: int) -> Standing:
        wanted, had = self.wanted[at], self.progress[at]
        return Standing(wanted.task.sha256, wanted.weight, had.shares, self._over(at) == "", headroom(had.best))

    def _over(self, at: int) -> str:
        """Why a run gets no more; "" while it may."""
        wanted, had = self.wanted[at], self.progress[at]
        if wanted.task.sha256 in self.problems:
            return "left out"
        if had.over is not None:
            return had.over.replace("_", " ")
        if at in self.too_dear:
            return "a request costs more than its share"
        if wanted.author in self.lost:
            return self.lost[wanted.author].replace("_", " ")
        return "done" if self.shares[wanted.author].is_whole and had.shares > 0 else ""

    # The budget

    @property
    def left_attempts(self) -> float:
        """Attempts that the suite may still make; infinite without such a budget."""
        most = self.settings.max_attempts
        return math.inf if most is None else most - sum(p.attempts for p in self.progress)

    def left_s(self, now: float) -> float:
        """Seconds that are left to it."""
        most_s = self.settings.max_time_s
        return math.inf if most_s is None else most_s - self._earlier_s - (now - self.began)

    @property
    def left_usd(self) -> float:
        """Dollars that are left to it."""
        most_usd = self.settings.max_cost_usd
        return math.inf if most_usd is None else most_usd - sum(p.cost_usd for p in self.progress)

    def _unclaimed(self) -> tuple[float, float]:
        """Attempts and dollars that are left and not held for a run under way."""
        claims = [(its, self.progress[at]) for at, its in self._claims.items()]
        attempts = sum((its.max_attempts or 0) - had.attempts for its, had in claims)
        usd = sum(its.max_cost_usd - had.cost_usd for its, had in claims if its.max_cost_usd is not None)
        return self.left_attempts - attempts, self.left_usd - usd

    def left_share(self, now: float) -> float:
        """How much of the scarcest budget is left, from 0 to 1; 1 without any."""
        settings = self.settings
        budgets = (
            (self.left_attempts, settings.max_attempts),
            (self.left_s(now), settings.max_time_s),
            (self.left_usd, settings.max_cost_usd),
        )
        return min((max(0.0, left / most) for left, most in budgets if most), default=1.0)

    def used(self, now: float) -> float:
        """The share of the suite that is done: of its budget, or without one of its runs."""
        if all(share.is_whole for share in self.shares.values()):
            return sum(self._over(at) != "" for at in range(len(self.wanted))) / len(self.wanted)
        return 1.0 - self.left_share(now)

    def _limits(self, at: int) -> Settings:
        """The settings of a run's next turn: its share, as far as the suite's budget has it, but for the time."""
        wanted, had = self.wanted[at], self.progress[at]
        share = self.shares[wanted.author]
        usd, (left_attempts, left_usd) = share.cost_usd, self._unclaimed()
        if self.authors[wanted.author].model is not None and math.isfinite(left_usd):
            of_share = math.inf if usd is None else max((had.shares + 1) * usd, had.cost_usd + usd / 2)
            usd = min(of_share, had.cost_usd + left_usd)
        attempts = max((had.shares + 1) * share.attempts, had.attempts + 1)
        return replace(
            self.settings,
            seed=wanted.seed,
            seeds_model=self.sample_attempts is not None,
            max_attempts=int(min(attempts, had.attempts + left_attempts)),
            max_time_s=None,
            max_cost_usd=usd,
        )

    def _time_s(self, at: int, opening_s: float) -> float | None:
        """The seconds of a run's next turn, once its task is open."""
        time_s = self.shares[self.wanted[at].author].time_s
        if time_s is None:
            return None
        return max(_LEAST_S, min(max(time_s - opening_s, time_s / 2), self.left_s(time.time())))

    def _priced_out(self, at: int) -> set[int]:
        """The runs that cannot ask for a reply: this one, and where less than a share is left none can."""
        share_usd = self.shares[self.wanted[at].author].cost_usd
        if share_usd is not None and self.left_usd >= share_usd:
            return {at}
        return {place for place, run in enumerate(self.wanted) if self.authors[run.author].model is not None}

    # One turn

    def _open(self, run: SuiteRun, slot: Slot) -> Session | None:
        """Its task, opened, or still open; None where it cannot be, which is noted. With a fleet it is opened for each
        turn, since the slot's judge may be another one."""
        if slot.opened is not None and slot.opened.file is run.task and self.fleet is None:
            slot.opening_s = 0.0
            return slot.opened
        began_s, slot.opened = time.monotonic(), None
        slot.held.close()
        try:
            fleet, shop = self.fleet, self.shop
            its = fleet.session(shop, slot.number, run.task) if fleet else session(shop, run.task)
            slot.opened = slot.held.enter_context(its)
        except TaskError as error:
            self._leave_out(run, slot, "opened", error)
        slot.opening_s = time.monotonic() - began_s
        return slot.opened

    def _leave_out(self, run: SuiteRun, slot: Slot, what: str, error: TaskError) -> None:
        """A task whose judge cannot begin or go on, until the same command is given again."""
        slot.opened = None
        self.problems[run.task.sha256] = str(error)
        self.view(Warned("", f"{run.label} cannot be {what}: {error}"))

    def _turn(self, at: int, opened: Session, slot: Slot) -> StopReason:
        """Let a run go on for its share; why that ended."""
        name, run_id, show = self.wanted[at].author, self.progress[at].run_id, self.view.of_run(at)
        limits = replace(self._claims[at], max_time_s=self._time_s(at, slot.opening_s))
        settings = settings_of(name, self.authors, limits)
        slot.controls = Controls()
        if self._is_ending:
            slot.controls.stop(interrupted=True)
        try:
            author = named(name, f"suite {self.name}", settings, self.environment)
        except LlmError as error:
            self.view(Warned("", str(error)))
            return refusal(error)
        with contextlib.closing(author):
            if run_id is None:
                make = functools.partial(run_opened, opened, author, settings, self.store, suite=self.name)
            else:
                make = functools.partial(resume_opened, opened, run_id, author, settings, self.store)
            try:
                outcome = make(show, slot.controls)
            except BaseException:
                if at in (found := self._stored()):  # what it had come to counts
                    self.progress[at] = progress_of(self.store, found[at])
                raise
        self.progress[at] = progress_of(self.store, outcome.run_id)
        return outcome.why

    def state(self, at: int | None) -> SuiteState:
        """What there is to see, with the run at that place under way."""
        rows = tuple(
            SuiteRow(w.label, w.author, w.seed, p.shares, p.attempts, p.accepted, p.best, self._over(place))
            for place, (w, p) in enumerate(zip(self.wanted, self.progress, strict=True))
        )
        step = 1.0 / (len(rows) * (1 if all(share.is_whole for share in self.shares.values()) else ROUNDS))
        gpu = self.shop.place.gpu
        return SuiteState(self.name, gpu, rows, self.began, self._used_before, self.used(time.time()), step, at)


def settings_of(author: str, authors: Collection[str], settings: Settings) -> Settings:
    """The settings of one of several authors. --base-url is the server of `chat:` models where there are some: another
    provider's key does not go there."""
    is_theirs = author.startswith("chat:") or not any(one.startswith("chat:") for one in authors)
    return settings if is_theirs and not author.startswith("scripted:") else replace(settings, base_url="")


def fixed(settings: Settings) -> Settings:
    """The settings that runs of a suite have in common. None begins with what another has found: runs are compared."""
    return replace(settings, from_=NOTHING, warm_start=False, lessons=False)
