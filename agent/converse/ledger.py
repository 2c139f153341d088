"""What the replies of a run have cost so far, and what the next one is likely to cost."""

import threading
from collections import deque

from agent.llm.types import Reply

_RECENT = 4
_GROWTH = 1.5  # prompts grow from reply to reply


class Ledger:
    """Any number of conversations write into one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self.replies = 0
        self.cost_usd = 0.0
        self.unpriced = 0

    def add(self, reply: Reply) -> None:
        """Count a reply."""
        self.note(reply.cost_usd)

    def note(self, cost_usd: float | None) -> None:
        """Count a reply of that cost; None when it is unknown."""
        with self._lock:
            self.replies += 1
            self.unpriced += cost_usd is None
            self.cost_usd += cost_usd or 0.0
            self._recent.append(cost_usd or 0.0)

    @property
    def next_usd(self) -> float:
        """Half as much again as the dearest of the last few replies: what should be left when another is asked for."""
        with self._lock:
            return _GROWTH * max(self._recent, default=0.0)
