"""Enrolment as people do it: operator, host, Leader's and Helper's tools, each by its command."""

from __future__ import annotations

import json
import shutil
import stat
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pointillist.broker.local import RunningBroker
from pointillist.cli import main
from privacy.sealing import HpkeKeyPair
from tests.agent_live import surroundings
from tests.enrolment_kit import operator_lines
from tests.kafka_kit import KafkaSurroundings, fresh_prefix, plain_settings
from transport.factory import Side, TransportTable, open_transport
from transport.files.keyfiles import HpkeKeyFile, write_hpke_key, write_signing_key
from transport.interface import create_topics
from transport.kafka.kafka_frame import KafkaSettings
from wire.envelope import Kind
from wire.topics import ENTRIES, KEYS, ROSTERS, announcement_key, join_key

HOUR_S = 3600


class Fleet:
    """Files of a Leader, a Helper, an operator and one host, all in one folder.

    cluster     in place of an embedded log
    """

    def __init__(self, folder: Path, cluster: KafkaSettings | None = None) -> None:
        self.folder = folder
        self.made = surroundings(folder) if cluster is None else on_kafka(folder, cluster)
        world, now_s = self.made.world, int(time.time())
        self.leader, self.helper = world.leader, world.helper
        for name, party in (("leader", world.leader), ("helper", world.helper)):
            (folder / name).mkdir(mode=0o700)
            write_signing_key(folder / name / "identity.key", party.signing)
        pair = HpkeKeyPair.from_seed_bytes(world.leader.hpke.seed_bytes())
        days = HpkeKeyFile(pair, now_s - HOUR_S, now_s + HOUR_S)
        write_hpke_key(folder / "leader" / "today.hpke", days)
        self._announce(now_s)
        self._write()

    def _announce(self, now_s: int) -> None:
        key = self.leader.announce(now_s - HOUR_S, now_s + HOUR_S)
        name_of = announcement_key(key.party_pk, key.key_id)
        self.made.publish(KEYS, name_of, Kind.KEY_ANNOUNCEMENT, key.encode())

    def start_over(self) -> None:
        """Begin with a log that has the Leader's key and no roster."""
        shutil.rmtree(self.folder / "log")
        with self.made.log() as log:
            create_topics(log)
        self._announce(int(time.time()))

    def _write(self) -> None:
        (self.folder / "plans.toml").write_text(
            '[[plan]]\nname = "fleet"\n'
            "series = { minute = { cohort = 0, weight_millionths = 600000 } }\n"
        )
        keys = json.dumps(str(self.folder / "helper"))
        (self.folder / "helper.toml").write_text(
            f"[helper]\nkey_dir = {keys}\nstate_dir = {keys}\nsigned_dir = {keys}\n"
            f'fence_file = "{self.folder}/fence"\nleader_pk = "{self.leader.pk.hex()}"\n'
            f'[listen]\nsocket = "{self.folder}/socket"\n'
        )
        config = self.made.config
        transport = config.transport
        log = f'[transport]\nfolder = "{transport.folder}"\n'
        if transport.kafka is not None:
            log = f'[transport.kafka]\nbootstrap = ["{transport.kafka.bootstrap[0]}"]\n'
            log += f'prefix = "{transport.kafka.prefix}"\n'
        (self.folder / "leader.toml").write_text(log)
        (self.folder / "agent.toml").write_text(
            f'[host]\nkey_file = "{config.host.key_file}"\nstate_dir = "{config.host.state_dir}"\n'
            f'gpus = ["H100"]\n{log}'
            f'[trust]\nleaders = ["{self.leader.pk.hex()}"]\nhelpers = ["{self.helper.pk.hex()}"]\n'
        )

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def pin(self, *files: str, lines: str) -> None:
        for file in files:
            with (self.folder / file).open("a") as out:
                out.write(lines)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr("pointillist.cli.agent_file.become_agent", lambda config: None)
    return Fleet(tmp_path)


