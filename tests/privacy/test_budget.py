"""The rolling week: held to brute force, and to the straddling cases of the design."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.budget import (
    WEEK_S,
    Entry,
    WeightChange,
    change_start,
    check_weight_changes,
    keep_from,
    may_spend,
    peak,
    spent_at,
)
from privacy.errors import ParameterError

HOUR = 3600
DAY = 86_400


def hours(count: int, weight: int = 10**6, first: int = 0, series: str = "hour") -> list[Entry]:
    return [
        Entry(series, first + i * HOUR, first + (i + 1) * HOUR, weight, 169) for i in range(count)
    ]


def brute_force(entries: list[Entry], low: int, high: int) -> Fraction:
    """The greatest sum over real t: at every end of a window, a week's shift, and between them."""
    ends = sorted({low, high, *(e.start - WEEK_S for e in entries), *(e.end for e in entries)})
    middles = [Fraction(a + b, 2) for a, b in itertools.pairwise(ends)]
    times = [t for t in [*map(Fraction, ends), *middles] if low < t < high]
    return max(
        sum((e.cost for e in entries if e.start < t + WEEK_S and t < e.end), Fraction(0))
        for t in times
    )


@st.composite
def entry(draw: st.DrawFn) -> Entry:
    length = draw(st.sampled_from([HOUR, DAY, WEEK_S, 8 * WEEK_S]))
    start = draw(st.integers(0, 60)) * HOUR * 9
    start -= start % min(length, DAY)
    windows = {HOUR: 169, DAY: 8, WEEK_S: 2, 8 * WEEK_S: 2}[length]
    return Entry("s", start, start + length, draw(st.integers(0, 10**6)), windows)


@given(st.lists(entry(), max_size=12), entry())
def test_rule_agrees_with_brute_force(entries: list[Entry], candidate: Entry) -> None:
    everything = [*entries, candidate]
    greatest = brute_force(everything, candidate.start - WEEK_S, candidate.end)
    assert may_spend(entries, candidate) is (greatest <= 1)
    low = min(e.start for e in everything) - WEEK_S
    assert peak(everything) == brute_force(everything, low, max(e.end for e in everything))


@given(st.lists(entry(), min_size=1, max_size=12))
def test_long_histories_are_judged_as_short_ones(entries: list[Entry]) -> None:
    far = 10**9
    padding = [
        Entry("far", far + i * WEEK_S * 2, far + i * WEEK_S * 2 + 1, 0, 1) for i in range(300)
    ]
    assert peak([*entries, *padding]) == peak(entries)


def test_every_hour_of_three_weeks_fits_exactly() -> None:
    entries = hours(3 * 168)
    assert peak(entries) == 1
    candidate = Entry("hour", 3 * 168 * HOUR, (3 * 168 + 1) * HOUR, 10**6, 169)
    assert may_spend(entries, candidate)
    assert spent_at(entries, 0) == Fraction(168, 169)
    assert spent_at(entries, 1) == 1


