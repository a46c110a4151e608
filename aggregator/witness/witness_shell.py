"""The process of a witness: how it starts; its key, its chains, the channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from aggregator.party.party_health import (
    Health,
    HealthMetric,
    Presence,
    Trouble,
    Troubles,
    told,
    trouble_measure,
)
from aggregator.party.party_start import (
    become,
    health_served,
    on_signals,
    prepare_folders,
    prepare_socket,
    silent,
)
from aggregator.party.status_file import STATUS_EVERY_S, process_document, write_status
from aggregator.state.state_file import StorageUnavailable
from transport.files.keyfiles import load_signing_key
from transport.process.supervision import Notifier

from .witness_config import WitnessConfig
from .witness_service import WitnessBook, serve_witness
from .witness_store import WitnessStore

_GRACE_S: Final = 5.0

_MEASURES: Final = (
    trouble_measure(Trouble.STORAGE),
    HealthMetric("ready", "ready", "1 while nothing keeps it from its work"),
    HealthMetric("asked", "asked", "questions carried out since the start", counter=True),
    HealthMetric("refused", "refused", "questions refused", "reason", counter=True),
)


class WitnessShell:
    """Serves until `stop`; every question is carried out under one lock."""

    def __init__(
        self,
        config: WitnessConfig,
        *,
        clock: Callable[[], float] = time.time,
        notifier: Notifier | None = None,
    ) -> None:
        """Open key and chains; call it after privileges are dropped.

        Raises      KeyFileRefused, StateUnusable, OSError
        """
        self._config, self._clock = config, clock
        self._log = structlog.get_logger("witness")
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._store = WitnessStore(config.state_dir / "witness.sqlite")
        identity = load_signing_key(config.key_dir / "identity.key")
        self._book = WitnessBook(identity, config.helper_pks, self._store)
        self._notifier = notifier or Notifier()
        self._troubles = Troubles(self._log)
        self.health = Health("witness", _MEASURES)
        self._presence = Presence(config.status_file)
        self._started_s = clock()

    def stop(self) -> None:
        """End `run` soon; safe from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Serve until stopped, or until an error that is not the disk's.

        Raises      what ended the service
        """
        server = serve_witness(self._book, self._config.address, self._failed, self._lock)
        self._log.info("serving", helpers=len(self._config.helper_pks))
        self._notifier.ready("serving")
        try:
            self._say()
            while not self._stop.wait(STATUS_EVERY_S):
                self._say()
        finally:
            self._notifier.stopping()
            server.stop(_GRACE_S).wait()
            with self._lock:
                self._say()
                self._store.close()
            self._presence.close()
            self._log.info("stopped")
        if self.error is not None:
            raise self.error

    def _failed(self, error: BaseException) -> None:
        """Take what ended a call; a disk that takes nothing is waited out."""
        if isinstance(error, StorageUnavailable):
            self._troubles.begin(Trouble.STORAGE, self._clock(), str(error))
            return
        self.error = error
        self._log.error("stops", error=type(error).__name__)
        self._stop.set()

    def _say(self) -> None:
        with self._lock:
            if Trouble.STORAGE in self._troubles.standing:
                with suppress(StorageUnavailable):
                    self._store.check_writable()
                    self._troubles.end(Trouble.STORAGE, self._clock())
            self.health.turned()
            self._notifier.alive()
            self.health.say(self._status())
            with suppress(StorageUnavailable):
                write_status(self._config.status_file, self.health.document)

    def _status(self) -> dict[str, object]:
        troubles = told(self._troubles)
        lengths = self._store.lengths()
        served = {key.hex(): lengths.get(key.hex(), 0) for key in self._config.helper_pks}
        return {
            **process_document(self._started_s, self._clock()),
            "ready": int(not troubles),
            "troubles": troubles,
            "asked": self._book.asked,
            "refused": dict(self._book.refused),
            "links": served,
        }


def run_witness(config: WitnessConfig, *, say: Callable[[str], None] = silent) -> None:
    """Run a witness until SIGTERM or SIGINT.

    Raises      what `WitnessShell` raises; PrivilegeError
    """
    prepare_socket(config.user, config.address, config.peer_group)
    prepare_folders(config.user, 0o700, config.state_dir)
    say(become(config.user, umask=0o077).line)
    shell = WitnessShell(config, notifier=Notifier.from_environment())
    on_signals(shell.stop)
    with health_served(shell.health, config.http):
        shell.run()
