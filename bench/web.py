"""`make bench-web`: what people who look at releases wait for, from the parts that measure it.

A part is a module of bench with `measure(kept) -> Measured`; all parts share one result file. What
a part hands to `kept.get` is kept in bench/.cache as it ends, under the commit it measured.
`--part NAME` measures one part alone.
"""

from __future__ import annotations

from typing import Final

from bench.parts import run_parts

PARTS: Final = {
    "store": "bench.year_store",
    "pages": "bench.web_pages",
    "load": "bench.web_load",
    "coverage": "bench.analytics",
}
"""Part -> its module, in this order."""


def main() -> None:
    """Measure what is missing, then write the figures of each part."""
    run_parts("web", PARTS, __doc__)


if __name__ == "__main__":
    main()
