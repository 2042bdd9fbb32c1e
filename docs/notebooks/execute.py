"""Execute the notebooks of this folder and keep their outputs: python docs/notebooks/execute.py."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient


def execute(path: Path) -> nbformat.NotebookNode:
    """The notebook with fresh outputs; an error in a cell is an error here."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:  # records go there
        where = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # times of execution would change with every run
        if "outputs" in cell:  # progress displays and warnings of other packages are no results
            kept = ("execute_result", "stream")
            found = [output for output in cell.outputs if output.output_type in kept]
            cell.outputs = [output for output in found if output.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    for file in sorted(Path(__file__).parent.glob("*.ipynb")):
        nbformat.write(execute(file), file)
        print(file)
