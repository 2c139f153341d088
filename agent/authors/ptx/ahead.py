"""Rewritten files and their machine code, made side by side and before they are asked for.

What comes of a rewrite depends on nothing but the file and the rewrite. So it makes no difference to the search when,
or by which thread, it is made: only what is asked for is looked at, in the order in which it is asked for.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from agent.authors.ptx.base import Base, Choices
from tools.compiling import MachineCode
from tools.plan.schema import Kernel

Assemble = Callable[[Sequence[Kernel]], Sequence[MachineCode]]  # () where one does not assemble
Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Made:
    """A file rewritten, None where nothing changes; and the machine code of the kernels that are timed, () where they
    do not assemble."""

    base: Base | None = None
    code: Sequence[MachineCode] = ()


class Ahead:
    """Makes rewrites with `width` threads, the first of which is started by the first request."""

    def __init__(self, assemble: Assemble, width: int) -> None:
        self._assemble, self._width = assemble, width
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[Key, Future[Made]] = {}

    def begin(self, base: Base, wanted: Iterable[Choices]) -> None:
        """Have the first few of some rewrites made, those that were asked for before among them."""
        for choices, _ in zip(wanted, range(self._width), strict=False):
            self._future(base, choices)

    def made(self, base: Base, choices: Choices) -> Made:
        """What comes of a rewrite, which is then forgotten."""
        done = self._future(base, choices).result()
        del self._begun[_key(base, choices)]
        return done

    def close(self) -> None:
        """Begin nothing more, and do not wait for what is under way."""
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _future(self, base: Base, choices: Choices) -> Future[Made]:
        key = _key(base, choices)
        if key not in self._begun:
            self._pool = self._pool or ThreadPoolExecutor(self._width, thread_name_prefix="rewrite")
            self._begun[key] = self._pool.submit(self._make, base, dict(choices))
        return self._begun[key]

    def _make(self, base: Base, choices: Choices) -> Made:
        new = base.with_choices(choices)
        return Made(new, self._assemble(new.heard)) if new else Made()


def _key(base: Base, choices: Choices) -> Key:
    return base.name, frozenset(choices.items())
