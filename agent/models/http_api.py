"""What models behind an HTTP API have in common: retries, interruption, streams, and what the SDKs' errors mean.

The SDKs' own retries are off: they sleep for as long as a retry-after says, be it an hour, try again when the quota
is spent, and do nothing about a stream that breaks off in the middle.

Nor are the SDKs' accumulators of streams in use (messages.stream of anthropic 2.11, responses.stream and
chat.completions.stream of openai 3.52). All three give up a reply, which was paid for, when a tool's arguments are not
JSON; those of openai also when it reaches max_tokens or is filtered, and that of chat joins all calls that a server
gives index 0. One request with a source of 120 kB in its arguments took 1.4 s (anthropic) and 3.8 s (chat) from start
to end on a busy machine, since all of it is parsed again with each piece.
"""

import contextlib
import email.utils
import json
import math
import random
import re
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import httpx2

from kerneltune.agent.models.types import (
    ContextOverflow,
    Delta,
    DeltaKind,
    KeyRejected,
    Listen,
    LlmError,
    ModelFacts,
    ModelOptions,
    ModelRequest,
    NoLongerWanted,
    NoSuchModel,
    OutOfCredit,
    Reply,
    RequestRejected,
    Unavailable,
    Usage,
    cleaned,
    credible,
    whole,
)
from kerneltune.tools.schema.codec import Json, one_line

T = TypeVar("T")
Features = TypeVar("Features")
Piece = tuple[DeltaKind, str]
Adapt = Callable[["ErrorDetails"], None]
NO_TEXT = "(no words)"  # in the place of a text without a character, which APIs do not take
BACKOFF_S = 0.5  # the first wait, without a retry-after; each is twice as long as the one before
LONGEST_BACKOFF_S = 60.0
SHORT_S = 10.0  # how long a question is sent again for whose answer a person waits before a run begins
LOOK_S = 0.5  # between two looks at a reply that is being read, whether it should be left
MOST_BYTES = 4 << 20  # of a reply on the wire, and for each token of its limit …
MOST_BYTES_A_TOKEN = 1024  # … where servers that send a token an event need 200 to 400
# What breaks off below the SDKs: neither wraps all of it once a stream runs.
TRANSPORT_ERRORS = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, json.JSONDecodeError, UnicodeDecodeError)


