"""Evidence that a person can read: the signals that speak for the chosen cause come first."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.signals import FINE, SIGNALS

from .baseline import CgroupNeighbours
from .channels import CHANNELS, INDEX, Channel, ChannelPlace, Readings
from .features import SubjectSignals
from .findings import Cause, Evidence
from .rule_table import RULES

MOST: Final = 6
_SPREADS: Final = 3.0
_FINE_PLACE: Final = {name: place for place, name in enumerate(FINE)}


def _telling(cause: Cause) -> dict[int, float]:
    """Channels that tell of a cause, with +1 for a rise or -1 for a fall."""
    rules = [rule for rule in RULES if rule.cause == cause]
    needed = [tell for rule in rules for group in rule.needs for tell in group]
    tells = [*needed, *(tell for rule in rules for tell in rule.tells)]  # of both, what tells holds
    return {INDEX[tell.channel]: tell.sign for tell in tells if tell.channel in INDEX}


_TELLING: Final = {cause: _telling(cause) for cause in Cause}
_HURTS: Final = np.array(
    [{"up": 1.0, "down": -1.0}.get(SIGNALS[c.signal].hurts, 0.0) for c in CHANNELS]
)


def evidence_for(
    cause: Cause,
    signals: SubjectSignals,
    onset_ns: int,
    lags_s: NDArray[np.float64],
    readings: Readings,
    cgroup: str,
    neighbours: CgroupNeighbours,
) -> tuple[Evidence, ...]:
    """Give the signals that left their baselines: those of the cause first, loudest first.

    lags_s   float64[FINE], from a host signal's departure to the onset
    """
    now = signals.now(onset_ns)
    z = signals.baseline.deviation(now)
    z = np.where(np.isnan(z), 0.0, z)
    telling = _TELLING[cause]
    speaks = [i for i, sign in telling.items() if sign * z[i] > _SPREADS]
    speaks.sort(key=lambda i: -abs(z[i]))
    groups = {CHANNELS[i].group for i in telling}
    beside = np.flatnonzero(z * np.where(_HURTS == 0, np.sign(z), _HURTS) > _SPREADS).tolist()
    rest = [i for i in beside if i not in telling]
    rest.sort(key=lambda i: (CHANNELS[i].group not in groups, -abs(z[i])))
    chosen = _once([*speaks, *rest])[:MOST]
    return tuple(
        Evidence(
            signal=CHANNELS[i].signal,
            unit=SIGNALS[CHANNELS[i].signal].unit,
            value=float(now[i]),
            baseline=float(signals.baseline.median[i]),
            spread=float(signals.baseline.spread[i]),
            since_ns=signals.since_ns(i),
            lag_ms=_lag_ms(CHANNELS[i], lags_s),
            who=_who(CHANNELS[i], readings, cgroup, neighbours),
            scope=CHANNELS[i].place.value,
        )
        for i in chosen
    )


def _once(places: list[int]) -> list[int]:
    """Leave out a signal that another place has already shown."""
    seen: set[str] = set()
    kept = []
    for place in places:
        signal = CHANNELS[place].signal
        if signal not in seen:
            kept.append(place)
            seen.add(signal)
    return kept


def _lag_ms(channel: Channel, lags_s: NDArray[np.float64]) -> float | None:
    place = _FINE_PLACE.get(channel.signal) if channel.place is ChannelPlace.HOST else None
    unknown = place is None or np.isnan(lags_s[place])
    return None if unknown else round(float(lags_s[place]) * 1000, 1)


def _who(channel: Channel, readings: Readings, cgroup: str, neighbours: CgroupNeighbours) -> str:
    if channel.place is ChannelPlace.GPU:
        return ""
    behind = SIGNALS[channel.signal].behind
    if channel.place is ChannelPlace.OWN and not behind:
        return ""
    return neighbours.grown(readings, cgroup, behind or channel.signal)
