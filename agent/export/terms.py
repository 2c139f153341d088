"""Whose words a row holds, and what those who train on them should read first. Notices, not legal advice.

Knows providers by the name that runs record as their author: "offline", or "<provider>:<model>".
"""

from dataclasses import dataclass

PROVIDERS = ("anthropic", "openai", "chat", "scripted", "offline", "other")


@dataclass(frozen=True)
class Terms:
    """`tag`: what the column `source_terms` says. `notice`: for the card and the screen. `url`: where to read on."""

    tag: str
    notice: str
    url: str = ""


_TERMS = {
    "anthropic": Terms(
        "anthropic-commercial",
        "Outputs of Anthropic's models. Anthropic's commercial terms restrict the use of its services to build"
        " competing products or to train competing AI models. Check the terms that applied to your account before you"
        " train on these rows or pass them on.",
        "https://www.anthropic.com/legal/commercial-terms",
    ),
    "openai": Terms(
        "openai-services-agreement",
        "Outputs of OpenAI's models. OpenAI's terms restrict the use of output to develop models that compete with"
        " OpenAI's. Check the terms that applied to your account before you train on these rows or pass them on.",
        "https://openai.com/policies/services-agreement/",
    ),
    "chat": Terms(
        "model-licence",
        "Outputs of a model behind an OpenAI-compatible server. What may be done with them is for that model's own"
        " licence to say, and for the terms of whoever ran the server. Check both; some licences ask for attribution or"
        " limit training of other models.",
    ),
    "scripted": Terms(
        "unknown-scripted",
        "Replayed from a file. Who wrote the words first (a model, a person) is not recorded; the terms of the first"
        " source hold on. Leave these rows out if you do not know where the file came from.",
    ),
    "offline": Terms(
        "apache-2.0",
        "Written by kerneltune's own search, without a language model: Apache-2.0. Kernels that start from"
        " TorchInductor's output derive from PyTorch, which is under a BSD-3-Clause licence: keep its notice.",
        "https://www.apache.org/licenses/LICENSE-2.0",
    ),
    "other": Terms(
        "unknown",
        "The author is not one that kerneltune knows. Find out who wrote these rows, and under which terms, before you"
        " use them.",
    ),
}
_FAMILIES = {  # by what names of models begin with, where they are served by someone else
    "claude": "anthropic",
    "gpt-": "openai",
    "chatgpt": "openai",
    "o1": "openai",
    "o3": "openai",
    "o4": "openai",
}
_OPEN_WEIGHTS = ("gpt-oss", "gpt-neo", "gpt-j", "gpt2")  # names that begin alike, licences of their own


def provider_of(author: str, model: str = "") -> str:
    """One of PROVIDERS. model: what the reply itself says that answered, where that is recorded.

    A server's model is "chat" unless its name is one of a provider's closed models ("anthropic/claude-…"), whose terms
    go with the words whoever passed them on. A script's model is unknown unless `model` names it.
    """
    provider, _, name = author.strip().partition(":")
    provider = provider.lower()
    if provider in ("anthropic", "openai", "offline"):
        return provider
    if provider == "chat":
        return _family(model) or _family(name) or "chat"
    if provider == "scripted":
        return _family(model) or "scripted"
    return "other"


def _family(model: str) -> str:
    name = model.strip().lower().removeprefix("models/").rpartition("/")[2]
    if name.startswith(_OPEN_WEIGHTS) or name.endswith((".jsonl", ".json")):
        return ""
    return next((family for start, family in _FAMILIES.items() if name.startswith(start)), "")


def source_terms(provider: str) -> Terms:
    """What goes with the words of a provider; for one that is not known, that it is not."""
    return _TERMS.get(provider, _TERMS["other"])
