"""What judging through Ray adds to a candidate: packing its plans, two ways through Ray, reading them again.

    python -m benchmarks.fleet_overhead [--task softmax] [--calls 100]

Needs `kerneltune[ray]` and no GPU. A node is simulated on this machine. The candidate is one whose verdict the bench
has already, here and there, so that what is left is the way; the first verdict on each side is not counted.
"""

import argparse
import contextlib
import time
from statistics import median, quantiles

from kerneltune.agent.commands.fleet import CPU, Fleet, bench_order
from kerneltune.agent.commands.session import session, workshop
from kerneltune.agent.settings import Settings
from kerneltune.tools.bench import Bench
from kerneltune.tools.task.load import find_task
from kerneltune.tools.update import Update


def seconds(bench: Bench, update: Update, calls: int) -> list[float]:
    """How long each of so many verdicts takes, after a first one."""
    bench.bench(update)
    found = []
    for _ in range(calls):
        began_s = time.perf_counter()
        bench.bench(update)
        found.append(time.perf_counter() - began_s)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", default="softmax")
    parser.add_argument("--candidate", default="corpus/honest/approximate_instructions.py")
    parser.add_argument("--calls", type=int, default=100)
    given = parser.parse_args()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.add_node(num_cpus=1, resources={CPU: 1}, node_ip_address="127.0.0.2")
    file = find_task(given.task)
    with (
        contextlib.closing(Fleet.start(cluster.address, Settings())) as fleet,
        workshop(Settings(), lambda _: None) as shop,
        session(shop, file) as here,
        fleet.session(fleet.workshop(shop), 0, file) as there,
    ):
        with open(given.candidate) as source:
            update = here.tools.updater.update(source.read())
        assert update.failure is None, update.failure
        local = seconds(here.tools.benches, update, given.calls)
        remote = seconds(there.tools.benches, update, given.calls)
        size = len(bench_order(file, update, "judged"))
    cluster.shutdown()
    print(f"{file.name}: {size:,} bytes of plans and machine code, {given.calls} calls")
    for name, times in (("here", local), ("through Ray", remote)):
        print(f"{name:12} median {median(times) * 1e3:6.1f} ms, p95 {quantiles(times, n=20)[-1] * 1e3:6.1f} ms")


if __name__ == "__main__":
    main()
