"""How well attempts are ordered without a clock: Kendall's tau between their order and their recorded times.

    python -m benchmarks.rank_model docs/demo docs/demo-ptx

Reads the runs in folders with a runs.db that were timed on a GPU, traces and compiles every timed attempt again, here
and without that GPU but for it, and prints a Markdown table: by task the attempts, tau of the
order that runs without a GPU have (`agent.attempt.rank_key`), and tau of the one before it, which counted each
tensor of a step once. Ties count as neither right nor wrong. Runs of one task on one GPU are taken together.
"""

import argparse
import contextlib
import itertools
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerneltune.agent.attempt import Attempt, static_key
from kerneltune.agent.commands.session import Session, session, workshop
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import chosen_settings
from kerneltune.tools.task.load import builtin_names, find_task

Key = tuple[float, ...]


@dataclass(frozen=True)
class Timed:
    """An attempt's recorded time, and its places in the two orders."""

    attempt_id: str
    median_us: float
    now: Key
    before: Key


def tau(keys: Sequence[Key], times: Sequence[float]) -> float:
    """Kendall's tau-a: pairs in the same order less pairs in the other one, of all pairs."""
    pairs = list(itertools.combinations(zip(keys, times, strict=True), 2))
    sign = [((a > b) - (a < b)) * ((s > t) - (s < t)) for (a, s), (b, t) in pairs]
    return sum(sign) / len(pairs) if pairs else 0.0


def timed(opened: Session, attempt: Attempt) -> Timed | None:
    """An attempt in both orders, as the variant that was the fastest; None where it does not compile here."""
    assert attempt.timing is not None
    updater = opened.tools.updater
    update = updater.update(attempt.source)
    plan = update.judged_plan(attempt.judged.variant)
    if update.failure or plan is None:
        return None
    kernels = update.kernels_of(plan)
    moved = updater.effective_bytes(update, attempt.judged.variant)
    assert moved is not None
    now = (float(f"{moved:.2g}"), *static_key(kernels))  # as `rank_key`, which knows the default variant alone
    return Timed(attempt.attempt_id, attempt.timing.median_us, now, (plan.traffic_bytes, *static_key(kernels)))


def found(folder: Path, scratch: Path) -> Iterator[tuple[str, str, Timed]]:
    """Task, GPU and places of every timed attempt in a folder, which is left as it is."""
    shutil.copy(folder / "runs.db", scratch)
    with contextlib.ExitStack() as held:
        store = held.enter_context(Store.open(scratch))
        runs = [store.load_run(run_id) for run_id in store.run_ids()]
        for run in (run for run in runs if run.gpu):
            settings = chosen_settings({"arch": run.arch, "runs_dir": scratch})
            name = run.task
            if name not in builtin_names():
                name = str(scratch / f"{run.task}.py")
                Path(name).write_text(run.task_source)
            with workshop(settings, lambda _: None) as shop, session(shop, find_task(name)) as opened:
                for attempt in store.attempts(run.run_id):
                    if attempt.timing is not None and (one := timed(opened, attempt)):
                        yield run.task, str(run.gpu), one


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table: 0; 1 where nothing was timed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--attempts", action="store_true", help="also each attempt's place")
    given = parser.parse_args(argv)
    groups = defaultdict[tuple[str, str], list[Timed]](list)
    for folder in given.folders:
        with tempfile.TemporaryDirectory() as scratch:
            for task, gpu, one in found(folder, Path(scratch)):
                groups[task, gpu].append(one)
    print("| task | GPU | attempts | tau, now | tau, before |\n| --- | --- | --- | --- | --- |")
    for (task, gpu), ones in groups.items():
        times = [one.median_us for one in ones]
        now, before = tau([one.now for one in ones], times), tau([one.before for one in ones], times)
        print(f"| {task} | {gpu} | {len(ones)} | {now:.2f} | {before:.2f} |")
    for one in sorted((o for its in groups.values() for o in its), key=lambda o: o.now) if given.attempts else ():
        print(f"{one.attempt_id}: {one.median_us:.2f} us, {one.now}, before {one.before}")
    return 0 if groups else 1


if __name__ == "__main__":
    sys.exit(main())