class TransientError(Exception):
    """An error that may pass by itself: too busy, broken off, silent."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RetryNow(Exception):
    """The request was changed so that the server may take it now: ask again, without waiting."""


class PartialReply(Protocol):
    """A reply that is put together from the events of its stream. `complete`: the server said why it ended."""

    complete: bool

    def take(self, event: dict[str, Json]) -> Iterable[Piece]:
        """Take one event; yield what it adds to the reply."""
        ...

    def usage(self) -> Usage | None:
        """Return what the server has counted so far; None when that is nothing."""
        ...

    def reply(self, request: ModelRequest, asked: str) -> Reply:
        """Return the reply; `asked`: the model that was asked."""
        ...


Partial = TypeVar("Partial", bound=PartialReply)


class HttpModel(ABC, Generic[Features, Partial]):
    """A model of one provider, or of a server that speaks its API. Any number of threads may ask at the same time.

    A subclass describes the model, builds requests and reads replies. `_features`: what is asked beyond the basics.
    """

    provider: ClassVar[str]
    sdk_error: ClassVar[type[Exception]]  # the base of all that the SDK raises

    def __init__(
        self, options: ModelOptions, client: Any, key_name: str, keys: Sequence[str], features: Features
    ) -> None:
        self.name = f"{self.provider}:{options.model}"
        self._model = options.model
        self._client = client
        self._server = Server(self.provider, key_name, options.base_url or str(client.base_url), tuple(keys))
        self._retry_s, self._reply_s = options.retry_s, options.reply_s
        self._clock = options.clock
        self._features = features
        self._facts: ModelFacts | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._streams: list[Any] = []  # SDK streams that are being read
        self._unanswered = 0  # requests whose server has not begun to answer
        self._streams_lock = threading.Lock()

    # What an API has to say for itself

    default_model: ClassVar[str] = ""  # where the API's list does not decide

    def _newest(self, listed: Sequence[Any]) -> tuple[str, str] | None:
        """Return the model of the API's list to use when none is named, and which family it is the newest of."""
        return None

    @abstractmethod
    def _facts_of(self, info: Any) -> ModelFacts:
        """Return what `info`, the API's description of the model, says."""

    @abstractmethod
    def _send(self, request: ModelRequest, facts: ModelFacts, features: Features) -> tuple[Callable[[], Any], Partial]:
        """Return what sends the request and opens its stream, and what its events become."""

    def _require_sound(self, built: Partial, request: ModelRequest, features: Features) -> None:
        """Raise what a stream that ended says went wrong."""

    def _without(self, features: Features, details: "ErrorDetails") -> Features | None:
        """Return `features` less what an error says is not supported; None when that is nothing to do without."""
        return None

    def _describe(self) -> ModelFacts:
        """Ask what the model is; without a name, the newest sensible one of the API's list."""
        notes: tuple[str, ...] = ()
        if not self._model:
            found = self._newest(self._listed() or [])
            why = (
                f"the newest {found[1]} of the API's list"
                if found
                else "the built-in default, as the API's list does not decide"
            )
            self._use_default(found[0] if found else self.default_model)
            notes = (f"no model was named: {why}",)
        info = self._retrieved()
        if info is None:
            return ModelFacts(self._model, notes=(*notes, f"{self._server.base_url} does not describe its models"))
        facts = self._facts_of(info)
        return replace(facts, notes=notes + facts.notes)

    def _reply(self, request: ModelRequest, facts: ModelFacts, listen: Listen) -> Reply:
        """Return one reply as the server gives it; its cost is left open."""

        def once(attempt: int) -> Partial:
            most = request.max_tokens if attempt == 1 else min(request.max_tokens, request.affordable())
            return self._streamed(replace(request, max_tokens=most), facts, listen, attempt)

        built = self._retried(once, request, self._retry_s)
        return self._understood(lambda: built.reply(request, self._model))

    # What callers use

    def facts(self) -> ModelFacts:
        """Return what the API says of the model; asked once. Raises LlmError when it cannot be used at all."""
        with self._lock:
            if self._facts is None:
                self._facts = self._describe()
            return self._facts

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        """Return one reply, streamed to `listen` on the way. Transient errors are retried inside. Raises LlmError."""
        facts = self.facts()
        reply = cleaned(self._reply(request, facts, listen))
        return replace(reply, cost_usd=self.price_usd(reply.usage) if reply.usage else None)

    def price_usd(self, usage: Usage) -> float | None:
        """Return what such a request costs; None when the price is unknown."""
        return list_price_usd(self.provider, self._model, usage)

    def close(self) -> None:
        """End what threads wait for: their reads fail at once with Unavailable, and nothing is tried again. Returns
        when they have told what they lost, or after a second.

        The last request to which no server has begun to answer closes the client: a closed client forgets the
        connections that are being made, and nothing would close them.
        """
        with self._streams_lock:
            self._closed.set()
            for stream in self._streams:
                _hang_up(stream)
            unanswered = self._unanswered
        until_s = time.monotonic() + 1.0
        while self._streams and time.monotonic() < until_s:
            time.sleep(0.01)
        if not unanswered:
            self._client.close()

    # Retries

    def _retried(self, once: Callable[[int], T], request: ModelRequest, retry_s: float) -> T:
        """Call `once(attempt)`, attempt from 1, until it returns. Raises what it raises, but for TransientError, which
        is waited out for `retry_s` from the first one on, and then becomes Unavailable. Raises NoLongerWanted."""
        attempt, failures, failing_since_s = 0, 0, 0.0
        while True:
            attempt += 1
            try:
                return once(attempt)
            except RetryNow:
                continue
            except TransientError as error:
                now_s = self._clock.now_s()
                failing_since_s = failing_since_s if failures else now_s
                failures += 1
                spent_s = now_s - failing_since_s
                if self._closed.is_set():
                    raise Unavailable(f"{self.provider}: the connection was closed") from None
                wait_s = self._wait_s(error, failures, spent_s, retry_s)
                request.told(wait_s, f"{self.provider}: {error}")
                self._wait(wait_s, request)

    def _wait_s(self, error: TransientError, failures: int, spent_s: float, retry_s: float) -> float:
        """Return how long to wait before the request is sent again: as long as the server says, else twice as long as
        before. Raises Unavailable when that would take longer than is left of `retry_s`."""
        left_s, named_s = retry_s - spent_s, error.retry_after_s
        if left_s <= 0 or (named_s is not None and named_s > left_s):
            tries = f"{failures} {'try' if failures == 1 else 'tries'} in {spent_s:.0f} s"
            later = f"come back in {named_s:.0f} s" if named_s else "try again later"
            message = f"{self.provider} is not available: {error} ({tries}); {later}"
            raise Unavailable(message) from None
        if named_s is not None and named_s > 0:
            return named_s
        longest_s = min(BACKOFF_S * 2.0 ** min(failures - 1, 16), LONGEST_BACKOFF_S)
        return min(left_s, longest_s * random.uniform(0.75, 1.0))  # so that many conversations do not come at once

    def _wait(self, wait_s: float, request: ModelRequest) -> None:
        """Wait, by turns. Raises NoLongerWanted once nobody wants the reply, and Unavailable when the model is
        closed."""
        until_s = self._clock.now_s() + wait_s
        while not (self._closed.is_set() or request.is_over()) and (left_s := until_s - self._clock.now_s()) > 0:
            self._clock.wait(self._closed, min(left_s, LOOK_S))
        if self._closed.is_set():
            raise Unavailable(f"{self.provider}: the connection was closed")
        if request.is_over():
            raise NoLongerWanted(f"{self.provider}: nobody waits for the reply any more")

    # Requests

    @contextlib.contextmanager
    def _mapped_errors(self, adapt: Adapt = lambda _: None, *, at_once: bool = False) -> Iterator[None]:
        """Raise our exceptions in the place of the SDK's; `adapt` may raise another. at_once: do not retry when nothing
        listens."""
        try:
            yield
        except (self.sdk_error, *TRANSPORT_ERRORS) as error:
            details, ours = details_of(error), mapped_error(error, self._server)
            if details.status is not None and 400 <= details.status < 600:
                adapt(details)
            if at_once and isinstance(ours, TransientError) and _is_unreachable(error):
                raise Unavailable(f"{self.provider}: nothing answers at {ours}") from None
            raise ours from None  # the SDK's exception may hold the key

    def _adapting(self, features: Features) -> Adapt:
        """Return what raises RetryNow when the server does not take a feature that we can do without. Most APIs list no
        capabilities: the way to learn of one is to be told no."""

        def adapt(details: ErrorDetails) -> None:
            less = self._without(features, details)
            if less is None:
                return
            with self._lock:
                if self._features == features:
                    self._features = less
            raise RetryNow

        return adapt

    def _short(self, ask: Callable[[], T]) -> T:
        """Ask a short question, with retries. When nothing listens, that is said at once."""

        def once(_: int) -> T:
            with self._mapped_errors(at_once=True):
                return self._understood(ask)

        return self._retried(once, ModelRequest("", ()), min(SHORT_S, self._retry_s))

    def _listed(self) -> list[Any] | None:
        """Return the API's models; None from a server without a list."""
        try:
            found = self._short(lambda: list(self._client.models.list()))
        except NoSuchModel:
            return None
        return [info for info in found if getattr(info, "id", None)]

    def _retrieved(self) -> Any:
        """Return the API's description of the model; None from servers that have none."""
        try:
            return self._short(lambda: _with_id(self._client.models.retrieve(self._model)))
        except NoSuchModel:  # or a server that imitates only the rest of the API
            listed = self._listed()
        if listed is None:
            return None
        found = next((info for info in listed if info.id == self._model), None)
        if found is None:
            raise self._no_such_model(listed)
        return found

    def _no_such_model(self, listed: Sequence[Any]) -> NoSuchModel:
        """Return the error for a model that is not listed; it names some that are."""
        known = [one_line(str(info.id)) for info in listed]
        shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
        where = f"{self.provider}: there is no model {self._model!r} at {self._server.base_url}"
        return NoSuchModel(f"{where}; known: {shown or 'none'}")

    def _use_default(self, model: str) -> None:
        """Go on with `model`, as none was named."""
        self._model, self.name = model, f"{self.provider}:{model}"

    # Streams

    def _streamed(self, request: ModelRequest, facts: ModelFacts, listen: Listen, attempt: int) -> Partial:
        """Send a request and read its stream: each event goes to the partial reply as the server wrote it, and what
        that adds to the reply to `listen`."""
        features = self._features
        create, built = self._send(request, facts, features)
        with self._mapped_errors(self._adapting(features)):
            until_s = self._clock.now_s() + self._reply_s
            stream = self._opened(create, request, until_s)
            with self._reading(stream, request, until_s):
                self._require_events(stream.response.headers.get("content-type", ""))
                held: dict[DeltaKind, str] = {}
                characters = 0
                try:
                    for event in stream:
                        for kind, text in self._understood(lambda: list(built.take(_as_json(event)))):  # noqa: B023 - called here
                            characters += len(text)
                            listen(Delta(kind, _joined(held, kind, text), attempt))
                finally:
                    if not built.complete:
                        self._lose(built, characters, request)
        self._require_sound(built, request, features)
        if not built.complete:
            raise TransientError("the stream ended before the reply did")
        return built

    def _lose(self, built: Partial, characters: int, request: ModelRequest) -> None:
        """Tell what is known of a reply that broke off; nothing where none had begun."""
        counted = None
        with contextlib.suppress(RequestRejected):
            counted = self._understood(built.usage)
        counted = counted if counted and credible(counted) else None
        if counted or characters:
            request.lost(counted, characters)

    def _opened(self, create: Callable[[], Any], request: ModelRequest, until_s: float) -> Any:
        """Send a request and return its stream, once the server begins to answer. Raises why that is waited for no
        longer.

        It is sent by a thread of its own: nothing wakes one that waits for the first bytes of an answer, and a process
        waits for all but daemons before it ends: after Ctrl-C, for the longest silence, ten minutes.
        """
        answers, done, left = list[Any](), threading.Event(), threading.Event()
        errors = list[BaseException]()

        def send() -> None:
            try:
                answers.append(create())
            except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                errors.append(error)
            done.set()
            if left.is_set():
                _close(answers)
            self._was_answered()

        with self._streams_lock:
            if self._closed.is_set():
                raise TransientError("the connection was closed")
            threading.Thread(target=send, name="request", daemon=True).start()  # RuntimeError without memory for it
            self._unanswered += 1
        try:
            while not done.wait(LOOK_S):
                if why := self._why_leave(request, until_s):
                    raise why
        except BaseException:  # Ctrl-C too
            left.set()
            _close(answers)
            raise
        if errors:
            raise errors[0]
        return answers[0]

    def _was_answered(self) -> None:
        """Count a request that is no longer waited for by its thread; the last one closes what `close` left to it."""
        with self._streams_lock:
            self._unanswered -= 1
            last = self._closed.is_set() and not self._unanswered
        if last:
            self._client.close()

    def _why_leave(self, request: ModelRequest, until_s: float, received: int = 0) -> Exception | None:
        """Return why a reply of which so many bytes have come is waited for no longer, or None."""
        most = MOST_BYTES + MOST_BYTES_A_TOKEN * request.max_tokens
        if self._closed.is_set():
            return TransientError("the connection was closed")
        if request.left_s() <= 0:
            return NoLongerWanted(f"{self.provider}: nobody waits for the reply any more")
        if self._clock.now_s() > until_s:
            return TransientError(f"the reply had not ended after {self._reply_s:.0f} s")
        return TransientError(f"the reply is longer than {most >> 20} MiB") if received > most else None

    @contextlib.contextmanager
    def _reading(self, stream: Any, request: ModelRequest, until_s: float) -> Iterator[None]:
        """Watch a stream that is being read, and close its connection however that ends, Ctrl-C included. Raises why
        the reply was left, if it was."""
        ended, left = threading.Event(), list[Exception]()
        watching = (stream, request, until_s, ended, left)
        threading.Thread(target=self._watch, args=watching, name="reply", daemon=True).start()
        with self._streams_lock:
            self._streams.append(stream)
        try:
            yield
        except (self.sdk_error, *TRANSPORT_ERRORS):
            if left:
                raise left[0] from None
            raise
        finally:
            ended.set()
            with self._streams_lock:
                self._streams.remove(stream)
            stream.close()
        if left:
            raise left[0]

    def _watch(
        self, stream: Any, request: ModelRequest, until_s: float, ended: threading.Event, left: list[Exception]
    ) -> None:
        """Hang up on a reply that takes too long or grows without end, whatever its server sends: the limit of silence
        begins anew with every byte. The reason goes into `left`."""
        while not ended.wait(LOOK_S):
            if why := self._why_leave(request, until_s, stream.response.num_bytes_downloaded):
                left.append(why)
                _hang_up(stream)
                return

    def _require_events(self, content_type: str) -> None:
        """Raise when something answered that is not the API."""
        if not content_type.startswith("text/event-stream"):
            kind = content_type.partition(";")[0] or "nothing known"
            raise RequestRejected(
                f"{self.provider}: {self._server.base_url} answers with {self._server.scrubbed(kind)}, not with an "
                "event stream.\nCheck --base-url, and whether a proxy stands in between."
            )

    def _understood(self, read: Callable[[], T]) -> T:
        """Return what `read` makes of what a server sent. Raises RequestRejected when that has not the shape of its
        API."""
        try:
            return read()
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            what = f"sent a reply that does not match its API ({type(error).__name__}: {error})"
            message = self._server.scrubbed(f"{self.provider}: {self._server.base_url} {what}")
            raise RequestRejected(f"{message}\nCheck --base-url: which API does the server speak?") from None


