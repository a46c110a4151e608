"""Every injector by name."""

from __future__ import annotations

from typing import Final

from bench.diagnosis.faults import others, resources
from bench.diagnosis.faults.fault import Fault

NAMED: Final[tuple[type[Fault], ...]] = (
    resources.StressCpu,
    resources.BurstyHashing,
    resources.LowQuota,
    resources.GreedySidecar,
    resources.LowLimit,
    resources.GreedyNeighbour,
    resources.StressDisk,
    resources.RandomReaders,
    resources.Streams,
    resources.Datagrams,
    resources.LowRate,
    resources.Loss,
    others.SlowPeer,
    others.ThrottledPeer,
    others.SlowStore,
    others.HeavyDecode,
)
"""Two injectors of each class, one beside the other."""
UNNAMED: Final[tuple[type[Fault], ...]] = (others.ProcessStops, others.HeldInterpreter)
NEGATIVES: Final[tuple[type[Fault], ...]] = (
    others.BatchSize,
    others.Checkpoints,
    others.WarmUp,
    others.PhaseChange,
    others.Writeback,
)
INJECTORS: Final = {kind.injector: kind for kind in (*NAMED, *UNNAMED, *NEGATIVES)}
