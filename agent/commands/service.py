"""The resident evaluator: warm workers, open tasks, and runs whose tools are called by clients.

    with Service(settings, environment, begun) as service:
        run = service.start("softmax", "mcp:claude-code")
        print(run.opening.result())                    what a model is told at first
        made = run.call("update", {"rationale": "...", "source": "..."}).result()
        print(made.text, made.attempt)
        run.stop()

A client's run is an ordinary one: the loop drives it, its author is a model whose replies are the client's calls, and
all of it is stored. So `watch`, `report`, `export` and `--resume`'s rules hold for it as they are.
"""

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from kerneltune.agent.attempt import Attempt, Controls
from kerneltune.agent.commands.lifecycle import Choice, RunOutcome, resume_run, run_task
from kerneltune.agent.commands.session import Patience, Session, Workshop, memory_is_short, session, workshop
from kerneltune.agent.commands.verify import Verification, repeat_stored
from kerneltune.agent.events import Event, LimitsChanged, RunEnded, Said
from kerneltune.agent.models.types import (
    Listen,
    ModelFacts,
    ModelRequest,
    NoLongerWanted,
    Reply,
    ToolCall,
    Usage,
    cleaned,
)
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Environment, Settings, Tier
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.tools.bench import GpuBench
from kerneltune.tools.sandbox.workers import Workers
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.task import TaskSpec
from kerneltune.tools.task.load import TaskFile, find_task

MOST_OPEN = 32  # tasks, where memory allows it: each holds two processes and their files
MOST_RUNS = 128  # under way at a time; each is a thread that mostly waits
_EVERY = 16  # turns, of which one goes to whoever waits longest
WHOLE_CONTEXT = 10**9  # tokens: a client remembers its conversation itself
_MOST_KEPT = 256  # runs that are over, of which a client may still ask
MOST_CALLS = 128  # of a run that wait: one whose client has gone is carried out, too, and its source may be of 4 MB
Priority = Literal["interactive", "batch"]
T = TypeVar("T")
_RANKS: Mapping[Priority, int] = {"interactive": 0, "batch": 1}
_POLL_S = 0.2  # between two looks at whether the run is over


class ClientModel:
    """A client that calls the tools by itself, as a coding agent does, in the place of a model.

    Its replies are the calls that the client makes, those that wait together as one. One conversation at a time
    may ask; any thread may call. What calls come to, the run's events say: the client keeps its own conversation, so
    what a request holds is not read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[ToolCall | None] = queue.SimpleQueue()  # None: look whether the run is over
        self._numbers = itertools.count(1)
        self.is_over: Callable[[], bool] = lambda: False  # whether the run is, once it has asked for the first time

    def call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Have a tool called when it is the client's turn; returns the id that its result will carry."""
        call_id = f"call_{next(self._numbers)}"
        self._calls.put(ToolCall(call_id, name, dict(arguments)))
        return call_id

    def wake(self) -> None:
        """Have `ask` see at once that the run is over."""
        self._calls.put(None)

    def facts(self) -> ModelFacts:
        """Return nothing but its name."""
        return ModelFacts(self.name)

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        """Wait for the next calls. Raises NoLongerWanted when the run is over before there are any."""
        self.is_over = request.is_over
        while not request.is_over() and request.left_s() > 0:
            try:
                waiting = [self._calls.get(timeout=_POLL_S)]
            except queue.Empty:
                continue
            while not self._calls.empty():
                waiting.append(self._calls.get())
            if calls := tuple(call for call in waiting if call is not None):
                return cleaned(Reply("", "tools", calls, model=self.name.partition(":")[2]))
        raise NoLongerWanted("the run is over")

    def price_usd(self, usage: Usage) -> None:
        """Return None: whoever runs the client pays, and nobody here knows what."""

    def close(self) -> None:
        """There is nothing to let go of."""


class Busy(UsageError):
    """No place is free at the moment."""


@dataclass(frozen=True)
class CallResult:
    """What a call came to. `attempt`: what it was about, as it stands now; `was_made`: False when the run ended
    before."""

    text: str
    is_error: bool = False
    attempt: Attempt | None = None
    was_made: bool = True


