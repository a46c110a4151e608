"""Join requests on the log: sealed to the Leader, of use to nobody who reads or moves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.enrolment.enrolment import enrol_folder, fetch_requests, open_join, write_spent
from edge_agent.membership import NoSealingKey, seal_join, send_join
from edge_agent.protocol.task_check import Pins
from privacy.sealing import HpkeKeyPair, seal_message
from tests.enrolment_kit import (
    LEADER,
    announced,
    host,
    part,
    plans_file,
    request,
    token,
)
from tests.protocol_kit import T0, altered, hpke_pair, signing_key
from transport.embedded.embedded import EmbeddedLog
from transport.interface import Transport, create_topics
from wire.envelope import Kind, unwrap, wrap
from wire.fields import key_id
from wire.join import JoinRequest, SealedJoin
from wire.rejection import ReportRejected
from wire.topics import JOINS, KEYS, announcement_key

PINS = Pins(frozenset({LEADER.public_bytes}), frozenset())
PAIRS: dict[bytes, HpkeKeyPair] = {key_id(hpke_pair("leader").public_bytes): hpke_pair("leader")}


def sealed(asked: JoinRequest) -> bytes:
    return seal_join(asked, announced()).encode()


def announce(log: Transport) -> None:
    create_topics(log)
    key = announced()
    publish(log, KEYS, Kind.KEY_ANNOUNCEMENT, [key.encode()])


def publish(log: Transport, topic: str, kind: Kind, cores: Sequence[bytes]) -> None:
    producer = log.producer()
    for core in cores:
        producer.send(topic, announcement_key(b"k" * 32, b"k"), wrap(kind, core))
    producer.close()


def on_the_log(log: Transport) -> bytes:
    consumer = log.consumer("thief", [JOINS])
    (record,) = consumer.poll(10, 1.0)
    consumer.close()
    return unwrap(record.value, len(record.value))[1]


def fetched(log: Transport, folder: Path, plans: Path) -> dict[str, int]:
    return dict(fetch_requests(log, plans, folder, LEADER.public_bytes, PAIRS, T0))


def test_token_on_the_log_enrols_no_other_key(tmp_path: Path) -> None:
    """A broker that reads the log has neither token nor hardware, and can move no request."""
    by, thief = token("x"), host("thief")
    asked = request("honest", ("machine-1", "GPU-1"), by)
    with EmbeddedLog(tmp_path / "log") as log:
        announce(log)
        send_join(log, asked, PINS, T0)
        stolen = on_the_log(log)
        files = b"".join(p.read_bytes() for p in (tmp_path / "log").rglob("*") if p.is_file())
        secrets = (by.signing.seed_bytes(), by.voucher.token_pk, part("machine-1"), b"GPU-1")
        assert not any(secret in files for secret in (*secrets, b"acme"))
        moved = replace(SealedJoin.decode(stolen), ed25519_pk=thief.signing_key.public_bytes)
        publish(log, JOINS, Kind.JOIN_REQUEST, [moved.encode(), stolen])
        found = fetched(log, tmp_path / "joins", plans_file(tmp_path))
    assert found == {"fetched": 1, "repeated": 1, "join_seal": 1}
    (kept,) = (tmp_path / "joins").glob("*.join")
    assert kept.read_bytes() == asked.encode()


def test_whoever_opens_a_request_cannot_make_another_of_it(tmp_path: Path) -> None:
    """Not even the Leader, who may read it: the token signs one host's key."""
    asked, thief = request("honest"), host("thief").signing_key
    mine = replace(asked, ed25519_pk=thief.public_bytes)
    mine = replace(mine, signature=thief.sign(mine.unsigned()))
    with EmbeddedLog(tmp_path / "log") as log:
        announce(log)
        publish(log, JOINS, Kind.JOIN_REQUEST, [sealed(mine), sealed(asked)])
        found = fetched(log, tmp_path / "joins", plans_file(tmp_path))
    assert found == {"fetched": 1, "join_token": 1}
    (kept,) = (tmp_path / "joins").glob("*.join")
    assert kept.read_bytes() == asked.encode()


