"""Steps by named functions: each call of one ends a step, or is one; local, for diagnosis."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import bpf
from collectors.binaries.elf import ElfError
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.proc_maps import ProgramNames
from collectors.bpf.bpf_maps import MARK_FIELDS, MarkRing, PerCpuMap
from collectors.bpf.cgroup_names import CgroupNames, Hierarchy, hierarchy_of
from collectors.bpf.libbpf import BpfObject
from collectors.bpf.uprobes import LINKS, Linked, expect_way, uprobe_way
from collectors.gpu_calls.programs import unavailable
from collectors.interface import SourceUnavailable, UnavailableSource
from collectors.records.activity import RhythmKind, RhythmMarks, StepMarks, StepSource

RING_BYTES: Final = 1 << 20
"""16,384 marks a second between two drains."""
THREAD_FIELDS: Final = ("began_ns", "thread_start_ns", "tgid", "process_start_ns", "lost")
"""Words of `struct step_thread` in bpf/include/marks.h (a test compares)."""

_MOST_THREADS: Final = 4096
_PROGRAMS: Final = ("step_call", "step_begin", "step_end")


@dataclass(frozen=True, slots=True)
class StepProbe:
    """A function whose calls are a program's steps.

    returns   True: each call is a step; False: a step lasts from one call to the next of a thread
    name      for people; "": `file:symbol`
    kind      where several calls make a step: what they are as marks of the rhythm, so that it is
              learnt how many (SYNCHRONISE, COLLECTIVE); None: the calls are steps
    """

    path: str
    symbol: str
    returns: bool = False
    name: str = ""
    kind: RhythmKind | None = None

    @property
    def title(self) -> str:
        return self.name or f"{Path(self.path).name}:{self.symbol}"


class StepPrograms:
    def __init__(self, unified: bool) -> None:
        """Load. Raises SourceUnavailable."""
        reason = unavailable()
        if reason:
            raise SourceUnavailable(reason)
        self._object = BpfObject(files(bpf).joinpath("objects/steps.bpf.o").read_bytes())
        self._links: dict[int, list[Linked]] = {}
        way = uprobe_way()
        self._link = LINKS[way]
        try:
            expect_way(self._object, _PROGRAMS, way)
            self._object.set_max_entries("step_marks", RING_BYTES)
            self._object.set_max_entries("step_threads", _MOST_THREADS)
            self._object.set_initial(".rodata.marks", struct.pack("=II", unified, 0))
            self._object.load()
            self._ring = MarkRing(self._object.map_fd("step_marks"), RING_BYTES)
        except BaseException:
            self._object.close()
            raise
        fd = self._object.map_fd("step_threads")
        self._threads = PerCpuMap(fd, 8, len(THREAD_FIELDS), 1, _MOST_THREADS)

    def attach(self, number: int, probe: StepProbe) -> None:
        """Mark a function's calls in every process that maps its file. Raises SourceUnavailable."""
        place = place_of(probe)
        fd = self._object.program_fd
        made: list[Linked] = []
        kinds = [("step_end", True), ("step_begin", False)] if probe.returns else []
        try:
            for program, returns in kinds or [("step_call", False)]:
                link = self._link(fd(program), probe.path, [place], [number], returns=returns)
                made.append(link)
        except SourceUnavailable:
            for link in made:
                link.close()
            raise
        self._links[number] = made

    def detach(self, number: int) -> None:
        for link in self._links.pop(number, []):
            link.close()

    def marks(self) -> NDArray[np.uint64]:
        """Take the marks since the last call: uint64[n, MARK_FIELDS]."""
        return self._ring.read()

    def threads(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Read what threads are in: keys uint64[n] and values uint64[n, THREAD_FIELDS]."""
        keys, values = [np.zeros(0, np.uint64)], [np.zeros((0, len(THREAD_FIELDS)), np.uint64)]
        for raw, found in self._threads.batches():
            keys.append(raw.copy().view(np.uint64).reshape(-1))
            values.append(found[:, 0, :].copy())
        return np.concatenate(keys), np.concatenate(values)

    def forget(self, key: int) -> None:
        self._threads.delete(key.to_bytes(8, "little"))

    def close(self) -> None:
        for number in list(self._links):
            self.detach(number)
        self._ring.close()
        self._object.close()


def place_of(probe: StepProbe) -> int:
    """Find a function's offset in its file. Raises SourceUnavailable."""
    name = probe.symbol.encode()
    try:
        quick = os.O_NONBLOCK | os.O_CLOEXEC  # a path may be a pipe, without a writer
        with open(
            probe.path, "rb", opener=lambda path, flags: os.open(path, flags | quick)
        ) as file:
            elf = ElfFile.read(file)
            offsets = {f.offset for f in elf.functions((name,)) if f.name == probe.symbol}
    except OSError as error:
        raise SourceUnavailable(f"{probe.path}: {error.strerror}") from None
    except ElfError as error:
        raise SourceUnavailable(f"{probe.path}: {error}") from None
    if not offsets:
        raise SourceUnavailable(f"{probe.path}: expected a function {probe.symbol}, found none")
    return min(offsets)


LOST: Final = "without it steps are taken from GPU calls or from the processes' rhythm"
MOST_PROBES: Final = 64
MOST_MARKS_A_DRAIN: Final = 4_000
_STORM_DRAINS: Final = 3
_MOST_PROCESSES: Final = 512
"""Told of in one drain: the oldest, which nobody's flood of new ones can crowd out."""
_MOST_LOOKS: Final = 512
"""Processes that are looked for in /proc in one drain; with more, by turns."""
_AT, _VALUE, _PROCESS, _START, _CGROUP, _WHAT, _ = range(len(MARK_FIELDS))
_BEGAN, _, _TGID, _PROCESS_START, _LOST = range(len(THREAD_FIELDS))

_File = tuple[int, int]
_Owner = tuple[int, int, int]
"""(pid, start, probe's number)"""


class StepsSource:
    """Needs CAP_BPF and CAP_PERFMON, or root; BTF."""

    name = "steps"

    def __init__(self, probes: Sequence[StepProbe]) -> None:
        if len(probes) > MOST_PROBES:
            raise ValueError(f"expected at most {MOST_PROBES} step probes, got {len(probes)}")
        self._probes = dict(enumerate(probes, 1))
        self._programs: StepPrograms | None = None
        self._files: dict[int, _File] = {}
        self._refused: dict[int, tuple[_File | None, str]] = {}
        self._cgroup_of: dict[_Owner, int] = {}
        self._lost: dict[int, int] = {}
        self._storms: dict[int, int] = {}
        self._names = ProgramNames()
        self._nameless: set[int] = set()
        self._scanned = False
        self._turn = 0

    @property
    def absent(self) -> list[UnavailableSource]:
        return [
            UnavailableSource(self._probes[number].title, reason)
            for number, (_, reason) in sorted(self._refused.items())
        ]

    def probe(self) -> str | None:
        return None if self._probes else "steps: no function is named"

    def start(self) -> None:
        if self._programs is not None:
            return
        self._programs, root = self._loaded()
        self._cgroups = CgroupNames(root.path)
        self._attach(self._programs)

    def try_out(self) -> list[UnavailableSource]:
        self._loaded()[0].close()
        absent: list[UnavailableSource] = []
        for probe in self._probes.values():
            try:
                place_of(probe)
            except SourceUnavailable as error:
                absent.append(UnavailableSource(probe.title, str(error)))
        return absent

    def drain(self, _now_boottime_ns: int) -> Iterable[StepMarks | RhythmMarks]:
        if self._programs is None:
            raise SourceUnavailable("steps: not started")
        self._attach(self._programs)
        return list(self._records(self._programs))

    def stop(self) -> None:
        if self._programs is not None:
            self._programs.close()
            self._programs = None
        self._files.clear()
        self._refused.clear()
        self._cgroup_of.clear()
        self._lost.clear()
        self._storms.clear()
        self._nameless.clear()

    def _loaded(self) -> tuple[StepPrograms, Hierarchy]:
        try:
            root = hierarchy_of("cpu")
            return StepPrograms(root.unified), root
        except SourceUnavailable as error:
            raise SourceUnavailable(f"steps: {error}; {LOST}") from None

    def _attach(self, programs: StepPrograms) -> None:
        """Attach to files that have come or were replaced: an inode is probed, not a path."""
        for number, probe in self._probes.items():
            file = _identity(probe.path)
            if file is None:
                # Deleted while it runs: its processes are marked on.
                if number not in self._files:
                    self._refused[number] = (None, f"{probe.path}: there is no such file")
                continue
            refused = self._refused.get(number)
            if self._files.get(number) == file or (refused and refused[0] == file):
                continue
            try:
                programs.detach(number)
                self._files.pop(number, None)
                programs.attach(number, probe)
            except SourceUnavailable as error:
                self._refused[number] = (file, str(error))
            else:
                self._files[number] = file
                self._refused.pop(number, None)

    def _records(self, programs: StepPrograms) -> Iterator[StepMarks | RhythmMarks]:
        self._scanned = False
        marks = programs.marks()
        self._leave_storms(programs, marks[:, _WHAT])
        began, lost = self._thread_states(programs)
        groups = _by_owner(marks)
        for owner, rows in groups.items():
            self._cgroup_of[owner] = int(rows[-1, _CGROUP])
        owners = sorted(groups.keys() | began.keys() | lost.keys(), key=lambda pair: pair[1])
        for owner in owners[:_MOST_PROCESSES]:
            rows = groups.get(owner, marks[:0])
            rows = rows[np.argsort(rows[:, _AT], kind="stable")]
            pid, start_ns, number = owner
            kind = self._probes[number].kind
            if kind is not None:
                if len(rows):
                    yield self._rhythm(owner, kind, rows, lost.get(owner, 0))
                continue
            yield StepMarks(
                pid=pid,
                start_ns=start_ns,
                cgroup=self._cgroup_name(owner),
                program=self._names.name(pid, start_ns),
                probe=self._probes[number].title,
                source=StepSource.UPROBE,
                ended_ns=rows[:, _AT].astype(np.int64),
                duration_ns=np.maximum(rows[:, _VALUE].astype(np.int64), 1),
                lost=lost.get(owner, 0),
                open_since_ns=began.get(owner),
            )

    def _rhythm(
        self, owner: _Owner, kind: RhythmKind, rows: NDArray[np.uint64], lost: int
    ) -> RhythmMarks:
        return RhythmMarks(
            pid=owner[0],
            start_ns=owner[1],
            cgroup=self._cgroup_name(owner),
            program=self._names.name(owner[0], owner[1]),
            at_ns=rows[:, _AT].astype(np.int64),
            kind=np.full(len(rows), kind, np.uint8),
            thread=(rows[:, _PROCESS] & np.uint64(0xFFFFFFFF)).astype(np.int64),
            value=rows[:, _VALUE].astype(np.int64),
            socket=np.zeros(len(rows), np.int64),
            round_trip_us=np.zeros(len(rows), np.int64),
            beyond=tuple(lost if rhythm is kind else 0 for rhythm in RhythmKind),
        )

    def _leave_storms(self, programs: StepPrograms, numbers: NDArray[np.uint64]) -> None:
        """Stop probing what is called too often to be a step: each call pays for its mark."""
        found, counts = np.unique(numbers, return_counts=True)
        rates = dict(zip(found.tolist(), counts.tolist(), strict=True))
        for number in list(self._files):
            stormy = rates.get(number, 0) > MOST_MARKS_A_DRAIN
            self._storms[number] = self._storms.get(number, 0) + 1 if stormy else 0
            if self._storms[number] >= _STORM_DRAINS:
                programs.detach(number)
                reason = f"more than {MOST_MARKS_A_DRAIN} calls between two drains: no step"
                self._refused[number] = (self._files.pop(number), reason)

    def _thread_states(self, programs: StepPrograms) -> tuple[dict[_Owner, int], dict[_Owner, int]]:
        """Give when each process's latest open step began, and how many steps found no room."""
        began: dict[_Owner, int] = {}
        lost: dict[_Owner, int] = {}
        lost_before, self._lost = self._lost, {}
        keys, threads = programs.threads()
        rows = threads.tolist()
        gone = self._gone({(row[_TGID], row[_PROCESS_START]) for row in rows})
        for key, row in zip(keys.tolist(), rows, strict=True):
            owner = (row[_TGID], row[_PROCESS_START], key & 0xFFFFFFFF)
            if owner[:2] in gone:
                programs.forget(key)
                self._cgroup_of.pop(owner, None)
            elif row[_BEGAN]:
                began[owner] = max(began.get(owner, 0), row[_BEGAN])
            # Another thread of the same number counts from 0 again.
            grown = row[_LOST] - lost_before.get(key, 0)
            self._lost[key] = row[_LOST]
            if grown > 0:
                lost[owner] = lost.get(owner, 0) + grown
        return began, lost

    def _gone(self, processes: set[tuple[int, int]]) -> set[tuple[int, int]]:
        ordered = sorted(processes)
        if len(ordered) > _MOST_LOOKS:
            first = self._turn % len(ordered)
            ordered = [*ordered[first:], *ordered[:first]][:_MOST_LOOKS]
            self._turn = first + _MOST_LOOKS
        return {process for process in ordered if not self._names.alive(*process)}

    def _cgroup_name(self, owner: _Owner) -> str:
        cgroup = self._cgroup_of.get(owner)
        if cgroup is None:
            return ""
        if not self._scanned and self._cgroups.unknown({cgroup} - self._nameless):
            # One look at all directories a drain: a cgroup that is gone has no name for good.
            self._scanned = True
            self._cgroups.scan()
            ids = set(self._cgroup_of.values())
            self._nameless = {
                cgroup_id for cgroup_id in ids if self._cgroups.name(cgroup_id) is None
            }
        return self._cgroups.name(cgroup) or f"gone:{cgroup}"


def _by_owner(marks: NDArray[np.uint64]) -> dict[_Owner, NDArray[np.uint64]]:
    if not len(marks):
        return {}
    tgids = marks[:, _PROCESS] >> np.uint64(32)
    order = np.lexsort((marks[:, _WHAT], marks[:, _START], tgids))
    keys = np.stack([tgids, marks[:, _START], marks[:, _WHAT]], axis=1)[order]
    changes = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    bounds = [0, *changes.tolist()]
    parts = np.split(marks[order], changes)
    return {
        (int(keys[first, 0]), int(keys[first, 1]), int(keys[first, 2])): part
        for first, part in zip(bounds, parts, strict=True)
    }


def _identity(path: str) -> _File | None:
    with suppress(OSError):
        found = os.stat(path)  # noqa: PTH116 - at every drain, for each probe
        return found.st_dev, found.st_ino
    return None
