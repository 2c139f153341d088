"""All built-in tasks in one table: eager, torch.compile, max-autotune, public kernels, ours, intervals, speed of light.

    python -m benchmarks.table --runs-dir DIR --gpus 0,1 --deadline 570 --public liger=LIGER
    python -m benchmarks.table --runs-dir DIR --render [--earlier DIR2] > table.md

Each GPU has a worker, a process that starts once and opens each task once: then it does what `optimize --task T --model
offline` does, and what `optimize bench` does with the kernel that was found and the public ones
(`benchmarks.public_kernels` says which), so that all of them are timed in one session. Both are recorded as by the
commands; but beside that TorchInductor is asked and public kernels are compiled (`benchmarks.table_ahead`), so that a
search has its time for itself. A worker takes the next task when it is done with one, and a new worker takes over when
one ends. What is recorded in DIR is all that the table is made from; DIR/table.jsonl keeps how each step ended and what
it took, DIR/logs what it printed.

The same command again goes on: a task whose run ended of itself is not run again, and neither is its session of public
kernels, unless there are more of them now (or --again asks for it; a search then begins with what was found before).
At --deadline whatever runs is ended as by Ctrl-C, and keeps its best.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_fleet import ended_of_itself, gpus_of, names_of
from benchmarks.public_kernels import SOURCES, PublicFolders
from benchmarks.table_rows import rows_of, rows_of_all
from benchmarks.table_run import Plan, Table
from benchmarks.table_text import table_text
from tools.task import builtin_names


def main(argv: Sequence[str] | None = None) -> int:
    """Run or render: 0; 1 when some task has no row with a result; 2 for a mistake; 130 after Ctrl-C."""
    parser = _parser()
    given = parser.parse_args(argv)
    tasks = names_of(given.tasks) or builtin_names()
    if unknown := sorted(set(tasks) - set(builtin_names())):
        parser.error(f"no built-in task {unknown[0]!r}; known: {', '.join(builtin_names())}")
    if given.earlier and not given.render:
        parser.error("--earlier is for --render: what was measured earlier is shown, not run")
    if given.render:
        folders = [given.runs_dir, *given.earlier]
        for folder in folders:
            if not (folder / "runs.db").is_file():
                parser.error(f"{folder}: there is no runs.db in it")
        print(table_text(rows_of_all(folders, tasks)))
        return 0
    return _run(given, tasks, _folders(parser, given.public))


def _run(given: argparse.Namespace, tasks: Sequence[str], public: PublicFolders) -> int:
    started = time.monotonic()
    gpus = gpus_of(given.gpus)
    plan = Plan(
        given.runs_dir.resolve(),
        given.time,
        deadline=started + given.deadline if given.deadline else None,
        warm_up_s=given.warm_up,
        width=given.width or max(2, min(12, (os.cpu_count() or 2) // len(gpus) - 2)),
        max_attempts=given.max_attempts,
        seed=given.seed,
        again=given.again,
        public=public,
    )
    table = Table(plan, tasks, gpus)
    if not ended_of_itself(table.run, table.stop):
        return 130
    rows = rows_of(plan.runs_dir, tasks)
    good = sum(row.accepted > 0 for row in rows)
    print(f"{good} of {len(rows)} tasks have a kernel after {time.monotonic() - started:.0f} s", flush=True)
    return int(good < len(rows))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs-dir", type=Path, required=True, metavar="DIR", help="where the runs are kept")
    parser.add_argument("--render", action="store_true", help="print the table of DIR in Markdown, run nothing")
    parser.add_argument(
        "--earlier", action="append", default=[], type=Path, metavar="DIR",
        help="with --render: where tasks are looked up that --runs-dir has no time of; may be repeated",
    )  # fmt: skip
    parser.add_argument("--tasks", default="", metavar="A,B", help="these tasks; else all that are built in")
    parser.add_argument("--again", action="store_true", help="also tasks that are done; the latest run of each counts")
    parser.add_argument("--gpus", default="", metavar="0,1", help="a worker each; else one, on whatever there is")
    parser.add_argument("--time", type=_seconds, default=25.0, metavar="S", help="search time of a task; 25")
    parser.add_argument("--deadline", type=_seconds, metavar="S", help="be done with everything after so many seconds")
    parser.add_argument(
        "--warm-up", type=_seconds, default=300.0, metavar="S", help="what a step may take beside a search"
    )
    parser.add_argument("--max-attempts", type=int, default=1000, metavar="N", help="of a task")
    parser.add_argument("--width", type=int, metavar="N", help="candidates compiled side by side; else by the cores")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--public", action="append", default=[], metavar="SOURCE=DIR",
        help=f"where a public source lies; may be repeated. Sources: {', '.join(SOURCES)}",
    )  # fmt: skip
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0")
    return value


def _folders(parser: argparse.ArgumentParser, given: Sequence[str]) -> PublicFolders:
    found: dict[str, Path] = {}
    for text in given:
        name, _, folder = text.partition("=")
        if name not in SOURCES or not Path(folder).is_dir() or not folder:
            parser.error(f"--public {text}: give SOURCE=DIR, a folder that is there; sources: {', '.join(SOURCES)}")
        found[name] = Path(folder).resolve()
    return found


if __name__ == "__main__":
    sys.exit(main())
