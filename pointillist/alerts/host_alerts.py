"""Alerts of a host's own journal: incidents of its jobs, by job and owner; they are its operator's.

A journal is not released, so whoever runs this on a host tells its operator's own receiver.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diagnosis.detect.findings import Diagnosis
from diagnosis.detect.journal import JournalLine

from .alert import Alert
from .alerts_config import AlertsConfig

STANDS_S = 900.0
"""Of an incident that no later diagnosis renews."""


def host_alerts(
    lines: Iterable[JournalLine], config: AlertsConfig, host: str
) -> Iterator[tuple[int, Alert]]:
    """Give what is heavy enough to be an incident, with the Unix nanoseconds at which it was known.

    host   name of this host, as its operator knows it
    """
    for line in lines:
        if isinstance(line.finding, Diagnosis) and line.finding.incident:
            yield line.unix_ns, _alert(line, line.finding, config, host)


def _alert(line: JournalLine, found: Diagnosis, config: AlertsConfig, host: str) -> Alert:
    job = found.subject
    slower = found.now.p99_ms / found.before.p99_ms if found.before.p99_ms else 0.0
    return Alert(
        {
            "alertname": "PointillistIncident",
            "severity": "warning",
            "cause": found.cause.value,
            "job": job,
            "owner": config.owner(job),
            "host": host,
        },
        {
            "summary": f"{job} on {host} is slow: {found.cause.value}",
            "description": (
                f"Steps take {slower:.1f} times as long as usual at the 99th percentile; "
                f"confidence {found.confidence:.0%}. `pointillist agent diagnose` on the host has "
                "the evidence."
            ),
        },
        (found.onset_ns + line.offset_ns) / 1e9,
        line.unix_ns / 1e9 + STANDS_S,
    )
