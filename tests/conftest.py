"""What every test may count on."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from tests import shared_fork_server
from tests.agent import warm

# The files that take most processor time, the longest first. They begin first (`make test` keeps the order), so that no
# process works at one of them when the others have nothing left.
LONG = """
docs/test_documents.py agent/test_package.py agent/test_suite.py agent/test_model_runs.py corpus/test_honest.py
corpus/test_attacks.py agent/test_mcp.py test_table.py agent/test_serve.py
agent/authors/search/test_offline_odd_tasks.py agent/authors/search/test_offline_products.py
agent/authors/search/test_offline_candidates.py agent/test_api.py agent/view/test_view_tmux.py
tools/judge/test_admission.py tools/test_update.py tools/tasks/test_builtin_tasks.py agent/test_cli.py
tools/package/test_builtin_packages.py agent/authors/search/test_offline_algebra.py corpus/test_naive.py
docs/test_notebook.py agent/authors/search/test_offline_experts.py tools/test_bench.py agent/test_commands.py
agent/export/test_export_command.py agent/record/test_record_merge.py agent/test_interrupted.py
tools/task/test_backward.py agent/test_init_then_optimise.py agent/test_command_line.py tools/judge/test_compare.py
agent/test_ptx_stories.py tools/sandbox/test_bubblewrap.py agent/authors/search/test_offline_child.py
test_kernelbench_share.py agent/authors/search/test_ptx_library.py test_benchmarks.py tools/trace/test_trace.py
test_kernelbench_judge.py agent/test_watch.py tools/judge/test_large_cases.py agent/export/test_pairs_load.py
agent/report/test_report_browser.py agent/test_compiled.py agent/test_gpu_lost.py agent/test_start.py
""".split()


def pytest_configure(config: pytest.Config) -> None:
    """One thread for torch's operators here: the tensors are small, and on a machine that has other work to do threads
    that spin until the last has had its turn take ten times as long.

    Tests press Ctrl-C on processes that they start. A shell that started this one in the background, or nohup, has
    SIGINT ignored, and children inherit that.

    What is not marked `gpu` is about a machine without one, and starts commands in forks, where CUDA cannot begin."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "not gpu" in config.getoption("markexpr", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        shared_fork_server.share()
        warm.share()


@pytest.fixture
def forked_workers() -> Iterator[None]:
    """For tests that call what starts workers: they come without the seconds that an interpreter of theirs takes."""
    with shared_fork_server.in_use():
        yield


def pytest_collection() -> None:
    """Importing makes little garbage, and looking for it takes a second of each process."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What is loaded stays: with torch loaded a collection that walks all of it takes 0.3 to 0.7 s, and where memory is
    short the judge collects twice per operand."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests of LONG first."""
    order = {config.rootpath / "tests" / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than cores: tests wait a third of their time, for limits to pass and processes to end."""
    return (os.cpu_count() or 1) + 1
