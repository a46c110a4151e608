"""Keys of the parties change: another sealing key at once, another Helper under the same Leader."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from aggregator.enrolment.roster_review import RosterEvidence, signed_before
from aggregator.enrolment.tasks import check_and_countersign, leader_sign, sign_roster
from aggregator.party.key_ring import KeyRing
from aggregator.protocol.directory import Directory, PinnedParties
from edge_agent.protocol.epochs import HpkeDirectory, PartyKeys
from edge_agent.protocol.roster_book import RosterBook
from edge_agent.protocol.task_check import Pins
from pointillist.cli.keys_command import app
from pointillist.cli.output import CommandError
from privacy.budget import WEEK_S
from privacy.signing import SigningKey
from tests.enrolment_kit import LEADER, entry, host, pinned, request
from tests.protocol_kit import signing_key
from transport.files.keyfiles import load_hpke_key, write_signing_key
from wire import labels
from wire.envelope import Signed
from wire.epoch import KeyAnnouncement
from wire.rejection import ReportRejected
from wire.roster import PlanMembership, Roster

FORMER, HELPER = signing_key("former helper"), signing_key("helper")
PARTIES = PinnedParties(LEADER.public_bytes, HELPER.public_bytes)
WEEK = 2900 * WEEK_S
NOW = float(WEEK - 1000)
ENTRIES = tuple(sorted((entry(request(n)) for n in range(3)), key=lambda row: row.host_id))
PLAN = (PlanMembership("minute", 0, 500_000),)
FIRST = Roster(1, WEEK - WEEK_S, (PLAN,), ENTRIES)
NEXT = Roster(2, WEEK, (PLAN,), ENTRIES)


def countersigned(former: bytes | None, earlier: Sequence[bytes], roster: Roster = NEXT) -> bytes:
    evidence = RosterEvidence(
        earlier=earlier, operators=pinned("acme"), former_helper_pk=former, accepted_change="0"
    )
    draft = leader_sign(Signed(labels.ROSTER, roster.encode_body()).encode(), LEADER)
    return check_and_countersign(draft, LEADER.public_bytes, HELPER, evidence=evidence, now_s=NOW)[
        0
    ]


def test_helper_with_a_new_key_goes_on_from_rosters_under_its_former_one(tmp_path: Path) -> None:
    before = sign_roster(FIRST, LEADER, FORMER)
    signed = countersigned(FORMER.public_bytes, [before])
    for former in (None, signing_key("somebody").public_bytes):
        with pytest.raises(ReportRejected, match="roster_signature"):
            countersigned(former, [before])
    (tmp_path / "1.roster").write_bytes(before)
    assert signed_before(tmp_path, signed, PARTIES) == []
    assert signed_before(tmp_path, signed, PARTIES, FORMER.public_bytes) == [before]
    parties = Directory(PARTIES)
    assert parties.add_roster(signed).version == 2
    pins = Pins(
        frozenset({LEADER.public_bytes}), frozenset({FORMER.public_bytes, HELPER.public_bytes})
    )
    book = RosterBook(pins, (host(0).host_id,))
    book.add(before)
    book.add(signed)
    for helper, version in ((FORMER, 1), (HELPER, 2)):
        view = book.in_force(PartyKeys(LEADER.public_bytes, helper.public_bytes), WEEK)
        assert view is not None
        assert view.version == version


def test_former_leader_is_none_of_the_parties() -> None:
    """Parts of machines are hashed with the Leader's key: under another none would be known."""
    other = sign_roster(FIRST, signing_key("former leader"), FORMER)
    with pytest.raises(ReportRejected, match="roster_signature"):
        countersigned(FORMER.public_bytes, [other])


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "helper"
    folder.mkdir(mode=0o700)
    write_signing_key(folder / "identity.key", SigningKey.generate())
    return folder


def rotate(folder: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["rotate", "helper", "--folder", str(folder.parent), *options])


def announced(ring: KeyRing, now_s: float) -> list[KeyAnnouncement]:
    return [KeyAnnouncement.decode(found) for found in ring.announcements(now_s)]


@pytest.mark.parametrize("options", [(), ("--destroy-others",)])
def test_rotated_sealing_key_is_announced_and_hosts_seal_to_it(
    keys: Path, options: Sequence[str]
) -> None:
    now_s = time.time()
    ring = KeyRing(keys)
    ring.rotate(now_s, 0)
    (before, *_) = announced(ring, now_s)
    result = rotate(keys, *options)
    assert result.exit_code == 0, result.exception
    later = KeyRing(keys)
    later.rotate(now_s + 1, 0)
    agents = HpkeDirectory(Pins(frozenset(), frozenset({ring.identity.public_bytes})))
    for key in (before, *announced(later, now_s + 1)):
        agents.add(key)
    in_force = agents._in_force(ring.identity.public_bytes, int(now_s) + 2)
    assert in_force is not None
    assert in_force.key_id != before.key_id
    assert later.pair(in_force.key_id) is not None, "the party opens what is sealed to it"
    assert (later.pair(before.key_id) is None) == bool(options)


def test_two_rotations_of_one_second_make_two_keys(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    assert [rotate(keys).exit_code for _ in range(2)] == [0, 0]
    made = list(keys.glob("*.hpke"))
    assert len({load_hpke_key(path).pair.public_bytes for path in made}) == 2
    assert rotate(keys, "--destroy-others").exit_code == 0
    assert len(list(keys.glob("*.hpke"))) == 1


def test_rotate_without_the_partys_identity_makes_nothing(keys: Path) -> None:
    (keys / "identity.key").unlink()
    assert rotate(keys).exit_code != 0
    assert list(keys.iterdir()) == []


def test_destroy_takes_key_files_alone_and_asks_first(keys: Path, tmp_path: Path) -> None:
    other = tmp_path / "plans.toml"
    other.write_text("no key")
    other.chmod(0o600)

    def destroy(*arguments: str) -> BaseException | None:
        return CliRunner().invoke(app, ["destroy", *arguments]).exception

    identity = keys / "identity.key"
    assert isinstance(destroy(str(identity)), CommandError)
    assert isinstance(destroy(str(identity), str(other), "--yes"), CommandError)
    assert identity.exists()
    assert destroy(str(identity), "--yes") is None
    assert not identity.exists()
    assert other.exists()
