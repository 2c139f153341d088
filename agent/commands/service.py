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
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from kerneltune.agent.attempt import Attempt, Controls
from kerneltune.agent.commands.lifecycle import Choice, RunOutcome, resume_run, run_task
from kerneltune.agent.commands.session import Session, Workshop, session, workshop
from kerneltune.agent.events import Event, RunEnded, RunResumed, Said
from kerneltune.agent.models.client import ClientModel
from kerneltune.agent.settings import Environment, Settings
from kerneltune.agent.view.state import ViewState, fold
from kerneltune.tools.sandbox.workers import Workers
from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.task.load import TaskFile, find_task

MOST_OPEN = 4  # tasks: each holds a judge, and on a GPU the memory of its inputs and answers
MOST_RUNS = 64  # under way at a time; each is a thread that mostly waits
WHOLE_CONTEXT = 10**9  # tokens: a client remembers its conversation itself


@dataclass(frozen=True)
class CallResult:
    """What a call came to. `attempt`: what it was about, as it stands now."""

    text: str
    is_error: bool = False
    attempt: Attempt | None = None


class ClientRun:
    """A run whose tools a client calls. Any thread may use it; its events are given to it as to a view.

    system: what a model's system prompt would be, once `opening` is there.
    opening: the first words of the run's conversation, once its task is open; or what kept it from being opened.
    outcome: how it ended. state: what there is to see of it.
    """

    def __init__(self, author: str, *, resumed: bool = False) -> None:
        self.state = ViewState()
        self.system = ""
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
        side. Raises UsageError when the run is over."""
        with self._changing:
            if self._is_over or self.outcome.done():
                raise UsageError(f"run {self.run_id} is over; start another, or go on with it")
            call_id = self._model.call(name, arguments)
            made = self._calls[call_id] = Future()
        return made

    def stop(self) -> None:
        """End the run after what is under way, and judge its best again."""
        self.controls.stop()

    def interrupt(self) -> None:
        """End the run at once, as Ctrl-C does: what was finished is stored, and the run can be taken up again."""
        self.controls.stop(interrupted=True)
        self.controls.skip()

    def __call__(self, event: Event) -> None:
        """Hear of an event of the run."""
        with self._changing:
            self.state = fold(self.state, event)
        self._is_told_again = self._is_told_again and not isinstance(event, RunResumed)
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
            waiting.set_result(CallResult("the run is over, and this call was not carried out", is_error=True))

    def drive(self, run: Callable[[], RunOutcome]) -> None:
        """Let the run take place, to its end."""
        try:
            self.outcome.set_result(run())
        except BaseException as error:  # noqa: BLE001 - whoever asks for the outcome is told, in another thread
            self._end()
            self.outcome.set_exception(error)
            if not self.opening.done():
                self.opening.set_exception(error)


@dataclass
class _OpenTask:
    """A task that is being opened or is open, and how many runs use it."""

    held: contextlib.ExitStack
    opened: Future[Session]
    users: int = 0


class OpenTasks:
    """Tasks that are open, each once; of those that nobody uses the least recently used are closed, as soon as there
    are more than `most`. Any thread may ask."""

    def __init__(self, open_task: Callable[[TaskFile], contextlib.AbstractContextManager[Session]], most: int) -> None:
        self._open_task, self._most = open_task, most
        self._tasks: dict[tuple[Path, str], _OpenTask] = {}  # the least recently used first
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._tasks)

    @contextlib.contextmanager
    def use(self, file: TaskFile) -> Iterator[Session]:
        """The open task, with workers of one's own. Raises TaskError, and whatever else keeps it from being opened."""
        key = file.path, file.sha256
        with self._changing:
            is_new = key not in self._tasks
            task = self._tasks.pop(key) if not is_new else _OpenTask(contextlib.ExitStack(), Future())
            self._tasks[key] = task
            task.users += 1
        try:
            if is_new:
                self._open(key, task, file)
            yield task.opened.result().apart()
        finally:
            with self._changing:
                task.users -= 1
                unused = [key for key, other in self._tasks.items() if other.users == 0]
                surplus = [self._tasks.pop(key) for key in unused[: max(0, len(self._tasks) - self._most)]]
            for other in surplus:
                other.held.close()

    def _open(self, key: tuple[Path, str], task: _OpenTask, file: TaskFile) -> None:
        try:
            task.opened.set_result(task.held.enter_context(self._open_task(file)))
        except BaseException as error:
            with self._changing:
                del self._tasks[key]
            task.opened.set_exception(error)
            raise

    def close(self) -> None:
        """Close all; who still uses one finds its workers gone."""
        with self._changing:
            tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.held.close()


class Service:
    """Runs of clients on workers that stay warm, for as long as a `with` block lasts. Any thread may use it.

    What takes seconds to load loads in a thread of its own, so that a server answers at once.
    """

    def __init__(self, settings: Settings, environment: Environment, begun: Workers) -> None:
        self._settings, self._environment, self._begun = settings, environment, begun
        self._held = contextlib.ExitStack()
        self._shop: Future[Workshop] = Future()
        self.tasks = OpenTasks(lambda file: session(self._shop.result(), file), MOST_OPEN)
        self._runs: list[ClientRun] = []
        self._changing = threading.Lock()

    def __enter__(self) -> "Service":
        threading.Thread(target=self._prepare, name="workshop", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the runs: their clients are gone, and end a server that takes longer than two seconds."""
        for run in self.runs:
            run.interrupt()
        for run in self.runs:
            with contextlib.suppress(Exception):  # the run's own failure, which its client was told
                run.outcome.result()
        self.tasks.close()
        self._held.close()

    def _prepare(self) -> None:
        try:
            self._shop.set_result(self._held.enter_context(workshop(self._settings, lambda _: None, self._begun)))
        except BaseException as error:  # noqa: BLE001 - each run is told
            self._shop.set_exception(error)

    @property
    def runs(self) -> tuple[ClientRun, ...]:
        """Those that have been started, the earliest first."""
        with self._changing:
            return tuple(self._runs)

    def find(self, run_id: str) -> ClientRun:
        """A run of this service. Raises UsageError."""
        known = {run.run_id: run for run in self.runs}
        if run_id not in known:
            raise UsageError(f"no run {run_id!r:.100} was started here; those are: {', '.join(known) or 'none yet'}")
        return known[run_id]

    def start(self, task: str, author: str, settings: Settings | None = None) -> ClientRun:
        """Begin a run on a task, by name or path. Raises UsageError for one that is not there."""
        find_task(task)
        return self._driven(ClientRun(author), partial(run_task, task), settings)

    def resume(self, run_id: str, author: str, settings: Settings | None = None) -> ClientRun:
        """Go on with a stored run."""
        return self._driven(ClientRun(author, resumed=True), partial(resume_run, run_id), settings)

    def _driven(self, run: ClientRun, begin: Callable[..., RunOutcome], settings: Settings | None) -> ClientRun:
        settings = replace(settings or self._settings, context_tokens=WHOLE_CONTEXT)
        with self._changing:
            if sum(not other.outcome.done() for other in self._runs) >= MOST_RUNS:
                raise UsageError(f"{MOST_RUNS} runs are under way; finish one first")
            self._runs.append(run)

        def drive() -> RunOutcome:
            return begin(settings, self._environment, run, run.controls, choice=run.choice, open_task=self.tasks.use)

        threading.Thread(target=run.drive, args=[drive], name="run", daemon=True).start()
        return run
