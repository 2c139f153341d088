"""The public Python API, over the functions that the commands call. Reached as `kerneltune.optimize` and so on."""

import contextlib
import hashlib
import importlib.util
import io
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerneltune.agent.events import Event
from kerneltune.agent.models.types import Effort
from kerneltune.agent.settings import Language, Strategy, chosen_settings, environment
from kerneltune.tools.schema.errors import UsageError
from kerneltune.tools.schema.verdict import Tier, Verdict

if TYPE_CHECKING:
    from collections import Counter
    from types import ModuleType

    from kerneltune.agent.attempt import Attempt, StopReason
    from kerneltune.agent.commands.lifecycle import RunOutcome
    from kerneltune.agent.record.folder import Accepted
    from kerneltune.agent.view.state import ViewState
    from kerneltune.tools.evaluator import Candidate
    from kerneltune.tools.schema.verdict import Comparison
    from kerneltune.tools.task.write import SeenCall


@dataclass(frozen=True)
class Task:
    """A task file as data: nothing of it has run."""

    name: str
    path: Path
    source: str

    @classmethod
    def open(cls, name_or_path: str | Path) -> "Task":
        """Open a built-in task by its name, or a task file by its path. Raises TaskError."""
        from kerneltune.tools.task.load import find_task

        file = find_task(str(name_or_path))
        return cls(file.name, file.path, file.source)

    @classmethod
    def from_callable(
        cls,
        target: Callable[..., Any],
        inputs: Sequence[Any] | Mapping[str, Any],
        *,
        made_with: Mapping[str, Any] | None = None,
        path: str | Path | None = None,
        runs_dir: str | Path | None = None,
    ) -> "Task":
        """Write the task of a function or nn.Module that is called with these inputs, as `optimize init` does.

        target     a function or a class's instance, defined at the top of a file or of a notebook's cell
        inputs     positional arguments, or arguments by name: tensors on any device, whose shapes, dtypes (as torch
                   has them), strides (in elements) and ranges the task takes over, and numbers or strings
        made_with  arguments of a module's constructor, where they cannot be found in the module
        path       the file to write; below `runs_dir` otherwise, where files that lie beside your own are not found

        Raises TaskError for what cannot become a task, UsageError for a path that cannot be written.
        """
        from kerneltune.tools.task import capture

        call = capture.bound(getattr(target, "forward", target), *_split(inputs))
        made = made_with
        if not isinstance(target, types.FunctionType):
            made = dict(made_with) if made_with is not None else capture.made_with(target)
        seen = capture.seen_call(call)
        return _written(capture.task_of(target, [seen], made), capture.name_of(target), path, runs_dir)


class Capture:
    """Watch how a function or module is called, for a task of these calls: `with capture("Tail") as seen: …`.

    The target is the function, the class, a module (then its calls alone), or a name such as "Tail" or "mymodel.tail"
    of one that is loaded. Raises TaskError for another name.
    """

    def __init__(self, target: Any) -> None:
        from kerneltune.tools.task.capture import Watch

        self._watch = Watch(target)

    def __enter__(self) -> "Capture":
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._watch.__exit__(*error)

    @property
    def calls(self) -> "list[SeenCall]":
        """The kinds of calls that were seen, most work first, each with how often it was."""
        return self._watch.calls

    def task(self, path: str | Path | None = None, *, runs_dir: str | Path | None = None) -> Task:
        """The task: the calls with the most work are timed, the others are cases with weights. Raises TaskError where
        no call was seen, UsageError for a path that cannot be written."""
        return _written(self._watch.source(), self._watch.name, path, runs_dir)


def capture(target: Any) -> Capture:
    """Watch how a function or module is called: `with kerneltune.capture("Tail") as seen: model(batch)`."""
    return Capture(target)


