"""The notebook of the documentation: run it on a store, and show it as a page of the site.

python -m scripts.notebook_page --store DIR     runs it and writes what came of it in place

As a hook of mkdocs it puts the notebook into the page that has MARK.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

NOTEBOOK: Final = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
MARK: Final = "<!-- the notebook -->"
TIMEOUT_S: Final = 600


def executed(store: Path, *more: str) -> nbformat.NotebookNode:
    """Have a Jupyter kernel run every cell on a store; nothing of this machine stays in outputs.

    more        code of cells that it runs after those of the notebook
    Raises      CellExecutionError
    """
    notebook: nbformat.NotebookNode = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    notebook.cells += [nbformat.v4.new_code_cell(code) for code in more]
    client = NotebookClient(notebook, timeout=TIMEOUT_S, record_timing=False)
    client.execute(env={**os.environ, "POINTILLIST_STORE": str(store.resolve())})
    return notebook


def cells_run(notebook: nbformat.NotebookNode) -> int:
    """Count the code cells of what `executed` gave that the kernel numbered, which all showed."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = [{output.output_type for output in cell.outputs} for cell in code]
    return sum(
        cell.execution_count is not None and "error" not in shown
        for cell, shown in zip(code, kinds, strict=True)
    )


def on_page_markdown(markdown: str, **_of_the_page: object) -> str:
    """Put the notebook where a page has the mark; what mkdocs calls for each page."""
    if MARK not in markdown:
        return markdown
    text, _ = MarkdownExporter().from_filename(str(NOTEBOOK))
    return markdown.replace(MARK, text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts.notebook_page", description=__doc__)
    parser.add_argument("--store", type=Path, required=True, help="folder of releases")
    notebook = executed(parser.parse_args().store)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
