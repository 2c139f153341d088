"""`bench --watch`: a file is judged each time that it is saved, and compared with the version before; `# search:` lines
make a person's own file something to search."""

import asyncio
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kerneltune.agent.authors.search.experts import own_sketch
from kerneltune.agent.commands import service_client, service_socket
from kerneltune.agent.commands.edit_loop import _of_service, saves
from kerneltune.agent.commands.http_server import HttpTimes
from kerneltune.agent.record.store import Store
from kerneltune.agent.settings import Settings
from kerneltune.tools.schema.errors import UsageError
from tests.agent import warm
from tests.agent.shell import SOFTMAX, env, optimize
from tests.agent.test_serve import hurried

KERNEL = '''"""Softmax, a row a program."""
import torch
import triton
import triton.language as tl

# search: NUM_WARPS = 4 8
NUM_WARPS = 4


@triton.jit
def row_kernel(x, y, cols, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * cols + i
    v = tl.load(x + at, mask=i < cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=i < cols)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        block = triton.next_power_of_2(x.shape[1])
        row_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=block, num_warps=NUM_WARPS)
        return y
'''


def test_a_save_is_seen_once_whatever_an_editor_does_with_the_file(tmp_path: Path) -> None:
    path, seen, waits = tmp_path / "kernel.py", list[str](), list[float]()
    path.write_text("one")
    found = saves(path, lambda: waits.append(time.monotonic()))

    def look(n: int) -> None:
        seen.extend(text for _, (_, text) in zip(range(n), found, strict=False))

    look(1)
    reader = threading.Thread(target=look, args=[2], daemon=True)
    reader.start()
    time.sleep(0.2)
    path.touch()  # saved without a change
    time.sleep(0.2)
    (tmp_path / "other").write_text("two")
    path.unlink()  # as editors do that write beside it
    time.sleep(0.2)
    (tmp_path / "other").rename(path)
    ends = time.monotonic() + 60
    while "two" not in seen and time.monotonic() < ends:
        time.sleep(0.05)
    path.write_text("")  # in the middle of writing
    time.sleep(0.2)
    path.write_text("three")
    reader.join(60)
    assert (seen, not reader.is_alive()) == (["one", "two", "three"], True)


