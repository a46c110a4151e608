"""A Leader that waits for its turn, and then for as long as it leads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

import structlog

from aggregator.leader.leader_state import LeaderState
from aggregator.party.config import LeaderConfig
from aggregator.party.health import Health, HealthMetric, Presence, process_document, write_status
from aggregator.party.postgresql_database import DatabaseUnavailable
from aggregator.state.state_file import LeadershipLost, StateUnusable
from transport.files.keyfiles import load_signing_key
from transport.process.supervision import Notifier

from .leadership import RENEWALS, Leadership, PostgresqlTables, Renewals, leader_database

MEASURES: Final = (
    HealthMetric("ready", "ready", "1 while nothing keeps it from its work"),
    HealthMetric("standby", "standby", "1 while another machine leads"),
)
STATE_STEP_S: Final = 30.0
"""Of a change of the state: an hour's epochs of a fleet come at once."""


class Turn:
    """Waits until this machine leads, and says how it stands meanwhile."""

    def __init__(self, config: LeaderConfig, notifier: Notifier) -> None:
        """Read who this Leader is; connect to nothing.

        Raises      KeyFileRefused, StateUnusable: a state lies in a file already
        """
        if config.standby is None:
            raise ValueError("expected a Leader that has a table of a standby")
        left = config.state_dir / "leader.sqlite"
        if left.exists():
            raise StateUnusable(f"{left}: expected no file beside the database's state, found one")
        self._config, self._notifier = config, notifier
        self._settings = config.standby
        self._log = structlog.get_logger("leader")
        self._stop = Event()
        self._started_s = time.time()
        self.health = Health("leader", MEASURES)
        leader_pk = load_signing_key(config.key_dir / "identity.key").public_bytes
        step_s = self._settings.lease_s / RENEWALS
        database = leader_database(self._settings.postgresql, step_s)
        self._leadership = Leadership(database, leader_pk, self._settings.lease_s)
        self._trouble = ""
        self._lost = False
        self._stop_work: Callable[[], None] = self.stop

    def stop(self) -> None:
        """Wait no longer; safe from a signal handler."""
        self._stop.set()

    @property
    def leads(self) -> bool:
        """Whether the wait ended with the lead; a lease may have run out since."""
        return self._leadership.term is not None

    def wait(self) -> None:
        """Wait until this machine leads, or it is stopped.

        Raises      OtherLeader
        """
        self._notifier.ready("standing by")
        presence = Presence(self._config.status_file)
        try:
            while not self._take():
                self._say()
                if self._stop.wait(self._settings.lease_s / RENEWALS):
                    self._leadership.close()
                    return
        finally:
            presence.close()
        self._log.info("leads", fence=self._leadership.own_term().fence)

    def _take(self) -> bool:
        try:
            taken = self._leadership.take()
        except DatabaseUnavailable as error:
            if not self._trouble:
                self._log.warning("database away", detail=str(error))
            self._trouble = str(error)
            return False
        if self._trouble:
            self._log.warning("database is back")
        self._trouble = ""
        return taken

    def _say(self) -> None:
        now_s = int(time.time())
        troubles = {"storage": {"since": now_s, "detail": self._trouble}} if self._trouble else {}
        document = process_document(self._started_s, now_s) | {
            "ready": 0,
            "standby": 1,
            "troubles": troubles,
        }
        self.health.turned()
        self.health.document = document
        self._notifier.alive()
        write_status(self._config.status_file, document)

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Renew the lease meanwhile.

        Raises      LeadershipLost at its end, when the lease was over
        """
        renewals = Renewals(self._leadership, self._lose)
        try:
            yield
        finally:
            renewals.end()
        if renewals.lost:
            raise LeadershipLost(renewals.lost)

    def on_loss(self, stop: Callable[[], None]) -> None:
        """Have this called once the lease is over, from any thread; now, if it is to stop."""
        self._stop_work = stop
        if self._lost or self._stop.is_set():
            stop()

    def _lose(self) -> None:
        self._lost = True
        self._stop_work()

    def state(self) -> LeaderState:
        database = leader_database(self._settings.postgresql, STATE_STEP_S)
        tables = PostgresqlTables(database, self._leadership.own_term(), self._settings.lease_s)
        return LeaderState(tables)
