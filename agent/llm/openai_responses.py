"""OpenAI's models through the Responses API: streamed, stateless, with encrypted reasoning."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import httpx2
import openai

from agent.llm import prices, responses_form, troubles
from agent.llm.dialogue import Delta, Effort, Listen, ModelFacts, Reply, Request, Usage
from agent.llm.errors import KeyRejected, NoSuchModel, Unavailable
from agent.llm.line import Again, Line, Passing
from agent.llm.responses_stream import ResponseBuilder
from agent.llm.troubles import Said, Who

T = TypeVar("T")
DEFAULT_MODEL = "gpt-6.1-sol"  # where the API's list does not decide
_DEFAULT_FAMILY = re.compile(r"gpt-[\d.]+-sol")
SDK_ERRORS = (openai.OpenAIError, *troubles.TRANSPORT_ERRORS)


class OpenAIModel:
    """A model of OpenAI, or of a server that speaks the Responses API at `base_url`.

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
        self.name = f"openai:{name}"
        self._model = name
        self._client = client(api_key, base_url, timeout_s)
        self._who = Who("openai", "OPENAI_API_KEY", str(self._client.base_url), (self._client.api_key,))
        self._line = Line("openai", max_retries=max_retries, backoff_s=backoff_s)
        self._lock = threading.Lock()
        self._facts: ModelFacts | None = None
        self._able = responses_form.Abilities(effort=effort)

    def facts(self) -> ModelFacts:
        """What the API says of the model, which is little; asked once. Raises LlmError when it cannot be used."""
        with self._lock:
            if self._facts is None:
                self._facts = self._describe()
            return self._facts

    def _describe(self) -> ModelFacts:
        notes: tuple[str, ...] = ()
        if not self._model:
            self._model, note = self._default()
            self.name = f"openai:{self._model}"
            notes = (note,)
        try:
            info = self._line.persist(
                lambda _: self._plain(lambda: troubles.with_id(self._client.models.retrieve(self._model)))
            )
        except NoSuchModel:  # or a server that imitates only the rest of the API
            listed = self._listed()
            if listed is None:
                return ModelFacts(self._model, notes=(*notes, f"{self._who.base_url} does not describe its models"))
            if self._model not in [model.id for model in listed]:
                raise troubles.no_such_model(self._who, self._model, [model.id for model in listed]) from None
            info = next(model for model in listed if model.id == self._model)
        if shutdown := getattr(info, "shutdown_date", None):
            notes += (f"{self._model} shuts down on {shutdown}",)
        return ModelFacts(self._model, notes=notes)

    def _listed(self) -> list[Any] | None:
        """The API's models, newest first; None from a server without a list."""
        try:
            found = self._line.persist(lambda _: self._plain(lambda: list(self._client.models.list())))
        except NoSuchModel:
            return None
        return sorted(found, key=lambda model: -(getattr(model, "created", None) or 0))

    def _default(self) -> tuple[str, str]:
        """A model to use when none is named, and why that one."""
        staying = [m.id for m in self._listed() or [] if not getattr(m, "shutdown_date", None)]
        if family := [model for model in staying if _DEFAULT_FAMILY.fullmatch(model)]:
            return family[0], "no model was named: the newest gpt-…-sol of the API's list"
        return DEFAULT_MODEL, "no model was named: the built-in default, as the API's list does not decide"

    def _plain(self, ask: Callable[[], T]) -> T:
        with translated(self._who, at_once=True):
            return troubles.sensible(ask, self._who)

    def ask(self, request: Request, listen: Listen = lambda _: None) -> Reply:
        """One reply, streamed to `listen` on the way. Passing troubles are retried inside. Raises LlmError."""
        self.facts()
        built = self._line.persist(lambda attempt: self._stream(request, listen, attempt))
        return troubles.sensible(lambda: built.reply(request.tools, self._model, self.price_usd), self._who)

    def _stream(self, request: Request, listen: Listen, attempt: int) -> ResponseBuilder:
        able, built = self._able, ResponseBuilder()
        body = responses_form.body(request, self._model, able)
        with translated(self._who, lambda said: self._concede(said, able)):
            stream = self._client.responses.create(**body, stream=True)
            with self._line.reading(stream):
                kind = stream.response.headers.get("content-type", "")
                if not kind.startswith("text/event-stream"):
                    troubles.not_a_stream(kind, self._who)
                for event in stream:
                    if piece := troubles.taken(built.take, event, self._who):
                        listen(Delta(*piece, attempt=attempt))
        if built.failure:
            raise troubles.judge(built.failure, self._who)
        if not built.complete:
            raise Passing("the stream ended before the reply did")
        return built

    def _concede(self, said: Said, able: responses_form.Abilities) -> None:
        """Raise Again when the server does not take a feature that we can do without. The API lists no capabilities:
        the way to learn of one is to be told no."""
        less = responses_form.without(able, said)
        if less is None:
            return
        with self._lock:
            if self._able == able:
                self._able = less
                if less.effort != able.effort and self._facts:
                    note = f"effort {able.effort} is not offered: {less.effort or 'none is set'}"
                    self._facts = replace(self._facts, notes=(*self._facts.notes, note))
        raise Again

    def price_usd(self, usage: Usage) -> float | None:
        """What such a request costs; None when the price is unknown."""
        price = prices.price_usd("openai", self._model, usage)
        return price.usd if price else None

    def close(self) -> None:
        """Let go of connections; threads that ask get Unavailable."""
        self._line.close()
        self._client.close()


def client(api_key: str | None, base_url: str | None, timeout_s: float) -> openai.OpenAI:
    """The SDK's client, which does not retry. Raises KeyRejected without a key."""
    limits = httpx2.Timeout(timeout_s, connect=min(timeout_s, 10.0))
    try:
        return openai.OpenAI(api_key=api_key, base_url=base_url, max_retries=0, timeout=limits)
    except openai.OpenAIError as error:
        if base_url:  # a server of one's own, which wants no key; the SDK insists on one
            return openai.OpenAI(api_key="none", base_url=base_url, max_retries=0, timeout=limits)
        raise KeyRejected("openai: no API key; set OPENAI_API_KEY, or choose another --model") from error


@contextmanager
def translated(who: Who, first: Callable[[Said], None] = lambda _: None, *, at_once: bool = False) -> Iterator[None]:
    """The SDK's exceptions become ours; `first` may raise another. at_once: do not retry when nothing listens."""
    try:
        yield
    except SDK_ERRORS as error:
        said = troubles.read(error)
        what = troubles.explain(error, who)
        if said.status is not None and 400 <= said.status < 600:
            first(said)
        if at_once and isinstance(what, Passing) and troubles.is_unreachable(error):
            raise Unavailable(f"{who.provider}: nothing answers at {what}") from None
        raise what from None  # the SDK's exception may hold the key
