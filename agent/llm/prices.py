"""What a request costs, by the price list of genai-prices as it was installed: nothing is fetched."""

from dataclasses import dataclass

from agent.llm.dialogue import Usage


@dataclass(frozen=True)
class Price:
    """Dollars of one request, and where the rates are from."""

    usd: float
    source: str  # "genai-prices 0.2.3 anthropic/claude-…"


def price_usd(provider_id: str, model: str, usage: Usage, flavour: str = "standard") -> Price | None:
    """The price of `usage`; None when the list does not know the model, or has no price for what was used.

    flavour: the tier that served the request: "standard", "batch", "flex", "priority", "fast".
    """
    import genai_prices  # 0.1 s, which the command line need not wait for

    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cached_tokens or None,
        cache_write_tokens=usage.cache_write_tokens or None,
        cache_write_1h_tokens=usage.cache_write_1h_tokens or None,
    )
    try:
        found = genai_prices.calc_price(counted, model, provider_id=provider_id, price_context=_context(flavour))
    except (LookupError, ValueError):  # an unknown model; counts that contradict each other
        return None
    if not found.total_price and (usage.input_tokens or usage.output_tokens):
        return None  # a list without a rate is no gift
    source = f"genai-prices {genai_prices.__version__} {found.provider.id}/{found.model.id}"
    return Price(float(found.total_price), source)


def _context(flavour: str) -> dict[str, str] | None:
    if flavour in ("", "standard", "default", "auto"):
        return None
    return {"batch": {"processing": "batch"}, "fast": {"speed": "fast"}}.get(flavour, {"service_tier": flavour})
