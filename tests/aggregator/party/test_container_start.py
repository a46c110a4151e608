"""What containers do before their role starts, and the files of compose."""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import stat
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from aggregator.party.config import load_helper_config, load_leader_config
from collectors.devices.device_port import gpu_class
from edge_agent.config import load_config
from transport.process.privileges import AGENT_USER, ensure_users
from wire.catalogue import Catalogue

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
KEY = "00112233445566778899aabbccddeeff" * 2


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DEPLOY / "images" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


start, agent_seccomp = script("start"), script("agent_seccomp")


def given_secrets(folder: Path, **contents: str) -> Path:
    """A mounted secret: each name is a link into a folder whose name begins with two dots."""
    hidden = folder / "..2026_01_01"
    hidden.mkdir(parents=True)
    for name, content in contents.items():
        (hidden / name).write_text(content)
        (hidden / name).chmod(0o440)
        (folder / name).symlink_to(f"{hidden.name}/{name}")
    return folder


def test_secrets_are_copied_as_the_roles_insist_on(tmp_path: Path) -> None:
    given = given_secrets(tmp_path / "given", password="one", key="two")
    own = tmp_path / "own"
    for _start in range(2):
        copies = start.own_secrets(given, own, os.getuid(), os.getgid())
        assert [path.name for path in copies] == ["key", "password"]
    for path in copies:
        status = path.lstat()
        assert stat.S_ISREG(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
    assert (own / "key").read_text() == "two"
    assert start.own_secrets(tmp_path / "absent", own, 0, 0) == []


def test_identity_is_placed_and_never_replaced_by_another(tmp_path: Path) -> None:
    secrets, keys = tmp_path / "secrets", tmp_path / "keys"
    secrets.mkdir()
    with pytest.raises(start.StartRefused, match=r"expected identity\.key"):
        start.place_identity(secrets, keys)
    (secrets / "identity.key").write_text("one")
    for _start in range(2):
        start.place_identity(secrets, keys)
    assert stat.S_IMODE((keys / "identity.key").stat().st_mode) == 0o600
    (secrets / "identity.key").write_text("another")
    with pytest.raises(start.StartRefused, match="got another"):
        start.place_identity(secrets, keys)
    assert (keys / "identity.key").read_text() == "one"


def test_party_finds_the_folder_that_people_copy_signed_files_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[str]] = []
    signed = tmp_path / "volume" / "signed"
    monkeypatch.setattr(start, "OWN_SECRETS", tmp_path / "own")
    monkeypatch.setattr(os, "execv", lambda _program, words: begun.append(words))
    words = ["party", "--secrets", str(tmp_path / "none"), "--signed", str(signed), "--", "true"]
    monkeypatch.setattr(sys, "argv", ["pointillist-start", *words])
    for _start in range(2):
        start.main()
        assert signed.is_dir()
    assert begun == [["true"]] * 2


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "other"),
    ],
)
def test_gpus_are_named_as_the_catalogue_does(name: str, known: str) -> None:
    assert gpu_class(name, Catalogue.load().classes("gpu_model")) == known


def test_agent_asks_once_with_the_token_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    for name in ("TOKENS", "STATE", "CONFIG"):
        monkeypatch.setattr(start, name, tmp_path / name.lower())
    monkeypatch.setattr(start, "_run", lambda *command: asked.append(command))
    start.TOKENS.mkdir()
    with pytest.raises(start.StartRefused, match=r"node-1\.token"):
        start.prepare_agent("node-1")
    (start.TOKENS / "node-1.token").touch()
    asked.clear()
    for _start in range(2):
        start.prepare_agent("node-1")
    joins = [command for command in asked if command[1:3] == ("agent", "join")]
    assert len(joins) == 1
    assert str(start.TOKENS / "node-1.token") in joins[0]


@pytest.mark.root
def test_what_an_agent_s_start_copies_is_written_where_root_alone_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes' folder in memory is open to all, and outlives a restart of the container."""
    ensure_users()
    agent, run = pwd.getpwnam(AGENT_USER).pw_uid, tmp_path / "run"
    for name in ("TOKENS", "STATE", "CONFIG"):
        monkeypatch.setattr(start, name, tmp_path / name.lower())
    monkeypatch.setattr(start, "OWN_SECRETS", run / "secrets")
    start.TOKENS.mkdir()
    (start.TOKENS / "node-1.token").touch()
    secrets = given_secrets(tmp_path / "given", password="one")
    run.mkdir()
    os.chown(run, agent, -1)
    run.chmod(0o777)
    done: list[tuple[str, ...]] = []

    def ran(*command: str) -> None:
        assert (run.stat().st_uid, stat.S_IMODE(run.stat().st_mode)) == (0, 0o755)
        done.append(command)

    monkeypatch.setattr(start, "_run", ran)
    monkeypatch.setattr(os, "execv", lambda _program, words: ran(*words))
    words = ["agent", "--node", "node-1", "--secrets", str(secrets), "--", "true"]
    for _start in range(2):
        monkeypatch.setattr(sys, "argv", ["pointillist-start", *words])
        start.main()
    assert [command[-1] for command in done].count("true") == 2
    assert (run / "secrets").stat().st_uid == (run / "secrets" / "password").stat().st_uid == agent


def test_seccomp_profile_allows_ebpf_to_its_own_capabilities_alone() -> None:
    old = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "syscalls": [
            {"names": ["bpf", "mount"], "action": "ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["perf_event_open"], "action": "ERRNO"},
        ],
    }
    rules = agent_seccomp.with_ebpf(old)["syscalls"]
    allowed = {name: rule["includes"] for rule in rules for name in rule["names"]}
    assert allowed == {
        "mount": {"caps": ["CAP_SYS_ADMIN"]},
        "bpf": {"caps": ["CAP_BPF"]},
        "perf_event_open": {"caps": ["CAP_PERFMON"]},
    }


def compose_file(name: str) -> str:
    """A configuration of compose.yaml, with keys in place of the words that stand for them."""
    text = (DEPLOY / "compose" / name).read_text(encoding="utf-8")
    text = text.replace('"HELPER"', json.dumps("11" * 32))
    return text.replace('"LEADER"', json.dumps(KEY))


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("agent.toml", load_config),
        ("leader.toml", load_leader_config),
        ("helper.toml", load_helper_config),
    ],
)
def test_configurations_of_compose_are_read_by_their_programs(
    name: str, load: Any, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(compose_file(name))
    load(path)


def test_ports_of_compose_are_those_that_prometheus_scrapes() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = {
        job["job_name"]: job["static_configs"][0]["targets"][0] for job in scraped["scrape_configs"]
    }
    for role, port in (("leader", 9465), ("helper", 9466), ("agent", 9469)):
        assert f"port = {port}" in compose_file(f"{role}.toml")
        assert targets[f"pointillist-{role}"] == f"127.0.0.1:{port}"


def test_placing_that_was_cut_off_is_done_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets, keys = tmp_path / "secrets", tmp_path / "keys"
    secrets.mkdir()
    (secrets / "identity.key").write_bytes(b"the whole key")

    def full(_handle: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as cut:
        cut.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space left"):
            start.place_identity(secrets, keys)
    assert not (keys / "identity.key").exists()
    start.place_identity(secrets, keys)
    placed = keys / "identity.key"
    assert placed.read_bytes() == b"the whole key"
    assert stat.S_IMODE(placed.stat().st_mode) == 0o600
