"""Programs that wait for each other: a grid barrier, a lock, a sum that the last program finishes.

Each is a thread of its own, of which one works at a time. One that comes round in a loop which asks memory whether to
go on lets the others work. A cooperative launch runs all of its programs side by side; in any other a program may wait
for those before it alone, as a GPU may have no room for those after it before it ends.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator

from kerneltune.tools.languages.triton.ttir.ir import Op, StepLimit, TtirModule, UnsupportedOp

MOST_TOGETHER = 400  # threads; a jail allows 512
_IDLE_ROUNDS = 50  # in which nobody changes memory or leaves its loop, while a counter in one of them may give up


def asks_memory(op: Op) -> bool:
    """Whether a loop may wait for what another program does: it has atomics or volatile loads, or its condition is
    loaded."""
    if op.name != "scf.while":
        return False
    condition = [inner.name for inner in _inside(op.regions[0].blocks[0].ops)]
    return "tt.load" in condition or any(
        inner.name.startswith("tt.atomic") or inner.attrs.get("isVolatile") is True
        for region in op.regions
        for block in region.blocks
        for inner in _inside(block.ops)
    )


def may_wait(module: TtirModule) -> bool:
    """Whether the module has such a loop."""
    blocks = (block for func in module.funcs.values() for block in func.body.blocks)
    return any(asks_memory(op) for block in blocks for op in _inside(block.ops))


def _inside(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        for region in op.regions:
            for block in region.blocks:
                yield from _inside(block.ops)


class _Ended(BaseException):
    """Unwinds a program that nobody will let go on."""


class _InterpretedProgram(threading.Thread):
    def __init__(self, work: Callable[[], None], owner: SideBySide) -> None:
        super().__init__(daemon=True)
        self._work, self._owner = work, owner
        self.go, self.finished = threading.Semaphore(0), False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Work when it is let, and say so at the end."""
        self.go.acquire()
        try:
            if not self._owner.ended:
                self._work()
        except _Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - whoever started the launch gets it
            self.error = error
        self.finished = True
        self._owner.turn_over.release()


class SideBySide:
    """Lets programs of one launch work in turns. `changes`: how often memory was changed so far."""

    def __init__(self, changes: Callable[[], int], *, cooperative: bool) -> None:
        self._changes, self._cooperative = changes, cooperative
        self.turn_over = threading.Semaphore(0)
        self.ended = False
        self._current: _InterpretedProgram | None = None

    def run(self, programs: list[Callable[[], None]]) -> None:
        """Run all to their ends. Raises what one of them raises; StepLimit when none goes on; UnsupportedOp when one
        goes on for what a later one did, which only a cooperative launch may count on."""
        if self._cooperative and len(programs) > MOST_TOGETHER:
            raise UnsupportedOp("a cooperative launch", f"{len(programs)} programs; {MOST_TOGETHER} run at once here")
        waiting: list[_InterpretedProgram] = []
        todo = iter(programs)
        left, idle, more, together = len(programs), 0, 1, self._cooperative
        try:
            while left or waiting:
                before, active = self._changes(), len(waiting)
                waiting = [program for program in waiting if not self._turn(program)]
                if self._changes() != before or len(waiting) != active:
                    idle, more = 0, 1
                    continue
                if waiting and not (left and together and len(waiting) < MOST_TOGETHER):
                    idle += 1
                    if idle > _IDLE_ROUNDS:
                        if together or not left:
                            raise StepLimit(f"deadlock: {len(waiting)} programs wait for what none of them does")
                        idle, together = 0, True
                    continue
                for work in itertools.islice(todo, more):
                    left -= 1
                    program = _InterpretedProgram(work, self)
                    program.start()
                    waiting += [] if self._turn(program) else [program]
                more *= 2  # a barrier of many is reached in a few rounds
        finally:
            self.ended = True
            for program in waiting:
                program.go.release()
                program.join()
        if together and not self._cooperative:
            raise UnsupportedOp(
                "a program that waits",
                "for a later one, which only a cooperative launch runs beside it: launch_cooperative_grid=True",
            )

    def _turn(self, program: _InterpretedProgram) -> bool:
        """Let one work until it waits (False) or ends."""
        self._current = program
        program.go.release()
        self.turn_over.acquire()
        if program.error is not None:
            raise program.error
        return program.finished

    def wait(self) -> None:
        """Called by the program at work: let the others work first."""
        program = self._current
        assert program is not None
        self.turn_over.release()
        program.go.acquire()
        if self.ended:
            raise _Ended
