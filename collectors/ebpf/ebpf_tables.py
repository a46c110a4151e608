"""Turns maps that only grow into what grew since the last drain, under names people know."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.bpf.bpf_maps import PerCpuMap
from collectors.bpf.cgroup_names import CgroupNames
from collectors.records.activity import HostTable


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SOFTIRQ_VECTORS: Final = (
    "hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu",
)  # fmt: skip
SNAPSHOT_SLOTS: Final = 512
LATENCY_BINS: Final = 24

_PLAIN_TOTALS: Final = _words(
    "switches switches_involuntary run_delay_ns run_delay_throttled_ns cpu_ns irq_count "
    "irq_ns block_reads block_writes block_others block_read_bytes block_write_bytes "
    "block_queue_ns block_total_ns tcp_retransmits net_sends net_send_bytes "
    "net_send_queue_bytes net_receives net_receive_bytes page_faults reclaim_direct_count "
    "reclaim_direct_ns reclaim_cgroup_count reclaim_cgroup_ns cgroup_drops "
    "block_cgroup_drops device_drops peer_drops reclaim_drops wakeups block_waits "
    "net_send_wait_ns net_receive_wait_ns net_srtts net_srtt_us queue_drops numa_moves "
    "rhythm_drops"
)
TOTALS: Final = (
    *_PLAIN_TOTALS,
    *(f"softirq_count_{vector}" for vector in SOFTIRQ_VECTORS),
    *(f"softirq_ns_{vector}" for vector in SOFTIRQ_VECTORS),
)

_PROGRAMS: Final = _words(
    "on_sched_switch:sched_switch on_softirq_entry:softirq_entry "
    "on_softirq_exit:softirq_exit on_irq_entry:irq_handler_entry "
    "on_irq_exit:irq_handler_exit on_block_complete:block_rq_complete "
    "on_tcp_retransmit:tcp_retransmit_skb on_tcp_retransmit_synack:tcp_retransmit_synack "
    "on_sock_send:sock_send_length on_sock_receive:sock_recv_length "
    "on_page_fault:page_fault_user on_reclaim_begin:mm_vmscan_direct_reclaim_begin "
    "on_reclaim_end:mm_vmscan_direct_reclaim_end "
    "on_reclaim_cgroup_begin:mm_vmscan_memcg_reclaim_begin "
    "on_reclaim_cgroup_end:mm_vmscan_memcg_reclaim_end on_packet_drop:kfree_skb "
    "on_numa_move:sched_move_numa on_numa_swap:sched_swap_numa"
)
PROGRAMS: Final = {pair.partition(":")[0]: pair.partition(":")[2] for pair in _PROGRAMS}
"""Program -> tracepoint, in the order of `enum program`."""

PENDING_COLUMNS: Final = _words(
    "cpu_ns run_delay_ns switches switches_involuntary block_waits sleep_ns block_wait_ns "
    "preempted_ns"
)
"""What a CPU keeps back for the cgroup that runs on it. Before them stand what the task on the CPU
had used by the last tick, and the cgroup's id."""

CPU_STATE_FIELDS: Final = len(TOTALS) + 3 * len(PROGRAMS) + 7 + 2 + len(PENDING_COLUMNS)

CGROUP_COLUMNS: Final = _words(
    "cpu_ns run_delay_ns run_delay_throttled_ns switches switches_involuntary send_bytes "
    "receive_bytes page_faults reclaim_ns block_waits sleep_ns block_wait_ns preempted_ns "
    "send_wait_ns receive_wait_ns quota_periods throttled_periods throttled_ns"
)
CGROUP_FIELDS: Final = len(CGROUP_COLUMNS) + 3
CGROUP_LATEST: Final = ("quota_periods", "throttled_periods", "throttled_ns")
"""Columns that hold the whole group's value as each CPU last saw it: the largest counts."""

BLOCK_CGROUP_COLUMNS: Final = ("ios", "read_bytes", "write_bytes")
DEVICE_COLUMNS: Final = (
    *_words("reads writes others read_bytes write_bytes queue_ns total_ns"),
    *(f"latency_log2_us_{bin_}" for bin_ in range(LATENCY_BINS)),
)
PEER_COLUMNS: Final = ("send_bytes", "receive_bytes", "retransmits")

SNAPSHOT_HEAD: Final = 3
SNAPSHOT_FIELDS: Final = SNAPSHOT_HEAD + len(TOTALS)
TICK_STATE: Final = ("ticks", "missed", "deadline_ns", "cost_ns", "failures")
TICK_STATE_FIELDS: Final = len(TICK_STATE)