def _joined(held: dict[DeltaKind, str], kind: DeltaKind, text: str) -> str:
    """Return `text` after what was held of its kind; the first half of a character waits for the second."""
    if text.isascii() and kind not in held:
        return text
    text = held.pop(kind, "") + text
    if "\ud800" <= text[-1:] <= "\udbff":
        held[kind], text = text[-1], text[:-1]
    return whole(text)


def silence_limits(options: ModelOptions) -> httpx2.Timeout:
    """Return how long a client may hear nothing: a connection is made at once or not at all."""
    return httpx2.Timeout(options.timeout_s, connect=min(options.timeout_s, 10.0))


def _close(streams: Sequence[Any]) -> None:
    for stream in streams:
        stream.close()


def _as_json(event: Any) -> dict[str, Json]:
    made: dict[str, Json] = event if isinstance(event, dict) else event.to_dict(mode="json", warnings=False)
    return made


def _with_id(info: Any) -> Any:
    """Return `info`, a model's description; TypeError for what has no id: the SDKs hand on any page that answers."""
    if not isinstance(getattr(info, "id", None), str):
        raise TypeError("no description of a model")
    return info


def _hang_up(stream: Any) -> None:
    """Shut the socket down: closing it does not wake a thread that reads from it."""
    network = stream.response.extensions.get("network_stream")
    raw = network.get_extra_info("socket") if network is not None else None
    if isinstance(raw, socket.socket):
        with contextlib.suppress(OSError):
            raw.shutdown(socket.SHUT_RDWR)


