"""Frames of one subject that is fast, then slow: what tests of the host's side are shown."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collectors.records.activity import StepSource
from diagnosis.frames.frame import FINE_BINS, HostSample, Steps, Subject
from diagnosis.frames.signals import FINE

S = 1_000_000_000
BOOT = 7_000 * S
SUBJECT = "/train/rank0"
STEPS = 100


def frames_of_contention(seconds: int, slow_from: int, slow_until: int) -> Iterator[HostSample]:
    """Give a frame a second; while it is slow every tenth step waits for a CPU another took."""
    rng = np.random.default_rng(7)
    for number in range(1, seconds + 1):
        slow = slow_from <= number < slow_until
        yield _frame(number, slow, rng)


def _frame(number: int, slow: bool, rng: np.random.Generator) -> HostSample:
    end_ns = BOOT + number * S
    ms = rng.normal(9.0, 0.2, STEPS)
    if slow:
        ms[::10] += 25.0
    duration_ns = (ms * 1e6).astype(np.int64)
    ended_ns = end_ns - S + np.arange(1, STEPS + 1) * (S // STEPS)
    delay = (900.0 if slow else 4.0) * float(rng.normal(1.0, 0.05))
    own = {"run_delay_ms_per_s": delay, "cpu_ms_per_s": 700.0, "throttled_ms_per_s": 0.0}
    host = {"run_delay_ms_per_s": 3 * delay, "cpu_ms_per_s": 1900.0 if slow else 800.0}
    fine = np.full((len(FINE), FINE_BINS), np.nan, np.float32)
    fine[FINE.index("run_delay_ms_per_s")] = host["run_delay_ms_per_s"]
    thief = {"cpu_ms_per_s": 1100.0 if slow else 1.0, "run_delay_ms_per_s": 2 * delay}
    steps = Steps(StepSource.UPROBE, ended_ns.astype(np.int64), duration_ns)
    subject = Subject(SUBJECT, "trainer", own, steps, None)
    cgroups = {SUBJECT: own, "/others/thief": thief}
    return HostSample(end_ns, S, host, fine, {SUBJECT: subject}, cgroups)
