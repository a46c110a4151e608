"""How well the family rules do: make bench-families.

GPU time in a right family over labelled traces, GPU time in the family "other" over recorded ones,
and the share of names that are classed right among those the rules were never written from. It
needs `kernel-labels` and `kineto` in `shared/data` beside the checkout, or in the folder that
POINTILLIST_SHARED_DATA names.

Which third of the table of names no rule may be written from was fixed before any name was looked
at: it is a hash of the name's stem, so that all instances of one template fall on one side, and
nobody can choose.

How well application classes are told apart, and the alternatives: make bench-signatures. Profiles
are the simulator's workload tables and those in bench/profiles, each asked about with its own job
taken out. Fourteen profiles are few: the intervals say how few.
"""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import mean, median_high
from typing import Any, Final

from bench.parts import Measured, Parts
from bench.record import ROOT, Figure
from kernels.families import FamilyRules
from kernels.kernel_mix import OPERATION_WEIGHT, MixMeasure
from kernels.launches.kineto import gpu_events
from kernels.signature_learning import (
    Rate,
    SignatureEvaluation,
    evaluate,
    read_profile,
    wilson_interval,
)
from kernels.signatures import Signature
from wire.catalogue import Catalogue

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
OTHER: Final = "other"
WEIGHTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
FOLDERS: Final = (ROOT / "simulator" / "workloads", ROOT / "bench" / "profiles")


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


def measure(_kept: Parts) -> Measured:
    """Classify labelled and recorded traces, and the names of the table."""
    folder = data_folder()
    traces = sorted((folder / "kineto").glob("*.json.gz"))
    if not traces or not (folder / LABELS).exists():
        raise SystemExit(
            f"no kineto/*.json.gz and {LABELS} in {folder}: name the folder that holds both in "
            "POINTILLIST_SHARED_DATA"
        )
    rules = FamilyRules.load(families=Catalogue.load().classes("family"))
    others = {trace.name: other_percent(trace, rules) for trace in traces}
    for name, percent in sorted(others.items(), key=lambda row: -row[1]):
        print(f"{percent:8.3f} % other  {name}")
    rows = read_table()
    unseen = unseen_rows(rows, rules)
    seen = [row for row in rows if row not in unseen]
    figures = [
        *_by_time(folder / LABELS, rules),
        Figure("other_percent_median", median_high(others.values()), "percent of GPU time", 1),
        Figure("other_percent_worst", max(others.values()), "percent of GPU time", 5),
        Figure("other_traces", len(others), "traces"),
        *_accuracy("seen", seen, rules),
        *_accuracy("heldout", unseen, rules),
        Figure("names", len(rows), "names of the table"),
    ]
    return Measured(figures)


def data_folder() -> Path:
    """Where the recorded traces and the labelled names lie."""
    named = os.environ.get("POINTILLIST_SHARED_DATA")
    return Path(named) if named else ROOT.parent / "shared" / "data"


def other_percent(trace: Path, rules: FamilyRules) -> float:
    """Percent of a trace's GPU time in the family `other`."""
    whole = other = 0
    for event in gpu_events(trace):
        whole += event.duration_ns
        other += event.duration_ns * (rules.classify(event.name)[0] == OTHER)
    return 100 * other / max(whole, 1)


def unseen_rows(rows: Sequence[NamedKernel], rules: FamilyRules) -> list[NamedKernel]:
    """Held-out rows that no rule can have been written from.

    The traces were known when the first rules were written, so their names count as seen, and so
    does any name that shares its stem with one of them or with an example of a rule.
    """
    known = {stem(name) for rule in rules.rules for name in rule.match}
    known |= {stem(row.name) for row in rows if row.source == "trace"} | SPENT
    return [
        row
        for row in rows
        if row.held_out and row.source != "trace" and stem(row.name) not in known
    ]


def right(rows: Sequence[NamedKernel], rules: FamilyRules) -> int:
    return sum(rules.classify(row.name)[0] == row.family for row in rows)


