"""Baselines: how long one may take to build, where compiled code is kept, what a reader is warned of."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from kerneltune.tools.judge.timing.baselines import TookTooLong, doubts, keep_compiled, within


def try_configs(seconds: float) -> None:
    """As a compiler does that tries one config after the other, and shrugs when one fails."""
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        with contextlib.suppress(Exception):
            time.sleep(1)


def test_work_that_outlasts_its_limit_is_broken_off_even_inside_a_broad_except() -> None:
    started = time.monotonic()
    with pytest.raises(TookTooLong), within(0.05):
        try_configs(5)
    assert time.monotonic() - started < 2


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
