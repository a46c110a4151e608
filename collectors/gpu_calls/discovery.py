"""Finds files worth probing within milliseconds, as processes start, map, execute, fork and end.

Perf records tell of each mapping; a walk of /proc finds what was there before or got lost.
"""

from __future__ import annotations

import os
import resource
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Protocol

from collectors.binaries.perf_ring import Executed, Forked, Mapped, PerfRings, Record, file_mark
from collectors.binaries.proc_maps import (
    CpuShare,
    Module,
    Modules,
    all_pids,
    coarse,
    process_key,
    read_maps,
)
from collectors.boot_clock import boottime_ns
from collectors.interface import SourceUnavailable
from collectors.records.basics import ProcessKey

from .found_files import LOOK_AGAIN_NS, FileFound, FileGone, FoundFiles
from .probe_plan import PlanBook

_SWEEP_NS: Final = 1_000_000_000
_MOST_PLAIN: Final = 65_536
_KEEP_NS: Final = 10_000_000_000
"""The modules of an ended process are kept until what it did has been drained and named."""
_UNLIMITED: Final = 1 << 20
_PROCESSES_SHARE, _FILES_SHARE = 4, 8
"""Of the descriptors that this process may have: each followed process and probed file takes one,
and links to files take more. The ledger and the log must not find that there are none left."""


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """A process has these probed files mapped: on its first, and whenever they change."""

    process: ProcessKey
    files: frozenset[int]


@dataclass(frozen=True, slots=True)
class ProcessGone:
    """A process ended, or runs another program now: what was known of it is void."""

    process: ProcessKey


Event = FileFound | FileGone | ProcessSeen | ProcessGone


class Rings(Protocol):
    lost: int

    @property
    def fds(self) -> list[int]: ...
    def take(self, plain: Container[bytes] = ..., /) -> list[Record]: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class _Process:
    key: ProcessKey
    modules: Modules
    pidfd: int
    files: frozenset[int] = frozenset()
    ended_ns: int = 0


