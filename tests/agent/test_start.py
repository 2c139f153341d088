"""What a run begins with: --from and --language."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kerneltune.agent import loop
from kerneltune.agent.attempt import Attempt, Author, Limits, Proposal, RunStart, StopReason, point_of
from kerneltune.agent.commands.lifecycle import Beginning, StartingPoint, Where, checked, found, start_actions, start_of
from kerneltune.agent.events import Event, Judged, Proposed, RunEnded, RunStarted, Updated, Verified, Warned
from kerneltune.agent.record.store import Store
from kerneltune.agent.tracker import AttemptTracker
from kerneltune.tools.evaluator import Evaluator
from kerneltune.tools.languages.base import language_of
from kerneltune.tools.languages.ptx.candidate import CannotSay
from kerneltune.tools.schema.errors import StoreError, UsageError
from kerneltune.tools.schema.task import CaseSpec, TaskSpec
from kerneltune.tools.schema.verdict import Status, Timing, Verdict
from kerneltune.tools.task.load import TaskFile
from kerneltune.tools.update import Update
from tests.agent.shell import SOFTMAX, optimize
from tests.agent.test_loop import ListAuthor, Log, NoteBench, NoteUpdater
from tests.agent.test_model_runs import result

SOURCE = "class Model: ...\n"
FILE = TaskFile("twice", Path("twice.py"), SOURCE, "1" * 64, ())
TASK = TaskSpec(
    "twice",
    FILE.sha256,
    "float32",
    "class Model:\n    def forward(self, x): ...\n",
    (CaseSpec("main", (None,), (), None),),
)
H200, A100 = "NVIDIA H200", "NVIDIA A100"
PTX = "from kerneltune import PtxKernel\n"


def stored(
    store: Store, run_id: str, *tries: tuple[str, float | None], gpu: str | None = H200, task: TaskFile = FILE
) -> None:
    """A run of attempts: a source, and its time (None: it was wrong; on no GPU: what ranks it)."""
    events: list[Event] = [
        RunStarted(run_id, task.name, task.sha256, "", "offline", "", "sm_90", gpu, {}, {}, 0, {}),
    ]
    for number, (source, us) in enumerate(tries, 1):
        ids = (run_id, f"{run_id}/{number}")
        timing = Timing(us, us, us, 1, 1) if us and gpu else None
        status = Status.WRONG if us is None else Status.CORRECT if gpu else Status.CHECKED
        key = () if us is None else (us,)
        events += [
            Proposed(*ids, number, None, source, ""),
            Updated(*ids, None, None, (), (), 1, 0.0, 0.0, None),
            Judged(*ids, Verdict(status, "", timing=timing), 0.1, us is not None, key),
        ]
    for event in events:
        store.write(event)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs") as opened:
        yield opened


def where(language: str = "triton", gpu: str | None = H200) -> Where:
    return Where(FILE, "sm_90", gpu, language)


def test_best_is_the_fastest_on_this_task_and_this_gpu_of_any_run(store: Store) -> None:
    stored(store, "20260101-000000-twice-0001", ("slow", 9.0), ("wrong", None), ("fast", 3.0))
    stored(store, "20260101-000000-twice-0002", ("middle", 5.0))
    stored(store, "20260101-000000-twice-0003", ("elsewhere", 1.0), gpu=A100)
    stored(store, "20260101-000000-twice-0004", ("older task", 1.0), task=replace(FILE, sha256="2" * 64))
    start = found("best", None, store, where(), TASK)
    assert start == StartingPoint("fast", "20260101-000000-twice-0001/3", "20260101-000000-twice-0001/3")


def test_what_a_later_verification_finds_wrong_is_neither_the_best_nor_packaged(store: Store, tmp_path: Path) -> None:
    run_id = "20260101-000000-twice-0001"
    stored(store, run_id, ("slow", 9.0), ("fast", 3.0))
    store.write(RunEnded(run_id, StopReason.ATTEMPTS, 2, 2, f"{run_id}/2", None, 1.0))

    def bests_once(status: Status) -> tuple[str, str]:
        again = Verdict(status, "", timing=Timing(3.0, 3.0, 3.0, 1, 1) if status is Status.CORRECT else None)
        store.write(Verified(run_id, f"{run_id}/2", "verify", again, 1.0, again.accepted, "", H200, {}, {}))
        start = found("best", None, store, where(), TASK)
        return store.find_attempt(run_id)[1].source, start.source if start else ""

    assert bests_once(Status.WRONG) == ("slow", "slow")
    refused = optimize("package", f"{run_id}/2", cwd=tmp_path)
    assert (refused.returncode, "found since that it is not right" in refused.stderr) == (2, True)
    assert bests_once(Status.CORRECT) == ("fast", "fast")


def test_without_a_gpu_a_timed_attempt_of_the_architecture_comes_before_all_that_nothing_timed(store: Store) -> None:
    stored(store, "20260101-000000-twice-0001", ("ranked", 1.0), gpu=None)
    assert (start := found("best", None, store, where(gpu=None), TASK)) is not None
    assert start.source == "ranked"
    stored(store, "20260101-000000-twice-0002", ("timed", 5.0))
    assert (start := found("best", None, store, where(gpu=None), TASK)) is not None
    assert start.source == "timed"


def test_a_run_in_triton_does_not_start_from_ptx_and_one_in_ptx_starts_from_either(store: Store) -> None:
    stored(store, "20260101-000000-twice-0001", (PTX, 1.0), ("triton", 2.0))
    assert (start := found("best", None, store, where(), TASK)) is not None
    assert start.source == "triton"
    assert (start := found("", None, store, where("ptx"), TASK)) is not None
    assert start.source == PTX


def test_nothing_is_what_a_run_in_triton_starts_from_and_one_in_ptx_when_it_is_told_so(store: Store) -> None:
    stored(store, "20260101-000000-twice-0001", ("triton", 2.0))
    assert found("", None, store, where(), TASK) is None
    assert found("nothing", None, store, where("ptx"), TASK) is None
    assert checked("nothing", store, FILE) is None


def test_the_best_of_an_empty_record_is_a_mistake_of_whoever_asks_for_it(store: Store) -> None:
    assert found("", None, store, where("ptx"), TASK) is None
    with pytest.raises(UsageError, match="no accepted attempt on this task and GPU is stored"):
        found("best", None, store, where(), TASK)


def test_an_attempt_is_named_by_run_and_number_and_has_to_be_of_this_task(store: Store) -> None:
    stored(store, "20260101-000000-twice-0001", ("one", None), ("two", 1.0))
    start = checked("20260101-000000-twice-0001/1", store, FILE)
    assert start == StartingPoint("one", "20260101-000000-twice-0001/1", "20260101-000000-twice-0001/1")
    other = TaskFile("other", Path("other.py"), SOURCE, "2" * 64, ())
    with pytest.raises(UsageError, match=r"is an attempt on another task \(twice\)"):
        checked("20260101-000000-twice-0001/1", store, other)
    with pytest.raises(StoreError, match="no attempt 7"):
        checked("20260101-000000-twice-0001/7", store, FILE)
    with pytest.raises(StoreError, match="no attempt 'bset'"):
        checked("bset", store, FILE)


def test_a_file_is_read_as_it_is_and_ptx_gets_host_code(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("mine")
    start = checked(str(tmp_path / "mine.py"), store, FILE)
    assert start == StartingPoint("mine", str(tmp_path / "mine.py"))
    with pytest.raises(UsageError, match="No such file"):
        checked(str(tmp_path / "none.ptx"), store, FILE)
    (tmp_path / "odd.py").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no UTF-8 text"):
        checked(str(tmp_path / "odd.py"), store, FILE)
    (tmp_path / "bad.ptx").write_text("int main() {}")
    bad = checked(str(tmp_path / "bad.ptx"), store, FILE)
    with pytest.raises(UsageError, match=r"--from .*bad\.ptx: PTX line 1"):
        found("bad.ptx", bad, store, where("ptx"), TASK)


class SaysUpdater(NoteUpdater):
    """Says any source in PTX but "3"."""

    def as_ptx(self, source: str, update: Update, variant: str) -> str:
        """A source whose time is a hundredth shorter."""
        if source.startswith("3"):
            raise CannotSay("library operators compute between the kernels: mm")
        return str(float(source) - 0.01)


def bench(updater: NoteUpdater | None = None) -> tuple[AttemptTracker, Log]:
    log = Log()
    tools = Evaluator(updater or SaysUpdater(), NoteBench(), "timing")  # type: ignore[arg-type]
    return AttemptTracker("r", TASK, tools, log), log


class NoAuthor(ListAuthor):
    """Nobody needs an author here."""

    def propose(self, task: TaskSpec, history: Sequence[Attempt], width: int) -> list[Proposal]:
        raise AssertionError("nobody asks")


def begun(
    beginning: Beginning, sources: list[str] | None = None, most: int = 9
) -> tuple[Attempt | None, AttemptTracker, Log]:
    its, log = bench()
    author = ListAuthor(sources or [])
    return again(beginning, its, author, most), its, log


def again(beginning: Beginning, its: AttemptTracker, author: Author, most: int = 9) -> Attempt | None:
    """The start of a run that makes nothing else."""
    start = start_actions(beginning, its, lambda: author)
    loop.optimize(loop.Run(its, ListAuthor([]), Limits(most), start=start))
    return start_of(its)


def test_the_start_is_the_first_attempt_and_keeps_the_stored_one_as_its_parent() -> None:
    start, its, _ = begun(Beginning("old/7", "triton", StartingPoint("5", "old/7", "old/7")))
    assert start is not None
    assert [(a.number, a.parent_id, a.source, a.origin) for a in its.attempts] == [(1, "old/7", "5", RunStart("old/7"))]
    assert start is its.attempts[0]


def test_in_ptx_the_triton_start_is_followed_by_its_ptx_which_the_work_begins_at() -> None:
    start, its, _ = begun(Beginning("", "ptx", StartingPoint("5", "old/7", "old/7")))
    assert [(a.source, a.parent_id) for a in its.attempts] == [("5", "old/7"), ("4.99", "r/1")]
    assert start is its.attempts[1]


def test_in_ptx_without_a_start_the_offline_author_makes_one_that_is_accepted() -> None:
    start, its, _ = begun(Beginning("", "ptx"), ["broken", "broken", "7", "8"])
    assert [a.source for a in its.attempts] == ["broken", "broken", "7", "6.99"]
    assert start is its.attempts[-1]
    assert [a.origin for a in its.attempts] == [RunStart("offline")] * 3 + [RunStart("offline", as_ptx=True)]


def test_what_has_no_ptx_is_told_and_the_work_begins_at_the_triton() -> None:
    start, its, log = begun(Beginning("", "ptx", StartingPoint("3", "f.py")))
    assert start is its.attempts[0]
    assert [e.text for e in log.events if isinstance(e, Warned)] == [
        "attempt 1 cannot be the start in PTX: library operators compute between the kernels: mm"
    ]


def test_the_start_keeps_to_the_limits() -> None:
    assert len(begun(Beginning("", "ptx", StartingPoint("5", "f.py")), most=1)[1].attempts) == 1
    assert len(begun(Beginning("", "ptx"), ["broken"] * 9, most=3)[1].attempts) == 3
    assert begun(Beginning("nothing", "ptx"), ["5"])[0] is None


def test_a_run_that_is_taken_up_again_begins_at_the_start_that_it_made() -> None:
    start, its, _ = begun(Beginning("", "ptx", StartingPoint("5", "f.py")))
    its.bench(its.update(Proposal("1", "later")))
    assert again(Beginning("nothing"), its, NoAuthor([])) is start


def test_a_run_that_ended_between_the_start_and_its_ptx_goes_on_there() -> None:
    start, its, _ = begun(Beginning("", "ptx", StartingPoint("5", "f.py")), most=1)
    assert start is its.attempts[0]
    found = again(Beginning("nothing", "ptx"), its, NoAuthor([]))
    assert [(a.source, a.parent_id) for a in its.attempts] == [("5", None), ("4.99", "r/1")]
    assert found is its.attempts[1]
    assert again(Beginning("nothing", "ptx"), its, NoAuthor([])) is found
    assert len(its.attempts) == 2


KERNEL = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry copy(.param .u64 x, .param .u64 y, .param .u32 n) .reqntid 128 {
    .reg .b64 %a<4>; .reg .b32 %r<4>; .reg .pred %p;
    ld.param.u64 %a0, [x]; ld.param.u64 %a1, [y]; ld.param.u32 %r0, [n];
    mov.u32 %r1, %tid.x; setp.ge.u32 %p, %r1, %r0; @%p bra end;
    mad.wide.u32 %a2, %r1, 4, %a0; mad.wide.u32 %a3, %r1, 4, %a1;
    ld.global.b32 %r2, [%a2]; st.global.b32 [%a3], %r2;
end: ret;
}
"""


