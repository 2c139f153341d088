"""Is anything lost, doubled or left behind when commands are killed, stopped and starved side by side? Needs no GPU.

    python -m benchmarks.chaos --minutes 60 --seed 1        an hour, two commands at a time
    python -m benchmarks.chaos --minutes 2 --seed 7 --keep /tmp/chaos
    python -m benchmarks.chaos --lanes 1 --kinds serve,agent,suite --accidents kill,kill_below      nothing else
    python -m benchmarks.chaos --kinds serve,fleet --accidents kill,kill_judge,kill_actor           kill -9 by role

Each lane runs one command after the other as a person does: runs of every author, what was killed resumed, files
benched, exports, merges of two records, and looks at them; services and servers for agents, with a client each, and
suites. A client of services goes on where a killed one left it: it sends again the files that it has no verdict on, and
resumes its session. Fleets, which have to be named among --kinds and need `kerneltune[ray]`, are suites on three
simulated nodes of a Ray cluster; they are the first lane's. While a command runs, accidents happen to it, drawn from
the seed: SIGKILL to it, to one of its processes, to a judge or to an actor of Ray's that has one, SIGSTOP for some
seconds, Ctrl-C, SIGTERM, SIGHUP, a full disk, a wall clock that jumps by up to twenty years either way, another boot's
monotonic clock, hardly any descriptors, file size or address space left. The disk is a tmpfs in a mount namespace of
its own, the monotonic clock a time namespace; the wall clock is shifted by a library that the command's process loads,
where there is a C compiler. Not covered: a power cut, a monotonic clock that jumps while a process runs, limits of
cgroups.

After each command and at the end it is looked at from outside: each event that a command printed, and each verdict that
a client was sent, by the client's own log, is stored exactly once, as it was; a file that was benched has the status
that it has when nothing happens; SQLite finds the databases whole; attempts are numbered without gaps and judged once;
exports load and hold no row twice; no process is left, nor, once a command has begun after it, a temporary folder. What
began is resumed in the end until it is over, and each client has its verdicts then.
Each violation is printed with its command; any makes exit code 1.
"""

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import random
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import httpx2

from kerneltune.agent.commands import service_socket
from kerneltune.agent.commands.fleet import CPU, JudgeActor
from kerneltune.agent.events import Event, Judged, RunStarted, StoredEvent
from kerneltune.agent.export.base import FORMATS
from kerneltune.agent.record.query import Filter
from kerneltune.agent.record.store import Store
from kerneltune.tools.schema.codec import encode
from kerneltune.tools.schema.errors import KerneltuneError
from tests.agent.models.server import Format, LlmServer
from tests.agent.shell import ROOT, SOFTMAX, is_alive, process_tree
from tests.agent.test_model_runs import NAMES, keys
from tests.agent.test_model_soak import TASK, Weather, check_record, story

STORY = ROOT / "tests" / "agent" / "stories" / "softmax.jsonl"
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
__attribute__((constructor)) static void opened(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (at != MAP_FAILED) offset = at;
}
int clock_gettime(clockid_t which, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, which, now);
    if (!failed && offset && which == CLOCK_REALTIME) now->tv_sec += *offset;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int failed = syscall(SYS_gettimeofday, now, zone);
    if (!failed && offset) now->tv_sec += *offset;
    return failed;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""
OVER = ("attempts", "author_done", "refused", "time", "patience", "goal")
EVENTS = ("judged_file", *(event.kind for event in get_args(StoredEvent)))  # what is printed and stored
ENDS = (0, 1, 2, 3, 6, 130)  # exit codes that tell the truth after an accident; 4 is a fault of ours
STARVED = ("disk", "file_size", "descriptors", "memory")
REFUSALS = (
    "is run by",
    "already; use it, or end it first",
    "is under way in process",
    "holds no run yet",
    "no runs in",
    "no attempt",
    "never got a verdict",
    "came by a merge",
    "no such file",
)  # of what is not there yet
SUBREAPER, YEAR_S = 36, 365 * 86400
MOST_S, GRACE_S = 400.0, 20.0
NOT_YET = "not yet"  # where what an accident would happen to is not there
NODES, FORK_SERVERS = 3, 3  # of a fleet; below a supervisor's first one


class Clock:
    """The wall clock of a command: seconds that are added to the system's."""

    def __init__(self, library: Path, path: Path) -> None:
        path.write_bytes(bytes(8))
        self.env = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(path)}
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    def jump(self, seconds: int) -> None:
        """Be so many seconds off from now on."""
        self._shared[:] = struct.pack("q", seconds)


@dataclass
class Command:
    """A command that is run. `home`: the record it works on; `accidents`: what is to happen to it, and after how many
    seconds; `happened`: what did."""

    name: str
    words: list[str]
    home: Path
    env: dict[str, str]
    accidents: list[tuple[float, str]]
    happened: list[str] = field(default_factory=list)
    killed: bool = False
    output: Path | None = None
    status: int = 0
    fleet: bool = False  # judges are actors of Ray's
    talk: "Callable[[Command, subprocess.Popen[bytes], Path], None] | None" = None  # with it; its output is the path
    heard: list[str] = field(default_factory=list)  # lines that its client was sent
    told: list[dict[str, Any]] = field(default_factory=list)  # attempts that its client was told

    @property
    def starved(self) -> bool:
        """Whether it was short of something, so that it may have failed to store what it showed."""
        return any(name in STARVED for name in self.happened)