def own_items(reply: Reply, api: str, model: str) -> list[Json]:
    """Return what this model sent, as it was sent: its thinking is signed or encrypted. Nothing for another's reply."""
    raw = reply.raw
    if not isinstance(raw, dict) or raw.get("api") != api or raw.get("asked") != model:
        return []
    return json.loads(json.dumps(raw["items"])) if isinstance(raw.get("items"), list) else []


def list_price_usd(provider: str, model: str, usage: Usage) -> float | None:
    """Return what `usage` costs by the price list of genai-prices as it was installed (nothing is fetched); None when
    the list does not know the model, or has no price for what was used."""
    import genai_prices  # 0.1 s, which the command line need not wait for

    try:
        counted = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cached_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
            cache_write_1h_tokens=usage.cache_write_1h_tokens or None,
        )
        usd = float(genai_prices.calc_price(counted, model, provider_id=provider).total_price)
    except (LookupError, ValueError):  # an unknown model; counts that contradict each other
        return None
    return usd if usd or not (usage.input_tokens or usage.output_tokens) else None  # a list without a rate is no gift


# What an SDK's exception means. Both SDKs have the same shapes; servers that imitate them have others of their own.

_SHOWN = 300  # characters of a provider's message
_OVERFLOW = re.compile(
    r"prompt is too long|exceeds? (the )?(context limit|available context|(model'?s )?maximum context)"
    r"|maximum context length|context[_ ]length[_ ]exceeded|exceed_context_size|context window"
    r"|request_too_large|longer than the model's context",
    re.IGNORECASE,
)
_CREDIT = re.compile(
    r"insufficient_quota|billing_error|billing_hard_limit|spend_limit|billing_unavailable|credit balance",
    re.IGNORECASE,
)
_TRANSIENT_TYPES = {"overloaded_error", "api_error", "rate_limit_error", "timeout_error", "server_error"}
_TRANSIENT_TYPES |= {"rate_limit_exceeded", "internal_server_error", "vector_store_timeout", "service_unavailable"}
_KEY = re.compile(r"\b(sk|key|rk|pk)-[A-Za-z0-9_*.-]{6,}")


