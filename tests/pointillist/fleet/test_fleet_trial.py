"""A trial's folder: keys where they belong, configurations that load, what it says of itself."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from aggregator.party.config import load_helper_config, load_leader_config
from edge_agent.config import load_config
from edge_agent.open_agent import LIVE_DOMAIN
from pointillist.cli import main
from pointillist.cli.agent_file import log_hint
from pointillist.cli.agent_run import _domain_of
from pointillist.fleet.party_files import FolderUnusable, lock_folder
from pointillist.fleet.trial import TrialFolders, TrialSettings, make_trial, read_trial
from pointillist.fleet.trial_run import (
    TrialFailed,
    TrialOver,
    TrialRun,
    TrialStep,
    _call,
    trial_steps,
)
from pointillist.plan_file import load_plan
from pointillist.play.export import load_export_config
from pointillist.play.processes import Family
from tests.fleet_kit import fleet_folder
from transport.files.keyfiles import load_signing_key
from transport.files.private_files import read_token
from wire.join import JoinRequest
from wire.task import DEMO_DOMAIN

HOSTS = 23


@pytest.fixture(scope="module")
def trial() -> Iterator[TrialFolders]:
    with fleet_folder() as folder:
        yield make_trial(folder / "t", TrialSettings(hosts=HOSTS))


def _public(path: Path) -> bytes:
    return load_signing_key(path, owner=path.stat().st_uid).public_bytes


def test_secrets_of_a_trial_are_their_owners_alone(trial: TrialFolders) -> None:
    secrets = [
        trial.leader_key,
        trial.helper_key,
        trial.operator / "mine.key",
        trial.token("host-1"),
        trial.host("host-1") / "keys" / "host" / "identity.key",
        trial.simulated / "identities" / "hosts.keys",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in secrets[:3]} == {0o700}
    others = {path for path in trial.base.rglob("*") if path.is_file()} - set(secrets)
    seeds = [path.read_text(encoding="utf-8").split("seed ")[1][:64] for path in secrets[:3]]
    text = b"".join(path.read_bytes() for path in others).decode(errors="replace")
    assert not any(seed in text for seed in seeds)


def test_parties_of_a_trial_pin_each_other(trial: TrialFolders) -> None:
    leader, helper = load_leader_config(trial.leader_toml), load_helper_config(trial.helper_toml)
    agent = load_config(trial.agent_toml("host-1"), {})
    leader_pk, helper_pk = _public(trial.leader_key), _public(trial.helper_key)
    assert (leader.helper_pk, helper.leader_pk) == (helper_pk, leader_pk)
    assert [agent.trust.leaders, agent.trust.helpers] == [{leader_pk}, {helper_pk}]
    assert leader.helper is not None
    assert leader.helper.socket == helper.address.socket == trial.socket
    assert leader.transport == agent.transport.settings
    assert not leader.state_dir.is_relative_to(trial.helper)
    assert not helper.fence_file.is_relative_to(helper.state_dir)


def test_hosts_of_a_trial_are_vouched_for_by_pinned_operators_within_t(trial: TrialFolders) -> None:
    pinned = load_helper_config(trial.helper_toml).operators
    token = read_token(trial.token("host-1"))
    asked = [JoinRequest.decode(path.read_bytes()) for path in trial.joins.glob("*.join")]
    assert len(asked) == HOSTS - 1
    operators = [request.voucher.operator for request in asked]
    assert {token.voucher.operator, *operators} <= set(pinned)
    assert _public(trial.operator / "mine.key") in pinned["mine"]
    plan = load_plan(trial.plan)
    assert max(operators.count(name) for name in operators) <= plan.t
    assert (plan.hosts, plan.n_min) == (HOSTS, TrialSettings(hosts=HOSTS).n_min)
    assert load_config(trial.agent_toml("host-1"), {}).bounds.n_min_at_least == plan.n_min


def test_a_trial_is_not_taken_for_a_fleet(trial: TrialFolders) -> None:
    """Its tasks are of the domain demo, its simulated hosts' names say so, and so does its text."""
    assert load_export_config(trial.simulated / "export.toml", "log").fleet.domain == DEMO_DOMAIN
    (build,) = (step for step in _steps(trial) if "build" in step.words and "task" in step.words)
    assert "--trial" in build.words
    agent = load_config(trial.agent_toml("host-1"), {})
    assert agent.trust.trial
    assert _domain_of(agent) == DEMO_DOMAIN
    real = load_config(trial.agent_toml("host-1"), {"trust": {"trial": False}})
    assert _domain_of(real) == LIVE_DOMAIN
    names = set(load_helper_config(trial.helper_toml).operators) - {"mine"}
    assert all(name.startswith("simulated-") for name in names)
    assert "22 of 23 hosts are simulated" in trial.settings.read_text(encoding="utf-8")


def _steps(trial: TrialFolders) -> list[TrialStep]:
    return list(trial_steps(trial, TrialSettings(hosts=HOSTS), ("aa" * 32, "bb" * 32), 0))


def test_steps_of_a_trial_are_those_of_a_fleet_in_order(trial: TrialFolders) -> None:
    order = [" ".join(step.words[1:3]) for step in _steps(trial) if step.words[0] != "cp"]
    assert order == [
        "task build", "task sign", "helper countersign", "helper run", "leader run", "agent join",
        "leader roster", "helper countersign", "helper countersign", "agent join", "agent run",
        f"simulate {trial.simulated / 'trial.toml'}",
    ]  # fmt: skip
    # No secret is on a command line: keys and tokens are named by their files.
    words = " ".join(word for step in _steps(trial) for word in step.words)
    assert _seed(trial.leader_key) not in words
    assert trial.token("host-1").read_text(encoding="utf-8").strip() not in words


