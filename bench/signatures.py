"""How well application classes are told apart, and the alternatives: `make bench-signatures`.

Profiles are the simulator's workload tables and those in bench/profiles, each asked about with
its own job taken out. Fourteen profiles are few: the intervals say how few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bench.parts import Measured, Parts
from bench.record import ROOT, Figure
from kernels.families import FamilyRules
from kernels.kernel_mix import OPERATION_WEIGHT, MixMeasure
from kernels.signature_evaluation import Rate, SignatureEvaluation, evaluate, jittered, resampled
from kernels.signature_profiles import read_profile
from kernels.signatures import Signature

SEED: Final = 20_261_121
WEIGHTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
VARIANTS: Final = {
    "a window of 500 launches": resampled(500, SEED),
    "every share times or over 1.35": jittered(0.3, SEED),
    "times or over 1.8": jittered(0.6, SEED),
}
"""The third is beyond what hosts of one program differ by: where it breaks."""

FOLDERS: Final = (ROOT / "simulator" / "workloads", ROOT / "bench" / "profiles")


def measure(_kept: Parts) -> Measured:
    """Ask about each profile, by every measure; print the alternatives."""
    profiles = all_profiles()
    weights = [
        {"measure": measure.value, "weight": weight, "shipped": weight == OPERATION_WEIGHT,
         **_row(evaluate(profiles, measure, weight=weight))}
        for measure in MixMeasure
        for weight in WEIGHTS
    ]  # fmt: skip
    variants = [
        {"measure": measure.value, "variant": label,
         **_row(evaluate(profiles, measure, perturb=variant))}
        for label, variant in VARIANTS.items()
        for measure in MixMeasure
    ]  # fmt: skip
    for row in (*weights, *variants):
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    figures = [Figure("signature_profiles", len(profiles), "profiles")]
    for measure in MixMeasure:
        figures += _figures(measure.value, evaluate(profiles, measure))
    return Measured(figures, {"weights": weights, "variants": variants})


def all_profiles() -> list[Signature]:
    """Read what the packaged signatures were learned from."""
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
    rates = {
        "nearest": found.nearest, "answered": found.answered, "accepted": found.false_accepts,
    }  # fmt: skip
    return {
        **{name: rate.hits for name, rate in rates.items()},
        "asked": found.answered.trials,
        "unknown": found.false_accepts.trials,
        "auroc": found.auroc,
    }
