"""The evaluator over HTTP: benches, and sessions, which are runs whose tools a client calls.

Requests are JSON objects, checked against the classes here, of which /openapi.json is made. Answers are JSON, lines of
JSON for benches, and server-sent events. A failure of ours has a status of 500 or more; a kernel's is a verdict.

Whoever has the token, or may open the socket, is one owner. Sessions have names that cannot be guessed.
"""

import asyncio
import base64
import contextlib
import hashlib
import io
import json
import os
import secrets
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from importlib import util
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, TextIO, TypeVar, cast

import h11
import uvicorn
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from kerneltune.agent.attempt import Attempt, Controls
from kerneltune.agent.authors.llm.author import TOOLS, argument_problems
from kerneltune.agent.commands import kernelgym
from kerneltune.agent.commands.bench import FilesView, bench_opened, from_bytes
from kerneltune.agent.commands.lifecycle import NOTHING
from kerneltune.agent.commands.mcp import AgentTools
from kerneltune.agent.commands.service import Busy, ClientRun, Priority, Service
from kerneltune.agent.commands.session import Patience, Session
from kerneltune.agent.commands.show import line_json
from kerneltune.agent.commands.verify import verification_json
from kerneltune.agent.commands.web import RecordPages
from kerneltune.agent.events import Event
from kerneltune.agent.export.rewards import (
    GAMMA,
    RejectionSampling,
    Reward,
    RewardedTurn,
    rejection_sampling,
    reward_of,
    turns_of,
)
from kerneltune.agent.record.folder import make_private
from kerneltune.agent.record.store import Store
from kerneltune.agent.record.trajectory import Trajectory
from kerneltune.agent.settings import Language, Tier
from kerneltune.agent.view.output import RUN_SCHEMA_VERSION, say
from kerneltune.agent.view.state import ViewState
from kerneltune.tools.schema.codec import Json, encode, leads_within, one_line, parsed, plain, plural
from kerneltune.tools.schema.errors import KerneltuneError, StoreError, TaskError, Unfit, UsageError, is_shortage
from kerneltune.tools.schema.messages import BASELINES, BaselineName
from kerneltune.tools.schema.verdict import Status, evaluator_sha256, versions
from kerneltune.tools.task.load import builtin_names

MOST_CONNECTIONS = 512
_AT_ONCE = 128  # connections that are accepted before one is read; many more, and a flood would drive out who just came
MOST_AHEAD_BYTES = 1 << 16  # of requests that are sent before the answer to the one before them
_KEEP_ALIVE_S = 75
MOST_TEXT = 1 << 20  # characters of a source or a reference
MOST_BODY_BYTES = 4 << 20  # both, as JSON writes them
MOST_VALUES = 1 << 16  # in a body
MOST_SOURCES = 100
_MOST_EVALUATIONS = 10_000  # that wait, and whose results are kept
_MOST_EVALUATING = 32  # at a time
_POLL_S, _BEAT_S = 0.2, 15.0  # between looks for events; between signs of life
REFERENCES = "references"  # the folder, in that of the runs, of the tasks that clients sent
T = TypeVar("T")


@dataclass(frozen=True)
class HttpTimes:
    """How long is waited for the head of a request and for a client to read what it was sent, and for a body; and after
    how long a session that nobody uses is ended, so that its place is free. Seconds."""

    head_s: float = 30.0
    body_s: float = 30.0
    idle_s: float = 900.0


