"""`make bench-operate`: what running a fleet takes from people, from the parts that measure it.

A part is a module of bench with `measure(kept) -> Measured`; all parts share one result file, and
a part that was not measured keeps the value of its last run. What a part hands to `kept.get` is
kept in bench/.cache as it ends, under the commit it measured. `--part NAME` measures one alone.
"""

from __future__ import annotations

from typing import Final

from bench.parts import run_parts

PARTS: Final = {
    "signing": "bench.operate_signing",
    "fuzz": "bench.operate_fuzz",
    "first_fleet": "bench.operate_first_fleet",
    "packages": "bench.operate_packages",
}
"""Part -> its module, in this order."""


def main() -> None:
    """Measure what is missing, then write the figures of each part."""
    run_parts("operate", PARTS, __doc__)


if __name__ == "__main__":
    main()
