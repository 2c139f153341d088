"""Many clients of one `optimize serve` at once, a tenth of them hostile: does anybody else notice?

    python -m benchmarks.clients                                    64 clients, 1,000 candidates
    python -m benchmarks.clients --clients 64 --candidates 128 --tier judged
    python -m benchmarks.clients --sessions --candidates 320        64 rollouts of a trainer, and nothing else

Starts a service, opens its task, and has the same kind of kernels judged, each of which nothing was seen before:

- by one client, one request after the other, and up to a hundred in a request: the rate that is to be kept;
- by all clients that are honest, each one request after the other, while nobody is hostile;
- by the same, while the others attack without end: heads and bodies that dribble, requests cut off at every stage,
  oversized, malformed and deep bodies, chunks that lie, requests sent ahead and never read, readers of events that
  stop reading, crowds of idle connections, paths out of the service, priorities.

Prints a table in Markdown: how many, what was not judged right, candidates a minute, seconds to a verdict; then what
the hostile clients did and were answered, what one request to /health took meanwhile, and what the service holds. Exit
code 1 where an honest request failed. `--minutes` bounds each of the last two phases. `--sessions` has each client
begin a rollout instead, as kerneltune/rl does for a trainer, and update and bench one kernel after the other in it; its
seconds are of both calls.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from benchmarks.service import KERNEL, another_constant, bench, served
from kerneltune.agent.commands import service_socket
from kerneltune.rl import kernel_service

MOST_SOURCES = 100  # of a request
Connect = Callable[[], httpx2.Client]
Ask = Callable[[], str]  # one kernel more is judged; its verdict's status
FAULTS = (httpx2.HTTPError, kernel_service.Fault, KeyError, IndexError, TypeError, ValueError)


@dataclass
class Phase:
    """What honest clients saw. `took`: seconds of each request; `statuses`: of their verdicts; `failed`: what kept a
    request from one."""

    name: str
    took: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def count(self, ask: Ask) -> None:
        """Ask once, and keep how it went."""
        sent = time.monotonic()
        try:
            status = ask()
        except httpx2.HTTPStatusError as error:
            self.failed[f"{error.response.status_code} {error.response.text[:200]}"] += 1
            time.sleep(0.2)
        except FAULTS as error:
            self.failed[f"{type(error).__name__} {error}"[:200]] += 1
        else:
            self.took.append(time.monotonic() - sent)
            self.statuses[status] += 1

    @property
    def rate(self) -> float:
        """Verdicts a minute."""
        return 60 * self.statuses.total() / self.seconds

    def row(self) -> str:
        """A line of the table."""
        spread = "| | | |"
        if len(self.took) > 1:
            p95 = statistics.quantiles(self.took, n=20, method="inclusive")[-1]
            spread = f"| {statistics.median(self.took):.2f} | {p95:.2f} | {max(self.took):.2f} |"
        told = ", ".join(f"{n} {status}" for status, n in self.statuses.items())
        return f"| {self.name} | {told} | {self.failed.total()} | {self.rate:.1f} {spread}"


class Numbers:
    """Kernels that differ from all before."""

    def __init__(self) -> None:
        self._next = 1
        self._changing = threading.Lock()

    def source(self) -> str:
        """Another one."""
        with self._changing:
            self._next += 1
            return another_constant(self._next)


def in_batches(client: httpx2.Client, asked: argparse.Namespace, numbers: Numbers) -> Phase:
    """One client, many sources a request."""
    phase, left, began = Phase(f"one client, {MOST_SOURCES} a request"), asked.candidates // 10, time.monotonic()
    while left > 0:
        sources = {f"{n}.py": numbers.source() for n in range(min(left, MOST_SOURCES))}
        left -= len(sources)
        answer = client.post("/bench", json={"task": asked.task, "tier": asked.tier, "sources": sources})
        answer.raise_for_status()
        for line in map(json.loads, answer.text.splitlines()):
            if line["type"] == "judged_file":
                phase.statuses[line["verdict"]["status"]] += 1
    phase.seconds = time.monotonic() - began
    return phase


Opened = Callable[[int], contextlib.AbstractContextManager[Ask]]  # how the client of a number asks


@contextlib.contextmanager
def by_requests(connect: Connect, asked: argparse.Namespace, numbers: Numbers, number: int) -> Iterator[Ask]:
    """By POST /bench, as the client of this number."""
    with connect() as client:
        yield lambda: bench(client, asked.task, asked.tier, numbers.source(), f"c{number}")


@contextlib.contextmanager
def by_rollout(asked: argparse.Namespace, numbers: Numbers, number: int) -> Iterator[Ask]:
    """As a trainer, in a rollout that may take all candidates; the service is where KERNELTUNE_SERVICE says."""
    path = kernel_service.begin(asked.task, tier=asked.tier, limits={"max_attempts": asked.candidates})["path"]

    def ask() -> str:
        update = {"rationale": "another constant", "source": numbers.source()}
        attempt = kernel_service.call(path, "update", update)["attempt"]["number"]
        return str(kernel_service.call(path, "bench", {"attempt": attempt})["attempt"]["status"])

    yield ask
    kernel_service.close(path)


def together(name: str, opened: Opened, asked: argparse.Namespace, clients: int, n: int) -> Phase:
    """So many clients, which share `n` candidates, each asking for one after the other."""
    phase, began, left = Phase(name), time.monotonic(), iter(range(n))
    ends, sharing = began + 60 * asked.minutes, threading.Lock()

    def work(number: int) -> None:
        try:
            with opened(number) as ask:
                while time.monotonic() < ends:
                    with sharing:
                        if next(left, None) is None:
                            break
                    phase.count(ask)
        except FAULTS as error:  # it could not begin
            phase.failed[f"{type(error).__name__} {error}"[:200]] += 1

    threads = [threading.Thread(target=work, args=[number]) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    phase.seconds = time.monotonic() - began
    return phase


# Hostile clients ------------------------------------------------------------------------------------------------------


class Hostile:
    """A client that does what it should not, until told to stop."""

    def __init__(self, path: Path, seed: int, over: threading.Event) -> None:
        self._path, self._draw, self._over = path, random.Random(seed), over
        self.did, self.answered = Counter[str](), Counter[str]()

    def work(self) -> None:
        """Attack after attack."""
        while not self._over.is_set():
            attack = self._draw.choice(ATTACKS)
            self.did[attack.__name__] += 1
            with contextlib.suppress(OSError), self.connected() as connection:
                attack(self, connection)

    def connected(self) -> socket.socket:
        """A connection."""
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(5)
        connection.connect(str(self._path))
        return connection

    def pause(self, most_s: float) -> None:
        """Wait, but not beyond the end."""
        self._over.wait(self._draw.uniform(0, most_s))

    def answer(self, connection: socket.socket) -> bytes:
        """What comes within some seconds; its status is counted."""
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(1 << 16)
        self.answered[data[9:12].decode(errors="replace") if data.startswith(b"HTTP/") else "nothing"] += 1
        return data

    def a_bench(self, **more: object) -> bytes:
        """A request that is right, of a kernel that is its own."""
        source = KERNEL.replace("* 1.0", f"* {1 + self._draw.random()!r}")
        return post("/bench", json.dumps({"task": "softmax", "source": source, "client": "evil"} | more).encode())


def post(path: str, body: bytes, length: int | None = None) -> bytes:
    """A request's bytes."""
    head = f"POST {path} HTTP/1.1\r\nhost: evil.example\r\ncontent-length: {len(body) if length is None else length}"
    return f"{head}\r\n\r\n".encode() + body


