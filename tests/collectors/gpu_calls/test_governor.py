"""The governor against a simulated machine: what processes pay, and what the counts say."""

import random
from collections.abc import Mapping
from math import sqrt

import pytest

from collectors.gpu_calls.call_records import variance_of_sum
from collectors.gpu_calls.governor import (
    DROP_ORDER,
    SECOND,
    STEADY_ONLY,
    Governor,
    GovernorSettings,
    Period,
    ProbeLoad,
)
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import FileGroup, ProbeGroup

RUNTIME, DRIVER = 1, 2
ONE = ProcessKey(100, 1)
OTHER = ProcessKey(200, 1)
HIT_NS = 600.0
STALL_NS = 8_000_000
Rates = Mapping[tuple[FileGroup, ProcessKey], float]


def place(group: ProbeGroup, file: int = RUNTIME) -> FileGroup:
    return FileGroup(file, group)


def attached_ns(period: Period, group: ProbeGroup) -> int:
    length = period.end_ns - period.begin_ns
    if group in period.steady:
        return length
    if group in period.in_turns:
        return sum(end - start for start, end in period.windows)
    return 0


def loads(period: Period, rates: Rates, hit_ns: float = HIT_NS) -> list[ProbeLoad]:
    """What a machine with steady rates would measure."""
    found = []
    for one in {key[0] for key in rates}:
        on = attached_ns(period, one.group)
        hits = {p: round(rate * on / SECOND) for (q, p), rate in rates.items() if q == one}
        found.append(ProbeLoad(one, hits if on else {}, on, hit_ns, STALL_NS))
    return found


def paid(period: Period, rates: Rates, process: ProcessKey, hit_ns: float = HIT_NS) -> float:
    """Share of a process's wall time that a period cost, stalls included."""
    length = period.end_ns - period.begin_ns
    hits = sum(
        rate * attached_ns(period, q.group) / SECOND * hit_ns
        for (q, p), rate in rates.items()
        if p == process
    )
    files = {q for q, p in rates if p == process and q.group in period.in_turns}
    return (hits + len(files) * len(period.windows) * STALL_NS) / length


def settle(governor: Governor, rates: Rates, periods: int = 12) -> list[Period]:
    found = [governor.period(0)]
    for _ in range(periods - 1):
        found.append(governor.period(found[-1].end_ns, loads(found[-1], rates)))
    return found


def make(**settings: object) -> Governor:
    return Governor(GovernorSettings(**settings), random.Random(5).randrange)  # type: ignore[arg-type]


def test_governor_attaches_everything_where_calls_are_few() -> None:
    last = settle(make(), {(place(ProbeGroup.LAUNCH), ONE): 1_000.0})[-1]
    assert last.steady == frozenset(DROP_ORDER)
    assert last.dropped == ()
    assert last.share(ProbeGroup.LAUNCH) == 1.0


@pytest.mark.parametrize("rate", [20_000.0, 50_000.0, 200_000.0])
def test_governor_keeps_the_worst_process_under_its_share(rate: float) -> None:
    rates = {
        (place(ProbeGroup.LAUNCH), ONE): rate,
        (place(ProbeGroup.LAUNCH, DRIVER), ONE): rate,
        (place(ProbeGroup.LAUNCH), OTHER): 50.0,
        (place(ProbeGroup.COPY), ONE): 20.0,
    }
    periods = settle(make(), rates, 40)[2:]
    mean = sum(paid(period, rates, ONE) for period in periods) / len(periods)
    assert 0.001 < mean <= 0.005
    assert all(ProbeGroup.LAUNCH in period.in_turns for period in periods)
    assert all(ProbeGroup.COPY in period.steady for period in periods)


def test_governor_covers_every_instant_of_a_period_alike() -> None:
    governor = Governor(GovernorSettings(), random.Random(3).randrange)
    rates = {(place(ProbeGroup.LAUNCH), ONE): 50_000.0}
    periods = settle(governor, rates, 3_000)[5:]
    places = [0] * 10
    for period in periods:
        length = period.end_ns - period.begin_ns
        for tenth in range(10):
            at = period.begin_ns + length * (2 * tenth + 1) // 20
            places[tenth] += ProbeGroup.LAUNCH in period.attached(at)
    expected = sum(period.duty for period in periods)
    for count in places:
        assert abs(count - expected) < 5 * sqrt(expected)


def test_governor_switches_runtime_and_driver_together() -> None:
    rates = {(place(ProbeGroup.LAUNCH, file), ONE): 30_000.0 for file in (RUNTIME, DRIVER)}
    period = settle(make(), rates)[-1]
    assert period.windows
    for start, end in period.windows:
        assert ProbeGroup.LAUNCH in period.attached(start)
        assert ProbeGroup.LAUNCH not in period.attached(end)
        assert period.next_change_ns(start) == end


def test_governor_remembers_a_busy_process_that_a_late_detach_saw_silent() -> None:
    governor = make()
    busy = place(ProbeGroup.LAUNCH)
    governor.period(0)
    cut_off = governor.period(SECOND, [ProbeLoad(busy, {ONE: 100_000}, SECOND, HIT_NS, STALL_NS)])
    assert ProbeGroup.LAUNCH not in cut_off.steady
    end_ns = cut_off.end_ns
    sliver = [ProbeLoad(busy, {}, 3_000_000, HIT_NS, STALL_NS)]
    assert ProbeGroup.LAUNCH not in governor.period(end_ns, sliver).steady


