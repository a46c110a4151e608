"""The hand-checked table of kernel names, and which third of it the rules may not be written from.

The split was fixed before any name was looked at: it is a hash of the name's stem, so that all
instances of one template fall on one side, and nobody can choose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from bench.record import ROOT

TABLE: Final = ROOT / "tests" / "kernel_names.tsv"
SPENT: Final = frozenset({
    "actquantkernel", "amperebfsgemmbfxldgffstagesxtn", "batchnormcollectstatisticskernel",
    "combine", "concatmlakkernel", "devicekernel", "dynamicpergroupscaledquantkernel",
    "expandinputrowskernel", "explicitconvolvesgemm", "flashbwddotdookernel",
    "fusedagemmkernel", "fusedmoekernel", "fwdkernelepgather", "fwdkernelstage",
    "gemmhalfqhalfgptqbitkernel", "kernelflashinferbgmvmoeshrinkgroupedringsinglefr",
    "kernelflashinferblackwellsoftmaxcachedct", "maxpoolforwardnchw",
    "maxwellscudnnxstridedbsplitkmediumnnv", "moealignblocksizekernel",
    "nccldevkernelallreducesumfringll", "nhwctonchwkernel", "pertokengroupquantbitkernel",
    "routingmainkernel", "sgemmloraakernel", "silumulfpquantdeepgemmkernel", "storekvcache",
    "transposereadwritealignmentkernel", "winogradforwarddatax",
})  # fmt: skip
"""Held-out stems that were in sight, or all but in sight, before the rules were fixed, or
whose miss a rule was mended for."""

_LABEL: Final = b"pointillist kernel names 1:"
_NOISE: Final = re.compile(r"^void |\(anonymous namespace\)|[^A-Za-z:<(]")


@dataclass(frozen=True, slots=True)
class NamedKernel:
    """One row: a kernel's name, the family a person gave it, and the library that publishes it.

    source      the library; `trace` for names of the recorded traces
    """

    source: str
    family: str
    name: str

    @property
    def held_out(self) -> bool:
        """Is it of the third that rules may not be written from?"""
        return held_out(self.name)


def stem(name: str) -> str:
    """Letters of the name up to its template arguments or parameters, without its namespaces."""
    head = re.split(r"[<(]", _NOISE.sub("", name), maxsplit=1)[0]
    return head.rpartition("::")[2].lower()


def held_out(name: str) -> bool:
    """Say whether a name is of the held-out third: one in three stems, by hash."""
    return int.from_bytes(sha256(_LABEL + stem(name).encode()).digest()[:8], "big") % 3 == 0


def read_table(path: Path = TABLE) -> tuple[NamedKernel, ...]:
    """Read the table: tab-separated source, family and name; lines that begin with # are remarks.

    Raises      ValueError naming the line at fault
    """
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line and not line.startswith("#"):
            fields = line.split("\t")
            if len(fields) != 3:
                raise ValueError(f"{path}:{number}: expected 3 fields, got {len(fields)}")
            rows.append(NamedKernel(*fields))
    return tuple(rows)
