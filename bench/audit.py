"""The sampler audit at length: `make bench-audit`.

The true mechanism must pass a two-sided trade-off test over ten million trials, from a seeded
stream and from the operating system's generator; every planted bug must be caught. Each step is
kept in bench/.cache/audit, so that a run cut off goes on; a change of the audited code begins anew.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np

from bench.audit_evidence import Evidence, measured_mu
from bench.audit_mechanism import PLANTED, TRUE, Mechanism, from_system
from bench.parts import Measured, Parts
from bench.record import CACHE, ROOT, Figure

TRIALS: Final = 10_000_000
CHUNK: Final = 200_000
SEED: Final = 20_251_121
TRUE_ONES: Final = (
    replace(TRUE, name="table sampler, seeded"),
    replace(TRUE, name="live agent's sampler", sampler=from_system),
)


def measure(kept: Parts) -> Measured:
    """Run the audit: the true mechanism must pass, and every planted bug must be caught."""
    trials = kept.scaled(TRIALS)
    folder = CACHE / "audit" / _sources_hash()
    folder.mkdir(parents=True, exist_ok=True)
    passed = [_examine(folder, mechanism, trials) == () for mechanism in TRUE_ONES]
    caught = [_examine(folder, bug, min(bug.few or trials, trials)) != () for bug in PLANTED]
    print(f"{sum(passed)} of {len(passed)} true mechanisms pass, "
          f"{sum(caught)} of {len(caught)} planted bugs caught")  # fmt: skip
    if not all(passed):
        raise SystemExit("expected the true mechanism to pass: nothing is written")
    figures = [
        Figure("audit_planted_bugs_caught", sum(caught), "bugs", goal=len(PLANTED)),
        Figure("audit_planted_bugs", len(PLANTED), "bugs"),
        Figure("audit_trials", trials, "trials of each true mechanism", goal=TRIALS),
    ]
    return Measured(figures, wrong=() if all(caught) else ("a planted bug was not caught",))


def _examine(folder: Path, mechanism: Mechanism, trials: int) -> tuple[str, ...]:
    evidence = _gather(folder, mechanism, trials)
    reasons = evidence.verdict()
    said = reasons[0] if reasons else "nothing found"
    print(
        f"{mechanism.name:<42}{evidence.trials:>11,}  mu {measured_mu(evidence):6.4f}  {said}",
        flush=True,
    )
    return reasons


def _gather(folder: Path, mechanism: Mechanism, trials: int) -> Evidence:
    path = folder / (sha256(mechanism.name.encode()).hexdigest()[:16] + ".npz")
    evidence = _load(path)
    while evidence.trials < trials:
        part = min(CHUNK, trials - evidence.trials)
        evidence.merge(Evidence().add(mechanism, part, SEED + evidence.trials))
        _store(path, evidence)
    return evidence


def _load(path: Path) -> Evidence:
    if not path.exists():
        return Evidence()
    with np.load(path, allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in ("curve", "noise", "products", "probe_sums")}
        return Evidence(int(kept["trials"]), faults=set(map(str, kept["faults"])), **arrays)


def _store(path: Path, evidence: Evidence) -> None:
    partial = path.with_suffix(".partial.npz")
    faults = np.array(sorted(evidence.faults), dtype=np.str_)
    np.savez(partial, **{**asdict(evidence), "faults": faults})
    partial.replace(path)


def _sources_hash() -> str:
    digest = sha256()
    for path in sorted([*(ROOT / "privacy").glob("*.py"), *(ROOT / "bench").glob("audit*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
