"""A host of files with a kernel log of its own: what tests of hardware faults look at."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from collectors.faults.faults_source import SWEEP_NS, FaultsSource
from collectors.faults.scan import Smart
from collectors.records.activity import HostEvent, HostTable, Observation
from collectors.records.basics import FailureKind, ReadFailure

GPU, NIC, BRIDGE = "0000:1b:00.0", "0000:9c:00.0", "0000:15:01.0"
_AER = {"correctable": "COR", "nonfatal": "NONFATAL", "fatal": "FATAL"}
INTERRUPTS = " 24:  9  9  PCI-MSI  nvme0q0\n MCE:  {}  {}   Machine check exceptions\n"
ROOT_ALONE = ReadFailure(FailureKind.NO_PERMISSION, "root alone")


@dataclass
class FakeHost:
    """Healthy at first; a test writes what breaks."""

    root: Path
    smart: Smart | ReadFailure = ROOT_ALONE
    now_ns: int = 1_000_000_000_000
    seq: int = 100

    def __post_init__(self) -> None:
        self.write("sys/devices/system/edac/mc/mc0/ce_count", 3)
        self.write("sys/devices/system/edac/mc/mc0/ue_count", 0)
        self.write("proc/interrupts", INTERRUPTS.format(0, 0))
        for address, code in ((GPU, "0x030200"), (NIC, "0x020000"), (BRIDGE, "0x060400")):
            self.write(f"sys/bus/pci/devices/{address}/class", code)
            for name in _AER:
                self.aer(address, name, 2)
        self.write("sys/class/nvme/nvme0/transport", "pcie")
        self.write("sys/class/nvme/nvme0/state", "live")
        self.write("sys/class/power_supply/PSU1/type", "Mains")
        self.write("sys/class/power_supply/PSU1/online", 1)
        self.write("sys/class/power_supply/PSU1/health", "Good")
        for chip, name, file in (
            (0, "cffps2", "in1_alarm"), (1, "nct6775", "fan1_fault"), (2, "amdgpu", "temp2_fault"),
            (3, "coretemp", "temp1_fault"), (4, "jc42", "temp1_fault"),
        ):  # fmt: skip
            self.write(f"sys/class/hwmon/hwmon{chip}/name", name)
            self.write(f"sys/class/hwmon/hwmon{chip}/{file}", 0)
        self.write("sys/class/net/ens1/device/vendor", "0x15b3")
        for name, value in (("flags", "0x1003"), ("carrier", 1), ("carrier_down_count", 1)):
            self.write(f"sys/class/net/ens1/{name}", value)
        self.write("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", 0)
        self.log.write_bytes(b"")

    @property
    def log(self) -> Path:
        """The kernel's log, as a file: one line a record, as /dev/kmsg gives them."""
        return self.root / "kmsg"

    def write(self, path: str, value: object) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n", encoding="ascii")

    def aer(self, address: str, name: str, total: int) -> None:
        lines = f"Undefined 0\nDLP {total}\nTLP 0\nTOTAL_ERR_{_AER[name]} {total}"
        self.write(f"sys/bus/pci/devices/{address}/aer_dev_{name}", lines)

    def say(self, *messages: str, priority: int = 3) -> None:
        with self.log.open("a", encoding="utf-8") as stream:
            for message in messages:
                stream.write(f"{priority},{self.seq},{self.now_ns // 1000},-;{message}\n")
                stream.write(" SUBSYSTEM=test\n")
                self.seq += 1

    def source(self) -> FaultsSource:
        """Give a source of this host that looks at once and has its baseline."""
        source = FaultsSource(
            self.root, self.log, smart=lambda _device: self.smart, start=lambda work: work()
        )
        source.start()
        self.drain(source)
        return source

    def drain(self, source: FaultsSource) -> Seen:
        self.now_ns += SWEEP_NS
        return Seen(list(source.drain(self.now_ns)))


@dataclass
class Seen:
    records: list[Observation | HostEvent | HostTable]

    @property
    def cells(self) -> list[str]:
        return [one.cell for one in self.records if isinstance(one, Observation)]

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(one.name, one.key) for one in self.records if isinstance(one, HostEvent)]

    def grown(self, name: str) -> dict[tuple[str, str], int]:
        """(column, row) -> growth of a table, zeros left out."""
        return {
            (column, row): count
            for table in self.records
            if isinstance(table, HostTable) and table.name == name
            for column in table.columns
            for row, count in table.column(column).items()
            if count
        }


def make_fifo(path: Path) -> int:
    os.mkfifo(path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK)
