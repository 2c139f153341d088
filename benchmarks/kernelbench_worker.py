"""A worker of KernelBench's share: one GPU, or none, and one problem after the other.

    python -m benchmarks.kernelbench_worker     reads requests and answers them, as `benchmarks.worker_steps` says

{"do": "start", "limits": {…}, "width", "needs_gpu"} first; {"do": "ready", "wanted": [paths]} begins to prepare these,
and tells the first "problem" that can be judged; {"do": "judge", "problem": path} judges it and tells its "line".
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.kernelbench_ahead import Ahead
from benchmarks.kernelbench_judge import Judging
from benchmarks.kernelbench_problem import Limits, Place
from benchmarks.worker_steps import More, Request, Step, served
from tools import machine as machines
from tools.codec import decode
from tools.device import GpuInfo, gpu_info
from tools.errors import Unfit
from tools.versions import versions


class ShareWorker:
    """What has been started, and the steps."""

    def __init__(self, held: contextlib.ExitStack) -> None:
        self._held = held
        self._gpu: GpuInfo | None = None
        self._ahead: Ahead | None = None
        self._judging: Judging | None = None
        self.steps: Mapping[str, Step] = {"start": self._start, "ready": self._ready, "judge": self._judge}

    def _start(self, asked: Request, _more: More) -> int:
        self._gpu = gpu_info()
        if asked["needs_gpu"] and self._gpu is None:
            raise Unfit(f"there is no GPU {os.environ.get('CUDA_VISIBLE_DEVICES')} to be seen here")
        machine = self._held.enter_context(machines.started())
        place = Place(machine, decode(Limits, asked["limits"]), self._gpu)
        self._ahead = self._held.enter_context(contextlib.closing(Ahead(place, asked["width"])))
        self._judging = Judging(place)
        machine.enforced()  # waits until all fork servers are warm
        return 0

    def _ready(self, asked: Request, more: More) -> int:
        assert self._ahead is not None
        self._ahead.want([Path(path) for path in asked["wanted"]])
        more["problem"] = str(self._ahead.first_ready())
        return 0

    def _judge(self, asked: Request, more: More) -> int:
        assert self._ahead is not None
        assert self._judging is not None
        line = self._judging.line(self._ahead.take(Path(asked["problem"])))
        more["line"] = line | {"gpu": self._gpu.name if self._gpu else None, "versions": versions()}
        return 0


def main() -> int:
    """Answer until there are no more requests."""
    return served(lambda held: ShareWorker(held).steps)


if __name__ == "__main__":
    sys.exit(main())