def test_governor_never_attaches_names_and_memory_in_turns() -> None:
    rates = {(place(group), ONE): 40_000.0 for group in (ProbeGroup.LAUNCH, ProbeGroup.MEMORY)}
    for period in settle(make(), rates, 30):
        assert not period.in_turns & STEADY_ONLY
    assert ProbeGroup.MEMORY in period.dropped


def test_governor_drops_groups_in_the_stated_order_where_links_cannot_be_switched() -> None:
    rates = {
        (place(group), ONE): 6_000.0
        for group in (ProbeGroup.LAUNCH, ProbeGroup.COPY, ProbeGroup.OTHER)
    }
    period = settle(make(turns=frozenset()), rates, 3)[-1]
    assert period.in_turns == frozenset()
    assert period.dropped == DROP_ORDER[: len(period.dropped)]
    assert ProbeGroup.OTHER in period.dropped
    assert ProbeGroup.LAUNCH in period.steady


def test_governor_tries_dropped_groups_again_when_the_calls_have_ended() -> None:
    governor = make(turns=frozenset())
    busy = settle(governor, {(place(ProbeGroup.LAUNCH), ONE): 100_000.0}, 4)
    assert ProbeGroup.LAUNCH in busy[-1].dropped
    quiet = {(place(ProbeGroup.LAUNCH), ONE): 10.0}
    period = busy[-1]
    for _ in range(300):
        period = governor.period(period.end_ns, loads(period, quiet))
    assert period.dropped == ()


def test_governor_drops_what_no_window_can_afford() -> None:
    rates = {(place(ProbeGroup.LAUNCH), ONE): 4_000_000.0}
    period = settle(make(), rates, 4)[-1]
    assert ProbeGroup.LAUNCH in period.dropped
    assert paid(period, rates, ONE) == 0.0


def test_governor_period_follows_from_the_stall() -> None:
    rates = {(place(ProbeGroup.LAUNCH, file), ONE): 30_000.0 for file in (RUNTIME, DRIVER)}
    period = settle(make(), rates)[-1]
    assert period.end_ns - period.begin_ns == pytest.approx(2 * STALL_NS / (0.005 * 0.25))


def test_governor_cuts_a_burst_off_at_twice_the_allowance_and_pays_it_back() -> None:
    governor = make()
    first = governor.period(0)
    length = first.end_ns - first.begin_ns
    allowance = 0.005 * length
    assert not governor.over(first, {ONE: 1.9 * allowance, OTHER: 5.0})
    assert governor.over(first, {ONE: 2.1 * allowance})
    hits = round(2 * allowance / HIT_NS)
    burst = ProbeLoad(place(ProbeGroup.LAUNCH), {ONE: hits}, SECOND, HIT_NS, STALL_NS)
    second = governor.period(first.end_ns, [burst])
    assert second.predicted <= 0.1 * 0.005


def test_governor_forgets_processes_that_ended() -> None:
    governor = make()
    settle(governor, {(place(ProbeGroup.LAUNCH), ProcessKey(n, 1)): 100.0 for n in range(500)})
    period = governor.period(0)
    for _ in range(5):
        load = ProbeLoad(place(ProbeGroup.LAUNCH), {}, SECOND, HIT_NS, STALL_NS)
        period = governor.period(period.end_ns, [load])
    assert not governor._memory


def test_settings_refuse_a_budget_that_is_no_share() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 5"):
        GovernorSettings(budget=5.0)


def _runs(rate_at: list[float], duty: float, runs: int, seed: int) -> list[tuple[float, float]]:
    """Estimates of a process whose calls per tick are given, seen in random windows."""
    rng = random.Random(seed)
    ticks = 100
    window = round(duty * ticks)
    found = []
    for _ in range(runs):
        values = []
        for begin in range(0, len(rate_at), ticks):
            start = rng.randrange(ticks)
            seen = (rate_at[begin + (start + i) % ticks] for i in range(window))
            values.append(round(sum(seen)) / duty)
        found.append((sum(values), variance_of_sum(values, duty)))
    return found


@pytest.mark.parametrize(
    ("what", "rates"),
    [
        ("steady", [40.0] * 3_000),
        ("ramp", [float(tick // 20) for tick in range(3_000)]),
        ("bursts", [800.0 if tick % 90 < 5 else 0.0 for tick in range(3_000)]),
        ("one burst", [5_000.0 if 700 <= tick < 730 else 1.0 for tick in range(3_000)]),
    ],
)
def test_corrected_counts_are_unbiased_and_do_not_understate_their_variance(
    what: str, rates: list[float]
) -> None:
    runs = _runs(rates, 0.1, 1_500, seed=len(what))
    truth = sum(rates)
    mean = sum(value for value, _ in runs) / len(runs)
    spread = sum((value - mean) ** 2 for value, _ in runs) / (len(runs) - 1)
    assert abs(mean - truth) <= 4 * sqrt(spread / len(runs)) + 1e-9, what
    claimed = sum(variance for _, variance in runs) / len(runs)
    assert claimed >= 0.85 * spread, what


def test_variance_is_none_where_everything_was_seen() -> None:
    assert variance_of_sum([7.0, 9.0], 1.0) == 0.0
