"""The providers of models, and from what --model says to a model that can be asked.

All that names providers (settings, help, `doctor`, the terms of exports) reads it here. The SDKs load when
a model that needs one is opened.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from urllib.parse import urlsplit

from kerneltune.agent.models.types import Clock, Effort, LanguageModel, ModelOptions
from kerneltune.tools.schema.errors import UsageError


@dataclass(frozen=True)
class SourceTerms:
    """What those who use a provider's words should know. `tag`: what the column `source_terms` of exports says.
    `notice`: for the card and the screen; not legal advice."""

    tag: str
    notice: str


@dataclass(frozen=True)
class Provider:
    """How to reach the models of one provider.

    spelling: of --model, as help shows it. model_class: "module:class" beside this file.
    key_variable: the environment variable of the API key; "" for none. models: how the names of its closed models
    begin, whose terms hold wherever they are served.
    """

    spelling: str
    model_class: str
    terms: SourceTerms
    key_variable: str = ""
    models: tuple[str, ...] = ()

    def open(self, options: ModelOptions) -> LanguageModel:
        """Open a model; its module, and an SDK with it, loads now."""
        module, _, name = self.model_class.partition(":")
        model: LanguageModel = getattr(import_module(f"kerneltune.agent.models.{module}"), name)(options)
        return model


PROVIDERS: Mapping[str, Provider] = {
    "anthropic": Provider(
        "anthropic[:ID]",
        "anthropic:AnthropicModel",
        SourceTerms(
            "anthropic-commercial",
            "Outputs of Anthropic's models. Anthropic's commercial terms restrict the use of its services to build"
            " competing products or to train competing AI models. Check the terms that applied to your account before"
            " you train on these rows or pass them on."
            " https://www.anthropic.com/legal/commercial-terms",
        ),
        "ANTHROPIC_API_KEY",
        ("claude",),
    ),
    "openai": Provider(
        "openai[:ID]",
        "openai_responses:OpenAIModel",
        SourceTerms(
            "openai-services-agreement",
            "Outputs of OpenAI's models. OpenAI's terms restrict the use of output to develop models that compete with"
            " OpenAI's. Check the terms that applied to your account before you train on these rows or pass them on."
            " https://openai.com/policies/services-agreement/",
        ),
        "OPENAI_API_KEY",
        ("gpt-", "chatgpt", "o1", "o3", "o4"),
    ),
    "chat": Provider(
        "chat:ID",
        "openai_chat:ChatModel",
        SourceTerms(
            "model-licence",
            "Outputs of a model behind an OpenAI-compatible server. What may be done with them is for that model's own"
            " licence to say, and for the terms of whoever ran the server. Check both; some licences ask for"
            " attribution or limit training of other models.",
        ),
    ),
    "scripted": Provider(
        "scripted:FILE",
        "scripted:ScriptedModel",
        SourceTerms(
            "unknown-scripted",
            "Replayed from a file. Who wrote the words first (a model, a person) is not recorded; the terms of the"
            " first source hold on. Leave these rows out if you do not know where the file came from.",
        ),
    ),
}
OFFLINE = "offline"  # no model: the author that searches
REPLAY = "replay"  # no model: the attempts of an earlier run, again
CLIENTS = ("mcp", "http")  # no model of ours: whoever calls the tools through a server
KEY_VARIABLES: Mapping[str, str] = {name: p.key_variable for name, p in PROVIDERS.items() if p.key_variable}
SPELLINGS = f"{', '.join(provider.spelling for provider in PROVIDERS.values())}, {REPLAY}:RUN or {OFFLINE}"


def parse(name: str) -> tuple[str, str]:
    """Take the name of a model apart: the provider, and a model's id ("" for one that is chosen from the API's list) or
    a file's path. Raises UsageError naming it and the spellings."""
    provider, colon, model = name.partition(":")
    if provider in CLIENTS:
        raise UsageError(
            f"{name} is a client, not a model; a run that a client drove goes on from a client, by its tool `start`"
        )
    if provider not in PROVIDERS:
        close = difflib.get_close_matches(provider, (*PROVIDERS, OFFLINE, REPLAY), n=1)
        hint = f"did you mean {close[0]}{colon}{model}? " if close else ""
        raise UsageError(f"{name!r} is no author: {hint}wanted one of {SPELLINGS}")
    if provider == "scripted" and not model:
        raise UsageError(f"{name!r}: name the file, as in scripted:story.jsonl")
    if model != model.strip() or (colon and not model and provider in KEY_VARIABLES):
        raise UsageError(f"{name!r}: name a model after the colon, or say only {provider!r}")
    return provider, model


def open_model(
    name: str,
    *,
    keys: Mapping[str, str] | None = None,
    base_url: str | None = None,
    effort: Effort = "high",
    timeout_s: float = ModelOptions.timeout_s,
    retry_s: float = ModelOptions.retry_s,
    reply_s: float = ModelOptions.reply_s,
    clock: Clock | None = None,
) -> LanguageModel:
    """Open the model that `name` asks for; nothing is sent yet.

    keys: API keys by provider, "chat" among them. base_url: where the provider's API is, instead of the usual place
    or what the SDK reads from the environment. The others are those of `ModelOptions`. Raises UsageError for what
    cannot be meant, KeyRejected without a key.
    """
    provider, model = parse(name)
    key, url = _checked_key(provider, (keys or {}).get(provider)), _checked_url(provider, base_url)
    return PROVIDERS[provider].open(
        ModelOptions(model, key, url, effort, timeout_s, retry_s, reply_s, clock or Clock())
    )


def _checked_key(provider: str, key: str | None) -> str | None:
    """Return a key as it can be sent; files and shells leave white space around it."""
    key = (key or "").strip() or None
    if key and not (key.isascii() and key.isprintable() and " " not in key):
        where = KEY_VARIABLES.get(provider, "the API key")
        raise UsageError(f"{where} has characters that no API key has; copy the whole key again, and nothing else")
    return key


def _checked_url(provider: str, base_url: str | None) -> str | None:
    if provider == "chat" and not base_url:
        raise UsageError("chat:… needs --base-url, as in --base-url http://localhost:8000/v1")
    if provider == "scripted" and base_url:
        raise UsageError("--base-url has no meaning with scripted:…")
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
