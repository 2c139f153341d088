"""What the models of a run were asked, what they said in short, and what that cost."""

from dataclasses import dataclass

from agent.record.events import Replied
from agent.view import text as words


@dataclass(frozen=True)
class Spending:
    """What the models of a run were asked and what that cost. `unpriced`: replies whose cost is unknown."""

    replies: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0

    def and_(self, reply: Replied) -> "Spending":
        """With one more reply."""
        usage = {k: v for k, v in (reply.usage or {}).items() if isinstance(v, int)}
        return Spending(
            self.replies + 1,
            self.input_tokens + usage.get("input_tokens", 0),
            self.cached_tokens + usage.get("cached_tokens", 0),
            self.output_tokens + usage.get("output_tokens", 0),
            self.cost_usd + (reply.cost_usd or 0.0),
            self.unpriced + (reply.cost_usd is None),
        )

    @property
    def usd(self) -> float | None:
        """The cost; None when no price is known."""
        return None if self.unpriced == self.replies else self.cost_usd


def reply_words(event: Replied) -> str:
    """A reply in short: what was said, else thought, and what was called."""
    calls = [str(c.get("name")) for c in event.calls if isinstance(c, dict)] if isinstance(event.calls, list) else []
    told = event.text.strip() or event.thinking.strip()
    stopped = "" if event.stop in ("end", "tools") else f"[{event.stop}{': ' + event.detail if event.detail else ''}]"
    return " ".join(filter(None, [told, f"-> {', '.join(calls)}" if calls else "", stopped])) or "[nothing]"


def spending_words(spent: Spending) -> str:
    """Tokens and dollars; an unknown price is not 0."""
    share = spent.cached_tokens / spent.input_tokens if spent.input_tokens else 0.0
    cached = f" ({share:.0%} cached)" if share else ""
    price = "price unknown" if spent.usd is None else words.dollars(spent.usd)
    more = f" and {spent.unpriced} of unknown price" if spent.usd is not None and spent.unpriced else ""
    counted = spent.input_tokens or spent.output_tokens
    told = f"{words.tokens(spent.input_tokens)} tokens in{cached}, {words.tokens(spent.output_tokens)} out"
    tokens = told if counted else "tokens not counted"
    return f"{tokens}, {price}{more}"
