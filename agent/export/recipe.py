"""What is asked of an export: everything that a process needs to make its part. Small, and made to be pickled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.export.base import Format
from agent.export.duplicates import Duplicates
from agent.export.names import Names
from agent.export.provenance import Place
from agent.export.sampling import RejectionSampling
from agent.export.sheets import Form
from agent.record.query import ChosenRun

NOBODY = Names()


@dataclass(frozen=True)
class Recipe:
    """`rewards` and `where` are specs as people write them. `places`: of each task that is exported, by the hash of its
    file. `duplicates`: look for them. `secrets`: names of people and machines that no text may hold. `until`: the last
    event that is seen, so that all processes and passes see the same record."""

    runs_dir: Path
    formats: tuple[Format, ...]
    form: Form
    places: Mapping[str, Place]
    rewards: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    duplicates: bool = True
    sampling: RejectionSampling | None = None
    secrets: Names = NOBODY
    until: int | None = None

    @property
    def filters_thinking(self) -> bool:
        """Whether conversations are needed for the filters alone."""
        return any("thinking" in spec for spec in self.where)

    @property
    def filters_duplicates(self) -> bool:
        """Whether it must be known what is a duplicate before anything can be compared."""
        return any(name in spec for spec in self.where for name in ("exact", "near"))


@dataclass(frozen=True)
class Block:
    """Runs that one process exports into files of their own. Its number orders the files."""

    number: int
    runs: tuple[ChosenRun, ...]

    @property
    def attempts(self) -> int:
        """Of all its runs."""
        return sum(run.attempts for run in self.runs)


@dataclass(frozen=True)
class Learned:
    """What the first pass found out: formats that have seen everything, and duplicates."""

    formats: tuple[Format, ...]
    duplicates: Duplicates | None


def blocks(runs: Iterable[ChosenRun], most_attempts: int) -> list[Block]:
    """Runs in their order, in parts of about so many attempts. The same runs make the same parts."""
    made: list[list[ChosenRun]] = [[]]
    held = 0
    for run in runs:
        if held >= most_attempts:
            made.append([])
            held = 0
        made[-1].append(run)
        held += run.attempts
    return [Block(number, tuple(part)) for number, part in enumerate(made) if part]
