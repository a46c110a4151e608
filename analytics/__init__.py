"""What analysts read: roll-ups of releases, changes, costs; reading spends no budget."""

from .analyst_views import VIEW_OUTCOME_MEANINGS
from .cells_sql import CELL_MEANINGS
from .changes import CHANGE_MEANINGS
from .fleet_releases import FleetReleases, NothingReleased, connect
from .incident_costs import COST_MEANINGS
from .rollup_periods import RollupPeriod

__all__ = ["VIEW_MEANINGS", "FleetReleases", "NothingReleased", "RollupPeriod", "connect"]

VIEW_MEANINGS = {
    **{period.view: CELL_MEANINGS for period in RollupPeriod},
    "outcomes": VIEW_OUTCOME_MEANINGS,
    "changes": CHANGE_MEANINGS,
    "costs": COST_MEANINGS,
}
"""View of SQL -> its columns, each with its Arrow type and meaning."""
