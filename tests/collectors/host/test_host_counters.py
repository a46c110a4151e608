"""Counters of /proc as text: what is read of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from collectors.host import host_source
from collectors.host.host_source import CounterFiles, HostCounters, Memory, levels_of
from collectors.kernel_files import KernelFile

STAT = "cpu  100 20 30 400 5 1 2 3 50 0\ncpu0 1 2\n"
MEMORY = """MemTotal:       1000 kB
MemFree:         100 kB
MemAvailable:    700 kB
Buffers:          10 kB
Cached:          200 kB
SwapCached:       99 kB
SReclaimable:     30 kB
"""
DISKS = """ 259 0 nvme0n1 8 0 16 4 6 0 24 2 0 70 9 0 0 0 0
 259 1 nvme0n1p1 8 0 16 4 6 0 24 2 0 60 9 0 0 0 0
 253 0 dm-0 8 0 16 4 6 0 24 2 0 50 9 0 0 0 0
"""
LINKS = """Inter-|   Receive                       |  Transmit
 face |bytes    packets errs
    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0
  eth0: 700 1 0 0 0 0 0 0 300 1 0 0 0 0 0 0
veth12: 800 1 0 0 0 0 0 0 800 1 0 0 0 0 0 0
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "net").mkdir()
    for name, text in (
        ("stat", STAT), ("meminfo", MEMORY), ("diskstats", DISKS), ("net/dev", LINKS),
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    return tmp_path


def test_host_counters_leave_out_what_others_count_already(proc: Path) -> None:
    found = CounterFiles(str(proc)).read()
    assert found.cpu == (100, 20, 30, 400, 5, 1, 2, 3)
    assert found.memory == Memory(1000 << 10, 300 << 10, 240 << 10)
    assert found.disks == {b"nvme0n1": (16 * 512, 24 * 512, 70)}
    assert found.links == {b"eth0": (700, 300)}


def test_host_counters_are_read_anew_from_open_files(proc: Path) -> None:
    files = CounterFiles(str(proc))
    files.read()
    (proc / "net/dev").write_text(LINKS.replace("eth0: 700", "eth0: 1700"))
    assert files.read().links == {b"eth0": (1700, 300)}


def test_host_levels_are_growth_and_shares() -> None:
    before = HostCounters((0,) * 8, Memory(100, 1, 1), {b"vda": (100, 0, 10)}, {b"eth0": (5, 5)})
    now = HostCounters(
        (10, 10, 20, 40, 5, 5, 5, 5),
        Memory(100, 25, 50),
        {b"vda": (50, 200, 510), b"vdb": (9, 9, 900)},
        {b"eth0": (25, 5)},
    )
    assert levels_of(now, before, 2.0) == {
        ("host_cpu", "user"): 20, ("host_cpu", "system"): 20, ("host_cpu", "iowait"): 5,
        ("host_cpu", "interrupt"): 10, ("host_cpu", "steal"): 5,
        ("host_memory", "used"): 25, ("host_memory", "cached"): 50,
        # A counter that fell counts as 0, and a disk that has just come has no growth.
        ("host_disk", "busy"): 25, ("host_disk", "read"): 0, ("host_disk", "write"): 100,
        ("host_network", "receive"): 10, ("host_network", "transmit"): 0,
    }  # fmt: skip


def test_host_counters_agree_with_another_reader() -> None:
    found, other = CounterFiles().read(), psutil.virtual_memory()
    assert found.memory.total == other.total
    assert found.memory.used == pytest.approx(other.used, rel=0.2)
    assert found.memory.cached == pytest.approx(other.cached + other.buffers, rel=0.2)
    assert {name.decode() for name in found.disks} <= set(psutil.disk_io_counters(perdisk=True))
    assert {name.decode() for name in found.links} <= set(psutil.net_io_counters(pernic=True))


@pytest.mark.parametrize(
    ("read", "text"),
    [
        ("cpu_ticks", b"cpu  1 2 3\n"), ("cpu_ticks", b"intr 1 2 3 4 5 6 7 8\n"),
        ("memory", b"MemFree: 1 kB\n"), ("disks", b" 7 0 loop0 1 2 3 4\n"),
        ("links", b"a\nb\neth0: 1 2 3\n"),
    ],
)  # fmt: skip
def test_host_counters_refuse_what_no_kernel_writes(read: str, text: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        getattr(host_source, read)(text)


def test_kernel_file_of_more_than_its_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(bytes(70_000))
    file = KernelFile(str(tmp_path / "long"))
    assert len(file.whole(70_000)) == 70_000
    with pytest.raises(ValueError, match="at most 60000"):
        file.whole(60_000)
