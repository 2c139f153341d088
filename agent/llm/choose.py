"""From what --model says to a model that can be asked. The SDKs load when a model that needs one is opened."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agent.llm.dialogue import Effort, Model
from tools.errors import UsageError

FORMS = "anthropic:<id>, openai:<id>, chat:<id> with --base-url, scripted:<file>, offline"
PROVIDERS = ("anthropic", "openai", "chat", "scripted")
KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


@dataclass(frozen=True)
class Choice:
    """What --model says. `model`: a model's id, "" for one that is chosen from the API's list; a file's path."""

    provider: str
    model: str


def parse(name: str) -> Choice:
    """`name` taken apart. Raises UsageError naming it and the forms."""
    provider, colon, model = name.partition(":")
    if provider not in PROVIDERS:
        close = difflib.get_close_matches(provider, (*PROVIDERS, "offline"), n=1)
        hint = f"did you mean {close[0]}{colon}{model}? " if close else ""
        raise UsageError(f"--model {name!r}: {hint}wanted one of {FORMS}")
    if provider == "scripted" and not model:
        raise UsageError(f"--model {name!r}: name the file, as in scripted:story.jsonl")
    if model != model.strip() or (colon and not model and provider in KEYS):
        raise UsageError(f"--model {name!r}: name a model after the colon, or say only {provider!r}")
    return Choice(provider, model)


def open_model(
    name: str,
    *,
    keys: Mapping[str, str] | None = None,
    base_url: str | None = None,
    effort: Effort = "high",
    timeout_s: float = 600.0,
    max_retries: int = 4,
    backoff_s: float = 0.5,
) -> Model:
    """The model that `name` asks for; nothing is sent yet.

    keys: API keys by provider, "chat" among them. base_url: where the provider's API is, instead of the usual place
    or what the SDK reads from the environment. Raises UsageError for what cannot be meant, KeyRejected without a key.
    """
    choice, keys = parse(name), keys or {}
    key = _checked_key(choice.provider, keys.get(choice.provider))
    url = _checked_url(choice.provider, base_url)
    if choice.provider == "scripted":
        from agent.llm.scripted import ScriptedModel

        return ScriptedModel(Path(choice.model).expanduser())
    if choice.provider == "anthropic":
        from agent.llm.anthropic import AnthropicModel

        return AnthropicModel(
            choice.model,
            api_key=key,
            base_url=url,
            effort=effort,
            timeout_s=timeout_s,
            max_retries=max_retries,
            backoff_s=backoff_s,
        )
    if choice.provider == "openai":
        from agent.llm.openai_responses import OpenAIModel

        return OpenAIModel(
            choice.model,
            api_key=key,
            base_url=url,
            effort=effort,
            timeout_s=timeout_s,
            max_retries=max_retries,
            backoff_s=backoff_s,
        )
    from agent.llm.openai_chat import ChatModel

    return ChatModel(choice.model, str(url), key, timeout_s=timeout_s, max_retries=max_retries, backoff_s=backoff_s)


def _checked_key(provider: str, key: str | None) -> str | None:
    """A key as it can be sent; files and shells leave white space around it."""
    key = (key or "").strip() or None
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        where = KEYS.get(provider, "the API key")
        raise UsageError(f"{where} has characters that no key has: was it copied whole, and nothing else?")
    return key


def _checked_url(provider: str, base_url: str | None) -> str | None:
    if provider == "chat" and not base_url:
        raise UsageError("--model chat:… needs --base-url, as in --base-url http://localhost:8000/v1")
    if provider == "scripted" and base_url:
        raise UsageError("--base-url has no meaning with --model scripted:…")
    if base_url is None:
        return None
    try:
        parts = urlsplit(base_url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise UsageError(f"--base-url {base_url!r}: wanted a URL as in http://localhost:8000/v1")
    return base_url
