"""Two companies that serve each other as Helper, with one identity key each; and two fleets of the
same two: a roster of one fleet is none of the other.
"""

from __future__ import annotations

import pytest

from aggregator.protocol.directory import Directory, PinnedParties
from edge_agent.protocol.roster_book import RosterBook
from edge_agent.protocol.task_check import Pins
from tests.agent_world import T0, WEEK_S, World
from wire import labels
from wire.envelope import Signed
from wire.rejection import ReportRejected

WEIGHTS = {"minute": 600_000}


def swapped(signed: bytes) -> bytes:
    """The same body under the same signatures, each in the other's place."""
    found = Signed.decode(signed, labels.ROSTER)
    return Signed(found.label, found.body, found.sig_helper, found.sig_leader).encode()


def book(leaders: set[bytes], helpers: set[bytes], world: World) -> RosterBook:
    pins = Pins(frozenset(leaders), frozenset(helpers))
    return RosterBook(pins, tuple(host.host_id for host in world.identities))


def test_roster_with_its_signatures_swapped_is_none_of_the_other_fleet() -> None:
    world = World(3)
    a, b = world.leader.pk, world.helper.pk
    signed = swapped(world.roster(WEIGHTS))
    with pytest.raises(ReportRejected, match="roster_fleet"):
        Directory(PinnedParties(b, a)).add_roster(signed)
    with pytest.raises(ReportRejected, match="roster_fleet"):
        book({b}, {a}, world).add(signed)


def test_host_pins_no_key_in_both_roles() -> None:
    world = World(3)
    both = {world.leader.pk, world.helper.pk}
    with pytest.raises(ValueError, match="a key in one role"):
        book(both, both, world).add(swapped(world.roster(WEIGHTS)))


def test_roster_of_another_fleet_of_the_same_two_is_refused() -> None:
    world = World(3)
    other = World(3, world.leader, world.helper)
    parties = Directory(PinnedParties(world.leader.pk, world.helper.pk))
    host = book({world.leader.pk}, {world.helper.pk}, world)
    for take in (parties.add_roster, host.add):
        take(world.roster(WEIGHTS))
        with pytest.raises(ReportRejected, match="roster_fleet"):
            take(other.roster(WEIGHTS, version=2, effective_from=T0 + WEEK_S))
