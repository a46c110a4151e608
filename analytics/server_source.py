"""Releases of a running `pointillist web`: a folder's columns, types and order, asked by HTTP."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple, Unpack
from urllib.parse import parse_qs, urlencode, urlsplit

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError, SSLError

from aggregator.releases import releases
from aggregator.releases.release_files import SimulatedMark
from aggregator.releases.releases import Moment, MoreViews, QueryRefused, moment, open_duckdb

from .analyst_views import OUTCOMES_VIEW, PERIOD_VIEWS, Frames, views_named, with_whole_numbers
from .quantiles_sql import create_call
from .recent_hours import MINUTES, RECENT_VIEW
from .release_source import CellBounds, TimeBounds
from .rollup_files import RollupPeriod
from .served_releases import ADDRESS, FORMAT, NEWEST, ServedRows

TOKEN_VARIABLE: Final = "POINTILLIST_TOKEN"  # noqa: S105  (the name of a variable)
_TOKEN: Final = re.compile(r"[!-~]{1,512}")
_NEXT: Final = re.compile(r'<([^<>]{1,4096})>; rel="next"')
_DESCRIPTION: Final = "/api/v1/openapi.json"
_CONNECT_S, _READ_S, _WHOLE_S = 10.0, 60.0, 300.0
_CHUNK_BYTES: Final = 1 << 16
MOST_BYTES: Final = 256 << 20
_MOST_JSON_BYTES: Final = 4 << 20
_TRIES: Final = urllib3.Retry(
    total=4, connect=1, read=1, redirect=0, backoff_factor=0.5, raise_on_status=False,
    raise_on_redirect=False, status_forcelist=(429, 503), respect_retry_after_header=False,
)  # fmt: skip
"""A store that is read for the first time and a rate that is passed are over in seconds."""


class FleetServerUnavailable(OSError):
    """A server that cannot be reached, or cannot answer now; the message says which and why."""


class NotAFleetServer(ValueError):
    """What answers is no server of releases that this version understands."""


class FleetAccessRefused(PermissionError):
    """The server refuses this token, or the token's role has no such rows."""


class _Answer(NamedTuple):
    status: int
    body: bytes
    link: str


