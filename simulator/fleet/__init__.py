"""The simulated fleet: hosts, jobs, faults and load; what each host ran, and the rows it measured.

`FleetModel` says who runs what in a window (`FleetState`), `FleetRows` what those hosts measured;
`SteadyFleet` is a fleet over minutes, in which nobody changes what it runs.
Rare events wait in an event queue, what happens everywhere at once is an array tick. Everything
repeats bit for bit from the scenario's seed. Numbers and their sources: docs/simulator-model.md.
"""

from .fleet_model import FleetModel, SteadyFleet
from .fleet_rows import FleetRows, block_rng
from .hosts import IDLE, FleetState, FleetStates, HostInventory, make_inventory

__all__ = [
    "IDLE",
    "FleetModel",
    "FleetRows",
    "FleetState",
    "FleetStates",
    "HostInventory",
    "SteadyFleet",
    "block_rng",
    "make_inventory",
]
