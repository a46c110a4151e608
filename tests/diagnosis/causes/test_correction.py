"""Correction by measured rates: what it recovers, what its errors cover, what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.statistics.correction import (
    CorrectionRefused,
    Detector,
    DetectorFileError,
    Rates,
    Reported,
    change,
    correct,
    correctable,
)
from tests.diagnosis.causes.causes_kit import (
    HOSTS,
    NOISE,
    WEEK_S,
    K,
    as_file,
    detector,
    drawn_reports,
    struck,
)

pytestmark = pytest.mark.slow

TRUTH = struck(disk_io=900, cpu_contention=300, unknown=100)


def expected(truth: np.ndarray, rates: Rates, hosts: int = HOSTS) -> Reported:
    told = truth @ rates.detection + (hosts - truth.sum()) * rates.false_alarm
    return Reported(hosts, told, np.full(K, NOISE))


def test_correction_recovers_the_true_hosts_from_what_is_expected_of_them() -> None:
    rates = detector().rates(WEEK_S)
    found = correct(expected(TRUTH, rates), rates)
    assert found.share * HOSTS == pytest.approx(TRUTH, abs=1e-6)
    assert (found.low <= found.share).all()
    assert (found.high >= found.share).all()


def test_correction_error_covers_noise_and_the_detectors_chance() -> None:
    one, rng = detector(runs=10**7), np.random.default_rng(5)
    rates = one.rates(WEEK_S)
    found = [correct(drawn_reports(TRUTH, one, rng), rates) for _ in range(1500)]
    shares = np.array([each.share for each in found])
    errors = np.array([each.standard_error for each in found])
    assert shares.mean(axis=0) * HOSTS == pytest.approx(TRUTH, abs=4 * 30 / 1500**0.5)
    assert shares.std(axis=0) == pytest.approx(errors.mean(axis=0), rel=0.08)


def redrawn(one: Detector, rng: np.random.Generator) -> Detector:
    """The same detector, measured once more in as many runs."""
    counts = [
        rng.multinomial(n, [*row / n, 1 - row.sum() / n])[:K]
        for n, row in zip(one.trials, one.counts, strict=True)
    ]
    return replace(one, counts=np.array(counts))


def coverage(truth: np.ndarray, runs: int, *, doubt: bool) -> float:
    """How often intervals hold the truth where the matrix comes from few runs."""
    real, rng, held = detector(runs=runs), np.random.default_rng(3), []
    for _ in range(300):
        rates = redrawn(real, rng).rates(WEEK_S)
        if not doubt:
            rates = replace(rates, trials=rates.trials * 10**6, counts=rates.counts * 10**6)
        found = correct(drawn_reports(truth, real, rng), rates)
        held.append((found.low * HOSTS <= truth) & (truth <= found.high * HOSTS))
    return float(np.mean(held))


def test_interval_holds_the_truth_although_the_matrix_is_known_from_few_runs() -> None:
    truth = struck(disk_io=2000, cpu_contention=1000, gpu_shared=500)
    assert coverage(truth, runs=20, doubt=True) > 0.93
    assert coverage(truth, runs=20, doubt=False) < 0.90


def test_interval_reaches_down_to_none_where_false_alarms_could_be_everything() -> None:
    """Twelve quiet worker-hours say little about a week of 168."""
    short = replace(detector(hours=12.0), false_incidents=np.zeros(K, dtype=np.int64))
    long = replace(short, worker_hours=1e7)
    reported = expected(TRUTH, short.rates(WEEK_S))
    found, sharp = (correct(reported, one.rates(WEEK_S)) for one in (short, long))
    disk = int(np.argmax(TRUTH))
    assert found.low[disk] * HOSTS < 1
    assert found.false_high[disk] >= found.share[disk]
    assert sharp.low[disk] * HOSTS > 700
    assert found.share == pytest.approx(sharp.share)
    assert found.high == pytest.approx(sharp.high)
    empty = int(np.argmin(TRUTH))
    assert found.low[empty] == pytest.approx(-1.96 * found.standard_error[empty], rel=1e-3)


def with_three_lost_causes(runs: int) -> Detector:
    """One cause that was never told rightly, one without runs, one that false alarms drown."""
    one = detector(runs=runs)
    trials, counts = one.trials.copy(), one.counts.copy()
    counts[LOST[0]] = 0
    counts[LOST[0], LOST[0] - 1] = round(0.8 * runs)
    trials[LOST[1]], counts[LOST[1]] = 0, 0
    alarms = one.false_incidents.copy()
    alarms[LOST[2]] = round(4 * one.worker_hours / 168)
    return replace(one, trials=trials, counts=counts, false_incidents=alarms)


LOST = (10, 6, 3)


def test_causes_that_cannot_be_corrected_leave_the_others_right() -> None:
    one, rng = with_three_lost_causes(10**6), np.random.default_rng(11)
    rates = one.rates(WEEK_S)
    assert np.flatnonzero(~correctable(rates)).tolist() == sorted(LOST)
    truth = struck(cpu_contention=900, memory_pressure=300, unknown=100)
    drawn = [drawn_reports(truth, one, rng) for _ in range(400)]
    found = [correct(reports, rates) for reports in drawn]
    kept = correctable(rates)
    shares = np.array([each.share for each in found])
    errors = np.array([each.standard_error for each in found])
    assert shares.mean(axis=0)[kept] * HOSTS == pytest.approx(truth[kept], abs=4 * 30 / 400**0.5)
    assert shares.std(axis=0)[kept] == pytest.approx(errors.mean(axis=0)[kept], rel=0.15)
    for reports, each in zip(drawn, found, strict=True):
        assert each.share[~kept] == pytest.approx(reports.share[~kept])
        assert each.standard_error[~kept] * HOSTS == pytest.approx(NOISE)


def test_hosts_of_a_cause_never_told_rightly_stay_in_the_cause_they_are_taken_for() -> None:
    one = with_three_lost_causes(10**6)
    rates = one.rates(WEEK_S)
    plain, hidden = struck(cpu_contention=500), struck(cpu_contention=500, communication_wait=400)
    without, found = (correct(expected(truth, rates), rates) for truth in (plain, hidden))
    taken_for, moved = LOST[0] - 1, (found.share - without.share) * HOSTS
    assert moved[taken_for] == pytest.approx(0.8 * 400 / 0.9, rel=0.01)
    assert np.abs(np.delete(moved, [taken_for, *LOST])).max() < 25


def test_interval_of_a_cause_told_rightly_in_every_one_of_few_runs_reaches_far_up() -> None:
    """Right in 3 of 3 may still be right in half: most of such causes' hosts lie above."""
    truth, held = struck(disk_io=1000), []
    for right in (0.5, 0.7, 0.9):
        real, rng = detector(runs=1000, right=right), np.random.default_rng(13)
        for _ in range(120):
            few = rng.binomial(3, right)
            if not few:
                continue
            trials = np.zeros(K, dtype=np.int64)
            counts = np.zeros((K, K), dtype=np.int64)
            trials[3], counts[3, 3] = 3, few
            rates = replace(real, trials=trials, counts=counts).rates(WEEK_S)
            found = correct(drawn_reports(truth, real, rng), rates)
            held.append(found.low[3] * HOSTS <= 1000 <= found.high[3] * HOSTS)
    assert np.mean(held) > 0.95