@dataclass(frozen=True)
class Server:
    """The server that is asked, for messages. `secrets` never appear in one."""

    provider: str
    key_name: str  # the environment variable that holds its key
    base_url: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def scrubbed(self, text: str) -> str:
        """Return `text` as one short printable line without a key in it; providers repeat keys in their messages."""
        text = one_line(text)
        for secret in self.secrets:
            if len(secret) >= 6:  # "none" is no secret
                text = text.replace(secret, "…")
        line = _KEY.sub("…", text)
        return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


@dataclass(frozen=True)
class ErrorDetails:
    """What a provider's error says. `status` is None when there was no answer at all, 200 within a stream."""

    status: int | None
    message: str
    kind: str = ""  # "rate_limit_error"
    code: str = ""  # "insufficient_quota"
    param: str = ""  # "reasoning.effort"
    request_id: str = ""
    retry_after_s: float | None = None
    may_retry: bool | None = None

    @property
    def is_busy(self) -> bool:
        """Is the server too busy, or out of order?"""
        return self.status is not None and (self.status in (408, 409, 429) or self.status >= 500)

    @property
    def is_transient(self) -> bool:
        """May the error pass by itself?"""
        if self.may_retry is not None:
            return self.may_retry
        known = {self.kind, self.code} & _TRANSIENT_TYPES or not self.kind
        return self.is_busy or (self.status == 200 and bool(known))

    @property
    def where(self) -> str:
        """The status and the request's id, for the provider's support."""
        status = f"HTTP {self.status}" if self.status is not None and self.status >= 400 else ""
        parts = ", ".join(part for part in (status, one_line(self.request_id)) if part)
        return f" ({parts})" if parts else ""


