"""Claude through the Messages API: streamed, with adaptive thinking as the model's capabilities allow."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anthropic
import httpx2

from agent.llm import anthropic_form, prices, troubles
from agent.llm.anthropic_stream import MessageBuilder
from agent.llm.dialogue import Delta, Effort, Listen, ModelFacts, Reply, Request, Usage
from agent.llm.errors import KeyRejected, NoSuchModel, Unavailable
from agent.llm.line import Line, Passing
from agent.llm.troubles import Who
from tools.codec import Json

T = TypeVar("T")
DEFAULT_MODEL = "claude-opus-5-5"  # where the API's list does not decide
LINES = ("opus", "fable", "sonnet")  # which line to take the newest of, when no model is named
_MOST_PAUSES = 8
_SDK_ERRORS = (anthropic.AnthropicError, *troubles.TRANSPORT_ERRORS)


class AnthropicModel:
    """A model of Anthropic, or of a server that speaks its API at `base_url`.

    name: the model's id; "" for the newest sensible one of the API's list. timeout_s: the longest silence.
    Any number of threads may ask at the same time. Raises KeyRejected when there is no key.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        effort: Effort = "high",
        timeout_s: float = 600.0,
        max_retries: int = 4,
        backoff_s: float = 0.5,
    ) -> None:
        self.name = f"anthropic:{name}"
        self._model = name
        self._effort = effort
        self._client = _client(api_key, base_url, timeout_s)
        secrets = tuple(key for key in (self._client.api_key, self._client.auth_token) if key)
        self._who = Who("anthropic", "ANTHROPIC_API_KEY", str(self._client.base_url), secrets)
        self._line = Line("anthropic", max_retries=max_retries, backoff_s=backoff_s)
        self._lock = threading.Lock()
        self._facts: ModelFacts | None = None
        self._abilities = anthropic_form.Abilities()

    def facts(self) -> ModelFacts:
        """What the API says of the model; asked once. Raises LlmError when it cannot be used at all."""
        with self._lock:
            if self._facts is None:
                self._facts = self._describe()
            return self._facts

    def _describe(self) -> ModelFacts:
        notes: tuple[str, ...] = ()
        if not self._model:
            self._model, note = self._default()
            self.name = f"anthropic:{self._model}"
            notes = (note,)
        info = self._retrieve()
        if info is None:
            return ModelFacts(self._model, notes=(*notes, f"{self._who.base_url} does not describe its models"))
        self._abilities = anthropic_form.abilities(info, self._effort)
        return anthropic_form.facts(info, notes)

    def _retrieve(self) -> Any:
        """The API's description of the model; None from servers that have none."""
        try:
            return self._line.persist(
                lambda _: self._plain(lambda: troubles.with_id(self._client.models.retrieve(self._model)))
            )
        except NoSuchModel:  # or a server that imitates only the rest of the API
            listed = self._listed()
        if listed is None:
            return None
        for info in listed:
            if info.id == self._model:
                return info
        raise troubles.no_such_model(self._who, self._model, [info.id for info in listed])

    def _listed(self) -> list[Any] | None:
        try:
            return self._line.persist(lambda _: self._plain(lambda: list(self._client.models.list(limit=100))))
        except NoSuchModel:
            return None

    def _default(self) -> tuple[str, str]:
        """A model to use when none is named, and why that one."""
        active = [info for info in self._listed() or [] if getattr(info, "lifecycle", None) in ("active", None)]
        for line in LINES:
            if of_line := [info for info in active if getattr(info, "line", None) == line]:
                newest = max(of_line, key=lambda info: str(info.created_at))
                return newest.id, f"no model was named: the newest active {line} of the API's list"
        return DEFAULT_MODEL, "no model was named: the built-in default, as the API's list does not decide"

    def _plain(self, ask: Callable[[], T]) -> T:
        """A short question. When nothing listens, that is said at once."""
        with self._translated(at_once=True):
            return self._sensible(ask)

    def _sensible(self, read: Callable[[], T]) -> T:
        return troubles.sensible(read, self._who)

    @contextmanager
    def _translated(self, at_once: bool = False) -> Iterator[None]:
        try:
            yield
        except _SDK_ERRORS as error:
            what = troubles.explain(error, self._who)
            if at_once and isinstance(what, Passing) and troubles.is_unreachable(error):
                raise Unavailable(f"anthropic: nothing answers at {what}") from None
            raise what from None  # the SDK's exception may hold the key

    def ask(self, request: Request, listen: Listen = lambda _: None) -> Reply:
        """One reply, streamed to `listen` on the way. Passing troubles are retried inside. Raises LlmError."""
        facts = self.facts()
        body = anthropic_form.body(request, self._model, self._abilities, facts.max_output_tokens)
        whole = MessageBuilder()
        for _ in range(_MOST_PAUSES):  # a paused turn goes on when it is sent back
            part = self._line.persist(lambda attempt: self._stream(body, listen, attempt))
            whole.append(part)
            if part.stop_reason != "pause_turn":
                break
            body["messages"] = [*body["messages"], {"role": "assistant", "content": part.items()}]
        return self._sensible(lambda: whole.reply(self._model, self.price_usd))

    def _stream(self, body: dict[str, Json], listen: Listen, attempt: int) -> MessageBuilder:
        built = MessageBuilder()
        with self._translated():
            stream = self._client.messages.create(**body, stream=True)
            with self._line.reading(stream):
                kind = stream.response.headers.get("content-type", "")
                if not kind.startswith("text/event-stream"):
                    troubles.not_a_stream(kind, self._who)
                for event in stream:
                    if piece := troubles.taken(built.take, event, self._who):
                        listen(Delta(*piece, attempt=attempt))
        if not built.complete:
            raise Passing("the stream ended before the reply did")
        return built

    def price_usd(self, usage: Usage) -> float | None:
        """What such a request costs; None when the price is unknown."""
        price = prices.price_usd("anthropic", self._model, usage)
        return price.usd if price else None

    def close(self) -> None:
        """Let go of connections; threads that ask get Unavailable."""
        self._line.close()
        self._client.close()


def _client(api_key: str | None, base_url: str | None, timeout_s: float) -> anthropic.Anthropic:
    """The SDK's client, which does not retry. Raises KeyRejected without a key, which only a `base_url` excuses."""
    limits = httpx2.Timeout(timeout_s, connect=min(timeout_s, 10.0))
    client = anthropic.Anthropic(api_key=api_key, base_url=base_url, max_retries=0, timeout=limits)
    if client.api_key or client.auth_token or client.credentials:
        return client
    if base_url:  # a server of one's own, which wants no key; the SDK insists on one
        return client.copy(api_key="none")
    raise KeyRejected("anthropic: no API key; set ANTHROPIC_API_KEY, or choose another --model")
