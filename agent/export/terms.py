"""Whose words a row holds, and what those who train on them should read first. Notices, not legal advice.

Knows providers by the name that runs record as their author: "offline", or "<provider>:<model>".
"""

from agent.llm.providers import OFFLINE, SourceTerms
from agent.llm.providers import PROVIDERS as MODEL_PROVIDERS

_TERMS = {name: provider.terms for name, provider in MODEL_PROVIDERS.items()} | {
    OFFLINE: SourceTerms(
        "apache-2.0",
        "Written by kerneltune's own search, without a language model: Apache-2.0. Kernels that start from"
        " TorchInductor's output derive from PyTorch, which is under a BSD-3-Clause licence: keep its notice.",
        "https://www.apache.org/licenses/LICENSE-2.0",
    ),
    "other": SourceTerms(
        "unknown",
        "The author is not one that kerneltune knows. Find out who wrote these rows, and under which terms, before you"
        " use them.",
    ),
}
PROVIDERS = tuple(_TERMS)
_OPEN_WEIGHTS = ("gpt-oss", "gpt-neo", "gpt-j", "gpt2")  # names that begin alike, licences of their own


def provider_of(author: str, model: str = "") -> str:
    """Return one of PROVIDERS. model: what the reply itself says that answered, where that is recorded.

    A server's model is "chat" unless its name is one of a provider's closed models ("anthropic/claude-…"), whose terms
    go with the words whoever passed them on. A script's model is unknown unless `model` names it.
    """
    provider, _, name = author.strip().partition(":")
    provider = provider.lower()
    if provider == "chat":
        return _family(model) or _family(name) or provider
    if provider == "scripted":
        return _family(model) or provider
    return provider if provider in _TERMS else "other"


def _family(model: str) -> str:
    name = model.strip().lower().removeprefix("models/").rpartition("/")[2]
    if name.startswith(_OPEN_WEIGHTS) or name.endswith((".jsonl", ".json")):
        return ""
    return next((family for family, p in MODEL_PROVIDERS.items() if p.models and name.startswith(p.models)), "")


def source_terms(provider: str) -> SourceTerms:
    """Return what goes with the words of a provider; for one that is not known, that it is not."""
    return _TERMS.get(provider, _TERMS["other"])
