"""Why a ledger refuses: each refusal says what was found and which command recovers."""

from __future__ import annotations

RECOVER = "pointillist agent ledger recover --config FILE"
RUN = "pointillist agent run --config FILE"
JOIN = "pointillist agent join --config FILE"
REKEY = "pointillist agent rekey --config FILE --key-file NEXT"


class LedgerRefused(Exception):
    """The ledger cannot vouch for what this host has spent, so nothing is published."""

    code = "ledger_refused"
    recovery = RECOVER

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}; nothing is published. To recover: {self.recovery}")
        self.found = f"{found}; nothing is published"
        self.hint = f"to recover: {self.recovery}"


class LedgerMissing(LedgerRefused):
    """The key file or the fence says that a ledger existed, and it is gone."""

    code = "ledger_missing"


class LedgerNone(LedgerRefused):
    """Neither key nor fence know of a ledger: this agent has not run yet."""

    code = "ledger_none"
    recovery = "none needed"

    def __init__(self, found: str) -> None:
        Exception.__init__(self, f"{found}; nothing was spent. To start: {RUN}")
        self.found, self.hint = f"{found}; nothing was spent", f"to start: {RUN}"


class LedgerExists(LedgerRefused):
    """A new ledger was asked for where one already lies."""

    code = "ledger_exists"
    recovery = "keep the ledger that is there, or " + RECOVER


class LedgerCorrupt(LedgerRefused):
    """SQLite or the fence found bytes that no ledger wrote."""

    code = "ledger_corrupt"


class LedgerOfOtherVersion(LedgerRefused):
    """Another version of the agent wrote the ledger: sound, and not this one's to read."""

    code = "ledger_other_version"
    recovery = "start that version again, or, to go on with this one, " + RECOVER


class LedgerRolledBack(LedgerRefused):
    """The ledger is older than its fence: an earlier copy was put back."""

    code = "ledger_rolled_back"


class LedgerCloned(LedgerRefused):
    """The ledger was made on another machine."""

    code = "ledger_cloned"
    recovery = JOIN + " (a copy of a machine is a new host), or, after its GPUs changed, " + REKEY


class LedgerOfOthers(LedgerRefused):
    """The ledger is of another host, or of several."""

    code = "ledger_of_others"
    recovery = "name the key that the ledger belongs to, or " + RECOVER


class ClockSetBack(LedgerRefused):
    """The clock is behind what an aggregator has signed, or at a recovery what the ledger saw."""

    code = "clock_set_back"
    recovery = "set the clock right and start again: the ledger itself is sound"


class LedgerBusy(LedgerRefused):
    """Another process holds the ledger."""

    code = "ledger_busy"
    recovery = "stop the other agent of this host (it holds the lock) and start again"


class WindowSpent(LedgerRefused):
    """A window at or before the last one of its series was about to be spent again."""

    code = "window_spent"
    recovery = "none needed: the next window of the series is accepted"


class FenceUnwritable(LedgerRefused):
    """The fence did not follow a commit: nothing of it may leave before a restart repairs it."""

    code = "fence_unwritable"
    recovery = "make the key's folder writable and start the agent again"


class SpoolFull(Exception):
    """The spool has no room: nothing is spent and nothing published until it drains."""

    code = "spool_full"

    def __init__(self, records: int, size_bytes: int, max_records: int, max_bytes: int) -> None:
        super().__init__(
            f"spool would hold {records} records, {size_bytes} B, at most {max_records} records, "
            f"{max_bytes} B; it drains by itself when the transport is back"
        )


class LedgerFull(Exception):
    """The disk has no room: the transaction was rolled back, nothing was spent."""

    code = "ledger_disk_full"

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}: nothing was spent; free space on the ledger's disk")
