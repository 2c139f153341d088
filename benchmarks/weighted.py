"""Six shapes of one op in one run: is the weighted best as good as the best kernel of each single shape, everywhere?

    python -m benchmarks.weighted --runs-dir DIR [--attempts 12] softmax rms_norm …

For each built-in task of rows: a task with six weighted cases (its own size; 64 rows, 512, and a fourth of them; four
times the rows of a fourth of the columns; a fourth of the rows of twice the columns), and `optimize --model offline`.
Prints a table in Markdown: the weighted speed-up of the best over the fastest baseline; that of the one attempt that is
the fastest at the task's own size, which a run at one shape would have chosen; the worst case of the best, and of what
`optimize package` puts together (in each case the fastest attempt). Exit code 1 where a run has no best.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from kerneltune.agent.attempt import Attempt
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.verdict import CaseTime
from kerneltune.tools.task.load import builtin_names, find_task


def weighted(name: str, folder: Path) -> Path:
    """The task with six weighted cases. A weight is about how many of its calls take as long as one of the largest."""
    task = find_task(name)
    sizes = dict(re.findall(r"^(ROWS|COLS) = (\d+)", task.source, re.MULTILINE))
    rows, cols = int(sizes["ROWS"]), int(sizes["COLS"])
    shapes = {
        "rows_64": (64, cols, 40), "rows_512": (512, cols, 16), "fourth": (rows // 4, cols, 4),
        "long": (4 * rows, cols // 4, 1), "broad": (rows // 4, 2 * cols, 2),
    }  # fmt: skip
    cases = "".join(
        f'    {{"name": "{case}", "ROWS": {r}, "COLS": {c}, "weight": {weight}}},\n'
        for case, (r, c, weight) in shapes.items()
    )
    path = folder / f"weighted_{name}.py"
    path.write_text(task.source.replace("CASES = [\n", f"WEIGHT = 1\n\nCASES = [\n{cases}", 1))
    return path


def speedup(its: CaseTime) -> float:
    """Over the fastest baseline of a case."""
    return min(c.speedup for c in its.comparisons)


def weighted_us(attempt: Attempt) -> float:
    """The sum of weight and median."""
    return sum(its.weight * its.timing.median_us for its in attempt.case_times)


def row(name: str, best: Attempt, attempts: Sequence[Attempt]) -> str:
    """A line of the table."""
    timed = [a for a in attempts if len(a.case_times) == len(best.case_times)]
    alone = min(timed, key=lambda a: next(its.timing.median_us for its in a.case_times if its.case == "main"))
    worst = min(best.case_times, key=speedup)
    chosen = [
        min(c.baseline_us for c in its.comparisons) / min(a.case_times[n].timing.median_us for a in timed)
        for n, its in enumerate(best.case_times)
    ]
    over = min((c.speedup for c in best.comparisons), default=float("nan"))
    single = over * weighted_us(best) / weighted_us(alone)
    return (
        f"| {name} | {len(timed)} | #{best.number}, {over:.3f}x | #{alone.number}, {single:.3f}x "
        f"| {worst.case} {speedup(worst):.3f}x | {min(chosen):.3f}x |"
    )


def rows(names: Sequence[str], runs_dir: Path, attempts: int) -> Iterator[str | None]:
    """One for each task; None where nothing was right."""
    for name in names:
        path = weighted(name, runs_dir)
        more = ("--model", "offline", "--max-attempts", str(attempts), "--plain", "--runs-dir", str(runs_dir))
        command = "import sys; from kerneltune.agent.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", command, "--task", str(path), *more], stdout=subprocess.PIPE, text=True
        )
        (runs_dir / f"{name}.log").write_text(done.stdout)
        with Store.open(runs_dir) as store:
            run = store.run_summary(store.find_run(path.stem))
            found = store.attempts(run.run_id) if run else []
        best = next((a for a in found if run and a.attempt_id == run.best_attempt_id), None)
        yield row(name, best, found) if best and best.case_times else None


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=builtin_names(), metavar="TASK")
    parser.add_argument("--runs-dir", type=Path, required=True)
    parser.add_argument("--attempts", type=int, default=12)
    given = parser.parse_args()
    given.runs_dir.mkdir(parents=True, exist_ok=True)
    print("| task | attempts | weighted best | best at its own size alone | worst case | worst case, packaged |")
    print("| --- | --- | --- | --- | --- | --- |")
    complete = True
    for line in rows(given.tasks, given.runs_dir, given.attempts):
        print(line or "| nothing | | | | | |", flush=True)
        complete = complete and line is not None
    return 0 if complete else 1


if __name__ == "__main__":
    raise SystemExit(main())
