"""Hosts that leave: the next roster without them, by id, by operator, or all as a fleet ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy.signing import SigningKey, verify
from wire import labels
from wire.envelope import Signed
from wire.fields import NO_SIGNATURE
from wire.rejection import Reason, ReportRejected
from wire.roster import Roster

from .roster_draft import EnrolmentError, draft_roster, next_start
from .tasks import sign_roster


@dataclass(frozen=True, slots=True)
class Leaving:
    """Who leaves.

    hosts       ids
    operators   names: all of their hosts
    everybody   all hosts: the roster after is empty, and no window of a later one is taken
    """

    hosts: Collection[bytes] = ()
    operators: Collection[str] = ()
    everybody: bool = False


def without(
    previous_file: Path, leaving: Leaving, leader: SigningKey, now_s: float | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Sign the roster after `previous_file`, in force from the next start of a week.

    Gives the roster without those who left, under the Leader's signature, and what it says.

    Raises      EnrolmentError: nobody leaves, or a host or operator that is not there;
                ReportRejected: the roster before is none, or lacks a signature; OSError
    """
    previous = read_signed_roster(previous_file, leader.public_bytes)
    hosts = _hosts_of(previous, leaving)
    start_s = next_start(previous, int(time.time() if now_s is None else now_s))
    roster = draft_roster(previous, {}, {}, start_s, remove=hosts).roster
    left = Counter(entry.operator for entry in roster.entries)
    summary = {
        "version": roster.version,
        "effective_from": roster.effective_from,
        "hosts": len(roster.entries),
        "removed": len(hosts),
        "operators": len(left),
        "largest_operator": max(left.values(), default=0),
    }
    return sign_roster(roster, leader, None), summary


def read_signed_roster(file: Path, leader_pk: bytes) -> Roster:
    """Read a roster that this Leader signed and a Helper countersigned.

    The Helper's signature is the Helper's tool to judge: here one must be there.
    Raises      ReportRejected; OSError
    """
    signed = Signed.decode(file.read_bytes(), labels.ROSTER)
    if not verify(leader_pk, signed.unsigned(), signed.sig_leader):
        raise ReportRejected(
            Reason.ROSTER_SIGNATURE, f"{file} under the signature of this Leader", "another"
        )
    if signed.sig_helper == NO_SIGNATURE:
        raise ReportRejected(
            Reason.ROSTER_SIGNATURE, f"{file} as the Helper countersigned it", "one that it did not"
        )
    return Roster.decode_body(signed.body)


def _hosts_of(roster: Roster, leaving: Leaving) -> list[bytes]:
    if leaving.everybody:
        found = [bytes(entry.host_id) for entry in roster.entries]
    else:
        known = {entry.operator for entry in roster.entries}
        for name in leaving.operators:
            if name not in known:
                words = ", ".join(sorted(known)) or "none"
                raise EnrolmentError(f"expected an operator of the roster ({words}), got {name}")
        theirs = [bytes(e.host_id) for e in roster.entries if e.operator in leaving.operators]
        found = list(dict.fromkeys([*leaving.hosts, *theirs]))
    if not found:
        raise EnrolmentError("expected at least one host that leaves, got none")
    return found
