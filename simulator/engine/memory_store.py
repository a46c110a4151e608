"""A store of releases that keeps them in memory."""

from __future__ import annotations

from aggregator.protocol.released import ReleasedWindow, SuppressedWindow


class MemoryStore:
    """Keeps what ends in memory, for simulations and benchmarks: see `ReleaseStore`."""

    def __init__(self) -> None:
        self.written: list[ReleasedWindow] = []
        self.suppressed: list[SuppressedWindow] = []

    def write(self, release: ReleasedWindow) -> None:
        """See `ReleaseStore.write`."""
        self.written.append(release)

    def repair(self) -> int:
        """See `ReleaseStore.repair`: a crash leaves nothing."""
        return 0

    def suppress(self, window: SuppressedWindow) -> None:
        """See `ReleaseStore.suppress`."""
        self.suppressed.append(window)

    def tidy(self, now_s: float) -> None:
        """See `ReleaseStore.tidy`: memory has no files."""
