"""Pages of a store that grows: the one before is handed out while the newest is drawn behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from analytics import FleetReleases
from tests.web_kit import fill
from web.access_tokens import LOCAL, SeriesOwners
from web.page_answers import PageAnswers
from web.page_list import PAGES
from web.store_reading import PageState
from web.store_watch import StoreWatch

FLEET = next(page for page in PAGES if page.name == "fleet")
END_S = 1_767_571_200
STATE = PageState(span="hour")


@pytest.fixture(autouse=True)
def _looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.store_watch.EVERY_S", 0.0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return fill(tmp_path, end_s=END_S)


@pytest.fixture
def answers(store: Path) -> Iterator[PageAnswers]:
    watch = StoreWatch(store, store.parent / "rollups", lambda: float(END_S))
    answers = PageAnswers(watch, SeriesOwners(), PAGES, behind=True)
    yield answers
    answers.close()
    watch.close()


def grow(store: Path, times: int = 1) -> None:
    """Write minutes after the ones that are there."""
    fill(store.parent, end_s=END_S + 240 * times)


def test_page_of_the_store_before_is_handed_out_until_the_newest_is_drawn(
    answers: PageAnswers, store: Path
) -> None:
    assert answers.ready_page(FLEET, STATE, LOCAL) is None
    before = answers.page(FLEET, STATE, LOCAL)
    assert answers.ready_page(FLEET, STATE, LOCAL) is before
    grow(store)
    assert answers.ready_page(FLEET, STATE, LOCAL) is before
    answers.close()
    newest = answers.ready_page(FLEET, STATE, LOCAL)
    assert newest is not None
    assert newest.tag != before.tag
    assert newest is answers.page(FLEET, STATE, LOCAL)


def test_page_of_the_store_before_is_not_handed_out_for_long(
    answers: PageAnswers, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers.page(FLEET, STATE, LOCAL)
    grow(store)
    monkeypatch.setattr("web.page_answers._OLD_S", 0.0)
    assert answers.ready_page(FLEET, STATE, LOCAL) is None


def test_numbers_are_not_handed_out_over_an_error(answers: PageAnswers, store: Path) -> None:
    assert "notice error" not in answers.page(FLEET, STATE, LOCAL).body.decode()
    (store / "simulated.json").write_text("{}")
    assert answers.ready_page(FLEET, STATE, LOCAL) is None
    assert "notice error" in answers.page(FLEET, STATE, LOCAL).body.decode()


def test_whoever_has_no_thread_behind_waits_for_the_newest(store: Path) -> None:
    watch = StoreWatch(store, store.parent / "rollups", lambda: float(END_S))
    answers = PageAnswers(watch, SeriesOwners(), PAGES)
    answers.page(FLEET, STATE, LOCAL)
    grow(store)
    assert answers.ready_page(FLEET, STATE, LOCAL) is None
    watch.close()


def test_watch_that_is_closed_has_let_thread_and_store_go(store: Path) -> None:
    watch = StoreWatch(store, store.parent / "rollups", lambda: float(END_S))
    watch.follow()
    watch.close()
    assert "store-watch" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(FileNotFoundError):
        watch.fleet()


def test_periods_without_new_windows_are_not_read_again(
    answers: PageAnswers, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[object]()
    mix = FleetReleases.mix

    def noted(fleet: FleetReleases, *given: object, **bounds: object) -> object:
        asked.append((given, bounds["since"], bounds["until"]))
        return mix(fleet, *given, **bounds)  # type: ignore[arg-type]

    monkeypatch.setattr(FleetReleases, "mix", noted)
    day = PageState(span="day")
    answers.page(FLEET, day, LOCAL)
    first, asked[:] = len(asked), []
    assert first > 0
    fill(store.parent, "another", end_s=END_S - 86_400 * 60)
    answers.page(FLEET, day, LOCAL)
    assert asked == []
    for times in (1, 2):
        grow(store, times)
        asked.clear()
        answers.page(FLEET, day, LOCAL)
        assert 0 < len(asked) <= first
