"""The catalogue of metrics: read from TOML, versioned by the hash of its content."""

from __future__ import annotations

import hashlib
import itertools
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from . import fields, labels
from .fields import MAX_D
from .task import CHECK_WORDS, SectionKind, SectionSpec

MS_PER_S: Final = 1000

UNMEASURED: Final = "unmeasured"
"""Cell of means and indicators: a host that did not measure the section sets it, and no other."""
MEASURED: Final = "measured"
"""What a release has in its place: the accepted hosts without those."""
LEFT_OUT: Final = "left_out"
"""Last cell of every indicator section: what hosts with more than m set did not report."""
NO_CLASSES: Final = (MEASURED, LEFT_OUT)
"""Released cells of a section's hosts, that are no classes beside the others."""


OF_HOSTS: Final = (SectionKind.MEAN, SectionKind.INDICATORS)
"""Kinds that are read as a value a host, of which zero is a number only where it was measured."""


class Bound(StrEnum):
    PER_GPU_MS = "per_gpu_ms"
    PER_GPU_SAMPLE = "per_gpu_sample"
    FIXED = "fixed"
    INDICATORS = "indicators"


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of a value: [first + i width, ...) or, log2, [2^(first+i), ...); the ends are open."""

    scale: str
    unit: str
    first: int
    width: int
    count: int

    def index(self, value: float) -> int:
        """Return the bin of a value, clamped to the first and last."""
        whole = max(int(value), 0)
        if self.scale == "log2":
            place = max(whole.bit_length() - 1, 0) - self.first
        else:
            place = (whole - self.first) // self.width
        return min(max(place, 0), self.count - 1)

    @property
    def edges(self) -> tuple[int, ...]:
        """Lower edges of the bins, in `unit`."""
        steps = range(self.first, self.first + self.count)
        if self.scale == "log2":
            return tuple(1 << step for step in steps)
        return tuple(self.first + self.width * step for step in range(self.count))

    @property
    def names(self) -> tuple[str, ...]:
        if self.scale == "log2":
            edges = [f"2^{step}" for step in range(self.first, self.first + self.count)]
        else:
            edges = [str(edge) for edge in self.edges]
        inner = [f"{low}..{high} {self.unit}" for low, high in itertools.pairwise(edges)]
        return (*inner, f"{edges[-1]}.. {self.unit}")


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One mean: raw values are millionths of full_scale, which is in `unit`."""

    name: str
    full_scale: int
    unit: str