def on_kafka(folder: Path, cluster: KafkaSettings) -> KafkaSurroundings:
    """One host's files and a cluster with topics and no roster."""
    plain = surroundings(folder)
    config = replace(plain.config, transport=TransportTable(kafka=cluster))
    made = KafkaSurroundings(folder, plain.world, config, plain.task)
    with open_transport(cluster, Side.AGGREGATOR) as log:
        create_topics(log)
    made.wait_until_served()
    made.records(KEYS)  # the first group of a broker takes seconds to be formed
    return made


def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Run one command in this process."""
    monkeypatch.setattr("sys.argv", ["pointillist", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_operator_host_leader_and_helper_enrol_a_host(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        return call(capsys, monkeypatch, *arguments)

    path = fleet.path
    code, lines, _ = run("operator", "keygen", path("acme.key"), "--name", "acme")
    assert code == 0
    assert stat.S_IMODE(Path(path("acme.key")).stat().st_mode) == 0o600
    mine = ("--key", path("acme.key"), "--name", "acme", "--plan", "fleet")
    vouch = ("operator", "vouch", path("1.token"), *mine, "--leader", fleet.leader.pk.hex())
    assert run(*vouch)[0] == 0
    assert stat.S_IMODE(Path(path("1.token")).stat().st_mode) == 0o600
    code, _, err = run(*vouch)
    assert (code, "exists" in err) == (2, True)
    join = ("agent", "join", "-c", path("agent.toml"), "--token-file", path("1.token"), "--json")
    code, out, _ = run(*join, "--wait-s", "0")
    assert (code, json.loads(out)["answered"]) == (0, False)
    leader = ("--plans", path("plans.toml"), "--requests", path("joins"), "--key")
    leader_key = path("leader/identity.key")
    fleet.pin("plans.toml", lines=lines)
    code, out, _ = run(
        "leader", "roster", "fetch", *leader, leader_key, "--log", path("log"), "--json"
    )
    assert (code, json.loads(out)) == (0, {"fetched": 1})
    code, _, _ = run(
        "leader", "roster", "build", *leader, leader_key, "--now", "--out", path("1.roster")
    )
    assert code == 0
    sign = ("helper", "countersign", path("1.roster"), "--config", path("helper.toml"))
    code, _, err = run(*sign, "--first")
    assert (code, "whose key is pinned, got acme" in err) == (3, True)
    fleet.pin("helper.toml", lines=lines)
    code, _, err = run(*sign)
    assert (code, "fleet's first" in err) == (3, True)
    code, out, err = run(*sign, "--first", "--json")
    assert (code, json.loads(out)["signed_by_helper"]) == (0, True)
    assert err.startswith("hosts_added 1, hosts_removed 0")
    shutil.copy(path("1.roster"), path("helper"))
    assert run(*sign, "--first")[0] == 0, "the same roster again"
    options = ("--key", path("acme.key"), "--leader", fleet.leader.pk.hex())
    code, _, err = run("helper", "countersign", path("1.roster"), *options)
    assert (code, "helper.toml pins" in err) == (2, True)


def enrol_by_log(
    fleet: Fleet,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    each_step: bool = True,
) -> None:
    """Enrol a host by its log, and hold what join says against what is so, at each step or last."""
    path, leader_key = fleet.path, fleet.path("leader/identity.key")

    def run(*arguments: str) -> tuple[int, str, str]:
        return call(capsys, monkeypatch, *arguments)

    def asked(*options: str) -> tuple[dict[str, Any], str]:
        token = ("--token-file", path("1.token"), "--wait-s", "1", *options)
        code, out, err = run("agent", "join", "-c", path("agent.toml"), *token)
        assert code == 0, err
        return (json.loads(out) if options else {}), err

    _, lines, _ = run("operator", "keygen", path("acme.key"), "--name", "acme")
    fleet.pin("plans.toml", lines=lines)
    fleet.pin("helper.toml", lines=lines)
    vouch = ("--key", path("acme.key"), "--name", "acme", "--plan", "fleet", "--leader")
    run("operator", "vouch", path("1.token"), *vouch, fleet.leader.pk.hex())
    said, _ = asked("--json")
    assert (said["answered"], said["enrolled"]) == (False, False)
    build = ("leader", "roster", "build", "--plans", path("plans.toml"), "--now", "--key",
             leader_key)  # fmt: skip
    requests = ("--requests", path("joins"), "--log", path("leader.toml"))
    assert run(*build, *requests, "--out", path("1.roster"))[0] == 0
    helper = ("--config", path("helper.toml"))
    (entry,) = (fleet.folder / "joins").glob("*.entry")
    assert run("helper", "countersign", str(entry), *helper)[0] == 0
    key = join_key(fleet.made.world.identities[0].signing_key.public_bytes)
    fleet.made.publish(ENTRIES, key, Kind.ENTRY_ANSWER, entry.read_bytes())
    if each_step:
        said, _ = asked("--json")
        assert (said["answered"], said["enrolled"]) == (True, False)
        assert "effective_from" not in said
        assert "is not on the log so far" in asked()[1]
        unsigned = Path(path("1.roster")).read_bytes()
        fleet.made.publish(ROSTERS, b"1", Kind.ROSTER, unsigned)
        assert not asked("--json")[0]["enrolled"], "the Leader's word alone"
    assert run("helper", "countersign", path("1.roster"), *helper, "--first")[0] == 0
    fleet.made.publish(ROSTERS, b"1", Kind.ROSTER, Path(path("1.roster")).read_bytes())
    said, _ = asked("--json")
    assert (said["enrolled"], said["newest_roster"], said["series"]) == (True, 1, ["minute"])


def test_join_says_that_a_host_is_enrolled_once_a_signed_roster_has_it(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer alone enrols nobody: its roster may never be signed, and a later one may differ."""
    fleet.start_over()
    enrol_by_log(fleet, capsys, monkeypatch)


