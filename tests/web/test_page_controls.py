"""What can be chosen on a page: a form without a script, and an address that keeps all of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from aggregator.releases.store import Store
from tests.aggregator.releases.release_kit import CATALOGUE
from tests.web_kit import HOSTS, client, fill, releases
from web.histogram_views import HistogramView
from web.mix_views import NOISE_ROWS, CauseViews, drawn
from web.pages_pipeline import PAGE as PIPELINE

SMALLER = "smaller"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Ask for a store of two series, the first in two cohorts; all its windows are in one hour."""
    folder, end_s = tmp_path_factory.mktemp("store"), int(time.time()) // 3_600 * 3_600
    store = fill(folder, "mix", SMALLER, end_s=end_s)
    with Store(folder / "leader.duckdb", store, CATALOGUE) as written:
        for release in releases("mix", end_s=end_s):
            vector = release.vector.copy()
            vector[2:] //= 2
            written.write(replace(release, cohort=1, vector=vector))
    with client(store) as found:
        yield found


def rows(asked: TestClient, view: str, **query: Any) -> list[dict[str, Any]]:
    answer = asked.get(f"/api/v1/pages/{view}", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["rows"]
    return found


def note(asked: TestClient, view: str, **query: Any) -> str:
    return str(asked.get(f"/api/v1/pages/{view}", params=query).json()["note"])


def form(text: str) -> str:
    found = re.search(r"<form class=\"controls\".*?</form>", text, re.DOTALL)
    assert found
    return unescape(found[0])


def test_form_has_series_cohort_and_day_with_what_is_chosen(asked: TestClient) -> None:
    shown = form(asked.get("/fleet?series=mix&cohort=1&until=2030-01-02").text)
    assert 'method="get"' in shown
    assert '<option value="mix" selected>' in shown
    assert '<option value="1" selected>' in shown
    assert 'type="date" name="until" value="2030-01-02" min="' in shown
    assert re.search(r'<button type="submit">Show', shown)


def test_form_keeps_what_its_page_has_no_control_for(asked: TestClient) -> None:
    shown = form(asked.get(f"/pipeline?series={SMALLER}&cohort=3&measure=launch_share").text)
    for name, value in (("series", SMALLER), ("cohort", "3"), ("measure", "launch_share")):
        assert f'<input type="hidden" name="{name}" value="{value}">' in shown


def test_chosen_value_that_the_store_has_not_stays_chosen(asked: TestClient) -> None:
    shown = form(asked.get("/fleet?cohort=77").text)
    assert '<option value="77" selected>' in shown
    assert rows(asked, "fleet/mix", cohort=77) == []


def test_fields_that_nobody_filled_in_choose_nothing(asked: TestClient) -> None:
    empty = asked.get("/fleet?span=hour&until=&series=&cohort=")
    assert (empty.status_code, empty.text == asked.get("/fleet?span=hour").text) == (200, True)


@pytest.mark.parametrize(
    "query", ["cohort=-1", "cohort=a", "until=2030-13-01", "cohort=2147483648"]
)
def test_choice_that_cannot_be_is_refused(asked: TestClient, query: str) -> None:
    assert asked.get(f"/fleet?{query}").status_code == 422


@pytest.mark.parametrize("view", ["fleet/mix", "fleet/trend"])
def test_cohort_is_shown_by_itself(asked: TestClient, view: str) -> None:
    whole, half = (
        next(row["share"] for row in found if row["name"] == "gemm")
        for found in (rows(asked, view, cohort=0), rows(asked, view, cohort=1))
    )
    assert whole["low"] <= 0.4 <= whole["high"]
    assert half["low"] <= 0.2 <= half["high"]
    assert "cohort 1" in note(asked, view, series="mix", cohort=1)


def test_note_says_of_which_series_it_is(asked: TestClient) -> None:
    assert note(asked, "fleet/mix", series=SMALLER).startswith(f"Series {SMALLER}, ")
    assert note(asked, "fleet/mix").startswith("Series mix, ")
    assert f"{HOSTS:,} hosts in each" in note(asked, "fleet/mix", series=SMALLER)
    # One that tells of the newest point of a line says so; the table of one period has no other.
    assert ", the newest of " in note(asked, "fleet/trend")
    assert ", the newest of " not in note(asked, "fleet/mix")


def test_causes_without_a_cohort_are_those_of_the_first(asked: TestClient) -> None:
    for view in ("causes/table", "causes/cost"):
        found = rows(asked, view, series="mix", span="hour")
        keys = [(row.get("period_start"), row["name"]) for row in found]
        assert found, view
        assert len(keys) == len(set(keys)), view
        assert note(asked, view, series="mix", span="hour").startswith("Series mix, cohort 0")
        assert note(asked, view, series="mix", span="hour", cohort=1).startswith(
            "Series mix, cohort 1"
        )


def test_hour_is_the_last_sixty_minutes_beside_their_newest(asked: TestClient) -> None:
    for cohort, count in (("", 6), (1, 3)):
        mix = rows(asked, "fleet/mix", series="mix", span="hour", cohort=cohort)
        trend = rows(asked, "fleet/trend", series="mix", span="hour", cohort=cohort)
        hours = {(row["period_start"], row["name"]): row for row in trend}
        assert len(hours) == len(trend)
        starts = sorted({start for start, _ in hours})
        assert len(starts) == (4 if cohort == "" else 3)
        for row in mix:
            known = hours.get((starts[-1], row["name"]))
            assert known is None or (known["share"], known["minute"]) == (
                row["share"],
                row["minute"],
            )
            error = row["share"]["standard_error"] / row["minute"]["standard_error"]
            assert 0.55 < error < 0.9  # noise by the root of three; the grid of hosts as it was
        text = asked.get(
            "/api/v1/pages/fleet/mix", params={"series": "mix", "span": "hour", "cohort": cohort}
        ).json()
        assert text["words"].startswith(f"{count} of {count * 20} windows of the hour to ")
    assert "Newest minute" in asked.get("/fleet?span=hour").text
    assert "Newest minute" not in asked.get("/fleet?span=day").text


def test_series_that_is_none_shows_nothing(asked: TestClient) -> None:
    assert rows(asked, "fleet/mix", series="other") == []


def test_series_without_a_section_leaves_that_to_the_series_that_has_it(tmp_path: Path) -> None:
    store = fill(tmp_path, "mix", SMALLER)
    for path in store.rglob(f"series={SMALLER}/**/*.parquet"):
        table = pq.read_table(path, partitioning=None)
        if "section" in table.column_names:
            path.unlink()
            pq.write_table(table.filter(pc.field("section") != "kernel_mix"), path)
    with client(store) as asked:
        assert note(asked, "fleet/mix", series=SMALLER).startswith("Series mix, ")
        assert note(asked, "fleet/models", series=SMALLER).startswith(f"Series {SMALLER}, ")


def test_drawing_leaves_idle_time_and_most_of_the_noise_to_the_table(asked: TestClient) -> None:
    text = asked.get("/fleet").text
    panel = text[text.index('id="mix"') : text.index('id="trend"')]
    found = rows(asked, "fleet/mix")
    noise = [row["name"] for row in found if not row["share"]["told"]]
    marks = re.findall(r'data-key="([^"]*)" data-said', panel)
    assert "idle" in {row["name"] for row in found}
    assert "idle" not in marks
    assert "GPUs are idle" in panel
    assert len(noise) > NOISE_ROWS
    assert len([name for name in noise if name.replace("_", " ") in marks]) == NOISE_ROWS


def test_table_draws_the_way_of_each_row_and_files_have_numbers_alone(asked: TestClient) -> None:
    text = asked.get("/causes").text
    table = text[text.index('id="table"') :].partition("</section>")[0]
    assert '<th scope="col">Over time</th>' in table
    assert table.count('<span class="sparkline') == len(rows(asked, "causes/table"))
    assert "sparkline" not in asked.get("/api/v1/pages/causes/table.csv").text


def test_table_of_a_single_period_has_no_way_to_draw(asked: TestClient) -> None:
    text = asked.get("/pipeline").text
    assert "Released part over time" not in text


def test_rows_of_noise_are_drawn_up_to_a_number() -> None:
    frame = pd.DataFrame({"name": list("abcdefgh"), "told": [True, *[False] * 6, True]})
    assert list(drawn(frame)["name"]) == ["a", "b", "c", "d", "h"]
    assert drawn(frame[:1])["name"].item() == "a"


def test_bin_that_is_told_once_widens_no_histogram() -> None:
    cells = pd.DataFrame(
        [
            {"name": f"2^{power}..2^{power + 1} ns", "period_start": day, "told": told}
            for day in range(3)
            for power, told in ((2, day == 0), (3, False), (9, True), (10, False), (11, True))
        ]
    )

    class Reading:
        def columns(self, *_: object) -> pd.DataFrame:
            return cells

    view = HistogramView("durations", "", "duration", "duration", "")
    found = view.frame(Reading(), None)  # type: ignore[arg-type]
    assert set(found["bin"]) == {2.0**9, 2.0**10, 2.0**11}


def test_map_of_a_young_store_has_a_column_for_each_window(asked: TestClient) -> None:
    shown = rows(asked, "kernels/families")
    assert len({row["period_start"] for row in shown}) == 4  # the first window was suppressed
    assert "60 min from" in note(asked, "kernels/families")
    one_day = rows(asked, "kernels/families", span="day")
    assert {row["period_start"] for row in one_day} == {row["period_start"] for row in shown}


def test_released_part_is_drawn_and_says_how_it_was_made(asked: TestClient) -> None:
    assert "It is counted, so it has no interval" in note(asked, "pipeline/coverage")
    frame = pd.DataFrame(
        {
            "name": ["day", "hour", "hour"], "value": [0.5, 1.0, 0.0],
            "period_start": pd.to_datetime([f"2026-01-01 {at}:00" for at in ("00", "03", "00")]),
            "period_s": [86_400, 3_600, 3_600],
        }
    )  # fmt: skip
    drawing = str(PIPELINE.views[1].chart(frame))  # type: ignore[misc]
    keys = set(re.findall(r'data-key="([^"]+)"', drawing))
    starts = ("2026-01-01 00:00", "2026-01-01 03:00")
    assert keys == {f"{name}, {start}" for name in ("day", "hour") for start in starts}


def test_words_count_the_rows_that_are_noise() -> None:
    views = CauseViews("incidents", "cause", "none")
    rows = {"value": 5.0, "low": 4.0, "high": 6.0, "standard_error": 0.5}
    frame = pd.DataFrame([{"name": f"c{at}", "told": at == 0, **rows} for at in range(8)])
    assert " 7 more are mostly noise. Hosts that did not" in views._table_words(frame)
    assert " 1 more is mostly noise. Hosts that did not" in views._table_words(frame[:2])


def test_trend_of_a_single_window_is_a_table_and_says_so() -> None:
    views = CauseViews("incidents", "cause", "none")
    row = {"name": "c", "told": True, "period_s": 604_800.0, "trend": "", "value": 5.0}
    frame = pd.DataFrame([{**row, "period_start": pd.Timestamp("2026-01-01")}])
    assert views._trend_words(frame) == "There is one window of 7 days yet: a trend needs two."
    assert views._trend_chart(frame) == ""
