"""Compaction beside the Leader's loop: a thread of its own, once an hour."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa

from aggregator.state.state_file import StorageUnavailable
from transport.process.supervision import Closing

from .compaction import Compacted, Compaction, CompactionUnderWay, RollUps
from .packs import is_packed

EVERY_S: Final = 3600


class _Stopped(Exception):
    """The process ends: what is left over is done by the next one."""


class Upkeep(Closing):
    """Compacts one folder, as often as it is due."""

    def __init__(self, folder: Path, keep_days: Mapping[str, int], roll_ups: RollUps) -> None:
        """Begin with nothing; see `Compaction`."""
        self._folder = folder
        self._compaction = Compaction(folder, keep_days, roll_ups, self._go_on)
        self._ending = threading.Event()
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compaction")
        self._running: Future[Compacted] | None = None
        self._due_s = 0.0

    def close(self) -> None:
        """End after the step that is under way: each leaves every window readable."""
        self._ending.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def turn(self, now_s: float) -> bool:
        """Begin a compaction when one is due; say whether one has ended since the last turn.

        Raises      StorageUnavailable: it could not be done, and is tried again when it is due
        """
        if self._running is None:
            if now_s >= self._due_s:
                self._due_s = now_s + EVERY_S
                self._running = self._threads.submit(self._compaction.run, _day(now_s))
            return False
        if not self._running.done():
            return False
        ended, self._running = self._running, None
        try:
            ended.result()
        except pa.ArrowException as error:
            raise StorageUnavailable(self._folder, error) from error
        except CompactionUnderWay:
            return False
        return True

    def keeps(self, root: Path, single: Path, now_s: float) -> bool:
        """Whether a window's file is in a pack, or too old to be kept at all."""
        return is_packed(root, single) or self._compaction.is_too_old(single, _day(now_s))

    def _go_on(self, step: str) -> None:
        del step
        if self._ending.is_set():
            raise _Stopped


def _day(now_s: float) -> date:
    return datetime.fromtimestamp(now_s, UTC).date()
