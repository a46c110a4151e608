"""Write docs/licences.md from CycloneDX lists of what programs install.

python -m scripts.licences dist/pointillist-agent.cdx.json dist/pointillist-aggregator.cdx.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
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
    lists = [{one["name"].lower(): one for one in components} for components in documents]
    packages = {name: one for listed in reversed(lists) for name, one in listed.items()}
    rows = (
        f"| {name} | {one['version']} | {licence_of(one)} |"
        + "".join(f" {'yes' if name in listed else ''} |" for listed in lists)
        for name, one in sorted(packages.items())
    )


def main() -> None:
    """Write the page."""
    lists = [json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]
    PAGE.write_text(page([one["components"] for one in lists]), encoding="utf-8")


if __name__ == "__main__":
    main()