def test_a_ptx_file_is_the_first_attempt_of_a_run_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "copy.ptx").write_text(KERNEL)
    flags = ("--task", SOFTMAX, "--model", "offline", "--max-attempts", "1", "--json", "--runs-dir", "runs")
    done = optimize(*flags, "--language", "ptx", "--from", "copy.ptx", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert result(done)["attempts"] == 1
    with Store.open(tmp_path / "runs") as its:
        (run_id,) = its.run_ids()
        (attempt,) = its.attempts(run_id)
        assert its.load_run(run_id).limits["language"] == "ptx"
    assert attempt.origin == RunStart("copy.ptx")
    assert "# LOOK: " in attempt.source
    assert attempt.status not in (Status.REJECTED, Status.COMPILE_FAILED), attempt.verdict


@pytest.mark.timeout(300)
def test_ptx_without_a_model_begins_with_an_expert_and_goes_on_with_what_triton_makes(tmp_path: Path) -> None:
    flags = ("--task", SOFTMAX, "--model", "offline", "--max-attempts", "2", "--json", "--runs-dir", "runs")
    done = optimize(*flags, "--language", "ptx", cwd=tmp_path, timeout_s=280)
    assert result(done)["attempts"] == 2, done.stderr
    with Store.open(tmp_path / "runs") as its:
        attempts = list(its.attempts(its.run_ids()[0]))
    assert [p.sketch for a in attempts if (p := point_of(a.origin))] == ["ptx_softmax", "inductor"]
    assert [language_of(a.source) for a in attempts] == ["ptx", "ptx"]
    assert [a.status for a in attempts] == [Status.CHECKED, Status.CHECKED]


def test_a_start_that_does_not_exist_is_told_before_anything_is_started(tmp_path: Path) -> None:
    done = optimize("--task", "softmax", "--from", "none.py", "--runs-dir", "runs", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, "optimize: --from none.py: No such file or directory")


def test_a_language_that_the_search_does_not_write_wants_a_model(tmp_path: Path) -> None:
    done = optimize("--task", "softmax", "--language", "cuda", "--model", "offline", cwd=tmp_path)
    assert done.returncode == 2
    assert "--language cuda wants a model: name one with --model" in done.stderr
    assert not (tmp_path / "runs").exists()
