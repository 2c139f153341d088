"""A suite's judges on a Ray cluster: several nodes that are simulated on this machine, without a GPU."""

import contextlib
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.chaos import judges_of
from kerneltune.agent.commands.fleet import (
    CPU,
    Fleet,
    FleetJudge,
    JudgeAnswer,
    JudgeFacts,
    JudgeLost,
    JudgeSetup,
    left_out,
    packed,
    unpacked,
)
from kerneltune.agent.commands.session import Session, Workshop, session, workshop
from kerneltune.agent.events import Proposed, RunStarted
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Settings
from kerneltune.tools.backends.base import GpuInfo
from kerneltune.tools.schema.codec import DecodeError
from kerneltune.tools.schema.errors import GpuLost, Unfit
from kerneltune.tools.schema.verdict import Status, Verdict, evaluator_sha256, versions
from kerneltune.tools.task.load import TaskFile, find_task
from tests.agent.shell import SOFTMAX, command, env, optimize
from tests.agent.test_suite import RIGHT, attempts_of, tasks, told

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'kerneltune[ray]'"
)
WRONG = RIGHT.replace("e / tl.sum(e, 0)", "e / (tl.sum(e, 0) + 1.0)")
NODES = 3


# Which judges are taken -----------------------------------------------------------------------------------------------


def judge(number: int, model: str = "NVIDIA H200", copy_gbps: float | None = 4300.0, **others: Any) -> JudgeFacts:
    gpu = GpuInfo(model, 90, f"GPU-{number}", 141 << 30, "580.1")
    facts = JudgeFacts(f"node{number}", number, gpu, copy_gbps, evaluator_sha256(), versions())
    return replace(facts, **others)


def test_a_gpu_that_copies_more_than_two_percent_below_its_like_is_left_out() -> None:
    why = left_out([judge(0), judge(1), judge(2), judge(3, copy_gbps=4200.0)], wants_gpu=True)
    assert why == {3: "it copies 4,200 GB/s, 2.3% below the median of its model (4,300 GB/s)"}
    assert left_out([judge(0), judge(1, copy_gbps=4220.0)], wants_gpu=True) == {}


def test_gpus_of_one_model_judge_a_suite_and_each_model_has_its_own_median() -> None:
    judges = [judge(0, "NVIDIA H100 80GB HBM3", 2900.0), judge(1), judge(2)]
    other = "times of a NVIDIA H100 80GB HBM3 do not compare with those of a NVIDIA H200"
    assert left_out(judges, wants_gpu=True) == {0: other}


def test_what_a_node_says_of_its_gpus_counts_for_nothing_against_what_nvml_says() -> None:
    twice = replace(judge(1), gpu=judge(0).gpu)
    assert left_out([judge(0), twice, judge(2, gpu=None, copy_gbps=None)], wants_gpu=True) == {
        1: "another judge has its GPU GPU-0, which Ray counts twice",
        2: "Ray counts a GPU there, but NVML shows none",
    }


def test_a_judge_with_other_software_or_none_is_left_out() -> None:
    torch = versions()["torch"]
    judges = [judge(0, evaluator="0"), judge(1, versions=versions() | {"torch": "1.0"}), judge(2, problem="no torch")]
    assert left_out([*judges, judge(3)], wants_gpu=True) == {
        0: "its kerneltune is not the same as the one here",
        1: f"its torch is 1.0, here {torch}",
        2: "no torch",
    }


class _Cluster:
    """Ray as far as a fleet asks it: its one actor after the other says these facts of itself."""

    exceptions = SimpleNamespace(RayError=ConnectionError)

    def __init__(self, *facts: JudgeFacts) -> None:
        self.facts = [packed(one) for one in facts]

    def remote(self, _: object) -> Any:
        """Of a class, its options; of the bytes that a judge begins with, an actor."""
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda _: self._actor()))

    def _actor(self) -> Any:
        return SimpleNamespace(facts=SimpleNamespace(remote=self.facts.pop))

    def wait(self, calls: list[bytes], **_: Any) -> tuple[list[bytes], list[bytes]]:
        return calls, []

    def get(self, call: bytes) -> bytes:
        return call

    def kill(self, _: object) -> None:
        pass