@dataclass(frozen=True, repr=False)
class Result:
    """How a run ended, and what to do with its best kernel. `state`: all that is shown of it."""

    outcome: "RunOutcome"
    state: "ViewState"

    @property
    def run_id(self) -> str:
        """The run as commands name it."""
        return self.outcome.run_id

    @property
    def task(self) -> str:
        """The task's name."""
        return self.outcome.task

    @property
    def why(self) -> "StopReason":
        """Why the run ended."""
        return self.outcome.why

    @property
    def best(self) -> "Attempt | None":
        """The best accepted attempt; None where nothing was accepted."""
        return self.outcome.best

    @property
    def best_path(self) -> Path | None:
        """The file with that kernel, as best.py."""
        return self.outcome.best_path

    @property
    def verdict(self) -> Verdict | None:
        """The best attempt's verdict: `correct` with times, `checked` where there is no GPU."""
        return self.best.verdict if self.best else None

    @property
    def speedups(self) -> "dict[str, Comparison]":
        """Baseline -> how many times as fast the best kernel is: `speedup`, and the 95 % interval `low` to `high`.
        Empty where nothing was timed."""
        return {one.baseline: one for one in self.verdict.comparisons} if self.verdict else {}

    @property
    def source(self) -> str | None:
        """The best kernel's Python, word for word as it was judged."""
        return self.best.source if self.best else None

    def package(self, path: str | Path, *, backward: "Result | None" = None) -> Path:
        """Write the best kernel as a file that can be put into a model, as `optimize package` does; returns its path.
        `backward`: of a run with backward=True, for training. Raises UsageError where there is no kernel,
        CannotPackage, OSError."""
        from kerneltune.agent.record.folder import packaged_attempts

        path = Path(path)
        name = path.stem if path.stem.isidentifier() else ""
        gradients = [backward._accepted()] if backward is not None else []
        path.write_text(packaged_attempts([self._accepted()], name, gradients))
        return path

    def _accepted(self) -> "Accepted":
        if self.best is None:
            raise UsageError(f"run {self.run_id} has no accepted kernel to package")
        return self.best, self.outcome.started, self.outcome.described

    def patch(self, model: Any, pattern: str = "") -> "dict[str, Counter[str]]":
        """Put the best kernel into the modules of a model whose names fit, such as "layers.*.mlp"; "" is the model.
        Returns how many calls kernel and reference have answered at each. The kernel's Python runs in this process.

        Raises UsageError where there is no kernel, CannotPackage, ValueError for a module that computes something else.
        """
        return self.packaged().patch(model, pattern)  # type: ignore[no-any-return]

    def packaged(self) -> "ModuleType":
        """The best kernel's packaged file as a module, with `patch`, `unpatch`, `calls` and `ModelNew`."""
        return _imported(self.package(Path(tempfile.mkdtemp(prefix="kerneltune-")) / f"{_plain_name(self.run_id)}.py"))

    def __repr__(self) -> str:
        from rich.console import Console

        from kerneltune.agent.view.plain import summary

        console = Console(file=io.StringIO(), width=120, force_jupyter=False)  # which would show it beside the card
        with console.capture() as said:
            console.print(summary(self.state))
        return said.get()

    def _repr_html_(self) -> str:
        return _card(self.state)


def optimize(
    task: "str | Path | Task | Capture | Callable[..., Any]",
    inputs: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    made_with: Mapping[str, Any] | None = None,
    backward: bool = False,
    model: str | None = None,
    base_url: str | None = None,
    retry_time_s: int | None = None,
    effort: Effort | None = None,
    strategy: Strategy | None = None,
    language: Language | None = None,
    start: str | None = None,
    max_attempts: int | None = None,
    max_time_s: float | None = None,
    max_cost_usd: float | None = None,
    patience: int | None = None,
    target_speedup: float | None = None,
    target_sol: float | None = None,
    tier: Tier | None = None,
    counters: bool | None = None,
    confirm: bool | None = None,
    width: int | None = None,
    seed: int | None = None,
    warm_start: bool | None = None,
    lessons: bool | None = None,
    arch: str | None = None,
    runs_dir: str | Path | None = None,
    allow_unsandboxed: bool | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """Optimise a task as `optimize --task` does, and store every attempt in `runs_dir`.

    `task` is a task's name or path, a Task, what `capture` saw, or a function or nn.Module, which is called with
    `inputs` (`Task.from_callable`, with `made_with`). `backward`: optimise its gradients, which are a task of their
    own; `Result.package` joins both. Kernels are traced, compiled and judged in other processes.

    An argument means what the flag of its name does (`start`: --from), and where it is None the environment, then
    the default decide. `on_event` is called with each event of the run, from several threads.
    Ctrl-C ends the run in order, and the result says so. A notebook shows the run while it goes on.

    Raises UsageError for an argument that makes no sense, TaskError (one of them) for a task that cannot be used,
    LlmError for a model that cannot be asked, Unconfined where nothing confines candidates.
    """
    settings = chosen_settings({**locals(), "from_": start})
    if isinstance(task, Capture):
        task = task.task(runs_dir=runs_dir)
    elif callable(task):
        if inputs is None:
            raise UsageError("give the inputs that it is called with: kerneltune.optimize(tail, [x, bias])")
        task = Task.from_callable(task, inputs, made_with=made_with, runs_dir=runs_dir)
    if backward:
        from kerneltune.agent.commands.init import gradients_of

        name, text = gradients_of(_task_name(task))
        task = _written(text, name, None, runs_dir)
    from kerneltune.agent.commands.lifecycle import run_task

    shown = _Shown(on_event)
    outcome = run_task(_task_name(task), settings, environment(), shown)
    shown.close()
    return Result(outcome, shown.state)


def bench(
    source_or_path: str | Path,
    task: str | Path | Task,
    *,
    tier: Tier | None = None,
    arch: str | None = None,
    runs_dir: str | Path | None = None,
    allow_unsandboxed: bool | None = None,
) -> Verdict:
    """Judge one candidate as `optimize bench` does: the text of a Python file that defines ModelNew, or a path to one.

    Without a GPU the verdict's status is `checked` at best, and nothing is timed. With `runs_dir` the candidate is kept
    there as a run, with its receipt. Raises UsageError, TaskError and Unconfined as `optimize` does.
    """
    settings, candidate = chosen_settings(locals()), _candidate(source_or_path)
    from kerneltune.agent.commands.bench import FilesView, bench_opened
    from kerneltune.agent.commands.session import session, workshop
    from kerneltune.agent.record.store import Store
    from kerneltune.tools.task.load import find_task

    task_file, view = find_task(_task_name(task)), FilesView(io.StringIO(), io.StringIO())
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store.open(settings.runs_dir)) if runs_dir is not None else None
        shop = stack.enter_context(workshop(settings, _ignored))
        code = bench_opened(stack.enter_context(session(shop, task_file)), [candidate], settings, view, store)
    if code == 130:
        raise KeyboardInterrupt
    return view.judged[0].judged


