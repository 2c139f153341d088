"""What a client of `optimize serve` waits for, against the same command in a shell.

    python -m benchmarks.service --task softmax --n 20

Measures, each n times: `optimize bench` of a file as a process of its own; `POST /bench` of that file on a task that is
open, each time with another comment (nothing of it was seen before but its plans) and with another constant (nothing
was seen); the same from several clients at once; and GET /health beside them. On a GPU the tiers `screened` and
`judged`, without one what is there. Prints a table in Markdown, medians and 95th percentiles in seconds, and a table
of where the seconds of the requests of one client went, by their events and receipts (medians; what is not named is in
no phase's clock). `--alone` leaves out the several clients and the commands.
"""

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from kerneltune.agent.events import Judged, Proposed, Updated
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.verdict import of_a_process

KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def row(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0)) * 1.0
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        row[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
        return y
"""


def another_comment(number: int) -> str:
    """The kernel with other text, and the same plans."""
    return f"{KERNEL}# {number}\n"


def another_constant(number: int) -> str:
    """The kernel with a factor that its quotient cancels: other plans, and as right."""
    return KERNEL.replace("* 1.0", f"* {1 + number / 1024!r}")


ALONE = {"the plans of an earlier one": another_comment, "a new kernel": another_constant}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Callable[[], httpx2.Client]]:
    """Make clients of a service in that folder."""
    command = [str(Path(sys.executable).with_name("optimize")), "serve"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        place = process.stdout.readline().removeprefix("serving on ").strip()

        def client() -> httpx2.Client:
            transport = httpx2.HTTPTransport(uds=str(folder / place))
            return httpx2.Client(transport=transport, base_url="http://service", timeout=600)

        try:
            yield client
        finally:
            process.send_signal(signal.SIGINT)


def judged_file(client: httpx2.Client, task: str, tier: str, source: str, name: str = "client") -> dict[str, Any]:
    """Bench a source; the line of it."""
    answer = client.post("/bench", json={"task": task, "tier": tier, "source": source, "client": name})
    answer.raise_for_status()
    line: dict[str, Any] = json.loads(answer.text.splitlines()[0])
    return line


def bench(client: httpx2.Client, task: str, tier: str, source: str, name: str = "client") -> str:
    """Bench a source; its verdict's status."""
    return str(judged_file(client, task, tier, source, name)["verdict"]["status"])


@dataclass(frozen=True)
class Answered:
    """A request's line, and when it was asked and answered, Unix time."""

    line: dict[str, Any]
    asked: float
    answered: float

    def phases_s(self, store: Store) -> dict[str, float]:
        """Where its seconds went, one after the other; what the judge did, if it did anything, in it."""
        events = {type(event): event for event in store.load_attempt(self.line["attempt_id"])}
        proposed, updated, judged = events[Proposed], events[Updated], events[Judged]
        assert isinstance(updated, Updated)
        assert isinstance(judged, Judged)
        told = self.line["receipt"]["evidence"]
        found = {
            "until proposed": proposed.at - self.asked,
            "trace": updated.trace_s,
            "compile": updated.compile_s,
            "until benched": judged.at - proposed.at - updated.trace_s - updated.compile_s - judged.bench_s,
            "bench": judged.bench_s,
        }
        if "wall_s" in told and "reused" not in told:
            found |= {f"- {name}": told[f"{name}_s"] for name in ("wall", "checks") if f"{name}_s" in told}
            found |= {f"- timing, {name}": seconds for name, seconds in of_a_process(told).get("phases_s", {}).items()}
        return found | {"until answered": self.answered - judged.at}


def timed(work: Callable[[int], object], n: int) -> list[float]:
    """Seconds of each of n calls."""
    took = []
    for number in range(n):
        began = time.perf_counter()
        work(number)
        took.append(time.perf_counter() - began)
    return took


def asked_alone(client: httpx2.Client, task: str, tier: str, sources: Sequence[str]) -> list[Answered]:
    """Each source benched after the one before it."""
    done = []
    for source in sources:
        asked = time.time()
        line = judged_file(client, task, tier, source)
        done.append(Answered(line, asked, time.time()))
    return done


def from_a_shell(folder: Path, task: str, tier: str, number: int) -> None:
    """Bench a file by a command of its own."""
    file = folder / "mine.py"
    file.write_text(another_constant(number))
    command = [str(Path(sys.executable).with_name("optimize")), "bench", str(file), "--task", task, "--tier", tier]
    subprocess.run([*command, "--json"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def crowded(connect: Callable[[], httpx2.Client], task: str, tier: str, clients: int, each: int) -> list[float]:
    """Seconds of each bench of several clients at once."""
    took: list[float] = []

    def work(number: int) -> None:
        with connect() as client:
            took.extend(
                timed(
                    lambda n: bench(client, task, tier, another_constant(1000 + number * each + n), f"c{number}"), each
                )
            )

    threads = [threading.Thread(target=work, args=[number]) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def row(name: str, took: list[float]) -> str:
    """A line of the table."""
    p95 = statistics.quantiles(took, n=20, method="inclusive")[-1]
    return f"| {name} | {len(took)} | {statistics.median(took):.3f} | {p95:.3f} | {max(took):.3f} |"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="softmax")
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--alone", action="store_true", help="one client, and no commands")
    asked = parser.parse_args()
    spent: dict[str, list[Answered]] = {}
    print("| what | n | median s | p95 s | most s |\n| --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with served(folder) as connect, connect() as client:
            began = time.perf_counter()
            bench(client, asked.task, "judged", KERNEL)  # opens the task, and all baselines with it
            first_s = time.perf_counter() - began
            print(f"| first bench of a service that has just begun | 1 | {first_s:.3f} | | |", flush=True)
            has_gpu = client.get("/health").json()["gpu"] is not None
            for tier in ("screened", "judged") if has_gpu else ("judged",):
                told = f", {tier}" if has_gpu else ""
                offset = 0 if tier == "judged" else 500
                for what, make in ALONE.items():
                    sources = [make(1 + offset + number) for number in range(asked.n)]
                    done = spent[f"{what}{told}"] = asked_alone(client, asked.task, tier, sources)
                    took = [one.answered - one.asked for one in done]
                    print(row(f"POST /bench, {what}{told}", took), flush=True)
                if asked.alone:
                    continue
                began = time.perf_counter()
                took = crowded(connect, asked.task, tier, asked.clients, max(1, asked.n // 4))
                rate = 60 * len(took) / (time.perf_counter() - began)
                print(
                    row(f"the same from {asked.clients} clients at once ({rate:.1f} a minute){told}", took), flush=True
                )
            print(row("GET /health", timed(lambda _: client.get("/health"), 10 * asked.n)), flush=True)
        with Store.open(folder / "runs") as store:
            split = {what: [one.phases_s(store) for one in done] for what, done in spent.items()}
        for tier in () if asked.alone else ("screened", "judged") if has_gpu else ("judged",):
            told = f", {tier}" if has_gpu else ""
            shell = timed(lambda number, tier=tier: from_a_shell(folder, asked.task, tier, number), asked.n)  # type: ignore[misc]
            print(row(f"`optimize bench` in a shell, a new kernel{told}", shell), flush=True)
    print("\n| phase, median s | " + " | ".join(split) + " |\n| --- |" + " --- |" * len(split))
    for name in dict.fromkeys(name for all_of in split.values() for phases in all_of for name in phases):
        medians = [statistics.median(phases.get(name, 0.0) for phases in all_of) for all_of in split.values()]
        print(f"| {name} | " + " | ".join(f"{median:.3f}" for median in medians) + " |")


if __name__ == "__main__":
    main()
