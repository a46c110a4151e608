"""What is attached at this moment, and for which share of the time it was."""

from __future__ import annotations

from dataclasses import dataclass, field

from .counts import FileGroup


@dataclass(slots=True)
class DutyClock:
    """Adds up, for each file and group, the time for which its probes were attached.

    A link counts from the moment when all of its places are probed to that when the first is not.
    """

    _since: dict[FileGroup, int] = field(default_factory=dict)
    _spent_ns: dict[FileGroup, int] = field(default_factory=dict)
    _begun_ns: int = 0

    def start(self, now_ns: int) -> None:
        """Begin the first span."""
        self._begun_ns = now_ns

    def attached(self, file_group: FileGroup, now_ns: int) -> None:
        """Note that a group is attached from now on."""
        self._since[file_group] = now_ns

    def detached(self, file_group: FileGroup, now_ns: int) -> None:
        """Note that a group is attached no longer."""
        since = self._since.pop(file_group)
        spent_ns = now_ns - max(since, self._begun_ns)
        self._spent_ns[file_group] = self._spent_ns.get(file_group, 0) + spent_ns

    def take(self, now_ns: int) -> tuple[int, int, dict[FileGroup, float]]:
        """End the span: (begun_ns, span_ns, share of it by group); the next begins."""
        begun_ns, span_ns = self._begun_ns, max(1, now_ns - self._begun_ns)
        spent_ns = self._spent_ns
        for file_group, since in self._since.items():
            spent_ns[file_group] = spent_ns.get(file_group, 0) + now_ns - max(since, begun_ns)
        self._begun_ns, self._spent_ns = now_ns, {}
        return begun_ns, span_ns, {g: min(1.0, ns / span_ns) for g, ns in spent_ns.items()}