class ReleaseServer:
    """One server; its connections are kept and shared by threads.

    url         https://HOST[:PORT], or http on this machine
    token, ca_file   what opens it; certificates that are trusted, or the system's
    Raises      ValueError, FileNotFoundError; where asked NotAFleetServer, FleetAccessRefused,
                FleetServerUnavailable
    """

    def __init__(self, url: str, token: str | None = None, ca_file: Path | None = None) -> None:
        self.url = _checked(url)
        if token is not None and not _TOKEN.fullmatch(token):
            raise ValueError("token: expected printable characters on one line, got something else")
        self._token = token
        self._headers = {"user-agent": f"pointillist/{metadata.version('pointillist')}"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        if ca_file is not None and not ca_file.is_file():
            raise FileNotFoundError(f"no file of certificates at {ca_file}")
        self._pool = urllib3.PoolManager(
            ca_certs=None if ca_file is None else str(ca_file),
            timeout=urllib3.Timeout(connect=_CONNECT_S, read=_READ_S),
            retries=_TRIES,
        )

    def close(self) -> None:
        self._pool.clear()

    def about(self) -> dict[str, Any]:
        """Ask whether it is a server of releases of this version's format."""
        answer = self._asked(ADDRESS, {}, _MOST_JSON_BYTES)
        if answer.status == 404:
            raise NotAFleetServer(self._older())
        said = self._json(self._good(answer))
        if said.get("product") != "pointillist" or not isinstance(said.get("format"), int):
            raise NotAFleetServer(f"{self.url}: expected `pointillist web`, got another server")
        if said["format"] != FORMAT:
            raise NotAFleetServer(
                f"{self.url}: expected rows of format {FORMAT}, got {said['format']}: "
                "use the version of pointillist that the server has"
            )
        return said

    def json(self, address: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """Ask for a document."""
        return self._json(self._good(self._asked(address, asked, _MOST_JSON_BYTES)))

    def rows(self, address: str, asked: Mapping[str, str]) -> tuple[bytes, str | None]:
        """Ask for a part of rows, as Parquet, and where the rest begins; None: that was all."""
        answer = self._good(self._asked(address, asked, MOST_BYTES))
        found = _NEXT.fullmatch(answer.link.strip())
        query = parse_qs(urlsplit(found[1]).query) if found else {}
        return answer.body, query.get("since", [None])[0]

    def _asked(self, address: str, asked: Mapping[str, str], most: int) -> _Answer:
        url = f"{self.url}{address}" + (f"?{urlencode(asked)}" if asked else "")
        try:
            answer = self._pool.request(
                "GET", url, headers=self._headers, preload_content=False, decode_content=False
            )
            try:
                body = self._read(answer, most)
            finally:
                answer.release_conn()
        except (HTTPError, OSError) as error:
            if isinstance(error, FleetServerUnavailable):
                raise
            raise FleetServerUnavailable(f"{self.url}: {_why(error)}") from None
        return _Answer(answer.status, body, answer.headers.get("link", ""))

    def _read(self, answer: urllib3.BaseHTTPResponse, most: int) -> bytes:
        until_s = time.monotonic() + _WHOLE_S
        body = bytearray()
        for chunk in answer.stream(_CHUNK_BYTES, decode_content=False):
            body += chunk
            if len(body) > most or time.monotonic() > until_s:
                answer.close()
                raise FleetServerUnavailable(
                    f"{self.url}: expected an answer of at most {most:,} bytes within "
                    f"{_WHOLE_S:g} s, got more or none"
                )
        return bytes(body)

    def _good(self, answer: _Answer) -> _Answer:
        if answer.status == 200:
            return answer
        said = _detail(answer.body)
        if answer.status == 401:
            raise FleetAccessRefused(
                f"{self.url}: expected a token that is in force, got "
                + ("none" if self._token is None else "one that is wrong, expired or revoked")
                + f"; name its file by token_file, or put it into {TOKEN_VARIABLE}"
            )
        if answer.status == 403:
            raise FleetAccessRefused(f"{self.url}: {said}")
        if answer.status in {429, 503}:
            raise FleetServerUnavailable(f"{self.url}: {said}")
        raise NotAFleetServer(f"{self.url}: expected rows, got status {answer.status}: {said}")

    def _json(self, answer: _Answer) -> dict[str, Any]:
        try:
            said = json.loads(answer.body)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise NotAFleetServer(f"{self.url}: expected `pointillist web`, got another server")
        return said

    def _older(self) -> str:
        """Say what a server is that has no releases."""
        answer = self._asked(_DESCRIPTION, {}, _MOST_JSON_BYTES)
        info = self._json(answer).get("info") if answer.status == 200 else None
        if not isinstance(info, dict) or info.get("title") != "Pointillist":
            return f"{self.url}: expected `pointillist web`, got another server"
        return f"{self.url}: expected a server that has {ADDRESS}, got an older `pointillist web`"


def token_of(token_file: str | os.PathLike[str] | None) -> str | None:
    """Read a token from a file or the environment. Raises ValueError where others may read it."""
    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    with Path(token_file).open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        raw = file.read(1_024)
    if mode & 0o007:
        raise ValueError(f"{token_file}: expected a file that others may not read")
    return raw.decode("latin-1").strip()


def _checked(url: str) -> str:
    """Give scheme, host and port of an address. Raises ValueError, which repeats no secret."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port = "", None
    wanted = "connect: expected https://HOST[:PORT], or http:// on this machine"
    if not host or parts.scheme not in {"http", "https"}:
        raise ValueError(f"{wanted}, got another address")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"{wanted}, got one with a user's name or password in it")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ValueError(f"{wanted}, got one that goes on behind host and port")
    if parts.scheme == "http" and not _loopback(host):
        raise ValueError(f"{wanted}, got http to another machine, where anyone could read along")
    named = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{named}" + (f":{port}" if port is not None else "")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _why(error: Exception) -> str:
    """Say in a few words why nothing came."""
    cause = error.reason if isinstance(error, MaxRetryError) and error.reason else error
    if isinstance(cause, SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(cause):
        return (
            "expected a certificate that is trusted and names this host, got another; ca_file "
            "names the file of whoever signed it"
        )
    if isinstance(cause, SSLError):
        return "expected TLS, got something else"
    return f"expected an answer, got none ({type(cause).__name__})"


def _detail(body: bytes) -> str:
    """Give what a refusal says, as one line of at most 300 printable characters."""
    try:
        said = json.loads(body)
        text = str(said.get("detail", "")) if isinstance(said, dict) else ""
    except (ValueError, RecursionError):
        text = body[:1_200].decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in text.strip())[:300]


MOST_ROWS: Final = 5_000_000  # of one frame: some two gigabytes
_MOST_PARTS: Final = 10_000
_MOST_PART_ROWS: Final = 2_000_000
_MOST_PART_BYTES: Final = 1 << 30
_THRIFT_BYTES: Final = 16 << 20
_CAUSE_SECTIONS: Final = ("incidents", "hardware_faults")


class ServerSource:
    """Releases that a server shows to this token; every frame is asked for anew."""

    def __init__(self, server: ReleaseServer) -> None:
        self._server = server
        server.about()

    def close(self) -> None:
        self._server.close()

    def windows_in(
        self, period: RollupPeriod, since: Moment | None = None, until: Moment | None = None
    ) -> int:
        ended = self.outcomes(period, since=since, until=until)
        return int(ended.loc[ended["outcome"] != "rejected", "windows"].sum())

    def mark(self) -> SimulatedMark | None:
        said = self._server.about().get("simulated")
        if said is None:
            return None
        try:
            return SimulatedMark(**said)
        except TypeError:
            raise self._misunderstood("the mark of a simulation") from None

    def cells(
        self,
        period: RollupPeriod,
        section: str | None,
        *,
        by_cohort: bool = False,
        **bounds: Unpack[CellBounds],
    ) -> pd.DataFrame:
        cohorts = "true" if by_cohort else None
        asked = _asked(period=period, section=section, by_cohort=cohorts, **bounds)
        return with_whole_numbers(_frame(self._rows(ServedRows.CELLS, asked)))

    def recent(
        self,
        section: str | None,
        *,
        minutes: int = MINUTES,
        by_cohort: bool = False,
        **bounds: Unpack[CellBounds],
    ) -> pd.DataFrame:
        cohorts = "true" if by_cohort else None
        asked = _asked(minutes=str(minutes), section=section, by_cohort=cohorts, **bounds)
        return with_whole_numbers(_frame(self._rows(ServedRows.RECENT, asked)))

    def outcomes(self, period: RollupPeriod, **bounds: Unpack[CellBounds]) -> pd.DataFrame:
        asked = _asked(period=period, **bounds)
        return with_whole_numbers(_frame(self._rows(ServedRows.OUTCOMES, asked)))

    def newest(
        self, period: RollupPeriod, section: str | None, series: str | None = None
    ) -> datetime | None:
        asked = _asked(period=period, section=section, series=series)
        start = self._server.json(NEWEST, asked).get("start")
        try:
            return None if start is None else moment(str(start))
        except ValueError:
            raise self._misunderstood("a moment") from None

    def windows(self, **bounds: Unpack[CellBounds]) -> pd.DataFrame:
        return _frame(self._rows(ServedRows.WINDOWS, _asked(**bounds)))

    def causes(self, section: str, **span: Unpack[TimeBounds]) -> pd.DataFrame:
        return _frame(self._rows(ServedRows.CAUSES, _asked(section=section, **span)))

    def sql(self, text: str, frames: Frames) -> pd.DataFrame:
        """Run one SELECT here, over the views that it names, which are asked of the server.

        Views of single cells of windows are not among them: they are in the folder alone.
        Raises      QueryRefused, QueryForbidden
        """
        with open_duckdb() as database:
            named, _ = views_named(text, {*_VIEWS, *_IN_THE_FOLDER, *frames}, database)
        if named & _IN_THE_FOLDER:
            known = ", ".join(sorted({*_VIEWS, *frames}))
            got = ", ".join(sorted(named & _IN_THE_FOLDER))
            raise QueryRefused(f"SQL over a server: expected views of {known}, got {got}")
        rows = {name: frames[name]() if name in frames else self._view(name) for name in named}

        def create(database: duckdb.DuckDBPyConnection) -> None:
            for name, found in rows.items():
                database.register(name, found)
            create_call(database, text)

        # An empty folder: the query sees what is registered, and no file.
        with tempfile.TemporaryDirectory(prefix="pointillist-") as folder:
            return releases.query(text, folder, MoreViews(create, alone=True))

    def _view(self, name: str) -> pa.Table:
        if name in PERIOD_VIEWS:
            asked = _asked(period=PERIOD_VIEWS[name], by_cohort="true")
            return self._rows(ServedRows.CELLS, asked)
        if name == RECENT_VIEW:
            return self._rows(ServedRows.RECENT, _asked(by_cohort="true"))
        if name == OUTCOMES_VIEW:
            parts = []
            for period in RollupPeriod:
                part = self._rows(ServedRows.OUTCOMES, _asked(period=period))
                parts.append(part.add_column(0, "period", pa.array([period.value] * len(part))))
            return pa.concat_tables(parts, promote_options="permissive")
        if name == ServedRows.WINDOWS:
            return self._rows(ServedRows.WINDOWS, {})
        return pa.concat_tables(
            [self._rows(ServedRows.CAUSES, {"section": section}) for section in _CAUSE_SECTIONS]
        )

    def _rows(self, kind: ServedRows, asked: Mapping[str, str]) -> pa.Table:
        parts: list[pa.Table] = []
        count = 0
        since: datetime | None = None
        while True:
            body, rest = self._server.rows(kind.address, asked)
            part = self._table(kind, body)
            count += len(part)
            if count > MOST_ROWS or len(parts) == _MOST_PARTS:
                raise ValueError(
                    f"{kind}: expected at most {MOST_ROWS:,} rows in {_MOST_PARTS:,} parts, got "
                    "more: ask for a shorter time, one series or longer periods"
                )
            parts.append(part)
            if rest is None:
                return pa.concat_tables(parts)
            since = self._later(rest, since)
            asked = {**asked, "since": since.isoformat()}

    def _later(self, said: str, before: datetime | None) -> datetime:
        """Read where the next part begins: after the one before, so that there is an end to it."""
        try:
            since = moment(said)
        except ValueError:
            raise self._misunderstood("a moment") from None
        if before is not None and since <= before:
            raise self._misunderstood("a later moment")
        return since

    def _table(self, kind: ServedRows, body: bytes) -> pa.Table:
        """Read a part; what is longer than a part can be is not unpacked."""
        try:
            file = pq.ParquetFile(
                pa.BufferReader(body), thrift_string_size_limit=_THRIFT_BYTES,
                thrift_container_size_limit=_THRIFT_BYTES,
            )  # fmt: skip
            about = file.metadata
            groups = [about.row_group(at).total_byte_size for at in range(about.num_row_groups)]
            if about.num_rows > _MOST_PART_ROWS or sum(groups) > _MOST_PART_BYTES:
                raise self._misunderstood(f"at most {_MOST_PART_ROWS:,} rows in an answer")
            if not file.schema_arrow.equals(kind.schema):
                raise self._misunderstood(f"the columns of {kind} as this version has them")
            return file.read()
        except (pa.ArrowException, OSError):
            raise self._misunderstood("Parquet") from None

    def _misunderstood(self, wanted: str) -> NotAFleetServer:
        return NotAFleetServer(f"{self._server.url}: expected {wanted}, got something else")


_VIEWS: Final = frozenset(
    {*PERIOD_VIEWS, RECENT_VIEW, OUTCOMES_VIEW, ServedRows.WINDOWS, ServedRows.CAUSES}
)
_IN_THE_FOLDER: Final = frozenset({"releases", "released", "latest", "suppressed"})


def _asked(
    since: Moment | None = None, until: Moment | None = None, **chosen: str | None
) -> dict[str, str]:
    """Give the parameters that are set, as an address has them."""
    bounds = {"since": since, "until": until}
    moments = {name: moment(when).isoformat() for name, when in bounds.items() if when is not None}
    return moments | {name: str(value) for name, value in chosen.items() if value is not None}


def _frame(rows: pa.Table) -> pd.DataFrame:
    """Give a frame in the order and with the types that a folder's has: both are DuckDB's."""
    with open_duckdb() as database:
        database.register("rows", rows)
        frame: pd.DataFrame = database.execute("FROM rows ORDER BY ALL").df()
    return frame
