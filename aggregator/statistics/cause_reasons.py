"""Why a table of causes is corrected or not, and what its numbers are about, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .correction import LEAST_TRIALS, Rates, correctable
from .incident_detector import Detector

NOT_DETECTED: Final = "not corrected: faults are read from logs and counters, not detected"
REPORTED_SCOPE: Final = "95 %: for the number of hosts that reported the cause"
CORRECTED_SCOPE: Final = (
    "95 %: for the number of hosts that had the cause, if hosts have one each and real faults are "
    "found like those of the bench; with *, for the number that reported it"
)


def chosen_rates(
    causes: Sequence[str], window_s: int, detector: Detector | None, agents_model: str | None
) -> tuple[Rates | None, str]:
    """Give the rates to correct a window of incidents by, or None; and which, or why not."""
    if detector is None:
        return None, "not corrected: no measured rates of the agents' detector"
    if detector.classes != tuple(causes):
        return None, "not corrected: the rates are of other causes than the release"
    if agents_model is None:
        return None, "not corrected: nobody said which model the agents run"
    if detector.model != agents_model:
        return None, (
            f"not corrected: the rates are of model {detector.model}, the agents run {agents_model}"
        )
    rates = detector.rates(window_s)
    if not correctable(rates).any():
        return None, (
            f"not corrected: of no cause does the bench have {LEAST_TRIALS} runs, one of them told "
            "rightly, and fewer false alarms than finds"
        )
    runs, hours = int(detector.trials.sum()), detector.worker_hours
    return rates, (
        f"corrected by {runs} runs and {hours:.1f} worker-hours of model {detector.model}"
    )


def why_as_reported(rates: Rates, causes: Sequence[str]) -> list[str | None]:
    """Say of each cause that cannot be corrected why not, and what its hosts may pass for."""
    return [
        None if fine else _why(rates, causes, place)
        for place, fine in enumerate(correctable(rates))
    ]


def _why(rates: Rates, causes: Sequence[str], place: int) -> str:
    trials, right = int(rates.trials[place]), int(rates.counts[place, place])
    runs = f"{trials} run{'' if trials == 1 else 's'}"
    taken = [
        f"{causes[other]} in {int(count)}"
        for other, count in enumerate(rates.counts[place])
        if count and other != place
    ]
    passed = f"; taken for {', '.join(taken)}: that number may hold its hosts" if taken else ""
    if not trials:
        return "no bench made it"
    if not right:
        return f"never told rightly in {runs}{passed}"
    if trials < LEAST_TRIALS:
        return f"{runs} of it in the bench, {LEAST_TRIALS} are needed{passed}"
    return (
        f"its hosts report it with probability {rates.detection[place, place]:.3f}, hosts without "
        f"any cause by false alarm with {rates.false_alarm[place]:.3f}{passed}"
    )
