"""F1 of made GPU faults on their recordings, by the agent's diagnoser: make bench-diagnosis-gpu.

Those for training (the first injectors of each cause, low and high) and those that judge (other
injectors, every middle intensity) are told apart; hard negatives judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.record import ROOT, Figure, write_result
from diagnosis.detect.findings import Cause
from diagnosis.detect.rules import RULES_TITLE
from diagnosis.frames.recording import read_meta
from pointillist.judging.figures import (
    GPU_CAUSES,
    Pair,
    class_rows,
    delays,
    macro_f1,
    pairs_of,
)
from pointillist.judging.outcomes import Judged
from pointillist.judging.results import class_document, judged_run
from pointillist.judging.runs import labelled_paths, read_run

FOLDER: Final = ROOT / "bench" / "recordings-gpu"
NOT_JUDGED: Final = {
    "pcie_pressure by copies": "NVML's throughput is sampled, and no recording has any: it takes a "
    "real GPU, `make gpu-check`",
    "mps by name": "NVML gives MPS clients as processes; that they share by MPS is not told",
}


@dataclass(frozen=True, slots=True)
class JudgedCase:
    name: str
    injector: str
    intensity: str
    cause: Cause | None
    held_out: bool
    judged: Judged


def judged_cases(folder: Path) -> list[JudgedCase]:
    found = []
    for path in labelled_paths(folder):
        run, meta = read_run(path), read_meta(path)
        cause = run.facts.faults[0].cause if run.facts.faults else None
        case = str(meta["injector"]), str(meta["intensity"]), cause, bool(meta["held_out"])
        found.append(JudgedCase(path.stem, *case, judged_run(run)))
    return found


def figures(cases: Sequence[JudgedCase]) -> list[Figure]:
    """Give the figures of held-out recordings, and of those for training beside them."""
    judging = [one for one in cases if one.held_out]
    training = [one for one in cases if not one.held_out]
    outcomes = [one for case in judging for one in case.judged.outcomes if one.episode.impact]
    calm = [case for case in judging if case.cause is None]
    count = len(class_rows(_pairs(judging), GPU_CAUSES))
    found = [
        ("gpu_fault_f1", _macro_f1(judging), f"macro-F1 of {count} causes, held out"),
        (
            "gpu_fault_f1_ungated",
            _macro_f1(judging, gated=False),
            "the same, faults without impact too",
        ),
        ("gpu_fault_f1_taught", _macro_f1(training), "on what the rules were made with"),
        ("gpu_faults_held_out", float(len(outcomes)), "faults with impact"),
        ("gpu_fault_detect_p95_s", delays(outcomes, 95), "s from the impact"),
        ("gpu_fault_cause_p95_s", delays(outcomes, 95, cause=True), "s from the impact"),
        (
            "gpu_fault_causes_right",
            sum(one.right for one in outcomes) / max(1, len(outcomes)),
            "share of held-out faults with impact",
        ),
        ("gpu_negatives", float(len(calm)), "recordings without a GPU fault"),
        (
            "gpu_negatives_accused",
            float(sum(any(a.cause in GPU_CAUSES for a in one.judged.alarms) for one in calm)),
            "of them with a GPU cause named",
        ),
    ]
    return [Figure(name, round(value, 4), unit) for name, value, unit in found]


def tables(cases: Sequence[JudgedCase]) -> dict[str, Any]:
    """Give precision and recall by cause, and what was said of each recording."""
    by_cause = [
        {"split": split, **class_document(row)}
        for split, chosen in (("held out", True), ("taught", False))
        for row in class_rows(_pairs(one for one in cases if one.held_out is chosen), GPU_CAUSES)
    ]
    return {"by_cause": by_cause, "recordings": [_row(one) for one in cases]}


def main() -> None:
    cases = judged_cases(FOLDER)
    found = figures(cases)
    for one in found:
        print(f"{one.name:28} {one.value:8.3f} {one.unit}")
    extra = {
        "model": RULES_TITLE,
        "made": "a fake NVML of true ABI; steps slow down as the made state says. Real: pynvml's "
        "binding, step marks by uprobe, the host's signals, frames, detection, diagnosis",
        "not_judged": NOT_JUDGED,
        "tables": tables(cases),
    }
    print(write_result("diagnosis_gpu", "make bench-diagnosis-gpu", found, tables=extra))


def _macro_f1(cases: Iterable[JudgedCase], gated: bool = True) -> float:
    return macro_f1(_pairs(cases, gated), GPU_CAUSES)


def _pairs(cases: Iterable[JudgedCase], gated: bool = True) -> list[Pair]:
    return [pair for case in cases for pair in pairs_of(case.judged, gated, quiet=True)]


def _row(case: JudgedCase) -> dict[str, Any]:
    (outcome,) = case.judged.outcomes or (None,)
    said = [str(alarm.cause) for alarm in case.judged.alarms]
    row: dict[str, Any] = {
        "recording": case.name, "cause": str(case.cause or ""), "injector": case.injector,
        "intensity": case.intensity, "held_out": case.held_out, "alarms": said,
    }  # fmt: skip
    if outcome is None:
        return row
    rise = outcome.episode.rise
    return row | {
        "rise": None if rise is None else round(rise, 3),
        "impact": outcome.episode.impact,
        "answer": str(outcome.answer or ""),
        "detect_s": outcome.detect_s and round(outcome.detect_s, 2),
        "cause_s": outcome.cause_s and round(outcome.cause_s, 2),
    }


if __name__ == "__main__":
    main()