class ClientRun:
    """A run whose tools a client calls. Any thread may use it; its events are given to it as to a view.

    system: what a model's system prompt would be, once `opening` is there.
    opening: the first words of the run's conversation, once its task is open; or what kept it from being opened.
    outcome: how it ended. state: what there is to see of it. task: what it is on, None until that is open.
    """

    def __init__(self, author: str, *, resumed: bool = False) -> None:
        self.state, self.system = ViewState(), ""
        self.task: TaskSpec | None = None
        self.opening: Future[str] = Future()
        self.outcome: Future[RunOutcome] = Future()
        self.controls = Controls()
        self._model = ClientModel(author)
        self._calls: dict[str, Future[CallResult]] = {}
        self._is_over = False
        self._is_told_again = resumed  # what earlier processes of this run did, its calls and its end
        self._changing = threading.Lock()

    @property
    def choice(self) -> Choice:
        """The author of the run."""
        return Choice(self._model.name, "a client calls the tools", self._model)

    def call(self, name: str, arguments: Mapping[str, Json]) -> Future[CallResult]:
        """Have a tool called. Calls are carried out in their order; those of `update` that wait together, side by
        side. Once the run is over, as it may be before its client hears of it, none is made. Raises Busy."""
        made = Future[CallResult]()
        with self._changing:
            if self._is_over or self.outcome.done():
                text = f"run {self.run_id} is over; start another, or go on with it"
                made.set_result(CallResult(text, is_error=True, was_made=False))
            elif len(self._calls) >= MOST_CALLS:
                raise Busy(f"{MOST_CALLS} calls of run {self.run_id} wait; try again later")
            else:
                self._calls[self._model.call(name, arguments)] = made
        return made

    @property
    def is_ending(self) -> bool:
        """Whether the run was told to end or has come to its limits: it concludes, or has."""
        return self.controls.stopping or self._model.is_over()

    def stop(self) -> None:
        """End the run after what is under way, and judge its best again."""
        self.controls.stop()
        self._model.wake()

    def __call__(self, event: Event) -> None:
        """Hear of an event of the run."""
        with self._changing:
            self.state = fold(self.state, event)
        self._is_told_again = self._is_told_again and not isinstance(event, LimitsChanged)  # never stored: ours
        if self._is_told_again:
            return
        match event:
            case Said(role="system") if event.final:
                self.system = event.text
            case Said(role="user") if event.final and not self.opening.done():
                self.opening.set_result(event.text)
            case Said(role="tool", raw=dict(raw)):
                self._called(event.text, raw)
            case RunEnded():
                self._end()
            case _:
                pass

    @property
    def run_id(self) -> str:
        """The run's id; "" until it has begun."""
        return self.state.run_id or ""

    @property
    def doing(self) -> str:
        """What the run is busy with, in words."""
        state = self.state
        stages = [f"{state.stage_of(attempt)} attempt {attempt.number}" for attempt in state.working]
        if not stages and self.opening.done() and state.judging_again is None:
            return "nothing is under way"
        return ", ".join(stages) or state.stage

    def _called(self, text: str, raw: Mapping[str, Json]) -> None:
        about = raw.get("attempt_id")
        result = CallResult(text, bool(raw.get("is_error")), self.state.row(about) if isinstance(about, str) else None)
        with self._changing:
            waiting = self._calls.pop(str(raw.get("call_id")), None)
        if waiting is not None:  # else a process before this one called
            waiting.set_result(result)

    def _end(self) -> None:
        with self._changing:
            self._is_over = True
            left, self._calls = self._calls, {}
        for waiting in left.values():
            text = "the run is over, and this call was not carried out"
            waiting.set_result(CallResult(text, is_error=True, was_made=False))

    def drive(self, run: Callable[[], RunOutcome]) -> None:
        """Let the run take place, to its end."""
        try:
            self.outcome.set_result(run())
            if not self.opening.done():
                self.opening.set_exception(UsageError("the run ended before it began"))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the outcome is told, in another thread
            self._end()
            self.outcome.set_exception(error)
            if not self.opening.done():
                self.opening.set_exception(error)


