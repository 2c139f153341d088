"""Public kernels are accepted, but for those that `public.OPEN` lists with the reason.

The sources are those that PUBLIC_KERNELS_LIGER and PUBLIC_KERNELS_TUTORIALS name; Liger's are else fetched by pip.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kerneltune.agent.commands.session import workshop
from kerneltune.agent.settings import Settings
from kerneltune.tools.task.load import find_task
from tests import shared_fork_server
from tests.corpus.public.inline import InlineError, Inliner
from tests.corpus.public.public import LIGER, OPEN, TUTORIALS, Judged, Kernel, Sources, judged, kernels, task_source

ALL = {kernel.name: kernel for kernel in kernels()}
Judge = Callable[[Kernel], Judged]


def written(folder: Path, **files: str) -> dict[str, Path]:
    """Modules by name."""
    paths = {name: folder / f"{name}.py" for name in files}
    for name, text in files.items():
        paths[name].write_text(text)
    return paths


def test_only_what_is_needed_is_kept_in_its_order(tmp_path: Path) -> None:
    kept = "A = 1\n\nB = A + 1\n\n@staticmethod\ndef f(x=B):\n    A = x  # kept\n    return sys, A\n"
    files = written(tmp_path, module=f"import os\nimport sys\n{kept}\nprint(f())\n")
    assert Inliner().source([(files["module"], ["f"])]) == f"import sys\n\n{kept}"


def test_a_local_name_does_not_pull_in_the_global_of_that_name(tmp_path: Path) -> None:
    files = written(tmp_path, module="x = run_the_tests()\ndef f(x):\n    return [x for y in x]\n")
    assert "run_the_tests" not in Inliner().source([(files["module"], ["f"])])


def test_a_name_that_branches_bind_keeps_its_branches(tmp_path: Path) -> None:
    files = written(tmp_path, module="n = 1\nif n:\n    m = n\nelse:\n    m = 2\ndef f():\n    return m\n")
    assert "else:\n    m = 2" in Inliner().source([(files["module"], ["f"])])


def test_imports_of_a_package_become_its_definitions_once(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    one, two = "from pack.two import g\ndef f():\n    return g()\n", "def g():\n    return 3\nprint(0)\n"
    written(tmp_path / "pack", one=one, two=two)
    top = "from pack.one import f as first\nfrom pack.two import g\ndef h():\n    return first() + g()\n"
    files = written(tmp_path, top=top)
    text = Inliner({"pack": tmp_path / "pack"}).source([(files["top"], ["h"])])
    names: dict[str, Callable[[], int]] = {}
    exec(text, names)
    assert names["h"]() == 6
    assert text.count("def g") == 1
    assert "pack" not in text


def test_two_definitions_of_one_name_are_an_error(tmp_path: Path) -> None:
    files = written(tmp_path, one="def f():\n    return 1\n", two="def f():\n    return 2\n")
    with pytest.raises(InlineError, match=r"two\.py and one\.py both define f"):
        Inliner().source([(files["one"], ["f"]), (files["two"], ["f"])])


def test_a_name_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InlineError, match=r"module\.py does not define g"):
        Inliner().source([(written(tmp_path, module="f = 1\n")["module"], ["f", "g"])])


@pytest.mark.parametrize("name", list(ALL))
def test_the_task_of_a_public_kernel_is_a_task_and_no_more(name: str, tmp_path: Path) -> None:
    path = tmp_path / "task.py"
    path.write_text(task_source(ALL[name]))
    task = find_task(str(path))
    assert {case.held_out for case in task.cases if case.cpu} == {True, False}
    assert "PUBLIC" not in task.source
    assert "ModelNew" not in task.source


def test_there_are_enough_of_them_and_all_open_ones_exist() -> None:
    accepted = [k for k in ALL.values() if k.name not in OPEN]
    assert sum("liger" in k.wanted for k in accepted) >= 15
    assert sum("tutorials" in k.wanted for k in accepted) >= 6
    assert set(OPEN) <= set(ALL)


def fetched(folder: Path) -> Path:
    """Liger's wheel, unpacked; skips where it cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), LIGER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        pytest.skip(f"{LIGER} cannot be had: {done.stderr.strip()[-200:]}; set PUBLIC_KERNELS_LIGER")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    liger, tutorials = (os.environ.get(f"PUBLIC_KERNELS_{name}") for name in ("LIGER", "TUTORIALS"))
    return Sources(
        Path(liger) if liger else fetched(tmp_path_factory.mktemp("liger")), Path(tutorials) if tutorials else None
    )


@pytest.fixture(scope="module")
def judge(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    folder = tmp_path_factory.mktemp("public")
    with shared_fork_server.forked(workshop(Settings(), lambda event: None)) as shop:
        yield lambda kernel: next(iter(judged(shop, [kernel], sources, folder)))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALL))
def test_a_public_kernel_is_accepted(name: str, sources: Sources, judge: Judge) -> None:
    if not sources.has(ALL[name]):
        pytest.skip(f"needs {TUTORIALS}; set PUBLIC_KERNELS_TUTORIALS")
    found = judge(ALL[name])
    told = f"{found.verdict.status.value}: {found.verdict.detail[:600]}"
    assert found.expected, f"no longer open: {told}" if name in OPEN and found.verdict.accepted else told
