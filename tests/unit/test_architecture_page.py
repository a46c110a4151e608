"""The tour names what is there, and its layers are those that are held."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
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
    for package in ("collectors", "diagnosis", "edge_agent"):
        rooms = [path.parent.name for path in (ROOT / package).glob("*/__init__.py")]
        assert [room for room in rooms if f"`{room}/`" not in PAGE] == []


def test_layers_of_the_tour_are_those_that_are_held() -> None:
    (whole,) = (one for one in CONTRACTS if one["name"] == "Layers of the whole")
    said = re.search(r"^pointillist  >.*$", PAGE, re.MULTILINE)
    assert said
    assert [part.strip() for part in said[0].split(">")] == whole["layers"]
