"""Execute the notebooks of this folder and keep their outputs: python docs/notebooks/execute.py."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs; an error in a cell is an error here."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={}).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # times of execution would change with every run
    return notebook


if __name__ == "__main__":
    for file in sorted(Path(__file__).parent.glob("*.ipynb")):
        nbformat.write(execute(file), file)
        print(file)