@dataclass(frozen=True, slots=True)
class Section:
    """One metric of the catalogue.

    unit            base unit of raw values
    axes            names of class tables, partitions, "bins" or "coordinates"
    cells           readable names, the product of the axes, first axis slowest; then UNMEASURED of
                    means and indicators (not in format 1), then LEFT_OUT of indicators
    bound           where the L1 bound comes from
    coordinate_cap  base units; 0 unless bound is `fixed`; so l1_bound
    m               most cells that a host sets, LEFT_OUT among them; 0 for other kinds
    steps_per_unit  steps per section bound; per indicator for an indicator set
    """

    id: int
    name: str
    about: str
    kind: SectionKind
    unit: str
    axes: tuple[str, ...]
    cells: tuple[str, ...]
    bins: Bins | None
    coordinates: tuple[Coordinate, ...]
    bound: Bound
    coordinate_cap: int
    l1_bound: int
    sample_period_s: int
    m: int
    steps_per_unit: int

    @property
    def length(self) -> int:
        return len(self.cells)

    @property
    def axis_cells(self) -> int:
        """How many cells the axes have; the others come after them."""
        return self.length - self.counts_unmeasured - (self.kind is SectionKind.INDICATORS)

    @property
    def counts_unmeasured(self) -> bool:
        """Whether hosts that did not measure say so in a cell of their own, not in wall time."""
        return self.kind in OF_HOSTS and UNMEASURED in self.cells

    @property
    def released_cells(self) -> tuple[str, ...]:
        """Names of the cells in a release."""
        if not self.counts_unmeasured:
            return self.cells
        return tuple(MEASURED if cell == UNMEASURED else cell for cell in self.cells)

    def index(self, cell: str) -> int:
        """Return the place of a cell; KeyError names the section when there is none."""
        try:
            return self.cells.index(cell)
        except ValueError:
            raise KeyError(f"section {self.name} has no cell {cell!r}") from None

    def resolve(self, gpus: int, window_s: int) -> tuple[int, int, int]:
        """Return coordinate cap a, L1 bound B and step q in base units, for the largest host.

        gpus      GPUs of the largest host of the cohort, >= 1
        window_s  length of the window, seconds
        Returns   a <= B, both multiples of q; q is the smallest step that gives at most
                  steps_per_unit steps to the bound
        Raises    ValueError when gpus or window_s is below 1
        """
        if gpus < 1 or window_s < 1:
            raise ValueError(f"gpus and window_s are at least 1, got {gpus} and {window_s}")
        if self.bound is Bound.INDICATORS:
            return self.steps_per_unit, self.m * self.steps_per_unit, 1
        total = gpus * self._of_one_gpu(window_s) or self.l1_bound
        cap = self.coordinate_cap if self.bound is Bound.FIXED else total
        q = -(-total // self.steps_per_unit)
        return -(-cap // q) * q, -(-total // q) * q, q

    def _of_one_gpu(self, window_s: int) -> int:
        """Return a window's amount of one GPU, base units; 0 where GPUs do not bound it."""
        if self.bound is Bound.PER_GPU_MS:
            return window_s * MS_PER_S
        of_samples = self.bound is Bound.PER_GPU_SAMPLE
        return max(window_s // self.sample_period_s, 1) if of_samples else 0

    def gpu_counts(self, spec: SectionSpec, window_s: int) -> range | None:
        """Return the counts of which alone `resolve` can give a task's bound and step.

        None where GPUs do not bound it: any count does
        """
        one = self._of_one_gpu(window_s)
        if not one:
            return None
        above = max(spec.l1_bound - spec.q, (spec.q - 1) * self.steps_per_unit)
        return range(above // one + 1, min(spec.l1_bound, spec.q * self.steps_per_unit) // one + 1)


_Member = TypeVar("_Member", bound=StrEnum)


class CatalogueError(ValueError):
    """A catalogue file breaks a rule; the message names the entry, the rule and what came."""


def need(holds: object, expected: str, got: object) -> None:
    if not holds:
        raise CatalogueError(f"expected {expected}, got {got}")


def need_range(value: object, low: int, high: int, what: str) -> None:
    right = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    need(right, f"{what} in {low}..{high}", value)


def need_table(raw: object, where: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise CatalogueError(f"expected {where} as a table, got {type(raw).__name__}")
    return raw


def need_known(raw: object, known: Collection[str], where: str) -> None:
    unknown = sorted(set(need_table(raw, where)) - set(known))
    need(not unknown, f"{where} of the keys {', '.join(sorted(known))}", ", ".join(unknown))


def need_names(raw: object, what: str) -> tuple[str, ...]:
    if not isinstance(raw, list) or not all(isinstance(name, str) and name for name in raw):
        raise CatalogueError(f"expected {what} as a list of names, got {raw}")
    need(len(set(raw)) == len(raw), f"{what} each once", "one twice")
    return tuple(raw)


def member(kinds: type[_Member], value: str, where: str) -> _Member:
    try:
        return kinds(value)
    except ValueError:
        known = ", ".join(kind.value for kind in kinds)
        raise CatalogueError(f"expected {where} among {known}, got {value}") from None


_REQUIRED = {"id": int, "name": str, "kind": str, "unit": str, "axes": list, "steps_per_unit": int}
_WHOLE = ("coordinate_cap", "l1_bound", "sample_period_s", "m")
"""Keys that a section may leave out: 0."""
_OPTIONAL: Final[dict[str, type]] = {
    "about": str,
    "bins": dict,
    "coordinates": list,
    "bound": str,
    **dict.fromkeys(_WHOLE, int),
}


def read_section(
    raw: dict[str, Any], axes: Mapping[str, tuple[str, ...]], *, tells: bool = True
) -> Section:
    """Build one section; `axes` gives the cells of each table and partition.

    tells   means and indicators have a cell for hosts that did not measure
    """
    name = str(need_table(raw, "a section").get("name"))
    where = f"section {name}"
    need_known(raw, _REQUIRED.keys() | _OPTIONAL.keys(), where)
    for key, kind in _REQUIRED.items():
        need(key in raw, f"{where}: the key {key} ({kind.__name__})", "none")
    types = _REQUIRED | _OPTIONAL
    for key, value in raw.items():
        right = isinstance(value, types[key]) and not isinstance(value, bool)
        need(right, f"{where}: {key} as {types[key].__name__}", type(value).__name__)
    bins = _bins(raw["bins"], where) if "bins" in raw else None
    coordinates = tuple(_coordinate(entry, where) for entry in raw.get("coordinates", []))
    places = dict(axes)
    if bins is not None:
        places["bins"] = bins.names
    if coordinates:
        places["coordinates"] = tuple(coordinate.name for coordinate in coordinates)
    of_kind = member(SectionKind, raw["kind"], where)
    told = (UNMEASURED,) if tells and of_kind in OF_HOSTS else ()
    rest = (*told, LEFT_OUT) if of_kind is SectionKind.INDICATORS else told
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
        steps_per_unit=raw["steps_per_unit"],
        **{key: raw.get(key, 0) for key in _WHOLE},
    )
    _check_section(section, where)
    return section


def _check_section(section: Section, where: str) -> None:
    named = fields.NAME.fullmatch(section.name)
    need(named, f"{where}: a name like {fields.NAME.pattern}", "another")
    need_range(section.id, 1, (1 << 31) - 1, f"{where}: id")
    need_range(section.steps_per_unit, 1, 1 << 20, f"{where}: steps_per_unit")
    indicators = section.kind is SectionKind.INDICATORS
    most = section.axis_cells if indicators else 0
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

    hash    SHA-256 of the label and the canonical JSON of the content; comments do not count
    former  the shipped one of the format before, of which tasks may still run
    """

    sections: tuple[Section, ...]
    tables: Mapping[str, Table]
    hash: bytes
    former: Catalogue | None = None

    @classmethod
    def load(cls, path: Path | str | None = None) -> Self:
        """Read the shipped catalogue, or another file; CatalogueError when it breaks a rule."""
        content = _read(_shipped(FORMAT) if path is None else Path(path))
        if "extends" in content:
            need(content["extends"] == "default", "extends = default", content["extends"])
            content = _merge(_read(_shipped(_format(content))), content)
        former = None if _format(content) == 1 else cls.from_content(_read(_shipped(1)))
        return replace(cls.from_content(content), former=former)

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Self:
        need_known(content, _TOP, "the catalogue")
        tells = _format(content) == FORMAT
        _check_shape(content)
        tables = {name: _table(name, raw) for name, raw in content.get("tables", {}).items()}
        axes = {name: table.cells for name, table in tables.items()}
        for name, raw in content.get("partitions", {}).items():
            need(name not in axes, f"a name for partition {name} that no table has", name)
            axes[name] = _partition(name, raw, axes)
        sections = tuple(read_section(raw, axes, tells=tells) for raw in content.get("section", []))
        _check_unique(sections, content.get("retired_section_ids", []))
        try:
            text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=_refuse)
        except RecursionError:
            raise CatalogueError("expected a flat catalogue, got deep nesting") from None
        digest = hashlib.sha256(labels.label("plst1/catalogue") + text.encode()).digest()
        return cls(sections, tables, digest)

    def section(self, name: str) -> Section:
        """Return a section by name; KeyError lists the names there are."""
        for section in self.sections:
            if section.name == name:
                return section
        names = ", ".join(section.name for section in self.sections)
        raise KeyError(f"no section {name!r} in the catalogue; there are {names}")

    def classes(self, table: str) -> tuple[str, ...]:
        return self.tables[table].classes

    def named(self, catalogue_hash: bytes) -> Catalogue | None:
        """Return the one that a task names: this, or the shipped one before."""
        known = (self, self.former)
        return next((one for one in known if one and one.hash == catalogue_hash), None)

    def known(self, spec: SectionSpec) -> Section | None:
        """Return a task's section by its id, which never changes its meaning; None if unknown."""
        known = (*self.sections, *(self.former.sections if self.former else ()))
        same = (one for one in known if one.id == spec.section_id and one.length == spec.length)
        return next(same, None)

    def section_of(self, spec: SectionSpec) -> Section:
        """Return a task's section, by its name where its id is unknown; KeyError if none."""
        return self.known(spec) or self.section(spec.name)


FORMAT: Final = 2
_SHIPPED: Final = {1: "catalogue_1.toml", FORMAT: "catalogue.toml"}
"""In format 1, means and indicators have no cell for hosts that did not measure."""


def _shipped(number: int) -> Path:
    return Path(__file__).with_name(_SHIPPED[number])


def _format(content: Mapping[str, Any]) -> int:
    need(content.get("format") in _SHIPPED, "format = 2, or 1", content.get("format"))
    return int(content["format"])


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


def _check_unique(sections: tuple[Section, ...], retired: Collection[int]) -> None:
    seen: set[int | str] = set()
    for section in sections:
        for what in (section.id, section.name):
            need(what not in seen, f"section {section.name}: an id and name of its own", what)
            seen.add(what)
        need(section.id not in retired, "an id that was never used", f"retired {section.id}")
