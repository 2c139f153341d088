"""`optimize mcp`: the tools for coding agents, through the Model Context Protocol.

An agent starts a run and calls update, bench, reflect and look as a model does; what it makes is judged, stored, shown
by `watch` and exported like any other run. No tool tells a verdict that the evaluator has not reached, and none changes
a reference, a tolerance or a timer.

A call gets its result, or after `SOON_S` the word that it is still under way, with `wait` to go on waiting: clients
give up after 60 s. Progress is told every few seconds. A call that is cancelled gives up what it had under way.
"""

import asyncio
import contextlib
import json
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar

from cyclopts import App
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kerneltune.agent.commands import Arch, RunsDir, Unsandboxed, begun_workers
from kerneltune.agent.settings import Environment, Language, Settings, chosen_settings, environment
from kerneltune.tools.schema.codec import Json, leads_within, one_line, plain
from kerneltune.tools.schema.errors import KerneltuneError, Unfit, UsageError, is_shortage
from kerneltune.tools.schema.verdict import versions

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.lowlevel import Server

    from kerneltune.agent.attempt import Attempt
    from kerneltune.agent.commands.service import CallResult, ClientRun, Service
    from kerneltune.tools.sandbox.workers import Workers

SOON_S = 45.0  # desktop clients cut a call off after 60 s
TOLD_EVERY_S = 2.0  # progress: a client's watchdog is reset by it
MOST_ATTEMPTS = 100  # of a run where its client names no number
MOST_LINE = 16 << 20  # bytes of a message; what is longer is no message
_SHOWN = 20  # attempts of a run that `show` lists

command = App(
    name="mcp",
    help_epilogue="""
Examples:
    claude mcp add kerneltune -- optimize mcp
    codex mcp add kerneltune -- optimize mcp
    optimize mcp --runs-dir ~/kernels/runs
""",
)


@command.default
def mcp(*, arch: Arch = None, runs_dir: RunsDir = None, allow_unsandboxed: Unsandboxed = None) -> int:
    """Serve the tools to a coding agent over standard input and output.

    Task files are taken from the working directory and below. Ends when the client does, or by Ctrl-C; what was
    finished is stored, and its runs can be taken up again.
    """
    if find_spec("mcp") is None:
        raise Unfit("serving agents needs the package mcp: pip install 'kerneltune[mcp]'")
    settings = chosen_settings(locals())
    import anyio
    from mcp.server.stdio import stdio_server

    from kerneltune.agent.view.output import silence

    with open(os.devnull) as nothing:
        lines = lines_of(os.fdopen(taken(0, nothing.fileno()), "rb"))
    answers = os.fdopen(taken(1, 2), "w", encoding="utf-8")  # what a library prints is no answer

    async def serve(service: "Future[Service]") -> None:
        server = AgentTools(service, Path.cwd()).server()
        streams = stdio_server(stdin=lines, stdout=anyio.wrap_file(answers))  # type: ignore[arg-type] # it iterates over lines alone
        try:
            async with streams as (read, write):
                await server.run(read, write, server.create_initialization_options())
        except ExceptionGroup:
            if (task := asyncio.current_task()) is None or not task.cancelling():
                raise
            # Ctrl-C while the SDK (2.3) passes a message on: it fails for want of a reader, 1 of some 100 times
            raise asyncio.CancelledError from None

    with (
        begun_workers(settings) as begun,
        prepared(settings, environment(), begun) as service,
    ):
        try:
            asyncio.run(serve(service))
        except* (BrokenPipeError, ConnectionResetError):
            silence(answers)  # the client went without reading its last answers
    return 0


def taken(descriptor: int, instead: int) -> int:
    """Return a duplicate of a standard stream. Who else uses it, a child too, gets `instead`."""
    ours = os.dup(descriptor)
    os.dup2(instead, descriptor)
    return ours


async def lines_of(file: BinaryIO) -> AsyncIterator[str]:
    """Yield the lines of a file, which a daemon reads: the SDK has a thread of asyncio's read them, for which Python
    waits at its end, so that neither SIGTERM nor Ctrl-C ended a server until its client wrote or went."""
    loop, lines, turn = asyncio.get_running_loop(), asyncio.Queue[bytes](), threading.Semaphore()

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants them any more
            line = b"\n"
            while line and turn.acquire():
                line = file.readline(MOST_LINE)
                loop.call_soon_threadsafe(lines.put_nowait, line)

    threading.Thread(target=read, name="lines", daemon=True).start()
    while line := await lines.get():
        turn.release()
        yield line.decode(errors="replace")


