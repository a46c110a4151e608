"""What a doctor of Leader and Helper finds, and that each finding names the one thing to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509 import load_pem_x509_certificates

from aggregator.enrolment.tasks import sign_roster
from aggregator.party.channel import serve
from aggregator.party.channel_address import ChannelAddress, TlsFiles
from aggregator.party.config import WitnessProcess, WitnessSettings
from pointillist.broker.local import free_ports
from pointillist.fleet import party_card
from pointillist.fleet.party_card import make_certificate
from pointillist.fleet.trial import TrialSettings, make_trial
from pointillist.party_doctor.party_findings import (
    HelperPeer,
    helper_findings,
    log_checks,
    tls_checks,
)
from pointillist.party_doctor.place_checks import (
    SignedFiles,
    copies,
    fence,
    folder,
    party_keys,
)
from tests.aggregator.witness.witness_kit import HELPER_KEYS, WITNESS_KEY, ProcessStand, extend
from tests.child_kit import as_user
from tests.fleet_kit import fleet_folder
from tests.process_kit import helper_config
from tests.protocol_kit import (
    T0,
    Clock,
    Failures,
    World,
    build_world,
    signing_key,
    start_helper,
)
from transport.factory import EmbeddedSettings
from transport.files.keyfiles import write_signing_key
from transport.kafka.kafka_frame import KafkaSettings
from transport.kafka.kafka_roles import KafkaRole
from transport.process.doctor_checks import Check, CheckVerdict, Finding, Result, check, examine

OK, ABSENT, BROKEN = CheckVerdict.OK, CheckVerdict.ABSENT, CheckVerdict.BROKEN
CATALOGUE = bytes(32)
"""That of the world's task."""


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    folder = tmp_path / "signed"
    folder.mkdir()
    return folder


def by_name(*subjects: object) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(*subjects)}


def found(
    folder: Path, world: World, now_s: float = T0, catalogue: bytes = CATALOGUE
) -> dict[str, Finding]:
    operators = {entry.operator: frozenset({b"k"}) for entry in world.roster.entries}
    return by_name(SignedFiles(folder, world.parties, catalogue, operators, now_s))


def written(folder: Path, world: World) -> World:
    (folder / "minute.task").write_bytes(world.task_bytes)
    (folder / "1.roster").write_bytes(world.roster_bytes)
    return world


def test_signed_files_that_can_release_are_well(signed: Path) -> None:
    world = written(signed, build_world().resign(last_window=T0 + 60 * 86_400))
    assert {one.verdict for one in found(signed, world).values()} == {OK}


def test_nothing_signed_is_named_with_what_signs_it(signed: Path) -> None:
    said = found(signed, build_world())
    assert said["tasks"].verdict is said["roster"].verdict is BROKEN
    assert "countersign" in (said["tasks"].do or "")
    assert "roster build" in (said["roster"].do or "")


def test_what_the_other_party_did_not_sign_is_named(signed: Path) -> None:
    world = written(signed, build_world())
    other = replace(world, helper_key=signing_key("another"))
    said = found(signed, other)
    assert (said["files"].verdict, "minute.task" in said["files"].found) == (BROKEN, True)
    assert said["tasks"].verdict is BROKEN


def test_series_that_ends_soon_or_is_over_is_named(signed: Path) -> None:
    world = written(signed, build_world())
    last = world.task.last_window
    assert found(signed, world, last - 86_400)["tasks"].verdict is ABSENT
    assert found(signed, world, last + 60)["tasks"].verdict is BROKEN


def test_roster_with_too_few_hosts_for_n_min_is_why_nothing_is_released(signed: Path) -> None:
    world = build_world()
    written(signed, world.resign(n_min=39, t=4, n_max=40))
    cohorts = found(signed, world)["cohorts"]
    assert cohorts.verdict is BROKEN
    assert f"{len(world.hosts)} hosts of n_min 39" in cohorts.found


def test_roster_that_names_no_fleet_is_told(signed: Path) -> None:
    world = written(signed, build_world())
    before = replace(world.roster, fleet=None)
    old = sign_roster(before, world.leader_key, world.helper_key)
    (signed / "1.roster").write_bytes(old)
    roster = found(signed, world)["roster"]
    assert (roster.verdict, "no named fleet" in roster.found) == (ABSENT, True)


