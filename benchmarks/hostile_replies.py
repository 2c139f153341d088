"""What hostile candidates cost the supervisor: its peak memory, and how long one reply holds it.

    python -m benchmarks.hostile_replies [--only NAME ...] [--worst 5] [--json]

Judges every attack of the corpus without a GPU, one after the other, within the limits of `optimize selftest`. Of
each: processor seconds of this process, which waits while its workers work; its peak memory meanwhile (VmHWM, which is
set back before each); seconds by the clock to update, limits included. Half an hour for all of them on two cores.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kerneltune.agent.commands.session import Patience, Workshop, session, workshop
from kerneltune.agent.settings import chosen_settings
from kerneltune.tools.corpus import Specimen, corpus_root, load_corpus
from kerneltune.tools.task.load import find_task

_PATIENCE = Patience(trace_s=15.0, compile_s=30.0, replay_s=20.0, baselines=("eager",))
_MIB = 1 << 10  # in kB, which /proc counts in


@dataclass(frozen=True)
class Cost:
    """What one candidate cost. `held_s`: processor time of the supervisor; `update_s` and `bench_s`: by the clock."""

    name: str
    status: str
    detail: str
    held_s: float
    update_s: float
    bench_s: float
    peak_mib: int


def peak_mib() -> int:
    """The most memory that this process has held since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // _MIB


def forget_peak() -> None:
    """Let the peak begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def costs(shop: Workshop, specimens: Sequence[Specimen]) -> Iterator[Cost]:
    """Judge them, one session a task."""
    for task in dict.fromkeys(str(s.task) for s in specimens):
        with session(shop, find_task(task), _PATIENCE) as opened:
            for specimen in (s for s in specimens if str(s.task) == task):
                forget_peak()
                began_s, held_s = time.monotonic(), time.process_time()
                update = opened.tools.updater.update(specimen.path.read_text())
                update_s = time.monotonic() - began_s
                verdict = update.failure or opened.tools.benches.bench(update)
                yield Cost(
                    specimen.name,
                    verdict.status.value,
                    verdict.detail[:160],
                    round(time.process_time() - held_s, 2),
                    round(update_s, 2),
                    round(time.monotonic() - began_s - update_s, 2),
                    peak_mib(),
                )


def main() -> int:
    """The command line."""
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--only", nargs="*", default=(), help="names of attacks")
    told.add_argument("--worst", type=int, default=5, help="how many to show")
    told.add_argument("--json", action="store_true", help="one object a line, as they are done")
    asked = told.parse_args()
    root = corpus_root()
    assert root is not None, "the corpus is not installed"
    chosen = [
        s for s in load_corpus(root) if s.kind == "attack" and not s.needs_gpu and s.name in (asked.only or (s.name,))
    ]
    done: list[Cost] = []
    with workshop(chosen_settings({}), lambda _: None) as shop:
        for cost in costs(shop, chosen):
            done.append(cost)
            if asked.json:
                print(json.dumps(asdict(cost)), flush=True)
    for field, words in (("held_s", "processor seconds"), ("peak_mib", "MiB at most"), ("update_s", "s to update")):
        print(f"\n{words}, the worst {asked.worst} of {len(done)}")
        for cost in sorted(done, key=lambda c: -getattr(c, field))[: asked.worst]:
            print(f"  {getattr(cost, field):8} {cost.name}: {cost.status}: {cost.detail[:70]!r}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