class HttpError(Exception):
    """A request that is not answered as asked."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Gone(Exception):
    """The client no longer waits."""


# What is asked --------------------------------------------------------------------------------------------------------


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SessionLimits(_Asked):
    """How long things may take."""

    max_attempts: int | None = Field(default=None, ge=1, le=100_000, description="Of the run; 24 where none is given.")
    max_time_s: float | None = Field(default=None, gt=0, description="Seconds of the run.")
    trace_s: float | None = Field(default=None, gt=0, le=600, description="Seconds to trace a candidate; 60.")
    compile_s: float | None = Field(default=None, gt=0, le=600, description="Seconds to compile its kernels; 120.")
    replay_s: float | None = Field(default=None, gt=0, le=600, description="Seconds for a case without a GPU; 120.")


class _OnATask(_Asked):
    task: str | None = Field(default=None, max_length=4096, description="A built-in task, or a file below --root.")
    reference_code: str | None = Field(default=None, max_length=MOST_TEXT, description="A KernelBench file.")
    tier: Tier | None = Field(default=None, description="How thoroughly to judge on a GPU.")
    baselines: list[BaselineName] | None = Field(
        default=None, min_length=1, description="What a GPU times beside a kernel; all of them where none is named."
    )
    limits: SessionLimits = SessionLimits()
    client: str = Field(default="client", pattern=r"^[\w.-]{1,64}$", description="Whose turns at the judge these are.")
    priority: Priority = "interactive"

    @property
    def patience(self) -> Patience:
        """Of the workers and the judge."""
        given = {name: getattr(self.limits, name) for name in ("trace_s", "compile_s", "replay_s")}
        baselines = tuple(b for b in BASELINES if self.baselines is None or b in self.baselines)
        return Patience(baselines=baselines, **{name: value for name, value in given.items() if value is not None})


SourceName = Annotated[str, Field(max_length=4096)]  # as a path may be long


class BenchBody(_OnATask):
    """Judge one source, or several by their names."""

    source: str | None = Field(default=None, description="A file that defines ModelNew.")
    sources: dict[SourceName, str] | None = Field(default=None, min_length=1, max_length=MOST_SOURCES)

    @model_validator(mode="after")
    def _exactly(self) -> "BenchBody":
        _one_of(self, "task", "reference_code")
        _one_of(self, "source", "sources")
        return self


class VerifyBody(_Asked):
    """Judge a stored attempt again."""

    attempt: str = Field(max_length=200, description="RUN/NUMBER, or a run: its best attempt.")
    tier: Tier | None = Field(default=None, description="How thoroughly to judge on a GPU; as before.")
    client: str = Field(default="client", pattern=r"^[\w.-]{1,64}$", description="Whose turn at the judge this is.")
    priority: Priority = "interactive"


class SessionBody(_OnATask):
    """Begin a run whose tools the client calls, or go on with a stored one."""

    resume: str | None = Field(default=None, max_length=200, description="The id of a stored run.")
    language: Language = "triton"
    confirm: bool = Field(default=True, description="Judge the best again at the end.")
    reward: str = Field(
        default="fast_0", max_length=200, description="What attempts are worth, as --reward of an export."
    )
    gamma: float = Field(default=GAMMA, ge=0, le=1, description="Its discount from turn to turn.")
    rejection_sampling: str | None = Field(
        default=None, max_length=200, description="Right attempts that it drops are worth null: tau=0.3,s=0.1."
    )

    @model_validator(mode="after")
    def _exactly(self) -> "SessionBody":
        _one_of(self, "task", "reference_code", "resume")
        return self


class CallBody(_Asked):
    """Call a tool, as a model does."""

    name: str = Field(max_length=64)
    arguments: dict[str, Any] = Field(default_factory=dict)


def _one_of(asked: BaseModel, *names: str) -> None:
    if sum(getattr(asked, name) is not None for name in names) != 1:
        raise ValueError(f"give one of {', '.join(names)}")


Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body], limit_s: float) -> Body:
    """What a request's body says, which must arrive by then. Raises HttpError."""
    data = bytearray()
    try:
        async with asyncio.timeout(limit_s):
            async for chunk in request.stream():
                data += chunk
    except TimeoutError as error:
        raise HttpError(408, f"the body did not arrive within {limit_s:g} s") from error
    try:
        value = parsed(data.decode(), MOST_VALUES)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {one_line(str(error), 200)}") from error
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise HttpError(400, argument_problems(error, kind)) from error


# Sessions and benches -------------------------------------------------------------------------------------------------


@dataclass
class ClientSession:
    """A run of a client. `reward`: what its attempts are worth, with its discount, and `sampling` which of them count;
    `waiting`: its requests under way; `used_s`: when the last one was, on the monotonic clock."""

    run: ClientRun
    reward: Reward
    gamma: float
    sampling: RejectionSampling | None = None
    waiting: int = 0
    used_s: float = field(default_factory=time.monotonic)

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep it from ending as one that nobody uses."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self.used_s = time.monotonic()

    def worth(self, attempt: Attempt) -> float | None:
        """The reward of an attempt; None when nobody knows it, or when it does not count."""
        counts = self.sampling is None or self.sampling.keeps(attempt)
        return self.reward(attempt) if counts else None

    @property
    def turns(self) -> list[RewardedTurn]:
        """The turns so far, each with its reward and its return; none before the run has begun."""
        state = self.run.state
        if state.started is None:
            return []
        attempts = tuple(sorted(state.attempts, key=lambda a: a.number))
        return turns_of(Trajectory(state.started, attempts), self.worth, self.gamma)


