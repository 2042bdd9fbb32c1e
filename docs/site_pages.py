"""Pages of the site that are made from files elsewhere in the repository, and links to those files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
AT_THE_TOP = (
    *("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "ERRATA.md", "PAPER.md", "REPRODUCTION.md"),
    *("README.md", "SECURITY.md"),
)
CODE = (
    "src",
    "tests",
    "benchmarks",
    "scripts",
    "results",
    "pyproject",
    ".ci",
    "Makefile",
    "LICENSE",
    "CITATION.cff",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files at the top of the repository, the notebooks, the examples and the experiment files."""
    pages = {
        name: (ROOT / name).read_text()
        for name in AT_THE_TOP
        if name != "README.md" and (ROOT / name).exists()
    }
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(json.loads(path.read_text()))
    pages["examples.md"] = listing("Examples", "examples", "*.py", "python")
    pages["experiment-files.md"] = listing("Experiment files", "experiments", "*.toml", "toml")
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links to files of the repository links to their pages."""
    return re.sub(r"\]\(([^)#:\s]+)(#[^)]*)?\)", lambda found: _link(found, page.file.src_uri), markdown)


def _link(found: re.Match[str], source: str) -> str:
    target, anchor = found.group(1), found.group(2) or ""
    plain = target.removeprefix("../").removeprefix("../")
    up = "../" * source.count("/")
    if plain == "README.md":
        return f"]({up}index.md)"
    if plain in AT_THE_TOP:
        return f"]({up}{plain}{anchor})"
    if plain == "docs/README.md":
        return f"]({up}CONTRIBUTING.md)"
    if plain.startswith("docs/"):
        return f"]({up}{plain.removeprefix('docs/')}{anchor})"
    if plain.startswith("examples"):
        name = Path(plain).name.lower()
        return f"]({up}examples.md)" if name == "examples" else f"]({up}examples.md#{_anchor(name)})"
    if plain.rstrip("/").startswith("experiments") and not plain.endswith(".md"):
        return f"]({up}experiment-files.md)"
    if plain.startswith(CODE):
        return "]" + f"({up}ARCHITECTURE.md)"  # source files are no pages: the map says where things are
    return found.group(0)


def _anchor(name: str) -> str:
    """What the table of contents makes of a heading.

    >>> _anchor("own_data.py")
    'own_datapy'
    """
    return re.sub(r"[^\w-]", "", name)


def listing(title: str, folder: str, pattern: str, language: str) -> str:
    """A page with the text of all files of a folder."""
    parts = [f"# {title}"]
    for path in sorted((ROOT / folder).glob(pattern)):
        parts.append(f"## {path.name}\n\n```{language}\n{path.read_text().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook with its printed outputs as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("text") or output.get("data", {}).get("text/plain", "")
            html = output.get("data", {}).get("text/html")
            parts.append("".join(html) if html else f"```text\n{''.join(shown).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"