def details_of(error: BaseException) -> ErrorDetails:
    """Return what `error`, of either SDK, says."""
    response = getattr(error, "response", None)
    headers = response.headers if response is not None else {}
    body = getattr(error, "body", None)
    inner = _inner(body)
    code = inner.get("code")  # vLLM repeats the status as the code of an error in a stream
    return ErrorDetails(
        getattr(error, "status_code", None) or (code if isinstance(code, int) and 400 <= code < 600 else None),
        _message(inner, body, error),
        kind=_text(inner.get("type")),
        code=_text(_inner(inner.get("details")).get("error_code") or code),
        param=_text(inner.get("param")),
        request_id=str(getattr(error, "request_id", None) or headers.get("request-id") or ""),
        retry_after_s=_retry_after_s(headers),
        may_retry={"true": True, "false": False}.get(headers.get("x-should-retry", "")),
    )


def _inner(body: Any) -> dict[str, Json]:
    if not isinstance(body, dict):
        return {}
    error = body.get("error")
    if isinstance(error, str):
        return {"message": error} | {k: v for k, v in body.items() if k != "error"}
    return error if isinstance(error, dict) else body


def _message(inner: dict[str, Json], body: object, error: BaseException) -> str:
    if message := inner.get("message") or inner.get("detail"):
        return message if isinstance(message, str) else json.dumps(message)
    text = body if isinstance(body, str) else ""
    if title := re.search(r"<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL):
        return title[1]
    return text or f"{error} {error.__cause__ or ''}".strip()


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _retry_after_s(headers: Any) -> float | None:
    """Return the seconds to wait, also where a date stands for them: since the answer's own date, as clocks differ."""
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with contextlib.suppress(TypeError, ValueError):
            if math.isfinite(seconds := float(headers.get(name)) * scale):
                return seconds
    then, now = (_timestamp(headers.get(name) or "") for name in ("retry-after", "date"))
    return None if then is None else max(0.0, then - (time.time() if now is None else now))


def _timestamp(http_date: str) -> float | None:
    """Return a date of HTTP as Unix time; None for anything else."""
    try:
        return email.utils.parsedate_to_datetime(http_date).timestamp()
    except (ValueError, OverflowError):
        return None


def mapped_error(error: BaseException, server: Server) -> LlmError | TransientError:
    """Return the exception to raise in the place of an SDK's."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return TransientError("the stream broke off in the middle of an event")
    details = details_of(error)
    if details.status is not None:
        return error_for(details, server)
    cause = error.__cause__ or error
    if isinstance(cause, httpx2.UnsupportedProtocol | httpx2.InvalidURL | httpx2.LocalProtocolError):
        return RequestRejected(f"{server.provider}: cannot ask {server.base_url}: {server.scrubbed(str(cause))}")
    if isinstance(cause, httpx2.TimeoutException) or "timed out" in details.message:
        return TransientError(f"no word from {server.base_url} within the time limit")
    if details.code or details.kind:  # an error that came within a stream
        return error_for(replace(details, status=200), server)
    return TransientError(f"{server.base_url}: {server.scrubbed(str(cause))}")


def error_for(details: ErrorDetails, server: Server) -> LlmError | TransientError:
    """Return the exception that `details` call for."""
    message = f"{server.provider}: {server.scrubbed(details.message)}{details.where}"
    everything = f"{details.kind} {details.code} {details.message}"
    if _OVERFLOW.search(everything) or details.status == 413:
        return ContextOverflow(message)
    if details.status == 402 or _CREDIT.search(everything):
        return OutOfCredit(f"{message}\nAdd credit or raise the spending limit there, or choose another --model.")
    if details.status in (401, 403):
        return KeyRejected(f"{message}\nCheck {server.key_name}: it is wrong, expired, or may not use this model.")
    if details.status == 404:
        return NoSuchModel(f"{message}\nCheck the model's name, and that {server.base_url} is the right --base-url.")
    if details.is_transient:
        return TransientError(f"{server.scrubbed(details.message)}{details.where}", details.retry_after_s)
    if details.may_retry is False and details.is_busy:
        return Unavailable(f"{message}; try again later")
    return RequestRejected(message)


def _is_unreachable(error: BaseException) -> bool:
    """Is there nothing that listens?"""
    return isinstance(error.__cause__ or error, httpx2.ConnectError | httpx2.ConnectTimeout)
