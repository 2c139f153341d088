"""Words that we do not use where a person or a model reads them: they are old, or say less than a plain one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("agent", "tools", "prompts")
WORDS = re.compile(r"\b(?:mend(?:s|ed|ing)?|lack(?:s|ed|ing)?|amiss|told|dearest|doubled|of it)\b", re.IGNORECASE)
INSTEAD = "instead: fix, has no, wrong, shown or given, most expensive, twice, and the noun"
KERNELS = ("agent/authors/search/experts/", "tools/tasks/")  # their comments are about kernels


def texts() -> Iterator[tuple[str, str]]:
    """Where a text is, and the text."""
    for path in (ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        yield str(path.relative_to(ROOT)), path.read_text()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if not name.startswith(KERNELS):
                yield from ((f"{name}:{line}", text) for line, text in _sentences(ast.parse(path.read_text())))
        for path in (p for kind in ("j2", "html", "js") for p in (ROOT / folder).rglob(f"*.{kind}")):
            yield (
                str(path.relative_to(ROOT)),
                re.sub(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", "", path.read_text(), flags=re.S),
            )


def _sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Constants of several words; docstrings are for those who read code, but for a command's, which is its help."""
    statements = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in statements:
            continue
        if isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


@pytest.mark.parametrize("where", ["documents", "product"])
def test_what_people_and_models_read_has_none_of_the_words_that_we_do_not_use(where: str) -> None:
    its = [(name, text) for name, text in texts() if name.endswith(".md") == (where == "documents")]
    assert len(its) > 30
    found = [f"{name}: … {m[0]} …" for name, text in its for m in WORDS.finditer(" ".join(text.split()))]
    assert found == [], INSTEAD