def test_cause_with_too_few_runs_or_drowned_by_false_alarms_is_not_correctable() -> None:
    loud = replace(detector(hours=12.0), false_incidents=np.eye(K, dtype=np.int64)[3])
    assert np.flatnonzero(~correctable(loud.rates(WEEK_S))).tolist() == [3]
    assert correctable(loud.rates(60)).all()
    assert not correctable(detector(runs=2, right=1.0).rates(WEEK_S)).any()
    assert not correctable(Rates.perfect(K)).any()


def test_change_is_told_more_sharply_than_the_level() -> None:
    one = detector(runs=20, hours=500.0)
    rates = one.rates(WEEK_S)
    before, now = expected(TRUTH, rates), expected(TRUTH + struck(disk_io=200), rates)
    moved, error = change(now, before, rates)
    assert moved * HOSTS == pytest.approx(struck(disk_io=200), abs=1e-6)
    level = correct(now, rates)
    disk = int(np.argmax(TRUTH))
    assert error[disk] < level.standard_error[disk]
    assert error[disk] * HOSTS > NOISE * 2**0.5


def test_change_of_nothing_stays_within_its_error() -> None:
    one, rng = detector(), np.random.default_rng(7)
    rates = one.rates(WEEK_S)
    z = [
        np.divide(*change(drawn_reports(TRUTH, one, rng), drawn_reports(TRUTH, one, rng), rates))
        for _ in range(300)
    ]
    assert np.std(z) == pytest.approx(1.0, abs=0.08)


