"""SQL of the largest ledger counter seen of each host: a party's memory of restored ledgers."""

from __future__ import annotations

from typing import Final

KEEP_COUNTER: Final = (
    "INSERT INTO counters VALUES (?,?,?) ON CONFLICT (host_id) DO UPDATE SET "
    "ledger_ctr = excluded.ledger_ctr, not_before = excluded.not_before "
    "WHERE excluded.ledger_ctr > counters.ledger_ctr"
)
COUNTERS: Final = "SELECT host_id, ledger_ctr, not_before FROM counters"
