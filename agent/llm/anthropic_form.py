"""The Messages API's form of a request, and what a model's capabilities allow in it."""

import copy
import re
from dataclasses import dataclass
from typing import Any, get_args

from agent.llm import arguments
from agent.llm.dialogue import Effort, Message, ModelFacts, Reply, Request, Tool, User
from tools.codec import Json

API = "anthropic"
EFFORTS: tuple[Effort, ...] = get_args(Effort)
NOTHING = "(no words)"  # the API takes no empty text
_HOUR: Json = {"type": "ephemeral", "ttl": "1h"}


@dataclass(frozen=True)
class Abilities:
    """What may be asked of a model. The defaults suit a server that does not say."""

    thinking: bool = False
    effort: Effort | None = None
    strict: bool = False
    described: bool = False


def abilities(info: Any, wanted: Effort) -> Abilities:
    """What `info`, an SDK ModelInfo, allows; the effort is the nearest to `wanted` that the model has."""
    known = getattr(info, "capabilities", None)
    if known is None:
        return Abilities()
    return Abilities(
        thinking=_supported(known, "thinking") and _supported(known, "thinking", "types", "adaptive"),
        effort=nearest(wanted, efforts(info)),
        strict=_supported(known, "structured_outputs"),
        described=True,
    )


def _supported(known: Any, *path: str) -> bool:
    """Is the capability at `path` there and supported? Imitators of the API leave some out."""
    for name in path:
        known = getattr(known, name, None)
    return bool(getattr(known, "supported", False))


def efforts(info: Any) -> tuple[Effort, ...]:
    """The levels of effort that the model has, least first."""
    known = getattr(info, "capabilities", None)
    if not _supported(known, "effort"):
        return ()
    return tuple(level for level in EFFORTS if _supported(known, "effort", level))


def nearest(wanted: Effort, offered: tuple[Effort, ...]) -> Effort | None:
    """The most of `offered` that is not more than `wanted`, else the least; None when there are none."""
    fitting = [level for level in offered if EFFORTS.index(level) <= EFFORTS.index(wanted)]
    return fitting[-1] if fitting else next(iter(offered), None)


def facts(info: Any, notes: tuple[str, ...]) -> ModelFacts:
    """What `info`, an SDK ModelInfo, says, in neutral words."""
    lifecycle, retires_at = getattr(info, "lifecycle", None), getattr(info, "retires_at", None)
    if lifecycle not in ("active", None):
        notes += (f"{info.id} is {lifecycle}",)
    if retires_at is not None:
        notes += (f"{info.id} retires on {str(retires_at)[:10]}",)
    return ModelFacts(
        info.id,
        max_input_tokens=getattr(info, "max_input_tokens", None),
        max_output_tokens=getattr(info, "max_tokens", None),
        efforts=efforts(info),
        notes=notes,
    )


def body(request: Request, model: str, able: Abilities, max_output_tokens: int | None) -> dict[str, Json]:
    """The arguments of messages.create.

    What is the same in all requests of a run, tools and system, is cached for an hour: a bench may take longer than
    the five minutes for which the growing history is.
    """
    made: dict[str, Json] = {
        "model": model,
        "max_tokens": min(request.max_tokens, max_output_tokens or request.max_tokens),
        "messages": [_message(message, model) for message in arguments.answered(request.messages)],
        "cache_control": {"type": "ephemeral"},
    }
    if request.tools:
        made["tools"] = [_tool(tool, able) for tool in request.tools]
    if request.system:
        made["system"] = [{"type": "text", "text": request.system, "cache_control": _HOUR}]
    elif request.tools:
        made["tools"][-1]["cache_control"] = _HOUR
    if able.thinking:
        made["thinking"] = {"type": "adaptive", "display": "summarized"}
    if able.effort:
        made["output_config"] = {"effort": able.effort}
    return made


def _tool(tool: Tool, able: Abilities) -> dict[str, Json]:
    made: dict[str, Json] = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
    if able.strict:
        made["strict"] = True
    if able.described and tool.source:
        made["eager_input_streaming"] = True  # else a kernel of 300 lines comes all at once
    return made


def _message(message: Message, model: str) -> dict[str, Json]:
    if isinstance(message, User):
        return {"role": "user", "content": [_text(message.text)]}
    if isinstance(message, Reply):
        return {"role": "assistant", "content": _own_items(message, model) or _rebuilt(message)}
    results: list[Json] = [
        {"type": "tool_result", "tool_use_id": _id(r.call_id), "content": r.text or NOTHING, "is_error": r.is_error}
        for r in message.results
    ]
    return {"role": "user", "content": results + ([_text(message.text)] if message.text or not results else [])}


def _text(text: str) -> Json:
    return {"type": "text", "text": text if text.strip() else NOTHING}


def _id(call_id: str) -> str:
    """Other providers' ids may have characters that this API does not take."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", call_id)


def _own_items(reply: Reply, model: str) -> list[Json]:
    """What this model sent, as it was sent: its thinking is signed. Nothing for another's reply."""
    raw = reply.raw
    if not isinstance(raw, dict) or raw.get("api") != API or raw.get("asked") != model:
        return []
    return copy.deepcopy(raw["items"]) if isinstance(raw.get("items"), list) else []


def _rebuilt(reply: Reply) -> list[Json]:
    calls: list[Json] = [
        {"type": "tool_use", "id": _id(call.call_id), "name": call.name, "input": call.arguments}
        for call in reply.calls
    ]
    return ([_text(reply.text)] if reply.text.strip() or not calls else []) + calls