def test_useless_detector_is_refused() -> None:
    blind = detector(right=0.0)
    rates = replace(blind.rates(WEEK_S), detection=np.full((K, K), 1 / K))
    with pytest.raises(CorrectionRefused, match="too badly"):
        correct(expected(TRUTH, rates), rates)
    with pytest.raises(ValueError, match="probabilities"):
        correct(expected(TRUTH, rates), replace(rates, detection=np.eye(K) * 1.2))
    with pytest.raises(ValueError, match="detection matrix"):
        correct(expected(TRUTH, rates), Rates.perfect(K - 1))


def test_rates_of_a_window_follow_its_length_and_the_hours() -> None:
    one = replace(detector(), worker_hours=168.0, false_incidents=np.full(K, 1, dtype=np.int64))
    rates = one.rates(WEEK_S)
    assert rates.false_alarm[0] == pytest.approx(1 - np.exp(-1))
    assert rates.false_alarm_low[0] == pytest.approx(1 - np.exp(-0.02532), rel=1e-3)
    assert rates.false_alarm_high[0] == pytest.approx(1 - np.exp(-5.572), rel=1e-3)
    assert one.rates(3600).false_alarm[0] == pytest.approx(1 / 168, rel=0.01)
    unheard = replace(one, worker_hours=0.0, false_incidents=np.zeros(K, dtype=np.int64))
    assert (unheard.rates(WEEK_S).false_alarm_high == 1).all()


def test_class_without_runs_is_taken_as_reported() -> None:
    one = detector()
    trials, counts = one.trials.copy(), one.counts.copy()
    trials[6] = 0
    counts[6] = 0
    rates = replace(one, trials=trials, counts=counts).rates(WEEK_S)
    assert rates.detection[6].tolist() == np.eye(K)[6].tolist()


def test_file_gives_the_detector_back(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(as_file(detector())))
    read = Detector.load(path)
    assert read.classes == detector().classes
    assert (read.counts == detector().counts).all()
    path.write_bytes(b" " * (1 << 19))
    with pytest.raises(DetectorFileError, match="bytes"):
        Detector.load(path)


WRONG: dict[str, dict[str, Any]] = {
    "format": {"format": 2},
    "keys": {"more": 1},
    "rows that sum": {"trials": [0] * K},
    "counts": {"counts": [[0] * K] * (K - 1)},
    "trials": {"trials": [-1] * K},
    "classes": {"classes": ["one"] * K},
    "worker_hours": {"worker_hours": float("nan")},
    "no worker-hours": {"worker_hours": 0},
    "model": {"model": ""},
    "false_incidents": {"false_incidents": [True] * K},
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_file_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(as_file(detector()) | WRONG[what]))
    with pytest.raises(DetectorFileError, match=what):
        Detector.load(path)
