"""Key files are read only when nobody else could have read or replaced them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from transport.files.keyfiles import (
    HostKey,
    HpkeKeyFile,
    KeyFileRefused,
    destroy_key,
    host_binding,
    load_host_key,
    load_hpke_key,
    load_signing_key,
    machine_id,
    mark_ledger,
    read_host_key,
    write_host_key,
    write_hpke_key,
    write_signing_key,
)


@pytest.fixture
def signing_path(tmp_path: Path) -> Path:
    path = tmp_path / "leader.key"
    write_signing_key(path, SigningKey.generate())
    return path


def test_signing_key_comes_back_and_is_private(tmp_path: Path) -> None:
    key = SigningKey.generate()
    before = os.umask(0)
    try:
        write_signing_key(tmp_path / "k", key)
    finally:
        os.umask(before)
    assert load_signing_key(tmp_path / "k").public_bytes == key.public_bytes
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["k"]


def test_hpke_key_comes_back_with_its_interval(tmp_path: Path) -> None:
    pair = HpkeKeyPair.generate()
    write_hpke_key(tmp_path / "k", HpkeKeyFile(pair, 86_400, 172_800))
    loaded = load_hpke_key(tmp_path / "k")
    assert loaded.pair.seed_bytes() == pair.seed_bytes()
    assert (loaded.not_before, loaded.not_after) == (86_400, 172_800)


def test_key_is_never_overwritten(signing_path: Path) -> None:
    before = signing_path.read_bytes()
    with pytest.raises(KeyFileRefused, match="never overwritten"):
        write_signing_key(signing_path, SigningKey.generate())
    assert signing_path.read_bytes() == before
    assert [p.name for p in signing_path.parent.iterdir()] == [signing_path.name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o700, 0o4600])
def test_load_refuses_another_mode(signing_path: Path, mode: int) -> None:
    signing_path.chmod(mode)
    with pytest.raises(KeyFileRefused, match=f"mode is {mode:04o}, expected 0600; chmod 600"):
        load_signing_key(signing_path)


def test_load_accepts_a_read_only_key(signing_path: Path) -> None:
    signing_path.chmod(0o400)
    load_signing_key(signing_path)


@pytest.mark.root
def test_load_refuses_the_file_of_another_user(signing_path: Path) -> None:
    os.chown(signing_path, 12345, -1)
    with pytest.raises(
        KeyFileRefused, match="belongs to #12345, expected root's; give the command as #12345"
    ):
        load_signing_key(signing_path)
    load_signing_key(signing_path, owner=12345)


def test_load_refuses_what_is_no_regular_file(signing_path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(signing_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(KeyFileRefused, match="cannot be opened"):
        load_signing_key(tmp_path / "link")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(KeyFileRefused, match="expected a regular file"):
            load_signing_key(path)


def test_load_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileRefused, match=r"nothing: no such key file; see `pointillist keys"):
        load_signing_key(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("pointillist-key 1", "pointillist-key 2", "not a key file of version 1"),
        ("kind signing", "kind hpke", "expected a key of kind signing"),
        ("seed ", "sead ", "line 3 is unknown"),
        ("kind signing\n", "kind signing\nkind signing\n", "line 3 is unknown or repeated"),
        ("seed ", "seed 00", "`seed` should be 32 bytes"),
        ("seed ", "seed x", "`seed` should be 32 bytes"),
        ("\nseed ", "\nkind ", "line 3 is unknown or repeated"),
    ],
)
def test_load_refuses_altered_contents_without_quoting_them(
    signing_path: Path, old: str, new: str, reason: str
) -> None:
    text = signing_path.read_text(encoding="utf-8")
    secret = text.split("seed ")[1].strip()
    assert old in text
    signing_path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(KeyFileRefused, match=reason) as refusal:
        load_signing_key(signing_path)
    assert secret not in str(refusal.value)


def test_load_refuses_a_huge_file_before_reading_it(signing_path: Path) -> None:
    signing_path.write_bytes(b"x" * 5000)
    with pytest.raises(KeyFileRefused, match="expected at most 4096 B, got 5000"):
        load_signing_key(signing_path)


@pytest.mark.parametrize("when", ["-1", "1e3", "x", "1" * 21, "1795804968000", "²", ""])
def test_load_refuses_an_interval_that_is_no_number(tmp_path: Path, when: str) -> None:
    path = tmp_path / "k"
    write_hpke_key(path, HpkeKeyFile(HpkeKeyPair.generate(), 111, 222))
    path.write_text(path.read_text().replace("not_before 111", f"not_before {when}"))
    with pytest.raises(KeyFileRefused, match="`not_before` should be seconds"):
        load_hpke_key(path)


def test_host_key_is_refused_on_a_cloned_machine(tmp_path: Path) -> None:
    home = host_binding("machine-a", ["GPU-1", "GPU-2"])
    write_host_key(tmp_path / "k", HostKey(SigningKey.generate(), home))
    load_host_key(tmp_path / "k", host_binding("machine-a", ["GPU-2", "GPU-1"]))
    for other in (host_binding("machine-b", ["GPU-1", "GPU-2"]), host_binding("machine-a", [])):
        with pytest.raises(KeyFileRefused, match="another machine or with other GPUs"):
            load_host_key(tmp_path / "k", other)


@pytest.mark.parametrize(
    ("machine", "gpus", "words"),
    [
        ("machine-a", ["GPU-1"], "1 of 2 GPUs gone;.*agent rekey"),
        ("machine-a", ["GPU-1", "GPU-3"], "1 of 2 GPUs gone, 1 GPU not known before;"),
        ("machine-a", ["GPU-1", "GPU-2", "GPU-3"], "GPUs: 1 GPU not known before;"),
        ("machine-b", ["GPU-1", "GPU-2"], "another machine id;.*agent disown.*stays on the roster"),
    ],
)
def test_host_key_says_which_part_of_the_hardware_changed(
    tmp_path: Path, machine: str, gpus: list[str], words: str
) -> None:
    home = host_binding("machine-a", ["GPU-1", "GPU-2"])
    write_host_key(tmp_path / "k", HostKey(SigningKey.generate(), home))
    with pytest.raises(KeyFileRefused, match=words):
        load_host_key(tmp_path / "k", host_binding(machine, gpus))


def test_host_binding_does_not_mix_its_parts() -> None:
    bindings = {
        host_binding(*arguments)
        for arguments in (("ab", ["c"]), ("a", ["bc"]), ("abc", []), ("ab", ["", "c"]))
    }
    assert len(bindings) == 4


def test_host_key_remembers_its_ledger(tmp_path: Path) -> None:
    path, binding = tmp_path / "k", host_binding("machine", [])
    key = HostKey(SigningKey.generate(), binding)
    write_host_key(path, key)
    assert not load_host_key(path, binding).ledger_exists
    assert mark_ledger(path, binding).ledger_exists
    again = load_host_key(path, binding)
    assert again.ledger_exists
    assert again.signing.public_bytes == key.signing.public_bytes
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_host_key_refuses_another_word_for_its_ledger(tmp_path: Path) -> None:
    path = tmp_path / "k"
    write_host_key(path, HostKey(SigningKey.generate(), bytes(32)))
    path.write_text(path.read_text().replace("ledger no", "ledger maybe"))
    with pytest.raises(KeyFileRefused, match="should be yes or no"):
        read_host_key(path)


def test_key_representation_shows_no_secret(tmp_path: Path) -> None:
    key = HostKey(SigningKey.generate(), bytes(range(32)))
    pair = HpkeKeyFile(HpkeKeyPair.generate(), 0, 1)
    shown = repr(key) + repr(pair)
    assert key.signing.seed_bytes().hex() not in shown
    assert repr(key.signing.seed_bytes()) not in shown
    assert repr(pair.pair.seed_bytes())[2:-1] not in shown


def test_destroyed_key_is_overwritten_and_gone(signing_path: Path) -> None:
    other_name = signing_path.with_name("other-name")
    other_name.hardlink_to(signing_path)
    destroy_key(signing_path)
    assert not signing_path.exists()
    assert set(other_name.read_bytes()) == {0}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b"uninitialized\n", "got 'uninitialized'"),
        (b"2F6B8C1DE0A94753B1C2D3E4F5A69788\n", "lower-case hex"),
        (b"2f6b8c1d-e0a9-4753-b1c2-d3e4f5a69788\n", "32 lower-case hex"),
        (b"2f6b8c1de0a94753b1c2d3e4f5a69788\n" * 2, "32 lower-case hex"),
        (b"\xff\xfe2f6b8c1de0a94753b1c2d3e4f5a697", "32 lower-case hex"),
        (b"0" * 32, "a pattern"),
        (b"f" * 32, "a pattern"),
        (b"0" * 31 + b"1", "a pattern"),
        (b"0123456789abcdef" * 2, "a pattern"),
        (b"deadbeef" * 4, "a pattern"),
        (b"03000200040005000006000700080009", "a pattern"),
        (b"88544b92092430bc5d3fbbffc12a2f04", "came with an image"),
    ],
)
def test_text_that_tells_no_machine_from_another_is_no_machine_id(
    tmp_path: Path, content: bytes, words: str
) -> None:
    """What images, containers and boards of a maker give to each of them alike."""
    (tmp_path / "id").write_bytes(content)
    with pytest.raises(KeyFileRefused, match=words) as caught:
        machine_id(tmp_path / "id")
    assert "systemd-machine-id-setup" in (caught.value.parts[1] or "")


def test_machine_id_is_a_file_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(KeyFileRefused, match=r"no machine id \(No such file"):
        machine_id(tmp_path / "nothing")
    (tmp_path / "mounted").mkdir()  # what Docker makes of a mount whose source is not there
    with pytest.raises(KeyFileRefused, match=r"no machine id \(Is a directory"):
        machine_id(tmp_path / "mounted")
    (tmp_path / "id").write_text("2f6b8c1de0a94753b1c2d3e4f5a69788\n")
    assert machine_id(tmp_path / "id") == "2f6b8c1de0a94753b1c2d3e4f5a69788"
