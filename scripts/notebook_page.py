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


def executed(store: Path) -> nbformat.NotebookNode:
    """Run every cell on a store of releases; nothing of this machine stays in the outputs.

    Raises      CellExecutionError
    """
    notebook: nbformat.NotebookNode = nbformat.read(NOTEBOOK, as_version=4)
    os.environ["POINTILLIST_STORE"] = str(store.resolve())
    NotebookClient(notebook, timeout=TIMEOUT_S, record_timing=False).execute()
    return notebook


def on_page_markdown(markdown: str, **_of_the_page: object) -> str:
    """Put the notebook where a page has the mark; what mkdocs calls for each page."""
    if MARK not in markdown:
        return markdown
    text, _ = MarkdownExporter().from_filename(str(NOTEBOOK))
    return markdown.replace(MARK, text)


def main() -> None:
    """Run the notebook and write it."""
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