def _seed(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("seed ")[1][:64]


def test_settings_of_a_trial_are_read_back(trial: TrialFolders) -> None:
    assert read_trial(trial.base) == TrialSettings(hosts=HOSTS)


BY_HAND = TrialSettings(hosts=HOSTS, by_hand=True)


@pytest.fixture(scope="module")
def by_hand() -> Iterator[TrialFolders]:
    with fleet_folder() as folder:
        yield make_trial(folder / "t", BY_HAND)


def test_host_that_is_left_to_its_owner_has_a_token_and_no_key(by_hand: TrialFolders) -> None:
    assert read_trial(by_hand.base) == BY_HAND
    there = {path.name for path in by_hand.host("host-1").iterdir()}
    assert there == {"agent.toml", "token"}
    agent = load_config(by_hand.agent_toml("host-1"), {})
    assert agent.host.key_file == Path("/etc/pointillist/keys/host/identity.key")
    assert agent.host.state_dir == Path("/var/lib/pointillist/agent/state")
    steps = list(trial_steps(by_hand, BY_HAND, ("aa" * 32, "bb" * 32), 0))
    assert not any(step.words[1] == "agent" for step in steps)
    (waits,) = (step for step in steps if step.requests)
    assert steps[steps.index(waits) + 1].words[1:4] == ("leader", "roster", "build")
    assert waits.words[1:4] == ("leader", "roster", "fetch")
    assert (waits.requests, waits.made) == (HOSTS, by_hand.roster)


def test_leader_waits_until_the_host_has_asked(
    by_hand: TrialFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []

    def fetch(_step: TrialStep) -> str:
        asked.append(len(list(by_hand.joins.glob("*.join"))))
        if len(asked) == 3:
            (by_hand.joins / "host-1.join").touch()
        return ""

    monkeypatch.setattr("pointillist.fleet.trial_run._call", fetch)
    monkeypatch.setattr("pointillist.fleet.trial_run._FETCH_S", 0.0)
    with Family(tmp_path) as family:
        TrialRun(by_hand.base, family, lambda _: None)._await_requests(
            TrialStep("leader", "waits", ("fetch",), requests=HOSTS)
        )
    assert asked == [HOSTS - 1] * 3


def test_host_by_hand_is_of_a_trial_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for more, said in (([], "expected root"), (["--party", "helper"], "expected no --party")):
        words = ["pointillist", "fleet", "init", str(tmp_path / "t"), "--host-by-hand", *more]
        monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "t").exists()


def test_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(FolderUnusable, match="new or empty folder, found files"):
        make_trial(tmp_path, TrialSettings())
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(FolderUnusable, match="No such file"):
        read_trial(tmp_path)


def test_folder_whose_name_is_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    with pytest.raises(FolderUnusable, match="107 bytes"):
        make_trial(deep, TrialSettings())
    assert not deep.exists()


@pytest.mark.root
def test_folder_that_roles_cannot_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(FolderUnusable, match="closed to others"):
        make_trial(tmp_path / "t", TrialSettings())


def test_step_that_fails_says_its_command_and_why() -> None:
    with pytest.raises(TrialFailed, match=r"pointillist task show /no[^\0]*ended with 2[^\0]*file"):
        _call(TrialStep("leader", "looks", ("pointillist", "task", "show", "/no")))
    with pytest.raises(TrialFailed, match="expected enrolled"):
        _call(TrialStep("host", "looks", ("echo", "no"), expects="enrolled"))


def test_trial_that_runs_already_is_left_alone(
    trial: TrialFolders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second run would begin each log of the first anew."""
    log = trial.logs / "leader.log"
    log.write_text("of the first")
    monkeypatch.setattr("sys.argv", ["pointillist", "fleet", "up", str(trial.base)])
    with lock_folder(trial.base, wait=False) as lock:
        assert stat.S_IMODE(os.fstat(lock.fileno()).st_mode) == 0o600
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 4
    assert "another `fleet up` does" in capsys.readouterr().err
    assert log.read_text() == "of the first"
    assert not trial.task.exists()


def test_trial_whose_windows_are_over_starts_nothing(
    trial: TrialFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(TrialRun, "_over_s", lambda _self: 0.0)
    trial.task.touch()
    try:
        with Family(tmp_path) as family, pytest.raises(TrialOver):
            TrialRun(trial.base, family, said.append).bring_up()
    finally:
        trial.task.unlink()
    assert said == []


def test_log_that_is_away_has_a_hint_of_its_kind(trial: TrialFolders, tmp_path: Path) -> None:
    assert "the Leader makes the log's folder" in log_hint(load_config(trial.agent_toml("host-1")))
    broker = tmp_path / "agent.toml"
    words = trial.agent_toml("host-1").read_text(encoding="utf-8")
    head, _, rest = words.partition("[transport]")
    rest = rest[rest.index("\n[") :]
    broker.write_text(f'{head}[transport.kafka]\nbootstrap = ["kafka:9093"]\n{rest}')
    assert "each broker" in log_hint(load_config(broker))


def test_trial_says_so_where_nothing_is_told_from_the_noise(
    trial: TrialFolders, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Family(tmp_path) as family:
        run = TrialRun(trial.base, family, lambda _: None)
        monkeypatch.setattr("pointillist.fleet.trial_run._call", lambda _: "\n")
        assert run.look().splitlines()[1].startswith("no share is told from the noise")
        monkeypatch.setattr("pointillist.fleet.trial_run._call", lambda _: "cell\nidle\n")
        assert run.look().splitlines()[1:] == ["cell", "idle"]