def test_sealed_request_tells_nothing_of_the_machine_by_its_length() -> None:
    gpus = tuple(f"GPU-{number}" for number in range(63))
    assert len(sealed(request("a", ("machine",)))) == len(sealed(request("a", gpus)))


@pytest.mark.parametrize(
    ("core", "reason"),
    [
        (request("a").encode(), "join_clear.*in clear"),
        (b"junk", "length"),
        (altered(sealed(request("a"))), "join_seal.*opens"),
        (sealed(request("a"))[:48] + bytes(8) + sealed(request("a"))[56:], "join_seal.*is held"),
    ],
    ids=["clear", "short", "altered", "other key"],
)
def test_request_that_was_not_sealed_or_does_not_open_is_refused(core: bytes, reason: str) -> None:
    with pytest.raises(ReportRejected, match=reason):
        open_join(core, PAIRS)


def test_request_sealed_by_another_host_in_its_own_name_is_refused() -> None:
    """What stands inside must be of the host that stands outside."""
    thief = host("thief").signing_key.public_bytes
    kid = key_id(hpke_pair("leader").public_bytes)
    plain = SealedJoin(thief, kid, b"")
    box = seal_message(hpke_pair("leader").public_bytes, request("a").padded(), plain.info())
    with pytest.raises(ReportRejected, match=r"join_seal.*host that sealed it"):
        open_join(replace(plain, sealed=box).encode(), PAIRS)


def test_requests_come_from_the_log_and_nonsense_stops_nobody(tmp_path: Path) -> None:
    plans = plans_file(tmp_path)
    write_spent(plans, {token("spent").voucher.voucher_id})
    good = [request("a"), request("b")]
    forged = replace(good[0], signature=bytes(64))
    spent = request("c", by=token("spent"))
    twice = request("d", by=token("a"))
    unknown = request("e", by=token("e", "umbra"))
    cores = [b"junk", *map(sealed, (good[0], forged, spent, twice, unknown, good[1]))]
    joins = tmp_path / "joins"
    with EmbeddedLog(tmp_path / "log") as log:
        announce(log)
        publish(log, JOINS, Kind.JOIN_REQUEST, [*cores, good[0].encode()])
        publish(log, JOINS, Kind.REPORT, [b"a report"])
        assert fetched(log, joins, plans) == {
            "fetched": 2, "length": 1, "join_signature": 1, "join_token": 2, "join_voucher": 1,
            "join_clear": 1, "envelope": 1,
        }  # fmt: skip
        assert fetched(log, joins, plans) == {"fetched": 0}
    assert sorted(p.read_bytes() for p in joins.glob("*.join")) == sorted(
        asked.encode() for asked in good
    )
    assert {p.stat().st_mode & 0o777 for p in joins.glob("*.join")} == {0o600}
    assert enrol_folder(plans, joins, None, LEADER, now_s=T0).summary["hosts"] == 2


def test_host_seals_to_no_key_but_one_in_force_of_its_tokens_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_agent.membership._KEYS_WAIT_S", 0.0)
    other = signing_key("another leader")
    with EmbeddedLog(tmp_path / "log") as log:
        announce(log)
        publish(log, KEYS, Kind.KEY_ANNOUNCEMENT, [b"junk", announced(other, "other").encode()])
        with pytest.raises(NoSealingKey, match="in force now"):
            send_join(log, request("a"), PINS, T0 + 2 * 86_400)
        with pytest.raises(NoSealingKey, match="in force now"):
            send_join(log, request("a", by=token("a", leader=other)), PINS, T0)
        send_join(log, request("a"), PINS, T0)
        assert open_join(on_the_log(log), PAIRS) == request("a")