@contextlib.contextmanager
def prepared(settings: Settings, environment: Environment, begun: "Workers") -> "Iterator[Future[Service]]":
    """A service for as long as the block lasts, whose imports take seconds, in a thread of their own. At the end its
    runs are given up: a client that goes ends a server that takes more than two seconds."""
    service: Future[Service] = Future()

    def prepare() -> None:
        try:
            from kerneltune.agent.commands.service import Service

            service.set_result(held.enter_context(Service(settings, environment, begun)))
        except BaseException as error:  # noqa: BLE001 - each call is told
            service.set_exception(error)

    with contextlib.ExitStack() as held:
        preparing = threading.Thread(target=prepare, name="service", daemon=True)
        preparing.start()
        try:
            yield service
        finally:
            preparing.join()
            if service.exception() is None:
                service.result().give_up()


# The tools, as an agent sees them -------------------------------------------------------------------------------------


class NoArguments(BaseModel):
    """None at all."""

    model_config = ConfigDict(extra="forbid")


class OfRun(NoArguments):
    """Of a run, or of the one that was started last."""

    run: str | None = Field(default=None, description="Id of the run; null for the one that was started last.")


class StartArguments(NoArguments):
    """Of `start`."""

    task: str | None = Field(default=None, description="Name of a built-in task, or path of a task file.")
    resume: str | None = Field(default=None, description="Id of a stored run to go on with, instead of a task.")
    language: Language = Field(default="triton", description="What kernels are written in.")
    begin_with: str | None = Field(
        default=None, description="First attempt: best (of the record), an attempt's id, or a path; null for none."
    )
    max_attempts: int | None = Field(default=None, ge=1, description=f"Of the run; null for {MOST_ATTEMPTS}.")
    max_time_s: float | None = Field(default=None, gt=0, description="Seconds after which the run ends.")


class ShowArguments(OfRun):
    """Of `show`."""

    attempt: int | None = Field(default=None, description="Its number, to see one alone; null for the whole run.")


class AttemptFacts(BaseModel):
    """An attempt, as far as it has come. `speedup`: over the baseline that is hardest to beat; `registers`: a thread,
    of each kernel; `status`: null while it is not benched."""

    attempt_id: str
    number: int
    status: str | None = None
    detail: str = ""
    tier: str | None = None
    median_us: float | None = None
    speedup: float | None = None
    registers: list[int] = []
    spill_bytes: int | None = None


class Outcome(BaseModel):
    """What a tool answers. `state`: "done"; "running" while a call is under way, which `wait` goes on waiting for;
    "over" when the run has ended."""

    state: Literal["done", "running", "over"] = "done"
    text: str
    run: str | None = None
    attempt: AttemptFacts | None = None
    best: AttemptFacts | None = None
    best_path: str | None = None
    attempts: list[AttemptFacts] | None = None


Answer = Callable[["Context"], Awaitable["Outcome"]]
Checked = TypeVar("Checked", bound=BaseModel)
Context = Any  # mcp.server.context.ServerRequestContext, which takes a second to import
Arguments = Mapping[str, Json]


@dataclass(frozen=True)
class AgentTool:
    """A tool for agents. `of_run`: it takes the id of a run besides."""

    name: str
    description: str
    arguments: type[BaseModel]
    does: Callable[[Context, Arguments], Awaitable[Outcome]]
    is_read_only: bool = False
    of_run: bool = False

    @property
    def schema(self) -> dict[str, Json]:
        """The JSON Schema of its arguments."""
        made = self.arguments.model_json_schema()
        if self.of_run:
            made["properties"] = made.get("properties", {}) | OfRun.model_json_schema()["properties"]
        return dict(_without_titles(made))