class HttpServer:
    """Answers requests with a service. `root`: the folder below which clients may name task files; `token`: what those
    must show who come by TCP, while a Unix socket is reached by its owner alone; `pages`: for browsers."""

    def __init__(
        self,
        service: Service,
        root: Path | None = None,
        token: str = "",
        times: HttpTimes | None = None,
        pages: RecordPages | None = None,
    ) -> None:
        self.pages = pages
        self.service, self._root, self._token, self.times = service, root, token.encode(), times or HttpTimes()
        self.sessions: dict[str, ClientSession] = {}
        self.requests: Counter[int] = Counter()  # by status
        self.verdicts: Counter[str] = Counter()  # that clients were told, by status
        self.refusals: Counter[str] = Counter()  # of these, the rejected and the impossible ones, by cause
        self._began_s, self._evaluator = time.monotonic(), evaluator_sha256()  # of the sources that are loaded
        # Of KernelGYM's clients, by their names: what is evaluated, and its evaluation.
        self._evaluations: dict[str, tuple[bytes, asyncio.Task[dict[str, Json]]]] = {}
        self._unfinished: set[asyncio.Task[dict[str, Json]]] = set()  # also those whose name another has now
        self._evaluating = asyncio.Semaphore(_MOST_EVALUATING)
        self._agents: AgentTools | None = None

    @contextlib.asynccontextmanager
    async def agents(self) -> AsyncIterator[list[Route]]:
        """The tools for coding agents, for as long as the block lasts; none where the package mcp is not installed. The
        host that a request names is not looked at: who may reach us has the token or the socket."""
        if util.find_spec("mcp") is None:
            yield []
            return
        from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager

        there: Future[Service] = Future()
        there.set_result(self.service)
        self._agents = AgentTools(there, self._root, is_shared=True)
        manager = StreamableHTTPSessionManager(self._agents.server(), session_idle_timeout=self.times.idle_s)
        async with manager.run():
            yield [Route("/mcp", StreamableHTTPASGIApp(manager))]

    def app(self, more: Sequence[Route] = ()) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        """The ASGI application."""
        routes = [Route(one.path, getattr(self, one.handler), methods=[one.method]) for one in ENDPOINTS]
        routes += [*more, *(self.pages.routes() if self.pages else ())]
        kinds = (HTTPException, HttpError, Gone, ClientDisconnect, KerneltuneError, Exception)
        inner = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, refusal))

        async def outer(scope: Scope, receive: Receive, send: Send) -> None:
            n_bytes = 0

            async def bounded() -> Message:
                nonlocal n_bytes
                message = await receive()
                n_bytes += len(message.get("body", b""))
                if n_bytes > MOST_BODY_BYTES:
                    raise HttpError(413, f"the body has more than {MOST_BODY_BYTES} bytes")
                return message

            async def counted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self.requests[message["status"]] += 1
                await send(message)

            if self._token and scope["path"] != "/health" and not self._is_owner(scope):
                if self.pages is not None and (answer := self.pages.let_in(Request(scope))) is not None:
                    return await answer(scope, receive, counted)
                headers = {"www-authenticate": "Bearer", "connection": "close"}
                return await _error(
                    401, "the token is missing or wrong; send the header Authorization: Bearer …", headers
                )(scope, receive, counted)
            return await inner(scope, bounded, counted)

        return outer

    def _is_owner(self, scope: Scope) -> bool:
        """Whether a request shows the token: as a bearer's, or in the user information of its URL, for clients of which
        nothing but the URL can be chosen; or came by the socket; or is a browser's that may see its page."""
        if scope["server"] is not None and scope["server"][1] is None:  # no port: a Unix socket
            return True
        if self.pages is not None and self.pages.may_see(Request(scope)):
            return True
        kind, _, shown = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if kind.lower() == b"basic":
            with contextlib.suppress(ValueError):
                name, _, password = base64.b64decode(shown, validate=True).partition(b":")
                shown = password or name
        return secrets.compare_digest(shown, self._token)

    async def health(self, _: Request) -> Response:
        """Say that the service is there, and whether it can judge."""
        if (error := self.service.failure) is not None:
            return JSONResponse({"status": "failed", "error": one_line(str(error), 500)}, 503)
        shop = self.service.shop.result() if self.service.shop.done() else None
        return JSONResponse(
            {
                "status": "healthy" if shop else "starting",
                "version": versions()["kerneltune"],
                "evaluator": self._evaluator,
                "gpu": shop.gpu.name if shop and shop.gpu else None,
                "pid": os.getpid(),
                "uptime_s": round(time.monotonic() - self._began_s, 3),
            }
        )

    async def metrics(self, _: Request) -> Response:
        """What Prometheus reads."""
        tasks = self.service.tasks
        told: list[tuple[str, str, str, Mapping[str, float]]] = [
            ("requests_total", "counter", "code", {str(code): n for code, n in self.requests.items()}),
            ("verdicts_total", "counter", "status", self.verdicts),
            ("refusals_total", "counter", "cause", self.refusals),
            ("sessions", "gauge", "", {"": len(self.sessions)}),
            ("runs_under_way", "gauge", "", {"": self.service.running}),
            ("open_tasks", "gauge", "", {"": len(tasks)}),
            ("waiting_for_judge", "gauge", "", {"": tasks.waiting}),
            ("uptime_seconds", "counter", "", {"": round(time.monotonic() - self._began_s, 3)}),
        ]
        lines = []
        for name, kind, label, values in told:
            lines.append(f"# TYPE kerneltune_{name} {kind}")
            for value, n in values.items():
                labelled = f'{{{label}="{value}"}}' if label else ""
                lines.append(f"kerneltune_{name}{labelled} {n}")
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def openapi(self, _: Request) -> Response:
        """Describe all this."""
        return JSONResponse(openapi())

    def task_of(self, asked: _OnATask) -> str:
        """The task that a request means, by name or path; a reference is written into a folder of its own. Raises
        TaskError."""
        if asked.reference_code is not None:
            return str(reference_file(self.service.settings.runs_dir, asked.reference_code))
        task = asked.task or ""
        if task in builtin_names():
            return task
        if self._root is not None:
            with contextlib.suppress(OSError, ValueError, RuntimeError):  # a NUL; links in a circle
                path = (self._root / task).resolve()
                if leads_within(self._root, path) and path.is_file():
                    return str(path)
        where = "a file below --root" if self._root else "this service was started without --root, so no file"
        raise TaskError(f"no task {one_line(task, 100)!r} here: give a built-in one ({where}), or reference_code")

    async def begin(self, request: Request) -> Response:
        """Begin a session, once its task is open."""
        asked = await read_body(request, SessionBody, self.times.body_s)
        reward = reward_of(asked.reward.replace(";", ","))
        sampling = rejection_sampling(asked.rejection_sampling) if asked.rejection_sampling else None
        session = ClientSession(await asyncio.to_thread(self._begun, asked), reward, asked.gamma, sampling)
        try:
            opening = await self._held(session, request, session.run.opening)
        except Gone:
            session.run.stop()  # nobody knows its name
            raise
        name = secrets.token_urlsafe(16)
        self.sessions[name] = session
        tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in TOOLS]
        more: dict[str, Json] = {"system": session.run.system, "prompt": opening, "tools": tools}
        return JSONResponse(self._told(name, session) | more, 201)

    def _begun(self, asked: SessionBody) -> ClientRun:
        settings = replace(
            self.service.settings,
            from_=NOTHING,  # a kernel that the client did not write must not count for its reward
            tier=asked.tier,
            language=asked.language,
            confirm=asked.confirm,
            max_attempts=asked.limits.max_attempts,
            max_time_s=asked.limits.max_time_s,
        )
        what = (f"http:{asked.client}", settings, asked.patience, asked.priority)
        if asked.resume is not None:
            return self.service.resume(asked.resume, *what)
        return self.service.start(self.task_of(asked), *what)

    def _session(self, request: Request) -> tuple[str, ClientSession]:
        name = request.path_params["session"]
        if name not in self.sessions:
            raise HttpError(404, "no such session; one that nobody used has ended: resume its run")
        return name, self.sessions[name]

    def _told(self, name: str, session: ClientSession) -> dict[str, Json]:
        run, state = session.run, session.run.state
        over = run.outcome.done()
        return {
            "session": name,
            "run_id": run.run_id,
            "task": state.task,
            "doing": None if over else run.doing,
            "over": over,
            "attempts": list(map(line_json, state.attempts)),
            "best": _with_source(state.best),
            "reward": _highest(turn.reward for turn in session.turns),
            "turns": [
                {"attempts": [a.number for a in turn.attempts], "reward": turn.reward, "return": turn.to_go}
                for turn in session.turns
            ],
        }

    async def look(self, request: Request) -> Response:
        """How far a session is."""
        return JSONResponse(self._told(*self._session(request)))

    async def call(self, request: Request) -> Response:
        """Call a tool of a session, and wait for its result."""
        _, session = self._session(request)
        with session.in_use():
            asked = await read_body(request, CallBody, self.times.body_s)
        result = await self._held(session, request, session.run.call(asked.name, asked.arguments))
        if not result.was_made:  # a failure of ours is no result of a call
            await self._held(session, request, session.run.outcome)
        attempt = result.attempt
        if attempt and attempt.status and asked.name in ("update", "bench"):
            self._count(attempt.status, attempt.judged.cause)
        told: dict[str, Json] = {"text": result.text, "is_error": result.is_error}
        told |= {"attempt": line_json(attempt) if attempt else None, "over": session.run.outcome.done()}
        return JSONResponse(told | {"reward": session.worth(attempt) if attempt else None})

    async def end(self, request: Request) -> Response:
        """End a session after what is under way; its best is judged and written."""
        name, session = self._session(request)
        session.run.stop()
        outcome = await self._held(session, request, session.run.outcome)
        self.sessions.pop(name, None)
        best = {"best": _with_source(outcome.best), "best_path": str(outcome.best_path) if outcome.best_path else None}
        return JSONResponse({"run_id": outcome.run_id, "why": outcome.why, **best})

    async def _held(self, session: ClientSession, request: Request, wanted: "Future[T]") -> T:
        """What a session's client waits for. When it goes away, and nobody else waits for the session, what is under
        way is given up."""
        with session.in_use():
            try:
                return await _unless_gone(request, asyncio.wrap_future(wanted))
            except Gone:
                if session.waiting == 1:
                    session.run.controls.skip()
                raise

    async def end_idle(self) -> None:
        """End sessions that nobody uses, again and again."""
        while True:
            await asyncio.sleep(min(1.0, self.times.idle_s / 4))
            now_s = time.monotonic()
            idle = [n for n, s in self.sessions.items() if not s.waiting and now_s - s.used_s > self.times.idle_s]
            for name in idle:
                self.sessions.pop(name).run.stop()
            if self._agents is not None:
                self._agents.end_idle(self.times.idle_s)

    async def events(self, request: Request) -> Response:
        """The events of a session's run as they are stored, from the beginning or after Last-Event-ID."""
        _, session = self._session(request)
        seen = request.headers.get("last-event-id", "0")
        if not (seen.isascii() and seen.isdecimal()):
            raise HttpError(400, f"Last-Event-ID {one_line(seen, 40)!r} is not an event number of this service")
        return StreamingResponse(self._followed(session, int(seen[:9])), media_type="text/event-stream")

    async def _followed(self, session: ClientSession, seen: int) -> AsyncIterator[str]:
        """All events but the first `seen`; an event's id is its number in the run."""
        run, after, told, said_s = session.run, 0, 0, time.monotonic()
        looked: ViewState | None = None  # what the run had come to when the record was looked at
        with (
            session.in_use(),
            await asyncio.to_thread(Store.open, self.service.settings.runs_dir, to_look=True) as store,
        ):
            while True:
                is_over, state, events = run.outcome.done(), run.state, list[Event]()
                if is_over or state is not looked:
                    after, events = await asyncio.to_thread(store.later_events, run.run_id, after)
                    looked = None if events else state
                for event in events:
                    told += 1
                    if told > seen:
                        yield _event(told, event)
                        said_s = time.monotonic()
                if not events and is_over:
                    return
                if time.monotonic() - said_s > _BEAT_S:
                    yield ": still there\n\n"
                    said_s = time.monotonic()
                if not events:
                    await asyncio.sleep(_POLL_S)

    async def bench(self, request: Request) -> Response:
        """Judge sources and store them as a run; a line of JSON each, as of `optimize bench --json`."""
        asked = await read_body(request, BenchBody, self.times.body_s)
        lines: asyncio.Queue[str | BaseException | None] = asyncio.Queue()
        controls = Controls()
        loop = asyncio.get_running_loop()
        n_sources = 1 if asked.sources is None else len(asked.sources)
        view = FilesView(cast(TextIO, _Lines(loop, lines)), io.StringIO(), json=True, total=n_sources)
        judged = await asyncio.to_thread(self._benched, asked, view, controls, asked.patience)
        judged.add_done_callback(_closing(loop, lines))
        try:
            first = await _unless_gone(request, asyncio.ensure_future(lines.get()))
        except BaseException:
            _give_up(controls)
            raise
        if isinstance(first, BaseException):
            raise first
        return StreamingResponse(self._lines(first, lines, controls), media_type="application/x-ndjson")

    def _benched(self, asked: BenchBody, view: FilesView, controls: Controls, patience: Patience) -> "Future[int]":
        named = asked.sources if asked.sources is not None else {"source": asked.source or ""}
        candidates = [from_bytes(name, text.encode()) for name, text in named.items()]
        settings = replace(self.service.settings, tier=asked.tier)

        def judge(opened: Session, store: Store) -> int:
            return bench_opened(opened, candidates, settings, view, store, controls)

        task = self.task_of(asked)
        return self.service.bench(task, judge, controls, patience, client=asked.client, priority=asked.priority)

    async def _lines(
        self, line: str | BaseException | None, more: "asyncio.Queue[str | BaseException | None]", controls: Controls
    ) -> AsyncIterator[str]:
        try:
            while isinstance(line, str):
                told = json.loads(line)
                if told["type"] == "judged_file":
                    self._count(told["verdict"]["status"], told["verdict"]["cause"])
                yield line
                line = await more.get()
            if line is not None:  # after the first line there is no other status to say it by
                yield json.dumps({"type": "error", "status": _status(line), "error": _message(line)}) + "\n"
        finally:
            if line is not None:
                _give_up(controls)

    async def verify(self, request: Request) -> Response:
        """Judge a stored attempt again, on a judge of its own, and say whether its verdict held. It is stored also
        without the client."""
        asked = await read_body(request, VerifyBody, self.times.body_s)
        begun = self.service.verify(asked.attempt, asked.tier, client=asked.client, priority=asked.priority)
        found = await _unless_gone(request, asyncio.wrap_future(begun))
        self.verdicts[found.event.verdict.status.value] += 1
        return JSONResponse(verification_json(found) | {"event": encode(found.event)})

    async def evaluate(self, request: Request) -> Response:
        """Evaluate a kernel for a client of KernelGYM. It goes on without the client, who may ask for the result."""
        asked = await read_body(request, kernelgym.EvaluationBody, self.times.body_s)
        return JSONResponse(await asyncio.shield(self._evaluation(asked)))

    async def evaluate_batch(self, request: Request) -> Response:
        """Evaluate several kernels for a client of KernelGYM."""
        asked = await read_body(request, kernelgym.BatchBody, self.times.body_s)
        ended = await asyncio.gather(*map(self._evaluation, asked.tasks), return_exceptions=True)
        results = [
            kernelgym.failed(one.task_id, _message(end)) if isinstance(end, BaseException) else end
            for one, end in zip(asked.tasks, ended, strict=True)
        ]
        return JSONResponse(kernelgym.batch(asked.batch_id, results))

    async def status(self, request: Request) -> Response:
        """Say how far an evaluation is."""
        name, evaluation = self._known_evaluation(request)
        if not evaluation.done():
            return JSONResponse({"task_id": name, "status": "processing"})
        error = evaluation.exception()
        if error is not None:
            return JSONResponse(kernelgym.failed(name, _message(error)))
        result = evaluation.result()
        return JSONResponse({name: result[name] for name in ("task_id", "status", "error_message", "error_code")})

    async def results(self, request: Request) -> Response:
        """Give an evaluation's result."""
        name, evaluation = self._known_evaluation(request)
        if not evaluation.done():
            raise HttpError(404, f"task {one_line(name, 100)!r} is under way")
        return JSONResponse(evaluation.result())

    def _known_evaluation(self, request: Request) -> tuple[str, "asyncio.Task[dict[str, Json]]"]:
        name = request.path_params["task_id"]
        if name not in self._evaluations:
            raise HttpError(404, f"no task {one_line(name, 100)!r} is known")
        return name, self._evaluations[name][1]

    def _evaluation(self, asked: kernelgym.EvaluationBody) -> "asyncio.Task[dict[str, Json]]":
        """The evaluation of just that under its name, begun now if there is none, or none that came to a result. Raises
        Busy."""
        earlier, known = self._evaluations.get(asked.task_id, (b"", None))
        is_refreshed = known is not None and known.done() and (asked.force_refresh or not _found_out(known))
        if known is None or is_refreshed or earlier != asked.digest:
            if len(self._unfinished) >= _MOST_EVALUATIONS:
                raise Busy(f"{_MOST_EVALUATIONS} evaluations wait; try again later")
            ended = [name for name, (_, one) in self._evaluations.items() if one.done()]
            for name in ended[: max(0, len(self._evaluations) + 1 - _MOST_EVALUATIONS)]:
                del self._evaluations[name]
            known = asyncio.create_task(self._evaluated(asked))
            self._unfinished.add(known)
            known.add_done_callback(self._unfinished.discard)
            known.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it may be asked for later
        self._evaluations.pop(asked.task_id, None)
        self._evaluations[asked.task_id] = asked.digest, known
        return known

    async def _evaluated(self, asked: kernelgym.EvaluationBody) -> dict[str, Json]:
        """Its result, from a first look, or, where that lacks the time that is asked for, from a thorough one."""
        async with self._evaluating:
            shop = await asyncio.shield(asyncio.wrap_future(self.service.shop))
            try:
                asked.refuse_what_is_not_here(gpu=shop.gpu is not None)
                view = await self._judged(asked, "screened")
                if asked.lacks_time(view.judged[0]):
                    view = await self._judged(asked, "judged")
                return kernelgym.evaluation(asked, view.judged[0], view.task)
            except Busy:
                raise  # it may be asked again
            except (UsageError, kernelgym.NotMeasured) as error:
                return kernelgym.failed(asked.task_id, _message(error))

    async def _judged(self, asked: kernelgym.EvaluationBody, tier: Tier) -> FilesView:
        body = BenchBody(
            reference_code=asked.reference,
            source=asked.kernel,
            tier=tier,
            client="kernelgym",
            priority="interactive" if asked.priority == "high" else "batch",
        )
        view = FilesView(io.StringIO(), io.StringIO(), total=1)
        began = await asyncio.to_thread(self._benched, body, view, Controls(), asked.patience)
        await asyncio.shield(asyncio.wrap_future(began))
        if not view.judged:
            raise Busy("the service is shutting down and did not judge it")
        verdict = view.judged[0].judged
        self._count(verdict.status, verdict.cause)
        return view

    def _count(self, status: str, cause: str | None) -> None:
        self.verdicts[str(status)] += 1
        if status in (Status.REJECTED, Status.IMPOSSIBLE):
            self.refusals[str(cause or "unknown")] += 1


