"""What a confined worker may read, role by role, in real children: with bubblewrap's namespaces, and under Landlock."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools.test_bubblewrap import BWRAP, in_namespaces
from tests.tools.test_sandbox import jailed
from tools import sandbox_rules
from tools.bubblewrap import NamespaceHolder
from tools.sandbox import JAILED, Profile, available

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not available().confined, reason=f"this machine enforces only {available()}")
IMPORTED = {
    Profile.TRACER: ("tools/wire.py", "tools/plan/trace.py", "tools/gpus.py"),
    Profile.COMPILER: ("tools/wire.py", "tools/plan/compile.py", "tools/gpus.py"),
    Profile.INTERPRETER: ("tools/wire.py", "tools/plan/replay.py", "tools/ttir/interpreter.py"),
    Profile.RUNNER: ("tools/wire.py", "tools/plan/replay.py", "tools/runner/main.py"),
}
PRIVATE = (
    *(
        "tools/tasks/softmax.py",
        "tools/judge/service/cpu_judge.py",
        "agent/authors/offline/library/softmax_row.py",
        "README.md",
    ),
    *("tests/exploits/README.md", "tests/exploits/twins/softmax_rows.py", "tests/tools/conftest.py", "pyproject.toml"),
    *("runs/README.md", ".git", "prompts/__init__.py", "benchmarks/throughput.py", "docs/evaluation.md"),
)
FOREIGN_PARTS = {
    Profile.TRACER: "tools/ttir/ir.py",
    Profile.COMPILER: "tools/runner/main.py",
    Profile.RUNNER: "tools/ttir/ir.py",
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
        for name in ("tools.plan.schema", "tools.roofline"):
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
    for name in ("torch/__init__.py", "tools/sandbox_rules.py", "tools/tasks/softmax.py", "agent/cli.py", "six.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_of_installed_packages_ours_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = site_with(tmp_path / "lib" / "site-packages")
    monkeypatch.syspath_prepend(site)
    found = sandbox_rules.without([tmp_path / "lib"], sandbox_rules.private_places(site / "tools"))
    assert found.readable == (site / "six.py", site / "torch")
    assert found.listed == (tmp_path / "lib", site)


def test_an_older_copy_of_ours_beside_a_checkout_is_left_out_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_with(tmp_path / "site-packages")
    monkeypatch.syspath_prepend(site)
    private = sandbox_rules.private_places(ROOT / "tools")
    assert {site / "tools", site / "agent", ROOT} <= private
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