def _without_titles(schema: Any) -> Any:
    """The schema without the names that pydantic makes up, which say nothing to an agent."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: _without_titles(v) for k, v in schema.items() if k != "title" or isinstance(v, dict)}


INSTRUCTIONS = (
    "Makes PyTorch operations faster with GPU kernels that are checked and timed from outside. Begin with `start`, "
    "which returns the task, its rules and what to beat. Then send whole files by `update`, `bench` what compiled, and "
    "go on from the best. The verdict is the evaluator's alone: editing files on disk changes none. End with `finish`."
)
_WORDS = {
    "tasks": "List the built-in tasks. Any task file works by its path, too.",
    "start": "Begin a run on a task, or go on with a stored one. Returns the task, its rules and what to beat.",
    "wait": "Go on waiting for what is under way.",
    "show": "Show how a run stands, its best and latest attempts; or one attempt.",
    "finish": "End the run. Its best is judged again and written to a file, whose path is returned.",
}
_PROMPT = (
    "Make the operation of the task {task} faster with the tools of kerneltune. Call `start` with it and read what it "
    "tells. Say what bounds the operation before you write. Send several different designs, bench those that compile, "
    "reflect on the best, and change one thing at a time. Stop when the best is within a tenth of the speed of light, "
    "or three attempts in a row brought nothing; then call `finish` and report its verdict as it is."
)
HISTORY, BEST = "kerneltune://runs/{run}/history", "kerneltune://runs/{run}/best"
_URI = re.compile(r"kerneltune://runs/([^/]+)/(history|best)")


class AgentTools:
    """The tools of one server. `root`: task files lie there or below; None: there are none but the built-in ones.
    `soon_s`: the longest that a call is waited for; `is_shared`: several agents call them, each of which has to name
    its run."""

    def __init__(
        self, service: "Future[Service]", root: Path | None, soon_s: float = SOON_S, *, is_shared: bool = False
    ) -> None:
        self._service, self._root, self._soon_s, self._is_shared = service, root, soon_s, is_shared
        self._latest: ClientRun | None = None
        self._runs: tuple[ClientRun, ...] = ()  # that were started by these tools, as long as the service knows them
        self._later: dict[ClientRun, list[Answer]] = {}  # what was not there soon, and `wait` answers
        self._listening: dict[ClientRun, int] = {}  # requests that wait for one
        self._used: dict[ClientRun, float] = {}  # that are not over, and when one was asked for (monotonic clock, s)

    def server(self) -> "Server[Any]":
        """The server, for any transport."""
        from mcp.server.lowlevel import Server

        return Server(
            "kerneltune",
            version=versions()["kerneltune"],
            instructions=INSTRUCTIONS,
            on_list_tools=self._listed,
            on_call_tool=self._called,
            on_list_resource_templates=self._templates,
            on_list_resources=self._resources,
            on_read_resource=self._read,
            on_list_prompts=self._prompts,
            on_get_prompt=self._prompt,
        )

    # What is listed

    @cached_property
    def tools(self) -> dict[str, AgentTool]:
        """All, by name."""
        from kerneltune.agent.authors.llm.author import ARGUMENTS, TOOLS

        own = [
            AgentTool("tasks", _WORDS["tasks"], NoArguments, self._tasks, is_read_only=True),
            AgentTool("start", _WORDS["start"], StartArguments, self._start),
            AgentTool("wait", _WORDS["wait"], OfRun, self._wait, is_read_only=True),
            AgentTool("show", _WORDS["show"], ShowArguments, self._show, is_read_only=True),
            AgentTool("finish", _WORDS["finish"], OfRun, self._finish),
        ]
        of_models = [
            AgentTool(tool.name, tool.description, ARGUMENTS[tool.name], partial(self._call, tool.name), of_run=True)
            for tool in TOOLS
        ]
        return {tool.name: tool for tool in (*own[:2], *of_models, *own[2:])}

    async def _listed(self, ctx: Context, params: Any) -> "types.ListToolsResult":
        import mcp_types as types

        answer = _without_titles(Outcome.model_json_schema())
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.schema,
                    output_schema=answer,
                    annotations=types.ToolAnnotations(
                        read_only_hint=tool.is_read_only, destructive_hint=False, open_world_hint=False
                    ),
                )
                for tool in self.tools.values()
            ]
        )

    async def _templates(self, ctx: Context, params: Any) -> "types.ListResourceTemplatesResult":
        import mcp_types as types

        made = [
            types.ResourceTemplate(name="best kernel", uri_template=BEST, mime_type="text/x-python"),
            types.ResourceTemplate(name="history of a run", uri_template=HISTORY, mime_type="application/json"),
        ]
        return types.ListResourceTemplatesResult(resource_templates=made)

    async def _resources(self, ctx: Context, params: Any) -> "types.ListResourcesResult":
        import mcp_types as types

        runs = () if self._is_shared else self._runs  # who knows a run's id may ask for it, and nobody else
        made = [
            types.Resource(name=f"{name} of {run.run_id}", uri=uri.format(run=run.run_id))
            for run in runs
            for name, uri in (("history", HISTORY), ("best kernel", BEST))
            if run.run_id
        ]
        return types.ListResourcesResult(resources=made)

    async def _read(self, ctx: Context, params: Any) -> "types.ReadResourceResult":
        import mcp_types as types
        from mcp.shared.exceptions import MCPError

        uri = str(params.uri)
        found = _URI.fullmatch(uri)
        try:
            if found is None:
                raise UsageError(f"no resource {uri!r:.200}; there are {HISTORY} and {BEST}")
            run = await self._run(ctx, {"run": found[1]})
        except KerneltuneError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        if found[2] == "best":
            text = run.state.best.source if run.state.best else ""
        else:
            text = json.dumps([_facts(a, run).model_dump() for a in run.state.attempts])
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text=text)])

    async def _prompts(self, ctx: Context, params: Any) -> "types.ListPromptsResult":
        import mcp_types as types

        task = types.PromptArgument(
            name="task", description="A built-in task or the path of a task file", required=True
        )
        about = "Make the operation of a task faster"
        return types.ListPromptsResult(prompts=[types.Prompt(name="optimise", description=about, arguments=[task])])

    async def _prompt(self, ctx: Context, params: Any) -> "types.GetPromptResult":
        import mcp_types as types

        text = _PROMPT.format(task=one_line((params.arguments or {}).get("task", "")))
        said = types.PromptMessage(role="user", content=types.TextContent(type="text", text=text))
        return types.GetPromptResult(messages=[said])

    # What is called

    async def _called(self, ctx: Context, params: "types.CallToolRequestParams") -> "types.CallToolResult":
        import mcp_types as types

        try:
            if params.name not in self.tools:
                raise UsageError(f"there is no such tool; the tools are {', '.join(self.tools)}")
            outcome, is_error = await self.tools[params.name].does(ctx, params.arguments or {}), False
        except CallFailed as failed:
            outcome, is_error = failed.outcome, True
        except KerneltuneError as error:
            outcome, is_error = Outcome(text=plain(f"{params.name}: {error}")), True
        except Exception as error:  # noqa: BLE001 - a fault of ours, which ends this call alone
            words = str(error)
            if not is_shortage(error):
                sys.stderr.write(plain(traceback.format_exc(), None))
                words = f"internal failure: {type(error).__name__}: {error}"
            outcome, is_error = Outcome(text=plain(words)), True
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=outcome.text)],
            structured_content=outcome.model_dump(exclude_none=True),
            is_error=is_error,
        )

    async def _tasks(self, ctx: Context, arguments: Arguments) -> Outcome:
        _checked(NoArguments, arguments)
        from kerneltune.tools.tasks import GROUPS

        lines = [f"{group}: {', '.join(names)}" for group, names in GROUPS.items()]
        return Outcome(
            text="\n".join([*lines, "or the path of a task file, as KernelBench's are; `optimize init` writes one"])
        )

    async def _start(self, ctx: Context, arguments: Arguments) -> Outcome:
        wanted = _checked(StartArguments, arguments)
        if (wanted.task is None) == (wanted.resume is None):
            raise UsageError("give either `task` or `resume`")
        service, author = await self._ready(ctx), f"mcp:{_client(ctx)}"
        settings = replace(
            service.settings,
            language=wanted.language,
            from_=self._beginning(wanted.begin_with or ""),
            max_attempts=wanted.max_attempts or (None if wanted.resume else MOST_ATTEMPTS),
            max_time_s=wanted.max_time_s,
        )
        if wanted.resume is not None:
            run = service.resume(wanted.resume, author, settings)
        else:
            run = service.start(self._task(wanted.task or ""), author, settings)
        self._latest, self._used[run] = run, time.monotonic()
        self._remember(run, service)
        if self._is_shared:  # before it has a name nobody could ask for it
            try:
                await _told(ctx, run.opening, lambda: run.doing, math.inf)
            except BaseException:
                run.stop()  # nor will anybody: its client has gone, or cancelled the call
                raise
        return await self._opened(ctx, run)

    def _remember(self, run: "ClientRun", service: "Service") -> None:
        """A run, and of those before it the ones that the service knows."""
        known = service.runs
        self._runs = (*(one for one in self._runs if one in known), run)
        for forgotten in (self._later.keys() | self._used.keys()) - {*self._runs}:
            self._later.pop(forgotten, None)
            self._used.pop(forgotten, None)

    def _task(self, name: str) -> str:
        """What names a task. Raises UsageError for a file elsewhere."""
        from kerneltune.tools.task.load import builtin_names

        is_no_file = name.isidentifier() and (name in builtin_names() or not os.path.isfile(name))
        return name if is_no_file else self._inside(name)

    def _beginning(self, name: str) -> str:
        """What names a start. Raises UsageError for a file elsewhere."""
        path = os.path.expanduser(name)
        places = path, os.path.join(self._root or "", path)  # a name that leads somewhere from here is no attempt's
        return self._inside(name) if path.endswith((".py", ".ptx")) or any(map(os.path.isfile, places)) else name

    def _inside(self, name: str) -> str:
        """The path of a file that lies in the root or below. Raises UsageError for another."""
        if self._root is None:
            raise UsageError(f"{name!r:.200}: this server takes no files; `tasks` lists the built-in tasks")
        path = self._root / os.path.expanduser(name)
        try:
            is_inside = leads_within(self._root, path)
        except (OSError, ValueError, RuntimeError):  # a NUL; links in a circle
            is_inside = False
        if not is_inside:
            raise UsageError(f"{name!r:.200} is not below {self._root}, where this server takes files from")
        return str(path)

    def _handed_back(self, run: "ClientRun", later: Answer) -> Outcome:
        self._later.setdefault(run, []).append(later)
        return Outcome(state="running", text=f"{run.doing}; call `wait` for the result", run=run.run_id or None)

    async def _opened(self, ctx: Context, run: "ClientRun") -> Outcome:
        if not await self._soon(ctx, run, run.opening):
            return self._handed_back(run, partial(self._opened, run=run))
        text = "\n\n".join([run.system, run.opening.result(), *(f"Note: {w}" for w in run.state.warnings)])
        return Outcome(text=f"{text}\n\nThis is run {run.run_id}.", run=run.run_id)

    async def _call(self, name: str, ctx: Context, arguments: Arguments) -> Outcome:
        run = await self._run(ctx, arguments)
        made = run.call(name, {key: value for key, value in arguments.items() if key != "run"})
        return await self._answer(ctx, run, made)

    async def _wait(self, ctx: Context, arguments: Arguments) -> Outcome:
        run = await self._run(ctx, _checked(OfRun, arguments).model_dump())
        if later := self._later.get(run):
            answer = later.pop(0)
            try:
                return await answer(ctx)
            except asyncio.CancelledError:
                later.insert(0, answer)
                raise
        if run.outcome.done():
            return self._ended(run)
        return Outcome(text="nothing is under way", run=run.run_id)

    async def _answer(self, ctx: Context, run: "ClientRun", made: "Future[CallResult]") -> Outcome:
        """What came of a call, or that it is still under way."""
        if not await self._soon(ctx, run, made):
            return self._handed_back(run, partial(self._answer, run=run, made=made))
        result = made.result()
        outcome = Outcome(
            state="over" if run.state.ended else "done",
            text=result.text,
            run=run.run_id,
            attempt=_facts(result.attempt, run) if result.attempt else None,
        )
        if result.is_error:
            raise CallFailed(outcome)
        return outcome

    async def _show(self, ctx: Context, arguments: Arguments) -> Outcome:
        wanted = _checked(ShowArguments, arguments)
        run = await self._run(ctx, wanted.model_dump())
        state = run.state
        if wanted.attempt is not None:
            attempt = state.row(f"{run.run_id}/{wanted.attempt}")
            if attempt is None:
                raise UsageError(f"there is no attempt {wanted.attempt}; {len(state.attempts)} have begun")
            return Outcome(text=_line(attempt, run), run=run.run_id, attempt=_facts(attempt, run))
        latest = state.attempts[-_SHOWN:]
        counts = ", ".join(f"{n} {status}" for status, n in state.by_status.items()) or "no attempt judged yet"
        lines = [f"run {run.run_id} on {state.task}: {counts}", *(_line(attempt, run) for attempt in latest)]
        return Outcome(
            state="over" if state.ended else "done",
            text="\n".join([*lines, f"now: {run.doing}"]),
            run=run.run_id,
            best=_facts(state.best, run) if state.best else None,
            attempts=[_facts(attempt, run) for attempt in latest],
        )

    async def _finish(self, ctx: Context, arguments: Arguments) -> Outcome:
        run = await self._run(ctx, _checked(OfRun, arguments).model_dump())
        run.stop()
        return await self._end(ctx, run)

    async def _end(self, ctx: Context, run: "ClientRun") -> Outcome:
        if not await self._soon(ctx, run, run.outcome):
            return self._handed_back(run, partial(self._end, run=run))
        return self._ended(run)

    def _ended(self, run: "ClientRun") -> Outcome:
        ended = run.outcome.result()
        over = Outcome(state="over", text=f"the run is over ({ended.why})", run=run.run_id)
        if ended.best is None:
            return over.model_copy(update={"text": f"{over.text}; nothing was accepted"})
        path = str(ended.best_path and ended.best_path.absolute())
        text = f"{over.text}; its best:\n{_line(ended.best, run)}\nThe kernel, with its verdict: {path}"
        return over.model_copy(update={"text": text, "best": _facts(ended.best, run), "best_path": path})

    # How it waits

    async def _ready(self, ctx: Context) -> "Service":
        await _told(ctx, self._service, lambda: "starting", math.inf)
        return self._service.result()

    async def _run(self, ctx: Context, arguments: Arguments) -> "ClientRun":
        """The run that is meant. Raises UsageError."""
        named = arguments.get("run")
        if named is None and (self._is_shared or self._latest is None):
            raise UsageError("say which `run`" if self._is_shared else "no run was started here yet; call `start`")
        run = self._latest if named is None else self._found(str(named))
        assert run is not None
        self._used[run] = time.monotonic()
        return run

    def _found(self, run_id: str) -> "ClientRun":
        """A run of these tools. Raises UsageError."""
        known = {run.run_id: run for run in self._runs}
        if run_id not in known:
            told = "" if self._is_shared else f"; those are: {', '.join(known) or 'none yet'}"
            raise UsageError(f"no run {run_id!r:.100} was started here{told}")
        return known[run_id]

    def end_idle(self, after_s: float) -> None:
        """End the runs that nobody has asked for in so many seconds."""
        now_s = time.monotonic()
        for run, used_s in list(self._used.items()):
            if run.outcome.done():
                del self._used[run]
            elif now_s - used_s > after_s and not self._listening.get(run):
                run.stop()

    async def _soon(self, ctx: Context, run: "ClientRun", awaited: "Future[Any]") -> bool:
        """Whether it is done within `soon_s`. A request that is cancelled gives up what the run has under way, unless
        another waits for it."""
        self._listening[run] = self._listening.get(run, 0) + 1
        try:
            return await _told(ctx, awaited, lambda: run.doing, self._soon_s)
        except asyncio.CancelledError:
            if self._listening[run] == 1:
                run.controls.skip()
            raise
        finally:
            self._listening[run] -= 1
            if not self._listening[run]:
                del self._listening[run]


async def _told(ctx: Context, awaited: "Future[Any]", doing: Callable[[], str], most_s: float) -> bool:
    """Wait until it is done, and tell the client of progress on the way; false when that takes longer than `most_s`."""
    began_s, future = time.monotonic(), asyncio.wrap_future(awaited)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio reports it as unread
    while not awaited.done():
        waited_s = time.monotonic() - began_s
        if waited_s >= most_s:
            return False
        await ctx.session.report_progress(waited_s, None, one_line(doing()))
        await asyncio.wait([future], timeout=min(TOLD_EVERY_S, most_s - waited_s))
    return True


class CallFailed(Exception):
    """A call that could not be carried out."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.text)
        self.outcome = outcome


