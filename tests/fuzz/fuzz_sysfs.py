"""Files of the kernel: sysfs, its log, its counters; a fault or a gap is told, nothing breaks."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from collectors.devices.amdgpu import AmdgpuReader
from collectors.devices.device_port import DevicesUnavailable, Field
from collectors.faults.scan import PAGE_BYTES, Smart, parse_page
from collectors.host.host_source import cpu_ticks, disks, links, memory
from collectors.host.pressure import stall_totals
from collectors.host.rdma import RdmaSource
from collectors.interface import SourceUnavailable
from collectors.records.activity import HostEvent, HostTable, Observation
from tests.faults_kit import FakeHost

_RDMA: Final = "sys/class/infiniband/mlx5_0/ports/1/counters"
_CARD: Final = "sys/class/drm/card0/device"
_MORE: Final = {
    f"{_RDMA}/port_rcv_data": "7",
    f"{_RDMA}/link_downed": "0",
    f"{_CARD}/vendor": "0x1002",
    f"{_CARD}/gpu_busy_percent": "30",
    f"{_CARD}/mem_info_vram_used": "4096",
    f"{_CARD}/unique_id": "abcdef",
    f"{_CARD}/product_name": "Instinct",
    f"{_CARD}/ras/umc_err_count": "ue: 1\nce: 2",
    f"{_CARD}/hwmon/hwmon0/temp1_input": "40000",
}
_TEXTS: Final[tuple[Callable[[bytes], object], ...]] = (
    cpu_ticks, memory, disks, links, lambda text: stall_totals(text, "cpu"),
)  # fmt: skip


class _Machine:
    """A host of files that inputs overwrite; what they wrote is put back."""

    def __init__(self, root: Path) -> None:
        self.host = FakeHost(root, smart=Smart((), 0))
        for path, text in _MORE.items():
            self.host.write(path, text)
        found = sorted(file for file in root.rglob("*") if file.is_file() and file != self.host.log)
        self.files = {file: file.read_bytes() for file in found}
        self.faults = self.host.source()
        self.cards = AmdgpuReader(root / "sys/class/drm")
        self.rdma = RdmaSource(root / "sys/class/infiniband")

    def write(self, pieces: list[bytes]) -> list[Path]:
        """Fill the files in turn, an empty piece leaves one as it is."""
        filled = []
        for file, piece in zip(self.files, pieces, strict=False):
            if piece:
                file.write_bytes(piece)
                filled.append(file)
        return filled

    def look(self) -> None:
        for record in self.host.drain(self.faults).records:
            assert isinstance(record, Observation | HostEvent | HostTable)
        with suppress(DevicesUnavailable):
            self.cards.open()
            reading = self.cards.read(0, tuple(Field))
            assert reading.id
        self.rdma.start()
        list(self.rdma.drain(1))
        list(self.rdma.drain(2))
        self.rdma.stop()


@cache
def _machine() -> _Machine:
    return _Machine(Path(tempfile.mkdtemp(prefix="pointillist-fuzz-")))


def close() -> None:
    if _machine.cache_info().currsize:
        machine = _machine()
        machine.faults.stop()
        shutil.rmtree(machine.host.root)
        _machine.cache_clear()


def fuzz(data: bytes) -> None:
    """Fill files with the input's pieces, or read it as one text, named by the first byte."""
    if not data:
        return
    content, way = data[1:], data[0] % (3 + len(_TEXTS))
    if way == 0:
        _files(content)
    elif way == 1:
        _log(content)
    elif way == 2:
        parse_page(content[:PAGE_BYTES].ljust(PAGE_BYTES, b"\0"))
    else:
        with suppress(ValueError, SourceUnavailable):  # what no kernel writes; the source says so
            _TEXTS[way - 3](content)


def _files(content: bytes) -> None:
    machine = _machine()
    filled = machine.write(content.split(b"\0"))
    try:
        machine.look()
    finally:
        for file in filled:
            file.write_bytes(machine.files[file])


def _log(content: bytes) -> None:
    machine = _machine()
    with machine.host.log.open("ab") as log:
        log.write(content + b"\n")
    machine.host.drain(machine.faults)


def seeds() -> Iterator[bytes]:
    """Give a machine as it is, records of the log, a drive's page and the counters' texts."""
    yield b"\0" + b"\0".join(_machine().files.values())
    yield b"\0" + b"\0".join(b"1" for _ in _machine().files)
    for line in (
        b"3,100,1,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n SUB=1",
        b"2,7,9,-;mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: be00000000800400",
        b"4,8,9,-;EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls",
        b"3,9,9,-;mlx5_core 0000:9c:00.0 ens1: Link down",
        b"3,9999999999999999999,9,c;pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error",
    ):
        yield b"\1" + line
    yield b"\2" + bytes([0x1F]) + bytes(159) + b"\xff" * 16
    texts = (
        b"cpu  100 20 30 400 5 1 2 3 50 0\n",
        b"MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    700 kB\n",
        b" 259 0 nvme0n1 8 0 16 4 6 0 24 2 0 70 9 0 0 0 0\n",
        b"a\nb\n  eth0: 700 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0\n",
        b"some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0 avg60=0 avg300=0 total=3\n",
    )
    yield from (bytes([3 + place]) + text for place, text in enumerate(texts))
