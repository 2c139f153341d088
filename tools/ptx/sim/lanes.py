"""Which threads are at work, and what they are called. Pure."""

from dataclasses import dataclass

from tools.ttir.ir import Array


@dataclass(frozen=True)
class Lanes:
    """Threads by number within the batch, the block of each within the batch, its warp within the block."""

    numbers: Array
    blocks: Array
    warps: Array

    def __len__(self) -> int:
        return len(self.numbers)

    def only(self, which: Array) -> "Lanes":
        """Some of them, by index or mask."""
        return Lanes(self.numbers[which], self.blocks[which], self.warps[which])


@dataclass(frozen=True)
class Words:
    """Says a thread: `block` is its shape, `padded` the lanes that a block takes, `ctas` the blocks of the batch."""

    block: tuple[int, int, int]
    padded: int
    ctas: list[tuple[int, int, int]]

    def __call__(self, lane: int) -> str:
        which, thread = divmod(lane, self.padded)
        x, y, _ = self.block
        return f"thread ({thread % x}, {thread // x % y}, {thread // (x * y)}) of CTA {self.ctas[which]}"
