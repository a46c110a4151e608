"""A started source of GPU time, and a process's end of it that is written by hand."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from collectors.boot_clock import boottime_ns
from collectors.devices.devices_source import GpuUsers
from collectors.gpu_time.gpu_time_source import GpuTimeSection, GpuTimeSource
from collectors.gpu_time.listener import HELLO, LEASE, MAGIC, VERSION
from collectors.gpu_time.segment import RecordingState, RowKind
from collectors.records.activity import GpuCoverage, KernelActivity
from collectors.records.gpu_time import GpuTimes, TimedProcess
from tests.segment_kit import FakeMemory


class Followed:
    def __init__(self, path: Path, gpus: int = 2) -> None:
        self.path, self.users = path, GpuUsers()
        self.source = GpuTimeSource(GpuTimeSection(True, path), gpus, self.users)
        self.source.start()
        self.activity: list[KernelActivity] = []
        self.coverage: list[GpuCoverage] = []
        self.times: list[TimedProcess] = []

    def drain(self) -> None:
        for record in self.source.drain(boottime_ns()):
            if isinstance(record, KernelActivity):
                self.activity.append(record)
            elif isinstance(record, GpuCoverage):
                self.coverage.append(record)
            elif isinstance(record, GpuTimes):
                self.times += [process for process in record.processes if process.span_ns]

    def launches(self) -> float:
        return sum(1e6 * one.count / one.sampling_rate_millionths for one in self.activity)

    def reporting(self) -> int:
        return len(self.source._processes)

    def recording(self) -> bool:
        (process,) = self.source._processes
        return process.reporter.segment.read().header["state"] == RecordingState.ON


class FakeLibrary:
    """A process's end, written by hand: this process, as the kernel says."""

    def __init__(self, path: Path) -> None:
        self.memory = FakeMemory()
        self.header = {"rows_used": 1, "names_used": 0, "state": int(RecordingState.OFF)}
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(10)
        self.connection.connect(str(path))
        hello = HELLO.pack(MAGIC, VERSION, os.getpid(), 0)
        socket.send_fds(self.connection, [hello], [self.memory.descriptor])

    def lease(self) -> tuple[int, ...]:
        return LEASE.unpack(self.connection.recv(64))

    def head(self, **fields: int) -> None:
        self.header |= fields
        self.memory.head(**self.header)

    def launched(self, launches: int, ns: int = 0) -> None:
        row = {"kind": RowKind.KERNEL, "count": launches, "total_ns": ns}
        self.memory.rows(("gemm", row))
        self.head(rows_used=2, names_used=5, launches=launches, numbered=launches,
                  windows=1, records=launches, on_ns=launches)  # fmt: skip

    def close(self) -> None:
        self.connection.close()
        self.memory.close()
