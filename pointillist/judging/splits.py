"""Which runs are for training and which only judge: by run, by rule, before anything is measured.

Held out are, for each cause, one injector; the middle intensity; a workload; a type of fault (its
right answer is `unknown`); overlapping pairs; two of three runs without a fault, on average.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from diagnosis.detect.findings import Cause

from .runs import Facts, RunKind

SEED: Final = 20_261_121
HELD_OUT_INTENSITY: Final = "middle"
HELD_OUT_INJECTORS: Final = frozenset(
    {
        "bursty_hashing",
        "stress_sidecar",
        "stress_vm",
        "random_readers",
        "datagrams",
        "loss",
        "throttled_peer",
        "heavy_decode",
    }
)
"""The second of each pair of the fault bench; of other pairs the last by name."""
SEEN_INJECTORS: Final = frozenset({"delaying_relay"})
"""Held out once, and looked into since: for training at every intensity, and no judge."""
HELD_OUT_WORKLOAD: Final = "inference"


class Why(StrEnum):
    INJECTOR = "injector"
    INTENSITY = "intensity"
    WORKLOAD = "workload"
    FAULT_TYPE = "fault_type"
    OVERLAP = "overlap"
    NO_FAULT = "no_fault"


@dataclass(frozen=True, slots=True)
class Split:
    """Names of runs, held-out ones with the rules; `seed` is of what resampling draws."""

    train: tuple[str, ...]
    held_out: Mapping[str, frozenset[Why]]
    seed: int = SEED


def split(runs: Iterable[Facts]) -> Split:
    """Divide runs by the rules above.

    A cause of which every run would be held out keeps those that only the intensity holds out.
    """
    known = sorted(runs, key=lambda run: run.name)
    spare = _held_out_injectors(known)
    why = {run.name: _rules(run, spare) for run in known}
    _lend_single_intensities(known, why)
    for name in _most_of_calm(known):
        why[name] = frozenset({Why.NO_FAULT})
    return Split(
        train=tuple(run.name for run in known if not why[run.name]),
        held_out={name: reasons for name, reasons in why.items() if reasons},
    )


def _held_out_injectors(runs: Sequence[Facts]) -> dict[Cause, str]:
    """Of each cause with two injectors, the one that only judges."""
    seen: dict[Cause, set[str]] = defaultdict(set)
    for run in runs:
        if run.kind is RunKind.FAULT and run.faults[0].injector not in SEEN_INJECTORS:
            seen[run.faults[0].cause].add(run.faults[0].injector)
    spare = {}
    for cause, names in seen.items():
        if HELD_OUT_INJECTORS.isdisjoint(names):
            if len(names) > 1:
                spare[cause] = max(names)
        else:
            spare[cause] = min(names & HELD_OUT_INJECTORS)
    return spare


def _rules(run: Facts, spare: Mapping[Cause, str]) -> frozenset[Why]:
    if run.kind is RunKind.OVERLAP:
        return frozenset({Why.OVERLAP})
    why = set()
    if run.workload == HELD_OUT_WORKLOAD:
        why.add(Why.WORKLOAD)
    if run.kind is RunKind.FAULT:
        fault = run.faults[0]
        if fault.cause is Cause.UNKNOWN:
            why.add(Why.FAULT_TYPE)
        if run.intensity == HELD_OUT_INTENSITY and fault.injector not in SEEN_INJECTORS:
            why.add(Why.INTENSITY)
        if spare.get(fault.cause) == fault.injector:
            why.add(Why.INJECTOR)
    return frozenset(why)


def _lend_single_intensities(runs: Sequence[Facts], why: dict[str, frozenset[Why]]) -> None:
    """Runs of (cause, workload) recorded at the middle intensity alone are no test of intensity."""
    levels: dict[tuple[Cause, str], set[str]] = defaultdict(set)
    for run in runs:
        if run.kind is RunKind.FAULT:
            levels[run.faults[0].cause, run.workload].add(run.intensity)
    for run in runs:
        if run.kind is RunKind.FAULT and levels[run.faults[0].cause, run.workload] == {
            HELD_OUT_INTENSITY
        }:
            why[run.name] -= {Why.INTENSITY}


def _most_of_calm(runs: Sequence[Facts]) -> list[str]:
    """Two of three runs without a fault, by a checksum of the name: later runs move none."""
    return [
        run.name
        for run in runs
        if run.kind in {RunKind.FAULT_FREE, RunKind.HARD_NEGATIVE}
        and run.workload != HELD_OUT_WORKLOAD
        and zlib.crc32(run.name.encode()) % 3 != 0
    ]
