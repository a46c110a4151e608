"""`pointillist web` as it is typed: tokens, and a server that others reach by TLS and a token."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from pointillist.cli.output import CommandError
from pointillist.cli.web_command import app
from tests.certificate_kit import certificate
from tests.web_kit import fill, header_of
from web.access_tokens import read_tokens
from web.page_shape import Role

NAME = "fleet.example.org"


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tokens.json"
    monkeypatch.setenv("POINTILLIST_WEB_TOKENS", str(path))
    return path


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_token_is_printed_once_and_can_be_revoked(token_file: Path) -> None:
    made = json.loads(
        _run("token", "--name", "a1", "--role", "operator", "--operator", "acme",
             "--expires", "30d", "--json")
    )  # fmt: skip
    (kept,) = read_tokens(token_file)
    assert (kept.name, kept.role, kept.operator) == ("a1", Role.OPERATOR, "acme")
    assert made["token"] not in token_file.read_text(encoding="utf-8")
    assert "a1  operator acme  until " in _run("tokens")
    _run("revoke", "a1")
    assert read_tokens(token_file) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--role", "root", "--expires", "1d"), "expected analyst, operator or auditor"),
        (("--role", "analyst", "--expires", "9y"), "expected 1h to 52w"),
        (("--role", "analyst", "--expires", "99w"), "expected 1h to 52w"),
        (("--role", "operator", "--expires", "1d"), "expected an operator's name"),
        (("--role", "auditor", "--operator", "acme", "--expires", "1d"), "for it alone"),
    ],
)
def test_token_that_cannot_be_is_refused(
    token_file: Path, arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        _run("token", "--name", "a", *arguments)
    assert not token_file.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "0.0.0.0:0"), "expected TLS"),
        (("--listen", "nowhere"), "expected an address of this machine, such as 127.0.0.1:8765"),
        (("--listen", "fleet.example.org:8443"), "a name that others ask for goes to --name"),
        (("--listen", "127.0.0.1:port"), "expected HOST:PORT"),
        (("--name", NAME), "expected TLS"),
        (("--operator-series", "acme"), "expected OPERATOR=SERIES"),
        (("--fleet-series", "a", "--operator-series", "b=a"), "expected one owner"),
    ],
)
def test_server_that_would_let_others_in_does_not_start(
    tmp_path: Path, token_file: Path, arguments: tuple[str, ...], said: str
) -> None:
    with pytest.raises(CommandError, match=said):
        _run("--store", str(tmp_path), *arguments)


@pytest.mark.slow
def test_server_answers_others_by_tls_and_a_token(tmp_path: Path, token_file: Path) -> None:
    store = fill(tmp_path)
    cert, key = certificate(tmp_path, NAME)
    key.chmod(0o600)
    made = json.loads(
        _run("token", "--name", "ada", "--role", "analyst", "--expires", "1h", "--json")
    )
    options = ("--name", NAME, "--cert-file", str(cert), "--key-file", str(key))
    with _served(store, *options, "--record", str(tmp_path / "record.jsonl")) as port:
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=trusted, headers={"host": NAME}, timeout=30) as browser:
            address = f"https://127.0.0.1:{port}/privacy"
            named = {"sni_hostname": NAME}
            assert browser.get(address, extensions=named).status_code == 401
            token = header_of(made["token"])
            answer = browser.get(address, headers=token, extensions=named)
    assert answer.status_code == 200
    assert "strict-transport-security" in answer.headers
    assert "server" not in answer.headers
    assert len((tmp_path / "record.jsonl").read_text().splitlines()) == 2


@contextmanager
def _served(store: Path, *options: str) -> Iterator[int]:
    command = [
        *(sys.executable, "-m", "pointillist", "web", "--store", str(store)),
        *("--listen", "127.0.0.1:0", "--rollups", str(store.parent / "rollups"), *options),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r":(\d+)/", said)
            assert found, said
            yield int(found[1])
        finally:
            process.terminate()
