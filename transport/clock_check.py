"""This machine's wall clock beside the log's own: a disciplined clock can still be hours off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .interface import OpenLog
from .process.doctor_checks import Result, broken, ok

BEHIND_S: Final = 60
"""What begins later than so by a party's clock waits until it has come there (wire/SPEC.md)."""
SILENT_S: Final = 3_900
"""Each host that runs sends an epoch an hour, so that the log of a live fleet is no older."""
LIVE_S: Final = 86_400  # a log that is older is of a fleet that stands still: it tells no time
_SET: Final = "compare with `date --utc` of another machine, and start NTP or PTP"


def clock_beside_log(log: OpenLog, topics: Sequence[str], now_s: float) -> Result:
    """Hold the clock against the newest record of topics that the whole fleet writes to.

    Raises      TransportUnavailable
    """
    newest_s = log.newest_s(topics)
    if newest_s is None:
        return ok("no record yet to compare this clock with")
    apart_s = now_s - newest_s
    if apart_s < -BEHIND_S:
        return broken(f"this clock is {_said(-apart_s)} behind the newest record of the log", _SET)
    if SILENT_S < apart_s < LIVE_S:
        line = (
            f"the newest record of the log is {_said(apart_s)} old by this clock: it is ahead, or "
            "no host has sent anything since"
        )
        return broken(line, _SET)
    if apart_s >= LIVE_S:
        return ok(f"the newest record is {_said(apart_s)} old: too old to compare this clock with")
    return ok(f"the newest record of the log is {_said(max(apart_s, 0))} old by this clock")


def _said(span_s: float) -> str:
    """Say a span in its two largest units."""
    minutes, seconds = divmod(round(span_s), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    units = ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s"))
    told = [f"{amount} {unit}" for amount, unit in units if amount]
    return " ".join(told[:2]) or "0 s"
