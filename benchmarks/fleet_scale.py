"""How many GPUs one driver keeps busy: its own work for a fleet, with verdicts that come after a recorded time.

    python -m benchmarks.fleet_scale --gpus 8,64,256,1000 --service-s 4.0 --candidates 4

Needs no GPU and no Ray. Each simulated GPU is a run with a thread of its own, as in a suite: the loop, the events, one
database for all, the receipts, a candidate's plans and machine code packed for its judge, and the answer read. Judging
itself is a pause of --service-s (an H200 takes 1.66 s screened and 1.6 to 4.9 s judged, docs/benchmarks.md). Left out,
and told apart: tracing and compiling, which take a core each time, and Ray's part of a call (`fleet_overhead`).
"""

import argparse
import io
import resource
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles

from kerneltune.agent.commands.bench import FilesView, bench_opened
from kerneltune.agent.commands.fleet import JudgeAnswer, bench_order, packed, unpacked
from kerneltune.agent.commands.session import Session, session, workshop
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Settings
from kerneltune.tools.evaluator import Candidate, Evaluator
from kerneltune.tools.schema.verdict import Tier, Verdict
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import Update, Updater

SOURCE = Path("corpus/honest/approximate_instructions.py")


class KnownUpdate(Updater):
    """An updater that has traced and compiled its one candidate before."""

    def __init__(self, like: Updater, made: Update) -> None:
        self.__dict__.update(like.__dict__)
        self._known = made

    def update(self, source: str, told: object = None) -> Update:
        """The same each time."""
        return self._known


@dataclass
class RecordedBench:
    """A judge far away, whose verdict is known and comes after its time. `late_s`: what a candidate waited longer."""

    opened: Session
    answer: bytes
    service_s: float
    late_s: list[float]

    def bench(self, update: Update, tier: Tier = "judged") -> Verdict:
        """The verdict."""
        began_s = time.monotonic()
        bench_order(self.opened.file, update, tier)
        time.sleep(self.service_s)
        verdict = unpacked(JudgeAnswer, self.answer)[0].verdict
        assert verdict is not None
        self.late_s.append(time.monotonic() - began_s - self.service_s)
        return verdict


def simulate(opened: Session, made: Update, verdict: Verdict, gpus: int, service_s: float, candidates: int) -> None:
    """So many GPUs, each with a run of so many candidates, and what came of it."""
    source, late_s = SOURCE.read_text(), list[float]()
    bench = RecordedBench(opened, packed(JudgeAnswer(verdict)), service_s, late_s)
    tools = Evaluator(KnownUpdate(opened.tools.updater, made), bench, "timing")
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder)) as store:
        settings = Settings(runs_dir=Path(folder))

        def run(number: int) -> None:
            its = replace(opened, tools=replace(tools, judging=threading.Lock()))
            files = [Candidate(f"{n}.py", f"{source}\n# {number} {n}\n") for n in range(candidates)]
            view = FilesView(io.StringIO(), io.StringIO(), json=True, total=candidates)
            bench_opened(its, files, settings, view, store)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(gpus)]
        began_s, used_s = time.monotonic(), processor_s()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s, used_s = time.monotonic() - began_s, processor_s() - used_s
        stored = sum(len(store.load_events(run_id)) for run_id in store.run_ids())
    judged = gpus * candidates
    assert len(late_s) == judged
    rate, busy = judged / took_s, candidates * service_s / took_s
    print(
        f"{gpus:5} GPUs: {rate:7.1f} candidates/s of {gpus / service_s:7.1f} ({busy:.0%} busy), {stored / took_s:7.0f} "
        f"events/s stored, {used_s / judged * 1e3:6.1f} ms of processor time a candidate, "
        f"p95 {quantiles(late_s, n=20)[-1]:.2f} s late",
        flush=True,
    )


def processor_s() -> float:
    """What this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Trace, compile and judge the candidate once; then simulate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", default="8,64,256,1000")
    parser.add_argument("--service-s", type=float, default=4.0)
    parser.add_argument("--candidates", type=int, default=4)
    given = parser.parse_args()
    settings, file = Settings(), find_task("softmax")
    with workshop(settings, lambda _: None) as shop, session(shop, file) as opened:
        made = opened.tools.updater.update(SOURCE.read_text())
        verdict = opened.tools.benches.bench(made)
        print(f"tracing and compiling took {made.trace_s + made.compile_s:.2f} s, the first time", flush=True)
        for gpus in map(int, given.gpus.split(",")):
            simulate(opened, made, verdict, gpus, given.service_s, given.candidates)


if __name__ == "__main__":
    main()
