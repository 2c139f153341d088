"""A set of whole numbers: a beginning, an end and a step between. Pure.

A span says what a register is modulo 2^bits; arithmetic needs no care for overflow until something compares.
"""

from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True)
class Span:
    """lo, lo + step, … hi; step 0 is one number. `base`: a parameter or variable whose address is added."""

    lo: int
    hi: int
    step: int = 1
    base: str = ""

    def __post_init__(self) -> None:
        if self.step:
            object.__setattr__(self, "hi", self.lo + (self.hi - self.lo) // self.step * self.step)
        if self.lo == self.hi:
            object.__setattr__(self, "step", 0)

    @property
    def zeros(self) -> int:
        """The largest power of two that divides all its numbers."""
        every = gcd(self.lo, self.step)
        return every & -every if every else 1 << 62

    def plus(self, other: "Span") -> "Span":
        """Sums."""
        if self.base and other.base:
            return UNKNOWN
        return Span(self.lo + other.lo, self.hi + other.hi, gcd(self.step, other.step), self.base or other.base)

    def times(self, other: "Span") -> "Span":
        """Products."""
        if self.base or other.base:
            return UNKNOWN
        corners = [a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi)]
        step = gcd(self.step * other.lo, other.step * self.lo, self.step * other.step)
        return Span(min(corners), max(corners), step)

    def within(self, bits: int, *, signed: bool) -> "Span":
        """The same registers read as numbers of so many bits."""
        least = -(1 << bits - 1) if signed else 0
        most = least + (1 << bits) - 1
        if self.base:
            return Span(least, most)
        turns = (self.lo - least) >> bits << bits
        if self.hi - turns <= most:
            return Span(self.lo - turns, self.hi - turns, self.step)
        kept = min(self.step & -self.step, 1 << bits)
        return Span(least + (self.lo - least) % kept, most, kept)


UNKNOWN = Span(0, (1 << 64) - 1)
