"""The words in which a conversation with any model is held. No provider's format shows here.

A conversation is a list of messages: `User` text, the model's `Reply`, the `Results` of its tool calls, again and
again. A `Reply` keeps what the provider sent (`raw`), because signed thinking has to go back as it came.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tools.codec import Json

Effort = Literal["low", "medium", "high", "xhigh", "max"]
Stop = Literal["end", "tools", "max_tokens", "context", "refusal"]


@dataclass(frozen=True)
class Tool:
    """A tool that the model may call. `schema` is a strict JSON Schema: an object of which every property is required
    (nullable ones say so) and no other is allowed.

    `source` names the string property that holds a whole source file, where there is one: providers with free-text
    tools take it out of the JSON, so that nothing has to be escaped.
    """

    name: str
    description: str
    schema: dict[str, Json]
    source: str | None = None


@dataclass(frozen=True)
class Call:
    """A tool call of a reply. `problem` says what is wrong with arguments that are no JSON object."""

    call_id: str
    name: str
    arguments: dict[str, Json] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Result:
    """What a tool call came to, in words for the model."""

    call_id: str
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class Usage:
    """Tokens of one request. `input_tokens` counts all of the prompt, cached or not; `output_tokens` the thinking too.
    `cache_write_1h_tokens` are those of `cache_write_tokens` that were written for an hour, which costs more.
    None: the server does not say."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    thinking_tokens: int | None = None
    cache_write_1h_tokens: int = 0


@dataclass(frozen=True)
class User:
    """Words to the model."""

    text: str


@dataclass(frozen=True)
class Results:
    """The results of all calls of the reply before, and perhaps words on top."""

    results: tuple[Result, ...]
    text: str = ""


@dataclass(frozen=True)
class Reply:
    """What the model said.

    thinking: its summary, as far as the provider shows one. stop: why it ended; "tools" when calls wait for results.
    detail: more on that, such as the category of a refusal. usage, cost_usd: None when unknown, never 0. raw: the
    provider's own items, to be sent back unchanged. model: who answered, which may be another than was asked.
    """

    text: str
    stop: Stop
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    detail: str = ""
    usage: Usage | None = None
    cost_usd: float | None = None
    raw: Json = None
    model: str = ""
    reply_id: str = ""


Message = User | Reply | Results


@dataclass(frozen=True)
class Request:
    """One question to a model. `system` and `tools` are the same in all requests of a run, so that they can be cached;
    `key` names the conversation for caches that want to know."""

    system: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int = 32_000
    key: str = ""


@dataclass(frozen=True)
class Delta:
    """A piece of a reply on its way. `attempt` counts from 1: a reply that broke off starts again with the next."""

    kind: Literal["text", "thinking", "arguments"]
    text: str
    attempt: int = 1


@dataclass(frozen=True)
class ModelFacts:
    """What a model is, as its API says; None where it does not say."""

    model: str
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    efforts: tuple[Effort, ...] = ()
    notes: tuple[str, ...] = ()  # such as a date of retirement


Listen = Callable[[Delta], None]


class Model(Protocol):
    """A model that can be asked. `name` is what --model takes, "anthropic:claude-…"."""

    name: str

    def facts(self) -> ModelFacts:
        """Ask the API about the model, once. Raises LlmError when it cannot be used at all."""
        ...

    def ask(self, request: Request, listen: Listen = lambda _: None) -> Reply:
        """One reply, streamed to `listen` on the way. Passing troubles are retried inside. Raises LlmError."""
        ...

    def price_usd(self, usage: Usage) -> float | None:
        """What such a request costs; None when the price is unknown."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
