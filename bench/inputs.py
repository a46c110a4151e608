"""What people have is read as they mean it: make bench-inputs.

`cases` takes small inputs that showed a fault in the field, one of a kind each, and counts those
whose answer is right now. They lie in `shared/repro/field` beside the checkout. `forms` counts the
forms of files that `kernels classify` knows, and judges the families of public traces by GPU time:
bench/form_labels.tsv holds their kernels as they were read from the profilers' own files, with a
family by hand. Time whose family a careful person may doubt (`?`) counts as wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from bench.families import LabelledKernel, accuracy_by_time, data_folder
from bench.parts import Measured, Parts
from bench.record import Figure
from collectors.devices.amdgpu import AmdgpuReader
from collectors.devices.device_port import Field
from collectors.kernel_log import Sign, load_rules
from diagnosis.stragglers.judge import job_of, judge
from diagnosis.stragglers.trace_file import read_trace
from kernels.families import FamilyRules
from kernels.kernel_mix import family_shares
from kernels.launches.launch import LaunchesRefused
from kernels.launches.read import open_launches
from kernels.launches.tables import FORMS
from tests.fake_nvml_kit import FakeDriver
from wire.catalogue import Catalogue

LABELS: Final = Path(__file__).with_name("form_labels.tsv")
_OTHER_FORMS: Final = 5
"""SQLite of Nsight Systems, JSON of PyTorch and of rocprofv3, a table in TOML, names."""
_NOTHING: Final = "no launches"


def classified(path: Path) -> str | dict[str, int]:
    """Give the nanoseconds of each family, or why a file is refused."""
    try:
        found = open_launches(path)
        rows = family_shares(found.launches, FamilyRules.load())
    except LaunchesRefused as refused:
        return str(refused)
    remarks = "".join(found.remarks)
    return {row.family: row.gpu_time_ns or 0 for row in rows} | {remarks: 0} if rows else _NOTHING


def _times(**families: int) -> Callable[[Path], bool]:
    def right(path: Path) -> bool:
        found = classified(path)
        return isinstance(found, dict) and {k: v for k, v in found.items() if v} == families

    return right


def _refused(path: Path) -> bool:
    return isinstance(classified(path), str)


def _said(words: str) -> Callable[[Path], bool]:
    return lambda path: any(words in remark for remark in classified(path))


def _slow(rank: int) -> Callable[[Path], bool]:
    return lambda path: [one.rank for one in judge(job_of(read_trace(path))).slow] == [rank]


def _links_unknown(scenario: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        driver = FakeDriver(Path(folder))
        driver.play(*scenario.read_text(encoding="utf-8").splitlines())
        ran = subprocess.run(
            [sys.executable, "-m", "pointillist", "agent", "health", "--json"],
            env={**os.environ, **driver.environment}, capture_output=True, check=False,
        )  # fmt: skip
    checks = {row["check"]: row["verdict"] for row in json.loads(ran.stdout)["checks"]}
    return bool(checks["nvlink"] == "unknown")


def _severities(log: Path) -> bool:
    signs = [load_rules().sign(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [(sign.cell, sign.known) for sign in signs if isinstance(sign, Sign)] == [
        ("faulty_gpu", True), (None, True),
    ]  # fmt: skip


def _junction(listed: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        card = Path(folder) / "card0" / "device"
        (card / "hwmon" / "hwmon1").mkdir(parents=True)
        (card / "vendor").write_text("0x1002", encoding="ascii")
        for line in listed.read_text(encoding="utf-8").splitlines():
            name, _, text = line.partition(" ")
            (card / "hwmon" / "hwmon1" / name).write_text(text, encoding="ascii")
        reader = AmdgpuReader(Path(folder))
        reader.open()
        values = reader.read(0, (Field.TEMPERATURE, Field.POWER)).values
    return values == {Field.TEMPERATURE: 43, Field.POWER: 137_000}


CASES: Final[Mapping[str, Callable[[Path], bool]]] = {
    "nsys_cuda_api_trace.csv": _refused,
    "nsys_nvtx_pushpop_trace.csv": _refused,
    "rocprofv3_hip_api_stats.csv": _refused,
    "ncu_locale_de.csv": _times(attention=1_117_344, gemm=117_344, reduce=992, softmax=8_150),
    "ncu_details_short_rows.csv": _times(attention=13_500, gemm=6_750),
    "nsys_graph_mixed.sqlite": _said("0.300 ms more lie in 20 launches of CUDA graphs"),
    "nsys_kern_sum_semicolon.csv": _times(gemm=600_000),
    "nvprof_gpu_trace_us.csv": _times(gemm=117_300),
    "kineto_overlapping_slices.json": _said("of 573.000 ms are told twice"),
    "kineto_bom.json": _times(gemm=251_130),
    "kineto_windows_path.json": _times(elementwise=50_000, gemm=100_000),
    "stragglers_fa3": _slow(1),
    "stragglers_rank_after_nested": _slow(1),
    "kmsg_xid_nvlink5.txt": _severities,
    "nvml_pcie_no_bridge.scenario": _links_unknown,
    "amd_mi300_hwmon.txt": _junction,
}


def cases(_kept: Parts) -> Measured:
    folder = data_folder().parent / "repro" / "field"
    if not folder.is_dir():
        raise SystemExit(f"no inputs of the field in {folder}")
    unknown = {path.name for path in folder.iterdir()} - {*CASES, "README.md"}
    wrong = sorted(unknown | {name for name, right in CASES.items() if not right(folder / name)})
    count = len(CASES) + len(unknown)
    return Measured(
        [
            Figure("field_cases", count, "inputs"),
            Figure("field_cases_right", count - len(wrong), "inputs", count),
        ],
        wrong=[f"{name}: not as it should be" for name in wrong],
    )


def measure(_kept: Parts) -> Measured:
    rules = FamilyRules.load(families=Catalogue.load().classes("family"))
    rows = [
        line.split("\t")
        for line in LABELS.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    kernels = [
        LabelledKernel(trace, name, frozenset({family}), float(time_us))
        for trace, _, family, time_us, name in rows
    ]
    found = accuracy_by_time(kernels, rules)
    doubted: defaultdict[str, float] = defaultdict(float)
    whole: defaultdict[str, float] = defaultdict(float)
    for one in kernels:
        whole[one.trace] += one.time_us
        doubted[one.trace] += one.time_us * ("?" in one.families)
    table: list[dict[str, Any]] = [
        {
            "trace": trace,
            "right_percent": round(percent, 2),
            "doubted_percent": round(100 * doubted[trace] / whole[trace], 2),
        }
        for trace, percent in sorted(found.items(), key=lambda row: row[1])
    ]
    for row in table:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    unit = "percent of GPU time"
    sure = min(row["right_percent"] + row["doubted_percent"] for row in table)
    return Measured(
        [
            Figure("forms_known", len(FORMS) + _OTHER_FORMS, "forms of files"),
            Figure("forms_accuracy_by_time_worst_percent", min(found.values()), unit, 95),
            Figure("forms_accuracy_by_time_worst_undoubted_percent", sure, unit),
            Figure("forms_traces", len(found), "public traces", 12),
        ],
        {"forms": table},
    )
