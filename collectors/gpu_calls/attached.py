"""What is attached, and for which share of the time: links by file and group, from any thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Final, Generic, TypeVar

from collectors.boot_clock import boottime_ns
from collectors.records.gpu_calls import FileGroup

from .probe_plan import Attachment

_MOST_FILES_EVER: Final = 1 << 31


class DutyClock:
    """Adds up the time for which each group was attached.

    A group counts from the middle of its entries' attaching to the beginning of their detaching.
    """

    def __init__(self, now_ns: int) -> None:
        self._begun_ns = now_ns
        self._since: dict[FileGroup, int] = {}
        self._spent_ns: dict[FileGroup, int] = {}

    def attached(self, file_group: FileGroup, now_ns: int) -> None:
        self._since[file_group] = now_ns

    def detached(self, file_group: FileGroup, now_ns: int) -> None:
        self._spend(file_group, self._since.pop(file_group), now_ns)

    def take(self, now_ns: int) -> tuple[int, int, dict[FileGroup, float]]:
        """End the span: (begun_ns, span_ns, share of it by group); the next begins."""
        begun_ns, span_ns = self._begun_ns, max(1, now_ns - self._begun_ns)
        for file_group, since in self._since.items():
            self._spend(file_group, since, now_ns)
        spent_ns, self._spent_ns, self._begun_ns = self._spent_ns, {}, now_ns
        return begun_ns, span_ns, {g: min(1.0, ns / span_ns) for g, ns in spent_ns.items()}

    def _spend(self, file_group: FileGroup, since_ns: int, now_ns: int) -> None:
        spent_ns = max(0, now_ns - max(since_ns, self._begun_ns))
        self._spent_ns[file_group] = self._spent_ns.get(file_group, 0) + spent_ns


_Link = TypeVar("_Link")


class AttachedGroups(ABC, Generic[_Link]):
    """The half of loaded programs that attaches; a loader says how one attachment is linked."""

    def __init__(self) -> None:
        self._links: dict[FileGroup, list[_Link]] = {}
        self._duty = DutyClock(boottime_ns())
        self._changing = threading.Lock()
        self._telling = threading.Lock()

    def attach(self, file: int, path: str, attachments: Sequence[Attachment]) -> None:
        """Probe a file for every process, those that are yet to start included; from any thread.

        attachments     of groups that are not attached to this file yet
        Raises          SourceUnavailable; then none of them is attached
        """
        if not 1 <= file < _MOST_FILES_EVER:
            raise ValueError(f"expected a file of 1 or more, got {file}")
        groups = {FileGroup(file, attachment.group) for attachment in attachments}
        with self._changing:
            taken = groups & self._links.keys()
            if taken:
                raise ValueError(f"expected groups that are not attached yet, got {sorted(taken)}")
            try:
                # Returns first: a call that is entered then is sure to be seen returning.
                for one in sorted(attachments, key=lambda attachment: not attachment.returns):
                    self._attach(FileGroup(file, one.group), path, one)
            except BaseException:
                self._detach(groups & self._links.keys())
                raise

    def detach_all(self, file_groups: Collection[FileGroup]) -> None:
        """Stop probing groups, all at once; one that is not attached is no error."""
        with self._changing:
            self._detach(self._links.keys() & set(file_groups))

    @property
    def attached(self) -> frozenset[FileGroup]:
        return frozenset(list(self._links))

    def _hold(self, file_group: FileGroup, link: _Link, begun_ns: int) -> None:
        # Its places begin to count one after the other: on average in the middle.
        with self._telling:
            self._duty.attached(file_group, (begun_ns + boottime_ns()) // 2)
        self._links.setdefault(file_group, []).append(link)

    def _release(self, file_group: FileGroup) -> list[_Link]:
        links = self._links.pop(file_group)
        with self._telling:
            self._duty.detached(file_group, boottime_ns())
        return links

    def _take_duty(self, now_ns: int) -> tuple[int, int, dict[FileGroup, float]]:
        with self._telling:
            return self._duty.take(now_ns)

    @abstractmethod
    def _attach(self, file_group: FileGroup, path: str, attachment: Attachment) -> None:
        """Link, and `_hold` each link as soon as it is there."""

    @abstractmethod
    def _detach(self, groups: Collection[FileGroup]) -> None:
        """`_release` groups and end their links."""