def test_roster_that_is_not_in_force_yet_and_strange_catalogue_are_told(signed: Path) -> None:
    world = written(signed, build_world())
    before = world.roster.effective_from - 10
    assert found(signed, world, before)["roster"].verdict is (ABSENT if before >= 0 else OK)
    assert found(signed, world, catalogue=b"x" * 32)["catalogue"].verdict is ABSENT


def test_file_that_cannot_be_read_is_named_as_what_stops_all(signed: Path) -> None:
    world = written(signed, build_world())
    (signed / "day.task").mkdir()
    files = found(signed, world)["files"]
    assert (files.verdict, "day.task" in files.found) == (BROKEN, True)
    assert "chmod a+r" in (files.do or "")


def test_key_that_others_can_read_or_that_is_the_peers_is_refused(tmp_path: Path) -> None:
    key = signing_key("doctor")
    path = tmp_path / "identity.key"
    peer_pk = signing_key("peer").public_bytes
    assert party_keys("leader", tmp_path, peer_pk).verdict is BROKEN
    write_signing_key(path, key)
    well = party_keys("leader", tmp_path, peer_pk)
    assert well.verdict is OK
    assert key.seed_bytes().hex() not in well.found
    assert party_keys("leader", tmp_path, key.public_bytes).verdict is BROKEN
    path.chmod(0o644)
    finding = party_keys("leader", tmp_path, peer_pk)
    assert (finding.verdict, "chmod 600" in (finding.do or "")) == (BROKEN, True)


def test_folder_that_is_missing_or_holds_the_fence_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for above, root, verdict in (
        ("none", True, OK),
        ("none", False, OK),  # whoever may write beside it makes it
        ("file", False, BROKEN),
    ):
        assert folder(tmp_path / above / "state", root).verdict is verdict
    there = folder(tmp_path, started_by_root=False)
    assert (there.verdict, "MiB free" in there.found) == (OK, True)
    assert fence(tmp_path, tmp_path / "fence").verdict is ABSENT
    assert fence(tmp_path / "state", tmp_path / "fence").verdict is OK


NOBODY = 65534


@pytest.mark.root
def test_what_root_left_in_a_party_s_folders_is_named_with_the_command_that_mends_it() -> None:
    with fleet_folder() as above:
        keys, state = above / "keys", above / "state"
        for made in (keys, state):
            made.mkdir()
            os.chown(made, NOBODY, NOBODY)
        write_signing_key(keys / "identity.key", signing_key("doctor"))
        os.chown(keys / "identity.key", NOBODY, NOBODY)
        (state / "leader.sqlite").touch(mode=0o600)

        def looked() -> list[Result]:
            peer_pk = signing_key("peer").public_bytes
            found = [party_keys("leader", keys, peer_pk), folder(state, started_by_root=True)]
            return [Result(*one) for one in found]

        def told() -> list[Result]:
            return [Result(*one) for one in as_user(NOBODY, looked)]

        assert [one.verdict for one in told()] == [OK, BROKEN]
        left = told()[1]
        assert f"{state}/leader.sqlite is root's" in left.found
        assert f"chown nobody {state}/leader.sqlite" in (left.do or "")
        os.chown(state / "leader.sqlite", NOBODY, NOBODY)
        os.chown(keys, 0, 0)
        assert [one.verdict for one in told()] == [BROKEN, OK]
        assert f"chown nobody {keys}" in (told()[0].do or "")


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[tuple[World, ChannelAddress]]:
    """A Helper that listens by certificates as `fleet init` makes them, and its Leader's end."""
    world, clock = build_world(), Clock(time.time())
    for party in ("leader", "helper"):
        make_certificate(tmp_path, party, ["127.0.0.1"], None)
    _, state, runner = start_helper(world, tmp_path, clock)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    listen = ChannelAddress(None, address, _files(tmp_path, "helper", "leader"))
    server = serve(runner, listen, Failures(), threading.Lock())
    yield world, ChannelAddress(None, address, _files(tmp_path, "leader", "helper"))
    server.stop(0).wait()
    state.close()