class _Lines(io.TextIOBase):
    """Hands what a thread writes to a coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[str | BaseException | None]") -> None:
        self._loop, self._queue = loop, lines

    def write(self, text: str) -> int:
        """Hand over a line."""
        self._loop.call_soon_threadsafe(self._queue.put_nowait, text)
        return len(text)


def _closing(
    loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[str | BaseException | None]"
) -> "Callable[[Future[int]], None]":
    def close(judged: "Future[int]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads
            loop.call_soon_threadsafe(lines.put_nowait, judged.exception())

    return close


def _found_out(evaluation: "asyncio.Task[dict[str, Json]]") -> bool:
    return evaluation.exception() is None and evaluation.result()["status"] == "completed"


def _give_up(controls: Controls) -> None:
    controls.stop()
    controls.skip()


def _highest(rewards: Iterable[float | None]) -> float | None:
    """The best of those that are known; None when none is."""
    return max((r for r in rewards if r is not None), default=None)


def _with_source(attempt: Attempt | None) -> dict[str, Json] | None:
    return None if attempt is None else line_json(attempt) | {"source": attempt.source}


def _event(number: int, event: Event) -> str:
    told = {"type": event.kind, "schema_version": RUN_SCHEMA_VERSION, **encode(event)}
    return f"id: {number}\nevent: {event.kind}\ndata: {json.dumps(told, allow_nan=False)}\n\n"


async def _unless_gone(request: Request, wanted: "asyncio.Future[T]") -> T:
    """What is waited for, as long as the client does; it goes on without it. Raises Gone."""
    gone = asyncio.ensure_future(_disconnected(request))
    either: set[asyncio.Future[Any]] = {wanted, gone}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not wanted.done():
            wanted.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody else will read it
            raise Gone
        return wanted.result()
    finally:
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def reference_file(runs_dir: Path, source: str) -> Path:
    """The file of a reference that a client sent. Its folder holds nothing else: a task's code may read beside itself.
    Raises OSError."""
    data = source.encode()
    name = hashlib.sha256(data).hexdigest()
    path = runs_dir.resolve() / REFERENCES / name[:32] / f"reference_{name[:8]}.py"
    if not path.is_file():
        make_private(path.parent)
        beginning = path.with_name(f"{secrets.token_hex(8)}.part")
        beginning.write_bytes(data)
        beginning.replace(path)
    return path


# What goes wrong ------------------------------------------------------------------------------------------------------


_STATUSES: tuple[tuple[type[BaseException], int], ...] = (
    (Busy, 429),
    (Unfit, 503),
    (StoreError, 409),
    (UsageError, 400),
    (KerneltuneError, 503),
)  # of any other: 500


async def refusal(_: Request, error: Exception) -> Response:
    """Say what went wrong. What nobody expected is told on stderr, too."""
    if isinstance(error, Gone | ClientDisconnect):
        return Response(status_code=499)  # which nobody reads
    if isinstance(error, HTTPException):  # no such path, or not by this method
        return _error(error.status_code, error.detail, error.headers or {})
    if isinstance(error, HttpError):
        return _error(error.status, str(error), {"connection": "close"} if error.status in (408, 413) else {})
    if not isinstance(error, KerneltuneError) and not is_shortage(error):
        sys.stderr.write(plain("".join(traceback.format_exception(error)), None))
    status = _status(error)
    return _error(status, _message(error), {"retry-after": "1"} if status == 429 else {})


def _status(error: BaseException) -> int:
    return 503 if is_shortage(error) else next((n for kind, n in _STATUSES if isinstance(error, kind)), 500)


def _message(error: BaseException) -> str:
    if is_shortage(error):
        return f"the service cannot go on: {error.strerror}"  # and no path of this machine
    return plain(str(error) if isinstance(error, KerneltuneError) else f"internal failure: {type(error).__name__}")


def _error(status: int, message: str, headers: Mapping[str, str]) -> Response:
    return JSONResponse({"error": message}, status, headers)


# What there is --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HttpEndpoint:
    """A method and a path, and the method of HttpServer that answers. `body`: what is asked, where something is."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: str
    body: type[BaseModel] | None = None


