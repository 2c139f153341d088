"""The house rules that no linter knows: what is loaded at start-up, and what must not appear in the sources."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("agent", "tools", "prompts")
HEAVY = {"torch", "triton", "anthropic", "openai", "sqlalchemy", "sqlmodel", "ray", "numpy"}
MACHINE_PATHS = tuple(f"/{name}/" for name in ("work", "root"))  # spelled so that this file does not name them


def sources(*rooms: str) -> list[Path]:
    return sorted(path for room in rooms for path in (ROOT / room).rglob("*.py"))


def kept_files() -> list[Path]:
    """Files that are, or would be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_the_command_line_loads_nothing_heavy() -> None:
    code = "import sys, kerneltune.agent.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert HEAVY & set(done.stdout.split()) == set()


def test_every_kind_of_file_in_the_packages_is_installed_with_them() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    inside = [path for path in kept_files() if path.relative_to(ROOT).parts[0] in ROOMS and path.suffix != ".py"]
    assert [path for path in inside if not any(path.match(pattern) for pattern in wanted)] == []


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    found = []
    for path in kept_files():
        text = path.read_bytes().decode(errors="replace")
        found += [f"{path.relative_to(ROOT)}: {place}" for place in MACHINE_PATHS if place in text]
    assert found == []


def test_nothing_is_mocked() -> None:
    naming = [path for path in sources(*ROOMS, "tests") if "mock" in path.read_text()]
    assert [str(path) for path in naming if "mock" in imported(path)] == []


def imported(path: Path) -> set[str]:
    """The last name of every imported module."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [node.module or "", *(alias.name for alias in node.names)]
    return {name.rpartition(".")[2] for name in names}


def test_python_is_parsed_by_one_thread_at_a_time() -> None:
    """`syntax_tree` and `expression_tree` see to it; a packaged file has no other thread that parses."""
    alone = {"tools/schema/codec.py", "tools/package/op.py"}
    naming = {str(path.relative_to(ROOT)) for path in sources(*ROOMS) if "ast.parse(" in path.read_text()}
    assert naming == alone
