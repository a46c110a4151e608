"""Write docs/licences.md from CycloneDX lists of what programs install.

python -m scripts.licences dist/pointillist-agent.cdx.json dist/pointillist-aggregator.cdx.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "licences.md"
UNSAID: Final = "not said in its metadata"
PROGRAMS: Final = ("agent", "aggregators")
HEAD: Final = """# Licences

Pointillist is under the Apache License 2.0; its programs for the kernel are under BSD or GPL, as
the kernel asks. Below is what its packages install beside it, by `make sbom`, which also writes
each list as CycloneDX. Licences are what each package's metadata says. A wheel may hold libraries
of others (OpenSSL, OpenBLAS, libsodium, librdkafka): their terms lie in the folder `*.dist-info`
beside it. No package is changed.

| licence | on | packages |
|---|---|---|
"""


@dataclass(slots=True)
class Listed:
    """One package, and the lists that it is in."""

    version: str
    licence: str
    lists: set[int] = field(default_factory=set)


def licence_of(component: dict[str, Any]) -> str:
    """Give a component's licence: SPDX where there is one, else the classifier's own words."""
    found = [
        entry.get("expression") or entry["license"].get("id") or entry["license"].get("name", "")
        for entry in component.get("licenses", [])
    ]
    spdx = [name for name in found if name and "::" not in name]
    return " AND ".join(spdx) or "; ".join(name.rsplit(" :: ", 1)[-1] for name in found) or UNSAID


def page(documents: Sequence[Iterable[dict[str, Any]]]) -> str:
    """Give the page of the components of each list."""
    packages: dict[str, Listed] = {}
    for number, components in enumerate(documents):
        for component in components:
            listed = Listed(component["version"], licence_of(component))
            packages.setdefault(component["name"].lower(), listed).lists.add(number)
    rows: dict[tuple[str, str], list[str]] = {}
    for name, listed in sorted(packages.items()):
        on = "both" if len(listed.lists) > 1 else PROGRAMS[min(listed.lists)]
        rows.setdefault((listed.licence, on), []).append(f"{name} {listed.version}")
    return HEAD + "".join(
        f"| {licence} | {on} | {', '.join(names)} |\n"
        for (licence, on), names in sorted(rows.items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts.licences", description=__doc__)
    parser.add_argument("agent", type=Path)
    parser.add_argument("aggregator", type=Path)
    options = parser.parse_args()
    lists = [
        json.loads(path.read_text(encoding="utf-8"))["components"]
        for path in (options.agent, options.aggregator)
    ]
    PAGE.write_text(page(lists), encoding="utf-8")


if __name__ == "__main__":
    main()
