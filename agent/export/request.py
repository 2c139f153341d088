"""What a person asks of an export, checked: every mistake is found before anything is read at length."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent.export.sheets import Form

Leaked = Literal["keep", "test", "drop"]


@dataclass(frozen=True)
class Request:
    """The flags of `optimize export`. `formats`, `rewards` and `where` are specs; `leak_check`: a folder of benchmark
    problems; `leaked`: what happens to tasks that are one of them."""

    formats: Sequence[str]
    output: Path
    form: Form = "parquet"
    tasks: Sequence[str] = ()
    authors: Sequence[str] = ()
    where: Sequence[str] = ()
    rewards: Sequence[str] = ()
    test_fraction: float = 0.1
    validation_fraction: float = 0.0
    seed: int = 0
    leak_check: Path | None = None
    leaked: Leaked = "test"
    duplicates: bool = True
    processes: int = 2
    overwrite: bool = False

    def facts(self) -> Mapping[str, object]:
        """What was asked for, as the manifest tells it."""
        return {
            "formats": list(self.formats),
            "tasks": list(self.tasks),
            "authors": list(self.authors),
            "where": list(self.where),
            "rewards": list(self.rewards),
            "test_fraction": self.test_fraction,
            "validation_fraction": self.validation_fraction,
            "seed": self.seed,
            "leak_check": None if self.leak_check is None else self.leak_check.name,
            "leaked": self.leaked,
        }
