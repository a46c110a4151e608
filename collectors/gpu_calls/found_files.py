"""The files that processes execute: which were looked at, which are worth probing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple, TypeVar

from collectors.binaries.elf import ElfError
from collectors.binaries.elf_file import ElfFile
from collectors.binaries.proc_maps import FileIdentity, FileKey, MappedFile, Module, open_mapped

from .probe_plan import FilePlan, PlanBook

LOOK_AGAIN_NS: Final = 60_000_000_000
"""A file that was not worth probing is looked at again when it is mapped a minute later: it may
have been written in place meanwhile. Reading its times is enough (30 us)."""


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FileFound:
    """A file whose calls can be probed.

    file       its index for as long as the agent runs: half of the attach cookie
    open_path  leads to it until it is gone, in this process only
    path       as the process has it: raw and local only
    mapped_ns  when it was mapped (CLOCK_BOOTTIME), 0: before the agent looked; calls between then
               and the end of attaching are missed
    """

    file: int
    key: FileKey
    open_path: str
    plan: FilePlan
    path: str
    build_id: str
    mapped_ns: int


@dataclass(frozen=True, slots=True)
class FileGone:
    file: int


@dataclass(slots=True)
class _Held:
    found: FileFound
    open: MappedFile


@dataclass(slots=True)
class _Plain:
    generation: int
    looked_ns: int
    identity: FileIdentity | None


class _OtherName(NamedTuple):
    """The same file, seen through an overlay mount of another container."""

    key: FileKey
    looked_ns: int


@dataclass(slots=True)
class FoundFiles:
    """Every file is read once, under whichever mount; those worth probing stay open."""

    book: PlanBook
    proc: str = "/proc"
    most_held: int = 512
    most_plain: int = 65_536
    _held: dict[FileKey, _Held] = field(default_factory=dict)
    _same: dict[tuple[FileIdentity, int, str], FileKey] = field(default_factory=dict)
    _other_names: OrderedDict[FileKey, _OtherName] = field(default_factory=OrderedDict)
    _plain: OrderedDict[FileKey, _Plain] = field(default_factory=OrderedDict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def index(self, key: FileKey) -> int | None:
        other = self._other_names.get(key)
        held = self._held.get(other.key if other is not None else key)
        return held.found.file if held is not None else None

    def is_plain(self, key: FileKey, generation: int, now_ns: int) -> bool:
        """Tell whether a file is known not to be worth probing; the usual answer, and quick."""
        plain = self._plain.get(key)
        return (
            plain is not None
            and now_ns - plain.looked_ns < LOOK_AGAIN_NS
            and (generation == plain.generation or 0 in {generation, plain.generation})
        )

    def see(
        self, pid: int, module: Module, generation: int, now_ns: int, mapped_ns: int
    ) -> list[FileFound | FileGone]:
        """Look at a file that a process has mapped; gives what changed."""
        said: list[FileFound | FileGone] = []
        held = self._known(module.file, now_ns)
        if held is not None:
            if not held.open.changed():
                return []
            said.append(self._let_go(held))
        elif self.is_plain(module.file, generation, now_ns):
            return []
        file = open_mapped(self.proc, pid, module.start, module.end, module.file, module.path)
        if file is None:
            self._note(self._plain, module.file, _Plain(generation, now_ns, None))
            return said
        found = self._read(file, module, generation, now_ns, mapped_ns)
        return [*said, found] if found is not None else said

    def sweep(self, in_use: set[int]) -> list[FileGone]:
        """Let go of files that were deleted and that no process has mapped."""
        gone = [
            held
            for held in self._held.values()
            if held.found.file not in in_use and held.open.deleted()
        ]
        return [self._let_go(held) for held in gone]

    def close(self) -> None:
        while self._held:
            self._held.popitem()[1].open.close()

    def _read(
        self, file: MappedFile, module: Module, generation: int, now_ns: int, mapped_ns: int
    ) -> FileFound | None:
        known = self._plain.get(module.file)
        if known is not None and known.identity == file.identity:
            self._note(self._plain, module.file, _Plain(generation, now_ns, file.identity))
            file.close()
            return None
        plan, build_id = self._plan(file, module.path)
        if plan or plan.remark:
            state = (file.identity, file.inode_changed_ns, build_id)
            same = self._same.get(state) if build_id else None
            if same is not None and (file.overlay or self._held[same].open.overlay):
                self._note(self._other_names, module.file, _OtherName(same, now_ns))
                file.close()
                return None
            if len(self._held) < self.most_held:
                return self._hold(file, module, plan, build_id, mapped_ns)
        self._note(self._plain, module.file, _Plain(generation, now_ns, file.identity))
        file.close()
        return None

    def _known(self, key: FileKey, now_ns: int) -> _Held | None:
        other = self._other_names.get(key)
        if other is None:
            return self._held.get(key)
        if now_ns - other.looked_ns < LOOK_AGAIN_NS:
            return self._held.get(other.key)
        del self._other_names[key]
        return None

    def _plan(self, file: MappedFile, path: str) -> tuple[FilePlan, str]:
        name = path.removesuffix(" (deleted)").rpartition("/")[2]
        try:
            with open(file.fd, "rb", buffering=0, closefd=False) as raw:
                elf = ElfFile.read(raw)
                return self.book.plan(elf, name), elf.build_id
        except ElfError:
            return FilePlan(()), ""

    def _hold(
        self, file: MappedFile, module: Module, plan: FilePlan, build_id: str, mapped_ns: int
    ) -> FileFound:
        found = FileFound(
            next(self._numbers), module.file, file.path, plan, module.path, build_id, mapped_ns
        )
        self._held[module.file] = _Held(found, file)
        self._plain.pop(module.file, None)
        if build_id:
            self._same[file.identity, file.inode_changed_ns, build_id] = module.file
        return found

    def _let_go(self, held: _Held) -> FileGone:
        key = held.found.key
        del self._held[key]
        self._same = {same: of for same, of in self._same.items() if of != key}
        for name in [name for name, of in self._other_names.items() if of.key == key]:
            del self._other_names[name]
        held.open.close()
        return FileGone(held.found.file)

    def _note(self, table: OrderedDict[FileKey, _T], key: FileKey, entry: _T) -> None:
        table[key] = entry
        table.move_to_end(key)
        while len(table) > self.most_plain:
            table.popitem(last=False)