def dribbled(hostile: Hostile, connection: socket.socket, data: bytes) -> None:
    """Send byte by byte, for some seconds."""
    for at in range(40):
        connection.sendall(data[at : at + 1])
        hostile.pause(0.3)


def slow_head(hostile: Hostile, connection: socket.socket) -> None:
    """A head without an end."""
    dribbled(hostile, connection, b"GET /health HTTP/1.1\r\nhost: " + b"x" * 100)


def slow_body(hostile: Hostile, connection: socket.socket) -> None:
    """A body that is announced and comes slowly."""
    connection.sendall(post("/bench", b"{", length=100_000))
    dribbled(hostile, connection, b" " * 100)


def gone_at_once(hostile: Hostile, connection: socket.socket) -> None:
    """A bench whose client does not wait."""
    connection.sendall(hostile.a_bench())


def gone_later(hostile: Hostile, connection: socket.socket) -> None:
    """A bench whose client goes while it is traced, compiled, waiting or judged."""
    connection.sendall(hostile.a_bench(priority=hostile._draw.choice(("interactive", "batch"))))
    hostile.pause(3)


def reset(hostile: Hostile, connection: socket.socket) -> None:
    """A client that is killed with data on its way."""
    connection.sendall(hostile.a_bench()[: hostile._draw.randrange(1, 900)])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def sent_ahead(hostile: Hostile, connection: socket.socket) -> None:
    """A bench with another request behind it, whose client goes."""
    connection.sendall(hostile.a_bench() + post("/bench", b"{}") * 3)
    hostile.pause(2)


