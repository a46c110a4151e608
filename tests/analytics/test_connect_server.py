"""`pointillist.connect(URL)`: a real server's frames are its folder's; roles, TLS, errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import pointillist
from aggregator.releases.packs import mark_new
from aggregator.releases.release_files import SimulatedMark, write_mark
from aggregator.releases.releases import QueryForbidden, QueryRefused
from analytics import (
    VIEW_MEANINGS,
    FleetAccessRefused,
    FleetReleases,
    FleetServerUnavailable,
    NothingReleased,
    connect,
)  # fmt: skip
from analytics.server_source import TOKEN_VARIABLE, ReleaseServer
from tests.analytics.test_rollups import HOUR, START, WEEK
from tests.browser.server_kit import served, wait_until_read
from tests.certificate_kit import certificate
from tests.web_kit import client, fill
from web.access_tokens import SeriesOwners, new_token, read_tokens, write_tokens
from web.page_shape import Role

ASKED: dict[str, Callable[[FleetReleases], pd.DataFrame]] = {
    "mix": lambda fleet: fleet.mix(),
    "by hour and cohort": lambda fleet: fleet.mix("duration", "hour", by_cohort=True),
    "of a span": lambda fleet: fleet.mix(since=START + WEEK, until="1970-01-29"),
    "of a model": lambda fleet: fleet.mix(model="H100"),
    "nothing": lambda fleet: fleet.mix(series="none"),
    "recent": lambda fleet: fleet.recent("cause", by_cohort=True),
    "last minutes": lambda fleet: fleet.recent(minutes=3, since=START + WEEK, until="1970-01-29"),
    "sql of recent": lambda fleet: fleet.sql(
        "SELECT name, share FROM recent WHERE kind = 'mix' ORDER BY ALL"
    ),
    "newest": lambda fleet: fleet.newest("duration"),
    "change": lambda fleet: fleet.change(),
    "models": lambda fleet: fleet.compare_models("H100", "A100"),
    "bins": lambda fleet: fleet.durations(),
    "causes": lambda fleet: fleet.causes(),
    "windows": lambda fleet: fleet.windows(since=START + HOUR),
    "outcomes": lambda fleet: fleet.outcomes("week"),
    "budget": lambda fleet: fleet.budget(),
    "sql": lambda fleet: fleet.sql(
        "SELECT name, share, told FROM weeks WHERE told AND name != 'measured' ORDER BY ALL"
    ),
    "quantiles": lambda fleet: fleet.quantile([0.5, 0.9]),
    "sql of quantiles": lambda fleet: fleet.sql("FROM quantiles('weeks', 0.5) ORDER BY ALL"),
    "sql of money": lambda fleet: fleet.sql("SELECT * FROM costs ORDER BY ALL"),
    "sql of changes": lambda fleet: fleet.sql("SELECT * FROM changes ORDER BY ALL"),
}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server cannot answer now is not asked for again, and no token is about."""
    from analytics import server_source

    monkeypatch.setattr(server_source, "_TRIES", server_source._TRIES.new(total=0))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with served(folder) as found:
        wait_until_read(found)
        yield found


@pytest.fixture
def fleets(folder: Path, address: str) -> Iterator[tuple[FleetReleases, FleetReleases]]:
    with connect(folder) as here, pointillist.connect(address) as there:
        yield here, there


@pytest.mark.parametrize("name", ASKED)
def test_frames_of_a_server_are_those_of_its_folder(
    fleets: tuple[FleetReleases, FleetReleases], name: str
) -> None:
    here, there = map(ASKED[name], fleets)
    assert_frame_equal(there, here)
    assert len(here) or name == "nothing"


def test_long_frames_come_in_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A server of its own: another one keeps answers of before.
    with served(folder) as found:
        wait_until_read(found)
        with connect(folder) as here, connect(found) as there:
            _compare_in_parts(here, there, monkeypatch)


