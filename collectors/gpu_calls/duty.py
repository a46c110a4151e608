"""For which share of the time the probes of each group were attached to a file."""

from __future__ import annotations

from collectors.records.gpu_calls import FileGroup


class DutyClock:
    """Adds up the time for which each group was attached.

    A group counts from the middle of its entries' attaching to the beginning of their detaching.
    """

    def __init__(self, now_ns: int) -> None:
        """Begin the first span."""
        self._begun_ns = now_ns
        self._since: dict[FileGroup, int] = {}
        self._spent_ns: dict[FileGroup, int] = {}

    def attached(self, file_group: FileGroup, now_ns: int) -> None:
        """Note that a group is attached from now on."""
        self._since[file_group] = now_ns

    def detached(self, file_group: FileGroup, now_ns: int) -> None:
        """Note that a group is attached no longer."""
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
