"""Every injector by name."""

from __future__ import annotations

from typing import Final

from bench.diagnosis.faults.cpu import BurstyHashing, GreedySidecar, LowQuota, StressCpu
from bench.diagnosis.faults.disk import RandomReaders, StressDisk
from bench.diagnosis.faults.fault import Fault
from bench.diagnosis.faults.memory import GreedyNeighbour, LowLimit
from bench.diagnosis.faults.negatives import BatchSize, Checkpoints, PhaseChange, WarmUp, Writeback
from bench.diagnosis.faults.nic import Datagrams, Loss, LowRate, Streams
from bench.diagnosis.faults.unnamed import HeldInterpreter, ProcessStops
from bench.diagnosis.faults.waits import (
    DelayingRelay,
    HeavyDecode,
    SlowPeer,
    SlowStore,
    ThrottledPeer,
)

NAMED: Final[tuple[type[Fault], ...]] = (
    StressCpu,
    BurstyHashing,
    LowQuota,
    GreedySidecar,
    LowLimit,
    GreedyNeighbour,
    StressDisk,
    RandomReaders,
    Streams,
    Datagrams,
    LowRate,
    Loss,
    SlowPeer,
    ThrottledPeer,
    SlowStore,
    HeavyDecode,
)
"""Two injectors of each class, one beside the other."""
FURTHER: Final[tuple[type[Fault], ...]] = (DelayingRelay,)
"""A third injector of a class."""
UNNAMED: Final[tuple[type[Fault], ...]] = (ProcessStops, HeldInterpreter)
NEGATIVES: Final[tuple[type[Fault], ...]] = (
    BatchSize,
    Checkpoints,
    WarmUp,
    PhaseChange,
    Writeback,
)
INJECTORS: Final = {kind.injector: kind for kind in (*NAMED, *FURTHER, *UNNAMED, *NEGATIVES)}
