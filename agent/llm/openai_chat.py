"""Any server of the Chat Completions API: vLLM, SGLang, llama.cpp, Ollama. None of them does all of it right."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from agent.llm import chat_form, troubles
from agent.llm.chat_stream import ChatBuilder
from agent.llm.dialogue import Delta, Effort, Listen, ModelFacts, Reply, Request, Usage
from agent.llm.errors import NoSuchModel
from agent.llm.line import Again, Line, Passing
from agent.llm.openai_responses import client, translated
from agent.llm.troubles import Said, Who
from tools.codec import Json

T = TypeVar("T")


class ChatModel:
    """A model of the server at `base_url` ("http://localhost:8000/v1").

    name: the model's id; "" for the first that the server lists. timeout_s: the longest silence. effort: None to
    say nothing of it; few local servers know it. Any number of threads may ask at the same time.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        api_key: str | None = None,
        *,
        effort: Effort | None = None,
        timeout_s: float = 600.0,
        max_retries: int = 4,
        backoff_s: float = 0.5,
    ) -> None:
        self.name = f"chat:{name}"
        self._model = name
        self._client = client(api_key or "none", base_url, timeout_s)  # the SDK insists on a key
        self._who = Who("chat", "the API key", base_url, (api_key,) if api_key else ())
        self._line = Line("chat", max_retries=max_retries, backoff_s=backoff_s)
        self._lock = threading.Lock()
        self._facts: ModelFacts | None = None
        self._able = chat_form.Abilities(effort=effort)

    def facts(self) -> ModelFacts:
        """What the server says of the model; asked once. Raises LlmError when it cannot be used at all."""
        with self._lock:
            if self._facts is None:
                self._facts = self._describe()
            return self._facts

    def _describe(self) -> ModelFacts:
        listed = self._listed()
        notes: tuple[str, ...] = ()
        if not self._model:
            if not listed:
                raise NoSuchModel(f"chat: {self._who.base_url} lists no models; name one, as in --model chat:<id>")
            self._model = str(listed[0].id)
            self.name = f"chat:{self._model}"
            notes = (f"no model was named: the first that {self._who.base_url} lists",)
        info = next((model for model in listed if model.id == self._model), None)
        return ModelFacts(self._model, max_input_tokens=chat_form.context_tokens(info), notes=notes)

    def _listed(self) -> list[Any]:
        try:
            found = self._line.persist(lambda _: self._plain(lambda: list(self._client.models.list())))
        except NoSuchModel:  # a server without a list
            return []
        return [model for model in found if getattr(model, "id", None)]

    def _plain(self, ask: Callable[[], T]) -> T:
        with translated(self._who, at_once=True):
            return troubles.sensible(ask, self._who)

    def ask(self, request: Request, listen: Listen = lambda _: None) -> Reply:
        """One reply, streamed to `listen` on the way. Passing troubles are retried inside. Raises LlmError."""
        facts = self.facts()
        try:
            built = self._line.persist(lambda attempt: self._stream(request, listen, attempt, facts))
        except NoSuchModel:
            if (known := [str(model.id) for model in self._listed()]) and self._model not in known:
                raise troubles.no_such_model(self._who, self._model, known) from None
            raise
        return troubles.sensible(lambda: built.reply(request, self._model), self._who)

    def _stream(self, request: Request, listen: Listen, attempt: int, facts: ModelFacts) -> ChatBuilder:
        able, built = self._able, ChatBuilder()
        body = chat_form.body(request, self._model, able, facts.max_input_tokens)
        with translated(self._who, lambda said: self._concede(said, able)):
            stream = self._client.chat.completions.create(**body, stream=True)
            with self._line.reading(stream):
                kind = stream.response.headers.get("content-type", "")
                if not kind.startswith("text/event-stream"):
                    troubles.not_a_stream(kind, self._who)
                for chunk in stream:
                    for piece in troubles.taken(built.take, chunk, self._who):
                        listen(Delta(*piece, attempt=attempt))
        if not built.begun:
            self._ask_why(body)
        if not built.complete:
            raise Passing("the stream ended before the reply did")
        return built

    def _ask_why(self, body: dict[str, Json]) -> None:
        """llama-cpp-python answers what it cannot do, such as too long a prompt, with a stream of nothing; without a
        stream it says what is wrong. Raises that; returns when nothing is."""
        short = {key: value for key, value in body.items() if key != "stream_options"} | {self._able.limit_name: 1}
        with translated(self._who):
            # twice: it also leaves behind a connection that it is about to close
            self._client.with_options(max_retries=1).chat.completions.create(**short)

    def _concede(self, said: Said, able: chat_form.Abilities) -> None:
        """Raise Again when the server does not take a feature that we can do without."""
        less = chat_form.without(able, said)
        if less is None:
            return
        with self._lock:
            if self._able == able:
                self._able = less
        raise Again

    def price_usd(self, usage: Usage) -> float | None:
        """None: nobody lists what one's own server costs."""
        return None

    def close(self) -> None:
        """Let go of connections; threads that ask get Unavailable."""
        self._line.close()
        self._client.close()
