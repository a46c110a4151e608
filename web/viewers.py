"""Who looks, and which series they may see by the rule that releases are made by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from wire.task import DEMO_DOMAIN

from .page_shape import Role
from .store_watch import SeriesState

FLEET_DOMAIN: Final = "fleet"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody who looks: the token's name and role; an operator's name where that is the role."""

    name: str
    role: Role
    operator: str | None = None


LOCAL: Final = Viewer("local", Role.LOCAL)


@dataclass(frozen=True, slots=True)
class SeriesOwners:
    """Whose a series is, where the store does not say it.

    fleet      series of fleet tasks: their releases are of hosts of three operators at least, and
               are made for everybody
    operators  operator -> series of its own operator tasks, which are released to it alone
    """

    fleet: frozenset[str] = frozenset()
    operators: Mapping[str, frozenset[str]] | None = None

    def __post_init__(self) -> None:
        seen: dict[str, str] = dict.fromkeys(self.fleet, "the fleet")
        for operator, series in (self.operators or {}).items():
            for name in series:
                if name in seen:
                    raise ValueError(
                        f"series {name!r}: expected one owner, got {seen[name]} and {operator}"
                    )
                seen[name] = operator

    def visible(self, viewer: Viewer, series: Iterable[SeriesState]) -> frozenset[str] | None:
        """Give the series that a viewer may see; None: all.

        A series that is not known to be of the whole fleet is shown to its operator alone.
        """
        if viewer.role is Role.LOCAL:
            return None
        own = (self.operators or {}).get(viewer.operator or "", frozenset())
        others = {name for names in (self.operators or {}).values() for name in names}
        mixed = {
            one.name
            for one in series
            if one.name in self.fleet
            or (one.domain in {FLEET_DOMAIN, DEMO_DOMAIN} and one.name not in others)
        }
        return frozenset(mixed | own)
