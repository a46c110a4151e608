"""From the spool to the log: what is due is sent, outages are told, and what returns is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from structlog.typing import FilteringBoundLogger

from edge_agent.ledger.ledger import Ledger
from edge_agent.protocol.protocol_events import Event, Published, TransportDown, TransportUp
from edge_agent.tally import AgentTally
from transport.port import TransportUnavailable

from .outbox import Outbox

_PROBE_RECORDS: Final = 100
_PAGE: Final = 1000


class Sending:
    """Sends for one agent, and knows whether the log is there.

    tell    takes the events that follow
    """

    def __init__(
        self,
        outbox: Outbox,
        ledger: Ledger,
        tally: AgentTally,
        tell: Callable[[Event], None],
        log: FilteringBoundLogger,
    ) -> None:
        self._outbox = outbox
        self._ledger = ledger
        self._tally = tally
        self._tell = tell
        self._log = log
        self.down = False

    def send(self, now_ms: int) -> None:
        """Send what is due; a transport that is away is told once."""
        if self.down and not len(self._outbox):
            self._probe(now_ms)
        try:
            sent = self._outbox.send_due(now_ms)
        except TransportUnavailable as error:
            if not self.down:
                self.down = True
                self._log.warning("transport away", error=str(error), waiting=len(self._outbox))
                self._tell(TransportDown())
            return
        if dropped := self._outbox.take_too_large():
            self._tally.refused["record_too_large"] += len(dropped)
            self._log.error("records longer than the log takes", dropped=len(dropped))
            self._tell(Published(dropped))
        if not sent:
            return
        self._tally.published += len(sent)
        self._tell(Published(sent))
        if self.down:
            self._back()

    def queue_spool(self, now_ms: int) -> None:
        """Queue everything that waits in the ledger's spool."""
        last = 0
        while page := self._ledger.spooled(_PAGE, last):
            self._outbox.add_spooled(page, now_ms)
            last = page[-1].spool_id

    def _probe(self, now_ms: int) -> None:
        """Try again with what the spool holds: while down, what was queued may all have expired."""
        page = self._ledger.spooled(_PROBE_RECORDS)
        if page:
            self._outbox.add_spooled(page, now_ms)
        else:
            self._back()

    def _back(self) -> None:
        self.down = False
        self._log.info("transport back")
        self._tell(TransportUp())
