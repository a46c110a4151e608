"""Correction by measured rates: what it recovers, what its errors cover, what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.correction import CorrectionRefused, Rates, Reported, change, correct
from aggregator.detector import Detector, DetectorFileError
from tests.causes.causes_kit import (
    HOSTS,
    NOISE,
    WEEK_S,
    K,
    as_file,
    detector,
    drawn_reports,
    struck,
)

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
    loud = replace(detector(hours=12.0), false_incidents=np.eye(K, dtype=np.int64)[3])
    with pytest.raises(CorrectionRefused, match=r"false alarms drown .* 0.900 and 1.000 \(class 3"):
        correct(expected(TRUTH, rates), loud.rates(WEEK_S))
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
