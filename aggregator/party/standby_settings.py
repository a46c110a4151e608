"""The table [standby] of a Leader that runs on several machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from transport.settings.config import limited

from .postgresql_settings import PostgresqlSettings

DEFAULT_LEASE_S: Final = 10.0
"""A database that restarts is back sooner; nobody leads for so long after a machine fell."""


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """The database that says which machine of a Leader leads, and holds the Leader's state.

    lease_s     after so long without a word of who leads another machine does
    """

    postgresql: PostgresqlSettings
    lease_s: float = limited(DEFAULT_LEASE_S, low=1.0, high=300.0)
