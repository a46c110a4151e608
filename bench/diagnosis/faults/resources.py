"""CPU, disk, memory and link: somebody takes of them what the job needs, or a limit does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from bench.diagnosis.faults.fault import LOADS, STRESS, CpuUse, Fault, Graded
from bench.diagnosis.network import LINK_MBIT, command
from bench.diagnosis.processes import SYSTEM_PYTHON

_CPU_TASKS: Final = (3, 5, 9)
"""Tasks that compete; each weighs as much as the whole job does."""
_DISK_TASKS: Final = (2, 4, 8)
_KEPT: Final = (0.5, 0.25, 0.12)
"""Share of its page cache that the job may keep."""
_ROOM: Final = 192 << 20
_MBIT: Final = 1e6 / 8


class _Contention(Fault):
    cause = "cpu_contention"
    counter = "run_delay_s"
    least = 0.02

    def meter(self) -> float:
        return self.work.job.run_delay_s()

    def withdraw(self) -> None:
        self.work.noise.set_shares(1)


class StressCpu(_Contention):
    injector = "stress_cpu"

    def inject(self) -> None:
        tasks = _CPU_TASKS[self.intensity]
        self.work.noise.set_shares(tasks)
        self.launch([STRESS, "--cpu", str(tasks), "--cpu-method", "matrixprod", "--quiet"])


class BurstyHashing(Graded, _Contention):
    injector = "bursty_hashing"
    grades = _CPU_TASKS
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
        return self._use.cores(self.watched_s())

    def meter(self) -> float:
        return self.work.job.throttled()[0]

    def withdraw(self) -> None:
        self.work.job.set_quota(None)


class LowQuota(Graded, _Throttling):
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


def waiting_s(folder: Path) -> float:
    """Time that requests have spent at the device of a folder, summed over requests.

    Raises      RuntimeError where the folder is on no block device
    """
    device = folder.stat().st_dev
    wanted = [str(os.major(device)), str(os.minor(device))]
    for line in Path("/proc/diskstats").read_text(encoding="utf-8").splitlines():
        row = line.split()
        if row[:2] == wanted:
            return int(row[13]) / 1e3
    raise RuntimeError(f"expected {folder} on a block device, found {':'.join(wanted)}")


class _Busy(Fault):
    cause = "disk_io"
    counter = "device_wait_s"
    least = 0.5

    def meter(self) -> float:
        return waiting_s(self.work.folder)


class StressDisk(_Busy):
    """stress-ng writes and reads files past the page cache."""

    injector = "stress_hdd"

    def inject(self) -> None:
        tasks = str(_DISK_TASKS[self.intensity])
        words = [STRESS, "--hdd", tasks, "--hdd-opts", "direct", "--hdd-write-size", "1M"]
        folder = ["--hdd-bytes", "64M", "--temp-path", str(self.work.folder)]
        self.launch([*words, *folder, "--quiet"])


class RandomReaders(Graded, _Busy):
    injector = "random_readers"

    grades = _DISK_TASKS
    rest = 0.0

    def apply(self, number: float) -> None:
        while self.loads < int(number):
            self.load("read", self.work.folder / "data", self.seed * 100 + self.loads)


class _Pressure(Fault):
    cause = "memory_pressure"
    counter = "limit_hits"
    least = 5.0
    _sizes: tuple[int, int] | None = None

    def meter(self) -> float:
        return self.work.job.limit_hits()

    def withdraw(self) -> None:
        self.work.job.set_memory_limit(None)

    def sizes(self) -> tuple[int, int]:
        """Return the job's (page cache, anonymous memory) in bytes, as first asked."""
        if self._sizes is None:
            anonymous = self.work.job.anonymous_bytes()
            self._sizes = max(0, self.work.job.memory_bytes() - anonymous), anonymous
        return self._sizes


class LowLimit(Graded, _Pressure):
    injector = "low_limit"

    grades = _KEPT
    rest = 1.1

    def apply(self, number: float) -> None:
        cache, anonymous = self.sizes()
        self.work.job.set_memory_limit(anonymous + round(cache * number))


class GreedyNeighbour(_Pressure):
    """stress-ng grows in the job's memory cgroup, whose limit had left it room."""

    injector = "stress_vm"

    def inject(self) -> None:
        cache, anonymous = self.sizes()
        self.work.job.set_memory_limit(cache + anonymous + _ROOM)
        size = _ROOM + round(cache * (1 - _KEPT[self.intensity]))
        words = [STRESS, "--vm", "1", "--vm-bytes", str(size), "--vm-hang", "1", "--vm-populate"]
        self.launch([*words, "--quiet"], inside=True)


class _CrossTraffic(Fault):
    cause = "nic_cross_traffic"
    counter = "link_bytes"
    least = 10e6

    def meter(self) -> float:
        return self.work.link.near.bytes_moved()


class Datagrams(_CrossTraffic):
    """Datagrams both ways at a share of the link's rate."""

    injector = "datagrams"
    shares: Final = (0.7, 0.9, 1.3)

    def inject(self) -> None:
        link = self.work.link
        rate = round(LINK_MBIT * _MBIT * self.shares[self.intensity])
        for port, other in ((link.near, link.far), (link.far, link.near)):
            self.load("receive_datagrams", other.address, namespace=other.namespace)
            seed = self.seed * 10 + len(self._launched)
            self.load("send_datagrams", other.address, rate, seed, namespace=port.namespace)


class Streams(_CrossTraffic):
    injector = "bulk_streams"
    streams: Final = (1, 2, 5)

    def inject(self) -> None:
        link = self.work.link
        for stream in range(self.streams[self.intensity]):
            for way, (port, other) in enumerate(((link.near, link.far), (link.far, link.near))):
                to = (other.address, 7300 + 2 * stream + way)
                self.load("receive_stream", *to, namespace=other.namespace)
                self.load("send_stream", *to, namespace=port.namespace)


class LowRate(Graded):
    cause = "nic_limit_or_loss"
    injector = "low_rate"
    counter = "seconds_a_gigabit"
    least = 1.0
    grades = (350.0, 180.0, 80.0)
    rest = float(LINK_MBIT)

    def meter(self) -> float:
        """Time some datagrams through the link: what a gigabit would take, not a growing sum."""
        near, far = self.work.link.ports
        words = [SYSTEM_PYTHON, "-m", LOADS, "time_datagrams", far.address]
        return float(command("ip", "netns", "exec", near.namespace, *words))

    def _rates(self) -> tuple[float, float]:
        (_, before), _, (_, during) = self._readings
        return before, during

    def apply(self, number: float) -> None:
        for port in self.work.link.ports:
            port.set_rate(number)

    def withdraw(self) -> None:
        for port in self.work.link.ports:
            port.set_rate(LINK_MBIT)


class Loss(Fault):
    cause = "nic_limit_or_loss"
    injector = "loss"
    counter = "packets_lost"
    least = 1.0
    shares: Final = (0.006, 0.012, 0.025)

    _losing = False

    def meter(self) -> float:
        if not self._losing:
            return 0.0
        return sum(port.packets_lost() for port in self.work.link.ports)

    def inject(self) -> None:
        for port in self.work.link.ports:
            port.set_loss(self.shares[self.intensity])
        self._losing = True

    def withdraw(self) -> None:
        self._losing = False
        for port in self.work.link.ports:
            port.set_loss(0)