def unread(hostile: Hostile, connection: socket.socket) -> None:
    """Many answers that nobody reads."""
    connection.settimeout(1)
    with contextlib.suppress(TimeoutError):
        for _ in range(200):
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n")
    hostile.pause(3)


def oversized(hostile: Hostile, connection: socket.socket) -> None:
    """A body beyond the bound."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(post("/bench", b'{"source": "' + b"x" * (5 << 20) + b'"}'))
    hostile.answer(connection)


def lied(hostile: Hostile, connection: socket.socket) -> None:
    """A chunk that is shorter than it says."""
    head = b"POST /bench HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    connection.sendall(head + hostile._draw.choice((b"FFFFFFFF\r\nabc", b"-1\r\nabc", b"5\r\n{}\r\n", b"zz\r\n")))
    connection.shutdown(socket.SHUT_WR)
    hostile.answer(connection)


BODIES = (
    b"",
    b"\0\xff" * 500,
    b"[" * 60_000,
    b'{"a":' * 900 + b"1" + b"}" * 900,
    b'{"task": "softmax", "source": "x", "limits": {"trace_s": NaN}}',
    b'{"task": "softmax", "source": "x", "limits": {"max_time_s": 1e999}}',
    b'{"task": "softmax", "source": "x", "limits": {"max_attempts": ' + b"9" * 4000 + b"}}",
    b'{"task": "softmax", "task": "gelu", "source": "x", "source": "\\ud800"}',
    b'{"task": "../../../etc/passwd", "source": "x"}',
    b'{"task": "softmax\\u0000", "source": "x"}',
    b'{"task": "softmax", "source": "x", "client": "a\\nb"}',
    b'{"task": "softmax", "sources": {"\\u001b]0;title\\u0007\\n../../x": "import os\\nos._exit(0)"}}',
    b'{"reference_code": "import os\\nos._exit(3)", "source": "x"}',
    b"{" + b",".join(b'"k%d": 1' % n for n in range(30_000)) + b"}",
)


def malformed(hostile: Hostile, connection: socket.socket) -> None:
    """What is no request, or not one that can be meant."""
    path = hostile._draw.choice(("/bench", "/bench", "/sessions", "/evaluate", "/evaluate/batch", "/mcp"))
    connection.sendall(post(path, hostile._draw.choice(BODIES)))
    hostile.answer(connection)


def astray(hostile: Hostile, connection: socket.socket) -> None:
    """Paths and methods that lead elsewhere."""
    paths = ("/sessions/../../etc/passwd", "/sessions/%2e%2e%2f/events", "/results/a%0d%0ab", "//health", "/\0", "*")
    method = hostile._draw.choice(("GET", "DELETE", "PUT", "TRACE", "CONNECT", "G\tT"))
    connection.sendall(f"{method} {hostile._draw.choice(paths)} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    hostile.answer(connection)


def idle_crowd(hostile: Hostile, connection: socket.socket) -> None:
    """Connections that ask for nothing."""
    with contextlib.ExitStack() as held:
        for _ in range(60):
            held.enter_context(hostile.connected())
        hostile.pause(5)


def events_unread(hostile: Hostile, connection: socket.socket) -> None:
    """A session whose events nobody reads, left as it is."""
    connection.settimeout(60)
    connection.sendall(post("/sessions", b'{"task": "softmax", "client": "evil"}'))
    told = hostile.answer(connection).partition(b'"session":"')[2].partition(b'"')[0].decode()
    if told:
        connection.sendall(f"GET /sessions/{told}/events HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        hostile.pause(3)
        with hostile.connected() as other:
            other.settimeout(60)
            other.sendall(f"DELETE /sessions/{told} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            hostile.answer(other)


ATTACKS = (
    slow_head, slow_body, gone_at_once, gone_later, reset, sent_ahead, unread, oversized, lied, malformed, malformed,
    astray, idle_crowd, events_unread,
)  # fmt: skip


@contextlib.contextmanager
def attacked(path: Path, n: int) -> Iterator[list[Hostile]]:
    """Have so many hostile clients at work."""
    over = threading.Event()
    hostile = [Hostile(path, seed, over) for seed in range(n)]
    threads = [threading.Thread(target=one.work) for one in hostile]
    for thread in threads:
        thread.start()
    try:
        yield hostile
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def looked(connect: Connect) -> Iterator[list[float]]:
    """Seconds of a request to /health, twice a second."""
    took, over = list[float](), threading.Event()

    def look() -> None:
        with connect() as client:
            while not over.wait(0.5):
                began = time.monotonic()
                client.get("/health").raise_for_status()
                took.append(time.monotonic() - began)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


def held_by(pid: int) -> str:
    """What a process holds."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    n_open = len(os.listdir(f"/proc/{pid}/fd"))
    return f"{status['VmRSS'].strip()} of memory, {status['Threads'].strip()} threads, {n_open} descriptors"


