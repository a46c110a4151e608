"""Parties of a fleet: each makes its own keys, and takes the others' cards by fingerprint."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aggregator.enrolment.enrolment import FleetTable, load_enrolment
from aggregator.party.config import load_helper_config, load_leader_config
from edge_agent.config import load_config
from pointillist.cli import main
from pointillist.fleet.party_card import (
    CardRefused,
    FleetParty,
    PartyCard,
    read_card,
)
from pointillist.fleet.party_setup import (
    PartyFolder,
    PartyWishes,
    begin_party,
    next_steps,
    take_card,
)
from pointillist.installation import HOST_KEYS, public_fingerprint
from pointillist.plan_file import load_plan
from privacy.signing import SigningKey
from tests.fleet_kit import fleet_folder
from transport.files.keyfiles import load_signing_key

LEADER, HELPER, OPERATOR = FleetParty


@dataclass(frozen=True)
class Three:
    """Two companies that run aggregators, and one that has hosts; nobody has met yet."""

    vendor: PartyFolder
    notary: PartyFolder
    acme: PartyFolder


@pytest.fixture
def three() -> Iterator[Three]:
    with fleet_folder() as base:
        vendor = PartyWishes(
            LEADER, "vendor", "vendor.example.org", ("kafka.example.org:9093",), True, 2_000
        )
        notary = PartyWishes(HELPER, "notary", "notary.example.org:7443")
        yield Three(
            begin_party(base / "v", vendor),
            begin_party(base / "n", notary),
            begin_party(base / "a", PartyWishes(OPERATOR, "acme")),
        )


def told(folder: PartyFolder) -> str:
    """The fingerprint of a party's card, as its people tell it."""
    return public_fingerprint(folder.own_card.read_bytes())


def meet(taker: PartyFolder, *others: PartyFolder) -> None:
    for other in others:
        take_card(taker, other.own_card, told(other))


def test_each_party_has_its_own_keys_and_nobody_elses(three: Three) -> None:
    for folder, kinds in ((three.vendor, 2), (three.notary, 2), (three.acme, 1)):
        keys = [path for path in folder.base.rglob("*.key") if path.is_file()]
        assert len(keys) == kinds
        assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    card = three.vendor.own_card.read_text(encoding="utf-8")
    assert "PRIVATE" not in card
    assert "seed" not in card


def test_parties_that_met_are_configured_for_each_other(three: Three) -> None:
    meet(three.vendor, three.notary, three.acme)
    meet(three.notary, three.vendor, three.acme)
    meet(three.acme, three.vendor, three.notary)
    leader = load_leader_config(three.vendor.home("leader") / "leader.toml")
    helper = load_helper_config(three.notary.home("helper") / "helper.toml")
    agent = load_config(three.acme.home("operator") / "agent.toml", {})
    assert leader.helper is not None
    assert leader.helper.tls is not None
    assert helper.address.tls is not None
    assert (leader.helper_pk, helper.leader_pk) == (
        three.notary.card().public_key, three.vendor.card().public_key,
    )  # fmt: skip
    assert leader.helper.host_port == "notary.example.org:7443"
    assert helper.address.host_port == "0.0.0.0:7443"
    assert leader.helper.tls.ca_file.read_bytes() == helper.address.tls.cert_file.read_bytes()
    assert helper.address.tls.ca_file.read_bytes() == leader.helper.tls.cert_file.read_bytes()
    acme = three.acme.home("operator") / "acme.key"
    key = load_signing_key(acme, owner=acme.stat().st_uid).public_bytes
    assert helper.operators == {"acme": frozenset({key})}
    named = load_enrolment(three.vendor.home("leader") / "plans.toml").fleet
    assert named == FleetTable(three.vendor.card().fleet, three.notary.card().public_key)
    assert named.name.startswith("vendor-")
    assert (helper.fleet, agent.trust.fleets) == (named.name, frozenset({named.name}))
    assert (agent.trust.trial, agent.bounds.n_min_at_least) == (False, 1_600)
    assert agent.host.key_file.is_relative_to(HOST_KEYS), "apart from the ledger: see key_folders"
    assert agent.transport.kafka is not None
    assert agent.transport.kafka.tls
    assert load_plan(three.vendor.home("leader") / "plan.toml").hosts == 2_000


