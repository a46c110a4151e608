"""Derive the small workload tables of the simulator from real traces.

    python scripts/make_workloads.py FOLDER_OF_TRACES [simulator/workloads]

FOLDER_OF_TRACES holds the Kineto traces named in SOURCES below, from public repositories. Each
gives one TOML table: the kernels that make up 99 % of its GPU time, and a row per family for the
rest.
The traces themselves stay where they are.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import ijson
import numpy as np

from kernels.families import FamilyRules
from kernels.launches.kineto import GpuEvent, gpu_events, open_trace

COVERED = 0.99
LONGEST_NAME = 110
QUANTILES = (10, 50, 90, 99)
MODELS = ("V100", "A100", "H100", "H200", "B200", "MI300X", "L40S")
PUBLISHED = {
    "TraceLens": ("github.com/AMD-AGI/TraceLens", "MIT"),
    "HTA": ("github.com/facebookresearch/HolisticTraceAnalysis", "MIT"),
    "param": ("github.com/facebookresearch/param", "MIT"),
}


@dataclass(frozen=True, slots=True)
class Origin:
    """A trace's file, the table made of it, and where it was published."""

    file: str
    table: str
    application: str
    published: str


_SOURCES = """
b200-moe-fp4-eager moe_fp4_b200 moe_inference TraceLens
h100-Falconsai_nsfw_image_detection__1016002 vit_nsfw_h100 image_classification TraceLens
h100-Qwen_Qwen1.5-0.5B-Chat__1016005 qwen1_5_0_5b_h100 llm_inference TraceLens
h100-facebook_timesformer-base-finetuned-k400__1016002 timesformer_h100 video_classification TraceLens
h100-gaunernst_bert-small-uncased__1016001 bert_small_h100 text_encoder TraceLens
h100-google_owlv2-large-patch14-ensemble__1016001 owlv2_large_h100 object_detection TraceLens
v100-dlrm-8rank-worker0 dlrm_rank0_v100 recommendation param
v100-dlrm-8rank-worker3 dlrm_rank3_v100 recommendation param
v100-dlrm-8rank-worker7 dlrm_rank7_v100 recommendation param
v100-train-nccl data_parallel_v100 data_parallel_training HTA
"""  # noqa: E501 - names of files are as long as they are
SOURCES = tuple(
    Origin(f"{file}.json.gz", *rest)
    for file, *rest in map(str.split, _SOURCES.strip().splitlines())
)


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel of a table: durations of all its launches, bytes of its copies."""

    name: str
    family: str
    durations_ns: tuple[int, ...]
    copy_bytes: tuple[int, ...]

    @property
    def time_ns(self) -> int:
        return sum(self.durations_ns)


def short_name(name: str) -> str:
    """Shorten a demangled name to its words: no parameters, namespaces or repeated functor text."""
    name = re.sub(
        r"\{lambda\([^{}]*\)#\d+\}", "lambda", name.replace("(anonymous namespace)::", "")
    )
    name = _without_parameters(name)
    name = re.sub(r"^(void|std::enable_if<.*?>::type) ", "", name)
    name = re.sub(
        r"\b(at|c10|native|cuda|detail|std|binary_internal|engines_precompiled)::", "", name
    )
    name = re.sub(r"(::operator|::lambda| const\b|, [aA]rray<char\*, \d+(ul)?> ?)", "", name)
    name = re.sub(r"\s+", " ", name).replace("> >", ">>").strip()
    if len(name) <= LONGEST_NAME:
        return name
    # Two names that differ past the cut stay two.
    return f"{name[:LONGEST_NAME]}~{hashlib.sha256(name.encode()).hexdigest()[:4]}"


def _without_parameters(name: str) -> str:
    kept, depth = [], 0
    for char in name:
        depth += char == "("
        if depth == 0:
            kept.append(char)
        depth -= char == ")" and depth > 0
    return "".join(kept)


def group(events: list[GpuEvent], rules: FamilyRules) -> list[Row]:
    """Gather events into rows by short name and family, longest first."""
    gathered: dict[tuple[str, str], list[GpuEvent]] = defaultdict(list)
    for event in events:
        gathered[short_name(event.name), rules.classify(event.name)[0]].append(event)
    rows = [
        Row(
            name,
            family,
            tuple(e.duration_ns for e in launches),
            tuple(e.copy_bytes for e in launches if e.copy_bytes is not None),
        )
        for (name, family), launches in gathered.items()
    ]
    return sorted(rows, key=lambda row: (-row.time_ns, row.name))


def fold_tail(rows: list[Row]) -> list[Row]:
    """Keep the kernels that cover 99 % of the time; fold the rest into one row per family."""
    whole = sum(row.time_ns for row in rows)
    kept, covered = [], 0
    while rows and covered < COVERED * whole:
        row, *rows = rows
        kept.append(row)
        covered += row.time_ns
    tail: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tail[row.family].append(row)
    for family, several in sorted(tail.items()):
        durations = tuple(d for row in several for d in row.durations_ns)
        copied = tuple(b for row in several for b in row.copy_bytes)
        kept.append(Row("(everything else)", family, durations, copied))
    return kept


def busy_ns(events: list[GpuEvent]) -> int:
    """Return the time in which at least one stream was busy."""
    total, reached = 0, events[0].start_ns
    for event in events:
        end = event.start_ns + event.duration_ns
        total += max(0, end - max(event.start_ns, reached))
        reached = max(reached, end)
    return total


def steps_and_model(path: Path) -> tuple[int, str]:
    """Count the profiler's step marks (none: one step) and find the GPU's model."""
    with open_trace(path) as stream:
        names = (
            str(e.get("name")) for e in ijson.items(stream, "traceEvents.item", use_float=True)
        )
        steps = {name for name in names if name.startswith("ProfilerStep#")}
    with open_trace(path) as stream:
        gpus = " ".join(ijson.items(stream, "deviceProperties.item.name"))
    return max(len(steps), 1), next((model for model in MODELS if model in gpus), "other")


def table_text(origin: Origin, path: Path, rules: FamilyRules) -> str:
    """Return the TOML text of one workload."""
    events = list(gpu_events(path))
    steps, model = steps_and_model(path)
    span_ns = max(e.start_ns + e.duration_ns for e in events) - events[0].start_ns
    repository, licence = PUBLISHED[origin.published]
    lines = [
        "# Derived by scripts/make_workloads.py; do not edit.",
        "format = 1",
        f'name = "{origin.table}"',
        f'application = "{origin.application}"',
        f'gpu_model = "{model}"',
        f'source = "{repository}"',
        f'source_file = "{origin.file}"',
        f'licence = "{licence}"',
        f"steps = {steps}",
        f"step_ns = {span_ns // steps}",
        f"busy_millionths = {busy_ns(events) * 1_000_000 // span_ns}",
    ]
    for row in fold_tail(group(events, rules)):
        lines += ["", *_row_lines(row, steps)]
    return "\n".join(lines) + "\n"


def _row_lines(row: Row, steps: int) -> list[str]:
    places = np.percentile(row.durations_ns, QUANTILES, method="inverted_cdf")
    lines = [
        "[[kernel]]",
        f"name = '{row.name}'",
        f'family = "{row.family}"',
        f"launches_per_1000_steps = {len(row.durations_ns) * 1_000 // steps}",
        f"time_ns_per_step = {row.time_ns // steps}",
        f"duration_ns = {[int(place) for place in places]}",
    ]
    if row.copy_bytes:
        middle = np.percentile(row.copy_bytes, 50, method="inverted_cdf")
        lines.append(f"copy_bytes = {int(middle)}")
    return lines


def main(arguments: list[str]) -> int:
    """Write one table per trace; say which traces are missing."""
    if not 1 <= len(arguments) <= 2:
        print(__doc__)
        return 2
    traces, out = Path(arguments[0]), Path(arguments[1] if arguments[1:] else "simulator/workloads")
    rules = FamilyRules.load()
    missing = [origin.file for origin in SOURCES if not (traces / origin.file).exists()]
    if missing:
        print(f"missing in {traces}: {', '.join(missing)}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    for origin in SOURCES:
        text = table_text(origin, traces / origin.file, rules)
        (out / f"{origin.table}.toml").write_text(text, encoding="utf-8")
        print(f"{origin.table}: {text.count('[[kernel]]')} rows, {len(text):,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
