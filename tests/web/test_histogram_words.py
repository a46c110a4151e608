"""What a histogram's view says where shares are unknown, and how its columns are named."""

from __future__ import annotations

import pandas as pd

from pages.svg import moment_said
from web.histogram_views import HistogramView, time_map

VIEW = HistogramView("durations", "How long kernels run", "duration", "duration", "of GPU time")


def frame(value: float | None, *starts: str, seconds: float = 5.0) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "name": "2^14..2^15 ns", "period_start": pd.Timestamp(start), "value": value,
                "period_s": seconds, "told": True, "standard_error": 0.01, "low": value,
                "high": value, "bin": 2.0**14,
            }
            for start in starts
        ]
    ).astype({"value": "float64", "low": "float64", "high": "float64"})  # fmt: skip


def test_histogram_names_no_share_that_is_not_known() -> None:
    said = VIEW._words(frame(None, "2026-11-23 18:18:05"))
    assert said.startswith("The shares of the newest period are not known.")
    assert "Most is at 16–33 µs (31" in VIEW._words(frame(0.31, "2026-11-23 18:18:05"))


def test_histogram_columns_of_seconds_have_names_of_their_own() -> None:
    starts = ("2026-11-23 18:18:05", "2026-11-23 18:18:10")
    drawn = time_map("t", frame(0.3, *starts), ["2^14..2^15 ns"])
    assert ">18:18:05<" in drawn
    assert ">18:18:10<" in drawn


def test_histogram_columns_of_hours_name_the_day_at_midnight() -> None:
    drawn = time_map("t", frame(0.3, "2026-11-22 21:00", "2026-11-23", seconds=10_800), ["x"])
    assert ">21:00<" in drawn
    assert ">23 Nov<" in drawn
    assert ">00:00<" not in drawn


def test_moments_of_a_column_have_seconds_where_one_has_some() -> None:
    assert moment_said(120) == "1970-01-01 00:02"
    assert moment_said(125) == "1970-01-01 00:02:05"
    assert moment_said(120, seconds=True) == "1970-01-01 00:02:00"