class FairQueue:
    """Who may judge next: one at a time, interactive clients before batches, and among those of a rank the one that was
    served least while others waited. Now and then it is whoever waits longest, lest batches, or clients that call
    themselves by another name each time, keep somebody waiting for ever. Any thread may wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_busy = False
        self._tickets: list[tuple[int, int, int]] = []  # rank, round, number
        self._round = 0  # of the one that was served last
        self._next: dict[str, int] = {}  # the round of a client's next ticket, where that is not the present one
        self._numbers = itertools.count()
        self._turns = 0

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._tickets)

    def enter(self, client: str, priority: Priority) -> None:
        """Wait for the client's turn."""
        with self._changed:
            its_round = max(self._round, self._next.get(client, 0))
            self._next[client] = its_round + 1
            ticket = _RANKS[priority], its_round, next(self._numbers)
            self._tickets.append(ticket)
            self._changed.wait_for(lambda: not self._is_busy and self._first() == ticket)
            self._tickets.remove(ticket)
            self._turns += 1
            self._is_busy, self._round = True, max(self._round, its_round)

    def _first(self) -> tuple[int, int, int]:
        longest_first = self._turns % _EVERY == _EVERY - 1
        return min(self._tickets, key=lambda ticket: ticket[2] if longest_first else ticket)

    def leave(self) -> None:
        """End the turn."""
        with self._changed:
            self._is_busy = False
            if not self._tickets:
                self._next.clear()
            self._changed.notify_all()


@dataclass(frozen=True)
class Turn:
    """A client's turn in a queue, as a lock for the thread that benches. `opening`: of its task, which is waited for
    before the turn, as others may judge meanwhile: it took 6 s of a step's 43 where one task of twelve was opened."""

    queue: FairQueue
    client: str
    priority: Priority
    opening: Future[Any] | None = None

    def __enter__(self) -> None:
        wait([self.opening] if self.opening else [])
        self.queue.enter(self.client, self.priority)

    def __exit__(self, *_: object) -> None:
        self.queue.leave()


@dataclass
class _OpenTask:
    """A task that is being opened or is open, how many runs use it, and in which order they are judged."""

    held: contextlib.ExitStack
    opened: Future[Session]
    users: int = 0
    queue: FairQueue = field(default_factory=FairQueue)


class OpenTasks:
    """Tasks that are open, each once for the same baselines; of those that nobody uses the least recently used are
    closed, as soon as there are more than `most`, and before one is opened as long as memory `is_short`. Any thread may
    ask."""

    def __init__(
        self,
        open_task: Callable[[TaskFile, Patience], contextlib.AbstractContextManager[Session]],
        most: int,
        is_short: Callable[[], bool],
    ) -> None:
        self._open_task, self._most, self._is_short = open_task, most, is_short
        self._tasks: dict[tuple[Path, str, tuple[str, ...]], _OpenTask] = {}  # the least recently used first
        self._changing = threading.Lock()
        self._gpu = FairQueue()  # which all tasks share

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        """How many wait for a judge."""
        with self._changing:
            return self._gpu.waiting + sum(task.queue.waiting for task in self._tasks.values())

    @contextlib.contextmanager
    def use(
        self,
        file: TaskFile,
        *,
        patience: Patience | None = None,
        client: str = "",
        priority: Priority = "interactive",
    ) -> Iterator[Session]:
        """The open task, with workers of one's own, which have `patience`; its bench takes turns with those of other
        clients. Raises TaskError, and whatever else keeps it from being opened. After a failure of ours the next one
        finds a fresh judge."""
        baselines = (patience or Patience()).baselines
        key = file.path, file.sha256, baselines
        with self._changing:
            is_new = key not in self._tasks
            task = self._tasks.pop(key) if not is_new else _OpenTask(contextlib.ExitStack(), Future())
            self._tasks[key] = task
            task.users += 1
        try:
            if is_new:
                self._open(task, file, Patience(baselines=baselines))
            yield self._in_turn(task.opened.result().apart(patience), task.queue, client, priority)
        except BaseException:
            with self._changing:
                if self._tasks.get(key) is task:
                    del self._tasks[key]
            raise
        finally:
            with self._changing:
                task.users -= 1
                surplus = [] if task.users or task in self._tasks.values() else [task]
                unused = [key for key, other in self._tasks.items() if other.users == 0]
                surplus += [self._tasks.pop(key) for key in unused[: max(0, len(self._tasks) - self._most)]]
            _close(surplus)

    @contextlib.contextmanager
    def anew(self, file: TaskFile, *, client: str, priority: Priority) -> Iterator[Session]:
        """The task opened once more, with a judge of one's own: an open one knows the verdicts on what it has judged,
        and would draw the same inputs again. Raises TaskError."""
        self._make_room()
        with self._open_task(file, Patience()) as opened:
            yield self._in_turn(opened, FairQueue(), client, priority)

    def _in_turn(self, opened: Session, queue: FairQueue, client: str, priority: Priority) -> Session:
        benches = opened.tools.benches
        opening = benches.opening if isinstance(benches, GpuBench) else None
        turn = Turn(self._gpu if opened.gpu else queue, client, priority, opening)
        return replace(opened, tools=replace(opened.tools, judging=turn))

    def _open(self, task: _OpenTask, file: TaskFile, patience: Patience) -> None:
        try:
            self._make_room()
            task.opened.set_result(task.held.enter_context(self._open_task(file, patience)))
        except BaseException as error:
            task.opened.set_exception(error)
            raise

    def _make_room(self) -> None:
        while self._is_short():
            with self._changing:
                unused = [key for key, task in self._tasks.items() if task.users == 0]
                if not unused:
                    return
                closing = self._tasks.pop(unused[0])
            closing.held.close()

    def close(self) -> None:
        """Close all; who still uses one finds its workers gone."""
        with self._changing:
            tasks, self._tasks = list(self._tasks.values()), {}
        _close(tasks)


