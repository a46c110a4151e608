"""Secrets stay off command lines, and in files that others are kept from."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from privacy.sealing import HpkeKeyPair
from privacy.signing import SigningKey
from tests.pointillist.cli.test_cli import every_option
from transport.files.keyfiles import (
    HostKey,
    HpkeKeyFile,
    KeyFileRefused,
    load_hpke_key,
    load_signing_key,
    read_host_key,
    write_host_key,
    write_hpke_key,
    write_signing_key,
)
from transport.files.private_files import (
    JoinToken,
    TokenUnusable,
    read_secret,
    read_token,
    write_token,
)

_SECRET = re.compile(r"secret|passw|passphrase|token|credential|seed|(?<!public-)\bkey\b")
_SEEDS_OF_SIMULATION = {"demo", "simulate", "diagnosis record"}
"""Their --seed draws made-up fleets; no key comes of it."""
_NAMES = {"web token", "web revoke"}
"""Their argument is the name of a token, not the token."""


@pytest.mark.slow
def test_no_option_takes_a_secret_but_as_a_file() -> None:
    seen = set()
    for path, option in every_option():
        words = " ".join([*option.opts, str(option.envvar or "")]).lower().replace("_", "-")
        if not _SECRET.search(words) or (path in _NAMES and option.param_type_name == "argument"):
            continue
        kind = option.type_descriptor.annotation
        if kind is int and option.opts == ["--seed"] and path in _SEEDS_OF_SIMULATION:
            continue
        seen.add((path, option.name))
        assert kind is Path or option.is_flag, f"{path} {option.opts}: a path, not {kind}"
        assert not option.prompt, f"{path} {option.opts}: asked for on a terminal"
    assert {("agent join", "token_file"), ("task sign", "key"), ("web", "key_file")} <= seen


Writer = Callable[[Path], Any]
Reader = Callable[[Path], Any]


def _token() -> JoinToken:
    return JoinToken.issue(SigningKey.generate(), "acme", "default", bytes(32), 2_000_000_000)


KEPT: dict[str, tuple[Writer, Reader]] = {
    "signing": (lambda path: write_signing_key(path, SigningKey.generate()), load_signing_key),
    "hpke": (
        lambda path: write_hpke_key(path, HpkeKeyFile(HpkeKeyPair.generate(), 0, 1)),
        load_hpke_key,
    ),
    "host": (
        lambda path: write_host_key(path, HostKey(SigningKey.generate(), bytes(16))),
        read_host_key,
    ),
    "join token": (lambda path: write_token(path, _token()), read_token),
}


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
@pytest.mark.parametrize("kind", KEPT)
def test_secret_file_is_made_for_its_user_alone_and_refused_when_opened_to_all(
    tmp_path: Path, kind: str
) -> None:
    write, read = KEPT[kind]
    path = tmp_path / "secret"
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    read(path)
    path.chmod(0o604)
    with pytest.raises((KeyFileRefused, TokenUnusable), match="chmod"):
        read(path)


def test_secret_that_a_group_may_read_is_read_and_one_open_to_all_is_not(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"abcdef")
    path.chmod(0o640)
    assert read_secret(path, 3) == b"abc"
    for mode in (0o644, 0o602, 0o601):
        path.chmod(mode)
        with pytest.raises(PermissionError, match="chmod o= it") as refused:
            read_secret(path, 3)
        assert "abc" not in str(refused.value)
