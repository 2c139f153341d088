import pytest

from kerneltune.agent.export.provenance import PROVIDERS, provider_of, terms_of


@pytest.mark.parametrize(
    ("author", "provider"),
    [
        ("anthropic:claude-x", "anthropic"),
        ("anthropic", "anthropic"),
        ("openai:gpt-x", "openai"),
        ("offline", "offline"),
        ("chat:qwen3-coder", "chat"),
        ("chat:qwen/qwen3", "chat"),
        ("chat:openai/gpt-5-mini", "openai"),
        ("chat:", "chat"),
        ("chat:anthropic/claude-x", "anthropic"),
        ("chat:openai/gpt-oss-120b", "chat"),
        ("chat:gpt2", "chat"),
        ("scripted:claude-story.jsonl", "scripted"),
        ("Anthropic:claude", "anthropic"),
        ("somebody", "other"),
        ("", "other"),
        (":", "other"),
    ],
)
def test_the_provider_is_whose_terms_hold(author: str, provider: str) -> None:
    assert provider_of(author) == provider
    assert provider in PROVIDERS


def test_every_provider_has_terms_of_its_own_and_an_unknown_one_says_so() -> None:
    tags = [terms_of(provider).tag for provider in PROVIDERS]
    assert len(set(tags)) == len(PROVIDERS)
    assert terms_of("nobody").tag == terms_of("other").tag == "unknown"


def test_notices_tell_to_check_and_name_what_restricts() -> None:
    for provider, name in (("anthropic", "Anthropic"), ("openai", "OpenAI")):
        notice = terms_of(provider).notice
        assert name in notice
        assert "compet" in notice
        assert "Check the terms" in notice
    assert "own licence" in terms_of("chat").notice
    assert "not recorded" in terms_of("scripted").notice
    assert "Apache-2.0" in terms_of("offline").notice
    assert "BSD-3-Clause" in terms_of("offline").notice
    assert all(len(terms_of(p).notice) < 400 for p in PROVIDERS)
