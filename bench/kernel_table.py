"""Names of kernels with the family that a person gave: the hand-checked table, and public traces.

Which third of the table no rule may be written from was fixed before any name was looked at: it is
a hash of the name's stem, so that all instances of one template fall on one side, and nobody can
choose. The labels of public traces lie beside the checkout, as the traces do.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from bench.record import ROOT
from kernels.families import FamilyRules

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
LABELS: Final = "kernel-labels/labels.csv"
LEARNED_FROM: Final = ("ds-", "hta-", "kineto-", "pub-", "tl-norm-", "tl-mi300-Falconsai")
"""Traces whose names were looked at while rules were written; the others' were first judged."""
_LONGEST_FIELD: Final = 1 << 20


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


@dataclass(frozen=True, slots=True)
class LabelledKernel:
    """One kernel of one trace.

    families    the family that the labeller gave, and others that a careful person may give
    time_us     GPU time of all its launches; 0 where it was published without
    """

    trace: str
    name: str
    families: frozenset[str]
    time_us: float

    @property
    def held_out(self) -> bool:
        """Whether its trace was first judged, and not learned from."""
        return not self.trace.startswith(LEARNED_FROM)


def read_labels(path: Path) -> tuple[LabelledKernel, ...]:
    """Read a table of trace, name, family, also (alternatives between bars) and time_us."""
    csv.field_size_limit(_LONGEST_FIELD)
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(
            LabelledKernel(
                row["trace"],
                row["name"],
                frozenset(filter(None, (row["family"], *row["also"].split("|")))),
                float(row["time_us"]),
            )
            for row in csv.DictReader(file)
        )


def accuracy_by_time(kernels: Iterable[LabelledKernel], rules: FamilyRules) -> Mapping[str, float]:
    """Percent of each trace's GPU time in a right family; traces without times are left out."""
    whole: defaultdict[str, float] = defaultdict(float)
    right: defaultdict[str, float] = defaultdict(float)
    for one in kernels:
        whole[one.trace] += one.time_us
        right[one.trace] += one.time_us * (rules.classify(one.name)[0] in one.families)
    return {trace: 100 * right[trace] / time for trace, time in whole.items() if time}
