"""The tour names what is there, and its layers are those that are held."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]


def test_every_path_of_the_tour_exists() -> None:
    named = set(re.findall(r"`([a-z_]+/[a-z_/.]*)`", PAGE))
    assert len(named) > 40
    assert [name for name in sorted(named) if not _exists(name)] == []


def _exists(name: str) -> bool:
    """In the tree; a room of a package may be named without it, as `records/` is."""
    return (ROOT / name).exists() or (name.endswith("/") and bool(list(ROOT.glob(f"*/{name}"))))


def test_every_room_of_the_layered_packages_is_in_the_tour() -> None:
    for package in ("transport", "aggregator", "collectors", "diagnosis", "edge_agent"):
        rooms = [path.parent.name for path in (ROOT / package).glob("*/__init__.py")]
        assert [room for room in rooms if f"`{room}/`" not in PAGE] == []


def test_layers_of_the_tour_are_those_that_are_held() -> None:
    said = re.search(r"^pointillist  >.*$", PAGE, re.MULTILINE)
    assert said
    assert [part.strip() for part in said[0].split(">")] == _whole()["layers"]


def _whole() -> dict[str, Any]:
    (whole,) = (one for one in CONTRACTS if one["name"] == "Layers of the whole")
    return dict(whole)


TWICE = {"GpuPrograms"}
"""Two loaders of one kind."""
FILES_TWICE = {"__init__.py", "interface.py", "port.py"}


def test_public_classes_and_files_are_told_apart_by_their_names() -> None:
    packages = {part for layer in _whole()["layers"] for part in layer.split(" | ")}
    paths = [path for name in packages for path in (ROOT / name).rglob("*.py")]
    written = [path for path in paths if not path.stem.endswith(("_pb2", "_pb2_grpc"))]
    files = Counter((path.relative_to(ROOT).parts[0], path.name) for path in written)
    classes = Counter(
        name
        for path in written
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert {name for name, times in classes.items() if times > 1} <= TWICE
    assert {name for (_, name), times in files.items() if times > 1} <= FILES_TWICE
