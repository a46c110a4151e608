"""docs/life-cycle.md, run from its first command to its last on one fleet, weeks in seconds."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Final

import pytest

from edge_agent.config import AgentConfig, load_config
from edge_agent.ledger.ledger_records import HostEntry
from edge_agent.open_agent import open_ledger, read_ledger, this_machine
from pointillist.cli.output import CommandError
from pointillist.cli.root import command
from privacy.budget import WEEK_S, Entry
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from tests.enrolment_kit import operator_key, operator_lines, request, token
from transport.embedded.embedded import EmbeddedLog
from transport.files.keyfiles import (
    HpkeKeyFile,
    KeyFileRefused,
    load_signing_key,
    read_host_key,
    write_hpke_key,
    write_signing_key,
)
from transport.interface import create_topics
from wire import labels
from wire.envelope import Kind, Signed, wrap
from wire.epoch import KeyAnnouncement
from wire.fields import host_id
from wire.roster import Roster
from wire.topics import KEYS, ROSTERS, TASKS, announcement_key, roster_key, task_key

PAGE: Final = Path(__file__).parents[2] / "docs" / "life-cycle.md"
OPERATORS: Final = ("acme", "umbra", "zeta")
FOREVER_S: Final = 60 * WEEK_S
CODE: Final = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SKIPPED: Final = "systemctl"
"""What a test does not do to its machine."""

PLAN: Final = """
format = 1
name = "a fleet"
hosts = 20
n_min = 16
t = 8
[[task]]
series = "minute"
window_s = 60
lateness_s = 30
retention_s = 21600
weights = { host_cpu = 1 }
"""


def blocks() -> dict[str, list[list[str]]]:
    """The commands of each section of the page, by its title."""
    found: dict[str, list[list[str]]] = {}
    for part in re.split(r"^##+ ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        found[title] = [text.strip().splitlines() for text in CODE.findall(body)]
    return found


def matching(word: str) -> list[str]:
    """What a shell makes of a word with a star."""
    path = Path(word)
    return sorted(map(str, path.parent.glob(path.name))) if "*" in word else [word]


class PlayedFleet:
    """A fleet of six hosts that have never reported, and this machine, not enrolled yet."""

    def __init__(self, folder: Path, begin: int) -> None:
        self.folder, self.now_s = folder, begin
        self.ran: list[str] = []
        self.blocks = blocks()
        self.leader, self.helper = SigningKey.generate(), SigningKey.generate()
        for name in ("signed", "joins", "helper", "other", "keys"):
            (folder / name).mkdir(mode=0o700)
        for name, key in (("leader", self.leader), ("helper", self.helper)):
            (folder / "keys" / name).mkdir(mode=0o700)
            write_signing_key(folder / "keys" / name / "identity.key", key)
        write_signing_key(folder / "acme.key", operator_key("acme"))
        self.env = {
            "F": str(folder),
            "LEADER": self.leader.public_bytes.hex(),
            "HELPER": self.helper.public_bytes.hex(),
        }
        self._configure()
        self._announce()
        self._begin()

    def _configure(self) -> None:
        pinned = "".join(operator_lines(name) for name in OPERATORS)
        (self.folder / "plan.toml").write_text(PLAN)
        (self.folder / "plans.toml").write_text(
            '[[plan]]\nname = "fleet"\n'
            "series = { minute = { cohort = 0, weight_millionths = 1000000 } }\n" + pinned
        )
        (self.folder / "helper.toml").write_text(self.helper_toml("helper", "keys/helper") + pinned)
        (self.folder / "agent.toml").write_text(
            f'[host]\nkey_file = "{self.folder}/keys/host/identity.key"\n'
            f'state_dir = "{self.folder}/state"\n[transport]\nfolder = "{self.folder}/log"\n'
            f'[trust]\nleaders = ["{self.env["LEADER"]}"]\nhelpers = ["{self.env["HELPER"]}"]\n'
            "[bounds]\nn_min_at_least = 16\n"
        )

    def helper_toml(self, state: str, keys: str) -> str:
        return (
            f'[helper]\nkey_dir = "{self.folder}/{keys}"\nstate_dir = "{self.folder}/{state}"\n'
            f'signed_dir = "{self.folder}/signed"\nfence_file = "{self.folder}/{state}/fence"\n'
            f'leader_pk = "{self.env["LEADER"]}"\n[listen]\nsocket = "{self.folder}/socket"\n'
        )

    def _announce(self) -> None:
        """Sealing keys that outlast the test: a Leader that runs makes one a day."""
        with self.log() as log:
            create_topics(log)
        pair, until_s = HpkeKeyPair.generate(), self.now_s + FOREVER_S
        write_hpke_key(
            self.folder / "keys/leader/long.hpke", HpkeKeyFile(pair, self.now_s, until_s)
        )
        draft = KeyAnnouncement(self.leader.public_bytes, pair.public_bytes, self.now_s, until_s)
        signed = KeyAnnouncement(
            draft.party_pk, draft.hpke_pk, draft.not_before, draft.not_after,
            self.leader.sign(draft.unsigned()),
        )  # fmt: skip
        name = announcement_key(signed.party_pk, signed.key_id)
        self.publish(KEYS, name, Kind.KEY_ANNOUNCEMENT, signed.encode())

    def _begin(self) -> None:
        """The fleet as docs/first-fleet.md leaves it, by the same commands."""
        leader = SigningKey.from_seed_bytes(self.leader.seed_bytes())
        for number in range(6):
            by = token(number, OPERATORS[number % 3], leader=leader, not_after=2**37)
            (self.folder / "joins" / f"{number}.join").write_bytes(request(number, by=by).encode())
        key = "--key $F/keys/leader/identity.key"
        asked = "--plans $F/plans.toml --requests $F/joins"
        told = f"--plan $F/plan.toml --leader $LEADER --helper $HELPER --start {self.now_s}"
        by_helper = "--config $F/helper.toml"
        self.run(
            [
                f"pointillist task build --series minute {told} --out $F/m.task",
                f"pointillist task sign $F/m.task {key}",
                f"pointillist helper countersign $F/m.task {by_helper}",
                f"pointillist leader roster build {asked} {key} --now --out $F/1.roster",
                f"pointillist helper countersign $F/1.roster --first {by_helper}",
                "cp $F/1.roster $F/m.task $F/signed",
            ]
        )
        task = (self.folder / "m.task").read_bytes()
        self.publish(TASKS, task_key("minute"), Kind.TASK, task)

    def log(self) -> EmbeddedLog:
        return EmbeddedLog(self.folder / "log")

    def publish(self, topic: str, key: bytes, kind: Kind, core: bytes) -> None:
        with self.log() as log:
            producer = log.producer()
            producer.send(topic, key, wrap(kind, core))
            producer.close()

    def play(self, title: str, number: int = 0) -> None:
        """Run one block of a section of the page."""
        lines = self.blocks[title][number]
        self.run(lines)
        self.ran += lines

    def run(self, lines: list[str]) -> None:
        for line in lines:
            if line == "# the week begins":
                self.now_s = (self.now_s // WEEK_S + 1) * WEEK_S + 60
            elif line.startswith("pointillist "):
                self._pointillist(line)
            elif not line.startswith(SKIPPED):
                subprocess.run(["bash", "-ec", line], env={**os.environ, **self.env}, check=True)

    def _pointillist(self, line: str) -> None:
        words = shlex.split(re.sub(r"\$(\w+)", lambda name: self.env[name[1]], line))[1:]
        target = None
        if ">" in words:
            target = Path(words.pop())
            words.pop()
        arguments = [word for pattern in words for word in matching(pattern)]
        if arguments[:2] == ["agent", "join"]:
            arguments += ["--wait-s", "0"]  # nobody answers in the meantime
        said = StringIO()
        with redirect_stdout(said):
            ended = command()(arguments, standalone_mode=False)
        assert not ended, line
        if target is not None:
            target.write_text(said.getvalue())

    def hand_on(self) -> Roster:
        """The page's own way; then what a running Leader does, and the newest is number one."""
        self.play("Hand a roster on")
        signed = (self.folder / "next.roster").read_bytes()
        self.publish(ROSTERS, roster_key(), Kind.ROSTER, signed)
        roster = opened(signed)
        (self.folder / "signed/2.roster").rename(self.folder / f"signed/v{roster.version}.roster")
        (self.folder / "next.roster").rename(self.folder / "1.roster")
        (self.folder / "next.vouchers").unlink(missing_ok=True)
        return roster

    def week_begins(self) -> None:
        self.run(["# the week begins"])

    @property
    def config(self) -> AgentConfig:
        return load_config(self.folder / "agent.toml")

    @property
    def me(self) -> bytes:
        return bytes(host_id(read_host_key(self.config.host.key_file).signing.public_bytes))

    def spend(self) -> Entry:
        """Have this host's agent spend a window."""
        start = self.now_s // 60 * 60 - 60
        spent = Entry("minute", start, start + 60, 1_000_000, 10_081)
        ledger = open_ledger(self.config, this_machine(self.config), self.now_s)
        ledger.commit_sealed([HostEntry(self.me, spent)], [], self.now_s)
        ledger.close()
        return spent

    def spent(self) -> list[tuple[bytes, Entry]]:
        view = read_ledger(self.config)
        return [(host.host_id, entry) for host in view.hosts for entry in host.entries]