def _checked(kind: type[Checked], arguments: Arguments) -> Checked:
    """The arguments of a tool of ours. Raises UsageError, which names each field and what is wrong with it."""
    from kerneltune.agent.authors.llm.author import argument_problems

    try:
        return kind.model_validate(arguments)
    except ValidationError as error:
        raise UsageError(argument_problems(error, kind)) from error


def _client(ctx: Context) -> str:
    """What the client calls itself, as a word."""
    params = ctx.session.client_params
    name = params.client_info.name if params else ""
    return re.sub(r"[^\w.-]+", "-", name)[:40] or "client"


def _seen(attempt: "Attempt", run: "ClientRun") -> "Attempt":
    """The attempt as its author may see it."""
    from kerneltune.tools.receipt import author_view

    if attempt.verdict is None:
        return attempt
    assert run.task is not None
    return replace(attempt, verdict=author_view(attempt.verdict, run.task))


def _facts(attempt: "Attempt", run: "ClientRun") -> AttemptFacts:
    from kerneltune.agent.commands.show import line_json

    return AttemptFacts.model_validate(line_json(_seen(attempt, run)))


def _line(attempt: "Attempt", run: "ClientRun") -> str:
    from kerneltune.agent.commands.bench import file_line

    if attempt.verdict is None:
        return f"#{attempt.number} {one_line(attempt.rationale)}: {run.state.stage_of(attempt) or 'not benched'}"
    return file_line(_seen(attempt, run))
