"""Names of kernels from what a launch call was given, their families and application classes.

In order: the name registered or looked up by the process; the host function behind a handle of
CUDA 13; the function at the address; its module and place. Names are raw: they stay on this host.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from collectors.binaries.elf import ElfError
from collectors.binaries.proc_maps import FileKey, Module, Modules, open_mapped
from collectors.binaries.symbols import Demangler, SymbolCache, SymbolIndex
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import ProbeGroup
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


@dataclass(slots=True)
class _Process:
    """What a process said of its handles, names already given, and files it did not lead to."""

    handles: dict[int, NameEvent] = field(default_factory=dict)
    given: dict[int, str] = field(default_factory=dict)
    hidden: set[FileKey] = field(default_factory=set)


@dataclass(slots=True)
class KernelNamer:
    """Names for the kernels of `LaunchRow`s; forgets a process when told."""

    modules: Callable[[ProcessKey], Modules | None]
    cache: SymbolCache | None = None
    proc: str = "/proc"
    demangler: Demangler = field(default_factory=Demangler)
    _processes: OrderedDict[ProcessKey, _Process] = field(default_factory=OrderedDict)
    _indices: OrderedDict[FileKey, SymbolIndex | None] = field(default_factory=OrderedDict)

    def learn(self, events: Iterable[NameEvent]) -> None:
        for event in events:
            handles = self._process(event.process).handles
            if event.handle and (event.name or event.host_function):
                if event.handle not in handles and len(handles) >= _MOST_HANDLES:
                    continue
                handles[event.handle] = event
                self._process(event.process).given.pop(event.handle, None)

    def names(self, kernels: Sequence[tuple[ProcessKey, int]]) -> dict[tuple[ProcessKey, int], str]:
        answers: dict[tuple[ProcessKey, int], str] = {}
        raw: dict[tuple[ProcessKey, int], str] = {}
        for process, kernel in dict.fromkeys(kernels):
            known = self._process(process).given.get(kernel) if kernel else OTHER
            if known is None:
                raw[process, kernel] = self._raw(process, kernel)
            else:
                answers[process, kernel] = known
        texts = self.demangler.demangle(list(raw.values()))
        for (process, kernel), text in zip(raw, texts, strict=True):
            answers[process, kernel] = text
            given = self._process(process).given
            if text != UNKNOWN and len(given) < _MOST_HANDLES:
                given[kernel] = text
        return answers

    def forget(self, process: ProcessKey) -> None:
        self._processes.pop(process, None)

    def close(self) -> None:
        while self._indices:
            index = self._indices.popitem()[1]
            if index is not None:
                index.close()

    def _process(self, key: ProcessKey) -> _Process:
        if key not in self._processes and len(self._processes) >= _MOST_PROCESSES:
            self._processes.popitem(last=False)
        return self._processes.setdefault(key, _Process())

    def _raw(self, process: ProcessKey, kernel: int) -> str:
        handles = self._process(process).handles
        event = handles.get(kernel)
        address = kernel
        if event is not None and not event.name:
            address = event.host_function
            event = handles.get(address)  # what was registered for the host function
        if event is not None and event.name:
            return event.name
        modules = self.modules(process)
        module = modules.find(address) if modules is not None else None
        if module is None:
            return UNKNOWN
        offset = module.file_offset(address)
        symbol = self._symbol(process, module, offset)
        if symbol is not None:
            return symbol
        base = module.path.removesuffix(" (deleted)").rpartition("/")[2]
        return f"{base}+{offset:#x}"

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

    @classmethod
    def load(cls, namer: KernelNamer, table: ProbeTable) -> KernelIdentity:
        graphs = frozenset(row.id for row in table.rows if row.kind is CallKind.GRAPH_LAUNCH)
        classifier = ApplicationClassifier(Signatures.load())
        return cls(namer, FamilyRules.load(), classifier, graphs)

    def name(self, collected: Sequence[Collected]) -> dict[tuple[ProcessKey, int], Named]:
        named: dict[tuple[ProcessKey, int], Named] = {}
        wanted: dict[tuple[ProcessKey, int], None] = {}
        for collection in collected:
            self.namer.learn(collection.drain.names)
            for row in collection.drain.launches:
                key = row.process, row.kernel
                if not row.kernel:
                    named[key] = _NO_ROOM
                elif row.call in self.graphs:
                    named[key] = GRAPH
                else:
                    wanted[key] = None
        for key, name in self.namer.names(list(wanted)).items():
            named[key] = Named(name, self.rules.classify(name)[0])
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

    def forget(self, process: ProcessKey) -> None:
        """Forget a process that ended or runs another program."""
        self.namer.forget(process)
        self.classifier.forget(process)
