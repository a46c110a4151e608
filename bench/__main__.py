"""Run a benchmark: python -m bench NAME; `make bench-NAME` also sets up what it needs.

A part is a module of bench with `measure(kept) -> Measured`. What it hands to `kept.get` is kept in
bench/.cache as it ends, under the commit it measured: a cut-off run goes on with what is missing.
A part that is measured alone leaves the figures of the others as they were.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from typing import Final

from bench.parts import run_parts

BENCHES: Final[Mapping[str, Mapping[str, str]]] = {
    **{
        name: {name: f"bench.{name}"}
        for name in (
            "arithmetic", "audit", "demo", "discovery", "families", "names", "probes", "timing",
        )
    },
    "agent": {"agent": "bench.agent", "loaded": "bench.agent:loaded", "view": "bench.agent:view"},
    "door": {"slowdown": "bench.agent:beside_generated"},
    "gpu-time": {
        "calls": "bench.probes:driver",
        **{part: f"bench.gpu_time_{part}" for part in ("counts", "coverage", "library")},
    },
    "kernels": {"kernels": "bench.kernels", "arm64": "bench.kernels_arm64"},
    "inputs": {"cases": "bench.inputs:cases", "forms": "bench.inputs"},
    "operate": {
        "signing": "bench.operate:signing",
        "fuzz": "bench.operate:fuzzed",
        "first_fleet": "bench.operate:first_fleet",
        "packages": "bench.operate:packages",
    },
    "operations": {
        name: f"bench.operations:{name}" for name in ("field", "own", "anew", "versions")
    },
    "readers": {
        "attacks": "bench.readers_attacks",
        "liar": "bench.readers_liar",
        "presence": "bench.readers_presence",
        "recent": "bench.readers_recent",
        "unmeasured": "bench.readers_unmeasured",
    },
    "round": {"windows": "bench.round", "epochs": "bench.round:epoch_books"},
    "scale": {
        "sizing": "bench.scale:sizing",
        "rates": "bench.scale:rates",
        "schedules": "bench.scale_faults:schedules",
        "faults": "bench.scale_faults",
    },
    "signatures": {"signatures": "bench.families:signatures"},
    "simulator": {
        **{part: f"bench.simulator_{part}" for part in ("engine", "outcome", "coverage")},
        "adversaries": "bench.simulator_outcome:adversaries",
    },
    "suite": {"tests": "bench.suite", "first_release": "bench.suite:newcomers"},
    "web": {
        "store": "bench.web:stored",
        "load": "bench.web:viewed",
        "coverage": "bench.analytics",
    },
}  # fmt: skip
"""Name -> part -> its module, and its function where that is not `measure`; in this order."""
RESULTS: Final = {
    "engine": "simulator",
    "outcome": "simulator_outcome",
    "coverage": "simulator_coverage",
    "adversaries": "simulator_adversaries",
}
"""Results of the simulator's parts."""


def main() -> int:
    # Ended or interrupted, a benchmark ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    name = sys.argv[1] if sys.argv[1:] else ""
    if name not in BENCHES:
        print(f"expected a benchmark: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    results = {"simulator": RESULTS, "timing": {"timing": "outages"}}
    return run_parts(name, BENCHES[name], __doc__, results=results.get(name))


if __name__ == "__main__":
    sys.exit(main())
