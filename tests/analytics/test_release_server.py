"""A server that is hostile, older or something else; addresses and tokens that are refused."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analytics import FleetServerUnavailable, NotAFleetServer, connect
from analytics.served_releases import ADDRESS, NEWEST, ServedRows
from analytics.server_source import TOKEN_VARIABLE, ReleaseServer, token_of

SECRET = "plst_" + "s" * 43
ABOUT = {"product": "pointillist", "version": "9", "format": 1, "simulated": None}
OLDER = {"info": {"title": "Pointillist"}}

Answers = Mapping[str, tuple[int, bytes, Mapping[str, str]]]


@contextmanager
def answering(answers: Answers) -> Iterator[str]:
    """Serve these bytes by path; any other path is answered with 404."""

    class Canned(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            status, body, headers = answers.get(path, (404, b"{}", {}))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Canned) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _json(said: Any, status: int = 200) -> tuple[int, bytes, Mapping[str, str]]:
    return status, json.dumps(said).encode(), {}


def _parquet(table: pa.Table, **headers: str) -> tuple[int, bytes, Mapping[str, str]]:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return 200, buffer.getvalue(), headers


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, "got another server"),
        ({ADDRESS: _json([])}, "got another server"),
        ({ADDRESS: (200, b"<html>", {})}, "got another server"),
        ({ADDRESS: (200, b"[" * 100_000, {})}, "got another server"),
        ({ADDRESS: _json({"product": "other", "format": 1})}, "got another server"),
        ({ADDRESS: _json({**ABOUT, "format": 2})}, "expected rows of format 1, got 2"),
        ({"/api/v1/openapi.json": _json(OLDER)}, "got an older `pointillist web`"),
        ({ADDRESS: (302, b"", {"location": "http://127.0.0.1:1/"})}, "got status 302"),
        ({ADDRESS: _json({"detail": "a\nb\x1b[31m"}, 500)}, r"got status 500: a b \[31m"),
    ],
)
def test_what_is_no_server_of_releases_is_told(answers: Answers, said: str) -> None:
    with answering(answers) as address, pytest.raises(NotAFleetServer, match=said):
        connect(address)


CELLS = ServedRows.CELLS.address
EMPTY = ServedRows.CELLS.schema.empty_table()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, b"PAR1 no more", {}), "expected Parquet"),
        ((200, b"", {}), "expected Parquet"),
        (_parquet(pa.table({"a": [1]})), "expected the columns of cells"),
        (_parquet(EMPTY, link='<?since=never>; rel="next"'), "expected a moment"),
        (_parquet(EMPTY, link='<?since=1980-01-01>; rel="next"'), "expected a later moment"),
    ],
)
def test_rows_that_are_none_are_refused(answer: Any, said: str) -> None:
    with (
        answering({ADDRESS: _json(ABOUT), CELLS: answer}) as address,
        connect(address) as fleet,
        pytest.raises(NotAFleetServer, match=said),
    ):
        fleet.mix()


def test_answers_are_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {ADDRESS: _json(ABOUT), CELLS: (200, bytes(300_000), {}), NEWEST: _json({"start": 1})}
    with answering(answers) as address, connect(address) as fleet:
        monkeypatch.setattr("analytics.server_source.MOST_BYTES", 200_000)
        with pytest.raises(FleetServerUnavailable, match="at most 200,000 bytes"):
            fleet.mix()
        with pytest.raises(NotAFleetServer, match="expected a moment"):
            fleet.newest()
        monkeypatch.setattr("analytics.server_source._MOST_PART_ROWS", 2)
        source: Any = fleet.source
        _, body, _ = _parquet(pa.table({"a": range(3)}))
        with pytest.raises(NotAFleetServer, match="at most 2 rows"):
            source._table(ServedRows.CELLS, body)


@pytest.mark.parametrize(
    "url",
    [
        "https://", "ftp://fleet.example.org", "http://fleet.example.org", "https://a:b@host",
        "https://host/path", "https://host?token=a", "https://host#a", "https://host:port",
        "https://[::1", "http://127.0.0.1.example.org",
    ],
)  # fmt: skip
def test_address_is_https_or_this_machine(url: str) -> None:
    with pytest.raises(ValueError, match="connect: expected https://HOST") as told:
        connect(url)
    assert "token=a" not in str(told.value)
    assert "a:b" not in str(told.value)


def test_host_is_written_as_it_is_asked_for() -> None:
    for url in ("https://fleet.example.org", "https://h:8443", "http://[::1]:8765"):
        assert ReleaseServer(f"{url}/").url == url


def test_token_is_read_from_a_file_that_others_cannot_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o604)
    with pytest.raises(ValueError, match="expected a file that others may not read"):
        token_of(path)
    path.chmod(0o640)
    assert token_of(path) == SECRET
    monkeypatch.setenv(TOKEN_VARIABLE, SECRET)
    assert token_of(None) == SECRET
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert token_of(None) is None
    with pytest.raises(FileNotFoundError):
        token_of(tmp_path / "none")


def test_token_that_cannot_be_is_refused_and_none_is_said(tmp_path: Path) -> None:
    for token in ("", f"{SECRET}\r\nx: y", "s" * 513, "\u017f"):
        with pytest.raises(ValueError, match="token: expected printable") as told:
            ReleaseServer("https://host", token)
        assert SECRET not in str(told.value)
    with pytest.raises(FileNotFoundError, match="no file of certificates"):
        ReleaseServer("https://host", None, tmp_path / "none.pem")
    with answering({ADDRESS: _json({"detail": "no"}, 401)}) as address:
        path = tmp_path / "token"
        path.write_text(SECRET)
        path.chmod(0o600)
        with pytest.raises(PermissionError) as refused:
            connect(address, token_file=path)
    assert SECRET not in str(refused.value)


def test_roll_ups_of_a_server_are_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rollups: expected none beside a server"):
        connect("https://host", rollups=tmp_path)
