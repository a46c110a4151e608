"""What incidents are worth across a fleet: the counts that correct the weekly section.

The aggregator reads this file and computes rates and bounds itself; here are only counts, of
held-out runs of one fault each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from diagnosis.detect.findings import Cause

from .outcomes import Judged, Outcome

FORMAT: Final = 1
CAUSES: Final = tuple(Cause)
SECTION: Final = "incidents"
_NUMBERS: Final = re.compile(r"\[\s+((?:[\d.]+,?\s+)+)\]")


def incident_rates(judged: Iterable[Judged], model: str, about: str) -> dict[str, Any]:
    """Count which incidents held-out faults became, and those that came without a fault.

    judged   held-out runs
    model    name, version and hash, as diagnoses carry it
    about    one line: which recordings
    """
    runs = list(judged)
    told = [one for run in runs if (one := _of_run(run)) is not None]
    trials = [0] * len(CAUSES)
    counts = [[0] * len(CAUSES) for _ in CAUSES]
    for one in told:
        truth = CAUSES.index(one.episode.causes[0])
        trials[truth] += 1
        if one.incident is not None:
            counts[truth][CAUSES.index(one.incident)] += 1
    calm = [run for run in runs if run.calm]
    found = [one.incident for run in calm for one in run.alarms]
    return {
        "format": FORMAT,
        "model": model,
        "section": SECTION,
        "classes": [str(cause) for cause in CAUSES],
        "trials": trials,
        "counts": counts,
        "worker_hours": round(sum(run.worker_hours for run in calm), 4),
        "false_incidents": [sum(one is cause for one in found) for cause in CAUSES],
        "about": about,
    }


def _of_run(run: Judged) -> Outcome | None:
    """One fault a run: of several subjects that felt it, the one with the largest rise."""
    felt: Sequence[Outcome] = [
        one for one in run.outcomes if len(one.episode.causes) == 1 and one.episode.impact
    ]
    return max(felt, key=lambda one: one.episode.rise or 0.0, default=None)


def write_rates(path: Path, rates: dict[str, Any]) -> None:
    """Write the counts, a row of the matrix a line."""
    text = _NUMBERS.sub(_one_line, json.dumps(rates, indent=1))
    path.write_text(text + "\n", encoding="utf-8")


def _one_line(found: re.Match[str]) -> str:
    return f"[{', '.join(found[1].replace(',', ' ').split())}]"
