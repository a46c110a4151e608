"""What a participant trusts and serves."""

from __future__ import annotations

from dataclasses import dataclass, field

from wire.catalogue import Catalogue
from wire.task import DEMO_DOMAIN

from .task_check import FLEET_DOMAIN, OPERATOR_DOMAIN, Bounds, Gate, Pins


@dataclass(frozen=True, slots=True)
class ParticipantRules:
    """What this process trusts and serves.

    domain     "demo" is passed by the demo alone, and seeded noise is refused without it; any other
               process serves "fleet" and, from this host's own operator, "operator"
    gate       the PLD check at acceptance, None where the plan's builder has run it
    catalogue  what the sections of a task must be found in, None where nothing is measured by it
    """

    pins: Pins
    bounds: Bounds = field(default_factory=Bounds)
    domain: str = "live"
    gate: Gate | None = None
    catalogue: Catalogue | None = None

    @property
    def demo(self) -> bool:
        """Say whether this is the demo, whose rosters and tasks live for minutes."""
        return self.domain == DEMO_DOMAIN

    def serves(self, domain: str) -> bool:
        """Say whether tasks of a domain are taken: a demo takes demo tasks alone."""
        if self.demo:
            return domain == DEMO_DOMAIN
        return domain in {FLEET_DOMAIN, OPERATOR_DOMAIN}
