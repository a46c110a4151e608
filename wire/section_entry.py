"""Reading one [[section]] of a catalogue file, and the rules that every entry of it keeps."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from . import bounds
from .bounds import MAX_D
from .section import LEFT_OUT, Bins, Bound, Coordinate, Section
from .task import CHECK_WORDS, SectionKind

_Member = TypeVar("_Member", bound=StrEnum)


class CatalogueError(ValueError):
    """A catalogue file breaks a rule; the message names the entry, the rule and what came."""


def need(holds: object, expected: str, got: object) -> None:
    """Raise CatalogueError where a rule does not hold."""
    if not holds:
        raise CatalogueError(f"expected {expected}, got {got}")


def need_range(value: object, low: int, high: int, what: str) -> None:
    """Raise CatalogueError for anything but an integer in [low, high]."""
    right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    need(right, f"{what} in {low}..{high}", value)


def need_table(raw: object, where: str) -> Mapping[str, Any]:
    """Return raw as the table that it has to be."""
    if not isinstance(raw, Mapping):
        raise CatalogueError(f"expected {where} as a table, got {type(raw).__name__}")
    return raw


def need_known(raw: object, known: Collection[str], where: str) -> None:
    """Raise CatalogueError for a key that no rule knows."""
    unknown = sorted(set(need_table(raw, where)) - set(known))
    need(not unknown, f"{where} of the keys {', '.join(sorted(known))}", ", ".join(unknown))


def need_names(raw: object, what: str) -> tuple[str, ...]:
    """Return a list of distinct names."""
    if not isinstance(raw, list) or not all(isinstance(name, str) and name for name in raw):
        raise CatalogueError(f"expected {what} as a list of names, got {raw}")
    need(len(set(raw)) == len(raw), f"{what} each once", "one twice")
    return tuple(raw)


def member(kinds: type[_Member], value: str, where: str) -> _Member:
    """Return the member of an enum by value."""
    try:
        return kinds(value)
    except ValueError:
        known = ", ".join(kind.value for kind in kinds)
        raise CatalogueError(f"expected {where} among {known}, got {value}") from None


def need_types(raw: Mapping[str, Any], types: Mapping[str, type], where: str) -> None:
    """Raise CatalogueError for a value of another type."""
    for key, value in raw.items():
        right = isinstance(value, types[key]) and not isinstance(value, bool)
        need(right, f"{where}: {key} as {types[key].__name__}", type(value).__name__)


_REQUIRED = {
    "id": int,
    "name": str,
    "kind": str,
    "unit": str,
    "axes": list,
    "steps_per_unit": int,
}
_OPTIONAL = {
    "about": str,
    "bins": dict,
    "coordinates": list,
    "bound": str,
    "coordinate_cap": int,
    "l1_bound": int,
    "sample_period_s": int,
    "m": int,
}


def read_section(raw: dict[str, Any], axes: Mapping[str, tuple[str, ...]]) -> Section:
    """Build one section; `axes` gives the cells of each table and partition."""
    name = str(need_table(raw, "a section").get("name"))
    where = f"section {name}"
    need_known(raw, _REQUIRED.keys() | _OPTIONAL.keys(), where)
    for key, kind in _REQUIRED.items():
        need(key in raw, f"{where}: the key {key} ({kind.__name__})", "none")
    need_types(raw, _REQUIRED | _OPTIONAL, where)
    bins = _bins(raw["bins"], where) if "bins" in raw else None
    coordinates = tuple(_coordinate(entry, where) for entry in raw.get("coordinates", []))
    places = dict(axes)
    if bins is not None:
        places["bins"] = bins.names
    if coordinates:
        places["coordinates"] = tuple(coordinate.name for coordinate in coordinates)
    of_kind = member(SectionKind, raw["kind"], where)
    rest = (LEFT_OUT,) if of_kind is SectionKind.INDICATORS else ()
    section = Section(
        id=raw["id"],
        name=name,
        about=raw.get("about", ""),
        kind=of_kind,
        unit=raw["unit"],
        axes=need_names(raw["axes"], f"{where}: axes"),
        cells=_cells(raw["axes"], places, rest, where),
        bins=bins,
        coordinates=coordinates,
        bound=member(Bound, raw.get("bound", "indicators"), where),
        coordinate_cap=raw.get("coordinate_cap", 0),
        l1_bound=raw.get("l1_bound", 0),
        sample_period_s=raw.get("sample_period_s", 0),
        m=raw.get("m", 0),
        steps_per_unit=raw["steps_per_unit"],
    )
    _check_section(section, where)
    return section


def _check_section(section: Section, where: str) -> None:
    need(
        bounds.NAME.fullmatch(section.name),
        f"{where}: a name like {bounds.NAME.pattern}",
        "another",
    )
    need_range(section.id, 1, (1 << 31) - 1, f"{where}: id")
    need_range(section.steps_per_unit, 1, 1 << 20, f"{where}: steps_per_unit")
    indicators = section.kind is SectionKind.INDICATORS
    most = section.length - 1 if indicators else 0
    need_range(section.m, int(indicators), most, f"{where}: m")
    same = (section.bound is Bound.INDICATORS) == indicators
    need(same, f"{where}: a bound for other kinds, none for indicators", section.bound.value)
    fixed = section.bound is Bound.FIXED
    need_range(section.l1_bound, int(fixed), (1 << 53) * fixed, f"{where}: l1_bound")
    need_range(section.coordinate_cap, int(fixed), section.l1_bound, f"{where}: coordinate_cap")
    sampled = section.bound is Bound.PER_GPU_SAMPLE
    need_range(section.sample_period_s, int(sampled), 3600 * sampled, f"{where}: sample_period_s")


def _bins(raw: dict[str, Any], where: str) -> Bins:
    linear = raw.get("scale") == "linear"
    keys = {"scale", "unit", "first", "count"} | ({"width"} if linear else set())
    need_known(raw, keys, f"{where}: bins")
    need(linear or raw.get("scale") == "log2", f"{where}: scale log2 or linear", raw.get("scale"))
    need(isinstance(raw.get("unit"), str), f"{where}: a unit of bins", raw.get("unit"))
    for key, high in (("first", 1 << 20 if linear else 62), ("count", 4096), ("width", 1 << 40)):
        if key in keys:
            need_range(raw.get(key), int(key != "first"), high, f"{where}: bins.{key}")
    need(linear or raw["first"] + raw["count"] <= 64, f"{where}: log2 bins below 2^64", "above")
    return Bins(raw["scale"], raw["unit"], raw["first"], raw.get("width", 0), raw["count"])


def _coordinate(raw: object, where: str) -> Coordinate:
    if not isinstance(raw, dict) or raw.keys() != {"name", "full_scale", "unit"}:
        raise CatalogueError(f"{where}: expected coordinates of name, full_scale, unit, got {raw}")
    need_range(raw["full_scale"], 1, 1 << 53, f"{where}: full_scale")
    return Coordinate(str(raw["name"]), raw["full_scale"], str(raw["unit"]))


def _cells(
    wanted: list[str], places: Mapping[str, tuple[str, ...]], rest: tuple[str, ...], where: str
) -> tuple[str, ...]:
    size = 1
    for axis in wanted:
        need(axis in places, f"{where}: an axis among {sorted(places)}", axis)
        size *= len(places[axis])
    size += len(rest)
    need_range(size, 1, MAX_D - CHECK_WORDS, f"{where}: cells")
    named = ("/".join(cell) for cell in itertools.product(*(places[a] for a in wanted)))
    cells = (*named, *rest)
    need(len(set(cells)) == size and wanted, f"{where}: each cell once, an axis at least", size)
    return cells
