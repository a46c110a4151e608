"""What is made once, kept, dropped, and handed out while a newer one is made."""

from __future__ import annotations

import threading

import pytest

from web.page_answers import KeptValues, MadeBehind


def test_value_is_made_once_however_many_ask_at_a_time() -> None:
    kept = KeptValues[str](1_000, len)
    made: list[str] = []
    entered, release = threading.Event(), threading.Event()

    def make() -> str:
        entered.set()
        release.wait(10)
        made.append("made")
        return "value"

    found: list[str] = []
    asking = [threading.Thread(target=lambda: found.append(kept.get("a", make))) for _ in range(5)]
    for thread in asking:
        thread.start()
    entered.wait(10)
    release.set()
    for thread in asking:
        thread.join(10)
    assert (made, found) == (["made"], ["value"] * 5)


def test_least_used_values_are_dropped_beyond_their_bytes() -> None:
    kept = KeptValues[str](10, len)
    for key in "abc":
        kept.get(key, lambda: "12345")
        kept.find("a")
    assert [kept.find(key) for key in "abc"] == ["12345", None, "12345"]


def test_what_could_not_be_made_is_made_at_the_next_time() -> None:
    kept = KeptValues[str](10, len)
    with pytest.raises(OSError, match="away"):
        kept.get("a", _away)
    assert kept.get("a", lambda: "back") == "back"


def _away() -> str:
    raise OSError("away")


def test_value_that_was_let_go_makes_room() -> None:
    kept = KeptValues[str](10, len)
    for key in "abc":
        kept.get(key, lambda: "12345")
        kept.drop("a")
        kept.drop("never kept")
    assert [kept.find(key) for key in "abc"] == [None, "12345", "12345"]


def test_what_is_asked_for_behind_is_made_once_while_it_waits() -> None:
    behind, made = MadeBehind(), list[str]()
    entered, release = threading.Event(), threading.Event()

    def first() -> None:
        entered.set()
        release.wait(10)
        made.append("first")

    behind.ask("a", first)
    entered.wait(10)
    # It may be that what changed meanwhile is not in what is being made: that is asked for again.
    for _ in range(3):
        behind.ask("a", lambda: made.append("again"))
    behind.ask("b", _away)
    behind.ask("c", lambda: made.append("after a failure"))
    release.set()
    behind.close()
    assert made == ["first", "again", "after a failure"]