def _close(tasks: Iterable[_OpenTask]) -> None:
    """Close each, also after one that does not close in order, whose error is raised."""
    with contextlib.ExitStack() as closing:
        for task in tasks:
            closing.callback(task.held.close)


class Service:
    """Runs of clients on workers that stay warm, for as long as a `with` block lasts, `most_runs` at a time. Any thread
    may use it.

    What takes seconds to load loads in a thread of its own, so that a server answers at once.
    """

    def __init__(
        self, settings: Settings, environment: Environment, begun: Workers, most_runs: int = MOST_RUNS
    ) -> None:
        self.settings, self._environment, self._begun, self._most_runs = settings, environment, begun, most_runs
        self._held = contextlib.ExitStack()
        self.shop: Future[Workshop] = Future()
        self.tasks = OpenTasks(
            lambda file, patience: session(self.shop.result(), file, patience),
            MOST_OPEN,
            lambda: memory_is_short(self.shop.result().gpu),
        )
        self._runs: list[ClientRun] = []
        self._benches: dict[Future[Any], tuple[str, Controls]] = {}  # and verifications, with their clients
        self._is_ending = False
        self._changing = threading.Lock()

    def __enter__(self) -> "Service":
        threading.Thread(target=self._prepare, name="workshop", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the runs in order: each concludes, and its best is judged and written."""
        self.stop()
        ended: list[Future[Any]] = [*(run.outcome for run in self.runs), *self._benches]
        for outcome in ended:
            outcome.exception()  # the run's own failure, which its client was told
        with self._held:
            self.tasks.close()

    def stop(self) -> None:
        """End all runs after what is under way, and begin no more."""
        self._is_ending = True
        for controls in self._under_way():
            controls.stop()

    def give_up(self) -> None:
        """End all runs at once, as Ctrl-C does: what was finished is stored, and they can be taken up again."""
        self._is_ending = True
        for controls in self._under_way():
            controls.stop(interrupted=True)
            controls.skip()

    def _under_way(self) -> list[Controls]:
        with self._changing:
            return [run.controls for run in self._runs if not run.outcome.done()] + [
                controls for _, controls in self._benches.values()
            ]

    def _prepare(self) -> None:
        try:
            self.shop.set_result(self._held.enter_context(workshop(self.settings, lambda _: None, self._begun)))
        except BaseException as error:  # noqa: BLE001 - each run is told
            self.shop.set_exception(error)

    @property
    def failure(self) -> BaseException | None:
        """Why nothing can be judged, for good: its workers did not start, or what forks them was killed."""
        if not self.shop.done():
            return None
        return self.shop.exception() or self.shop.result().machine.failure

    @property
    def runs(self) -> tuple[ClientRun, ...]:
        """Those that have been started, the earliest first; of those that are over the latest."""
        with self._changing:
            return tuple(self._runs)

    @property
    def running(self) -> int:
        """Runs and benches that are under way."""
        return len(self._under_way())

    def start(
        self,
        task: str,
        author: str,
        settings: Settings | None = None,
        patience: Patience | None = None,
        priority: Priority = "interactive",
    ) -> ClientRun:
        """Begin a run on a task, by name or path. Raises UsageError for one that is not there."""
        find_task(task)
        return self._driven(ClientRun(author), partial(run_task, task), settings, patience, priority)

    def resume(
        self,
        run_id: str,
        author: str,
        settings: Settings | None = None,
        patience: Patience | None = None,
        priority: Priority = "interactive",
    ) -> ClientRun:
        """Go on with a stored run, once one of this service that is ending has ended."""

        def begin(*what: Any, **more: Any) -> RunOutcome:
            known = [run for run in self.runs if run.run_id and run.run_id.startswith(run_id)]
            wait([run.outcome for run in known if run.is_ending])
            return resume_run(run_id, *what, **more)

        return self._driven(ClientRun(author, resumed=True), begin, settings, patience, priority)

    def _driven(
        self,
        run: ClientRun,
        begin: Callable[..., RunOutcome],
        settings: Settings | None,
        patience: Patience | None,
        priority: Priority,
    ) -> ClientRun:
        settings = replace(settings or self.settings, context_tokens=WHOLE_CONTEXT)

        @contextlib.contextmanager
        def open_task(file: TaskFile) -> Iterator[Session]:
            client = run.choice.name
            with self.tasks.use(file, patience=patience, client=client, priority=priority) as opened:
                run.task = opened.task
                yield opened

        with self._changing:
            self._insist_on_room(run.choice.name)
            over = [other for other in self._runs if other.outcome.done()]
            for forgotten in over[:-_MOST_KEPT]:
                self._runs.remove(forgotten)
            self._runs.append(run)

        def drive() -> RunOutcome:
            return begin(settings, self._environment, run, run.controls, choice=run.choice, open_task=open_task)

        _begin(partial(run.drive, drive), "run", partial(self._forget, run))
        return run

    def _forget(self, run: ClientRun) -> None:
        with self._changing:
            self._runs.remove(run)

    def _insist_on_room(self, client: str) -> None:
        if self._is_ending:
            raise Busy("the service is shutting down and starts nothing new")
        under_way = [run.choice.name for run in self._runs if not run.outcome.done()]
        under_way += [whose for whose, _ in self._benches.values()]
        if len(under_way) >= self._most_runs:
            raise Busy(f"{self._most_runs} runs are under way; finish one first, or try again later")
        of_one = max(1, self._most_runs // 2)  # so that a client that leaves its runs lying keeps nobody else out
        if under_way.count(client) >= of_one:
            raise Busy(f"{of_one} runs of {client} are under way; finish one first, or try again later")

    def bench(
        self,
        task: str,
        judge: Callable[[Session, Store], int],
        controls: Controls,
        patience: Patience | None = None,
        *,
        client: str = "",
        priority: Priority = "interactive",
    ) -> Future[int]:
        """What `judge` returns for the task, which is opened for it, in a thread of its own. Raises UsageError for one
        that is not there."""
        file = find_task(task)

        def work() -> int:
            with (
                Store.open(self.settings.runs_dir) as store,
                self.tasks.use(file, patience=patience, client=client, priority=priority) as opened,
            ):
                return judge(opened, store)

        return self._apart("bench", work, client, controls)

    def verify(
        self, attempt: str, tier: Tier | None = None, *, client: str = "", priority: Priority = "interactive"
    ) -> Future[Verification]:
        """Judge a stored attempt again as `optimize verify` does, in a thread of its own."""
        settings, controls = replace(self.settings, tier=tier), Controls()

        def judge() -> Verification:
            open_task = partial(self.tasks.anew, client=client, priority=priority)
            with Store.open(settings.runs_dir) as store:
                return repeat_stored(store, *store.find_attempt(attempt), settings, open_task, controls=controls)

        return self._apart("verify", judge, client, controls)

    def _apart(self, name: str, work: Callable[[], T], client: str, controls: Controls) -> Future[T]:
        """What comes of work in a thread of its own, which counts as a run."""
        done = Future[T]()

        def leave() -> None:
            with self._changing:
                del self._benches[done]

        with self._changing:
            self._insist_on_room(client)
            self._benches[done] = client, controls

        def carry_out() -> None:
            try:
                came = work()
            except BaseException as error:  # noqa: BLE001 - whoever asked is told, in another thread
                tell: Callable[[], None] = partial(done.set_exception, error)
            else:
                tell = partial(done.set_result, came)
            leave()
            tell()

        _begin(carry_out, name, leave)
        return done


def _begin(work: Callable[[], None], name: str, leave: Callable[[], None]) -> None:
    """Let work take place in a thread of its own. Where the machine gives none, it leaves its place, which would be
    taken for ever and waited for at the end. Raises Busy."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as error:
        leave()
        raise Busy(f"the service cannot go on: {error}; try again later") from error