def test_a_second_series_finds_no_room() -> None:
    assert may_spend(hours(168), Entry("day", 0, DAY, 10**6 * 8 // 169, 8))
    assert not may_spend(hours(169), Entry("day", 0, DAY, 1, 8))
    assert may_spend(hours(169), Entry("hour", 169 * HOUR, 170 * HOUR, 10**6, 169))


def test_weekly_entry_straddles_the_minutes_before_and_after() -> None:
    """A week's report counts against every period that meets any part of the week."""
    half = 500_000
    minutes = [Entry("minute", 60 * i, 60 * (i + 1), half, 10_081) for i in range(2 * 10_080)]
    week = Entry("week", WEEK_S, 2 * WEEK_S, half, 2)
    assert may_spend(minutes, week)
    assert may_spend([*minutes, week], Entry("week", 2 * WEEK_S, 3 * WEEK_S, half, 2))
    # One more micro-weight anywhere near does not fit beside both.
    third = Entry("extra", 2 * WEEK_S - 60, 2 * WEEK_S, 10**6, 10_081)
    assert not may_spend([*minutes, week, Entry("week", 0, WEEK_S, half, 2)], third)


def test_boundary_of_the_rolling_week_is_half_open() -> None:
    first = Entry("once", 0, 10, 10**6, 1)
    assert not may_spend([first], Entry("once", WEEK_S, WEEK_S + 10, 1, 1))
    assert not may_spend([first], Entry("once", WEEK_S + 8, WEEK_S + 18, 1, 1))
    # [t, t + 168 h) would have to begin before 10 and end after 168 h + 10.
    assert may_spend([first], Entry("once", WEEK_S + 10, WEEK_S + 20, 10**6, 1))


def test_later_entries_count_too() -> None:
    later = Entry("once", WEEK_S // 2, WEEK_S // 2 + 10, 10**6, 1)
    assert not may_spend([later], Entry("once", 0, 10, 1, 1))


def test_joining_mid_week_brings_no_carry_over() -> None:
    entries = hours(84, first=84 * HOUR)
    assert not may_spend(entries, Entry("hour", 84 * HOUR, 85 * HOUR, 86 * 10**4, 1))


def test_exact_fractions_let_honest_plans_through() -> None:
    """Ten tenths and 10,081 shares are 1 exactly; floats would say 1.0000000000000002."""
    entries = [
        Entry(f"s{i}", 0, 60, 100_000, 1) for i in range(9)
    ]  # fmt: skip
    assert may_spend(entries, Entry("s9", 0, 60, 100_000, 1))
    assert not may_spend(entries, Entry("s9", 0, 60, 100_001, 1))


def test_many_cadences_sum_without_error() -> None:
    entries = [
        Entry("a", 0, 60, 333_333, 1),
        Entry("b", 0, 60, 333_333, 1),
        Entry("c", 0, 60, 333_333, 1),
    ]
    assert may_spend(entries, Entry("d", 0, 60, 1, 1))
    assert peak(entries) == Fraction(999_999, 10**6)
    assert peak([]) == 0


@pytest.mark.parametrize(
    "fields", [(5, 5, 1, 1), (5, 4, 1, 1), (0, 1, -1, 1), (0, 1, 10**6 + 1, 1), (0, 1, 1, 0)]
)
def test_impossible_entries_are_refused(fields: tuple[int, int, int, int]) -> None:
    with pytest.raises(ParameterError):
        Entry("s", *fields)


def test_ledger_keeps_three_weeks_and_the_longest_window() -> None:
    assert keep_from(100 * WEEK_S, 8 * WEEK_S) == 89 * WEEK_S


def test_weights_change_at_the_series_own_first_window_of_a_week() -> None:
    assert change_start(60, 1) == WEEK_S
    assert change_start(60, WEEK_S) == WEEK_S
    assert change_start(8 * WEEK_S, 3 * WEEK_S) == 8 * WEEK_S
    assert change_start(7 * HOUR, 1) == WEEK_S  # 168 h are 24 windows of 7 h
    assert change_start(5 * HOUR, 1) == 34 * 5 * HOUR


def decrease(start: int) -> WeightChange:
    return WeightChange("minute", 60, start, 300_000)


def increase(start: int) -> WeightChange:
    return WeightChange("day", DAY, start, 700_000)


WEIGHTS = {"minute": 600_000, "day": 400_000}


def test_weights_swapped_at_one_week_start_are_refused() -> None:
    week = 10 * WEEK_S
    with pytest.raises(ParameterError, match="weight increase"):
        check_weight_changes(WEIGHTS, [decrease(week), increase(week)], DAY)


def test_increase_waits_a_week_and_the_longest_cadence() -> None:
    week = 10 * WEEK_S
    with pytest.raises(ParameterError, match="weight increase"):
        check_weight_changes(WEIGHTS, [decrease(week), increase(week + WEEK_S)], DAY)
    check_weight_changes(WEIGHTS, [decrease(week), increase(week + 2 * WEEK_S)], DAY)
    with pytest.raises(ParameterError, match="weight increase"):
        check_weight_changes(WEIGHTS, [decrease(week), increase(week + 2 * WEEK_S)], 2 * WEEK_S)


def test_increase_into_free_weight_need_not_wait() -> None:
    week = 10 * WEEK_S
    check_weight_changes({"minute": 300_000}, [increase(week)], DAY)
    with pytest.raises(ParameterError, match="weight increase"):
        check_weight_changes({"minute": 300_001}, [increase(week)], DAY)


def test_decrease_alone_is_always_in_time() -> None:
    check_weight_changes(WEIGHTS, [decrease(10 * WEEK_S)], 8 * WEEK_S)


def test_change_between_week_starts_is_refused() -> None:
    with pytest.raises(ParameterError, match="first window start"):
        check_weight_changes(WEIGHTS, [decrease(10 * WEEK_S + 60)], DAY)


def test_weight_of_a_past_week_still_counts_within_the_guard() -> None:
    """A series that was heavy for one week only has spent in it: others wait for that week too."""
    week = 10 * WEEK_S
    changes = [
        WeightChange("a", 60, week, 600_000),
        WeightChange("a", 60, week + WEEK_S, 100_000),
        WeightChange("b", 60, week + 3 * WEEK_S, 700_000),
    ]
    check_weight_changes({"a": 100_000}, changes, DAY)
    with pytest.raises(ParameterError, match="weight increase"):
        check_weight_changes({"a": 100_000}, changes, 3 * WEEK_S)
