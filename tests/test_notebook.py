"""notebooks/quickstart.ipynb: stripped of outputs, and executed."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import nbclient
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"


def test_the_notebook_is_kept_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that looks like a clone, so that the data of this one stay as they are."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(ROOT / "pretrained", tmp_path / "pretrained")
    nbformat: Any = import_module("nbformat")  # without types
    book = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        book, timeout=None, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    pictures = [kind for output in outputs for kind in output.get("data", {}) if "image/" in kind]
    assert pictures == ["image/gif", "image/gif", "image/png"]
    texts = "".join(output.get("text", "") for output in outputs)
    assert "return after 200 steps: " in texts
    assert "stage 6 of 6, report" in texts
    assert (tmp_path / "data/notebook/report/index.html").exists()
