"""GPU calls of every process by uprobes: discovery, programs, governor, names put together.

One thread finds files, loads the programs for the first and attaches; one switches links as the
governor says. The agent's loop drains once a second.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from collectors.binaries.elf import ElfError
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.proc_maps import Modules
from collectors.binaries.symbols import SymbolCache
from collectors.boot_clock import boottime_ns
from collectors.interface import SourceUnavailable, UnavailableSource
from collectors.records.activity import Record
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import GovernorState, ProbeGroup, ProcessLabels
from transport.settings.config import limited
from wire.catalogue import Catalogue

from . import loaders
from .activity_records import NAME, ActivityRecords, GpuPlaces
from .call_records import CallRecords
from .costs import CpuClocks, HitCosts
from .discovery import Discovery, DiscoveryThread, ProcessGone, ProcessSeen
from .found_files import FileFound, FileGone
from .governor import Governor, GovernorSettings, Period
from .kernel_names import KernelIdentity, KernelNamer
from .periods import PeriodEnd, PeriodKeeper, ProbeAttacher, SwitchingThread
from .probe_plan import FilePlan, PlanBook
from .probe_table import ProbeTable, ProbeTableError, shipped_tables
from .process_identity import ProcessTable

_MOST_PATTERNS: Final = 64


@dataclass(frozen=True, slots=True)
class ProbesSection:
    """GPU calls of all processes, by uprobes.

    budget_percent  of the wall time of the worst-hit process, at most
    tables          probe tables beside those that come with the agent
    leave_out       patterns of process names (`comm`) whose calls are not counted: they are probed
                    all the same, because a probe is on a file and serves every process that maps it
    """

    enabled: bool = True
    budget_percent: float = limited(0.5, low=0.01, high=50)
    tables: tuple[Path, ...] = ()
    leave_out: tuple[str, ...] = limited((), most=_MOST_PATTERNS)

    @property
    def budget(self) -> float:
        return self.budget_percent / 100.0


def governor_state(
    end: PeriodEnd,
    following: Period,
    budget: float,
    files: int,
    loader: str = "libbpf",
    left_out: Iterable[ProbeGroup] = (),
) -> GovernorState:
    worst, measured = end.worst if end.worst is not None else (None, None)
    return GovernorState(
        following.begin_ns,
        following.end_ns - following.begin_ns,
        loader,
        budget,
        following.duty,
        tuple(sorted(following.steady)),
        tuple(sorted(following.in_turns)),
        {
            **dict.fromkeys(following.dropped, "dearer than the budget"),
            **dict.fromkeys(left_out, "more places than this kernel lets go quickly"),
        },
        following.predicted,
        measured,
        worst,
        files,
        end.lost,
    )


_LeftOut = Callable[[ProcessKey], bool]

LOST: Final = "without it no launches, copies, collectives or waits are seen; other sources go on"


class GpuProbesSource:
    name = NAME

    def __init__(
        self,
        settings: ProbesSection,
        catalogue: Catalogue,
        places: GpuPlaces,
        symbols: Path | None = None,
        governor: GovernorSettings | None = None,
        loader: str = loaders.Loader.AUTO,
    ) -> None:
        """Take the GPUs of this host, and the file in which names of kernels are remembered."""
        self._settings, self._catalogue = settings, catalogue
        self._governor = governor or GovernorSettings(budget=settings.budget)
        self._places, self._symbols = places, symbols
        self._loader = loaders.Loader(loader)
        self._running: RunningProbes | None = None

    def probe(self) -> str | None:
        reason = loaders.unavailable(self._loader)
        return f"GPU calls: {reason}; {LOST}" if reason else None

    def start(self) -> None:
        if self._running is None:
            with _told():
                table = self._table()
                activity = partial(ActivityRecords, table, self._catalogue, self._places)
                left_out = self._settings.leave_out
                chosen = loaders.choose(table, self._loader)
                self._running = RunningProbes(
                    table, chosen, self._governor, left_out, activity, self._symbols
                )

    def try_out(self) -> list[UnavailableSource]:
        with _told():
            loaders.choose(self._table(), self._loader).programs.try_out(dear=True)
        return []

    def drain(self, now_boottime_ns: int) -> Iterable[Record]:
        return self.running.records(now_boottime_ns)

    def stop(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def _table(self) -> ProbeTable:
        return ProbeTable.load(*shipped_tables(), *self._settings.tables)

    @property
    def running(self) -> RunningProbes:
        """The parts. Raises SourceUnavailable before the start."""
        if self._running is None:
            raise SourceUnavailable("GPU calls: not started")
        return self._running


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (SourceUnavailable, ProbeTableError) as error:
        raise SourceUnavailable(f"GPU calls: {error}; {LOST}") from None


class RunningProbes:
    def __init__(
        self,
        table: ProbeTable,
        chosen: loaders.Chosen,
        governor: GovernorSettings,
        left_out: Sequence[str],
        activity: Callable[[Callable[[ProcessKey], str], _LeftOut], ActivityRecords],
        symbols: Path | None,
    ) -> None:
        """Start, or leave nothing behind. Raises SourceUnavailable."""
        self._budget = governor.budget
        self._probed: dict[ProcessKey, frozenset[int]] = {}
        self._stripped: dict[int, FileFound] = {}
        with ExitStack() as undo:
            self.programs, self.loader, turns, few_places = chosen
            undo.callback(self.programs.close)
            self.costs = HitCosts(table)
            self.attacher = ProbeAttacher(self.programs, few_places=few_places)
            self.keeper = PeriodKeeper(
                self.programs,
                Governor(replace(governor, turns=turns), secrets.randbelow),
                self.costs,
                self.attacher.places,
                CpuClocks(self._callers),
            )
            self.keeper.start(boottime_ns())
            self._book = PlanBook(table)
            discovery = Discovery(self._book)
            self.discovery = DiscoveryThread(discovery, self._on_file)
            undo.callback(self.discovery.stop)
            cache = SymbolCache(symbols) if symbols is not None else None
            if cache is not None:
                undo.callback(cache.close)
            namer = KernelNamer(self._modules, cache)
            undo.callback(namer.close)
            self.kernels = KernelIdentity.load(namer, table)
            self.processes = ProcessTable(left_out)
            is_left_out = self.processes.is_left_out
            self._activity = activity(self.kernels.classifier.application, is_left_out)
            self._calls = CallRecords(table, self._identity, is_left_out)
            self._gone: list[ProcessKey] = []
            self.switching = SwitchingThread(
                self.keeper, self.attacher, partial(self.costs.calibrate, self.programs)
            )
            self.discovery.start()
            self.programs.try_out()
            self.switching.start()
            undo.callback(self.switching.stop)
            self._undo = undo.pop_all()

    def records(self, now_ns: int) -> Iterator[Record]:
        """Drain once. Raises SourceUnavailable."""
        if self.programs.failure is not None:
            raise SourceUnavailable(f"GPU calls: {self.programs.failure}; {LOST}")
        if not self.switching.alive or not self.discovery.alive:
            self.attacher.follow(frozenset())
            raise SourceUnavailable("GPU calls: a thread of the source ended; all is detached")
        gone, self._gone = self._gone, []
        for event in self.discovery.take():
            if isinstance(event, ProcessSeen):
                self._probed[event.process] = event.files
                self.processes.identity(event.process)  # while it lives
            elif isinstance(event, ProcessGone):
                self._probed.pop(event.process, None)
                self._gone.append(event.process)
        self._attach_stripped()
        collected, turned = self.keeper.take(now_ns)
        if turned:
            self.switching.wake()
        names = self.kernels.name(collected)
        pids = {process.pid for process in self._probed}
        yield from self._activity.of(collected, names, pids)
        yield from self._calls.of(collected, names)
        files, period = len(self.attacher.files), self.keeper.period
        for ended in (collection.ended for collection in collected):
            if ended is not None:
                left_out = self.attacher.left_out
                state = governor_state(ended, period, self._budget, files, self.loader, left_out)
                launches, unnamed = self.kernels.take_unnamed()
                yield replace(state, launches=launches, unnamed=unnamed)
        # What had ended before the drain is counted now, to its last call.
        for process in gone:
            self.kernels.forget(process)
            self.processes.forget(process)
            self._calls.forget(process)
            self.keeper.forget(process)

    def close(self) -> None:
        self._undo.close()

    def _on_file(self, event: FileFound | FileGone) -> None:
        match event:
            case FileGone():
                self._stripped.pop(event.file, None)
                self.attacher.remove(event.file)
                self.costs.forget(event.file)
            case FileFound() if event.plan:
                self.costs.learn(event.file, event.plan)
                self.attacher.add(event)
            case FileFound():
                self._stripped[event.file] = event

    def _attach_stripped(self) -> None:
        """Attach to where files with a stripped runtime of their own launch, when that is known."""
        for found in list(self._stripped.values()):
            launches = self.kernels.namer.launches(found.open_path, found.build_id)
            if launches is None:
                continue  # it is being read
            plan = FilePlan(())
            if launches:
                with suppress(OSError, ElfError), Path(found.open_path).open("rb") as file:
                    plan = self._book.plan_launches(ElfFile.read(file), launches)
            if self._stripped.pop(found.file, None) is not None and plan:
                self._on_file(replace(found, plan=plan))

    def _modules(self, process: ProcessKey) -> Modules | None:
        with self.discovery.lock:
            return self.discovery.discovery.modules(process)

    def _identity(self, process: ProcessKey) -> ProcessLabels:
        application = self.kernels.classifier.application(process)
        return self.processes.identity(process)._replace(application=application)

    def _callers(self) -> Iterable[ProcessKey]:
        return [process for process, files in list(self._probed.items()) if files]
