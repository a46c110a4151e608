"""A crash while a key is written or destroyed leaves nothing that stops a start, and no seed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aggregator.party.key_ring import KeyRing
from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from transport.files.keyfiles import (
    HpkeKeyFile,
    destroy_key,
    load_signing_key,
    sweep_leftovers,
    write_hpke_key,
    write_signing_key,
)


def test_destroying_killed_half_way_leaves_no_key_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "2026-01-01.hpke"
    write_hpke_key(path, HpkeKeyFile(HpkeKeyPair.generate(), 0, 86_400))
    monkeypatch.setattr(Path, "unlink", lambda _self, **_options: os._exit(0))
    child = os.fork()
    if child == 0:
        destroy_key(path)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    monkeypatch.undo()
    assert list(tmp_path.glob("*.hpke")) == []
    (left,) = tmp_path.iterdir()
    assert set(left.read_bytes()) == {0}
    assert sweep_leftovers(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_destroying_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    """Root destroys keys in folders of roles, who may put links there."""
    other = tmp_path / "other"
    other.write_text("not theirs")
    link = tmp_path / "2026-01-01.hpke"
    link.symlink_to(other)
    destroy_key(link)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    assert other.read_text() == "not theirs"


def test_sweep_wipes_a_half_written_key_and_nothing_else(tmp_path: Path) -> None:
    key = SigningKey.generate()
    write_signing_key(tmp_path / "identity.key", key)
    half = tmp_path / ".identity.key.0123456789ab"
    half.write_text("pointillist-key 1\nkind signing\nseed " + key.seed_bytes().hex())
    twin = tmp_path / ".identity.key.ba9876543210"
    twin.hardlink_to(tmp_path / "identity.key")  # killed between link and unlink
    (tmp_path / ".other").write_text("kept")
    assert sweep_leftovers(tmp_path) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other", "identity.key"]
    loaded = load_signing_key(tmp_path / "identity.key")
    assert loaded.public_bytes == key.public_bytes


def test_writing_killed_half_way_leaves_what_the_sweep_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "hardlink_to", lambda _self, _target: os._exit(0))
    child = os.fork()
    if child == 0:
        write_signing_key(tmp_path / "identity.key", SigningKey.generate())
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 1
    assert sweep_leftovers(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []


def test_key_ring_starts_after_a_crash_and_wipes_what_it_left(tmp_path: Path) -> None:
    write_signing_key(tmp_path / "identity.key", SigningKey.generate())
    KeyRing(tmp_path).rotate(0.0, 3600)
    (tmp_path / ".1970-01-01.hpke.0123456789ab").write_bytes(bytes(64))
    assert KeyRing(tmp_path).rotate(0.0, 3600) is False
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
