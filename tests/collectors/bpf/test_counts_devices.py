"""Interrupts, block I/O, network and memory under known loads against the kernel's own counters.

Counters that the whole machine moves are read on both sides of each drain: what the programs
counted lies between the growth of the inner and of the outer pair.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pytest

from collectors.ebpf.ebpf_source import EbpfSource
from collectors.ebpf.ebpf_tables import SOFTIRQ_VECTORS
from tests.bpf_kit import (
    Load,
    Seen,
    cgroup,
    device_interrupts,
    diskstats,
    drain,
    page_faults,
    softirqs,
)
from tests.bpf_loads import LOSSY

pytestmark = [pytest.mark.root, pytest.mark.kernel]

MEGABYTE = 1 << 20
_T = TypeVar("_T")


@dataclass(frozen=True)
class Bracket(Generic[_T]):
    """A counter around two drains: outer[0], drain, inner[0], load, inner[1], drain, outer[1]."""

    outer: tuple[_T, _T]
    inner: tuple[_T, _T]
    seen: Seen


def bracket(source: EbpfSource, counter: Callable[[], _T], load: Load) -> Bracket[_T]:
    first = counter()
    drain(source)
    second = counter()
    load.go()
    load.wait()
    third = counter()
    seen = drain(source)
    fourth = counter()
    load.end()
    return Bracket((first, fourth), (second, third), seen)


def test_softirq_counts_equal_proc_softirqs(either_source: EbpfSource, tmp_path: Path) -> None:
    found = bracket(either_source, softirqs, Load("tcp", 4 * MEGABYTE, cwd=tmp_path))
    counted = np.array([found.seen.total(f"softirq_count_{v}") for v in SOFTIRQ_VECTORS])
    running = os.cpu_count() or 1  # the kernel counts at a handler's begin, the program at its end
    assert (counted >= found.inner[1] - found.inner[0] - running).all()
    assert (counted <= found.outer[1] - found.outer[0] + running).all()
    assert counted[SOFTIRQ_VECTORS.index("net_rx")] >= 100
    assert found.seen.total("softirq_ns_net_rx") > 0


def test_interrupt_counts_equal_proc_interrupts(either_source: EbpfSource, tmp_path: Path) -> None:
    found = bracket(either_source, device_interrupts, Load("write", 4, cwd=tmp_path))
    counted = found.seen.total("irq_count")
    assert found.inner[1] - found.inner[0] - 2 <= counted <= found.outer[1] - found.outer[0] + 2
    assert counted > 0
    assert found.seen.total("irq_ns") > 0


def test_block_counts_and_bytes_equal_diskstats(either_source: EbpfSource, tmp_path: Path) -> None:
    device = _disk_of(tmp_path)
    found = bracket(either_source, lambda: diskstats(device), Load("write", 8, cwd=tmp_path))
    row = found.seen.row("device", device)
    # Others write beside it, and a request is in our count a moment before diskstats has it.
    running = os.cpu_count() or 1
    for column, one in (
        ("reads", 1),
        ("writes", 1),
        ("read_bytes", MEGABYTE),
        ("write_bytes", MEGABYTE),
    ):
        least = found.inner[1][column] - found.inner[0][column]
        most = found.outer[1][column] - found.outer[0][column]
        assert least - running * one <= row[column] <= most + running * one, column
    assert row["read_bytes"] >= 8 * MEGABYTE
    assert row["write_bytes"] >= 8 * MEGABYTE
    assert row["total_ns"] > 0


def test_block_time_equals_diskstats_and_has_its_queue_part(
    source: EbpfSource, tmp_path: Path
) -> None:
    device = _disk_of(tmp_path)
    found = bracket(source, lambda: diskstats(device), Load("write", 8, cwd=tmp_path))
    row = found.seen.row("device", device)
    # diskstats gives milliseconds; flushes are in our time and not in its reads and writes.
    ms = found.inner[1]["ms"] - found.inner[0]["ms"]
    assert row["total_ns"] / 1e6 >= 0.95 * ms - 10
    assert row["queue_ns"] <= row["total_ns"]
    requests = row["reads"] + row["writes"] + row["others"]
    assert sum(n for name, n in row.items() if name.startswith("latency_log2_us")) == requests
    by_cgroup = found.seen.tables["block_cgroup"].column("read_bytes")
    # Tables are read a moment after the totals, and others read meanwhile.
    later = sum(by_cgroup.values()) - found.seen.total("block_read_bytes")
    assert 0 <= later <= MEGABYTE


def test_socket_bytes_are_exact_by_cgroup_and_peer(source: EbpfSource, tmp_path: Path) -> None:
    size = 3 * MEGABYTE + 17
    with cgroup("cpu") as group:
        load = Load("tcp", size, (group,), cwd=tmp_path)
        drain(source)
        load.go()
        said = load.wait()
        seen = drain(source)
        load.end()
    # tcpi_bytes_acked counts the SYN as one; what is in flight at the end is not yet in it.
    _, acked, received = said[0].split()
    assert received == str(size)
    assert size - 16_384 <= int(acked) - 1 <= size
    row = seen.row("cgroup", group.name)
    assert (row["send_bytes"], row["receive_bytes"]) == (size, size)
    peer = seen.row("peer", "127.0.0.1")
    assert peer["send_bytes"] >= size
    assert peer["receive_bytes"] >= size
    assert seen.total("net_send_queue_bytes") > 0


def test_retransmits_equal_snmp_of_the_namespace(source: EbpfSource, tmp_path: Path) -> None:
    load = Load("lose", 60_000, (), "unshare", "--net", cwd=tmp_path)
    found = bracket(source, load.retransmits, load)
    again = found.inner[1] - found.inner[0]
    assert again >= 3
    counted = found.seen.row("peer", LOSSY)["retransmits"]
    assert again <= counted <= found.outer[1] - found.outer[0] + 2
    assert found.seen.total("tcp_retransmits") >= again


def test_page_faults_lie_between_the_process_and_the_machine(
    either_source: EbpfSource, tmp_path: Path
) -> None:
    found = bracket(either_source, page_faults, Load("touch", 5_000, cwd=tmp_path))
    # The machine's counter also has the faults that the kernel takes on a user's page.
    assert 5_000 <= found.seen.total("page_faults") <= found.outer[1] - found.outer[0] + 50


def test_page_faults_equal_those_of_the_process(source: EbpfSource, tmp_path: Path) -> None:
    with cgroup("cpu") as group:
        load = Load("touch", 5_000, (group,), cwd=tmp_path)
        before = load.faults()
        drain(source)
        load.go()
        load.wait()
        seen = drain(source)
        faults = load.faults() - before
        load.end()
    assert faults >= 5_000
    assert abs(seen.row("cgroup", group.name)["page_faults"] - faults) <= 0.01 * faults


def test_reclaim_follows_the_limit_of_a_memory_cgroup(source: EbpfSource, tmp_path: Path) -> None:
    with cgroup("memory") as limited, cgroup("cpu") as group:
        limited.set("memory.limit_in_bytes", 16 * MEGABYTE)
        load = Load("cache", 64, (limited, group), cwd=tmp_path)
        before = limited.get("memory.failcnt")
        drain(source)
        load.go()
        load.wait()
        seen = drain(source)
        failed = limited.get("memory.failcnt") - before
        load.end()
    # failcnt moves once for each page charged beyond the limit, and once more when that needs a
    # reclaim; charges of kernel memory (nodes of the page cache's tree) are the rest.
    beyond = (64 - 16) * MEGABYTE // mmap.PAGESIZE
    reclaims = seen.total("reclaim_cgroup_count")
    assert reclaims >= 50
    assert reclaims <= failed - beyond <= 1.5 * reclaims
    assert seen.row("cgroup", group.name)["reclaim_ns"] > 0
    assert seen.total("reclaim_drops") == 0


def _disk_of(path: Path) -> str:
    number = path.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    return device.name if not (device / "partition").exists() else device.parent.name