class Chaos:
    """What the lanes share: a small disk with two records, model servers, and what was found."""

    def __init__(
        self, folder: Path, seed: int, minutes: float, disk: Path, kinds: Sequence[str], accidents: Sequence[str]
    ) -> None:
        self.folder, self.seed, self.disk, self.kinds, self.drawn = folder, seed, disk, kinds, accidents
        self.ends = time.monotonic() + 60 * minutes
        self.records = [disk / "runs", disk / "other"]
        self.is_full = False
        self.full = threading.Lock()  # held while the disk is full: what looks at a record waits
        self.found = threading.Lock()
        self.violations: list[str] = []
        self.commands, self.accidents, self.exits = Counter[str](), Counter[str](), Counter[str]()
        self.printed: dict[tuple[Path, str], set[str]] = {}  # of each run, events that were printed and are stored
        self.verdicts_told = 0  # to clients
        self.stopped = 0  # looks at a stopped process that outlived its command
        self.statuses = quiet_statuses()  # of each file of the corpus's honest ones, on softmax
        self.unstored = 0  # events that were printed by a command that then said that it could not store them
        (disk / "small.py").write_text(TASK)
        lines = [line for part in range(8) for line in story(part)]
        self.weather = [Weather(seed + number) for number in range(len(NAMES))]
        self.servers = {
            format: LlmServer(lines, format, faults=weather)
            for format, weather in zip(NAMES, self.weather, strict=True)
        }
        self.library = folder / "clock.so"
        made = subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", str(self.library), "-x", "c", "-"], input=CLOCK, text=True, check=False
        )
        self.has_clock = made.returncode == 0
        self.cluster: Any = None
        if "fleet" in kinds:
            self.begin_cluster()

    def begin_cluster(self) -> None:
        """A Ray cluster whose nodes have a judge's place each. Actors make their temporary folders on the small
        disk."""
        from ray.cluster_utils import Cluster  # of an extra

        (tmp := self.disk / "tmp-actors").mkdir()
        head = {"num_cpus": 0, "include_dashboard": False, "temp_dir": str(self.folder / "ray")}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        for number in range(NODES):
            its = {"node_ip_address": f"127.0.0.{number + 2}", "env_vars": {"TMPDIR": str(tmp)}}
            self.cluster.add_node(num_cpus=1, resources={CPU: 1}, **its)

    def end_cluster(self) -> None:
        """End it, where there is one; what is Ray's own may take some seconds to go."""
        if self.cluster is None:
            return
        below = {pid: start for pid, (start, _) in process_tree(os.getpid()).items()}
        self.cluster.shutdown()
        self.cluster, ends = None, time.monotonic() + GRACE_S
        while living(below) and time.monotonic() < ends:
            time.sleep(0.2)

    def violated(self, command: Command, what: str) -> None:
        """Tell of a violation."""
        told = {"violation": what, "seed": self.seed, "command": command.name, "words": command.words}
        with self.found:
            self.violations.append(what)
            print(json.dumps(told | {"happened": command.happened, "exit": command.status}), flush=True)

    def check_events(self, command: Command, out: str) -> None:
        """Each event that was printed is stored exactly once, as it was printed."""
        shown: dict[str, list[dict[str, Any]]] = {}
        failed = command.status not in (0, 1)
        for line in out.splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the last line of one that was killed
                told = json.loads(line)
                if not isinstance(told, dict):
                    continue
                failed |= told.get("type") == "error"  # a service goes on after a bench that it could not store
                if told.get("type") == "judged_file":
                    self.check_status(command, told)
                run_id = str(told.get("run_id") or str(told.get("attempt_id")).rpartition("/")[0])
                if told.get("type") in EVENTS and run_id:
                    shown.setdefault(run_id, []).append(told)
        for run_id, lines in shown.items():
            stored = stored_events(command.home, run_id)
            kept = self.printed.setdefault((command.home, run_id), set())
            for told in lines:
                if (times := stored[(key := key_of(told))]) == 1:
                    kept.add(key)
                elif times == 0 and command.starved and failed:
                    self.unstored += 1
                else:
                    self.violated(
                        command, f"{told['type']} of {told.get('attempt_id') or run_id} is stored {times} times"
                    )

    def check_status(self, command: Command, told: dict[str, Any]) -> None:
        """A file has the status that it has where nothing happens; or none that it could be blamed for."""
        verdict, name = told["verdict"], Path(told["file"]).name
        if verdict["status"] not in (self.statuses[name], "unchecked"):
            said = f"{verdict['status']} ({verdict['cause']}: {verdict['detail'][:300]})"
            self.violated(command, f"{name} is {said} and was {self.statuses[name]} when nothing happened")

    def check_told(self, command: Command) -> None:
        """Each verdict that a client was told is stored exactly once."""
        for one in command.told:
            run_id, status = one["attempt_id"].rpartition("/")[0], one.get("status")
            if status is None:
                continue
            with Store.open(command.home, to_look=True) as store:
                stored = [e for e in store.load_events(run_id) if isinstance(e, Judged)]
            found = [e for e in stored if e.attempt_id == one["attempt_id"] and e.verdict.status == status]
            self.verdicts_told += 1
            self.printed.setdefault((command.home, run_id), set()).update(map(stored_key, found))
            if len(found) != 1:
                self.violated(command, f"{status} of {one['attempt_id']} was told and is stored {len(found)} times")

    def check_record(self, command: Command, home: Path, *, whole: bool = True) -> None:
        """SQLite finds it whole; and, if `whole`, so does what reads it."""
        if not (home / "runs.db").exists():
            return
        with contextlib.closing(sqlite3.connect(home / "runs.db", timeout=60)) as connection:
            for test in ("integrity_check", "foreign_key_check"):
                if (found := connection.execute(f"PRAGMA {test}").fetchall()) not in ([], [("ok",)]):
                    self.violated(command, f"{test} of {home.name}: {found[:3]}")
        try:
            if whole:
                check_record(home)
        except (AssertionError, KerneltuneError) as error:
            self.violated(command, f"the record {home.name} is not as it must be: {type(error).__name__} {error}")

    def check_export(self, command: Command, folder: Path) -> None:
        """An export that is there is whole, whatever became of its command, and has no row twice."""
        if not folder.exists():
            return
        if not (folder / "export.json").exists():
            self.violated(command, f"{folder.name} is there and is no whole export")
        for path in folder.glob("data/*/*"):
            rows = rows_of(path)
            bare = (folder / "provenance" / path.parent.name).exists()
            if not rows or (not bare and len(set(rows)) < len(rows)):
                self.violated(command, f"{path.relative_to(folder)} has {len(rows)} rows, {len(set(rows))} different")

    def unfinished(self, home: Path) -> list[RunStarted]:
        """The runs of a record that are not over and can be resumed there."""
        if not (home / "runs.db").exists():
            return []
        with Store.open(home, to_look=True) as store:
            found = [run for run in store.runs(Filter(limit=1 << 20)) if run.why not in OVER]
            found = [run for run in found if run.author != "files" and not run.author.startswith(("http:", "mcp:"))]
            return [store.load_run(run.run_id) for run in found if store.merged_from(run.run_id) is None]