def _task_name(task: str | Path | Task) -> str:
    return str(task.path if isinstance(task, Task) else task)


def _split(inputs: Sequence[Any] | Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})


def _written(text: str, name: str, path: str | Path | None, runs_dir: str | Path | None) -> Task:
    """A task file, below the runs unless there is another place for it; the same text is the same file."""
    from kerneltune.tools.task.write import file_name

    if path is None:
        folder = chosen_settings({"runs_dir": runs_dir}).runs_dir / "tasks"
        path = folder / hashlib.sha256(text.encode()).hexdigest()[:12] / file_name(name)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        Path(path).write_text(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return Task.open(path)


def _plain_name(run_id: str) -> str:
    return "kernel_" + "".join(c if c.isalnum() else "_" for c in run_id)


def _imported(path: Path) -> "ModuleType":
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


_CARD = (100, 30)  # columns and lines
_EACH_S = 1.0


class _Shown:
    """Folds a run's events, hands them on, and in a notebook draws them."""

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        from kerneltune.agent.view.state import ViewState

        self.state, self._on_event, self._lock = ViewState(), on_event, threading.Lock()
        self._drawn_s, self._handle = 0.0, _notebook_display()

    def __call__(self, event: Event) -> None:
        from kerneltune.agent.view.state import fold

        with self._lock:
            self.state = fold(self.state, event)
            if self._handle is not None and time.monotonic() - self._drawn_s > _EACH_S:
                self._drawn_s = time.monotonic()
                self._handle.update({"text/html": _card(self.state)}, raw=True)
        if self._on_event is not None:
            self._on_event(event)

    def close(self) -> None:
        """Take away what was drawn: the result is shown instead."""
        if self._handle is not None:
            self._handle.update({"text/html": ""}, raw=True)


def _notebook_display() -> Any:
    """A place in the notebook's output that can be drawn anew; None where there is no notebook."""
    if "ipykernel" not in sys.modules:
        return None
    display = importlib.import_module("IPython.display").display
    return display({"text/html": ""}, raw=True, display_id=True)


def _card(state: "ViewState") -> str:
    """The run as a picture: the state, the curve of its best, its attempts."""
    from kerneltune.agent.view.render import render
    from kerneltune.agent.view.watch import picture

    now = state.ended.at if state.ended else time.time()
    return picture(render(state, _CARD, now), state)


def _candidate(source_or_path: str | Path) -> "Candidate":
    from kerneltune.agent.commands.bench import read_candidates
    from kerneltune.tools.evaluator import Candidate

    if isinstance(source_or_path, str) and ("\n" in source_or_path or not source_or_path.endswith(".py")):
        return Candidate("<source>", source_or_path)
    if Path(source_or_path).is_dir():
        raise UsageError(f"{source_or_path} is a folder; bench judges one file")
    (candidate,) = read_candidates([str(source_or_path)])
    return candidate


def _ignored(event: Event) -> None:
    """Nobody asked to be told."""
