"""What a person asks of `optimize export`, and the command line that asks it again."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.codec import Json

_NOT_WHAT = ("output", "processes", "overwrite")  # how it is made, not what


@dataclass(frozen=True)
class Request:
    """The flags of `optimize export`. `formats`, `rewards` and `where` are specs; `leak_check`: a folder of benchmark
    problems; `leaked`: what becomes of tasks that are one of them."""

    formats: Sequence[str]
    output: Path
    form: Literal["parquet", "jsonl"] = "parquet"
    tasks: Sequence[str] = ()
    authors: Sequence[str] = ()
    where: Sequence[str] = ()
    only_providers: str | None = None
    rewards: Sequence[str] = ()
    rejection_sampling: str | None = None
    test: float = 0.1
    validation: float = 0.0
    seed: int = 0
    leak_check: Path | None = None
    leaked: Literal["keep", "test", "exclude"] = "test"
    duplicates: bool = True
    processes: int = 2
    block: int = 20_000
    overwrite: bool = False

    def facts(self) -> dict[str, Json]:
        """What was asked for, as the manifest tells it."""
        return {name: _plain(value) for name, value in vars(self).items() if name not in _NOT_WHAT}

    def command(self) -> str:
        """The command line that makes the same rows of the same record; of paths, the last part."""
        return shlex.join(["optimize", "export", *self._flags(), "-o", self.output.name])

    def _flags(self) -> Iterator[str]:
        several = {"format": self.formats, "task": self.tasks, "author": self.authors}
        several |= {"where": self.where, "reward": self.rewards}
        for name, values in several.items():
            for value in values:
                yield from (f"--{name}", value)
        single: dict[str, str | None] = {
            "only-providers": self.only_providers,
            "rejection-sampling": self.rejection_sampling,
        }
        single |= {
            "leak-check": None if self.leak_check is None else self.leak_check.name,
            "as": self.form,
            "leaked": self.leaked,
        }
        single |= {"test": f"{self.test:g}", "validation": f"{self.validation:g}", "seed": str(self.seed)}
        for name, given in single.items():
            if given is not None:
                yield from (f"--{name}", given)
        if not self.duplicates:
            yield "--no-duplicates"
        yield from ("--block", str(self.block))


def _plain(value: object) -> Json:
    if isinstance(value, Path):
        return value.name
    return list(value) if isinstance(value, tuple | list) else value
