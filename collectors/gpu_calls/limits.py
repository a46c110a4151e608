"""Bounds of the GPU programs' maps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Rows of the bounded maps; what finds no room is counted, and added to OTHER.

    A row of the first five is there once per CPU: 32, 56, 8, 16 and 24 bytes of it.
    stacks                          user stacks of sampled calls, 1 KiB each
    names_bytes, samples_bytes      rings; powers of two, whole pages
    """

    launches: int = 4096
    calls: int = 4096
    errors: int = 1024
    copies: int = 4096
    collectives: int = 1024
    memory: int = 1024
    allocations: int = 65536
    threads: int = 8192
    sampled: int = 256
    stacks: int = 2048
    names_bytes: int = 2 << 20
    samples_bytes: int = 2 << 20
