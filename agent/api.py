"""The public Python API, over the functions that the commands call. Reached as `kerneltune.optimize` and so on."""

import contextlib
import functools
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
        """Open a built-in task by its name, or a task file by its path.

        Raises:
            TaskError: there is no such task, or the file is not one.
        """
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

        Args:
            target: A function or an nn.Module, defined at the top of a file or of a notebook's cell.
            inputs: A sequence of positional arguments, or a mapping of named ones: tensors on any device, numbers and
                strings. The task takes over each tensor's shape, dtype, strides (in elements) and range of values.
            made_with: Arguments of the module's constructor that cannot be read from the module.
            path: The file to write. By default it lies below `runs_dir`, where it cannot import files beside yours.
            runs_dir: The folder of runs.

        Raises:
            TaskError: the target or an input cannot become part of a task.
            UsageError: the path cannot be written.
        """
        from kerneltune.tools.task import capture

        call = capture.bound(getattr(target, "forward", target), *_split(inputs))
        made = made_with
        if not isinstance(target, types.FunctionType):
            made = dict(made_with) if made_with is not None else capture.made_with(target, call.values())
        seen = capture.seen_call(call)
        return _written(capture.task_of(target, [seen], made), capture.name_of(target), path, runs_dir)


class Capture:
    """Watch how a function or module is called, for a task of these calls: `with capture("Tail") as seen: …`.

    Args:
        target: A function, a class, one nn.Module (only its own calls are seen), or the name of a function or class
            that is loaded, such as "Tail" or "mymodel.tail".

    Raises:
        TaskError: nothing that is loaded has that name.
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

    @property
    def missed(self) -> Mapping[str, int]:
        """Why calls were not captured, each with how many: of sparse tensors, for instance."""
        return self._watch.missed

    def task(self, path: str | Path | None = None, *, runs_dir: str | Path | None = None) -> Task:
        """Write the task of these calls. Those with the most work are timed; the others are cases with weights.

        Raises:
            TaskError: no call was seen.
            UsageError: the path cannot be written.
        """
        return _written(self._watch.source(), self._watch.name, path, runs_dir)


def capture(target: Any) -> Capture:
    """Watch how a function or module is called: `with kerneltune.capture("Tail") as seen: model(batch)`.

    Args:
        target: A function, a class, one nn.Module, or a name, as `Capture` takes them.

    Raises:
        TaskError: nothing that is loaded has that name.
    """
    return Capture(target)


