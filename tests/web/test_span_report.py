"""The report to send round: one file, the pages' own numbers, nothing from elsewhere."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest

from pointillist.cli.output import CommandError
from pointillist.cli.root import command
from tests.web_kit import client, fill
from web.access_tokens import SeriesOwners
from web.span_report import ReportRefused, span_report
from web.store_reading import PageState

WEEK = PageState(span="week")
NOBODY = SeriesOwners()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("store"), "every-kind", "<b>own</b>")


@pytest.fixture(scope="module")
def text(store: Path) -> str:
    return span_report(store, store.parent / "rollups", WEEK, NOBODY).decode()


def test_report_has_the_pages_with_their_drawings(text: str) -> None:
    parts = re.findall(r'<div class="part" id="([a-z]+)"', text)
    assert [part for part in parts if part != "causes"] == ["fleet", "applications", "privacy"]
    assert 'id="fleet-mix"' in text
    assert "95 % interval" in text
    assert "These hosts are simulated" in text


def test_report_shows_the_very_drawing_of_the_page(store: Path, text: str) -> None:
    with client(store) as asked:
        page = asked.get("/fleet?span=week").text
    drawing = re.search(r'id="mix".*?(<svg.*?</svg>)', page, re.DOTALL)
    assert drawing
    assert drawing[1] in text


def test_report_loads_nothing_and_runs_its_own_script_alone(text: str) -> None:
    addresses = re.findall(r'(?:src|href|action)="([^"]*)"', text)
    assert [a for a in addresses if not a.startswith(("#", "data:image/svg+xml;base64,"))] == []
    policy = unescape(re.search(r'security-policy" content="([^"]*)"', text)[1])  # type: ignore[index]
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = b64encode(sha256(content.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_report_has_no_series_of_a_single_operator(store: Path) -> None:
    owners = SeriesOwners(operators={"acme": frozenset({"<b>own</b>"})})
    made = span_report(store, store.parent / "rollups", WEEK, owners).decode()
    assert "own&lt;/b&gt;" not in made
    assert "<b>own" not in made
    both = SeriesOwners(operators={"acme": frozenset({"<b>own</b>", "every-kind"})})
    with pytest.raises(ReportRefused, match=r"a series of fleet tasks.* --fleet-series"):
        span_report(store, store.parent / "rollups", WEEK, both)


def test_report_of_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportRefused, match="expected a folder of releases, got no store"):
        span_report(tmp_path / "gone", tmp_path / "rollups", WEEK, NOBODY)


@pytest.mark.parametrize("day", ["0001-01-02", "9999-12-31"])
def test_report_of_a_day_that_arithmetic_does_not_bear_is_refused(day: str, tmp_path: Path) -> None:
    asked = ["report", "--until", day, "--store", str(tmp_path), "--out", str(tmp_path / "r.html")]
    with pytest.raises(CommandError, match="years 1970 to 8999, got"):
        command()(asked, standalone_mode=False)


def test_report_command_says_what_it_wrote(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    asked = ["report", "--day", "--store", str(store), "--out", str(out), "--json"]
    command()(asked, standalone_mode=False)
    said = json.loads(capsys.readouterr().out)
    assert (said["file"], said["bytes"]) == (str(out), out.stat().st_size)