RHYTHM_KINDS: Final = 4
RHYTHM_FIELDS: Final = 1 + 2 * RHYTHM_KINDS
"""Words of `struct rhythm_row` in bpf/include/marks.h: the process's start; by kind when the next
mark is due; by kind what was only counted."""


OTHER: Final = "OTHER"
"""The row of everything that found no room in a bounded map."""

_COST_ROWS: Final = (*PROGRAMS, "on_tick")
_COST_COLUMNS: Final = ("hits", "timed_hits", "timed_ns")
_IDLE_DRAINS: Final = 600
"""A peer or device that stayed silent for ten minutes makes room."""


@dataclass(slots=True)
class Rows:
    """One reading: each key's row, the same dictionary for the same keys; int64[keys, columns]."""

    places: dict[bytes, int]
    totals: NDArray[np.int64]


class GrowingTable:
    """One bounded map, by `grown`; of the `latest` columns the largest CPU's value counts."""

    def __init__(
        self,
        name: str,
        source: PerCpuMap,
        columns: tuple[str, ...],
        latest: Iterable[str] = (),
    ) -> None:
        self.name = name
        self._source = source
        self._columns = columns
        self._at = {column: place for place, column in enumerate(columns)}
        self._latest = [self._at[column] for column in latest]
        self._other = bytes(source.key_bytes)
        self._keys: bytes | None = None
        self._read_places: dict[bytes, int] = {}
        self._places: dict[bytes, int] = {}
        self._before = np.zeros((0, len(columns)), np.int64)
        self._drains = 0
        self._grew_at = np.zeros(0, np.int64)

    def read(self) -> Rows:
        width, size = len(self._columns), self._source.key_bytes
        blob, parts = b"", []
        for keys, values in self._source.batches():
            totals = values[:, :, :width].sum(axis=1).view(np.int64)
            if self._latest:
                totals[:, self._latest] = values[:, :, self._latest].max(axis=1)
            blob += keys.tobytes()
            parts.append(totals)
        if blob != self._keys:
            found = [blob[at : at + size] for at in range(0, len(blob), size)]
            places = {key: place for place, key in enumerate(found)}
            if len(places) == len(found):
                self._keys, self._read_places = blob, places
            else:  # the map moved while it was read, and gave a row twice: the later one counts
                last = list(places.values())
                parts = [np.concatenate(parts)[last]]
                self._keys, self._read_places = None, {key: n for n, key in enumerate(places)}
        return Rows(self._read_places, parts[0] if len(parts) == 1 else np.concatenate(parts))

    def add(self, now: Rows, key: bytes, values: Mapping[str, int]) -> None:
        """Add to columns of a row, made where the map has room for it; else to those of OTHER."""
        if key not in now.places and len(now.places) >= self._source.capacity:
            key = self._other
        place = now.places.get(key)
        if place is None:
            place = len(now.places)
            now.places = {**now.places, key: place}
            now.totals = np.vstack([now.totals, np.zeros((1, len(self._columns)), np.int64)])
        for column, value in values.items():
            if value:
                now.totals[place, self._at[column]] += value

    def grown(
        self,
        now: Rows,
        name_of: Callable[[bytes], str],
        boottime_ns: int,
        span_ns: int,
    ) -> HostTable | None:
        self._drains += 1
        if now.places is not self._places:
            self._follow(now.places)
        deltas = now.totals - self._before
        # A task that just left its CPU can take a moment of its time back: wait for it.
        np.maximum(deltas, 0, out=deltas)
        self._before += deltas
        places = np.flatnonzero(deltas.any(axis=1))
        if not len(places):
            return None
        self._grew_at[places] = self._drains
        keys = list(now.places)
        found = [keys[place] for place in places.tolist()]
        names = tuple([OTHER if key == self._other else name_of(key) for key in found])
        values = deltas[places]
        if len(set(names)) < len(names):
            names, values = _joined(names, values)
        return HostTable(self.name, names, self._columns, values, boottime_ns, span_ns)

    def _follow(self, places: dict[bytes, int]) -> None:
        before = np.zeros((len(places), len(self._columns)), np.int64)
        grew_at = np.full(len(places), self._drains - 1, np.int64)
        for place, key in enumerate(places):
            known = self._places.get(key)
            if known is not None:
                before[place], grew_at[place] = self._before[known], self._grew_at[known]
        self._places, self._before, self._grew_at = places, before, grew_at

    def forget(self, keys: Iterable[bytes]) -> None:
        gone = [key for key in keys if key != self._other]
        for key in gone:
            self._source.delete(key)
        if gone:
            self._keys = None  # what is read next are other rows, even of the same keys
            self._places = {k: n for k, n in self._places.items() if k not in set(gone)}

    def forget_idle(self) -> None:
        oldest = self._drains - _IDLE_DRAINS
        if len(self._grew_at) and int(self._grew_at.min()) <= oldest:
            places = self._places.items()
            self.forget([key for key, place in places if self._grew_at[place] <= oldest])