def _by_time(labels: Path, rules: FamilyRules) -> list[Figure]:
    """Give how right the rules are by GPU time: all traces, and those that were first judged."""
    kernels = read_labels(labels)
    found = accuracy_by_time(kernels, rules)
    unseen = accuracy_by_time([one for one in kernels if one.held_out], rules)
    for trace, percent in sorted(found.items(), key=lambda row: row[1]):
        print(f"{percent:8.3f} % of GPU time right  {trace}")
    unit = "percent of GPU time"
    return [
        Figure("accuracy_by_time_worst_percent", min(found.values()), unit, 80),
        Figure("accuracy_by_time_mean_percent", mean(found.values()), unit, 95),
        Figure("accuracy_by_time_traces", len(found), "traces"),
        Figure("accuracy_by_time_heldout_worst_percent", min(unseen.values()), unit, 80),
        Figure("accuracy_by_time_heldout_traces", len(unseen), "traces"),
    ]


def _accuracy(part: str, rows: Sequence[NamedKernel], rules: FamilyRules) -> Iterator[Figure]:
    good, name = right(rows, rules), f"{part}_name_accuracy_percent"
    yield Figure(f"{part}_names", len(rows), "names")
    yield Figure(name, 100 * good / len(rows), "percent of names")
    if part == "heldout":
        low, high = wilson_interval(good, len(rows))
        wrong = sum(rules.classify(row.name)[0] not in {row.family, OTHER} for row in rows)
        yield Figure(f"{name}_low", 100 * low, "percent, 95 % interval")
        yield Figure(f"{name}_high", 100 * high, "percent, 95 % interval")
        yield Figure(f"{part}_name_wrong_family_percent", 100 * wrong / len(rows), "percent")


def signatures(_kept: Parts) -> Measured:
    """Ask about each profile, by every measure; print the alternatives."""
    profiles = all_profiles()
    weights = [
        {"measure": measure.value, "weight": weight, "shipped": weight == OPERATION_WEIGHT,
         **_row(evaluate(profiles, measure, weight=weight))}
        for measure in MixMeasure
        for weight in WEIGHTS
    ]  # fmt: skip
    for row in weights:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    figures = [Figure("signature_profiles", len(profiles), "profiles")]
    for measure in MixMeasure:
        figures += _figures(measure.value, evaluate(profiles, measure))
    return Measured(figures, {"weights": weights})


def all_profiles() -> list[Signature]:
    rules = FamilyRules.load()
    paths = [path for folder in FOLDERS for path in sorted(folder.glob("*.toml"))]
    return [read_profile(path, rules) for path in paths]


def _figures(measure: str, found: SignatureEvaluation) -> list[Figure]:
    rates = {
        "nearest_right_percent": found.nearest,
        "answered_right_percent": found.answered,
        "false_accept_percent": found.false_accepts,
    }
    figures = [
        figure
        for name, rate in rates.items()
        for figure in _rate_figures(f"application_{measure}_{name}", rate)
    ]
    if found.auroc is not None:
        figures.append(Figure(f"application_{measure}_unknown_auroc", found.auroc, "probability"))
    return figures


def _rate_figures(name: str, rate: Rate) -> Sequence[Figure]:
    low, high = rate.interval
    return (
        Figure(name, 100 * (rate.share or 0.0), f"percent of {rate.trials} profiles"),
        Figure(f"{name}_low", 100 * low, "percent, 95 % interval"),
        Figure(f"{name}_high", 100 * high, "percent, 95 % interval"),
    )


def _row(found: SignatureEvaluation) -> dict[str, Any]:
    answered, accepted = found.answered, found.false_accepts
    return {
        "nearest": found.nearest.hits, "answered": answered.hits, "accepted": accepted.hits,
        "asked": answered.trials, "unknown": accepted.trials, "auroc": found.auroc,
    }  # fmt: skip