def key_of(told: dict[str, Any]) -> str:
    """What an event says, without what its line says besides. Of a file that was benched: its verdict."""
    if told["type"] == "judged_file":
        return json.dumps([told["attempt_id"], told["verdict"]], sort_keys=True)
    return json.dumps({k: v for k, v in told.items() if k not in ("type", "schema_version")}, sort_keys=True)


def stored_key(event: Event) -> str:
    """What `key_of` makes of an event's line."""
    return json.dumps(json.loads(json.dumps(encode(event))), sort_keys=True)


def stored_events(home: Path, run_id: str) -> Counter[str]:
    """How many times each event of a run is stored, as `key_of` says them."""
    found = Counter[str]()
    with Store.open(home, to_look=True) as store:
        for event in store.load_events(run_id) if run_id in store.run_ids() else []:
            found[stored_key(event)] += 1
            if event.kind == "judged":
                told: dict[str, Any] = json.loads(json.dumps(encode(event)))
                verdict = {k: v for k, v in told["verdict"].items() if k != "receipt"}
                found[json.dumps([event.attempt_id, verdict], sort_keys=True)] += 1
    return found


def quiet_statuses() -> dict[str, str]:
    """What each file of the corpus's honest ones is on softmax, by its name."""
    words = ["bench", str(ROOT / "corpus" / "honest"), "--task", "softmax", "--no-store", "--json"]
    done = subprocess.run(
        [Path(sys.executable).with_name("optimize"), *words], capture_output=True, text=True, check=False
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {Path(one["file"]).name: one["verdict"]["status"] for one in told if one["type"] == "judged_file"}


def rows_of(path: Path) -> list[str]:
    """The rows of a data file."""
    if path.suffix == ".jsonl":
        return path.read_text().splitlines()
    import pyarrow.parquet

    return [json.dumps(row, default=str) for row in pyarrow.parquet.read_table(path).to_pylist()]


class Lane:
    """Runs one command after the other. Its temporary folder is its own."""

    def __init__(self, chaos: Chaos, number: int) -> None:
        self.chaos, self.number, self.begun = chaos, number, 0
        self.draw = random.Random(f"{chaos.seed}/{number}")
        self.tmp = chaos.disk / f"tmp-{number}"
        self.tmp.mkdir()
        self.left: dict[str, str] = {}  # temporary folders that a kill left, for the next command to remove, and whose
        self.clock = Clock(chaos.library, chaos.folder / f"clock-{number}") if chaos.has_clock else None
        self.clients: dict[Path, Client] = {}  # by the record whose services they ask
        self.fleets_over = 0
        self.fleet_is_over = True  # the last one that began

    def run(self) -> None:
        """Until the time is over."""
        while time.monotonic() < self.chaos.ends:
            self.attend(self.drawn())

    def drawn(self) -> Command:
        """The next command, and what is to happen to it."""
        draw, home = self.draw, self.draw.choice((self.chaos.records[0], self.chaos.records[0], self.chaos.records[1]))
        kinds = {
            "offline": 3,
            "scripted": 3,
            "served": 3,
            "bench": 3,
            "resume": 6,
            "export": 3,
            "merge": 2,
            "look": 2,
            "verify": 1,
            "serve": 2,
            "agent": 2,
            "suite": 2,
        }
        kinds = {kind: often for kind, often in kinds.items() if kind in (self.chaos.kinds or kinds)}
        if self.chaos.cluster is not None and self.number == 0:  # one driver takes all judges
            kinds["fleet"] = 6
        kind = draw.choices(list(kinds), list(kinds.values()))[0]
        command: Command = getattr(self, kind)(home)
        patience = 6.0 if kind in ("export", "merge", "look") else 20.0 if kind == "fleet" else 14.0
        many = draw.choice((0, 1, 1, 1, 2, 3))
        drawn = [name for name in self.chaos.drawn if name != "kill_actor" or command.fleet]
        command.accidents = sorted((draw.uniform(0.1, patience), draw.choice(drawn)) for _ in range(many))
        return command

    def command(self, kind: str, home: Path, *words: str, **env: str) -> Command:
        """A command of this lane."""
        self.begun += 1
        return Command(f"{self.number}/{self.begun} {kind}", [*words, "--runs-dir", str(home)], home, env, [])

    def offline(self, home: Path) -> Command:
        """A run of the search."""
        task = self.draw.choice(("softmax", str(self.chaos.disk / "small.py")))
        return self.command("offline", home, "--task", task, "--model", "offline", "--json", "--max-attempts", "4")

    def scripted(self, home: Path) -> Command:
        """A run of a script."""
        return self.command(
            "scripted", home, "--task", SOFTMAX, "--model", f"scripted:{STORY}", "--json", "--max-attempts", "6"
        )

    def served(self, home: Path) -> Command:
        """A run of a model, whose server fails at every second request for some time."""
        format: Format = self.draw.choice(list(NAMES))
        task = ("--task", str(self.chaos.disk / "small.py"), "--model", NAMES[format])
        return self.command(
            "served",
            home,
            *task,
            "--json",
            "--max-attempts",
            "6",
            *self.url(format),
            **keys(self.chaos.servers[format]),
        )

    def url(self, format: Format) -> tuple[str, str]:
        """Where its server is."""
        return "--base-url", self.chaos.servers[format].url

    def bench(self, home: Path) -> Command:
        """Files of the corpus: three that are right on this task, and two of which few are."""
        right = sorted(name for name, status in self.chaos.statuses.items() if status == "checked")
        names = self.draw.sample(right, 3) + self.draw.sample(sorted(self.chaos.statuses), 2)
        files = [str(ROOT / "corpus" / "honest" / name) for name in names]
        return self.command("bench", home, "bench", *files, "--task", "softmax", "--json")

    def resume(self, home: Path) -> Command:
        """What is not over, if anything is."""
        with self.chaos.full:
            runs = self.chaos.unfinished(home)
        return self.resumed(home, self.draw.choice(runs)) if runs else self.offline(home)

    def resumed(self, home: Path, run: RunStarted) -> Command:
        """Go on with a run."""
        found = [f for f in NAMES if run.author.startswith(f"{f}:")]
        more = self.url(found[0]) if found else ()
        env = keys(self.chaos.servers[found[0]]) if found else {}
        return self.command("resume", home, "--resume", run.run_id, "--json", *more, **env)

    def export(self, home: Path) -> Command:
        """One to three formats into a folder, often one that is there."""
        formats = self.draw.sample(list(FORMATS), self.draw.randint(1, 3))
        flags = [word for format in formats for word in ("--format", format)]
        output = self.chaos.disk / f"export-{self.number}-{self.draw.randrange(3)}"
        form = self.draw.choice(("parquet", "jsonl"))
        command = self.command(
            "export", home, "export", *flags, "-o", str(output), "--as", form, "--overwrite", "--json"
        )
        command.output = output
        return command

    def merge(self, home: Path) -> Command:
        """Two copies of each run meet, while both are written."""
        [other] = [record for record in self.chaos.records if record != home]
        return self.command("merge", home, "merge", str(other), "--json")

    def look(self, home: Path) -> Command:
        """A list of runs, or one of them."""
        name = self.a_run(home)
        words = ("show", name, "--json") if name and self.draw.random() < 0.6 else ("runs", "--json")
        return self.command("look", home, *words)

    def suite(self, home: Path) -> Command:
        """Two tasks with an author, begun or gone on with."""
        tasks = (SOFTMAX, str(self.chaos.disk / "small.py"))
        more = ("--max-attempts", "3", "--json", "--name", f"s{self.begun % 3}")
        return self.command("suite", home, "suite", *tasks, *more)

    def fleet(self, _: Path) -> Command:
        """A suite whose judges are a Ray cluster's, begun or gone on with."""
        tasks = (SOFTMAX, str(self.chaos.disk / "small.py"), "geglu")
        more = ("--max-attempts", "12", "--json", "--name", f"f{self.fleets_over}", "--ray", self.chaos.cluster.address)
        command = self.command("fleet", self.chaos.records[0], "suite", *tasks, *more)
        command.fleet = True
        return command

    def serve(self, home: Path) -> Command:
        """A service with a client."""
        command = self.command("serve", home, "serve")
        client = self.clients.setdefault(home, Client(self.chaos, f"{self.chaos.seed}/{self.number}/{home.name}"))
        client.want()
        command.talk = client.talk
        return command

    def agent(self, home: Path) -> Command:
        """A server for an agent, and an agent."""
        command = self.command("agent", home, "mcp")
        command.talk = talk_as_agent
        return command

    def verify(self, home: Path) -> Command:
        """An attempt again."""
        return self.command("verify", home, "verify", f"{self.a_run(home)}/1", "--json")

    def a_run(self, home: Path) -> str:
        """Any of those that are stored; "" where there is none."""
        with self.chaos.full:
            if not (home / "runs.db").exists():
                return ""
            with Store.open(home, to_look=True) as store:
                return self.draw.choice(store.run_ids() or [""])

    # What happens to a command ----------------------------------------------------------------------------------------

    def attend(self, command: Command) -> None:
        """Run it to its end, let happen what is to happen, and look at what is left."""
        out, err = (self.chaos.folder / f"{self.number}.{name}" for name in ("out", "err"))
        before = set(os.listdir(self.tmp))
        held = [name for name in before if holders_of(self.tmp / name)]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                self.vector(command),
                cwd=self.chaos.disk,
                env=self.env(command),
                stdin=subprocess.DEVNULL if command.talk is None else subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            talking = threading.Thread(target=command.talk and partial(command.talk, command, process, out))
            talking.start()
            seen = self.attended(command, process)
        command.status = process.wait()
        talking.join()  # what its client was sent before the end counts
        self.check_processes(command, seen)
        kind = command.name.split()[1]
        self.chaos.commands[kind] += 1
        self.chaos.accidents.update(f"{kind}: {what}" for what in command.happened)
        self.chaos.exits[f"{kind}: {command.status}"] += 1
        if command.fleet:
            self.fleet_is_over = command.status in (0, 1)
            self.fleets_over += self.fleet_is_over
        if self.chaos.commands.total() % 25 == 0:
            print(f"{self.chaos.commands.total()} commands, {self.chaos.accidents.total()} accidents", file=sys.stderr)
        with self.chaos.full:
            self.check(command, out.read_text(errors="replace"), err.read_text(errors="replace"), before, held)

    def vector(self, command: Command) -> list[str]:
        """What is executed."""
        words = [str(Path(sys.executable).with_name("optimize")), *command.words]
        if any(name == "monotonic" for _, name in command.accidents):
            away = str(self.draw.choice((-1, 1)) * self.draw.randrange(1, 40_000))
            words = ["unshare", "--time", "--monotonic", away, *words]
        return words

    def env(self, command: Command) -> dict[str, str]:
        """This environment without keys and settings, with a home and a temporary folder on the small disk."""
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and not k.startswith("KERNELTUNE_")}
        own = {"TMPDIR": str(self.tmp), "HOME": str(self.chaos.disk / "home")}
        return kept | own | command.env | (self.clock.env if self.clock else {})

    def attended(self, command: Command, process: "subprocess.Popen[bytes]") -> dict[int, int]:
        """Wait for its end. Returns each process that it was seen to have, with the time when that began."""
        began, seen, later = time.monotonic(), dict[int, int](), list[tuple[float, Callable[[], None]]]()
        due = list(command.accidents)
        if self.clock:
            self.clock.jump(0)
        with contextlib.ExitStack() as undone:
            while process.poll() is None:
                now = time.monotonic() - began
                if self.chaos.is_full and "disk" not in command.happened:  # it is everybody's
                    command.happened.append("disk")
                below = process_tree(process.pid)
                seen |= {pid: start for pid, (start, _) in below.items()}
                if due and now > due[0][0]:
                    Accident(self, command, process.pid, list(below), now, later, undone).happen(due.pop(0)[1])
                for at, undo in [entry for entry in later if entry[0] < now]:
                    later.remove((at, undo))
                    undo()
                if now > MOST_S:
                    command.status = -signal.SIGKILL
                    self.chaos.violated(command, f"it did not end within {MOST_S:.0f} s; stack {stack_of(process.pid)}")
                    process.kill()
                    process.wait()
                time.sleep(0.05)
        return seen

    def check_processes(self, command: Command, seen: dict[int, int]) -> None:
        """No process that the command had is left. One that was stopped before it could ask to die with the command
        ends when it goes on."""
        ends = time.monotonic() + GRACE_S
        while left := living(seen):
            over = time.monotonic() - ends
            if over > 0:
                self.chaos.violated(command, f"processes are left: {[(pid, command_of(pid)) for pid in left]}")
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                return
            if over > -GRACE_S / 2 and any(what.startswith("stop") for what in command.happened):
                self.chaos.stopped += len(left)
                for pid in left:
                    go_on(pid)
            time.sleep(0.2)

    def check(self, command: Command, out: str, err: str, before: set[str], held: list[str]) -> None:
        """Look at what it printed, at the record and at what is left in folders."""
        chaos = self.chaos
        is_signal = command.status < 0 and any(f"signal_{-command.status}" in name for name in command.happened)
        by_service = "judged by the service" in err  # which has accidents of its own, and a scratch folder
        lost = {"kill_below", "kill_judge"} & {*command.happened}
        hurt = command.starved or lost  # our own process gone is exit code 4
        is_signal |= "memory" in command.happened and command.status == -signal.SIGABRT  # by libraries of C++ and Rust
        if command.status not in ENDS and not is_signal and not (hurt and command.status == 4):
            chaos.violated(command, f"exit code {command.status}: {err[-2000:]}")
        # whatever could not be allocated
        excused = "memory" in command.happened
        if "Traceback" in err and not excused:
            chaos.violated(command, f"a traceback: {err[-3000:]}")
        told = any(text in out + err for text in REFUSALS)
        if command.status == 2 and not told and not hurt:
            chaos.violated(command, f"refused: {err[-500:]}")
        asked = "served" in command.name or "resume" in command.name  # a provider may refuse the account, which is 3
        if not command.happened and command.status in ((6, 130) if asked else (3, 6, 130)) and not told:
            chaos.violated(command, f"it failed though nothing happened to it: {err[-1000:]}")
        try:
            chaos.check_events(command, "\n".join([out, *command.heard]))
            chaos.check_told(command)
            if command.output is not None:
                chaos.check_export(command, command.output)
        except (KerneltuneError, OSError, ValueError) as error:
            chaos.violated(command, f"what it made cannot be read: {type(error).__name__} {error}")
        chaos.check_record(command, command.home, whole=self.begun % 10 == 0)
        self.check_folders(command, before, held, judged_here=not by_service)

    def check_folders(self, command: Command, before: set[str], held: list[str], *, judged_here: bool) -> None:
        """Nothing temporary is left, but by a command that was killed, and then until the next one that needs such a
        folder."""
        now = set(os.listdir(self.tmp))
        kind = command.name.split()[1]
        needs_one = judged_here and kind in ("offline", "scripted", "served", "bench")
        swept = needs_one and command.status in (0, 1) and not command.killed
        if "descriptors" in command.happened:  # without one, no folder can be removed
            return
        wrong = now if swept else now - before if not command.killed and command.status >= 0 else set()
        if wrong:
            content = {
                name: sorted(os.listdir(self.tmp / name))[:5] if (self.tmp / name).is_dir() else "file"
                for name in wrong
            }
            holders = {name: holders_of(self.tmp / name) for name in wrong}
            whose = {name: self.left.get(name, "its own") for name in wrong}
            self.chaos.violated(
                command, f"temporary folders are left: {content}, of {whose}, held by {holders}, before it: {held}"
            )
            for name in wrong:
                shutil.rmtree(self.tmp / name, ignore_errors=True)
        self.left |= {name: f"{command.name} {command.happened} {command.status}" for name in now - before}


