"""What is asked of a model and what it answers. No provider's format shows here.

A conversation is a list of messages: `User` text, the model's `Reply`, the `ToolResults` of its calls, again and again.
A `Reply` keeps what the provider sent (`raw`), because signed thinking has to go back as it came.
"""

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

from kerneltune.tools.schema.codec import Json
from kerneltune.tools.schema.errors import KerneltuneError

Effort = Literal["low", "medium", "high", "xhigh", "max"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
Stop = Literal["end", "tools", "max_tokens", "context", "refusal", "interrupted"]
DeltaKind = Literal["text", "thinking", "arguments"]
_MOST_TOKENS = 10**10  # no request has more; a server that counts so, or below 0, is not believed
_LEAST_LOGPROB = -1e39  # llama.cpp's for what is impossible is a float32, vLLM's -9999
_DEEPEST = 64  # levels of JSON in a call's arguments; tools take two or three


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

    @property
    def parameters(self) -> dict[str, Json]:
        """The schema without unions and references, which many servers, chat templates and trainers cannot read: what
        may be null has a list of types."""
        plain: dict[str, Json] = _plain(self.schema, self.schema.get("$defs", {}))
        return plain


def _plain(schema: Any, known: Mapping[str, Json]) -> Any:
    if isinstance(schema, list):
        return [_plain(item, known) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _plain(value, known) for key, value in schema.items() if key not in ("$defs", "$ref", "anyOf")}
    if "$ref" in schema:
        made |= _plain(known[str(schema["$ref"]).removeprefix("#/$defs/")], known)
    options = [_plain(option, known) for option in schema.get("anyOf", ())]
    for option in options:
        made |= {key: value for key, value in option.items() if key != "type"}
    return made | ({"type": [option["type"] for option in options]} if options else {})


@dataclass(frozen=True)
class ToolCall:
    """A tool call of a reply. `problem` says what is wrong with arguments that are no JSON object. Raises TypeError for
    an id or a name that is no text, which some server may send."""

    call_id: str
    name: str
    arguments: dict[str, Json] = field(default_factory=dict)
    problem: str = ""

    def __post_init__(self) -> None:
        texts: tuple[Any, ...] = (self.call_id, self.name)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("the id or the name of a call is no text")


@dataclass(frozen=True)
class ToolResult:
    """What a tool call came to, in words for the model. `attempt_id`: the attempt that it is about."""

    call_id: str
    text: str
    is_error: bool = False
    attempt_id: str | None = None


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
class ToolResults:
    """The results of all calls of the reply before, and perhaps words on top."""

    results: tuple[ToolResult, ...]
    text: str = ""


@dataclass(frozen=True)
class Reply:
    """What the model answered.

    thinking: its summary, as far as the provider shows one. stop: why it ended; "tools" when calls wait for results.
    detail: more on that, such as the category of a refusal. usage, cost_usd: None when unknown, never 0. raw: the
    provider's own items, to be sent back unchanged. model: who answered, which may be another than was asked.
    token_ids, logprobs: of every token that the model wrote, thinking and special ones too: its number in the
    vocabulary, and the natural logarithm of the probability that it was drawn with; None when the server did not tell
    them all.
    """

    text: str
    stop: Stop
    calls: tuple[ToolCall, ...] = ()
    thinking: str = ""
    detail: str = ""
    usage: Usage | None = None
    cost_usd: float | None = None
    raw: Json = None
    model: str = ""
    reply_id: str = ""
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


Message = User | Reply | ToolResults


@dataclass(frozen=True)
class ModelRequest:
    """One question to a model. `system` and `tools` are the same in all requests of a run, so that they can be cached;
    `key` names the conversation for caches that want to know.

    left_s: how long whoever asks can still wait; a reply on its way is left then. is_over: nobody wants a reply any
    more that is not on its way. told: hears of each wait before the request is sent again, its seconds and the reason.
    lost: hears of each reply that broke off, since it is billed: what the server had counted, and the characters that
    had come. affordable: how many tokens the reply may have when the request is sent again; never more than at first.
    seed: what sampling begins with; logprobs: whether the reply's tokens are to come with their probabilities. Both
    where the API knows of them (of those here Chat Completions alone).
    """

    system: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int = 32_000
    key: str = ""
    left_s: Callable[[], float] = field(default=lambda: math.inf, compare=False)
    is_over: Callable[[], bool] = field(default=lambda: False, compare=False)
    told: Callable[[float, str], None] = field(default=lambda wait_s, why: None, compare=False)
    lost: Callable[[Usage | None, int], None] = field(default=lambda counted, characters: None, compare=False)
    affordable: Callable[[], int] = field(default=lambda: sys.maxsize, compare=False)
    seed: int | None = None
    logprobs: bool = False


@dataclass(frozen=True)
class Delta:
    """A piece of a reply on its way. `attempt` counts from 1: a reply that broke off starts again with the next."""

    kind: DeltaKind
    text: str
    attempt: int = 1


@dataclass(frozen=True)
class ModelFacts:
    """What a model is, as its API says; None where it does not say."""

    model: str
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    notes: tuple[str, ...] = ()  # such as a date of retirement
    caches: bool = False  # what a prompt begins with costs less when it was sent before


class Clock:
    """The time that waits and deadlines go by."""

    def now_s(self) -> float:
        """Seconds since some moment."""
        return time.monotonic()

    def wait(self, over: threading.Event, seconds: float) -> None:
        """Wait so long, or until it is `over`."""
        over.wait(seconds)


@dataclass(frozen=True)
class ModelOptions:
    """How a model is opened. model: its id, a file's path, or "" for one of the API's list. api_key: None for what the
    SDK finds in the environment. base_url: None for the usual place. timeout_s: the longest silence. retry_s: how long
    a request that fails is sent again, from its first failure on. reply_s: the longest that one reply may take."""

    model: str
    api_key: str | None = None
    base_url: str | None = None
    effort: Effort = "high"
    timeout_s: float = 600.0
    retry_s: float = 900.0
    reply_s: float = 1800.0
    clock: Clock = field(default_factory=Clock)


Listen = Callable[[Delta], None]


class LanguageModel(Protocol):
    """A model that can be asked. `name` is what --model takes, "anthropic:claude-…"."""

    name: str

    def facts(self) -> ModelFacts:
        """Ask the API about the model, once. Raises LlmError when it cannot be used at all."""
        ...

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        """Return one reply, streamed to `listen` on the way. Transient errors are retried inside. Raises LlmError."""
        ...

    def price_usd(self, usage: Usage) -> float | None:
        """Return what such a request costs; None when the price is unknown."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def cleaned(reply: Reply) -> Reply:
    """Return `reply` fit to be stored, shown and sent back, whatever a model or a server wrote. Every model's replies
    pass here before anything keeps them.

    Lone surrogates become U+FFFD, halves of one character are joined. Arguments that JSON cannot carry (NaN, Infinity)
    become a call's `problem`. Token counts that cannot be become None, and tokens that are not as many as were counted.
    """
    try:
        raw = clean_json(reply.raw)
    except ValueError:
        raw = None  # the reply goes back in neutral words then
    cost = reply.cost_usd
    usage = reply.usage if reply.usage and credible(reply.usage) else None
    ids, logprobs = reply.token_ids or (), reply.logprobs or ()
    counted = usage.output_tokens if usage else max(len(ids), len(logprobs))
    return replace(
        reply,
        text=whole(reply.text),
        calls=tuple(map(_cleaned_call, reply.calls)),
        thinking=whole(reply.thinking),
        detail=_word(reply.detail),
        usage=usage,
        cost_usd=cost if cost is not None and math.isfinite(cost) and cost >= 0 else None,
        raw=raw,
        model=_word(reply.model),
        reply_id=_word(reply.reply_id),
        token_ids=ids if 0 < len(ids) == counted and all(map(_is_id, ids)) else None,
        logprobs=logprobs if 0 < len(logprobs) == counted and all(map(_is_logprob, logprobs)) else None,
    )


def _is_id(given: object) -> bool:
    return type(given) is int and 0 <= given < 2**31


def _is_logprob(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and _LEAST_LOGPROB <= given <= 0


def _word(given: object) -> str:
    return whole(given) if isinstance(given, str) else ""  # a server may send anything in its place


def whole(text: str) -> str:
    """Return `text` with halves of characters joined, as a proxy that counts in UTF-16 may split them, and lone halves
    replaced: no encoder takes those."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _cleaned_call(call: ToolCall) -> ToolCall:
    call_id, name, problem = whole(call.call_id), whole(call.name), whole(call.problem)
    try:
        return ToolCall(call_id, name, clean_json(call.arguments), problem)
    except ValueError as error:
        return ToolCall(call_id, name, {}, problem or f"the arguments are not JSON: {error}")


def clean_json(value: Json, depth: int = 0) -> Json:
    """Return `value` with whole texts. Raises ValueError for a number that JSON cannot carry, or too deep a value."""
    if depth > _DEEPEST:
        raise ValueError(f"they are nested more than {_DEEPEST} levels deep")
    if isinstance(value, str):
        return whole(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    if isinstance(value, dict):
        return {whole(str(key)): clean_json(inner, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [clean_json(inner, depth + 1) for inner in value]
    return value


def credible(usage: Usage) -> bool:
    """Is each count a number of tokens?"""
    counts = [count for count in vars(usage).values() if count is not None]
    return all(type(count) is int and 0 <= count <= _MOST_TOKENS for count in counts)


# What can go wrong ---------------------------------------------------------------------------------------------------


class LlmError(KerneltuneError):
    """A model could not be asked. The message names the provider, what it said, and the way out."""


class KeyRejected(LlmError):
    """The API key is missing, wrong or expired, or may not use this model."""


class OutOfCredit(LlmError):
    """The account has no money left, or reached its spending limit."""


class NoSuchModel(LlmError):
    """The provider does not know the model; the message lists some that it knows."""


class RequestRejected(LlmError):
    """The provider will not take the request whatever is done about it."""


class ContextOverflow(LlmError):
    """The conversation is longer than the model can read: shorten it and ask again."""


class NoLongerWanted(LlmError):
    """Whoever asked has no time left for the reply, or has no use for one any more."""


class Unavailable(LlmError):
    """The provider does not answer, or is too busy, after all retries."""