def test_the_last_judge_is_not_replaced_by_a_gpu_of_another_model_and_then_no_gpu_is_left() -> None:
    said: list[str] = []
    cluster = _Cluster(judge(1, "NVIDIA H100 80GB HBM3", 2900.0), judge(0))
    fleet = Fleet(cluster, "GPU", JudgeSetup("", False, False, None), said.append)
    fleet.judges = fleet._begun(1, 1.0)
    fleet.judges[0].users |= {0, 1}
    with pytest.raises(GpuLost, match="no judge is left"):
        fleet.lose(fleet.judge_of(0), "unplugged")
    assert any("times of a NVIDIA H100 80GB HBM3 do not compare with those of a NVIDIA H200" in one for one in said)
    with pytest.raises(GpuLost, match="no judge is left"):
        fleet.judge_of(1)  # which the other slot asks for


class _LostMeanwhile(list[FleetJudge]):
    """Judges that are lost as soon as somebody has looked at them."""

    def __iter__(self) -> Iterator[FleetJudge]:
        there = [self[at] for at in range(len(self))]
        self.clear()
        return iter(there)


def test_a_fresh_judge_of_another_model_is_left_out_also_while_another_one_is_lost() -> None:
    said: list[str] = []
    cluster = _Cluster(judge(1, "NVIDIA H100 80GB HBM3", 2900.0), judge(0))
    fleet = Fleet(cluster, "GPU", JudgeSetup("", False, False, None), said.append)
    fleet.judges = _LostMeanwhile(fleet._begun(1, 1.0))
    with pytest.raises(Unfit, match="no judge of the cluster can be used"):
        fleet._begun(1, 1.0)
    assert ["do not compare" in one for one in said] == [True]


class _Queue(_Cluster):
    """A judge that answers each call when its time has come, which the call says by the monotonic clock."""

    def wait(self, calls: list[Any], timeout: float = 0.0, **_: Any) -> tuple[list[Any], list[Any]]:
        left_s = calls[0] - time.monotonic()
        time.sleep(max(0.0, min(left_s, timeout)))
        return ([], calls) if left_s > timeout else (calls, [])

    def get(self, call: object) -> bytes:
        return packed(JudgeAnswer())


def test_a_judge_that_answers_other_slots_meanwhile_is_not_lost_and_a_silent_one_is() -> None:
    fleet = Fleet(_Queue(), "GPU", JudgeSetup("", False, False, None), lambda _: None)
    shared, began_s = FleetJudge(None, judge(0), {0, 1}), time.monotonic()
    other = threading.Thread(target=fleet.ask, args=[shared, began_s + 1.0, 1.5])
    other.start()
    assert fleet.ask(shared, began_s + 2.0, 1.5)[0] == JudgeAnswer()
    other.join()
    with pytest.raises(JudgeLost, match=r"no answer within 0\.2 s"):
        fleet.ask(shared, time.monotonic() + 10.0, 0.2)


# What travels ---------------------------------------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was_with_its_blobs() -> None:
    answer = JudgeAnswer(Verdict(Status.WRONG, "off by one", receipt={"seeds": {"a": 1}}))
    assert unpacked(JudgeAnswer, packed(answer, [b"\0machine", b"", b"code"])) == (answer, [b"\0machine", b"", b"code"])


@pytest.mark.parametrize(
    "data",
    [
        None,  # Ray carries anything
        b"",
        b"\x80\x04\x95",
        struct.pack("<Q", 1 << 63) + b"{}",
        struct.pack("<Q", 10) + b"[{}, [5]]",
        struct.pack("<Q", 10) + b"[{}, [-1]]",
        struct.pack("<Q", 22) + b'[{"verdict": 1.5}, []]',
        struct.pack("<Q", 4) + b"[[[[",
        struct.pack("<Q", 2) + b"\xff\xff",
    ],
)
def test_what_is_no_message_is_refused(data: object) -> None:
    with pytest.raises(DecodeError):
        unpacked(JudgeAnswer, data)


def test_a_command_without_ray_never_imports_it() -> None:
    code = "import sys, kerneltune.agent.commands.rounds, kerneltune.agent.cli; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=env()).returncode == 0


# On simulated nodes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A cluster of a head that judges nothing."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@needs_ray
def test_what_no_node_has_is_named_within_our_own_time_limit(head: Any) -> None:
    began_s = time.monotonic()
    with pytest.raises(Unfit, match=r"for 2 s no node had the resource GPU: 1 free; the cluster has GPU: 0 \(0 free\)"):
        Fleet.start(head.address, Settings(), join_s=2.0)
    assert time.monotonic() - began_s < 30.0


