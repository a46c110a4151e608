"""Bounds and periods of the BPF programs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Rows of the bounded maps; what finds no room is counted, and added to OTHER.

    rhythms             processes, thread_rows threads, of watched cgroups
    timed_hits_log2     one hit in 2 ** this is timed
    absolute_timer      False: set each tick from the last deadline, as before Linux 6.4
    timer               False: tick by a perf event on each CPU, as before Linux 5.19
    """

    cgroups: int = 1024
    block_cgroups: int = 512
    devices: int = 128
    peers: int = 1024
    rhythms: int = 256
    thread_rows: int = 4096
    tick_ns: int = 10_000_000
    timed_hits_log2: int = 8
    absolute_timer: bool = True
    timer: bool = True
