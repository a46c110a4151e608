"""A running probe source that counts the processes of one test alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from collectors.binaries.proc_maps import process_key
from collectors.devices.devices_source import GpuUsers
from collectors.gpu_calls.activity_records import GpuPlaces
from collectors.gpu_calls.governor import GovernorSettings
from collectors.gpu_calls.gpu_probes import GpuProbesSource, ProbesSection
from collectors.records.activity import KernelActivity, Record
from collectors.records.gpu_calls import FileGroup
from tests.probes_kit import Stubs, now_ns, waiting
from tests.wait_kit import until
from wire.catalogue import Catalogue

OURS = f"zz-{os.getpid()}"
"""Name of a test's own programs: other tests may run beside it."""
ONLY_OURS = (
    *(OURS[:end] for end in range(len(OURS))),
    *(f"{OURS[:end]}[!{OURS[end]}]*" for end in range(len(OURS))),
    f"{OURS}?*",
)
"""Patterns of every other name."""


def attached_files(source: GpuProbesSource, pid: int) -> set[str]:
    """Give the files that a process has mapped and the source has wholly attached to."""
    running = source.running
    attached, attacher = set(running.programs.attached), running.attacher
    paths = {
        str(Path(file.path).readlink())
        for index, file in list(attacher._files.items())
        if all(FileGroup(index, group) in attached for group in file.groups() & attacher._wanted)
    }
    mapped = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return paths & {line.split(maxsplit=5)[-1] for line in mapped}


def own_caller(stubs: Stubs, folder: Path, *libraries: str, static: bool = False) -> Path:
    path = folder / OURS
    shutil.copy(stubs.caller(*libraries, static=static), path)
    return path


@dataclass
class Watched:
    source: GpuProbesSource
    records: list[Record] = field(default_factory=list)

    def drain(self) -> list[Record]:
        said = list(self.source.drain(now_ns()))
        self.records += said
        return said

    @contextmanager
    def waiting(
        self, program: Path, *words: object, files: int = 1
    ) -> Iterator[subprocess.Popen[str]]:
        """Run a caller that waits; inside the block so many of its files are attached to.

        What it has mapped is known by then, too: a file may be attached to for another's sake, and
        the first kernels would have no names.
        """
        with waiting(program, *words) as child:
            until(lambda: len(attached_files(self.source, child.pid)) >= files)
            until(lambda: self.knows(child.pid))
            yield child

    def knows(self, pid: int) -> bool:
        """Tell whether the source knows what a process has mapped, its own program too.

        Of one that was forked a moment ago it may know what its parent had.
        """
        key, running = process_key("/proc", pid), self.source.running
        modules = None if key is None else running._modules(key)
        own = Path(f"/proc/{pid}/exe").stat().st_ino
        return modules is not None and any(inode == own for _, inode in modules.files())

    def of(self, kind: type) -> list[Record]:
        return [one for one in self.records if isinstance(one, kind)]

    def launches(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for one in self.records:
            if isinstance(one, KernelActivity):
                found[one.family] += one.count * 1_000_000 // one.sampling_rate_millionths
        return found


@contextmanager
def watching(
    *,
    gpus: int = 1,
    users: Mapping[int, list[int]] | None = None,
    governor: GovernorSettings | None = None,
    settings: ProbesSection | None = None,
    symbols: Path | None = None,
    loader: str = "auto",
) -> Iterator[Watched]:
    told = GpuUsers()
    if users is not None:
        told.see(users, now_ns())
    source = GpuProbesSource(
        settings or ProbesSection(budget_percent=50.0, leave_out=ONLY_OURS),
        Catalogue.load(),
        GpuPlaces(gpus, told),
        symbols,
        governor,
        loader,
    )
    source.start()
    try:
        yield Watched(source)
    finally:
        source.stop()
