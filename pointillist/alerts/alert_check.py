"""One look: facts into the outbox, the outbox to its receivers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diagnosis.detect.journal import JournalReader
from edge_agent.journal import read_lines

from .alert import Alert
from .alert_outbox import AlertOutbox
from .alert_receivers import Receiver, ReceiverUnavailable
from .alerts_config import AlertsConfig
from .host_alerts import host_alerts


@dataclass(frozen=True, slots=True)
class AlertRound:
    """What one look did.

    new        facts that were not known before
    waiting    alerts that some receiver has not taken
    away       why receivers took nothing, a line each
    """

    new: int
    sent: int
    waiting: int
    away: Sequence[str] = field(default=())


def check(
    outbox: AlertOutbox, found: Sequence[Alert], told: Sequence[Receiver], now: Callable[[], float]
) -> AlertRound:
    """Keep what was found, then send what is due.

    Raises      StorageUnavailable: then nothing was sent that is not kept
    """
    new = outbox.add(found)
    outbox.save()
    sent, away = 0, []
    for receiver in told:
        due = outbox.due(receiver.name, now(), receiver.again_s)
        if not due:
            continue
        try:
            receiver.send([kept.alert for kept in due])
        except (ReceiverUnavailable, OSError) as error:
            away.append(str(error))
            continue
        for kept in due:
            kept.taken_s[receiver.name] = now()
        sent += len(due)
        outbox.save()
    names = [receiver.name for receiver in told]
    outbox.forget(now(), names)
    waiting = sum(1 for kept in outbox.kept.values() if not set(names) <= set(kept.taken_s))
    outbox.save()
    return AlertRound(new, sent, waiting, tuple(away))


def journal_alerts(journal: Path, config: AlertsConfig, outbox: AlertOutbox) -> list[Alert]:
    """Give the incidents of a host's journal that were not read before; the outbox notes how far.

    Raises      OSError
    """
    lines = JournalReader().read(read_lines(journal))
    found = [
        (at_ns, alert)
        for at_ns, alert in host_alerts(lines, config, socket.gethostname())
        if at_ns > outbox.journal_ns
    ]
    outbox.journal_ns = max((at_ns for at_ns, _ in found), default=outbox.journal_ns)
    return [alert for _, alert in found]
