"""What SECURITY.md promises: its tests are there, and so are the hashes."""

import re

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
    assert len(families) == 10
    assert "ten families of attacks" in (ROOT / "SECURITY.md").read_text()


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
