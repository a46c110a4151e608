"""What each host of a batch has spent, kept so that the rolling-week question is cheap to ask."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from privacy.budget import WEEK_S, Entry, may_spend


class BudgetBook:
    """Entries of a batch of hosts, per series in rising order of their windows.

    Hosts with the same history share the very same Entry objects, so a batch asks once for each
    distinct history; a live host asks about the windows that a week around the candidate can meet.

    kept_from_s   entries that ended before it are forgotten, here as in the ledger
    """

    def __init__(self, histories: Iterable[Sequence[Entry]], kept_from_s: int = 0) -> None:
        self.kept_from_s = kept_from_s
        self._hosts: list[dict[str, list[Entry]]] = []
        self._longest: dict[str, int] = {}
        for history in histories:
            series: dict[str, list[Entry]] = {}
            for entry in sorted(history, key=lambda entry: entry.start):
                series.setdefault(entry.series, []).append(entry)
                self._note_length(entry)
            self._hosts.append(series)

    def last_start(self, host: int, series: str) -> int:
        """Give the start of the last window spent in a series; -1 when there is none."""
        entries = self._hosts[host].get(series)
        return entries[-1].start if entries else -1

    def remembers(self, start_s: int) -> bool:
        """Say whether every entry that a week around a window from start_s on can meet is here."""
        return self.kept_from_s <= start_s - WEEK_S

    def may_spend(self, hosts: Sequence[int], candidate: Entry) -> list[bool]:
        """Say for each host whether the candidate fits its budget."""
        known: dict[tuple[int, ...], bool] = {}
        answers = []
        for host in hosts:
            near = self._near(host, candidate)
            key = tuple(map(id, near))
            if key not in known:
                known[key] = may_spend(near, candidate)
            answers.append(known[key])
        return answers

    def _near(self, host: int, candidate: Entry) -> list[Entry]:
        """Collect a host's entries that some 168 h meeting the candidate can meet."""
        near: list[Entry] = []
        for name, entries in self._hosts[host].items():
            if len(entries) < 64:
                near += entries
                continue
            # Only starts are sure to rise: an early, long entry may end after later, short ones.
            since_s = candidate.start - WEEK_S - self._longest[name]
            first = bisect_left(entries, since_s, key=lambda e: e.start)
            last = bisect_left(entries, candidate.end + WEEK_S, key=lambda e: e.start)
            near += entries[first:last]
        return near

    def spend(self, host: int, entry: Entry) -> None:
        """Add an entry, which must be the latest of its series."""
        entries = self._hosts[host].setdefault(entry.series, [])
        entries.append(entry)
        self._note_length(entry)

    def forget_before(self, kept_from_s: int) -> None:
        """Forget entries that ended before a time, as the ledger just did."""
        if kept_from_s <= self.kept_from_s:
            return
        self.kept_from_s = kept_from_s
        for series in self._hosts:
            for entries in series.values():
                first = bisect_left(entries, kept_from_s, key=lambda e: e.start)
                entries[:first] = [e for e in entries[:first] if e.end >= kept_from_s]

    def _note_length(self, entry: Entry) -> None:
        length_s = entry.end - entry.start
        self._longest[entry.series] = max(length_s, self._longest.get(entry.series, 0))

    def take_back(self, host: int, entry: Entry) -> None:
        """Remove an entry whose commit was rolled back; it is the latest of its series."""
        self._hosts[host][entry.series].remove(entry)
