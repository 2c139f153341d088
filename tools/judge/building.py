"""How baselines are built: within a time, with what was compiled kept, and with a warning where one is absurd."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_ABSURD_OF_LIGHT = 10.0
_ABSURD_OF_COMPILED = 5.0
_LAUNCH_BOUND = 2.0


class TookTooLong(BaseException):
    """A baseline was not built within its time. Not an Exception: the compiler swallows those of a config it tries."""


@contextlib.contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Raise TookTooLong in the block after so many seconds (in the main thread; elsewhere there is no limit)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def keep_compiled(folder: Path) -> str:
    """Let torch.compile keep what it compiled and tuned in that folder, so that the next session on the same GPU and
    versions starts fast. Returns "" or why that cannot be. For this process only, which no candidate's code enters."""
    try:
        for name in ("inductor", "triton"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "inductor" / f".{os.getpid()}").touch()
        (folder / "inductor" / f".{os.getpid()}").unlink()
    except OSError as error:
        return f"torch.compile's results are not kept: {error}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
    return ""


def doubts(times_us: dict[str, float], launched_us: float, light_us: float) -> list[str]:
    """What a reader should know before a speed-up over eager impresses him. Times per forward; `launched_us` is eager
    without a graph."""
    eager = times_us.get("eager")
    if eager is None:
        return []
    notes = []
    compiled = min((us for name, us in times_us.items() if name != "eager"), default=None)
    if compiled and eager > _ABSURD_OF_LIGHT * light_us and eager > _ABSURD_OF_COMPILED * compiled:
        notes.append(
            f"the eager reference is unreasonably slow ({eager:.1f} µs: {eager / compiled:.1f} times torch.compile, "
            f"{eager / light_us:.0f} times the speed of light); a speed-up over it says little"
        )
    if launched_us > _LAUNCH_BOUND * eager:
        notes.append(
            f"eager is launch-bound: {launched_us:.1f} µs from Python, {eager:.1f} µs of device time; speed-ups here "
            "are over device time"
        )
    return notes