def test_each_saved_version_is_judged_and_compared_with_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL)
    words = warm.command("bench", "kernel.py", "--task", SOFTMAX, "--watch")
    with subprocess.Popen(
        words, cwd=tmp_path, env=env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None

        def until(start: str) -> list[str]:
            lines = []
            for line in process.stdout or ():
                lines.append(line.rstrip("\n"))
                if lines[-1].startswith(start):
                    return lines
            raise AssertionError(lines)

        assert "✓ checked  error" in until("#1")[-1]
        path.write_text(KERNEL.replace("NUM_WARPS = 4\n", "NUM_WARPS = 16\n"))
        until("#2")
        assert until("    against #1: regs ")
        assert " instructions, " in until("    row_kernel: the kernel ")[-1]
        path.write_text(KERNEL.replace("tl.sum(e, 0)", "tl.max(e, 0)"))
        assert "✗ wrong" in until("#3")[-1]
        path.write_text(KERNEL.replace("tl.exp(", "tl.expo("))
        assert "⊗ compile_failed" in until("#4")[-1]
        assert until("    AttributeError")
        process.send_signal(signal.SIGINT)
        rest, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    run_id = rest.split("kept as run ")[1].split(";")[0]
    with Store.open(tmp_path / "runs") as store:
        kept = store.attempts(run_id)
    assert [a.status for a in kept] == ["checked", "checked", "wrong", "compile_failed"]
    assert [a.parent_id for a in kept] == [None, f"{run_id}/1", f"{run_id}/2", f"{run_id}/2"]


def test_a_service_that_ended_the_session_of_a_pause_goes_on_with_its_run_at_the_next_save(
    tmp_path: Path, forked_workers: None
) -> None:
    settings = Settings(runs_dir=tmp_path, tier="screened")

    def edit() -> tuple[str, int | str, int | str]:
        with _of_service("softmax", settings) as tools:
            first = tools.update(KERNEL, "version 1", None)
            with service_client(tmp_path) as client:
                ends = time.monotonic() + 60
                while "kerneltune_runs_under_way 0\n" not in client.get("/metrics").text and time.monotonic() < ends:
                    time.sleep(0.1)
            other = tools.update(KERNEL.replace("NUM_WARPS = 4\n", "NUM_WARPS = 16\n"), "version 2", 1)
            tools.bench(2)
            return tools.run_id, first, other

    async def scenario() -> tuple[str, int | str, int | str]:
        service_socket(tmp_path).parent.mkdir()
        async with hurried(tmp_path, HttpTimes(idle_s=0.5), 64, service_socket(tmp_path), tmp_path):
            return await asyncio.to_thread(edit)

    run_id, *numbers = asyncio.run(scenario())
    assert numbers == [1, 2]
    with Store.open(tmp_path) as store:
        assert [(a.number, a.status) for a in store.attempts(run_id)][1] == (2, "checked")


def test_a_save_that_comes_while_the_run_of_a_pause_concludes_waits_for_that_and_goes_on_with_it(
    tmp_path: Path, forked_workers: None
) -> None:
    slow = KERNEL.replace("    e = tl.exp", "    for _ in range(2000):\n        v = v * 1.0\n    e = tl.exp")

    def edit() -> list[int | str]:
        with _of_service("softmax", Settings(runs_dir=tmp_path, tier="screened")) as tools:
            first = tools.update(slow, "version 1", None)  # judged when the session ends, as nobody benches it
            with service_client(tmp_path) as client:
                ends = time.monotonic() + 60
                while "kerneltune_sessions 0\n" not in client.get("/metrics").text and time.monotonic() < ends:
                    time.sleep(0.02)
                assert "kerneltune_runs_under_way 1\n" in client.get("/metrics").text
            return [first, tools.update(KERNEL, "version 2", 1)]

    async def scenario() -> list[int | str]:
        service_socket(tmp_path).parent.mkdir()
        async with hurried(tmp_path, HttpTimes(idle_s=0.5), 64, service_socket(tmp_path), tmp_path):
            return await asyncio.to_thread(edit)

    assert asyncio.run(scenario()) == [1, 2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nowhere.py",), "no such file"),
        (("a.py", "b.py"), "--watch is for one file"),
        (("a.py", "--no-store"), "--watch is for one file"),
    ],
)
def test_what_cannot_be_watched_is_said_in_a_line(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    done = optimize("bench", *words, "--task", "softmax", "--watch", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert told in done.stderr


def test_search_lines_of_a_person_s_file_are_a_space_around_what_it_says() -> None:
    sketch = own_sketch("kernels/mine.py", KERNEL)
    assert sketch is not None
    assert (sketch.name, sketch.params, sketch.space) == ("mine", {"NUM_WARPS": 4}, {"NUM_WARPS": (4, 8)})
    assert "\nNUM_WARPS = 8\n" in sketch.render({"NUM_WARPS": 8})
    assert own_sketch("mine.py", KERNEL.replace("# search", "# to search")) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("# search: WARPS = 4 8", "needs one line `WARPS = NUMBER`; it has 0"),
        ("# search: NUM_WARPS", "is not as in"),
        ("# search: NUM_WARPS = four", "is not as in"),
        ("# search: 4 = 4", "is not as in"),
    ],
)
def test_search_lines_that_cannot_be_obeyed_are_refused(line: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        own_sketch("mine.py", KERNEL.replace("# search: NUM_WARPS = 4 8", line))


def test_a_search_of_what_is_no_plain_number_or_of_too_much_is_refused() -> None:
    for value in ("4 * 2", "1.5", "4, 8"):
        with pytest.raises(UsageError, match="it has `NUM_WARPS = "):
            own_sketch("mine.py", KERNEL.replace("\nNUM_WARPS = 4", f"\nNUM_WARPS = {value}"))
    lines = "".join(f"# search: P{n} = 1 2\nP{n} = 1\n" for n in range(17))
    with pytest.raises(UsageError, match="names 17 parameters; at most 16 work"):
        own_sketch("mine.py", lines)


def test_a_run_from_a_file_with_a_search_tries_its_points_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KERNEL)
    done = optimize("--task", SOFTMAX, "--model", "offline", "--from", "mine.py", "--plain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with Store.open(tmp_path / "runs") as store:
        [run] = store.runs()
        kept = store.attempts(run.run_id)
    assert [a.source.split("NUM_WARPS = ")[2].split("\n")[0] for a in kept] == ["4", "8"]
    assert run.why == "author_done"
