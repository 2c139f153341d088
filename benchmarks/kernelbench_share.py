"""For how many problems of KernelBench the offline author's first candidates are right, and faster than PyTorch.

    python -m benchmarks.kernelbench_share --kernelbench DIR --out share.jsonl --gpus 0,1 --deadline 570
    python -m benchmarks.kernelbench_share --kernelbench DIR --out share.jsonl --gpus 0,1 --again    # those not right
    python -m benchmarks.kernelbench_share --out share.jsonl --report                                # only print

DIR is a checkout of github.com/ScalingIntelligence/KernelBench; nothing of it is part of this repository. Each problem
is a line of JSON in the file, written when it ends, so that the same command goes on where it was, on another machine,
too; of two lines for one problem the later counts.

Each GPU has a worker, which judges one problem after the other against eager and torch.compile, all of them screened
and none more thoroughly; beside that it describes, lowers, traces and compiles the next ones. Without a GPU a smaller
case that the judge makes of a problem is replayed on the CPU and compared with float64: `checked`, and no time.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_fleet import ended_of_itself, gpus_of
from benchmarks.kernelbench_lines import RIGHT, name_of, problems, stored
from benchmarks.kernelbench_problem import Limits
from benchmarks.kernelbench_run import Plan, Share
from benchmarks.kernelbench_text import report

_MOST_WIDTH = 6


def main(argv: Sequence[str] | None = None) -> int:
    """Try what has not been tried, print the shares: 0; 130 after Ctrl-C."""
    parser = _parser()
    given = parser.parse_args(argv)
    if not given.report:
        if given.kernelbench is None or not (given.kernelbench / "KernelBench").is_dir():
            parser.error("--kernelbench DIR is needed, a checkout with the folder KernelBench in it")
        if not _run(given):
            return 130
    print(*report(stored(given.out)), sep="\n")
    return 0


def _run(given: argparse.Namespace) -> bool:
    """Whether it ended of itself."""
    started = time.monotonic()
    gpus = gpus_of(given.gpus)
    known = stored(given.out)
    done = {name for name, line in known.items() if line["stage"] in RIGHT or not given.again}
    wanted = [path for path in problems(given.kernelbench.resolve(), given.only) if name_of(path) not in done]
    plan = Plan(
        given.out.resolve(),
        Limits(given.prepare_seconds, given.seconds, given.attempts, max(given.most, given.attempts)),
        given.width or max(1, min(_MOST_WIDTH, (os.cpu_count() or 2) // len(gpus) - 2)),
        deadline=started + given.deadline if given.deadline else None,
    )
    print(f"{len(wanted)} problems to try, {len(done)} done; {plan.width} at a time prepared for each GPU", flush=True)
    share = Share(plan, wanted, gpus)
    if not ended_of_itself(share.run, share.stop):
        return False
    left = len(wanted) - sum(stored(given.out).get(name_of(p)) != known.get(name_of(p)) for p in wanted)
    print(f"{time.monotonic() - started:.0f} s; {left} problems are left\n", flush=True)
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelbench", type=Path, metavar="DIR", help="a checkout of KernelBench")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="lines of JSON, one a problem")
    parser.add_argument("--report", action="store_true", help="try nothing, print what is stored, in Markdown")
    parser.add_argument("--only", metavar="GLOB", default="*", help="problems whose level/name it fits: 'level1/1_*'")
    parser.add_argument("--again", action="store_true", help="try those again that are not right")
    parser.add_argument("--gpus", default="", metavar="0,1", help="a worker each; else one, on whatever there is")
    parser.add_argument("--deadline", type=float, metavar="S", help="be done with everything after so many seconds")
    parser.add_argument("--seconds", type=float, default=Limits.judge_s, help="of the GPU, for one problem; 40")
    parser.add_argument("--prepare-seconds", type=float, default=Limits.prepare_s, help="beside it; 120")
    parser.add_argument("--attempts", type=int, default=Limits.attempts, help="candidates that are judged; 2")
    parser.add_argument("--most", type=int, default=Limits.most, help="when none of them is right, or none fast; 6")
    parser.add_argument("--width", type=int, metavar="N", help="problems prepared side by side; else by the cores")
    return parser


if __name__ == "__main__":
    sys.exit(main())