@dataclass(frozen=True, repr=False)
class Result:
    """How a run ended, and what to do with its best kernel."""

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
        """Write the best kernel as a file that can be put into a model, as `optimize package` does.

        Args:
            path: The file to write. Its name is the module's.
            backward: The result of a run with `backward=True` or `step=True`: then the kernel can be trained through.

        Returns:
            The path.

        Raises:
            UsageError: the run has no accepted kernel.
            CannotPackage: the kernel does something that a packaged file cannot do.
            OSError: the file cannot be written.
        """
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

    def patch(self, model: Any, pattern: str = "", *, backward: "Result | None" = None) -> "dict[str, Counter[str]]":
        """Put the best kernel into modules of a model. The kernel's Python then runs in this process.

        Args:
            model: An nn.Module.
            pattern: Names of its modules, such as "layers.*.mlp"; "" is the model itself.
            backward: The result of a run with `backward=True`: then the model can be trained.

        Returns:
            For each module that was patched, how many calls the kernel and the reference have answered.

        Raises:
            UsageError: the run has no accepted kernel.
            CannotPackage: the kernel does something that a packaged file cannot do.
            ValueError: a module computes something else than the task.
        """
        return self.packaged(backward=backward).patch(model, pattern)  # type: ignore[no-any-return]

    def packaged(self, *, backward: "Result | None" = None) -> "ModuleType":
        """The best kernel's packaged file as a module, with `patch`, `unpatch`, `calls` and `ModelNew`; with the
        result of a run with `backward=True`, one that can be trained through."""
        path = Path(tempfile.mkdtemp(prefix="kerneltune-")) / f"{_plain_name(self.run_id)}.py"
        return _imported(self.package(path, backward=backward))

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
    step: bool = False,
    model: str | None = None,
    base_url: str | None = None,
    retry_time_s: int | None = None,
    effort: Effort | None = None,
    logprobs: bool | None = None,
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
    algebra: bool | None = None,
    emulation: bool | None = None,
    lessons: bool | None = None,
    arch: str | None = None,
    runs_dir: str | Path | None = None,
    allow_unsandboxed: bool | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """Optimise a task as `optimize --task` does, and store every attempt in `runs_dir`.

    Kernels are traced, compiled and judged in other processes. Ctrl-C ends the run in order, and the result says so.
    A notebook shows the run while it goes on. An argument that is None is taken from the environment or its default.

    Args:
        task: A built-in task's name, a path to a task file, a Task, a Capture, or a function or nn.Module of yours.
        inputs: What the function or module is called with, as `Task.from_callable` takes it.
        made_with: Arguments of the module's constructor that cannot be read from the module.
        backward: Optimise the gradients, which are a task of their own. `Result.package` joins both kernels.
        step: Optimise outputs and gradients together, with what is saved between them; for `Result.package` likewise.
        model: Who writes the kernels: "offline" (no model), "anthropic", "openai", or "chat:ID" with `base_url`.
        base_url: The address of a server with OpenAI's API.
        retry_time_s: Seconds to go on asking a model that does not answer.
        effort: How hard a model thinks: "low", "medium", "high", "xhigh" or "max".
        logprobs: Keep token ids and log-probabilities of a "chat:ID" model's replies.
        strategy: "refine" one conversation, "best-of" independent ones, or "evolve" a population.
        language: What the kernels are written in: "triton", "gluon", "cuda" or "ptx".
        start: What to begin with: "nothing", "best", RUN/NUMBER or a file. The flag is `--from`.
        max_attempts: End after so many attempts.
        max_time_s: Begin no attempt after so many seconds.
        max_cost_usd: End before the model has cost more US dollars.
        patience: End after so many attempts without a better kernel.
        target_speedup: End when the best beats every baseline by this factor.
        target_sol: End at this share of the speed of light, 0 to 1.
        tier: How thoroughly kernels are judged on a GPU: "screened", "judged" or "confirmed".
        counters: Have ncu read hardware counters of kernels that are judged in full.
        confirm: Judge the best kernel again at the end, in fresh processes.
        width: How many candidates are under way at a time.
        seed: The seed of the search.
        warm_start: Start from earlier results on this GPU.
        algebra: Also try the formula rewritten, where that is exact in real numbers.
        emulation: Also try float32 products as three of float16.
        lessons: Show a model how predictions of earlier runs on this GPU came out.
        arch: The GPU to compile for where there is none, such as "sm_90" or "H100".
        runs_dir: The folder of runs: every attempt is stored there.
        allow_unsandboxed: Run kernels' host code where nothing confines it.
        on_event: Called with each event of the run, from several threads.

    Raises:
        UsageError: an argument makes no sense.
        TaskError: the task cannot be used. It is a UsageError.
        LlmError: the model cannot be asked.
        Unconfined: nothing confines candidates on this machine.
    """
    settings = chosen_settings({**locals(), "from_": start})
    from kerneltune.agent.commands.init import fitted, gradients_of, rewritten

    written = None
    if isinstance(task, Capture):
        task = task.task(runs_dir=runs_dir)
        written = rewritten(task.path, task.source)
    elif callable(task):
        if inputs is None:
            raise UsageError("give the inputs that it is called with: kerneltune.optimize(tail, [x, bias])")
        task = Task.from_callable(task, inputs, made_with=made_with, runs_dir=runs_dir)
        written = rewritten(task.path, task.source)
    if backward and step:
        raise UsageError("a step is for gradients, too; give one of backward and step")
    if backward or step:
        name, text = fitted(written, functools.partial(gradients_of, _task_name(task), step=step))
        task, written = _written(text, name, None, runs_dir), None
    from kerneltune.agent.commands.lifecycle import run_task

    shown = _Shown(on_event)
    begin = functools.partial(run_task, _task_name(task), settings, environment(), shown)
    outcome = fitted(written, begin)
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

    Without a GPU the verdict's status is `checked` at best, and nothing is timed.

    Args:
        source_or_path: The text, or a path that ends with .py.
        task: A task's name or path, or a Task.
        tier: How thoroughly it is judged on a GPU: "screened", "judged" or "confirmed".
        arch: The GPU to compile for where there is none, such as "sm_90" or "H100".
        runs_dir: Keep the candidate there as a run, with its receipt. By default nothing is kept.
        allow_unsandboxed: Run its host code where nothing confines it.

    Raises:
        UsageError: an argument makes no sense.
        TaskError: the task cannot be used. It is a UsageError.
        Unconfined: nothing confines candidates on this machine.
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