@pytest.mark.release
@pytest.mark.kafka
def test_host_is_enrolled_over_a_cluster_by_the_same_commands(
    broker: RunningBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pointillist.cli.agent_file.become_agent", lambda config: None)
    fleet = Fleet(tmp_path, plain_settings(broker, fresh_prefix()))
    enrol_by_log(fleet, capsys, monkeypatch, each_step=False)


def test_log_that_is_not_there_is_an_error_and_is_not_made(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--log kafka` made an empty log of that name, and said that nobody asked."""
    monkeypatch.chdir(fleet.folder)
    code, _, err = call(
        capsys, monkeypatch, "leader", "roster", "fetch", "--plans", fleet.path("plans.toml"),
        "--requests", fleet.path("joins"), "--key", fleet.path("leader/identity.key"),
        "--log", "kafka",
    )  # fmt: skip
    assert (code, "kafka: expected the folder of a log, or leader.toml" in err) == (2, True)
    assert not (fleet.folder / "kafka").exists()


def test_roster_whose_operator_is_pinned_by_another_key_is_not_signed(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the Leader is told is of no use where the Helper pins the operator's own key."""
    path = fleet.path
    _, lines, _ = call(
        capsys, monkeypatch, "operator", "keygen", path("forged.key"), "--name", "acme"
    )
    fleet.pin("plans.toml", lines=lines)
    fleet.pin("helper.toml", lines=operator_lines("acme"))
    for command in (
        ("operator", "vouch", path("1.token"), "--key", path("forged.key"), "--name", "acme",
         "--plan", "fleet", "--leader", fleet.leader.pk.hex()),
        ("agent", "join", "-c", path("agent.toml"), "--token-file", path("1.token"),
         "--wait-s", "0"),
        ("leader", "roster", "build", "--plans", path("plans.toml"), "--requests", path("joins"),
         "--log", path("log"), "--key", path("leader/identity.key"), "--now",
         "--out", path("1.roster")),
    ):  # fmt: skip
        assert call(capsys, monkeypatch, *command)[0] == 0
    sign = ("helper", "countersign", path("1.roster"), "--config", path("helper.toml"))
    code, _, err = call(capsys, monkeypatch, *sign, "--first")
    assert (code, "signed by the key of acme" in err) == (3, True)
