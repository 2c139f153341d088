"""Where the product may use a maker's hardware."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
MAKERS = ("tools/backends/cuda/", "tools/languages/cuda/", "tools/tasks/")
MADE = ("agent/authors/search/experts/", "tools/package/")  # what is written to run there, in a process of its own


def uses_torch_cuda(path: Path) -> bool:
    found = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute) and n.attr == "cuda")
    return any(isinstance(n.value, ast.Name) and n.value.id == "torch" for n in found)


def test_torch_s_cuda_is_used_by_its_backend_alone() -> None:
    files = [path for folder in ("agent", "tools", "prompts") for path in (ROOT / folder).rglob("*.py")]
    users = {str(path.relative_to(ROOT)) for path in files if uses_torch_cuda(path)}
    assert {name for name in users if not name.startswith(MAKERS + MADE)} == set()
    assert "tools/backends/cuda/backend.py" in users
