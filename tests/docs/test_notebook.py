"""The notebook of the docs is executed as Jupyter does, from the first cell to the last."""

import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.agent.shell import ROOT


def outputs(cell: Any) -> dict[str, Any]:
    """What the cell shows at its end, by MIME type."""
    shown: dict[str, Any] = {}
    for output in cell.outputs:
        shown |= output.get("data", {}) if output.output_type == "execute_result" else {}
    return shown


@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Jupyter's own
def test_the_notebook_runs_and_shows_a_card_of_the_run(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "notebook.ipynb", tmp_path)
    read: Any = nbformat.read
    book = read(tmp_path / "notebook.ipynb", as_version=4)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    card = outputs(code[1])
    assert card["text/html"].startswith("<svg")
    assert "tail_task" in card["text/html"]
    assert "checked" in card["text/plain"] or "correct" in card["text/plain"]
    assert outputs(code[2])["text/plain"].startswith(("('checked', {}", "('correct', {'eager'"))
    assert "torch.Size([4, 128, 256]) ['0', '1']" in "".join(output.text for output in code[3].outputs)
    assert outputs(code[4])["text/plain"] == "([(2, (4, 128, 256)), (1, (4, 1, 256))], 'tail_task')"
