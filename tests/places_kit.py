"""Where each planned symbol of a real library is probed, as lines of a table that is committed.

python -m tests.places_kit    writes the table anew; reasons are kept
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from collectors.binaries.elf_file import ElfFile, EntryClass
from collectors.gpu_calls.probe_plan import FilePlan, PlanBook
from collectors.gpu_calls.probe_table import ProbeTable
from tests.real_libraries import DRIVER, NCCL, RUNTIMES, shared_runtime, unpacked

TABLE: Final = Path(__file__).parent / "collectors" / "gpu_calls" / "planned_places.tsv"
LIBRARIES: Final[Mapping[str, Callable[[], Path]]] = {
    "libcuda.so.1": partial(unpacked, DRIVER),
    "libcudart.so.12": partial(shared_runtime, RUNTIMES[0]),
    "libcudart.so.13": partial(shared_runtime, RUNTIMES[1]),
    "libnccl.so.2": partial(unpacked, NCCL),  # a runtime is linked into it
}
"""Where the real ones lie, by the names under which programs load them."""


class Places(NamedTuple):
    """Symbols of one row of the probe table that are probed alike.

    entry    how the kernel passes the first instruction
    behind   bytes behind the entry at which the probe lies
    place    how the kernel passes the instruction there
    returns  the return is probed too
    why      a dear place stays: what keeps the probe from moving
    symbols  in order; names of one function are joined by `=`
    """

    library: str
    row: str
    entry: str
    behind: str
    place: str
    returns: str
    why: str
    symbols: str


def places(name: str, path: Path) -> list[Places]:
    table = ProbeTable.load()
    with path.open("rb") as file:
        elf = ElfFile.read(file)
        names = defaultdict(set)
        for function in elf.functions():
            names[function.offset].add(function.name)
        entries, moved = (PlanBook(table).plan(elf, name, moved) for moved in (False, True))
    symbols = defaultdict(list)
    for probe in _probes(entries, moved):
        returns = "yes" if probe.returns else "no"
        key = (table.rows[probe.row].id, probe.before, probe.behind, probe.after, returns)
        symbols[key].append("=".join(sorted(names[probe.entry])))
    return sorted(
        Places(name, *key[:2], str(key[2]), key[3], key[4], "", " ".join(sorted(found)))
        for key, found in symbols.items()
    )


def committed() -> list[Places]:
    with TABLE.open(newline="") as file:
        return [Places(*line) for line in csv.reader(file, delimiter="\t")][1:]


class _Probe(NamedTuple):
    entry: int
    behind: int
    before: EntryClass
    after: EntryClass
    row: int
    returns: bool


def _probes(entries: FilePlan, moved: FilePlan) -> Iterator[_Probe]:
    """Pair what is planned at entries with where it is moved to: no place passes another."""
    returned = {at for link in moved.attachments if link.returns for at in link.offsets}
    for was, now in zip(entries.attachments, moved.attachments, strict=True):
        columns = zip(was.offsets, now.offsets, was.classes, now.classes, now.rows, strict=True)
        for entry, at, before, after, row in columns:
            if not was.returns:
                yield _Probe(entry, at - entry, before, after, row, at in returned)


def main() -> None:
    reasons = {(line.library, line.symbols): line.why for line in committed()}
    found = [line for name, library in LIBRARIES.items() for line in places(name, library())]
    with TABLE.open("w", newline="") as file:
        lines = csv.writer(file, delimiter="\t", lineterminator="\n")
        lines.writerow(Places._fields)
        for line in found:
            lines.writerow(line._replace(why=reasons.get((line.library, line.symbols), "")))


if __name__ == "__main__":
    main()
