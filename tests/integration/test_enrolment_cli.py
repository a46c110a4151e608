"""Enrolment as people do it: operator, host, Leader's and Helper's tools, each by its command."""

from __future__ import annotations

import json
import shutil
import stat
import time
from pathlib import Path

import pytest

from pointillist.cli import main
from privacy.sealing import HpkeKeyPair
from tests.agent_live import surroundings
from tests.enrolment_kit import operator_lines
from transport.keyfiles import HpkeKeyFile, write_hpke_key, write_signing_key
from wire.envelope import Kind
from wire.topics import KEYS, announcement_key

HOUR_S = 3600


class Fleet:
    """Files of a Leader, a Helper, an operator and one host, all in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = surroundings(folder)
        world, now_s = self.made.world, int(time.time())
        self.leader, self.helper = world.leader, world.helper
        for name, party in (("leader", world.leader), ("helper", world.helper)):
            (folder / name).mkdir(mode=0o700)
            write_signing_key(folder / name / "identity.key", party.signing)
        pair = HpkeKeyPair.from_seed_bytes(world.leader.hpke.seed_bytes())
        days = HpkeKeyFile(pair, now_s - HOUR_S, now_s + HOUR_S)
        write_hpke_key(folder / "leader" / "today.hpke", days)
        key = world.leader.announce(now_s - HOUR_S, now_s + HOUR_S)
        name_of = announcement_key(key.party_pk, key.key_id)
        self.made.publish(KEYS, name_of, Kind.KEY_ANNOUNCEMENT, key.encode())
        self._write()

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
        (self.folder / "agent.toml").write_text(
            f'[host]\nkey_file = "{config.host.key_file}"\nstate_dir = "{config.host.state_dir}"\n'
            f'gpus = ["H100"]\n[transport]\nfolder = "{config.transport.folder}"\n'
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
    monkeypatch.setattr("pointillist.cli.agent._become_agent", lambda config: None)
    return Fleet(tmp_path)


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