class Client:
    """A client of one record's services, one after the other: what one that was killed left undone, it asks the next
    one for. `left`: files that it has no verdict on; `run_id`: of its session; `told`: the status of each attempt of
    it, as this client was told; `wants_session`: until one is finished."""

    def __init__(self, chaos: Chaos, seed: str) -> None:
        self._chaos, self._draw = chaos, random.Random(seed)
        self.left: dict[str, str] = {}
        self.run_id, self.wants_session = "", False
        self.told: dict[str, str] = {}

    @property
    def is_content(self) -> bool:
        """Whether it has all that it wanted."""
        return not self.left and not self.wants_session

    def want(self) -> None:
        """Want something, if there is nothing that it wants: files benched, and a session."""
        if self.is_content:
            names = self._draw.sample(sorted(self._chaos.statuses), 5)
            self.left = {name: (ROOT / "corpus" / "honest" / name).read_text() for name in names}
            self.wants_session = True

    def talk(self, command: Command, process: "subprocess.Popen[bytes]", out: Path) -> None:
        """Ask a service until it is content, again where something failed on the way; end the service after that."""
        transport = httpx2.HTTPTransport(uds=str(service_socket(command.home)))
        with httpx2.Client(transport=transport, timeout=MOST_S, base_url="http://service") as client:
            while process.poll() is None and "serving on" not in out.read_text():
                time.sleep(0.05)
            for _ in range(4):
                with contextlib.suppress(httpx2.HTTPError, OSError, json.JSONDecodeError):
                    if process.poll() is None and not self.is_content:
                        self._bench(command, client)
                        self._session(command, client)
        if process.poll() is None:
            process.send_signal(signal.SIGINT)

    def _bench(self, command: Command, client: httpx2.Client) -> None:
        """Send the files; each verdict counts as soon as it has come."""
        if not self.left:
            return
        with client.stream("POST", "/bench", json={"task": "softmax", "sources": self.left}) as lines:
            for line in lines.iter_lines():
                command.heard.append(line)
                told = json.loads(line)
                if told.get("type") == "judged_file":
                    self.left.pop(told["file"])

    def _session(self, command: Command, client: httpx2.Client) -> None:
        """Begin a session or go on with it, have two kernels judged, and finish it."""
        if not self.wants_session:
            return
        answer = client.post("/sessions", json={"resume": self.run_id} if self.run_id else {"task": "softmax"})
        if answer.is_error and self.run_id and not command.happened:
            self._chaos.violated(command, f"{self.run_id} cannot be gone on with: {answer.text[:500]}")
        begun = answer.raise_for_status().json()
        self.run_id, known = begun["run_id"], begun["attempts"]
        command.told.extend(known)
        listed = Counter((one["attempt_id"], one["status"]) for one in known)
        for one in self.told.items():
            if listed[one] != 1:
                self._chaos.violated(command, f"{one} was told, and is listed {listed[one]} times after a restart")
        self.told.update(pair for pair in listed if pair[1] is not None)
        for number, call in enumerate(agent_calls()):
            row = known[number // 2] if number // 2 < len(known) else None
            if row is not None and (number % 2 == 0 or row["status"] is not None):
                continue
            asked = {"name": call["tool"], "arguments": call["arguments"]}
            made = client.post(f"/sessions/{begun['session']}/call", json=asked).raise_for_status().json()
            if (attempt := made.get("attempt")) and attempt["status"] is not None:
                command.told.append(attempt)
                self.told[attempt["attempt_id"]] = attempt["status"]
        client.delete(f"/sessions/{begun['session']}").raise_for_status()
        self.run_id, self.wants_session, self.told = "", False, {}


def talk_as_agent(command: Command, process: "subprocess.Popen[bytes]", out: Path) -> None:
    """Be an agent: start a run, call its tools, finish it, and go."""
    assert process.stdin is not None
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "chaos", "version": "1"}}
    start, finish = {"tool": "start", "arguments": {"task": "softmax"}}, {"tool": "finish", "arguments": {}}
    asked: list[tuple[str, dict[str, Any]]] = [("initialize", hello)]
    asked += [("tools/call", {"name": c["tool"], "arguments": c["arguments"]}) for c in (start, *agent_calls(), finish)]
    with contextlib.suppress(OSError), process.stdin as stdin:
        for number, (method, params) in enumerate(asked):
            line = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            stdin.write(json.dumps(line).encode() + b"\n")
            if number == 0:
                stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
            stdin.flush()
            result = answer_to(number, process, out).get("result", {}).get("structuredContent", {})
            if params.get("name") == "bench" and result.get("attempt"):
                command.told.append(result["attempt"])


