"""What analysts read: roll-ups of releases, changes, costs; reading spends no budget."""

from .changes import CHANGE_MEANINGS
from .costs import COST_MEANINGS
from .fleet_releases import FleetReleases, NothingReleased, connect
from .quantiles_sql import QUANTILE_MEANINGS
from .recent_hours import RECENT_VIEW
from .rollup_files import RollupPeriod
from .served_releases import VIEW_OUTCOME_MEANINGS
from .server_source import FleetAccessRefused, FleetServerUnavailable, NotAFleetServer
from .sql import CELL_MEANINGS

__all__ = [
    "QUANTILE_MEANINGS", "VIEW_MEANINGS", "FleetAccessRefused", "FleetReleases",
    "FleetServerUnavailable", "NotAFleetServer", "NothingReleased", "RollupPeriod", "connect",
]  # fmt: skip

VIEW_MEANINGS = {
    **{period.view: CELL_MEANINGS for period in RollupPeriod},
    RECENT_VIEW: CELL_MEANINGS,
    "outcomes": VIEW_OUTCOME_MEANINGS,
    "changes": CHANGE_MEANINGS,
    "costs": COST_MEANINGS,
}
"""View of SQL -> its columns, each with its Arrow type and meaning."""
