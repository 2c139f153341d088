"""One launch of PTX as data, and where launches can go. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class PtxLaunch:
    """One launch. `grid` counts blocks, `block` threads, `cluster` blocks of a cluster; `signature` has the values'
    types as plans name them; `shared_bytes` is dynamic shared memory."""

    text: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: tuple[Any, ...]
    signature: tuple[str, ...]
    shared_bytes: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    pdl: bool = False


class Backend(Protocol):
    """The receiver of launches, which chooses among configs."""

    def launch(self, launch: PtxLaunch) -> None:
        """Do it, or write it down."""

    def choose(
        self,
        key: str,
        values: Sequence[Any],
        configs: Sequence[Mapping[str, Any]],
        run: Callable[[Mapping[str, Any]], None],
    ) -> int:
        """Which config a launch of `values` shall use; `run` launches with one of them."""
