"""Count the modules that the supervisor enters for one model reply with two tool calls, and for one offline attempt.

    python -m benchmarks.walks [reply | attempt] [--calls]

Runs `optimize` in this process without a GPU under `sys.setprofile`, and counts between two lines of its `--json`
stream: from a reply with two calls (`bench` of one attempt, `update` of another) to the next reply; from one verdict
of the offline author to the next. A module is entered when a function of it is called; importing it does not count.
"""

import argparse
import io
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any

PRODUCT = ("agent", "tools", "prompts", "kerneltune")
KERNEL = """import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
"""


@dataclass
class Walk:
    """One walk: arguments of `optimize`, and the type of event whose `first` and next line open and close it."""

    arguments: list[str]
    event: str
    first: int
    seen: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    functions: set[tuple[str, str]] = field(default_factory=set)

    @property
    def open(self) -> bool:
        """Whether calls count now."""
        return self.seen == self.first

    def line(self, text: str) -> None:
        """A line of the JSON stream."""
        if text.startswith("{") and json.loads(text).get("type") == self.event:
            self.seen += 1

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """For `sys.setprofile`."""
        if not self.open or event != "call" or frame.f_code.co_name == "<module>":
            return
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in PRODUCT:
            self.calls[module] += 1
            self.functions.add((module, frame.f_code.co_qualname))


class _Lines(io.TextIOBase):
    """A standard output that gives each line to a walk."""

    def __init__(self, walk: Walk) -> None:
        self.walk, self.rest = walk, ""

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Keeps what is not yet a whole line."""
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self.walk.line(line)
        return len(text)


def reply_walk(folder: Path) -> Walk:
    """A scripted conversation whose second reply calls two tools."""

    def update(parent: int | None, source: str) -> dict[str, Any]:
        return {
            "name": "update",
            "arguments": {"parent": parent, "rationale": "a row a program", "source": source, "edits": None},
        }

    bench = {"name": "bench", "arguments": {"attempt": 1}}
    replies = [
        {"text": "One program a row.", "calls": [update(None, KERNEL)]},
        {"text": "More warps.", "calls": [bench, update(1, KERNEL.replace("num_warps=8", "num_warps=16"))]},
        {"text": "Done.", "calls": []},
    ]
    story = folder / "story.jsonl"
    story.write_text("".join(json.dumps(one) + "\n" for one in replies))
    return Walk(["--model", f"scripted:{story}"], "replied", 2)


def attempt_walk(_: Path) -> Walk:
    """The offline author's second attempt."""
    return Walk(["--model", "offline", "--max-attempts", "3", "--seed", "7"], "judged", 1)


def walked(walk: Walk, folder: Path) -> Walk:
    """The walk, gone: `optimize` has run in this process."""
    (optimize,) = entry_points(group="console_scripts", name="optimize")
    main = optimize.load()
    told, sys.stdout = sys.stdout, _Lines(walk)
    sys.argv = ["optimize", "--task", "softmax", "--width", "1", "--json", "--runs-dir", str(folder / "runs")]
    sys.argv += walk.arguments
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        sys.stdout = told
    return walk


WALKS = {"reply": reply_walk, "attempt": attempt_walk}


def main() -> int:
    """The command line: each walk in a process of its own."""
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("walk", nargs="?", choices=WALKS)
    told.add_argument("--calls", action="store_true", help="say how often each module was entered")
    asked = told.parse_args()
    if asked.walk is None:
        more = ["--calls"] if asked.calls else []
        return max(os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, name, *more]) for name in WALKS)
    with tempfile.TemporaryDirectory() as folder:
        walk = walked(WALKS[asked.walk](Path(folder)), Path(folder))
    print(f"{asked.walk}: {len(walk.calls)} modules, {len(walk.functions)} functions, {walk.calls.total()} calls")
    for module in sorted(walk.calls):
        print(f"  {module}" + (f" {walk.calls[module]}" if asked.calls else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
