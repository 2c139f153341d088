"""One plan to be checked: laid over pieces of the judge's memory, each in pages of its own, anew for every run.

Nothing of a run is left for the next: the judge fills every piece (it alone knows with what), variables of modules are
restored, and the constructor's work is done again.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from tools.plan.replay import Launcher, Replay, ReplayError
from tools.plan.schema import Storage
from tools.runner.memory import settle
from tools.runner.protocol import Load


class Room(Protocol):
    """Pages of the judge's, mapped here."""

    @property
    def tensor(self) -> torch.Tensor: ...

    def close(self) -> None: ...


class Kernels(Launcher, Protocol):
    """The plan's kernels, loaded."""

    def place(self, scratch: dict[tuple[int, str], torch.Tensor]) -> None: ...

    def restore(self) -> None: ...

    def unload(self) -> None: ...


class Check:
    """A plan and its pieces; `close` gives everything back."""

    def __init__(self, load: Load, rooms: Sequence[Room], kernels: Callable[[], Kernels], device: str = "cuda") -> None:
        self._load, self._rooms, self._device = load, rooms, device
        if any(not 0 <= piece.room < len(rooms) for piece in load.pieces):
            raise ReplayError("a piece lies in a room that there is not")
        self._kernels = kernels()

    def run_once(self, offsets: Sequence[int]) -> None:
        """Lay the plan out, prepare it, run it; returns when the device is idle. Raises what CUDA or the plan raise."""
        flats = {
            piece.name: self._rooms[piece.room].tensor[at : at + piece.nbytes]
            for piece, at in zip(self._load.pieces, offsets, strict=True)
        }
        self._kernels.place(_scratch(flats))
        self._kernels.restore()
        replay = self._replay(flats)
        replay.prepare()
        replay.run()
        settle()

    def _replay(self, flats: dict[str, torch.Tensor]) -> Replay:
        plan = self._load.plan
        held = {s.id: flats[f"storage:{s.id}"] for s in plan.storages if f"storage:{s.id}" in flats}
        given = {f"{s.origin}:{s.name}": held[s.id] for s in plan.storages if s.id in held and _is_given(s)}
        constants = {s.id: held[s.id] for s in plan.storages if s.id in held and s.data is not None}
        bound = {s.id: held[s.id] for s in plan.storages if s.id in held and not _is_given(s) and s.id not in constants}
        return Replay(plan, self._device, self._kernels, given, bound=bound, ready=constants)

    def close(self) -> None:
        """Unload the kernels and unmap the pieces."""
        settle()
        self._kernels.unload()
        for room in self._rooms:
            room.close()


def _is_given(storage: Storage) -> bool:
    return storage.origin in ("input", "state")


def _scratch(flats: dict[str, torch.Tensor]) -> dict[tuple[int, str], torch.Tensor]:
    """Pieces named "launcher:<kernel>:<which>"."""
    found = {}
    for name, flat in flats.items():
        kind, _, rest = name.partition(":")
        if kind == "launcher":
            number, _, which = rest.partition(":")
            found[int(number), which] = flat
    return found
