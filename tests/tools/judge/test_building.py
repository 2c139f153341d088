"""Baselines: how long one may take to build, where compiled code is kept, what a reader is warned of."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kerneltune.tools.judge.timing.baselines import BaselineQueue, TookTooLong, doubts, keep_compiled, within


def try_configs(seconds: float) -> None:
    """As a compiler does that tries one config after the other, and shrugs when one fails."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        with contextlib.suppress(Exception):
            time.sleep(1)


def test_work_that_outlasts_its_limit_is_broken_off_even_inside_a_broad_except() -> None:
    started = time.monotonic()
    with pytest.raises(TookTooLong), within(0.05):
        try_configs(20)
    assert time.monotonic() - started < 10


def test_work_within_its_limit_is_left_alone_afterwards() -> None:
    with within(0.05):
        pass
    time.sleep(0.1)


def test_outside_the_main_thread_there_is_no_limit() -> None:
    done: list[bool] = []

    def work() -> None:
        with within(0.01):
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.fixture(autouse=True)
def _same_environment() -> object:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    before = {name: os.environ.get(name) for name in names}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def test_compiled_code_is_kept_in_a_folder_of_the_user_s(tmp_path: Path) -> None:
    assert keep_compiled(tmp_path / "cache") == ""
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "inductor")
    assert (tmp_path / "cache" / "triton").stat().st_mode & 0o077 == 0
    assert list((tmp_path / "cache" / "inductor").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = os.environ.get("TRITON_CACHE_DIR")
    assert "not kept" in keep_compiled(tmp_path / "file")
    assert os.environ.get("TRITON_CACHE_DIR") == before


def test_an_absurd_eager_reference_is_named() -> None:
    (note,) = doubts({"eager": 8000.0, "compile": 310.0}, 8000.0, 100.0)
    assert "unreasonably slow" in note
    assert "25.8 times torch.compile" in note


def test_a_slow_eager_reference_that_moves_much_is_not() -> None:
    assert doubts({"eager": 830.0, "compile": 355.0}, 840.0, 220.0) == []


def test_a_launch_bound_reference_is_named() -> None:
    (note,) = doubts({"eager": 3.0, "compile": 2.9}, 25.0, 0.5)
    assert "launch-bound" in note


def test_without_eager_or_a_compiled_baseline_nothing_is_doubted() -> None:
    assert doubts({}, 100.0, 1.0) == []
    assert doubts({"eager": 1000.0}, 1000.0, 1.0) == []


SLOW_S = 1.5


def building(**needs_s: float) -> Callable[[str, float], str]:
    """Takes as long as it needs, as far as it may."""

    def make(name: str, limit_s: float) -> str:
        with within(limit_s):
            time.sleep(needs_s.get(name.replace("-", "_"), 0.0))
        return f"the {name} one"

    return make


@pytest.fixture
def queue() -> BaselineQueue:
    return BaselineQueue(["eager", "compile", "compile-max"], limit_s=10.0, first_limit_s=5.0)


def test_the_first_verdict_waits_for_one_baseline_alone(queue: BaselineQueue) -> None:
    assert list(queue.build(building(), most=1)) == [("eager", "the eager one")]
    assert queue.pending == ["compile", "compile-max"]


def test_what_is_not_ready_in_time_stays_pending_and_arrives_later(queue: BaselineQueue) -> None:
    make = building(compile=SLOW_S)
    list(queue.build(make, most=1))
    began_s = time.monotonic()
    assert list(queue.build(make, within_s=SLOW_S / 3)) == []
    assert time.monotonic() - began_s < SLOW_S
    assert queue.pending == ["compile", "compile-max"]
    assert [name for name, _ in queue.build(make)] == ["compile", "compile-max"]
    assert (queue.pending, queue.left_out) == ([], [])


def test_one_that_takes_longer_than_its_whole_time_is_left_out_with_the_slower_ones_and_named() -> None:
    """Unrolling a loop of 1,500 steps would take as long again for max-autotune."""
    queue = BaselineQueue(["eager", "compile", "compile-max"], limit_s=SLOW_S / 3)
    assert [name for name, _ in queue.build(building(compile=SLOW_S))] == ["eager"]
    assert queue.pending == []
    assert queue.notes() == ["no baseline compile, compile-max: compile took longer than 0.5 s to build"]


def test_a_first_one_that_is_too_slow_for_a_first_verdict_is_left_out() -> None:
    queue = BaselineQueue(["eager", "compile"], limit_s=10.0, first_limit_s=SLOW_S / 3)
    assert list(queue.build(building(eager=SLOW_S), most=1)) == []
    assert queue.pending == ["compile"]
    assert [name for name, _ in queue.build(building(compile=SLOW_S))] == ["compile"]  # the others have their own time


def test_what_cannot_be_had_is_not_tried_again(queue: BaselineQueue) -> None:
    asked: list[str] = []

    def make(name: str, _: float) -> str | None:
        asked.append(name)
        return None

    assert list(queue.build(make)) == []
    assert list(queue.build(make)) == []
    assert asked == ["eager", "compile", "compile-max"]
