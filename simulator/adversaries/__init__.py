"""Who does not follow the protocol, played against the production state machines.

Nothing here changes a party: hosts lie in what they report, a Leader in what it asks, a network in
what it carries, a guesser in what it infers. Results: docs/simulator-model.md.
"""

from .attacks import (
    LIES,
    TRICKS,
    Movement,
    Played,
    TrickResult,
    move_statistic,
    play_scenario,
    play_trick,
)
from .cohort import Cohort, CohortPlan
from .guess import Guess, guess_application, guess_without_mask, guess_working
from .lossy_network import FAULTS, FaultResult, face

__all__ = [
    "FAULTS",
    "LIES",
    "TRICKS",
    "Cohort",
    "CohortPlan",
    "FaultResult",
    "Guess",
    "Movement",
    "Played",
    "TrickResult",
    "face",
    "guess_application",
    "guess_without_mask",
    "guess_working",
    "move_statistic",
    "play_scenario",
    "play_trick",
]
