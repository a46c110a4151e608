"""Rosters in the ledger: the log keeps the newest alone, and the one in force may be older."""

from __future__ import annotations

import json
import sqlite3
from typing import Any, Final

from wire.roster import PlanMembership

from .ledger_records import KnownRoster

ROSTERS_KEPT: Final = 8
"""Of each pair of aggregators."""

_ROWS: Final = "SELECT * FROM rosters ORDER BY leader_pk, helper_pk, version"
_FORGET: Final = """
DELETE FROM rosters WHERE leader_pk = ?1 AND helper_pk = ?2 AND version NOT IN (SELECT version
  FROM rosters WHERE leader_pk = ?1 AND helper_pk = ?2 ORDER BY version DESC LIMIT ?3)
"""


def read_rosters(db: sqlite3.Connection) -> tuple[KnownRoster, ...]:
    """Give what is kept, of each pair of aggregators the oldest version first."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'rosters'").fetchone():
        return ()  # a ledger of an earlier agent, read beside it
    return tuple(_known(*row) for row in db.execute(_ROWS))


def keep_roster(db: sqlite3.Connection, known: KnownRoster) -> None:
    """Keep a roster inside the caller's transaction, and the newest of its aggregators."""
    parties = known.leader_pk, known.helper_pk
    row = (*parties, known.version, known.effective_from, _content(known))
    db.execute("INSERT OR IGNORE INTO rosters VALUES (?, ?, ?, ?, ?)", row)
    db.execute(_FORGET, (*parties, ROSTERS_KEPT))


def _content(known: KnownRoster) -> str:
    plans = {
        host.hex(): plan and [[m.series, m.cohort, m.weight_millionths] for m in plan]
        for host, plan in known.plans.items()
    }
    return json.dumps({"plans": plans, "crowds": [[*k, *v] for k, v in known.crowds.items()]})


def _known(leader_pk: bytes, helper_pk: bytes, *row: Any) -> KnownRoster:
    version, effective_from, content = row
    found = json.loads(content)
    plans = {
        bytes.fromhex(host): None if plan is None else tuple(PlanMembership(*m) for m in plan)
        for host, plan in found["plans"].items()
    }
    crowds = {(series, cohort): (n, most) for series, cohort, n, most in found["crowds"]}
    return KnownRoster(leader_pk, helper_pk, version, effective_from, plans, crowds)