@needs_ray
def test_an_address_at_which_nobody_listens_is_said_in_one_line(tmp_path: Path) -> None:
    done = optimize("suite", "softmax", "--ray", "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 3
    assert "optimize: --ray 127.0.0.1:1: [Errno 111] Connection refused" in done.stderr
    assert "ray start --head" in done.stderr.splitlines()[-1]


@dataclass
class Nodes:
    """Simulated machines, each with a judge's resource."""

    cluster: Any
    tmp: Path  # where their judges make folders
    alive: list[Any] = field(default_factory=list)
    addresses: Iterator[str] = field(default_factory=lambda: map("127.0.0.{}".format, range(2, 250)))

    def add(self) -> None:
        """A node that no driver takes for its own machine's."""
        its = {"node_ip_address": next(self.addresses), "env_vars": {"TMPDIR": str(self.tmp)}}
        self.alive.append(self.cluster.add_node(num_cpus=1, resources={CPU: 1}, **its))

    def remove(self) -> None:
        self.cluster.remove_node(self.alive.pop(0), allow_graceful=False)


@pytest.fixture(scope="module")
def nodes(head: Any, tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    nodes = Nodes(head, tmp_path_factory.mktemp("nodes"))
    for _ in range(NODES):
        nodes.add()
    return nodes


@needs_ray
def test_a_driver_that_is_killed_and_a_node_that_goes_lose_nothing_and_double_nothing(
    nodes: Nodes, tmp_path: Path
) -> None:
    tasks(tmp_path, "a1", "a2", "a3")
    words = ("suite", "tasks", "--authors", "offline", "--max-attempts", "6", "--json", "--ray", nodes.cluster.address)

    def at_the_first_verdict(act: Callable[["subprocess.Popen[str]"], None]) -> tuple[int, str]:
        with subprocess.Popen(
            command(*words), cwd=tmp_path, env=env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if json.loads(line)["type"] == "judged":
                    act(process)
                    break
            rest, errors = process.communicate(timeout=200)
        assert process.returncode in (0, -signal.SIGKILL), errors
        return process.returncode, rest

    assert at_the_first_verdict(lambda process: process.kill())[0] == -signal.SIGKILL
    code, rest = at_the_first_verdict(lambda _: nodes.remove())
    nodes.add()
    assert (code, told(rest)[-1]["subtype"], told(rest)[-1]["unsolved"]) == (0, "success", [])
    made = {task: sorted(numbers) for (task, _), numbers in attempts_of(tmp_path).items()}
    assert made.keys() == {"a1", "a2", "a3"}
    assert sum(map(len, made.values())) == 6
    with Store.open(tmp_path / "runs") as store:
        events = [event for run_id in store.run_ids() for event in store.load_events(run_id)]
    assert sum(isinstance(event, RunStarted) for event in events) == 3
    assert sum(isinstance(event, Proposed) for event in events) == 6


@needs_ray
def test_a_fleet_that_is_closed_leaves_no_folder_on_its_nodes(nodes: Nodes) -> None:
    with contextlib.closing(Fleet.start(nodes.cluster.address, Settings())) as fleet:
        assert len(list(nodes.tmp.iterdir())) >= fleet.width
    assert list(nodes.tmp.iterdir()) == []


@dataclass(frozen=True)
class Bench:
    """A fleet, and what sits beside it on this machine."""

    fleet: Fleet
    shop: Workshop
    file: TaskFile
    said: list[str]

    def verdict(self, source: str, slot: int = 0) -> Verdict:
        with self.fleet.session(self.fleet.workshop(self.shop), slot, self.file) as opened:
            return judged(opened, source)


def judged(opened: Session, source: str) -> Verdict:
    update = opened.tools.updater.update(source)
    return update.failure or opened.tools.benches.bench(update)


@pytest.fixture(scope="module")
def begun(nodes: Nodes) -> Iterator[Bench]:
    said: list[str] = []
    with (
        contextlib.closing(Fleet.start(nodes.cluster.address, Settings(), said.append)) as fleet,
        workshop(Settings(), lambda _: None) as shop,
    ):
        yield Bench(fleet, shop, find_task(SOFTMAX), said)


@pytest.fixture
def bench(begun: Bench) -> Bench:
    """The fleet, with the judges replaced that an earlier test lost: a slot that shares one gets one of its own at its
    next turn, as soon as Ray knows that the place is free."""
    deadline_s = time.monotonic() + 30.0
    while len(begun.fleet.judges) < NODES and time.monotonic() < deadline_s:
        for slot in range(NODES):
            with begun.fleet.session(begun.fleet.workshop(begun.shop), slot, begun.file):
                time.sleep(0.2)
    assert [len(its.users) for its in begun.fleet.judges] == [1] * NODES
    return begun


def told_of(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.status, verdict.cause, [(c.case, c.inputs, c.ok) for c in verdict.cases], verdict.left_out


@needs_ray
def test_verdicts_are_those_of_this_machine_and_name_the_judge(bench: Bench) -> None:
    assert bench.fleet.width == NODES
    assert len({its.facts.process for its in bench.fleet.judges}) == NODES
    with session(bench.shop, bench.file) as here:
        for source in (RIGHT, WRONG, "def f(:"):
            mine, theirs = judged(here, source), bench.verdict(source)
            assert told_of(mine) == told_of(theirs)
            assert mine.receipt.get("plan") == theirs.receipt.get("plan")
    assert bench.verdict(RIGHT, 1).receipt["judge"] == {"host": bench.fleet.judge_of(1).facts.host, "gpu": None}


def stopped(process: int) -> Callable[[], None]:
    """Stop a process, which is then in the middle of whatever it is asked; what lets it go on is killing it."""
    os.kill(process, signal.SIGSTOP)
    return lambda: os.kill(process, signal.SIGKILL)


@needs_ray
def test_a_plan_whose_judge_dies_is_judged_elsewhere_and_the_run_stays_there(bench: Bench) -> None:
    with bench.fleet.session(bench.fleet.workshop(bench.shop), 0, bench.file) as opened:
        lost, update = bench.fleet.judge_of(0), opened.tools.updater.update(RIGHT)
        threading.Timer(3.0, stopped(lost.facts.process)).start()
        verdict = opened.tools.benches.bench(update)
        again = judged(opened, WRONG)
    assert (verdict.status, again.status) == (Status.CHECKED, Status.WRONG)
    assert verdict.receipt["judges_lost"] == [lost.facts.name]
    assert "judges_lost" not in again.receipt
    assert lost not in bench.fleet.judges
    assert bench.said[-1].startswith(f"judge {lost.facts.name} is lost: ")


@needs_ray
def test_a_killed_judge_is_its_machine_s_fault_and_not_the_task_s(bench: Bench) -> None:
    with bench.fleet.session(bench.fleet.workshop(bench.shop), 0, bench.file) as opened:
        lost, update = bench.fleet.judge_of(0), opened.tools.updater.update(RIGHT)
        [process] = judges_of(lost.facts.process)
        threading.Timer(3.0, stopped(process)).start()
        verdict = opened.tools.benches.bench(update)
    assert (verdict.status, verdict.receipt["judges_lost"]) == (Status.CHECKED, [lost.facts.name])
    assert lost not in bench.fleet.judges


@needs_ray
def test_a_judge_s_machine_traces_and_compiles_and_the_driver_does_where_that_is_lost(bench: Bench) -> None:
    with bench.fleet.session(bench.fleet.workshop(bench.shop), 0, bench.file) as opened:
        stages: list[str] = []
        there = opened.tools.updater.update(RIGHT, stages.append)
        assert stages == ["tracing"]  # here it would be told when compiling begins
        lost = bench.fleet.judge_of(0)
        threading.Timer(1.0, stopped(lost.facts.process)).start()
        here = opened.tools.updater.update(RIGHT, stages.append)
        assert stages == ["tracing", "tracing", "tracing", "compiling"]
        assert lost not in bench.fleet.judges
        assert here.plans_sha256 == there.plans_sha256 != ""
        assert [k.cubin_sha256 for k in here.kernels] == [k.cubin_sha256 for k in there.kernels]
        assert opened.tools.benches.bench(here).status is Status.CHECKED


@needs_ray
def test_a_plan_that_two_judges_are_lost_over_has_crashed_and_the_next_one_is_judged(bench: Bench) -> None:
    ends: dict[int, Callable[[], None]] = {}
    lost: list[int] = []

    def kill_who_has_it() -> None:
        while len(lost) < 2:
            time.sleep(0.5)
            if (process := bench.fleet.judge_of(0).facts.process) not in lost:
                lost.append(process)
                ends[process]()

    killing = threading.Thread(target=kill_who_has_it)
    with bench.fleet.session(bench.fleet.workshop(bench.shop), 0, bench.file) as opened:
        update = opened.tools.updater.update(RIGHT)
        ends |= {its.facts.process: stopped(its.facts.process) for its in bench.fleet.judges}
        killing.start()
        verdict = opened.tools.benches.bench(update)
        killing.join()
        os.kill(next(iter(ends.keys() - {*lost})), signal.SIGCONT)
        after = judged(opened, WRONG)
    assert (verdict.status, after.status) == (Status.CRASHED, Status.WRONG)
    assert verdict.detail.startswith("2 judges were lost over it, one after the other: ")