@dataclass(slots=True)
class Discovery:
    """Gives events in `poll`; `fds` become readable when there is something to poll for.

    most_processes  of those that have a probed file mapped; a fourth of this process's descriptors
    most_modules    of all of them together, 450 bytes each
    walk_every_ns   least time between walks, where records are lost all the time: one of 100
                    processes takes 0.3 s when every file is new, and 20 ms later
    """

    book: PlanBook
    rings: Rings = field(default_factory=PerfRings)
    proc: str = "/proc"
    most_processes: int = 4096
    most_modules: int = 262_144
    walk_every_ns: int = 5_000_000_000
    found: FoundFiles = field(init=False)
    _processes: dict[int, _Process] = field(default_factory=dict)
    _ended: dict[ProcessKey, _Process] = field(default_factory=dict)
    _queue: list[Event] = field(default_factory=list)
    _plain: set[bytes] = field(default_factory=set)
    _plain_from_ns: int = 0
    _lost: int = -1
    _next_walk_ns: int = 0
    _swept_ns: int = 0

    def __post_init__(self) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        descriptors = _UNLIMITED if soft == resource.RLIM_INFINITY else soft
        self.most_processes = min(self.most_processes, descriptors // _PROCESSES_SHARE)
        self.found = FoundFiles(self.book, self.proc)
        self.found.most_held = min(self.found.most_held, descriptors // _FILES_SHARE)

    @property
    def fds(self) -> list[int]:
        return self.rings.fds

    @property
    def follows(self) -> bool:
        """Tell whether there is something to look after between records."""
        followed = self._processes or self._ended or self.found.holds
        return bool(followed) or self._lost != self.rings.lost

    def poll(self, now_ns: int) -> list[Event]:
        """Give what happened since the last call; the first call walks /proc."""
        for record in self.rings.take(self._plain):
            if isinstance(record, Mapped):
                self._mapped(record, now_ns)
            elif isinstance(record, Forked):
                self._forked(record)
            elif isinstance(record, Executed):
                self._executed(record.pid, now_ns)
        # What was found is handed out first: a walk takes its time.
        if self.rings.lost != self._lost and now_ns >= self._next_walk_ns and not self._queue:
            self._lost = self.rings.lost
            self._walk(now_ns)
            self._next_walk_ns = now_ns + self.walk_every_ns
        if now_ns - self._swept_ns >= _SWEEP_NS:
            self._swept_ns = now_ns
            self._sweep(now_ns)
        said, self._queue = self._queue, []
        return said

    def modules(self, process: ProcessKey) -> Modules | None:
        key = coarse(process)
        known = self._processes.get(key.pid)
        if known is None or known.key != key:
            known = self._ended.get(key)
        return known.modules if known is not None else None

    def close(self) -> None:
        self.rings.close()
        self.found.close()
        while self._processes:
            os.close(self._processes.popitem()[1].pidfd)

    def _mapped(self, record: Mapped, now_ns: int) -> None:
        key = (record.device, record.inode)
        known = self._processes.get(record.pid)
        end = record.start + record.length
        module = Module(record.start, end, record.offset, key, record.path)
        self._queue += self.found.see(
            record.pid, module, record.generation, now_ns, record.boottime_ns
        )
        index = self.found.index(key)
        if known is not None:
            known.modules.add(module)
            if index is not None:
                self._tell(known, known.files | {index})
        elif index is None:
            self._plain.add(file_mark(record.device, record.inode, record.generation))
        else:
            self._track(record.pid, [module, *read_maps(self.proc, record.pid)])

    def _forked(self, record: Forked) -> None:
        parent = self._processes.get(record.parent)
        if parent is not None:
            self._track(record.pid, list(parent.modules))

    def _executed(self, pid: int, now_ns: int) -> None:
        known = self._processes.pop(pid, None)
        if known is not None:
            self._end(known, now_ns)

    def _track(self, pid: int, modules: list[Module]) -> None:
        if len(self._processes) >= self.most_processes:
            return
        key = process_key(self.proc, pid)
        if key is None:
            return  # it ended already
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # it ended, or no descriptor is left
            return
        known = self._processes.pop(pid, None)
        if known is not None:
            self._end(known, 0)
        process = self._processes[pid] = _Process(key, Modules(iter(modules)), pidfd)
        self._tell(process, self._probed(process.modules))

    def _probed(self, modules: Modules) -> frozenset[int]:
        indices = (self.found.index(key) for key in modules.files())
        return frozenset(index for index in indices if index is not None)

    def _tell(self, process: _Process, files: frozenset[int]) -> None:
        if files != process.files:
            process.files = files
            self._queue.append(ProcessSeen(process.key, files))

    def _end(self, process: _Process, now_ns: int) -> None:
        os.close(process.pidfd)
        process.ended_ns = now_ns
        self._ended[process.key] = process
        if len(self._ended) > self.most_processes:
            del self._ended[next(iter(self._ended))]
        self._queue.append(ProcessGone(process.key))

    def _walk(self, now_ns: int) -> None:
        for pid in all_pids(self.proc):
            probed = False
            for module in read_maps(self.proc, pid):
                if not self.found.is_plain(module.file, 0, now_ns):
                    self._queue += self.found.see(pid, module, 0, now_ns, 0)
                    probed = probed or self.found.index(module.file) is not None
            known = self._processes.get(pid)
            if known is not None and known.key != process_key(self.proc, pid):
                self._executed(pid, now_ns)
                known = None
            if known is not None:
                self._look_again(known)
            elif probed:
                self._track(pid, list(read_maps(self.proc, pid)))

    def _look_again(self, process: _Process) -> None:
        """Read the maps anew: what was unmapped (dlclose) is told nowhere else."""
        process.modules = Modules(read_maps(self.proc, process.key.pid))
        self._tell(process, self._probed(process.modules))

    def _sweep(self, now_ns: int) -> None:
        """Notice ended processes, look at one living one's maps, let go of deleted files."""
        for pid in self._ended_pids():
            self._executed(pid, now_ns)
        if self._processes:
            pid = next(iter(self._processes))
            process = self._processes[pid] = self._processes.pop(pid)  # the next one next time
            self._look_again(process)
        if now_ns - self._plain_from_ns > LOOK_AGAIN_NS or len(self._plain) > _MOST_PLAIN:
            self._plain.clear()
            self._plain_from_ns = now_ns
        in_use = set[int]().union(*(process.files for process in self._processes.values()))
        self._queue += self.found.sweep(in_use)
        for key in [k for k, p in self._ended.items() if now_ns - p.ended_ns > _KEEP_NS]:
            del self._ended[key]
        self._make_room(now_ns)

    def _make_room(self, now_ns: int) -> None:
        """Hold to the bound on modules: ended processes go first, then who has most."""
        known = chain(self._ended.values(), self._processes.values())
        held = sum(len(process.modules) for process in known)
        while held > self.most_modules and self._ended:
            held -= len(self._ended.pop(next(iter(self._ended))).modules)
        while held > self.most_modules and self._processes:
            most = max(self._processes.values(), key=lambda process: len(process.modules))
            held -= len(most.modules)
            self._executed(most.key.pid, now_ns)
            del self._ended[most.key]

    def _ended_pids(self) -> Iterator[int]:
        waiting = select.poll()
        pids = {process.pidfd: pid for pid, process in self._processes.items()}
        for pidfd in pids:
            waiting.register(pidfd, select.POLLIN)
        with suppress(OSError):
            for pidfd, _ in waiting.poll(0):
                yield pids[pidfd]


_GATHER_S: Final = 0.002
"""One program's start tells of itself in ten records within milliseconds: read together they cost
half as much (0.3 to 0.4 ms a start instead of 0.7), and the first is seen 2 ms later."""
_GATHER_FIRST_S: Final = 0.05
"""While nothing is probed: loading the programs for the first file takes longer still, and a host
where scripts start programs all the time pays for a few wake-ups a second instead of tens."""
_QUIET_S: Final = 0.005
_SWARM: Final = 50
_PER_S: Final = 100
"""Records come in swarms, and a wake-up costs 0.1 ms: fifty follow at once, so that one program's
start is seen as it happens; after that one in 5 ms, and a hundred a second are earned back."""
_LONGEST_WAIT_S: Final = 1.0
_LONGEST_REST_S: Final = 15.0
"""While no process is followed: what begins tells of itself, and nothing can end."""
MOST_EVENTS: Final = 65_536


class DiscoveryThread:
    """Polls when a record arrives, in bounds; `on_file` runs in the thread, and must not raise."""

    def __init__(
        self, discovery: Discovery, on_file: Callable[[FileFound | FileGone], None]
    ) -> None:
        self.discovery = discovery
        self._on_file = on_file
        self._events: deque[Event] = deque()
        self._stopping = threading.Event()
        self._ending = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)
        self.lock = threading.Lock()
        self._failure: str | None = None
        self.cpu_ns = 0

    def start(self) -> None:
        """Walk /proc here and now, then watch."""
        self._poll()
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Tell whether it runs: where it does not, no file is found any more."""
        return self._thread.is_alive()

    def take(self) -> list[Event]:
        """Give the new events. Raises SourceUnavailable once the thread has ended by itself."""
        if self._failure is not None and not self._events:
            raise SourceUnavailable(f"discovery ended: {self._failure}")
        return [self._events.popleft() for _ in range(len(self._events))]

    def stop(self) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        os.eventfd_write(self._ending, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._ending)
        self.discovery.close()

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # noqa: BLE001 (told where the events are taken)
            self._failure = type(error).__name__  # its text may hold names of what runs here

    def _watch(self) -> None:
        waiting = select.poll()
        for fd in (self._ending, *self.discovery.fds):
            waiting.register(fd, select.POLLIN)
        credit, credited_s = float(_SWARM), time.monotonic()
        share = CpuShare(time.monotonic(), time.thread_time())
        while not self._stopping.is_set():
            wait_s = _LONGEST_WAIT_S if self.discovery.follows else _LONGEST_REST_S
            if waiting.poll(wait_s * 1000) and not self._stopping.is_set():
                time.sleep(_GATHER_S if self.discovery.found.holds else _GATHER_FIRST_S)
            self._poll()
            now_s = time.monotonic()
            credit = min(_SWARM, credit + (now_s - credited_s) * _PER_S) - 1
            credited_s = now_s
            if credit < 0:
                credit = 0.0
                time.sleep(_QUIET_S)
            self.cpu_ns = time.thread_time_ns()
            # Records that find no room meanwhile are counted, and a walk finds what they told.
            pause_s = share.pause_s(time.monotonic(), time.thread_time())
            if pause_s:
                self._stopping.wait(pause_s)

    def _poll(self) -> None:
        with self.lock:
            events = self.discovery.poll(boottime_ns())
        for event in events:
            if isinstance(event, FileFound | FileGone):
                self._on_file(event)
            if len(self._events) < MOST_EVENTS:
                self._events.append(event)
