"""`fim`: the body of a kernel between what stands before and after it in its file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from agent.export import instructions
from agent.export.base import Column, Format, Made
from agent.export.bodies import bodies
from agent.export.outcome import right
from agent.record.trajectory import Trajectory


@dataclass
class Fim(Format):
    """There is no `text` column: trainers would take it for the whole of a row."""

    name: ClassVar[str] = "fim"
    about: ClassVar[str] = "fill in the middle: the body of each kernel, from its signature and the rest of the file"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("prefix", "text", "the file up to the body: imports, other kernels, signature, docstring"),
        Column("middle", "text", "the body; prefix + middle + suffix is the file, to the byte"),
        Column("suffix", "text", "the rest of the file"),
        Column("kernel", "text", "the kernel's name"),
        Column(
            "prompt", "structs", "the same as a question: prefix and suffix in blocks of code", instructions.MESSAGE
        ),
        Column("completion", "structs", "one assistant message: the body", instructions.MESSAGE),
    )

    def rows(self, trajectory: Trajectory) -> Iterator[Made]:
        """A row for each kernel of each right attempt."""
        for attempt in trajectory.attempts:
            if right(attempt):
                for body in bodies(attempt.source):
                    source = attempt.source
                    prefix, middle, suffix = source[: body.start], source[body.start : body.end], source[body.end :]
                    values = {
                        "prefix": prefix,
                        "middle": middle,
                        "suffix": suffix,
                        "kernel": body.kernel,
                        "prompt": instructions.fim(body.kernel, prefix, suffix),
                        "completion": instructions.plain(middle),
                    }
                    yield Made(values, attempt)