def opened(signed: bytes) -> Roster:
    return Roster.decode_body(Signed.decode(signed, labels.ROSTER).body)


def ids(roster: Roster) -> set[str]:
    return {entry.host_id.hex() for entry in roster.entries}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedFleet:
    monkeypatch.setattr("pointillist.cli.agent_file.become_agent", lambda config: None)
    monkeypatch.setattr("pointillist.cli.keys_command._owner", lambda role: None)
    begin = int(time.time()) // WEEK_S * WEEK_S + 3600
    made: list[PlayedFleet] = []
    clock: Callable[[], float] = lambda: float(made[0].now_s if made else begin)  # noqa: E731
    monkeypatch.setattr(time, "time", clock)
    made.append(PlayedFleet(tmp_path, begin))
    return made[0]


def test_every_command_of_the_page_does_what_it_says(
    fleet: PlayedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened((fleet.folder / "1.roster").read_bytes())
    old, *_ = (entry.host_id.hex() for entry in first.entries if entry.operator == "acme")

    fleet.env["HOST"] = old
    fleet.play("A host leaves")
    fleet.play("A host leaves", 1)
    assert old not in ids(fleet.hand_on())
    fleet.week_begins()

    other = next(entry.host_id.hex() for entry in first.entries if entry.operator == "umbra")
    fleet.env["HOST"] = other
    fleet.play("A machine replaces another")
    found = ids(fleet.hand_on())
    assert (other in found, fleet.me.hex() in found) == (False, True)
    fleet.week_begins()
    spent = [fleet.spend()]

    before, fleet.env["HOST"] = fleet.me, fleet.me.hex()
    fleet.play("A host's key, or its GPUs, change")
    *_, rekey, _ = fleet.blocks["A host's key, or its GPUs, change"][1]
    with pytest.raises(CommandError, match="found none"):
        fleet.run([rekey])
    found = ids(fleet.hand_on())
    with pytest.raises(CommandError, match="one that starts"):
        fleet.run([rekey])
    fleet.play("A host's key, or its GPUs, change", 1)
    assert fleet.me != before
    assert (before.hex() in found, fleet.me.hex() in found) == (False, True)
    assert fleet.spent() == [(fleet.me, entry) for entry in spent]
    spent.append(fleet.spend())

    before, fleet.env["HOST"] = fleet.me, fleet.me.hex()
    for path in (fleet.config.host.key_file, fleet.config.fence_file):
        path.unlink()
    fleet.play("A machine is installed anew")
    assert fleet.me != before
    fleet.hand_on()
    fleet.play("A machine is installed anew", 1)
    assert fleet.spent() == [(fleet.me, entry) for entry in spent]

    run_as_a_copy(fleet, monkeypatch, spent)
    fleet.play("An operator's key")
    fleet.play("An operator's key", 1)
    assert not (fleet.folder / "acme.key").exists()
    fleet.play("Sealing keys")
    change_helper(fleet)
    fleet.play("A party moves")
    end(fleet)

    every = [line for section in fleet.blocks.values() for block in section for line in block]
    assert [line for line in every if line not in fleet.ran] == []


def run_as_a_copy(fleet: PlayedFleet, monkeypatch: pytest.MonkeyPatch, spent: list[Entry]) -> None:
    """The disk goes on in a machine with another id: a host more, and no host less."""
    for module in ("transport.files.keyfiles", "pointillist.cli.agent_membership"):
        monkeypatch.setattr(f"{module}.machine_id", lambda: "2f6b8c1de0a94753b1c2d3e4f5a69788")
    copied = fleet.me
    title = "A machine replaces another"
    vouch, _, join, build = fleet.blocks[title][0]
    with pytest.raises(KeyFileRefused, match="agent disown"):
        fleet.run([vouch.replace("new.token", "own.token"), join.replace("new.token", "own.token")])
    fleet.play("A machine is a copy")
    assert fleet.spent() == [(fleet.me, entry) for entry in spent]
    fleet.run([join.replace("new.token", "own.token"), build.replace(" --remove $HOST", "")])
    assert {copied.hex(), fleet.me.hex()} <= ids(fleet.hand_on())
    fleet.week_begins()


def change_helper(fleet: PlayedFleet) -> None:
    fleet.play("The Helper's identity")
    made = load_signing_key(fleet.folder / "new/helper/identity.key")
    fleet.env["NEW_HELPER"] = made.public_bytes.hex()
    pins = "".join(operator_lines(name) for name in OPERATORS)
    text = fleet.helper_toml("helper-2", "new/helper") + pins
    (fleet.folder / "helper-2.toml").write_text(text)
    fleet.play("The Helper's identity", 1)
    fleet.play("The Helper's identity", 2)
    signed = Signed.decode((fleet.folder / "next.roster").read_bytes(), labels.ROSTER)
    assert any(signed.sig_helper)
    (fleet.folder / "next.roster").unlink()


def end(fleet: PlayedFleet) -> None:
    fleet.play("A fleet ends")
    assert not opened((fleet.folder / "last.roster").read_bytes()).entries
    fleet.play("A fleet ends", 1)
    fleet.play("A fleet ends", 2)
    left = {path.name.partition(".lost-")[0] for path in (fleet.folder / "keys").rglob("*.*")}
    assert left == {fleet.config.fence_file.name}
    assert not (fleet.folder / "log").exists()
    assert fleet.config.ledger_file.exists()
