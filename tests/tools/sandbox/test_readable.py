"""What a confined worker may read, role by role, in real children: with bubblewrap's namespaces, and under Landlock."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kerneltune.tools.sandbox import rules as sandbox_rules
from kerneltune.tools.sandbox.bubblewrap import NamespaceHolder
from kerneltune.tools.sandbox.confine import JAILED, available
from kerneltune.tools.sandbox.rules import Profile
from tests.tools.sandbox.test_bubblewrap import BWRAP, in_namespaces
from tests.tools.sandbox.test_sandbox import jailed

ROOT = Path(__file__).resolve().parents[3]
HERE = available()
pytestmark = pytest.mark.skipif(not HERE.confined, reason=f"this machine enforces only {HERE}")
T = "kerneltune/tools"
IMPORTED = {
    Profile.TRACER: (f"{T}/sandbox/wire.py", f"{T}/trace/tracer.py", f"{T}/schema/gpus.py"),
    Profile.COMPILER: (f"{T}/sandbox/wire.py", f"{T}/compile/compiler.py", f"{T}/schema/gpus.py"),
    Profile.INTERPRETER: (f"{T}/sandbox/wire.py", f"{T}/replay/replay.py", f"{T}/languages/triton/ttir/interpreter.py"),
    Profile.RUNNER: (f"{T}/sandbox/wire.py", f"{T}/replay/replay.py", f"{T}/backends/cuda/runner.py"),
}
PRIVATE = (
    *(f"{T}/tasks/softmax.py", f"{T}/judge/service/cpu_judge.py", "tools/tasks/softmax.py", "README.md"),
    *("kerneltune/agent/authors/search/experts/softmax_row.py", "kerneltune/corpus/twins/softmax_rows.py"),
    *("corpus/README.md", "corpus/twins/softmax_rows.py", "tests/tools/conftest.py", "pyproject.toml"),
    *("runs/README.md", ".git", "kerneltune/prompts/__init__.py", "benchmarks/throughput.py", "docs/evaluation.md"),
)
FOREIGN_PARTS = {
    Profile.TRACER: f"{T}/languages/triton/ttir/ir.py",
    Profile.COMPILER: f"{T}/backends/cuda/runner.py",
    Profile.RUNNER: f"{T}/languages/triton/ttir/ir.py",
}


def opened(names: tuple[str, ...]) -> Callable[[], list[str]]:
    """A probe: those of the names that can be opened for reading."""

    def probe() -> list[str]:
        found = []
        for name in names:
            try:
                os.close(os.open(ROOT / name, os.O_RDONLY))
                found.append(name)
            except OSError:
                continue
        return found

    return probe


@pytest.mark.parametrize("profile", IMPORTED)
def test_a_role_reads_what_it_imports_and_nothing_else_of_ours(profile: Profile) -> None:
    assert all((ROOT / name).exists() for name in (*IMPORTED[profile], *PRIVATE))
    assert jailed(opened(IMPORTED[profile]), profile) == str(list(IMPORTED[profile]))
    assert jailed(opened(PRIVATE), profile) == "[]"
    if profile in FOREIGN_PARTS:
        assert jailed(opened((FOREIGN_PARTS[profile],)), profile) == "[]"


@pytest.mark.parametrize("profile", JAILED)
def test_bubblewrap_shows_a_role_no_more(profile: Profile) -> None:
    if not available().bubblewrap:
        pytest.skip(f"no working bubblewrap: {available().notes}")
    with NamespaceHolder(BWRAP, profile) as keeper:
        assert keeper.jail().problem == ""
        assert in_namespaces(keeper, opened(IMPORTED[profile])) == str(list(IMPORTED[profile]))
        assert in_namespaces(keeper, opened(PRIVATE)) == "[]"
        assert in_namespaces(keeper, lambda: [p for p in PRIVATE if os.path.exists(ROOT / p)]) == "[]"


def test_a_module_of_a_role_s_own_can_be_imported_late_in_its_jail() -> None:
    def late() -> str:
        for name in ("kerneltune.tools.schema.plan", "kerneltune.tools.schema.gpus"):
            sys.modules.pop(name, None)
            __import__(name)
        return "imported"

    assert jailed(late) == "imported"


def test_the_folder_of_the_script_that_runs_is_not_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    sandbox_rules.libraries.cache_clear()
    try:
        assert jailed((tmp_path / "secret.py").read_text) == "EACCES"
    finally:
        sandbox_rules.libraries.cache_clear()


def site_with(folder: Path) -> Path:
    """A folder of installed packages, ours among them."""
    for name in ("torch/__init__.py", "kerneltune/__init__.py", "kerneltune/tools/tasks/softmax.py", "six.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_of_installed_packages_ours_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_with(tmp_path / "lib" / "site-packages")
    monkeypatch.syspath_prepend(site)
    found = sandbox_rules.without([tmp_path / "lib"], sandbox_rules.private_places(site / "kerneltune"))
    assert found.readable == (site / "six.py", site / "torch")
    assert found.listed == (tmp_path / "lib", site)


def test_an_older_copy_of_ours_beside_a_checkout_is_left_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_with(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(site)
    private = sandbox_rules.private_places(ROOT / "kerneltune")
    assert {site / "kerneltune", ROOT} <= private
    assert site / "torch" not in private


def test_a_checkout_inside_of_a_readable_folder_is_left_out(tmp_path: Path) -> None:
    checkout = tmp_path / "share" / "kerneltune"
    (checkout / "runs").mkdir(parents=True)
    (tmp_path / "share" / "zoneinfo").mkdir()
    found = sandbox_rules.without([tmp_path / "share"], {checkout})
    assert found == ((tmp_path / "share" / "zoneinfo",), (tmp_path / "share",))


def test_a_link_out_of_a_readable_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lib" / "private").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lib" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "lib" / "kept").mkdir()
    (tmp_path / "lib" / "in").symlink_to(tmp_path / "lib" / "kept")
    (tmp_path / "lib" / "around").symlink_to(tmp_path / "lib" / "private")
    found = sandbox_rules.without([tmp_path / "lib"], {tmp_path / "lib" / "private"})
    assert [path.name for path in found.readable] == ["in", "kept"]


def test_a_readable_folder_inside_of_a_private_one_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "home" / "venv").mkdir(parents=True)
    found = sandbox_rules.without([tmp_path / "home" / "venv"], {tmp_path / "home"})
    assert found == ((tmp_path / "home" / "venv",), ())
