"""CPU contention and throttling of the job's cgroup."""

from __future__ import annotations

from typing import Final

from bench.diagnosis.faults.fault import STRESS, CpuUse, Fault, Graded

_TASKS: Final = (3, 5, 9)
"""Tasks that compete; each weighs as much as the whole job does."""


class _Contention(Fault):
    cause = "cpu_contention"
    counter = "run_delay_s"
    least = 0.02

    def meter(self) -> float:
        return self.work.job.run_delay_s()

    def withdraw(self) -> None:
        self.work.noise.set_shares(1)


class StressCpu(_Contention):
    """stress-ng multiplies matrices."""

    injector = "stress_cpu"

    def inject(self) -> None:
        tasks = _TASKS[self.intensity]
        self.work.noise.set_shares(tasks)
        self.launch([STRESS, "--cpu", str(tasks), "--cpu-method", "matrixprod", "--quiet"])


class BurstyHashing(Graded, _Contention):
    """Own loops that hash in bursts."""

    injector = "bursty_hashing"
    grades = _TASKS
    rest = 0.0

    def apply(self, number: float) -> None:
        self.work.noise.set_shares(max(1, int(number)))
        while self.loads < int(number):
            self.load("spin", self.seed * 100 + self.loads)


class _Throttling(Fault):
    cause = "cgroup_throttling"
    counter = "throttled_periods"
    least = 0.5

    _use: CpuUse

    def watch(self) -> None:
        self._use = CpuUse(self.work.job, 0.05)
        super().watch()

    def cores_used(self) -> float:
        """What the job used in the undisturbed stretch."""
        return self._use.cores(self.watched_s())

    def meter(self) -> float:
        return self.work.job.throttled()[0]

    def withdraw(self) -> None:
        self.work.job.set_quota(None)


class LowQuota(Graded, _Throttling):
    """A quota below what the job needs."""

    injector = "low_quota"
    grades = (0.95, 0.75, 0.5)
    rest = 1.6

    def apply(self, number: float) -> None:
        self.work.job.set_quota(self.cores_used() * number)


class GreedySidecar(_Throttling):
    """stress-ng inside the job's own cgroup uses up a quota that would do for the job."""

    injector = "stress_sidecar"
    spare_cores: Final = (0.8, 0.5, 0.25)

    def inject(self) -> None:
        job, spare = self.work.job, self.spare_cores[self.intensity]
        job.set_quota(self.cores_used() + spare, period_us=50_000)
        words = [STRESS, "--cpu", "1", "--cpu-method", "int64", "--quiet"]
        self._launched.append(self.work.launch(words, job))