def answer_to(number: int, process: "subprocess.Popen[bytes]", out: Path) -> dict[str, Any]:
    """The message that answers a request; nothing when the server is gone."""
    while True:
        is_over = process.poll() is not None
        for line in out.read_text(errors="replace").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                if (told := json.loads(line)).get("id") == number:
                    return dict(told)
        if is_over:
            return {}
        time.sleep(0.1)


def agent_calls() -> list[dict[str, Any]]:
    """Two kernels, each sent and benched."""
    names = ("several_rows_a_program", "autotune_configs")
    sources = [(ROOT / "corpus" / "honest" / f"{name}.py").read_text() for name in names]
    return [
        call
        for number, source in enumerate(sources, 1)
        for call in (
            {"tool": "update", "arguments": {"rationale": "another", "source": source}},
            {"tool": "bench", "arguments": {"attempt": number}},
        )
    ]


@dataclass
class Accident:
    """Something that happens to a command. `below`: its processes; `later`: what is to be undone, and when; `undone`:
    what is undone at its end at the latest."""

    lane: Lane
    command: Command
    pid: int
    below: list[int]
    now: float
    later: list[tuple[float, Callable[[], None]]]
    undone: contextlib.ExitStack

    def happen(self, name: str) -> None:
        """The accident of that name."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended just now, or became another user's
            told = getattr(self, name)()
            self.command.happened.extend([name if told is None else told] if told != NOT_YET else ())

    def any_of(self) -> int:
        """The command's process, or one of those below it."""
        return self.lane.draw.choice([self.pid, *self.below])

    def kill(self) -> str:
        """As `kill -9` does, and the kernel when memory runs out."""
        os.kill(self.pid, signal.SIGKILL)
        self.command.killed = True
        return "kill signal_9"

    def kill_below(self) -> str:
        """One of its processes is killed."""
        if not self.below:
            return "kill_below of none"
        os.kill(self.lane.draw.choice(self.below), signal.SIGKILL)
        return "kill_below"

    def kill_judge(self) -> str:
        """A judge's process is killed: one of the command's own, or of an actor's."""
        holders = [self.pid, *(actors() if self.command.fleet else ())]
        return self.one_of("kill_judge", [judge for pid in holders for judge in judges_of(pid)])

    def kill_actor(self) -> str:
        """An actor of Ray's, which has a judge, is killed."""
        return self.one_of("kill_actor", actors() if self.command.fleet else [])

    def one_of(self, name: str, pids: Sequence[int]) -> str:
        """Kill one of these that are there; where none is yet, some time later."""
        if not (there := [pid for pid in pids if is_alive(pid)]):
            self.now += self.lane.draw.uniform(0.2, 3)
            self.later.append((self.now, partial(self.happen, name)))
            return NOT_YET
        os.kill(self.lane.draw.choice(there), signal.SIGKILL)
        return name

    def stop(self) -> None:
        """One of its processes stops for some seconds."""
        pid = self.any_of()
        os.kill(pid, signal.SIGSTOP)
        self.later.append((self.now + self.lane.draw.uniform(0.5, 6), lambda: go_on(pid)))

    def stop_and_kill(self) -> str:
        """One of its processes is stopped, and the command killed: what is stopped must die with it."""
        for pid in self.below[:: self.lane.draw.randint(1, 3)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        self.kill()
        return "stop_and_kill signal_9"

    def interrupt(self) -> str:
        """Ctrl-C, which a terminal sends to all of the command's group."""
        os.killpg(self.pid, signal.SIGINT)
        return "interrupt signal_2"

    def terminate(self) -> str:
        """SIGTERM to the command."""
        os.kill(self.pid, signal.SIGTERM)
        return "terminate signal_15"

    def hang_up(self) -> str:
        """The terminal's window is closed."""
        os.killpg(self.pid, signal.SIGHUP)
        return "hang_up signal_1"

    def disk(self) -> str:
        """The disk is full for some seconds."""
        if not self.lane.chaos.full.acquire(blocking=False):
            return "disk that is looked at"
        ballast = self.lane.chaos.disk / "ballast"

        def over() -> None:
            if ballast.exists():
                ballast.unlink()
                self.lane.chaos.is_full = False
                self.lane.chaos.full.release()

        self.lane.chaos.is_full = True
        free = shutil.disk_usage(ballast.parent).free
        with open(ballast, "wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(1, free - self.lane.draw.choice((0, 4096, 65536, 1 << 20))))
        self.undone.callback(over)
        self.later.append((self.now + self.lane.draw.uniform(0.5, 8), over))
        return "disk"

    def file_size(self) -> None:
        """No file may become longer than so."""
        lower(self.pid, resource.RLIMIT_FSIZE, self.lane.draw.randrange(1 << 21))

    def descriptors(self) -> None:
        """Hardly any descriptor is left."""
        lower(self.pid, resource.RLIMIT_NOFILE, len(os.listdir(f"/proc/{self.pid}/fd")) + self.lane.draw.randrange(8))

    def memory(self) -> None:
        """Hardly any address space is left to one of its processes."""
        pid = self.any_of()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
        lower(pid, resource.RLIMIT_AS, pages * 4096 + self.lane.draw.randrange(1 << 25))

    def wall_clock(self) -> None:
        """The system's clock is set, by seconds or by years."""
        most = self.lane.draw.choice((5, 3600, YEAR_S, 20 * YEAR_S))
        if self.lane.clock:
            self.lane.clock.jump(self.lane.draw.randint(-most, most))

    def monotonic(self) -> None:
        """It runs with another monotonic clock from its start: another boot's."""


ACCIDENTS = (
    "kill", "kill", "kill_below", "kill_below", "kill_judge", "kill_actor", "stop", "stop", "stop_and_kill",
    "interrupt", "terminate", "hang_up", "disk", "disk", "file_size", "descriptors", "memory", "wall_clock",
    "wall_clock", "monotonic",
)  # fmt: skip


def actors() -> list[int]:
    """The processes in which Ray has a judge's actor."""
    return [pid for pid in process_tree(os.getpid()) if command_of(pid).startswith(f"ray::{JudgeActor.__name__}")]


def judges_of(pid: int) -> list[int]:
    """The judges of a supervisor, without a GPU: what its first fork server has made since the other fork servers."""
    servers = [child for child in children_of(pid) if "bwrap" not in command_of(child)]
    return [judge for server in servers for judge in children_of(server)[FORK_SERVERS:]]


def children_of(pid: int) -> list[int]:
    """The processes that it made, the earliest first."""
    found = dict[int, int]()
    for child, (start, _) in process_tree(pid).items():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            if int(words[1]) == pid:
                found[child] = start
    return sorted(found, key=lambda child: (found[child], child))


def lower(pid: int, what: int, most: int) -> None:
    """Set the limit of a process, as it counts; what it may be raised to stays."""
    _, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def go_on(pid: int) -> None:
    """Let it go on, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def living(seen: dict[int, int]) -> list[int]:
    """Those that are there still; what came to us when its parent died is waited for."""
    left = []
    for pid, start in seen.items():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(words[19]) != start:
                continue
            if words[0] == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            elif is_alive(pid):
                left.append(pid)
    return left


def command_of(pid: int) -> str:
    """What a process was started with, and what it waits in."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"{words[:200]} {Path(f'/proc/{pid}/status').read_text().splitlines()[2]}"
    return "gone"


def holders_of(path: Path) -> list[str]:
    """The processes that hold a lock on it; those of another namespace have no number here."""
    locks, ends = Path("/proc/locks").read_text().splitlines(), f":{path.stat().st_ino}"
    pids = [int(words[4]) for words in map(str.split, locks) if words[5].endswith(ends)]
    return [f"{pid} {command_of(pid)}" for pid in pids]


def stack_of(pid: int) -> str:
    """What its processes wait in."""
    return "; ".join(f"{p} {command_of(p)}" for p in (pid, *process_tree(pid)))[:3000]


def resumed_until_over(chaos: Chaos, lanes: Sequence[Lane]) -> None:
    """Nothing happens any more: what began is resumed, and is over then."""
    for weather in chaos.weather:
        weather.end()
    left = [(home, run) for home in chaos.records for run in chaos.unfinished(home)]

    def share(lane: Lane) -> None:
        for home, run in left[lane.number :: len(lanes)]:
            command = lane.resumed(home, run)
            lane.attend(command)
            if run.run_id in [left.run_id for left in chaos.unfinished(home)]:
                chaos.violated(command, f"run {run.run_id} is not over after it was resumed")

    run_side_by_side([partial(share, lane) for lane in lanes])


def gone_on_with(chaos: Chaos, lanes: Sequence[Lane]) -> None:
    """Nothing happens any more: the fleet that is begun or gone on with is over then, and clients get what they
    want."""
    if chaos.cluster is not None:  # also where the last one is over: a killed actor's folder goes when another begins
        lanes[0].attend(command := lanes[0].fleet(chaos.records[0]))
        if not lanes[0].fleet_is_over:
            chaos.violated(command, "a fleet is not over after it was repeated")
    chaos.end_cluster()
    for lane in lanes:
        for home, client in lane.clients.items():
            if not client.is_content:
                lane.attend(command := lane.serve(home))
                if not client.is_content:
                    chaos.violated(command, f"a client has no verdict on {sorted(client.left)}, or no session")


def check_all(chaos: Chaos, lanes: Sequence[Lane]) -> dict[str, int]:
    """All that was ever printed is stored; both records become one; all can be exported; nothing is left."""
    gone_on_with(chaos, lanes)
    resumed_until_over(chaos, lanes)
    whole = merged(chaos, lanes[0])
    command = lanes[0].command("export", whole, "export", "--format", "raw", "-o", str(chaos.disk / "all"), "--json")
    command.output = chaos.disk / "all"
    lanes[0].attend(command)
    for (home, run_id), keys_of_run in chaos.printed.items():
        for record in (home, whole):
            stored = stored_events(record, run_id)
            if lost := [key for key in keys_of_run if stored[key] != 1]:
                chaos.violated(command, f"{len(lost)} events of {run_id} are no longer stored once: {lost[0][:300]}")
    with Store.open(whole) as store:
        events = sum(len(store.load_events(run)) for run in store.run_ids())
    rows = sum(len(rows_of(path)) for path in (chaos.disk / "all").glob("data/raw/*"))
    if rows != events:
        chaos.violated(command, f"{events} events are stored and {rows} exported")
    for lane in lanes:  # each removes what was left in its temporary folder
        file = str(ROOT / "corpus" / "honest" / "helpers_and_closures.py")
        lane.attend(command := lane.command("bench", chaos.disk / "last", "bench", file, "--task", "softmax"))
    check_nothing_is_left(chaos, command)
    return check_record(whole) | {"events": events, "events_printed": sum(map(len, chaos.printed.values()))}


def merged(chaos: Chaos, lane: Lane) -> Path:
    """The record that both become. Merged into each other first, they are the same."""
    whole = chaos.disk / "whole"
    first, second = chaos.records
    for home, other in ((first, second), (second, first), (whole, first), (whole, second)):
        if not (other / "runs.db").exists():
            continue
        lane.attend(command := lane.command("merge", home, "merge", str(other), "--json"))
        if command.status != 0:
            chaos.violated(command, "the records do not become one")
    return whole


def check_nothing_is_left(chaos: Chaos, command: Command) -> None:
    """No temporary folder, no file that was being written, no process."""
    found = [*chaos.disk.rglob(".*"), *chaos.disk.rglob("kerneltune-*")]
    if left := [path for path in found if not path.is_relative_to(chaos.disk / "home")]:
        chaos.violated(command, f"left behind: {left}")
    below = {pid: start for pid, (start, _) in process_tree(os.getpid()).items()}
    if running := living(below):
        chaos.violated(command, f"processes are left: {[command_of(pid) for pid in running]}")


def main() -> int:
    """Run the lanes, look at all, print what was found; 1 where anything was violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--disk-mib", type=int, default=1024)
    parser.add_argument("--kinds", help="of commands, by commas; all")
    parser.add_argument("--accidents", help="that happen, by commas; all")
    parser.add_argument("--keep", type=Path, help="copy the disk there at the end")
    asked = parser.parse_args()
    if os.environ.pop("CHAOS_INSIDE", None) is None:  # in namespaces of our own we may mount, whoever we are
        os.environ["CHAOS_INSIDE"] = "1"
        os.execvp("unshare", ["unshare", "-rm", sys.executable, "-m", "benchmarks.chaos", *sys.argv[1:]])
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder, small_disk(Path(folder), asked.disk_mib) as disk:
        kinds, accidents = ((given or "").split(",") if given else () for given in (asked.kinds, asked.accidents))
        chaos = Chaos(Path(folder), asked.seed, asked.minutes, disk, kinds, accidents or ACCIDENTS)
        with contextlib.ExitStack() as stack:
            for server in chaos.servers.values():
                stack.enter_context(server)
            stack.callback(chaos.end_cluster)
            lanes = [Lane(chaos, number) for number in range(asked.lanes)]
            run_side_by_side([lane.run for lane in lanes])
            found = check_all(chaos, lanes)
        if asked.keep:
            shutil.copytree(disk, asked.keep, dirs_exist_ok=True, symlinks=True)
    told = {
        "seed": asked.seed,
        "seconds": round(time.monotonic() - began),
        "commands": chaos.commands,
        "accidents": chaos.accidents,
        "exit_codes": chaos.exits,
        "wall_clock": chaos.has_clock,
        **found,
        "verdicts_told_to_clients": chaos.verdicts_told,
        "shown_and_not_stored": chaos.unstored,
        "stopped": chaos.stopped,
        "violations": len(chaos.violations),
    }
    print(json.dumps(told, indent=2), flush=True)
    return int(bool(chaos.violations))


def run_side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own. Raises what the first of them raised."""
    raised: list[BaseException] = []

    def kept(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)
            raise

    threads = [threading.Thread(target=kept, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A file system of so many MiB."""
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "chaos", str(disk)], check=True)
    try:
        (disk / "home").mkdir()
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


if __name__ == "__main__":
    raise SystemExit(main())
