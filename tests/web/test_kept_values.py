"""What is made once, kept, dropped, and handed out while a newer one is made."""

from __future__ import annotations

import threading

import pytest

from web.kept_values import KeptValues, Patient


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


def test_patient_hands_out_the_value_before_while_a_newer_one_is_made() -> None:
    release = threading.Event()
    made: list[str] = []

    def make() -> str:
        release.wait(10)
        made.append("new")
        return "new"

    patient = Patient[str](0.001)
    assert [patient.get("a", "old", make) for _ in range(3)] == ["old"] * 3
    release.set()
    assert Patient[str](10.0).get("a", "old", lambda: "new") == "new"
    patient.close()
    assert made == ["new"]
