"""Prices from the list that is installed. Rates: claude-opus-5-5 4/20, read 0.2, write 5, for an hour 8 $/M tokens."""

import pytest

from kerneltune.agent.models.http_api import list_price_usd
from kerneltune.agent.models.types import Usage

MILLION = 1_000_000


def usd(provider: str, model: str, usage: Usage) -> float:
    price = list_price_usd(provider, model, usage)
    assert price is not None
    return price


def test_input_and_output_are_paid_at_their_rates() -> None:
    assert usd("anthropic", "claude-opus-5-5", Usage(MILLION, 0)) == pytest.approx(4.0)
    assert usd("anthropic", "claude-opus-5-5", Usage(0, MILLION)) == pytest.approx(20.0)
    assert usd("openai", "gpt-6.1-sol", Usage(100_000, 1000)) == pytest.approx(0.2 + 0.01)


def test_cached_reads_and_writes_are_part_of_the_input_and_paid_at_theirs() -> None:
    usage = Usage(10_000, 100, cached_tokens=4000, cache_write_tokens=3000, cache_write_1h_tokens=2000)
    paid = 3000 * 4 + 4000 * 0.2 + 1000 * 5 + 2000 * 8 + 100 * 20
    assert usd("anthropic", "claude-opus-5-5", usage) == pytest.approx(paid / MILLION)


def test_a_dated_id_has_the_price_of_its_model() -> None:
    usage = Usage(1000, 10)
    assert usd("anthropic", "claude-opus-5-5-20260901", usage) == usd("anthropic", "claude-opus-5-5", usage)


def test_long_prompts_cost_more_where_the_list_says_so() -> None:
    short, long = (usd("openai", "gpt-5.5", Usage(n, 0)) / n for n in (100_000, 300_000))
    assert long > 1.5 * short


def test_an_unknown_price_is_none_and_not_nothing() -> None:
    assert list_price_usd("openai", "gpt-of-my-own", Usage(1000, 10)) is None
    assert list_price_usd("nobody", "gpt-6.1-sol", Usage(1000, 10)) is None
    assert list_price_usd("anthropic", "claude-opus-5-5", Usage(10, 0, cached_tokens=4000)) is None
    assert list_price_usd("anthropic", "claude-opus-5-5", Usage(-1, 10)) is None