ENDPOINTS = (
    HttpEndpoint("GET", "/health", "health"),
    HttpEndpoint("GET", "/metrics", "metrics"),
    HttpEndpoint("GET", "/openapi.json", "openapi"),
    HttpEndpoint("POST", "/bench", "bench", BenchBody),
    HttpEndpoint("POST", "/verify", "verify", VerifyBody),
    HttpEndpoint("POST", "/sessions", "begin", SessionBody),
    HttpEndpoint("GET", "/sessions/{session}", "look"),
    HttpEndpoint("POST", "/sessions/{session}/call", "call", CallBody),
    HttpEndpoint("GET", "/sessions/{session}/events", "events"),
    HttpEndpoint("DELETE", "/sessions/{session}", "end"),
    HttpEndpoint("POST", "/evaluate", "evaluate", kernelgym.EvaluationBody),
    HttpEndpoint("POST", "/evaluate/batch", "evaluate_batch", kernelgym.BatchBody),
    HttpEndpoint("GET", "/status/{task_id}", "status"),
    HttpEndpoint("GET", "/results/{task_id}", "results"),
)


def openapi() -> dict[str, Json]:
    """The description of all endpoints in OpenAPI's format."""
    paths: dict[str, dict[str, Json]] = {}
    schemas: dict[str, Json] = {}
    for one in ENDPOINTS:
        about = (getattr(HttpServer, one.handler).__doc__ or "").split("\n")[0]
        said: dict[str, Json] = {
            "operationId": one.handler,
            "summary": about,
            "responses": {"200": {"description": "Done."}},
        }
        if "{" in one.path:
            name = one.path.partition("{")[2].partition("}")[0]
            said["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
        if one.body is not None:
            schema = one.body.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {one.body.__name__: schema}
            its = {"schema": {"$ref": f"#/components/schemas/{one.body.__name__}"}}
            said["requestBody"] = {"required": True, "content": {"application/json": its}}
        paths.setdefault(one.path, {})[one.method.lower()] = said
    info = {"title": "kerneltune", "version": versions()["kerneltune"]}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


# The server -----------------------------------------------------------------------------------------------------------


class _Connection(H11Protocol):
    """One whose client has to keep up, and of which there are so many at most. uvicorn itself waits for ever for the
    rest of a head and until what it sent is read, and hears no more of a client that sent its next request ahead."""

    head_s: float
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _heard_s = 0.0  # when something came last, on the loop's clock

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let the clock run. When there are too many, the one that has been silent longest goes: whoever floods us with
        connections, for which no token is needed, loses them first."""
        super().connection_made(transport)
        self._watch()
        there = [cast(_Connection, one) for one in self.connections if not one.transport.is_closing()]
        if len(there) > MOST_CONNECTIONS:
            silent = [one for one in there if not one.is_asked]
            min(silent, key=lambda one: one._heard_s).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Let the clock run from the first byte of a request to the last of its head."""
        super().data_received(data)
        self._watch()
        if self.conn.their_state is h11.DONE:  # it may send ahead, within bounds
            if len(self.conn.trailing_data[0]) > MOST_AHEAD_BYTES:
                self.transport.abort()
            self.flow.resume_reading()

    def pause_writing(self) -> None:
        """Wait for the client to read, but not for ever."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.head_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: it reads."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        super().connection_lost(exc)
        for clock in (self._late, self._unread):
            if clock is not None:
                clock.cancel()

    @property
    def is_asked(self) -> bool:
        """Whether a request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first
        return cycle is not None and not cycle.response_complete

    def _watch(self) -> None:
        self._heard_s = self.loop.time()
        if self.is_asked and self._late is not None:
            self._late.cancel()
            self._late = None
        elif not self.is_asked and self._late is None:
            self._late = self.loop.call_later(self.head_s, self.transport.abort)


class _Server(uvicorn.Server):
    """One that ends in order, with its clients' runs concluded, and leaves no signal behind; by itself when it can
    judge no more."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Have Ctrl-C and SIGTERM end the server."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def on_tick(self, counter: int) -> bool:
        """Look every 0.1 s whether to end."""
        self.should_exit = self.should_exit or self._service.failure is not None
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; when told once more, at once."""
        self.force_exit, self.should_exit = self.should_exit, True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the runs, and with them what clients wait for."""
        running = self._service.running
        first = f"; first {plural(running, 'run')} to conclude, which Ctrl-C cuts short" if running else ""
        say(f"ending{first}")
        self._service.stop()
        await super().shutdown(sockets)
        if self.force_exit:
            self._service.give_up()


def _teller(every_s: float = 1.0) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return what says what asyncio says of itself. Without a descriptor for a client, that is 128 times a second."""
    last_s = -every_s

    def tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last_s
        error: BaseException | None = context.get("exception")
        if not is_shortage(error):
            loop.default_exception_handler(context)
        elif time.monotonic() - last_s >= every_s:
            last_s = time.monotonic()
            sys.stderr.write(plain(f"… {context['message']}: {error.strerror}\n", None))

    return tell


async def listen_to(listening: Sequence[socket.socket], http: HttpServer) -> None:
    """Answer until Ctrl-C or SIGTERM. Raises what keeps the service from judging, as soon as something does: what
    starts services starts it anew, and until then commands judge by themselves."""
    asyncio.get_running_loop().set_exception_handler(_teller())

    class Connection(_Connection):
        head_s = http.times.head_s

    async with http.agents() as routes:
        config = uvicorn.Config(
            http.app(routes), http=Connection, ws="none", lifespan="off", log_config=None, log_level="critical",
            access_log=False, server_header=False, backlog=_AT_ONCE, timeout_keep_alive=_KEEP_ALIVE_S,
        )  # fmt: skip
        ending = asyncio.create_task(http.end_idle())
        try:
            await _Server(config, http.service).serve(list(listening))
        finally:
            ending.cancel()
    if (failure := http.service.failure) is not None:
        raise failure
