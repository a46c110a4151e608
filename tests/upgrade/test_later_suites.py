"""Sealing keys and epochs of a suite of tomorrow, in a fleet upgraded machine by machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.leader.log_publisher import MOST_KEYS, LogPublisher
from aggregator.party.key_ring import KeyRing
from aggregator.protocol.directory import PinnedParties
from edge_agent.ledger.ledger_db import read_view
from tests.agent_live import SteppedClock, Surroundings, announce, run_until, surroundings
from tests.agent_world import T0, World
from tests.protocol_kit import Fleet, build_world, honest_reports, open_epochs
from transport.embedded.embedded import EmbeddedLog
from transport.files.keyfiles import KeyFileRefused, write_signing_key
from wire.envelope import Kind
from wire.labels import label
from wire.topics import KEYS, announcement_key

LATER = {
    "another AEAD": (1_216, "version", "expected plst1/hpke-key, got plst2/hpke-key"),
    "ML-KEM-1024 and X448": (1_624, "length", "expected an envelope of at most"),
}


def later_key(world: World, number: int, length: int) -> bytes:
    party = (world.leader, world.helper)[number % 2]
    unsigned = label("plst2/hpke-key") + party.pk + bytes([number]) * length + bytes(16)
    return unsigned + party.signing.sign(unsigned)


def offer(made: Surroundings, length: int) -> None:
    """Both parties announce keys of tomorrow."""
    for number, party in enumerate((made.world.leader, made.world.helper)):
        key = announcement_key(party.pk, bytes(8))
        made.publish(KEYS, key, Kind.KEY_ANNOUNCEMENT, later_key(made.world, number, length))


@pytest.mark.parametrize("suite", LATER)
def test_agent_passes_keys_of_a_later_suite_over_by_name_and_seals_to_those_it_knows(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], suite: str
) -> None:
    length, reason, told = LATER[suite]
    made = surroundings(tmp_path)
    offer(made, length)
    runtime = made.run(T0, T0 + 20)
    assert runtime.tally.sealed >= 3
    assert runtime.tally.refused == {reason: 2}
    assert "".join(capfd.readouterr()).count(told) == 1


def test_agent_that_is_offered_a_later_suite_alone_spends_nothing_until_it_knows_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as tomorrow:
        tomorrow.setattr(World, "keys", lambda *_times: ())
        made = surroundings(tmp_path)
    offer(made, 1_216)
    clock = SteppedClock(T0)
    runtime = made.agent(clock)
    run_until(runtime, clock, T0 + 20)
    assert runtime.tally.refused.keys() >= {"version", "no_hpke_key"}
    assert read_view(made.config.ledger_file).hosts[0].entries == ()
    assert made.records() == []
    announce(made, [made.task])
    run_until(runtime, clock, T0 + 40)
    runtime.close()
    windows = [entry.start for entry in read_view(made.config.ledger_file).hosts[0].entries]
    assert len(windows) >= 3
    assert min(windows) >= T0 + 16


def test_leader_publishes_the_keys_it_knows_of_a_later_helper_and_names_the_others_once(
    tmp_path: Path,
) -> None:
    world = World(1)
    known = [party.announce(T0, T0 + 60).encode() for party in (world.leader, world.helper)]
    later = [later_key(world, number, 1_624) for number in range(2 * MOST_KEYS)]
    with EmbeddedLog(tmp_path / "log") as log:
        publisher = LogPublisher(log, PinnedParties(world.leader.pk, world.helper.pk))
        publisher.open()
        (told,) = publisher.put_keys([*later, *known])
        assert publisher.put_keys([*later, *known]) == []
        publisher.flush()
        consumer = log.consumer("test", (KEYS,))
        assert len(consumer.poll(100, 0.0)) == len(known)
        consumer.close()
        publisher.close()
    assert str(told) == "version: expected plst1/hpke-key, got plst2/hpke-key"


def test_parties_refuse_epochs_of_a_later_suite_and_release_the_others(tmp_path: Path) -> None:
    fleet = Fleet(build_world(10), tmp_path)
    epochs = open_epochs(fleet.world)
    later = [label("plst2/epoch") + raw[16:] for raw in epochs]
    fleet.send_epochs([*later, *epochs])
    fleet.helper.admit_epochs(later, fleet.clock())
    assert fleet.leader.rejected == fleet.helper.refused == {"version": 10}
    fleet.send(honest_reports(fleet.world))
    fleet.close_window()
    assert [release.n for release in fleet.store.written] == [10]
    fleet.state.close()


def test_party_that_went_back_names_the_key_file_of_a_later_suite(tmp_path: Path) -> None:
    """Its secret would never be destroyed, were it passed over."""
    write_signing_key(tmp_path / "identity.key", build_world(1).leader_key)
    KeyRing(tmp_path).rotate(T0, 3600)
    (known,) = tmp_path.glob("*.hpke")
    later = tmp_path / "2099-01-01.hpke"
    later.write_text(known.read_text().replace("kind hpke", "kind hpke-2"))
    later.chmod(0o600)
    with pytest.raises(KeyFileRefused, match=r"2099-01-01.hpke: expected .* kind hpke, got one of"):
        KeyRing(tmp_path)
