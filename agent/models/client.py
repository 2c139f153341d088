"""A client that calls the tools by itself, as a coding agent does, in the place of a model."""

import itertools
import queue
from collections.abc import Mapping

from kerneltune.agent.models.types import (
    Listen,
    ModelFacts,
    ModelRequest,
    NoLongerWanted,
    Reply,
    ToolCall,
    Usage,
    cleaned,
)
from kerneltune.tools.schema.codec import Json

_POLL_S = 0.2  # between two looks at whether the run is over


class ClientModel:
    """Its replies are the calls that a client makes, those that wait together as one. One conversation at a time
    may ask; any thread may call. What calls come to, the run's events say: the client keeps its own conversation, so
    what a request holds is not read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[ToolCall] = queue.SimpleQueue()
        self._numbers = itertools.count(1)

    def call(self, name: str, arguments: Mapping[str, Json]) -> str:
        """Have a tool called when it is the client's turn; returns the id that its result will carry."""
        call_id = f"call_{next(self._numbers)}"
        self._calls.put(ToolCall(call_id, name, dict(arguments)))
        return call_id

    def facts(self) -> ModelFacts:
        """Return nothing but its name."""
        return ModelFacts(self.name)

    def ask(self, request: ModelRequest, listen: Listen = lambda _: None) -> Reply:
        """Wait for the next calls. Raises NoLongerWanted when the run is over before there are any."""
        while not request.is_over() and request.left_s() > 0:
            try:
                calls = [self._calls.get(timeout=_POLL_S)]
            except queue.Empty:
                continue
            while not self._calls.empty():
                calls.append(self._calls.get())
            return cleaned(Reply("", "tools", tuple(calls), model=self.name.partition(":")[2]))
        raise NoLongerWanted("the run is over")

    def price_usd(self, usage: Usage) -> None:
        """Return None: whoever runs the client pays, and nobody here knows what."""

    def close(self) -> None:
        """There is nothing to let go of."""