def _compare_in_parts(
    here: FleetReleases, there: FleetReleases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("web.release_api.MOST_ROWS", 70)
    asked: list[str] = []
    ask = ReleaseServer.rows

    def noted(
        server: ReleaseServer, address: str, sent: Mapping[str, str]
    ) -> tuple[bytes, str | None]:
        asked.append(sent.get("since", ""))
        return ask(server, address, sent)

    monkeypatch.setattr(ReleaseServer, "rows", noted)
    assert_frame_equal(there.mix(), here.mix())
    assert_frame_equal(there.source.causes("incidents"), here.source.causes("incidents"))
    monkeypatch.setattr("web.release_api.MOST_ROWS", 40)
    span: Any = {"since": START, "until": START + 3 * HOUR}
    assert_frame_equal(there.mix("duration", "hour", **span), here.mix("duration", "hour", **span))
    assert_frame_equal(there.recent("duration", **span), here.recent("duration", **span))
    monkeypatch.setattr("web.release_api.MOST_ROWS", 2)
    begin = START + 2 * WEEK + HOUR
    span = {"since": begin - 60, "until": begin + 240}
    assert_frame_equal(there.windows(**span), here.windows(**span))
    assert len([since for since in asked if since]) > 8


def test_frame_that_is_too_long_is_refused(
    fleets: tuple[FleetReleases, FleetReleases], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analytics.server_source.MOST_ROWS", 100)
    with pytest.raises(ValueError, match=r"cells: expected at most 100 rows in .*, got more"):
        fleets[1].mix()
    monkeypatch.undo()
    monkeypatch.setattr("web.release_api.MOST_ROWS", 70)
    monkeypatch.setattr("analytics.server_source._MOST_PARTS", 2)
    with pytest.raises(ValueError, match="rows in 2 parts, got more"):
        fleets[1].mix(until=START + 3 * WEEK + 1)


def test_server_counts_windows_and_says_what_was_simulated(
    fleets: tuple[FleetReleases, FleetReleases], tmp_path: Path
) -> None:
    from analytics import RollupPeriod

    counts = {fleet.source.windows_in(RollupPeriod.DAY, START + WEEK) for fleet in fleets}
    assert len(counts) == 1
    assert fleets[1].simulated is None
    store = fill(tmp_path)
    write_mark(store, SimulatedMark("steady", "default", 400, 3_200, "noise", 5, 8, "", ("a/b",)))
    with served(store) as found:
        wait_until_read(found)
        with connect(store) as here, connect(found) as there:
            assert there.simulated == here.simulated is not None


def test_sql_over_a_server_has_every_view_but_single_cells(
    fleets: tuple[FleetReleases, FleetReleases],
) -> None:
    _, there = fleets
    for view in ("eight_weeks", "outcomes"):
        meanings = VIEW_MEANINGS[view]
        assert list(there.sql(f"SELECT * FROM {view} LIMIT 1").columns) == list(meanings), view
    with pytest.raises(QueryRefused, match=r"expected views of causes, .*, got releases"):
        there.sql("SELECT * FROM releases")
    for text in ("SELECT * FROM windows, read_csv('/etc/passwd')", "CREATE TABLE hours (a INT)"):
        with pytest.raises(QueryForbidden):
            there.sql(text)


def test_names_that_are_none_are_told_of_a_server_too(
    fleets: tuple[FleetReleases, FleetReleases],
) -> None:
    with pytest.raises(NothingReleased, match="hardware_faults: expected a released week"):
        fleets[1].newest("fault")
    with pytest.raises(ValueError, match="by: expected one of family"):
        fleets[1].mix("colour")


def _token_file(
    folder: Path, name: str, role: Role, operator: str | None = None, *, life_s: int = 3_600
) -> Path:
    """Make a token; give the file that its holder keeps it in."""
    tokens = folder / "web" / "tokens.json"
    token, secret = new_token(name, role, int(time.time()) + life_s, operator)
    write_tokens(tokens, [*read_tokens(tokens), token])
    path = folder / f"{name}.token"
    path.write_text(f"{secret}\n")
    path.chmod(0o600)
    return path


def test_token_opens_over_tls_what_its_role_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    within_an_hour = int(time.time()) // 3_600 * 3_600 - 1_800  # "the newest hour" has all of it
    store = fill(tmp_path, "mix", "acme-mix", end_s=within_an_hour)
    owners = SeriesOwners(frozenset({"mix"}), {"acme": frozenset({"acme-mix"})})
    ada, a1, eve, late = (
        _token_file(tmp_path, "ada", Role.ANALYST),
        _token_file(tmp_path, "a1", Role.OPERATOR, "acme"),
        _token_file(tmp_path, "eve", Role.AUDITOR),
        _token_file(tmp_path, "late", Role.ANALYST, life_s=-1),
    )
    pair, tokens = certificate(tmp_path, "localhost"), tmp_path / "web" / "tokens.json"
    with served(store, token_file=tokens, owners=owners, certificate=pair) as found:

        def opened(token_file: Path | None, **more: Any) -> FleetReleases:
            return connect(found, token_file=token_file, **{"ca_file": pair[0], **more})

        analyst = _when_read(lambda: opened(ada))
        with analyst, opened(a1) as operator, opened(eve) as auditor, connect(store) as here:
            whole, mixed = here.mix(period="hour"), here.mix(period="hour", series="mix")
            assert_frame_equal(analyst.mix(period="hour"), mixed)
            assert_frame_equal(operator.mix(period="hour"), whole)
            assert analyst.mix(period="hour", series="acme-mix").empty
            assert set(analyst.causes()["series"]) == set(analyst.windows()["series"]) == {"mix"}
            with pytest.raises(NothingReleased):
                analyst.newest(period="hour", series="acme-mix")
            assert_frame_equal(analyst.newest(period="hour"), mixed)
            assert set(auditor.outcomes()["series"]) == {"mix"}
            for rows in (auditor.mix, auditor.causes, auditor.newest):
                with pytest.raises(FleetAccessRefused, match="not for the role auditor"):
                    rows()
        for token_file, said in ((late, "one that is wrong, expired or revoked"), (None, "none")):
            with pytest.raises(FleetAccessRefused, match=f"in force, got {said}"):
                opened(token_file)
        monkeypatch.setenv(TOKEN_VARIABLE, ada.read_text().strip())
        opened(None).close()
        with pytest.raises(FleetServerUnavailable, match="expected a certificate that is trusted"):
            opened(ada, ca_file=None)
        with pytest.raises(FleetServerUnavailable, match="expected an answer"):
            connect(found.replace("https", "http"))


def _when_read(make: Callable[[], FleetReleases]) -> FleetReleases:
    """Ask until the server has read its store."""
    while True:
        try:
            return make()
        except FleetServerUnavailable as error:
            if "read for the first time" not in str(error):
                raise


def test_rows_are_asked_for_by_known_parameters_and_recorded(tmp_path: Path) -> None:
    store, record = fill(tmp_path), tmp_path / "queries.jsonl"
    with client(store, record_file=record) as asked:
        for query in ("period=year", "section=A", "colour=1", "since=yesterday"):
            answer = asked.get(f"/api/v1/releases/cells.parquet?{query}")
            assert (answer.status_code, "detail" in answer.json()) == (422, True)
        assert asked.get("/api/v1/releases/causes.parquet?section=other").status_code == 422
        long = asked.get("/api/v1/releases/recent.parquet?minutes=61")
        assert (long.status_code, "of one section" in long.json()["detail"]) == (422, True)
        for since in ("0001-01-01T00:00:00", "9999-12-31T23:59:59-12:00", "1970-01-01T00:00Z"):
            query = f"since={since}&until={since}".replace("+", "%2B")
            answer = asked.get(f"/api/v1/releases/windows.parquet?{query}")
            assert answer.status_code == 200
        tag = {"if-none-match": answer.headers["etag"]}
        again = asked.get(f"/api/v1/releases/windows.parquet?{query}", headers=tag)
        assert again.status_code == 304
    assert len(record.read_text().splitlines()) == 10


def test_store_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with served(tmp_path / "none") as found:
        wait_until_read(found)
        with pytest.raises(FleetServerUnavailable, match=r"no store at .* yet: the Leader makes"):
            connect(found)
    with pytest.raises(FleetServerUnavailable, match=r"expected an answer, got none"):
        connect(found)
    (tmp_path / "new").mkdir()
    mark_new(tmp_path / "new")
    with served(tmp_path / "new") as found:
        wait_until_read(found)
        with connect(found) as there:
            assert there.mix().empty
            assert there.budget().empty