def measured(place: Path, connect: Connect, asked: argparse.Namespace) -> Counter[str]:
    """Print all phases; what kept honest requests from a verdict."""
    numbers, n_hostile = Numbers(), max(1, asked.clients // 10)
    opened = functools.partial(by_requests, connect, asked, numbers)
    honest = asked.clients - n_hostile
    few = max(2, asked.candidates // 50)
    with connect() as client:
        phases = [together("one client, one at a time", opened, asked, 1, few)]
        print(phases[-1].row(), flush=True)
        phases.append(in_batches(client, asked, numbers))
        print(phases[-1].row(), flush=True)
    alone = max(phase.rate for phase in phases)
    phases.append(together(f"{honest} clients", opened, asked, honest, asked.candidates // 10))
    print(phases[-1].row(), flush=True)
    with attacked(place, n_hostile) as hostile, looked(connect) as health_s:
        told = f"{honest} clients, and {n_hostile} hostile"
        phases.append(together(told, opened, asked, honest, asked.candidates))
    print(phases[-1].row(), flush=True)
    for phase in phases[-2:]:
        print(f"\n{phase.name}: {100 * phase.rate / alone:.1f} % of the rate of one client", end="")
    did, answered = sum((h.did for h in hostile), Counter()), sum((h.answered for h in hostile), Counter())
    print(f"\nhostile clients did {dict(did)}\nand were answered {dict(answered)}")
    p95 = statistics.quantiles(health_s, n=20, method="inclusive")[-1] if len(health_s) > 1 else 0.0
    print(f"/health meanwhile: median {statistics.median(health_s or [0]):.3f} s, p95 {p95:.3f}, {max(health_s):.3f}")
    return sum((phase.failed for phase in phases), Counter[str]())


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", default="softmax")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--tier", default="screened", choices=("screened", "judged"))
    parser.add_argument("--minutes", type=float, default=4, help="of each phase with many clients, at most")
    parser.add_argument("--sessions", action="store_true", help="measure rollouts of a trainer, and nothing else")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as connect, connect() as client:
        place = Path(name) / service_socket(Path("runs"))
        bench(client, asked.task, "judged", KERNEL)  # opens the task
        pid = client.get("/health").json()["pid"]
        print(f"{asked.task}, GPU: {client.get('/health').json()['gpu']}; at first {held_by(pid)}\n", flush=True)
        print("| who | verdicts | failed | a minute | median s | p95 s | most s |", flush=True)
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
        if asked.sessions:
            os.environ["KERNELTUNE_SERVICE"] = f"unix:{place}"
            opened = functools.partial(by_rollout, asked, Numbers())
            phase = together(f"{asked.clients} sessions", opened, asked, asked.clients, asked.candidates)
            print(phase.row(), flush=True)
            failed = phase.failed
        else:
            failed = measured(place, connect, asked)
            time.sleep(3)
        print(f"at the end {held_by(pid)}")
        wanted = ("runs_under_way", "waiting_for_judge", "sessions", "open_tasks")
        lines = client.get("/metrics").text.splitlines()
        print("; ".join(line for line in lines if line.removeprefix("kerneltune_").startswith(wanted)))
    for why, n in failed.items():
        print(f"failed {n} times: {why}")
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