def test_card_that_was_changed_on_its_way_is_refused(three: Three, tmp_path: Path) -> None:
    original = three.notary.own_card.read_text(encoding="utf-8")
    forged = tmp_path / "card.toml"
    other = SigningKey.generate().public_bytes.hex()
    forged.write_text(original.replace(three.notary.card().public_key.hex(), other))
    with pytest.raises(CardRefused, match="by another way than the card came"):
        take_card(three.vendor, forged, told(three.notary))
    moved = tmp_path / "moved.toml"
    moved.write_text(original.replace("notary.example.org", "elsewhere.example.org"))
    with pytest.raises(CardRefused, match="fingerprint"):
        take_card(three.vendor, moved, told(three.notary))
    assert not (three.vendor.home("leader") / "leader.toml").exists()
    assert list(three.vendor.cards.iterdir()) == []


def test_card_of_the_wrong_party_or_of_this_one_is_refused(three: Three) -> None:
    with pytest.raises(CardRefused, match="card of a helper or operator, got that of a leader"):
        meet(three.vendor, three.vendor)
    with pytest.raises(CardRefused, match="take that one in first"):
        meet(three.notary, three.acme)
    meet(three.vendor, three.notary)
    with pytest.raises(CardRefused, match="first card of this party"):
        meet(three.vendor, three.notary)


def test_one_key_for_two_operators_is_refused(three: Three, tmp_path: Path) -> None:
    """Three operators that are one would pass for a crowd."""
    meet(three.vendor, three.notary, three.acme)
    twin = PartyCard(three.acme.card().public_key, OPERATOR, "birch")
    path = tmp_path / "birch.toml"
    path.write_text(twin.text)
    with pytest.raises(CardRefused, match="key of its own"):
        take_card(three.vendor, path, public_fingerprint(path.read_bytes()))


@pytest.mark.parametrize(
    "line", ['party = "witness"', 'public_key = "00"', "strange = 1", 'address = "no port"']
)
def test_text_that_is_no_card_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "card.toml"
    good = PartyCard(bytes(32), HELPER, "notary", address="h:1").text
    name = line.partition(" =")[0]
    kept = [entry for entry in good.splitlines() if not entry.startswith(f"{name} =")]
    path.write_text("\n".join([*kept, line]))
    with pytest.raises(CardRefused, match=name):
        read_card(path)


def test_every_next_step_of_a_party_is_a_command_that_there_is(
    three: Three, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = [step.do for step in next_steps(three.vendor)]
    assert [("pair" in do) for do in alone] == [False, True, True]
    meet(three.vendor, three.notary, three.acme)
    meet(three.notary, three.vendor, three.acme)
    meet(three.acme, three.vendor, three.notary)
    groups = set()
    for folder in (three.vendor, three.notary, three.acme):
        for step in next_steps(folder):
            do = step.do.removeprefix("on each host: ")
            if do.startswith("pointillist "):
                groups.add(tuple(word for word in do.split()[1:4] if word.isalpha()))
            assert do.startswith(("pointillist ", "send ", "copy ")), do
    for words in sorted(groups):
        _has_help(words, monkeypatch, capsys)
    assert ("helper", "countersign") in {words[:2] for words in groups}


def _has_help(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    depth = 3 if words[:2] == ("leader", "roster") else 1 if words[0] == "plan" else 2
    monkeypatch.setattr("sys.argv", ["pointillist", *words[:depth], "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0, words
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--name", "acme"), "expected --party"),
        (("--party", "leader", "--name", "v"), "--address, --broker"),
        (("--party", "helper", "--name", "n", "--address", "h"), "host:port"),
        (("--party", "operator", "--name", "No Name"), "name"),
    ],
)
def test_what_a_party_must_say_is_named(
    words: tuple[str, ...], said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with fleet_folder() as base:
        monkeypatch.setattr("sys.argv", ["pointillist", "fleet", "init", str(base / "f"), *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
