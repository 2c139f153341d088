"""Answers that were worked out once and are asked for again, within a bound of memory."""

from collections import OrderedDict
from collections.abc import Callable

from tools.judge.compare import Expected
from tools.judge.layout import tree_bytes
from tools.judge.tree import Tree


class Answers:
    """The latest answers that fit into `most_bytes`; the one used longest ago goes first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._held_bytes = most_bytes, 0
        self._held: OrderedDict[str, tuple[Expected, int]] = OrderedDict()

    def of(self, name: str, make: Callable[[], Expected]) -> Expected:
        """The answer of that name, made if it is not held."""
        if name in self._held:
            self._held.move_to_end(name)
            return self._held[name][0]
        expected = make()
        size = bytes_of(expected)
        if size <= self._most_bytes:
            self._held[name] = (expected, size)
            self._held_bytes += size
            self._shrink()
        return expected

    def forget(self) -> None:
        """Drop all."""
        self._held.clear()
        self._held_bytes = 0

    def _shrink(self) -> None:
        while self._held_bytes > self._most_bytes:
            _, (_, size) = self._held.popitem(last=False)
            self._held_bytes -= size


def bytes_of(expected: Expected) -> int:
    """Memory that an answer holds. What an index was chosen from is the most of it: 2 GB for an argmax over words."""
    trees: list[Tree] = [expected.values, expected.native]
    trees += [t for t in (expected.noise, expected.operand_noise, expected.slack) if t is not None]
    trees += [tensor for made in expected.selections.values() for tensor in (made.values, made.index)]
    return sum(map(tree_bytes, trees))
