"""Findings of parties, by verdict: short to write where a check has many ways to end."""

from __future__ import annotations

from dataclasses import dataclass

from transport.process.doctor_findings import CheckVerdict, Finding


@dataclass(frozen=True, slots=True)
class FindingOf:
    """Makes findings of one name in one group."""

    group: str
    name: str

    def ok(self, found: str) -> Finding:
        """Nothing to do."""
        return Finding(self.group, self.name, CheckVerdict.OK, found)

    def absent(self, found: str, do: str) -> Finding:
        """The party runs without it; worth knowing."""
        return Finding(self.group, self.name, CheckVerdict.ABSENT, found, do)

    def broken(self, found: str, do: str) -> Finding:
        """The party does not run, or releases nothing, until this is put right."""
        return Finding(self.group, self.name, CheckVerdict.BROKEN, found, do)
