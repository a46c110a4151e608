"""The Helper's process: keys, state, the channel, and nothing of the shared log."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import structlog

from transport.supervision import Notifier
from wire.catalogue import Catalogue
from wire.rejection import ReportRejected

from .channel import serve
from .directory import Directory, PinnedParties
from .events import RosterSeen, TaskSeen
from .helper import Helper
from .helper_state import HelperState
from .key_ring import KeyRing
from .party_config import HelperConfig
from .party_health import Health, HealthMetric, Presence, Trouble, Troubles, told, trouble_measure
from .possible_sums import SumRules
from .runners import Checkpoint, HelperRunner, no_checkpoint
from .state_file import StorageUnavailable, write_durably
from .task_files import TASK_SUFFIX, SignedFolder

STATUS_EVERY_S: Final = 2.0
FORGET_EVERY_S: Final = 60.0
PRUNE_EVERY_S: Final = 3600.0
_GRACE_S: Final = 5.0

MEASURES: Final = (
    trouble_measure(Trouble.STORAGE),
    HealthMetric("ready", "ready", "1 while nothing keeps it from its work"),
    HealthMetric("leader_seen", "leader_seen_seconds", "when the Leader last asked, unix time"),
    HealthMetric("batches_answered", "batches_answered", "since the start", counter=True),
    HealthMetric(
        "refused", "refused", "batches, releases and epochs refused", "reason", counter=True
    ),
    HealthMetric("cleared", "cleared", "hosts left out of batches", "reason", counter=True),
    HealthMetric("epochs_open", "epochs_open", "epochs whose keys are at hand"),
    HealthMetric("refuses_windows_before", "refuses_windows_before_seconds", "0, or when restored"),
)


class HelperShell:
    """Serves until `stop`; every event of the state machine happens under one lock."""

    def __init__(
        self,
        config: HelperConfig,
        *,
        clock: Callable[[], float] = time.time,
        after_restore: bool = False,
        notifier: Notifier | None = None,
        checkpoint: Checkpoint = no_checkpoint,
    ) -> None:
        """Open keys and state; call it after privileges are dropped.

        notifier    tells systemd when it serves, and that it goes on

        Raises      KeyFileRefused, StateUnusable, OSError
        """
        self._config, self._clock = config, clock
        self._log = structlog.get_logger("helper")
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._keys = KeyRing(config.key_dir)
        self._state = HelperState(
            config.state_dir / "helper.sqlite",
            config.fence_file,
            clock(),
            after_restore=after_restore,
        )
        self._directory = Directory(
            PinnedParties(config.leader_pk, self._keys.identity.public_bytes)
        )
        self._folder = SignedFolder(config.signed_dir)
        self._helper = Helper(
            self._directory,
            self._keys.identity,
            self._keys.pair,
            self._state,
            ledger_counters=self._state.counters(),
            seen_epochs=self._state.epochs(),
            sum_rules=SumRules(Catalogue.load()),
        )
        self._runner = HelperRunner(
            self._helper,
            self._state,
            clock,
            helper_pk=self._keys.identity.public_bytes,
            announcements=lambda: self._keys.announcements(clock()),
            checkpoint=checkpoint,
        )
        self._forgot_s = self._pruned_s = 0.0
        self._notifier = notifier or Notifier()
        self._troubles = Troubles(self._log)
        self.health = Health("helper", MEASURES)
        self._presence = Presence(config.status_file)
        self._started_s = clock()

    def stop(self) -> None:
        """End `run` soon; safe from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Serve until stopped, or until an error after which nothing may be answered.

        Raises      FencedOut, StateUnusable or what else ended the service
        """
        while not self._housekeeping(at_start=True):
            if self._stop.wait(STATUS_EVERY_S):
                return
        server = serve(self._runner, self._config.address, self._failed, self._lock)
        self._log.info("serving", fence=self._state.fence)
        self._notifier.ready("serving")
        try:
            while not self._stop.wait(STATUS_EVERY_S):
                self._housekeeping()
        finally:
            self._notifier.stopping()
            server.stop(_GRACE_S).wait()
            with self._lock:
                self._say_status()
                self._state.close()
            self._presence.close()
            self._log.info("stopped")
        if self.error is not None:
            raise self.error

    def _failed(self, error: BaseException) -> bool:
        """Take what ended a call; says whether the Helper must end with it.

        A disk that takes nothing is waited out: nothing was answered, and the Leader asks again.
        """
        if isinstance(error, StorageUnavailable):
            self._troubles.begin(Trouble.STORAGE, self._clock(), str(error))
            return False
        self.error = error
        self._log.error("stops", error=type(error).__name__)
        self._stop.set()
        return True

    def _housekeeping(self, *, at_start: bool = False) -> bool:
        """Do what is due and say how things stand; False when the disk took nothing."""
        with self._lock:
            now_s = self._clock()
            try:
                self._read_signed(now_s, at_start)
                self._keys.rotate(now_s, self._directory.longest_retention_s())
                self._runner.carry_out_owed()
                self._forget(now_s, self._directory.longest_retention_s())
                if Trouble.STORAGE in self._troubles.standing:
                    self._state.check_writable()
            except OSError as error:
                self._troubles.begin(Trouble.STORAGE, now_s, str(error))
            else:
                self._troubles.end(Trouble.STORAGE, now_s)
            self.health.turned()
            self._notifier.alive()
            self._say_status()
            return Trouble.STORAGE not in self._troubles.standing

    def _forget(self, now_s: float, retention_s: int) -> None:
        """Drop keys soon, and look through the state file, which holds none, now and then."""
        if now_s - self._forgot_s > FORGET_EVERY_S:
            self._helper.book.prune(now_s, retention_s)
            self._forgot_s = now_s
        if now_s - self._pruned_s > PRUNE_EVERY_S:
            self._state.prune(now_s, retention_s)
            self._pruned_s = now_s

    def _read_signed(self, now_s: float, at_start: bool) -> None:
        for path, content in self._folder.new_files():
            task = path.suffix == TASK_SUFFIX
            try:
                self._helper.handle(
                    TaskSeen(content, now_s, at_start) if task else RosterSeen(content)
                )
            except ReportRejected as refusal:
                self._log.warning("refused", file=path.name, reason=refusal.reason.value)
            else:
                self._log.info("accepted", file=path.name)

    def _say_status(self) -> None:
        """Say how things stand; on a full disk only to those who ask over HTTP."""
        self.health.say(self._status())
        with suppress(StorageUnavailable):
            write_status(self._config.status_file, self.health.document)

    def _status(self) -> dict[str, object]:
        troubles = told(self._troubles)
        return {
            "pid": os.getpid(),
            "version": version("pointillist"),
            "started": int(self._started_s),
            "time": int(self._clock()),
            "ready": int(not troubles),
            "troubles": troubles,
            "leader_seen": int(self._runner.asked_s),
            "fence": self._state.fence,
            "refuses_windows_before": self._state.refuse_before_s,
            "tasks": len(self._directory.tasks),
            "roster_version": max(self._directory.rosters, default=0),
            "epochs_open": len(self._helper.book),
            "batches_answered": self._runner.batches_answered,
            "refused": dict(self._helper.refused),
            "cleared": dict(self._helper.cleared),
            "stored": self._state.counts(),
        }


def write_status(path: Path, status: Mapping[str, object]) -> None:
    """Replace the status file; readable by the party's own user alone."""
    write_durably(path, json.dumps(status, sort_keys=True).encode() + b"\n")


def read_status(path: Path) -> dict[str, Any]:
    """Read what a running or stopped party last said about itself.

    Raises      OSError, ValueError
    """
    status = json.loads(path.read_text())
    if not isinstance(status, dict):
        raise ValueError(f"{path}: expected a status document, got {type(status).__name__}")
    return status
