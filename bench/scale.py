"""`make bench-scale`: what both roles carry and withstand, from the parts that measure it.

A part is a module of bench with `measure(kept) -> Measured`; all parts share one result file. What
a part hands to `kept.get` is kept in bench/.cache as it ends, under the commit it measured.
`--part NAME` measures one part alone.
"""

from __future__ import annotations

import json
from typing import Final

from bench.parts import Measured, run_parts
from pointillist.sizing import COSTS_FILE

COSTS: Final = "sizing_costs"
"""The table that `pointillist size` ships with."""
PARTS: Final = {
    "sizing": "bench.scale_sizing",
    "rates": "bench.scale_rates",
    "schedules": "bench.scale_schedules",
    "overload": "bench.scale_overload",
    "faults": "bench.scale_faults",
    "spark": "bench.scale_spark",
}
"""Part -> its module, in this order."""


def main() -> None:
    """Measure what is missing, then write the figures of each part."""
    run_parts("scale", PARTS, __doc__, _keep_costs)


def _keep_costs(found: Measured) -> None:
    if COSTS in found.tables:
        COSTS_FILE.write_text(json.dumps(found.tables[COSTS], indent=2) + "\n")


if __name__ == "__main__":
    main()
