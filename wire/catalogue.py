"""The catalogue of metrics: read from TOML, versioned by the hash of its content."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from . import labels
from .bounds import MAX_D
from .section import Section
from .section_entry import (
    CatalogueError,
    need,
    need_known,
    need_names,
    need_range,
    need_table,
    read_section,
)

MAX_BYTES: Final = 1 << 22
__all__ = ["Catalogue", "CatalogueError", "Section", "Table"]

_TOP = {"format", "extends", "retired_section_ids", "tables", "partitions", "section"}


@dataclass(frozen=True, slots=True)
class Table:
    """A class table: named classes first, then places kept for later ones."""

    name: str
    classes: tuple[str, ...]
    places: int

    @property
    def cells(self) -> tuple[str, ...]:
        kept = range(len(self.classes), self.places)
        return (*self.classes, *(f"reserved_{place}" for place in kept))


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every metric that a task may ask for.

    hash  SHA-256 of the label and the canonical JSON of the content; comments do not count
    """

    sections: tuple[Section, ...]
    tables: Mapping[str, Table]
    retired_section_ids: frozenset[int]
    hash: bytes

    @classmethod
    def load(cls, path: Path | str | None = None) -> Self:
        """Read the shipped catalogue, or another file; CatalogueError when it breaks a rule."""
        content = _read(shipped_file() if path is None else Path(path))
        if "extends" in content:
            need(content["extends"] == "default", "extends = default", content["extends"])
            content = _merge(_read(shipped_file()), content)
        return cls.from_content(content)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Self:
        """Build a catalogue from parsed TOML."""
        need_known(content, _TOP, "the catalogue")
        need(content.get("format") == 1, "format = 1", content.get("format"))
        _check_shape(content)
        tables = {name: _table(name, raw) for name, raw in content.get("tables", {}).items()}
        axes = {name: table.cells for name, table in tables.items()}
        for name, raw in content.get("partitions", {}).items():
            need(name not in axes, f"a name for partition {name} that no table has", name)
            axes[name] = _partition(name, raw, axes)
        sections = tuple(read_section(raw, axes) for raw in content.get("section", []))
        retired = frozenset(content.get("retired_section_ids", []))
        _check_unique(sections, retired)
        return cls(sections, tables, retired, _content_hash(content))

    def section(self, name: str) -> Section:
        """Return a section by name; KeyError lists the names there are."""
        for section in self.sections:
            if section.name == name:
                return section
        names = ", ".join(section.name for section in self.sections)
        raise KeyError(f"no section {name!r} in the catalogue; there are {names}")

    def classes(self, table: str) -> tuple[str, ...]:
        """Return the named classes of a table, without the places kept for later."""
        return self.tables[table].classes

    def check_follows(self, older: Catalogue) -> None:
        """Raise CatalogueError where this catalogue gives an old id or index another meaning."""
        for name, table in older.tables.items():
            mine = self.tables.get(name)
            need(mine is not None, f"table {name} of the older catalogue", "none")
            if mine is not None:
                same = mine.classes[: len(table.classes)] == table.classes
                need(same, f"table {name} to begin with the older classes", "others")
                need(mine.places == table.places, f"{table.places} places", mine.places)
        ids = {section.id: section.name for section in self.sections}
        for section in older.sections:
            gone = section.id in self.retired_section_ids
            kept = ids.get(section.id) == section.name
            need(gone or kept, f"section {section.id} = {section.name}", ids.get(section.id))
        lost = older.retired_section_ids - self.retired_section_ids
        need(not lost, "every retired id to stay retired", sorted(lost))


def shipped_file() -> Path:
    """Give the file of the catalogue that came with this installation."""
    return Path(__file__).with_name("catalogue.toml")


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    need(len(text) <= MAX_BYTES, f"{path} of at most {MAX_BYTES} bytes", "more")
    try:
        return tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CatalogueError(f"{path} is no TOML: {error}") from None


def _merge(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Add a file's entries to the shipped ones; nothing shipped can be replaced."""
    need_known(more, _TOP, "the catalogue")
    _check_shape(more)
    merged = base | {"format": more.get("format")}
    for key in ("tables", "partitions"):
        added = more.get(key, {})
        twice = base[key].keys() & added.keys()
        need(not twice, f"new names under {key}", sorted(twice))
        merged[key] = base[key] | added
    for key in ("section", "retired_section_ids"):
        merged[key] = base[key] + more.get(key, [])
    return merged


def _check_shape(content: dict[str, Any]) -> None:
    for key in ("tables", "partitions"):
        for name, raw in need_table(content.get(key, {}), key).items():
            need_table(raw, f"{key}.{name}")
    sections = content.get("section", [])
    need(isinstance(sections, list), "section as a list of tables", type(sections).__name__)
    retired = content.get("retired_section_ids", [])
    whole = isinstance(retired, list) and all(isinstance(number, int) for number in retired)
    need(whole, "retired_section_ids as a list of integers", retired)


def _content_hash(content: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=_refuse)
    except RecursionError:
        raise CatalogueError("expected a flat catalogue, got deep nesting") from None
    return hashlib.sha256(labels.label("plst1/catalogue") + text.encode()).digest()


def _refuse(value: object) -> str:
    raise CatalogueError(f"expected integers and text, got {type(value).__name__}")


def _table(name: str, raw: dict[str, Any]) -> Table:
    need_known(raw, {"places", "classes"}, f"table {name}")
    classes = need_names(raw.get("classes"), f"the classes of table {name}")
    need_range(raw.get("places"), len(classes), MAX_D, f"table {name}: places")
    return Table(name, classes, raw["places"])


def _partition(name: str, raw: dict[str, Any], axes: Mapping[str, Any]) -> tuple[str, ...]:
    need_known(raw, {"measures", "table", "rest"}, f"partition {name}")
    measures = need_names(raw.get("measures", []), f"the measures of partition {name}")
    rest = need_names(raw.get("rest"), f"the rest of partition {name}")
    table = raw.get("table")
    need(table in axes, f"partition {name} of a table", table)
    cells = axes[str(table)]
    measured = [f"{measure}/{cell}" for measure in measures for cell in cells]
    return (*(measured or cells), *rest)


def _check_unique(sections: tuple[Section, ...], retired: frozenset[int]) -> None:
    seen: set[int | str] = set()
    for section in sections:
        for what in (section.id, section.name):
            need(what not in seen, f"section {section.name}: an id and name of its own", what)
            seen.add(what)
        need(section.id not in retired, "an id that was never used", f"retired {section.id}")