def _files(folder: Path, own: str, peer: str) -> TlsFiles:
    return TlsFiles(folder / f"{peer}.pem", folder / f"{own}.pem", folder / f"{own}.key")


def peer(address: ChannelAddress, helper_pk: bytes) -> Finding:
    return by_name(HelperPeer(address, helper_pk))["peer"]


def test_helper_that_answers_by_its_pinned_certificate_is_well(
    helper: tuple[World, ChannelAddress],
) -> None:
    world, address = helper
    findings = list(examine(HelperPeer(address, world.helper_key.public_bytes)))
    assert [one.verdict for one in findings] == [OK, OK], findings
    other = peer(address, signing_key("another").public_bytes)
    assert (other.verdict, "compare helper_pk" in (other.do or "")) == (BROKEN, True)


def test_peer_that_is_away_is_told_from_one_with_another_certificate(
    helper: tuple[World, ChannelAddress], tmp_path: Path
) -> None:
    world, address = helper
    pinned = world.helper_key.public_bytes
    away = replace(address, host_port=f"127.0.0.1:{free_ports(1)[0]}")
    assert "start the Helper" in (peer(away, pinned).do or "")
    (tmp_path / "strange").mkdir()
    make_certificate(tmp_path / "strange", "helper", ["127.0.0.1"], None)
    assert address.tls is not None
    strange = replace(address.tls, ca_file=tmp_path / "strange" / "helper.pem")
    assert "certificates" in (peer(replace(address, tls=strange), pinned).do or "")


def test_certificate_is_read_with_its_names_key_and_end(tmp_path: Path) -> None:
    make_certificate(tmp_path, "leader", ["leader.example.org", "192.0.2.7"], None)
    make_certificate(tmp_path, "helper", ["helper.example.org"], None)
    good = channel(_files(tmp_path, "leader", "helper"))["certificate"]
    assert (good.verdict, "leader.example.org, 192.0.2.7" in good.found) == (OK, True)
    mixed = replace(_files(tmp_path, "leader", "helper"), key_file=tmp_path / "helper.key")
    assert "is not the key of" in channel(mixed)["certificate"].found
    (tmp_path / "leader.key").chmod(0o640)
    assert channel(_files(tmp_path, "leader", "helper"))["certificate"].verdict is BROKEN


def channel(files: TlsFiles) -> dict[str, Finding]:
    return by_name(*tls_checks("helper", files))


@pytest.mark.parametrize(
    ("days", "later", "verdict", "words"),
    [
        ((300,), 0, OK, "1 of 1"),
        ((300, 10), 0, ABSENT, "first of 2 to end"),
        ((300, 10), 11, ABSENT, "over"),
        ((12, 10), 13, BROKEN, "all are over"),
    ],
)
def test_certificate_that_ends_first_of_those_accepted_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    days: tuple[int, ...],
    later: int,
    verdict: str,
    words: str,
) -> None:
    """One `ca_file` has the other party's certificate and its next one, in any order."""
    make_certificate(tmp_path, "leader", ["leader.example.org"], None)
    accepted = ""
    for number, left in enumerate(days):
        monkeypatch.setattr(party_card, "VALID_DAYS", left)
        (tmp_path / str(number)).mkdir()
        accepted += make_certificate(tmp_path / str(number), "helper", ["h.example.org"], None)
    (tmp_path / "helper.pem").write_text(accepted)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + later * 86_400)
    finding = channel(_files(tmp_path, "leader", "helper"))["accepted"]
    assert (finding.verdict, words in finding.found) == (verdict, True), finding
    ends = [one.not_valid_after_utc for one in load_pem_x509_certificates(accepted.encode())]
    assert f"until {min(ends):%Y-%m-%d}" in finding.found


def test_copy_of_an_upgrade_is_named_with_its_age_and_goes_after_a_month(tmp_path: Path) -> None:
    none = copies(tmp_path)
    assert (none.verdict, "no copy" in none.found) == (OK, True)
    copy = tmp_path / "leader.sqlite.schema-1"
    copy.write_bytes(bytes(3 << 20))
    (tmp_path / "leader.sqlite.schema-2.new").touch()
    assert copies(tmp_path).verdict is OK
    assert copies(tmp_path).found.endswith("leader.sqlite.schema-1, 3 MiB, 0 days old")
    ago_s = time.time() - 31 * 86_400
    os.utime(copy, (ago_s, ago_s))
    assert (copies(tmp_path).verdict, copies(tmp_path).do) == (
        ABSENT,
        f"rm {copy}: nobody goes back so far",
    )


