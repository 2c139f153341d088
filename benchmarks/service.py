"""What a client of `optimize serve` waits for, against the same command in a shell.

    python -m benchmarks.service --task softmax --n 20

Measures, each n times: `optimize bench` of a file as a process of its own; `POST /bench` of that file on a task that is
open, each time with another comment (nothing of it was seen before but its plans) and with another constant (nothing
was seen); the same from several clients at once; and GET /health beside them. On a GPU the tiers `screened` and
`judged`, without one what is there. Prints a table in Markdown, medians and 95th percentiles in seconds.
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
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2

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


def bench(client: httpx2.Client, task: str, tier: str, source: str, name: str = "client") -> str:
    """Bench a source; its verdict's status."""
    answer = client.post("/bench", json={"task": task, "tier": tier, "source": source, "client": name})
    answer.raise_for_status()
    return str(json.loads(answer.text.splitlines()[0])["verdict"]["status"])


def timed(work: Callable[[int], object], n: int) -> list[float]:
    """Seconds of each of n calls."""
    took = []
    for number in range(n):
        began = time.perf_counter()
        work(number)
        took.append(time.perf_counter() - began)
    return took


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
    asked = parser.parse_args()
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

                def same(number: int, tier: str = tier) -> None:
                    bench(client, asked.task, tier, another_comment(number))

                def other(number: int, tier: str = tier, offset: int = offset) -> None:
                    bench(client, asked.task, tier, another_constant(1 + offset + number))

                print(row(f"POST /bench, the plans of an earlier one{told}", timed(same, asked.n)), flush=True)
                print(row(f"POST /bench, a new kernel{told}", timed(other, asked.n)), flush=True)
                began = time.perf_counter()
                took = crowded(connect, asked.task, tier, asked.clients, max(1, asked.n // 4))
                rate = 60 * len(took) / (time.perf_counter() - began)
                print(
                    row(f"the same from {asked.clients} clients at once ({rate:.1f} a minute){told}", took), flush=True
                )
            print(row("GET /health", timed(lambda _: client.get("/health"), 10 * asked.n)), flush=True)
        for tier in ("screened", "judged") if has_gpu else ("judged",):
            told = f", {tier}" if has_gpu else ""
            shell = timed(lambda number, tier=tier: from_a_shell(folder, asked.task, tier, number), asked.n)  # type: ignore[misc]
            print(row(f"`optimize bench` in a shell, a new kernel{told}", shell), flush=True)


if __name__ == "__main__":
    main()