def _joined(
    names: tuple[str, ...], values: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    rows: dict[str, NDArray[np.int64]] = {}
    for name, row in zip(names, values, strict=True):
        rows[name] = rows[name] + row if name in rows else row
    return tuple(rows), np.stack(list(rows.values()))


@lru_cache(maxsize=256)
def device_name(key: bytes) -> str:
    number = int.from_bytes(key, "little")
    device = f"{number >> 20}:{number & 0xFFFFF}"
    link = Path(f"/sys/dev/block/{device}")
    return link.resolve().name if link.exists() else device


@lru_cache(maxsize=4096)
def peer_name(key: bytes) -> str:
    """Write a peer's address; one mapped from IPv4 as IPv4."""
    address = ipaddress.IPv6Address(key)
    return str(address.ipv4_mapped or address)


def cpu_table(grown: NDArray[np.uint64], boottime_ns: int, span_ns: int) -> HostTable:
    """Give the totals' deltas by CPU from uint64[cpus, CPU_STATE_FIELDS]."""
    values = grown[:, : len(TOTALS)].astype(np.int64)
    names = tuple(f"cpu{number}" for number in range(len(values)))
    return HostTable("cpu", names, TOTALS, values, boottime_ns, span_ns)


def cost_table(
    grown: NDArray[np.uint64], timer: tuple[int, int], boottime_ns: int, span_ns: int
) -> HostTable:
    """Give hits of the programs, timed ones and their time; `timer`: callbacks, and ns of all."""
    start, count = len(TOTALS), len(PROGRAMS)
    values = np.empty((count + 1, 3), np.int64)
    values[:-1] = grown[:, start : start + 3 * count].sum(axis=0).reshape(3, count).T
    ticks, ticks_ns = timer
    values[-1] = ticks, ticks, ticks_ns
    return HostTable("bpf_cost", _COST_ROWS, _COST_COLUMNS, values, boottime_ns, span_ns)


class CgroupTable:
    """A growing table keyed by cgroup id: names them, and forgets those whose directory is gone."""

    def __init__(self, table: GrowingTable, names: CgroupNames) -> None:
        self._table = table
        self._names = names
        self._searched: set[int] = set()
        self._named: dict[bytes, int] | None = None
        """Keys that all have names: as long as the map has these, none is looked for."""
        self._asked: tuple[Collection[str], set[int]] = ((), set())

    def name_of(self, cgroup: int) -> str:
        """Name a cgroup, looking for it once more where it is unknown."""
        name = self._names.name(cgroup)
        if name is None and cgroup not in self._searched:
            self._scan()
            self._searched |= {cgroup}
            name = self._names.name(cgroup)
        return name or f"gone:{cgroup}"

    def ids(self, names: Collection[str]) -> set[int]:
        if self._asked[0] != names:
            self._asked = names, self._names.ids(names)
        return self._asked[1]

    def grown(
        self,
        boottime_ns: int,
        span_ns: int,
        kept_back: Iterable[tuple[int, dict[str, int]]] = (),
    ) -> HostTable | None:
        now = self._table.read()
        for cgroup, values in kept_back:
            self._table.add(now, cgroup.to_bytes(8, "little"), values)
        gone = self._unnamed(now)
        table = self._table.grown(now, self._name, boottime_ns, span_ns)
        if self._names.cut_short:
            self._table.forget_idle()  # what has no name may be there all the same
        else:
            self._table.forget(struct.pack("<Q", cgroup_id) for cgroup_id in gone)
        return table

    def _unnamed(self, now: Rows) -> set[int]:
        if now.places is self._named:
            return set()
        ids = set(np.frombuffer(b"".join(now.places), "<u8").tolist()) - {0}
        if self._names.unknown(ids - self._searched):
            self._scan()
            self._searched = self._names.unknown(ids)
        gone = self._names.unknown(ids)
        self._named = now.places if not gone else None
        return gone

    def _scan(self) -> None:
        self._names.scan()
        self._named, self._asked = None, ((), set())

    def _name(self, key: bytes) -> str:
        cgroup = int.from_bytes(key, "little")
        return self._names.name(cgroup) or f"gone:{cgroup}"
