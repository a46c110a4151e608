"""Detectors with known rates, and reports of fleets whose true causes are known."""

from __future__ import annotations

import numpy as np

from aggregator.statistics.causes import CauseWindow
from aggregator.statistics.correction import Detector, Reported
from aggregator.statistics.ratios import Floats
from diagnosis.detect.findings import Cause

CLASSES = tuple(Cause)
K = len(CLASSES)
MODEL = "causes 3 0123456789abcdef"
WEEK_S = 604_800
HOSTS = 10_000
NOISE = 20.0


def detector(
    runs: int = 100, right: float = 0.9, hours: float = 1e7, model: str = MODEL
) -> Detector:
    """One that takes each class for the next now and then, and misses some."""
    counts = np.diag(np.full(K, round(right * runs))).astype(np.int64)
    counts[np.arange(K), (np.arange(K) + 1) % K] = round((1 - right) / 2 * runs)
    alarms = np.full(K, round(0.002 * hours / 168), dtype=np.int64)
    return Detector(
        model, CLASSES, np.full(K, runs, dtype=np.int64), counts, hours, alarms, "made up"
    )


def as_file(one: Detector) -> dict[str, object]:
    return {
        "format": 1, "model": one.model, "section": "incidents", "classes": list(one.classes),
        "trials": one.trials.tolist(), "counts": one.counts.tolist(),
        "worker_hours": one.worker_hours, "false_incidents": one.false_incidents.tolist(),
        "about": one.about,
    }  # fmt: skip


def drawn_reports(
    truth: Floats, one: Detector, rng: np.random.Generator, hosts: int = HOSTS, noise: float = NOISE
) -> Reported:
    """What a fleet releases whose hosts have these causes, one each at most."""
    rates = one.rates(WEEK_S)
    told = np.zeros(K)
    for count, row in zip(truth, rates.detection, strict=True):
        told += rng.multinomial(int(count), [*row, max(1 - row.sum(), 0)])[:K]
    told += rng.binomial(hosts - int(truth.sum()), rates.false_alarm)
    return Reported(hosts, told + noise * rng.normal(size=K), np.full(K, noise))


def week(reported: Reported, number: int = 1) -> CauseWindow:
    return CauseWindow(
        "week", 0, number * WEEK_S, WEEK_S, "incidents", tuple(map(str, CLASSES)), reported
    )


def struck(**hosts: float) -> Floats:
    return np.array([float(hosts.get(cause.value, 0)) for cause in CLASSES])
