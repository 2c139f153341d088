"""What SECURITY.md promises: its tests are there, and so are the hashes and the bounds of versions."""

import re
import tomllib

from packaging.requirements import Requirement
from packaging.version import Version

from tests.docs.documents import ROOT


def test_every_test_that_is_named_for_an_attack_exists() -> None:
    named = re.findall(r"`(test_\w+)`", (ROOT / "SECURITY.md").read_text())
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(named) > 40
    assert [name for name in named if name not in defined] == []


def test_every_family_of_attacks_is_counted() -> None:
    families = [path for path in (ROOT / "corpus" / "attacks").iterdir() if path.is_dir()]
    assert len(families) == 12
    assert "twelve families of attacks" in (ROOT / "SECURITY.md").read_text()


def pins(name: str) -> list[tuple[str, str]]:
    """Normalised name and version of each package; one may have another version for newer Pythons."""
    text = (ROOT / "constraints" / name).read_text()
    return [(re.sub("[-_.]+", "-", m[1]).lower(), m[2]) for m in re.finditer(r"^([\w.-]+)==([^\s;]+)", text, re.M)]


def test_every_version_that_is_tested_is_there_with_its_hashes() -> None:
    """`make hashes` writes them anew."""
    hashed = pins("hashes.txt")
    for name in ("cpu.txt", "gpu.txt"):
        assert set(pins(name)) - set(hashed) == set(), name
    lines = (ROOT / "constraints" / "hashes.txt").read_text().replace("\\\n", " ").splitlines()
    assert len(lines) == len(hashed)
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==\S+( ; [^;#]+?)?( +--hash=sha256:[0-9a-f]{64})+", line.strip()), line[:100]


def may_break(name: str, version: str) -> Version:
    """The next version that may not do what this one does: of torch, Triton, CUDA and 0.x the next minor, else the next
    major one."""
    major, minor = Version(version).release[:2]
    minors = name in ("torch", "triton") or name.startswith("nvidia-cuda-") or major == 0
    return Version(f"{major}.{minor + 1}" if minors else f"{major + 1}")


def test_every_package_is_bounded_by_the_next_version_after_the_tested_one_that_may_break() -> None:
    """How to raise the bounds: CONTRIBUTING.md, "Versions"."""
    written = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = written["project"]
    lists = [written["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    tested = {pin for name in ("cpu.txt", "gpu.txt", "hashes.txt") for pin in pins(name)}
    checked = set()
    for wanted in [Requirement(line) for lines in lists for line in lines]:
        if wanted.name == "kerneltune":
            continue
        (bound,) = [Version(part.version) for part in wanted.specifier if part.operator == "<"]
        for version in [version for name, version in tested if name == wanted.name]:
            assert wanted.specifier.contains(version), wanted
            assert bound == may_break(wanted.name, version), wanted
            checked.add(wanted.name)
    assert len(checked) > 25
    assert {"torch", "triton", "setuptools"} < checked
