"""What it takes to trace and to compile one candidate in whatever language, workers warm, for its cases or one.

python -m benchmarks.update_speed FILE --task softmax [--case main] [--repeats 20] [--json]
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kerneltune.tools.judge.correctness.problem import describe
from kerneltune.tools.sandbox import workers
from kerneltune.tools.schema.gpus import DEFAULT_ARCH
from kerneltune.tools.schema.verdict import versions
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import Update, UpdateLimits, Updater


def measured(file: Path, task: str, case: str, repeats: int) -> list[Update]:
    """One update after another; its text moves down each time, so that it is compiled anew.

    Raises TaskError, AssertionError where one fails.
    """
    found: list[Update] = []
    spec = describe(find_task(task))
    spec = replace(spec, cases=tuple(each for each in spec.cases if case in ("", each.name)))
    with workers.started() as machine:
        updater = Updater(spec, DEFAULT_ARCH, machine.tracer, machine.compiler, UpdateLimits(max_variants=1))
        for number in range(repeats + 1):
            done = updater.update("\n" * number + file.read_text())
            assert done.failure is None, done.failure
            found.append(done)
    return found[1:]  # the first warms the workers


def main(arguments: Sequence[str] | None = None) -> None:
    """Print medians and the range."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--task", default="softmax")
    parser.add_argument("--case", default="")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    updates = measured(given.file, given.task, given.case, given.repeats)
    times = {
        "trace_s": [u.trace_s for u in updates],
        "compile_s": [u.compile_s for u in updates],
        "both_s": [u.trace_s + u.compile_s for u in updates],
    }
    told = {name: [min(t), statistics.median(t), max(t)] for name, t in times.items()}
    if given.json:
        asked = {"file": str(given.file), "task": given.task, "case": given.case}
        print(json.dumps({**asked, "times": told, "versions": versions()}))
        return
    for name, (least, median, most) in told.items():
        print(f"{name}: median {median:.3f} s ({least:.3f} to {most:.3f}) of {given.repeats}")


if __name__ == "__main__":
    main()
