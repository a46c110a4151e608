"""The Privacy page: cohorts by the release rule, and words that say what the documentation says."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from aggregator.enrolment.tasks import TASK_SUFFIX
from aggregator.protocol.released import SuppressedWindow
from aggregator.releases.store import Store
from pages.threat_words import THREATS, THREATS_IN_SHORT
from tests.aggregator.releases.release_kit import CATALOGUE, make_task, window
from tests.protocol_kit import SERIES, T0, WINDOW_S, build_world
from tests.web_kit import add_token, client, fill
from web.access_tokens import SeriesOwners
from web.page_shape import Role
from web.span_report import span_report
from web.store_reading import PageState

ROOT = Path(__file__).resolve().parents[2]
API = "/api/v1/pages/privacy"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cohorts of a series of the fleet, and one of a single operator's."""
    folder = tmp_path_factory.mktemp("cohorts")
    with Store(folder / "leader.duckdb", folder / "releases", CATALOGUE) as kept:
        for series, domain, cohort, hosts in (
            (SERIES, "fleet", 0, 3_000), (SERIES, "fleet", 1, 2_000),
            ("acme-mix", "operator", 0, 1_000),
        ):  # fmt: skip
            task = replace(make_task(4, domain=domain, start=T0), series=series)
            vector = np.zeros(task.d, dtype=np.int64)
            for number in range(2):
                vector[:2] = hosts + number
                kept.write(window(task, vector, hosts + number, T0 + number * WINDOW_S, cohort))
        end = T0 + 2 * WINDOW_S
        kept.suppress(
            SuppressedWindow(SERIES, 1, end, WINDOW_S, 1, "operators", 5, 18, float(end + WINDOW_S))
        )
    return folder / "releases"


def cohorts(asked: TestClient, header: dict[str, str] | None = None) -> dict[str, list[object]]:
    rows = asked.get(f"{API}/cohorts", headers=header).json()["rows"]
    names = ("hosts_released", "windows_released", "windows_suppressed", "n_min", "operators")
    return {f"{row['series']}/{row['cohort']}": [row[name] for name in names] for row in rows}


def test_cohorts_have_their_hosts_and_how_their_windows_ended(store: Path) -> None:
    with client(store) as asked:
        found = cohorts(asked)
        page = unescape(asked.get("/privacy").text)
    assert found == {
        f"{SERIES}/0": [3_000, 2, 0, None, None],
        f"{SERIES}/1": [2_000, 2, 1, 18, None],
        "acme-mix/0": [1_000, 2, 0, None, None],
    }
    assert "A cohort is a fixed part of the fleet" in page
    assert "one operator alone" in page


def test_signed_tasks_say_what_a_release_needs(store: Path, tmp_path: Path) -> None:
    world = build_world(9)
    (tmp_path / f"minute{TASK_SUFFIX}").write_bytes(world.task_bytes)
    with client(store, task_dir=tmp_path) as asked:
        found = cohorts(asked)
        budget = {row["series"]: row for row in asked.get(f"{API}/budget").json()["rows"]}
    assert found[f"{SERIES}/0"][3:] == [8, 3]
    assert found["acme-mix/0"][3:] == [None, None]
    assert budget[SERIES]["weight"] == pytest.approx(0.5)


def test_cohorts_are_shown_by_the_release_rule(store: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    owners = SeriesOwners(frozenset({SERIES}), {"acme": frozenset({"acme-mix"})})
    both = {f"{SERIES}/0", f"{SERIES}/1"}
    with client(store, token_file=tokens, owners=owners) as asked:
        for name, role, operator, seen in (
            ("eve", Role.AUDITOR, None, both),
            ("z1", Role.OPERATOR, "zeta", both),
            ("a1", Role.OPERATOR, "acme", both | {"acme-mix/0"}),
        ):
            assert set(cohorts(asked, add_token(tokens, name, role, operator))) == seen


def test_store_without_an_end_of_a_window_has_no_cohort(tmp_path: Path) -> None:
    with client(tmp_path) as asked:
        assert asked.get(f"{API}/cohorts").json()["rows"] == []


def test_plain_words_are_short_for_rows_of_the_threat_model() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    known = {row.strip() for row in re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)}
    known |= set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    named = [row for party in THREATS for row in party.rows]
    assert [row for row in named if row not in known] == []
    # Whom the page of the protocol names, a stranger finds here.
    for party in ("Leader", "Helper", "**Leader with Helper**", "Broker", "Reader of releases"):
        assert party in named


def test_words_name_no_number_that_a_plan_decides() -> None:
    texts = [THREATS_IN_SHORT, *(f"{p.learns}{p.hidden}{p.worst}" for p in THREATS)]
    assert [text for text in texts if re.search(r"\d", text)] == []


def test_page_says_who_learns_what(store: Path) -> None:
    with client(store) as asked:
        page = unescape(asked.get("/privacy").text)
        rows = asked.get(f"{API}/threats").json()["rows"]
    assert [row["who"] for row in rows] == [party.who for party in THREATS]
    assert all(party.worst in page for party in THREATS)


def test_report_to_send_round_has_the_words_and_no_button(tmp_path: Path) -> None:
    store = fill(tmp_path)
    report = span_report(
        store, tmp_path / "rollups", PageState(span="day"), SeriesOwners()
    ).decode()
    assert THREATS[0].who in report
    assert 'class="action"' not in report
