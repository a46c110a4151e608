"""How many indicators simulated hosts have to tell: what `pointillist plan` holds m against."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from privacy.indicator_bias import Counts

COUNTS_FILE: Final = Path(__file__).with_name("plans") / "indicator_counts.json"


@dataclass(frozen=True, slots=True)
class IndicatorCounts:
    """Host-windows of one section by how many indicators they have set.

    scenarios   scenario -> counts
    """

    window_s: int
    scenarios: dict[str, Counts]


def shipped_counts() -> dict[str, IndicatorCounts]:
    """Read what came with this installation, by section."""
    content = json.loads(COUNTS_FILE.read_text())
    return {
        section: IndicatorCounts(
            found["window_s"],
            {name: np.array(hosts, np.int64) for name, hosts in found["host_windows"].items()},
        )
        for section, found in content["sections"].items()
    }