def test_broker_that_is_away_is_named_once_for_each_check() -> None:
    settings = KafkaSettings((f"127.0.0.1:{free_ports(1)[0]}",), timeout_s=0.5)
    findings = list(examine(*log_checks(settings, KafkaRole.LEADER)))
    assert {one.name: one.verdict for one in findings} == {
        "transport": BROKEN, "log's clock": ABSENT, "rights": BROKEN, "retention": BROKEN,
    }  # fmt: skip


def test_each_witness_of_a_helper_is_asked(tmp_path: Path) -> None:
    (tmp_path / "keys-helper").mkdir()
    write_signing_key(tmp_path / "keys-helper" / "identity.key", HELPER_KEYS[0])
    stand = ProcessStand(tmp_path / "w")
    one = WitnessSettings(WitnessProcess(stand.address, WITNESS_KEY.public_bytes), 2.0)
    log = EmbeddedSettings(tmp_path / "log")

    def witness(**named: Any) -> Finding:
        config = replace(helper_config(tmp_path, bytes(32)), **named)
        all_of_it = helper_findings(config, started_by_root=False)
        return next(finding for finding in all_of_it if finding.name == "witness")

    extend(stand.open(), 2)
    assert witness().verdict is ABSENT
    assert (
        witness(witnesses=(one,)).verdict,
        witness(witnesses=(one,), transport=log).verdict,
    ) == (
        ABSENT,
        OK,
    )
    both = witness(witnesses=(one, one))
    assert (both.verdict, both.found) == (OK, "process, process: 2, 2 links")
    stand.end()
    assert witness(witnesses=(one, one)).verdict is BROKEN


@pytest.mark.slow
def test_command_says_what_a_new_party_lacks_and_its_exit_code_says_so() -> None:
    with fleet_folder() as folder:
        made = make_trial(folder / "t", TrialSettings(hosts=20))
        words = ["helper", "doctor", "--config", str(made.helper_toml), "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "pointillist", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        answer = json.loads(done.stdout)
        verdicts = {one["name"]: one["verdict"] for one in answer["findings"]}
        assert answer["verdict"] == "broken"
        assert (verdicts["keys"], verdicts["operators"]) == ("ok", "ok")
        assert (verdicts["tasks"], verdicts["roster"]) == ("broken", "broken")
        assert "put right: tasks, roster" in json.loads(done.stderr.splitlines()[-1])["error"]


class Odd:
    """Checks in an order that no alphabet has; one looks at nothing, two fail themselves."""

    @check("odd", "second")
    def second(self) -> Result:
        raise ValueError("out of\x1b luck")

    @check("odd", "nothing")
    def nothing(self) -> None:
        return None

    @check("odd", "first")
    def first(self) -> Result:
        raise LookupError

    def no_check(self) -> Result:
        raise AssertionError


def test_check_that_fails_itself_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    findings = list(examine(Odd(), failures=[LookupError]))
    assert [(one.name, one.verdict, one.do) for one in findings] == [
        ("second", BROKEN, "look at second and try again"),
        ("first", BROKEN, "look at first and try again"),
    ]
    assert "\x1b" not in findings[0].found
    assert findings[1].found == "LookupError"
    unforeseen = next(one for one in examine(Odd()) if one.name == "first")
    assert (unforeseen.verdict, unforeseen.do) == (BROKEN, "report that file")
    assert f"LookupError; details: {tmp_path}" in unforeseen.found


def test_what_another_user_may_read_says_whose_it_is() -> None:
    def look() -> Result:
        raise PermissionError(13, "Permission denied", "/closed/key")

    (finding,) = examine(Check("agent", "key", look))
    whose = "give the command as the user to whom /closed belongs"
    assert (finding.verdict, finding.do) == (BROKEN, whose)
    assert finding.found == "/closed/key cannot be read by this user"
