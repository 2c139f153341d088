"""What the live screen costs, and how soon its first frame is there.

python -m benchmarks.screen_cost                  1,000 attempts, four updates a second, on a pseudo-terminal
python -m benchmarks.screen_cost --first-frame    from the start of the command to the first frame, ten times
"""

import argparse
import contextlib
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

from rich.console import Console

from agent.record.events import Event, Judged, Progress, Proposed, RunStarted, Said, Updated
from agent.view.live import LiveView
from agent.view.state import ViewState, fold
from tools.verdict import Comparison, KernelReport, Status, Timing, Verdict

SIZES = ((80, 24), (120, 40), (200, 60))
UPDATES_PER_S = 4
FIRST_FRAME = b"starting"
ROOT = Path(__file__).parents[1]
SOURCE = "import torch\nimport triton\n\n\n@triton.jit\ndef kernel(x, n: tl.constexpr):\n" + "    y = tl.load(x)\n" * 40


def attempt(number: int) -> Iterator[Event]:
    """One finished attempt."""
    name, us = f"r/{number}", 100.0 + 1000.0 / number
    against = tuple(Comparison(b, 150.0, 150 / us, 149 / us, 151 / us) for b in ("eager", "torch.compile"))
    parent = f"r/{number - 1}" if number > 1 else None
    yield Proposed("r", name, number, parent, f"# {number}\n{SOURCE}", f"a wider block, number {number}")
    yield Updated("r", name, None, None, (KernelReport("k", 40, 0, 8, 0, 99, 8, 3, 0.5, "c"),), (), 1, 0.1, 0.3)
    verdict = Verdict(Status.CORRECT, "right", (), Timing(us, us - 1, us + 1, 9, 99), against, 1.0, 0.8)
    yield Judged("r", name, verdict, 1.0, best=True, rank_key=(us,))


def many(n: int) -> ViewState:
    """A run with so many attempts."""
    limits = {"max_attempts": 2 * n, "max_time_s": 7200.0}
    started = RunStarted("r", "softmax", "", "", "model", "", "sm_90", "NVIDIA H200", {}, limits, 0, {})
    return reduce(fold, [started, *(e for i in range(1, n + 1) for e in attempt(i))], ViewState())


def feed(view: LiveView, first: int, seconds: float) -> None:
    """Four updates a second, as a lively run makes them: words, the GPU, and every second an attempt."""
    for i in range(int(seconds * UPDATES_PER_S)):
        view(Said("r", "assistant", f"word {i} ", final=False))
        if i % UPDATES_PER_S == 0:
            data = {"utilisation_percent": i % 100, "sm_clock_mhz": 1980, "power_w": 600.0 + i}
            view(Progress("r", "gpu", "H200", data=data))
            for event in attempt(first + i):
                view(event)
        time.sleep(1 / UPDATES_PER_S)


def cost(state: ViewState, width: int, height: int, seconds: float) -> float:
    """Seconds of processor time that the screen takes a second, fold and pseudo-terminal included."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    over = threading.Event()

    def drain() -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while not over.is_set():
                if select.select([main], [], [], 0.2)[0]:
                    os.read(main, 1 << 16)

    reader = threading.Thread(target=drain)
    reader.start()
    with open(side, "w", encoding="utf-8") as terminal:
        view = LiveView(Console(file=terminal, force_terminal=True, color_system="256"))
        view.state = state
        with view:
            time.sleep(1)
            began, cpu = time.monotonic(), time.process_time()
            feed(view, len(state.attempts) + 1, seconds)
            share = (time.process_time() - cpu) / (time.monotonic() - began)
    over.set()
    reader.join()
    os.close(main)
    return share


def first_frame() -> float:
    """Seconds from the start of `optimize` to its first frame on a pseudo-terminal."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    code = "from agent.cli import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", code, "--task", "softmax", "--model", "offline", "--max-attempts", "1"]
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "HOME": folder}
        began = time.monotonic()
        child = subprocess.Popen(command, cwd=folder, env=environment, stdin=side, stdout=side, stderr=side)
        seen = b""
        while FIRST_FRAME not in seen:
            seen += os.read(main, 1 << 16)
        took = time.monotonic() - began
        child.terminate()
        while child.poll() is None:
            if select.select([main], [], [], 0.1)[0]:
                os.read(main, 1 << 16)
    os.close(main)
    os.close(side)
    return took


def main() -> None:
    """Print one line a size, or the times to the first frame."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--first-frame", action="store_true")
    chosen = parser.parse_args()
    if chosen.first_frame:
        took = [first_frame() for _ in range(10)]
        print(f"first frame after {statistics.median(took):.2f} s (median of {len(took)}; worst {max(took):.2f} s)")
        return
    state = many(chosen.attempts)
    for width, height in SIZES:
        share = cost(state, width, height, chosen.seconds)
        print(f"{width}x{height}, {chosen.attempts} attempts, {UPDATES_PER_S} updates/s: {share:.2%} of one core")


if __name__ == "__main__":
    main()
