"""What the page of contributors says of a new metric and a new page, done to a copy of the tree."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
_BLOCK: Final = re.compile(
    r'^ *```(?P<kind>\w+) title="(?P<file>[^"]+)"\n(?P<text>.*?)^ *```$', re.MULTILINE | re.DOTALL
)
COPIED: Final = {"collectors", "edge_agent", "tests", "web", "wire"}


def blocks(heading: str) -> Iterator[tuple[str, str, str]]:
    """Give kind, file and text of each block of a section that names its file."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    for block in _BLOCK.finditer(section):
        yield block["kind"], block["file"], textwrap.dedent(block["text"])


def apply(heading: str, tree: Path) -> list[str]:
    """Do what a section of the page says to a tree; give the files that it names.

    A tree that has it already, as one in which somebody followed the page, stays as it is.
    """
    files = []
    for kind, name, text in blocks(heading):
        path = tree / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if kind == "diff":
            *context, added = text.splitlines()
            old = "".join(f"{line[1:]}\n" for line in context)
            assert added.startswith("+")
            assert before.count(old) == 1, f"{name} has not {old!r} once"
            new = f"{old}{added[1:]}\n"
            after = before if new in before else before.replace(old, new)
        else:
            after = before if text in before else f"{before}\n{text}" if before else text
        path.write_text(after, encoding="utf-8")
        files.append(name)
    return files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the tree: what the page changes is copied, all else is the checkout's."""
    for path in ROOT.iterdir():
        if path.name in COPIED:
            shutil.copytree(
                path, tmp_path / path.name, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def passes(tree: Path, *arguments: str) -> str:
    """Run tests of the tree; give what they said."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
    return done.stdout


@pytest.mark.slow
def test_metric_of_the_page_is_measured_and_released(tree: Path) -> None:
    files = apply("Add a metric", tree)
    assert "wire/catalogue.toml" in files
    assert "4 passed" in passes(tree, "tests/collectors/test_conformance.py", "-k", "open_files")
    passes(
        tree,
        "tests/collectors/test_conformance.py::test_every_collector_of_the_agent_is_a_row",
        "tests/edge_agent/test_unmeasured.py",
        "tests/integration/test_toy_metric.py",
        "tests/wire/test_catalogue_content.py",
    )


ASKS = """
import json, sys
from pathlib import Path
from tests.aggregator.releases import release_kit
from tests.web_kit import client, fill

release_kit.WEIGHTS |= {"kernel_mix": 300_000, "host_disk": 100_000}
with client(fill(Path(sys.argv[1]))) as asked:
    answer = asked.get("/api/v1/pages/hosts/means").json()
    print(json.dumps([asked.get("/hosts").text, answer]))
"""


@pytest.mark.slow
def test_page_of_the_page_is_one_file_and_one_line(tree: Path, tmp_path: Path) -> None:
    assert apply("Add a page of the web application", tree) == [
        "web/pages_hosts.py", "web/page_list.py",
    ]  # fmt: skip
    assert "1 passed" in passes(tree, "tests/web/test_web_pages.py", "-k", "hosts")
    said = subprocess.run(
        [sys.executable, "-c", ASKS, str(tmp_path / "store")],
        cwd=tree, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    html, answer = json.loads(said.stdout)
    rows = {row["name"]: row for row in answer["rows"]}
    assert {column["name"]: column["unit"] for column in answer["columns"]}["mean"] == "unit"
    assert rows["receive"]["mean"]["value"] == pytest.approx(20e9, rel=0.5)
    assert (rows["receive"]["unit"], rows["busy"]["unit"]) == ("bytes/s", "percent")
    assert " bytes/s" in html
    assert " percent" in html


def test_a_tree_that_lacks_what_the_page_names_is_refused(tree: Path) -> None:
    apply("Add a metric", tree)
    live = tree / "edge_agent/open_agent.py"
    once = live.read_text(encoding="utf-8")
    apply("Add a metric", tree)
    assert live.read_text(encoding="utf-8") == once
    live.write_text("", encoding="utf-8")
    with pytest.raises(AssertionError, match="has not"):
        apply("Add a metric", tree)
