"""Names of kernels from what a launch call was given, their families and application classes.

In order: the name by which the process looked a handle up; what the file registers for the host
stub, which a handle, the address itself or the place that launched lead to; the function at the
address; its module and place. Names are raw: they stay on this host.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from collectors.binaries.elf import ElfError
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.proc_maps import FileKey, Module, Modules, open_mapped, open_regular
from collectors.binaries.symbols import Demangler, SymbolCache, SymbolIndex, file_state
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import ProbeGroup, Unnamed
from collectors.stubs.stub_files import READING, StubFiles
from kernels.families import FamilyRules
from kernels.signatures import ApplicationClassifier, Signatures

from .activity_records import Named
from .periods import Collected
from .probe_table import CallKind, ProbeTable
from .readout import NameEvent

OTHER: Final = "other"
UNKNOWN: Final = "unknown"
_MOST_HANDLES: Final = 65_536
_MOST_PROCESSES: Final = 4096
_MOST_OPEN: Final = 8
_MOST_HIDDEN: Final = 256
_MOST_FUNCTIONS: Final = 2_000_000

GRAPH: Final = Named("(graph)", "other")
_NO_ROOM: Final = Named(OTHER, "other")


class Found(NamedTuple):
    """What a kernel is called, and why it has no name; that may change unless it `lasts`."""

    name: str
    unnamed: Unnamed | None = None
    lasts: bool = True


_READING: Final = Found(UNKNOWN, Unnamed.READING, lasts=False)


@dataclass(slots=True)
class _Process:
    """What a process said of its handles, names already given, and files it did not lead to."""

    handles: dict[int, NameEvent] = field(default_factory=dict)
    given: dict[int, Found] = field(default_factory=dict)
    hidden: set[FileKey] = field(default_factory=set)


@dataclass(slots=True)
class KernelNamer:
    """Names for the kernels of `LaunchRow`s; forgets a process when told."""

    modules: Callable[[ProcessKey], Modules | None]
    cache: SymbolCache | None = None
    proc: str = "/proc"
    demangler: Demangler = field(default_factory=Demangler)
    stubs: StubFiles = field(init=False)
    _processes: OrderedDict[ProcessKey, _Process] = field(default_factory=OrderedDict)
    _indices: OrderedDict[FileKey, SymbolIndex | None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.stubs = StubFiles(self.cache)

    def learn(self, events: Iterable[NameEvent]) -> None:
        for event in events:
            handles = self._process(event.process).handles
            if event.handle and (event.name or event.host_function):
                if event.handle not in handles and len(handles) >= _MOST_HANDLES:
                    continue
                handles[event.handle] = event
                self._process(event.process).given.pop(event.handle, None)

    def names(
        self, kernels: Mapping[tuple[ProcessKey, int], int]
    ) -> dict[tuple[ProcessKey, int], Found]:
        """Name kernels; with each, where its launch returned to, 0: not known."""
        answers: dict[tuple[ProcessKey, int], Found] = {}
        raw: dict[tuple[ProcessKey, int], Found] = {}
        for (process, kernel), caller in kernels.items():
            known = self._process(process).given.get(kernel)
            if known is None:
                raw[process, kernel] = self._raw(process, kernel, caller)
            else:
                answers[process, kernel] = known
        texts = self.demangler.demangle([found.name for found in raw.values()])
        for ((process, kernel), found), text in zip(raw.items(), texts, strict=True):
            answers[process, kernel] = found._replace(name=text)
            given = self._process(process).given
            if found.lasts and len(given) < _MOST_HANDLES:
                given[kernel] = answers[process, kernel]
        return answers

    def launches(self, path: str, build_id: str | None = None) -> list[int] | None:
        """Give where the stubs of a file launch; None while it is being read.

        build_id    where the caller knows it: a stranger's headers take 0.2 s to read
        """
        file = open_regular(path)
        if file is None:
            return []
        try:
            if build_id is None:
                with open(file.fd, "rb", buffering=0, closefd=False) as raw:
                    build_id = ElfFile.read(raw).build_id
            table = self.stubs.table(file_state(build_id, file.fd), file.fd)
        except ElfError:
            return []
        finally:
            file.close()
        if isinstance(table, str):
            return None if table == READING else []
        return table.launches

    def forget(self, process: ProcessKey) -> None:
        self._processes.pop(process, None)

    def close(self) -> None:
        self.stubs.close()
        while self._indices:
            index = self._indices.popitem()[1]
            if index is not None:
                index.close()

    def _process(self, key: ProcessKey) -> _Process:
        if key not in self._processes and len(self._processes) >= _MOST_PROCESSES:
            self._processes.popitem(last=False)
        return self._processes.setdefault(key, _Process())

    def _raw(self, process: ProcessKey, kernel: int, caller: int) -> Found:
        handles = self._process(process).handles
        event = handles.get(kernel)
        address = kernel
        if event is not None and not event.name:
            address = event.host_function
            event = handles.get(address)  # what was looked up for it
        if event is not None and event.name:
            return Found(event.name)
        modules = self.modules(process)
        if modules is None:
            return Found(UNKNOWN, Unnamed.PROCESS, lasts=False)
        own, calling = modules.find(address), modules.find(caller)
        registered = self._registered(process, own or calling, address, caller)
        if registered is not None and registered.unnamed is None:
            return registered
        if own is None:
            return registered or Found(UNKNOWN, Unnamed.HANDLE, lasts=False)
        offset = own.file_offset(address)
        # A symbol is spelt as the host's compiler spells it.
        symbol = self._symbol(process, own, offset)
        if symbol is None and registered is None:
            base = own.path.removesuffix(" (deleted)").rpartition("/")[2]
            return Found(f"{base}+{offset:#x}", Unnamed.FILE)
        return Found(symbol, lasts=registered is None) if symbol is not None else _READING

    def _registered(
        self, process: ProcessKey, module: Module | None, address: int, caller: int
    ) -> Found | None:
        """Give the name that a file registers; None where it registers none for this kernel."""
        index = self._index(process, module) if module is not None else None
        if module is None or index is None:
            return None
        table = self.stubs.table(index.state, index.fd)
        if isinstance(table, str):
            return _READING if table == READING else None
        bias = table.bias(module)
        if bias is None:
            return None
        name = table.name(address - bias) or table.launched(caller - bias)
        return Found(name) if name is not None else None

    def _symbol(self, process: ProcessKey, module: Module, offset: int) -> str | None:
        index = self._index(process, module)
        if index is None:
            return None
        known = self.cache.find(index.cache_key, [offset]) if self.cache is not None else {}
        symbol = known.get(offset) or index.name(offset)
        if symbol is not None and not known and self.cache is not None:
            self.cache.keep(index.cache_key, {offset: symbol})
        return symbol

    def _index(self, process: ProcessKey, module: Module) -> SymbolIndex | None:
        """Open the file behind a module; what cannot be read, or reached, is not tried again."""
        if module.file in self._indices:
            index = self._indices.pop(module.file)
            if index is None or not index.changed():
                self._indices[module.file] = index
                return index
            index.close()
        hidden, pid = self._process(process).hidden, process.pid
        if module.file in hidden:
            return None
        opened = open_mapped(self.proc, pid, module.start, module.end, module.file, module.path)
        if opened is None:
            if len(hidden) < _MOST_HIDDEN:
                hidden.add(module.file)
            return None
        index = None
        try:
            index = SymbolIndex(opened, ("", f"{self.proc}/{pid}/root"))
        except ElfError:
            opened.close()
        self._indices[module.file] = index
        self._make_room()
        return index

    def _make_room(self) -> None:
        """Close the files that were not asked for longest; the last one stays in any case."""
        while len(self._indices) > 1:
            held = sum(index.functions for index in self._indices.values() if index is not None)
            if len(self._indices) <= _MOST_OPEN and held <= _MOST_FUNCTIONS:
                return
            oldest = self._indices.popitem(last=False)[1]
            if oldest is not None:
                oldest.close()


@dataclass(slots=True)
class KernelIdentity:
    namer: KernelNamer
    rules: FamilyRules
    classifier: ApplicationClassifier
    graphs: frozenset[str]
    launches: int = 0
    unnamed: Counter[Unnamed] = field(default_factory=Counter)

    @classmethod
    def load(cls, namer: KernelNamer, table: ProbeTable) -> KernelIdentity:
        graphs = frozenset(row.id for row in table.rows if row.kind is CallKind.GRAPH_LAUNCH)
        classifier = ApplicationClassifier(Signatures.load())
        return cls(namer, FamilyRules.load(), classifier, graphs)

    def name(self, collected: Sequence[Collected]) -> dict[tuple[ProcessKey, int], Named]:
        named: dict[tuple[ProcessKey, int], Named] = {}
        wanted: dict[tuple[ProcessKey, int], int] = {}
        counts: Counter[tuple[ProcessKey, int]] = Counter()
        for collection in collected:
            self.namer.learn(collection.drain.names)
            for row in collection.drain.launches:
                key = row.process, row.kernel
                self.launches += row.launches
                if not row.kernel:
                    named[key] = _NO_ROOM
                    self.unnamed[Unnamed.ROOM] += row.launches
                elif row.call in self.graphs:
                    named[key] = GRAPH
                else:
                    wanted[key] = max(row.caller, wanted.get(key, 0))
                    counts[key] += row.launches
        for key, found in self.namer.names(wanted).items():
            named[key] = Named(found.name, self.rules.classify(found.name)[0])
            if found.unnamed is not None:
                self.unnamed[found.unnamed] += counts[key]
        launches: defaultdict[tuple[ProcessKey, Named], float] = defaultdict(float)
        for collection in collected:
            share = collection.shares[ProbeGroup.LAUNCH]
            for row in collection.drain.launches if share > 0.0 else ():
                known = named[row.process, row.kernel]
                if known not in (GRAPH, _NO_ROOM):
                    launches[row.process, known] += row.launches / share
        for (process, known), count in launches.items():
            self.classifier.observe(process, known.kernel, known.family, round(count))
        self.classifier.end_round()
        return named

    def take_unnamed(self) -> tuple[int, dict[Unnamed, int]]:
        """Give launches since the last call, and how many of them had no name, by why."""
        taken = self.launches, dict(self.unnamed)
        self.launches, self.unnamed = 0, Counter()
        return taken

    def forget(self, process: ProcessKey) -> None:
        """Forget a process that ended or runs another program."""
        self.namer.forget(process)
        self.classifier.forget(process)
