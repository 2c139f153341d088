"""What an SDK's exception means. Both SDKs have the same shapes; servers that imitate them have others of their own."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import httpx2

from agent.llm.errors import (
    ContextOverflow,
    KeyRejected,
    LlmError,
    NoSuchModel,
    OutOfCredit,
    RequestRejected,
    Unavailable,
)
from agent.llm.line import Passing
from tools.codec import Json

T = TypeVar("T")
# What breaks off below the SDKs: neither wraps all of it once a stream runs.
TRANSPORT_ERRORS = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, json.JSONDecodeError, UnicodeDecodeError)
_WORDS = 300  # characters of a provider's message that are shown
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
_PASSING_TYPES = {"overloaded_error", "api_error", "rate_limit_error", "timeout_error", "server_error"}
_PASSING_TYPES |= {"rate_limit_exceeded", "internal_server_error", "vector_store_timeout", "service_unavailable"}
_KEY = re.compile(r"\b(sk|key|rk|pk)-[A-Za-z0-9_*.-]{6,}")


@dataclass(frozen=True)
class Who:
    """Whom we speak to, for messages. `secrets` never appear in one."""

    provider: str
    key_name: str  # the environment variable that holds its key
    base_url: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def scrub(self, text: str) -> str:
        """`text` as one short line without a key in it; providers repeat keys in their messages."""
        for secret in self.secrets:
            if len(secret) >= 6:  # "none" is no secret
                text = text.replace(secret, "…")
        line = " ".join(_KEY.sub("…", text).split())
        return line if len(line) <= _WORDS else line[: _WORDS - 1] + "…"


@dataclass(frozen=True)
class Said:
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
    def all_words(self) -> str:
        """Everything to look for a pattern in."""
        return f"{self.kind} {self.code} {self.message}"

    @property
    def where(self) -> str:
        """The status and the request's id, for the provider's support."""
        status = f"HTTP {self.status}" if self.status is not None and self.status >= 400 else ""
        said = ", ".join(part for part in (status, self.request_id) if part)
        return f" ({said})" if said else ""


def read(error: BaseException) -> Said:
    """What `error`, of either SDK, says."""
    response = getattr(error, "response", None)
    headers = response.headers if response is not None else {}
    body = error.body if hasattr(error, "body") else None
    inner = _inner(body)
    request_id = getattr(error, "request_id", None) or headers.get("request-id") or ""
    return Said(
        getattr(error, "status_code", None) or _number(inner.get("code")),
        _message(inner, body, error),
        kind=_text(inner.get("type")),
        code=_text(_inner(inner.get("details")).get("error_code") or inner.get("code")),
        param=_text(inner.get("param")),
        request_id=str(request_id),
        retry_after_s=_seconds(headers),
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
    said = inner.get("message") or inner.get("detail")
    if said:
        return said if isinstance(said, str) else json.dumps(said)
    text = body if isinstance(body, str) else ""
    if title := re.search(r"<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL):
        return title[1]
    cause = error.__cause__
    return text or (f"{error} {cause or ''}".strip())


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int) else ""


def _number(value: object) -> int | None:
    """vLLM repeats the status as the code of an error in a stream."""
    return value if isinstance(value, int) and 400 <= value < 600 else None


def _seconds(headers: Any) -> float | None:
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return float(headers.get(name)) * scale
        except (TypeError, ValueError):
            continue
    return None


def explain(error: BaseException, who: Who) -> LlmError | Passing:
    """The exception to raise in the place of `error`."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return Passing("the stream broke off in the middle of an event")
    said = read(error)
    if said.status is None:
        return _unanswered(error, said, who)
    return judge(said, who)


def judge(said: Said, who: Who) -> LlmError | Passing:
    """The exception that `said` calls for."""
    words = f"{who.provider}: {who.scrub(said.message)}{said.where}"
    if _OVERFLOW.search(said.all_words) or said.status == 413:
        return ContextOverflow(words)
    if said.status == 402 or _CREDIT.search(said.all_words):
        return OutOfCredit(f"{words}\nAdd credit or raise the spending limit there, or choose another --model.")
    if said.status in (401, 403):
        return KeyRejected(f"{words}\nCheck {who.key_name}: it is wrong, expired, or may not use this model.")
    if said.status == 404:
        return NoSuchModel(f"{words}\nCheck the model's name, and that {who.base_url} is the right --base-url.")
    if _passing(said):
        return Passing(f"{who.scrub(said.message)}{said.where}", said.retry_after_s)
    if said.may_retry is False and _busy(said):
        return Unavailable(f"{words}; try again later", said.retry_after_s)
    return RequestRejected(words)


def _passing(said: Said) -> bool:
    if said.may_retry is not None:
        return said.may_retry
    if _busy(said):
        return True
    return said.status == 200 and (said.kind in _PASSING_TYPES or said.code in _PASSING_TYPES or not said.kind)


def with_id(info: Any) -> Any:
    """`info`, the description of a model; TypeError for what has no id: the SDKs hand on any page that answers."""
    if not isinstance(getattr(info, "id", None), str):
        raise TypeError("no description of a model")
    return info


def taken(take: Callable[[dict[str, Json]], T], event: Any, who: Who) -> T:
    """What `take` makes of an SDK's event, given as the server wrote it. Raises RequestRejected as `sensible` does."""
    return sensible(lambda: take(event if isinstance(event, dict) else event.to_dict(mode="json", warnings=False)), who)


def _busy(said: Said) -> bool:
    return said.status is not None and (said.status in (408, 409, 429) or said.status >= 500)


def _unanswered(error: BaseException, said: Said, who: Who) -> LlmError | Passing:
    cause = error.__cause__ or error
    if isinstance(cause, httpx2.UnsupportedProtocol | httpx2.InvalidURL | httpx2.LocalProtocolError):
        return RequestRejected(f"{who.provider}: cannot ask {who.base_url}: {who.scrub(str(cause))}")
    if isinstance(cause, httpx2.TimeoutException) or "timed out" in said.message:
        return Passing(f"no word from {who.base_url} within the time limit")
    if said.code or said.kind:  # an error that came within a stream
        return judge(Said(200, said.message, said.kind, said.code, said.param), who)
    return Passing(f"{who.base_url}: {who.scrub(str(cause))}")


def is_unreachable(error: BaseException) -> bool:
    """Is there nothing that listens?"""
    return isinstance(error.__cause__ or error, httpx2.ConnectError | httpx2.ConnectTimeout)


def sensible(read: Callable[[], T], who: Who) -> T:
    """What `read` makes of what a server sent. Raises RequestRejected when that has not the shape of its API."""
    try:
        return read()
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        message = f"{who.provider}: {who.base_url} sends what its API does not know ({type(error).__name__}: {error})"
        raise RequestRejected(f"{who.scrub(message)}\nCheck --base-url: which API does the server speak?") from None


def no_such_model(who: Who, model: str, known: Sequence[str]) -> NoSuchModel:
    """The error for a model that is not among `known`."""
    shown = ", ".join(known[:12]) + (f" and {len(known) - 12} more" if len(known) > 12 else "")
    return NoSuchModel(f"{who.provider}: there is no model {model!r} at {who.base_url}; known: {shown or 'none'}")


def not_a_stream(content_type: str, who: Who) -> NoReturn:
    """Raise: something answered that is not the API."""
    kind = content_type.partition(";")[0] or "nothing known"
    raise RequestRejected(
        f"{who.provider}: {who.base_url} answers with {who.scrub(kind)}, not with an event stream.\n"
        "Check --base-url, and whether a proxy stands in between."
    )
