"""What pages and their API say of a store, in every state that a store can be in."""

from __future__ import annotations

import io
import math
import re
import shutil
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from starlette.testclient import TestClient

from aggregator.releases.release_files import SimulatedMark, write_mark
from tests.web_kit import client, fill
from web.page_list import PAGES
from web.store_reading import PageState

HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"


@pytest.fixture(autouse=True)
def _looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store is looked at once a second."""
    monkeypatch.setattr("web.store_watch.EVERY_S", 0.0)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def asked(store: Path) -> Iterator[TestClient]:
    with client(store) as found:
        yield found


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_page_shows_its_question_and_each_view(asked: TestClient, page: str) -> None:
    described = next(one for one in PAGES if one.name == page)
    answer = asked.get(f"/{page}")
    assert answer.status_code == 200
    text = unescape(answer.text)
    assert described.question in text
    assert [view.title in text for view in described.views] == [True] * len(described.views)


def test_page_shows_the_numbers_of_the_api(asked: TestClient) -> None:
    rows = asked.get("/api/v1/pages/fleet/mix").json()["rows"]
    text = asked.get("/fleet").text
    leading = {row["name"]: row["share"] for row in rows if row["share"]["told"]}
    assert set(leading) >= {"gemm", "attention", "idle"}
    assert leading["gemm"]["low"] <= 0.4 <= leading["gemm"]["high"]
    assert f"{100 * leading['gemm']['value']:.0f}" in text


def test_noise_is_drawn_as_noise_and_never_as_a_number(asked: TestClient) -> None:
    rows = asked.get("/api/v1/pages/fleet/mix").json()["rows"]
    text = asked.get("/fleet").text
    unsure = next(row for row in rows if not row["share"]["told"])
    said = re.search(rf'data-said="{unsure["name"].replace("_", " ")}: ([^"]*)"', text)
    assert said
    assert said[1].startswith("under ")
    assert "mostly noise" in said[1]


def test_store_that_appears_later_is_shown_then(tmp_path: Path) -> None:
    with client(tmp_path / "releases") as asked:
        before = asked.get("/fleet")
        assert (before.status_code, 'class="notice empty"' in before.text) == (200, True)
        assert asked.get("/api/v1/store").json()["state"] == "empty"
        assert asked.get("/api/v1/pages/fleet/mix").json()["rows"] == []
        fill(tmp_path)
        assert 'class="notice empty"' not in asked.get("/fleet").text
        assert asked.get("/api/v1/pages/fleet/mix").json()["rows"] != []


def test_store_whose_windows_stay_away_is_stale(tmp_path: Path) -> None:
    store = fill(tmp_path, end_s=int(time.time()) - 3_600)
    with client(store) as asked:
        answer = asked.get("/fleet")
        assert asked.get("/api/v1/store").json()["state"] == "stale"
    assert "one is expected every 60\N{NO-BREAK SPACE}s" in answer.text


def test_simulated_store_says_so_on_every_page(asked: TestClient) -> None:
    assert all("These hosts are simulated" in asked.get(f"/{page.name}").text for page in PAGES)


def test_store_that_a_simulation_marked_says_so(tmp_path: Path) -> None:
    store = fill(tmp_path, domain="fleet")
    with client(store) as asked:
        assert "These hosts are simulated" not in asked.get("/privacy").text
        write_mark(store, SimulatedMark("steady", "default", 12_500, 100_000, "noise", 5, 8, ""))
        text = asked.get("/privacy").text
        assert "These hosts are simulated" in text
        assert "12,500 hosts of the scenario steady, seed 5, fidelity noise." in text


def test_mark_that_says_nothing_is_told_and_no_number_shown(tmp_path: Path) -> None:
    store = fill(tmp_path, domain="fleet")
    with client(store) as asked:
        assert "kernel" in asked.get("/fleet").text
        (store / "simulated.json").write_text("{}")
        text = asked.get("/fleet").text
        assert 'class="notice error"' in text
        assert "expected the mark of a simulation" in text
        assert asked.get("/api/v1/pages/fleet/mix").status_code == 503


def test_broken_store_is_said_and_comes_back(tmp_path: Path) -> None:
    store = fill(tmp_path)
    path = next((store / "series=every-kind").rglob("*.parquet"))
    whole = path.read_bytes()
    with client(store) as asked:
        path.unlink()
        path.write_bytes(b"PAR1 no more")
        page, api = asked.get("/fleet"), asked.get("/api/v1/pages/fleet/mix")
        assert (page.status_code, 'class="notice error"' in page.text) == (200, True)
        assert "Traceback" not in page.text
        assert (api.status_code, set(api.json())) == (503, {"detail"})
        path.unlink()
        path.write_bytes(whole)
        assert asked.get("/api/v1/pages/fleet/mix").status_code == 200
        (twice := path.with_name(f"{path.stem[:-1]}1.parquet")).write_bytes(whole)
        page, api = asked.get("/fleet"), asked.get("/api/v1/pages/fleet/mix")
        assert 'class="notice error"' in page.text
        assert (api.status_code, f"remove {twice.name}" in api.json()["detail"]) == (503, True)
        twice.rename(path.with_name(f"{path.stem} (1).parquet"))
        assert "1 name that no Leader gives" in asked.get("/fleet").text
        assert asked.get("/api/v1/pages/fleet/mix").status_code == 200


def unforeseen(_: Path) -> list[Path]:
    raise RuntimeError("nobody thought of it")


def test_folder_of_something_else_is_an_error_and_an_empty_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "releases").mkdir()
    with client(tmp_path / "releases") as asked:
        assert asked.get("/api/v1/store").json()["state"] == "empty"
        other = tmp_path / "releases" / "notes.txt"
        other.write_text("nothing of a fleet\n")
        assert 'class="notice error"' in asked.get("/fleet").text
        assert "found notes.txt" in asked.get("/api/v1/store").json()["detail"]
        other.unlink()
        fill(tmp_path)
        with monkeypatch.context() as broken:
            broken.setattr("web.store_watch.folders_of", unforeseen)
            assert asked.get("/api/v1/store").json()["state"] == "error"
        assert asked.get("/api/v1/store").json()["state"] == "well"


def test_store_that_is_taken_away_is_said(tmp_path: Path) -> None:
    store = fill(tmp_path)
    with client(store) as asked:
        assert asked.get("/fleet").status_code == 200
        shutil.rmtree(store)
        assert 'class="notice empty"' in asked.get("/fleet").text


def test_answer_is_asked_for_again_by_its_tag_until_the_store_changes(tmp_path: Path) -> None:
    store = fill(tmp_path)
    with client(store) as asked:
        for address in ("/fleet", "/api/v1/store", "/api/v1/pages/fleet/mix"):
            tag = asked.get(address).headers["etag"]
            again = asked.get(address, headers={"if-none-match": tag})
            assert (again.status_code, again.content) == (304, b"")
        before = asked.get("/api/v1/store").headers["etag"]
        fill(tmp_path, "another")
        assert asked.get("/api/v1/store").headers["etag"] != before


@pytest.mark.parametrize(
    "query",
    [
        "span=aeon", "unknown=1", "model=%3Cscript%3E", "until=yesterday", "measure=",
        "until=0001-01-02", "until=1969-12-31", "until=9000-01-01",
    ],
)  # fmt: skip
def test_state_that_cannot_be_is_refused_and_not_repeated(asked: TestClient, query: str) -> None:
    page, api = asked.get(f"/fleet?{query}"), asked.get(f"/api/v1/pages/fleet/mix?{query}")
    assert (page.status_code, api.status_code) == (422, 422)
    assert query.partition("=")[0] in api.json()["detail"]
    assert "<script>" not in page.text


def test_parameter_that_an_address_does_not_know_is_named_with_those_it_knows(
    asked: TestClient,
) -> None:
    described = asked.get("/api/v1/openapi.json").json()["paths"]
    known = {
        address: [each["name"] for each in methods["get"].get("parameters", ())]
        for address, methods in described.items()
    }
    pages = ["/privacy/transcript", *(f"/{page.name}" for page in PAGES)]
    known |= {"/": [], "/metrics": [], **{page: [*PageState.model_fields] for page in pages}}
    for address, names in known.items():
        answer = asked.get(f"{address}?colour=red&colour=blue", follow_redirects=False)
        told = f"known are {', '.join(names)}" if names else "this address knows none"
        assert answer.status_code == 422, address
        assert f"no such parameter: colour; {told}" in unescape(answer.text), address
        assert "red" not in answer.text.split(), address


@pytest.mark.parametrize(
    ("query", "said"),
    [("span=x", "span: expected one of auto, hour, day, week, eight_weeks, year (length of"),
     ("until=zz", "until: expected a day such as 2026-11-27 (the day after"),
     ("until=1960-01-01", "until: expected at least 1970-01-01 (the day after"),
     ("cohort=zz", "cohort: expected a whole number (cohort of the series"),
     ("cohort=-1", "cohort: expected at least 0 (cohort"),
     ("model=%22", "model: expected a name of letters and digits (GPU model, or all)"),
     ("span=x&cohort=y", "; cohort: expected a whole number")],
)  # fmt: skip
def test_value_that_a_parameter_cannot_have_is_answered_by_what_it_can(
    asked: TestClient, query: str, said: str
) -> None:
    answer = asked.get(f"/api/v1/pages/fleet/mix?{query}")
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert said in unescape(asked.get(f"/fleet?{query}").text)


def test_link_keeps_what_is_looked_at(asked: TestClient) -> None:
    text = unescape(asked.get("/fleet?span=day&measure=launch_share").text)
    assert 'href="/privacy?span=day&measure=launch_share"' in text
    assert '<option value="day" selected>' in text
    assert "/api/v1/pages/fleet/models.csv?span=day&measure=launch_share" in text or (
        "launch_share" in text
    )


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    names = {HOSTILE, "=cmd()", "../../etc/passwd", "a\nb"}
    store = fill(tmp_path, *names)
    with client(store) as asked:
        page = asked.get("/privacy")
        rows = asked.get("/api/v1/pages/privacy/budget").json()["rows"]
        csv = asked.get("/api/v1/pages/privacy/budget.csv").text
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert "{{7*7}}" in page.text
    assert {row["series"] for row in rows} == names
    assert not any(line.startswith("=") for line in csv.splitlines())


def test_csv_and_parquet_hold_what_json_has(asked: TestClient) -> None:
    rows = asked.get("/api/v1/pages/fleet/trend").json()["rows"]
    csv = pd.read_csv(io.StringIO(asked.get("/api/v1/pages/fleet/trend.csv").text))
    parquet = pd.read_parquet(io.BytesIO(asked.get("/api/v1/pages/fleet/trend.parquet").content))
    assert len(rows) == len(csv) == len(parquet)
    values = [math.nan if (at := row["share"]["value"]) is None else at for row in rows]
    for file in (csv, parquet):
        assert values == pytest.approx(list(file["share_value"]), nan_ok=True)


@pytest.mark.parametrize("view", ["fleet/changes", "faults/cost", "faults/power"])
def test_view_without_a_row_is_a_file_of_its_columns(asked: TestClient, view: str) -> None:
    described = asked.get(f"/api/v1/pages/{view}").json()
    assert described["rows"] == []
    csv = asked.get(f"/api/v1/pages/{view}.csv")
    parquet = asked.get(f"/api/v1/pages/{view}.parquet")
    first = described["columns"][0]["name"]
    assert (csv.status_code, csv.text.split(",")[0]) == (200, first)
    assert pd.read_parquet(io.BytesIO(parquet.content)).columns[0] == first


def test_static_files_are_kept_for_ever_under_their_content(asked: TestClient) -> None:
    text = asked.get("/fleet").text
    for address in re.findall(r'(?:href|src)="(/static/[^"]+)"', text):
        answer = asked.get(address)
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (
            200, True,
        )  # fmt: skip
        assert asked.get(address.replace("/static/", "/static/x")).status_code == 404


def test_address_that_leads_nowhere_is_a_page_and_below_the_api_a_problem(
    asked: TestClient,
) -> None:
    page, api = asked.get("/nowhere"), asked.get("/api/v1/nowhere")
    assert (page.status_code, "No such page" in page.text) == (404, True)
    assert (api.status_code, set(api.json())) == (404, {"detail"})
